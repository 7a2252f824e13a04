"""The mapper's searches, each done once: found in memory or on disk, else done, several side by side. No IR.

The key of a result on disk is a hash of all that the search depends on (CACHE-1): the sources of the mapper and of its
imports, the layer, its GLB budget, and the array without its name and energies.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import islice
from math import inf
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import cnncc
from cnncc.arch.model import Arch, counted_arch
from cnncc.dialects._mapping import Mapping, mapping_problem
from cnncc.dialects._mapping_text import parse, text
from cnncc.errors import Refusal
from cnncc.mapper.arrays import NEVER
from cnncc.mapper.block_sizes import least_words
from cnncc.mapper.bound import ideal_cycles
from cnncc.mapper.effort import USUAL, Effort
from cnncc.mapper.front import front
from cnncc.mapper.least_cost import least_cost
from cnncc.mapper.local_search import improved
from cnncc.mapper.objective import Prices
from cnncc.mapper.prices import cost_of
from cnncc.mapper.search import Result, Tradeoff, best_of, search
from cnncc.mapper.space import forms_of
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.util import disk_cache, processors
from cnncc.util.garbage import collect_rarely
from cnncc.util.progress import Progress

SOURCES = (
    "mapper/*.py",
    "model/*.py",
    "dialects/_*.py",
    "arch/*.py",
    "util/toml.py",
    "numerics.py",
    "errors.py",
)  # all that a search imports
COUNTS = ("cycles", "least", "run", "bounded")
ALONE_S = 1.0  # of searching before other processes are started: each takes 0.4 s to start (2026-11)
MOST_PROCESSES = 8  # each holds about 80 MB
MOST_FOUND = 4096  # results in memory


@dataclass(frozen=True)
class SearchTask:
    """What `search` is asked for, without what no result depends on. prices: those of the front, None for none."""

    shape: LayerShape
    arch: Arch
    budget: GlbBudget
    dataflow: str = ""
    below: int = NEVER
    quick: bool = False
    effort: Effort = field(default_factory=lambda: USUAL)
    prices: Prices | None = None

    def __post_init__(self) -> None:
        window = replace(self.shape.window, fill=0, zero=0)  # values, which the mapper knows nothing of
        object.__setattr__(self, "shape", replace(self.shape, window=window))
        object.__setattr__(self, "arch", counted_arch(self.arch))

    def search(self) -> Result | None:
        """Its result, with the front by its prices. A faster mapping that the front has is the best then."""
        if self.prices is None:
            best = self._fastest()
            return best and replace(best, others=())
        best = result_of(replace(self, prices=None))
        if best is None:
            return None
        shape, arch, costs = self.shape, self.arch, self.prices.costs
        cost = cost_of(shape, best.mapping, arch, self.budget.residual, costs)
        tight = best.tight or (self.prices.wide and bool(self.budget.streamed))
        each = self._front(tight, (Tradeoff(best.mapping, best.cycles, cost),), self.prices)
        if self.budget.streamed and not tight:
            far = self.effort.front_gap * least_cost(shape, arch, self.budget, costs)
            each = self._front(True, each, self.prices) if each[0].cost > far else each
        fastest = each[-1]
        least = min(best.least, fastest.cycles)
        return replace(best, mapping=fastest.mapping, cycles=fastest.cycles, least=least, front=each)

    def _front(self, tight: bool, known: tuple[Tradeoff, ...], prices: Prices) -> tuple[Tradeoff, ...]:
        budget = replace(self.budget, tight=tight)
        return front(self.shape, self.arch, budget, known, prices, self.dataflow, self.effort)

    def _fastest(self) -> Result | None:
        """The fastest mapping. The search goes on where much less may do (`Effort.gap`)."""
        if self.below < NEVER:
            return search(self.shape, self.arch, self.budget, self.dataflow, self.below, self.quick, self.effort)
        if not self.budget.prefetched and self.effort.gap < inf:  # CHAIN-1: one search, which takes no second try
            return replace(self, effort=self.effort.of_first_layer())._fastest()
        best = self._in_both_budgets()
        if best is None or self.effort.first or self._has_everything():
            return best
        best = self._longer(best) if self.budget.streamed and self._is_far(best) else best
        if self.dataflow or best.cycles <= self.effort.local_gap * best.least:
            return best
        starts = 1 if self.budget.prefetched and not self._is_far(best) else self.effort.local_starts
        return improved(self.shape, self.arch, self.budget, best, self.effort, starts)

    def _longer(self, best: Result) -> Result:
        """The best of a longer search, which looks at what may be faster alone."""
        budget, effort = replace(self.budget, tight=best.tight), self.effort.longer()
        again = search(self.shape, self.arch, budget, self.dataflow, best.cycles, effort=effort)
        if again is None:
            return best
        faster = best_of((best, replace(again, tight=best.tight)))
        return replace(faster, least=min(best.least, faster.cycles))

    def _in_both_budgets(self) -> Result | None:
        """SPACE-13: a tight budget is searched, too, if nothing has room or far fewer cycles may do."""
        best = self._in(self.budget)
        if self._has_everything() or (best and (self.effort.first or self._is_near(best))):
            return best
        tight = self._in(replace(self.budget, tight=True))
        results = [result for result in (best, tight and replace(tight, tight=True)) if result]
        return replace(best_of(results), least=min(result.least for result in results)) if results else None

    def _in(self, budget: GlbBudget) -> Result | None:
        """The best in a budget: of each form by itself where a search of all finds too little (BOUND-8)."""
        if least_words(self.shape, self.arch, budget) > budget.words:
            return None
        best = search(self.shape, self.arch, budget, self.dataflow, effort=self.effort)
        if self.dataflow or (best and not self._mixes_forms(best)):
            return best
        names = dict.fromkeys(form.name for form in forms_of(self.shape))
        each = filter(None, (search(self.shape, self.arch, budget, name, effort=self.effort) for name in names))
        if best:
            return replace(best_of((best, *each)), least=best.least)
        if not (results := list(islice(each, 1) if self.effort.first else each)):
            return None
        best = best_of(results)
        return replace(best, least=min(best.cycles, ideal_cycles(self.shape, self.arch)))

    def _mixes_forms(self, best: Result) -> bool:
        """Whether a form's candidates may have used up the runs of others: if less may do."""
        if self.effort.first:
            return False
        if self.budget.streamed:
            return self._is_far(best)
        has_lanes = self.shape.most_products(self.arch) >= self.effort.form_lanes
        return has_lanes and best.cycles > self.effort.form_gap * best.least

    def _has_everything(self) -> bool:
        """Whether all weights and parameters lie in the GLB when the layer starts, and nothing is streamed."""
        return (
            not self.budget.streamed
            and self.budget.prefetched
            and self.shape.weight_words + self.shape.param_words(self.arch) <= self.budget.words
        )

    def _is_far(self, best: Result) -> bool:
        """Whether far fewer cycles may do."""
        return best.cycles > max(self.effort.gap * best.least, best.least + self.effort.few_cycles)

    def _is_near(self, best: Result) -> bool:
        return self.arch.sequencer.overlap and best.cycles <= self.effort.gap * best.least


_found = dict[SearchTask, Result | None]()


def searched(
    shape: LayerShape,
    arch: Arch,
    budget: GlbBudget,
    dataflow: str = "",
    below: int = NEVER,
    quick: bool = False,
    effort: Effort | None = None,
    prices: Prices | None = None,
) -> Result | None:
    """What `search` finds, from memory or disk if it is there. effort: None for the usual one."""
    return result_of(SearchTask(shape, arch, budget, dataflow, below, quick, effort or USUAL, prices))


def result_of(task: SearchTask) -> Result | None:
    """The result of a task, from memory or disk if it is there."""
    if not _is_known(task):
        _keep(task, task.search())
    return _found[task]


def has_mapping(shape: LayerShape, arch: Arch, budget: GlbBudget, dataflow: str = "") -> bool:
    """Whether `searched` finds a mapping: a shorter search knows it."""
    return searched(shape, arch, budget, dataflow, effort=replace(USUAL, first=True)) is not None


GoesOn = Callable[[SearchTask, Result | None], bool]


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
            _side_by_side(left, count, finish)
        else:
            finish(left[0], left[0].search())
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
    parts = task.shape, task.arch, task.dataflow, task.below, task.quick, task.effort, task.prices
    return disk_cache.key_of("search", sources(), repr(parts), asdict(task.budget))


@cache
def sources() -> str:
    """The hash of all sources that a search depends on."""
    folder, digest = Path(cnncc.__file__).parent, hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(folder.glob(pattern)):
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


# -- processes ---------------------------------------------------------------------------------------------------------

# Why not those of `multiprocessing`: a fork would take over threads of onnxruntime in any state, and a process that is
# spawned runs the caller's script again up to its `if __name__ == "__main__"`, which not every script has.
WORKER = "import sys; sys.path[:] = sys.argv[1:]; from cnncc.mapper.cached_search import work; work()"


def work() -> None:
    """What such a process does: a result for each task, until there are no more, or nobody takes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    collect_rarely()
    while True:
        try:
            task: SearchTask = pickle.load(sys.stdin.buffer)
            pickle.dump(task.search(), sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except (EOFError, BrokenPipeError):
            os._exit(0)


_processes = list[subprocess.Popen[bytes]]()  # that wait for tasks; starting one takes 0.3 s of CPU


def _started(count: int) -> list[subprocess.Popen[bytes]]:
    """So many processes that wait for tasks, those of earlier searches first; fewer where the system has no more."""
    command = [sys.executable, "-c", WORKER, *(path or str(Path.cwd()) for path in sys.path)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    _end([process for process in _processes if process.poll() is not None or process.args != command])
    pipe = subprocess.PIPE
    with suppress(OSError):
        while len(_processes) < count:
            _processes.append(
                subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            )
    return _processes[:count]


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        _processes.remove(process)
        with suppress(OSError), process:  # OSError: what was written and not read cannot be flushed
            pass


@atexit.register
def _end_all() -> None:
    _end(list(_processes))


def _side_by_side(tasks: Sequence[SearchTask], count: int, goes_on: GoesOn) -> None:
    """Say each result as it comes, until the others are not wanted."""
    processes, idle = _started(count), SimpleQueue[subprocess.Popen[bytes]]()
    for process in processes:
        idle.put(process)

    def result(task: SearchTask) -> Result | None:
        process = idle.get()
        try:
            assert process.stdin and process.stdout
            pickle.dump(task, process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except BaseException:
            process.kill()  # what it would say next may belong to this task
            raise
        finally:
            idle.put(process)

    threads = ThreadPoolExecutor(max(1, len(processes)))
    try:
        futures = {threads.submit(result, task): task for task in tasks if processes}
        for future in as_completed(futures):
            # A process that was ended, or in which the search has a defect: it is searched, or fails, here.
            task, lost = futures[future], future.exception()
            if not goes_on(task, task.search() if lost else future.result()):
                return
        for task in tasks if not processes else ():
            if not goes_on(task, task.search()):
                return
    except BaseException:
        _end_all()
        raise
    finally:
        threads.shutdown(cancel_futures=True)
