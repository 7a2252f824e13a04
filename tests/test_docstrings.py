"""The examples of docstrings, in every module that has some."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"cnncc": "cnncc", "cnncc.dialects": "dialects", "cnncc.passes": "passes"}


def modules() -> list[str]:
    """The modules with examples."""
    return sorted(
        ".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts])
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*.py")
        if ">>> " in path.read_text()
    )


@pytest.mark.parametrize("name", modules())
def test_examples_of_docstrings(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.failed == 0 and result.attempted > 0
