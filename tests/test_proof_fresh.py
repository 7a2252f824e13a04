"""Proofs that go on from fresh words behind some values: of networks with many products (docs/proof.md)."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2
from pathlib import Path

import numpy as np
import pytest
from cli_cases import SAMPLES, build, noise, save
from drawn import compiled_at_random
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from test_proof import PAGE
from test_proof_drawn import proven

from cnncc.binary.isa_module import disassembly
from cnncc.draws import CHOICES
from cnncc.driver.prove import claim_of_model
from cnncc.driver.sources import CompileOptions
from cnncc.eval import cnn_degrees
from cnncc.isa.assembly import assemble
from cnncc.isa.codec import encode_program
from cnncc.proof.claim import Claim
from cnncc.proof.fresh_values import fresh_values
from cnncc.proof.proof import prove
from cnncc.proof.proof_text import proof_json, proof_text

pytestmark = pytest.mark.usefixtures("short_searches")

PRODUCTS = 14
SHAPE = (1, 4, 5, 3)


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each x is the one before it times a gate from 0 to 1, a 1x1 convolution of it."""
    node, nodes = helper.make_node, list[object]()
    for number in range(1, PRODUCTS + 1):
        before = f"x{number - 1}"
        nodes += [
            node("Conv", [before, "w"], [f"c{number}"], name=f"c{number}"),
            node("Clip", [f"c{number}", "least", "most"], [f"g{number}"], name=f"g{number}"),
            node("Mul", [f"g{number}", before], [f"x{number}"], name=f"x{number}"),
        ]
    arrays = {"w": noise(1, 4, 4, 1, 1), "least": np.float32(0), "most": np.float32(1)}
    return save(build(nodes, {"x0": SHAPE}, [f"x{PRODUCTS}"], arrays), tmp_path_factory.mktemp("gates") / "net.onnx")


@pytest.fixture(scope="module")
def claim(gates: Path) -> Claim:
    return claim_of_model(gates, CompileOptions())


def degrees_by_hand(products: int) -> list[int]:
    """A gate of a value of degree d has d + 3: weight, scale, clamp. The product has 2 d + 3, a factor and a clamp."""
    degrees, x = list[int](), 1
    for _ in range(products):
        degrees.append(2 * x + 3 + 2)
        x = 1 if degrees[-1] > 1_024 else degrees[-1]
    return degrees


def test_a_network_of_many_products_is_proven(claim: Claim) -> None:
    """Without fresh words the last one would have a degree of 6 * 2^14 - 5."""
    by_hand = degrees_by_hand(PRODUCTS)
    assert by_hand == [7, 19, 43, 91, 187, 379, 763, 1_531, 7, 19, 43, 91, 187, 379]
    proof = prove(claim, 50.0)
    assert proof.failures == []
    assert [part.degree for part in proof.parts] == [*by_hand, by_hand[-1]]
    assert [part.value for part in proof.parts if part.fresh] == ["x8"]
    assert proof.degree == 1_531 and proof.draws == ceil(50 / log2(CHOICES / 1_531)) == 12
    assert 0.5**proof.error_bits == pytest.approx((1_531 / 32_747) ** 12)


def test_it_is_printed_where_words_are_drawn_afresh(claim: Claim) -> None:
    """docs/proof.md shows it."""
    proof = prove(claim, 1.0)
    printed = [line.split() for line in proof_text(proof)]
    assert printed[8] == ["c8", "x8", "60", "1531", "proven,", "then", "drawn", "afresh"]
    shown = [line.split() for line in PAGE.splitlines()]
    assert printed[7:10] == shown[shown.index(printed[7]) :][:3]
    said = proof_json(proof, Path("net.onnx"))
    assert said["schema"] == 2 and [part["fresh"] for part in said["parts"]] == [n == 8 for n in range(1, 16)]


def with_greater_clamp(claim: Claim, product: int) -> Claim:
    """The claim with another program: the upper bound of a product is 1 less."""
    lines, units = disassembly(claim.binary).splitlines(), 0
    for number, line in enumerate(lines):
        units += line.startswith("unit")
        if line.startswith("unit") and units == product:
            lines[number] = line.replace("add_hi=32767", "add_hi=32766")
            assert lines[number] != line
    return replace(claim, binary=replace(claim.binary, program=encode_program(assemble("\n".join(lines)))))


@pytest.mark.parametrize("product", [1, 7, 8, 9, 13, 14])
def test_an_error_before_at_and_behind_fresh_words_is_found(product: int, claim: Claim) -> None:
    """Layers before it are right, those behind it are not reached."""
    parts = prove(with_greater_clamp(claim, product), 50.0).parts
    wrong = [part for part in parts if part.wrong]
    assert [part.value for part in wrong] == [f"x{product}"]
    assert (wrong[0].wrong or "").startswith("60 of 60 results differ, first at [0, 0, 0, 0]: written by instruction")
    assert [part.wrong == "" for part in parts[:product]] == [True] * (product - 1) + [False]
    assert not wrong[0].fresh and all(part.wrong is None for part in parts[product:])


def test_a_program_that_leaves_out_what_makes_its_degree_high(claim: Claim) -> None:
    """Words are drawn afresh by the network's degrees, whatever the program does."""
    text = disassembly(claim.binary).replace("multiply=1", "multiply=0")
    wrong = replace(claim, binary=replace(claim.binary, program=encode_program(assemble(text))))
    assert prove(wrong, 1.0).failures[0].startswith("c1: 60 of 60 results differ")


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """All values are drawn afresh that may be."""
    monkeypatch.setattr(cnn_degrees, "MOST", 0)


@pytest.mark.usefixtures("everywhere")
def test_a_place_that_the_glb_does_not_have(claim: Claim) -> None:
    """The place of a value is what the binary says, which may be anything."""
    buffers = [
        {**entry, "at": 1 << 30} if entry["name"] == "x8.glb" else entry for entry in claim.binary.metadata["buffers"]
    ]
    wrong = replace(claim, binary=replace(claim.binary, metadata={**claim.binary.metadata, "buffers": buffers}))
    (failure,) = prove(wrong, 1.0).failures
    assert failure.startswith("c8: a result is never committed: glb address 1073741")


# -- which values may be ----------------------------------------------------------------------------------------------


def fresh(claim: Claim) -> set[str]:
    return {value for value, _ in fresh_values(claim).values()}


@pytest.mark.usefixtures("everywhere")
def test_values_that_other_things_than_layers_read_are_not(tmp_path: Path) -> None:
    """`kept` is an output, too; the host reads `hosted`; `cut` and `other` are parts of `both`."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["kept"], name="kept"),
        node("Conv", ["kept", "w"], ["hosted"], name="hosted"),
        node("Softmax", ["hosted"], ["z"], name="z", axis=1),
        node("Conv", ["hosted", "w"], ["cut"], name="cut"),
        node("Conv", ["cut", "w"], ["inner"], name="inner"),
        node("Conv", ["inner", "w"], ["other"], name="other"),
        node("Concat", ["cut", "other"], ["both"], name="both", axis=1),
        node("Conv", ["both", "v"], ["y"], name="y"),
    ]
    model = build(nodes, {"x": SHAPE}, ["y", "z", "kept"], {"w": noise(1, 4, 4, 1, 1), "v": noise(2, 4, 8, 1, 1)})
    claim = claim_of_model(save(model, tmp_path / "net.onnx"), CompileOptions(groups="none"))
    assert fresh(claim) == {"inner.requant"}
    assert prove(claim, 50.0).failures == []


@pytest.mark.usefixtures("everywhere")
def test_values_inside_groups_are_not(tmp_path: Path) -> None:
    """They lie nowhere as a whole; the last one of a group does."""
    node = helper.make_node
    nodes = [node("Conv", [a, "w"], [b], name=b, pads=[1, 1, 1, 1]) for a, b in zip("xabcd", "abcdy", strict=True)]
    path = save(build(nodes, {"x": (1, 4, 12, 9)}, ["y"], {"w": noise(1, 4, 4, 3, 3)}), tmp_path / "net.onnx")
    (tmp_path / "groups.toml").write_text('[[group]]\nlayers = ["b", "c"]\nrows = 2\n')
    claim = claim_of_model(path, CompileOptions(groups=tmp_path / "groups.toml"))
    assert fresh(claim) == {"a.requant", "c.requant", "d.requant"}
    assert prove(claim, 50.0).failures == []


def test_values_that_may_have_two_places_are_not(claim: Claim) -> None:
    """A tensor in DRAM besides the one in the GLB, and two layers that compute one value: the next value is taken."""
    binary = claim.binary
    in_dram = replace(binary.tensors[0], name="x8", role="value")
    twice = {**binary.metadata, "layers": [*binary.metadata["layers"], binary.metadata["layers"][-2] | {"value": "x8"}]}
    assert fresh(claim) == {"x8"}
    assert fresh(replace(claim, binary=replace(binary, tensors=[*binary.tensors, in_dram]))) == {"x9"}
    assert fresh(replace(claim, binary=replace(binary, metadata=twice))) == {"x9"}


@pytest.mark.usefixtures("everywhere")
def test_values_of_cores_are_not(tmp_path: Path) -> None:
    """No layer of a core is done at one time."""
    nodes = [helper.make_node("Conv", [a, "w"], [b], name=b) for a, b in zip("xa", "ay", strict=True)]
    path = save(build(nodes, {"x": SHAPE}, ["y"], {"w": noise(1, 4, 4, 1, 1)}), tmp_path / "net.onnx")
    assert not fresh(claim_of_model(path, CompileOptions(arch="tcpa-4x4", parallel="layers")))
    assert fresh(claim_of_model(path, CompileOptions(arch="tcpa-4x4"))) == {"a.requant"}


def test_values_of_low_degree_are_not() -> None:
    assert not fresh(claim_of_model(SAMPLES / "models" / "mnist.onnx", CompileOptions(batch=1)))


@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_what_compiles_is_proven_with_fresh_words_wherever_they_may_be(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No program that is right reads old words."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cnn_degrees, "MOST", 0)
        compiled_at_random(data, tmp_path_factory.getbasetemp(), proven)
