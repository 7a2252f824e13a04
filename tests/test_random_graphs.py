"""Random networks on random arrays: whatever compiles computes the same on every level; whatever does not is refused.

Of a failure the smallest example is kept: the message says where, and how to run it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from broken_models import broken_models
from cli_cases import done, invoke, snapshot
from drawn import arrays, networks, quantised_networks
from examples import examples
from frontend_models import run_file
from fuzz import BETWEEN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_arrays import as_toml
from random_graphs import Network

from cnncc.arch.model import load_arch
from cnncc.binary.container import from_bytes, to_bytes
from cnncc.binary.isa_module import build_binary
from cnncc.binary.run import run
from cnncc.driver.pipeline import Compilation, Settings, import_model
from cnncc.driver.verify import Verifier
from cnncc.errors import Refusal
from cnncc.passes._scheduling.glb_words import GlbTooSmall

pytestmark = pytest.mark.usefixtures("short_searches")

MOST_ELEMENTS = 1 << 16  # of a model that is run
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
LEAST_DB = 30  # of 16-bit operands, where sums have 32 bits
DEGENERATE = 1e-3  # an output that is so much smaller than what it is made of
REFUSALS = ("glb.words = ", "pe.", "psum", "weights of channel", "unsigned codes kept in 8 bits", "is the same as")


class Kept:
    """Writes an example that fails beside the test's other files; the last one that fails is the smallest."""

    def __init__(self, folder: Path, net: Network, array: dict[str, Any], precision: str) -> None:
        self.folder, self.precision = folder, precision
        folder.mkdir(exist_ok=True)
        self.model, self.arch, self.input = folder / "net.onnx", folder / "array.toml", folder / "input.npz"
        self.model.write_bytes(net.model.SerializeToString())
        self.arch.write_text(as_toml(array))
        np.savez(self.input, **net.feeds)

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            command = f"cnncc verify {self.model} --arch {self.arch} --precision {self.precision} --input {self.input}"
            error.add_note(f"{command} --calibrate {self.input} --images 99")


def compiled(kept: Kept, net: Network) -> tuple[Compilation, Verifier]:
    """The compilation after its last step, every level verified. Raises Refusal."""
    arch = load_arch(str(kept.arch))
    bits = int(kept.precision.removeprefix("int"))
    compilation = import_model(kept.model, None, Settings(arch, str(kept.arch), bits, net.feeds))
    verifier = Verifier(compilation, net.feeds)
    try:
        compilation.run("isa", [lambda step, module: None if step.name in BETWEEN else verifier(step, module)])
    finally:
        assert not (wrong := [check for check in verifier.checks if not check.agrees]), wrong
    return compilation, verifier


def check_accuracy(net: Network, verifier: Verifier, wanted: dict[str, np.ndarray], psum_bits: int) -> None:
    """Models that are quantised already are equal; others near, where words and sums have the bits for it."""
    assert not (net.exact and verifier.accuracy)
    assert not verifier.beyond_noise, verifier.beyond_noise
    if verifier.compilation.settings.operand_bits < 16 or psum_bits < 32:
        return
    for each in verifier.accuracy:
        spread = float(np.abs(wanted[each.output]).max())
        assert each.sqnr_db > LEAST_DB or spread < DEGENERATE, each


def reference(path: Path, net: Network) -> dict[str, np.ndarray]:
    """The outputs by onnxruntime, batch by batch."""
    dims = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in net.model.graph.input]
    batch, images = dims[0][0], len(next(iter(net.feeds.values())))
    runs = [
        run_file(path, {name: array[at : at + batch] for name, array in net.feeds.items()})
        for at in range(0, images, batch)
    ]
    names = [value.name for value in net.model.graph.output]
    return {name: np.concatenate([each[i] for each in runs]) for i, name in enumerate(names)}


def check_everything(folder: Path, net: Network, array: dict[str, Any], precision: str) -> None:
    """Compile; where the GLB is too small, take the size that the refusal names until it does."""
    for _ in range(20):
        with Kept(folder, net, array, precision) as kept:
            wanted = reference(kept.model, net)
            try:
                compilation, verifier = compiled(kept, net)
            except GlbTooSmall as refusal:
                needed, message = refusal.words, str(refusal)
            except Refusal as refusal:
                assert all(
                    any(limit in line for limit in REFUSALS) for line in refusal.lines[-len(refusal.findings) :]
                ), refusal.lines
                assert all(finding.where or "'" in str(refusal) for finding in refusal.findings), refusal.findings
                return
            else:
                module, store, arch = compilation.module, compilation.ctx.weights, compilation.settings.arch
                got = run(from_bytes(to_bytes(build_binary(module, store, arch))), net.feeds)
                check_accuracy(net, verifier, wanted, array["psum_bits"])
                check_outputs(net, verifier, wanted, got)
                return
            assert needed > array["glb"]["words"], message
            array = {**array, "glb": {**array["glb"], "words": needed}}
    raise AssertionError("the sizes that the refusals name never do")


def check_outputs(net: Network, verifier: Verifier, wanted: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> None:
    """The binary's outputs are onnxruntime's of a quantised model, and as near as the verifier says of a float one."""
    assert list(got) == list(wanted)
    for name, want in wanted.items():
        assert got[name].shape == want.shape and got[name].dtype == want.dtype
        if net.exact:
            assert np.array_equal(got[name], want), name
    for each in verifier.accuracy:
        error = float(np.abs(got[each.output].astype(np.float64) - wanted[each.output]).max())
        assert math.isclose(error, each.max_error, rel_tol=1e-3, abs_tol=1e-5), each


@st.composite
def precisions(draw: Any, array: dict[str, Any]) -> str:
    return draw(st.sampled_from(["int16", "int16", "int8"])) if array["operand_bits"] == 16 else "int8"


@settings(max_examples=examples(8), suppress_health_check=SLOW)
@given(data=st.data())
def test_random_float_networks(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    net, array = data.draw(networks()), data.draw(arrays())
    check_everything(tmp_path_factory.getbasetemp() / "float", net, array, data.draw(precisions(array)))


@settings(max_examples=examples(8), suppress_health_check=SLOW)
@given(data=st.data())
def test_random_quantised_networks(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    net, array = data.draw(quantised_networks()), data.draw(arrays())
    check_everything(tmp_path_factory.getbasetemp() / "quantised", net, array, data.draw(precisions(array)))


# -- what is no legal model --------------------------------------------------------------------------------------------


def names_of(model: onnx.ModelProto) -> set[str]:
    """The names of nodes and values, and the operators."""
    graph = model.graph
    named = [*graph.node, *graph.input, *graph.output, *graph.initializer]
    inner = [name for node in graph.node for name in (*node.input, *node.output, node.op_type)]
    return {name for name in (*(each.name for each in named), *inner) if name}


def elements(model: onnx.ModelProto) -> int:
    """Of all inputs."""
    return sum(math.prod(dim.dim_value for dim in each.type.tensor_type.shape.dim) for each in model.graph.input)


def check_refusal(folder: Path, model: onnx.ModelProto) -> None:
    """`check` and `compile` agree; a refusal names something of the model and leaves nothing behind."""
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    before = snapshot(folder)
    checked = invoke("check", path, "--json", "--arch", "spatial-4x4")
    result = invoke("compile", path, "-o", folder / "net.cnb", "--arch", "spatial-4x4")
    for each in (checked, result):
        assert each.exit_code in (0, 1), each.stderr
        assert "Traceback" not in each.stderr + each.stdout
    assert checked.exit_code == result.exit_code, (checked.stdout, result.stderr)
    if result.exit_code == 0 and elements(model) < MOST_ELEMENTS:
        done("verify", path, "--images", 1, "--arch", "spatial-4x4")
    if result.exit_code == 0:
        (folder / "net.cnb").unlink()
        return
    assert snapshot(folder) == before
    assert result.stderr.startswith("cnncc: ")
    blocking = [each for each in json.loads(checked.stdout)["findings"] if each["severity"] == "blocking"]
    named = [each["where"] + each["what"] for each in blocking]
    assert blocking and all(named), blocking
    assert any(name in text for text in named for name in names_of(model)) or is_of_the_whole(named), named


WHOLE = ("no inputs", "no outputs", "no nodes", "ir_version", "IR version", "opset", "graph", "non-empty", "tensor ''")


def is_of_the_whole(named: list[str]) -> bool:
    """Is what is wrong a matter of the file, or of a tensor without a name, not of a node or tensor that has one?"""
    return any(what in text for text in named for what in WHOLE)


@settings(max_examples=examples(20), suppress_health_check=SLOW)
@given(model=broken_models())
def test_random_broken_models(tmp_path_factory: pytest.TempPathFactory, model: onnx.ModelProto) -> None:
    folder = tmp_path_factory.getbasetemp() / "broken"
    folder.mkdir(exist_ok=True)
    try:
        check_refusal(folder, model)
    except Exception as error:
        error.add_note(f"CNNCC_TRACEBACK=1 cnncc compile {folder / 'net.onnx'} --arch spatial-4x4")
        raise
