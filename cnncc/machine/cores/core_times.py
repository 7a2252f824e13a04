"""The times of several cores: a clock each. A token of another core is one that arrives from outside (CORE-7).

A run of many frames is stepped until it repeats itself. One core with a loop over frames leads. Whenever it is about to
begin an iteration, and no other core can go on, all cores stand where they do whatever the order of their turns. If
positions, clocks and tokens are the same as at such a moment before, in times relative to the leader's, all that came
between comes again and again. The rest but for the last frames is multiplied, which is exact.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cnncc.errors import Refusal
from cnncc.isa.table import CHANGING_SETTINGS
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.cores.core_walk import CoreWalk, Pick, SharedTokens, check_ended, run_frame
from cnncc.machine.cores.programs import Core, Semaphore, sets_descriptors, wiring_of
from cnncc.machine.cores.ring_rows import Pair, Ring, RingNotes, ring_peaks, ring_uses
from cnncc.machine.program import Leaf, LoopNode, Node
from cnncc.machine.times.clock import Key, merged, start_state
from cnncc.machine.times.paths import CAUSES, CHANNEL_CAUSES
from cnncc.machine.times.tasks import ENGINES, queue_of
from cnncc.machine.times.times import (
    DEFAULT_LIMIT_CYCLES,
    DEFAULT_LIMIT_STEPS,
    Simulation,
    TimedPiece,
    Times,
    times_of,
)

MANY = 1 << 62
NOTED = (Kind.DESC, Kind.STEP, Kind.DMA)
ENGINE_CAUSES = {"load": "channel_in", "commit": "channel_out"}


@dataclass(frozen=True)
class FrameTimes:
    """The times of frames, in cycles.

    - first: when the results of the first frame are in DRAM; 0 if no transfer brings them there
    - period: (cycles, frames): so many frames take so many cycles again and again; None if no state came back
    """

    first: int
    period: tuple[int, int] | None


@dataclass(frozen=True)
class CoresTimes:
    """The cycles of each core, the times of frames, and by ring the most rows that wait in it."""

    cores: Sequence[Times]
    frames: FrameTimes
    rings: Mapping[Ring, int]


class EngineRun(NamedTuple):
    """An instruction on its engine, by number: cycles from start to end, latency apart."""

    core: int
    engine: str
    instruction: int
    kind: str
    start: int
    end: int


@dataclass
class EngineRuns:
    """Records when instructions run on their engines. No loop with one of them is summed up.

    - instructions: the numbers of those that are recorded
    - most: so many runs
    - runs: in the order of each core's program
    """

    instructions: Container[int]
    most: int = DEFAULT_LIMIT_STEPS
    runs: list[EngineRun] = field(default_factory=list[EngineRun])

    def records(self, leaf: Leaf) -> bool:
        """Whether the runs of an instruction are recorded."""
        return leaf.index in self.instructions and leaf.instruction.spec.engine in ENGINES

    def add(self, run: EngineRun) -> None:
        """Record a run. Raises Refusal, for too many."""
        if len(self.runs) == self.most:
            raise Refusal(f"the timeline is longer than {self.most:,} instructions: ask for single layers by --layer")
        self.runs.append(run)


class CoreTimes(CoreWalk[int]):
    """A core whose instructions are timed. Tokens are the times, from the start of the run, at which they are there."""

    def __init__(
        self,
        core: Core,
        tokens: SharedTokens[int],
        simulation: Simulation,
        uses: Mapping[int, tuple[Pair, int]],
        timeline: EngineRuns | None,
    ) -> None:
        # `RingNotes` follows the descriptors, so what sets them has to be seen each time.
        settings = {leaf.index for leaf, _ in core.leaves if uses and leaf.instruction.spec.kind in CHANGING_SETTINGS}
        self._recorded = {leaf.index for leaf, _ in core.leaves if timeline is not None and timeline.records(leaf)}
        super().__init__(core, tokens, seen=settings | uses.keys() | self._recorded)
        self.rings = RingNotes(uses)
        self.timeline = timeline
        self._noted = uses.keys() | {leaf.index for leaf, _ in core.leaves if leaf.instruction.spec.kind in NOTED}
        self.simulation = simulation
        self.piece = TimedPiece(simulation, start_state(core.arch), 0)
        self.latency = core.arch.cores.latency_cycles
        self.results: dict[int, int] = {}  # by frame: when its last transfer to DRAM was done
        # By descriptor whose rows are frames: rows an iteration, by register.
        self._rows = dict[int, dict[int, int]]()

    def run_node(self, node: Node) -> None:
        self.piece.run([node], self.first, self.last)
        if isinstance(node, Leaf):
            self._note(node)
        elif sets_descriptors(node):
            self._rows.clear()  # which row a transfer is at is not known any more

    def begin_loop(self, loop: LoopNode) -> None:
        self.piece.clock.tick(self.simulation.owner[loop.first])

    def begin_iteration(self, loop: LoopNode) -> None:
        self.piece.check_limits(loop.head)

    def end_loop(self, loop: LoopNode) -> None:
        pass

    def use_tokens(self, leaf: Leaf, taken: Sequence[Semaphore], given: Sequence[Semaphore]) -> None:
        clock = self.piece.clock
        for semaphore in taken:
            clock.put(queue_of(semaphore[1]), self.tokens.take(semaphore), waiting_cause(leaf))
        self.piece.run([leaf], self.first, self.last)
        for semaphore in given:
            for time, count in clock.pull(queue_of(semaphore[1])):
                self.tokens.give(semaphore, time, time + self.latency, count)
        self._note(leaf)

    def _note(self, leaf: Leaf) -> None:
        """Note what decides which frame a transfer belongs to (CORE-8), and when results are in DRAM."""
        inst = leaf.instruction
        if self.timeline is not None and leaf.index in self._recorded:
            engine = inst.spec.engine
            start, end = self.piece.clock.last_run(engine)
            self.timeline.add(EngineRun(self.core.number, engine, leaf.index, inst.spec.name, start, end))
        if leaf.index not in self._noted:
            return
        self.rings.descriptors.set(inst)
        if leaf.index in self.rings.uses:
            self.rings.note(leaf, self.index, self.piece.clock.last_done(inst.spec.engine))
        match inst.spec.name:
            case "desc":
                self._rows.pop(inst.number("id"), None)
                if inst.number("frames"):
                    self._rows[inst.number("id")] = {}
            case "step" if inst.number("id") in self._rows and inst.term("by").axis != "lin":
                # DESC-1: a loop has one step that is not linear, so a step on another axis takes the place of that over
                # rows.
                term = inst.term("by")
                self._rows[inst.number("id")][inst.number("loop")] = term.step if term.axis == "y" else 0
            case "dma" if inst.text("direction") == "out" and inst.number("dram") in self._rows:
                steps = self._rows[inst.number("dram")]
                frame = inst.number("y") + sum(step * self.index[register] for register, step in steps.items())
                self.results[frame] = self.piece.clock.last_done(inst.spec.engine)
            case _:
                pass

    def result(self, layers: Sequence[tuple[str, int]]) -> Times:
        """What was counted. A core without PEs has no array that could be idle."""
        causes = (*CAUSES, *CHANNEL_CAUSES) if self.simulation.causes else ()
        return times_of(self.piece.clock.all_counts(), layers, causes)

    def standing(self, leader: CoreTimes) -> Hashable:
        """Where the core stands, as the rest of the run depends on it, relative to the leader's frame and time."""
        if self.ended:
            return ()
        clock, register = self.piece.clock, self.frames.register if self.frames else -1
        # CORE-8: a loop over frames stands in no other loop, so its register is 0.
        index = [i - leader.index[0] if at == register else i for at, i in enumerate(self.index)]
        place = (self.at and self.at.index, self.frames and self.frames.first, tuple(index), self.first, self.last)
        return (place, clock.freeze(), clock.open_interval(), clock.elapsed - leader.piece.clock.elapsed)

    def frames_left(self) -> int:
        """The iterations over frames between the current one and the last one; 0 if it is the first; many if none."""
        if self.ended or self.frames is None:
            return MANY
        index = self.index[self.frames.register]
        # Conditions may ask for the first and the last iteration, so neither is one of those that repeat.
        return max(0, self.frames.count - 2 - index) if index else 0


def waiting_cause(leaf: Leaf) -> str:
    """The cause of waiting for another core: for words, or for space (CAUSE-7)."""
    inst = leaf.instruction
    if inst.spec.name == "dma":
        return "channel_in" if inst.text("direction") == "out" else "channel_out"
    return ENGINE_CAUSES[inst.spec.name]


def simulate_cores(
    cores: Sequence[Core],
    layers: Sequence[tuple[str, int]] = (),
    limit_steps: int = DEFAULT_LIMIT_STEPS,
    causes: bool = False,
    constant_words: int = 0,
    pick: Pick[int] | None = None,
    timeline: EngineRuns | None = None,
) -> CoresTimes:
    """The cycles of each core.

    pick: see `run_together`; timeline: gets the runs that it records; the other parameters are those of `simulate`.
    Raises: Trap.
    """
    tokens = SharedTokens[int](wiring_of(cores))
    walks: list[CoreTimes] = []
    for core, uses in zip(cores, ring_uses(cores), strict=True):
        own = layers_of(core, layers)
        idles = causes and bool(core.arch.rows)
        simulation = Simulation(core.tree, core.arch, own, DEFAULT_LIMIT_CYCLES, limit_steps, idles, constant_words)
        walks.append(CoreTimes(core, tokens, simulation, uses, timeline))
    period = _run(walks, tokens, pick)
    counted = [walk.result(layers_of(walk.core, layers)) for walk in walks]
    peaks = ring_peaks([walk.rings for walk in walks])
    # CORE-1: core 0 alone has the dma, which brings results to DRAM.
    return CoresTimes(counted, FrameTimes(walks[0].results.get(0, 0), period), peaks)


@dataclass(frozen=True)
class _Moment:
    """A moment at which the leader is about to begin a frame. counts: by core, up to then."""

    frame: int
    cycles: int
    counts: Sequence[Mapping[Key, int]]


def _run(walks: Sequence[CoreTimes], tokens: SharedTokens[int], pick: Pick[int] | None) -> tuple[int, int] | None:
    """Run all cores. Returns the period, if a state came back."""
    has_frames = (walk for walk in walks if any(isinstance(n, LoopNode) and n.over_frames for n in walk.core.tree))
    leader, period = next(has_frames, None), None
    met: dict[Hashable, _Moment] = {}
    while True:
        run_frame(walks, leader, pick)
        if leader is None or not leader.at_frame:
            break
        if period is None and min(walk.frames_left() for walk in walks):
            standing = tuple(walk.standing(leader) for walk in walks), _tokens_of(walks, tokens)
            counts = [dict(walk.piece.clock.counts) for walk in walks]
            before, now = met.get(standing), _Moment(leader.index[0], leader.piece.clock.elapsed, counts)
            met[standing] = now
            if before is not None:
                period = now.cycles - before.cycles, now.frame - before.frame
                if leader.timeline is None:
                    _skip(walks, tokens, period, before, now)
        leader.go_on()
    check_ended(walks)
    return period


def _tokens_of(walks: Sequence[CoreTimes], tokens: SharedTokens[int]) -> Hashable:
    """The shared tokens, in times relative to the taker's. Tokens that are there already are alike for it."""
    waiting: list[Hashable] = []
    for core, number in sorted(tokens.wiring.sources):
        if not walks[core].ended:
            now = walks[core].piece.clock.elapsed
            runs = merged([(max(0, time - now), count) for time, count in tokens.each((core, number))])
            waiting.append((core, number, runs))
    return tuple(waiting)


def _skip(
    walks: Sequence[CoreTimes], tokens: SharedTokens[int], period: tuple[int, int], before: _Moment, now: _Moment
) -> None:
    """Let whole periods pass, as many as keep each core out of its last iteration over frames."""
    cycles, frames = period
    times = min(walk.frames_left() for walk in walks) // frames
    for walk, was, counts in zip(walks, before.counts, now.counts, strict=True):
        if walk.ended:
            continue
        more = {key: count - was.get(key, 0) for key, count in counts.items()}
        walk.piece.clock.delay(times * cycles, more, times)
        if walk.frames is not None:
            walk.index[walk.frames.register] += times * frames
        walk.rings.skipped = times * frames, times * cycles
    tokens.change(lambda time: time + times * cycles)


def layers_of(core: Core, layers: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The layers whose first instruction is one of a core."""
    return [(label, first) for label, first in layers if core.first <= first <= core.last]
