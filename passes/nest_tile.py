"""Splits loops of a nest into loops over tiles and loops inside them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.dialects.nest import LayerOp, Mapping
from cnncc.errors import Refusal
from cnncc.passes._mapping import tile, tile_as
from cnncc.passes._nest_layers import goal_of, reschedule


@dataclass(frozen=True)
class NestTilePass(ModulePass):
    """Splits the outermost loop over `dim` whose step is below `size`, by hand; else as the layers' mappings say.

    With `dim=h size=4`:

        nest.for h { … }   ->   nest.for h step 4 { nest.for h { … } }

    Without options every layer with a `mapping` gets all loops that it lists, those over one dimension
    directly around each other; order, axes and stages are left to the passes that follow.
    """

    name = "nest-tile"

    dim: str | None = None
    size: int | None = None
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if (self.dim is None) != (self.size is None):
            raise Refusal("nest-tile: options dim and size go together")
        reschedule(self.name, op, self.layer, self._tiled)

    def _tiled(self, layer: LayerOp, mapping: Mapping) -> Mapping | None:
        if self.dim is not None and self.size is not None:
            return tile(mapping, layer.sizes.data, self.dim, self.size)
        goal = goal_of(layer)
        return goal and tile_as(mapping, goal)
