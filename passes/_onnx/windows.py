"""Reads the sliding window of an ONNX node. No pass: the readers of layers use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cnncc.dialects.cnn import shape
from cnncc.dialects.onnx import NodeOp
from cnncc.window import Window

MOST_SIDE = (1 << 15) - 1
"""Rows or columns of an image with its padding: `y` and `x` of instructions have 16 bits, one of them for the sign."""


class StaysOnHost(Exception):
    """The reason why the array cannot run a node."""


def require(holds: bool, reason: str) -> None:
    """Raises StaysOnHost with `reason` unless it `holds`."""
    if not holds:
        raise StaysOnHost(reason)


def require_sides(sizes: Sequence[int], what: str) -> None:
    """Raises StaysOnHost unless instructions can count the rows and columns of `what`, an image of these sizes."""
    image = "x".join(map(str, sizes))
    require(max(sizes, default=0) <= MOST_SIDE, f"{what} is {image}: images have at most {MOST_SIDE} rows and columns")


def read_pads(node: NodeOp, spans: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Pads (top, left, bottom, right), from `pads` or `auto_pad`. spans: rows and columns of a dilated window.

    SAME has ⌈size / stride⌉ windows. With few taps and a large stride these need less than the image. ONNX does not say
    what is left out then: of 8 columns, with windows of one column and stride 4, onnxruntime takes columns 1 and 5 for
    a Conv with SAME_UPPER, and runs no such pool. The array leaves out the end, as onnxruntime does for a Conv whose
    windows need one pixel less; other Convs stay.
    """
    auto = node.str_attr("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return node.ints_attr("pads", (0, 0, 0, 0))
    if auto == "VALID":
        return (0, 0, 0, 0)
    require(auto in ("SAME_UPPER", "SAME_LOWER"), f"auto_pad = {auto}")
    sizes = shape(node.operands[0].type)[2:]
    axes = zip(sizes, spans, stride, strict=True)
    totals = [(-(-size // step) - 1) * step + span - size for size, span, step in axes]
    is_known = min(totals) >= -1 or "Pool" in node.op_type.data
    require(is_known, f"auto_pad = {auto} needs {-min(totals)} rows or columns less than the image has")
    totals = [max(total, 0) for total in totals]
    less = tuple(total // 2 for total in totals)
    more = tuple(total - half for total, half in zip(totals, less, strict=True))
    return less + more if auto == "SAME_UPPER" else more + less


def read_window(node: NodeOp, kernel: tuple[int, ...], group: int = 1) -> Window:
    """The window of a Conv or pool. Raises StaysOnHost if the result's size is not the window's."""
    sizes = image_sizes(node)
    stride, dilation = node.ints_attr("strides", (1, 1)), node.ints_attr("dilations", (1, 1))
    unpadded = Window(kernel, stride, dilation=dilation, group=group)
    window = replace(unpadded, pad=read_pads(node, unpadded.spans, stride))
    if node.int_attr("ceil_mode", 0):
        window = _reaching_over(window, sizes)
    stated, ours = shape(node.results[0].type)[2:], window.output(*sizes)
    require(stated == ours, f"the result is {stated[0]}x{stated[1]}, the windows give {ours[0]}x{ours[1]}")
    padded = [size + before + after for size, before, after in zip(sizes, window.pad[:2], window.pad[2:], strict=True)]
    require_sides(padded, "input 0 with its padding")
    return window


def image_sizes(node: NodeOp) -> tuple[int, int]:
    """Rows and columns of input 0. Raises StaysOnHost if it is no image."""
    dims = shape(node.operands[0].type)
    require(len(dims) == 4, f"input 0 has rank {len(dims)}, not 4")
    return dims[2], dims[3]


def _reaching_over(window: Window, sizes: tuple[int, int]) -> Window:
    """`window` with more padding at the end, as far as the last windows of ceil_mode = 1 reach over the edge.

    No window begins in the padding at the end (as in onnxruntime, and in ONNX since 1.16).
    """
    pads = list(window.pad)
    for axis, (size, stride, span) in enumerate(zip(sizes, window.stride, window.spans, strict=True)):
        before, after = pads[axis], pads[axis + 2]
        # The number of the last window, which reaches over the padding where the stride leaves a rest.
        last = -(-(size + before + after - span) // stride)
        if last * stride >= size + before:
            last -= 1
        pads[axis + 2] = max(after, last * stride + span - size - before)
    return replace(window, pad=tuple(pads))


def position_counts(
    window: Window, sizes: tuple[int, int], pads: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The number of a window's positions inside an image of these sizes and pads: by output row, by output column."""

    def along(axis: int) -> tuple[int, ...]:
        inside = range(-pads[axis], sizes[axis] + pads[axis + 2])
        starts = range(-window.pad[axis], sizes[axis] + window.pad[axis + 2] - window.spans[axis] + 1)
        windows = [range(at, at + window.spans[axis], window.dilation[axis]) for at in starts[:: window.stride[axis]]]
        return tuple(sum(position in inside for position in positions) for positions in windows)

    return along(0), along(1)
