"""Which of several mappings each layer of a chain gets: the Pareto front of cycles and cost of a network. No IR.

A layer's weights are prefetched while the layer before it runs, if the GLB has words for both. So the cycles of a layer
depend on the layer before: the DMA is busy with that layer's own transfers, and prefetches between them. Paths through
all choices grow layer by layer. A path goes on if no other one to the same choice has fewer cycles and costs less. The
model runs each two neighbours together (`program_schedule.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.mapper.objective import Figures, Objective
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles
from cnncc.model.program_schedule import program_cycles

MOST_PATHS = 256  # that end in a choice. With 48 ResNet-50 on 8 x 8 PEs takes 0.4 % more energy, and 0.2 s less
MOST_RUN = 3  # of the choices of a layer: all pairs of these are run on the model
MOST_FIRST = 3  # paths with about the fewest cycles that are run; as many through the fastest choices
MOST_EXACT = 10  # paths that are run
PART = 500  # of a layer's cycles: from there on it is worth while to know how long it waits
STREAMED_PART = 50  # where something is streamed, and searches take longer
ACTIVATIONS = ("ifmap", "residual", "output")


@dataclass(frozen=True)
class Choice:
    """A mapping that a layer may have: words of its buffers, of those that are filled before it starts, and its cost.

    plan: None for what the model does not know by itself, as elementwise layers without blocks; it costs nothing here.
    """

    plan: LayerPlan | None
    words: int
    prefetched_words: int
    cost: float = 0.0


@dataclass(frozen=True)
class _Path:
    """The choices of the first layers, by their numbers."""

    cycles: int
    cost: float
    number: int
    before: _Path | None = None

    def numbers(self) -> list[int]:
        """Of all layers."""
        path, numbers = self, [self.number]
        while path.before is not None:
            path = path.before
            numbers.append(path.number)
        return numbers[::-1]


class Best(NamedTuple):
    """The best choice of each layer of a chain, by number; the chain's cycles and cost; the fewest cycles known."""

    numbers: list[int]
    figures: Figures
    fewest: int


def best_choices(
    layers: Sequence[Sequence[Choice]],
    fastest: Sequence[int],
    budgets: Sequence[int],
    objective: Objective,
    arch: Arch,
    run: Callable[[list[int]], int],
) -> Best:
    """The best choice of each layer of a chain.

    - fastest: so many of a layer's first choices are the fastest in some GLB budget. Paths through these alone are
      looked at, too: estimates are too rough to find the fewest cycles among many choices with about the same
    - budgets: GLB words for the buffers of each layer
    - run: the cycles of all layers with these choices. Those of paths are estimates, as what is prefetched depends on
      places in the GLB, too. So the best paths are run
    """
    if not layers:
        return Best([], Figures(0, 0.0), 0)
    all_paths = _paths(layers, budgets, arch)
    few = _paths([of_layer[:count] for of_layer, count in zip(layers, fastest, strict=True)], budgets, arch)
    paths = {tuple(path.numbers()): path for path in (*all_paths, *few)}
    exact = dict[tuple[int, ...], Figures]()

    def figures(path: tuple[int, ...]) -> Figures:
        if path not in exact:
            exact[path] = Figures(run([*path]), paths[path].cost)
        return exact[path]

    for some in (all_paths, few):
        near = some[0].cycles + 2 * arch.dram.latency_cycles  # estimates are no better than that
        for path in some[:MOST_FIRST]:
            if path.cycles <= near:
                figures(tuple(path.numbers()))
    first = tuple(all_paths[0].numbers())
    more, every = exact[first].cycles - paths[first].cycles, [*paths]
    while True:
        each = [exact.get(path) or Figures(paths[path].cycles + more, paths[path].cost) for path in every]
        best = every[objective.best(each)]
        if best not in exact and len(exact) >= MOST_EXACT:
            best = list(exact)[objective.best(list(exact.values()))]
        if best in exact:
            return Best([*best], exact[best], min(known.cycles for known in exact.values()))
        figures(best)


def _paths(layers: Sequence[Sequence[Choice]], budgets: Sequence[int], arch: Arch) -> list[_Path]:
    """The front of paths through choices, by estimates, those with the fewest cycles first."""
    ends = [[_Path(_alone(each, arch), each.cost, number)] for number, each in enumerate(layers[0])]
    for before, current, budget in zip(layers, layers[1:], budgets, strict=False):
        steps = _steps(before, current, budget, arch)
        ends = [
            _undominated(
                _Path(path.cycles + steps[a][b], path.cost + choice.cost, b, path)
                for a, paths in enumerate(ends)
                for path in paths
            )
            for b, choice in enumerate(current)
        ]
    return _undominated(path for paths in ends for path in paths)


def _undominated(paths: Iterable[_Path]) -> list[_Path]:
    """The Pareto front of paths, those with the fewest cycles first; some of it where it is long."""
    result = list[_Path]()
    for path in sorted(paths, key=lambda path: (path.cycles, path.cost)):
        if not result or path.cost < result[-1].cost:
            result.append(path)
    if len(result) <= MOST_PATHS:
        return result
    every = (len(result) - 1) / (MOST_PATHS - 1)
    return [result[round(i * every)] for i in range(MOST_PATHS)]


def _steps(before: Sequence[Choice], current: Sequence[Choice], budget: int, arch: Arch) -> list[list[int]]:
    """What each choice of a layer adds to the cycles of each choice of the layer before.

    These are cycles of the layer by itself, and what the model has more for two neighbours. Pairs of the first choices,
    which are the fastest, are run, and pairs with the first one. Of the others, more is the sum of both parts.
    """

    def alone(a: Choice, b: Choice) -> int:
        return _estimate(b, a.plan is not None and a.words + b.prefetched_words <= budget, arch)

    def more(a: Choice, b: Choice) -> int:
        return step(a, b, a.words + b.prefetched_words <= budget, arch) - alone(a, b)

    first, second = before[0], current[0]
    if not any(waits(b, arch) for b in current):
        same = more(first, second)
        return [[alone(a, b) + same for b in current] for a in before]
    of_before, of_current = [more(a, second) for a in before], [more(first, b) for b in current]

    def about(i: int, j: int) -> int:
        is_run = i < MOST_RUN and j < MOST_RUN
        return more(before[i], current[j]) if is_run else of_before[i] + of_current[j] - of_current[0]

    return [[alone(a, b) + about(i, j) for j, b in enumerate(current)] for i, a in enumerate(before)]


def waits(current: Choice, arch: Arch) -> bool:
    """Whether a layer may wait for its first words for more than a small part of its cycles."""
    if current.plan is None or not current.prefetched_words:
        return False
    comes = current.prefetched_words // arch.dram.words_per_cycle + arch.dram.latency_cycles
    streams = any(stage.operand in ACTIVATIONS for stage in current.plan.mapping.stages if stage.memory == "glb")
    return comes * (STREAMED_PART if streams else PART) > _estimate(current, True, arch)


def _estimate(current: Choice, prefetched: bool, arch: Arch) -> int:
    """Cycles of a layer by itself."""
    if current.plan is None:
        return 0
    return layer_cycles(replace(current.plan, prefetched=PREFETCHED if prefetched else frozenset()), arch)


def _alone(first: Choice, arch: Arch) -> int:
    """Cycles of the first layer: nothing of it is prefetched."""
    return _cycles((replace(first.plan, label="before", prefetched=frozenset()),), arch) if first.plan else 0


def step(before: Choice, current: Choice, prefetched: bool, arch: Arch) -> int:
    """Cycles that a layer adds to the one before it. prefetched: whether its operands are."""
    if current.plan is None:
        return 0
    plan = replace(current.plan, label="here", prefetched=PREFETCHED if prefetched else frozenset())
    if before.plan is None:
        return layer_cycles(plan, arch)
    first = replace(before.plan, label="before", prefetched=frozenset())
    return _cycles((first, plan), arch) - _alone(before, arch)


@lru_cache(maxsize=4096)
def _cycles(plans: tuple[LayerPlan, ...], arch: Arch) -> int:
    return program_cycles(plans, arch)[0].total
