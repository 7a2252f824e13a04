"""The arrival of a neighbour's words in an ifmap half, for the evaluator of `array` (rules MAC-3, MAC-6)."""

from __future__ import annotations

from collections.abc import Sequence

from cnncc.arch.model import Pe
from cnncc.dialects.array import Mac
from cnncc.errors import Refusal
from cnncc.eval._register_files import FileHalf


def _read_slots(mac: Mac) -> Sequence[Sequence[int]]:
    """The ifmap slots of each pixel step, over all channels and lanes."""
    firsts = [
        mac.ifmap.base + pixel * mac.ifmap.pixel + tap * mac.ifmap.tap
        for pixel in range(mac.pixels)
        for tap in range(mac.taps)
    ]
    more = [c * mac.ifmap.channel + lane * mac.ifmap.lane for c in range(mac.step_range) for lane in range(mac.lanes)]
    return [[first + slots for slots in more] for first in firsts]


def check_arrival(mac: Mac) -> None:
    """Check that word k of the neighbour is used from pixel step k + 1 on (MAC-3). Raises Refusal."""
    for step, slots in enumerate(_read_slots(mac)):
        if any(step <= slot - mac.n2n_slot < mac.data_reuse for slot in slots):
            raise Refusal(f"pixel step {step} uses a word of the neighbour before it arrives")


def check_ping_pong(mac: Mac, half: FileHalf, whole: bool, pe: Pe) -> None:
    """Follow the words of a macro-instruction through ping and pong, pixel step by pixel step (MAC-6). Raises Refusal.

    whole: whether the macro-instruction both takes the half and gives it back.
    """
    turn, reuse = mac.n2n_slot, mac.data_reuse
    if reuse == 0:
        if half.edges:
            raise Refusal("a virtual neighbour's words have no data_reuse")
        return
    if not whole:
        raise Refusal("with data_reuse, ping and pong are taken and given back")
    if reuse > pe.virtual_words or not half.edges <= set(range(turn, turn + reuse)):
        raise Refusal(f"a virtual neighbour has words for slots {turn}..{turn + reuse - 1}, {pe.virtual_words} at most")
    if turn < 1 or max(half.loads, default=0) >= turn:
        raise Refusal(f"ping is loaded beyond the first n2n slot, {turn}")
    check_arrival(mac)  # also where each column is a set of its own: words of a virtual neighbour come step by step
    sizes, held = (pe.ifmap_words, pe.pong_words), {(0, slot): slot for slot in half.loads}
    for step, slots in enumerate(_read_slots(mac)):
        # MAC-6: turns of `n2n_slot` slots lie in ping (0) and pong (1) alternately.
        reads = {(slot // turn % 2, slot % turn): slot for slot in slots if slot - turn < min(step, reuse)}
        if any(held.get(place, slot) != slot for place, slot in reads.items()):
            raise Refusal(f"pixel step {step} reads a word whose place another has taken")
        if step < reuse:
            place = (turn + step) // turn % 2, step % turn
            if place[1] >= sizes[place[0]]:
                raise Refusal(f"place {place[1]} is beyond the {sizes[place[0]]} of {('ping', 'pong')[place[0]]}")
            if place in reads:
                raise Refusal(f"pixel step {step} reads the place that it fills")
            held[place] = turn + step
