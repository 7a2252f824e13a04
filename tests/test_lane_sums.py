"""Lanes with sums of their own (MAC-7, LEGAL-6): random layers by the mapper, on arrays with 2 to 4 lanes.

Results are compared with brute force (conv_grid_cases.py), every counter with the model's, and proofs find wrong lanes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conv_grid_cases import Case
from examples import SEED, examples
from nest_cases import QUANT, layer_of
from test_conv_grid import result_and_cycles, unmapped
from test_conv_groups import Small
from test_dataflows import Drawn, arch_toml, compiled
from test_predict import check_mapping
from test_proof import edited
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from cnncc.arch.model import Arch, parse_arch
from cnncc.binary.isa_module import disassembly
from cnncc.context import CompilerContext
from cnncc.dialects._records import format_record
from cnncc.driver.build import binary_of
from cnncc.driver.pipeline import DONE, Compilation, Settings, new_context
from cnncc.mapper import boxes
from cnncc.mapper.search import search
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.proof.claim import Claim
from cnncc.proof.proof import prove
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

EXAMPLES = examples(36)
PARTS = 3
Random = np.random.Generator


def random_layer(rng: Random) -> Case:
    """A convolution, a depthwise layer or a pool, whose channels lanes often do not divide."""

    def one(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    while True:
        depthwise = bool(rng.random() < 0.3)
        case = Case(
            kind=str(rng.choice(["mac", "mac", "mac", "max", "add"])),
            kernel=(one(1, 3), one(1, 3)), stride=(one(1, 2), one(1, 2)),
            dilation=(1, 1) if rng.random() < 0.8 else (2, 1), pad=str(rng.choice(["none", "same", "asymmetric"])),
            c=1 if depthwise or rng.random() < 0.5 else one(2, 4), k=one(1, 9), group="each" if depthwise else "one",
            image=(one(5, 9), one(5, 9)), array=(one(1, 3), one(1, 4)), overlap=bool(rng.random() < 0.8),
            zero=one(0, 3), glb=1 << 14, seed=one(0, 1 << 20),
        )  # fmt: skip
        if min(case.output) > 0 and case.macs < 20_000:
            return case


def random_array(rng: Random, case: Case) -> Arch:
    """Banks of any size, and now and then ping and pong."""
    lanes = int(rng.integers(2, 5))
    arch = parse_arch(case.arch_text(), "drawn")
    pe = replace(
        arch.pe, lanes=lanes, lane_sums=True, psum_words=lanes * int(rng.integers(1, 6)), max_pixels=8,
        ifmap_words=int(rng.integers(9, 60)), weight_words=int(rng.integers(9, 80)),
    )  # fmt: skip
    if rng.random() < 0.3:
        pe = replace(pe, pong_words=12, virtual_words=24)
    return replace(arch, pe=pe, links=replace(arch.links, south=bool(rng.random() < 0.5)))


def best(drawn: Drawn) -> Mapping:
    """By the mapper."""
    found = search(drawn.shape, drawn.arch, GlbBudget(drawn.arch.glb.words // 2))
    assert found is not None, drawn.case
    return found.mapping


def has_own_lanes(mapping: Mapping) -> bool:
    return any(loop.on == "lanes" and loop.dim == "k" for loop in mapping.loops)


def no_lanes(*_: object) -> tuple[int, ...]:
    return ()


@pytest.mark.parametrize("part", range(PARTS))
def test_random_layers(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Taps on lanes would be better for many of these.
    monkeypatch.setattr(boxes, "_window_lanes", no_lanes)
    rng, seen = np.random.default_rng([SEED, part]), Counter[str]()
    for _ in range(-(-EXAMPLES // PARTS)):
        case = random_layer(rng)
        bare = Drawn(case, random_array(rng, case), Mapping(()))
        drawn = replace(bare, mapping=best(bare))
        module, ctx = compiled(drawn, tmp_path)
        result, _ = result_and_cycles(case, module, ctx, drawn.arch)
        assert np.array_equal(result, case.expected), drawn
        check_mapping(drawn, tmp_path)
        seen[case.group if case.is_mac else "pool"] += has_own_lanes(drawn.mapping)
    assert EXAMPLES < 36 or all(seen[kind] for kind in ("one", "each", "pool")), seen


@pytest.mark.parametrize(("kind", "group"), [("mac", "one"), ("mac", "each"), ("max", "one"), ("add", "one")])
def test_the_mapper_takes_lanes_where_they_help(kind: str, group: str) -> None:
    """Of one input channel: half as many steps on two lanes. Without sums of their own these hold taps, or are idle."""
    case = Case(kind=kind, group=group, c=1, k=6, image=(10, 10), array=(2, 2), glb=1 << 14)
    one = parse_arch(case.arch_text(), "one")
    two = replace(one, pe=replace(one.pe, lanes=2))
    arch = replace(two, pe=replace(two.pe, lane_sums=True))
    shape = layer_shape(layer_of(unmapped(case)[0]))
    idle, taps, own = (search(shape, array, GlbBudget(1 << 13)) for array in (one, two, arch))
    assert idle and taps and own and has_own_lanes(own.mapping) and not has_own_lanes(taps.mapping)
    assert own.least <= own.cycles < 0.7 * idle.cycles
    assert own.cycles < taps.cycles


# -- proofs ------------------------------------------------------------------------------------------------------------


class Pool(Small):
    """The maxima of a pool."""

    def network(self, ctx: CompilerContext) -> ModuleOp:
        x, y = ("x".join(map(str, dims)) for dims in (self.x.shape, (1, self.k, *self.window.output(*self.image))))
        text = f"""builtin.module attributes {{{DONE} = "cnn-legalize"}} {{
            func.func @main(%x : tensor<{x}xi16> {{onnx.name = "x", {QUANT}}})
                -> (tensor<{y}xi16> {{onnx.name = "y", {QUANT}}}) {{
              %1 = cnn.pool "max" %x window <{format_record(self.window)}> label "conv"
                   : tensor<{x}xi16> -> tensor<{y}xi16>
              func.return %1 : tensor<{y}xi16>
            }} }}"""
        return Parser(ctx, text).parse_module()


PROVEN = {
    "convolution": (Small("mac", 1, 6, 1, (7, 6), Window((3, 3))), "weight_l"),
    "depthwise": (Small("mac", 1, 6, 1, (7, 6), Window((3, 3), group=6)), "ifmap_l"),
    "pool": (Pool("max", 1, 6, 1, (8, 6), Window((2, 2), (2, 2), group=6)), "ifmap_l"),
}


@pytest.mark.parametrize("name", PROVEN)
def test_a_wrong_lane_is_found(name: str, tmp_path: Path) -> None:
    """Lanes with sums of their own are proven. A lane that takes its neighbour's word or weight is not."""
    case, field = PROVEN[name]
    arch = parse_arch(Case(array=(2, 2), glb=1 << 14).arch_text(), "two")
    arch = replace(arch, pe=replace(arch.pe, lanes=2, lane_sums=True))
    (tmp_path / "array.toml").write_text(arch_toml(arch))
    ctx = new_context()
    compilation = Compilation(ctx, case.network(ctx), Settings(arch, str(tmp_path / "array.toml"), 16))
    module = compilation.module.clone()
    compilation.run("isa")
    claim = Claim(binary_of(compilation), module, ctx.weights)
    steps = set(re.findall(rf"psum_l=1.* ({field}=\d+)", disassembly(claim.binary)))
    assert steps and prove(claim, 30.0).failures == []
    wrong = prove(edited(claim, *((step, f"{field}=0") for step in steps)), 1.0).failures
    assert wrong and "results differ, first at [0, 1, 0, 0]" in wrong[0], wrong
