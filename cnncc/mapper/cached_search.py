"""The mapper's searches, each done once: found in memory or on disk, else done, several side by side. No IR.

The key of a result on disk is a hash of all that the search depends on (CACHE-1): the sources of the mapper and of its
imports, the layer, its GLB budget, and the array without its name and energies.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import cnncc
from cnncc.errors import Refusal
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.search import Result
from cnncc.mapper.search_processes import GoesOn, answer, search_side_by_side
from cnncc.mapper.tradeoffs import Tradeoff
from cnncc.mapping.mapping import Mapping, mapping_problem
from cnncc.mapping.text import parse, text
from cnncc.util import disk_cache, processors
from cnncc.util.progress import Progress

SOURCES = (
    "mapper/*.py",
    "model/*.py",
    "mapping/*.py",
    "window.py",
    "arch/*.py",
    "array_instructions.py",
    "util/toml.py",
    "numerics.py",
    "errors.py",
)  # all that a search imports
COUNTS = ("cycles", "least", "run", "bounded")
ALONE_S = 1.0  # of searching before other processes are started: each takes 0.4 s to start (2026-11)
MOST_PROCESSES = 8  # each holds about 80 MB
MOST_FOUND = 4096  # results in memory


_found = dict[SearchTask, Result | None]()


def searched(task: SearchTask) -> Result | None:
    """What `task.search` finds, from memory or disk if it is there."""
    if not _is_known(task):
        _keep(task, _search(task))
    return _found[task]


def _search(task: SearchTask) -> Result | None:
    """The result of a task. The fastest mapping is kept by itself, too: all prices have the same."""
    if task.prices is None:
        return task.search()
    fastest = searched(replace(task, prices=None))
    return fastest and task.search(fastest)


def search_ahead(
    tasks: Sequence[SearchTask],
    progress: Progress,
    processes: int | None = None,
    goes_on: GoesOn = lambda task, result: True,
) -> bool:
    """Have the results of all tasks in memory.

    - processes: the most that search; 1: this one alone; None: one a processor
    - goes_on: is told each result, those that are known first, and says whether the others are wanted. If not, False is
      returned, and some may not be there
    """
    todo, is_wanted = list[SearchTask](), True
    for task in dict.fromkeys(tasks):
        if _is_known(task):
            is_wanted &= goes_on(task, _found[task])
        else:
            todo.append(task)
    processes = min(processes or processors.usable(), MOST_PROCESSES)
    done, start = 0, time.monotonic()

    def finish(task: SearchTask, result: Result | None) -> bool:
        nonlocal done, is_wanted
        _keep(task, result)
        done += 1
        is_wanted &= goes_on(task, result)
        progress(f"{done:,} of {len(todo):,} mappings", done, len(todo))
        return is_wanted

    while is_wanted and done < len(todo):
        left = todo[done:]
        if time.monotonic() - start > ALONE_S and (count := min(processes, len(left))) > 1:
            search_side_by_side(left, count, finish, _search)
        else:
            finish(left[0], _search(left[0]))
    return is_wanted


# -- what is kept ------------------------------------------------------------------------------------------------------


def _is_known(task: SearchTask) -> bool:
    """Whether the result is in memory, or else on disk, from where it is taken."""
    if task not in _found:
        value = disk_cache.read(_key(task))
        if value is None:
            return False
        try:
            _remember(task, _result(task, value))
        # CACHE-3: what is kept and fits no such task is as good as missing.
        except (KeyError, TypeError, ValueError, Refusal):
            return False
    return True


def _keep(task: SearchTask, result: Result | None) -> None:
    _remember(task, result)
    disk_cache.write(_key(task), as_json(task, result))


def _remember(task: SearchTask, result: Result | None) -> None:
    if len(_found) >= MOST_FOUND:
        del _found[next(iter(_found))]
    _found[task] = result


def _key(task: SearchTask) -> str:
    # The text of a set has no fixed order from process to process. So the budget goes as a table, whose set is sorted.
    parts = task.shape, task.arch, task.dataflow, task.below, task.quick, task.effort, task.prices, task.together
    return disk_cache.key_of("search", sources(), repr(parts), asdict(task.budget))


@cache
def sources() -> str:
    """The hash of all sources that a search depends on."""
    folder, digest = Path(cnncc.__file__).parent, hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(folder.glob(pattern)):
            # Names and sizes keep the borders between files: what moves from one to the next counts.
            digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()


def as_json(task: SearchTask, result: Result | None) -> dict[str, Any]:
    """A result, as it is kept on disk."""
    if result is None:
        return {}
    sizes = task.shape.sizes
    each = [[text(mapping, sizes), cycles, cost] for mapping, cycles, cost in result.front]
    counts = {name: getattr(result, name) for name in COUNTS}
    return {"mapping": text(result.mapping, sizes), **counts, "tight": result.tight, "front": each}


def _result(task: SearchTask, value: dict[str, object]) -> Result | None:
    """The reverse. Raises KeyError, TypeError, ValueError or Refusal for what is no result of this task."""
    if not value:
        return None
    counts = dict[str, int]()
    for name in COUNTS:
        if type(count := value[name]) is not int:
            raise TypeError(f"{name} is no count")
        counts[name] = count
    each = tuple(
        Tradeoff(_mapping(task, written), int(cycles), float(cost))
        for written, cycles, cost in cast("Sequence[tuple[str, int, float]]", value["front"])
    )
    cycles, least, run, bounded = counts.values()
    return Result(_mapping(task, value["mapping"]), cycles, least, run, bounded, value["tight"] is True, each)


def _mapping(task: SearchTask, written: object) -> Mapping:
    """A mapping of the task's layer. Raises ValueError or Refusal."""
    shape = task.shape
    mapping = parse(str(written), shape.sizes)
    if problem := mapping_problem(mapping, shape.sizes, shape.operands(task.budget.residual)):
        raise ValueError(problem)
    return mapping


def work() -> None:
    """What a process that searches does (`search_processes.py`)."""
    answer(_search)
