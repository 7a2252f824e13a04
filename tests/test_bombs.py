"""Small files that stand for absurd sizes end in one message, with little time and memory."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import refuses
from examples import examples
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node
MANY = 1 << 31
NODES = examples(60_000)


def model(nodes: Sequence[Any], shape: Sequence[int] = (1, 3, 8, 8), **arrays: object) -> onnx.ModelProto:
    """A model with one input x, one output y, and weights w: f32[4, 3, 3, 3]."""
    arrays = {"w": np.ones((4, 3, 3, 3), np.float32), **arrays}
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b", "c", "d"])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def conv(source: str = "x", **attributes: object) -> Any:
    return node("Conv", [source, "w"], ["y"], name="conv", **attributes)


def with_sum_of(*nodes: Any) -> list[Any]:
    """Nodes with a constant c, whose sum a convolution's input takes in."""
    return [*nodes, node("ReduceSum", ["c"], ["r"], keepdims=0), node("Add", ["x", "r"], ["a"]), conv("a")]


def a_loop(trips: str) -> list[Any]:
    image = [1, 3, 8, 8]
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["s", "s"], ["t"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, image),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, image),
        ],
    )
    return [node("Loop", [trips, "yes", "x"], ["a"], name="again", body=body), conv("a")]


def doubled() -> list[Any]:
    names = ["w", *(f"d{i}" for i in range(39)), "c"]
    return [node("Concat", [one, one], [two], axis=0) for one, two in zip(names, names[1:], strict=False)]


YES = np.array(True)
MODELS: Mapping[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "nodes": (
        lambda: model([node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(NODES)]),
        f"the graph: nodes {NODES:,}, the limit is 50,000: split the model",
    ),
    "rows": (lambda: model([conv()], (1, 3, MANY, 8)), "input 'x': elements 51,539,607,552, the limit"),
    "batch": (lambda: model([conv()], (MANY, 3, 8, 8)), "the limit is 134,217,728: a batch of at most 699,050"),
    "pads": (lambda: model([conv(pads=[MANY] * 4)]), "Conv node 'conv': pads 2,147,483,648, the limit is 1,048,576"),
    "small pads": (lambda: model([conv(pads=[1 << 20] * 4)]), "value 'y': elements "),
    "kernel": (
        lambda: model([node("MaxPool", ["x"], ["y"], kernel_shape=[MANY, MANY], pads=[1 << 30] * 4)]),
        "MaxPool node 'y'  kernel_shape 2,147,483,648, limit 1,048,576",
    ),
    "stride": (lambda: model([conv(strides=[1 << 40, 1])]), "strides 1,099,511,627,776"),
    "dilation": (lambda: model([conv(dilations=[MANY, 1])]), "dilations 2,147,483,648"),
    "constant": (
        lambda: model(with_sum_of(node("ConstantOfShape", ["s"], ["c"])), s=np.array([1 << 40])),
        "value 'c': elements 1,099,511,627,776, the limit is 134,217,728",
    ),
    "expanded": (
        lambda: model(with_sum_of(node("Expand", ["one", "s"], ["c"])), one=np.float32([1]), s=np.array([10**10])),
        "value 'c': elements 10,000,000,000",
    ),
    "doubled": (lambda: model(with_sum_of(*doubled())), "value 'd20': elements "),
    "tiles": (
        lambda: model([node("Tile", ["x", "s"], ["a"]), conv("a")], s=np.array([1, 1, 10**5, 10**5])),
        "value 'a': elements ",
    ),
    "padded": (
        lambda: model([node("Pad", ["x", "p"], ["a"]), conv("a")], p=np.array([0, 0, 10**6, 0, 0, 0, 0, 10**6])),
        "value 'a': elements ",
    ),
    "resized": (
        lambda: model([node("Resize", ["x", "", "s"], ["a"]), conv("a")], s=np.float32([1, 1, 1e5, 1e5])),
        "value 'a': elements ",
    ),
    "loop": (
        lambda: model(a_loop("m"), m=np.array(10**12), yes=YES),
        "Loop node 'again': trips 1,000,000,000,000, the limit is 1,000,000: compute its result beforehand",
    ),
    "loop of a constant node": (
        lambda: model(
            [node("Constant", [], ["m"], value=numpy_helper.from_array(np.array(10**7))), *a_loop("m")], yes=YES
        ),
        "Loop node 'again': trips 10,000,000",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_absurd_size_is_refused(name: str, tmp_path: Path) -> None:
    make, message = MODELS[name]
    path = tmp_path / "net.onnx"
    path.write_bytes(make().SerializeToString())
    assert message in refuses(tmp_path, "compile", path, "-o", tmp_path / "net.cnb")


def packed(path: Path, megabytes: int) -> Path:
    """An .npz file whose array of zeros has so many megabytes."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({megabytes << 18},), }}".ljust(117) + "\n"
    archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with archive, archive.open("x.npy", "w", force_zip64=True) as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        for _ in range(megabytes):
            file.write(bytes(1 << 20))
    return path


def test_an_array_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "net.onnx", packed(tmp_path / "bomb.npz", 1025)
    path.write_bytes(model([conv()]).SerializeToString())
    assert data.stat().st_size < 8 << 20
    message = refuses(tmp_path, "compile", path, "--calibrate", data, "-o", tmp_path / "net.cnb")
    assert "bytes when unpacked, the limit is 1,073,741,824" in message


ARRAYS = {
    "nested": ("a = " + "[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "digits": ("rows = " + "9" * 5_000, "not TOML: "),
    "long": ("#" * (1 << 21), "has more than 1,048,576 bytes, the limit of a TOML file"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_file_of_absurd_size_is_refused(name: str, tmp_path: Path) -> None:
    text, message = ARRAYS[name]
    path, file = tmp_path / "net.onnx", tmp_path / "array.toml"
    path.write_bytes(model([conv()]).SerializeToString())
    file.write_text(text)
    assert message in refuses(tmp_path, "compile", path, "--arch", file, "-o", tmp_path / "net.cnb")
