"""Documents whose commands run, in a copy of the checkout, and whose excerpts are looked for in what they print.

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
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from command_server import SHORT_SEARCHES, add_commands

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("README.md", "pyproject.toml", "cnncc", "dialects", "docs", "passes", "samples", "tests")
FENCED = re.compile(r"^```(\S*)[ ]*(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = ("make ", "pip ")
REPLACED = {"make demo": "python samples/demo.py"}
ANY_MAPPING = re.compile(
    r"python (samples/(accuracy|dataflows|reproduce/(fusion|os_compiler))|tests/fuzz).py"
    r"|cnncc (compile demo/resnet20.onnx |compile samples/models/lenet_qop|verify samples/models/(lenet_qdq|resnet20)"
    r"|compile .* --schedule (blocks|c2).toml |compile .* --arch demo/mine.toml|explore |estimate .* --front$"
    r"|compile samples/models/lenet.onnx -o lenet.cnb|(check|compile|verify) net.onnx|compile any.onnx "
    r"|estimate .* --schedule words.toml)"
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


def script(document: list[Block], done: Collection[str] = ()) -> str:
    """A shell script that writes the files and runs the commands of a document, in its order. done: those that ran."""
    lines: list[str] = []
    for block in document:
        if block.language == "diff":
            lines += [f"python tests/apply_diff.py {block.path} <<'END_OF_FILE'", block.text + "END_OF_FILE"]
        elif block.path:
            lines += [f"cat > {block.path} <<'END_OF_FILE'", block.text + "END_OF_FILE"]
        elif block.language == "sh":
            written = block.text.replace("\\\n", "").splitlines()
            commands = [REPLACED.get(line, line) for line in written if line not in done]
            lines += [f"{SHORT_SEARCHES}=1 {line}" if ANY_MAPPING.match(line) else line for line in commands]
    return "\n".join(line for line in lines if not line.startswith(NOT_RUN)) + "\n"


def excerpt(text: str) -> re.Pattern[str]:
    """Whole lines one after the other, indentation aside; `…` is any part of a line, a line `…` any lines."""
    pattern = "^"
    for line in map(str.strip, text.splitlines()):
        inside = r"[^\n]*".join(map(re.escape, line.split("…")))
        pattern += r"(?:[^\n]*\n)*?" if line == "…" else rf"[ ]*{inside}[ ]*\n"
    return re.compile(pattern, re.MULTILINE)


@dataclass(frozen=True)
class Checkout:
    """A copy of the checkout, in which a document's commands may write."""

    folder: Path
    commands: Path

    @classmethod
    def copied(cls, parent: Path, server: str) -> Checkout:
        """A new copy, and its commands. server: see `command_server.serving`."""
        folder, commands = parent / "checkout", parent / "commands"
        folder.mkdir()
        commands.mkdir()
        ignore = shutil.ignore_patterns("*.pyc.*", "Output", ".*")  # those are being written; compiled modules are good
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True, ignore=ignore, copy_function=_copied)
            else:
                shutil.copy(source, folder / name)
        add_commands(commands, server, folder)
        return cls(folder, commands)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the copy, which is also where Python finds cnncc."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        path = os.pathsep.join([str(self.commands), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment |= {"PATH": path, "PYTHONPATH": str(self.folder)}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)


def _copied(source: str, target: str) -> None:
    """Copy a file. A compiled module gets a second name: Python replaces such files, and never writes into them."""
    if source.endswith(".pyc"):
        with suppress(OSError):  # a folder of another file system
            os.link(source, target)
            return
    shutil.copy2(source, target)


def unfolded(text: str) -> str:
    """IR without the line breaks that dumps put into long ops: what follows such a break is indented by four."""
    return re.sub(r"^( *)\S.*(\n\1    \S.*)+", lambda op: re.sub(r"\n *", " ", op[0]), text, flags=re.MULTILINE)


def follow(name: str, checkout: Checkout, done: Mapping[str, str] | None = None) -> str:
    """Run the commands of a document, and look for its excerpts. What the commands printed.

    done: what the document's first commands printed, if they ran in this checkout.
    """
    document, done = blocks((ROOT / name).read_text()), done or {}
    (checkout.folder / "commands.sh").write_text(script(document, done))
    result = checkout.run("sh", "-ex", "commands.sh")
    assert result.returncode == 0, f"{name}: the last command failed:\n{result.stderr[-3000:]}"
    written = [
        path for kind in ("mlir", "s") for path in checkout.folder.rglob(f"*.{kind}") if "tests" not in path.parts
    ]
    texts = ["".join([*done.values(), result.stdout]), *(path.read_text() for path in sorted(written))]
    texts += [unfolded(text) for text in texts]
    for block in document:
        if block.language not in ("", "sh") and not block.path:
            pattern = excerpt(block.text)
            assert any(pattern.search(text) for text in texts), f"{name}: neither printed nor written:\n{block.text}"
    return result.stdout
