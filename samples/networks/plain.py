"""Networks written out layer by layer: AlexNet, VGG-16, NiN, ResNet-20, ResNet-50, MobileNet v1 and v3, U-Net, FSRCNN.

Each takes `image: f32[1, 3, size, size]` and gives `logits: f32[1, classes]`, but for U-Net and FSRCNN, which give
images. Batch norms follow their convolution, which then has no bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from cnncc.errors import Refusal
from networks.seeded import IR_VERSION, OPSET, Network, Weight, about, he, small

# Scale of the batch norm before a residual sum: blocks add a quarter of the signal's mean square, not as much again.
BRANCH_SCALE = 0.5


class Builder:
    """A network under construction: each method adds nodes after a value and returns the name of the new value."""

    def __init__(self, name: str, rows: int, cols: int = 0, channels: int = 3) -> None:
        """cols: 0 for a square image."""
        self.name = name
        self.channels = {"image": channels}
        self.image = helper.make_tensor_value_info("image", TensorProto.FLOAT, (1, channels, rows, cols or rows))
        self.nodes: list[NodeProto] = []
        self.weights: list[Weight] = []
        self.constants: list[TensorProto] = []

    def node(self, kind: str, inputs: list[str], label: str, channels: int, **attributes: Any) -> str:
        """Any node of one output, which has the node's name."""
        self.nodes.append(helper.make_node(kind, inputs, [label], name=label, **attributes))
        self.channels[label] = channels
        return label

    def conv(
        self, x: str, label: str, k: int, kernel: int, stride: int = 1, pad: int = 0, group: int = 1, bias: bool = True
    ) -> str:
        """A convolution with square windows."""
        weights = [he(f"{label}.weight", (k, self.channels[x] // group, kernel, kernel))]
        if bias:
            weights.append(small(f"{label}.bias", (k,)))
        self.weights += weights
        window: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        return self.node("Conv", [x, *(w.name for w in weights)], label, k, group=group, **window)

    def up(self, x: str, label: str, k: int, factor: int) -> str:
        """A transposed convolution that gives `factor` rows and columns for one."""
        weights = [he(f"{label}.weight", (self.channels[x], k, factor, factor)), small(f"{label}.bias", (k,))]
        self.weights += weights
        window = {"kernel_shape": [factor] * 2, "strides": [factor] * 2}
        return self.node("ConvTranspose", [x, *(w.name for w in weights)], label, k, **window)

    def norm(self, x: str, scale: float = 1.0) -> str:
        """A batch norm of a convolution, named after it."""
        label, shape = f"{x}.norm", (self.channels[x],)
        weights = [
            about(scale, f"{label}.scale", shape),
            small(f"{label}.bias", shape),
            small(f"{label}.mean", shape),
            about(1.0, f"{label}.var", shape),
        ]
        self.weights += weights
        return self.node("BatchNormalization", [x, *(w.name for w in weights)], label, *shape)

    def relu(self, x: str) -> str:
        """A ReLU, named after what it follows."""
        return self.node("Relu", [x], f"{x}.relu", self.channels[x])

    def relu6(self, x: str) -> str:
        """A ReLU that ends at 6."""
        for label, value in (("zero", 0.0), ("six", 6.0)):
            self._constant(label, np.float32(value))
        return self.node("Clip", [x, "zero", "six"], f"{x}.relu6", self.channels[x])

    def hard_swish(self, x: str) -> str:
        """x times a line that is clipped to 0..1."""
        return self.node("HardSwish", [x], f"{x}.swish", self.channels[x])

    def silu(self, x: str) -> str:
        """x times its sigmoid, as PyTorch exports it."""
        sigmoid = self.node("Sigmoid", [x], f"{x}.sigmoid", self.channels[x])
        return self.node("Mul", [x, sigmoid], f"{x}.silu", self.channels[x])

    def gated(self, x: str, squeezed: int, hard: bool = True) -> str:
        """Squeeze and excitation: each channel times a number from 0 to 1 that the means of all channels give.

        hard: whether ReLU and HardSigmoid make it, not SiLU and Sigmoid.
        """
        pooled = self.node("GlobalAveragePool", [x], f"{x}.mean", self.channels[x])
        inside = self.conv(pooled, f"{x}.squeeze", squeezed, 1)
        y = self.conv(self.relu(inside) if hard else self.silu(inside), f"{x}.excite", self.channels[x], 1)
        slope: dict[str, Any] = {"alpha": 1 / 6} if hard else {}
        gate = self.node("HardSigmoid" if hard else "Sigmoid", [y], f"{x}.gate", self.channels[x], **slope)
        return self.node("Mul", [gate, x], f"{x}.gated", self.channels[x])

    def prelu(self, x: str) -> str:
        """A PRelu with one slope for all channels."""
        self.weights.append(about(0.25, f"{x}.slope", (1,)))
        return self.node("PRelu", [x, f"{x}.slope"], f"{x}.prelu", self.channels[x])

    def max_pool(self, x: str, label: str, kernel: int, stride: int, pad: int = 0, ceil: bool = False) -> str:
        """Max pooling with square windows. ceil: a last window that begins inside the image counts, too."""
        window: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        window |= {"ceil_mode": 1} if ceil else {}
        return self.node("MaxPool", [x], label, self.channels[x], **window)

    def resized(self, x: str, label: str, factor: int) -> str:
        """Each pixel as `factor` rows and columns."""
        self._constant(f"times{factor}", np.array([1, 1, factor, factor], np.float32))
        attributes = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
        return self.node("Resize", [x, "", f"times{factor}"], label, self.channels[x], **attributes)

    def more_channels(self, x: str, label: str, channels: int) -> str:
        """Zeros on both sides of the channels, as many as are missing."""
        missing = channels - self.channels[x]
        before, after = missing // 2, missing - missing // 2
        self._constant(f"{label}.pads", np.array([0, before, 0, 0, 0, after, 0, 0]))
        return self.node("Pad", [x, f"{label}.pads"], label, channels)

    def mean(self, x: str) -> str:
        """The mean of each channel, as a row."""
        pooled = self.node("GlobalAveragePool", [x], "mean", self.channels[x])
        return self.node("Flatten", [pooled], "flat", self.channels[x])

    def linear(self, x: str, label: str, k: int) -> str:
        """A fully connected layer on a row."""
        weights = [he(f"{label}.weight", (k, self.channels[x])), small(f"{label}.bias", (k,))]
        self.weights += weights
        return self.node("Gemm", [x, *(w.name for w in weights)], label, k, transB=1)

    def done(self, logits: str) -> Network:
        """The network that ends in this value, a row."""
        return self.ended("logits", (1, self.channels[logits]))

    def ended(self, name: str, shape: tuple[int, ...]) -> Network:
        """The network whose last value gets this name."""
        self.nodes[-1].output[0] = name
        return self.with_outputs({name: shape})

    def with_outputs(self, shapes: Mapping[str, tuple[int, ...]]) -> Network:
        """The network with these values as outputs."""
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
        graph = helper.make_graph(self.nodes, self.name, [self.image], outputs, self.constants)
        return Network(_model(graph), tuple(self.weights))

    def _constant(self, label: str, value: Any) -> None:
        if label not in {tensor.name for tensor in self.constants}:
            self.constants.append(numpy_helper.from_array(np.asarray(value), label))


def _model(graph: Any) -> ModelProto:
    return helper.make_model(
        graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="cnncc samples"
    )


def _classifier(net: Builder, x: str, side: int) -> Network:
    """Two hidden layers of 4096 on all pixels of a map of `side` rows and columns, and 1000 classes."""
    x = net.node("Flatten", [x], "flat", net.channels[x] * side * side)
    for label in ("fc6", "fc7"):
        x = net.relu(net.linear(x, label, 4096))
    return net.done(net.linear(x, "fc8", 1000))


def alexnet(size: int) -> Network:
    """AlexNet with ungrouped convolutions and without response normalisation.

    Source: Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks", 2012. Layer shapes are
    those of Di Gioia, "A Top-Down Compiler for Spatially Distributed Computation of CNNs", Table A.1: the first layer
    pads 224 pixels by 5, for 56x56 results where others take 227 pixels for 55x55.
    """
    net = Builder("alexnet", size)
    x = net.max_pool(net.relu(net.conv("image", "conv1", 96, 11, stride=4, pad=5)), "pool1", 3, 2)
    x = net.max_pool(net.relu(net.conv(x, "conv2", 256, 5, pad=2)), "pool2", 3, 2)
    for label, k in (("conv3", 384), ("conv4", 384), ("conv5", 256)):
        x = net.relu(net.conv(x, label, k, 3, pad=1))
    side = (size + 2 * 5 - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return _classifier(net, net.max_pool(x, "pool5", 3, 2), side)


def vgg16(size: int) -> Network:
    """VGG-16: 13 convolutions of 3x3.

    Source: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", 2014,
    Table 1, D.
    """
    net, x = Builder("vgg16", size), "image"
    for stage, (k, layers) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for layer in range(1, layers + 1):
            x = net.relu(net.conv(x, f"conv{stage}_{layer}", k, 3, pad=1))
        x = net.max_pool(x, f"pool{stage}", 2, 2)
    return _classifier(net, x, size // 32)


def nin(size: int) -> Network:
    """NiN for ImageNet: four convolutions, two convolutions of 1x1 after each, and a mean of the last maps.

    Source: Lin et al., "Network In Network", 2014; layer shapes are those of the authors' Caffe model, whose pools
    round their sizes up, without dropout.
    """
    net, x = Builder("nin", size), "image"
    stages = (
        (1, 11, 4, 0, (96, 96, 96)),
        (2, 5, 1, 2, (256, 256, 256)),
        (3, 3, 1, 1, (384, 384, 384)),
        (4, 3, 1, 1, (1024, 1024, 1000)),
    )
    for stage, kernel, stride, pad, (k, first, second) in stages:
        x = net.max_pool(x, f"pool{stage - 1}", 3, 2, ceil=True) if stage > 1 else x
        x = net.relu(net.conv(x, f"conv{stage}", k, kernel, stride, pad))
        x = net.relu(net.conv(x, f"cccp{2 * stage - 1}", first, 1))
        x = net.relu(net.conv(x, f"cccp{2 * stage}", second, 1))
    return net.done(net.mean(x))


def vgg19_head(size: int) -> Network:
    """The first five convolutions of VGG-19, with their pools, which Alwani et al. fuse, without a classifier.

    Source: Simonyan and Zisserman, 2014, Table 1, E; Alwani et al., "Fused-Layer CNN Accelerators", 2016.
    """
    net, x = Builder("vgg19-conv3_1", size), "image"
    for label, k, pooled in (("1_1", 64, 0), ("1_2", 64, 1), ("2_1", 128, 0), ("2_2", 128, 2), ("3_1", 256, 0)):
        x = net.relu(net.conv(x, f"conv{label}", k, 3, pad=1))
        x = net.max_pool(x, f"pool{pooled}", 2, 2) if pooled else x
    return net.ended("output", (1, net.channels[x], size // 4, size // 4))


def resnet20(size: int) -> Network:
    """ResNet-20: 19 convolutions of 3x3; where a shortcut changes shape it skips pixels and adds channels of zeros.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2015, Sec. 4.2 and option A; the layer shapes are
    those of Di Gioia, Table A.8.
    """
    net = Builder("resnet20", size)
    x = net.relu(net.norm(net.conv("image", "conv1", 16, 3, pad=1, bias=False)))
    for stage, k in ((1, 16), (2, 32), (3, 64)):
        for block in (1, 2, 3):
            label, shortcut = f"s{stage}b{block}", x
            stride = 1 if net.channels[x] == k else 2
            if stride == 2:
                # A pool over one pixel: every second pixel of every second row.
                shortcut = net.more_channels(net.max_pool(x, f"{label}.skip", 1, 2), f"{label}.pad", k)
            y = net.relu(net.norm(net.conv(x, f"{label}.conv1", k, 3, stride, pad=1, bias=False)))
            y = net.norm(net.conv(y, f"{label}.conv2", k, 3, pad=1, bias=False), BRANCH_SCALE)
            x = net.relu(net.node("Add", [y, shortcut], f"{label}.add", k))
    return net.done(net.linear(net.mean(x), "fc", 10))


def resnet50(size: int) -> Network:
    """ResNet-50: blocks of 1x1, 3x3 (which has the stride) and 1x1; shortcuts are 1x1 where the shape changes.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2015, Table 1; the stride on the 3x3 as in
    torchvision.
    """
    net = Builder("resnet50", size)
    x = net.relu(net.norm(net.conv("image", "conv1", 64, 7, stride=2, pad=3, bias=False)))
    x = net.max_pool(x, "pool1", 3, 2, pad=1)
    for stage, (k, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _bottleneck(net, x, f"s{stage}b{block}", k, stride)
    return net.done(net.linear(net.mean(x), "fc", 1000))


def _bottleneck(net: Builder, x: str, label: str, k: int, stride: int) -> str:
    y = net.relu(net.norm(net.conv(x, f"{label}.conv1", k, 1, bias=False)))
    y = net.relu(net.norm(net.conv(y, f"{label}.conv2", k, 3, stride, pad=1, bias=False)))
    y = net.norm(net.conv(y, f"{label}.conv3", 4 * k, 1, bias=False), BRANCH_SCALE)
    if net.channels[x] != 4 * k:
        x = net.norm(net.conv(x, f"{label}.shortcut", 4 * k, 1, stride, bias=False))
    return net.relu(net.node("Add", [y, x], f"{label}.add", 4 * k))


def mobilenet(size: int) -> Network:
    """MobileNet: 13 blocks of 3x3 depthwise and 1x1.

    Source: Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications", 2017,
    Table 1; ReLU6 as in the authors' code.
    """
    net = Builder("mobilenet", size)
    x = net.relu6(net.norm(net.conv("image", "conv1", 32, 3, stride=2, pad=1, bias=False)))
    widths = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for number, (k, stride) in enumerate(widths, start=2):
        c = net.channels[x]
        x = net.relu6(net.norm(net.conv(x, f"conv{number}.dw", c, 3, stride, pad=1, group=c, bias=False)))
        x = net.relu6(net.norm(net.conv(x, f"conv{number}.pw", k, 1, bias=False)))
    return net.done(net.linear(net.mean(x), "fc", 1000))


# Of each block: the kernel, channels inside and behind it, whether it is gated, and has HardSwish, and its stride.
V3_BLOCKS = (
    (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1), (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1), (5, 288, 96, True, True, 2), (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)  # fmt: skip


def mobilenet_v3(size: int) -> Network:
    """MobileNet v3 (small): blocks of 1x1, depthwise, a gate, and 1x1, with a shortcut where the shape stays.

    Source: Howard et al., "Searching for MobileNetV3", 2019, Table 2; channels of gates as in torchvision.
    """
    net = Builder("mobilenet-v3", size)
    x = net.hard_swish(net.norm(net.conv("image", "conv1", 16, 3, stride=2, pad=1, bias=False)))
    for number, (kernel, inside, k, is_gated, swishes, stride) in enumerate(V3_BLOCKS, start=1):
        activation = net.hard_swish if swishes else net.relu
        label, y = f"b{number}", x
        if inside != net.channels[x]:
            y = activation(net.norm(net.conv(x, f"{label}.expand", inside, 1, bias=False)))
        window = {"stride": stride, "pad": kernel // 2, "group": inside}
        y = activation(net.norm(net.conv(y, f"{label}.dw", inside, kernel, **window, bias=False)))
        y = net.gated(y, max(8, (inside // 4 + 4) // 8 * 8)) if is_gated else y
        if stride == 1 and net.channels[x] == k:
            y = net.norm(net.conv(y, f"{label}.project", k, 1, bias=False), BRANCH_SCALE)
            x = net.node("Add", [y, x], f"{label}.add", k)
        else:
            x = net.norm(net.conv(y, f"{label}.project", k, 1, bias=False))
    x = net.hard_swish(net.norm(net.conv(x, "conv2", 576, 1, bias=False)))
    return net.done(net.linear(net.hard_swish(net.linear(net.mean(x), "fc1", 1024)), "fc2", 1000))


# Of each stage: how much channels grow inside a block, those behind it, the number of blocks, first stride, kernel.
B0_STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip


def efficientnet(size: int) -> Network:
    """EfficientNet-B0: blocks of 1x1, depthwise, a gate, and 1x1, with SiLU, and a shortcut where the shape stays.

    Source: Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", 2019, Table 1.
    """
    net = Builder("efficientnet", size)
    x = net.silu(net.norm(net.conv("image", "conv1", 32, 3, stride=2, pad=1, bias=False)))
    for stage, (times, k, blocks, first, kernel) in enumerate(B0_STAGES, start=1):
        for block in range(1, blocks + 1):
            label, c, y, stride = f"s{stage}b{block}", net.channels[x], x, first if block == 1 else 1
            if times > 1:
                y = net.silu(net.norm(net.conv(x, f"{label}.expand", times * c, 1, bias=False)))
            window = {"stride": stride, "pad": kernel // 2, "group": times * c}
            y = net.silu(net.norm(net.conv(y, f"{label}.dw", times * c, kernel, **window, bias=False)))
            y = net.gated(y, max(1, c // 4), hard=False)
            if stride == 1 and c == k:
                y = net.norm(net.conv(y, f"{label}.project", k, 1, bias=False), BRANCH_SCALE)
                x = net.node("Add", [y, x], f"{label}.add", k)
            else:
                x = net.norm(net.conv(y, f"{label}.project", k, 1, bias=False))
    x = net.silu(net.norm(net.conv(x, "conv2", 1280, 1, bias=False)))
    return net.done(net.linear(net.mean(x), "fc", 1000))


def unet(size: int) -> Network:
    """U-Net with 32 channels at first, and padding: `image: f32[1, 3, size, size]` to `output: f32[1, 1, size, size]`.

    Source: Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015, Figure 1; half
    the channels, padding and batch norms as in Buda et al., 2019, whose last layer is a Sigmoid of this output.

    Raises: Refusal, for a size that cannot be halved four times.
    """
    if size % 16:
        raise Refusal(f"unet halves its image four times: {size} is no multiple of 16")
    net = Builder("unet", size)
    x, left = "image", list[str]()
    for level, k in enumerate((32, 64, 128, 256), start=1):
        left.append(_two_convs(net, x, f"down{level}", k))
        x = net.max_pool(left[-1], f"pool{level}", 2, 2)
    x = _two_convs(net, x, "bottom", 512)
    for level, skip in reversed([*enumerate(left, start=1)]):
        k = net.channels[skip]
        both = net.node("Concat", [net.up(x, f"up{level}", k, 2), skip], f"both{level}", 2 * k, axis=1)
        x = _two_convs(net, both, f"joined{level}", k)
    net.conv(x, "last", 1, 1)
    return net.ended("output", (1, 1, size, size))


def _two_convs(net: Builder, x: str, label: str, k: int) -> str:
    for number in (1, 2):
        x = net.relu(net.norm(net.conv(x, f"{label}.conv{number}", k, 3, pad=1, bias=False)))
    return x


def fsrcnn(rows: int) -> Network:
    """FSRCNN with d = 56, s = 12, m = 4: `image: f32[1, 1, rows, 12/7 rows]` to `output` of the same shape.

    Source: Dong et al., "Accelerating the Super-Resolution Convolutional Neural Network", 2016; as in Mei et al.,
    "DeFiNES", 2023, whose image has 560 x 960 pixels. The last layer is a convolution to one channel there; a slope of
    a PRelu holds for all channels here.
    """
    net = Builder("fsrcnn", rows, cols := rows * 12 // 7, channels=1)
    x = net.prelu(net.conv("image", "feature", 56, 5, pad=2))
    x = net.prelu(net.conv(x, "shrink", 12, 1))
    for number in range(1, 5):
        x = net.prelu(net.conv(x, f"map{number}", 12, 3, pad=1))
    x = net.prelu(net.conv(x, "expand", 56, 1))
    net.conv(x, "last", 1, 9, pad=4)
    return net.ended("output", (1, 1, rows, cols))
