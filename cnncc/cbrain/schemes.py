"""The parallel schemes of C-Brain (Song et al., "C-Brain: A Deep Learning Accelerator that Tames the Diversity of CNNs
through Adaptive Data-level Parallelization", DAC 2016): cycles, buffer accesses and energy of a layer.

The accelerator has T_out PEs. In a cycle each PE multiplies T_in words of data by T_in weights and adds the products
up. A *scheme* says which words these are:

- inter-kernel (Section 4.1.1): one kernel position of T_in input maps.
- inter-kernel, improved (4.2.2): the same words in another order. A kernel position is kept for all pixels. Their sums
  are stored and added to.
- intra-kernel, unrolled (4.1.2): T_in positions of one window of one map. All windows were copied before (Eq. 1).
- intra-kernel, sliding window (4.1.2): the same without copies. It is for windows that do not overlap, k = s.
- kernel partition (4.2.1): whole small windows of s x s (`cnncc.cbrain.kernel_partition`).

The paper states results, and few formulas. docs/cbrain.md has those that follow from it, and each assumption. Times are
in cycles, accesses in words.

Why not in the cost model (2026-11): `cnncc.model` predicts programs to the cycle. These formulas know no loads, fills
or conflicts, as the paper's text knows none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from math import prod

from cnncc.cbrain.convolution import Convolution
from cnncc.cbrain.kernel_partition import partition
from cnncc.errors import Refusal
from cnncc.util.convention import PAPER, Convention

Rate = int | Fraction


class Scheme(Enum):
    """A way to use the multipliers in parallel."""

    INTER = "inter-kernel"
    IMPROVED = "inter-kernel, improved"
    UNROLLED = "intra-kernel, unrolled"
    SLIDING = "intra-kernel, sliding window"
    PARTITION = "kernel partition"


class Packing(Enum):
    """Which small windows come together in one operation of `PARTITION`, if a PE has room for several.

    The paper says that several do, not which. PIECES and MAPS are of one output pixel, so an adder tree adds all
    products up. PIXELS needs a tree that gives a sum for each small window.
    """

    PIECES = "pieces of one map"
    MAPS = "pieces and maps"
    PIXELS = "neighbouring pixels"
    SINGLE = "one small window"


@dataclass(frozen=True)
class CBrain:
    """An accelerator: T_in multipliers in each of T_out PEs.

    - packing: how kernel partition fills the multipliers
    - adder: energy of adding a sum to a stored one, for that of a multiplication (`pe_energy`)
    """

    tin: int = 16
    tout: int = 16
    clock_hz: int = 1_000_000_000
    packing: Packing = Packing.PIECES
    adder: Fraction = Fraction(1, 40)

    def __post_init__(self) -> None:
        if min(self.tin, self.tout, self.clock_hz) < 1:
            raise Refusal(f"{self.tin}-{self.tout} multipliers at {self.clock_hz} Hz: give 1 or more")

    @property
    def multipliers(self) -> int:
        """T_in · T_out."""
        return self.tin * self.tout


@dataclass(frozen=True)
class Counting:
    """What counts as an access to a buffer. Fig. 10 says that accesses are counted, not how.

    - reads: adding to a stored sum also reads it
    - lines: data come in lines of T_in words, used or not
    - each_map: intra-kernel and kernel partition store a sum for each input map, not one for all
    """

    reads: bool = True
    lines: bool = True
    each_map: bool = True


@dataclass(frozen=True)
class Accesses:
    """Words that move between buffers and PEs, by operand."""

    data: int
    weights: int
    sums: int

    @property
    def total(self) -> int:
        """Words of all operands."""
        return self.data + self.weights + self.sums


def unroll_factor(layer: Convolution, convention: Convention) -> Fraction:
    """Eq. 1: T = ((X - k)/s + 1) · ((Y - k)/s + 1) · k · k / (X · Y), how much larger unrolled data are.

    Paper: X and Y are the sizes of the map, and padding does not exist. Corrected: windows are those of the padded map,
    the data are those of the map. `layer.padded()` has the padding in X and Y.

    >>> from cnncc.window import Window
    >>> float(unroll_factor(Convolution("c", (28, 28), 1, 1, Window((5, 5))), PAPER))
    18.367346938775512
    """
    printed = replace(layer, window=replace(layer.window, pad=(0, 0, 0, 0)))
    pixels = printed.pixels if convention is PAPER else layer.pixels
    return Fraction(pixels * layer.taps, prod(layer.image))


def layer_cycles(layer: Convolution, scheme: Scheme, array: CBrain) -> int:
    """Cycles of a layer: operations of a pixel · pixels · turns of T_out kernels. T_out PEs share data.

    >>> from cnncc.window import Window
    >>> conv1 = Convolution("conv1", (227, 227), 3, 96, Window((11, 11), stride=(4, 4)))
    >>> [layer_cycles(conv1, scheme, CBrain()) for scheme in (Scheme.INTER, Scheme.UNROLLED, Scheme.PARTITION)]
    [2196150, 435600, 490050]

    Raises Refusal for `SLIDING` unless k = s, and for `PARTITION` of a dilated kernel.
    """
    turns = layer.window.group * -(-layer.kernels // array.tout)
    match scheme:
        case Scheme.INTER | Scheme.IMPROVED:
            return turns * layer.pixels * layer.taps * -(-layer.depth // array.tin)
        case Scheme.UNROLLED | Scheme.SLIDING:
            _check_sliding(layer, scheme)
            return turns * layer.pixels * layer.depth * -(-layer.taps // array.tin)
        case Scheme.PARTITION:
            return turns * _partition_cycles(layer, array)


def _partition_cycles(layer: Convolution, array: CBrain) -> int:
    """Cycles of T_out kernels: a small window takes ⌈s · s / T_in⌉ operations, or `beside` of them share one."""
    parts, pixels = partition(layer), layer.pixels
    beside, operations = max(1, array.tin // parts.taps), -(-parts.taps // array.tin)
    match array.packing:
        case Packing.PIECES:
            return pixels * layer.depth * -(-parts.pieces // beside) * operations
        case Packing.MAPS:
            return pixels * -(-parts.pieces * layer.depth // beside) * operations
        case Packing.PIXELS:
            return -(-pixels // beside) * parts.pieces * layer.depth * operations
        case Packing.SINGLE:
            return pixels * parts.pieces * layer.depth * operations


def _check_sliding(layer: Convolution, scheme: Scheme) -> None:
    kernel, stride = layer.window.kernel, layer.window.stride
    if scheme is Scheme.SLIDING and (kernel != stride or layer.dilated):
        raise Refusal(
            f"{layer.name}: kernel {kernel} with stride {stride} and dilation {layer.window.dilation}: windows slide "
            "where both are equal, without dilation: unroll the data, or partition the kernel"
        )


def ideal_cycles(layer: Convolution, array: CBrain) -> Fraction:
    """The upper bound of performance of Section 5.1: all multipliers are busy in every cycle."""
    return Fraction(layer.macs, array.multipliers)


def unrolled_load_cycles(layer: Convolution, array: CBrain) -> Fraction:
    """Cycles to load all unrolled data once, T_in words a cycle (Table 3)."""
    return Fraction(layer.pixels * layer.taps * layer.inputs, array.tin)


def network_cycles(
    layers: Sequence[Convolution], schemes: Sequence[Scheme], array: CBrain, weight_rate: int = 0
) -> Rate:
    """Cycles of all layers. weight_rate: words a cycle in which weights come, before they are used; 0 for no time."""
    cycles = sum(layer_cycles(layer, scheme, array) for layer, scheme in zip(layers, schemes, strict=True))
    return cycles + (Fraction(sum(layer.weights for layer in layers), weight_rate) if weight_rate else 0)


def accesses(layer: Convolution, scheme: Scheme, array: CBrain, counting: Counting) -> Accesses:
    """Words between buffers and PEs. Data come once for T_out PEs, sums go once for each part of an output.

    Original inter-kernel reloads all weights for each pixel. All others keep a weight in the PE for all pixels of a map
    (Section 4.1.2, *kernel sharing*), and improved inter-kernel stores a sum for each kernel position for it.
    Raises Refusal as `layer_cycles` does.
    """
    turns, results = layer.window.group * -(-layer.kernels // array.tout), layer.pixels * layer.outputs
    maps, weights = layer.depth if counting.each_map else 1, layer.weights
    match scheme:
        case Scheme.INTER:
            data, weights, parts = layer.taps * _lines(layer.depth, array, counting), layer.pixels * weights, 1
        case Scheme.IMPROVED:
            data, parts = layer.taps * _lines(layer.depth, array, counting), layer.taps
        case Scheme.UNROLLED | Scheme.SLIDING:
            _check_sliding(layer, scheme)
            data, parts = layer.depth * _lines(layer.taps, array, counting), maps
        case Scheme.PARTITION:
            cut = partition(layer)
            data = layer.depth * prod(cut.kernel)  # in lines, as small windows lie one after the other
            weights, parts = layer.outputs * layer.depth * prod(cut.kernel), cut.pieces * maps
    return Accesses(turns * layer.pixels * data, weights, results * (2 * parts - 1 if counting.reads else parts))


def _lines(words: int, array: CBrain, counting: Counting) -> int:
    return -(-words // array.tin) * array.tin if counting.lines else words


def improvement(layer: Convolution, array: CBrain, convention: Convention) -> tuple[int, Rate]:
    """Section 4.2.2: accesses to sums that improved inter-kernel adds, and loads of T_in weights that it saves.

    Paper: X · Y · D_out · k · k stores, with X and Y of the output, and D_in / T_in times as many loads. Corrected: the
    last sum is stored anyhow, others are read again, and each weight is still loaded once. Weights come in lines.
    """
    results, lines = layer.pixels * layer.outputs, -(-layer.depth // array.tin) * layer.taps
    if convention is PAPER:
        return results * layer.taps, Fraction(results * layer.taps * layer.depth, array.tin)
    return 2 * results * (layer.taps - 1), (layer.pixels - 1) * layer.outputs * lines


def pe_energy(layer: Convolution, scheme: Scheme, array: CBrain) -> Fraction:
    """Energy of the PEs, in multiplications: all multipliers work in each cycle, on data or on zeros.

    Improved inter-kernel adds a stored sum in each PE and cycle, too.
    """
    added = array.adder if scheme is Scheme.IMPROVED else 0
    return Fraction(layer_cycles(layer, scheme, array) * array.tout * (array.tin + added))


def percent_saved(value: Rate, base: Rate) -> float:
    """How much smaller a value is than its base, in percent.

    >>> percent_saved(75, 100)
    25.0
    """
    return float(100 * (1 - Fraction(value) / base))
