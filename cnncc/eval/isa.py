"""Runs the `isa` level as the machine does: encoded to words, decoded again, and interpreted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import Arch
from cnncc.dialects.array import Tensor, TensorOp
from cnncc.dialects.isa import LayerOp
from cnncc.errors import Refusal
from cnncc.machine.container import from_bytes, to_bytes
from cnncc.machine.modules import build_binary
from cnncc.machine.run import Machine, inputs_of, outputs_of
from cnncc.machine.values import Interpreter
from cnncc.numerics import Ints
from cnncc.weights import Array, WeightStore


def evaluate(
    module: ModuleOp, store: WeightStore, arch: Arch, inputs: Sequence[Array]
) -> tuple[list[Array], dict[str, Ints]]:
    """The outputs for integer `inputs`, and each layer's result by what it computes.

    The module goes through the bytes of a binary. A layer's result is read from its tensor in the GLB when the
    layer's last instruction is done.
    """
    binary = from_bytes(to_bytes(build_binary(module, store, arch)))
    batches = {len(a) // t.shape[0] for a, t in zip(inputs, inputs_of(binary), strict=True)} or {1}
    if len(batches) > 1:
        raise Refusal(f"the inputs hold different numbers of images: {sorted(batches)}")
    machine = Machine(binary, batches.pop())
    for tensor, integers in zip(inputs_of(binary), inputs, strict=True):
        machine.store(tensor, integers)
    results = _results(module)
    trace: dict[str, Ints] = {}

    def watch(done: int, interpreter: Interpreter) -> None:
        if done in results:
            value, tensor = results[done]
            trace[value] = _read(tensor, interpreter, machine.images)

    machine.run(watch)
    outputs = [machine.real(t) if t.memory == "host" else machine.integers(t) for t in outputs_of(binary)]
    return outputs, trace


def _results(module: ModuleOp) -> dict[int, tuple[str, Tensor]]:
    """What stands in the GLB when so many instructions are done: the value's key and its tensor."""
    tensors = {op.record.data.name: op.record.data for op in module.ops if isinstance(op, TensorOp)}
    layers = [op.record.data for op in module.ops if isinstance(op, LayerOp)]
    named = [(layer.first + layer.count, layer.value, tensors.get(f"{layer.value}.glb")) for layer in layers]
    # A network's own tensor may have such a name too: then the value's has another one, and is not watched.
    return {end: (value, tensor) for end, value, tensor in named if value and tensor and tensor.memory == "glb"}


def _read(tensor: Tensor, interpreter: Interpreter, images: int) -> Ints:
    words = interpreter.glb.read(np.arange(tensor.at, tensor.at + tensor.words))
    rows = np.broadcast_to(words, (images, tensor.words)).astype(np.int64)
    return rows.reshape(images * tensor.shape[0], *tensor.shape[1:])
