"""The tokens between the cores of a program, and what is wrong with them. No IR.

The rules cited are those of docs/machine.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from cnncc.mapping.channels import Region, regions_problem

SEMAPHORES = 15
Target = tuple[int, int]  # number of a core, number of its semaphore


@dataclass(frozen=True)
class CoreTokens:
    """A core: its PEs and its semaphores, by number.

    - routes: (semaphore, core, to)
    - gives, takes: the engines that give to a semaphore and take from it; "" for a signal
    """

    label: str
    region: Region
    routes: Sequence[tuple[int, int, int]]
    gives: Mapping[int, Set[str]]
    takes: Mapping[int, Set[str]]


def cores_problems(cores: Sequence[CoreTokens]) -> list[str]:
    """What is wrong with cores together: PEs that two have, semaphores that one giver and one taker lack (CORE-4)."""
    regions = [(core.label, core.region) for core in cores if core.region.rows]
    if problem := regions_problem(regions):
        return [problem]
    # Tokens are followed along routes, so that these have to lead to cores that exist.
    problems = list(_route_problems(cores))
    return problems or list(_token_problems(cores))


def _route_problems(cores: Sequence[CoreTokens]) -> Iterator[str]:
    for core in cores:
        for semaphore, target, to in core.routes:
            if not 0 < semaphore <= SEMAPHORES or not 0 < to <= SEMAPHORES:
                yield f"core {core.label}: semaphores of a route are 1 to {SEMAPHORES}, not {semaphore} and {to}"
            if not 0 <= target < len(cores):
                yield f"core {core.label}: a route to core {target}, there are cores 0 to {len(cores) - 1} (CORE-3)"


def _token_problems(cores: Sequence[CoreTokens]) -> Iterator[str]:
    sources, givers = dict[Target, set[Target]](), dict[Target, set[tuple[int, str]]]()
    for number, core in enumerate(cores):
        routed = dict[int, list[Target]]()
        for semaphore, target, to in core.routes:
            routed.setdefault(semaphore, []).append((target, to))
            sources.setdefault((target, to), set()).add((number, semaphore))
        for semaphore, engines in core.gives.items():
            # CORE-3: a token with routes goes to all their targets, and not to the core's own semaphore.
            for target in routed.get(semaphore, [(number, semaphore)]):
                givers.setdefault(target, set()).update((number, engine) for engine in engines)
    takers = {(number, taken): core.takes[taken] for number, core in enumerate(cores) for taken in core.takes}
    for (number, semaphore), by in sources.items():
        if len(by) > 1:
            from_ = " and ".join(f"semaphore {own} of core {cores[other].label}" for other, own in sorted(by))
            yield f"semaphore {semaphore} of core {cores[number].label} has routes from {from_}: one giver (CORE-4)"
    for (number, semaphore), engines in takers.items():
        name = f"semaphore {semaphore} of core {cores[number].label}"
        if (number, semaphore) not in givers:
            yield f"nothing gives {name} a token: a route or a signal is missing (CORE-4)"
        # CORE-4: one engine at the end of a route. Engines of one core are also kept apart by `sync` (TOKEN-4).
        if (number, semaphore) in sources and len(engines) > 1:
            yield f"engines {' and '.join(sorted(engines))} take from {name}: one does (CORE-4)"
    for (number, semaphore), by in givers.items():
        name = f"semaphore {semaphore} of core {cores[number].label}"
        if (number, semaphore) not in takers:
            yield f"nothing takes the tokens of {name} (CORE-4)"
        engines = sorted((other, engine) for other, engine in by if engine)
        if (number, semaphore) in sources and len(engines) > 1:
            who = " and ".join(f"{engine} of core {cores[other].label}" for other, engine in engines)
            yield f"{who} give to {name}: one engine does (CORE-4)"
