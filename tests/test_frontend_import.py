"""ONNX files in, IR out: any valid model comes through whole, and prints and parses exactly."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from frontend_models import DATA, assert_prints_and_parses, context, model, run_file, saved
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from cnncc.dialects.onnx import AbsentOp, NodeOp
from cnncc.eval.onnx import evaluate
from cnncc.frontend.export_onnx import export_onnx
from cnncc.frontend.import_onnx import import_onnx
from cnncc.frontend.load_onnx import load_onnx
from cnncc.frontend.onnx_attrs import attribute_from_proto, attribute_to_proto
from cnncc.frontend.onnx_types import ir_type, type_proto
from cnncc.main_function import input_names, main_function, output_names
from cnncc.weights import WeightStore

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
SMALL_LIGHT = ("light_squeezenet", "light_shufflenet")


def roundtrip(path: Path, folder: Path, inputs: dict | None = None, batch: int | None = None, equal=True):
    """Import `path`; check text, exported names and validity, and outputs against the file's own."""
    ctx = context()
    module = import_onnx(path, ctx, batch)
    assert_prints_and_parses(module, ctx, folder)
    exported = export_onnx(module, ctx.weights)
    onnx.checker.check_model(exported)
    if inputs is not None:
        want, got = run_file(path, inputs), list(evaluate(module, ctx.weights, inputs).values())
        for expected, found in zip(want, got, strict=True):
            np.testing.assert_array_equal(found, expected, strict=True)
    return module, ctx, exported


def node_ops(module) -> list[NodeOp]:
    return [op for op in module.walk() if isinstance(op, NodeOp)]


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("lenet*.onnx")))
def test_frontend_import_lenet(name: str, tmp_path: Path) -> None:
    image = np.random.default_rng(1).random((1, 1, 28, 28), np.float32)
    module, _, exported = roundtrip(DATA / name, tmp_path, {"input": image}, batch=1)
    original = onnx.load(DATA / name)
    assert [node.name for node in exported.graph.node] == [node.name for node in original.graph.node]
    assert [node.output[:] for node in exported.graph.node] == [n.output[:] for n in original.graph.node]
    assert {t.name for t in exported.graph.initializer} == {t.name for t in original.graph.initializer}
    assert (input_names(module), output_names(module)) == (["input"], ["logits"])


@pytest.mark.parametrize("path", sorted(LIGHT.glob("light_*.onnx")), ids=lambda path: path.stem)
def test_frontend_import_light(path: Path, tmp_path: Path) -> None:
    image = np.random.default_rng(2).random((1, 3, 224, 224), np.float32)
    (name,) = {value.name for value in onnx.load(path).graph.input} - {
        tensor.name for tensor in onnx.load(path).graph.initializer
    }
    module, _, _ = roundtrip(path, tmp_path, {name: image} if path.stem in SMALL_LIGHT else None)
    assert input_names(module) == [name]  # IR version 3: initializers are listed as inputs as well


def test_frontend_import_external_data(tmp_path: Path) -> None:
    weights = np.random.default_rng(3).standard_normal((7, 5)).astype(np.float32)
    proto = model("g (float[2, 7] x) => (float[2, 5] y) { y = MatMul(x, w) }", w=weights)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "w.bin").exists()
    x = np.ones((2, 7), np.float32)
    roundtrip(path, tmp_path, {"x": x})


def test_frontend_import_unnamed_nodes_and_absent_operands(tmp_path: Path) -> None:
    proto = model(
        "g (float[1, 2, 5, 7] x) => (float[1, 2, 5, 7] y) { c = Clip(x, , high) y, , = Dropout(c) }",
        high=np.float32(0.5),
    )
    proto.graph.node[1].output[:] = ["y", ""]
    x = np.random.default_rng(4).standard_normal((1, 2, 5, 7)).astype(np.float32)
    module, _, exported = roundtrip(saved(proto, tmp_path), tmp_path, {"x": x})
    clip = node_ops(module)[0]
    assert clip.operand(1) is None and clip.operand(2) is not None and clip.operand(3) is None
    assert sum(isinstance(op, AbsentOp) for op in module.walk()) == 1
    assert list(exported.graph.node[0].input) == ["x", "", "high"]
    assert list(exported.graph.node[1].output) == ["y", ""]


IF = """
g (float[3] x, bool c) => (float[3] y) {
  t = Relu(x)
  y = If(c) <
    then_branch = a () => (float[3] p) { p = Add(t, k) },
    else_branch = b () => (float[3] q) { q = If(c) <
       then_branch = d () => (float[3] r) { r = Neg(t) },
       else_branch = e () => (float[3] s) { s = Sub(t, x) }> }>
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_frontend_import_control_flow_keeps_captured_values(condition: bool, tmp_path: Path) -> None:
    path = saved(model(IF, k=np.float32([1, 2, 3])), tmp_path)
    inputs = {"x": np.float32([1, -2, 3]), "c": np.array(condition)}
    module, ctx, _ = roundtrip(path, tmp_path, inputs)
    (node,) = [op for op in node_ops(module) if op.is_op("If")]
    assert node.capture_count == 4 and len(node.own_operands) == 1  # t, k, c, x
    # The captured value may change its name: the sub-graphs follow.
    node_ops(module)[0].properties.pop("outputs")
    (found,) = evaluate(module, ctx.weights, inputs).values()
    np.testing.assert_array_equal(found, run_file(path, inputs)[0])


def test_frontend_import_sequences(tmp_path: Path) -> None:
    text = """g (float[2, 3] x, float[2, 3] z) => (float[4, 3] y) {
      s = SequenceConstruct(x, z) y = ConcatFromSequence <axis = 0> (s) }"""
    rng = np.random.default_rng(5)
    inputs = {name: rng.random((2, 3), np.float32) for name in "xz"}
    module, _, _ = roundtrip(saved(model(text), tmp_path), tmp_path, inputs)
    assert str(node_ops(module)[0].results[0].type) == '!onnx.value<"seq(tensor(float))">'


def test_frontend_import_sequence_as_output(tmp_path: Path) -> None:
    text = "g (float[4, 3] x) => (seq(float[2, 3]) y) { y = SplitToSequence <axis = 0> (x, two) }"
    path = saved(model(text, two=np.int64(2)), tmp_path)
    ctx = context()
    module = import_onnx(path, ctx)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    (parts,) = evaluate(module, ctx.weights, {"x": x}).values()
    np.testing.assert_array_equal(parts, [x[:2], x[2:]])


def test_frontend_import_local_function(tmp_path: Path) -> None:
    proto = model("g (float[3] x) => (float[3] y) { y = my.twice(x) }", domains=("my",))
    body = onnx.parser.parse_function('<opset_import: ["" : 17], domain: "my"> twice (a) => (b) { b = Add(a, a) }')
    proto.functions.append(body)
    roundtrip(saved(proto, tmp_path), tmp_path, {"x": np.float32([1, 2, 3])})


def test_frontend_import_unknown_domain(tmp_path: Path) -> None:
    proto = model("g (float[3] x) => (float[3] y) { u, v = my.op <outputs = 3>(x) y = Relu(u) }", domains=("my",))
    module, _, _ = roundtrip(saved(proto, tmp_path), tmp_path)
    assert str(node_ops(module)[0].results[1].type) == '!onnx.value<"unknown">'


def test_frontend_import_outputs_that_are_inputs_constants_or_twice(tmp_path: Path) -> None:
    proto = model("g (float[3] x) => (float[3] x, float[3] w, float[3] y) { y = Relu(x) }", w=np.float32([1, 2, 3]))
    module, ctx, exported = roundtrip(saved(proto, tmp_path), tmp_path, {"x": np.float32([1, -2, 3])})
    assert [output.name for output in exported.graph.output] == ["x", "w", "y"]
    last = main_function(module).body.block.last_op
    last.operands = [last.operands[2], last.operands[2], last.operands[0]]  # y, y, x under the old names
    with pytest.raises(Exception, match="another input or output has this name"):
        export_onnx(module, ctx.weights)


def test_frontend_import_tells_a_scalar_from_a_vector_of_one(tmp_path: Path) -> None:
    two = np.float32(2)
    proto = model("g () => (float a, float[1] b, float c) { c = Constant <value = float {2}> () }", a=two, b=two[None])
    roundtrip(saved(proto, tmp_path), tmp_path, {})
    scalar, vector = (
        helper.make_attribute("a", numpy_helper.from_array(np.array(array))) for array in (two, two[None])
    )
    store = WeightStore()
    for proto in (vector, scalar, vector):
        assert attribute_to_proto("a", attribute_from_proto(proto, store), store) == proto


def test_frontend_import_without_inputs(tmp_path: Path) -> None:
    roundtrip(saved(model("g () => (float[3] y) { y = Relu(w) }", w=np.float32([1, -2, 3])), tmp_path), tmp_path, {})


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        ("['', 'layer1', 'layer1.0', 'layer1.0.relu', 'relu_3']", "layer1.0.relu/node_relu_3"),
        ("['', 'relu_3']", "node_relu_3"),
        ("no list", "node_relu_3"),
    ],
)
def test_frontend_import_puts_the_module_before_a_name(scopes: str, expected: str, tmp_path: Path) -> None:
    proto = model("g (float[3] x) => (float[3] y) { y = Relu(x) }")
    proto.graph.node[0].name = "node_relu_3"
    proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    _, _, exported = roundtrip(saved(proto, tmp_path), tmp_path)
    assert exported.graph.node[0].name == expected


def test_frontend_import_names_beyond_ascii(tmp_path: Path) -> None:
    proto = model("g (float[3] x) => (float[3] y) { y = Relu(x) }")
    proto.graph.node[0].name = 'größe "1"\n'
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "éin/0"
    _, _, exported = roundtrip(saved(proto, tmp_path), tmp_path, {"éin/0": np.float32([1, -2, 3])})
    assert exported.graph.node[0].name == 'größe "1"\n' and exported.graph.input[0].name == "éin/0"


@pytest.mark.parametrize("data_type", [code for code in TensorProto.DataType.values() if code])
def test_frontend_import_every_element_type(data_type: int, tmp_path: Path) -> None:
    if data_type == TensorProto.STRING:
        constant = helper.make_tensor("w", data_type, [3], [b"a", b"", b"\xc3\xa9"])
    else:
        dtype = helper.tensor_dtype_to_np_dtype(data_type)
        constant = numpy_helper.from_array(np.array([0, 1, 1]).astype(dtype), "w")
        assert constant.data_type == data_type
    proto = model("g (float[3] x) => (float[3] y) { y = Relu(x) }")
    proto.ir_version = 13
    proto.opset_import[0].version = 25
    proto.graph.initializer.append(constant)
    proto.graph.output.append(helper.make_tensor_value_info("w", data_type, [3]))
    ctx = context()
    module = import_onnx(saved(proto, tmp_path), ctx)
    assert_prints_and_parses(module, ctx, tmp_path)
    exported = export_onnx(module, ctx.weights)
    tensors = [*exported.graph.initializer, *(a.t for n in exported.graph.node for a in n.attribute)]
    found, want = numpy_helper.to_array(tensors[0]), numpy_helper.to_array(constant)
    if data_type == TensorProto.FLOAT16:  # it is taken as f32
        proto.graph.output[1].type.tensor_type.elem_type, want = TensorProto.FLOAT, want.astype(np.float32)
    assert exported.graph.output[1] == proto.graph.output[1]
    # Bytes, as 0 in a type without zero is a NaN; objects for strings.
    assert found.dtype == want.dtype and found.shape == want.shape
    assert found.tolist() == want.tolist() if found.dtype == object else found.tobytes() == want.tobytes()


@pytest.mark.parametrize("seed", range(8))
def test_frontend_import_nodes_in_any_order(seed: int, tmp_path: Path) -> None:
    """Converters to f16 append the casts of inputs at the end. The branches read what nodes outside compute."""
    proto = model(
        """g (float[3] x) => (float[3] y, float[3] z) {
          a = Relu (x) b = Neg (a) c = Exp (b) yes = Identity (flag)
          i = If (yes) <
            then_branch = t () => (float[3] p) { p = Add (c, a) },
            else_branch = e () => (float[3] q) { q = Neg (b) } >
          y = Mul (i, x) z = Abs (a)
        }""",
        flag=np.array(True),
    )
    nodes, inputs = [*proto.graph.node], {"x": np.float32([1, -2, 3])}
    in_order = load_onnx(saved(proto, tmp_path)).graph.node
    assert [*in_order] == nodes
    np.random.default_rng(seed).shuffle(nodes)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    _, _, exported = roundtrip(saved(proto, tmp_path), tmp_path, inputs)
    assert sorted(node.output[0] for node in exported.graph.node) == sorted(node.output[0] for node in nodes)


def test_frontend_import_sparse_initializer(tmp_path: Path) -> None:
    proto = model("g (float[3, 5] x) => (float[3, 5] y) { y = Add(x, w) }")
    values = numpy_helper.from_array(np.float32([1.5, -2]), "w")
    indices = numpy_helper.from_array(np.int64([[0, 3], [2, 1]]), "w_indices")
    proto.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[3, 5]))
    ctx = context()
    module = import_onnx(saved(proto, tmp_path), ctx)
    dense = np.zeros((3, 5), np.float32)
    dense[0, 3], dense[2, 1] = 1.5, -2
    (y,) = evaluate(module, ctx.weights, {"x": np.ones((3, 5), np.float32)}).values()
    np.testing.assert_array_equal(y, dense + 1)


def test_frontend_import_batch_reaches_all_dims_of_its_name(tmp_path: Path) -> None:
    proto = model(
        "g (float[N, 3, 5] x, float[7, N] z) => (float[N, P] y, float[Q, N] v) { y = Reshape(x, s) v = Relu(z) }",
        s=np.int64([0, -1]),
    )
    module = import_onnx(saved(proto, tmp_path), context(), batch=11)
    shapes = [value.type.get_shape() for value in main_function(module).body.block.args]
    assert shapes == [(11, 3, 5), (7, 11)]
    assert [tuple(t.get_shape()) for t in main_function(module).function_type.outputs] == [(11, 15), (7, 11)]


ATTRIBUTES = [
    helper.make_attribute("a", -(1 << 63)),
    helper.make_attribute("a", [1, -2, (1 << 63) - 1]),
    helper.make_attribute("a", [0.1, -0.0, float("inf"), 16777217.0]),
    helper.make_attribute("a", [0.1, float("nan")]),
    helper.make_attribute("a", float("nan")),
    helper.make_attribute("a", b"\xff\x00\xc3"),
    helper.make_attribute("a", 'text "quoted" \\ \n é'),
    helper.make_attribute("a", ["", "x", "é"]),
    helper.make_attribute("a", numpy_helper.from_array(np.int8([[1, -2, 3]]))),
    helper.make_attribute("a", numpy_helper.from_array(np.array(2.5, np.float32))),
    helper.make_attribute("a", helper.make_tensor_type_proto(TensorProto.FLOAT, [1, "N"])),
    AttributeProto(name="a", type=AttributeProto.INTS),
    AttributeProto(name="a", type=AttributeProto.FLOATS),
    AttributeProto(name="a", type=AttributeProto.STRINGS),
]


@pytest.mark.parametrize("proto", ATTRIBUTES, ids=lambda proto: str(proto).replace("\n", " ")[:40])
def test_frontend_import_attributes_survive_text(proto: AttributeProto) -> None:
    ctx = context()
    text = str(attribute_from_proto(proto, ctx.weights))
    assert attribute_to_proto("a", parse_attribute(text), ctx.weights).SerializeToString() == proto.SerializeToString()


def parse_attribute(text: str):
    from xdsl.parser import Parser

    return Parser(context(), text).parse_attribute()


@given(st.floats(width=32, allow_nan=False))
def test_frontend_import_floats_survive_text(value: float) -> None:
    text = str(attribute_from_proto(helper.make_attribute("a", value), WeightStore()))
    back = attribute_to_proto("a", parse_attribute(text), WeightStore()).f
    assert struct.pack("<f", back) == struct.pack("<f", value)


TYPES = [
    "seq(float[2, 3])", "optional(seq(string[]))", "map(string, float[1])", "float[1, 2]", "float16[]",
    "seq(map(int64, float[1]))", "bfloat16[2]",
]  # fmt: skip


@pytest.mark.parametrize("text", TYPES)
def test_frontend_import_types_survive(text: str) -> None:
    proto = onnx.parser.parse_graph(f"g ({text} x) => ({text} x) {{ }}").input[0].type
    first = ir_type(proto)
    back = type_proto(first)
    assert back is not None and back.WhichOneof("value") == proto.WhichOneof("value")
    assert ir_type(back) == first


def result_dims(proto: onnx.ModelProto, folder: Path) -> dict[str, list[int]]:
    loaded = load_onnx(saved(proto, folder))
    return {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in loaded.graph.output}


def test_frontend_import_does_not_believe_wrong_shapes(tmp_path: Path) -> None:
    """onnxruntime takes the model too, and gives what the windows give."""
    text = "g (float[1, 2, 7, 9] x) => (float[1, 2, 3, 2] y) { y = AveragePool <kernel_shape = [3, 3]> (x) }"
    assert result_dims(model(text), tmp_path) == {"y": [1, 2, 5, 7]}


def test_frontend_import_an_output_that_is_an_input(tmp_path: Path) -> None:
    """It has the input's shape, whatever the output says, and so have the values that are computed from it."""
    text = "g (float[1, 2, 7, 9] x) => (float[a, b, c, d] x, float[e, f, g, h] y) { y = Relu (x) }"
    assert result_dims(model(text), tmp_path) == {"x": [1, 2, 7, 9], "y": [1, 2, 7, 9]}


POOL = "{} <ceil_mode = 1, kernel_shape = {}, strides = {}, pads = {}> ({})"


@pytest.mark.parametrize(
    ("kernel", "strides", "pads"),
    [
        ([1, 2], [4, 3], [0, 0, 0, 0]),  # rows: the second window would begin below the image; columns: a ceiling
        ([2, 2], [3, 2], [1, 1, 1, 1]),
        ([3, 3], [2, 2], [0, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_frontend_import_pools_of_ceil_mode(
    kind: str, kernel: list[int], strides: list[int], pads: list[int], tmp_path: Path
) -> None:
    """Windows that would begin in the padding at the end are none; pools after them see that, too."""
    first, second = POOL.format(kind, kernel, strides, pads, "x"), POOL.format(kind, kernel, strides, pads, "a")
    proto = model(
        f"g (float[1, 2, 4, 9] x) => (float[a, b, c, d] y, float[e, f, g, h] a) {{ a = {first} y = {second} }}"
    )
    found = run_file(saved(proto, tmp_path), {"x": np.ones((1, 2, 4, 9), np.float32)})
    assert result_dims(proto, tmp_path) == {"y": list(found[0].shape), "a": list(found[1].shape)}


def test_frontend_import_pools_of_ceil_mode_with_as_many_windows_as_strides(tmp_path: Path) -> None:
    """SAME has ⌈size / stride⌉ windows. ONNX's inference has 3 for the 7 columns here, onnxruntime 2."""
    for kernel, strides in (([3, 2], [2, 3]), ([1, 1], [1, 5])):
        pool = f'MaxPool <ceil_mode = 1, kernel_shape = {kernel}, strides = {strides}, auto_pad = "SAME_UPPER"> (x)'
        proto = model(f"g (float[1, 2, 4, 7] x) => (float[a, b, c, d] y) {{ y = {pool} }}")
        assert result_dims(proto, tmp_path) == {"y": [1, 2, -(-4 // strides[0]), -(-7 // strides[1])]}


def test_frontend_import_pools_of_ceil_mode_behind_integer_operators(tmp_path: Path) -> None:
    """ONNX knows nothing of the sum's shape: of 1 + 1 + 2 columns a second window would begin in the padding."""
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (uint8[1, 1, 1, 1] x) => (uint8[a, b, c, d] y) <float s = {0.5}, uint8 z = {0}> {
          sum = com.microsoft.QLinearAdd (x, s, z, x, s, z, s, z)
          y = MaxPool <ceil_mode = 1, kernel_shape = [1, 3], strides = [1, 2], pads = [0, 1, 0, 2]> (sum)
        }"""
    proto = onnx.parser.parse_model(text)
    found = run_file(saved(proto, tmp_path), {"x": np.ones((1, 1, 1, 1), np.uint8)})
    assert result_dims(proto, tmp_path) == {"y": list(found[0].shape)}


def test_frontend_import_types_behind_conversions_of_onnxruntime(tmp_path: Path) -> None:
    """Its own QuantizeLinear makes codes of 16 bits, also in models of old opsets; without a zero point, of 8 bits."""
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[1, 2, 3, 4] x) => (float[a, b, c, d] y, uint8[a, b, c, d] o) <float s = {0.5}, uint16 z = {7}> {
          q = com.microsoft.QuantizeLinear (x, s, z)
          f = com.microsoft.DequantizeLinear (q, s, z)
          y = Relu (f)
          o = com.microsoft.QuantizeLinear (f, s)
        }"""
    proto = onnx.parser.parse_model(text)
    assert result_dims(proto, tmp_path) == {"y": [1, 2, 3, 4], "o": [1, 2, 3, 4]}
    roundtrip(saved(proto, tmp_path), tmp_path, {"x": np.random.default_rng(1).random((1, 2, 3, 4), np.float32)})


def test_frontend_import_pools_of_ceil_mode_before_a_product(tmp_path: Path) -> None:
    """ONNX's inference has 4 columns for the product, onnxruntime computes 2: it needs the type of `a` to load this."""
    pool = POOL.format("MaxPool", [1, 1], [4, 1], [0, 0, 0, 0], "x")
    text = f"g (float[1, 1, 4, 2] x) => (float[1, 3] y) {{ a = {pool} f = Flatten (a) y = MatMul (f, w) }}"
    proto = model(text, w=np.arange(6, dtype=np.float32).reshape(2, 3))
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 1, 1, 2]))
    roundtrip(saved(proto, tmp_path), tmp_path, {"x": np.random.default_rng(1).random((1, 1, 4, 2), np.float32)})
