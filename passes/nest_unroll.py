"""Runs loops of a nest side by side on the array."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.arch.model import load_arch
from cnncc.dialects.nest import LayerOp
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Mapping
from cnncc.passes._scheduling.array_fit import checked_in_space
from cnncc.passes._scheduling.nest_layers import goal_of, reschedule
from cnncc.passes._scheduling.rewrites import unroll, unroll_as


@dataclass(frozen=True)
class NestUnrollPass(ModulePass):
    """Puts the loop over `dim` on `axis` (rows, cols), by hand; else all loops as the layers' mappings say.

    `occurrence` counts the loops over `dim` from outside, 1 being the outermost; the default is the innermost.
    With `dim=h axis=rows`:

        nest.for h step 4 { nest.for h { … } }   ->   nest.for h step 4 { nest.par h on rows { … } }

    With `arch` (a preset or a file) it is refused if that array has too few PEs, or no link for sums over c, r, s. Too
    many iterations are folded by `nest-split` first.
    """

    name = "nest-unroll"

    dim: str | None = None
    axis: str | None = None
    occurrence: int | None = None
    arch: str | None = None
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if (self.dim is None) != (self.axis is None) or (self.dim is None and self.occurrence is not None):
            raise Refusal("nest-unroll: options dim and axis go together, and occurrence needs both")
        reschedule(self.name, ctx, op, self.layer, self._unrolled, by_hand=self.dim is not None)

    def _unrolled(self, layer: LayerOp, mapping: Mapping) -> Mapping | None:
        arch = load_arch(self.arch) if self.arch else None
        if self.dim is not None and self.axis is not None:
            return checked_in_space(unroll(mapping, self.dim, self.axis, self.occurrence), layer, arch)
        goal = goal_of(layer)
        return goal and checked_in_space(unroll_as(mapping, goal), layer, arch)
