"""Notes which blocks of functions a run enters: a byte of a shared file for each block, set by a line at its start.

    def f(a):                                   def f(a):
        if a:                                       ENTERED[0] = 1
            return 1             becomes            if a:
        return 2                                        ENTERED[1] = 1
                                                        return 1
                                                    return 2

That costs a run little, unlike a trace of its lines. Processes that the run starts set the same bytes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

MODULE, BYTES = "block_probes_entered", "entered.bin"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Block(NamedTuple):
    """Lines that run one after the other, with the blocks inside.

    name: the function, and the number of the block in it: an edit elsewhere does not change it.
    """

    name: str
    first: int
    last: int


def blocks_of(text: str) -> list[Block]:
    """All blocks of a file's functions, an outer one before those inside."""
    return [Block(name, body[start].lineno, body[-1].end_lineno or 0) for name, body, start in _bodies(ast.parse(text))]


def block_at(text: str, line: int) -> str | None:
    """The name of the innermost block that has a line; None for lines that run on import."""
    around = [block for block in blocks_of(text) if block.first <= line <= block.last]
    return min(around, key=lambda block: block.last - block.first).name if around else None


def add_probes(root: Path, files: Sequence[str]) -> list[tuple[str, str]]:
    """Rewrite files of a checkout; return file and name of the block that each byte is for."""
    blocks = list[tuple[str, str]]()
    for file in files:
        tree = ast.parse((root / file).read_text())
        bodies = list(_bodies(tree))
        for name, body, start in bodies:
            body.insert(start, ast.parse(f"ENTERED[{len(blocks)}] = 1").body[0])
            blocks.append((file, name))
        if bodies:
            tree.body.insert(_first_to_run(tree.body), ast.parse(f"from {MODULE} import ENTERED").body[0])
            (root / file).write_text(ast.unparse(tree))
    (root / BYTES).write_bytes(bytes(len(blocks) + 1))
    (root / f"{MODULE}.py").write_text(
        f"import mmap\nwith open({str(root / BYTES)!r}, 'r+b') as file:\n    ENTERED = mmap.mmap(file.fileno(), 0)\n"
    )
    return blocks


class Entered:
    """The blocks that were entered since the last look."""

    def __init__(self, root: Path) -> None:
        with (root / BYTES).open("r+b") as file:
            self.bytes = mmap(file.fileno(), 0)

    def look(self) -> list[int]:
        """Their numbers, in order."""
        found, at = list[int](), self.bytes.find(b"\1")
        while at >= 0:
            found.append(at)
            at = self.bytes.find(b"\1", at + 1)
        self.bytes[:] = bytes(len(self.bytes))
        return found


def _bodies(tree: ast.AST) -> Iterator[tuple[str, list[ast.stmt], int]]:
    """Name and statements of each block, and where the first one is that is no docstring."""

    def inside(node: ast.AST, scope: str, function: str, count: list[int]) -> Iterator[tuple[str, list[ast.stmt], int]]:
        """count: of blocks so far in the function."""
        for child in ast.iter_child_nodes(node):
            below, name, number = scope, function, count
            if isinstance(child, Function | ast.ClassDef):
                below = f"{scope}.{child.name}" if scope else child.name
                name, number = (below if isinstance(child, Function) else ""), [0]
            for field in ("body", "orelse", "finalbody") if name else ():
                body = getattr(child, field, None)
                if isinstance(body, list) and body:
                    yield f"{name} {number[0]}", body, _first_to_run(body) if isinstance(child, Function) else 0
                    number[0] += 1
            yield from inside(child, below, name, number)

    return inside(tree, "", "", [0])


def _first_to_run(body: list[ast.stmt]) -> int:
    """Behind a docstring and imports from the future."""
    start = int(isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1)
    while start < len(body) - 1 and isinstance(one := body[start], ast.ImportFrom) and one.module == "__future__":
        start += 1
    return start
