"""Drawn bugs: the changes of each kind of line, a draw that stays as it is, and bugs in a small checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from checkout_copy import Checkout, Failure, copied
from covering_tests import CoveringTests
from mutations import Bug, draw, mutations
from plant_bugs import (
    EQUIVALENT,
    LISTED,
    PACKAGES,
    ROOT,
    Planting,
    Result,
    read_bugs,
    read_equivalent,
    report,
    together,
)
from warm_modules import WarmModules

# A process of pytest-xdist has a thread that waits for messages. What is forked here never uses it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

CHANGES = {
    "a = b < c": ["a = b <= c", "a = b >= c"],
    "a = (b) == (c)": ["a = (b) != (c)"],
    "a = b[3]": ["a = b[4]", "a = b[2]"],
    "a = 0": ["a = 1", "a = (-1)"],
    "a = True": ["a = False"],
    "a = (b + c) * d": ["a = (b + c) // d", "a = (b - c) * d"],
    "a = b and c": ["a = b or c", "a = c"],
    "a = b if c else d": ["a = b if not (c) else d"],
    "a = not b": ["a = b"],
    "f(a, b=c)": ["pass"],
    "a = f(b, c)": ["a = f(c, b)"],
    "a = f(*b, c)": [],
    "a = np.maximum(b, c)": [],
    "a = min(b, c)": ["a = max(b, c)"],
    "a.b = c": ["pass"],
    "a += b": ["pass"],
    "raise a": ["pass"],
    "a: int = b": [],
    "assert a < b": [],
    "assert_never(a)": [],
    '"text"': [],
    'a = f"{b + 1}"': [],
    "import a": [],
}


@pytest.mark.parametrize("line", CHANGES)
def test_changes_of_a_line(line: str) -> None:
    text = f"def f():\n    {line}\n"
    found = list(mutations(text, "x.py"))
    assert [bug.planted(text) for bug in found] == [f"def f():\n    {after}\n" for after in CHANGES[line]]
    assert [bug.line_in(text) for bug in found] == [2] * len(found)


def test_condition_and_loop() -> None:
    text = "while a:\n    break\n"
    assert [bug.after for bug in mutations(text, "x.py")] == ["while not (a):", "    pass"]


def test_equal_lines_are_told_apart() -> None:
    text = "a = 1\nb = 2\na = 1\n"
    assert [bug.planted(text) for bug in mutations(text, "x.py") if bug.after == "a = 2"] == [
        "a = 2\nb = 2\na = 1\n",
        "a = 1\nb = 2\na = 2\n",
    ]


def test_a_draw_does_not_change_with_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("".join(f"a{i} = b{i} + {i}\n" for i in range(20)))
    drawn = draw(tmp_path, ["x.py"], 20, seed=1)
    assert len({bug.before for bug in drawn}) == 20
    assert {bug.key for bug in draw(tmp_path, ["x.py"], 5, seed=1)} < {bug.key for bug in drawn}
    assert {bug.key for bug in draw(tmp_path, ["x.py"], 20, seed=2)} != {bug.key for bug in drawn}
    path.write_text("# a comment\n" + path.read_text().replace("a7 = b7 + 7\n", ""))
    assert {bug.key for bug in draw(tmp_path, ["x.py"], 20, seed=1)} == {
        bug.key for bug in drawn if "a7 = " not in bug.before
    }


def test_tests_run_together_longer_and_longer() -> None:
    tests = [(f"t{i}", 1.0) for i in range(20)] + [("long", 100.0), ("last", 0.5)]
    assert [len(names) for names, _ in together(tests, 19.5)] == [1, 1, 5, 13]
    assert [name for names, _ in together(tests, 21.0) for name in names][-1] == "last"


@pytest.fixture(scope="module")
def planting(tmp_path_factory: pytest.TempPathFactory) -> Planting:
    """A checkout of one module, two functions of which are tested, one by a fixture of the whole file."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    for folder in ("passes", "tests"):
        (root / folder).mkdir()
    (root / "passes" / "__init__.py").touch()
    (root / "passes" / "small.py").write_text(
        "LIMIT = 3\ndef up(a):\n    return a + 1\ndef down(a):\n    while a > LIMIT:\n        a -= 1\n    return a\n"
    )
    (root / "tests" / "test_small.py").write_text(
        "import pytest\nfrom passes.small import down, up\n"
        "@pytest.fixture(scope='module')\ndef two():\n    return up(1)\n"
        "def test_first(two):\n    assert two\n"
        "def test_second(two):\n    assert two == 2\n"
        "def test_down():\n    assert down(5) == 3\n"
        "def test_wrong():\n    assert not down(5)\n"
    )
    covering = CoveringTests(root / "lines", root)
    with copied(root) as copy:
        covering.measure(copy, ["test_small.py"], 10.0)
    return Planting(Checkout(root), covering, 10.0)


@pytest.mark.parametrize(
    ("before", "after", "by"),
    [
        ("a + 1", "a + 2", "test_second"),  # a line that a fixture runs, before the first test
        ("LIMIT = 3", "LIMIT = 2", "test_down"),  # one that runs on import
        ("LIMIT = 3", "LIMIT = 3 +", "test_"),
        ("return a\n", "return a + 0\n", ""),
    ],
)
def test_a_planted_bug(planting: Planting, before: str, after: str, by: str) -> None:
    text = (planting.checkout.root / "passes" / "small.py").read_text()
    result = planting.plant(Bug("passes/small.py", before, after))
    assert result.outcome == ("seen" if by else "not seen")
    assert by in result.by
    assert (planting.checkout.root / "passes" / "small.py").read_text() == text


def test_a_planted_bug_without_an_end(planting: Planting) -> None:
    text = (planting.checkout.root / "passes" / "small.py").read_text()
    with planting.checkout.changed("passes/small.py", text.replace("a -= 1", "pass")):
        failure = planting.checkout.failing(["tests/test_small.py::test_down"], 0)
    assert failure is not None and failure.why == "no end after 0 s"


def test_tests_that_fail_without_a_bug(planting: Planting) -> None:
    tests = [f"tests/test_small.py::test_{name}" for name in ("first", "wrong", "down")]
    assert planting.checkout.all_failing(tests, 5) == {tests[1]}


def test_a_report_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    bug, other = draw(ROOT, ["passes/array_allocate.py"], 2, seed=1)
    results = {bug.key: Result(bug.key, "seen", "", 0.0), other.key: Result(other.key, "not seen", "", 0.0)}
    equivalent = {other.key: "the same"}
    assert report({"allocation": [bug]}, results, {})
    assert not report({"allocation": [bug, other]}, results, {})
    assert f"not seen  {other.file}:{other.line_in((ROOT / other.file).read_text())}" in capsys.readouterr().out
    assert not report({"allocation": [bug, other]}, results, equivalent)  # half of them are equivalent
    assert "allocation         2          1 100.0 %" in capsys.readouterr().out


def test_every_listed_bug_has_its_line() -> None:
    """`make bugs` plants them by their text: an entry whose text is gone, or stands twice, would test nothing."""
    assert [bug.key for bug in read_bugs(LISTED) if (ROOT / bug.file).read_text().count(bug.before) != 1] == []


def test_every_equivalent_change_has_its_line_and_reason() -> None:
    for key, why in read_equivalent(EQUIVALENT).items():
        file, _, rest = key.partition(": ")
        assert rest.partition(" -> ")[0] in (ROOT / file).read_text(), key
        assert why, key


def test_every_package_has_files() -> None:
    assert [glob for globs in PACKAGES.values() for glob in globs if not list(ROOT.glob(glob))] == []


WARM = """\
LIMIT = 3
def first():
    return 1
FIRST = first()
def up(a):
    return a + LIMIT
class Some:
    STEP = 2
    @property
    def values(self):
        return [each + 5 for each in (1, 2)]
"""


def test_functions_of_imported_modules_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that ran on import, or lines outside functions: then all modules are imported again."""
    (tmp_path / "warmed").mkdir()
    (tmp_path / "warmed" / "__init__.py").touch()
    (tmp_path / "warmed" / "some.py").write_text(WARM)
    monkeypatch.syspath_prepend(tmp_path)
    modules, warm = sys.modules, WarmModules(tmp_path, "warmed")
    some: Any = modules["warmed.some"]
    assert (some.up(1), some.Some().values) == (4, [6, 7])
    warm.take(WARM, WARM.replace("a + LIMIT", "a - LIMIT"), "warmed/some.py")
    warm.take(WARM, WARM.replace("each + 5", "each + 7"), "warmed/some.py")
    assert (some.up(1), some.Some().values) == (-2, [8, 9]) and modules["warmed.some"] is some
    for before, after in (("return 1", "return 2"), ("LIMIT = 3", "LIMIT = 4"), ("STEP = 2", "pass"), ("(a)", "(a")):
        monkeypatch.setitem(modules, "warmed.some", some)
        warm.take(WARM, WARM.replace(before, after), "warmed/some.py")
        assert "warmed.some" not in modules


def test_a_bug_in_a_warm_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("planted", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "planted" / "__init__.py").touch()
    (tmp_path / "planted" / "some.py").write_text(WARM)
    (tmp_path / "tests" / "test_some.py").write_text(
        "from planted.some import FIRST, up\ndef test_up():\n    assert up(1) == 4\n"
        "def test_first():\n    assert FIRST == 1\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    checkout, tests = Checkout(tmp_path), ["tests/test_some.py::test_up", "tests/test_some.py::test_first"]
    monkeypatch.syspath_prepend(tmp_path)
    checkout.warm = WarmModules(tmp_path, "planted")
    assert checkout.failing(tests, 5) is None
    for before, after, by in (
        ("a + LIMIT", "a - LIMIT", 0),
        ("return 1", "return 2", 1),
        ("LIMIT = 3", "LIMIT = 2", 0),
    ):
        with checkout.changed("planted/some.py", WARM.replace(before, after)):
            assert checkout.failing(tests, 5) == Failure(tests[by])
    assert checkout.failing(tests, 5) is None
