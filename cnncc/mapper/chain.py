"""Which of several mappings each layer of a chain gets, so that all of them together take the fewest cycles. No IR.

A layer's weights are prefetched while the layer before it runs, if the GLB has words for both. So the cycles of a layer
depend on the layer before: the DMA is busy with that layer's own transfers, and prefetches between them. The shortest
path through all choices is found layer by layer. The model runs each two neighbours together (`program_schedule.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cnncc.arch.model import Arch
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles
from cnncc.model.program_schedule import program_cycles


@dataclass(frozen=True)
class Choice:
    """A mapping that a layer may have: words of its buffers, and of those that are prefetched.

    plan: None for what the model does not know by itself, as elementwise layers without blocks; it costs nothing here.
    """

    plan: LayerPlan | None
    words: int
    prefetched_words: int


def best_choices(layers: Sequence[Sequence[Choice]], budgets: Sequence[int], arch: Arch) -> list[int]:
    """For each layer of a chain the number of its choice. budgets: GLB words for the buffers of each layer."""
    costs, came = [_alone(each, arch) for each in layers[0]] if layers else [], list[list[int]]()
    for before, current, budget in zip(layers, layers[1:], budgets, strict=False):
        if len(before) == len(current) == 1:
            came.append([0])  # the same cycles whatever others have
            continue
        steps = [
            [
                cost + step(a, b, a.words + b.prefetched_words <= budget, arch)
                for cost, a in zip(costs, before, strict=True)
            ]
            for b in current
        ]
        came.append([step.index(min(step)) for step in steps])
        costs = [min(step) for step in steps]
    chosen = [costs.index(min(costs))] if costs else []
    for origin in reversed(came):
        chosen.append(origin[chosen[-1]])
    return chosen[::-1]


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
