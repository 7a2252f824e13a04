"""The loops of a mapping, dimension by dimension, and how many positions they reach. No IR.

A loop over a dimension has full tiles and a rest, and inner loops have different extents in each. A *route* chooses the
full tiles or the rest at each loop over one dimension. Loops over different dimensions are independent, so a nest's
counts are products over dimensions of sums over routes. A dimension with l loops has at most 2^l routes, however many
indices it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, TypeVar

from cnncc.errors import Refusal
from cnncc.mapping.mapping import REDUCTION_DIMS, Loop, Mapping, even_sets, rest_sets
from cnncc.model.layer_shape import LayerShape, whole
from cnncc.model.occupancy import SpatialLoop
from cnncc.model.register_files import lanes_used


class RouteLoop(NamedTuple):
    """A route's part in one loop.

    n: iterations. step: indices of each. on: the axis; empty in time.
    """

    n: int
    step: int
    on: str


InSpace = TypeVar("InSpace", RouteLoop, SpatialLoop)


def passing_loop(over_w: Iterable[InSpace], pixels: int) -> InSpace | None:
    """The loop over w whose PEs pass columns on (COST-3), if they do at all; None if each PE is a set by itself.

    It is the last one on columns, with no loop over w between it and the box: it steps by the pixels of a PE.
    """
    *_, last = None, *(loop for loop in over_w if loop.on == "cols")
    return last if last and last.step == pixels else None


@dataclass(frozen=True)
class Route:
    """A route through the loops over one dimension: first index, runs from outside to inside, indices left inside."""

    first: int
    runs: tuple[RouteLoop, ...]
    held: int

    @property
    def trips(self) -> int:
        """Iterations in time."""
        return prod(run.n for run in self.runs if not run.on)

    @property
    def pes(self) -> int:
        """PEs side by side."""
        return prod(run.n for run in self.runs if run.on)

    def terms(self, unit: int, in_space: bool) -> list[RouteTerm]:
        """The terms of its runs, in time or in space, in a position that moves by `unit` for each index."""
        return [RouteTerm(run.n, run.step * unit) for run in self.runs if bool(run.on) == in_space]


class RouteTerm(NamedTuple):
    """A term of a position: 0, step, 2 step, … (n - 1) step."""

    n: int
    step: int


class Nest:
    """The loops of a mapping outside the box, `outer`, and in it, `kept`, of a layer.

    first: rows of the first tile of the outermost loop over h, where they are fewer than its step (GROUP-1).
    """

    def __init__(self, shape: LayerShape, mapping: Mapping, first: int = 0) -> None:
        self.shape, self.first = shape, first
        self.outer = tuple(loop for loop in mapping.loops if not loop.keep)
        self.sets = rest_sets(shape.sizes, mapping.loops, shape.tiled_together)
        self.kept = tuple(loop for loop in mapping.loops if loop.keep)
        self.lane_dims = "".join(loop.dim for loop in self.kept if loop.on)
        self._check_periods(mapping.loops)

    def _check_periods(self, loops: Sequence[Loop]) -> None:
        """Raises Refusal for a loop over output channels that crosses a period of an operand."""
        for operand, period in self.shape.periods.items():
            extent = self.shape.sizes.k
            for loop in (loop for loop in loops if loop.dim == "k"):
                if loop.step % period and extent > period:
                    raise Refusal(
                        f"a loop over k steps by {loop.step} through {extent} output channels, but the {operand}'s "
                        f"positions start anew every {period}: give it a multiple of {period}, or a loop of step "
                        f"{period} around it"
                    )
                extent = min(extent, loop.step)

    def lanes(self, dim: str, held: int) -> int:
        """The number of the `held` indices of a dimension that a PE's lanes take at a time."""
        return lanes_used(self.kept, dim, held)

    def pieces(self, number: int, extent: int) -> Iterator[tuple[int, int, int]]:
        """(iterations, indices of each, first index) of a loop: full tiles, then the rest in even sets."""
        step, start = self.outer[number].step, 0
        if self.first and self.outer[number].dim == "h" and extent == self.shape.sizes.h:
            start, extent = self.first, extent - self.first
            yield 1, self.first, 0
        whole, rest = divmod(extent, step)
        if whole:
            yield whole, step, start
        if rest:
            count = even_sets(rest, self.sets[number])
            yield count, rest // count, start + whole * step

    def routes(self, dim: str, depth: int) -> list[Route]:
        """All routes through the loops over a dimension that are among the `depth` outermost."""
        routes = [Route(0, (), self.shape.sizes.of(dim))]
        for number, loop in enumerate(self.outer[:depth]):
            if loop.dim == dim:
                routes = [inner for route in routes for inner in self._enter(route, number, loop)]
        return routes

    def _enter(self, route: Route, number: int, loop: Loop) -> Iterator[Route]:
        for count, step, first in self.pieces(number, route.held):
            yield Route(route.first + first, (*route.runs, RouteLoop(count, step, loop.on)), step)

    def spread(self, dim: str, depth: int) -> list[Route]:
        """The routes to `depth`, with the PEs of loops in space further inside, which share a fetch at `depth`.

        Raises: Refusal, if these PEs have unequal parts of the fetched indices.
        """
        return [self._spread(route, dim, depth) for route in self.routes(dim, depth)]

    def _spread(self, route: Route, dim: str, depth: int) -> Route:
        inside = [(n, loop) for n, loop in enumerate(self.outer[depth:], depth) if loop.dim == dim]
        last = max((n for n, loop in inside if loop.on), default=-1)
        tile = route.held
        for number, loop in inside:
            (count, step, _), *rest = self.pieces(number, tile)
            # Loops in time inside the last loop in space may have a rest: it is the same in all PEs.
            if rest and number <= last:
                raise Refusal(f"loops over {dim} in space do not take equal parts of what is fetched outside them")
            if loop.on:
                route = replace(route, runs=(*route.runs, RouteLoop(count, step, loop.on)), held=step)
            tile = step
        return route

    def trips(self, dims: Iterable[str], depth: int) -> int:
        """The number of times that the loops over `dims` reach `depth`; PEs side by side count once."""
        return prod(sum(route.trips for route in self.routes(dim, depth)) for dim in dims)

    def visits(self, dims: Iterable[str], depth: int) -> int:
        """The number of times that the loops over `dims` reach `depth`; each PE counts."""
        return prod(sum(route.trips * route.pes for route in self.spread(dim, depth)) for dim in dims)

    def summed_over(self, depth: int, left: dict[str, int]) -> int | None:
        """Rows of PEs over which the sums inside `depth` are added up; None if sums do not stay in the PEs there."""
        left, rows, within = dict(left), 1, self.outer[depth:]
        # A commit stands as far inside as it can: right outside a loop in time over c, r or s, or right around the box.
        if within and (within[0].on or within[0].dim not in REDUCTION_DIMS):
            return None
        for number, loop in enumerate(within, depth):
            (count, size, _), *rest = self.pieces(number, left[loop.dim])
            summed = loop.dim in REDUCTION_DIMS
            spread = any(other.on and other.dim == loop.dim for other in self.outer[number:])
            # LEGAL-2: the rest of a loop in space runs on other PEs, which do not have the sums of the full tiles.
            if (rest and (spread or not summed)) or (count > 1 and not loop.on and not summed):
                return None
            rows *= count if loop.on and summed else 1
            left[loop.dim] = size
        return rows

    def has_partial_sums(self) -> bool:
        """Whether some sums leave the PEs before they are whole, and wait in the GLB."""
        return self._has_partial_sums(0, whole(self.shape.sizes), False, set())

    def _has_partial_sums(self, depth: int, left: dict[str, int], in_parts: bool, seen: set[object]) -> bool:
        """Inside `depth` loops. in_parts: whether loops outside take what is summed over in parts, one by one."""
        if self.summed_over(depth, left) is not None:
            return in_parts
        loop, key = self.outer[depth], (depth, *left.values(), in_parts)
        # What is inside was looked at before, and had none: `any` ends at the first that has.
        if key in seen:
            return False
        seen.add(key)
        pieces = list(self.pieces(depth, left[loop.dim]))
        if loop.dim in REDUCTION_DIMS:
            in_parts = in_parts or len(pieces) > 1 or (pieces[0][0] > 1 and not loop.on)
        return any(self._has_partial_sums(depth + 1, {**left, loop.dim: size}, in_parts, seen) for _, size, _ in pieces)


def count_inside(start: int, limit: int, terms: Sequence[RouteTerm]) -> int:
    """The number of combinations of terms with 0 <= start + their sum < limit."""
    ordered = sorted(terms, key=lambda term: (-term.step, term.n))
    return _below(limit - start, ordered) - _below(-start, ordered)


def _below(limit: int, terms: Sequence[RouteTerm]) -> int:
    """The number of combinations of the terms with a sum below `limit`.

    The first term has the longest steps. For each of its values all, none or some combinations of the other terms stay
    below the limit. Only the values with some, which are few, are counted one by one.
    """
    if limit <= 0:
        return 0
    if limit > _most(terms):
        return prod(term.n for term in terms)
    (count, step), *rest = terms
    if not rest:
        return min(count, -(-limit // step))
    whole = max(0, min(count, (limit - _most(rest) - 1) // step + 1))
    some = range(whole, min(count, -(-limit // step)))
    return whole * prod(term.n for term in rest) + sum(_below(limit - i * step, rest) for i in some)


def _most(terms: Sequence[RouteTerm]) -> int:
    return sum((term.n - 1) * term.step for term in terms)
