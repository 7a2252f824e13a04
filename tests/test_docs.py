"""What README.md and docs/ show is what happens: their commands run, their excerpts are printed, their files work.

`documents.py` says how a document is read. test_samples_tcpa.py follows docs/tcpa.md, and compares all that the page's
sample prints.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from apply_diff import applied
from documents import ROOT, Checkout, blocks, excerpt, follow, script, unfolded

DOCUMENTS = sorted(["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
ELSEWHERE = {"docs/tcpa.md": "test_samples_tcpa.py"}
LINKING = [*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md"]


@pytest.fixture
def checkout(tmp_path: Path, server: str) -> Checkout:
    """A new copy, and its commands."""
    return Checkout.copied(tmp_path, server)


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in (*ELSEWHERE, "README.md")])
def test_docs_say_what_happens(name: str, checkout: Checkout) -> None:
    follow(name, checkout)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_docs_of_samples_are_followed_by_the_samples_tests(name: str) -> None:
    assert f'follow("{name}", ' in (ROOT / "tests" / ELSEWHERE[name]).read_text()


def test_docs_excerpts_can_be_wrong() -> None:
    assert excerpt("b …\n…\nd\n").search("a\n  b 1\nc\nd\n")
    assert not excerpt("b …\nd\n").search("a\n  b 1\nc\nd\n")
    assert not excerpt("b\n").search("ab\nbc\n")


def test_docs_unfold_what_is_indented_by_four() -> None:
    assert unfolded("a {\n  b\n      c\n      d {\n    e\n  }\n}\n") == "a {\n  b c d {\n    e\n  }\n}\n"


def test_docs_changes_fit_once() -> None:
    assert applied("a\nb\n\nc\n", " b\n\n-c\n+d\n@@\n-a\n") == "b\n\nd\n"
    for text in ("a\n", "b\nb\n"):
        with pytest.raises(ValueError, match="not once"):
            applied(text, "-b\n")


def test_docs_script_leaves_out_make_and_pip_only() -> None:
    text = "```sh\nmake demo\nmake test\npip install -e .\ncnncc x\n```\n```mlir a.mlir\nb\n```\n"
    assert script(blocks(text)).splitlines() == [
        "python samples/demo.py", "cnncc x", "cat > a.mlir <<'END_OF_FILE'", "b", "END_OF_FILE",
    ]  # fmt: skip


def test_docs_contributing_names_every_folder() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text()
    for folder in ("cnncc", "dialects", "passes", "samples", "tests", "docs"):
        assert f"\n{folder}/ " in tree
    inside = [path.name for path in (ROOT / "cnncc").iterdir() if (path / "__init__.py").is_file()]
    for name in set(inside) - {"dialects", "passes"}:
        assert f"\n  {name}/ " in tree


def test_docs_readme_names_every_page() -> None:
    table = (ROOT / "README.md").read_text().partition("## Documents")[2].partition("## ")[0]
    assert set(re.findall(r"docs/([\w-]+\.md)", table)) == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_docs_links_lead_somewhere() -> None:
    for name in LINKING:
        for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", (ROOT / name).read_text()):
            path = (ROOT / name).parent / target if target else ROOT / name
            assert path.is_file(), f"{name}: {target}"
            titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if heading else []
            names = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert not heading or heading in names, f"{name}: {target}#{heading}"


def test_docs_name_files_that_there_are() -> None:
    for name in LINKING:
        text = (ROOT / name).read_text()
        written = {block.path for block in blocks(text)}
        named = re.findall(r"`((?:benchmarks|cnncc|dialects|docs|passes|samples|tests)/[\w./-]+\.\w+)`", text)
        assert [path for path in named if path not in written and not (ROOT / path).exists()] == [], name


def test_docs_ladder_names_every_step() -> None:
    from cnncc.arch.model import load_arch
    from cnncc.driver.pipeline import Settings, steps

    text = (ROOT / "docs" / "ladder.md").read_text()
    named = re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE)
    settings = Settings(load_arch("spatial-8x8"), "spatial-8x8", 16)
    in_turn, side_by_side = (
        [step.name for step in steps(each)] for each in (settings, replace(settings, parallel=True))
    )
    assert [name for name in named if name in in_turn] == in_turn
    assert [name for name in named if name in side_by_side] == side_by_side
    assert set(named) == {*in_turn, *side_by_side}


def test_docs_demo_and_readme(checkout: Checkout) -> None:
    """README.md begins with the demo, and goes on with its network."""
    result = checkout.run("python", "samples/demo.py")
    assert (result.returncode, result.stderr) == (0, "")
    in_float, on_array = map(float, re.findall(r"(\d+\.\d) %", re.findall("accuracy.*", result.stdout)[0]))
    assert abs(in_float - on_array) <= 1 and in_float > 90
    assert re.search(r"MACs .*\(100\.00 %\)", result.stdout) and "utilisation" in result.stdout
    assert (checkout.folder / "demo" / "mnist.cnb").stat().st_size > 0 and (
        checkout.folder / "demo" / "mnist.s"
    ).is_file()
    assert (checkout.folder / "demo" / "ir" / "00-import.mlir").is_file()
    next_ones = re.findall(r"^  \.venv/bin/(cnncc (?:\\\n|.)*)", result.stdout, re.MULTILINE)
    assert len(next_ones) == 3
    readme = {" ".join(line.split()) for line in script(blocks((ROOT / "README.md").read_text())).splitlines()}
    for command in {" ".join(each.replace("\\\n", "").split()) for each in next_ones} - readme:
        assert checkout.run("sh", "-c", command).returncode == 0, command
    follow("README.md", checkout, {"make demo": result.stdout})


def test_docs_demo_fails_where_the_array_is_wrong(checkout: Checkout) -> None:
    demo = checkout.folder / "samples" / "demo.py"
    demo.write_text(demo.read_text().replace('{"input": images}, progress)', '{"input": -images}, progress)'))
    result = checkout.run("python", "samples/demo.py")
    assert result.returncode == 1 and re.fullmatch(r"demo: accuracy differs .*\n", result.stderr)
