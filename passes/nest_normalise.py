"""Brings nests into their one canonical form."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.passes._scheduling.nest_layers import reschedule
from cnncc.passes._scheduling.rewrites import normalised


@dataclass(frozen=True)
class NestNormalisePass(ModulePass):
    """Brings each nest into a normal form: nests that do the same in the same order then print equally.

    1. Loops that run once are left out.
    2. Loops in time over one dimension, directly around each other, become one.
    3. Neighbouring loops in space on rows come first. Loops over one dimension keep their order.
    4. Stages at one place are in the order glb, rf, of weight, ifmap, params, residual, output.

        nest.for n { nest.for h step 4 { nest.for h { nest.par w on cols { nest.par k on rows { … } } } } }
        ->
        nest.for h { nest.par k on rows { nest.par w on cols { … } } }

    Legal always.
    """

    name = "nest-normalise"

    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        reschedule(
            self.name, ctx, op, self.layer, lambda layer, nest: normalised(nest, layer.sizes.data), by_hand=False
        )
