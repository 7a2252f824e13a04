"""The trained networks of real topologies (residual, depthwise), from file to binary: exact, near the floats, right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_cases import done

from cnncc.binary.isa_module import build_binary
from cnncc.binary.run import run
from cnncc.driver.array_share import ArrayShare
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.eval.cnn import dequantise_outputs, evaluate, quantise_inputs
from cnncc.frontend.load_onnx import load_onnx
from cnncc.frontend.run_onnx import OnnxSession

pytestmark = pytest.mark.usefixtures("short_searches")

SAMPLES = Path(__file__).parents[1] / "samples"
CALIBRATION = SAMPLES / "inputs" / "digits_calibration.npz"
MACS = {"depthwise": 3_993_088, "resnet20": 31_021_952}
IMAGES, ON_ARRAY = 40, 3


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    with np.load(SAMPLES / "inputs" / "digits_test.npz") as test:
        return test["input"][:IMAGES], test["label"][:IMAGES]


@pytest.mark.parametrize("net", MACS)
@pytest.mark.parametrize(("precision", "decibels"), [("int16", 65), ("int8", 25)])
def test_samples_digits_run_exactly(net: str, precision: str, decibels: float, digits) -> None:
    images, labels = digits
    model = SAMPLES / "models" / f"{net}.onnx"
    compilation, report = (
        start_compilation(model, CompileOptions("spatial-8x8", precision=precision, calibrate=CALIBRATION, batch=1)),
        ArrayShare(),
    )
    compilation.run("cnn", [report])
    module, weights = compilation.module, compilation.ctx.weights
    integers, _ = evaluate(module, weights, quantise_inputs(module, {"input": images}))
    logits = dequantise_outputs(module, integers)["logits"]

    compilation.run()
    binary = build_binary(module, weights, compilation.settings.arch)
    assert np.array_equal(run(binary, {"input": images[:ON_ARRAY]})["logits"], logits[:ON_ARRAY])

    floats = np.asarray(OnnxSession(load_onnx(model, batch=len(images))).run({"input": images})[0])
    assert 10 * np.log10(np.square(floats).sum() / np.square(floats - logits).sum()) > decibels
    assert (logits.argmax(axis=1) == labels).mean() >= 0.97
    assert (report.macs, report.all_macs, report.hosted) == (MACS[net], MACS[net], [])


def test_samples_digits_verify_depthwise() -> None:
    model = SAMPLES / "models" / "depthwise.onnx"
    data = SAMPLES / "inputs" / "digits_test.npz"
    lines = done("verify", model, "--batch", 1, "--calibrate", CALIBRATION, "--input", data, "--images", 1).stdout
    assert "steps agree" in lines and "top-1 agreement 100.0 %" in lines
