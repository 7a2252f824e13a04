"""The tests that run a line, the likely ones first, from one run of all tests with `block_probes.py`.

The run goes file by file. What is known of a test file is kept until the file changes, so that an interrupted run goes
on. A test whose line is run by a fixture of its whole file counts as running it.
"""

from __future__ import annotations

import hashlib
import json
import resource
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

import pytest
from block_probes import Entered, add_probes, block_at
from checkout_copy import KILLED, OPTIONS, Checkout

MEASURED = ("cnncc/**/*.py", "passes/**/*.py", "dialects/**/*.py")
OWN = 10
FIRST_SECONDS = 0.1  # of the examples of a test, which come before further ones of others


class Known(TypedDict):
    """Of a test file: seconds of CPU of each test, and bits of the tests that enter a block, by file and name."""

    seconds: dict[str, float]
    blocks: dict[str, dict[str, int]]


def cpu_seconds() -> float:
    """Of this process and of those that it waited for."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class EnteredBlocks:
    """A plugin of pytest: the numbers of the blocks of each test that passes, and its seconds of CPU if it runs alone.

    Of each test one example comes before the others. After `most_seconds` no other test is begun.
    """

    def __init__(self, entered: Entered, most_seconds: float) -> None:
        self.entered, self.most_seconds, self.start = entered, most_seconds, cpu_seconds()
        self.blocks, self.seconds = dict[str, set[int]](), dict[str, float]()
        self.shared, self.of_test = set[int](), set[int]()
        self.of_fixtures = dict[str, float]()  # seconds of those that tests share
        self.failed = set[str]()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        number, order = defaultdict[str, int](int), dict[str, int]()
        for item in items:
            function = item.nodeid.partition("[")[0]
            order[item.nodeid] = number[function]
            number[function] += 1
        items.sort(key=lambda item: order[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.entered.look()
        self.of_test, start, shared = set(), cpu_seconds(), sum(self.of_fixtures.values())
        result = yield
        self.blocks[item.nodeid] = self.of_test | set(self.entered.look())
        own = cpu_seconds() - start - (sum(self.of_fixtures.values()) - shared)
        fixtures: Sequence[str] = getattr(item, "fixturenames", ())
        self.seconds[item.nodeid] = round(own + sum(self.of_fixtures.get(name, 0.0) for name in fixtures), 3)
        if cpu_seconds() - self.start > self.most_seconds:
            item.session.shouldstop = "enough is measured"
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        self.of_test |= set(self.entered.look())
        start = cpu_seconds()
        result = yield
        self.of_fixtures[fixturedef.argname] = cpu_seconds() - start
        self.shared |= set(self.entered.look())
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)


class CoveringTests:
    """What is kept in a folder: for each test file the seconds of its tests, and which of them enter each block."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        folder.mkdir(parents=True, exist_ok=True)
        self._known, self._digests = dict[str, Known](), dict[str, str]()

    def measure(self, checkout: Checkout, files: Sequence[str], most_seconds: float) -> None:
        """Run the test files that changed since, or were never run, in a checkout that is changed for that."""
        missing = [name for name in files if not self._path(name).exists()]
        if not missing:
            return
        sources = sorted({str(p.relative_to(checkout.root)) for each in MEASURED for p in checkout.root.glob(each)})
        blocks = add_probes(checkout.root, sources)
        for name in missing:
            print(f"measuring {name}", flush=True)
            code = checkout.forked(lambda name=name: self._measured(name, blocks, most_seconds), 2 * most_seconds + 60)
            if code == KILLED:
                self._path(name).write_text(json.dumps(Known(seconds={}, blocks={})))

    def _measured(self, name: str, blocks: Sequence[tuple[str, str]], most_seconds: float) -> int:
        plugin = EnteredBlocks(Entered(Path.cwd()), most_seconds)
        pytest.main([*OPTIONS, f"tests/{name}"], plugins=[plugin])
        passed = [test for test in plugin.seconds if test not in plugin.failed]
        bits = defaultdict[str, defaultdict[str, int]](lambda: defaultdict(int))
        for number, test in enumerate(passed):
            for block in plugin.blocks[test] | plugin.shared:
                file, of_file = blocks[block]
                bits[file][of_file] |= 1 << number
        seconds = {test: plugin.seconds[test] for test in passed}
        self._path(name).write_text(json.dumps({"seconds": seconds, "blocks": bits}))
        return 0

    def _path(self, name: str) -> Path:
        if name not in self._digests:  # once: a file may change while bugs are planted in a copy
            self._digests[name] = hashlib.sha256((self.root / "tests" / name).read_bytes()).hexdigest()[:12]
        return self.folder / f"{name.removesuffix('.py')}-{self._digests[name]}.json"

    def of_line(self, file: str, text: str, line: int) -> list[tuple[str, float]]:
        """Tests that run a line, and their seconds. Where none does, as it runs on import, those that run its file.

        The first are those that run the most blocks of the file in a second, of each test `FIRST_SECONDS` of examples
        before the others. Tests of a file that imports the module count `OWN` times.
        """
        module, wanted = ".".join(Path(file).with_suffix("").parts), block_at(text, line)
        number_of, runs, seconds = defaultdict[str, int](int), set[str](), dict[str, float]()
        weight_of = dict[str, int]()
        for name, known in self._all_known():
            weight = OWN if module in (self.root / "tests" / name).read_text() else 1
            for block, bits in known["blocks"].get(file, {}).items():
                tests = [test for number, test in enumerate(known["seconds"]) if bits >> number & 1]
                runs |= set(tests) if block == wanted else set()
                for test in tests:
                    number_of[test] += weight
                    seconds[test], weight_of[test] = known["seconds"][test], weight
        spent, order = defaultdict[str, float](float), list[tuple[int, float, str]]()
        for value, test in sorted((-number_of[test] / (0.1 + seconds[test]), test) for test in runs or number_of):
            function = test.partition("[")[0]
            order.append((int(spent[function] / (FIRST_SECONDS * weight_of[test])), value, test))
            spent[function] += seconds[test]
        return [(test, seconds[test]) for _, _, test in sorted(order)]

    def _all_known(self) -> Iterator[tuple[str, Known]]:
        for path in sorted((self.root / "tests").glob("test_*.py")):
            if path.name not in self._known and self._path(path.name).exists():
                self._known[path.name] = json.loads(self._path(path.name).read_text())
            if path.name in self._known:
                yield path.name, self._known[path.name]
