"""The text of the `array` dialect: every record reads back from its clauses, and lines are short."""

from __future__ import annotations

import re

import pytest
from array_cases import module
from test_array_eval import altered
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

from cnncc.arch.operations import MacOperation
from cnncc.dialects import array as A
from cnncc.dialects._clauses import ClausesAttr, format_clauses, parse_clauses
from cnncc.dialects._records import format_record, parse_record
from cnncc.dialects.isa import Segment
from cnncc.driver.pipeline import new_context
from cnncc.util.wrap import wrapped


def test_array_text_reads_back_whatever_a_record_holds() -> None:
    ctx, texts = new_context(), set[str]()
    for op in module()[0].walk():
        record = getattr(op, "record", None)
        if isinstance(record, ClausesAttr):
            for other in (record.data, *altered(record.data)):
                text = format_clauses(other)
                assert parse_clauses(Parser(ctx, text), type(other)) == other, text
                texts.add(text)
    assert len(texts) > 1000


@pytest.mark.parametrize("name", ["tab\t", "two\nlines", 'a "b" \\', "\v\f", "größe", "", "always", "a, words 3"])
def test_array_text_of_any_name(name: str) -> None:
    ctx, view = new_context(), A.View(name, name, steps=(A.LoopTerm(name, "x", 2),))
    assert parse_clauses(Parser(ctx, format_clauses(view)), A.View) == view
    segment = Segment(3, (name,))
    assert parse_record(Parser(ctx, format_record(segment)), Segment) == segment


@pytest.mark.parametrize(
    ("slots", "text"),
    [
        (A.Slots(), "0"),
        (A.Slots(3), "3"),
        (A.Slots(-3, pixel=-1), "-3-pixel"),
        (A.Slots(pixel=1), "pixel"),
        (A.Slots(pixel=-2, lane=1), "-2*pixel+lane"),
        (A.Slots(1, 2, 3, 4, -5), "1+2*pixel+3*tap+4*channel-5*lane"),
    ],
)
def test_array_text_of_slots_is_a_sum(slots: A.Slots, text: str) -> None:
    load = A.Mac(MacOperation.MAC, ifmap=slots)
    assert format_clauses(load) == ("mac" if text == "0" else f"mac, ifmap {text}")
    assert parse_clauses(Parser(new_context(), f"mac, ifmap {text}"), A.Mac) == load


LONG = 'op "a, (b, c" (dd, ee, ff) [gg, hh], ii jj -> kk'


@pytest.mark.parametrize("width", range(12, 60))
def test_array_text_breaks_at_spaces_outside_strings(width: int) -> None:
    lines = wrapped(f"  {LONG}", width).split("\n")
    assert " ".join(line.strip() for line in lines) == LONG
    assert all(len(line) <= max(width, len('      "a, (b, c"')) for line in lines)
    assert all(re.match("      [^ ]", line) for line in lines[1:])


def test_array_text_breaks_outside_brackets_behind_a_comma() -> None:
    assert wrapped(LONG, 40) == 'op "a, (b, c" (dd, ee, ff) [gg, hh],\n    ii jj -> kk'
    assert wrapped('op <a, b, c, d> label "e f" then', 24) == 'op <a, b, c, d>\n    label "e f" then'
    assert wrapped(LONG, 30) == 'op "a, (b, c" (dd, ee, ff)\n    [gg, hh], ii jj -> kk'


def test_array_text_of_a_pair_has_two_numbers() -> None:
    with pytest.raises(ParseError, match="expected 2 values, there are 1"):
        parse_clauses(Parser(new_context(), "clamp [3]"), A.Unit)
