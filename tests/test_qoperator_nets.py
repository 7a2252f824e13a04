"""Networks that are quantised already (samples/quantise.py): outputs of the binary equal onnxruntime's in every bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import DIGITS, SAMPLES, done, invoke
from frontend_models import run_file

import cnncc.passes._onnx.quantised_layers as quantised_layers
import cnncc.passes.onnx_fold_qdq as fold_qdq

pytestmark = pytest.mark.usefixtures("short_searches")

IMAGES = 100
# onnxruntime may round between the float operators of a QDQ model; of the first one it makes the same bits.
LENETS = ("lenet_qoperator_u8", "lenet_qoperator_s8_pc", "lenet_qoperator_s8_sym", "lenet_qdq_s8_pc")
NETS = (*LENETS, "resnet20_qoperator_u8", "depthwise_qoperator_s8_pc")


def sample(net: str) -> Path:
    return SAMPLES / "models" / f"{net}.onnx"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first images of the test set."""
    path = tmp_path_factory.mktemp("images") / "images.npz"
    with np.load(DIGITS) as digits:
        np.savez(path, input=digits["input"][:IMAGES])
    return path


@pytest.mark.parametrize("net", NETS)
def test_qoperator_binary_gives_the_bits_of_onnxruntime(net: str, images: Path, tmp_path: Path) -> None:
    binary, outputs = tmp_path / "net.cnb", tmp_path / "out.npz"
    compiled = done("compile", sample(net), "--batch", 1, "-o", binary)
    assert "(100.00 %)" in compiled.stdout
    assert " host " not in compiled.stdout
    assert "calibrated" not in compiled.stderr
    done("run", binary, "--input", images, "--output", outputs)
    with np.load(images) as given, np.load(outputs) as got:
        (want,) = run_file(sample(net), {"input": given["input"]})
        assert got["logits"].dtype == want.dtype
        assert np.array_equal(got["logits"].view(np.uint32), want.view(np.uint32))
        assert len(np.unique(want)) > 50, "outputs that are all alike prove nothing"


@pytest.mark.parametrize("net", ["resnet20_qdq_s8_pc", "depthwise_qdq_s8_pc"])
def test_qdq_binary_is_near_onnxruntime(net: str, images: Path, tmp_path: Path) -> None:
    """A step of the outputs' scale here and there, and every class the same."""
    compiled = done("compile", sample(net), "--batch", 1, "-o", tmp_path / "net.cnb")
    assert "(100.00 %)" in compiled.stdout
    assert " host " not in compiled.stdout
    done("run", tmp_path / "net.cnb", "--input", images, "--output", tmp_path / "out.npz")
    with np.load(images) as given, np.load(tmp_path / "out.npz") as got:
        (want,) = run_file(sample(net), {"input": given["input"]})
        step = np.diff(np.unique(want)).min()
        assert np.abs(got["logits"] - want).max() <= 1.01 * step
        assert np.mean(got["logits"] != want) < 0.02
        assert np.array_equal(got["logits"].argmax(axis=1), want.argmax(axis=1))


@pytest.mark.parametrize("net", LENETS)
def test_qoperator_all_levels_agree(net: str, images: Path) -> None:
    lines = done("verify", sample(net), "--batch", 1, "--input", images, "--images", 3).stdout
    assert "1 output as onnxruntime's in every bit" in lines
    assert "steps agree" in lines


def wrong_by(amount: int, right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: right(*args) + np.int32(amount)


def test_qoperator_verify_names_the_step_that_is_wrong(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong bias in the folding exceeds its tolerance; one in the lowering is not onnxruntime's bits."""
    options = ["--batch", 1, "--input", images, "--images", 2]
    with monkeypatch.context() as patch:
        patch.setattr(fold_qdq._Match, "bias", wrong_by(9000, fold_qdq._Match.bias))
        result = invoke("verify", sample("lenet_qdq_s8_pc"), *options)
        assert result.exit_code == 3
        assert "cnncc: step onnx-fold-qdq is wrong: output 'logits' differs by " in result.stderr
    monkeypatch.setattr(quantised_layers, "_bias", wrong_by(200, quantised_layers._bias))
    for net in ("lenet_qdq_s8_pc", "lenet_qoperator_u8"):
        result = invoke("verify", sample(net), *options)
        assert result.exit_code == 3
        assert "cnncc: step onnx-to-cnn is wrong: value 'logits' differs in " in result.stderr


def test_qoperator_samples_are_quantised_lenets() -> None:
    """The weights are those of the float network, to half a step."""
    arrays = {
        t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(SAMPLES / "models" / "lenet.onnx").graph.initializer
    }
    for net in LENETS:
        quantised = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(sample(net)).graph.initializer}
        for layer in ("c1", "c2", "f1", "f2", "f3"):
            codes, scale = quantised[f"{layer}.weight_quantized"], quantised[f"{layer}.weight_scale"]
            steps = scale.reshape(-1, *[1] * (codes.ndim - 1))
            assert np.abs(codes * steps - arrays[f"{layer}.weight"]).max() <= 0.51 * scale.max()
