"""Models of f16 are those of f32 with the same values, and compute what onnxruntime computes of them in f16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from cli_cases import done, noise, save
from frontend_models import model, run_file, saved
from onnx import numpy_helper
from test_input_shapes import members

from cnncc.api import CompileOptions, compile_model, run
from cnncc.errors import Refusal
from cnncc.frontend import load_onnx
from cnncc.util.progress import silent

pytestmark = pytest.mark.usefixtures("short_searches")

NET = """
    g (float16[N, 3, 8, 8] x) => (float16[N, 4, 4, 4] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        r = Relu (c)
        y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    }
"""
# Every place that a type or a constant may have: a branch, a function, an attribute, a sequence, casts.
PLACES = """
    <ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
        h = Cast <to = 10> (x)
        c = Conv <pads = [1, 1, 1, 1]> (h, w)
        i = If (yes) <
            then_branch = b1 () => (float16[1, 4, 8, 8] o1) {
                three = Constant <value = float[1] {3.0}> ()
                m = Mul (c, three)
                r = Cast <to = 10> (m)
                o1 = Mul (r, three)
            },
            else_branch = b2 () => (float16[1, 4, 8, 8] o2) { o2 = Identity (c) }
        >
        s = SequenceConstruct (i, two)
        at = Constant <value = int64[1] {0}> ()
        t = SequenceAt (s, at)
        d = own.halved (t)
        y = Cast <to = 1> (d)
    }
    <domain: "own", opset_import: ["": 17]>
    halved (v) => (z) {
        half = Constant <value = float[1] {0.5}> ()
        p = Mul (v, half)
        q = Cast <to = 10> (p)
        z = Mul (q, half)
    }
"""


def weights(dtype: str) -> dict[str, np.ndarray]:
    """The weights and the bias of NET, rounded to f16, with this type."""
    return {"w": noise(1, 4, 3, 3, 3).astype("f2").astype(dtype), "b": noise(2, 4).astype("f2").astype(dtype)}


def test_a_model_of_f16_gives_the_binary_of_f32(tmp_path: Path) -> None:
    binaries, said = [], []
    for dtype, text in (("f2", NET), ("f4", NET.replace("float16", "float"))):
        path = saved(model(text, **weights(dtype)), tmp_path)
        said.append(done("compile", path, "-o", path.with_suffix(".cnb")).stderr.splitlines())
        binaries.append(members(path.with_suffix(".cnb")))
    assert binaries[0] == binaries[1]
    note = "cnncc: note: model: f16 is taken as f32, which has all its values"
    assert [line for line in said[0] if line not in said[1]] == [note]


def test_f16_is_f32_in_every_place(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(PLACES)
    arrays = {"w": weights("f2")["w"], "two": np.array([2], "f2"), "yes": np.array(True)}
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    branch = next(node.attribute[0].g for node in proto.graph.node if node.op_type == "If")
    for constant in (branch.node[0], proto.functions[0].node[0]):  # the text syntax has no constants of f16
        tensor = constant.attribute[0].t
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("f2")))
    path, images = save(proto, tmp_path / "places.onnx"), {"x": noise(3, 1, 3, 8, 8)}
    (expected,) = run_file(path, images)
    outputs = run(compile_model(path, CompileOptions("spatial-4x4"), images, remark=silent), images)
    assert np.abs(outputs["y"] - expected).max() < 4e-3 * np.abs(expected).max()
    assert "16" not in done("opt", path).stdout


def test_a_model_of_f16_has_the_size_limit_of_its_f32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(model(NET, **weights("f2")), tmp_path)
    monkeypatch.setattr(load_onnx, "SIZE_LIMIT_BYTES", path.stat().st_size + 100)
    with pytest.raises(Refusal, match="bytes with f32 in place of f16, the limit is 2 GiB"):
        load_onnx.load_onnx(path)
