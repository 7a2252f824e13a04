"""Convolutions in groups whose results are shuffled by another number of groups: right, or refused with a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import build, done, noise, save
from nest_cases import layer_of
from onnx import TensorProto, helper
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from cnncc.arch.model import load_arch
from cnncc.dialects.cnn import StepsAttr
from cnncc.dialects.nest import MappingAttr
from cnncc.driver.pipeline import DONE, Compilation, Settings, Step, new_context
from cnncc.errors import Refusal, plural
from cnncc.mapping.mapping import Loop, Mapping, Stage
from cnncc.model.layer_shape import LayerShape, Sizes
from cnncc.model.routes import Nest
from cnncc.passes._programs.layer_records import AxisStep
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

node = helper.make_node
N, H, W = 2, 5, 4
CHANNELS = [6, 8, 12]  # with all their pairs of numbers of groups: 16


def pairs(channels: int) -> list[tuple[int, int]]:
    """Groups of the convolution and of the shuffle, where both are more than one and fewer than the channels."""
    some = [groups for groups in range(2, channels) if channels % groups == 0]
    return [(g, s) for g in some for s in some if g != s]


def shuffle(source: str, result: str, groups: int, channels: int, arrays: dict[str, Any]) -> list[onnx.NodeProto]:
    arrays[f"{result}.5"] = np.array([N, groups, channels // groups, H, W])
    arrays[f"{result}.4"] = np.array([N, channels, H, W])
    return [
        node("Reshape", [source, f"{result}.5"], [f"{result}.a"]),
        node("Transpose", [f"{result}.a"], [f"{result}.b"], perm=[0, 2, 1, 3, 4]),
        node("Reshape", [f"{result}.b", f"{result}.4"], [result], name=result),
    ]


def test_shuffled_groups_are_all_pairs() -> None:
    assert sum(len(pairs(channels)) for channels in (4, *CHANNELS)) == 16


@pytest.mark.parametrize("channels", CHANNELS)
def test_shuffled_groups_of_reals_agree_on_every_level(channels: int, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    nodes: list[onnx.NodeProto] = []
    for g, s in pairs(channels):
        name = f"{g}.{s}"
        arrays[f"w{name}"] = noise(g + s, channels, channels // g, 3, 3)
        nodes.append(node("Conv", ["x", f"w{name}"], [f"c{name}"], group=g, pads=[1] * 4))
        nodes += shuffle(f"c{name}", f"y{name}", s, channels, arrays)
    outputs = [f"y{g}.{s}" for g, s in pairs(channels)]
    model = save(build(nodes, {"x": (N, channels, H, W)}, outputs, arrays), tmp_path / "net.onnx")
    assert "DIFFERS" not in done("verify", model, "--arch", "spatial-8x8").stdout


@pytest.mark.parametrize("channels", CHANNELS)
def test_shuffled_groups_of_codes_are_those_of_onnxruntime(channels: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(channels)
    arrays: dict[str, Any] = {"s": np.float32(0.05), "z": np.uint8(7), "wz": np.int8(0)}
    nodes: list[onnx.NodeProto] = []
    for g, s in pairs(channels):
        name = f"{g}.{s}"
        arrays[f"w{name}"] = rng.integers(-128, 128, (channels, channels // g, 3, 3)).astype(np.int8)
        steps = ["x", "s", "z", f"w{name}", "s", "wz", "s", "z"]
        nodes.append(node("QLinearConv", steps, [f"c{name}"], group=g, pads=[1] * 4))
        nodes += shuffle(f"c{name}", f"y{name}", s, channels, arrays)
    outputs = [f"y{g}.{s}" for g, s in pairs(channels)]
    model = build(nodes, {"x": (N, channels, H, W)}, outputs, arrays)
    for value in (*model.graph.input, *model.graph.output):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.UINT8, (N, channels, H, W)))
    np.savez(tmp_path / "x.npz", x=rng.integers(0, 256, (2 * N, channels, H, W)).astype(np.uint8))
    args = ["--arch", "spatial-8x8", "--input", tmp_path / "x.npz"]
    printed = done("verify", save(model, tmp_path / "net.onnx"), *args).stdout
    assert f"{plural(len(outputs), 'output')} as onnxruntime's in every bit" in printed and "DIFFERS" not in printed


# -- by hand: loops that would cross a border are refused by the model and by the lowering -----------------------------

CONV = """builtin.module attributes {{{done} = "cnn-legalize"}} {{
    weights.global @w : tensor<12x4x1x1xi16> = #weights.ref<"{weights}">
    func.func @main(%x : tensor<1x12x3x2xi16> {{onnx.name = "x", cnn.quant = #cnn.quant<scale = 1.0>}})
        -> (tensor<1x12x3x2xi16> {{onnx.name = "y", cnn.quant = #cnn.quant<scale = 1.0>}}) {{
      %1 = cnn.conv %x weights @w window <kernel = [1, 1], group = 3> then <shuffle = {groups}> label "conv"
           : tensor<1x12x3x2xi16> -> tensor<1x12x3x2xi16>
      func.return %1 : tensor<1x12x3x2xi16>
    }} }}"""


def by_hand(groups: int) -> Compilation:
    """Three groups of 4 output channels whose results are shuffled, as one op."""
    ctx = new_context()
    weights = ctx.weights.add(np.arange(48, dtype=np.int16).reshape(12, 4, 1, 1))
    module = Parser(ctx, CONV.format(done=DONE, weights=weights, groups=groups)).parse_module()
    return Compilation(ctx, module, Settings(load_arch("spatial-4x4"), "spatial-4x4", 16))


def test_shuffled_groups_are_no_op_by_hand() -> None:
    by_hand(3).module.verify()
    with pytest.raises(VerifyException, match="the results of 3 groups are not shuffled in 2: a cnn.shuffle is"):
        by_hand(2).module.verify()


BY_HAND = {
    (12,): "",
    (1,): "1 of 12 output channels at a time, across groups of 4 in the ifmap",
    (4, 1): "4 of 12 output channels at a time, across groups of 6 in the output",
    (6, 1): "6 of 12 output channels at a time, across groups of 4 in the ifmap",
}


@pytest.mark.parametrize("steps", [steps for steps, message in BY_HAND.items() if message])
def test_shuffled_groups_loops_across_borders_are_not_lowered(steps: tuple[int, ...]) -> None:
    loops = [*(Loop("k", step) for step in steps), Loop("h"), Loop("w"), *(Loop(dim, keep=True) for dim in "scrk")]
    stages = [Stage("weight", "glb", 0), *(Stage(name, "rf", len(steps) + 2, 2) for name in ("weight", "ifmap"))]

    def choose(step: Step, module: ModuleOp) -> None:
        if step.name == "nest-assign-mapping":
            layer = layer_of(module)
            layer.mapping = MappingAttr(Mapping(tuple(loops), tuple(stages)))
            layer.steps = StepsAttr(replace(layer.steps.data, shuffle=2))

    with pytest.raises(Refusal, match=BY_HAND[steps]):
        by_hand(3).run("isa", [choose])


@pytest.mark.parametrize("steps", BY_HAND)
def test_shuffled_groups_loops_across_borders_have_no_cost(steps: tuple[int, ...]) -> None:
    shape = LayerShape("mac", Sizes(1, 12, 4, 3, 2, 1, 1), Window((1, 1), group=3), 0, 3, 2, shuffle=2)
    assert shape.periods == {"ifmap": 4, "output": 6}
    mapping = Mapping(tuple(Loop("k", step) for step in steps), ())
    if not BY_HAND[steps]:
        assert Nest(shape, mapping)
        return
    with pytest.raises(Refusal, match="start anew every"):
        Nest(shape, mapping)


def test_shuffled_groups_steps_across_a_period_have_no_distance() -> None:
    assert AxisStep("k", 1, 4, 5).of(8) == 2
    with pytest.raises(ValueError, match="a step by 6 crosses a period of 4"):
        AxisStep("k", 1, 4, 5).of(6)
