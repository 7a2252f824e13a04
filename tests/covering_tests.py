"""The tests that run a line, the likely ones first, from one run of all tests under `coverage`.

The run goes file by file. What is known of a test file is kept until the file changes, so that an interrupted run goes
on. A test whose line is run by a fixture of its whole file counts as running it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from checkout_copy import OPTIONS, Checkout
from coverage import Coverage, CoverageData

MEASURED = ("cnncc/*", "passes/*", "dialects/*")
MOST_SECONDS = 3600.0  # of CPU, for a test file
SHARED = "::"  # the context of what the tests of a file share


class TestLines:
    """A plugin of pytest: the lines of each test that passes, and its seconds of CPU."""

    __test__ = False

    def __init__(self, coverage: Coverage) -> None:
        self.coverage, self.test = coverage, ""
        self.seconds = dict[str, float]()
        self.failed = set[str]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        self.coverage.switch_context(self.test)
        start = time.process_time()
        result = yield
        self.seconds[item.nodeid] = round(time.process_time() - start, 3)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        self.coverage.switch_context(SHARED)
        result = yield
        self.coverage.switch_context(self.test)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)


class CoveringTests:
    """What is kept in a folder: for each test file its coverage and the seconds of its tests."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        folder.mkdir(parents=True, exist_ok=True)
        self._seconds, self._digests = dict[str, dict[str, float]](), dict[str, str]()

    def measure(self, checkout: Checkout, files: Sequence[str]) -> None:
        """Run the test files that changed since, or were never run."""
        for name in files:
            if not self._seconds_of(name):
                print(f"measuring {name}", flush=True)
                data = self._path(name, "coverage")
                data.unlink(missing_ok=True)
                checkout.forked(lambda name=name, data=data: self._measured(name, data), MOST_SECONDS)
                del self._seconds[name]

    def _measured(self, name: str, data: Path) -> int:
        include = [str(Path.cwd().resolve() / each) for each in MEASURED]
        coverage = Coverage(str(data), include=include, config_file=False)
        coverage.set_option("run:relative_files", True)
        coverage.start()
        plugin = TestLines(coverage)
        pytest.main([*OPTIONS, f"tests/{name}"], plugins=[plugin])
        coverage.stop()
        coverage.save()
        passed = {test: seconds for test, seconds in plugin.seconds.items() if test not in plugin.failed}
        self._path(name, "json").write_text(json.dumps(passed))
        return 0

    def _path(self, name: str, suffix: str) -> Path:
        if name not in self._digests:  # once: a file may change while bugs are planted in a copy
            self._digests[name] = hashlib.sha256((self.root / "tests" / name).read_bytes()).hexdigest()[:12]
        return self.folder / f"{name.removesuffix('.py')}-{self._digests[name]}.{suffix}"

    def _seconds_of(self, name: str) -> dict[str, float]:
        if name not in self._seconds:
            path = self._path(name, "json")
            self._seconds[name] = json.loads(path.read_text()) if path.exists() else {}
        return self._seconds[name]

    def of_line(self, file: str, line: int) -> list[tuple[str, float]]:
        """Tests that run a line, and their seconds. Where none does, as it runs on import, those that run its file.

        The first are those that run the most lines of the file in a second, one example of each test before the others.
        """
        lines, runs, seconds = defaultdict[str, int](int), set[str](), dict[str, float]()
        for name in self._measured_files():
            of_file = self._seconds_of(name)
            seconds |= of_file
            for number, tests in self._lines(name, file).items():
                known = set(of_file) if SHARED in tests else set(tests) & set(of_file)
                runs |= known if number == line else set()
                for test in known:
                    lines[test] += 1
        number, order = defaultdict[str, int](int), list[tuple[int, float, str]]()
        for value, test in sorted((-lines[test] / (0.1 + seconds[test]), test) for test in runs or lines):
            function = test.partition("[")[0]
            order.append((number[function], value, test))
            number[function] += 1
        return [(test, seconds[test]) for _, _, test in sorted(order)]

    def _measured_files(self) -> list[str]:
        return [path.name for path in sorted((self.root / "tests").glob("test_*.py")) if self._seconds_of(path.name)]

    def _lines(self, name: str, file: str) -> dict[int, list[str]]:
        """The tests, or `SHARED`, that run each line of a file."""
        data = CoverageData(str(self._path(name, "coverage")))
        data.read()
        return data.contexts_by_lineno(file)
