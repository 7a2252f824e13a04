"""Runs IR of the `array` dialect, PE by PE in program order (PROG-5), from what its ops say alone.

Written from docs/machine.md, with nothing of the interpreter: two readings of the same rules. Tensors are arrays of
their own, so that an address outside its tensor is noticed; everything is an array over [images, rows, cols, …]. What
the rules do not allow (a half that is not free, an empty slot, a token that is not there) is refused, naming layer and
op.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from cnncc.arch.model import Arch
from cnncc.dialects import array as A
from cnncc.dialects.weights import GlobalOp, arrays_of
from cnncc.errors import Refusal, refusals_of
from cnncc.eval._array_cores import Pick, run_cores
from cnncc.eval._array_rules import ArrayState, named
from cnncc.eval.cnn import joined
from cnncc.frontend.segments import RunModel, run_on_host
from cnncc.numerics import Ints, dequantise, integer_range, quantise
from cnncc.weights import Array, WeightStore


def _images(inputs: Sequence[Array], tensors: Sequence[A.Tensor]) -> int:
    if len(inputs) != len(tensors):
        raise Refusal(f"there are {len(tensors)} inputs, {len(inputs)} were given")
    # A network without inputs runs once.
    counts = {array.size // max(1, prod(tensor.shape)) for array, tensor in zip(inputs, tensors, strict=True)} or {1}
    for array, tensor in zip(inputs, tensors, strict=True):
        if len(counts) > 1 or array.size != max(counts) * prod(tensor.shape) or not array.size:
            raise Refusal(f"input '{tensor.name}' has shape {list(array.shape)}, expected {list(tensor.shape)}")
    return counts.pop()


def evaluate(
    module: ModuleOp,
    store: WeightStore,
    arch: Arch,
    inputs: Sequence[Array],
    host: RunModel = run_on_host,
    pick: Pick | None = None,
) -> tuple[list[Array], dict[str, Ints]]:
    """The outputs for integer `inputs` (in the order of the input tensors), and each layer's result by what it
    computes.

    The leading dim of inputs may be any multiple of their tensors': each image is a frame in a program over frames. The
    module may be allocated or not. pick: which core goes on next, in a program of several.

    Raises: Refusal naming layer and op for whatever the rules do not allow.
    """
    tensors = A.tensors_of(module)
    given = [tensor for tensor in tensors.values() if tensor.role == "input"]
    globals_ = arrays_of(module, store)
    images, cores = _images(inputs, given), A.cores_of(module)
    over_frames = any(isinstance(op, A.RepeatOp) and op.record.data.frames for core in cores for op in core.walk())
    sizes = (1, images) if over_frames else (images, 0)
    machine = ArrayState(arch, sizes[0], globals_, tensors, frames=sizes[1])
    for tensor, values in zip(given, inputs, strict=True):
        machine.set(tensor, values)
    trace: dict[str, Ints] = {}

    def run_host(op: Operation, state: ArrayState) -> None:
        named(op, lambda op: _segment(op, state, store, host))

    def note(op: A.LayerOp, state: ArrayState) -> None:
        trace.update(_result(op, state))

    if cores:
        run_cores(cores, machine, run_host, note, pick)
    for op in module.ops:
        match op:
            case A.LayerOp():
                _layer(op, machine)
                note(op, machine)
            case A.HostOp():
                run_host(op, machine)
            case A.TensorOp() | GlobalOp() | A.CoreOp():
                pass
            case _:
                raise Refusal(f"op {op.name} does not belong to the array level")
    return [machine.get(tensor.name) for tensor in tensors.values() if tensor.role == "output"], trace


def _result(op: A.LayerOp, machine: ArrayState) -> dict[str, Ints]:
    """The value of a layer that ran: the tensor of its last commit, or the tensor in DRAM that gathers its commits."""
    with refusals_of(f"layer {op.label.data}"):
        return {op.value.data: machine.get(machine.result)} if op.value.data and machine.result else {}


def _layer(op: A.LayerOp, machine: ArrayState) -> None:
    machine.start_layer(op)
    with refusals_of(f"layer {op.label.data}"):
        for inner in op.body.block.ops:
            named(inner, machine.run)


def _segment(op: Operation, machine: ArrayState, store: WeightStore, host: RunModel) -> None:
    """A host segment, image by image (PROG-4)."""
    assert isinstance(op, A.HostOp)
    model, record = store[op.model.key.data].tobytes(), op.record.data
    shapes = [machine.tensor(name).shape for name in record.inputs]
    inputs = [_real(machine, name) for name in record.inputs]
    parts = [x.reshape(machine.passes, *dims) for x, dims in zip(inputs, shapes, strict=True)]
    results = [host(model, [part[image] for part in parts]) for image in range(machine.passes)]
    for number, name in enumerate(record.outputs):
        tensor = machine.tensor(name)
        whole = joined([result[number] for result in results])
        if tensor.memory == "dram":
            low, high = integer_range(machine.arch.operand_bits)
            low, high = max(low, tensor.clamp[0]), min(high, tensor.clamp[1])
            whole = quantise(whole, tensor.scale, tensor.zero, low, high)
        machine.set(tensor, whole)


def _real(machine: ArrayState, name: str) -> Array:
    tensor, values = machine.tensor(name), machine.get(name)
    if tensor.memory == "dram" and not tensor.scale:
        raise Refusal(f"tensor {name} has no scale, so the host cannot read it")
    if tensor.memory == "host":
        return values
    return dequantise(values, tensor.scale, tensor.zero).astype(tensor.element, copy=False)
