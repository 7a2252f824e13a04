"""What a proof takes as given on both sides: scales of inputs and outputs, and host segments. It must be the same."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from cnncc.binary.run import inputs_of, outputs_of
from cnncc.dialects.array import Tensor
from cnncc.dialects.cnn import HostOp, Quant, quants_of, shape
from cnncc.frontend.segments import interface, name_after_tensors
from cnncc.main_function import input_names, main_function, output_names, returned
from cnncc.passes._programs.tensors import source
from cnncc.proof.claim import Claim


def interface_differences(claim: Claim) -> Iterator[str]:
    """What differs between the binary's and the network's inputs, outputs and host segments, one line each."""
    binary, module = claim.binary, claim.module
    func, tensors = main_function(module), {tensor.name: tensor for tensor in binary.tensors}
    on_host = dict[SSAValue, str]()  # by value that only the host knows: its tensor
    sides = (
        ("input", inputs_of(binary), input_names(module), list(func.args), func.arg_attrs),
        ("output", outputs_of(binary), output_names(module), list(returned(module)), func.res_attrs),
    )
    for role, given, names, values, attrs in sides:
        # What follows pairs tensors and values by their places, which has no meaning then.
        if [tensor.name for tensor in given] != names:
            yield f"{role}s are {', '.join(tensor.name for tensor in given)}, the network has {', '.join(names)}"
            return
        for tensor, value, quant in zip(given, values, quants_of(attrs, len(names)), strict=True):
            yield from _difference(f"{role} {tensor.name}", tensor, quant, shape(value.type))
            if role == "input" and quant is None:
                on_host[value] = tensor.name
    yield from _segments(claim, func, tensors, on_host)
    for tensor, value in zip(outputs_of(binary), returned(module), strict=True):
        if value in on_host and on_host[value] != tensor.name:
            yield f"output {tensor.name} is read from host tensor {tensor.name}, the network has {on_host[value]}"


def _segments(claim: Claim, func: FuncOp, tensors: dict[str, Tensor], on_host: dict[SSAValue, str]) -> Iterator[str]:
    hosts = [op for op in func.body.block.ops if isinstance(op, HostOp)]
    if len(hosts) != len(claim.binary.segments):
        yield f"{len(claim.binary.segments)} host segments, the network has {len(hosts)}"
        return
    for number, (op, model) in enumerate(zip(hosts, claim.binary.segments, strict=True)):
        operands, results = (list(side) for side in interface(model))
        numbers = operand_numbers(op)
        if (len(operands), len(results)) != (len({*numbers}), len(op.outputs)):
            yield f"host segment {number} has another number of inputs or outputs than the network's"
            continue
        operands = [operands[each] for each in numbers]
        if name_after_tensors(claim.store[op.model.key.data].tobytes(), operands, results) != model:
            yield f"host segment {number} is not the network's"
        for side, values, quants in ((operands, op.inputs, op.input_quants), (results, op.outputs, op.output_quants)):
            for name, value, quant in zip(side, values, quants, strict=True):
                given = quant.data if quant.data.scale else None
                yield from _difference(f"host segment {number}: {name}", tensors[name], given, None)
                if given is None and on_host.setdefault(value, name) != name:
                    yield f"host segment {number} reads {name}, the network has {on_host[value]}"


def operand_numbers(op: HostOp) -> list[int]:
    """Of each operand of a host segment the number of its tensor: values that differ in their shape alone share one."""
    keys = [(source(value), quant.data) for value, quant in zip(op.inputs, op.input_quants, strict=True)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def _difference(what: str, tensor: Tensor, quant: Quant | None, dims: tuple[int, ...] | None) -> Iterator[str]:
    """The first difference of a tensor; dims: its shape, None where host and array may see it under different ones."""
    if (tensor.memory == "dram") != (quant is not None):
        yield f"{what} lies in {tensor.memory}, the network has it {'in DRAM' if quant else 'on the host'}"
    elif dims is not None and tensor.shape != dims:
        yield f"{what} has shape {list(tensor.shape)}, the network's {list(dims)}"
    elif quant is not None:
        for name in ("scale", "zero", "clamp", "element"):
            if (got := getattr(tensor, name)) != (wanted := getattr(quant, name)):
                yield f"{what} has {name} {got}, the network's {wanted}"
