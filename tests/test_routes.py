"""Routes through loops: where sums stay in their PEs."""

from __future__ import annotations

import pytest

from cnncc.mapping.text import parse
from cnncc.model.layer_shape import LayerShape, Sizes
from cnncc.model.routes import Nest
from cnncc.window import Window


@pytest.mark.parametrize(
    ("mapping", "rows"),
    [
        ("c':2 > c''", 1),
        ("c':2 > [c''||2@rows]", 2),
        ("c':2 > w > c''", None),  # two columns, each with sums of its own
        ("w > c':2 > c''", None),
        ("c':2 > k':3 > c'' > k''", None),
    ],
)
def test_sums_stay_in_pes_inside_loops_over_products(mapping: str, rows: int | None) -> None:
    sizes = Sizes(1, 6, 4, 1, 2, 1, 1)
    nest = Nest(LayerShape("mac", sizes, Window((1, 1)), 1, 1, 2), parse(mapping, sizes))
    assert nest.summed_over(0, {dim: sizes.of(dim) for dim in "nkchwrs"}) == rows
