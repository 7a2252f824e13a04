"""samples/models.py: every network is valid, runs, keeps its signals alive, and has the shapes that its source states.

What the sources state: AlexNet, Di Gioia, Table A.1, as rows, columns and channels of each layer's results; VGG-16
15.35 billion MACs in convolutions; ResNet-50 as the onnx package's own graph; MobileNet, the paper's 569 million; NiN,
the shapes of its Caffe model.
"""

from __future__ import annotations

import errno
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner, Result
from models import main
from networks import SAMPLES
from networks.features import features
from networks.seeded import CHUNK, TAIL, Network, Weight, he
from onnx import ModelProto, TensorProto, helper, numpy_helper

from cnncc.errors import Refusal

SCRIPT = Path(__file__).parents[1] / "samples" / "models.py"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def made(name: str, path: Path, *options: object) -> Path:
    result = invoke(name, "-o", path, *options)
    assert result.exit_code == 0, result.output
    return path


def image(path: Path, name: str, size: int, *options: object) -> np.ndarray:
    result = invoke("image", "-o", path, "--name", name, "--size", size, *options)
    assert result.exit_code == 0, result.output
    with np.load(path) as arrays:
        assert arrays.files == [name]
        return arrays[name]


def conv_shapes(name: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes of results [n, k, h, w] and weights [k, c, r, s] of each convolution at the network's own size."""
    sample = SAMPLES[name]
    model = sample.build(sample.size).inferred()
    found = {
        info.name: tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        for infos in (model.graph.input, model.graph.value_info, model.graph.output)
        for info in infos
    }
    return [(found[n.output[0]], found[n.input[1]]) for n in model.graph.node if n.op_type == "Conv"]


def conv_macs(name: str) -> int:
    """One MAC for each result and weight of its channel."""
    return sum(math.prod(result) * math.prod(weights[1:]) for result, weights in conv_shapes(name))


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_models_run(name: str, tmp_path: Path) -> None:
    size = SAMPLES[name].least
    path = made(name, tmp_path / "net.onnx", "--image-size", size)
    onnx.checker.check_model(path, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it runs twice
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (taken,), outputs = session.get_inputs(), session.get_outputs()
    x = image(tmp_path / "x.npz", taken.name, size, "--for", name)
    upright, turned = (session.run(None, {taken.name: value}) for value in (x, x[:, ::-1, ::-1]))
    for given, y, z in zip(outputs, map(np.asarray, upright), map(np.asarray, turned), strict=True):
        assert list(y.shape) == given.shape
        assert np.isfinite(y).all() and 1e-3 < y.std() < 1e3
        assert len(np.unique(y)) > y.size / 4  # a ReLU may end the network
        assert np.abs(y - z).max() > 1e-3 * y.std(), "the image does not matter"
    assert "Softmax" not in {node.op_type for node in SAMPLES[name].build(size).model.graph.node}
    path.unlink()  # up to 170 MB each, and pytest keeps the files of three runs


def test_samples_models_alexnet_is_that_of_the_thesis() -> None:
    layers = {
        "conv1": (96, 56, 3, 11),
        "conv2": (256, 27, 96, 5),
        "conv3": (384, 13, 256, 3),
        "conv4": (384, 13, 384, 3),
        "conv5": (256, 13, 384, 3),
    }
    found = conv_shapes("alexnet")
    assert found == [((1, k, side, side), (k, c, kernel, kernel)) for k, side, c, kernel in layers.values()]
    assert conv_macs("alexnet") == 1_080_502_272


def test_samples_models_resnet20_has_the_layers_of_the_thesis() -> None:
    found = conv_shapes("resnet20")
    stages = [(16, 32)] * 7 + [(32, 16)] * 6 + [(64, 8)] * 6
    assert [(result[1], result[2]) for result, _ in found] == stages
    assert {weights[2:] for _, weights in found} == {(3, 3)}
    assert conv_macs("resnet20") == 40_550_400


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        ("vgg16", 15_346_630_656),
        ("resnet50", 4_087_136_256),
        ("light-resnet50", 4_087_136_256),
        ("light-vgg19", 19_508_428_800),
        ("nin", 1_100_188_800),
    ],
)
def test_samples_models_macs(name: str, macs: int) -> None:
    assert conv_macs(name) == macs


def test_samples_models_mobilenet_v3_has_the_weights_of_torchvision() -> None:
    """Which counts no means and variances of batch norms."""
    network = SAMPLES["mobilenet-v3"].build(224)
    kinds = [node.op_type for node in network.model.graph.node]
    statistics = sum(weight.count for weight in network.weights if weight.name.endswith((".mean", ".var")))
    assert network.parameters - statistics == 2_542_856
    assert [kinds.count(kind) for kind in ("Conv", "HardSwish", "HardSigmoid", "Mul", "Add")] == [52, 19, 9, 9, 6]


def test_samples_models_efficientnet_has_the_weights_of_torchvision() -> None:
    """Which counts no means and variances of batch norms."""
    network = SAMPLES["efficientnet"].build(224)
    kinds = [node.op_type for node in network.model.graph.node]
    statistics = sum(weight.count for weight in network.weights if weight.name.endswith((".mean", ".var")))
    assert network.parameters - statistics == 5_288_548
    assert [kinds.count(kind) for kind in ("Conv", "Sigmoid", "Mul", "Add")] == [81, 65, 65, 9]


def test_samples_models_yolov8n_has_the_weights_of_the_published_one() -> None:
    """3,157,200, of which 16 take means of distances on the host. They count no means and variances of batch norms."""
    network = SAMPLES["yolov8n"].build(640)
    kinds = [node.op_type for node in network.model.graph.node]
    statistics = sum(weight.count for weight in network.weights if weight.name.endswith((".mean", ".var")))
    assert network.parameters - statistics == 3_157_200 - 16
    assert [kinds.count(kind) for kind in ("Conv", "Sigmoid", "MaxPool", "Split", "Add")] == [63, 57, 3, 8, 6]
    with pytest.raises(Refusal, match="48 is no multiple of 32"):
        SAMPLES["yolov8n"].build(48)


def test_samples_models_unet_has_the_weights_of_the_published_one() -> None:
    """That of Buda et al., which counts no means and variances of batch norms. Other sizes cannot be halved."""
    network = SAMPLES["unet"].build(256)
    statistics = sum(weight.count for weight in network.weights if weight.name.endswith((".mean", ".var")))
    assert network.parameters - statistics == 7_763_041
    with pytest.raises(Refusal, match="40 is no multiple of 16"):
        SAMPLES["unet"].build(40)


def test_samples_models_count_fully_connected_layers_too() -> None:
    assert SAMPLES["mobilenet"].build(224).macs == 568_740_352
    assert SAMPLES["light-alexnet"].build(224).macs == conv_macs("light-alexnet") + 9216 * 4096 + 4096 * 5096


@pytest.mark.parametrize(
    ("name", "convs", "macs", "last"),
    [
        ("alexnet", 5, 1_080_502_272, "Relu"),
        ("vgg16", 13, 15_346_630_656, "Relu"),
        ("resnet20", 19, 40_550_400, "Relu"),
        ("light-resnet50", 53, 4_087_136_256, "Relu"),
        ("mobilenet", 27, 568_740_352 - 1024 * 1000, "Clip"),
        ("light-densenet121", 121, None, "Conv"),
        ("nin", 12, None, "Relu"),
        ("light-inception-v1", 57, None, "Concat"),
    ],
)
def test_samples_models_features_are_all_convolutions_and_nothing_behind(
    name: str, convs: int, macs: int | None, last: str
) -> None:
    """Residual sums of ResNets are among them; branches that end in parallel come together in a Concat."""
    network = features(SAMPLES[name].build(SAMPLES[name].size))
    kinds = [node.op_type for node in network.model.graph.node]
    assert kinds.count("Conv") == convs and kinds[-1] == last and "Gemm" not in kinds
    assert network.macs == (macs or conv_macs(name))


@pytest.mark.parametrize("name", ["resnet20", "mobilenet", "light-squeezenet"])
def test_samples_models_features_are_a_value_of_the_whole(name: str, tmp_path: Path) -> None:
    size = SAMPLES[name].least
    part = onnx.load(made(name, tmp_path / "part.onnx", "--image-size", size, "--features"))
    onnx.checker.check_model(part, full_check=True)
    whole = onnx.load(made(name, tmp_path / "whole.onnx", "--image-size", size))
    whole.graph.output.append(part.graph.output[0])
    x = image(tmp_path / "x.npz", part.graph.input[0].name, size, "--for", name)
    sessions = [onnxruntime.InferenceSession(model.SerializeToString()) for model in (part, whole)]
    one, other = (s.run([part.graph.output[0].name], {part.graph.input[0].name: x})[0] for s in sessions)
    assert np.array_equal(np.asarray(one), np.asarray(other)) and np.asarray(one).ndim == 4


def test_samples_models_features_need_a_value_behind_all_convolutions() -> None:
    """Two convolutions whose results are two outputs; none at all."""
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 2, 3, 3)) for n in "xyz"}
    nodes = [helper.make_node("Conv", ["x", "w"], [y], y) for y in "yz"]
    graph = helper.make_graph(nodes, "two", [values["x"]], [values["y"], values["z"]])
    with pytest.raises(Refusal, match="two: no value depends on all convolutions, 'z' not on 'y'"):
        features(Network(helper.make_model(graph), (he("w", (2, 2, 1, 1)),)))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "none", [values["x"]], [values["y"]])
    with pytest.raises(Refusal, match="none: has no convolution"):
        features(Network(helper.make_model(graph), ()))


@pytest.mark.parametrize("name", ["resnet20", "light-squeezenet"])
def test_samples_models_are_the_same_bytes_again(name: str, tmp_path: Path) -> None:
    """In another process, too."""
    one, other = (made(name, tmp_path / f"{seed}.onnx", "--seed", seed) for seed in (3, 4))
    two = tmp_path / "again.onnx"
    subprocess.run([sys.executable, SCRIPT, name, "-o", two, "--seed", "3"], capture_output=True, check=True)
    assert one.read_bytes() == two.read_bytes() != other.read_bytes()
    images = [image(tmp_path / "x.npz", "x", 5, "--seed", seed, "--count", 2) for seed in (3, 3, 4)]
    assert (images[0] == images[1]).all() and (images[0] != images[2]).any()
    assert images[0].shape == (2, 3, 5, 5) and images[0].dtype == np.float32


def test_samples_models_stream_what_protobuf_reads(tmp_path: Path) -> None:
    """Lengths of one, two and three bytes, a weight of two chunks, and nothing that is lost on the way."""
    weights = (he("a", (3, 2, 5, 5)), Weight("one", (), 2.0, 0.0), he("long", (2, CHUNK // 2 + 7)))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["one"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ())],
    )
    network = Network(helper.make_model(graph, producer_name="p"), weights)
    network.write(tmp_path / "net.onnx", 1)
    model = ModelProto.FromString((tmp_path / "net.onnx").read_bytes())
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert {name: array.shape for name, array in arrays.items()} == {w.name: w.shape for w in weights}
    assert arrays["one"] == 2
    deviation = math.sqrt(2 / (CHUNK // 2 + 7))
    assert abs(arrays["long"].std() / deviation - 1) < 0.03 and abs(arrays["long"]).max() <= TAIL * deviation * 1.001
    assert not np.array_equal(arrays["long"].ravel()[:100], arrays["long"].ravel()[CHUNK:][:100])
    del model.graph.initializer[:]
    assert model == network.model


def test_samples_models_images_are_smooth(tmp_path: Path) -> None:
    """Neighbouring pixels are alike, which white noise is not; the mean square is about 1."""
    x = image(tmp_path / "x.npz", "x", 64, "--count", 20)
    assert 0.8 < (x**2).mean() < 1.2
    assert (np.diff(x, axis=3) ** 2).mean() < 0.2


def test_samples_models_images_suit_a_network(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    for options, name, size in (
        (["--for", "light-zfnet512", "--size", 65], "gpu_0/data_0", 65),
        (["--for", "resnet20"], "image", 32),
        (["--for", "resnet20", "--name", "x"], "x", 32),
        ([], "image", 224),
    ):
        assert invoke("image", "-o", path, *options).exit_code == 0
        with np.load(path) as arrays:
            assert {key: arrays[key].shape for key in arrays.files} == {name: (1, 3, size, size)}


def test_samples_models_say_which_sizes_they_take(tmp_path: Path) -> None:
    for name, size in (("light-resnet50", 225), ("alexnet", 56), ("alexnet", -1)):
        result = invoke(name, "-o", tmp_path / "net.onnx", "--image-size", size)
        assert result.exit_code == 2 and "'--image-size'" in result.output and "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


def test_samples_models_refuse_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "no").touch()
    command = [sys.executable, SCRIPT, "resnet20", "-o", tmp_path / "no" / "net.onnx"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and re.fullmatch(r"models.py: .*no is no folder\n", result.stderr)


def test_samples_models_write_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made("resnet20", tmp_path / "net.onnx", "--image-size", 8)
    before = path.read_bytes()

    def full(self: Weight, seed: int) -> Iterator[bytes]:
        yield bytes(4)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Weight, "chunks", full)
    result = invoke("resnet20", "-o", path)
    assert isinstance(result.exception, Refusal) and "No space left" in str(result.exception)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == before


def test_samples_models_are_listed() -> None:
    lines = invoke("list").output.splitlines()[1:]
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(SAMPLES)
    assert any("40,551,040" in line for line in lines)
