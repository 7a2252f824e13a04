"""When everything in a program happens: its cycles, exactly, without looking at data (PROG, TOKEN, TIME).

An iteration of a loop is a function of the `State` at its start: of times relative to the sequencer's, of tokens and
of what the program has set. A time before the sequencer's counts as the sequencer's own: whatever is decoded from now
on starts later than now, so no `max` of rules TIME-1 and TIME-2 can tell earlier times apart. Only the array's stalls
look further back (how long has it been idle?); that part is kept aside and charged to what the array waits for next
(`Effect.absorber`). What is left takes finitely many values, because queues and tokens are bounded, so it recurs: the
iterations from one occurrence of a state to the next are multiplied. The first and the last iteration are stepped apart
(conditions), and each iteration is remembered by its state and the loop's text (`texts.py`), so that neither an outer
loop nor another layer of the same shape steps it anew. That is exact. It costs what the program's text costs, however
long its loops. Only engines of nearly equal speed take some thousands of iterations to fill or drain a queue; these are
stepped once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from cnncc.arch.model import Arch
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.program import ALL_LOOPS, Leaf, LoopNode, Node
from cnncc.machine.times.clock import Clock, Effect, Fault, Key, State, start_state
from cnncc.machine.times.durations import UnitSettings
from cnncc.machine.times.tasks import ENGINES, HALVES
from cnncc.machine.times.texts import Texts, waits_for

STALLS = {"weights": "weight", "ifmap": "ifmap", "psum": "psum", "issue": "issue", "drain": "drain"}
DEFAULT_BUDGET_CYCLES = 1 << 50
DEFAULT_BUDGET_STEPS = 1 << 24  # hundreds of times those of any network here


@dataclass(frozen=True)
class Cycles:
    """Counted cycles: compute and the stalls add up to total; load, commit and dma are busy cycles of engines."""

    total: int = 0
    compute: int = 0
    load: int = 0
    commit: int = 0
    dma: int = 0
    stall: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(STALLS, 0))


@dataclass(frozen=True)
class Times:
    """The cycles of a program and of its layers.

    A layer's total are the cycles that the sequencer spends on its instructions; its stalls are those before its
    macro-instructions and in its own waits (`sync`, `host`, `halt`). Both add up over the layers. Where layers end
    with a `sync` of the array, compute and stalls are the total in each of them, too.
    """

    cycles: Cycles
    layers: Mapping[str, Cycles]


def owners(length: int, layers: Sequence[tuple[str, int]]) -> list[int]:
    """For each of `length` instructions the layer that it counts for, as an index into `layers`.

    layers: (label, first instruction), in the program's order. A layer goes on until the next one starts; what
    stands before the first counts for the first.
    """
    owner = 0
    found: list[int] = []
    for index in range(length):
        while owner + 1 < len(layers) and layers[owner + 1][1] <= index:
            owner += 1
        found.append(owner)
    return found


def program_length(tree: Sequence[Node]) -> int:
    """Instructions of a program."""
    last = tree[-1]
    return 1 + (last.last if isinstance(last, LoopNode) else last.index)


class _Simulation:
    """What is the same for every piece of one program: the array, the texts of loops, the iterations that are known."""

    def __init__(
        self,
        tree: Sequence[Node],
        arch: Arch,
        layers: Sequence[tuple[str, int]],
        budget_cycles: int,
        budget_steps: int,
    ) -> None:
        self.arch = arch
        self.budget_cycles, self.budget_steps, self.steps = budget_cycles, budget_steps, 0
        self.owner = owners(program_length(tree), layers)
        self.texts = Texts(arch, self.owner)
        self._known: dict[tuple[int, int, int, State], Effect] = {}

    def iteration(self, loop: LoopNode, first: int, last: int, state: State, before: int) -> Effect:
        """One iteration of a loop's body from `state`, `before` cycles after the program's start.

        Its owners are counted from that of the loop. Loops of one text are one loop here, unless the budget ends:
        then each runs by itself, for the trap names an instruction.
        """
        in_first, in_last = self.texts.mentions(loop)
        key = (self.texts.number(loop, state.unit), first & in_first, last & in_last, state)
        known = self._known.get(key)
        if known is None or before + known.elapsed > self.budget_cycles:
            piece = _Piece(self, state, before, self.owner[loop.first])
            piece.run(loop.body, first, last)
            known = self._known[key] = piece.clock.effect()
        return known


class _Piece:
    """A piece of program as it runs: its clock, how many cycles the program ran `before` it, its first owner."""

    def __init__(self, simulation: _Simulation, state: State, before: int, owner: int = 0) -> None:
        self.simulation = simulation
        self.clock = Clock(state, simulation.arch.sequencer.overlap)
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
        """Whom an instruction counts for."""
        return self.simulation.owner[index] - self.first_owner

    def _iteration(self, loop: LoopNode, first: int, last: int) -> Effect:
        """What the next iteration of a loop does."""
        return self.simulation.iteration(loop, first, last, self.clock.freeze(), self.before + self.clock.elapsed)

    def _apply(self, loop: LoopNode, effect: Effect, times: int = 1) -> None:
        self.clock.apply(effect, times, self._owner(loop.first))
        self._check_budget(loop.head)

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
        clock = Clock(state, self.simulation.arch.sequencer.overlap)
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
                    clock.signal(owner, len(HALVES) - 1 + inst.number("semaphore"), inst.number("count"))
                case Kind.DESC | Kind.STEP:
                    clock.tick(owner)
                case Kind.DMA | Kind.LOAD | Kind.MAC | Kind.UNIT | Kind.COMMIT:
                    if kind is Kind.UNIT:
                        clock.set_unit(UnitSettings.of(inst))
                    texts = self.simulation.texts
                    clock.issue(owner, texts.task(leaf), texts.took(leaf, clock.unit), first, last)
                case Kind.LOOP | Kind.END:
                    raise ValueError(f"{kind} is no leaf of a program's tree")
                case _:
                    assert_never(kind)
        except Fault as fault:
            raise leaf.trap(str(fault)) from fault
        self._check_budget(leaf)

    def _check_budget(self, leaf: Leaf) -> None:
        simulation = self.simulation
        if self.before + self.clock.elapsed > simulation.budget_cycles:
            raise leaf.trap(f"the budget of {simulation.budget_cycles} cycles is spent")
        simulation.steps += 1
        if simulation.steps > simulation.budget_steps:
            raise leaf.trap(f"the interpreter's budget of {simulation.budget_steps} steps in time is spent")


def _cycles(counts: Mapping[Key, int], owner: int) -> Cycles:
    busy = {name: counts.get((owner, name), 0) for name in ("total", "load", "commit", "dma")}
    stall = {name: counts.get((owner, cause), 0) for name, cause in STALLS.items()}
    return Cycles(compute=counts.get((owner, "array"), 0), stall=stall, **busy)


def simulate(
    tree: Sequence[Node],
    arch: Arch,
    layers: Sequence[tuple[str, int]] = (),
    budget_cycles: int = DEFAULT_BUDGET_CYCLES,
    budget_steps: int = DEFAULT_BUDGET_STEPS,
) -> Times:
    """The cycles of a program on an array. `layers`: (label, first instruction) in the program's order (see `owners`).

    Raises Trap: a token that is not there in program order, halves or tokens beyond what there are, a budget spent.
    Steps are instructions, and iterations whose state has not been met before.
    """
    simulation = _Simulation(tree, arch, layers, budget_cycles, budget_steps)
    piece = _Piece(simulation, start_state(arch), 0)
    piece.run(tree, ALL_LOOPS, ALL_LOOPS)
    counts = piece.clock.counts
    sums: Counter[Key] = Counter()
    for (_, name), count in counts.items():
        sums[0, name] += count
    whole = _cycles(sums, 0)
    assert whole.compute + sum(whole.stall.values()) == whole.total
    return Times(whole, {label: _cycles(counts, owner) for owner, (label, _) in enumerate(layers)})
