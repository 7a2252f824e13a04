"""`--shape`: models whose images have no fixed size are those with it, and what does not fit is refused by its dim."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx
import pytest
from cli_cases import done, invoke, noise, refused, save
from frontend_models import context, model, saved

from cnncc.errors import Refusal
from cnncc.frontend.import_onnx import import_onnx
from cnncc.frontend.input_shapes import Shapes, input_shape
from cnncc.frontend.load_onnx import load_onnx

pytestmark = pytest.mark.usefixtures("short_searches")

# The pool halves what the exporter calls H and W, as if an output had the input's size.
POOLED = """
    g (float[N, 3, H, W] x) => (float[N, 4, H, W] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
    }
"""


def pooled(**sizes: int) -> onnx.ModelProto:
    """The network, with these sizes in the place of the names."""
    proto = model(POOLED, w=noise(1, 4, 3, 3, 3))
    for value, stride in ((proto.graph.input[0], 1), (proto.graph.output[0], 2)):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param] // (1 if dim.dim_param == "N" else stride)
    return proto


def dims(path: Path, batch: int | None = None, shapes: Shapes | None = None) -> dict[str, list[int]]:
    """The sizes of inputs and outputs."""
    graph = load_onnx(path, batch, shapes or {}).graph
    return {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in
            (*graph.input, *graph.output)}  # fmt: skip


def members(binary: Path) -> dict[str, object]:
    """What a binary consists of, without the digest of its model's file."""
    with ZipFile(binary) as parts:
        texts = {name: parts.read(name) for name in parts.namelist()}
    manifest = json.loads(texts["manifest.json"])
    assert manifest.pop("model_sha256")
    return texts | {"manifest.json": manifest}


def refusal(proto: onnx.ModelProto, folder: Path, shapes: Shapes, batch: int | None = None) -> str:
    with pytest.raises(Refusal) as caught:
        import_onnx(saved(proto, folder), context(), batch, shapes)
    return "\n".join([str(caught.value), *(f"{part.where}: {part.text}" for part in caught.value.findings)])


def test_shapes_are_those_of_the_model_with_fixed_sizes(tmp_path: Path) -> None:
    """The binaries are the same, to the byte; only the file that they name is another."""
    (tmp_path / "fixed").mkdir()
    open_ = save(pooled(), tmp_path / "net.onnx")
    fixed = save(pooled(N=2, H=10, W=6), tmp_path / "fixed" / "net.onnx")
    done("compile", open_, "--shape", "x=2,3,10,6", "-o", tmp_path / "open.cnb")
    done("compile", fixed, "-o", tmp_path / "fixed.cnb")
    assert members(tmp_path / "open.cnb") == members(tmp_path / "fixed.cnb")
    assert "steps agree" in done("verify", open_, "--shape", "x=2,3,10,6").stdout


def test_batch_and_shape_go_together(tmp_path: Path) -> None:
    path = saved(pooled(), tmp_path)
    assert dims(path, None, {"x": (2, 3, 8, 6)}) == {"x": [2, 3, 8, 6], "y": [2, 4, 4, 3]}
    assert dims(path, 2, {"x": (2, 3, 8, 6)}) == {"x": [2, 3, 8, 6], "y": [2, 4, 4, 3]}
    assert "input 'x' has the fixed leading size 2, not batch 3" in refusal(pooled(), tmp_path, {"x": (2, 3, 8, 6)}, 3)


def test_inputs_share_sizes_by_name(tmp_path: Path) -> None:
    text = "g (float[N, H] a, float[N, H] b, float[1, W] c) => (float[N, H] y) { s = Add(a, b) y = Mul(s, c) }"
    path = saved(model(text), tmp_path)
    assert dims(path, None, {"a": (2, 5), "c": (1, 5)}) == {"a": [2, 5], "b": [2, 5], "c": [1, 5], "y": [2, 5]}
    # One name with two sizes says nothing of a third input.
    text = "g (float[N, H] a, float[N, H] b, float[1, H] c) => (float[N, H] y) { y = Sum(a, b, c) }"
    assert "input 'c': dim 1 is symbolic ('H')" in refusal(model(text), tmp_path, {"a": (2, 5), "b": (2, 1)})


def test_dims_named_by_a_question_mark_are_not_the_same(tmp_path: Path) -> None:
    """A batch of 2 does not make images of 2 x 2 of them."""
    proto = pooled()
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = "?"
    said = refusal(proto, tmp_path, {}, 2)
    assert "dim 2 is symbolic ('?'): give its size, for example --shape x=2,3,224,224" in said
    assert "dim 3 is symbolic ('?')" in said
    assert dims(saved(proto, tmp_path), None, {"x": (2, 3, 8, 6)})["y"] == [2, 4, 4, 3]


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    most = (1 << 63) - 1
    for shapes, said in (
        ({"w": (1,)}, "--shape w: there is no such input or output; there are: y, x"),
        ({"x": (1, 3, 8)}, "--shape x: it has 4 dims, not 3"),
        ({"x": (1, 4, 8, 8)}, "--shape x: dim 1 has the fixed size 3, not 4"),
        ({"x": (1, 3, 0, 8)}, f"--shape x: dim 2 is 0, expected 1 to {most}"),
        ({"x": (1, 3, 8, most + 1)}, f"--shape x: dim 3 is {most + 1}, expected 1 to {most}"),
        ({"x": (1, 3, 1 << 20, 1 << 20)}, "the limit is 134,217,728: a smaller image"),
    ):
        assert said in refusal(pooled(), tmp_path, shapes), shapes
    assert f"batch {most + 1}, expected 1 to {most}" in refusal(pooled(), tmp_path, {}, most + 1)


def test_shape_of_a_command(tmp_path: Path) -> None:
    net = save(pooled(), tmp_path / "net.onnx")
    for text in ("x", "=1,3", "x=", "x=1,,3", "x=1,-3", "x=a", "x=1x3"):
        result = invoke("check", net, "--shape", text)
        assert result.exit_code == 2 and f"'{text}' is not NAME=SIZES" in result.stderr, text
    shape = ("--shape", "x=1,3,8,8")
    assert "--shape x is given twice" in refused("check", net, *shape, *shape)
    assert "tensor<1x4x4x4xf32>" in done("opt", net, *shape).stdout
    done("compile", net, *shape, "--dump-dir", tmp_path / "ir", "-o", tmp_path / "net.cnb")
    again = ("compile", "--from", tmp_path / "ir" / "import", *shape, "-o", tmp_path / "b.cnb")
    assert "--shape has no effect on a dump: its shapes are fixed" in invoke(*again).stderr
    file = tmp_path / "grid.jsonl"
    for _ in range(2):  # the second time there is nothing to do
        done("explore", net, *shape, "--vary", "cols=4", "-j", 1, "-o", file)
    assert json.loads(file.read_text().splitlines()[0])["options"]["shapes"] == {"x": [1, 3, 8, 8]}


def test_the_name_of_an_input_may_have_any_character() -> None:
    assert input_shape("a=b:0=1,3") == ("a=b:0", (1, 3))
    assert input_shape("x= 1, 3") == ("x", (1, 3))


def test_an_image_is_computed_at_the_size_that_is_given(tmp_path: Path) -> None:
    """What runs is what onnxruntime computes of the model, which takes any size."""
    import onnxruntime

    net, image = save(pooled(), tmp_path / "net.onnx"), noise(5, 1, 3, 12, 10)
    np.savez(tmp_path / "in.npz", x=image)
    done("compile", net, "--shape", "x=1,3,12,10", "--calibrate", tmp_path / "in.npz", "-o", tmp_path / "net.cnb")
    done("run", tmp_path / "net.cnb", "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    session = onnxruntime.InferenceSession(net.read_bytes(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": image})
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["y"], wanted, atol=1e-3)
    assert wanted.shape == (1, 4, 6, 5)


def test_outputs_of_a_size_that_is_only_computed(tmp_path: Path) -> None:
    """They are refused, unless `--shape` says the size; if that is not theirs, the run is refused."""
    text = """
        g (float[1, 3, 5, 5] x) => (int64[4, n] y) {
            c = Conv (x, w)
            y = NonZero (c)
        }
    """
    net, binary = save(model(text, w=noise(1, 2, 3, 3, 3)), tmp_path / "net.onnx"), tmp_path / "net.cnb"
    said = "output 'y': it is tensor<4x?xi64>, an output has a fixed size: give the size, if it has one, as --shape "
    assert said + "y=4,224; or end the model before it" in refused("compile", net, "-o", binary)
    assert said.split(":")[1] in invoke("check", net).stdout and invoke("verify", net).exit_code == 1
    done("compile", net, "--shape", "y=4,18", "-o", binary)
    done("run", binary, "--output", tmp_path / "out.npz")
    assert np.load(tmp_path / "out.npz")["y"].shape == (4, 18)
    done("compile", net, "--shape", "y=4,17", "-o", binary)
    assert "tensor y has shape [4, 17], its values [1, 4, 18]" in refused("run", binary)
    assert "--shape y: dim 0 has the fixed size 4, not 3" in refused("compile", net, "--shape", "y=3,17", "-o", binary)


def test_the_proposed_shape_of_an_output_has_the_batch_of_the_network(tmp_path: Path) -> None:
    """Nothing is known of how many images Compress leaves; 224 were proposed."""
    text = """
        g (float[N, 3, 5, 5] x) => (float[M, 3, L, 5] y) {
            c = Conv (x, w)
            largest = ReduceMax <keepdims = 0> (c)
            flag = Cast <to = 9> (largest)
            i = If (flag) <
                then_branch = f () => (float[n, k, l, m] p) { p = Relu (c) },
                else_branch = g () => (float[n, k, l, m] q) { q = Concat <axis = 2> (x, x) }>
            y = Compress <axis = 0> (i, flags)
        }
    """
    net = save(model(text, w=noise(1, 3, 3, 1, 1), flags=np.array([True, True])), tmp_path / "net.onnx")
    assert "--shape y=2,3,224,5; or end" in refused("compile", net, "--batch", "2", "-o", tmp_path / "net.cnb")


def test_an_output_has_the_shape_that_is_computed_and_not_the_one_that_is_claimed(tmp_path: Path) -> None:
    """The shape behind Shape and Compress is known once these are folded; the file says another rank."""
    text = """
        g (float[1, 3, 4, 5] x) => (float[1, length] y) {
            c = Conv (x, w)
            s = Shape (c)
            t = Compress <axis = 0> (s, kept)
            y = Reshape (c, t)
        }
    """
    net = save(model(text, w=noise(1, 2, 3, 1, 1), kept=np.array([0, 1, 1, 1], bool)), tmp_path / "net.onnx")
    done("compile", net, "-o", tmp_path / "net.cnb")
    done("run", tmp_path / "net.cnb", "--output", tmp_path / "out.npz")
    assert np.load(tmp_path / "out.npz")["y"].shape == (2, 4, 5)
    assert "steps agree" in done("verify", net).stdout
