"""What the mapper minimises: cycles, energy, their product, or DRAM words. No IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.errors import Refusal, hint, one_line
from cnncc.mapper.prices import DRAM_WORDS, Prices

OBJECTIVES = ("cycles", "energy", "edp", "words")
SLACK = 0.005  # of the fewest cycles
MOST_SLACK = 10.0
MARGIN = 0.001  # of a network's cost: what smaller budgets (CHAIN-1) may save. LeNet by energy has 0.006 %
FAR = (4.0, 2.0, 1.5, 1.2, 1.1, 1.05, 1.02, 1.01, 1.005, 1.0)
"""Cycles of a layer, as multiples of the fewest, at which other objectives than cycles look for a cheaper mapping."""
SLACKS = (10.0, 4.0, 2.0, 1.0, 0.4, 0.1, 0.0)
"""The same for cycles, as multiples of the network's slack or of SLACK: one layer may use up what others leave."""


class Figures(NamedTuple):
    """Cycles and cost: of a mapping, or of a network."""

    cycles: int
    cost: float


@dataclass(frozen=True)
class Objective:
    """What a network is optimised for.

    | name | minimises | then |
    |---|---|---|
    | cycles | energy among networks with at most (1 + slack) times the fewest cycles | cycles |
    | energy | energy | cycles |
    | edp | energy · cycles | cycles |
    | words | words from and to DRAM | cycles |

    Raises Refusal for a name that is none, or a slack outside 0 to 10.
    """

    name: str = "cycles"
    slack: float = SLACK

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            raise Refusal(f"there is no objective '{self.name}'; {hint(self.name, OBJECTIVES)}")
        if not 0 <= self.slack <= MOST_SLACK:
            given = one_line(str(self.slack), 30)
            raise Refusal(f"the slack is a share of the fewest cycles from 0 to {MOST_SLACK:g}, not {given}")

    def prices(self, arch: Arch) -> Prices:
        """Prices of events, and the limits of cycles.

        Less slack than usual has the usual limits. A slower mapping may leave the next layer's weights more of the GLB,
        and so make the network faster: without any slack ResNet-50 took 0.13 % more cycles on 16 x 16 PEs with 2 MiB.
        """
        near = tuple(dict.fromkeys(1 + times * max(self.slack, SLACK) for times in SLACKS))
        # Searches do not depend on the unit: arrays that differ in it share results.
        costs = DRAM_WORDS if self.name == "words" else replace(arch.energy, unit="")
        return Prices(costs, near, wide=False) if self.name == "cycles" else Prices(costs, FAR, wide=True)

    def best(self, networks: Sequence[Figures], fewest: float = inf) -> int:
        """The number of the best of some networks. fewest: cycles that another one is known to take."""
        most = (1 + self.slack) * min(fewest, *(figures.cycles for figures in networks))
        return min(range(len(networks)), key=lambda number: self._rank(networks[number], most))

    def may_be_better(self, least: Figures, others: Sequence[Figures]) -> bool:
        """CHAIN-4. Whether a network that takes at least so much may be better than all of some others.

        Where cycles are the objective, it may: the slack of all counts from the fewest cycles of any.
        """
        least = least._replace(cost=least.cost * (1 - MARGIN))
        return self.name == "cycles" or all(self._rank(least, inf) < self._rank(other, inf) for other in others)

    def _rank(self, figures: Figures, most: float) -> tuple[float, int]:
        """The lower, the better. most: cycles that a network may take if these are minimised."""
        cycles, cost = figures
        match self.name:
            case "cycles":
                return (cost if cycles <= most else inf), cycles
            case "edp":
                return cost * cycles, cycles
            case _:
                return cost, cycles
