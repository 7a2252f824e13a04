"""Processes that search side by side. No IR.

Why not `multiprocessing`: a forked process takes over the threads of onnxruntime in whatever state they are. A spawned
process runs the caller's script again up to `if __name__ == "__main__"`, and not every script has this line.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.search import Result
from cnncc.util.memory_settings import prefer_time_to_memory

Search = Callable[[SearchTask], Result | None]
GoesOn = Callable[[SearchTask, Result | None], bool]

WORKER = "import sys; sys.path[:] = sys.argv[1:]; from cnncc.mapper.cached_search import work; work()"


def answer(search: Search) -> None:
    """What such a process does: a result for each task, until there are no more, or nobody takes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    prefer_time_to_memory()
    while True:
        try:
            task: SearchTask = pickle.load(sys.stdin.buffer)
            pickle.dump(search(task), sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except (EOFError, BrokenPipeError):
            os._exit(0)


_processes = list[subprocess.Popen[bytes]]()  # that wait for tasks; starting one takes 0.3 s of CPU


def _started(count: int) -> list[subprocess.Popen[bytes]]:
    """Processes that wait for tasks, those of earlier searches first: `count`, or as many as the system allows."""
    # An empty entry is the present folder, which may be another one at the next search: processes are ended then.
    command = [sys.executable, "-c", WORKER, *(path or str(Path.cwd()) for path in sys.path)]
    # Processors have a process each: threads of numpy would only take them from each other.
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


def search_side_by_side(tasks: Sequence[SearchTask], count: int, goes_on: GoesOn, search: Search) -> None:
    """Say each result as it comes, until the others are not wanted. search: for what no process gives."""
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
            if not goes_on(task, search(task) if lost else future.result()):
                return
        for task in tasks if not processes else ():
            if not goes_on(task, search(task)):
                return
    except BaseException:
        _end_all()
        raise
    finally:
        threads.shutdown(cancel_futures=True)
