"""The thesis' layers and tables: its formulas, and the cycles of its mappings on the preset arrays in closed form.

tests/data/os_tables.json has, recomputed from the thesis' text, for each network and array the mean relative change and
[layer, N_mul, (6.2), (6.3), corrected cycles of the layer].
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conv_grid_cases import Case
from nest_cases import best_mapping, layer_of
from os_compiler import reproduce
from os_formulas import change, corrected, errata, multiplications, printed_ideal, printed_real
from os_tables import SHAPES, TILES, UNROLLING, rows
from test_conv_grid import instructions_of, lowered, unmapped
from tile_walk import ClosedForm
from xdsl.dialects.builtin import UnitAttr

from cnncc.arch.model import Arch, load_arch
from cnncc.dialects.nest import MappingAttr
from cnncc.machine.times.times import simulate
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.schedule_file import LayerNumbers
from cnncc.passes._scheduling.schedule_numbers import given_mapping, violations
from cnncc.passes._scheduling.smaller_budgets import prefetchable
from cnncc.util.progress import silent

GOLDEN = json.loads((Path(__file__).parent / "data" / "os_tables.json").read_text())
CONFIGS = [(each["network"], each["side"]) for each in GOLDEN]
GLB = 1 << 20  # words: all activations of a layer lie there as a whole


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden['network']}-{golden['side']}")
def test_formulas(golden: dict[str, Any]) -> None:
    net, side = golden["network"], golden["side"]
    shapes, tiles, unrolled = rows(SHAPES[net]), rows(TILES[net, side]), rows(UNROLLING[net, side])
    for layer, products, ideal, real, cycles in golden["layers"]:
        tile, unroll = tiles[layer], unrolled[layer]
        assert multiplications(shapes[layer]) == products
        assert (printed_ideal(tile, unroll), printed_real(tile, unroll)) == (ideal, real)
        assert corrected(shapes[layer], tile, unroll) == cycles
    changes = [change(tiles[layer], unrolled[layer]) for layer in shapes]
    assert sum(changes) / len(changes) == pytest.approx(100 * golden["mean_change"])


def distinct(net: str, side: int) -> list[int]:
    """The first layer of each kind."""
    tables = [rows(table) for table in (SHAPES[net], TILES[net, side], UNROLLING[net, side])]
    kinds: dict[tuple[object, ...], int] = {}
    for layer in tables[0]:
        kinds.setdefault(tuple(tuple(table[layer].items()) for table in tables), layer)
    return list(kinds.values())


def given(net: str, side: int, layer: int) -> LayerNumbers:
    tile, unroll = rows(TILES[net, side])[layer], rows(UNROLLING[net, side])[layer]
    keys = ("tif", "tof", "toy", "tox", "tky", "tkx")
    return LayerNumbers(**{key: tile[key] for key in keys}, **unroll)


@pytest.mark.parametrize(("net", "side", "layer"), [(*c, layer) for c in CONFIGS for layer in distinct(*c)])
def test_cycles_in_closed_form(net: str, side: int, layer: int, tmp_path: Path) -> None:
    """The printed row, or the compiler's own mapping where it cannot work."""
    s = rows(SHAPES[net])[layer]
    case = Case(
        kernel=(s["nky"], s["nkx"]), stride=(s["stride"],) * 2, pad="same", c=s["nif"], k=s["nof"],
        image=(s["niy"], s["nix"]), glb=GLB,
    )  # fmt: skip
    assert case.output == (s["noy"], s["nox"])
    arch = roomy(side, tmp_path / "array.toml")
    module, ctx = unmapped(case)
    op = layer_of(module)
    shape, row = layer_shape(op), given(net, side, layer)
    refused = violations(shape, arch, row, residual=False)
    mapping = best_mapping(op, arch, GlbBudget(GLB)) if refused else given_mapping(shape, arch, GlbBudget(GLB), row)
    op.mapping, op.prefetched = MappingAttr(mapping), UnitAttr() if prefetchable(mapping) else None
    lowered(module, ctx, str(tmp_path / "array.toml"))
    assert simulate(instructions_of(module), arch).cycles.total == ClosedForm(case, mapping, arch).total()
    assert bool(refused) == ((net, side) == ("ResNet-20", 4) or (net, side, layer) in REFUSED)


REFUSED = [("AlexNet", 4, 1), ("AlexNet", 6, 1), ("AlexNet", 8, 1), ("AlexNet", 8, 4), ("ResNet-20", 6, 14)]


def roomy(side: int, file: Path) -> Arch:
    """A preset with a GLB for everything."""
    from cnncc.arch.model import PRESETS

    text = (PRESETS / f"seed-{side}x{side}.toml").read_text()
    file.write_text(text.replace("words = 262144", f"words = {GLB}"))
    arch = load_arch(str(file))
    assert arch == replace(load_arch(f"seed-{side}x{side}"), glb=replace(arch.glb, words=GLB))
    return arch


def test_reproduction() -> None:
    """On 8 x 8 PEs every row of ResNet-20 works as printed, and takes the corrected formula's cycles."""
    result = reproduce(("ResNet-20",), (8,), silent)
    (run,) = result["runs"]
    assert round(run["mean_change"], 3) == 1.681
    (golden,) = [each for each in GOLDEN if (each["network"], each["side"]) == ("ResNet-20", 8)]
    for layer, (_, products, ideal, real, cycles) in zip(run["layers"], golden["layers"], strict=True):
        assert layer["refused"] == []
        assert (layer["macs"], layer["ideal"], layer["real"]) == (products, ideal, real)
        assert layer["corrected"] == layer["compute"] == cycles < layer["total"]


def test_errata() -> None:
    found = {erratum.where: erratum for erratum in errata()}
    assert found["Table A.7, layer 4"].right == "8 x 14 PEs"
    assert found["Table A.10"].right == "0 of 19 do"
    assert found["Table A.11, layer 14"].right == "3 for Tox = 1"
    assert found["Section 6.2"].right == "44 for AlexNet layer 1"
    assert found["Eqs. (6.2), (6.3)"].right == "196 times as many"
    assert found["Eq. (6.3)"].right == "5.56 %"
    assert found["Section 6.3.2"].right == "not of AlexNet layer 2, ResNet-20 layer 8 by (6.3)"
    assert len(found) == 12
