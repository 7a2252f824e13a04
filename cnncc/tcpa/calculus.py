"""The performance and memory calculus of Heidorn et al., "Efficient Mapping of CNNs onto Tightly Coupled Processor
Arrays" (Journal of Computers 14(8), 2019), equation by equation, and what has to be corrected in it.

Two ways to run a chain of layers: *layer by layer*, each on its PEs when the one before it is done, and
*layer-parallel*, all at once, each on PEs of its own, with frames in flight.

`Convention.PAPER` computes what the equations say, `Convention.CORRECTED` what the dependences and the storage allow:

| equation | paper | corrected |
|---|---|---|
| 4, 6 | a pool has one filter, so it uses one PE | its channels are spread over its PEs |
| 7, 8 | K² or S² new pixels an output pixel | input pixels ÷ output pixels of a frame |
| 9 | a layer waits for the layer before it | all layers keep the slowest one's period |
| 10 to 12 | a layer starts after F_i pixels and never waits | a pixel waits for the pixels that it depends on |
| 14 | a pool has one output channel | it has as many as inputs |
| 16, 17 | (D - S) rows; one pixel of a pool | the pixels alive at once |
| 18 to 20 | one formula | the same, with the corrected Eq. 6 |

docs/tcpa.md has the rules and an example. The sizes are those of `ChainLayer`, `pes[i]` is P_i. Times are in cycles,
storage is in words.

Why not in the cost model (2026-11): `cnncc.model` predicts programs to the cycle. The calculus bounds what any program
of this form can reach, from shapes and PE counts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from cnncc.errors import Refusal
from cnncc.tcpa.chain_layer import ChainLayer, checked_chain
from cnncc.tcpa.pixel_times import first_frame, full_rate_rings
from cnncc.util.convention import CORRECTED, PAPER, Convention

Rate = int | Fraction


@dataclass(frozen=True)
class Tcpa:
    """What every PE of an array is.

    - lanes: δ, the multipliers of a PE. They share the input channels of an output, or the channels of a pool.
    - filters_in_lanes: with fewer input channels than lanes, idle lanes take further filters. Algorithm 3 leaves them
      idle, the second column of Table 1 needs them.
    - clock_hz: f.
    """

    lanes: int = 2
    filters_in_lanes: bool = False
    clock_hz: int = 50_000_000

    def __post_init__(self) -> None:
        if min(self.lanes, self.clock_hz) < 1:
            raise Refusal(f"{self.lanes} lanes at {self.clock_hz} Hz: give 1 or more")


@dataclass(frozen=True)
class LayerWork:
    """The work of one output pixel: `units` that PEs share, of `cycles` each."""

    units: int
    cycles: int


@dataclass(frozen=True)
class LayerParallel:
    """A layer-parallel execution, by layer.

    - native: z_out of Eq. 6; supplied: z_in of Eq. 8; matched: z_out after Eq. 9, cycles a pixel
    - intervals: Z_i; starts: t_i; latencies: L_i, cycles from a layer's first start to its last end
    - latency: L of the first frame; period: cycles from one frame to the next
    """

    native: list[int]
    supplied: list[Rate]
    matched: list[Rate]
    intervals: list[int]
    starts: list[int]
    latencies: list[int]
    latency: int
    period: int

    @property
    def waits(self) -> list[Rate]:
        """Wait states of a pixel, on average."""
        return [matched - native for matched, native in zip(self.matched, self.native, strict=True)]


def receptive_fields(layers: Sequence[ChainLayer]) -> list[tuple[int, int]]:
    """Eq. 2: D_i = D_(i+1) · S_i + K_i - S_i, the rows and columns of layer i's input that one last output depends on.

    >>> from cnncc.window import Window
    >>> conv = ChainLayer("conv", (8, 8), 1, 1, Window((3, 3), pad=(1, 1, 1, 1)))
    >>> receptive_fields([conv, ChainLayer("pool", (8, 8), 1, 1, Window((2, 2), stride=(2, 2)), weighted=False)])
    [(4, 4), (2, 2)]
    """
    fields = list[tuple[int, int]]()
    rows, cols = 1, 1
    for window in (layer.window for layer in reversed(checked_chain(layers))):
        (down, right), spans = window.stride, window.spans
        rows, cols = rows * down + spans[0] - down, cols * right + spans[1] - right
        fields.insert(0, (rows, cols))
    return fields


def layer_by_layer(layers: Sequence[ChainLayer], pes: Sequence[int], array: Tcpa, convention: Convention) -> list[int]:
    """Eq. 4, whose sum is L of Eq. 3: L_i = R_(i+1) · C_(i+1) · z_i."""
    _check_pes(layers, pes)
    return [layer.pixels * pixel_cycles(layer, p, array, convention) for layer, p in zip(layers, pes, strict=True)]


def frames_per_second(cycles: Rate, array: Tcpa) -> Fraction:
    """Eqs. 5 and 13: f ÷ the latency of a frame, or ÷ the period of frames in flight.

    >>> round(float(frames_per_second(63_504, Tcpa())), 1)
    787.4
    """
    return Fraction(array.clock_hz) / cycles


def layer_work(layer: ChainLayer, array: Tcpa, convention: Convention) -> LayerWork:
    """What the PEs of a layer share: M filters of ⌈N/δ⌉ · K² cycles, or the channels of a pool, δ at a time."""
    turns = -(-layer.inputs // array.lanes)
    if not layer.weighted:
        return LayerWork(1, turns * layer.taps) if convention is PAPER else LayerWork(turns, layer.taps)
    beside = max(1, array.lanes // layer.depth) if array.filters_in_lanes else 1
    return LayerWork(-(-layer.outputs // beside), -(-layer.depth // array.lanes) * layer.taps)


def pixel_cycles(layer: ChainLayer, pes: int, array: Tcpa, convention: Convention) -> int:
    """Eq. 6: z_out = ⌈M/P⌉ · ⌈N/δ⌉ · K², cycles for all channels of one output pixel on P PEs.

    >>> from cnncc.window import Window
    >>> pixel_cycles(ChainLayer("conv0", (28, 28), 1, 24, Window((3, 3), pad=(1, 1, 1, 1))), 4, Tcpa(), PAPER)
    54
    """
    work = layer_work(layer, array, convention)
    return -(-work.units // pes) * work.cycles


def new_pixels(layer: ChainLayer, convention: Convention) -> Rate:
    """Eq. 7: F = min(K², S²), the input pixels that one output pixel waits for; corrected, on average over a frame."""
    if convention is PAPER:
        return min(layer.taps, prod(layer.window.stride))
    return Fraction(prod(layer.image), layer.pixels)


def layer_parallel(
    layers: Sequence[ChainLayer], pes: Sequence[int], array: Tcpa, convention: Convention
) -> LayerParallel:
    """Eqs. 6 to 13. Raises Refusal unless the layers make a chain, and each has PEs."""
    _check_pes(layers, pes)
    native = [pixel_cycles(layer, p, array, convention) for layer, p in zip(layers, pes, strict=True)]
    return _as_printed(layers, native) if convention is PAPER else _by_dependences(layers, native)


def _as_printed(layers: Sequence[ChainLayer], native: list[int]) -> LayerParallel:
    supplied, matched = [0], [native[0]]
    for layer, own in zip(layers[1:], native[1:], strict=True):
        supplied.append(matched[-1] * int(new_pixels(layer, PAPER)))  # Eq. 8
        matched.append(max(own, supplied[-1]))  # Eq. 9
    starts = [sum(supplied[: at + 1]) for at in range(len(layers))]  # Eq. 11, with Z_i = z_in of Eq. 10
    latencies = [layer.pixels * z for layer, z in zip(layers, matched, strict=True)]  # Eq. 11
    latency = starts[-1] + latencies[-1]  # Eq. 12
    return LayerParallel(native, [*supplied], [*matched], supplied, starts, latencies, latency, max(latencies))


def _by_dependences(layers: Sequence[ChainLayer], native: list[int]) -> LayerParallel:
    period = max(layer.pixels * z for layer, z in zip(layers, native, strict=True))
    matched = [Fraction(period, layer.pixels) for layer in layers]
    supplied = [Fraction(0), *(z * new_pixels(layer, CORRECTED) for z, layer in zip(matched, layers[1:], strict=False))]
    first = first_frame(layers, native)
    intervals = [start - before for before, start in zip([0, *first.starts], first.starts, strict=False)]
    latencies = [end - start for start, end in zip(first.starts, first.ends, strict=True)]
    return LayerParallel(native, [*supplied], [*matched], intervals, first.starts, latencies, first.ends[-1], period)


def layer_memory(layer: ChainLayer, convention: Convention) -> int:
    """Eq. 14, one layer of it: words of weights, input and output. Layer by layer takes the maximum over the layers."""
    outputs = layer.outputs if layer.weighted or convention is CORRECTED else 1
    return layer.weights + layer.inputs * prod(layer.image) + outputs * layer.pixels


def stored_inputs(layers: Sequence[ChainLayer], pes: Sequence[int], array: Tcpa, convention: Convention) -> list[int]:
    """Eqs. 16 and 17: words between layers i - 1 and i; of layer 0, what the image needs if it were on chip.

    Paper: (D_i - S_i) · C_i · N_i, of a pool N_i. Corrected: the ring that keeps the period (0 for the image, which
    comes from outside).
    """
    _check_pes(layers, pes)
    if convention is CORRECTED:
        native = [pixel_cycles(layer, p, array, CORRECTED) for layer, p in zip(layers, pes, strict=True)]
        rings = full_rate_rings(layers, native)
        return [pixels * layer.inputs for pixels, layer in zip(rings, layers, strict=True)]
    fields = receptive_fields(layers)
    return [
        (field[0] - layer.window.stride[0]) * layer.image[1] * layer.inputs if layer.weighted else layer.inputs
        for field, layer in zip(fields, layers, strict=True)
    ]


def parallel_memory(layers: Sequence[ChainLayer], pes: Sequence[int], array: Tcpa, convention: Convention) -> int:
    """Eq. 15: words of all weights and of all that lies between layers. The image is outside, as the paper says."""
    stored = stored_inputs(layers, pes, array, convention)
    return sum(layer.weights for layer in layers) + sum(stored[1:])


def fewest_pes(layers: Sequence[ChainLayer], fps: Rate, array: Tcpa, convention: Convention) -> list[int]:
    """Eqs. 18 to 20: the fewest PEs of each layer for so many frames a second, the smallest P with ⌈M/P⌉ ≤ W.

    W = f ÷ (R_(i+1) · C_(i+1) · fps · ⌈N/δ⌉ · K²) are the filters for which a PE has time.
    Raises Refusal for a rate of 0 or less, and for one that no number of PEs reaches.
    """
    if fps <= 0:
        raise Refusal(f"{fps} frames a second: give more than 0")
    pes = list[int]()
    for layer in checked_chain(layers):
        work = layer_work(layer, array, convention)
        pes.append(_fewest(work, layer.pixels, Fraction(array.clock_hz) / fps))
        if not pes[-1]:
            most = float(frames_per_second(layer.pixels * work.cycles, array))
            raise Refusal(
                f"{layer.name}: {float(fps):,.1f} frames a second, limit {most:,.1f} with any PEs: ask for less"
            )
    return pes


def _fewest(work: LayerWork, pixels: int, cycles: Rate) -> int:
    """Eq. 20: the fewest PEs that do the work of so many pixels in these cycles, 0 if none do."""
    units = cycles // (pixels * work.cycles)  # ⌊W⌋, of a PE
    return -(-work.units // units) if units else 0


def best_pes(layers: Sequence[ChainLayer], total: int, array: Tcpa, convention: Convention) -> list[int]:
    """PEs of each layer, at most `total` in all, for the shortest period. Section 6 does so by hand.

    The period of the network is the time of some layer on some number of PEs. Of these times the shortest is taken that
    `total` PEs suffice for. Spare PEs then go where they shorten the latency most.
    Raises Refusal for fewer PEs than layers.
    """
    if total < len(checked_chain(layers)):
        raise Refusal(f"{len(layers)} layers on {total} PEs: give each layer a PE, or run layer by layer")
    works = [layer_work(layer, array, convention) for layer in layers]
    scale = _period_scale(layers, convention)
    periods = {
        factor * -(-work.units // pes) * work.cycles
        for work, factor in zip(works, scale, strict=True)
        for pes in range(1, min(total, work.units) + 1)
    }
    for period in sorted(periods):
        pes = [_fewest(work, factor, period) for work, factor in zip(works, scale, strict=True)]
        if all(pes) and sum(pes) <= total:
            return _spent(layers, pes, total, array, convention)
    raise AssertionError("one PE a layer has a period, too")


def _spent(layers: Sequence[ChainLayer], pes: list[int], total: int, array: Tcpa, convention: Convention) -> list[int]:
    """Give spare PEs, in steps, to the layer where they shorten latency most. PEs that shorten nothing stay spare."""
    latency = layer_parallel(layers, pes, array, convention).latency
    while True:
        steps = [_next_step(pes, at, layer_work(layer, array, convention).units) for at, layer in enumerate(layers)]
        # A layer whose PEs have one unit each has no next step: its numbers come back as they are.
        steps = [step for step in steps if sum(pes) < sum(step) <= total]
        if not steps:
            return pes
        best = min(steps, key=lambda step: layer_parallel(layers, step, array, convention).latency)
        if (shorter := layer_parallel(layers, best, array, convention).latency) >= latency:
            return pes
        pes, latency = best, shorter


def _next_step(pes: list[int], at: int, units: int) -> list[int]:
    """The PEs of all layers, with the fewest more for one layer that leave each of its PEs fewer units, if any do."""
    share = -(-units // pes[at])
    more = -(-units // (share - 1)) if share > 1 else pes[at]
    return [*pes[:at], more, *pes[at + 1 :]]


def _period_scale(layers: Sequence[ChainLayer], convention: Convention) -> list[int]:
    """Cycles of the period for each cycle of a layer's pixel: its pixels; as printed, those of a later layer, if more.

    As printed, a later layer takes F cycles for each one of the layer before it (Eqs. 8, 9), though its image may have
    fewer pixels than F times its output.
    """
    if convention is CORRECTED:
        return [layer.pixels for layer in layers]
    scale = [layers[-1].pixels]
    for layer, after in zip(reversed(layers[:-1]), reversed(layers[1:]), strict=True):
        scale.insert(0, max(layer.pixels, scale[0] * int(new_pixels(after, PAPER))))
    return scale


def _check_pes(layers: Sequence[ChainLayer], pes: Sequence[int]) -> None:
    if len(checked_chain(layers)) != len(pes):
        raise Refusal(f"{len(layers)} layers and {len(pes)} numbers of PEs: give each layer one")
    for layer, p in zip(layers, pes, strict=True):
        if p < 1:
            raise Refusal(f"{layer.name}: {p} PEs: give 1 or more")
