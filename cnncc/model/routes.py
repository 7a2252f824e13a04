"""The loops of a mapping, dimension by dimension, and how many positions they reach. No IR.

A loop over a dimension has full tiles and a rest; what is inside it has, for each, extents of its own. A *route* is one
way down: at each loop over one dimension the full tiles or the rest. As loops over different dimensions know nothing of
each other, whatever a nest does is a sum over the routes of each dimension, and a product of these sums. There are at
most 2^l routes through l loops over a dimension, however many indices it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple

from cnncc.dialects._mapping import REDUCTION_DIMS, Loop, Mapping, even_sets, rest_sets
from cnncc.errors import Refusal
from cnncc.model.layer_shape import LayerShape


class Run(NamedTuple):
    """What a route does in a loop: its number among those outside the box, how often it runs and over how many indices
    each time, on which axis (empty: in time).
    """

    loop: int
    n: int
    step: int
    on: str


@dataclass(frozen=True)
class Route:
    """A way through the loops over one dimension: its first index, its runs from outside, the indices left inside."""

    first: int
    runs: tuple[Run, ...]
    held: int

    @property
    def trips(self) -> int:
        """How often it is gone in time."""
        return prod(run.n for run in self.runs if not run.on)

    @property
    def pes(self) -> int:
        """PEs that go it side by side."""
        return prod(run.n for run in self.runs if run.on)

    def terms(self, unit: int, in_space: bool) -> list[RouteTerm]:
        """What its runs, those in time or those in space, add to a position that moves by `unit` an index."""
        return [RouteTerm(run.n, run.step * unit) for run in self.runs if bool(run.on) == in_space]


class RouteTerm(NamedTuple):
    """0, step, 2 step, …: `count` of them."""

    n: int
    step: int


class Nest:
    """The loops of a mapping outside the box, `outer`, and in it, `kept`, of a layer."""

    def __init__(self, shape: LayerShape, mapping: Mapping) -> None:
        self.shape = shape
        self.outer = tuple(loop for loop in mapping.loops if not loop.keep)
        self.sets = rest_sets(shape.sizes, mapping.loops, shape.tiled_together)
        self.kept = tuple(loop for loop in mapping.loops if loop.keep)
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
        """How many of the `held` indices of a dimension that are in the box a PE takes at a time, on its lanes."""
        over = [loop for loop in self.kept if loop.dim == dim]
        on_lanes = any(loop.on for loop in over)
        return min([held, *(loop.step for loop in over if not loop.on)]) if on_lanes else 1

    def pieces(self, number: int, extent: int) -> Iterator[tuple[int, int, int]]:
        """(iterations, indices of each, first index) of a loop: full tiles, then the rest, which sets share evenly."""
        step = self.outer[number].step
        whole, rest = divmod(extent, step)
        if whole:
            yield whole, step, 0
        if rest:
            count = even_sets(rest, self.sets[number])
            yield count, rest // count, whole * step

    def routes(self, dim: str, depth: int) -> list[Route]:
        """All routes through the loops over a dimension that are among the `depth` outermost."""
        found = [Route(0, (), self.shape.sizes.of(dim))]
        for number, loop in enumerate(self.outer[:depth]):
            if loop.dim == dim:
                found = [inner for route in found for inner in self._enter(route, number, loop)]
        return found

    def _enter(self, route: Route, number: int, loop: Loop) -> Iterator[Route]:
        for count, step, first in self.pieces(number, route.held):
            yield Route(route.first + first, (*route.runs, Run(number, count, step, loop.on)), step)

    def spread(self, dim: str, depth: int) -> list[Route]:
        """The routes to `depth`, with the PEs of loops in space inside: what is fetched there is for all of them.

        Raises Refusal where these have not the same in all iterations.
        """
        return [self._spread(route, dim, depth) for route in self.routes(dim, depth)]

    def _spread(self, route: Route, dim: str, depth: int) -> Route:
        inside = [(n, loop) for n, loop in enumerate(self.outer[depth:], depth) if loop.dim == dim]
        last = max((n for n, loop in inside if loop.on), default=-1)
        tile = route.held
        for number, loop in inside:
            (count, step, _), *rest = self.pieces(number, tile)
            if rest and number <= last:
                raise Refusal(f"loops over {dim} in space do not take equal parts of what is fetched outside them")
            if loop.on:
                route = replace(route, runs=(*route.runs, Run(number, count, step, loop.on)), held=step)
            tile = step
        return route

    def trips(self, dims: Iterable[str], depth: int) -> int:
        """How often, in time, the loops over some dimensions come to `depth`."""
        return prod(sum(route.trips for route in self.routes(dim, depth)) for dim in dims)

    def visits(self, dims: Iterable[str], depth: int) -> int:
        """The same, once for each PE."""
        return prod(sum(route.trips * route.pes for route in self.spread(dim, depth)) for dim in dims)

    def summed_over(self, depth: int, left: dict[str, int]) -> int | None:
        """Over how many rows of PEs the sums of all loops inside `depth` are added up; None where they do not stay."""
        left, rows, within = dict(left), 1, self.outer[depth:]
        if within and (within[0].on or within[0].dim not in REDUCTION_DIMS):
            return None
        for number, loop in enumerate(within, depth):
            (count, size, _), *rest = self.pieces(number, left[loop.dim])
            summed = loop.dim in REDUCTION_DIMS
            spread = any(other.on and other.dim == loop.dim for other in self.outer[number:])
            if rest and (spread or not summed) or (count > 1 and not loop.on and not summed):
                return None
            rows *= count if loop.on and summed else 1
            left[loop.dim] = size
        return rows


def sums(terms: Sequence[RouteTerm]) -> set[int]:
    """The different sums of terms: positions among PEs."""
    ranges = [range(0, term.n * term.step, term.step) if term.step else (0,) for term in terms]
    return {sum(each) for each in product(*ranges)}


def inside(start: int, limit: int, terms: Sequence[RouteTerm]) -> int:
    """How many combinations of terms have start + their sum in 0 .. limit - 1."""
    ordered = sorted(terms, key=lambda term: (-term.step, term.n))
    return _below(limit - start, ordered) - _below(-start, ordered)


def _below(limit: int, terms: Sequence[RouteTerm]) -> int:
    """How many combinations of the terms have a sum below a limit.

    The first term has the longest steps. Its iterations are of three kinds: all combinations of the other terms are
    below the limit, none is, or some are. Only the last kind, of which there are few, is looked at one by one.
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
