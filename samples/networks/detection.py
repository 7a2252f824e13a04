"""YOLOv8: images of 3 channels to three maps of boxes and classes."""

from __future__ import annotations

from onnx import helper

from cnncc.errors import Refusal
from networks.plain import BRANCH_SCALE, Builder
from networks.seeded import Network

CLASSES = 80
BOX = 4 * 16  # each side of a box is a distribution over 16 distances
STRIDE = 32  # of the coarsest map


def yolov8n(size: int) -> Network:
    """YOLOv8n up to its maps: `p3`, `p4` and `p5: f32[1, 144, …]`, with 1/8, 1/16 and 1/32 of the rows and columns.

    Channels of a map: 64 of boxes, 80 of classes. What turns them into boxes on the host is left out.

    Source: Jocher et al., "Ultralytics YOLOv8", 2023, `yolov8.yaml` with depth 1/3 and width 1/4.

    Raises: Refusal, for a size that is no multiple of 32.
    """
    if size % STRIDE:
        raise Refusal(f"yolov8n makes maps of 1/{STRIDE} of its image: {size} is no multiple of {STRIDE}")
    net = Builder("yolov8n", size)
    x = _conv(net, _conv(net, "image", "stem", 16, 3, 2), "down1", 32, 3, 2)
    x = _split_block(net, x, "stage1", 32, 1)
    p3 = _split_block(net, _conv(net, x, "down2", 64, 3, 2), "stage2", 64, 2)
    p4 = _split_block(net, _conv(net, p3, "down3", 128, 3, 2), "stage3", 128, 2)
    p5 = _pyramid(net, _split_block(net, _conv(net, p4, "down4", 256, 3, 2), "stage4", 256, 1), "pyramid", 256)
    p4 = _split_block(net, _joined(net, "up4", net.resized(p5, "double5", 2), p4), "top4", 128, 1, adds=False)
    p3 = _split_block(net, _joined(net, "up3", net.resized(p4, "double4", 2), p3), "top3", 64, 1, adds=False)
    p4 = _joined(net, "again4", _conv(net, p3, "down5", 64, 3, 2), p4)
    p4 = _split_block(net, p4, "bottom4", 128, 1, adds=False)
    p5 = _joined(net, "again5", _conv(net, p4, "down6", 128, 3, 2), p5)
    p5 = _split_block(net, p5, "bottom5", 256, 1, adds=False)
    maps = {"p3": (p3, 8), "p4": (p4, 16), "p5": (p5, STRIDE)}
    for name, (x, _) in maps.items():
        _joined(net, name, _head(net, x, f"{name}.boxes", BOX), _head(net, x, f"{name}.classes", CLASSES))
    return net.with_outputs({name: (1, BOX + CLASSES, size // by, size // by) for name, (_, by) in maps.items()})


def _conv(net: Builder, x: str, label: str, k: int, kernel: int = 1, stride: int = 1, scale: float = 1.0) -> str:
    """A convolution with a batch norm and SiLU."""
    return net.silu(net.norm(net.conv(x, label, k, kernel, stride, kernel // 2, bias=False), scale))


def _joined(net: Builder, label: str, *parts: str) -> str:
    return net.node("Concat", [*parts], label, sum(net.channels[part] for part in parts), axis=1)


def _split_block(net: Builder, x: str, label: str, k: int, count: int, adds: bool = True) -> str:
    """A C2f block: half of the channels go through `count` pairs of convolutions, and all results are joined.

    adds: whether a pair is added to what it reads.
    """
    x = _conv(net, x, f"{label}.in", k)
    parts = [f"{label}.left", f"{label}.right"]
    net.nodes.append(helper.make_node("Split", [x], parts, name=f"{label}.split", axis=1, num_outputs=2))
    net.channels |= dict.fromkeys(parts, k // 2)
    for number in range(1, count + 1):
        y = _conv(net, parts[-1], f"{label}.{number}.first", k // 2, 3)
        y = _conv(net, y, f"{label}.{number}.second", k // 2, 3, scale=BRANCH_SCALE if adds else 1.0)
        parts.append(net.node("Add", [parts[-1], y], f"{label}.{number}.add", k // 2) if adds else y)
    return _conv(net, _joined(net, f"{label}.all", *parts), f"{label}.out", k)


def _pyramid(net: Builder, x: str, label: str, k: int) -> str:
    """An SPPF block: maxima of 5, 9 and 13 rows and columns beside the pixels themselves."""
    parts = [_conv(net, x, f"{label}.in", k // 2)]
    for number in range(1, 4):
        parts.append(net.max_pool(parts[-1], f"{label}.pool{number}", 5, 1, 2))
    return _conv(net, _joined(net, f"{label}.all", *parts), f"{label}.out", k)


def _head(net: Builder, x: str, label: str, k: int) -> str:
    y = _conv(net, _conv(net, x, f"{label}.first", k, 3), f"{label}.second", k, 3)
    return net.conv(y, f"{label}.last", k, 1)
