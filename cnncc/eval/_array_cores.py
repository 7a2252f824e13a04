"""Runs the cores of a program, each up to the next token that is not there, for the evaluator of the `array` dialect.

The order in which cores go on does not matter (CORE-6). If none can go on, it is a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from xdsl.ir import Operation

from cnncc.arch.model import Arch, core_arch
from cnncc.dialects import array as A
from cnncc.errors import Refusal, refusals_of
from cnncc.eval._array_rules import ArrayState, named

RunWhole = Callable[[Operation, ArrayState], None]  # of a host segment
LayerDone = Callable[[A.LayerOp, ArrayState], None]


class CoreRun:
    """A core on its way. waits: the instruction whose token is missing, and its layer, if there is one."""

    def __init__(self, op: A.CoreOp, state: ArrayState, host: RunWhole, done: LayerDone) -> None:
        self.op, self.state, self._host, self._done = op, state, host, done
        self.waits: tuple[A.LayerOp, Operation, A.Tokens] | None = None
        self.ended = False
        self._steps = self._run()

    @property
    def can_go_on(self) -> bool:
        """Whether its program has not ended, and its next token is there."""
        return not self.ended and not (self.waits and self.state.misses(self.waits[2]))

    def go_on(self) -> None:
        """Up to the next token that is not there, or to the end."""
        # The walk yields None at each stop; `self` stands for its end.
        self.ended = next(self._steps, self) is self

    def _run(self) -> Iterator[None]:
        for op in self.op.body.block.ops:
            match op:
                case A.LayerOp():
                    with refusals_of(f"layer {op.label.data}"):
                        self.state.start_layer(op)
                        yield from self._walk(op, op.body.block.ops)
                        self._done(op, self.state)
                case A.HostOp():
                    self._host(op, self.state)
                case A.SignalOp():
                    self.state.run(op)
                case _:
                    pass  # routes hold from the start

    def _walk(self, layer: A.LayerOp, ops: Iterable[Operation]) -> Iterator[None]:
        for op in ops:
            if isinstance(op, A.RepeatOp):
                for _ in self.state.iterations(op.record.data):
                    yield from self._walk(layer, op.body.block.ops)
                continue
            # TOKEN-4: no other op takes from a semaphore, and other cores give tokens of semaphores alone (CORE-3).
            if isinstance(op, A.DmaOp | A.LoadOp | A.CommitOp) and self.state.misses(tokens := op.record.data.tokens):
                self.waits = layer, op, tokens
                yield
                self.waits = None
            named(op, self.state.run)


Pick = Callable[[Sequence[CoreRun]], CoreRun]


def run_cores(cores: Sequence[A.CoreOp], first: ArrayState, host: RunWhole, done: LayerDone, pick: Pick | None) -> None:
    """Run all cores to their ends. first: the memories. pick: chooses among the cores that can go on; else the first.

    Raises: Refusal, also for a deadlock, which names each core that waits.
    """
    states = [_state(core, first) for core in cores]
    for core, state in zip(cores, states, strict=True):
        for op in core.body.block.ops:
            if isinstance(op, A.RouteOp):
                route = op.record.data
                state.routes.setdefault(route.semaphore, []).append((states[route.core], route.to))
    runs = [CoreRun(core, state, host, done) for core, state in zip(cores, states, strict=True)]
    while ready := [run for run in runs if run.can_go_on]:
        (pick(ready) if pick else ready[0]).go_on()
    if waiting := [_wait(run) for run in runs if run.waits]:
        raise Refusal(f"deadlock: no core can go on: {', '.join(waiting)} (CORE-6)")


def _state(core: A.CoreOp, first: ArrayState) -> ArrayState:
    place = core.record.data
    if place.row0 + place.rows > first.arch.rows or place.col0 + place.cols > first.arch.cols:
        raise Refusal(f"core {place.label} is not all in the array of {first.arch.rows} x {first.arch.cols} (CORE-1)")
    arch: Arch = core_arch(first.arch, place.rows, place.cols)
    return ArrayState(arch, first.images, first.globals_, first.tensors, first.frames, first)


def _wait(run: CoreRun) -> str:
    assert run.waits is not None
    layer, op, tokens = run.waits
    return f"core {run.op.record.data.label} in layer {layer.label.data} ({op.name} waits for semaphore {tokens.take})"
