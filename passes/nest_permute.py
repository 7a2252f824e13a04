"""Reorders the loops of a nest."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.dialects.nest import LayerOp
from cnncc.mapping.mapping import Mapping
from cnncc.passes._scheduling.nest_layers import goal_of, listed, reschedule
from cnncc.passes._scheduling.rewrites import permute, permute_as


@dataclass(frozen=True)
class NestPermutePass(ModulePass):
    """Puts the loops in `order` (dimensions, outermost first, comma-separated); else in that of the layers' mappings.

    A dimension is named once for each loop over it; tiles stay around what they are tiles of. With `order=h,c,h`:

        nest.for h step 4 { nest.for h { nest.for c { … } } }
        ->
        nest.for h step 4 { nest.for c { nest.for h { … } } }

    Sums do not depend on the order of their terms, so any order is legal before stages are in place.
    """

    name = "nest-permute"

    order: tuple[str, ...] = ()
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        reschedule(self.name, ctx, op, self.layer, self._permuted, by_hand=bool(self.order))

    def _permuted(self, layer: LayerOp, mapping: Mapping) -> Mapping | None:
        if self.order:
            return permute(mapping, listed(self.order))
        goal = goal_of(layer)
        return goal and permute_as(mapping, goal)
