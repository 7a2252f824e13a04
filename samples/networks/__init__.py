"""Networks of real shapes with random weights: by name, which models.py offers on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from networks import detection, light, plain
from networks.seeded import Network


@dataclass(frozen=True)
class Sample:
    """A network that can be made for images of `size` rows, or of any number from `least` on.

    Images are square, except those of FSRCNN. Where the two are equal, the network takes no other size.
    """

    about: str
    build: Callable[[int], Network]
    size: int
    least: int


def _light(name: str, about: str, least: int = 224) -> Sample:
    return Sample(f"{about}, as the onnx package has it", partial(light.build, name), 224, least)


SAMPLES = {
    "alexnet": Sample("AlexNet without groups and normalisation", plain.alexnet, 224, 57),
    "vgg16": Sample("VGG-16", plain.vgg16, 224, 32),
    "vgg19-conv3_1": Sample("VGG-19 from conv1_1 to conv3_1, with pools", plain.vgg19_head, 224, 8),
    "nin": Sample("NiN, convolutions and a mean", plain.nin, 224, 55),
    "resnet20": Sample("ResNet-20 for CIFAR, shortcuts without weights", plain.resnet20, 32, 8),
    "resnet50": Sample("ResNet-50", plain.resnet50, 224, 32),
    "mobilenet": Sample("MobileNet (v1), with ReLU6", plain.mobilenet, 224, 32),
    "mobilenet-v3": Sample("MobileNet v3 (small), with gates", plain.mobilenet_v3, 224, 32),
    "efficientnet": Sample("EfficientNet-B0, with gates and SiLU", plain.efficientnet, 224, 32),
    "yolov8n": Sample("YOLOv8n up to its three maps", detection.yolov8n, 640, 32),
    "unet": Sample("U-Net with 32 channels at first", plain.unet, 256, 16),
    "fsrcnn": Sample("FSRCNN for images of 560 x 960, a super-resolution network", plain.fsrcnn, 560, 14),
    "light-alexnet": _light("bvlc_alexnet", "AlexNet with groups and normalisation", 67),
    "light-densenet121": _light("densenet121", "DenseNet-121", 32),
    "light-inception-v1": _light("inception_v1", "GoogLeNet"),
    "light-inception-v2": _light("inception_v2", "Inception v2"),
    "light-resnet50": _light("resnet50", "ResNet-50"),
    "light-shufflenet": _light("shufflenet", "ShuffleNet"),
    "light-squeezenet": _light("squeezenet", "SqueezeNet", 32),
    "light-vgg19": _light("vgg19", "VGG-19", 32),
    "light-zfnet512": _light("zfnet512", "ZFNet-512", 64),
}
