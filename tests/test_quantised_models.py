"""Models that are quantised already, with whatever may stand around their operators: bytes in and out, float operators
between, one value read in several ways. Each compiled, run from the binary and compared with onnxruntime, bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import frontend_models
import numpy as np
import onnx
import pytest
from cli_cases import done, invoke, noise, refused, save
from frontend_models import run_file
from onnx import TensorProto, helper, numpy_helper
from test_conv_groups import array_file

pytestmark = pytest.mark.usefixtures("short_searches")

node = helper.make_node
MICROSOFT = {"domain": "com.microsoft"}
U8, I8, F32 = TensorProto.UINT8, TensorProto.INT8, TensorProto.FLOAT

# Scales and zero points by name: s… and z… are those of the tensor with that letter.
CONSTANTS: dict[str, Any] = {
    **{"sa": np.float32(0.043), "sb": np.float32(0.07), "sc": np.float32(0.11), "sw": np.float32(0.0123)},
    **{"za": np.uint8(113), "zb": np.uint8(131), "zc": np.uint8(90), "zw": np.int8(-3)},
    **{"ia": np.int8(-15), "ib": np.int8(7), "ic": np.int8(-40)},
    "w": np.random.default_rng(1).integers(-128, 128, (4, 4, 3, 3)).astype(np.int8),
    "bias": np.array([900, -4000, 77, 0], np.int32),
}
CONV = ["w", "sw", "zw"]


def model(
    nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, int], rank: int = 4, **arrays: Any
) -> onnx.ModelProto:
    """inputs: name to (element type, dims); outputs: name to element type."""
    known = CONSTANTS | arrays
    used = [name for each in nodes for name in each.input]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, kind, [None] * rank) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(known[name]), name) for name in dict.fromkeys(used) if name in known],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def feeds(inputs: dict[str, Any], images: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    kinds = {U8: (0, 256, np.uint8), I8: (-128, 128, np.int8)}
    found = {}
    for name, (kind, (_, *dims)) in inputs.items():
        if kind == F32:
            found[name] = (4 * rng.standard_normal((images, *dims))).astype(np.float32)
        else:
            lo, hi, dtype = kinds[kind]
            found[name] = rng.integers(lo, hi, (images, *dims)).astype(dtype)
    return found


def compiled(proto: onnx.ModelProto, inputs: dict[str, Any], folder: Path) -> str:
    """What `compile` prints, after outputs of the binary have been found equal to onnxruntime's; every step agrees."""
    path, data = save(proto, folder / "net.onnx"), feeds(inputs)
    np.savez(folder / "in.npz", **data)
    text = done("compile", path, "-o", folder / "net.cnb").stdout
    done("run", folder / "net.cnb", "--input", folder / "in.npz", "--output", folder / "out.npz")
    images = len(next(iter(data.values())))
    wanted = [run_file(path, {name: array[i : i + 1] for name, array in data.items()}) for i in range(images)]
    with np.load(folder / "out.npz") as got:
        for index, output in enumerate(proto.graph.output):
            want = np.concatenate([each[index] for each in wanted])
            assert got[output.name].dtype == want.dtype
            assert np.array_equal(got[output.name], want), output.name
            assert len(np.unique(want)) > 5
    text = " ".join(text.split())  # lines are folded
    verified = done("verify", path, "--input", folder / "in.npz", "--images", images).stdout
    assert "as onnxruntime's in every bit" in verified
    return text


X = {"x": (U8, (1, 4, 6, 5))}
F = {"x": (F32, (1, 4, 6, 5))}
QUANTISED = node("QuantizeLinear", ["x", "sa", "za"], ["a"], name="quantise")


def conv(x: str, sx: str, zx: str, y: str, sy: str, zy: str, **attributes: Any) -> Any:
    return node("QLinearConv", [x, sx, zx, *CONV, sy, zy, "bias"], [y], name=y, pads=[1, 1, 1, 1], **attributes)


def test_quantised_bytes_in_and_out(tmp_path: Path) -> None:
    nodes = [
        conv("x", "sa", "za", "b", "sb", "zb"),
        node("MaxPool", ["b"], ["y"], kernel_shape=[2, 2], pads=[1, 0, 0, 1]),
    ]
    text = compiled(model(nodes, X, {"y": U8}), X, tmp_path)
    assert " host " not in text


def test_quantised_signed_bytes_in_and_relu_of_codes(tmp_path: Path) -> None:
    inputs = {"x": (I8, (1, 4, 6, 5))}
    nodes = [
        conv("x", "sa", "ia", "b", "sb", "ib"),
        node("Relu", ["b"], ["r"], name="r"),
        node("Clip", ["r", "lo", "hi"], ["y"], name="y"),
    ]
    text = compiled(model(nodes, inputs, {"y": I8}, lo=np.int8(3), hi=np.int8(100)), inputs, tmp_path)
    assert " host " not in text


def test_quantised_float_operator_between(tmp_path: Path) -> None:
    """Bytes go to the host and come back as bytes."""
    nodes = [
        QUANTISED,
        conv("a", "sa", "za", "b", "sb", "zb"),
        node("DequantizeLinear", ["b", "sb", "zb"], ["f"], name="dequantise"),
        node("Sin", ["f"], ["g"], name="sin"),
        node("QuantizeLinear", ["g", "ss", "zc"], ["c"], name="quantise2"),
        conv("c", "ss", "zc", "d", "sb", "zb"),
        node("DequantizeLinear", ["d", "sb", "zb"], ["y"], name="dequantise2"),
    ]
    text = compiled(model(nodes, F, {"y": F32}, ss=np.float32(0.008)), F, tmp_path)
    assert "Sin node 'sin': the array has no such operator" in text
    assert "(100.00 %)" in text


def test_quantised_value_read_in_several_ways(tmp_path: Path) -> None:
    """As bytes by a layer, as bytes by the host, as reals by the host, as reals and as bytes by the user."""
    nodes = [
        QUANTISED,
        conv("a", "sa", "za", "b", "sb", "zb"),
        node("Gather", ["b", "index"], ["g"], name="gather", axis=1),
        node("DequantizeLinear", ["b", "sb", "zb"], ["f"], name="dequantise"),
        node("Cos", ["f"], ["h"], name="cos"),
        node("DequantizeLinear", ["b", "sc", "zc"], ["r"], name="other"),
        node("Gather", ["a", "index"], ["i"], name="input", axis=1),
        conv("b", "sb", "zb", "y", "sc", "zc"),
    ]
    outputs = {"y": U8, "g": U8, "h": F32, "r": F32, "i": U8, "b": U8}
    compiled(model(nodes, F, outputs, index=np.array([2, 0])), F, tmp_path)


def test_quantised_input_of_the_host_alone(tmp_path: Path) -> None:
    inputs = {**X, "u": (I8, (1, 3, 2, 2))}
    nodes = [conv("x", "sa", "za", "y", "sb", "zb"), node("Gather", ["u", "index"], ["v"], name="v", axis=1)]
    compiled(model(nodes, inputs, {"y": U8, "v": I8}, index=np.array([2, 0, 1, 1])), inputs, tmp_path)


def test_quantised_model_whose_host_part_has_constants_to_fold(tmp_path: Path) -> None:
    """One factor for two rounds otherwise: a step of floats, for which `verify` has a tolerance."""
    nodes = [
        conv("x", "sa", "za", "q", "sb", "zb"),
        node("DequantizeLinear", ["q", "sb", "zb"], ["d"], name="d"),
        node("Sin", ["d"], ["s"], name="s"),
        node("Mul", ["s", "three"], ["m"], name="m"),
        node("Div", ["m", "part"], ["y"], name="y"),
    ]
    path = save(model(nodes, X, {"y": F32}, three=np.float32(3), part=np.float32(0.7)), tmp_path / "net.onnx")
    np.savez(tmp_path / "in.npz", **feeds(X))
    assert "every bit" in done("verify", path, "--input", tmp_path / "in.npz", "--images", 5).stdout


def test_quantised_codes_go_to_other_scales(tmp_path: Path) -> None:
    """Relu, pools and reshapes of reals between two scales, signed and unsigned: all on the array."""
    nodes = [
        QUANTISED,
        conv("a", "sa", "za", "b", "sb", "zb"),
        node("DequantizeLinear", ["b", "sb", "zb"], ["f"], name="dequantise"),
        node("Relu", ["f"], ["g"], name="relu"),
        node("MaxPool", ["g"], ["h"], name="pool", kernel_shape=[2, 2]),
        node("Reshape", ["h", "dims"], ["i"], name="reshape"),
        node("QuantizeLinear", ["i", "sc", "ic"], ["y"], name="other"),
    ]
    text = compiled(model(nodes, F, {"y": I8}, dims=np.array([1, 4, 4, 5])), F, tmp_path)
    assert " host " not in text


def test_quantised_codes_between_which_no_multiplier_leads_go_over_the_host(tmp_path: Path) -> None:
    """Of a scale twice as large every second code lies between two; f32 rounds them up and down."""
    nodes = [
        node("QuantizeLinear", ["x", "sd", "zb"], ["a"], name="quantise"),
        node("DequantizeLinear", ["a", "sd", "zb"], ["f"], name="dequantise"),
        node("QuantizeLinear", ["f", "se", "zb"], ["b"], name="other"),
        conv("b", "se", "zb", "y", "sc", "zc"),
    ]
    sd = np.float32(0.0038036474)
    text = compiled(model(nodes, F, {"y": U8}, sd=sd, se=2 * sd), F, tmp_path)
    assert "QuantizeLinear node 'other'" in text


@pytest.mark.parametrize("bound", [1.95, 1.92])
def test_quantised_clip_between_codes(bound: float, tmp_path: Path) -> None:
    """Quantised to other codes a bound must be a code's real number (1.92 = 24 steps), or the host clips."""
    nodes = [
        node("QuantizeLinear", ["x", "sd", "zb"], ["a"], name="quantise"),
        node("DequantizeLinear", ["a", "sd", "zb"], ["f"], name="dequantise"),
        node("Clip", ["f", "lo", "hi"], ["g"], name="clip"),
        node("QuantizeLinear", ["g", "se", "zb"], ["y"], name="other"),
        node("DequantizeLinear", ["a", "sd", "zb"], ["e"], name="dequantise2"),
        node("Clip", ["e", "lo", "hi"], ["h"], name="clip2"),
        node("QuantizeLinear", ["h", "sd", "zb"], ["z"], name="same"),
    ]
    sd = np.float32(0.08)
    arrays = {"lo": np.float32(0), "hi": np.float32(24) * sd if bound < 1.94 else np.float32(bound)}
    proto = model(nodes, F, {"y": U8, "z": U8}, sd=sd, se=np.float32(0.0131), **arrays)
    text = compiled(proto, F, tmp_path)
    assert ("Clip node 'clip': its bounds lie between integers of its input" in text) == (bound == 1.95)
    assert "clip2" not in text


def test_quantised_residual_network(tmp_path: Path) -> None:
    """Both operands of a sum are computed, one of them is read twice; then the mean and a matrix product."""
    nodes = [
        QUANTISED,
        conv("a", "sa", "za", "b", "sb", "zb"),
        conv("b", "sb", "zb", "c", "sc", "zc"),
        node("QLinearAdd", ["c", "sc", "zc", "b", "sb", "zb", "sa", "za"], ["d"], name="d", **MICROSOFT),
        node("QLinearAdd", ["b", "sb", "zb", "d", "sa", "za", "sc", "zc"], ["e"], name="e", **MICROSOFT),
        node("QLinearGlobalAveragePool", ["e", "sc", "zc", "ss", "za"], ["f"], name="f", **MICROSOFT),
        node("Flatten", ["f"], ["g"], name="g"),
        node("QGemm", ["g", "ss", "za", "m", "sm", "zm", "", "sb", "zb"], ["h"], name="h", **MICROSOFT),
        node("DequantizeLinear", ["h", "sb", "zb"], ["y"], name="y"),
    ]
    rng = np.random.default_rng(3)
    arrays = {
        "ss": np.float32(0.023),
        "m": rng.integers(-128, 128, (4, 7)).astype(np.int8),
        "sm": rng.uniform(0.01, 0.03, 7).astype(np.float32),
        "zm": np.zeros(7, np.int8),
    }
    text = compiled(model(nodes, F, {"y": F32}, rank=2, **arrays), F, tmp_path)
    assert " host " not in text


def test_quantised_float_result_of_a_gemm_is_the_hosts(tmp_path: Path) -> None:
    inputs = {"x": (U8, (1, 4))}
    nodes = [node("QGemm", ["x", "sa", "za", "m", "sw", "zw"], ["y"], name="y", **MICROSOFT)]
    m = np.random.default_rng(4).integers(-128, 128, (4, 7)).astype(np.int8)
    path = save(model(nodes, inputs, {"y": F32}, rank=2, m=m), tmp_path / "net.onnx")
    assert "QGemm node 'y': " in done("compile", path, "-o", tmp_path / "net.cnb").stdout


# -- what is refused ---------------------------------------------------------------------------------------------------


def narrow(folder: Path, **values: int) -> Path:
    """An array file like spatial-4x4 with other numbers."""
    text = done("arch", "show", "spatial-4x4").stdout
    for name, value in values.items():
        lines = [f"{name} = {value}" if line.startswith(f"{name} =") else line for line in text.splitlines()]
        text = "\n".join(lines) + "\n"
    (folder / "narrow.toml").write_text(text)
    return folder / "narrow.toml"


def test_quantised_psum_that_may_overflow_is_refused(tmp_path: Path) -> None:
    """Channel 2 has the largest weights; zero points count: |x - 113| is at most 142."""
    w = np.full((4, 4, 3, 3), 20, np.int8)
    w[2] = 127
    need = 4 * 9 * 130 * 142 + 77
    path = save(model([conv("x", "sa", "za", "y", "sb", "zb")], X, {"y": U8}, w=w), tmp_path / "net.onnx")
    message = refused("compile", path, "--arch", narrow(tmp_path, psum_bits=20), "-o", tmp_path / "net.cnb")
    assert f"'y': the sums of channel 2 may reach {need}, psums of 20 bits hold 524287" in message


def test_quantised_weights_must_fit_operands(tmp_path: Path) -> None:
    """126 + 3 is no byte."""
    w = np.zeros((4, 4, 3, 3), np.int8)
    w[1, 2, 0, 1] = 126
    path = save(model([conv("x", "sa", "za", "y", "sb", "zb")], X, {"y": U8}, w=w), tmp_path / "net.onnx")
    message = refused("compile", path, "--precision", "int8", "-o", tmp_path / "net.cnb")
    assert "'y': weights of channel 1 less their zero point exceed -128..127: use wider operands" in message


def test_quantised_input_of_another_type_is_refused(tmp_path: Path) -> None:
    path = save(model([conv("x", "sa", "za", "y", "sb", "zb")], X, {"y": U8}), tmp_path / "net.onnx")
    done("compile", path, "-o", tmp_path / "net.cnb")
    for dtype in (np.int8, np.float32, np.int64):
        np.savez(tmp_path / "in.npz", x=np.zeros((1, 4, 6, 5), dtype))
        message = refused("run", tmp_path / "net.cnb", "--input", tmp_path / "in.npz")
        assert f"input 'x' has type {np.dtype(dtype)}, expected uint8" in message
    done("run", tmp_path / "net.cnb")


@pytest.mark.parametrize(("op_type", "count"), [("QLinearAdd", 3), ("QLinearAdd", 5), ("QGemm", 2), ("QGemm", 5)])
def test_quantised_operator_with_too_few_inputs_is_no_crash(op_type: str, count: int, tmp_path: Path) -> None:
    """ONNX's checker does not know these operators."""
    inputs = ["x", "sa", "za", "x", "sa", "za"][:count]
    nodes = [node(op_type, inputs, ["b"], name="odd", **MICROSOFT), conv("x", "sa", "za", "y", "sb", "zb")]
    path = save(model(nodes, X, {"y": U8, "b": U8}), tmp_path / "net.onnx")
    result = invoke("compile", path, "-o", tmp_path / "net.cnb")
    assert result.exit_code in (0, 1)
    assert "Traceback" not in result.stderr + result.stdout
    assert f"{op_type} node 'odd'" in result.stdout or result.stderr.startswith("cnncc: ")


def test_quantised_model_that_onnxruntime_cannot_run_is_refused(tmp_path: Path) -> None:
    """Nothing needs calibration, and ONNX's checker does not know the operator: a scale must be one number."""
    nodes = [node("QLinearAdd", ["x", "ss", "za", "x", "sa", "za", "sb", "zb"], ["y"], name="odd", **MICROSOFT)]
    path = save(model(nodes, X, {"y": U8}, ss=np.ones(4, np.float32)), tmp_path / "net.onnx")
    assert "(odd)" in refused("compile", path, "-o", tmp_path / "net.cnb")


@pytest.mark.parametrize("value", ["an input", "a result"])
def test_what_the_host_reads_by_two_scales_stays_in_the_glb(value: str, tmp_path: Path) -> None:
    """As codes and as reals: DRAM has it by the first, and gets it by the second from the GLB."""
    if value == "an input":
        outputs, nodes = "", "b = Identity (a) e = Identity (r)"
    else:
        outputs, nodes = "float[2,4,9,9] h,", "c = Conv (r, v) b = QuantizeLinear (c, s, z)"
        nodes += "e = DequantizeLinear (b, s, z) h = Sin (e)"
    text = f"""
        g (float[2,4,9,9] x) => ({outputs} float[2,1,9,9] y, uint8[2,2,9,9] part) {{
            a = QuantizeLinear (x, s, z)
            r = DequantizeLinear (a, s, z)
            {nodes}
            f = Conv (e, w)
            q = QuantizeLinear (f, s, z)
            y = DequantizeLinear (q, s, z)
            part = Slice (b, one, three, one)
        }}
    """
    arrays = {"s": np.float32(0.03), "z": np.uint8(100), "one": np.array([1]), "three": np.array([3])}
    weights = {"w": noise(1, 1, 4, 1, 1), "v": noise(2, 4, 4, 1, 1)}
    path = save(frontend_models.model(text, **arrays, **weights), tmp_path / "net.onnx")
    np.savez(tmp_path / "in.npz", x=noise(3, 2, 4, 9, 9))
    arch = array_file(tmp_path, "4x4", glb_words=750)  # the values and what layers need are more
    assert "steps agree" in done("verify", path, "--arch", arch, "--input", tmp_path / "in.npz").stdout
