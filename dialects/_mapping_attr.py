"""The attribute that holds a mapping, written in the notation of docs/mapping.md.

    #nest.mapping<"k':2 > h||@rows > c > weight@rf > {k''}">        by itself
    mapping "k':2 > h||4@rows > c > weight@rf > {k''}"              on a layer, whose sizes say how often a loop runs

Both are read also as a record, `<loops = [{dim = "k", step = 2}, …], stages = […]>`.
"""

from __future__ import annotations

from typing import cast

from xdsl.irdl import IRDLOperation, irdl_attr_definition
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer

from cnncc.dialects._records import RecordAttr, parse_record
from cnncc.mapping.mapping import Mapping, Sizes
from cnncc.mapping.notation import NotationError
from cnncc.mapping.text import parse, text


def _parse(parser: AttrParser, sizes: Sizes | None) -> Mapping | None:
    """The mapping of the next token, if it is a string. An error points into the string."""
    # Errors of the notation count from its first character, behind the quote.
    start = parser.pos + len('"')
    if (notation := parser.parse_optional_str_literal()) is None:
        return None
    try:
        return parse(notation, sizes)
    except NotationError as error:
        parser.raise_error(error.message, start + error.at, start + error.end)


@irdl_attr_definition
class MappingAttr(RecordAttr[Mapping]):
    """A mapping that was chosen for a layer and not applied yet."""

    name = "nest.mapping"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Mapping:
        """`<"…">` or `<loops = […], stages = […]>`."""
        with parser.in_angle_brackets():
            mapping = _parse(parser, None)
            return parse_record(parser, Mapping) if mapping is None else mapping

    def print_parameter(self, printer: Printer) -> None:
        """`<"…">`."""
        with printer.in_angle_brackets():
            printer.print_string_literal(text(self.data))


@irdl_custom_directive
class OnLayer(CustomDirective):
    """The mapping of an op that has `sizes`, which stand before it in its assembly format."""

    mapping: AttributeVariable

    def is_anchorable(self) -> bool:
        """Where it is there, the optional group around it is."""
        return True

    def is_present(self, op: IRDLOperation) -> bool:
        """Whether the op has a mapping."""
        return self.mapping.get(op) is not None

    def parse(self, parser: Parser, state: ParsingState) -> None:
        """`"…"`, or the attribute."""
        sizes = cast("RecordAttr[Sizes]", state.properties["sizes"]).data
        mapping = _parse(parser, sizes)
        self.mapping.set(state, MappingAttr(MappingAttr.parse_parameter(parser) if mapping is None else mapping))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        """`"…"`, with the PEs that the sizes make."""
        state.print_whitespace(printer)
        mapping = cast("MappingAttr", self.mapping.get(op)).data
        printer.print_string_literal(text(mapping, cast("RecordAttr[Sizes]", op.properties["sizes"]).data))
