"""Pixels in turn: ConvTranspose, nearest Resize and DepthToSpace, whose results lie in their places on the array."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cli_cases import build, done, invoke, noise, save
from onnx import helper
from xdsl.rewriter import Rewriter

from cnncc.arch.model import arch_text, load_arch
from cnncc.binary.container import load
from cnncc.binary.isa_module import disassembly
from cnncc.dialects.cnn import ConcatOp, PoolOp
from cnncc.driver.pipeline import NONE
from cnncc.driver.sources import CompileOptions, resume, start_compilation
from cnncc.errors import Refusal
from cnncc.eval import array, cnn, isa
from cnncc.explore.array_grid import with_config
from cnncc.mapping.mapping import Sizes
from cnncc.passes._programs.layer_records import ActivationLayout
from cnncc.passes._programs.layer_sums import layout_of_sums
from cnncc.passes.nest_group import NestGroupPass

pytestmark = pytest.mark.usefixtures("short_searches")


def node(kind: str, operands: list[str], result: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, operands, [result], name=result, **attributes)


CONV = node("Conv", ["x", "v"], "a", pads=[1, 1, 1, 1])
NETWORKS: dict[str, Sequence[onnx.NodeProto]] = {
    "a step of a U-Net": (
        CONV,
        node("MaxPool", ["a"], "small", kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", ["small", "t2"], "u", strides=[2, 2]),
        node("Relu", ["u"], "r"),
        node("Concat", ["r", "a"], "c", axis=1),
        node("Conv", ["c", "c12"], "y"),
    ),
    "windows that overlap": (
        CONV,
        node("ConvTranspose", ["a", "t4"], "u", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["u", "w"], "y"),
    ),
    "the network's output": (node("ConvTranspose", ["x", "t4"], "y", strides=[2, 2], pads=[1, 1, 1, 1]),),
    "nearest neighbours, added to others": (
        CONV,
        node("Resize", ["x", "", "twice"], "u", mode="nearest"),
        node("Resize", ["a", "", "twice"], "p", mode="nearest"),
        node("Add", ["u", "p"], "s"),
        node("Conv", ["s", "w"], "y"),
    ),
    "PixelShuffle": (
        CONV,
        node("Conv", ["a", "e"], "e54"),
        node("Relu", ["e54"], "r"),
        node("DepthToSpace", ["r"], "d", blocksize=3, mode="CRD"),
        node("Conv", ["d", "w"], "y"),
    ),
    "means with a scale for each position": (
        *(node("Conv", ["x", "w"], f"a{part}") for part in range(4)),
        *(node("AveragePool", [f"a{part}"], f"p{part}", kernel_shape=[3, 3], pads=[1] * 4) for part in range(4)),
        node("Concat", [f"p{part}" for part in range(4)], "c", axis=1),
        node("DepthToSpace", ["c"], "d", blocksize=2),
        node("Conv", ["d", "w"], "y"),
    ),
    "slices of channels": (
        node("Conv", ["x", "e"], "e54"),
        node("MaxPool", ["e54"], "m", kernel_shape=[2, 2]),
        node("DepthToSpace", ["m"], "d", blocksize=3),
        node("Conv", ["d", "w"], "y"),
    ),
}
ARRAYS = {
    "v": noise(1, 6, 6, 3, 3) / 5, "w": noise(2, 6, 6, 1, 1), "e": noise(3, 54, 6, 1, 1), "c12": noise(4, 6, 12, 3, 3),
    "t2": noise(5, 6, 6, 2, 2), "t4": noise(6, 6, 6, 4, 4) / 3, "twice": np.array([1, 1, 2, 2], np.float32),
}  # fmt: skip


def network(name: str, images: int = 1) -> onnx.ModelProto:
    read = {operand for each in NETWORKS[name] for operand in each.input}
    arrays = {key: value for key, value in ARRAYS.items() if key in read}
    return build(NETWORKS[name], {"x": (images, 6, 8, 10)}, ["y"], arrays)


def array_file(folder: Path, words: int) -> Path:
    """Four by four PEs with a GLB of so many words."""
    path = folder / "small.toml"
    path.write_text(arch_text(with_config(load_arch("spatial-4x4"), {"glb.words": words})))
    return path


@pytest.mark.parametrize(("images", "words"), [(1, 65536), (2, 1000)])
@pytest.mark.parametrize("name", NETWORKS)
def test_levels_agree_and_are_proven_and_no_node_is_on_the_host(
    name: str, images: int, words: int, tmp_path: Path
) -> None:
    path, given = save(network(name, images), tmp_path / "net.onnx"), tmp_path / "in.npz"
    np.savez(given, x=noise(7, images, 6, 8, 10))
    options = ("--arch", array_file(tmp_path, words), "--calibrate", given)
    assert "steps agree" in done("verify", path, *options, "--input", given).stdout
    done("compile", path, *options, "-o", tmp_path / "net.cnb")
    assert "counters are as predicted" in done("estimate", tmp_path / "net.cnb", "--check-counters").stdout
    done("run", tmp_path / "net.cnb", "--input", given, "--output", tmp_path / "out.npz")
    with np.load(given) as file, np.load(tmp_path / "out.npz") as out:
        (want,) = onnxruntime.InferenceSession(path).run(None, {"x": file["x"]})
        assert 20 * np.log10(np.abs(want).max() / np.abs(out["y"] - want).max()) > 50  # dB, of 15 bits
    program = disassembly(load(tmp_path / "net.cnb"))
    assert not re.search(r"^ *host", program, re.MULTILINE)
    assert re.search(r" column=[23] ", program)
    proof = ("verify", "--prove", *options, "--model", path)
    assert "proven for all inputs" in done(*proof, tmp_path / "net.cnb").stdout
    (tmp_path / "wrong.s").write_text(re.sub(r" column=[23] ", " ", program, count=1))
    done("asm", tmp_path / "wrong.s", "--data", tmp_path / "net.cnb", "-o", tmp_path / "wrong.cnb")
    result = invoke(*proof, tmp_path / "wrong.cnb")
    assert result.exit_code == 3, result.output


@pytest.mark.parametrize(("dataflow", "images"), [("os", 3), ("nlr", 1), ("nlr", 3), ("rs", 1)])
def test_all_levels_agree_in_other_dataflows(dataflow: str, images: int, tmp_path: Path) -> None:
    """`nlr` has partial sums, whose columns follow each other."""
    few = {key: ARRAYS[key][:2, :2] for key in ("v", "t4", "w")}
    path = save(build(NETWORKS["windows that overlap"], {"x": (images, 2, 3, 4)}, ["y"], few), tmp_path / "net.onnx")
    options = ("--arch", "spatial-4x4", "--dataflow", dataflow)
    assert "steps agree" in done("verify", path, *options).stdout
    done("compile", path, *options, "-o", tmp_path / "net.cnb")
    assert "counters are as predicted" in done("estimate", tmp_path / "net.cnb", "--check-counters").stdout
    assert ("sums=" in disassembly(load(tmp_path / "net.cnb"))) == (dataflow == "nlr")


GROUPS = """
[[group]]
layers = ["b0", "p0"]
rows = {rows}
columns = {columns}

[[group]]
layers = ["b3", "p3"]
rows = {rows}
columns = {columns}
"""


@pytest.mark.parametrize(
    ("rows", "columns", "images", "words"),
    [
        (2, 0, 1, 65536), (1, 4, 1, 65536), (2, 3, 1, 65536), (1, 4, 1, 1600), (2, 3, 1, 1600), (2, 0, 2, 2500),
        (2, 5, 1, 4300),
    ],
)  # fmt: skip
def test_groups_and_strips_end_in_pixels_in_turn(
    rows: int, columns: int, images: int, words: int, tmp_path: Path
) -> None:
    """Two of four parts are computed stripe by stripe, in strips of columns, too.

    In 4,300 words there is no room for all weights that would be prefetched without groups.
    """
    nodes = [node("Conv", ["x", "v"], f"b{part}", pads=[1, 1, 1, 1]) for part in range(4)]
    nodes += [node("Conv", [f"b{part}", f"v{part}"], f"p{part}", pads=[1, 1, 1, 1]) for part in range(4)]
    nodes += [
        node("Concat", [f"p{part}" for part in range(4)], "c", axis=1),
        node("DepthToSpace", ["c"], "d", blocksize=2),
        node("Conv", ["d", "w"], "y"),
    ]
    arrays = {key: ARRAYS[key] for key in ("v", "w")} | {f"v{part}": noise(part, 6, 6, 3, 3) / 5 for part in range(4)}
    path = save(build(nodes, {"x": (images, 6, 8, 10)}, ["y"], arrays), tmp_path / "net.onnx")
    (tmp_path / "groups.toml").write_text(GROUPS.format(rows=rows, columns=columns))
    options = ("--arch", array_file(tmp_path, words), "--schedule", tmp_path / "groups.toml")
    assert "steps agree" in done("verify", path, *options).stdout
    assert "2 groups" in done("compile", path, *options, "-o", tmp_path / "net.cnb").stdout
    assert "counters are as predicted" in done("estimate", tmp_path / "net.cnb", "--check-counters").stdout
    assert "proven for all inputs" in done("verify", tmp_path / "net.cnb", "--prove", "--model", path).stdout


def test_a_last_transposed_convolution_runs_beside_others(tmp_path: Path) -> None:
    """As one convolution, whose pixels the host puts in turn: layers side by side have one result."""
    nodes = [CONV, node("ConvTranspose", ["a", "t2"], "y", strides=[2, 2])]
    arrays = {key: ARRAYS[key] for key in ("v", "t2")}
    path = save(build(nodes, {"x": (1, 6, 8, 10)}, ["y"], arrays), tmp_path / "net.onnx")
    done("compile", path, "--arch", "tcpa-4x4", "--parallel", "layers", "-o", tmp_path / "net.cnb")
    assert len(re.findall(r"^ *host", disassembly(load(tmp_path / "net.cnb")), re.MULTILINE)) == 1


@pytest.mark.parametrize(("rows", "cols"), [(2, 3), (3, 1), (1, 4)])
@pytest.mark.parametrize("words", [65536, 700])
def test_unequal_numbers_of_rows_and_columns(rows: int, cols: int, words: int, tmp_path: Path) -> None:
    """No ONNX operator has them. In edited IR a concatenation of channels becomes one of pixels."""
    count, files = rows * cols, tmp_path / "ir"
    nodes = [node("Conv", ["x", f"w{part}"], f"p{part}") for part in range(count)]
    nodes += [
        node("Concat", [f"p{part}" for part in range(count)], "c", axis=1),
        node("MaxPool", ["c"], "y", kernel_shape=[1, 1]),
    ]
    arrays = {f"w{part}": noise(part, 4, 6, 1, 1) for part in range(count)}
    path = save(build(nodes, {"x": (1, 6, 5, 7)}, ["y"], arrays), tmp_path / "net.onnx")
    done("compile", path, "--dump-dir", files, "-o", tmp_path / "net.cnb")
    (ir,) = files.glob("*-cnn-fuse-epilogue.mlir")
    text = ir.read_text().replace('label "c"', f'pixels {rows} by {cols} label "c"')
    ir.write_text(text.replace(f"tensor<1x{4 * count}x5x7xi16>", f"tensor<1x4x{5 * rows}x{7 * cols}xi16>"))
    compilation = resume(ir, CompileOptions(arch=str(array_file(tmp_path, words))))
    (inputs,) = cnn.quantise_inputs(compilation.module, {"x": noise(9, 1, 6, 5, 7)})
    (want,), _ = cnn.evaluate(compilation.module, compilation.ctx.weights, [inputs])
    assert want.shape == (1, 4, 5 * rows, 7 * cols)
    for level, evaluate in (("array", array.evaluate), ("isa", isa.evaluate)):
        compilation.run(level)
        (got,), _ = evaluate(compilation.module, compilation.ctx.weights, compilation.settings.arch, [inputs])
        assert np.array_equal(got, want), level


def test_a_scale_for_each_position_beside_columns_that_lie_apart_is_refused(tmp_path: Path) -> None:
    """In edited IR, where the copies are left out that cnn-legalize makes."""
    path = save(network("means with a scale for each position"), tmp_path / "net.onnx")
    compilation = start_compilation(path, CompileOptions(groups=NONE))
    compilation.run_through("cnn-legalize")
    (concat,) = [op for op in compilation.module.walk() if isinstance(op, ConcatOp)]
    copies = [value.owner for value in concat.inputs]
    concat.operands = [op.x for op in copies if isinstance(op, PoolOp)]
    for op in copies:
        Rewriter.erase_op(op)
    with pytest.raises(Refusal) as refusal:
        compilation.run()
    said = "requant.glb, but each position has a scale of its own"
    assert [said in finding.text for finding in refusal.value.findings] == [True] * 4


@pytest.mark.parametrize("columns", [3, 1])
def test_strips_of_a_value_whose_columns_lie_apart(columns: int, tmp_path: Path) -> None:
    """In edited IR a layer reads, strip by strip, what is one of the pixels in turn, too."""
    nodes = [node("Conv", ["x", "w"], f"p{part}") for part in range(2)]
    nodes += [node("Conv", ["p1", "v"], "q", pads=[1] * 4), node("Conv", ["q", "v"], "z", pads=[1] * 4)]
    nodes += [node("Concat", ["p0", "p1"], "c", axis=1), node("MaxPool", ["c"], "y", kernel_shape=[1, 1])]
    arrays = {key: ARRAYS[key] for key in ("v", "w")}
    path = save(build(nodes, {"x": (1, 6, 5, 8)}, ["y", "z"], arrays), tmp_path / "net.onnx")
    done("compile", path, "--dump-dir", tmp_path / "ir", "-o", tmp_path / "net.cnb")
    (ir,) = (tmp_path / "ir").glob("*-cnn-legalize.mlir")
    text = ir.read_text().replace('label "c"', 'pixels 1 by 2 label "c"')
    ir.write_text(text.replace("tensor<1x12x5x8xi16>", "tensor<1x6x5x16xi16>"))
    compilation = resume(ir, CompileOptions(groups=NONE))
    (inputs,) = cnn.quantise_inputs(compilation.module, {"x": noise(9, 1, 6, 5, 8)})
    want, _ = cnn.evaluate(compilation.module, compilation.ctx.weights, [inputs])
    compilation.run_before("nest-to-array")
    NestGroupPass(("q", "z"), 2, columns=columns).apply(compilation.ctx, compilation.module)
    compilation.run()
    got, _ = isa.evaluate(compilation.module, compilation.ctx.weights, compilation.settings.arch, [inputs])
    assert all(map(np.array_equal, got, want))


def test_layout_of_sums() -> None:
    """Columns of sums follow each other, unless images are strips of one image, with words between each other's."""
    sizes, pixels = Sizes(2, 3, 1, 4, 5, 1, 1), ActivationLayout("t", image=240, plane=80, pitch=20, column=2)
    assert layout_of_sums(sizes, pixels) == replace(pixels, pitch=5, column=0)
    strips = replace(pixels, image=10)
    assert layout_of_sums(sizes, strips) == strips
    assert layout_of_sums(sizes, replace(pixels, column=0)) == replace(pixels, column=0)
