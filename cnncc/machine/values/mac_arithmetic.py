"""The steps of a macro-instruction (MAC-1 to MAC-3, MAC-6, MAC-7): three counters over slots of register files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from cnncc.arch.model import Arch
from cnncc.isa.table import Instruction
from cnncc.machine.instruction_sizes import mac_operations, step_sums
from cnncc.machine.values.arithmetic import Arithmetic
from cnncc.machine.values.loop_blocks import OrderMatters
from cnncc.machine.values.regfile import Half, HalfFault, PsumHalf, Values, Words
from cnncc.machine.values.strided import Ints, Strided
from cnncc.machine.values.work_limit import PER_INSTRUCTION, WorkLimit

MOST_OPERATIONS = 1 << 24  # of a PE in a macro-instruction: the host holds their operands as arrays
COUNTERS = ("pixels", "taps", "step_range")  # z, j, i


def check_sizes(inst: Instruction, arch: Arch) -> None:
    """Refuse counters and lanes beyond the machine's (MAC-5), and arrays beyond the host's. Raises HalfFault."""
    if (pixels := inst.number("pixels")) > arch.pe.max_pixels:
        raise HalfFault(f"{pixels} pixels are more than max_pixels = {arch.pe.max_pixels}")
    if (lanes := inst.number("lanes")) > arch.pe.lanes:
        raise HalfFault(f"{lanes} lanes are more than the {arch.pe.lanes} of a PE")
    if inst.number("psum_l"):
        _check_banks(inst, arch)
    elif lanes > 1 and inst.text("op") != "mac":
        raise HalfFault(f"{lanes} lanes of a {inst.text('op')}, which has no products to add up")
    if mac_operations(inst) > MOST_OPERATIONS:
        raise HalfFault(f"pixels * taps * step_range * lanes is more than the {MOST_OPERATIONS} of this interpreter")


def _check_banks(inst: Instruction, arch: Arch) -> None:
    """Check that lane l finds all its psums in bank l (MAC-7). Raises HalfFault."""
    if not arch.pe.lane_sums:
        raise HalfFault("psum_l = 1, but this array has no lane_sums")
    for name in ("psum_slot", "psum_z", "psum_j", "psum_i"):
        if inst.number(name) % arch.pe.lanes:
            raise HalfFault(
                f"{name} = {inst.number(name)} is no multiple of the {arch.pe.lanes} lanes of a PE (psum_l)"
            )


def accumulate(
    inst: Instruction,
    sums: PsumHalf,
    ifmap: Half,
    weight: Half | None,
    reduced: Mapping[int, int],
    arithmetic: Arithmetic,
    work: WorkLimit,
) -> None:
    """Combine a macro-instruction's products (mac) or words (add, max) into its psums.

    reduced: iterations of the block loops to be summed over, by array axis.

    Raises:
    - HalfFault, for an empty slot, a slot outside, or a sum that leaves the psum's width at any step (MAC-2).
    - OrderMatters, if only single iterations can show whether a sum overflows.
    """
    psum, words = _sum_slots(inst), arithmetic.arch.pe.psum_words
    low, high = psum.ends
    if low < 0 or high >= words:
        raise HalfFault(f"psum slots {low}..{high} are not in the {words} of a half")
    sums.grow(high + 1)
    x = _operand(inst, ifmap, "ifmap")
    w = None if weight is None else _operand(inst, weight, "weight")
    own = _own_slots(psum, words)
    if own is None or not arithmetic.add(inst.operation(), sums, own, x, w, reduced):
        if reduced:
            raise OrderMatters
        work.spend(psum.size * PER_INSTRUCTION)
        _one_by_one(inst, psum, sums, x, w, arithmetic)


def check_neighbours(inst: Instruction, half: Half, whole: bool, arch: Arch) -> None:
    """Check that each neighbour's word arrives before its use (MAC-3). Raises HalfFault.

    whole: whether the instruction both takes the half and gives it back, as ping and pong require (MAC-6).
    """
    slot, reuse = inst.number("n2n_slot"), inst.number("data_reuse")
    if reuse and not arch.links.n2n:
        raise HalfFault("this array has no n2n links")
    if arch.pe.pong_words:
        _check_ping_pong(inst, half, whole, arch)
    elif reuse and slot + reuse > arch.pe.ifmap_words:
        raise HalfFault(f"n2n fills ifmap slot {slot + reuse - 1}, beyond the {arch.pe.ifmap_words} of a half")
    if not reuse:
        return
    if reuse > (steps := inst.number("pixels") * inst.number("taps")):
        raise HalfFault(f"data_reuse {reuse} is more than the {steps} pixel steps")
    early = _early_slot(_read_slots(inst, "ifmap"), slot, reuse)
    # The last column of each set gets its words before (LOAD-1). Where all are last ones, none comes too early.
    # With ping and pong they come step by step, too (MAC-6).
    if early is not None and (arch.pe.pong_words or len(half.grid.last_columns) < half.grid.cols):
        raise HalfFault(f"ifmap slot {early} is used before its word arrives from the neighbour")


def _check_ping_pong(inst: Instruction, half: Half, whole: bool, arch: Arch) -> None:
    """Check an ifmap half of ping and pong, the alternating buffers of words in passing (MAC-6). Raises HalfFault."""
    slot, reuse, pe = inst.number("n2n_slot"), inst.number("data_reuse"), arch.pe
    if not reuse:
        if half.virtual:
            raise HalfFault("a virtual neighbour has words, but data_reuse = 0")
        return
    if not whole:
        raise HalfFault("with data_reuse, a macro-instruction takes ping and pong and gives them back")
    if slot == 0 or half.loaded > slot:
        raise HalfFault(f"ping is loaded up to slot {half.loaded - 1}, the neighbour's words begin at slot {slot}")
    if slot > pe.ifmap_words or min(slot, reuse) > pe.pong_words:
        raise HalfFault(f"{slot} slots a turn do not fit a ping of {pe.ifmap_words} and a pong of {pe.pong_words}")
    if reuse > pe.virtual_words:
        raise HalfFault(f"{reuse} words of a virtual neighbour do not fit its {pe.virtual_words} (virtual_words)")
    if half.virtual and not slot <= half.virtual.start < half.virtual.stop <= slot + reuse:
        first, last = half.virtual.start, half.virtual.stop - 1
        raise HalfFault(f"a virtual neighbour's words are in slots {first}..{last}, not in {slot}..{slot + reuse - 1}")
    if (stale := _stale_slot(_read_slots(inst, "ifmap"), slot, reuse)) is not None:
        raise HalfFault(f"ifmap slot {stale} is used after another word has taken its place")


@lru_cache(maxsize=256)
def _stale_slot(ifmap: Strided, turn: int, reuse: int) -> int | None:
    """A slot that is read once the word 2 turns later has taken its place, if any: word k moves in step k."""
    for steps, slots in _pixel_steps(ifmap):
        # MAC-6: word k takes the place of slot k - turn in pixel step k. Of the slots of a step, the least goes stale
        # first.
        stale = (slots + turn < reuse) & (slots + turn <= steps)
        if stale.any():
            return int(slots[stale][0])
    return None


@lru_cache(maxsize=256)
def _early_slot(ifmap: Strided, n2n_slot: int, reuse: int) -> int | None:
    """A slot that is read before its word has arrived, if any: word k moves in pixel step k."""
    # MAC-3: in pixel step t the words t, t + 1, … are still to come. Channels read slots that are `step` apart.
    step, channels = abs(ifmap.steps[3]) or 1, ifmap.sizes[3] if ifmap.steps[3] else 1
    for steps, slots in _pixel_steps(ifmap):
        later = -(-np.maximum(steps + n2n_slot - slots, 0) // step)  # the first channel whose word is yet to come
        word = slots - n2n_slot + later * step
        early = (word < reuse) & (later < channels)
        if early.any():
            return int(word[early][0]) + n2n_slot
    return None


def _pixel_steps(ifmap: Strided) -> Iterator[tuple[Ints, Ints]]:
    """The steps of each pixel and lane, and the least slot that any channel reads in them."""
    (pixels, taps, lanes, channels), (z, j, along, i) = ifmap.sizes, ifmap.steps
    tap = np.arange(taps)
    for pixel, lane in np.ndindex(pixels, lanes):
        yield pixel * taps + tap, ifmap.start + pixel * z + tap * j + lane * along + min(0, (channels - 1) * i)


def _sum_slots(inst: Instruction) -> Strided:
    """Slots [pixel, tap, channel] of the psums (MAC-1), or [pixel, tap, channel, lane] (MAC-7)."""
    counts = tuple(inst.number(counter) for counter in COUNTERS)
    slots = Strided(inst.number("psum_slot"), counts, tuple(inst.number(f"psum_{counter}") for counter in "zji"))
    if (lanes := step_sums(inst)) == 1:
        return slots
    return replace(slots, sizes=(*counts, lanes), steps=(*slots.steps, 1))


def _own_slots(psum: Strided, words: int) -> Strided | None:
    """The slots without the axis of taps, if all taps share a slot, and no others do; else None."""
    (pixels, _, *rest), (z, j, *steps) = psum.sizes, psum.steps
    own = Strided(psum.start, (pixels, *rest), (z, *steps))
    is_own = not j and own.size <= words and (own.distinct or np.unique(own.listed()).size == own.size)
    return own if is_own else None


def _read_slots(inst: Instruction, name: str) -> Strided:
    """Slots [pixel, tap, lane, channel] of ifmap or weight (MAC-1)."""
    pixels, taps, channels = (inst.number(counter) for counter in COUNTERS)
    counts = pixels, taps, inst.number("lanes"), channels
    return Strided(inst.number(f"{name}_slot"), counts, tuple(inst.number(f"{name}_{counter}") for counter in "zjli"))


def _operand(inst: Instruction, half: Half, name: str) -> Words:
    """An operand's words [image, block…, *grid, pixel, tap, lane, channel]; size 1 if pixels or channels step by 0.

    Lanes with sums of their own are further channels: [image, block…, *grid, pixel, tap, 1, channel and lane].
    """
    slots = _read_slots(inst, name)
    (z, j, lanes, i), (by_pixel, by_tap, by_lane, by_channel) = slots.sizes, slots.steps
    if step_sums(inst) == 1:
        return half.read(replace(slots, sizes=(z if by_pixel else 1, j, lanes, i if by_channel else 1)), name)
    own = (i, lanes) if by_lane or by_channel else (1, 1)
    words = half.read(
        Strided(slots.start, (z if by_pixel else 1, j, *own), (by_pixel, by_tap, by_channel, by_lane)), name
    )
    return words.reshape(*words.shape[:-2], 1, prod(own))


def _one_by_one(
    inst: Instruction, psum: Strided, sums: PsumHalf, x: Words, w: Words | None, arithmetic: Arithmetic
) -> None:
    """The steps in the order of the counters, each sum checked against the width of a psum (MAC-2)."""
    steps, operation = psum.steps, inst.operation()
    lanes = step_sums(inst)
    for z, j, i in np.ndindex(*psum.sizes[:2], prod(psum.sizes[2:])):
        slot = Strided(psum.start + z * steps[0] + j * steps[1] + i // lanes * steps[2] + i % lanes, (1,), (1,))
        if not arithmetic.step(operation, sums, slot, _at(x, z, j, i), None if w is None else _at(w, z, j, i)):
            bits = arithmetic.arch.psum_bits
            where = f"channel {i // lanes}" + (f", lane {i % lanes}" if lanes > 1 else "")
            raise HalfFault(f"psum {slot.start} leaves {bits} bits at pixel {z}, tap {j}, {where}")
    sums.measure()


def _at(values: Words, z: int, j: int, i: int) -> Values:
    """The words of a step: [image, block…, *grid, lane]."""
    one = values[..., min(z, values.shape[-4] - 1), j, :, min(i, values.shape[-1] - 1)]
    return np.asarray(one, np.float64)
