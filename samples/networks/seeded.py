"""ONNX files whose weights are drawn from a seed and streamed to the file, a few megabytes at a time.

A network is an ONNX model without initializers, and a list of what they are to be. Each weight has a random stream of
its own, by seed and name, so that equal networks give equal files, and a changed layer changes no other.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, shape_inference

from cnncc.util.files import write_atomically

CHUNK = 1 << 20  # values drawn at a time
TAIL = 3.0  # deviations: beyond, values are cut, so that a scale of 1 +- 0.1 stays positive
OPSET = 20
IR_VERSION = 9

# Field numbers of onnx.proto.
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9


@dataclass(frozen=True)
class Weight:
    """A float32 tensor of values around `centre`, with standard deviation `deviation`."""

    name: str
    shape: tuple[int, ...]
    centre: float
    deviation: float

    @property
    def count(self) -> int:
        """How many values there are."""
        return math.prod(self.shape)

    def chunks(self, seed: int) -> Iterator[bytes]:
        """The values of this seed, little-endian, in order."""
        draw = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        for start in range(0, self.count, CHUNK):
            noise = draw.standard_normal(min(CHUNK, self.count - start), dtype=np.float32)
            values = np.clip(noise, -TAIL, TAIL) * np.float32(self.deviation) + np.float32(self.centre)
            yield values.astype("<f4").tobytes()


def he(name: str, shape: tuple[int, ...]) -> Weight:
    """Weights [k, c, ...] that keep the mean square of a signal through a layer and its ReLU.

    Source: He et al., "Delving Deep into Rectifiers", 2015, Eq. (10).
    """
    return Weight(name, shape, 0.0, math.sqrt(2 / math.prod(shape[1:])))


def small(name: str, shape: tuple[int, ...]) -> Weight:
    """Biases, and means of a batch norm."""
    return Weight(name, shape, 0.0, 0.1)


def about(centre: float, name: str, shape: tuple[int, ...]) -> Weight:
    """Positive values: scales and variances."""
    return Weight(name, shape, centre, centre / 10)


@dataclass(frozen=True)
class Network:
    """A model without initializers, and the weights that complete it."""

    model: ModelProto
    weights: tuple[Weight, ...]

    def inferred(self) -> ModelProto:
        """The model with the shape of every value; weights stand as inputs after the others."""
        model = ModelProto()
        model.CopyFrom(self.model)
        for weight in self.weights:
            model.graph.input.append(helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, weight.shape))
        return shape_inference.infer_shapes(model, data_prop=True)

    @property
    def parameters(self) -> int:
        """How many values the weights have."""
        return sum(weight.count for weight in self.weights)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of its Conv, ConvTranspose and Gemm nodes for one image."""
        graph = self.inferred().graph
        shapes = shapes_of(graph)
        # A transposed convolution has the weights of each channel that it reads, and one MAC for each and each pixel.
        ends = {"Conv": "output", "ConvTranspose": "input", "Gemm": "output"}
        nodes = [node for node in graph.node if node.op_type in ends]
        return sum(_macs(shapes[getattr(node, ends[node.op_type])[0]], shapes[node.input[1]]) for node in nodes)

    def write(self, path: Path, seed: int) -> None:
        """Write the ONNX file, whole or not at all. Raises Refusal."""
        write_atomically(path, self._pieces(seed))

    def _pieces(self, seed: int) -> Iterator[bytes]:
        """The serialised model: its graph last, and the initializers last in it."""
        outside, graph = ModelProto(), self.model.graph
        outside.CopyFrom(self.model)
        outside.ClearField("graph")
        inside = graph.SerializeToString(deterministic=True)
        tensors = [(weight, *_tensor_head(weight)) for weight in self.weights]
        size_bytes = len(inside) + sum(len(_head(INITIALIZER, size)) + size for _, _, size in tensors)
        yield outside.SerializeToString(deterministic=True) + _head(GRAPH, size_bytes) + inside
        for weight, head, size in tensors:
            yield _head(INITIALIZER, size) + head
            yield from weight.chunks(seed)


def _macs(result: tuple[int, ...], weights: tuple[int, ...]) -> int:
    """Each result of a Conv, or of a Gemm with its weights as [k, c], takes one MAC for each weight of its channel."""
    return math.prod(result) * math.prod(weights[1:])


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first. Source: protobuf.dev, "Encoding"."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _head(field: int, size_bytes: int) -> bytes:
    """What stands before a field of so many bytes (wire type 2)."""
    return _varint(field << 3 | 2) + _varint(size_bytes)


def _tensor_head(weight: Weight) -> tuple[bytes, int]:
    """A TensorProto up to its raw data, and its size with them."""
    tensor = TensorProto(name=weight.name, dims=weight.shape, data_type=TensorProto.FLOAT)
    size_bytes = 4 * weight.count
    head = tensor.SerializeToString(deterministic=True) + _head(RAW_DATA, size_bytes)
    return head, len(head) + size_bytes


def shapes_of(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    """The shape of every value that is known, 0 for an unknown size."""
    infos = (*graph.input, *graph.value_info, *graph.output)
    return {info.name: tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim) for info in infos}
