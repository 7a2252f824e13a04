"""The Pareto front of a network's cycles and energy: what more cycles save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cnncc.driver.pipeline import ASSIGN
from cnncc.driver.program_parts import mapped_parts
from cnncc.driver.sources import CompileOptions, check_in_turn, start_before_programs
from cnncc.errors import Refusal
from cnncc.mapper.objective import Objective
from cnncc.model.energy import energy
from cnncc.model.program_counts import program_counts
from cnncc.util.progress import Progress
from cnncc.util.terminal import NAME, Column, amount, table

OBJECTIVES = (
    *(Objective("cycles", slack) for slack in (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)),
    Objective("edp"),
    Objective("energy"),
)


@dataclass(frozen=True)
class FrontPoint:
    """A program: the objective that gives it, its cycles, its energy, its words from and to DRAM."""

    objective: str
    slack: float | None  # of cycles alone
    cycles: int
    energy: float
    dram_words: int

    @property
    def options(self) -> str:
        """Those of `compile` that give this program."""
        return f"--slack {self.slack:g}" if self.objective == "cycles" else f"--objective {self.objective}"


def network_front(source: Path, options: CompileOptions, progress: Progress) -> list[FrontPoint]:
    """The programs of a few objectives of which none is worse in both figures, the fastest first.

    Raises Refusal as `compile` does, and for layers that are mapped already.
    """
    compilation = start_before_programs(source, options)
    check_in_turn(compilation, "--front")
    if not compilation.awaits(ASSIGN):
        raise Refusal(f"{source}: its layers are mapped already: give the model, or IR before {ASSIGN}")
    compilation.run_before(ASSIGN)
    arch, points = compilation.settings.arch, list[FrontPoint]()
    for done, objective in enumerate(OBJECTIVES):
        progress(f"mapping for {objective.name}, slack {objective.slack:g}", done, len(OBJECTIVES))
        settings = replace(compilation.settings, objective=objective)
        own = replace(compilation, module=compilation.module.clone(), settings=settings)
        counts = program_counts(mapped_parts(own), arch, causes=False)
        words, cycles = counts["words"], counts["cycles"]["total"]
        dram_words = words["dram_read"] + words["dram_write"]
        cost = energy(counts, arch.energy)["total"]
        slack = objective.slack if objective.name == "cycles" else None
        points.append(FrontPoint(objective.name, slack, cycles, cost, dram_words))
    front = list[FrontPoint]()
    for point in sorted(points, key=lambda point: (point.cycles, point.energy)):
        if not front or point.energy < front[-1].energy:
            front.append(point)
    return front


def as_json(front: Sequence[FrontPoint]) -> list[dict[str, Any]]:
    """The points, each by the names of its fields."""
    return [asdict(point) for point in front]


def as_text(front: Sequence[FrontPoint], unit: str) -> Iterator[str]:
    """A row for each program. unit: of energy."""
    first = front[0]
    rows = [
        [
            point.options,
            f"{point.cycles:,}",
            f"{_change(point.cycles, first.cycles):+.2f} %",
            amount(point.energy),
            f"{_change(point.energy, first.energy):+.1f} %",
            f"{point.dram_words:,}",
        ]
        for point in front
    ]
    columns = [Column("options", NAME), "cycles", "change", f"energy [{unit}]", "change", "DRAM words"]
    yield from table(columns, rows)


def _change(value: float, first: float) -> float:
    """In percent; 0 where the first is, as of energies by prices of 0: all of them are then."""
    return 100 * (value / first - 1) if first else 0.0
