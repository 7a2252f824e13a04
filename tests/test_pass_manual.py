"""`cnncc opt --passes` and docs/passes.md: every pass says what it does, what it makes of what, and its options."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_cases import done, refused

from cnncc.driver.pass_manual import listing, manual, options, page, passes, summary, text_of
from cnncc.passes.nest_split import NestSplitPass

PAGE = Path(__file__).parent.parent / "docs" / "passes.md"


def test_pass_manual_is_up_to_date() -> None:
    assert PAGE.read_text() == manual(), "run `python -m cnncc.driver.pass_manual > docs/passes.md`"


@pytest.mark.parametrize("name", passes())
def test_every_pass_shows_what_it_makes_of_what(name: str) -> None:
    text = text_of(passes()[name])
    assert summary(passes()[name]).endswith(".") and ("->" in text or "becomes" in text), text


def test_options_are_those_of_the_pass() -> None:
    assert list(options(NestSplitPass)) == [
        ("dim", "text", "must be given"),
        ("size", "number", "must be given"),
        ("occurrence", "number", "none"),
        ("layer", "text", "none"),
    ]


def test_opt_prints_them() -> None:
    assert done("opt", "--passes").stdout == listing()
    assert done("opt", "--passes", "nest-split").stdout == page("nest-split")
    assert "no pass 'nest-spilt': did you mean 'nest-split'?" in refused("opt", "--passes", "nest-spilt")
