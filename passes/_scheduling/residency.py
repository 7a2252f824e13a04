"""Which values lie in the GLB from the layer that computes them to the last that reads them, and what room is left.

A value that does not is in DRAM, and moves through the GLB block by block wherever it is read or written. Small values
stay before large ones: every one that stays saves its way to DRAM and back, and takes the least room for that. But
where layers are mapped for their room others do if that is quicker, by what layers take about. What a given mapping
stages in the GLB is in DRAM, too. No pass: `nest-assign-mapping` uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from cnncc.arch.model import Arch
from cnncc.dialects import nest
from cnncc.dialects.cnn import ConcatOp, HostOp, ReshapeOp, shape, value_key
from cnncc.dialects.nest import LayerOp
from cnncc.errors import Finding, Refusal, Refusals
from cnncc.mapper.bound import ideal_cycles
from cnncc.mapper.chain import best_choices
from cnncc.mapper.transfer_bound import NEVER, cycles_about
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._programs.tensors import given_quants, is_read_in_glb, parts, source, uses
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape
from cnncc.passes._scheduling.os_plan import SMALL, GlbTooSmall, StaysOut, stage_sizes
from cnncc.passes._scheduling.smaller_budgets import Choose, Tried, Wanted, choice_of, try_smaller_budgets
from cnncc.passes.array_allocate import Lifetime, pack

Chosen = dict[LayerOp, nest.Mapping | None]
WORTH = 1.1  # how much less layers have to wait, so that a value moves for them: cycles are not known exactly


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
    """The values of a network and the operands of its layers."""

    def __init__(self, func: FuncOp) -> None:
        self.ops = [op for op in func.body.block.ops if not isinstance(op, ReshapeOp)]
        self.number = {op: i for i, op in enumerate(self.ops)}
        self.layers = [op for op in self.ops if isinstance(op, LayerOp)]
        self.parts = parts(func.body.block)
        self.given = given_quants(func)
        found: dict[SSAValue, list[SSAValue]] = {}
        for value in [*func.body.block.args, *(result for op in self.ops for result in op.results)]:
            found.setdefault(self.root(value), []).append(value)
        self.values = [value for root, members in found.items() for value in self._value(root, members)]

    def root(self, value: SSAValue) -> SSAValue:
        """The value whose tensor `value` is (part of)."""
        value = source(value)
        while value in self.parts:
            value = source(self.parts[value][0])
        return value

    def beside(self, value: Value) -> list[LayerOp]:
        """The layers that run while a value is needed."""
        return [layer for layer in self.layers if value.first <= self.number[layer] <= value.last]

    def operands(self, layer: LayerOp) -> Mapping[str, SSAValue]:
        """The roots of a layer's activations."""
        found = {"ifmap": layer.ifmap, "output": layer.result}
        found |= {"residual": layer.residual} if layer.residual else {}
        return {operand: self.root(value) for operand, value in found.items()}

    def _value(self, root: SSAValue, members: Sequence[SSAValue]) -> Iterator[Value]:
        """The value of a root, if layers read or compute it, or it comes from DRAM only to go back there."""
        users = [use.operation for member in members for use in uses(member)]
        makers = [member.owner for member in members]
        if not any(isinstance(op, LayerOp) for op in (*users, *makers)) and not self._passes(members):
            return
        numbers = [self.number[op] for op in (*users, *makers) if isinstance(op, Operation)]
        first = min(numbers) if all(isinstance(maker, Operation) for maker in makers) else -1
        yield Value(root, prod(shape(root.type)), first, max(numbers), self._may_move(root, members))

    def _passes(self, members: Sequence[SSAValue]) -> bool:
        """Whether what is given is read in the GLB by no layer, but to be put elsewhere."""
        quants = {member: self.given[member] for member in members if member in self.given}
        return any(is_read_in_glb(use, quant) for member, quant in quants.items() for use in uses(member))

    def _may_move(self, root: SSAValue, members: Sequence[SSAValue]) -> bool:
        """Whether DRAM can hold it: what host or user share there is a tensor of its own, by its own type."""
        returned = 0
        for member in members:
            given = not isinstance(member.owner, LayerOp | ConcatOp)
            if given and len(members) > 1:
                return False
            for use in uses(member):
                if isinstance(use.operation, ReturnOp | HostOp):
                    same = shape(use.operation.operands[use.index].type) == shape(member.type)
                    returned += isinstance(use.operation, ReturnOp)
                    if member is not root or not same or (given and isinstance(use.operation, ReturnOp)):
                        return False
        return returned <= 1


def choose_mappings(func: FuncOp, arch: Arch, choose: Choose) -> Chosen:
    """A mapping for every layer, such that what is in the GLB at a time fits. Raises Refusal naming a layer."""
    network, outside = Network(func), list[Value]()
    while True:
        try:
            values = [value for value in network.values if value not in outside]
            return _chosen_within(network, values, arch, choose)
        except _StaysOut as out:
            outside.append(out.value)


def _chosen_within(network: Network, values: Sequence[Value], arch: Arch, choose: Choose) -> Chosen:
    """The same with only these values in the GLB, or some of them."""
    if all(_live(values, network.number[layer]) < arch.glb.words for layer in network.layers):
        with suppress(_TooMuch):
            return _chosen(network, values, arch, choose)
    resident = [value for value in _small_ones(network, arch) if value in values]
    if all(choose.free(layer) for layer in network.layers):
        resident = _quick_ones(network, resident, arch)
    while True:
        try:
            return _chosen(network, resident, arch, choose)
        except _TooMuch as much:
            there = [value for value in resident if value.may_move and value.first <= much.number <= value.last]
            if not there:
                raise much.final(choose) from much
            largest = max(there, key=lambda value: (value.words, value.first))
            resident = [value for value in resident if value is not largest]


class _StaysOut(Exception):
    """A mapping that is given says that a value is in DRAM."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


class _TooMuch(Exception):
    """What is in the GLB while op number `number` runs does not fit; or there is no mapping for some layers."""

    def __init__(
        self, number: int, refusal: GlbTooSmall, failed: Sequence[tuple[LayerOp, GlbBudget, GlbTooSmall]] = ()
    ) -> None:
        super().__init__(str(refusal))
        self.number, self.refusal, self.failed = number, refusal, failed

    def final(self, choose: Choose) -> GlbTooSmall:
        """What is said where nothing else can be tried."""
        exact = [choose.refused(layer, budget, refusal) for layer, budget, refusal in self.failed]
        layers = [layer for layer, *_ in self.failed]
        return _all_of(layers, exact) if exact else self.refusal


def _all_of(layers: Sequence[LayerOp], refusals: Sequence[GlbTooSmall]) -> GlbTooSmall:
    """One refusal for several layers: the tightest says what would do for all."""
    findings = [
        replace(finding, where=label_of(layer))
        for layer, refusal in zip(layers, refusals, strict=True)
        for finding in refusal.findings
    ]
    tightest = max(refusals, key=lambda refusal: refusal.words)
    message = str(tightest) if len(findings) == 1 else f"nest-assign-mapping: {len(findings)} problems"
    return GlbTooSmall(message, tightest.words, *findings)


def _live(values: Iterable[Value], number: int) -> int:
    return sum(value.words for value in values if value.first <= number <= value.last)


def _chosen(network: Network, resident: Sequence[Value], arch: Arch, choose: Choose) -> Chosen:
    """Mappings for the layers in the room that is left. Raises _TooMuch."""
    roots = {value.root for value in resident}
    chosen: Chosen = {}
    failed: list[tuple[LayerOp, GlbBudget, GlbTooSmall]] = []
    refusals = Refusals()
    lifetimes = [Lifetime(f"value {i}", value.words, value.first, value.last) for i, value in enumerate(resident)]
    tried: list[Tried] = []
    budgets: list[Wanted] = []
    for layer in network.layers:
        streamed = frozenset(operand for operand, root in network.operands(layer).items() if root not in roots)
        words = arch.glb.words - _live(resident, network.number[layer])
        budgets.append(Wanted(layer, GlbBudget(words, streamed, layer.residual is not None)))
    choose.soon(budgets)
    for layer, budget, *_ in budgets:
        number, operands = network.number[layer], network.operands(layer)
        try:
            mappings = [choose(layer, budget)]
        except GlbTooSmall as refusal:
            failed.append((layer, budget, refusal))
            continue
        except StaysOut as refusal:
            value = next(value for value in resident if value.root is operands[refusal.operand])
            if value.may_move:
                raise _StaysOut(value) from refusal
            why = Refusal(f"nest-assign-mapping: layer '{label_of(layer)}': {refusal}", *refusal.findings)
            refusals.add(why, label_of(layer))
            continue
        except Refusal as refusal:
            refusals.add(refusal, label_of(layer))
            continue
        tried.append(Tried(layer, budget, mappings))
    refusals.raise_any("nest-assign-mapping")
    if failed:
        tightest = max(failed, key=lambda each: each[2].words)[0]
        refusal = _all_of([layer for layer, *_ in failed], [refusal for *_, refusal in failed])
        raise _TooMuch(network.number[tightest], refusal, failed)
    try_smaller_budgets(tried, arch, choose)
    for (layer, mapping), number in _best(network, tried, arch, choose):
        chosen[layer] = mapping
        for stage, words in stage_sizes(layer_shape(layer), arch, mapping).items() if mapping else ():
            lifetimes.append(Lifetime(f"{stage} {number}", words, number, number))
    needed, places = pack(lifetimes)
    if needed > arch.glb.words:
        over = next(life for life in lifetimes if places[life.name] + life.words > arch.glb.words)
        where = value_key(network.ops[max(over.first, 0)]) or "outputs"
        raise _TooMuch(over.first, _glb_too_small(where, arch, needed))
    return chosen


def _best(
    network: Network, tried: Sequence[Tried], arch: Arch, choose: Choose
) -> Iterator[tuple[tuple[LayerOp, nest.Mapping | None], int]]:
    """For each layer the mapping with which all layers together take the fewest cycles, and its number.

    What is given is not run on the model: whether the machine can do it is seen later.
    """
    choices = [[choice_of(each.layer, mapping, arch) for mapping in each.mappings] for each in tried]
    for each, of_layer in zip(tried, choices, strict=True):
        if not choose.free(each.layer):
            of_layer[:] = [replace(choice, plan=None) for choice in of_layer]
    best = best_choices(choices, [each.budget.words for each in tried], arch)
    for each, which in zip(tried, best, strict=True):
        yield (each.layer, each.mappings[which]), network.number[each.layer]


def _glb_too_small(where: str, arch: Arch, needed: int) -> GlbTooSmall:
    message = f"'{where}': glb.words = {arch.glb.words} is too small: the smallest that would do is {needed}"
    what, help_ = "values and buffers do not fit", "an array with a larger GLB"
    finding = Finding(what, where=where, resource="glb.words", value=needed, limit=arch.glb.words, help=help_)
    return GlbTooSmall(message, needed, finding)


def _small_ones(network: Network, arch: Arch) -> list[Value]:
    """Values that stay: the smallest, as long as every layer has room for its weights and for what moves."""
    resident = [value for value in network.values if not value.may_move]
    streamed = [value for value in network.values if value.may_move]
    for value in sorted(streamed, key=lambda value: (value.words, value.first)):
        if _fit(network, [*resident, value], network.beside(value), arch):
            resident.append(value)
    return resident


def _fit(network: Network, resident: Sequence[Value], layers: Iterable[LayerOp], arch: Arch) -> bool:
    """Whether layers have room for their weights, and for what moves, beside these values."""
    roots, small = {value.root for value in resident}, arch.glb.words // SMALL
    for layer in layers:
        shape_, moves = layer_shape(layer), any(root not in roots for root in network.operands(layer).values())
        sizes = shape_.sizes
        each = sizes.h * sizes.w if shape_.per_position else sizes.k
        weights = shape_.weight_words + shape_.params * arch.words_per_param * each
        needs = min(weights, small) + (small if moves else 0)
        if _live(resident, network.number[layer]) + needs > arch.glb.words:
            return False
    return True


def _quick_ones(network: Network, resident: list[Value], arch: Arch) -> list[Value]:
    """Others, where that is quicker: some stay in place of smaller ones; some move, as they leave layers too little.

    A small value that moves past layers that compute for long may cost nothing, a large one past short ones much.
    """

    def quicker(others: Sequence[Value], changed: Iterable[Value]) -> bool:
        layers = {layer: None for value in changed for layer in network.beside(value)}
        ideal = sum(ideal_cycles(layer_shape(layer), arch) for layer in layers if layer.kind.data != "copy")
        now, then = (_cycles(network, layers, values, arch) - ideal for values in (resident, others))
        return then * WORTH < now

    movable = sorted((value for value in network.values if value.may_move), key=lambda each: (-each.words, each.first))
    for value in (each for each in movable if each not in resident):
        others, beside = [*resident, value], network.beside(value)
        gone = [each for each in movable if each in resident and each.meets(value)]
        while gone and _cycles(network, beside, others, arch) >= NEVER:
            others.remove(gone.pop(0))
        if quicker(others, [value, *(each for each in resident if each not in others)]):
            resident = others
    for value in (each for each in movable if each in resident):
        others = [each for each in resident if each is not value]
        if quicker(others, [value]):
            resident = others
    return resident


def _cycles(network: Network, layers: Iterable[LayerOp], resident: Sequence[Value], arch: Arch) -> int:
    """What layers take, about, with these values in the GLB."""
    roots, total = {value.root for value in resident}, 0
    for layer in layers:
        streamed = frozenset(operand for operand, root in network.operands(layer).items() if root not in roots)
        words = arch.glb.words - _live(resident, network.number[layer])
        budget = GlbBudget(words, streamed, layer.residual is not None)
        total += cycles_about(layer_shape(layer), arch, budget) if words >= 0 else NEVER
    return total
