"""Splits loops of a nest into loops over tiles and loops inside them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.dialects.nest import LayerOp
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Mapping
from cnncc.passes._scheduling.nest_layers import goal_of, reschedule
from cnncc.passes._scheduling.rewrites import tile, tile_as


@dataclass(frozen=True)
class NestTilePass(ModulePass):
    """Splits the outermost loop over `dim` whose step is below `size`, by hand; else as the layers' mappings say.

    With `dim=h size=4`, and with `dim=h,w size=4,2`: the loops over tiles are around all:

        nest.for h { … }   ->   nest.for h step 4 { nest.for h { … } }
        nest.for h { nest.for w { … } }
        ->
        nest.for h step 4 { nest.for w step 2 { nest.for h { nest.for w { … } } } }

    Illegal for loops in space, which `nest-split` folds, and where a stage is in the way.

    Without options the `mapping` of a layer gives the tiles, the largest of each dimension first. Order, axes and
    stages are left to the passes that follow.
    """

    name = "nest-tile"

    dim: tuple[str, ...] = ()
    size: tuple[int, ...] = ()
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if len(self.dim) != len(self.size):
            raise Refusal("nest-tile: options dim and size go together, a size for each dim")
        reschedule(self.name, ctx, op, self.layer, self._tiled, by_hand=bool(self.dim))

    def _tiled(self, layer: LayerOp, mapping: Mapping) -> Mapping | None:
        if self.dim:
            return tile(mapping, layer.sizes.data, list(zip(self.dim, self.size, strict=True)))
        goal = goal_of(layer)
        return goal and tile_as(mapping, layer.sizes.data, goal)
