"""Activations and weights that do not fit the GLB move through it: every level and the binary against plain loops."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli_cases import build, done, invoke, noise, refused, save
from examples import examples
from frontend_models import model
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper
from test_conv_groups import ARRAYS, Small, array_file, case, check_levels, small_cases

from cnncc.arch.model import load_arch
from cnncc.dialects.array import DmaOp, TensorOp, ViewOp
from cnncc.driver.pipeline import Compilation, Settings, new_context
from cnncc.passes._scheduling.glb_words import GlbTooSmall

pytestmark = pytest.mark.usefixtures("short_searches")

node = helper.make_node
SMALL = {
    "rows": case(1, (5, 3), (11, 7), (3, 3), pad=(1, 1, 1, 1)),
    "columns": case(1, (3, 2), (5, 23), (3, 3), pad=(1, 1, 2, 1), stride=(1, 2)),
    "images": case(1, (4, 2), (9, 7), (2, 3), pad=(1, 0, 0, 1), n=3),
    "stride": case(1, (4, 3), (17, 9), (3, 3), stride=(2, 2), pad=(1, 1, 1, 1)),
    "rows skipped": case(1, (5, 3), (14, 11), (1, 1), stride=(2, 3)),
    "rows of taps": case(1, (4, 3), (11, 9), (1, 3), stride=(3, 1), pad=(0, 1, 0, 1), n=2),
    "groups": case(3, (4, 2), (11, 8), (3, 2), stride=(2, 1), pad=(0, 1, 1, 2)),
    "depthwise": case(13, (1, 1), (9, 5), (3, 3), pad=(1, 1, 1, 1)),
    "weights": case(1, (17, 37), (3, 2), (3, 1), pad=(1, 0, 0, 0)),
    "fully connected": case(1, (23, 41), (1, 1), (1, 1)),
}


@pytest.mark.parametrize("words", [70, 260, 500])
@pytest.mark.parametrize("name", SMALL)
def test_glb_blocks_every_level_is_brute_force(name: str, words: int, tmp_path: Path) -> None:
    try:
        check_levels(SMALL[name], array_file(tmp_path, "3x5 small", glb_words=words))
    except GlbTooSmall as refusal:
        assert refusal.words > words
        assert f": {refusal.words} would do" in str(refusal)
        check_levels(SMALL[name], array_file(tmp_path, "3x5 small", glb_words=refusal.words))


@settings(max_examples=examples(10))
@given(case=small_cases(), arch=st.sampled_from(sorted(ARRAYS)), words=st.integers(20, 400))
def test_glb_blocks_any_window(tmp_path_factory: pytest.TempPathFactory, case: Small, arch: str, words: int) -> None:
    try:
        check_levels(case, array_file(tmp_path_factory.getbasetemp(), arch, glb_words=words))
    except GlbTooSmall as refusal:
        assert refusal.words > words
        assume(False)


def test_glb_blocks_move_what_they_say(tmp_path: Path) -> None:
    """Rows and columns of the image from the padding on; a ring of as many rows as a block needs."""
    ctx, path = new_context(), array_file(tmp_path, "3x5 small", glb_words=130)
    compilation = Compilation(ctx, SMALL["rows"].network(ctx), Settings(load_arch(str(path)), str(path), 16))
    compilation.run("array")
    tensors = {op.record.data.name: op.record.data for op in compilation.module.walk() if isinstance(op, TensorOp)}
    transfers = [op.record.data for op in compilation.module.walk() if isinstance(op, DmaOp)]
    assert tensors["conv.ifmap.glb"].words < tensors["x"].words
    assert not any(name in tensors for name in ("x.glb", "conv.glb"))
    first = next(dma for dma in transfers if dma.dram == "ifmap.dram")
    assert (first.y, first.x, first.dram_step) == (-1, -1, 77)  # from channel to channel 11 x 7 words
    views = [op.record.data for op in compilation.module.walk() if isinstance(op, ViewOp)]
    (ring,) = [view for view in views if view.name == "ifmap"]
    assert (ring.ring_y, ring.ring_x) == (first.rows, first.words)
    assert (ring.height, ring.width, ring.pitch, ring.plane) == (11, 7, first.words, first.glb_step)
    assert first.glb_step == first.rows * first.words


@pytest.mark.usefixtures("resident_ends")
@pytest.mark.parametrize(("words", "name"), [(130, "ifmap.dram"), (4000, "ifmap")])
def test_glb_blocks_have_no_rows_and_columns_that_no_window_touches(words: int, name: str, tmp_path: Path) -> None:
    """Rows 0, 2, … 12 of 14 and columns up to 9 of 11: a row of them is 22 words behind the one before it."""
    ctx, path = new_context(), array_file(tmp_path, "3x5 small", glb_words=words)
    compilation = Compilation(ctx, SMALL["rows skipped"].network(ctx), Settings(load_arch(str(path)), str(path), 16))
    compilation.run("array")
    views = [op.record.data for op in compilation.module.walk() if isinstance(op, ViewOp)]
    (home,) = [view for view in views if view.name == name]
    assert (home.height, home.width, home.pitch, home.plane) == (7, 10, 22, 14 * 11)
    transfers = [op.record.data for op in compilation.module.walk() if isinstance(op, DmaOp)]
    blocks = [dma for dma in transfers if dma.dram == "ifmap.dram"]
    assert bool(blocks) == (words == 130) and all(dma.rows <= 7 and dma.words <= 10 for dma in blocks)


def branches(image: tuple[int, int] = (29, 23)) -> bytes:
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="a", pads=[3, 3, 3, 3], strides=[2, 2]),
        node("Relu", ["a"], ["b"], name="b"),
        node("MaxPool", ["b"], ["p"], name="p", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["p", "w2"], ["c"], name="c", pads=[1, 1, 1, 1]),
        node("Conv", ["p", "w3"], ["d"], name="d"),
        node("Add", ["c", "d"], ["e"], name="e"),
        node("Relu", ["e"], ["f"], name="f"),
        node("Add", ["f", "p"], ["g"], name="g"),
        node("GlobalAveragePool", ["g"], ["h"], name="h"),
        node("Flatten", ["h"], ["i"], name="i"),
        node("Gemm", ["i", "w4"], ["y"], name="y", transB=1),
    ]
    weights = {"w1": noise(1, 8, 3, 7, 7), "w2": noise(2, 8, 8, 3, 3), "w3": noise(3, 8, 8, 1, 1), "w4": noise(4, 7, 8)}
    return build(nodes, {"x": (2, 3, *image)}, ["y", "g"], weights)


def image_for(words: int) -> tuple[int, int]:
    """Smaller ones for smaller GLBs. The blocks of the smallest are single pixels: no value of the network fits it."""
    return (11, 9) if words < 300 else (19, 17) if words < 1000 else (29, 23)


def test_glb_blocks_of_single_pixels(tmp_path: Path) -> None:
    """Proven, as `array` takes long to run in such small blocks; one draw is enough for 2^-8."""
    save(branches(image_for(240)), tmp_path / "net.onnx")
    arch = array_file(tmp_path, "4x4", glb_words=240)
    said = done("verify", tmp_path / "net.onnx", "--arch", arch, "--prove", "--error", "2^-8").stdout
    assert "proven for all inputs and all weights" in said


@pytest.mark.parametrize("words", [700, 3000])
def test_glb_blocks_of_a_network(words: int, tmp_path: Path) -> None:
    """Sums of two branches, pools and images apart; two outputs of which one does not fit the smaller GLBs."""
    image = image_for(words)
    save(branches(image), tmp_path / "net.onnx")
    np.savez(tmp_path / "x.npz", x=noise(5, 2, 3, *image))
    arch = array_file(tmp_path, "4x4", glb_words=words)
    result = done("verify", tmp_path / "net.onnx", "--arch", arch, "--input", tmp_path / "x.npz")
    assert "DIFFERS" not in result.stdout
    assert "steps agree" in result.stdout


def test_glb_blocks_beside_values_that_only_pass(tmp_path: Path) -> None:
    """x is an output under another shape: its words are in the GLB as long as the program runs, and no layer's."""
    nodes = [
        node("Flatten", ["x"], ["flat"], name="flat"),
        node("Conv", ["z", "w"], ["y"], name="conv", pads=[1, 1, 1, 1]),
    ]
    save(
        build(nodes, {"x": (1, 3, 9, 7), "z": (1, 3, 5, 4)}, ["flat", "y"], {"w": noise(1, 4, 3, 3, 3)}), tmp_path / "m"
    )
    words = 0
    for _ in range(9):
        arch = array_file(tmp_path, "4x4", glb_words=words or 150)
        result = invoke("compile", tmp_path / "m", "--arch", arch, "-o", tmp_path / "m.cnb")
        if result.exit_code == 0:
            break
        words = int(re.findall(r"(\d+) would do", result.stderr)[0])
        assert "nest-assign-mapping" in result.stderr or "'outputs'" in result.stderr
    assert 189 < words < 600
    assert "steps agree" in done("verify", tmp_path / "m", "--arch", arch).stdout


# What a host segment, or the user, reads in another shape than the layers compute it in.
RESHAPED = {
    "output": """g (float[N, 3, 10, 8] x) => (float[N, 9, 80] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, v)
        y = Reshape (c, flat)
    }""",
    "host": """g (float[N, 3, 10, 8] x) => (float[N, 9, 80] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, v)
        r = Reshape (c, flat)
        y = Sin (r)
    }""",
    "concat": """g (float[N, 3, 10, 8] x) => (float[N, 9, 160] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = Conv <pads = [1, 1, 1, 1]> (x, u)
        c = Concat <axis = 1> (a, b)
        r = Reshape (c, flat)
        e = Sin (r)
        y = Concat <axis = 2> (r, e)
    }""",
    "a layer, too": """g (float[N, 3, 10, 8] x) => (float[N, 9, 80] y, float[N, 4, 10, 8] z) {
        c = Conv <pads = [1, 1, 1, 1]> (x, v)
        r = Reshape (c, flat)
        y = Sin (r)
        z = Conv <pads = [1, 1, 1, 1]> (c, t)
    }""",
    "two shapes": """g (float[N, 3, 10, 8] x) => (float[N, 9, 80] y, float[N, 9, 10, 8] z) {
        c = Conv <pads = [1, 1, 1, 1]> (x, v)
        r = Reshape (c, flat)
        y = Sin (r)
        z = Sin (c)
    }""",
    "images": """g (float[N, 3, 10, 8] x) => (float[M, 80] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, v)
        r = Reshape (c, images)
        y = Sin (r)
    }""",
    "from the host": """g (float[N, 3, 10, 8] x) => (float[N, 4, 8, 10] y, float[N, 9, 80] z) {
        c = Conv <pads = [1, 1, 1, 1]> (x, v)
        e = Sin (c)
        r = Reshape (e, turned)
        y = Conv <pads = [1, 1, 1, 1]> (r, t)
        f = Reshape (r, flat)
        z = Sin (f)
    }""",
}
# The user reads it in two shapes, or in images that are counted otherwise: the value stays in the GLB.
RESIDENT = {
    "two shapes": """g (float[N, 3, 10, 8] x) => (float[N, 9, 80] y, float[N, 9, 10, 8] c) {
        c = Conv <pads = [1, 1, 1, 1]> (x, v)
        y = Reshape (c, flat)
    }""",
    "images": """g (float[2, 3, 10, 8] x) => (float[18, 80] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, v)
        y = Reshape (c, images)
    }""",
}


def reshaped(text: str, folder: Path) -> Path:
    """The network of a text, with its constants."""
    arrays = {
        "w": noise(1, 5, 3, 3, 3),
        "u": noise(2, 4, 3, 3, 3),
        "v": noise(3, 9, 3, 3, 3),
        "t": noise(4, 4, 9, 3, 3),
    }
    shapes = {"flat": np.array([0, 9, -1]), "images": np.array([-1, 80]), "turned": np.array([0, 9, 8, 10])}
    used = {name: array for name, array in (arrays | shapes).items() if re.search(rf"\b{name}\)", text)}
    return save(model(text, **used), folder / "net.onnx")


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("name", RESHAPED)
def test_glb_blocks_that_are_read_in_another_shape(name: str, images: int, tmp_path: Path) -> None:
    net, arch = reshaped(RESHAPED[name], tmp_path), array_file(tmp_path, "4x4", glb_words=600)  # of 9 x 80
    done("compile", net, "--batch", images, "--arch", arch, "-o", tmp_path / "net.cnb")
    assert "steps agree" in done("verify", net, "--batch", images, "--arch", arch).stdout


@pytest.mark.parametrize("name", RESIDENT)
def test_glb_blocks_are_of_one_shape(name: str, tmp_path: Path) -> None:
    net, small = reshaped(RESIDENT[name], tmp_path), array_file(tmp_path, "4x4", glb_words=600)
    assert "glb.words = 600" in refused("compile", net, "--arch", small, "-o", tmp_path / "net.cnb")
    large = array_file(tmp_path, "4x4", glb_words=2000)
    assert "steps agree" in done("verify", net, "--arch", large).stdout
