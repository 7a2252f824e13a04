"""The values of a network: the tensor that each is part of, its words, and the layers while which it is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from cnncc.dialects.cnn import ConcatOp, HostOp, Quant, ReshapeOp, SliceOp, is_per_channel, quants_of, shape
from cnncc.dialects.nest import LayerOp
from cnncc.passes._programs.tensors import channels_of, given_quants, is_read_in_glb, parts, uses


@dataclass(frozen=True)
class Value:
    """The words of one tensor (of all values that are parts of it), needed from op `first` to op `last`."""

    root: SSAValue
    words: int
    first: int
    last: int
    may_move: bool

    def meets(self, other: Value) -> bool:
        """Whether both are needed at a time."""
        return self.first <= other.last and other.first <= self.last


class Network:
    """The values of a network and the operands of its layers.

    groups: layers that run as a group. They have one number, and rings in place of the values between them.
    """

    def __init__(self, func: FuncOp, groups: Sequence[Sequence[LayerOp]] = ()) -> None:
        self.func = func
        self.ops = [op for op in func.body.block.ops if not isinstance(op, ReshapeOp | SliceOp)]
        self.number = {op: i for i, op in enumerate(self.ops)}
        self.number |= {op: self.number[group[-1]] for group in groups for op in group}
        self.layers = [op for op in self.ops if isinstance(op, LayerOp)]
        self.parts = parts(func.body.block)
        self.given = given_quants(func)
        rings = {op.result for group in groups for op in group[:-1]}
        by_root: dict[SSAValue, list[SSAValue]] = {}
        values = [*func.body.block.args, *(result for op in self.ops for result in op.results)]
        for value in (value for value in values if value not in rings):
            by_root.setdefault(self.root(value), []).append(value)
        self.values = [value for root, members in by_root.items() for value in self._value(root, members)]

    def ready(self, op: Operation) -> int:
        """The number of the first op that runs with results of an op in the GLB: the host's come when it has ended."""
        return self.number[op] + isinstance(op, HostOp)

    def root(self, value: SSAValue) -> SSAValue:
        """The value whose tensor `value` is (part of)."""
        value = channels_of(value).whole
        while value in self.parts:
            value = channels_of(self.parts[value].whole).whole
        return value

    def beside(self, value: Value) -> list[LayerOp]:
        """The layers that run while a value is needed."""
        return [layer for layer in self.layers if value.first <= self.number[layer] <= value.last]

    def operands(self, layer: LayerOp) -> Mapping[str, SSAValue]:
        """The roots of a layer's activations."""
        by_operand = {"ifmap": layer.ifmap, "output": layer.result}
        by_operand |= {"residual": layer.residual} if layer.residual else {}
        return {operand: self.root(value) for operand, value in by_operand.items()}

    def copied_in(self, resident: Iterable[Value]) -> list[Value]:
        """The resident values that are copied to the GLB before the first layer: inputs."""
        given = dict.fromkeys(self.root(value) for value in self.given if not isinstance(value.owner, HostOp))
        return _of_roots(given, resident)

    def copied_out(self, resident: Iterable[Value]) -> list[Value]:
        """The resident values that are copied to DRAM behind the last layer: results; each as often as it is one."""
        returned = [operand for op in self.ops if isinstance(op, ReturnOp) for operand in op.arguments]
        return _of_roots([self.root(value) for value in returned], resident)

    def _value(self, root: SSAValue, members: Sequence[SSAValue]) -> Iterator[Value]:
        """The value of a root, if layers read or compute it, or it comes from DRAM only to go back there."""
        users = [use.operation for member in members for use in uses(member)]
        makers = [member.owner for member in members]
        if not any(isinstance(op, LayerOp) for op in (*users, *makers)) and not self._passes(members):
            return
        ops = [maker for maker in makers if isinstance(maker, Operation)]
        first = min(map(self.ready, ops)) if len(ops) == len(makers) else -1  # the block has what comes from outside
        ends = [*self._reads(members), *(self.number[op] for op in ops)]
        may_move = _may_move(root, members) and len(self._scales(members)) <= 1 and not any(map(_is_pixels, members))
        yield Value(root, prod(shape(root.type)), first, max(ends), may_move)

    def _reads(self, members: Sequence[SSAValue]) -> Iterator[int]:
        """The ops that read a value in the GLB. A host segment does so if DRAM does not have it by its scale yet."""
        for member in members:
            in_dram = {self.given.get(member)}
            # In program order: the first segment that reads by a scale leaves the value in DRAM for later ones.
            for use in sorted(uses(member), key=lambda use: self.number[use.operation]):
                if isinstance(use.operation, HostOp):
                    quant = use.operation.input_quants.data[use.index].data
                    if quant in in_dram:
                        continue
                    in_dram.add(quant)
                yield self.number[use.operation]

    def _scales(self, members: Sequence[SSAValue]) -> set[Quant]:
        """By which host and user give or read a value: DRAM has it by the first, and by others what the GLB has."""
        scales = {self.given[member] for member in members if member in self.given}
        for use in (use for member in members for use in uses(member)):
            match use.operation:
                case HostOp() as host:
                    scales.add(host.input_quants.data[use.index].data)
                case ReturnOp() as op:
                    quant = quants_of(self.func.res_attrs, len(op.arguments))[use.index]
                    scales |= {quant} if quant else set()
                case _:
                    pass
        return scales

    def _passes(self, members: Sequence[SSAValue]) -> bool:
        """Whether what is given is read in the GLB by no layer, but to be put elsewhere."""
        quants = {member: self.given[member] for member in members if member in self.given}
        return any(is_read_in_glb(use, quant) for member, quant in quants.items() for use in uses(member))


def _may_move(root: SSAValue, members: Sequence[SSAValue]) -> bool:
    """Whether DRAM can hold it: a value that host or user shares has a tensor of its own there, of one shape.

    That is its type if they give it, and the shape in which they read it otherwise.
    """
    returned, shapes = 0, set[tuple[int, ...]]()
    for member in members:
        given = not isinstance(member.owner, LayerOp | ConcatOp)
        # What comes from outside comes as a tensor of its own, and so is no part of another one in DRAM.
        if given and len(members) > 1:
            return False
        for use in uses(member):
            if isinstance(use.operation, ReturnOp | HostOp):
                read = shape(use.operation.operands[use.index].type)
                returned += isinstance(use.operation, ReturnOp)
                if member is not root or (given and (read != shape(root.type) or isinstance(use.operation, ReturnOp))):
                    return False
                shapes.add(read)
    return returned <= 1 and len(shapes) <= 1 and all(read[:1] == shape(root.type)[:1] for read in shapes)


def _is_pixels(value: SSAValue) -> bool:
    """Whether a layer reads a value as a residual of one pixel a channel: its words come for each result."""
    users = ((use.operation, use.index) for use in uses(value))
    return any(isinstance(op, LayerOp) and index == 1 and is_per_channel(op.residual, op.result) for op, index in users)


def _of_roots(roots: Iterable[SSAValue], resident: Iterable[Value]) -> list[Value]:
    of_root = {value.root: value for value in resident}
    return [of_root[root] for root in roots if root in of_root]


def live_words(values: Iterable[Value], number: int) -> int:
    """Words of the values that are needed while op `number` runs."""
    return sum(value.words for value in values if value.first <= number <= value.last)
