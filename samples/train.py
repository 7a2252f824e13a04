"""Train a sample network on real handwritten digits and export it to ONNX.

    pip install torch==2.13.0 scikit-learn onnx onnxscript onnxruntime
    python samples/train.py mnist    # or lenet, resnet20, depthwise

torch and scikit-learn are needed only to run this script: they are no dependencies of cnncc, and the
files that the script writes, samples/models/NET.onnx and samples/inputs/digits_*.npz, are committed.
Seeds are fixed and one thread is used, so that a second run writes the same bytes (on the same machine, with
the same versions).

The data are scikit-learn's load_digits: 1797 images of 8x8 pixels, upscaled to 28x28, values 0..1. They are the
test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository,
1998, CC BY 4.0).
360 of them are the test images; no network trains on them.
"""

# Basic checks only: torch and scikit-learn are not installed where types are checked, so that everything
# that comes from them is unknown there.
# pyright: basic, reportMissingImports=false

import argparse
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np

try:
    import onnxruntime
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch import nn
except ImportError as missing:
    sys.exit(
        f"train.py: cannot import {missing.name}; in a virtual environment of its own, run\n"
        "  pip install torch==2.13.0 scikit-learn onnx onnxscript onnxruntime"
    )

SAMPLES = Path(__file__).resolve().parent
INPUTS = SAMPLES / "inputs"
SEED = 0
TEST_IMAGES = 360
CALIBRATION_IMAGES = 200
BATCH = 32
MAX_SHIFT = 2  # pixels; digits of other writers sit elsewhere in the frame


def mnist() -> nn.Module:
    """The MNIST net of Heidorn et al., "Efficient Mapping of CNNs onto TCPAs", Fig. 1(b).

    x: f32[n, 1, 28, 28] -> logits: f32[n, 10]; every convolution is 3x3, zero-padded to 'same'.
    The paper leaves the kind of pooling open; it is max pooling here.
    """
    return nn.Sequential(
        OrderedDict(
            conv0=nn.Conv2d(1, 24, 3, padding=1),
            relu0=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(24, 24, 3, padding=1),
            relu2=nn.ReLU(),
            pool3=nn.MaxPool2d(2),
            conv4=nn.Conv2d(24, 16, 3, padding=1),
            relu4=nn.ReLU(),
            flatten=nn.Flatten(),
            fc=nn.Linear(7 * 7 * 16, 10),
        )
    )


def lenet() -> nn.Module:
    """LeNet-5 with ReLU and max pooling.

    x: f32[n, 1, 28, 28] -> logits: f32[n, 10]; the first convolution is padded, the second is not.
    """
    return nn.Sequential(
        OrderedDict(
            c1=nn.Conv2d(1, 6, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            c2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            f1=nn.Linear(5 * 5 * 16, 120),
            relu3=nn.ReLU(),
            f2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            f3=nn.Linear(84, 10),
        )
    )


class Residual(nn.Module):
    """Two 3x3 convolutions and the shortcut around them, a 1x1 convolution where the shape changes.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2015, Fig. 2 and option B.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: f32[n, c, ih, iw] -> f32[n, k, ih / stride, iw / stride]."""
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


def resnet20() -> nn.Module:
    """ResNet-20 of He et al., Sec. 4.2, for one-channel images: 3 stages of 3 blocks, 16, 32 and 64 channels.

    x: f32[n, 1, 28, 28] -> logits: f32[n, 10].
    """
    net = nn.Sequential(
        OrderedDict(conv1=nn.Conv2d(1, 16, 3, padding=1, bias=False), norm1=nn.BatchNorm2d(16), relu1=nn.ReLU())
    )
    before = 16
    for stage, channels in ((1, 16), (2, 32), (3, 64)):
        for block in (1, 2, 3):
            net.add_module(f"s{stage}b{block}", Residual(before, channels, 1 if before == channels else 2))
            before = channels
    return with_classifier(net, before)


def with_classifier(net: nn.Sequential, channels: int) -> nn.Sequential:
    """`net`, whose maps have so many channels, with their means as inputs of one fully connected layer."""
    net.add_module("mean", nn.AdaptiveAvgPool2d(1))
    net.add_module("flatten", nn.Flatten())
    net.add_module("fc", nn.Linear(channels, 10))
    return net


def depthwise() -> nn.Module:
    """Depthwise-separable blocks as in MobileNet: 3x3 depthwise, 1x1, each with batch norm and ReLU6.

    x: f32[n, 1, 28, 28] -> logits: f32[n, 10].
    Source: Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications", 2017.
    """

    net = nn.Sequential()

    def conv(label: str, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
        net.add_module(label, layer)
        net.add_module(f"{label}_norm", nn.BatchNorm2d(after))
        net.add_module(f"{label}_relu6", nn.ReLU6())

    conv("conv1", 1, 16, 3)
    for block, (before, after, stride) in enumerate(((16, 32, 2), (32, 64, 1), (64, 96, 1), (96, 96, 1)), start=2):
        conv(f"dw{block}", before, before, 3, stride, groups=before)
        conv(f"pw{block}", before, after, 1)
    return with_classifier(net, 96)


# name: (builder, epochs)
NETS = {"mnist": (mnist, 12), "lenet": (lenet, 12), "resnet20": (resnet20, 12), "depthwise": (depthwise, 30)}


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images, test images, training labels, test labels; images: f32[n, 1, 28, 28]."""
    data = load_digits()
    small = torch.tensor(data.images / 16, dtype=torch.float32)[:, None]
    x = nn.functional.interpolate(small, size=28, mode="bilinear", align_corners=False).numpy()
    split = train_test_split(x, data.target, test_size=TEST_IMAGES, stratify=data.target, random_state=SEED)
    train_x, test_x = split[:2]
    known = {image.tobytes() for image in train_x}
    assert not any(image.tobytes() in known for image in test_x), "a test image is a training image"
    return split


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> None:
    """Fit `net` in place to the images `x` and labels `y`, each batch shifted by a few pixels."""
    sys.path.insert(0, str(SAMPLES.parent))  # cnncc is not installed where torch is
    from cnncc.util.progress import progress_line

    steps = epochs * -(-len(x) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    net.train()
    with progress_line() as progress:
        for epoch in range(epochs):
            progress(f"epoch {epoch + 1} of {epochs}", epoch, epochs)
            for batch in torch.randperm(len(x)).split(BATCH):
                shift = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (2,)).tolist()
                logits = net(torch.roll(x[batch], shift, dims=(2, 3)))
                optimizer.zero_grad()
                nn.functional.cross_entropy(logits, y[batch]).backward()
                optimizer.step()
                schedule.step()


def export(net: nn.Module, path: Path) -> None:
    """Write `net` to `path` with a free batch dimension N."""
    path.parent.mkdir(exist_ok=True)
    torch.onnx.export(
        net.eval(),
        (torch.zeros(1, 1, 28, 28),),
        str(path),
        input_names=["input"],
        output_names=["logits"],
        dynamic_axes={"input": {0: "N"}, "logits": {0: "N"}},
        opset_version=20,
        training=torch.onnx.TrainingMode.PRESERVE,  # of a net in evaluation: batch norms stay nodes of their own
        do_constant_folding=False,
        dynamo=False,  # this exporter writes one plain ONNX node for each layer
    )


def accuracy(path: Path, x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of the images `x` that the ONNX file at `path` classifies as `y`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    logits = np.asarray(session.run(["logits"], {"input": x})[0])
    return float((logits.argmax(axis=1) == y).mean())


def main() -> None:
    """Train the net named on the command line, write its files, and print its accuracy."""
    parser = argparse.ArgumentParser(description="Train a sample network and export it to ONNX.")
    parser.add_argument("net", choices=NETS)
    name = parser.parse_args().net
    torch.set_num_threads(1)  # the order of sums, and with it every weight, depends on the thread count
    torch.manual_seed(SEED)

    train_x, test_x, train_y, test_y = digits()
    INPUTS.mkdir(exist_ok=True)
    np.savez_compressed(INPUTS / "digits_test.npz", input=test_x, label=test_y)
    np.savez_compressed(INPUTS / "digits_calibration.npz", input=train_x[:CALIBRATION_IMAGES])

    builder, epochs = NETS[name]
    net = builder()
    train(net, torch.from_numpy(train_x), torch.from_numpy(train_y), epochs)
    path = SAMPLES / "models" / f"{name}.onnx"
    export(net, path)
    print(f"{path.name}: {accuracy(path, test_x, test_y):.1%} of {TEST_IMAGES} test images")


if __name__ == "__main__":
    main()
