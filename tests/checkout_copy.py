"""A copy of the checkout whose tests run in forked processes, with a changed line or without.

The process that forks has imported what takes long: pytest, numpy, xdsl, onnx, and all of cnncc if it is to be warm
(`warm_modules.py`). So a run of a few tests takes less than a second. Tests that start commands see the change, too.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import pytest
from warm_modules import WarmModules

# Imported before a fork, as each takes a part of a second. They hold nothing of the checkout.
FIRST = ("numpy", "onnx.helper", "onnxruntime", "xdsl.xdsl_opt_main", "hypothesis", "filecheck.matcher", "click")
MOST_BYTES = 6 << 30
# In a process without others of pytest-xdist, which leaves nothing behind. Hypothesis was imported before pytest looks;
# its plugin would read all modules for constants.
OPTIONS = (
    "-q", "--tb=no", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:hypothesispytest",
    "-Wignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
KILLED = -1  # a run that took more than its seconds of CPU


class Failure(NamedTuple):
    """The test that failed, or the first of the tests that were run; and why, if it was no test that failed."""

    test: str
    why: str = ""


class FirstFailure:
    """A plugin of pytest: runs tests in the order of their names here; notes the first that fails."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.rank = {test: number for number, test in enumerate(tests)}
        self.failure: Failure | None = Failure(tests[0], "cnncc cannot be imported")

    def pytest_sessionstart(self) -> None:
        self.failure = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.rank.get(item.nodeid, 0))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failure = self.failure or Failure(report.nodeid, "cannot be imported")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failure = self.failure or Failure(report.nodeid)


class Checkout:
    """A copy of a checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warm: WarmModules | None = None
        self._change: tuple[str, str, str] | None = None  # the text before, the one after, the file

    def warm_up(self, package: str) -> None:
        """Import all modules of a package here, so that processes that are forked need not."""
        self._import_first()
        sys.path[:0] = [str(self.root)]
        self.warm = WarmModules(self.root, package)
        gc.collect()
        gc.freeze()  # processes that are forked need not look at it

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """A file with another text. Python may take a compiled file that is a moment older for this one's."""
        path = self.root / file
        before, compiled = path.read_text(), Path(cache_from_source(str(path)))
        self._change = before, text, file
        try:
            path.write_text(text)
            compiled.unlink(missing_ok=True)
            yield
        finally:
            self._change = None
            path.write_text(before)
            compiled.unlink(missing_ok=True)

    def failing(self, tests: Sequence[str], seconds: float) -> Failure | None:
        """The first of the tests that fails; None if none does, or there is none.

        A run of more seconds of CPU has no end: it fails.
        """
        report = self.root / "failure.json"
        report.unlink(missing_ok=True)

        def run() -> int:
            plugin = FirstFailure(tests)
            code = pytest.main([*OPTIONS, "-x", *tests], plugins=[plugin])
            report.write_text(json.dumps(plugin.failure))
            return int(code)

        code = self.forked(run, seconds)
        if not report.exists():
            return Failure(tests[0], f"no end after {seconds:.0f} s" if code == KILLED else f"exit code {code}")
        failure = json.loads(report.read_text())
        if code == pytest.ExitCode.USAGE_ERROR and not failure and len(tests) > 1:  # one of them does not exist
            return next(filter(None, (self.failing([test], seconds) for test in tests)), None)
        return Failure(*failure) if failure else None

    def all_failing(self, tests: Iterable[str], seconds: float) -> set[str]:
        """Those of the tests that fail, each run after the others that pass."""
        left, failed = list(tests), set[str]()
        while left and (failure := self.failing(left, seconds)):
            failed |= {each for each in left if each == failure.test or each.startswith(f"{failure.test}::")}
            left = [each for each in left if each not in failed]
        return failed

    def forked(self, run: Callable[[], int], seconds: float) -> int:
        """The exit code of `run` in a process of its own, in the copy."""
        self._import_first()
        sys.stdout.flush()
        process = os.fork()
        if not process:
            code = 1
            try:
                code = self._child(run, seconds)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(process, 0)
        # What the tests started is of its group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(status)
        return KILLED if code in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM) else code

    @staticmethod
    def _import_first() -> None:
        os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # as conftest.py has it
        for name in FIRST:
            importlib.import_module(name)

    def _child(self, run: Callable[[], int], seconds: float) -> int:
        os.setpgid(0, 0)
        os.chdir(self.root)
        for stream, path in ((0, os.devnull), (1, "output.txt"), (2, "output.txt")):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), stream)
        limit = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        signal.alarm(20 * limit)  # what waits for ever takes no CPU
        sys.path[:0] = [str(self.root)]
        os.environ["PYTHONPATH"] = str(self.root)
        sys.argv = ["pytest"]
        if self.warm and self._change:
            self.warm.take(*self._change)
        gc.freeze()  # what the parent has made: pytest looks for garbage in it when it ends (1 s)
        return run()


@contextmanager
def copied(root: Path) -> Iterator[Checkout]:
    """A copy of a checkout, without what git ignores, in a folder of its own."""
    ignored = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "build", "demo")
    with tempfile.TemporaryDirectory(prefix="cnncc-copy-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(root, copy, symlinks=True, ignore=ignored)
        yield Checkout(copy)
