"""Plants the bugs of bugs.toml, one at a time, and says which the tests see.

    make bugs                                                        all that have no result yet
    python tests/plant_bugs.py --only mapper --seconds 600           some, each for at most ten minutes

A bug is planted in a copy of the checkout. The test files that bugs.toml names run first, then those that name the
module, then the others, the short ones first, until a test fails or the time is over. A test that fails without the
bug, too, has not seen it. Results are kept in a file, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Bug:
    """A line of `file` has `after` for `before`. tests: the files, or tests of files, that should see it."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.file}: {self.before} -> {self.after}"

    def is_in(self, checkout: Path) -> bool:
        """Whether the line is still there, once."""
        path = checkout / self.file
        return path.is_file() and path.read_text().count(self.before) == 1


@dataclass(frozen=True)
class Result:
    """outcome: seen, not seen (by the tests that ran in the time), or gone: the checkout has no such line.

    by: the test that failed, or the last file that ran.
    """

    key: str
    outcome: str
    by: str
    seconds: float


def read_bugs(path: Path) -> list[Bug]:
    return [Bug(**{**entry, "tests": tuple(entry["tests"])}) for entry in tomllib.loads(path.read_text())["bug"]]


def ordered(bug: Bug, checkout: Path) -> Iterator[str]:
    """The names of all test files, and tests of some, the likely ones first."""
    files = sorted((checkout / "tests").glob("test_*.py"), key=lambda path: path.stat().st_size)
    module = bug.file.removesuffix(".py").replace("/", ".")
    near = [path.name for path in files if module in path.read_text() or module.rpartition(".")[0] in path.read_text()]
    named = [name for name in bug.tests if (checkout / "tests" / name.partition("::")[0]).is_file()]
    yield from dict.fromkeys([*named, *near, *(path.name for path in files)])


def failing(checkout: Path, tests: str, seconds: float) -> str | None:
    """The first test that fails; None where none does in the time. A run without an end is no failure."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-x",
        "-q",
        "--tb=no",
        "-rfE",
        "-p",
        "no:cacheprovider",
        tests,
    ]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    try:
        run = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None
    if run.returncode in (0, 4, 5):  # 4, 5: there is no such test
        return None
    match = FAILED.search(run.stdout)
    return match[1] if match else f"{tests} (exit code {run.returncode})"


def plant(bug: Bug, checkout: Path, most_seconds: float) -> Result:
    """Run tests on a copy of the checkout with the bug until one sees it."""
    start, path = time.monotonic(), checkout / bug.file
    if not bug.is_in(checkout):
        return Result(bug.key, "gone", "", 0.0)
    text, last = path.read_text(), ""
    for name in ordered(bug, checkout):
        if (left := most_seconds - (time.monotonic() - start)) <= 0:
            break
        last = f"tests/{name}"
        try:
            _write(path, text.replace(bug.before, bug.after))
            test = failing(checkout, last, left)
        finally:
            _write(path, text)
        if test is not None:
            if failing(checkout, test, most_seconds) is not None:
                last = f"{test}, which fails without the bug, too"
                continue
            return Result(bug.key, "seen", test, round(time.monotonic() - start, 1))
    return Result(bug.key, "not seen", last, round(time.monotonic() - start, 1))


def _write(path: Path, text: str) -> None:
    """Python may take a compiled file that is a moment older for this one's."""
    path.write_text(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def copied(checkout: Path, folder: Path) -> Path:
    """A copy of a checkout, without what it does not share."""
    ignored = shutil.ignore_patterns("__pycache__", ".venv", ".git", ".hypothesis", "*.egg-info", "build", "demo")
    shutil.copytree(checkout, folder / "checkout", symlinks=True, ignore=ignored)
    return folder / "checkout"


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant one-line bugs and see whether the tests find them.")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="a copy of it is tested; default: this one")
    parser.add_argument("--bugs", type=Path, default=ROOT / "tests" / "bugs.toml")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bugs.jsonl", help="delete it to begin anew")
    parser.add_argument("--only", default="", help="bugs whose file has this in its path")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each bug, at most")
    options = parser.parse_args()
    bugs = [bug for bug in read_bugs(options.bugs) if options.only in bug.file]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    results = {result.key: result for result in (Result(**json.loads(line)) for line in lines)}
    with tempfile.TemporaryDirectory() as folder:
        checkout = copied(options.checkout, Path(folder))
        for bug in bugs:
            if bug.key not in results:
                results[bug.key] = result = plant(bug, checkout, options.seconds)
                with options.results.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
            result = results[bug.key]
            print(
                f"{result.outcome:8} {result.seconds:6.1f} s  {bug.file}: {bug.before.strip()}  {result.by}", flush=True
            )
    outcomes = [results[bug.key].outcome for bug in bugs]
    print(", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in ("seen", "not seen", "gone")))
    sys.exit(any(outcome != "seen" for outcome in outcomes))


if __name__ == "__main__":
    main()
