"""Plants one-line bugs, one at a time, and says which the tests see.

    make bugs                                                        all of bugs.toml that have no result yet
    make mutants                                                     300 that are drawn
    python tests/plant_bugs.py --only mapper --seconds 600           some, each for at most ten minutes of tests
    python tests/plant_bugs.py --drawn 300 --again                   those that were not seen

A bug is planted in a copy of the checkout. The tests that bugs.toml names run first, then those that run the line
(`covering_tests.py`), until one fails or the time is over. A run without an end counts as seen. At the end the tests
that failed run once without a bug: what one saw that fails then, too, is not seen. Results are kept in a file, so that
a run that was interrupted goes on.

`equivalent_bugs.toml` has drawn changes that change no output, count, message or chosen mapping, each with the reason.
They do not count in the share that is seen.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from checkout_copy import Checkout, copied
from covering_tests import CoveringTests
from mutations import Bug, draw

ROOT = Path(__file__).resolve().parents[1]
LISTED, EQUIVALENT = ROOT / "tests" / "bugs.toml", ROOT / "tests" / "equivalent_bugs.toml"
PACKAGES = {
    "lowering": ("passes/nest_to_array.py", "passes/array_to_isa.py", "passes/_programs/*.py"),
    "allocation": ("passes/_programs/glb_packing.py", "passes/array_allocate.py", "passes/array_prefetch.py"),
    "encoding": ("cnncc/isa/*.py", "cnncc/binary/*.py"),
    "interpreter": ("cnncc/machine/**/*.py", "cnncc/eval/*.py"),
    "model": ("cnncc/model/*.py",),
    "mapper": ("cnncc/mapper/*.py",),
}
LEAST_SEEN, LEAST_SEEN_IN_EACH, MOST_EQUIVALENT = 0.95, 0.90, 0.10
# Whole commands, which take long, and tests of what the sources look like.
NOT_MEASURED = {"test_docs.py", "test_mutations.py", "test_packaging.py", "test_repository.py"}
FIRST_SECONDS, MORE = 0.6, 3.0  # of tests that run together; how many times as many the next time


@dataclass(frozen=True)
class Result:
    """outcome: seen, not seen (by the tests that ran in the time), or gone: the checkout has no such line.

    by: the test that failed, or the last that ran. why: if it was no test that failed.
    """

    key: str
    outcome: str
    by: str
    seconds: float
    why: str = ""


def read_bugs(path: Path) -> list[Bug]:
    entries = tomllib.loads(path.read_text())["bug"]
    return [Bug(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def read_equivalent(path: Path) -> dict[str, str]:
    """The reason of each bug that is none, by its key."""
    entries = tomllib.loads(path.read_text())["bug"]
    return {Bug(**{name: entry[name] for name in entry if name != "why"}).key: entry["why"] for entry in entries}


def drawn_bugs(number: int, seed: int) -> dict[str, list[Bug]]:
    """As many of each package."""
    return {
        package: draw(ROOT, sorted({str(p.relative_to(ROOT)) for each in files for p in ROOT.glob(each)}), count, seed)
        for (package, files), count in zip(PACKAGES.items(), _shares(number, len(PACKAGES)), strict=True)
    }


def _shares(number: int, parts: int) -> list[int]:
    return [number * (i + 1) // parts - number * i // parts for i in range(parts)]


def together(tests: Iterable[tuple[str, float]], most_seconds: float) -> Iterator[tuple[list[str], float]]:
    """Tests that run in one process, and their seconds: few at first, as most bugs are seen at once."""
    some, seconds, limit, total = list[str](), 0.0, FIRST_SECONDS, 0.0
    for test, each in tests:
        if total + each > most_seconds:
            continue
        if some and seconds + each > limit:
            yield some, seconds
            some, seconds, limit = [], 0.0, limit * MORE
        some.append(test)
        seconds, total = seconds + each, total + each
    if some:
        yield some, seconds


class Planting:
    """Plants bugs in a copy of the checkout."""

    def __init__(self, checkout: Checkout, covering: CoveringTests, most_seconds: float) -> None:
        self.checkout, self.covering, self.most_seconds = checkout, covering, most_seconds

    def plant(self, bug: Bug) -> Result:
        """Run tests with the bug until one sees it."""
        start, last = time.monotonic(), ""
        if not bug.is_in(self.checkout.root):
            return Result(bug.key, "gone", "", 0.0)
        text = (self.checkout.root / bug.file).read_text()
        for tests, seconds in self._tests(bug, text):
            with self.checkout.changed(bug.file, bug.planted(text)):
                failure = self.checkout.failing(tests, 30 + 10 * seconds)
            if failure is not None:
                return Result(bug.key, "seen", failure.test, round(time.monotonic() - start, 1), failure.why)
            last = tests[-1]
        return Result(bug.key, "not seen", last, round(time.monotonic() - start, 1))

    def _tests(self, bug: Bug, text: str) -> Iterator[tuple[list[str], float]]:
        named = [f"tests/{name}" for name in bug.tests if (ROOT / "tests" / name.partition("::")[0]).is_file()]
        yield from (([test], self.most_seconds) for test in named)
        yield from together(self.covering.of_line(bug.file, text, bug.line_in(text)), self.most_seconds)


def measure_lines(covering: CoveringTests, files: Sequence[str], most_seconds: float) -> None:
    """Measure which tests of some files run which lines, in a copy of the checkout."""
    with copied(ROOT) as checkout:
        covering.measure(checkout, files, most_seconds)


def plant_all(bugs: Sequence[Bug], covering: CoveringTests, most_seconds: float, results: Path) -> None:
    """Plant bugs one after the other in a copy of the checkout, and add the results to a file."""
    with copied(ROOT) as checkout:
        checkout.warm_up("cnncc")
        planting = Planting(checkout, covering, most_seconds)
        for bug in bugs:
            result = planting.plant(bug)
            with results.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            by = f"{result.by} {result.why}"
            print(f"{result.outcome:8} {result.seconds:6.1f} s  {bug.file}: {bug.after.strip()}  {by}", flush=True)


def read_results(path: Path) -> dict[str, Result]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {result.key: result for result in (Result(**json.loads(line)) for line in lines)}


def without_bug(results: Mapping[str, Result]) -> dict[str, Result]:
    """The results, none of which is seen by a test that fails without a bug, too."""
    with copied(ROOT) as checkout:
        wrong = checkout.all_failing({each.by for each in results.values() if each.outcome == "seen"}, 3600)
    for test in wrong:
        print(f"fails without a bug, too: {test}")
    return {key: replace(each, outcome="not seen") if each.by in wrong else each for key, each in results.items()}


def share_seen(bugs: Sequence[Bug], results: Mapping[str, Result], equivalent: Mapping[str, str]) -> float:
    """The share of the bugs that are seen, of those that are not equivalent."""
    count = [bug for bug in bugs if bug.key not in equivalent]
    return sum(bug.key in results and results[bug.key].outcome == "seen" for bug in count) / max(1, len(count))


def report(packages: Mapping[str, Sequence[Bug]], results: Mapping[str, Result], equivalent: Mapping[str, str]) -> bool:
    """Print what was seen, and what not; return whether enough was seen."""
    enough, every = True, [bug for bugs in packages.values() for bug in bugs]
    for bug in every:
        if bug.key not in equivalent and (bug.key not in results or results[bug.key].outcome != "seen"):
            line = bug.line_in((ROOT / bug.file).read_text())
            print(f"not seen  {bug.file}:{line}\n  - {bug.before.strip()}\n  + {bug.after.strip()}")
    print(f"\n{'package':<12} {'planted':>7} {'equivalent':>10} {'seen':>7}")
    for package, bugs in {**packages, "all": every}.items():
        same, share = sum(bug.key in equivalent for bug in bugs), share_seen(bugs, results, equivalent)
        print(f"{package:<12} {len(bugs):7} {same:10} {100 * share:5.1f} %")
        enough &= share >= (LEAST_SEEN if package == "all" else LEAST_SEEN_IN_EACH)
    wrongly = [bug.key for bug in every if bug.key in equivalent and results[bug.key].outcome == "seen"]
    for key in wrongly:
        print(f"seen, though it is listed as equivalent: {key}")
    return enough and not wrongly and sum(bug.key in equivalent for bug in every) <= MOST_EQUIVALENT * len(every)


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant one-line bugs and see whether the tests find them.")
    parser.add_argument("--drawn", type=int, default=0, help="draw so many bugs; default: those of bugs.toml")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--only", default="", help="bugs whose file has this in its path")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds of tests for each bug, at most")
    parser.add_argument("--again", action="store_true", help="plant again what was not seen")
    parser.add_argument("--jobs", type=int, default=2, help="processes, each with a copy of the checkout")
    parser.add_argument(
        "--tests", default="*", help="test files whose lines are measured if they are not yet, as a glob"
    )
    parser.add_argument(
        "--measured", type=float, default=60.0, help="CPU seconds of a test file that are measured, at most"
    )
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "bugs", help="results and lines; delete it to begin anew"
    )
    options = parser.parse_args()

    packages = drawn_bugs(options.drawn, options.seed) if options.drawn else {"listed": read_bugs(LISTED)}
    packages = {name: [bug for bug in bugs if options.only in bug.file] for name, bugs in packages.items()}
    covering, path = CoveringTests(options.build / "lines", ROOT), options.build / "results.jsonl"
    jobs = range(options.jobs)
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        if options.drawn:
            files = sorted({path.name for path in (ROOT / "tests").glob(f"test_{options.tests}.py")} - NOT_MEASURED)
            pool.starmap(measure_lines, [(covering, files[i :: options.jobs], options.measured) for i in jobs])
        results = read_results(path)
        wanted = [
            bug
            for bugs in packages.values()
            for bug in bugs
            if bug.key not in results or (options.again and results[bug.key].outcome != "seen")
        ]
        random.Random(options.seed).shuffle(wanted)  # so that the first results are a sample of all
        pool.starmap(plant_all, [(wanted[i :: options.jobs], covering, options.seconds, path) for i in jobs])
    keys = {bug.key for bugs in packages.values() for bug in bugs}
    results = without_bug({key: each for key, each in read_results(path).items() if key in keys})
    sys.exit(not report(packages, results, read_equivalent(EQUIVALENT)))


if __name__ == "__main__":
    main()
