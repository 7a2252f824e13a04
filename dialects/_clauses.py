"""Records of instructions as text: the syntax of the `array` dialect.

    array.load weight, view w, place rows 8 cols 8 set 4x1 lin+9*row, pattern [2 by lin+18, 3 by lin+1], open always

A record is a list of clauses `field value` with commas between them. Fields at their default are left out. A
first field without default stands without its name, unless it is a number.

| value | text | meaning |
|---|---|---|
| name | `conv1.w`, `"/conv1/w"` | a tensor, view or loop; in quotes where it is no identifier |
| flag | `edge` | its field alone |
| condition | `always`, `[c2, h1]` | `never` is the default, so it is left out |
| place | `rows 8 cols 4 set 4x1 y+2*row k+col_set` | PEs, PEs of a set; each row of a set moves by y+2 |
| start | `k+2 y-1` | where a position starts: lin is its offset, k its channel |
| extent | `5 by x+1` | five steps, each moves by x+1 |
| step of a view | `x+5*w4` | each iteration of loop w4 moves by x+5 |
| slots | `1+9*channel+tap` | a sum over counters |
| tokens | `take 3 when [k0] give 1` | semaphores and their conditions |
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from enum import Enum
from types import new_class
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from xdsl.ir import Operation
from xdsl.irdl import IRDLOperation, irdl_attr_definition
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    UniqueBaseAttributeVariable,
    irdl_custom_directive,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer

from cnncc.array_instructions import AXES, Axis, Condition, Extent, IndexTerm, LoopTerm, Place, Slots, Start, Tokens
from cnncc.dialects._records import RecordAttr, field_types, format_value, is_default, parse_text, parse_tuple
from cnncc.util.wrap import wrapped

RecordT = TypeVar("RecordT")

WIDTH = 120  # columns of a line
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
STARTS = {"lin": "offset", "k": "channel", "y": "y", "x": "x"}  # the field of each axis
PE_INDICES = ("row", "row_set", "col", "col_set")
COUNTERS = ("pixel", "tap", "channel", "lane")
ALWAYS, NEVER = "always", "never"  # conditions


# -- to text -----------------------------------------------------------------------------------------------------------


def format_clauses(record: Any) -> str:
    """The clauses of a record."""
    hints, fields = field_types(cast("type[Any]", type(record))), dataclasses.fields(record)
    clauses: list[str] = []
    for field in fields:
        value, hint = getattr(record, field.name), hints[field.name]
        if is_default(field, value):
            continue
        name = [] if field is fields[0] and _is_head(field, hint) else [field.name]
        clauses.append(" ".join([*name, *([] if hint is bool else [_format(hint, value)])]))
    return ", ".join(clauses)


def _is_head(field: dataclasses.Field[Any], hint: Any) -> bool:
    # A number without a name would not say what it counts.
    return field.default is dataclasses.MISSING and hint is not int


def _format(hint: Any, value: Any) -> str:
    if hint == Condition and not value:
        return NEVER if value is None else ALWAYS
    match value:
        case str():
            return value if IDENTIFIER.fullmatch(value) else format_value(value)
        case tuple():
            inner = get_args(hint)[0]
            return f"[{', '.join(_format(inner, item) for item in cast('tuple[Any, ...]', value))}]"
        case Place():
            return _format_place(value)
        case Start():
            return " ".join(f"{axis}{step:+}" for axis in AXES if (step := getattr(value, STARTS[axis])))
        case Extent():
            moves = value.axis != "lin" or value.step
            return f"{value.n} by {value.axis}{value.step:+}" if moves else f"{value.n}"
        case LoopTerm():
            return f"{value.axis}{_product(value.step, _format(str, value.loop))}"
        case Slots():
            terms = "".join(_product(step, name) for name in COUNTERS if (step := getattr(value, name)))
            return f"{value.base or ''}{terms}".removeprefix("+") or "0"
        case Tokens():
            return " ".join([*_format_token("take", value), *_format_token("give", value)])
        case _:
            return format_value(value)


def _product(factor: int, index: str) -> str:
    return f"{factor:+}*{index}" if abs(factor) != 1 else f"{'+' if factor > 0 else '-'}{index}"


def _format_place(place: Place) -> str:
    first = [f"{name} {at}" for name in ("row0", "col0") if (at := getattr(place, name))]
    sets = [f"set {place.set_rows}x{place.set_cols}"] if (place.set_rows, place.set_cols) != (1, 1) else []
    terms = [(index, cast("IndexTerm", getattr(place, index))) for index in PE_INDICES]
    moves = [f"{term.axis}{_product(term.step, index)}" for index, term in terms if term != IndexTerm()]
    return " ".join([*first, f"rows {place.rows} cols {place.cols}", *sets, *moves])


def _format_token(side: str, tokens: Tokens) -> list[str]:
    names = getattr(tokens, f"{side}_when")
    when = [f"when {_format(tuple[str, ...], names)}"] if names else []
    return [f"{side} {semaphore}", *when] if (semaphore := getattr(tokens, side)) or when else []


# -- from text ---------------------------------------------------------------------------------------------------------


def parse_clauses(parser: AttrParser, record: type[RecordT]) -> RecordT:
    """The record of the clauses that come next."""
    hints, fields = field_types(record), dataclasses.fields(cast("Any", record))
    values: dict[str, Any] = {}
    try:
        if _is_head(head := fields[0], hints[head.name]):
            values[head.name] = _parse(parser, head.name, hints[head.name])
        while parser.parse_optional_punctuation(",") if values else True:
            # Without a comma before it, what comes next may be another op.
            name = parser.parse_identifier() if values else parser.parse_optional_keyword_in(hints)
            if name is None:
                break
            if name not in hints or name in values:
                parser.raise_error(f"'{name}' is no field here or is given twice; fields: {', '.join(hints)}")
            values[name] = _parse(parser, name, hints[name])
        if missing := [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in values]:
            parser.raise_error(f"expected {', '.join(missing)}")
        return record(**values)
    except ValueError as error:
        parser.raise_error(str(error))


def _parse(parser: AttrParser, name: str, hint: Any) -> Any:
    if hint == Condition and (word := parser.parse_optional_keyword_in((ALWAYS, NEVER))):
        return () if word == ALWAYS else None
    if hint == Condition:
        hint = tuple[str, ...]
    if hint in NOTATIONS:
        return NOTATIONS[hint](parser)
    if get_origin(hint) is tuple:
        return parse_tuple(parser, hint, lambda inner: _parse(parser, name, inner))
    if get_origin(hint) is Literal:
        return _choice(parser, name, get_args(hint))
    if issubclass(hint, Enum):
        return hint(_choice(parser, name, [str(member.value) for member in hint]))
    if hint is bool:
        return True
    if hint is int:
        return parser.parse_integer(allow_boolean=False)
    return float(parser.parse_number()) if hint is float else _name(parser)


def _name(parser: AttrParser) -> str:
    return parse_text(parser) or parser.parse_identifier_or_str_literal()


def _choice(parser: AttrParser, name: str, words: Sequence[str]) -> str:
    word = parser.parse_identifier_or_str_literal()
    if word not in words:
        parser.raise_error(f"{name} is one of {', '.join(words)}, not {word}")
    return word


def _sign(parser: AttrParser) -> int:
    if parser.parse_optional_punctuation("-"):
        return -1
    parser.parse_punctuation("+")
    return 1


def _step(parser: AttrParser) -> int:
    return _sign(parser) * parser.parse_integer(allow_boolean=False, allow_negative=False)


def _factor(parser: AttrParser) -> int:
    """A sign, and a factor before the index that comes next."""
    sign, number = _sign(parser), parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
    if number is not None:
        parser.parse_punctuation("*")
    return sign * (1 if number is None else number)


def _place(parser: AttrParser) -> Place:
    values: dict[str, Any] = {}
    while word := parser.parse_optional_keyword_in(("row0", "col0", "rows", "cols", "set", *AXES)):
        if word in AXES:
            term = IndexTerm(word, _factor(parser))
            values[_new(parser, _choice(parser, "index", PE_INDICES), values)] = term
        elif word == "set":
            values[_new(parser, "set_rows", values)] = parser.parse_shape_dimension()
            parser.parse_shape_delimiter()
            values["set_cols"] = parser.parse_shape_dimension()
        else:
            values[_new(parser, word, values)] = parser.parse_integer(allow_boolean=False)
    return Place(**values)


def _start(parser: AttrParser) -> Start:
    values: dict[str, int] = {}
    while axis := parser.parse_optional_keyword_in(AXES):
        values[_new(parser, STARTS[axis], values)] = _step(parser)
    return Start(**values)


def _extent(parser: AttrParser) -> Extent:
    count = parser.parse_integer(allow_boolean=False)
    if parser.parse_optional_keyword("by") is None:
        return Extent(count)
    return Extent(count, cast("Axis", _choice(parser, "axis", AXES)), _step(parser))


def _loop_term(parser: AttrParser) -> LoopTerm:
    axis, step = cast("Axis", _choice(parser, "axis", AXES)), _factor(parser)
    return LoopTerm(_name(parser), axis, step)


def _slots(parser: AttrParser) -> Slots:
    values: dict[str, int] = {}
    sign: str | None = parser.parse_optional_punctuation("-") or "+"
    while sign:
        number, counter = parser.parse_optional_integer(allow_boolean=False, allow_negative=False), "base"
        if number is None or parser.parse_optional_punctuation("*"):
            # `9*channel` and `channel` are steps of a counter, a number alone is the base.
            counter = _choice(parser, "counter", COUNTERS)
        step = 1 if number is None else number
        values[_new(parser, counter, values)] = -step if sign == "-" else step
        sign = parser.parse_optional_punctuation("+") or parser.parse_optional_punctuation("-")
    return Slots(**values)


def _tokens(parser: AttrParser) -> Tokens:
    values: dict[str, Any] = {}
    while side := parser.parse_optional_keyword_in(("take", "give")):
        values[_new(parser, side, values)] = parser.parse_integer(allow_boolean=False)
        if parser.parse_optional_keyword("when"):
            values[f"{side}_when"] = _parse(parser, "when", tuple[str, ...])
    return Tokens(**values)


def _new(parser: AttrParser, name: str, values: dict[str, Any]) -> str:
    if name in values:
        parser.raise_error(f"'{name}' is given twice")
    return name


NOTATIONS: dict[Any, Callable[[AttrParser], Any]] = {
    Place: _place, Start: _start, Extent: _extent, LoopTerm: _loop_term, Slots: _slots, Tokens: _tokens
}  # fmt: skip


# -- in the IR ---------------------------------------------------------------------------------------------------------


class ClausesAttr(RecordAttr[RecordT]):
    """An attribute that holds one record, printed as its clauses; a subclass says `name` and its record type."""

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> RecordT:
        """Parse `<clauses>`."""
        with parser.in_angle_brackets():
            return parse_clauses(parser, cls.record_type())

    def print_parameter(self, printer: Printer) -> None:
        """Print `<clauses>`."""
        with printer.in_angle_brackets():
            printer.print_string(format_clauses(self.data))


def clauses_attr(name: str, record: type[RecordT]) -> type[ClausesAttr[RecordT]]:
    """The attribute of this name that holds such a record."""
    body = {"name": name, "__doc__": record.__doc__, "__module__": __name__}
    bases = (ClausesAttr[record],)
    # `new_class`, not `type`: it notes the bases as written, in which `RecordAttr.record_type` finds the record.
    return irdl_attr_definition(new_class(f"{record.__name__}Attr", bases, None, lambda own: own.update(body)))


@irdl_custom_directive
class Clauses(CustomDirective):
    """The clauses of an op's record, without the brackets of an attribute."""

    record: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        """The clauses."""
        attribute = cast("type[ClausesAttr[Any]]", cast("UniqueBaseAttributeVariable", self.record).unique_base)
        self.record.set(state, attribute(parse_clauses(parser, attribute.record_type())))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        """The clauses, on as many lines as they take."""
        if text := format_clauses(cast("ClausesAttr[Any]", self.record.get(op)).data):
            indent = "  " * _depth(op)
            line = wrapped(f"{indent}{op.name} {text}", WIDTH).replace(f"\n{indent}", "\n")  # the printer indents again
            state.print_whitespace(printer)
            printer.print_string(line[len(f"{indent}{op.name} ") :])


def _depth(op: Operation) -> int:
    parent = op.parent_op()
    return 0 if parent is None else 1 + _depth(parent)
