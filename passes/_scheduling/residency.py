"""Which values are resident in the GLB, from the layer that computes a value to its last reader. No pass.

The others lie in DRAM, and are streamed through the GLB block by block wherever they are read or written. Small values
come first: each resident value saves its way to DRAM and back, and a small one takes the fewest words for that. Then
values are exchanged if layers are estimated to wait less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cnncc.arch.model import Arch
from cnncc.dialects.nest import LayerOp
from cnncc.mapper.arrays import NEVER, transfer_cycles
from cnncc.mapper.bound import ideal_cycles
from cnncc.mapper.transfer_bound import cycles_about
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._scheduling.glb_words import SMALL
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.network_values import Network, Value, live_words

# Ends are streamed where the copy takes more than 1 / END_PART of the cycles; 0: never. With 1,000 ResNet-20 on 16 x 16
# PEs takes 0.13 % fewer cycles, and the search a third more time.
END_PART = 300
# And where they take more than 1 / GLB_PART of the GLB. Without it a layer of 37 x 21 x 9 words and 20 kernels of 5 x 5
# on 4 x 4 PEs takes 241,021 cycles in a GLB of 14,700 words, and 239,111 in one of 7,382.
GLB_PART = 8
# By cycles a network that takes more, times the least of its layers, is mapped with the values for few words, too.
# Without it one of two convolutions and a sum in a GLB of 533 words takes 10,977 cycles for 10,319.
WAITS = 2.0
WORTH = 1.1  # how much less layers have to wait, so that a value is streamed for them: cycles are not known exactly


def glb_budgets(
    network: Network, resident: Sequence[Value], arch: Arch, layers: Iterable[LayerOp] | None = None
) -> Iterator[tuple[LayerOp, GlbBudget]]:
    """For each layer, or some, its streamed operands, and the words that resident values leave for its buffers."""
    roots = {value.root for value in resident}
    for layer in network.layers if layers is None else layers:
        streamed = frozenset(operand for operand, root in network.operands(layer).items() if root not in roots)
        words = arch.glb.words - live_words(resident, network.number[layer])
        yield layer, GlbBudget(words, streamed, layer.residual is not None)


def all_fit(network: Network, values: Sequence[Value], arch: Arch) -> bool:
    """Whether all values together leave every layer a word for its buffers."""
    return all(live_words(values, network.number[layer]) < arch.glb.words for layer in network.layers)


def resident_choices(
    network: Network, values: Sequence[Value], free: Sequence[Value], wanted: Sequence[Value], arch: Arch
) -> list[list[Value]]:
    """CHAIN-5. Sets of values to keep resident: one for few waits and, if it is another one, one for few words.

    - free: the values that may be exchanged. The others are operands of layers whose mappings are given.
    - wanted: those that such mappings have resident, whatever else has room then.
    """
    small = _smallest_first(network, values, wanted, arch)
    exchanged = _exchanged(network, small, free, arch)
    return [exchanged] if exchanged == small else [exchanged, small]


def ends_streamed(
    network: Network, resident: Sequence[Value], free: Sequence[Value], arch: Arch, cycles: int
) -> Iterator[list[Value]]:
    """CHAIN-3. The resident values without the network's inputs, without its results, and without both.

    What is resident is copied before the first layer and behind the last one, while nothing else runs. Values that are
    copied in a small part (`END_PART`) of the network's cycles, and take a small part (`GLB_PART`) of the GLB, stay.
    """

    def is_worth_while(value: Value) -> bool:
        copied = transfer_cycles(value.words, arch.dram) + arch.dram.latency_cycles
        return END_PART > 0 and (copied * END_PART >= cycles or value.words * GLB_PART > arch.glb.words)

    inputs, results = (
        [value for value in copied if value.may_move and value in free and is_worth_while(value)]
        for copied in (network.copied_in(resident), network.copied_out(resident))
    )
    for streamed in (inputs, results, [*inputs, *results] if inputs and results else []):
        if streamed:
            yield [value for value in resident if value not in streamed]


def without_largest(resident: Sequence[Value], number: int) -> list[Value] | None:
    """All but the largest value of op `number` that may be streamed; None if there is no such value."""
    there = [value for value in resident if value.may_move and value.first <= number <= value.last]
    if not there:
        return None
    largest = max(there, key=lambda value: (value.words, value.first))
    return [value for value in resident if value is not largest]


def _smallest_first(network: Network, values: Sequence[Value], wanted: Sequence[Value], arch: Arch) -> list[Value]:
    """Wanted values, and the smallest, as long as all layers have GLB words for weights and streamed operands."""
    resident = [value for value in values if value in wanted or not value.may_move]
    streamed = [value for value in values if value not in resident]
    for value in sorted(streamed, key=lambda value: (value.words, value.first)):
        if _fit(network, [*resident, value], network.beside(value), arch):
            resident.append(value)
    return resident


def _fit(network: Network, resident: Sequence[Value], layers: Iterable[LayerOp], arch: Arch) -> bool:
    """Whether layers have GLB words for their weights and their streamed operands beside these values."""
    roots, small = {value.root for value in resident}, arch.glb.words // SMALL
    for layer in layers:
        shape_, moves = layer_shape(layer), any(root not in roots for root in network.operands(layer).values())
        weights = shape_.weight_words + shape_.param_words(arch)
        needs = min(weights, small) + (small if moves else 0)
        if live_words(resident, network.number[layer]) + needs > arch.glb.words:
            return False
    return True


def _exchanged(network: Network, resident: list[Value], values: Sequence[Value], arch: Arch) -> list[Value]:
    """Improve the resident values by local search, as long as layers are estimated to wait 10 % less (`WORTH`).

    First a large value takes the place of smaller ones, then each value is streamed for itself. Streaming a small value
    past layers that compute for long may cost nothing; streaming a large one past short layers costs much.
    """

    def quicker(others: Sequence[Value], changed: Iterable[Value]) -> bool:
        layers = {layer: None for value in changed for layer in network.beside(value)}
        ideal = sum(ideal_cycles(layer_shape(layer), arch) for layer in layers if layer.kind.data != "copy")
        now, then = (_cycles(network, layers, values, arch) - ideal for values in (resident, others))
        return then * WORTH < now

    movable = sorted((value for value in values if value.may_move), key=lambda each: (-each.words, each.first))
    for value in (each for each in movable if each not in resident):
        others, beside = [*resident, value], network.beside(value)
        gone = [each for each in movable if each in resident and each.meets(value)]
        # NEVER: a layer has no room beside these values. The largest leave first, until each has some.
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
    """An estimate of the cycles of layers with these values resident."""
    return sum(
        cycles_about(layer_shape(layer), arch, budget) if budget.words >= 0 else NEVER
        for layer, budget in glb_budgets(network, resident, arch, layers)
    )
