"""Attributes that are a frozen dataclass: the mathematics in plain Python, the syntax from its fields.

    @dataclass(frozen=True)
    class Window:
        kernel: tuple[int, int]
        stride: tuple[int, int] = (1, 1)

    @irdl_attr_definition
    class WindowAttr(RecordAttr[Window]):
        name = "cnn.window"

prints as `#cnn.window<kernel = [3, 3]>`: fields in order, those at their default left out. Fields may be
int, bool, float, str, another record, a tuple of these, or any of them or None.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from xdsl.ir import Data
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer

RecordT = TypeVar("RecordT")

# The lexer takes a tab as it is, but no end of a line.
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\v": r"\0B", "\f": r"\0C"})


@cache
def field_types(record: type) -> dict[str, Any]:
    """The types of a record's fields, by name."""
    return get_type_hints(record)


def is_default(field: dataclasses.Field[Any], value: object) -> bool:
    """Whether a field has its default value, so that no text needs to say it."""
    if field.default_factory is not dataclasses.MISSING:
        return value == field.default_factory()
    return field.default is not dataclasses.MISSING and value == field.default


def format_value(value: object) -> str:
    """A field's value as text."""
    match value:
        # A bool is an int, too: it comes before `int()`.
        case bool():
            return "true" if value else "false"
        case float():
            digits, e, exponent = repr(value).partition("e")  # repr: the same double when read back
            # Of 1e-05 the lexer would take the 1 alone: floats have a point.
            return (digits if "." in digits else digits + ".0") + e + exponent
        case str():
            return '"' + value.translate(_ESCAPES) + '"'
        case tuple():
            return "[" + ", ".join(format_value(item) for item in cast("tuple[object, ...]", value)) + "]"
        case int():
            return str(value)
        case _:
            return "{" + format_record(value) + "}"


def format_record(record: Any) -> str:
    """The fields of `record` as `name = value, …`, without those at their default."""
    values = {field: getattr(record, field.name) for field in dataclasses.fields(record)}
    said = {field.name: value for field, value in values.items() if not is_default(field, value)}
    return ", ".join(f"{name} = {format_value(value)}" for name, value in said.items())


def parse_text(parser: AttrParser) -> str:
    """A string with other characters than ASCII, which the lexer takes for bytes; empty where none comes next."""
    try:
        return (parser.parse_optional_bytes_literal() or b"").decode()
    except UnicodeDecodeError as error:
        parser.raise_error(f"a string is not UTF-8: {error}")


def parse_tuple(parser: AttrParser, kind: Any, item: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Parse a tuple in brackets, of as many values as its type has. item: parses a value of a type."""
    inner, *more = get_args(kind)
    values = tuple(parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, lambda: item(inner)))
    if more != [...] and len(values) != 1 + len(more):
        parser.raise_error(f"expected {1 + len(more)} values, there are {len(values)}")
    return values


def _parse(parser: AttrParser, kind: Any) -> Any:
    if isinstance(kind, types.UnionType):  # T | None: None is only ever the default
        return _parse(parser, next(arg for arg in get_args(kind) if arg is not types.NoneType))
    if get_origin(kind) is tuple:
        return parse_tuple(parser, kind, lambda inner: _parse(parser, inner))
    if kind is bool:
        return parser.parse_boolean()
    if kind is int:
        return parser.parse_integer(allow_boolean=False)
    if kind is float:
        return float(parser.parse_number())
    if kind is str:
        return parse_text(parser) or parser.parse_str_literal()
    with parser.in_braces():
        return parse_record(parser, kind)


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    """Whether a field has no default."""
    return field.default is field.default_factory is dataclasses.MISSING


def parse_record(parser: AttrParser, record: type[RecordT]) -> RecordT:
    """Parse `name = value, …` up to a closing bracket, checking names and missing fields."""
    hints = field_types(record)
    values: dict[str, Any] = {}
    while (field := parser.parse_optional_identifier()) is not None:
        if field not in hints or field in values:
            parser.raise_error(f"'{field}' is no field here or is given twice; fields: {', '.join(hints)}")
        parser.parse_punctuation("=")
        values[field] = _parse(parser, hints[field])
        if parser.parse_optional_punctuation(",") is None:
            break
    fields = dataclasses.fields(cast("Any", record))
    if missing := [field.name for field in fields if _is_needed(field) and field.name not in values]:
        parser.raise_error(f"expected {', '.join(missing)}")
    try:
        return record(**values)
    except (TypeError, ValueError) as error:
        parser.raise_error(str(error))


class RecordAttr(Data[RecordT], Generic[RecordT]):
    """An attribute that holds one record; a subclass says `name` and its record type."""

    @classmethod
    def record_type(cls) -> type[RecordT]:
        """The type of its record."""
        # `vars`: the bases of this class itself. An inherited entry would have the type variable for the record.
        return get_args(vars(cls)["__orig_bases__"][0])[0]

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> RecordT:
        """Parse `<name = value, …>`."""
        with parser.in_angle_brackets():
            return parse_record(parser, cls.record_type())

    def print_parameter(self, printer: Printer) -> None:
        """Print `<name = value, …>`."""
        with printer.in_angle_brackets():
            printer.print_string(format_record(self.data))
