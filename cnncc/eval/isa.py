"""Runs the `isa` level as the machine does: encoded to words, decoded again, and interpreted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import Arch
from cnncc.binary.container import from_bytes, to_bytes
from cnncc.binary.isa_module import build_binary
from cnncc.binary.run import Machine, inputs_of, outputs_of
from cnncc.dialects.array import Tensor, TensorOp
from cnncc.dialects.isa import LayerOp
from cnncc.errors import Refusal
from cnncc.eval._places import addresses
from cnncc.isa.codec import has_cores
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import Memory
from cnncc.numerics import Ints
from cnncc.weights import Array, WeightStore


def evaluate(
    module: ModuleOp, store: WeightStore, arch: Arch, inputs: Sequence[Array]
) -> tuple[list[Array], dict[str, Ints]]:
    """The outputs for integer `inputs`, and each layer's result by what it computes.

    The module goes through the bytes of a binary. A layer's result is read from its tensor when the layer's last
    instruction is done; in a program of cores, results in DRAM at the end.
    """
    binary = from_bytes(to_bytes(build_binary(module, store, arch)))
    batches = {len(a) // t.shape[0] for a, t in zip(inputs, inputs_of(binary), strict=True)} or {1}
    if len(batches) > 1:
        raise Refusal(f"the inputs hold different numbers of images: {sorted(batches)}")
    machine = Machine(binary, batches.pop())
    for tensor, integers in zip(inputs_of(binary), inputs, strict=True):
        machine.store(tensor, integers)
    results = result_tensors(module)
    trace: dict[str, Ints] = {}

    def watch(done: int, interpreter: Interpreter) -> None:
        if done in results:
            value, tensor = results[done]
            trace[value] = tensor_values(tensor, interpreter, machine.images)

    machine.run(watch)
    if has_cores(binary.instructions):  # no layer ends at one time, but what went to DRAM is still there
        trace = {value: machine.integers(tensor) for value, tensor in results.values() if tensor.memory == "dram"}
    outputs = [machine.real(t) if t.memory == "host" else machine.integers(t) for t in outputs_of(binary)]
    return outputs, trace


def result_tensors(module: ModuleOp) -> dict[int, tuple[str, Tensor]]:
    """What stands in the GLB or in DRAM when so many instructions are done: the value's key and its tensor."""
    tensors = {op.record.data.name: op.record.data for op in module.ops if isinstance(op, TensorOp)}
    layers = [op.record.data for op in module.ops if isinstance(op, LayerOp)]
    named = [(layer.first + layer.count, layer.value, _tensor_of(layer.value, tensors)) for layer in layers]
    return {end: (value, tensor) for end, value, tensor in named if value and tensor}


def _tensor_of(value: str, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """A value's tensor. A network's own may have such a name too: then the value's has another, and is not watched."""
    for name, memory in ((f"{value}.glb", "glb"), (value, "dram")):
        if (tensor := tensors.get(name)) is not None and (tensor.memory, tensor.role) == (memory, "value"):
            return tensor
    return None


def tensor_values(tensor: Tensor, interpreter: Interpreter, images: int) -> Ints:
    """The words of a tensor as they are now, [images * batch, …]. Raises OutOfRange for one that was never written."""
    memory, address, batch = _memory_of(tensor, interpreter), _places(tensor), tensor.shape[0]
    values = memory.read(address).reshape(-1, batch, *tensor.shape[1:]).astype(np.int64)
    # Words that all images have in common are read once: [1, …].
    return np.broadcast_to(values, (images, *values.shape[1:])).reshape(images * batch, *tensor.shape[1:])


def store_values(tensor: Tensor, interpreter: Interpreter, values: Array) -> None:
    """Replace the words of a tensor, [images * batch, …] or those of one image for all. Raises OutOfRange."""
    address = _places(tensor)
    _memory_of(tensor, interpreter).write(address, values.reshape(-1, *address.shape))


def _memory_of(tensor: Tensor, interpreter: Interpreter) -> Memory:
    return interpreter.glb if tensor.memory == "glb" else interpreter.dram


def _places(tensor: Tensor) -> Ints:
    """The words of a tensor in its memory, [batch, word]."""
    return addresses(tensor).reshape(tensor.shape[0], -1) + tensor.at
