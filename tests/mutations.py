"""Single-line changes of Python files, and a draw of some: the operators of mutation testing on the syntax tree.

| kind | before | after |
|---|---|---|
| comparison | `a < b` | `a <= b`, `a >= b` |
| constant | `3`, `True` | `4`, `2`, `False` |
| operator | `a + b` | `a - b` |
| logic | `a and b` | `a or b`, `b` |
| condition | `if a:` | `if not a:` |
| arguments | `f(a, b)` | `f(b, a)` |
| function | `min(a)` | `max(a)` |
| sign | `-a`, `not a` | `a` |
| statement | `self.f(a)` | `pass` |

The value of a plain name is not deleted: a run that reads the name ends at once. Annotations, assertions, decorators,
docstrings and formatted strings are left alone: no output depends on them, but for the words of a message.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

COMPARED: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<"), ast.Eq: ("!=",),
    ast.NotEq: ("==",), ast.In: ("not in",), ast.NotIn: ("in",), ast.Is: ("is not",), ast.IsNot: ("is",),
}  # fmt: skip
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Mod: "//", ast.Div: "*", ast.LShift: ">>",
    ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.MatMult: "*",
}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "takewhile": "filter"}
DELETED = (ast.Expr, ast.AugAssign, ast.Continue, ast.Break, ast.Raise)
SYMMETRIC = ("min", "max", "maximum", "minimum", "gcd", "lcm")  # the order of arguments says nothing
LEFT_ALONE = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Bug:
    """A change of one line: `file` has `after` for `before`, a part of a line.

    - tests: the files, or tests of files, that should see it
    - copy: which of the places of `before` is meant. A number of a line would change with each edit above it.
    """

    file: str
    before: str
    after: str
    tests: tuple[str, ...] = ()
    copy: int = 0

    @property
    def key(self) -> str:
        return f"{self.file}: {self.before} -> {self.after}" + (f" ({self.copy})" if self.copy else "")

    def line_in(self, text: str) -> int:
        """The number of the line; 0 where there is none."""
        before, *parts = text.split(self.before)
        if len(parts) <= self.copy:
            return 0
        return self.before.join([before, *parts[: self.copy]]).count("\n") + 1

    def planted(self, text: str) -> str:
        """The text of the file with the change."""
        parts = text.split(self.before)
        return self.before.join(parts[: self.copy + 1]) + self.after + self.before.join(parts[self.copy + 1 :])

    def is_in(self, root: Path) -> bool:
        """Whether the file has it."""
        path = root / self.file
        return path.is_file() and path.read_text().count(self.before) > self.copy


def draw(root: Path, files: Sequence[str], number: int, seed: int) -> list[Bug]:
    """`number` mutations of files, at most one a line, all equally likely. An edit elsewhere changes none of them."""
    texts = {file: (root / file).read_text() for file in files}
    found = [each for file, text in texts.items() for each in mutations(text, file)]

    def lot(each: Bug) -> bytes:
        return hashlib.sha256(f"{seed} {each.key}".encode()).digest()

    by_line = dict[tuple[str, int], Bug]()
    for each in sorted(found, key=lot):
        text = texts[each.file]
        place = each.file, each.line_in(text)
        if len(by_line) < number and place not in by_line and _is_python(each.planted(text)):
            by_line[place] = each
    return [by_line[place] for place in sorted(by_line)]


def _is_python(text: str) -> bool:
    """A new operator may not fit the brackets and lines around it."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def mutations(text: str, file: str) -> Iterator[Bug]:
    """All of a file, of whole lines."""
    lines = text.split("\n")
    for node in _nodes(ast.parse(text)):
        place = node.test if isinstance(node, ast.If | ast.While) else node
        if place.lineno != place.end_lineno:
            continue
        before = lines[place.lineno - 1]
        for start, end, new in _changes(node, before):
            after = (before.encode()[:start] + new.encode() + before.encode()[end:]).decode()
            if after != before:
                copy = "\n".join(lines[: place.lineno - 1]).count(before)
                yield Bug(file, before, after, copy=copy)


def _nodes(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Expressions and statements that may change."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name in ("annotation", "returns", "decorator_list") or not isinstance(child, ast.AST):
                continue
            if isinstance(child, LEFT_ALONE) or _is_text(child) or _is_for_types(child) or _is_never_run(child):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            yield from _nodes(child)


def _is_text(node: ast.AST) -> bool:
    """A docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_never_run(node: ast.AST) -> bool:
    """`assert_never(…)`: the type checker proves that it does not run."""
    return isinstance(node, ast.Expr) and ast.unparse(node.value).startswith("assert_never(")


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _changes(node: ast.expr | ast.stmt, line: str) -> Iterator[tuple[int, int, str]]:
    """Bytes of the line from, and to, and what comes in their place."""
    start, end = node.col_offset, node.end_col_offset or 0

    def source(part: ast.expr) -> str:
        return line.encode()[part.col_offset : part.end_col_offset].decode()

    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for new in COMPARED[type(op)]:
                yield _between(left, right, line, f" {new} ")
        case ast.Constant(value=bool(value)):
            yield start, end, str(not value)
        case ast.Constant(value=int(value)):
            yield start, end, str(value + 1)
            yield start, end, f"({value - 1})" if value < 1 else str(value - 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            yield _between(left, right, line, f" {OPERATORS[type(op)]} ")
        case ast.BoolOp(op=op, values=[left, right, *_]):
            yield _between(left, right, line, " or " if isinstance(op, ast.And) else " and ")
            yield start, right.col_offset, ""
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test.col_offset, test.end_col_offset or 0, f"not ({source(test)})"
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield start, operand.col_offset, ""
        case ast.Call(func=ast.Name(id=name) as function) if name in FUNCTIONS:
            yield function.col_offset, function.end_col_offset or 0, FUNCTIONS[name]
        case _:
            pass
    match node:
        case ast.Call(func=function, args=[one, two, *_]) if _has_order(function, one, two):
            between = line.encode()[one.end_col_offset : two.col_offset].decode()
            yield one.col_offset, two.end_col_offset or 0, source(two) + between + source(one)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield start, end, "pass"
        case ast.stmt() if isinstance(node, DELETED):
            yield start, end, "pass"
        case _:
            pass


def _has_order(function: ast.expr, *args: ast.expr) -> bool:
    """Whether arguments that are swapped may make a difference."""
    name = ast.unparse(function).rpartition(".")[2]
    return name not in SYMMETRIC and not any(isinstance(arg, ast.Starred) for arg in args)


def _between(left: ast.expr, right: ast.expr, line: str, new: str) -> tuple[int, int, str]:
    """The operator between two operands, which may be in brackets."""
    start, end = left.end_col_offset or 0, right.col_offset
    text = line.encode()[start:end].decode()
    close, opened = text.count(")"), text.count("(")
    return start, end, ")" * close + new + "(" * opened
