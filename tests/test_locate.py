"""Which reuse of the PE sets, PE and psum a wrong result comes from, against the mapping by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from conv_grid_cases import Case
from test_atoms import program

from cnncc.arch.model import load_arch
from cnncc.eval.wrong_reuses import Location, locate
from cnncc.passes._scheduling.numbered_nest import Tile

# 5 x 7 outputs of 9 channels on sets of 2 x 2 PEs, two of them one above the other with 2 channels each: tiles of 4
# channels (4, 4, 1), 2 rows (2, 2, 1) and 2 columns (2, 2, 2, 1).
CASE = Case(c=4, k=9, kernel=(3, 3), image=(7, 9))
TILE = Tile(ph=2, pw=2, kr=2, kc=1, p=2, q=2, taps=3)


def reuse_of(k: int, h: int, w: int) -> int:
    """Tiles in the order k, h, w."""
    return (k // 4 * 3 + h // 2) * 4 + w // 2


@pytest.mark.parametrize("place", [(0, 0, 0), (3, 1, 1), (8, 4, 6), (6, 3, 2), (1, 4, 5)])
def test_the_place_of_one_result(place: tuple[int, int, int]) -> None:
    k, h, w = place
    module, ctx = program(CASE, TILE, "spatial-4x4")
    wrong = np.zeros((1, 9, 5, 7), np.bool_)
    wrong[0, k, h, w] = True
    found = locate(module, ctx.weights, load_arch("spatial-4x4"), "layer", wrong)
    assert isinstance(found, Location)
    assert (found.wrong, found.reuses, found.number) == (1, 36, reuse_of(*place))
    assert (found.pe, found.psum) == ((k % 4 // 2 * 2 + h % 2, w % 2), k % 2)
    tile = (k // 4, h // 2, w // 2)
    wholes = (2, 2, 3)  # what is left over is a loop of its own, of one iteration
    assert list(found.loops.values()) == [at if at < whole else 0 for at, whole in zip(tile, wholes, strict=True)]


def test_all_reuses_that_are_wrong_count() -> None:
    module, ctx = program(CASE, TILE, "spatial-4x4")
    wrong = np.zeros((2, 9, 5, 7), np.bool_)  # of two images
    wrong[0, 2, :, 3], wrong[1, 8, 0, 0] = True, True
    found = locate(module, ctx.weights, load_arch("spatial-4x4"), "layer", wrong)
    assert found is not None
    expected = {reuse_of(k, h, w) for k, h, w in [*product([2], range(5), [3]), (8, 0, 0)]}
    assert (found.wrong, found.number) == (len(expected), min(expected))
    assert f"wrong in {len(expected)} of 36 reuses of the PE sets, first in reuse {min(expected)} (" in str(found)
    assert str(found).endswith("PE 2,1, psum 0")


def test_what_no_pe_computed_is_nowhere() -> None:
    module, ctx = program(CASE, TILE, "spatial-4x4")
    assert locate(module, ctx.weights, load_arch("spatial-4x4"), "another", np.ones((1, 9, 5, 7), np.bool_)) is None
