"""Which nodes of an `onnx` graph run on the array and which on the host. No pass: `onnx-to-cnn` uses it.

Host nodes are gathered in stages: the stage of a value counts the changes from host to array before it, so
everything that the array does in stage i comes before segment i, and the segments are as few as can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, BlockArgument, OpResult, SSAValue

from cnncc.dialects.onnx import NodeOp
from cnncc.dialects.weights import ConstantOp
from cnncc.frontend.export_onnx import main_function
from cnncc.passes._onnx_layers import (
    ClampLayer,
    Layer,
    PoolLayer,
    ReshapeLayer,
    StaysOnHost,
    is_tensor_of,
    read_layer,
)
from cnncc.weights import WeightStore


@dataclass(frozen=True)
class Segment:
    """Nodes that run on the host in one go, the values that they take and give, and why they do."""

    nodes: Sequence[NodeOp]
    inputs: Sequence[SSAValue]
    outputs: Sequence[SSAValue]
    reason: str


@dataclass(frozen=True)
class Placement:
    """The layers of the nodes on the array, and the reasons of the others; both in the graph's order."""

    block: Block
    layers: dict[NodeOp, Layer] = field(default_factory=dict[NodeOp, Layer])
    reasons: dict[NodeOp, str] = field(default_factory=dict[NodeOp, str])

    def root(self, value: SSAValue) -> SSAValue:
        """The value whose integers `value` shares scale with: Relu, Clip, MaxPool and Reshape keep it."""
        while isinstance(node := value.owner, NodeOp) and keeps_scale(self.layers.get(node)):
            value = node.operands[0]
        return value

    def settled(self, value: SSAValue) -> SSAValue:
        """The value whose range counts for `value`: after a Relu or Clip, where nothing else reads it."""
        while (use := value.get_user_of_unique_use()) is not None:
            if not (isinstance(use, NodeOp) and isinstance(self.layers.get(use), ClampLayer)):
                break
            value = use.results[0]
        return value

    def is_quantised(self, value: SSAValue) -> bool:
        """Is `value` made of integers: does the array compute it or read it?"""
        if value.owner in self.layers:
            return True
        readers = (use.operation for use in value.uses)
        return any(reader in self.layers for reader in readers) and not isinstance(value.owner, ConstantOp)


def keeps_scale(layer: Layer | None) -> bool:
    """Has the result of `layer` the scale of its operand?"""
    return isinstance(layer, ClampLayer | ReshapeLayer) or (isinstance(layer, PoolLayer) and layer.kind == "max")


def place(module: ModuleOp, store: WeightStore) -> Placement:
    """Decide for every node of the graph."""
    placement = Placement(main_function(module).body.block)
    for op in placement.block.ops:
        if isinstance(op, NodeOp):
            try:
                placement.layers[op] = read_layer(op, store)
            except StaysOnHost as reason:
                placement.reasons[op] = str(reason)
    while stranded := [node for node in placement.layers if _is_stranded(node, placement)]:
        for node in stranded:
            del placement.layers[node]
            placement.reasons[node] = "it stands between host nodes"
    order = {op: index for index, op in enumerate(placement.block.ops)}
    reasons = dict(sorted(placement.reasons.items(), key=lambda item: order[item[0]]))
    return Placement(placement.block, placement.layers, reasons)


def _is_stranded(node: NodeOp, placement: Placement) -> bool:
    """Is `node` free of cost between host nodes, where going to the array would only cost accuracy?"""
    is_free = isinstance(placement.layers[node], ClampLayer | ReshapeLayer)
    if not is_free or node.operands[0].owner not in placement.reasons:
        return False
    users = [use.operation for result in node.results for use in result.uses]
    return all(isinstance(user, ReturnOp) or user in placement.reasons for user in users)


def stages(placement: Placement) -> dict[NodeOp, int]:
    """The stage of every node."""
    stage: dict[NodeOp, int] = {}
    for op in placement.block.ops:
        if isinstance(op, NodeOp):
            on_array = op in placement.layers
            producers = [value.owner for value in op.operands if isinstance(value.owner, NodeOp)]
            stage[op] = max((stage[node] + (on_array and node in placement.reasons) for node in producers), default=0)
    return stage


def segments(placement: Placement) -> dict[int, Segment]:
    """The host's work by stage; constant outputs are in stage 0."""
    stage = stages(placement)
    returned = _returned(placement.block)
    found: dict[int, Segment] = {}
    for level in sorted({0, *(stage[node] for node in placement.reasons)}):
        members = [node for node in placement.reasons if stage[node] == level]
        outputs = [value for node in members for value in node.results if _leaves(value, level, stage, placement)]
        constants = [value for value in returned if isinstance(value.owner, ConstantOp)]
        outputs += list(dict.fromkeys(constants)) if level == 0 else []
        if outputs:
            found[level] = _segment(outputs, level, stage, placement)
    return found


def _returned(block: Block) -> Sequence[SSAValue]:
    assert isinstance(block.last_op, ReturnOp)
    return block.last_op.operands


def _crosses(value: SSAValue) -> bool:
    """May `value` go from one segment to another? Anything but f32 is computed again instead."""
    return is_tensor_of(value, f32)


def _leaves(value: SSAValue, level: int, stage: dict[NodeOp, int], placement: Placement) -> bool:
    """Does anything outside segment `level` read `value`, one of its results?"""
    users = [use.operation for use in value.uses]
    if any(isinstance(user, ReturnOp) for user in users):
        return True
    nodes = [user for user in users if isinstance(user, NodeOp)]
    return _crosses(value) and any(node in placement.layers or stage[node] != level for node in nodes)


def _segment(outputs: list[SSAValue], level: int, stage: dict[NodeOp, int], placement: Placement) -> Segment:
    needed: set[NodeOp] = set()
    pending: list[SSAValue] = list(outputs)
    while pending:
        node = pending.pop().owner
        if isinstance(node, NodeOp) and node not in needed:
            needed.add(node)
            pending += [value for value in node.operands if _is_inside(value, level, stage, placement)]
    nodes = [node for node in placement.reasons if node in needed]
    taken = dict.fromkeys(value for node in nodes for value in node.operands)
    inputs = [value for value in taken if _is_input(value, needed)]
    reasons = dict.fromkeys(f"{node.label()}: {placement.reasons[node]}" for node in nodes)
    return Segment(nodes, inputs, outputs, "; ".join(reasons) or "the output is constant")


def _is_inside(value: SSAValue, level: int, stage: dict[NodeOp, int], placement: Placement) -> bool:
    """Does the host compute `value`, a node's operand, in segment `level`?"""
    node = value.owner
    if not isinstance(node, NodeOp) or node not in placement.reasons:
        return False
    return stage[node] == level or not _crosses(value)


def _is_input(value: SSAValue, needed: set[NodeOp]) -> bool:
    if isinstance(value, BlockArgument):
        return True
    return isinstance(value, OpResult) and isinstance(value.owner, NodeOp) and value.owner not in needed
