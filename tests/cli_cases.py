"""Small models for tests of the command line, and how those tests call it: in-process, stdout and stderr apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from cnncc.cli.main import main

SAMPLES = Path(__file__).parents[1] / "samples"
LENET = SAMPLES / "models" / "lenet.onnx"
DIGITS = SAMPLES / "inputs" / "digits_test.npz"
CALIBRATION = SAMPLES / "inputs" / "digits_calibration.npz"

Shapes = Mapping[str, Sequence[int | str]]


def invoke(*args: object) -> Result:
    """`cnncc ARGS`."""
    return CliRunner().invoke(main, [str(arg) for arg in args])


def done(*args: object) -> Result:
    """`cnncc ARGS`, which must work."""
    result = invoke(*args)
    assert result.exit_code == 0, (args, result.exit_code, result.stderr, result.exception)
    return result


def refused(*args: object, code: int = 1) -> str:
    """What `cnncc ARGS` ends with on stderr: one line, or one that counts those below; nothing on stdout."""
    result = invoke(*args)
    assert result.exit_code == code, (args, result.exit_code, result.stderr, result.exception)
    lines = result.stderr.splitlines()
    assert len(lines) == 1 or lines[0].endswith(f" {len(lines) - 1} problems"), lines
    assert lines[0].startswith("cnncc: "), lines
    assert max(map(len, lines)) < 700, lines
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return "\n".join(lines)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content, and every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"folder"
        for path in sorted(folder.rglob("*"))
    }


def refuses(folder: Path, *args: object) -> str:
    """What `refused` gives; the folder is as it was."""
    before = snapshot(folder)
    message = refused(*args)
    assert snapshot(folder) == before
    return message


def build(
    nodes: Sequence[onnx.NodeProto], inputs: Shapes, outputs: Sequence[str], arrays: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    """A model; the shapes of its outputs are left to inference."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (arrays or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, ir_version=9, opset_imports=opsets))


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def noise(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def conv_model() -> onnx.ModelProto:
    """Two convolutions with stride 2, asymmetric pads, odd sizes: 3x11x7 -> 5x6x4 -> 4x6x4."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], name="c1", strides=[2, 2], pads=[1, 0, 2, 2]),
        node("Relu", ["c1"], ["r1"], name="r1"),
        node("Conv", ["r1", "w2"], ["y"], name="c2", pads=[1, 1, 1, 1]),
    ]
    arrays = {"w1": noise(1, 5, 3, 3, 3), "b1": noise(2, 5), "w2": noise(3, 4, 5, 3, 3)}
    return build(nodes, {"x": (1, 3, 11, 7)}, ["y"], arrays)


def write_conv_files(folder: Path) -> None:
    """The model in a folder, with its binary, its assembly, and its IR after every step."""
    save(conv_model(), folder / "net.onnx")
    done("compile", folder / "net.onnx", "-o", folder / "net.cnb", "--dump-dir", folder / "ir")
    done("disasm", folder / "net.cnb", "-o", folder / "net.s")
