"""What PEs and box take of each dimension at a time: all that blocks and partial sums depend on of a point. No IR."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from cnncc.mapper.arrays import Counts, Flags, PerPlan
from cnncc.mapper.space import Form, Numbers, Point, block_distributed
from cnncc.model.layer_shape import LayerShape


def any_of(conditions: Iterable[Flags | bool]) -> Flags | bool:
    """Whether one of them holds, which may be arrays."""
    holds: Flags | bool = False
    for condition in conditions:
        holds = holds | condition
    return holds


class Tiles(NamedTuple):
    """What blocks depend on of a point.

    - k, h, w, c: indices that the array's PEs with their boxes take at a time
    - taps: whether there are loops over r or s in time outside the box
    - spaces: the number of loops in space
    - uneven: those of c and r of which fewer PEs add up a rest
    """

    form: Form
    k: int
    h: int
    w: int
    c: int
    taps: bool = False
    spaces: int = 0
    uneven: str = ""

    @classmethod
    def of_many(cls, form: Form, each: Counts) -> Tiles:
        """Several tiles (number, k h w c). A dimension in which all are alike stays one number: arrays are smaller."""
        k, h, w, c = (int(dim[0]) if (dim == dim[0]).all() else dim[:, None] for dim in each.T)
        return cls(form, k, h, w, c)

    def adds_up(self, extent: Mapping[str, PerPlan | int]) -> dict[str, Flags | bool]:
        """For c, r and s: whether a loop in time over k, h or w runs inside the loop over the dimension.

        If both loops run, the GLB adds up partial sums. If fewer PEs add up a rest of a dimension (`uneven`), it does
        so in the loop over that dimension and in the loops around it, too. extent: indices of k, h and w in a block.
        """
        inside = _inside(self.form.order)
        return {
            dim: (self.uneven != "" and any(other in self.uneven for other in loops))
            or any_of(extent[d] > getattr(self, d) for d in tiled)
            for dim, (loops, tiled) in inside.items()
        }

    def block(self, dim: str) -> int:
        """The size of which blocks are multiples: a tile; 1 in a block-distributed dimension (SPACE-5)."""
        return 1 if block_distributed(self.form, dim) else getattr(self, dim)


@cache
def _inside(order: str) -> dict[str, tuple[str, str]]:
    """For c, r and s: the loops from that over the dimension on, and those of them over k, h and w."""
    inside = {dim: order[order.find(dim) :] if dim in order else "" for dim in "crs"}
    return {dim: (loops, "".join(each for each in loops if each in "khw")) for dim, loops in inside.items()}


def tiles_of(shape: LayerShape, at: Point) -> Tiles:
    """The tiles of a point."""
    sizes, (rk, rh, rc, rr), (ck, ch, cw), (bk, bw, bh, bc, br, bs) = shape.sizes, at.rows, at.cols, at.box
    k, h, w = min(rk * ck * bk, shape.tiled_together), min(rh * ch * bh, sizes.h), min(cw * bw, sizes.w)
    c, r = min(rc * bc, sizes.c), min(rr * br, sizes.r)
    spaces = (rk > 1) + (rh > 1) + (ck > 1) + (ch > 1) + (cw > 1)
    uneven = "c" * (rc > 1 and sizes.c % c > 0) + "r" * (rr > 1 and sizes.r % r > 0)
    return Tiles(at.form, k, h, w, c, r < sizes.r or bs < sizes.s, spaces, uneven)


def tiles_in_time(everything: Numbers, indices: Counts) -> Counts:
    """Of combinations: indices of k h w c that PEs and box take at a time. Shape (combinations, 4)."""
    sizes, (row, col, box) = everything.shape.sizes, np.ascontiguousarray(indices.T)
    (rk, rh, rc, _), (ck, ch, cw), (bk, bw, bh, bc, *_) = everything.rows.T, everything.cols.T, everything.boxes.T
    tiles = np.empty((len(row), 4), np.int64)
    np.minimum(rk.take(row) * ck.take(col) * bk.take(box), everything.shape.tiled_together, out=tiles[:, 0])
    np.minimum(rh.take(row) * ch.take(col) * bh.take(box), sizes.h, out=tiles[:, 1])
    np.minimum(cw.take(col) * bw.take(box), sizes.w, out=tiles[:, 2])
    np.minimum(rc.take(row) * bc.take(box), sizes.c, out=tiles[:, 3])
    return tiles
