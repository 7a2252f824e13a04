"""Mappings by their cycles and costs: those that can be programs, and the front of some. No IR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cnncc.arch.model import Arch, Energy
from cnncc.mapper.costs import cost_of
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_schedule import layer_cycles, plan_in
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.legal import can_run, fits_glb


class Tradeoff(NamedTuple):
    """A mapping of a front, its cycles, and its cost."""

    mapping: Mapping
    cycles: int
    cost: float


def tradeoffs(
    shape: LayerShape, arch: Arch, budget: GlbBudget, mappings: Iterable[Mapping | None], costs: Energy
) -> Iterator[Tradeoff]:
    """Cycles and costs of those mappings that can be programs, and fit. None stands for no mapping."""
    for mapping in mappings:
        if mapping and can_run(shape, arch, mapping, budget.residual) and fits_glb(shape, arch, mapping, budget.words):
            cycles = layer_cycles(plan_in(budget, shape, mapping), arch)
            yield Tradeoff(mapping, cycles, cost_of(shape, mapping, arch, budget.residual, costs))


def undominated(each: Sequence[Tradeoff]) -> tuple[Tradeoff, ...]:
    """The front of some mappings, the cheapest first: each takes fewer cycles than the one before."""
    front = list[Tradeoff]()
    for one in sorted(each, key=lambda one: (one.cost, one.cycles)):
        if not front or one.cycles < front[-1].cycles:
            front.append(one)
    return tuple(front)
