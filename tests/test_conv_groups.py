"""Convolutions in groups, depthwise and with dilation on the array: every level and the binary against plain loops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_cases import build, done, noise, save
from cnn_ir import imported
from examples import FACTOR, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_cases import Small, layer_of
from onnx import helper
from textbook_dataflows import TEXTBOOK
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import Arch, load_arch
from cnncc.context import CompilerContext
from cnncc.dialects.cnn import ConvOp, HostOp
from cnncc.dialects.nest import MappingAttr
from cnncc.dialects.onnx import NodeOp
from cnncc.driver.calibrate import _rows
from cnncc.driver.pipeline import Compilation, Settings, Step, new_context
from cnncc.driver.sources import CompileOptions
from cnncc.driver.verify import compare_integers
from cnncc.errors import Refusal
from cnncc.eval import array, isa, nest
from cnncc.machine.values.products import bound, bounds, sums_of_products
from cnncc.mapping.mapping import Loop, Mapping, Stage
from cnncc.passes._onnx.layers import read_layer
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")


def case(group: int, per_group: tuple[int, int], image: tuple[int, int], kernel: tuple[int, int], **window) -> Small:
    """per_group: output and input channels of a group."""
    (k, c), n = per_group, window.pop("n", 1)
    return Small("mac", n, group * k, c, image, Window(kernel, group=group, **window))


CASES = {
    "two groups": case(2, (5, 3), (7, 5), (3, 3), pad=(1, 0, 2, 1)),
    "three groups, stride": case(3, (4, 2), (11, 8), (3, 2), stride=(2, 1), pad=(0, 1, 1, 2), n=2),
    "groups of many channels": case(2, (17, 19), (5, 3), (1, 1)),
    "depthwise": case(13, (1, 1), (7, 5), (3, 3), pad=(1, 1, 1, 1)),
    "depthwise, stride": case(7, (1, 1), (13, 11), (3, 5), stride=(2, 3), pad=(2, 0, 1, 3), n=2),
    "depthwise, zero point": case(5, (1, 1), (6, 7), (2, 3), pad=(0, 2, 1, 0), fill=3, zero=3),
    "depthwise, dilated": case(5, (1, 1), (11, 12), (3, 3), dilation=(2, 3), pad=(3, 0, 1, 2)),
    "depthwise by two": case(6, (1, 2), (5, 7), (3, 2), stride=(1, 2), pad=(1, 0, 0, 1)),
    "multiplier two": case(5, (2, 1), (7, 5), (3, 3), stride=(2, 1), pad=(0, 1, 2, 0)),
    "dilation 2": case(1, (5, 3), (11, 7), (3, 3), dilation=(2, 2), pad=(2, 2, 2, 2)),
    "dilation 3": case(1, (3, 2), (13, 11), (3, 3), dilation=(3, 3), pad=(1, 3, 4, 0)),
    "dilation 2 and 1, stride": case(1, (5, 3), (12, 9), (3, 3), dilation=(2, 1), stride=(3, 2), pad=(0, 1, 1, 0)),
    "dilation 1 and 3, stride": case(1, (4, 2), (9, 13), (2, 3), dilation=(1, 3), stride=(1, 2), pad=(1, 0, 0, 2)),
    "groups, dilation, stride": case(3, (3, 2), (11, 13), (3, 3), dilation=(2, 3), stride=(2, 1), pad=(1, 2, 0, 3)),
    "7x7": case(1, (3, 3), (15, 13), (7, 7), stride=(2, 2), pad=(3, 3, 3, 3)),
    "7x7 depthwise": case(5, (1, 1), (9, 11), (7, 7), pad=(3, 3, 3, 3)),
    "11x11": case(1, (4, 2), (19, 23), (11, 11), stride=(4, 4), pad=(2, 2, 1, 2)),
    "1x13": case(1, (3, 2), (5, 29), (1, 13), pad=(0, 6, 0, 6)),
    "3x23, stride": case(1, (3, 2), (7, 41), (3, 23), stride=(2, 2), pad=(1, 3, 0, 5)),
    "2x14 depthwise": case(5, (1, 1), (5, 27), (2, 14), pad=(0, 2, 1, 3)),
    "1x12, dilated": case(1, (2, 3), (4, 31), (1, 12), dilation=(1, 2), pad=(0, 1, 0, 2)),
    "11x11 groups": case(2, (2, 3), (13, 14), (11, 11), pad=(0, 2, 3, 0)),
}

# rows, cols, words of weights, ifmap and psums of a half, other keys
ARRAYS = {
    "8x8": (8, 8, 288, 48, 16),
    "4x4": (4, 4, 112, 48, 16),
    "3x5 small": (3, 5, 40, 26, 3),
    "1x1": (1, 1, 64, 33, 5),
    "2x7 one row of a kernel": (2, 7, 11, 11, 1),
}


def array_file(folder: Path, name: str, n2n: bool = True, glb_words: int = 65536) -> Path:
    """An array as a file."""
    rows, cols, weight, ifmap, psum = ARRAYS[name]
    path = folder / "mine.toml"
    path.write_text(f"""
        name = "mine"
        rows = {rows}
        cols = {cols}
        pe = {{ weight_words = {weight}, ifmap_words = {ifmap}, psum_words = {psum} }}
        glb = {{ words = {glb_words}, words_per_cycle = 4 }}
        dram = {{ words_per_cycle = 4, latency_cycles = 9 }}
        links = {{ n2n = {str(n2n).lower()} }}
    """)
    return path


def check_levels(case: Small, arch: Path | str) -> None:
    """Compile the case from `cnn` to a binary; wherever it can be run, it computes the sums."""
    ctx, loaded = new_context(), load_arch(str(arch))
    compilation = Compilation(ctx, case.network(ctx), Settings(loaded, str(arch), 16))
    compilation.run("isa", [lambda step, module: check(step, module, ctx, loaded, case)])


def check(step: Step, module: ModuleOp, ctx: CompilerContext, arch: Arch, case: Small) -> None:
    match step.name:
        case "nest-stage":
            (got,), _ = nest.evaluate(module, ctx.weights, [case.x])
        case "array-allocate":
            (got,), _ = array.evaluate(module, ctx.weights, arch, [case.x])
        case "array-to-isa":
            (got,), _ = isa.evaluate(module, ctx.weights, arch, [case.x])
        case _:
            return
    assert compare_integers({step.name: case.sums()}, {step.name: got}) == ""


ON_ARRAYS = [  # each case on two arrays, in a long run on all
    (arch, name)
    for number, name in enumerate(CASES)
    for turn, arch in enumerate(ARRAYS)
    if FACTOR > 1 or (turn - number) % len(ARRAYS) in (0, 2)
]


@pytest.mark.parametrize(("arch", "name"), ON_ARRAYS)
def test_conv_groups_every_level_is_brute_force(arch: str, name: str, tmp_path: Path) -> None:
    check_levels(CASES[name], array_file(tmp_path, arch))


@pytest.mark.parametrize("name", ["two groups", "dilation 2 and 1, stride", "depthwise"])
def test_conv_groups_without_links(name: str, tmp_path: Path) -> None:
    check_levels(CASES[name], array_file(tmp_path, "3x5 small", n2n=False))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        # By slices: tiles of a group, groups, and channels side by side, the last fewer than the others.
        (case(3, (32, 16), (3, 2), (1, 1)), 2600),
        (case(8, (4, 12), (3, 2), (1, 3), pad=(0, 1, 0, 1)), 2048),
        (case(37, (1, 1), (3, 2), (3, 3), pad=(1, 1, 1, 1)), 900),
    ],
)
def test_conv_groups_weights_in_slices(case: Small, words: int, tmp_path: Path) -> None:
    check_levels(case, array_file(tmp_path, "3x5 small", glb_words=words))


@st.composite
def small_cases(draw: st.DrawFn) -> Small:
    group, k, c = draw(st.sampled_from([(1, 5, 3), (2, 3, 2), (3, 2, 1), (6, 1, 1), (5, 1, 2), (4, 7, 3)]))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride, dilation = (draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for _ in range(2))
    pad = draw(st.tuples(*[st.integers(0, 3)] * 4))
    zero = draw(st.sampled_from([0, 0, -5]))
    window = Window(kernel, stride, pad, dilation, group, zero, zero)
    image = tuple(draw(st.integers(max(1, span - pad[axis]), span + 7)) for axis, span in enumerate(window.spans))
    return Small("mac", draw(st.integers(1, 2)), group * k, c, image, window, draw(st.integers(0, 99)))


@settings(max_examples=examples(20))
@given(case=small_cases(), arch=st.sampled_from(sorted(ARRAYS)))
def test_conv_groups_any_window(tmp_path_factory: pytest.TempPathFactory, case: Small, arch: str) -> None:
    check_levels(case, array_file(tmp_path_factory.getbasetemp(), arch))


# Mappings by hand.


def check_mapping(case: Small, loops: Sequence[Loop]) -> None:
    """As `check_levels`, with these loops instead of those that the search finds."""
    ctx, arch = new_context(), load_arch("spatial-4x4")
    compilation = Compilation(ctx, case.network(ctx), Settings(arch, "spatial-4x4", 16))
    depth = sum(not loop.keep for loop in loops)
    stages = [Stage(name, "glb", 0) for name in ("weight", "params")]
    stages += [Stage(name, "rf", depth, 2) for name in ("weight", "ifmap")]

    def choose(step: Step, module: ModuleOp) -> None:
        if step.name == "nest-assign-mapping":
            layer_of(module).mapping = MappingAttr(Mapping(tuple(loops), tuple(stages)))
        check(step, module, ctx, arch, case)

    compilation.run("isa", [choose])


def kept(dims: str) -> list[Loop]:
    return [Loop(dim, keep=True) for dim in dims]


@pytest.mark.parametrize("axes", [("rows", "cols"), ("cols", "rows")])
def test_conv_groups_side_by_side_in_sets(axes: tuple[str, str]) -> None:
    """Sets of several groups at a time: each has the ifmap of its own group."""
    small = case(5, (3, 2), (5, 3), (3, 2), pad=(1, 0, 0, 1), n=2)
    sets = [Loop("n"), Loop("k", 6), Loop("h", 2), Loop("w", 2), Loop("k", 3, axes[0])]
    pixels = [Loop("h", 1, "rows"), Loop("w", 1, "cols")] if axes[0] == "rows" else [Loop("w", 1, "cols")]
    inside = pixels if axes[0] == "rows" else [*pixels, Loop("h", 1, "rows")]
    check_mapping(small, [*sets, *inside, *kept("scrk")])


def test_conv_groups_stay_together_where_sets_share_a_rest() -> None:
    """The last two groups of 2 channels are in one set, although four sets could have a channel each."""
    small = case(14, (2, 1), (4, 3), (3, 2))
    check_mapping(small, [Loop("h"), Loop("w"), Loop("k", 6, "cols"), Loop("k", 2), *kept("scrk")])


@pytest.mark.parametrize(("steps", "taken"), [((4,), "4 of 6"), ((3, 2), ""), ((2,), "2 of 6"), ((), "1 of 6")])
def test_conv_groups_loops_respect_their_borders(steps: tuple[int, ...], taken: str) -> None:
    small = case(2, (3, 2), (5, 3), (3, 2))
    loops = [*(Loop("k", step) for step in steps), Loop("h"), Loop("w"), *kept("scrk")]
    if not taken:
        check_mapping(small, loops)
        return
    with pytest.raises(
        Refusal, match=f"layer conv: the loop over k takes {taken} output channels .* groups of 3 in the ifmap: it"
    ):
        check_mapping(small, loops)


@pytest.mark.parametrize("dims", ["ksr", "srk", "rks"])
def test_conv_groups_channelwise_order(dims: str) -> None:
    check_mapping(case(3, (1, 1), (5, 3), (3, 2)), [Loop("h"), Loop("w"), *kept(dims)])


@pytest.mark.parametrize("dims", ["wksr", "wscrk"])
def test_conv_groups_pixels_of_a_macro_instruction(dims: str) -> None:
    """Two pixels at a time, the last alone."""
    small = case(3, (1, 1), (5, 6), (3, 2), stride=(1, 2)) if dims == "wksr" else case(1, (5, 2), (5, 6), (3, 2))
    check_mapping(small, [Loop("h"), Loop("w", 2), *kept(dims)])


@pytest.mark.parametrize(
    ("k", "c", "size", "message"),
    [
        (10, 2, 3, "pe.weight_words 180, limit 112: a PE is to hold more words"),
        (1, 9, 3, "pe.ifmap_words 81, limit 48: a PE is to hold more words"),
        (17, 1, 2, "pe.psum_words 17, limit 16: a PE is to hold more words"),
    ],
)
def test_conv_groups_more_than_a_register_file_holds(k: int, c: int, size: int, message: str) -> None:
    """All channels in one macro-instruction: refused by name before anything runs."""
    with pytest.raises(Refusal, match=f"layer conv: {message}"):
        check_mapping(case(1, (k, c), (5, 5), (size, size)), [Loop("h"), Loop("w"), *kept("scrk")])


# The interpreter.


@pytest.mark.parametrize("steps_by_channel", [True, False])
def test_conv_groups_products_over_any_axes(steps_by_channel: bool) -> None:
    """All products of a block at once: operands may be equal along loops, those that are summed over as well."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        lead = rng.integers(1, 4, 5)
        reduced = {axis: int(lead[axis]) for axis in (1, 3) if rng.random() < 0.7}
        z, j, i, lanes = (int(n) for n in rng.integers(1, 4, 4))
        shapes = [[int(n) if rng.random() < 0.6 else 1 for n in lead] for _ in range(2)]
        x = rng.integers(-9, 9, (*shapes[0], z, j, lanes, i if steps_by_channel else 1)).astype(np.float64)
        w = rng.integers(-9, 9, (*shapes[1], z if steps_by_channel else 1, j, lanes, i)).astype(np.float64)
        each = np.broadcast_to(x * w, (*lead, z, j, lanes, i))
        axes = (*reduced, 6, 7)
        want, most = each.sum(axis=axes, keepdims=True), np.abs(each).sum(axis=axes, keepdims=True)
        added, of_each = sums_of_products(x, w, reduced), bounds(x, w, reduced)
        sizes = np.broadcast_shapes(added.shape, tuple(1 if a in reduced else n for a, n in enumerate((*lead, z, i))))
        assert np.array_equal(np.broadcast_to(added, sizes), want.squeeze((6, 7)))
        assert (np.broadcast_to(of_each, sizes) >= most.squeeze((6, 7))).all()
        assert bound(x, w, reduced) >= of_each.max()


# From ONNX.

node = helper.make_node
ON_ARRAY = {
    "groups": ({"group": 2}, (6, 2, 3, 3)),
    "depthwise": ({"group": 4, "strides": [2, 1], "pads": [0, 1, 2, 1]}, (4, 1, 3, 2)),
    "multiplier": ({"group": 4}, (8, 1, 3, 3)),
    "dilation": ({"dilations": [2, 3], "pads": [1, 0, 2, 1]}, (5, 4, 3, 3)),
    "auto_pad": ({"auto_pad": "SAME_UPPER", "strides": [2, 2], "group": 2}, (6, 2, 3, 2)),
}


def compiled(model, tmp_path: Path, level: str = "cnn") -> Compilation:
    from cnncc.driver.sources import start_compilation

    compilation = start_compilation(save(model, tmp_path / "net.onnx"), CompileOptions("spatial-4x4"))
    compilation.run(level)
    return compilation


@pytest.mark.parametrize("name", ON_ARRAY)
def test_conv_groups_onnx_layers_are_on_the_array(name: str, tmp_path: Path) -> None:
    attributes, weights = ON_ARRAY[name]
    model = build(
        [node("Conv", ["x", "w"], ["y"], **attributes)], {"x": (1, 4, 9, 11)}, ["y"], {"w": noise(1, *weights)}
    )
    module = compiled(model, tmp_path).module
    assert not [op for op in module.walk() if isinstance(op, HostOp)]
    (conv,) = [op for op in module.walk() if isinstance(op, ConvOp)]
    assert conv.macs() == module.attributes["cnn.macs_total"].value.data
    assert conv.macs() == np.prod(conv.result.type.get_shape()) * np.prod(weights[1:])
    np.savez(tmp_path / "x.npz", x=noise(2, 3, 4, 9, 11))
    result = done("verify", tmp_path / "net.onnx", "--arch", "spatial-4x4", "--input", tmp_path / "x.npz")
    assert float(re.search(r"SQNR ([\d.]+) dB", result.stdout)[1]) > 65
    assert "DIFFERS" not in result.stdout


def layer_read(attributes, weights: tuple[int, ...], image: tuple[int, int]):
    nodes = [node("Conv", ["x", "w"], ["y"], **attributes)]
    channels = weights[1] * attributes.get("group", 1)
    module, ctx = imported(nodes, {"x": (1, channels, *image)}, ["y"], {"w": noise(1, *weights)})
    (conv,) = [op for op in module.walk() if isinstance(op, NodeOp)]
    return read_layer(conv, ctx.weights)


def test_conv_groups_auto_pad_counts_the_gaps() -> None:
    layer = layer_read({"auto_pad": "SAME_LOWER", "dilations": [2, 3], "strides": [1, 2]}, (2, 3, 2, 3), (5, 8))
    # 5 rows of windows of 3; 4 columns of windows of 7, two apart: 13 of 8.
    assert layer.window.pad == (1, 3, 1, 2)


def test_conv_groups_auto_pad_of_few_taps_and_a_large_stride(tmp_path: Path) -> None:
    """Windows that need one column less leave out the last; of others onnxruntime leaves out some at the start, too."""
    layer = layer_read({"auto_pad": "SAME_UPPER", "strides": [1, 2]}, (2, 3, 1, 1), (5, 8))
    assert layer.window.pad == (0, 0, 0, 0)
    nodes = [node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[1, 4])]
    module = compiled(build(nodes, {"x": (1, 3, 5, 8)}, ["y"], {"w": noise(1, 2, 3, 1, 1)}), tmp_path).module
    (host,) = [op for op in module.walk() if isinstance(op, HostOp)]
    assert "auto_pad = SAME_UPPER needs 3 rows or columns less than the image has" in str(host)
    np.savez(tmp_path / "x.npz", x=noise(2, 3, 3, 5, 8))
    result = done("verify", tmp_path / "net.onnx", "--arch", "spatial-4x4", "--input", tmp_path / "x.npz")
    assert "DIFFERS" not in result.stdout


def test_conv_groups_calibration_measures_each_group_by_its_own_inputs() -> None:
    layer = layer_read({"group": 3}, (6, 2, 3, 2), (3, 2))
    patch = noise(5, 1, 6, 3, 2).astype(np.float64)
    want = [(patch[0, k // 2 * 2 :][:2] * layer.weights[k]).sum() for k in (0, 3, 5)]
    assert np.allclose(_rows(layer, np.array([0, 3, 5])) @ patch.ravel(), want)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [2, 3], "dilations": [3, 2], "pads": [1, 2, 0, 1], "strides": [1, 2]}),
        ("AveragePool", {"kernel_shape": [3, 2], "dilations": [1, 3]}),
    ],
)
def test_conv_groups_dilated_pools_are_on_the_array(kind: str, attributes, tmp_path: Path) -> None:
    model = build([node(kind, ["x"], ["y"], **attributes)], {"x": (1, 5, 9, 11)}, ["y"])
    model.opset_import[0].version = 19
    assert not [op for op in compiled(model, tmp_path).module.walk() if isinstance(op, HostOp)]
    np.savez(tmp_path / "x.npz", x=noise(2, 3, 5, 9, 11))
    result = done("verify", tmp_path / "net.onnx", "--arch", "spatial-4x4", "--input", tmp_path / "x.npz")
    assert float(re.search(r"SQNR ([\d.]+) dB", result.stdout)[1]) > 70


@pytest.mark.parametrize(
    ("size", "attributes", "reason"),
    [
        # The only window's rows are -1 and 2: neither is one of two, one is of three.
        (2, {"kernel_shape": [2, 1], "dilations": [3, 1], "pads": [1, 0, 1, 0]}, "leave windows without input"),
        (3, {"kernel_shape": [2, 1], "dilations": [3, 1], "pads": [1, 0, 1, 0]}, ""),
    ],
)
def test_conv_groups_max_pools_need_input(size: int, attributes, reason: str, tmp_path: Path) -> None:
    model = build([node("MaxPool", ["x"], ["y"], **attributes)], {"x": (1, 2, size, 3)}, ["y"])
    hosts = [op.reason.data for op in compiled(model, tmp_path).module.walk() if isinstance(op, HostOp)]
    assert [reason in host for host in hosts] == ([True] if reason else [])


def separable_net():
    """A stem, twice depthwise and pointwise, a residual, a dilated and a grouped layer, pool, classifier."""
    nodes = [
        node("Conv", ["x", "stem", "b0"], ["c0"], name="stem", strides=[2, 2], pads=[1, 1, 0, 1]),
        node("Clip", ["c0", "zero", "six"], ["r0"], name="relu0"),
    ]
    arrays = {"stem": noise(0, 8, 3, 3, 3) / 4, "b0": noise(1, 8) / 9, "zero": np.float32(0), "six": np.float32(6)}
    for i, strides in enumerate([[1, 1], [2, 1]]):
        depthwise = {"group": 8, "strides": strides, "pads": [1, 1, 1, 1]}
        nodes += [
            node("Conv", [f"r{i}", f"d{i}", f"e{i}"], [f"dw{i}"], name=f"dw{i}", **depthwise),
            node("Relu", [f"dw{i}"], [f"dr{i}"], name=f"dr{i}"),
            node("Conv", [f"dr{i}", f"p{i}"], [f"pw{i}"], name=f"pw{i}"),
            *([node("Add", ["pw0", "r0"], ["r1"], name="add")] if i == 0 else []),
        ]
        arrays |= {f"d{i}": noise(2 + i, 8, 1, 3, 3) / 2, f"e{i}": noise(4 + i, 8), f"p{i}": noise(6 + i, 8, 8, 1, 1)}
    nodes += [
        node("Conv", ["pw1", "a"], ["atrous"], name="atrous", dilations=[2, 2], pads=[2, 2, 2, 2]),
        node("Conv", ["atrous", "g"], ["grouped"], name="grouped", group=2),
        node("GlobalAveragePool", ["grouped"], ["pool"], name="pool"),
        node("Flatten", ["pool"], ["flat"], name="flat"),
        node("Gemm", ["flat", "f"], ["y"], name="fc"),
    ]  # fmt: skip
    arrays |= {"a": noise(8, 6, 8, 3, 3) / 8, "g": noise(9, 10, 3, 1, 1), "f": noise(10, 10, 7)}
    return build(nodes, {"x": (1, 3, 13, 11)}, ["y"], arrays)


def test_conv_groups_separable_net(tmp_path: Path) -> None:
    module = compiled(separable_net(), tmp_path).module
    assert not [op for op in module.walk() if isinstance(op, HostOp)]
    np.savez(tmp_path / "x.npz", x=noise(99, 3, 3, 13, 11))
    np.savez(tmp_path / "cal.npz", x=noise(98, 20, 3, 13, 11))
    options = ("--arch", "spatial-4x4", "--calibrate", tmp_path / "cal.npz", "--input", tmp_path / "x.npz")
    result = done("verify", tmp_path / "net.onnx", *options)
    assert "DIFFERS" not in result.stdout
    assert float(re.search(r"SQNR ([\d.]+) dB", result.stdout)[1]) > 55


def test_conv_groups_depthwise_has_channels_side_by_side(tmp_path: Path) -> None:
    """In a PE and from set to set: what depthwise layers are about. The last channels are single."""
    ctx, arch = new_context(), array_file(tmp_path, "8x8")
    small = replace(CASES["depthwise"], image=(3, 3))
    text = tmp_path / "text.toml"
    text.write_text(f'[conv]\nmapping = "{TEXTBOOK["os"].channelwise}"')
    chosen = Settings(load_arch(str(arch)), str(arch), 16, schedule=str(text))
    compilation = Compilation(ctx, small.network(ctx), chosen)
    compilation.run("array")
    loads = [op.record.data for op in compilation.module.walk() if op.name == "array.load"]
    macs = [op.record.data for op in compilation.module.walk() if op.name == "array.mac"]
    assert max(mac.step_range for mac in macs) > 1
    assert {(mac.ifmap.channel, mac.weight.channel, mac.data_reuse) for mac in macs} == {(9, 9, 0), (0, 0, 0)}
    assert {load.place.col_set.axis for load in loads if load.kind == "ifmap"} >= {"k"}
