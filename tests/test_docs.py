"""What README.md and docs/ show is what happens: their commands run, their excerpts are printed, their files work.

A fenced block is, by its first word,

    ```sh                    commands: run, in order, one document in one temporary copy of the checkout
    ```mlir path/of/file     a file: written there, whatever its language
    ```diff path/of/file     a change of that file: tests/apply_diff.py
    ```mlir                  an excerpt of what the commands printed or wrote; … stands for what is left out
    ```                      a picture: not checked

`make demo` is replaced by what it runs once all is installed; other lines of make and pip are left out. Where no shown
line depends on the mappings, as of values, which are right under any, a command's searches are short.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from apply_diff import applied
from command_server import SHORT_SEARCHES, add_commands, serving

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("README.md", "pyproject.toml", "cnncc", "dialects", "docs", "passes", "samples", "tests")
DOCUMENTS = sorted(["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
LINKING = [*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md"]
FENCED = re.compile(r"^```(\S*)[ ]*(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = ("make ", "pip ")
REPLACED = {"make demo": "python samples/demo.py"}
ANY_MAPPING = re.compile(
    r"python samples/(accuracy|dataflows|reproduce/fusion).py"
    r"|cnncc (compile demo/resnet20.onnx |compile samples/models/lenet_qop|verify samples/models/lenet_qdq"
    r"|compile .* --schedule blocks.toml |explore |estimate .* --front$)"
    r"|cnncc check .*lenet.* --arch small.toml"
)


@dataclass(frozen=True)
class Block:
    """A fenced block: language, path (may be empty), text."""

    language: str
    path: str
    text: str


def blocks(document: str) -> list[Block]:
    return [Block(*match.groups()) for match in FENCED.finditer(document)]


def script(document: list[Block]) -> str:
    """A shell script that writes the files and runs the commands of a document, in its order."""
    lines: list[str] = []
    for block in document:
        if block.language == "diff":
            lines += [f"python tests/apply_diff.py {block.path} <<'END_OF_FILE'", block.text + "END_OF_FILE"]
        elif block.path:
            lines += [f"cat > {block.path} <<'END_OF_FILE'", block.text + "END_OF_FILE"]
        elif block.language == "sh":
            commands = [REPLACED.get(line, line) for line in block.text.replace("\\\n", "").splitlines()]
            lines += [f"{SHORT_SEARCHES}=1 {line}" if ANY_MAPPING.match(line) else line for line in commands]
    return "\n".join(line for line in lines if not line.startswith(NOT_RUN)) + "\n"


def excerpt(text: str) -> re.Pattern[str]:
    """Whole lines one after the other, indentation aside; `…` is any part of a line, a line `…` any lines."""
    pattern = "^"
    for line in map(str.strip, text.splitlines()):
        inside = r"[^\n]*".join(map(re.escape, line.split("…")))
        pattern += r"(?:[^\n]*\n)*?" if line == "…" else rf"[ ]*{inside}[ ]*\n"
    return re.compile(pattern, re.MULTILINE)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a server for commands of all copies."""
    with serving(ROOT) as address:
        yield address


@dataclass(frozen=True)
class Checkout:
    """A copy of the checkout, in which a document's commands may write."""

    folder: Path
    commands: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the copy, which is also where Python finds cnncc."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        path = os.pathsep.join([str(self.commands), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment |= {"PATH": path, "PYTHONPATH": str(self.folder)}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path, server: str) -> Checkout:
    """A new copy, and its commands."""
    folder, commands = tmp_path / "checkout", tmp_path / "commands"
    folder.mkdir()
    commands.mkdir()
    ignore = shutil.ignore_patterns("*.pyc.*", "Output", ".*")  # those are being written; compiled modules are as good
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(source, folder / name)
    add_commands(commands, server, folder)
    return Checkout(folder, commands)


def unfolded(text: str) -> str:
    """IR without the line breaks that dumps put into long ops: what follows such a break is indented by four."""
    return re.sub(r"^( *)\S.*(\n\1    \S.*)+", lambda op: re.sub(r"\n *", " ", op[0]), text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_docs_say_what_happens(name: str, checkout: Checkout) -> None:
    document = blocks((ROOT / name).read_text())
    (checkout.folder / "commands.sh").write_text(script(document))
    result = checkout.run("sh", "-ex", "commands.sh")
    assert result.returncode == 0, f"{name}: the last command failed:\n{result.stderr[-3000:]}"
    written = [
        path for kind in ("mlir", "s") for path in checkout.folder.rglob(f"*.{kind}") if "tests" not in path.parts
    ]
    texts = [result.stdout, *(path.read_text() for path in sorted(written))]
    texts += [unfolded(text) for text in texts]
    for block in document:
        if block.language not in ("", "sh") and not block.path:
            pattern = excerpt(block.text)
            assert any(pattern.search(text) for text in texts), f"{name}: neither printed nor written:\n{block.text}"


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
    named = re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)
    settings = Settings(load_arch("spatial-8x8"), "spatial-8x8", 16)
    in_turn, side_by_side = (
        [step.name for step in steps(each)] for each in (settings, replace(settings, parallel=True))
    )
    assert [name for name in named if name in in_turn] == in_turn
    assert [name for name in named if name in side_by_side] == side_by_side
    assert set(named) == {*in_turn, *side_by_side}


def test_docs_demo_runs(checkout: Checkout) -> None:
    result = checkout.run("python", "samples/demo.py")
    assert (result.returncode, result.stderr) == (0, "")
    in_float, on_array = map(float, re.findall(r"(\d+\.\d) %", re.findall("accuracy.*", result.stdout)[0]))
    assert abs(in_float - on_array) <= 1 and in_float > 90
    assert re.search(r"MACs .*\(100\.00 %\)", result.stdout) and "utilisation" in result.stdout
    assert (checkout.folder / "demo" / "mnist.cnb").stat().st_size > 0 and (
        checkout.folder / "demo" / "mnist.s"
    ).is_file()
    assert (checkout.folder / "demo" / "ir" / "00-import.mlir").is_file()
    for command in re.findall(r"^  \.venv/bin/(cnncc (?:\\\n|.)*)", result.stdout, re.MULTILINE):
        assert checkout.run("sh", "-c", command).returncode == 0, command


def test_docs_demo_fails_where_the_array_is_wrong(checkout: Checkout) -> None:
    demo = checkout.folder / "samples" / "demo.py"
    demo.write_text(demo.read_text().replace('{"input": images}, progress)', '{"input": -images}, progress)'))
    result = checkout.run("python", "samples/demo.py")
    assert result.returncode == 1 and re.fullmatch(r"demo: accuracy differs .*\n", result.stderr)
