"""The atomic schedule of a PE against the tables, schedules and data patterns of the thesis.

tests/data/atomic_schedules.json holds them, recomputed from its text: for kernels, strides, p and q on a row of three
PEs the loads of each PE, and cycle by cycle [k, w, c, y, x, r, s, sent, received, from where]; and for Figs. 5.20 to
5.25 the flat index of the word that each PE uses in each cycle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_cases import SAMPLES, invoke, refused
from conv_grid_cases import Case
from nest_cases import layer_of
from test_conv_grid import unmapped
from test_os_mappings import nest_of
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from cnncc.arch.model import load_arch
from cnncc.context import CompilerContext
from cnncc.dialects.cnn import CNN
from cnncc.dialects.nest import MappingAttr
from cnncc.dialects.weights import WEIGHTS
from cnncc.eval.atomic import Atom, Reuse, Word, atomic_schedule
from cnncc.eval.atomic_text import schedule_text
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.numbered_nest import OutputStationaryPlan, Tile
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.passes.nest_assign_mapping import NestAssignMappingPass
from cnncc.passes.nest_permute import NestPermutePass
from cnncc.passes.nest_stage import NestStagePass
from cnncc.passes.nest_tile import NestTilePass
from cnncc.passes.nest_to_array import NestToArrayPass
from cnncc.passes.nest_unroll import NestUnrollPass

pytestmark = pytest.mark.usefixtures("short_searches")

GOLDEN = json.loads((Path(__file__).parent / "data" / "atomic_schedules.json").read_text())
PATTERNS = GOLDEN["data_patterns"]


def program(case: Case, tile: Tile, arch: str) -> tuple[ModuleOp, CompilerContext]:
    """The PE-set program of one layer mapped by a tile."""
    module, ctx = unmapped(case)
    layer = layer_of(module)
    shape = layer_shape(layer)
    in_one_block = OutputStationaryPlan(shape.tiled_together, shape.sizes.h, shape.sizes.w, shape.sizes.c)
    layer.mapping = MappingAttr(nest_of(shape, load_arch(arch), tile, in_one_block))
    for lowering in (NestTilePass(), NestPermutePass(), NestUnrollPass(), NestStagePass(), NestToArrayPass(arch)):
        lowering.apply(ctx, module)
    return module, ctx


def schedule(kx: int, ky: int, stride: int, p: int, q: int, pox: int, pe: int, arch: str = "seed-4x4") -> Reuse:
    """The first macro-instruction of PE (0, pe) of a set of 1 x pox PEs."""
    image = (ky, (pox - 1) * stride + kx)
    case = Case(kernel=(ky, kx), stride=(1, stride), c=q, k=p, image=image)
    module, ctx = program(case, Tile(ph=1, pw=pox, kr=1, kc=1, p=p, q=q, taps=ky), arch)
    (reuse,) = atomic_schedule(module, ctx.weights, load_arch(arch), "layer", (0, pe), range(1))
    return reuse


def at(word: Word | None) -> Any:
    return None if word is None else list(word.at[1:])


def product(atom: Atom) -> tuple[Word, Word]:
    """The ifmap and weight of an atom of one lane."""
    ((ifmap, weight),) = atom.terms
    assert weight is not None
    return ifmap, weight


def as_golden(reuse: Reuse) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for atom in reuse.atoms:
        k, h, w = reuse.sums[atom.psum].at[1:]
        ifmap, weight = product(atom)
        assert h == 0 and list(weight.at[:2]) == [k, ifmap.at[1]]
        links = [at(atom.sent), at(atom.received), atom.source or None]
        rows.append([k, w, *at(ifmap), *weight.at[2:], *links])
    return rows


@pytest.mark.parametrize("name", GOLDEN["schedules"])
def test_schedules_of_a_row_of_pes(name: str) -> None:
    golden = GOLDEN["schedules"][name]
    sizes = [golden[key] for key in ("kx", "ky", "stride", "p", "q", "Pox")]
    for pe, expected in enumerate(golden["pes"]):
        reuse = schedule(*sizes, pe)
        own = [at(word) for word in reuse.loaded["ifmap"]]
        fresh = len(expected["load"])
        assert own[:fresh] == expected["load"]
        # What the last PE has from its virtual neighbour waits in front of its link.
        assert len(own) == fresh + (golden["messages"]["mac"]["data_reuse"] if pe == golden["Pox"] - 1 else 0)
        assert len(reuse.loaded["weight"]) == golden["messages"]["load_weight"]["max_iteration"]
        assert as_golden(reuse) == expected["cycles"]
        assert [atom.cycle for atom in reuse.atoms] == list(range(golden["messages"]["atomic_macs"]))


@pytest.mark.parametrize("figure", ["5.20", "5.21", "5.23"])
def test_ifmap_patterns(figure: str) -> None:
    golden = PATTERNS[figure]
    (ky, kx), stride, p, pox = golden["kernel"], golden["stride"], golden["p"], golden["Pox"]
    reuses = [schedule(kx, ky, stride, p, 1, pox, pe) for pe in range(pox)]
    flat = [[product(atom)[0].at[3] * ky + product(atom)[0].at[2] for atom in reuse.atoms] for reuse in reuses]
    assert [list(row) for row in zip(*flat, strict=True)] == golden["pattern"]
    for column, owner in golden["column_owner"].items():  # which load brought a column to the row of PEs
        loaded = [pe for pe, reuse in enumerate(reuses) if [0, 0, int(column)] in map(at, reuse.loaded["ifmap"])]
        assert loaded[0] == (pox - 1 if owner == "virtual" else owner)


def test_weight_pattern() -> None:
    golden = PATTERNS["5.24"]
    reuses = [schedule(3, 3, golden["stride"], golden["p"], 1, golden["Pox"], pe) for pe in range(golden["Pox"])]
    slots = [[reuse.loaded["weight"].index(product(atom)[1]) for atom in reuse.atoms] for reuse in reuses]
    assert [list(row) for row in zip(*slots, strict=True)] == golden["pattern"]


def test_psum_pattern() -> None:
    golden = PATTERNS["5.25"]
    p, pox = golden["p"], golden["Pox"]
    reuses = [schedule(3, 3, golden["stride"], p, 1, pox, pe) for pe in range(pox)]
    found = [[pe * p + atom.psum for atom in reuse.atoms] for pe, reuse in enumerate(reuses)]
    assert [list(row) for row in zip(*found, strict=True)] == golden["pattern"]


TABLE_5_1 = """\
layer, PE 0,1, macro-instruction 0
  load ifmap   6: I[0,0,2] I[0,1,2] I[0,2,2] I[0,0,3] I[0,1,3] I[0,2,3]
  load weight  9: W[0,0,0,0] W[0,0,1,0] W[0,0,2,0] W[0,0,0,1] W[0,0,1,1] W[0,0,2,1] W[0,0,0,2] W[0,0,1,2] W[0,0,2,2]
  cycle  west n2n       PE                                 east n2n
      0  send I[0,0,2]  O[0,0,1] += I[0,0,2] * W[0,0,0,0]  receive I[0,0,4]
      1  send I[0,1,2]  O[0,0,1] += I[0,1,2] * W[0,0,1,0]  receive I[0,1,4]
      2  send I[0,2,2]  O[0,0,1] += I[0,2,2] * W[0,0,2,0]  receive I[0,2,4]
      3                 O[0,0,1] += I[0,0,3] * W[0,0,0,1]
      4                 O[0,0,1] += I[0,1,3] * W[0,0,1,1]
      5                 O[0,0,1] += I[0,2,3] * W[0,0,2,1]
      6                 O[0,0,1] += I[0,0,4] * W[0,0,0,2]
      7                 O[0,0,1] += I[0,1,4] * W[0,0,1,2]
      8                 O[0,0,1] += I[0,2,4] * W[0,0,2,2]
  send   O[0,0,1]"""

TABLE_5_2 = """\
      4  send I[0,1,2]  O[0,0,1] += I[0,1,2] * W[0,0,1,1]  receive I[0,1,3]
      5  send I[0,2,2]  O[0,0,1] += I[0,2,2] * W[0,0,2,1]  receive I[0,2,3]
      6                 O[0,0,1] += I[0,0,3] * W[0,0,0,2]"""

TABLE_5_3 = """\
      0            O[0,0,1] += I[0,0,3] * W[0,0,0,0]
      1            O[0,0,1] += I[0,1,3] * W[0,0,1,0]
      2            O[0,0,1] += I[0,2,3] * W[0,0,2,0]
      3            O[0,0,1] += I[0,0,4] * W[0,0,0,1]"""


@pytest.mark.parametrize(("stride", "table"), [(2, TABLE_5_1), (1, TABLE_5_2), (3, TABLE_5_3)])
def test_tables(stride: int, table: str) -> None:
    text = "\n".join(schedule_text("layer", (0, 1), [schedule(3, 3, stride, 1, 1, 3, 1)]))
    assert table in text


def test_last_pe_has_a_virtual_neighbour() -> None:
    lines = list(schedule_text("layer", (0, 2), [schedule(3, 3, 2, 1, 1, 3, 2)]))
    assert lines[4].endswith("receive I[0,0,6] (virtual)")


def test_without_ping_and_pong_the_last_pe_has_all_from_loads() -> None:
    reuse = schedule(3, 3, 1, 2, 1, 3, 2, "spatial-4x4")
    assert len(reuse.loaded["ifmap"]) == 9
    assert {atom.source for atom in reuse.atoms} == {""} and reuse.atoms[0].sent is not None


@pytest.mark.parametrize(("dataflow", "glb"), [("auto", 90), ("nlr", 300), ("rs", 200)])
def test_sums_in_blocks_and_padding(dataflow: str, glb: int, tmp_path: Path) -> None:
    """Sums that leave through a buffer in the GLB have their names, and padding is 0.

    nlr, rs: sums of PEs are added up on their way south, nlr also adds them up in the GLB. They have the whole's name.
    """
    arch = tmp_path / "small.toml"
    links = f"[links]\nsouth = {str(dataflow != 'auto').lower()}"
    arch.write_text(Case(glb=glb, c=2, k=4, image=(9, 9), pad="same").arch_text().replace("[links]", links))
    case = Case(c=2, k=4, image=(9, 9), pad="same", glb=glb)
    ctx = CompilerContext()
    for dialect in (Builtin, Func, CNN, WEIGHTS):
        ctx.load_dialect(dialect)
    module = Parser(ctx, case.text(ctx)).parse_module()
    for lowering in (
        CnnToNestPass(), NestAssignMappingPass(str(arch), dataflow=dataflow), NestTilePass(), NestPermutePass(),
        NestUnrollPass(), NestStagePass(), NestToArrayPass(str(arch)),
    ):  # fmt: skip
        lowering.apply(ctx, module)
    assert "dram output.dram" in str(module)
    found: set[tuple[int, ...]] = set()
    array = load_arch(str(arch))
    for row in range(array.rows):
        for col in range(array.cols):
            for reuse in atomic_schedule(module, ctx.weights, array, "layer", (row, col), range(1000)):
                assert {atom.psum for atom in reuse.atoms} <= reuse.sums.keys()
                parts = any(" (part) += " in line for line in schedule_text("layer", (row, col), [reuse]))
                assert parts == reuse.part == (dataflow != "auto")
                for atom in reuse.atoms:
                    ifmap, weight = product(atom)
                    (_, k, h, w), (_, c, r, s) = reuse.sums[atom.psum].at, weight.at
                    y, x = h + r - 1, w + s - 1
                    inside = 0 <= y < 9 and 0 <= x < 9
                    assert ifmap.at == ((0, c, y, x) if inside else ())
                    assert (k, c, h, w, r, s) not in found
                    found.add((k, c, h, w, r, s))
    assert len(found) == case.macs  # each product once


def test_refusals() -> None:
    model = SAMPLES / "models" / "mnist.onnx"
    assert "no layer 'x' has macro-instructions; there are conv0" in refused(
        "atoms", model, "--batch", 1, "--layer", "x"
    )
    assert "there is no PE 8,0: spatial-8x8 has 8 x 8" in refused("atoms", model, "--batch", 1, "--pe", "8,0")
    assert "'1' is not ROW,COL, for example 0,1" in invoke("atoms", model, "--pe", "1").stderr
