"""What the size of a GLB allows a network at most, where each value lies in it as a whole or not at all.

An exhaustive search over which values do, for the cycles that no program can be below which keeps to this:

1. Layers run one after the other. A value is resident in the GLB from the layer that computes it to the last layer
   that reads it, or it lies in DRAM. Every read and write of a value in DRAM goes through the DMA. The resident values
   fit the GLB at any time.
2. Only weights and parameters of a layer are prefetched: all else waits until the array, the loads and the commits of
   the layer before are done (docs/mapper.md, CHAIN-1). The results are streamed behind the first macro-instruction, the
   last of them behind the last commit.
3. The DMA moves words in the order of the program (PROG-3), so many a cycle (DMA-2): a layer's image and residual come
   behind the results of all layers before it. A layer whose image is streamed computes nothing before that.
4. If nothing overlaps (TIME-6), all this adds up.

The compiler contributes only the network itself: its layers and their operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from structure import image_words, shape_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from cnncc.arch.model import Arch
from cnncc.dialects.cnn import ConcatOp, HostOp, ReshapeOp
from cnncc.dialects.cnn import shape as tensor_shape
from cnncc.dialects.nest import LayerOp

Times = tuple[int, int]  # when the array is done with a layer, and when the DMA is, at least


@dataclass(frozen=True)
class Value:
    """Words of a tensor, and the first and the last layer that need it.

    Number -1, and the number of layers, stand for the network's user.
    """

    words: int
    first: int
    last: int


@dataclass(frozen=True)
class Layer:
    """A layer: its least cycles, the words read of its image, and the words of its results.

    image, residual, output: values, by their number; residual is None where there is none.
    """

    cycles: int
    words: int
    results: int
    image: int
    output: int
    residual: int | None = None


def network_of(module: ModuleOp, cycles: Iterable[int]) -> tuple[list[Layer], list[Value]]:
    """Layers and values of a network at the nest level; cycles: of each layer, at least.

    What the host computes is there for nothing, and leaves others all of the GLB.
    """
    func = next(op for op in module.walk() if isinstance(op, FuncOp))
    whole = {_source(part): op.result for op in module.walk() if isinstance(op, ConcatOp) for part in op.inputs}
    numbers, spans = dict[SSAValue, int](), list[tuple[int, int]]()
    words, layers = list[int](), list[Layer]()

    def needed(value: SSAValue, at: int) -> int:
        """The number of the tensor that a value is (part of), which is needed at a layer."""
        while (root := _source(value)) in whole:
            value = whole[root]
        if root not in numbers:
            numbers[root] = len(numbers)
            words.append(prod(tensor_shape(root.type)))
            spans.append((at, at))
        number = numbers[root]
        spans[number] = (spans[number][0], at)
        return number

    for value in func.body.block.args:
        needed(value, -1)
    for value in (value for op in module.walk() if isinstance(op, HostOp) for value in op.outputs):
        words[needed(value, -1)] = 0
    ops = [op for op in module.walk() if isinstance(op, LayerOp)]
    for at, (op, least) in enumerate(zip(ops, cycles, strict=True)):
        shape = shape_of(op)
        image, residual = needed(op.ifmap, at), needed(op.residual, at) if op.residual else None
        layers.append(Layer(least, image_words(shape), shape.results, image, needed(op.result, at), residual))
    last = func.body.block.last_op
    for value in last.operands if last else ():
        needed(value, len(ops))
    return layers, [Value(count, *span) for count, span in zip(words, spans, strict=True)]


def _source(value: SSAValue) -> SSAValue:
    while isinstance(value.owner, ReshapeOp):
        value = value.owner.x
    return value


def fewest_cycles(layers: Sequence[Layer], values: Sequence[Value], arch: Arch) -> int:
    """Cycles that no such program takes less than, its weights apart.

    Layer by layer, for each choice of the values that are in the GLB then, the times that may be best.
    """
    given = [number for number, value in enumerate(values) if value.first < 0 <= value.last]
    ends_by_values: dict[frozenset[int], list[Times]] = {}
    for there in _subsets(frozenset(), given):
        loaded = _transferred(sum(values[number].words for number in there), arch)
        ends_by_values[there] = [(loaded, loaded)]
    for at, layer in enumerate(layers):
        after: dict[frozenset[int], list[Times]] = {}
        new = [layer.output] if values[layer.output].first == at else []
        for before, ends in ends_by_values.items():
            for there in _subsets(before, new):
                if sum(values[number].words for number in there) <= arch.glb.words:
                    stay = frozenset(number for number in there if values[number].last > at)
                    after.setdefault(stay, []).extend(_ended(layer, there, end, arch) for end in ends)
        ends_by_values = {there: _best(ends) for there, ends in after.items()}
    totals: list[int] = []
    for there, ends in ends_by_values.items():
        stored = _transferred(sum(values[number].words for number in there), arch)
        totals += [max(array, dma) + stored for array, dma in ends]
    return min(totals)


def _transferred(words: int, arch: Arch) -> int:
    """Cycles of the DMA for them, at least (DMA-2)."""
    return words * arch.dram.rate_cycles // arch.dram.rate_words


def _subsets(there: frozenset[int], others: Sequence[int]) -> Iterator[frozenset[int]]:
    """What is there, and any of the others."""
    if not others:
        yield there
        return
    yield from _subsets(there, others[1:])
    yield from _subsets(there | {others[0]}, others[1:])


def _ended(layer: Layer, there: frozenset[int], begun: Times, arch: Arch) -> Times:
    """When a layer ends that runs with these values in the GLB, behind one that ended then."""
    array, dma = begun
    image = layer.words * (layer.image not in there)
    residual = layer.results * (layer.residual is not None and layer.residual not in there)
    results = layer.results * (layer.output not in there)
    come, all_words = (_transferred(n, arch) for n in (image + residual, image + residual + results))
    behind = max(array, dma)  # where its own transfers begin
    if not arch.sequencer.overlap:
        end = behind + layer.cycles + all_words
        return end, end
    end = (behind if image else array) + layer.cycles
    if come:
        end = max(end, behind + come)
    if all_words:
        dma = max(behind + all_words, end if results else 0)
    return end, dma


def _best(ends: Iterable[Times]) -> list[Times]:
    """The Pareto front: without pairs that are later in both than another."""
    best: list[Times] = []
    for array, dma in sorted(set(ends)):
        if not best or dma < best[-1][1]:
            best.append((array, dma))
    return best
