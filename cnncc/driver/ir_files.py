"""IR text in files, with its weights beside it.

Weights of `NAME.mlir` are in `NAME.npz`, else in `weights.npz`, in the same folder.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.parser import Parser
from xdsl.utils.exceptions import DiagnosticException, ParseError

from cnncc.context import CompilerContext
from cnncc.dialects.isa import InstOp
from cnncc.errors import Finding, Refusal, hint, one_line, refusals_of
from cnncc.mapping.notation import NotationError
from cnncc.util.files import read_bytes
from cnncc.util.wrap import wrapped

IR_LIMIT_BYTES = 1 << 28
MOST_ELEMENTS, MOST_BITS = 1 << 31, 64  # of a tensor; of an integer
# What xDSL says of IR, and what its user has to know.
_PLAINER = (
    (
        r"Could not parse entire input!",
        "the module ends above this: there is a '}' too many, or text behind the module",
    ),
    (r" ?in block definition", "expected an op or '}': the text of an op is cut, or a '}' is missing"),
    (
        r"Operation \S+ terminates block in .* is not a terminator",
        "the end of a function is func.return, that of a nest.group nest.yield: it is missing",
    ),
    (r"Region '\w+' at position \d+ expected a single block, but got 0 blocks", "its body is empty"),
)
_LABEL = re.compile(r'\blabel = "([^"]+)"')
# xDSL's lexer takes exponential time for a string without an end.
_TO_CHECK = re.compile(
    r"""(?P<string>"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+")|//[^\n]*|(?P<open>")|^(?P<alias>[#!][\w$.]+\s*+=)"""
    r"""|<(?P<shape>(?:\d{1,20}x)+)(?=[a-z])|\bi(?P<bits>\d{3,20})\b""",
    re.MULTILINE,
)


def ir_bytes(path: Path) -> bytes:
    """The content of a file of IR. Raises Refusal."""
    return read_bytes(path, IR_LIMIT_BYTES, "the limit of IR is 256 MiB")


def checked_text(data: bytes, where: str) -> str:
    """The text of IR, without what makes the parser take time or memory without end. Raises Refusal."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Refusal(f"{where}: is no IR text: give a .mlir file ({one_line(str(error))})") from error
    for part in _TO_CHECK.finditer(text):
        if problem := _problem(part):
            raise Refusal(f"{where}:{text.count(chr(10), 0, part.start()) + 1}: {problem}")
    return text


def _problem(part: re.Match[str]) -> str:
    match part.lastgroup:
        case "open":
            return "a string has no end, or an unknown escape"
        case "alias":
            # #a1 = [#a0, #a0], #a2 = [#a1, #a1], …: the time to read them doubles with each line.
            return "an alias of an attribute or a type; cnncc's IR has none"
        case "shape" if prod(map(int, part["shape"][:-1].split("x"))) > MOST_ELEMENTS:
            return f"a tensor of {part['shape'][:60]} elements, the limit is {MOST_ELEMENTS:,}"
        case "bits" if int(part["bits"]) > MOST_BITS:
            return f"integers of {part['bits']} bits, the limit is {MOST_BITS}"
        case _:
            return ""


def read_ir(path: Path, ctx: CompilerContext) -> ModuleOp:
    """The verified module of a .mlir file, the weights beside it in `ctx`. Raises Refusal."""
    load_weights(path, ctx)
    text = checked_text(ir_bytes(path), str(path))
    with user_errors():
        try:
            module = Parser(ctx, text, name=str(path)).parse_module()
            with refusals_of(str(path)), user_errors():
                module.verify()
            check_order(module, str(path))
        except (RecursionError, ValueError, OverflowError, NotImplementedError) as error:
            raise Refusal(f"{path}: {one_line(str(error))}") from error
        return module


def check_order(module: ModuleOp, where: str) -> None:
    """Refuse a value that is read before the op that computes it, which xDSL's verifier does not. Raises Refusal."""
    for func in module.walk():
        if isinstance(func, FuncOp) and len(func.body.blocks) == 1:
            _check_order(func, set(), where)


def _check_order(op: Operation, known: set[SSAValue], where: str) -> None:
    """known: the values that stand before `op`."""
    for region in op.regions:
        inside = known.union(*(block.args for block in region.blocks))
        for inner in region.block.ops if len(region.blocks) == 1 else ():
            late = next((v.owner for v in inner.operands if v not in inside and isinstance(v.owner, Operation)), None)
            if late is not None:
                op_line = one_line(str(late).splitlines()[0])
                raise Refusal(f"{where}: {inner.name} reads a value before it is computed: put it behind {op_line}")
            _check_order(inner, inside, where)
            inside.update(inner.results)


def ir_text(module: ModuleOp) -> str:
    """The module as text, with lines of limited width. At the isa level a line is an instruction, as in assembly."""
    text = str(module) + "\n"
    return text if any(isinstance(op, InstOp) for op in module.walk()) else wrapped(text)


def dump_file(path: Path) -> Path:
    """The file of `path`: itself, or the dump `NN-step.mlir` of a step in its folder, given by the step's name alone.

    ir/nest-tile   ->   ir/15-nest-tile.mlir

    Raises: Refusal, if the folder has dumps, but none of this step, or several.
    """
    if path.exists() or path.suffix:
        return path
    dumps = [dump for dump in sorted(path.parent.glob("*.mlir")) if re.match(r"\d\d-", dump.stem)]
    of_step = [dump for dump in dumps if dump.stem[3:] == path.name]
    if dumps and not of_step:
        raise Refusal(f"{path}: no dump of step '{path.name}': {hint(path.name, [dump.stem[3:] for dump in dumps])}")
    if len(of_step) > 1:
        names = " and ".join(dump.name for dump in of_step)
        raise Refusal(f"{path}: there are two or more dumps of this step, {names}: name one")
    return of_step[0] if of_step else path


def load_weights(source: Path, ctx: CompilerContext) -> None:
    """Read the weight file beside `source`, if there is one."""
    for path in (source.with_suffix(".npz"), source.with_name("weights.npz")):
        if path.is_file():
            ctx.weights.load(path)
            return


@contextmanager
def user_errors() -> Generator[None]:
    """Turn xDSL's errors for bad text and bad IR into a Refusal of one line, with the place in a mapping's text."""
    try:
        yield
    except ParseError as error:
        message = f"{error.span.get_location()}: {_plainer(one_line(error.msg))}"
        cause = error.__context__
        excerpt = cause.excerpt if isinstance(cause, NotationError) else ()
        raise Refusal(message, Finding(message, excerpt=excerpt)) from None
    except DiagnosticException as error:
        raise Refusal(f"{_plainer(one_line(str(error)))}{_culprit(error)}") from None
    # An OSError, too: the reader of the output has gone, which is no fault (`cli/main.py`).
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Refusal(f"{error.filename}: {error.strerror}") from error


def _plainer(message: str) -> str:
    """A message of xDSL, or the words of `_PLAINER` for it."""
    return next((plain for pattern, plain in _PLAINER if re.fullmatch(pattern, message)), message)


def _culprit(error: Exception) -> str:
    """The op that does not verify: the line above the carets in the note, which contains the whole module.

    Where that line, cut to its length, does not show the label of the layer, the label stands before it.
    """
    for note in getattr(error, "__notes__", ()):
        lines = note.splitlines()
        for number, (above, line) in enumerate(pairwise(lines), start=1):
            if line.strip().startswith("^^^"):
                op_line, label = one_line(above), _label_around(lines[:number])
                layer = f" (layer '{label}')" if label and f'label = "{label}"' not in op_line else ""
                return f"{layer} in: {op_line}"
    return ""


def _label_around(lines: Sequence[str]) -> str:
    """The label of the op on the last line, or of the nearest op around it that has one; '' without any."""
    depth = len(lines[-1])
    for line in reversed(lines):
        indent = len(line) - len(line.lstrip())
        if indent < depth and line.strip():
            depth = indent
            if label := _LABEL.search(line):
                return label[1]
    return ""
