"""The placement of an `onnx` graph's nodes on the array or on the host. No pass: `onnx-to-cnn` uses it.

Host nodes are gathered in stages. The stage of a value is the number of changes from host to array before it. So the
array's nodes of stage i run before host segment i, and the number of segments is least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, f32
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from cnncc.dialects.cnn import shape
from cnncc.dialects.onnx import NodeOp
from cnncc.dialects.weights import ConstantOp
from cnncc.main_function import main_function
from cnncc.numerics import dequantise, quantise
from cnncc.passes._onnx.codes import Codes, codes_of, rescaling
from cnncc.passes._onnx.functions import FunctionLayer
from cnncc.passes._onnx.layers import (
    ClampLayer,
    ConcatLayer,
    LeakyLayer,
    PixelsLayer,
    PoolLayer,
    ReshapeLayer,
    SliceLayer,
    StaysOnHost,
    is_tensor_of,
)
from cnncc.passes._onnx.quantised_layers import AnyLayer, DequantizeLayer, QuantisedLayer, QuantizeLayer, read_any_layer
from cnncc.passes._onnx.scale_groups import ScaleGroups, moves_integers, scale_keepers, sources
from cnncc.weights import WeightStore

HOST = "onnx.host"  # module attribute: operators that the host computes, by name
# The host computes these, too, where layers run side by side: their operands are several results, and cores have one.
NOT_ON_CORES = ("DepthToSpace",)
RESHAPE = "a Reshape beside host nodes is free"  # users can change nothing about it: no segment names it


@dataclass(frozen=True)
class HostSegment:
    """Nodes that run on the host in one call, their inputs and outputs, and the reason why they stay there."""

    nodes: Sequence[NodeOp]
    inputs: Sequence[SSAValue]
    outputs: Sequence[SSAValue]
    reason: str


@dataclass(frozen=True)
class Placement:
    """The layers of the nodes on the array, and the reasons of the nodes on the host; both in the graph's order."""

    block: Block
    layers: dict[NodeOp, AnyLayer] = field(default_factory=dict[NodeOp, AnyLayer])
    reasons: dict[NodeOp, str] = field(default_factory=dict[NodeOp, str])

    @cached_property
    def groups(self) -> ScaleGroups:
        """The values that share one scale."""
        return ScaleGroups(self.layers, self.scale_keepers, self._codes)

    @cached_property
    def scale_keepers(self) -> frozenset[NodeOp]:
        """The nodes whose results have the scale of their operands."""
        return scale_keepers(self.layers)

    def _codes(self, makers: Sequence[SSAValue]) -> Codes | None:
        """The codes of values of one group."""
        return codes_of(makers[0].type) or self._stated_of(makers)

    def _stated_of(self, makers: Sequence[SSAValue]) -> Codes | None:
        stated = (self.stated(maker) or self.stated(self.last(maker)) for maker in makers)
        return next((codes for codes in stated if codes is not None), None)

    def codes(self, value: SSAValue) -> Codes | None:
        """The codes that the model has, or states, for the group of `value`."""
        return self._codes(self.groups.makers(value))

    def root(self, value: SSAValue) -> SSAValue:
        """The representative of the values that share a scale with `value`."""
        return self.groups.root(value)

    def stated(self, value: SSAValue) -> Codes | None:
        """The model's own codes of the reals `value`: from its QuantizeLinear, or the DequantizeLinear that made it."""
        layer = self.layers.get(value.owner) if isinstance(value.owner, NodeOp) else None
        if isinstance(layer, DequantizeLayer):
            return layer.x
        readers = [self.layers.get(use.operation) for use in value.uses if isinstance(use.operation, NodeOp)]
        return next((reader.y for reader in readers if isinstance(reader, QuantizeLayer)), None)

    def last(self, value: SSAValue) -> SSAValue:
        """The last value of the chain from `value` through nodes that keep the scale, without other readers between.

        Its range decides the scale: values that a Clip, MaxPool or LeakyRelu removes may saturate before.
        """
        while (use := value.get_user_of_unique_use()) in self.scale_keepers:
            assert use is not None
            value = use.results[0]
        return value

    def known(self, value: SSAValue) -> Codes | None:
        """The model's own codes for the reals that share a scale with `value`."""
        return self._stated_of(self.groups.makers(value))

    def needs_range(self, value: SSAValue) -> bool:
        """Whether calibration decides the integers of `value`."""
        if not is_tensor_of(value, f32) or not self.is_quantised(value):
            return False
        return self.known(value) is None

    @property
    def values(self) -> list[SSAValue]:
        """The inputs, and the results of all nodes."""
        nodes = [op for op in self.block.ops if isinstance(op, NodeOp)]
        return [*self.block.args, *(value for node in nodes for value in node.results)]

    @property
    def is_exact(self) -> bool:
        """Whether all integers on the array are the model's own, so that results are onnxruntime's bit for bit."""
        kept = QuantisedLayer | FunctionLayer  # without ranges, functions are of codes
        exact = (isinstance(layer, kept) or moves_integers(layer) for layer in self.layers.values())
        return all(exact) and not self.needs_ranges

    @property
    def needs_ranges(self) -> bool:
        """Whether calibration decides any integers."""
        return any(self.needs_range(value) for value in self.values)

    def is_quantised(self, value: SSAValue) -> bool:
        """Whether `value` is quantised: the array computes it or reads it."""
        if value.owner in self.layers:
            return True
        readers = (use.operation for use in value.uses)
        return any(reader in self.layers for reader in readers) and not isinstance(value.owner, ConstantOp)


def hosted_operators(module: ModuleOp) -> set[str]:
    """The operators that the module names for the host."""
    names = module.attributes.get(HOST)
    return {name.data for name in names if isinstance(name, StringAttr)} if isinstance(names, ArrayAttr) else set()


def _why_hosted(operator: str) -> str:
    if operator in NOT_ON_CORES:
        return "layers run side by side, which have one result, not several to put in turn"
    return f"the array file has {operator} on the host (cores.host)"


def place_nodes(module: ModuleOp, store: WeightStore) -> Placement:
    """Decide for every node of the graph."""
    placement, host = Placement(main_function(module).body.block), hosted_operators(module)
    for op in placement.block.ops:
        if isinstance(op, NodeOp):
            try:
                if op.op_type.data in host:
                    raise StaysOnHost(_why_hosted(op.op_type.data))
                placement.layers[op] = read_any_layer(op, store)
            except StaysOnHost as refusal:
                placement.reasons[op] = str(refusal)
    # A node that goes to the host may leave others between host nodes, or without codes: they are looked at again.
    while misplaced := {node: reason for node in placement.layers if (reason := _misplaced(node, placement))}:
        for node, reason in misplaced.items():
            del placement.layers[node]
            placement.reasons[node] = reason
        placement = Placement(placement.block, placement.layers, placement.reasons)  # groups change
    order = {op: index for index, op in enumerate(placement.block.ops)}
    reasons = dict(sorted(placement.reasons.items(), key=lambda item: order[item[0]]))
    return Placement(placement.block, placement.layers, reasons)


def _misplaced(node: NodeOp, placement: Placement) -> str:
    """The reason to move `node` to the host although the array could run it; '' if it stays."""
    if _is_stranded(node, placement):
        return "it stands between host nodes"
    match placement.layers[node]:
        case QuantizeLayer() as layer if not _gives_codes(node, layer, placement):
            return "its input has other integers on the array, or none"
        case DequantizeLayer() if all(user in placement.reasons for user in _users(node)):
            return "only the host reads its result"
        case ReshapeLayer() if _belongs_to_host(node, placement):
            return RESHAPE
        # The host then writes to DRAM, and quantises, what is read alone: of 8 channels perhaps 2.
        case SliceLayer() | PoolLayer() if node.is_op("Slice") and node.operands[0].owner in placement.reasons:
            return "the host computes what it slices"
        case SliceLayer() | PoolLayer() if node.is_op("Slice") and _is_read_by_host(node, placement):
            return "no layer reads its result"
        case PixelsLayer() if all(value.owner in placement.reasons for value in _pixels(node, placement)):
            return "the host computes the pixels that it puts in turn"
        case ClampLayer() as layer if not _keeps_codes(node, layer, placement):
            return "its bounds lie between integers of its input"
        case LeakyLayer() if _dequantised(node.operands[0], placement) is not None:
            return "its results lie between integers of its input"
        case ConcatLayer() if len({placement.codes(value) for value in node.operands} - {None}) > 1:
            return "the model has its inputs in different scales"
        case _:
            return ""


def _users(node: NodeOp) -> list[Operation]:
    return [use.operation for result in node.results for use in result.uses]


def _is_read_by_host(node: NodeOp, placement: Placement) -> bool:
    """Whether no layer reads what `node` gives."""
    return all(isinstance(user, ReturnOp) or user in placement.reasons for user in _users(node))


def _is_stranded(node: NodeOp, placement: Placement) -> bool:
    """Whether `node` is cheap and between host nodes, so that the array would only cost accuracy.

    The host quantises its own results exactly, too.
    """
    layer = placement.layers[node]
    is_free = (moves_integers(layer) and not isinstance(layer, PoolLayer)) or isinstance(layer, FunctionLayer)
    is_free = is_free or node.is_op("BatchNormalization")
    if not is_free or any(value.owner not in placement.reasons for value in sources(node, layer)):
        return False
    return all(
        isinstance(user, ReturnOp) or user in placement.reasons or _quantises(user, placement) for user in _users(node)
    )


def _pixels(node: NodeOp, placement: Placement) -> Sequence[SSAValue]:
    """What `node` puts in turn: its operand, or the operands of the concatenation that this is."""
    made = node.operands[0].owner
    if isinstance(made, NodeOp) and isinstance(placement.layers.get(made), ConcatLayer):
        return made.operands
    return node.operands[:1]


def _belongs_to_host(node: NodeOp, placement: Placement) -> bool:
    """Whether only the host reads what a Reshape gives, or only the Reshape reads what the host gives."""
    value = node.operands[0]
    is_first = value.owner in placement.reasons and value.has_one_use()
    return is_first or all(user in placement.reasons for user in _users(node))


def _quantises(user: Operation, placement: Placement) -> bool:
    return isinstance(user, NodeOp) and isinstance(placement.layers.get(user), QuantizeLayer)


def _gives_codes(node: NodeOp, layer: QuantizeLayer, placement: Placement) -> bool:
    """Whether the reals that `node` reads can have its result's integers from the start.

    True for dequantised codes with a rescaling. True also for an input of the network, or the result of a layer of
    reals, if no reader needs other integers.
    """
    value = node.operands[0]
    if (codes := _dequantised(value, placement)) is not None:
        return rescaling(codes, layer.y) is not None
    readers = [use.operation for use in value.uses]
    if any(not isinstance(reader, NodeOp) or placement.layers.get(reader) != layer for reader in readers):
        return False
    return all(_takes_codes(maker, value, placement) for maker in placement.groups.makers(value))


def _takes_codes(maker: SSAValue, value: SSAValue, placement: Placement) -> bool:
    if isinstance(maker, BlockArgument):
        return maker is value
    made = placement.layers.get(maker.owner) if isinstance(maker.owner, NodeOp) else None
    return made is not None and placement.last(maker) is value


def _dequantised(value: SSAValue, placement: Placement) -> Codes | None:
    """The codes that were dequantised to the reals `value` on the array, if any."""
    root = placement.root(value)
    made = placement.layers.get(root.owner) if isinstance(root.owner, NodeOp) else None
    return made.x if isinstance(made, DequantizeLayer) else None


def _keeps_codes(node: NodeOp, layer: ClampLayer, placement: Placement) -> bool:
    """Whether the results of `layer`, on dequantised codes, are codes again or are quantised to the same codes next."""
    codes = _dequantised(node.operands[0], placement)
    if codes is None:
        return True
    lo, hi = dequantise(np.array(codes.range), codes.scale, codes.zero)
    bounds = np.array([layer.lo] * bool(layer.lo > lo) + [layer.hi] * bool(layer.hi < hi), np.float32)
    if (dequantise(quantise(bounds, codes.scale, codes.zero, *codes.range), codes.scale, codes.zero) == bounds).all():
        return True
    reader = node.results[0].get_user_of_unique_use()
    return isinstance(reader, NodeOp) and placement.layers.get(reader) == QuantizeLayer(codes)


def stages(placement: Placement) -> dict[NodeOp, int]:
    """The stage of every node. A Reshape that only the host reads is in that of its first reader."""
    stage: dict[NodeOp, int] = {}
    for op in placement.block.ops:
        if isinstance(op, NodeOp):
            on_array = op in placement.layers
            producers = [value.owner for value in op.operands if isinstance(value.owner, NodeOp)]
            stage[op] = max((stage[node] + (on_array and node in placement.reasons) for node in producers), default=0)
    # From the end, as the first reader of a Reshape may be another one.
    for op in reversed([op for op, reason in placement.reasons.items() if reason == RESHAPE]):
        if all(user in placement.reasons for user in _users(op)):
            stage[op] = min(stage[user] for user in _users(op) if isinstance(user, NodeOp))
    return stage


def segments(placement: Placement) -> dict[int, HostSegment]:
    """The host's work by stage; constant outputs are in stage 0."""
    stage = stages(placement)
    last = placement.block.last_op
    assert isinstance(last, ReturnOp)
    by_stage: dict[int, HostSegment] = {}
    for level in sorted({0, *(stage[node] for node in placement.reasons)}):
        members = [node for node in placement.reasons if stage[node] == level]
        outputs = [value for node in members for value in node.results if _leaves(value, level, stage, placement)]
        constants = [value for value in last.operands if isinstance(value.owner, ConstantOp)]
        outputs += list(dict.fromkeys(constants)) if level == 0 else []
        if outputs:
            by_stage[level] = _segment(outputs, level, stage, placement)
    return by_stage


def _crosses(value: SSAValue) -> bool:
    """Whether `value` may leave its segment: f32 and bytes. Values of other types are computed again instead."""
    return is_tensor_of(value, f32) or (codes_of(value.type) is not None and min(shape(value.type), default=1) > 0)


def _leaves(value: SSAValue, level: int, stage: dict[NodeOp, int], placement: Placement) -> bool:
    """Whether a node outside segment `level`, or the user, reads `value`, one of its results."""
    users = [use.operation for use in value.uses]
    if any(isinstance(user, ReturnOp) for user in users):
        return True
    nodes = [user for user in users if isinstance(user, NodeOp)]
    return _crosses(value) and any(node in placement.layers or stage[node] != level for node in nodes)


def _segment(outputs: list[SSAValue], level: int, stage: dict[NodeOp, int], placement: Placement) -> HostSegment:
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
    named = [node for node in nodes if placement.reasons[node] != RESHAPE]
    reasons = dict.fromkeys(f"{node.label()}: {placement.reasons[node]}" for node in named)
    return HostSegment(nodes, inputs, outputs, "; ".join(reasons) or "the output is constant")


def _is_inside(value: SSAValue, level: int, stage: dict[NodeOp, int], placement: Placement) -> bool:
    """Whether the host computes `value`, a node's operand, in segment `level`."""
    node = value.owner
    if not isinstance(node, NodeOp) or node not in placement.reasons:
        return False
    return stage[node] == level or not _crosses(value)


def _is_input(value: SSAValue, needed: set[NodeOp]) -> bool:
    return isinstance(value, BlockArgument) or (isinstance(value.owner, NodeOp) and value.owner not in needed)
