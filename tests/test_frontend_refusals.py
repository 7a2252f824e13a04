"""What is wrong with a file is one clear line, whatever the ONNX library makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import done, refused
from frontend_models import DATA, context, model, saved
from onnx import TensorProto, helper, version_converter

from cnncc.errors import Refusal
from cnncc.eval.onnx import evaluate
from cnncc.frontend.import_onnx import import_onnx
from cnncc.frontend.load_onnx import SIZE_LIMIT_BYTES, load_onnx


def refusal(path: Path, batch: int | None = None) -> str:
    with pytest.raises(Refusal) as raised:
        import_onnx(path, context(), batch)
    message = str(raised.value)
    assert message.startswith(str(path)) and "\n" not in message
    return "\n".join(raised.value.lines)


def refused_model(proto: onnx.ModelProto, folder: Path, batch: int | None = None) -> str:
    return refusal(saved(proto, folder), batch)


RELU = "g (float[3] x) => (float[3] y) { y = Relu(x) }"


def test_frontend_refuses_files_that_are_no_models(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "none.onnx")
    assert "cannot be read: Is a directory" in refusal(tmp_path)
    for name, content in {"empty": b"", "text": b"# a model, one would think\n", "zeros": bytes(100)}.items():
        file = tmp_path / name
        file.write_bytes(content)
        assert "not an ONNX model" in refusal(file)
    assert "is IR, not an ONNX model: give the model; cnncc compile --from" in refusal(tmp_path / "dump.mlir")


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_frontend_refuses_truncated_files(share: float, tmp_path: Path) -> None:
    content = (DATA / "lenet.onnx").read_bytes()
    file = tmp_path / "short.onnx"
    file.write_bytes(content[: int(len(content) * share)])
    assert "not an ONNX model, or truncated" in refusal(file, 1)


def test_frontend_refuses_damaged_files_or_reads_them(tmp_path: Path) -> None:
    """Flipped bytes give a Refusal or a module, never another exception."""
    content = saved(model("g (float[2, 7] x) => (float[2, 5] y) { y = MatMul(x, w) }", w=np.ones((7, 5))), tmp_path)
    data, rng = content.read_bytes(), np.random.default_rng(6)
    for _ in range(500):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 3):
            damaged[place] = rng.integers(256)
        file = tmp_path / "damaged.onnx"
        file.write_bytes(damaged)
        try:
            import_onnx(file, context())
        except Refusal as error:
            assert "\n" not in str(error)


def test_frontend_refuses_invalid_models(tmp_path: Path) -> None:
    proto = model(RELU)
    proto.graph.node[0].op_type = "NoSuchOperator"
    assert "not a valid ONNX model" in refused_model(proto, tmp_path)
    proto = model("g (float[3, 5] x) => (float[3, 5] y) { y = MatMul(x, x) }")
    assert "shapes do not fit together" in refused_model(proto, tmp_path)
    proto = model("g (float[3] x) => (float[3] y) { y = Relu(z) }")
    assert "not a valid ONNX model" in refused_model(proto, tmp_path)


def test_frontend_refuses_symbolic_shapes(tmp_path: Path) -> None:
    text = "g (float[N, 3, H] x) => (float[N, 3, H] y) { y = Relu(x) }"
    assert "input 'x': dim 2 is symbolic ('H'): give its size, for example --shape x=1,3,224" in refused_model(
        model(text), tmp_path
    )
    assert "input 'x': dim 2 is symbolic ('H'): give its size, for example --shape x=2,3,224" in refused_model(
        model(text), tmp_path, 2
    )
    assert "batch 0, expected 1 to " in refused_model(model(text), tmp_path, 0)
    assert "input 'x' has the fixed leading size 3, not batch 2" in refused_model(model(RELU), tmp_path, 2)


@pytest.mark.parametrize(
    "shape, batch, elements, remedy",
    [
        ("N, 3", 1 << 31, 3 << 31, "a batch of at most 44,739,242"),  # a third of the limit
        ("N", 1 << 31, 1 << 31, "a batch of at most 134,217,728"),
        ("N", (1 << 27) + 1, (1 << 27) + 1, "a batch of at most 134,217,728"),
        ("N, 65536, 65536", 2, 1 << 33, "a smaller image"),
        ("1, 65536, 65536", None, 1 << 32, "a smaller image"),
    ],
)
def test_frontend_refuses_inputs_that_no_memory_holds(
    shape: str, batch: int | None, elements: int, remedy: str, tmp_path: Path
) -> None:
    message = f"input 'x': elements {elements:,}, the limit is 134,217,728: {remedy}"
    proto = model(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Relu(x) }}")
    assert message in refused_model(proto, tmp_path, batch)


def test_frontend_names_a_batch_that_fits_all_values(tmp_path: Path) -> None:
    """A value inside has four times the elements of the input: what the message offers is taken."""
    text = "g (float[N, 1, 4, 4] x) => (float[N, 4, 4, 4] y) { y = Concat <axis = 1> (x, x, x, x) }"
    message = refused_model(model(text), tmp_path, 1 << 22)
    assert "value 'y': elements 268,435,456, the limit is 134,217,728: a batch of at most 2,097,152" in message
    assert load_onnx(saved(model(text), tmp_path), 1 << 21)
    assert "at most 2,097,152" in refused_model(model(text), tmp_path, (1 << 21) + 1)


@pytest.mark.parametrize("place", ["input", "value_info"])
def test_frontend_names_the_value_of_an_unknown_element_type(place: str, tmp_path: Path) -> None:
    proto = model("g (float[3] u, float[3] x) => (float[3] y) <float[3] u> { y = Relu(x) }")
    getattr(proto.graph, place)[0].type.tensor_type.elem_type = 77
    del (proto.graph.value_info if place == "input" else proto.graph.input)[0]
    assert "value 'u': unknown element type 77" in refused_model(proto, tmp_path)


@pytest.mark.parametrize("kind", ["initializer", "constant"])
@pytest.mark.parametrize(
    "values, message", [([0, np.nan], "contains NaN"), (np.nan, "contains NaN"), ([np.inf, 0], "contains infinities")]
)
def test_frontend_refuses_weights_that_are_not_finite(values, message: str, kind: str, tmp_path: Path) -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Add(x, w1) }", w1=np.float32(values))
    if kind == "constant":
        proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w1"], value=proto.graph.initializer[0]))
        del proto.graph.initializer[:]
    assert f"{kind} 'w1' {message}" in refused_model(proto, tmp_path)


def test_frontend_takes_an_infinite_bound(tmp_path: Path) -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Min(x, b) }", b=np.float32(np.inf))
    import_onnx(saved(proto, tmp_path), context())


def external(folder: Path, **entries: str) -> onnx.ModelProto:
    proto = model("g (float[3] x) => (float[3] y) { y = Add(x, w) }")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    proto.graph.initializer.append(tensor)
    return proto


def test_frontend_refuses_external_data_outside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(12))
    (folder / "link.bin").symlink_to(secret)
    (folder / "w.bin").write_bytes(bytes(12))
    import_onnx(saved(external(folder, location="w.bin"), folder), context())
    for location in ("../secret.bin", str(secret), "link.bin", "sub/../../secret.bin", "", str(folder / "w.bin")):
        assert "not inside the model's own folder" in refused_model(external(folder, location=location), folder)


def test_frontend_refuses_external_data_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(12))
    assert "No such file" in refused_model(external(tmp_path, location="v.bin"), tmp_path)
    assert "Is a directory" in refused_model(external(tmp_path, location="."), tmp_path)
    wrong = {"bytes 4 to 16 of a file of 12": ("4", "12"), "bytes -4 to 8": ("-4", "12"), "not a number": ("x", "12")}
    for message, (offset, length) in wrong.items():
        proto = external(tmp_path, location="w.bin", offset=offset, length=length)
        assert message in refused_model(proto, tmp_path)
    proto = external(tmp_path, location="w.bin", offset="4", length="8")
    assert "8 bytes) is too small" in refused_model(proto, tmp_path)


def test_frontend_refuses_files_over_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "huge.onnx"
    with file.open("wb") as stream:
        stream.truncate(SIZE_LIMIT_BYTES + 1)  # sparse: takes no space
    assert "the limit is 2 GiB" in refusal(file)


def test_frontend_refuses_a_sparse_initializer_that_explodes(tmp_path: Path) -> None:
    shape = [1 << 20, 1 << 20]
    proto = model("g (float[1] x) => (float[1] y) { y = Relu(x) }")
    values = onnx.numpy_helper.from_array(np.float32([1]), "w")
    indices = onnx.numpy_helper.from_array(np.int64([5]), "i")
    proto.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=shape))
    assert "initializer 'w': 1099511627776 elements, the limit is 268435456" in refused_model(proto, tmp_path)


def test_frontend_evaluation_refuses_wrong_inputs(tmp_path: Path) -> None:
    ctx = context()
    module = import_onnx(saved(model(RELU), tmp_path), ctx)
    x = np.ones(3, np.float32)
    wrong = {
        "input 'x' is missing": {},
        "'z' is not an input of the graph: it has x": {"x": x, "z": x},
        "input 'x' has shape [2], expected [3]": {"x": x[:2]},
        "input 'x' has type float64, expected float32": {"x": x.astype(np.float64)},
    }
    for message, inputs in wrong.items():
        with pytest.raises(Refusal) as error:
            evaluate(module, ctx.weights, inputs)
        assert str(error.value) == message


def test_frontend_names_values_without_type(tmp_path: Path) -> None:
    for values, name in (("input", "input 'x'"), ("output", "output 'y'")):
        proto = model(RELU)
        getattr(proto.graph, values)[0].ClearField("type")
        assert f"not a valid ONNX model: {name}: Field 'type'" in refused_model(proto, tmp_path)
    proto = model("g (float[3] x) => (float[3] y) { y = Add(x, w) }", w=np.ones(3, np.float32))
    proto.graph.initializer[0].raw_data = bytes(11)
    assert "tensor 'w': " in refused_model(proto, tmp_path)


def test_frontend_names_attributes_that_an_operator_of_onnxruntime_has_not(tmp_path: Path) -> None:
    proto = onnx.load(Path(__file__).parents[1] / "samples/models/resnet20_qoperator_u8.onnx")
    node = next(node for node in proto.graph.node if node.op_type == "QLinearAdd")
    node.attribute.append(helper.make_attribute("axis", 1))
    assert f"QLinearAdd node '{node.name}': there is no attribute 'axis'" in refused_model(proto, tmp_path)


INTEGERS: dict[str, Any] = {
    **{"s": np.float32(0.1), "s1": np.float32([0.1]), "s4": np.full(4, 0.1, np.float32)},
    **{"z": np.uint8(3), "z1": np.uint8([3]), "v": np.int8(0), "v1": np.int8([0])},
    **{"w": np.ones((3, 4), np.int8), "f": np.ones((4, 3, 1, 1), np.int8), "b": np.ones((1, 4), np.int32)},
    **{"b1": np.ones(1, np.int32), "c": np.ones((1, 1, 4), np.int32)},
}
SUM = "g (uint8[1, 3] x, uint8[1, 3] a) => (uint8[1, 3] y) { y = com.microsoft.QLinearAdd (x, %s, %s, a, s, %s, s, z) }"
GEMM = "g (uint8[1, 3] x) => (uint8[1, 4] y) { y = com.microsoft.QGemm (x, s, z, w, %s, %s, %s, s, z) }"
CONV = "g (uint8[1, 3, 2, 2] x) => (uint8[1, 4, 2, 2] y) { y = QLinearConv (x, s, z, f, s, v, s, z, %s) }"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SUM % ("s1", "z", "z"), "must be a scalar"),
        (SUM % ("s", "z1", "z"), "must be a scalar"),
        (SUM % ("s", "z", "z1"), "must be a scalar"),
        (GEMM % ("s1", "v", "b"), "should have same shape"),
        (GEMM % ("s4", "v", "b"), "should have same shape"),
        (GEMM % ("s", "v1", "b"), "should have same shape"),
        (GEMM % ("s", "v", "c"), "onnxruntime cannot run the model"),
        (CONV % "b", "onnxruntime cannot run the model"),
        (CONV % "b1", "onnxruntime cannot run the model"),
    ],
)
def test_frontend_refuses_shapes_of_scales_and_biases_that_onnxruntime_does(
    text: str, said: str, tmp_path: Path
) -> None:
    """The array could run them; but whatever compiles can be verified."""
    used = {name: array for name, array in INTEGERS.items() if re.search(rf"\b{name}\b", text)}
    path = saved(model(text, domains=("com.microsoft",), **used), tmp_path)
    assert said in refused("compile", path, "-o", tmp_path / "net.cnb")


def test_frontend_names_nodes_that_wait_for_each_other(tmp_path: Path) -> None:
    text = "g (float[3] x) => (float[3] y) { a = Add (x, c) b = Neg (a) c = Relu (b) d = Exp (c) y = Relu (d) }"
    circle = "Add node 'a', Relu node 'c', Neg node 'b'"
    message = f"not a valid ONNX model: nodes wait for each other's results in a circle: {circle}"
    assert refused_model(model(text), tmp_path).endswith(message)


@pytest.mark.usefixtures("short_searches")
def test_a_model_of_an_old_opset_compiles_once_it_is_converted(tmp_path: Path) -> None:
    """onnxruntime has no Gemm of opset 6. The message says what helps."""
    gemm = model("g (float[1, 3] x) => (float[1, 2] y) { y = Gemm (x, w, b) }", opset=6, w=np.ones((3, 2), np.float32))
    gemm.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1, 2), np.float32), "b"))
    file = saved(gemm, tmp_path)
    said = refused("compile", file)
    assert "find an implementation for Gemm(6)" in said and "opset 6 is old: write it anew as onnx.version_conv" in said
    onnx.save(version_converter.convert_version(onnx.load(file), 17), file)
    done("compile", file, "-o", tmp_path / "net.cnb")
