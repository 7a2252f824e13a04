"""SpaceToDepth before a Conv, also as slices or a Transpose: a Conv of the image, of the same values and MACs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cli_cases import done, noise, save
from frontend_models import context, model, op_types, rewritten, saved
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from cnncc.binary.container import load
from cnncc.binary.isa_module import disassembly
from cnncc.context import CompilerContext
from cnncc.driver.pipeline import mark_host_operators
from cnncc.frontend.export_onnx import export_onnx
from cnncc.frontend.import_onnx import import_onnx
from cnncc.frontend.node_macs import module_macs
from cnncc.passes.onnx_space_to_depth import OnnxSpaceToDepthPass

SQUARES = [(0, 0), (1, 0), (0, 1), (1, 1)]  # in YOLOv5's order
FOREVER = 2**63 - 1  # the end of PyTorch's slices


def text(body: str, size: str = "2, 3, 8, 12") -> str:
    return f"g (float[{size}] x) => (float[N, K, P, Q] y) {{ {body} }}"


def imported(proto: onnx.ModelProto, folder: Path) -> tuple[ModuleOp, CompilerContext]:
    return import_onnx(saved(proto, folder), ctx := context()), ctx


def operators(body: str, folder: Path, size: str = "2, 3, 8, 12", **arrays: object) -> list[str]:
    """The operators after the pass, with the values and the MACs of those before."""
    proto = model(text(body, size), **arrays)
    macs = module_macs(imported(proto, folder)[0])
    module = rewritten(proto, folder, OnnxSpaceToDepthPass(), tolerance=1e-5)
    assert module_macs(module) == macs
    return op_types(module)


def sliced(squares: Sequence[tuple[int, int]], step: int = 2) -> tuple[str, dict[str, Any]]:
    """The concatenation `a` of slices of `x`, and the constants that they read."""
    constants = {f"i{first}": np.int64([first]) for first in range(step)}
    constants |= {"end": np.int64([FOREVER]), "rows": np.int64([2]), "cols": np.int64([3]), "step": np.int64([step])}
    parts = [f"r{i}{j} = Slice (x, i{i}, end, rows, step) c{i}{j} = Slice (r{i}{j}, i{j}, end, cols, step)"
             for i, j in squares]  # fmt: skip
    return " ".join([*parts, f"a = Concat <axis = 1> ({', '.join(f'c{i}{j}' for i, j in squares)})"]), constants


def at_once(squares: Sequence[tuple[int, int]]) -> tuple[str, dict[str, Any]]:
    """As `sliced`, by slices of rows and columns at once, with the last ones as an end, and with all channels."""
    constants = {f"s{i}{j}": np.int64([0, j, i]) for i, j in squares}
    constants |= {"e": np.int64([3, 12, -1]), "f": np.int64([9, 12, 99])}
    constants |= {"axes": np.int64([1, -1, 2]), "steps": np.int64([1, 2, 2])}
    parts = [f"c{i}{j} = Slice (x, s{i}{j}, {'f' if i else 'e'}, axes, steps)" for i, j in squares]
    return " ".join([*parts, f"a = Concat <axis = -3> ({', '.join(f'c{i}{j}' for i, j in squares)})"]), constants


def transposed(front: Sequence[int], sizes: Sequence[int], step: int) -> tuple[str, dict[str, Any]]:
    """A Transpose between two Reshapes; axes 1, 3 and 5, in this order, become the channels `a` of `x`."""
    n, c, h, w = sizes
    constants = {
        "split": np.int64([n, c, h // step, step, w // step, step]),
        "whole": np.int64([n, c * step**2, h // step, w // step]),
    }
    order = [0, *front, 2, 4]
    return f"s = Reshape (x, split) t = Transpose <perm = {order}> (s) a = Reshape (t, whole)", constants


CONV = "y = Conv <strides = [1, 2], pads = [1, 0, 0, 1]> (a, w, k)"
ARRAYS = {"w": noise(1, 4, 12, 3, 2), "k": noise(2, 4)}


def test_every_form_is_a_convolution_of_the_image(tmp_path: Path) -> None:
    forms = [
        ("a = SpaceToDepth <blocksize = 2> (x)", {}),
        sliced(SQUARES),
        at_once(SQUARES),
        *(transposed(front, (2, 3, 8, 12), 2) for front in [(1, 3, 5), (3, 5, 1), (5, 3, 1)]),
    ]
    for body, constants in forms:
        assert operators(f"{body} {CONV}", tmp_path, **constants, **ARRAYS) == ["Conv"], body


def test_slices_of_columns_share_those_of_rows(tmp_path: Path) -> None:
    body, constants = sliced(SQUARES)
    body = re.sub("r([01])1 = .*?\\)", "", body).replace("(r01", "(r00").replace("(r11", "(r10")
    assert operators(f"{body} {CONV}", tmp_path, **constants, **ARRAYS) == ["Conv"]
    crop = "z = Slice (x, i1, end, rows) "
    body, arrays = body.replace("(x", "(z"), {**constants, **ARRAYS}
    assert operators(f"{crop} {body} {CONV}", tmp_path, "2, 3, 9, 12", **arrays) == ["Slice", "Conv"]


def test_the_image_may_be_every_second_row_or_channel(tmp_path: Path) -> None:
    body, constants = sliced(SQUARES)
    for axis, size in (("rows", "2, 3, 16, 12"), ("one", "2, 5, 8, 12")):
        first = f"z = Slice (x, i0, end, {axis}, step) "
        arrays = {"one": np.int64([1]), **constants, **ARRAYS}
        names = operators(f"{first} {body.replace('(x', '(z')} {CONV}", tmp_path, size, **arrays)
        assert names == ["Slice", "Conv"]


def test_one_after_the_other(tmp_path: Path) -> None:
    body = """a = SpaceToDepth <blocksize = 2> (x) b = Conv <auto_pad = "NOTSET"> (a, w) c = Relu (b)
      d = SpaceToDepth <blocksize = 2> (c) y = Conv (d, v)"""
    arrays = {"w": noise(1, 4, 12, 1, 1), "v": noise(2, 5, 16, 1, 2)}
    assert operators(body, tmp_path, **arrays) == ["Conv", "Relu", "Conv"]


SPACE = "a = SpaceToDepth <blocksize = 2> (x)"
FOCUS, CONSTANTS = sliced(SQUARES)
UNSHUFFLE, SHAPES = transposed((1, 3, 5), (2, 3, 8, 12), 2)
STAY = {
    "computed weights": f"{SPACE} b = Abs (w) y = Conv (a, b)",
    "groups": f"{SPACE} y = Conv <group = 2> (a, g)",
    "dilations": f"{SPACE} y = Conv <dilations = [2, 1]> (a, w)",
    "auto_pad": f'{SPACE} y = Conv <auto_pad = "SAME_UPPER"> (a, w)',
    "no convolution": f"{SPACE} b = Conv (x, u) y = Relu (a)",
    "an activation between": f"{SPACE} b = Relu (a) y = Conv (b, w)",
    "two readers": f"{SPACE} b = Conv (a, w) c = Conv (a, w) y = Add (b, c)",
    "one slice is read again": f"{FOCUS} b = Conv (a, w) m = ReduceMean (r00) y = Add (b, m)",
    "the Concat is read again": f"{FOCUS} b = Conv (a, w) m = ReduceMean (a) y = Add (b, m)",
    "the Transpose is read again": f"{UNSHUFFLE} b = Conv (a, w) m = ReduceMean <keepdims = 0> (t) y = Add (b, m)",
    "one slice twice": re.sub("(c00), c10", "\\1, \\1", FOCUS) + " y = Conv (a, w)",
    "one slice missing": FOCUS.replace(", c11", "") + " y = Conv (a, v)",
    "slices of two values": "z = Neg (x) " + FOCUS.replace("r11 = Slice (x", "r11 = Slice (z") + " y = Conv (a, w)",
    "rows alone": "b = Slice (x, i0, end, rows, step) c = Slice (x, i1, end, rows, step) "
    "a = Concat <axis = 1> (b, c) y = Conv (a, h)",
    "another order": UNSHUFFLE.replace("2, 4]", "4, 2]") + " y = Conv (a, w)",
    "squares turned": UNSHUFFLE.replace("1, 3, 5, 2, 4", "1, 2, 4, 3, 5") + " y = Conv (a, w)",
    "another shape": UNSHUFFLE.replace("whole", "flat") + " y = Conv (a, w)",
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name: str, tmp_path: Path) -> None:
    arrays = {
        "w": noise(1, 4, 12, 2, 2), "g": noise(2, 4, 6, 1, 1), "u": noise(3, 4, 3, 1, 1), "h": noise(4, 4, 6, 1, 1),
        "v": noise(5, 4, 9, 1, 1), "flat": np.int64([2, 12, 6, 4]), **CONSTANTS, **SHAPES,
    }  # fmt: skip
    assert operators(STAY[name], tmp_path, **arrays) == re.findall(r"= ([A-Z]\w+)", STAY[name])


def test_squares_beyond_eight_and_images_beyond_instructions_stay(tmp_path: Path) -> None:
    for size, step in (("1, 1, 9, 18", 9), ("1, 1, 2, 40000", 2)):
        body = f"a = SpaceToDepth <blocksize = {step}> (x) y = Conv (a, w)"
        module, ctx = imported(model(text(body, size), w=noise(1, 1, step**2, 1, 1)), tmp_path)
        OnnxSpaceToDepthPass().apply(ctx, module)
        assert op_types(module) == ["SpaceToDepth", "Conv"]


def test_rows_that_are_no_whole_squares_stay(tmp_path: Path) -> None:
    """Each slice leaves out the last of nine rows."""
    body, constants = sliced(SQUARES)
    constants["end"] = np.int64([8])
    names = operators(f"{body} y = Conv (a, w)", tmp_path, "2, 3, 9, 8", w=noise(1, 4, 12, 1, 1), **constants)
    assert names == ["Slice"] * 8 + ["Concat", "Conv"]


@pytest.mark.parametrize("operator", ["SpaceToDepth", "Slice", "Transpose"])
def test_an_operator_of_the_host_stays(operator: str, tmp_path: Path) -> None:
    bodies = {"SpaceToDepth": SPACE, "Slice": FOCUS, "Transpose": UNSHUFFLE}
    for name, body in bodies.items():
        module, ctx = imported(model(text(f"{body} {CONV}"), **ARRAYS, **CONSTANTS, **SHAPES), tmp_path)
        mark_host_operators(module, [operator])
        OnnxSpaceToDepthPass().apply(ctx, module)
        assert (op_types(module) == ["Conv"]) == (name != operator)


def test_it_leaves_valid_onnx(tmp_path: Path) -> None:
    module, ctx = imported(model(text(f"{FOCUS} {CONV}"), **CONSTANTS, **ARRAYS), tmp_path)
    OnnxSpaceToDepthPass().apply(ctx, module)
    onnx.checker.check_model(export_onnx(module, ctx.weights), full_check=True)


@given(data=st.data())
def test_drawn_convolutions(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    def number(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    step, c, kernel = number(2, 3), number(1, 3), (number(1, 3), number(1, 2))
    sizes = (number(1, 2), c, step * number(3, 5), step * number(2, 5))
    match data.draw(st.sampled_from(["SpaceToDepth", "Slice", "Transpose"])):
        case "SpaceToDepth":
            body, constants = f"a = SpaceToDepth <blocksize = {step}> (x)", {}
        case "Slice":
            squares = data.draw(st.permutations(list(product(range(step), repeat=2))))
            body, constants = sliced(squares, step)
        case _:
            body, constants = transposed(data.draw(st.permutations([1, 3, 5])), sizes, step)
    pads, strides = [number(0, 2) for _ in range(4)], [number(1, 3), number(1, 3)]
    body += f" y = Conv <pads = {pads}, strides = {strides}> (a, w, k)"
    size, weights = ", ".join(map(str, sizes)), noise(1, 2, c * step**2, *kernel)
    assert operators(body, tmp_path_factory.mktemp("drawn"), size, w=weights, k=noise(2, 2), **constants) == ["Conv"]


PROGRAMS = {
    "SpaceToDepth": (SPACE, {}),
    "Focus": (FOCUS, CONSTANTS),
    "PixelUnshuffle": transposed((1, 3, 5), (1, 3, 8, 12), 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("short_searches")
def test_programs_agree_and_are_proven_and_no_node_is_on_the_host(name: str, tmp_path: Path) -> None:
    body, constants = PROGRAMS[name]
    padded = f"{body} p = Pad (a, by) b = Conv (p, w) c = Relu (b) y = Conv (c, v)"
    arrays = {"w": noise(1, 4, 12, 3, 3), "v": noise(2, 4, 4, 1, 1), "by": np.int64([0, 0, 1, 1, 0, 0, 1, 1])}
    path = save(model(text(padded, "1, 3, 8, 12"), **constants, **arrays), tmp_path / "net.onnx")
    given, program = tmp_path / "in.npz", tmp_path / "net.cnb"
    np.savez(given, x=noise(3, 1, 3, 8, 12))
    options = ("--arch", "spatial-4x4", "--calibrate", given)
    assert "steps agree" in done("verify", path, *options, "--input", given).stdout
    done("compile", path, *options, "-o", program)
    assert "counters are as predicted" in done("estimate", program, "--check-counters").stdout
    assert not re.search(r"^ *host", disassembly(load(program)), re.MULTILINE)
    assert "proven for all inputs" in done("verify", program, "--prove", *options, "--model", path).stdout
    done("run", program, "--input", given, "--output", tmp_path / "out.npz")
    with np.load(given) as file, np.load(tmp_path / "out.npz") as out:
        (want,) = onnxruntime.InferenceSession(path).run(None, {"x": file["x"]})
        assert 20 * np.log10(np.abs(want).max() / np.abs(out["y"] - want).max()) > 50  # dB, of 15 bits
