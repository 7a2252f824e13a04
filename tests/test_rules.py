"""The rules of the documents: each label stands for one rule, each citation for a rule that exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "docs" / "rules.md"
DOCS = [path for path in sorted((ROOT / "docs").glob("*.md")) if path != INDEX]
GENERATED = ("arch.md", "isa.md", "passes.md")  # their tables cite a rule in each row, without links
WRITTEN = [path for path in DOCS if path.name not in GENERATED]
DEFINITION = re.compile(r"^(?:- )?\*\*([A-Z]+)-(\d+)\*\*")
ROW = re.compile(r"\| ([A-Z]+) \| \1-1 to \1-(\d+) \| .+ \| \[(\w+\.md)\]\(([^)]+)\) \|")


LABEL = re.compile(r'^ +"""((?:BOUND-\d+(?:, | and |\. | ))+)', re.MULTILINE)
FILE_ROW = re.compile(r"^\| `(\w+\.py)` \| ((?:BOUND-\d+(?:, | to )?)+) \|", re.MULTILINE)


def numbers_of(labels: str) -> set[int]:
    """Those of `BOUND-1, BOUND-3 to BOUND-5`.

    >>> sorted(numbers_of("BOUND-1, BOUND-3 to BOUND-5"))
    [1, 3, 4, 5]
    """
    ends = [[int(number) for number in re.findall(r"\d+", part)] for part in labels.split(", ")]
    return {number for each in ends for number in range(each[0], each[-1] + 1)}


def anchor(heading: str) -> str:
    """The fragment of a heading, as web views of Markdown make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def prose(path: Path) -> list[str]:
    """The lines of a document that stand in no block of code, from 0 on; those in blocks are empty."""
    lines: list[str] = []
    code = False
    for line in path.read_text().splitlines():
        code ^= line.startswith("```")
        lines.append("" if code or line.startswith("```") else line)
    return lines


def definitions() -> list[tuple[str, str, str]]:
    """Every rule of the documents: its label, its file and the fragment of its section."""
    rules: list[tuple[str, str, str]] = []
    for path in DOCS:
        section = ""
        for line in prose(path):
            if line.startswith("#"):
                section = anchor(line.lstrip("# "))
            if match := DEFINITION.match(line):
                rules.append((f"{match[1]}-{match[2]}", path.name, section))
    return rules


RULES = {label: (file, section) for label, file, section in definitions()}
SUBJECTS = sorted({label.split("-")[0] for label in RULES})
CITATION = re.compile(rf"(?<![\w-])(?:{'|'.join(SUBJECTS)})-\d+(?![\w-])")
ADDED = re.compile(r"^\+- \*\*([A-Z]+-\d+)\*\* ", re.MULTILINE)  # by a change that a document shows
SOURCES = [
    path
    for folder in ("cnncc", "dialects", "passes", "tests", "samples", "benchmarks", "docs")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".mlir", ".toml"}
]


def test_a_label_has_one_rule():
    assert [label for label, count in Counter(label for label, _, _ in definitions()).items() if count > 1] == []


def test_rules_are_numbered_from_one_on():
    for subject in SUBJECTS:
        numbers = sorted(int(label.split("-")[1]) for label in RULES if label.split("-")[0] == subject)
        assert numbers == list(range(1, len(numbers) + 1)), subject


def test_the_index_has_every_rule_where_it_stands():
    rows = {match[1]: (int(match[2]), match[4]) for match in ROW.finditer(INDEX.read_text())}
    assert sorted(rows) == SUBJECTS
    for subject, (count, link) in rows.items():
        assert count == sum(label.split("-")[0] == subject for label in RULES), subject
        file, _, section = link.partition("#")
        assert RULES[f"{subject}-1"][0] == file
        assert section in {"", RULES[f"{subject}-1"][1]}, f"{subject}: {link}"


def test_every_rule_that_is_cited_exists():
    missing = {
        f"{path.relative_to(ROOT)}: {label}"
        for path in SOURCES
        for text in [path.read_text()]
        for label in CITATION.findall(text)
        if label not in RULES and label not in ADDED.findall(text)
    }
    assert missing == set()


@pytest.mark.parametrize("path", [ROOT / "README.md", *WRITTEN], ids=lambda path: path.name)
def test_a_rule_of_another_document_is_a_link(path: Path):
    """`[LOAD-2](machine.md#load)`."""
    folder = "docs/" if path.parent == ROOT else ""
    for number, line in enumerate(prose(path), 1):
        text = re.sub(r"`[^`]*`", "", line)
        for match in CITATION.finditer(text):
            file, section = RULES[match[0]]
            if file != path.name:
                link = f"[{match[0]}]({folder}{file}#{section})"
                assert text[match.start() - 1 :].startswith(link), f"{path.name}:{number}: {link}"


def test_the_table_of_bounds_has_the_files_whose_functions_have_the_labels() -> None:
    """docs/mapper.md, for whoever adds a bound: a docstring begins with the rule that its function computes."""
    labelled = {
        path.name: {int(number) for labels in LABEL.findall(path.read_text()) for number in re.findall(r"\d+", labels)}
        for path in sorted((ROOT / "cnncc" / "mapper").glob("*.py"))
    }
    rows = FILE_ROW.findall((ROOT / "docs" / "mapper.md").read_text())
    assert {file: numbers_of(labels) for file, labels in rows} == {
        file: each for file, each in labelled.items() if each
    }
