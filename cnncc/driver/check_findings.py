"""What a network costs, read from its IR between two steps: nodes on the host, operand bits lost, idle PEs.

Nothing here changes a module. Every function returns findings, in the order of the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import BlockArgument, OpResult, SSAValue

from cnncc.arch.model import Arch
from cnncc.dialects.array import TensorOp
from cnncc.dialects.cnn import (
    BiasOp,
    ClampOp,
    ConvOp,
    ElementwiseOp,
    HostOp,
    LookupOp,
    PoolOp,
    QuantAttr,
    RequantOp,
    ReshapeOp,
    SliceOp,
)
from cnncc.dialects.nest import LayerOp, mapping_of
from cnncc.dialects.onnx import NodeOp
from cnncc.dialects.weights import arrays_of
from cnncc.errors import Finding, plural
from cnncc.frontend.node_macs import module_macs, node_macs
from cnncc.main_function import main_function
from cnncc.mapping.mapping import DIMS, Mapping
from cnncc.model.layer_shape import LayerShape, inside
from cnncc.model.program_counts import program_counts
from cnncc.model.program_schedule import Part
from cnncc.model.routes import Nest
from cnncc.numerics import integer_range
from cnncc.passes._onnx.placement import place_nodes
from cnncc.passes._scheduling.nest_layers import goal_of, layer_shape
from cnncc.weights import Array, WeightStore

LEAST_UTILISATION = 50.0  # per cent of the PEs' cycles
LEAST_SHARE = 1  # per cent of the array's cycles: what takes less is worth no change
Arrays = dict[str, Array]  # by symbol
ACTIVATIONS = ("ifmap", "residual", "output")  # operands of a layer


# -- onnx --------------------------------------------------------------------------------------------------------------


def _operators(module: ModuleOp) -> Counter[str]:
    """How many nodes of each operator there are."""
    return Counter(op.op_type.data for op in module.walk() if isinstance(op, NodeOp))


def removed_nodes(step: str, before: ModuleOp, after: ModuleOp) -> list[Finding]:
    """Which nodes a step removed; none where it removed none."""
    removed = _operators(before) - _operators(after)
    gone = ", ".join(f"{count} {name}" for name, count in sorted(removed.items()))
    return [Finding(f"folded or removed: {gone}", "note", where=step)] if gone else []


def host_nodes(module: ModuleOp, store: WeightStore) -> list[Finding]:
    """The nodes of an `onnx` module that stay on the host, why, and their shares of the MACs."""
    total = module_macs(module)
    return [
        Finding(
            f"runs on the host: {reason}",
            "costly",
            where=node.label(),
            resource="% of MACs",
            value=100.0 * node_macs(node) / total if total else 0.0,
        )
        for node, reason in place_nodes(module, store).reasons.items()
    ]


# -- cnn ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Operands:
    """Integers of a convolution: inputs within -top..top of `source`, weights [k, …], bias [k]."""

    label: str
    source: SSAValue
    top: int
    weights: npt.NDArray[np.int64]
    bias: npt.NDArray[np.int64]
    weight_limit: int
    psum_limit: int

    @cached_property
    def greatest(self) -> npt.NDArray[np.int64]:
        """The largest magnitude of a weight, by channel; channels of zeros are left out."""
        magnitudes = np.abs(self.weights).max(axis=1)
        return magnitudes[magnitudes > 0]

    @property
    def fills_psum(self) -> bool:
        """Is there a channel whose sums would not fit with one bit more?"""
        return bool((2 * (np.abs(self.weights).sum(axis=1) * self.top + np.abs(self.bias)) > self.psum_limit).any())


def lost_bits(module: ModuleOp, store: WeightStore) -> list[Finding]:
    """The convolutions of a freshly lowered `cnn` module whose operands are narrower so that no psum overflows.

    Bits are those that the greatest magnitude takes, with the sign; of the weights in the middle channel.
    """
    arrays = arrays_of(module, store)
    convolutions = [conv for op in module.walk() if isinstance(op, ConvOp) and (conv := _operands(op, module, arrays))]
    full = {conv.source for conv in convolutions if conv.fills_psum}
    findings: list[Finding] = []
    for conv in convolutions:
        bits = _bits(conv.weight_limit)
        inputs, weights = _bits(conv.top), _bits(float(np.median(conv.greatest))) if conv.greatest.size else bits
        narrow = conv.fills_psum and weights <= bits - 1
        # The readers of a value share its top: one of them that fills its psums narrows the inputs of all.
        if conv.source in full and (narrow or conv.top < conv.weight_limit):
            what = f"activations x weights: narrower than {bits:.0f} bits so that no psum can overflow"
            value, help_ = f"{inputs:.1f} x {weights:.1f}", "an array with more psum_bits"
            findings.append(Finding(what, "costly", conv.label, "operand bits", value, f"{bits:.0f}", help_))
    return findings


def _bits(magnitude: float) -> float:
    return float(np.log2(magnitude + 1)) + 1


def _operands(op: ConvOp, module: ModuleOp, arrays: Arrays) -> _Operands | None:
    """None where the input is no integer between -top and top."""
    source, top = _source(op.x, module, arrays)
    if top is None or op.label is None:
        return None
    weights = arrays[op.weights.root_reference.data].astype(np.int64)
    user = op.result.get_user_of_unique_use()
    bias = np.zeros(len(weights), np.int64)
    if isinstance(user, BiasOp):
        bias = arrays[user.bias.root_reference.data].astype(np.int64)
    limits = [integer_range(_width(module, name))[1] for name in ("cnn.operand_bits", "cnn.psum_bits")]
    return _Operands(op.label.data, source, top, weights.reshape(len(weights), -1), bias, limits[0], limits[1])


def _width(module: ModuleOp, name: str) -> int:
    return cast("IntegerAttr", module.attributes[name]).value.data


def _source(value: SSAValue, module: ModuleOp, arrays: Arrays) -> tuple[SSAValue, int | None]:
    """The value that gave `value` its scale, and the greatest magnitude; None for an asymmetric range."""
    match value.owner:
        case ReshapeOp() | SliceOp() | ClampOp() as op:
            return _source(op.x, module, arrays)
        case PoolOp(kind=kind) as op if kind.data == "max":
            return _source(op.x, module, arrays)
        case LookupOp() as op:
            return value, int(np.abs(arrays[op.by.data.table].astype(np.int64)).max())
        case RequantOp() as op if not op.by.data.zero:
            return value, _top(op.by.data.clamp)
        case ElementwiseOp() as op:
            return value, _top(op.steps.data.add_clamp)
        case HostOp() as op if isinstance(value, OpResult):
            return value, _top(op.output_quants.data[value.index].data.clamp)
        case _:
            quant = _argument_quant(value, module)
            return value, _top(quant.data.clamp) if quant else None


def _argument_quant(value: SSAValue, module: ModuleOp) -> QuantAttr | None:
    attrs = main_function(module).arg_attrs
    if not isinstance(value, BlockArgument) or attrs is None:
        return None
    quant = attrs.data[value.index].data.get("cnn.quant")
    return quant if isinstance(quant, QuantAttr) else None


def _top(clamp: tuple[int, ...]) -> int | None:
    return clamp[1] if clamp[0] == -clamp[1] else None


def macs_on_array(module: ModuleOp) -> list[Finding]:
    """How many operations the array does, and how many of the MACs, of a freshly lowered `cnn` module."""
    macs = sum(op.macs() for op in module.walk() if isinstance(op, ConvOp))
    total = _width(module, "cnn.macs_total")
    layers = sum(isinstance(op, ConvOp | PoolOp | ElementwiseOp) for op in module.walk())
    share = 100.0 * macs / total if total else 100.0
    what = f"{macs:,} of {total:,} MACs are on the array, in {plural(layers, 'operation')}"
    return [Finding(what, "note", "network", "% of MACs", share)]


# -- nest --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrayWork:
    """The work of the array for a layer: macro-instructions in sequence, their steps, and operations in all.

    - products: the operations of a PE that has work in all of them
    - lanes: the most operations of a PE in a step (ROOF-1): one of a pool, if its lanes have no sums of their own
    """

    macros: int
    steps: int
    products: int
    operations: int
    overhead_cycles: int
    pes: int
    lanes: int

    @property
    def cycles(self) -> int:
        """Rule MAC-4, summed."""
        return self.macros * self.overhead_cycles + self.steps

    @property
    def utilisation(self) -> float:
        """Per cent of the operations that all PEs can do in these cycles."""
        return 100.0 * self.operations / (self.cycles * self.pes * self.lanes)


def array_work(shape: LayerShape, mapping: Mapping, arch: Arch) -> ArrayWork:
    """The work of the array for a layer by a mapping: copies of loops over different dimensions combine freely."""
    macros, steps, products, nest = 1, 1, 1, Nest(shape, mapping)
    for dim in DIMS:
        routes = nest.routes(dim, len(nest.outer))
        macros *= sum(route.trips for route in routes)
        steps *= sum(route.trips * (route.held // nest.lanes(dim, route.held)) for route in routes)
        products *= sum(route.trips * route.held for route in routes)
    overhead, pes = arch.pe.start_cycles + arch.pe.finish_cycles, arch.rows * arch.cols
    lanes = arch.pe.lanes if shape.is_mac or arch.pe.lane_sums else 1
    return ArrayWork(macros, steps, products, shape.operations, overhead, pes, lanes)


def work_by_label(module: ModuleOp, arch: Arch) -> dict[str, tuple[LayerOp, ArrayWork]]:
    """By label, for the layers of a `nest` module that have got a mapping and not reached it yet.

    Elementwise layers are left out: they have no macro-instructions.
    """
    return {
        op.label.data: (op, array_work(layer_shape(op), op.mapping.data, arch))
        for op in module.walk()
        if isinstance(op, LayerOp) and op.label and op.mapping and op.kind.data != "copy"
    }


def idle_pes(module: ModuleOp, arch: Arch) -> list[Finding]:
    """The layers whose macro-instructions leave more than half of the PEs' cycles unused, and why.

    A layer that takes few of the array's cycles is a note.
    """
    work_of_layers, findings = work_by_label(module, arch), list[Finding]()
    total = sum(work.cycles for _, work in work_of_layers.values())
    for label, (layer, work) in work_of_layers.items():
        if work.utilisation < LEAST_UTILISATION:
            share = 100 * work.cycles / total
            severity, what = "costly", f"{_why_idle(layer, work)} ({share:.1f} % of the array's cycles)"
            if share < LEAST_SHARE:
                severity, what = "note", f"less than {LEAST_SHARE} % of the array's cycles"
            findings.append(Finding(what, severity, label, "% of PEs used", work.utilisation, LEAST_UTILISATION))
    return findings


def _why_idle(layer: LayerOp, work: ArrayWork) -> str:
    """The greatest of the losses: start and finish of macro-instructions, idle lanes, PEs without an output."""
    sizes = layer.sizes.data
    terms = f"{sizes.c} x {sizes.r}x{sizes.s} terms a sum (c x r x s)"
    group = sizes.k if layer_shape(layer).channelwise else sizes.k // layer.window.data.group
    # The utilisation is the product of three shares: cycles with steps, PEs with work, and lanes that work in a step.
    in_steps, pes = work.steps / work.cycles, work.operations / (work.products * work.pes)
    lanes = work.products / work.steps  # on an average
    if in_steps < pes * lanes / work.lanes:
        mean_steps = work.steps / work.macros
        return f"macro-instructions of {mean_steps:.0f} steps take {work.overhead_cycles} cycles more: {terms}"
    if lanes / work.lanes < pes:
        return f"{lanes:.3g} of the {work.lanes} lanes of a PE work: {terms}"
    outputs = f"{group} x {sizes.h}x{sizes.w} outputs (k x h x w)"
    part = " of a group" if group < sizes.k else ""
    if group * sizes.h * sizes.w < work.pes:
        cause = "too few"
    elif (of_block := _block_outputs(layer, group)) < work.pes:
        cause = f"a block in the GLB has {of_block}"
    else:
        cause = "do not divide evenly"
    return f"{outputs}{part} for {work.pes} PEs: {cause}"


def _block_outputs(layer: LayerOp, channels: int) -> int:
    """The outputs of a block, for so many channels of a group; those of the layer if nothing moves in blocks."""
    mapping = goal_of(layer) or mapping_of(layer)
    depth = max((mapping.glb_stages[name].depth for name in mapping.glb_stages.keys() & set(ACTIVATIONS)), default=0)
    block = inside(layer.sizes.data, mapping.loops[:depth])
    return min(channels, block["k"]) * block["h"] * block["w"]


def streams_in_blocks(layer: LayerOp) -> bool:
    """Do activations move between DRAM and the GLB in blocks, by the mapping that the layer has or is to reach?"""
    mapping = goal_of(layer) or mapping_of(layer)
    return any(stage.memory == "glb" and stage.operand in ACTIVATIONS for stage in mapping.stages)


def glb_blocks(module: ModuleOp) -> str:
    """How many layers of a scheduled `nest` module move activations in blocks; empty where none does."""
    layers = [streams_in_blocks(op) for op in module.walk() if isinstance(op, LayerOp)]
    of = f"{sum(layers):,} of {plural(len(layers), 'layer')} {'move' if len(layers) > 1 else 'moves'}"
    return f"{of} activations through it in blocks" if any(layers) else ""


def layers_in_blocks(module: ModuleOp) -> list[Finding]:
    """What `glb_blocks` says, if anything."""
    return [Finding(summary, "note", "GLB")] if (summary := glb_blocks(module)) else []


# -- array -------------------------------------------------------------------------------------------------------------


def cycles(parts: Sequence[Part], arch: Arch) -> list[Finding]:
    """The cycles of the program and its utilisation, as `estimate` prints and `run` counts them."""
    counters = program_counts(parts, arch)
    used = ", ".join(f"{100 * counters['utilisation'][name]:.1f} % of {name}" for name in ("compute", "total"))
    return [Finding(f"predicted; utilisation {used} cycles", "note", "network", "cycles", counters["cycles"]["total"])]


def glb_use(module: ModuleOp, arch: Arch) -> list[Finding]:
    """How much of the GLB an `array` module takes, once its tensors have places."""
    tensors = [op.record.data for op in module.ops if isinstance(op, TensorOp)]
    used = max((tensor.at + tensor.words for tensor in tensors if tensor.memory == "glb"), default=0)
    return [Finding("in use at most", "note", "network", "glb.words", used, arch.glb.words)]
