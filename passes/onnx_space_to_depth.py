"""Turns convolutions of pixels that have become channels into convolutions of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, node_of
from cnncc.errors import Refusal
from cnncc.main_function import main_function
from cnncc.passes._onnx.layers import MOST_BLOCK, StaysOnHost, is_tensor_of, kept_by_slice
from cnncc.passes._onnx.normalisation import constant_f32
from cnncc.passes._onnx.placement import hosted_operators
from cnncc.passes._onnx.replacement import NodeNames, Replacement, dims_of, ints
from cnncc.passes._onnx.windows import MOST_SIDE
from cnncc.passes.onnx_fold_constants import static_shape
from cnncc.weights import WeightStore

ROWS, COLS = 2, 3  # axes of n c h w


@dataclass(frozen=True)
class _ToDepth:
    """Nodes that make channels of the pixels of an image, of each square of them.

    - nodes: each behind those that it reads
    - channels: of pixel (i, j) of a square, which channels of the result its c channels become: i j c
    """

    nodes: Sequence[NodeOp]
    image: SSAValue
    channels: npt.NDArray[np.int64]

    @property
    def step(self) -> int:
        """Rows and columns of a square."""
        return len(self.channels)

    def is_whole(self) -> bool:
        """Whether the image is whole squares, with all its pixels among those that move."""
        n, _, h, w = dims_of(self.nodes[-1].results[0])
        step, _, of_image = self.channels.shape
        return static_shape(self.image) == (n, of_image, h * step, w * step)

    def is_read_by(self, conv: NodeOp) -> bool:
        """Whether `conv` alone reads what the nodes make, once."""
        users = {use.operation for node in self.nodes for use in node.results[0].uses}
        return users <= {conv, *self.nodes} and self.nodes[-1].results[0].has_one_use()


def _moves(value: SSAValue, store: WeightStore) -> _ToDepth | None:
    """The nodes that make `value`, an image n c h w, of the pixels of another one."""
    if node := node_of(value, "SpaceToDepth"):
        return _space_to_depth(node)
    if concat := node_of(value, "Concat"):
        return _slices(concat, store)
    last = node_of(value, "Reshape")
    turned = node_of(last.operands[0], "Transpose") if last else None
    first = node_of(turned.operands[0], "Reshape") if turned else None
    return _transposed([first, turned, last]) if first and turned and last else None


def _space_to_depth(node: NodeOp) -> _ToDepth | None:
    step, channels = node.int_attr("blocksize", 1), dims_of(node.results[0])[1]
    if step < 1 or channels % step**2:
        return None
    return _ToDepth([node], node.operands[0], np.arange(channels).reshape(step, step, -1))


def _slices(concat: NodeOp, store: WeightStore) -> _ToDepth | None:
    """A Concat of every n-th row and column, from each of the first n ones on."""
    parts = [_pixels(value, store) for value in concat.operands]
    images, steps = {part.image for part in parts}, {part.step for part in parts}
    if len(images) != 1 or len(steps) != 1 or concat.int_attr("axis", 1) not in (1, 1 - len("nchw")):
        return None
    (image,), (step,) = images, steps
    if len(parts) != step**2:
        return None
    places, squares = [part.place for part in parts], [*np.ndindex(step, step)]
    if {*places} != {*squares}:
        return None
    c = dims_of(concat.results[0])[1] // step**2
    first = np.array([places.index(place) * c for place in squares]).reshape(step, step, 1)
    nodes = dict.fromkeys(node for part in parts for node in part.nodes)
    return _ToDepth([*nodes, concat], image, first + np.arange(c))


@dataclass(frozen=True)
class _Pixels:
    """Every n-th row and column of an image, by a Slice or several. place: the first row and column."""

    image: SSAValue
    nodes: Sequence[NodeOp] = ()
    step: int = 1
    place: tuple[int, ...] = (0, 0)


def _pixels(value: SSAValue, store: WeightStore) -> _Pixels:
    """How `value` is sliced: up to the first node that does not take every n-th row or column, or takes other ones."""
    nodes, taken = list[NodeOp](), dict[int, range]()
    while node := node_of(value, "Slice"):
        more = _strided(node, store)
        if more is None or more.keys() & taken.keys():
            break
        nodes.insert(0, node)
        taken |= more
        value = node.operands[0]
    if taken.keys() != {ROWS, COLS} or taken[ROWS].step != taken[COLS].step:
        return _Pixels(value)
    return _Pixels(value, nodes, taken[ROWS].step, (taken[ROWS].start, taken[COLS].start))


def _strided(node: NodeOp, store: WeightStore) -> dict[int, range] | None:
    """The rows and columns that a Slice takes, if it takes every n-th; None where it does anything else."""
    dims = static_shape(node.operands[0])
    if dims is None:
        return None
    try:
        kept = kept_by_slice(node, dims, store)
    except (StaysOnHost, Refusal, ValueError):
        return None
    cut = {axis: indices for axis, indices in kept.items() if indices != range(dims[axis])}
    every = all(indices == range(indices.start, dims[axis], indices.step) for axis, indices in cut.items())
    return cut if every and cut.keys() <= {ROWS, COLS} else None


def _transposed(nodes: Sequence[NodeOp]) -> _ToDepth | None:
    """A Reshape to n c h i w j, a Transpose and a Reshape, as PyTorch writes them for a PixelUnshuffle."""
    first, turned, last = nodes
    image, order = first.operands[0], turned.ints_attr("perm", ())
    (n, channels, h, w), split = dims_of(last.results[0]), static_shape(first.results[0])
    if split is None or len(split) != len("nchiwj") or split != (n, split[1], h, split[3], w, split[3]):
        return None
    front = order[1:4]
    if (order[:1], sorted(front), order[4:]) != ((0,), [1, 3, 5], (2, 4)) or prod(split) != prod((n, channels, h, w)):
        return None
    numbers = np.arange(channels).reshape([split[axis] for axis in front])
    return _ToDepth(nodes, image, numbers.transpose([front.index(axis) for axis in (3, 5, 1)]))


def _rewrite(conv: NodeOp, store: WeightStore, names: NodeNames, hosted: set[str]) -> None:
    """Have `conv`, if it is a Conv of pixels that have become channels, read the image."""
    if not conv.is_op("Conv") or not (is_tensor_of(conv.operands[0], f32) and is_tensor_of(conv.results[0], f32)):
        return
    weights = constant_f32(conv.operand(1), store)
    if weights is None or weights.ndim != len("kcrs") or len(dims_of(conv.operands[0])) != len("nchw"):
        return
    is_plain = conv.str_attr("auto_pad", "NOTSET") == "NOTSET" and conv.int_attr("group", 1) == 1
    moves = _moves(conv.operands[0], store)
    if moves is None or not is_plain or {*conv.ints_attr("dilations", ())} - {1}:
        return
    if hosted & {node.op_type.data for node in moves.nodes} or not moves.is_whole() or not moves.is_read_by(conv):
        return
    step, sides = moves.step, dims_of(moves.image)[ROWS:]
    pads = [step * pad for pad in conv.ints_attr("pads", (0, 0, 0, 0))]
    if not 1 < step <= MOST_BLOCK or max(np.add(sides, np.add(pads[:2], pads[2:]))) > MOST_SIDE:
        return
    new = Replacement([*moves.nodes, conv], store, names)
    every = weights[:, moves.channels]  # k i j c r s
    k, _, _, c, r, s = every.shape
    kernels = every.transpose(0, 3, 4, 1, 5, 2).reshape(k, c, r * step, s * step)
    strides = [step * stride for stride in conv.ints_attr("strides", (1, 1))]
    attributes = {"kernel_shape": ints(kernels.shape[2:]), "strides": ints(strides), "pads": ints(pads)}
    operands = [moves.image, new.constant(kernels), *conv.operands[2:]]
    new.finish(new.node("Conv", operands, dims_of(conv.results[0]), attributes, conv))


@dataclass(frozen=True)
class OnnxSpaceToDepthPass(ModulePass):
    """Let a Conv whose channels are the pixels of squares, as of a SpaceToDepth, read the image before these move.

    Why: the host would move the pixels. A Conv with kernels and strides that are larger by the square's side multiplies
    the same numbers by the same weights:

        %0 = onnx.node "SpaceToDepth"(%x) {blocksize = 2}     : (tensor<1x3x64x64xf32>) -> tensor<1x12x32x32xf32>
        %1 = onnx.node "Conv"(%0, %w) {pads = [1, 1, 1, 1]}   : (…, tensor<8x12x3x3xf32>) -> tensor<1x8x32x32xf32>

    becomes

        %1 = onnx.node "Conv"(%x, %w') {strides = [2, 2], pads = [2, 2, 2, 2]}
            : (tensor<1x3x64x64xf32>, tensor<8x3x6x6xf32>) -> tensor<1x8x32x32xf32>

    Two other forms are such a SpaceToDepth, too, in any order of its channels. One is a Concat of every n-th row and
    column from each of the first n ones on, as YOLOv5's Focus. The other is a Transpose between two Reshapes, as
    PyTorch writes its PixelUnshuffle.

    A Conv stays if its weights are computed, if it has groups, dilations or auto_pad, or if anything else reads the
    pixels that move. So does one of squares above 8 by 8, and one where the array file has a node before it on the
    host.
    """

    name = "onnx-space-to-depth"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; unused constants stay for onnx-dead-code."""
        hosted, block, store = hosted_operators(op), main_function(op).body.block, weights_of(ctx)
        names = NodeNames(block)
        for node in list(block.ops):
            if isinstance(node, NodeOp):
                _rewrite(node, store, names, hosted)
