"""Splits a loop of a nest into two."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.dialects.nest import LayerOp
from cnncc.mapping.mapping import Mapping
from cnncc.passes._scheduling.nest_layers import reschedule
from cnncc.passes._scheduling.rewrites import find, split


@dataclass(frozen=True)
class NestSplitPass(ModulePass):
    """Makes two loops of the one over `dim`: one over tiles of `size` indices in time, directly inside it the rest.

    `occurrence` counts the loops over `dim` from outside, 1 being the outermost; the default is the innermost.
    With `dim=h size=4`, and of a loop in space, which is folded so that it takes 4 PEs:

        nest.for h { … }           ->   nest.for h step 4 { nest.for h { … } }
        nest.par h on rows { … }   ->   nest.for h step 4 { nest.par h on rows { … } }

    Legal is a size between the loop's step and its extent. `nest-tile` is this for several dimensions at a time, with
    the loops over tiles around all others; `nest-merge-loops` takes it back.
    """

    name = "nest-split"

    dim: str
    size: int
    occurrence: int | None = None
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        reschedule(self.name, ctx, op, self.layer, self._split)

    def _split(self, layer: LayerOp, mapping: Mapping) -> Mapping:
        return split(mapping, layer.sizes.data, find(mapping, self.dim, self.occurrence), self.size)
