"""Rows in the rings between cores: written by one core, and not yet read by the next one (`channels` of docs/stats.md).

A ring is what commits of one core write and loads of another core read, by descriptors with the same first word. A
*step* of a core is an iteration of a loop that stands directly in its loop over frames. Its rows are written when its
last commit to the ring is done. When its last load is done, it has read all rows before the first one that a later
step of the frame reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from cnncc.isa.table import Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.cores.banks import banks_of, position_terms, reach, spans_of
from cnncc.machine.cores.programs import Core
from cnncc.machine.program import Leaf, LoopNode, Node, leaves
from cnncc.machine.values.addresses import Descriptor, Descriptors

Pair = tuple[int, int]  # the core that writes, the core that reads
Ring = tuple[int, int, int]  # both, and the first word


class RingStep(NamedTuple):
    """A step of a frame: the rows from `low` to `end`, and when they are written (read).

    pitch: the words from row to row. A reader of every second row has twice the writer's.
    """

    frame: int
    low: int
    end: int
    done: int
    pitch: int


@dataclass
class RingNotes:
    """What one core does with rings, as it goes on.

    - uses: by instruction, the cores of its ring, and the loop of the steps that it is in
    - step: by ring, the last step that uses it
    - skipped: frames and cycles that were multiplied and are left out here
    """

    uses: Mapping[int, tuple[Pair, int]] = field(default_factory=dict[int, tuple[Pair, int]])
    skipped: tuple[int, int] = (0, 0)
    steps: dict[Ring, list[RingStep]] = field(default_factory=dict[Ring, list[RingStep]])
    descriptors: Descriptors = field(default_factory=Descriptors)
    step: dict[Ring, tuple[int, int, int]] = field(default_factory=dict[Ring, tuple[int, int, int]])

    def note(self, leaf: Leaf, index: Sequence[int], done: int) -> None:
        """One of these instructions, which is done then. index: of each loop."""
        pair, loop = self.uses[leaf.index]
        descriptor = self.descriptors[leaf.instruction.number("desc")]
        rows, ring = _rows(leaf.instruction, descriptor, index), (*pair, descriptor.base)
        # Register 0 is that of the loop over frames, register 1 that of the loop of steps directly in it.
        frame, step = index[0] - self.skipped[0], (loop, index[0], index[1])
        steps, own = self.steps.setdefault(ring, []), RingStep(frame, *rows, done - self.skipped[1], descriptor.pitch)
        if step == self.step.get(ring):
            own = _together(steps.pop(), own)
        self.step[ring] = step
        steps.append(own)


def _together(one: RingStep, other: RingStep) -> RingStep:
    """Two instructions of a step, in rows of the one that skips fewer."""
    # Example: of pitches 30 and 60, rows 3 to 4 (low 3, end 5) of the second one are rows 6 to 8 (low 6, end 9).
    pitch = max(1, min(one.pitch, other.pitch))
    steps = [
        each._replace(low=each.low * each.pitch // pitch, end=(each.end - 1) * each.pitch // pitch + 1, pitch=pitch)
        for each in (one, other)
        if each.low < each.end
    ]
    low, end = min((each.low for each in steps), default=0), max((each.end for each in steps), default=0)
    return RingStep(other.frame, low, end, other.done, pitch)


def _rows(inst: Instruction, descriptor: Descriptor, index: Sequence[int]) -> tuple[int, int]:
    """The rows of the image that an instruction uses, from the first one to behind the last one."""
    low, high = reach([(term.step, most) for term, most in position_terms(inst) if term.axis == "y"])
    steps = ((term.step, index[register]) for (register, _), term in descriptor.steps.items() if term.axis == "y")
    first = inst.number("y") + sum(step * at for step, at in steps)
    return max(0, first + low), min(first + high + 1, descriptor.height or first + high + 1)


def ring_uses(cores: Sequence[Core]) -> list[dict[int, tuple[Pair, int]]]:
    """By core: the instructions that write rings and read them, with the loop of the steps around each."""
    banks: dict[Kind, dict[int, list[tuple[int, Leaf]]]] = {Kind.COMMIT: {}, Kind.LOAD: {}}
    for core in cores:
        for leaf, how, span in spans_of(core):
            kind = leaf.instruction.spec.kind
            if (kind, how) in ((Kind.COMMIT, "written"), (Kind.LOAD, "read")):
                for bank in banks_of(span, core.arch.glb):
                    banks[kind].setdefault(bank, []).append((core.number, leaf))
    uses: list[dict[int, tuple[Pair, int]]] = [{} for _ in cores]
    loops = [dict(_loops_of_steps(core.tree)) for core in cores]
    for bank, writes in banks[Kind.COMMIT].items():
        reads = banks[Kind.LOAD].get(bank, [])
        for writer, reader in {(w, r) for w, _ in writes for r, _ in reads if w != r}:
            # CORE-5: a bank has one writer and one reader. A commit and a load of two cores make it the bank of a ring.
            for core, leaf in (*writes, *reads):
                if core in (writer, reader) and leaf.index in loops[core]:
                    uses[core][leaf.index] = (writer, reader), loops[core][leaf.index]
    return uses


def _loops_of_steps(nodes: Sequence[Node]) -> Iterator[tuple[int, int]]:
    """(instruction, loop) of all that stands in loops directly in loops over frames."""
    for frames in nodes:
        if isinstance(frames, LoopNode) and frames.over_frames:
            for loop in frames.body:
                if isinstance(loop, LoopNode):
                    yield from ((leaf.index, loop.first) for leaf in leaves(loop.body))


def ring_peaks(notes: Sequence[RingNotes]) -> dict[Ring, int]:
    """The most rows of each ring that are written and not yet read. In one cycle, rows are read first."""
    rings = sorted({ring for own in notes for ring in own.steps})
    return {
        ring: _peak(notes[ring[0]].steps[ring], notes[ring[1]].steps[ring])
        for ring in rings
        if all(ring in notes[core].steps for core in ring[:2])
    }


def _peak(written: Sequence[RingStep], read: Sequence[RingStep]) -> int:
    height, pitch = max(step.end for step in written), max(1, written[0].pitch)
    events = [(step.done, 1, step.frame * height + step.end) for step in written]
    for frame, steps in groupby(read, lambda step: step.frame):
        low = height
        # Backwards, as the rows are gone that no later step of the frame reads: those before the least of these.
        for step in reversed(list(steps)):
            events.append((step.done, 0, frame * height + low))
            low = min(low, step.low * step.pitch // pitch) if step.low < step.end else low
    most = there = gone = 0
    for _, is_write, row in sorted(events):
        there, gone = (max(there, row), gone) if is_write else (there, max(gone, row))
        most = max(most, there - gone)
    return most
