"""Networks on C-Brain's array: adaptive ones from ONNX, with values, cycles and proofs; pools behind every scheme."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cbrain_programs import mapped
from cli_cases import build, done, noise, save
from examples import examples
from networks import SAMPLES
from onnx import helper

from cnncc.arch.model import arch_text, load_arch
from cnncc.cbrain.schemes import CBrain
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.eval import cnn, isa
from cnncc.passes._scheduling.dataflows import TEXTS

pytestmark = pytest.mark.usefixtures("short_searches")
ARCH = "cbrain-16-16"
SCHEMES = [name for name in TEXTS if name.startswith("int")]


POOLS = "pools"
SAMPLE_SIZES = {"light-alexnet": 67, "nin": 55, "light-inception-v1": 224}
NAMES = [POOLS, *SAMPLE_SIZES]
"""The first one is always tested. The others take minutes: CNNCC_EXAMPLES=4."""


def outputs(binary: Path, model: Path, *options: str) -> bytes:
    """What a model gives for seeded noise, compiled to this binary."""
    done("compile", model, "--arch", ARCH, *options, "-o", binary)
    done("run", binary, "--output", binary.with_suffix(".npz"))
    return binary.with_suffix(".npz").read_bytes()


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pools of three kinds between convolutions: of few maps, of more than T_in, and of windows that do not overlap.

    Beside the model lies `tight.toml`: the array with a global buffer that holds no whole value.
    """
    folder = tmp_path_factory.mktemp("pooled")
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "c1", pads=[3, 3, 2, 2], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"], "r1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], "p1", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        helper.make_node("Conv", ["p1", "w2"], ["c2"], "c2", pads=[1, 1, 1, 1]),
        helper.make_node("AveragePool", ["c2"], ["p2"], "p2", kernel_shape=[2, 3], pads=[0, 1, 0, 1]),
        helper.make_node("Conv", ["p2", "w3"], ["c3"], "c3", strides=[2, 2]),
        helper.make_node("MaxPool", ["c3"], ["y"], "y", kernel_shape=[1, 2]),
    ]
    weights = {"w1": noise(1, 20, 3, 7, 7), "w2": noise(2, 18, 20, 3, 3), "w3": noise(3, 17, 18, 2, 2)}
    save(build(nodes, {"x": (1, 3, 37, 29)}, ["y"], weights), folder / "net.onnx")
    text = arch_text(load_arch(ARCH))
    (folder / "tight.toml").write_text(text.replace(f"words = {load_arch(ARCH).glb.words}", "words = 6000"))
    return folder


@pytest.mark.parametrize("name", NAMES[: examples(1)])
def test_cbrain_networks_from_onnx(name: str, pooled: Path, tmp_path: Path) -> None:
    """Outputs are those of output stationary mappings, all counters as predicted, and the program is proven."""
    model, binary = pooled / "net.onnx", tmp_path / "adaptive.cnb"
    if name != POOLS:
        model = tmp_path / "net.onnx"
        SAMPLES[name].build(SAMPLE_SIZES[name]).write(model, 0)
    adaptive = outputs(binary, model, "--partition", "auto")
    assert outputs(tmp_path / "os.cnb", model, "--dataflow", "os") == adaptive
    assert "counters are as predicted" in done("estimate", binary, "--check-counters").stdout
    proof = done("verify", binary, "--model", model, "--partition", "auto", "--prove", "--error", "2^-50").stdout
    assert ".cut" in proof and "proven for all inputs and all weights" in proof


def test_cbrain_sample_maps_a_network_twice(pooled: Path) -> None:
    """The line of `cbrain.py --programs onnx`; a network whose programs give unlike outputs has none."""
    found = mapped(pooled / "net.onnx", CBrain(16, 16))
    assert (found.network, found.width) == ("net", "16-16") and found.error_bits >= 50
    assert 0 < found.adaptive != found.stationary > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cbrain_programs.same", lambda *_: False)
        with pytest.raises(Refusal, match="gives other outputs with output stationary mappings"):
            mapped(pooled / "net.onnx", CBrain(16, 16))


@pytest.mark.parametrize("arch", [ARCH, "tight.toml"])
def test_cbrain_pools_behind_every_scheme(arch: str, pooled: Path) -> None:
    """All programs compute what plain loops do, before and after kernels are partitioned."""
    array = str(pooled / arch) if arch.endswith("toml") else arch
    x = np.random.default_rng(0).integers(-2000, 2000, (1, 3, 37, 29), np.int16)
    whole = None
    for scheme, parts in [*((name, None) for name in SCHEMES), (None, "auto"), ("intra", "c1,c2,c3")]:
        options = CompileOptions(array, dataflow=scheme, partition=parts, groups="none")
        compilation = start_compilation(pooled / "net.onnx", options)
        compilation.run("cnn")
        expected = cnn.evaluate(compilation.module, compilation.ctx.weights, [x])[0][0]
        whole = expected if whole is None else whole
        compilation.run()
        found = isa.evaluate(compilation.module, compilation.ctx.weights, compilation.settings.arch, [x])[0][0]
        assert np.array_equal(whole, expected) and np.array_equal(found, expected), (scheme, parts)
