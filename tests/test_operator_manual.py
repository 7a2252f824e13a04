"""docs/operators.md: up to date, with every operator that the array runs."""

from __future__ import annotations

from pathlib import Path

from cnncc.driver.operator_manual import manual
from cnncc.passes._onnx.layers import OWN_READERS, READERS
from cnncc.passes._onnx.quantised_layers import QUANTISED_READERS

PAGE = Path(__file__).parent.parent / "docs" / "operators.md"


def test_operator_manual_is_up_to_date() -> None:
    assert PAGE.read_text() == manual(), "run `python -m cnncc.driver.operator_manual > docs/operators.md`"


def test_operator_manual_has_every_operator() -> None:
    text = PAGE.read_text()
    for name in {*READERS, *OWN_READERS, *(name for _, name in QUANTISED_READERS)}:
        assert f"\n| `{name}` | " in text, name
