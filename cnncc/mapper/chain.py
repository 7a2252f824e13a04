"""Which of several mappings each layer of a chain gets: the Pareto front of cycles and cost of a network. No IR.

A layer's weights are prefetched while the layer before it runs, if the GLB has words for both. So the cycles of a layer
depend on the layer before: the DMA is busy with that layer's own transfers, and prefetches between them. Paths through
all choices grow layer by layer. A path goes on if no other one to the same choice has fewer cycles and costs less. The
model runs each two neighbours together (`program_schedule.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np

from cnncc.arch.model import Arch, counted_arch
from cnncc.mapper.arrays import Amounts, Counts, transfer_cycles
from cnncc.mapper.objective import Figures, Objective
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles
from cnncc.model.program_schedule import program_cycles

MOST_PATHS = 256  # that end in a choice. With 48 ResNet-50 on 8 x 8 PEs takes 0.4 % more energy, and 0.2 s less
MOST_RUN = 3  # of the choices of a layer: all pairs of these are run on the model
MOST_FIRST = 3  # paths with about the fewest cycles that are run; as many through the fastest choices
MOST_EXACT = 10  # paths that are run
WAIT_PART = 500  # of a layer's cycles: from there on it is worth while to know how long it waits
STREAMED_WAIT_PART = 50  # where something is streamed, and searches take longer
ACTIVATIONS = ("ifmap", "residual", "output")


@dataclass(frozen=True)
class LayerChoice:
    """A mapping that a layer may have, with its cost.

    - plan: None for what the model does not know by itself, as elementwise layers without blocks; it costs nothing here
    - words: of its buffers
    - prefetched_words: of the buffers that are filled before the layer starts
    """

    plan: LayerPlan | None
    words: int
    prefetched_words: int
    cost: float = 0.0


class _Path(NamedTuple):
    """The choices of all layers by their numbers, and what they take by estimates."""

    cycles: int
    cost: float
    numbers: tuple[int, ...]


class _Ends(NamedTuple):
    """Paths through the first layers to one choice of the last of these, those with the fewest cycles first.

    before: of each path its choice of the layer before, and its number among the paths to that one.
    """

    cycles: Counts
    costs: Amounts
    before: Counts


class BestPath(NamedTuple):
    """The best choice of each layer of a chain, by number; the chain's cycles and cost; the fewest cycles, and how."""

    numbers: list[int]
    figures: Figures
    fewest: int
    fastest: list[int]


def best_choices(
    layers: Sequence[Sequence[LayerChoice]],
    fastest: Sequence[int],
    budgets: Sequence[int],
    objective: Objective,
    arch: Arch,
    run: Callable[[list[int]], int],
    fewest: float = inf,
) -> BestPath:
    """The best choice of each layer of a chain.

    - fastest: so many of a layer's first choices are the fastest in some GLB budget. Paths through these alone are
      looked at, too: estimates are too rough to find the fewest cycles among many choices with about the same
    - budgets: GLB words for the buffers of each layer
    - run: the cycles of all layers with these choices. Those of paths are estimates, as what is prefetched depends on
      places in the GLB, too. So the best paths are run
    - fewest: cycles that another chain is known to take
    """
    if not layers:
        return BestPath([], Figures(0, 0.0), 0, [])
    all_paths = _paths(layers, budgets, arch)
    few = _paths([of_layer[:count] for of_layer, count in zip(layers, fastest, strict=True)], budgets, arch)
    paths = {path.numbers: path for path in (*all_paths, *few)}
    exact = dict[tuple[int, ...], Figures]()

    def figures(path: tuple[int, ...]) -> Figures:
        if path not in exact:
            exact[path] = Figures(run([*path]), paths[path].cost)
        return exact[path]

    for some in (all_paths, few):
        near = some[0].cycles + 2 * arch.dram.latency_cycles  # estimates are no better than that
        for path in some[:MOST_FIRST]:
            if path.cycles <= near:
                figures(path.numbers)
    first = all_paths[0].numbers
    # What estimates leave out is much the same for all paths: the others get what the first takes more than its own.
    more, every = exact[first].cycles - paths[first].cycles, [*paths]
    # The best path by now is run. It is the result if it is the best with its own figures, too.
    while True:
        each = [exact.get(path) or Figures(paths[path].cycles + more, paths[path].cost) for path in every]
        best = every[objective.best(each, fewest)]
        if best not in exact and len(exact) >= MOST_EXACT:
            best = list(exact)[objective.best(list(exact.values()), fewest)]
        if best in exact:
            fastest = min(exact, key=exact.__getitem__)
            return BestPath([*best], exact[best], exact[fastest].cycles, [*fastest])
        figures(best)


def _paths(layers: Sequence[Sequence[LayerChoice]], budgets: Sequence[int], arch: Arch) -> list[_Path]:
    """The front of paths through choices, by estimates, those with the fewest cycles first."""
    start = np.zeros((1, 2), np.int64)
    firsts = [_Ends(np.array([_first_cycles(each, arch)]), np.array([each.cost]), start) for each in layers[0]]
    ends = [firsts]
    for before, current, budget in zip(layers, layers[1:], budgets, strict=False):
        steps = np.array(_steps(tuple(before), tuple(current), budget, arch))
        costs = [choice.cost for choice in current]
        ends.append([_undominated(ends[-1], steps[:, b], cost) for b, cost in enumerate(costs)])
    whole = _undominated(ends[-1], np.zeros(len(layers[-1]), np.int64), 0.0)
    return [
        _Path(int(cycles), float(cost), _numbers(ends, *before))
        for cycles, cost, before in zip(whole.cycles, whole.costs, whole.before.tolist(), strict=True)
    ]


def _numbers(ends: Sequence[Sequence[_Ends]], choice: int, number: int) -> tuple[int, ...]:
    """The choices of all layers on a path to a choice of the last one. number: of the path among those."""
    numbers = list[int]()
    for of_layer in reversed(ends):
        numbers.append(choice)
        choice, number = of_layer[choice].before[number].tolist()
    return tuple(numbers[::-1])


def _undominated(ends: Sequence[_Ends], steps: Counts, cost: float) -> _Ends:
    """The Pareto front of paths that go on from some ends, each with more cycles; some of it where it is long."""
    cycles = np.concatenate([each.cycles + step for each, step in zip(ends, steps.tolist(), strict=True)])
    costs = np.concatenate([each.costs for each in ends]) + cost
    counts = [len(each.cycles) for each in ends]
    before = np.column_stack([np.repeat(np.arange(len(ends)), counts), np.concatenate([*map(np.arange, counts)])])
    order = np.lexsort((costs, cycles))
    # In the order of cycles a path is on the front if it costs less than all before it.
    least = np.minimum.accumulate(costs[order])
    order = order[np.diff(least, prepend=np.inf) < 0]
    if len(order) > MOST_PATHS:
        every = (len(order) - 1) / (MOST_PATHS - 1)
        order = order[np.round(np.arange(MOST_PATHS) * every).astype(np.int64)]
    return _Ends(cycles[order], costs[order], before[order])


@lru_cache(maxsize=1024)  # the layers beside groups have the same neighbours as without groups
def _steps(
    before: tuple[LayerChoice, ...], current: tuple[LayerChoice, ...], budget: int, arch: Arch
) -> list[list[int]]:
    """What each choice of a layer adds to the cycles of each choice of the layer before.

    These are cycles of the layer by itself, and what the model has more for two neighbours. Pairs of the first choices,
    which are the fastest, are run, and pairs with the first one. Of the others, more is the sum of both parts.
    """

    def own(a: LayerChoice, b: LayerChoice) -> int:
        return _estimate(b, a.plan is not None and a.words + b.prefetched_words <= budget, arch)

    def more(a: LayerChoice, b: LayerChoice) -> int:
        return added_cycles(a, b, a.words + b.prefetched_words <= budget, arch) - own(a, b)

    first, second = before[0], current[0]
    if not any(waits(b, arch) for b in current):
        # Without waits neighbours add about as many cycles in all pairs.
        same = more(first, second)
        return [[own(a, b) + same for b in current] for a in before]
    of_before, of_current = [more(a, second) for a in before], [more(first, b) for b in current]

    def about(i: int, j: int) -> int:
        is_run = i < MOST_RUN and j < MOST_RUN
        return more(before[i], current[j]) if is_run else of_before[i] + of_current[j] - of_current[0]

    return [[own(a, b) + about(i, j) for j, b in enumerate(current)] for i, a in enumerate(before)]


def waits(current: LayerChoice, arch: Arch) -> bool:
    """Whether a layer may wait for its first words for more than a small part of its cycles."""
    if current.plan is None or not current.prefetched_words:
        return False
    comes = transfer_cycles(current.prefetched_words, arch.dram) + arch.dram.latency_cycles
    streams = any(stage.operand in ACTIVATIONS for stage in current.plan.mapping.stages if stage.memory == "glb")
    return comes * (STREAMED_WAIT_PART if streams else WAIT_PART) > _estimate(current, True, arch)


def _estimate(current: LayerChoice, prefetched: bool, arch: Arch) -> int:
    """Cycles of a layer by itself."""
    if current.plan is None:
        return 0
    return layer_cycles(_labelled("", current.plan, prefetched), counted_arch(arch))  # as searches ask for it


def _labelled(label: str, plan: LayerPlan, prefetched: bool = False) -> LayerPlan:
    """The same plan for all layers of a shape and mapping. prefetched: whether the operands are that may be."""
    return replace(plan, label=label, prefetched=PREFETCHED if prefetched else frozenset())


def _first_cycles(first: LayerChoice, arch: Arch) -> int:
    """Cycles of the first layer: nothing of it is prefetched."""
    return _cycles((_labelled("before", first.plan),), arch) if first.plan else 0


def added_cycles(before: LayerChoice, current: LayerChoice, prefetched: bool, arch: Arch) -> int:
    """Cycles that a layer adds to the one before it. prefetched: whether its operands are."""
    if current.plan is None:
        return 0
    if before.plan is None:
        return _estimate(current, prefetched, arch)
    pair = _labelled("before", before.plan), _labelled("here", current.plan, prefetched)
    return _cycles(pair, arch) - _first_cycles(before, arch)


@lru_cache(maxsize=4096)
def _cycles(plans: tuple[LayerPlan, ...], arch: Arch) -> int:
    return program_cycles(plans, arch)[0].total
