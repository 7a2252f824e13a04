"""`cnncc verify` with a bug planted in one step at a time: exit code 3, the step by name, and the value or op."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import frontend_models
import numpy as np
import pytest
from cli_cases import build, done, invoke, noise, save
from onnx import ModelProto, helper
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import ReturnOp

import cnncc.isa.codec as codec
import cnncc.passes._onnx.normalisation as normalisation
import cnncc.passes._programs.glb_packing as glb_packing
import cnncc.passes._programs.layer_instructions as layer_instructions
import cnncc.passes.array_prefetch as array_prefetch
import cnncc.passes.array_to_isa as array_to_isa
import cnncc.passes.cnn_fuse_epilogue as fuse_epilogue
import cnncc.passes.cnn_legalize as legalize
import cnncc.passes.cnn_to_nest as cnn_to_nest
import cnncc.passes.nest_permute as nest_permute
import cnncc.passes.nest_stage as nest_stage
import cnncc.passes.nest_tile as nest_tile
import cnncc.passes.nest_to_array as nest_to_array
import cnncc.passes.nest_unroll as nest_unroll
import cnncc.passes.onnx_dead_code as dead_code
import cnncc.passes.onnx_fold_pad as fold_pad
import cnncc.passes.onnx_remove_identity as remove_identity
import cnncc.passes.onnx_split_sum as split_sum
from cnncc.dialects import array as A
from cnncc.dialects import isa
from cnncc.dialects.cnn import ClampOp, ConvOp, StepsAttr, WindowAttr
from cnncc.dialects.nest import LayerOp
from cnncc.dialects.onnx import NodeOp
from cnncc.driver.accuracy import accuracy
from cnncc.driver.verify import compare_floats, compare_integers
from cnncc.machine.values.memory import Memory

pytestmark = pytest.mark.usefixtures("short_searches")

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("name", ["_0", "/1", ":0", "%0", "_0_0", "a_0"])
def test_values_of_any_name_are_verified(name: str, tmp_path: Path) -> None:
    """Of `_0` nothing is left where a copy of a value drops the number at the end of its name."""
    nodes = [helper.make_node("Relu", ["x"], [name]), helper.make_node("MaxPool", [name], ["y"], kernel_shape=[2, 2])]
    done("verify", save(build(nodes, {"x": (1, 2, 3, 3)}, ["y"]), tmp_path / "net.onnx"))


def test_values_of_the_host_and_nodes_are_not_mixed_up(tmp_path: Path) -> None:
    """The host computes two values, and a node has the name of its last one, with a number."""
    nodes = [
        helper.make_node("Sin", ["x"], ["a"], name="a"),
        helper.make_node("Cos", ["x"], ["b"], name="h"),
        helper.make_node("MaxPool", ["a"], ["y"], name="y", kernel_shape=[2, 2]),
        helper.make_node("MaxPool", ["b"], ["z"], name="h.1", kernel_shape=[2, 2]),
    ]
    net = save(build(nodes, {"x": (1, 2, 6, 6)}, ["y", "z"]), tmp_path / "net.onnx")
    values = re.findall(r"(?m)^ +([hy]\S*)", done("verify", net, "--layers").stdout)
    assert values == ["h_2.0", "h_2.1", "y", "h.1"]


def test_values_without_elements_are_verified(tmp_path: Path) -> None:
    """A convolution without output channels stays on the host."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    net = build(nodes, {"x": (1, 2, 6, 6)}, ["y", "z"], {"w": np.zeros((0, 2, 1, 1), np.float32)})
    assert "y against float: SQNR inf dB" in done("verify", save(net, tmp_path / "net.onnx")).stdout


def network() -> ModelProto:
    """Batch norm, pad, clamps, a residual, a pool, tiles of channels: something for every step."""
    node = helper.make_node
    nodes = [
        node("Pad", ["x", "pads"], ["p"], name="pad"),
        node("Conv", ["p", "w1"], ["c1"], name="c1"),
        node("BatchNormalization", ["c1", "s", "t", "m", "v"], ["n1"], name="bn", epsilon=0.01),
        node("Relu", ["n1"], ["r1"], name="r1"),
        node("Identity", ["r1"], ["i1"], name="i1"),
        node("Conv", ["i1", "w2", "b2"], ["c2"], name="c2", pads=[1, 1, 1, 1]),
        node("Add", ["c2", "r1"], ["s1"], name="s1"),
        node("Clip", ["s1", "lo", "hi"], ["r2"], name="r2"),
        node("Relu", ["c2"], ["r3"], name="r3"),
        node("MaxPool", ["r2"], ["y"], name="y", kernel_shape=[2, 2], strides=[2, 1]),
    ]
    arrays = {
        "pads": np.array([0, 0, 1, 0, 0, 0, 2, 1]),
        **{"w1": noise(1, 17, 3, 3, 3), "w2": noise(2, 17, 17, 3, 3), "b2": noise(3, 17)},
        **{"s": 1 + noise(4, 17) / 4, "t": noise(5, 17), "m": noise(6, 17), "v": np.abs(noise(7, 17)) / 8 + 0.01},
        **{"lo": np.float32(-0.5), "hi": np.float32(3)},
    }
    return build(nodes, {"x": (1, 3, 9, 7)}, ["y", "r3"], arrays)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save(network(), tmp_path_factory.mktemp("verify") / "net.onnx")
    done("verify", path, "--images", 2)
    return path


def after(where: Any, pass_name: str, edit: Callable[[ModuleOp], None]) -> Plant:
    """A bug: what a pass leaves is edited."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        pass_class = getattr(where, pass_name)
        right = pass_class.apply

        def wrong(self: Any, ctx: Any, op: ModuleOp) -> None:
            right(self, ctx, op)
            edit(op)

        patch.setattr(pass_class, "apply", wrong)

    return plant


def instead(where: Any, name: str, wrong: Callable[[Any], Any]) -> Plant:
    """A bug: a function is replaced by what `wrong` makes of it."""
    return lambda patch: patch.setattr(where, name, wrong(getattr(where, name)))


def first(module: ModuleOp, kind: type[Any], number: int = 0) -> Any:
    return [op for op in module.walk() if isinstance(op, kind)][number]


def edited(kind: type[Any], attr: type[Any], number: int = 0, **fields: Any) -> Callable[[ModuleOp], None]:
    """The record of an op, with other fields."""

    def edit(module: ModuleOp) -> None:
        op = first(module, kind, number)
        op.properties["record"] = attr(replace(op.record.data, **fields))

    return edit


def wrong_mac(**wrong: Callable[[Any], Any]) -> Plant:
    """Every macro-instruction has these fields changed."""

    def make(right: Any) -> Any:
        def mac(self: Any, *args: Any) -> Any:
            record = right(self, *args)
            return replace(record, **{name: change(getattr(record, name)) for name, change in wrong.items()})

        return mac

    return instead(layer_instructions.LayerInstructions, "mac", make)


def lose_the_clamp(right: Any) -> Any:
    return lambda steps, op: steps if isinstance(op, ClampOp) else right(steps, op)


def wrong_epsilon(_: Any) -> Any:
    return lambda self: self.scale / np.sqrt(self.variance.astype(np.float64) + 0.03)


def all_at_the_start(_: Any) -> Any:
    return lambda lifetimes: {tensor.name: 0 for tensor in lifetimes}


def one_word_short(_: Any) -> Any:
    """Tensors that are alive together share a word."""

    def fit(lifetimes: Any) -> dict[str, int]:
        at, places = 0, {}
        for tensor in lifetimes:
            places[tensor.name] = at
            at += tensor.words - 1
        return places

    return fit


def crash(_: Any) -> Any:
    def fail(*args: Any, **options: Any) -> Any:
        raise KeyError("planted")

    return fail


def another_weight(module: ModuleOp) -> None:
    first(module, LayerOp, 1).properties["weights"] = first(module, LayerOp, 0).properties["weights"]


def swapped_outputs(module: ModuleOp) -> None:
    """Wrong types, too."""
    op = first(module, ReturnOp)
    op.operands = list(reversed(op.operands))


def shifted_pad(module: ModuleOp) -> None:
    conv = first(module, ConvOp, 0)
    top, left, bottom, right = conv.window.data.pad
    conv.properties["window"] = WindowAttr(replace(conv.window.data, pad=(top + 1, left, bottom - 1, right)))


def other_clamp(module: ModuleOp) -> None:
    layer = first(module, LayerOp, 0)
    layer.properties["steps"] = StepsAttr(replace(layer.steps.data, clamp=(-5, 900)))


def other_pad(module: ModuleOp) -> None:
    layer = first(module, LayerOp, 0)
    top, left, bottom, right = layer.window.data.pad
    layer.properties["window"] = WindowAttr(replace(layer.window.data, pad=(top, left + 1, bottom, right - 1)))


def relu_gone(module: ModuleOp) -> None:
    node = next(op for op in module.walk() if isinstance(op, NodeOp) and op.op_type.data == "Relu")
    node.results[0].replace_all_uses_with(node.operands[0])


def wrong_step(module: ModuleOp) -> None:
    """A descriptor moves too far in a loop."""
    steps = [op for op in module.ops if isinstance(op, isa.InstOp) and op.text.data.startswith("step ")]
    steps[0].text = StringAttr(re.sub(r"\*(\d+)", lambda found: f"*{int(found[1]) + 1}", steps[0].text.data))


def wrong_instruction(name: str, field: str) -> Callable[[ModuleOp], None]:
    def edit(module: ModuleOp) -> None:
        pattern = rf"^({name} .*\b{field}=)(-?\d+)"
        op = next(op for op in module.ops if isinstance(op, isa.InstOp) and re.search(pattern, op.text.data))
        op.text = StringAttr(re.sub(pattern, lambda m: f"{m[1]}{int(m[2]) - 1}", op.text.data))

    return edit


def swapped_fields(name: str, one: str, two: str) -> Plant:
    """The encoder puts each of two fields where the other belongs."""

    def make(right: Any) -> Any:
        def encode(instruction: Any) -> Any:
            if instruction.spec.name == name:
                values = {**instruction.values}
                values[one], values[two] = values[two], values[one]
                instruction = replace(instruction, values=values)
            return right(instruction)

        return encode

    return instead(codec, "encode", make)


# Step, bug, and what the message names: the value, the op or the instruction.
BUGS: dict[str, tuple[str, Plant, str]] = {
    "identity removal loses a relu": (
        "onnx-remove-identity",
        after(remove_identity, "OnnxRemoveIdentityPass", relu_gone),
        "output 'y'",
    ),
    "wrong epsilon": (
        "onnx-fold-batch-norm",
        instead(normalisation.Normalisation, "factor", wrong_epsilon),
        "output 'y'",
    ),
    "outputs swapped": ("onnx-fold-pad", after(fold_pad, "OnnxFoldPadPass", swapped_outputs), ""),
    "a crash": ("onnx-dead-code", instead(dead_code.OnnxDeadCodePass, "apply", crash), "KeyError: 'planted'"),
    "a clamp is lost": ("cnn-fuse-epilogue", instead(fuse_epilogue, "add_step", lose_the_clamp), "value 'r"),
    "shifted pad": ("cnn-legalize", after(legalize, "CnnLegalizePass", shifted_pad), "value 'r1'"),
    "weights of another layer": ("cnn-to-nest", after(cnn_to_nest, "CnnToNestPass", another_weight), ""),
    "clamp of a nest": ("nest-tile", after(nest_tile, "NestTilePass", other_clamp), "value 'r1'"),
    "pad after permuting": ("nest-permute", after(nest_permute, "NestPermutePass", other_pad), "value 'r1'"),
    "clamp after unrolling": ("nest-unroll", after(nest_unroll, "NestUnrollPass", other_clamp), "value 'r1'"),
    "clamp after staging": ("nest-stage", after(nest_stage, "NestStagePass", other_clamp), "value 'r1'"),
    "psum never cleared": ("nest-to-array", wrong_mac(clear=lambda _: None), "c"),
    "psum cleared in every tile": ("nest-to-array", wrong_mac(clear=lambda _: ()), "layer c2: array.mac"),
    "n2n slot off by one": ("nest-to-array", wrong_mac(n2n_slot=lambda slot: slot + 1), ""),
    "ifmap step off by one": ("nest-to-array", wrong_mac(ifmap=lambda slots: replace(slots, tap=0)), ", psum "),
    "a commit goes elsewhere": (
        "nest-to-array",
        after(nest_to_array, "NestToArrayPass", edited(A.CommitOp, A.CommitAttr, start=A.Start(1))),
        "c1",
    ),
    "a transfer is too short": (
        "array-prefetch",
        after(array_prefetch, "ArrayPrefetchPass", edited(A.DmaOp, A.DmaAttr, words=3)),
        "",
    ),
    "tensors at one place": ("array-allocate", instead(glb_packing, "first_fit", all_at_the_start), "tensor "),
    "tensors share a word": ("array-allocate", instead(glb_packing, "first_fit", one_word_short), "tensor "),
    "wrong step": ("array-to-isa", after(array_to_isa, "ArrayToIsaPass", wrong_step), ""),
    "wrong pixels": (
        "array-to-isa",
        after(array_to_isa, "ArrayToIsaPass", wrong_instruction("mac", "taps")),
        "",
    ),
    "fields swapped in the encoder": ("array-to-isa", swapped_fields("mac", "step_range", "pixels"), ""),
    "fields swapped in commit": ("array-to-isa", swapped_fields("commit", "channel", "param"), ""),
    "a PE's rows swapped": (
        "array-to-isa",
        swapped_fields("load", "row", "row_set"),
        "reuses of the PE sets, first in",
    ),
}


# In the best mapping each tile of channels of c2 has sums of its own, in the GLB.
TILES_OF_C2 = (
    "weight@glb > params@glb > k':16 > h':2 > [h''||2@rows k'':4||4@cols w':3||2@cols] > c > weight@rf*2 > "
    "ifmap@rf*2 > {w'' > s > r > k'''}"
)
SCHEDULES = {"psum cleared in every tile": f'[c2]\nmapping = "{TILES_OF_C2}"'}


@pytest.mark.parametrize("bug", BUGS)
def test_cli_verify_names_the_step(bug: str, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    step, plant, named = BUGS[bug]
    plant(monkeypatch)
    (tmp_path / "schedule.toml").write_text(SCHEDULES.get(bug, ""))
    result = invoke("verify", model, "--images", 2, "--schedule", tmp_path / "schedule.toml")
    assert result.exit_code == 3, (result.stdout, result.stderr)
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"cnncc: step {step} is wrong: "), result.stdout
    assert named in last
    assert len(last) < 500
    assert "Traceback" not in result.stderr
    assert result.stdout.count("DIFFERS") == 1
    assert "agree" in result.stdout.splitlines()[0] or "DIFFERS" in result.stdout.splitlines()[0]


def test_cli_compile_names_the_step_that_crashes(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dead_code.OnnxDeadCodePass, "apply", crash(None))
    result = invoke("compile", model, "-o", tmp_path / "net.cnb")
    assert result.exit_code == 3
    assert result.stderr.splitlines() == [
        "cnncc: StepFailed: step onnx-dead-code: KeyError: 'planted': this is a defect of cnncc, please report "
        "(CNNCC_TRACEBACK=1 shows where)"
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "step"), [(("compile", "-o", "net.cnb"), "onnx-split-sum"), (("estimate",), "onnx-calibrate")]
)
def test_cli_ir_that_does_not_verify(
    command: tuple[str, ...], step: str, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`compile` verifies the IR after each step, `estimate` after the last one of a level."""
    monkeypatch.chdir(tmp_path)

    def broken(_pass: object, _ctx: object, module: ModuleOp) -> None:
        module.body.block.add_op(ReturnOp())

    monkeypatch.setattr(split_sum.OnnxSplitSumPass, "apply", broken)
    result = invoke(*command, model)
    assert result.exit_code == 3
    assert f"StepFailed: step {step}: VerifyException: " in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["Unable to allocate 8.00 GiB", ""])
def test_cli_memory_that_is_full_is_no_defect(
    text: str, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither of a step nor of a machine that runs its result."""

    def full(*_: object) -> None:
        raise MemoryError(text)

    wanted = (
        f"cnncc: not enough memory: {text or 'it is full'}: give fewer images, a smaller batch, or an array with fewer "
        f"glb.words"
    )
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "write", full)
        assert refused_by("verify", model, "--images", 2) == wanted
    monkeypatch.setattr(dead_code.OnnxDeadCodePass, "apply", full)
    assert refused_by("compile", model, "-o", tmp_path / "net.cnb") == wanted
    assert list(tmp_path.iterdir()) == []


def refused_by(*args: object) -> str:
    """The last line on stderr, of what is refused."""
    result = invoke(*args)
    assert result.exit_code == 1, (result.stdout, result.stderr)
    return result.stderr.splitlines()[-1]


def test_cli_verify_in_int8_and_on_other_arrays(model: Path) -> None:
    for options in (["--precision", "int8"], ["--arch", "spatial-4x4"], ["--arch", "spatial-16x16", "--images", 5]):
        assert "steps agree" in done("verify", model, *options).stdout


# -- the comparisons ---------------------------------------------------------------------------------------------------


def test_cli_verify_compares_integers() -> None:
    one = {"a": np.arange(6).reshape(2, 3), "output 0": np.array([1, 2])}
    assert compare_integers(one, {**one, "b": np.zeros(3)}) == ""
    assert compare_integers(one, {"output 0": np.array([1, 2])}) == ""  # fused away
    assert compare_integers(one, {"a": one["a"]}) == "output 0 is missing"
    assert compare_integers(one, {**one, "a": one["a"].reshape(3, 2)}) == ""
    assert "shape [2] instead of [2, 3]" in compare_integers(one, {**one, "a": np.arange(2)})
    changed = one["a"].copy()
    changed[1, 0] = 9
    found = compare_integers(one, {**one, "a": changed})
    assert found == "value 'a' differs in 1 of 6 places, first at [1, 0]: 9 instead of 3"


def test_cli_verify_compares_what_is_no_number() -> None:
    """0 / 0 on the host is the same at every level."""
    nan = {"output 0": np.array([1.0, np.nan])}
    assert compare_integers(nan, nan) == ""
    assert "differs in 1 of 2" in compare_integers(nan, {"output 0": np.array([1.0, 2.0])})
    assert compare_floats(nan, nan) == ""
    assert "output 'output 0' differs" in compare_floats(nan, {"output 0": np.array([1.0, 2.0])})


def test_cli_verify_compares_floats() -> None:
    exact = {"y": np.array([100.0, 1.0])}
    assert compare_floats(exact, {"y": np.array([100.0, 1.009])}) == ""
    assert "differs by 1.10e-04" in compare_floats(exact, {"y": np.array([100.0, 1.011])})
    assert compare_floats(exact, {}) == "output 'y' is missing"
    assert compare_floats(exact, {"y": np.array([100.5, 1.0])}, steps={"y": 0.5}) == ""
    assert "differs by 6.00e-03" in compare_floats(exact, {"y": np.array([100.6, 1.0])}, steps={"y": 0.5})
    found = accuracy("y", np.array([[1.0, 2.0]]), np.array([[1.0, 2.1]]))
    assert (round(found.sqnr_db, 2), round(found.max_error, 3), found.top1_agreement) == (26.99, 0.1, 1.0)


@pytest.mark.parametrize("place", ["the array", "the host"])
def test_what_a_sigmoid_rounds_is_no_difference(place: str, tmp_path: Path) -> None:
    """Outputs of a detector that sees nothing are 1e-7, as much as onnxruntime's Sigmoid errs."""
    last = "y = Sigmoid (a)" if place == "the array" else "b = Max (a, least) y = Sigmoid (b)"
    text = f"""
        g (float[1, 8, 6, 6] x) => (float[1, 4, 6, 6] y) {{
            c = Conv (x, w)
            m = Mul (c, scale)
            a = Add (m, bias)
            {last}
        }}
    """
    arrays = {"w": noise(1, 4, 8, 1, 1), "scale": noise(2, 4, 1, 1), "bias": np.full((4, 1, 1), -30, np.float32)}
    if place == "the host":
        arrays["least"] = np.float32(-99)
    net = save(frontend_models.model(text, **arrays), tmp_path / "net.onnx")
    assert ("runs on the host" in done("check", net).stdout) == (place == "the host")
    assert "steps agree" in done("verify", net).stdout


def test_codes_that_the_host_slices_may_differ_by_a_step(tmp_path: Path) -> None:
    """A mean of 5.5 steps is 5 or 6 of them, a fifth of all that the output has."""
    text = """
        g (float[1, 2, 2, 3] x) => (float[1, 1, 2, 3] y) {
            q = QuantizeLinear (x, wide, zero)
            d = DequantizeLinear (q, wide, zero)
            p = GlobalAveragePool (d)
            r = QuantizeLinear (p, step, zero)
            e = DequantizeLinear (r, step, zero)
            s = Slice (e, first, end, axis)
            y = Expand (s, image)
        }
    """
    arrays = {"first": np.array([1]), "end": np.array([2]), "axis": np.array([1]), "image": np.array([1, 1, 2, 3])}
    scales = {"wide": np.float32(0.03), "step": np.float32(0.02), "zero": np.uint8(0)}
    net = save(frontend_models.model(text, **arrays, **scales), tmp_path / "net.onnx")
    image = np.zeros((1, 2, 2, 3), np.float32)
    image[0, 1, 0, 0] = 22 * 0.03
    np.savez(tmp_path / "in.npz", x=image)
    said = done("verify", net, "--input", tmp_path / "in.npz", "--calibrate", tmp_path / "in.npz").stdout
    assert re.search("onnx-fold-qdq +agrees +1 output within 5e-02", said)  # the step makes a difference
    assert "steps agree" in said
