"""When everything in a program happens: its cycles, exactly, without looking at data (PROG, TOKEN, TIME).

An iteration of a loop is a function of the `State` at its start: times relative to the sequencer's, tokens, settings.

- A time before the sequencer's counts as the sequencer's own. Every later instruction starts later than now, so no
  `max` of rules TIME-1 and TIME-2 can tell earlier times apart.
- Only the array's stalls look further back: how long has it been idle? These cycles are kept apart and charged to the
  next cause that the array waits for (`Paths.opening`).
- A state takes finitely many values, because queues and tokens are bounded. So states recur, and the iterations from
  one occurrence to the next are multiplied.

The first and the last iteration are stepped apart, because conditions ask for them. Each iteration is remembered by its
state and the loop's text (`loop_texts.py`): neither an outer loop nor another layer of the same shape steps it anew.
The result is exact. The cost grows with the program's text, not with its loops' counts. Only engines of nearly equal
speed take some thousands of iterations to fill or drain a queue; these are stepped once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from cnncc.arch.model import Arch
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.instruction_sizes import UnitSettings
from cnncc.machine.program import ALL_LOOPS, Leaf, LoopNode, Node
from cnncc.machine.times.cause_clock import CauseClock
from cnncc.machine.times.clock import Clock, Effect, Fault, Key, State, start_state
from cnncc.machine.times.loop_texts import LoopTexts, constant_transfers, waits_for
from cnncc.machine.times.paths import CAUSES, Moments
from cnncc.machine.times.tasks import ENGINES, queue_of

DEFAULT_LIMIT_CYCLES = 1 << 50  # 13 days at 1 GHz
DEFAULT_LIMIT_STEPS = 1 << 24  # hundreds of times those of any network here


@dataclass(frozen=True)
class Cycles:
    """Counted cycles: compute and the stalls add up to total; load, commit and dma are busy cycles of engines.

    stall: the array's idle cycles by cause (CAUSE-1 to CAUSE-6), if these were asked for.
    """

    total: int
    compute: int
    load: int
    commit: int
    dma: int
    stall: Mapping[str, int]


@dataclass(frozen=True)
class Times:
    """The cycles of a program and of its layers.

    - total of a layer: the cycles that the sequencer spends on its instructions
    - stalls of a layer: the array's idle cycles before its macro-instructions and in its waits (`sync`, `host`, `halt`)

    Both add up over the layers. If each layer ends with a `sync` of the array, then total = compute + stalls in each.
    """

    cycles: Cycles
    layers: Mapping[str, Cycles]


def owners(length: int, layers: Sequence[tuple[str, int]]) -> list[int]:
    """The layer that each of `length` instructions counts for, as an index into `layers`.

    layers: (label, first instruction), in the program's order. A layer ends where the next one starts. Instructions
    before the first layer count for the first.
    """
    starts = [first for _, first in layers]
    return [max(0, bisect_right(starts, index) - 1) for index in range(length)]


def program_length(tree: Sequence[Node]) -> int:
    """Instructions of a program."""
    last = tree[-1]
    return 1 + (last.last if isinstance(last, LoopNode) else last.index)


class Simulation:
    """The data that all pieces of one program share: the array, the texts of loops, the known iterations."""

    def __init__(
        self,
        tree: Sequence[Node],
        arch: Arch,
        layers: Sequence[tuple[str, int]],
        limit_cycles: int,
        limit_steps: int,
        causes: bool,
        constant_words: int,
    ) -> None:
        self.arch, self.causes = arch, causes
        self.limit_cycles, self.limit_steps, self.steps = limit_cycles, limit_steps, 0
        self.owner = owners(program_length(tree), layers)
        self.texts = LoopTexts(arch, self.owner, constant_transfers(tree, constant_words) if causes else frozenset())
        self._known: dict[tuple[int, int, int, State], Effect] = {}
        self._moments: Moments = {}

    def clock(self, state: State) -> Clock:
        """A clock for a piece of the program."""
        overlap = self.arch.sequencer.overlap
        return CauseClock(state, overlap, self._moments) if self.causes else Clock(state, overlap)

    def iteration(self, loop: LoopNode, first: int, last: int, state: State, before: int) -> Effect:
        """One iteration of a loop's body from `state`, `before` cycles after the program's start.

        The effect's owners are relative to the loop's. Loops of one text share their effects, except where the limit
        ends: the trap has to name the loop's own instruction.
        """
        # Registers that no condition inside the loop asks for do not tell two iterations apart.
        in_first, in_last = self.texts.edge_masks(loop)
        key = (self.texts.number(loop, state.unit), first & in_first, last & in_last, state)
        known = self._known.get(key)
        if known is None or before + known.elapsed > self.limit_cycles:
            piece = TimedPiece(self, state, before, self.owner[loop.first])
            piece.run(loop.body, first, last)
            known = self._known[key] = piece.clock.effect()
        return known


class TimedPiece:
    """A piece of program as it runs. before: cycles of the program before the piece. owner: the piece's first owner."""

    def __init__(self, simulation: Simulation, state: State, before: int, owner: int = 0) -> None:
        self.simulation = simulation
        self.clock = simulation.clock(state)
        self.before, self.first_owner = before, owner

    def run(self, nodes: Sequence[Node], first: int, last: int) -> None:
        """Run nodes; first, last: masks of the loop registers in their first, last iteration."""
        for node in nodes:
            if isinstance(node, LoopNode):
                self._loop(node, first, last)
            else:
                self._instruction(node, first, last)

    def _loop(self, loop: LoopNode, first: int, last: int) -> None:
        """PROG-2: the loop's first iteration, those between, the last."""
        self.clock.tick(self._owner(loop.first))
        bit = 1 << loop.register
        self._apply(loop, self._iteration(loop, first | bit, last | bit if loop.count == 1 else last & ~bit))
        if loop.count > 2:
            self._repeat(loop, first & ~bit, last & ~bit)
        if loop.count > 1:
            self._apply(loop, self._iteration(loop, first & ~bit, last | bit))

    def _owner(self, index: int) -> int:
        """The owner of an instruction, relative to the piece's."""
        return self.simulation.owner[index] - self.first_owner

    def _iteration(self, loop: LoopNode, first: int, last: int) -> Effect:
        """The effect of a loop's next iteration."""
        return self.simulation.iteration(loop, first, last, self.clock.freeze(), self.before + self.clock.elapsed)

    def _apply(self, loop: LoopNode, effect: Effect, times: int = 1) -> None:
        self.clock.apply(effect, times, self._owner(loop.first))
        self.check_limits(loop.head)

    def _repeat(self, loop: LoopNode, first: int, last: int) -> None:
        """The iterations between the first and the last: step until a state returns, then multiply."""
        count = loop.count - 2
        met: dict[State, int] = {}
        effects: list[Effect] = []
        while len(effects) < count and (state := self.clock.freeze()) not in met:
            met[state] = len(effects)
            effects.append(self._iteration(loop, first, last))
            self._apply(loop, effects[-1])
        if len(effects) < count:
            state = self.clock.freeze()
            period = effects[met[state] :]
            times, rest = divmod(count - len(effects), len(period))
            if times:
                self._apply(loop, self._chain(state, period), times)
            for effect in period[:rest]:
                self._apply(loop, effect)

    def _chain(self, state: State, effects: Sequence[Effect]) -> Effect:
        """One effect for several, one after the other, from `state`."""
        clock = self.simulation.clock(state)
        for effect in effects:
            clock.apply(effect)
        return clock.effect()

    def _instruction(self, leaf: Leaf, first: int, last: int) -> None:
        inst, clock = leaf.instruction, self.clock
        owner = self._owner(leaf.index)
        try:
            match kind := inst.spec.kind:
                case Kind.SYNC:
                    clock.wait(owner, waits_for(inst), 1)
                case Kind.HOST | Kind.HALT:
                    clock.wait(owner, tuple(range(len(ENGINES))), int(kind is Kind.HOST))
                case Kind.SIGNAL:
                    clock.signal(owner, queue_of(inst.number("semaphore")), inst.number("count"))
                case Kind.DESC | Kind.STEP | Kind.CORE | Kind.ROUTE:
                    clock.tick(owner)
                case Kind.DMA | Kind.LOAD | Kind.MAC | Kind.UNIT | Kind.TABLE | Kind.COMMIT:
                    # Commits behind it run behind it, so they all have these settings.
                    if kind is Kind.UNIT:
                        clock.set_unit(UnitSettings.of(inst))
                    texts = self.simulation.texts
                    clock.issue(owner, texts.task(leaf), texts.occupancy(leaf, clock.unit), first, last)
                case Kind.LOOP | Kind.END:
                    raise AssertionError(f"{kind} is no leaf of a program's tree")
                case _:
                    assert_never(kind)
        except Fault as fault:
            raise leaf.trap(str(fault)) from fault
        self.check_limits(leaf)

    def check_limits(self, leaf: Leaf) -> None:
        """Count a step. Raises Trap at `leaf`, if there are too many steps or cycles."""
        simulation = self.simulation
        if self.before + self.clock.elapsed > simulation.limit_cycles:
            raise leaf.trap(f"the limit of {simulation.limit_cycles} cycles is exceeded")
        simulation.steps += 1
        if simulation.steps > simulation.limit_steps:
            raise leaf.trap(f"the interpreter's limit of {simulation.limit_steps} steps in time is exceeded")


def cycles_of(counts: Mapping[Key, int], owner: int, causes: Sequence[str]) -> Cycles:
    """The counts of an owner. causes: those of stalls."""
    busy = {name: counts.get((owner, name), 0) for name in ("total", "load", "commit", "dma")}
    stall = {cause: counts.get((owner, cause), 0) for cause in causes}
    return Cycles(compute=counts.get((owner, "array"), 0), stall=stall, **busy)


def times_of(counts: Mapping[Key, int], layers: Sequence[tuple[str, int]], causes: Sequence[str]) -> Times:
    """The counts of a whole program and of its layers, which own them in this order. causes: those of stalls."""
    sums: Counter[Key] = Counter()
    for (_, name), count in counts.items():
        sums[0, name] += count
    whole = cycles_of(sums, 0, causes)
    assert not causes or whole.compute + sum(whole.stall.values()) == whole.total
    return Times(whole, {label: cycles_of(counts, owner, causes) for owner, (label, _) in enumerate(layers)})


def simulate(
    tree: Sequence[Node],
    arch: Arch,
    layers: Sequence[tuple[str, int]] = (),
    limit_cycles: int = DEFAULT_LIMIT_CYCLES,
    limit_steps: int = DEFAULT_LIMIT_STEPS,
    causes: bool = False,
    constant_words: int = 0,
) -> Times:
    """The cycles of a program on an array. layers: (label, first instruction) in the program's order (see `owners`).

    limit_steps: a step is an instruction, or an iteration in a new state.
    causes: with stalls by cause, which takes longer. constant_words: of DRAM, those of weights and parameters.
    Raises: Trap, for a token that is missing in program order, too many halves or tokens, or an exceeded limit.
    """
    simulation = Simulation(tree, arch, layers, limit_cycles, limit_steps, causes, constant_words)
    piece = TimedPiece(simulation, start_state(arch), 0)
    piece.run(tree, ALL_LOOPS, ALL_LOOPS)
    return times_of(piece.clock.all_counts(), layers, CAUSES if causes else ())
