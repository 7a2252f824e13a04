"""The tasks of instructions for the clock: engine, tokens taken and tokens given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from cnncc.arch.model import Arch
from cnncc.isa.table import RUN_BY_ENGINES, Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.mac_operations import operands_of
from cnncc.machine.program import mask_of

ENGINES = ("dma", "load", "array", "commit")
ARRAY = ENGINES.index("array")
SEMAPHORES = 15  # 4-bit fields name them; 0 is none (TOKEN-4)

# Token queues (TOKEN-1 to TOKEN-4): full and free halves of each register file, then the semaphores by number.
HALVES = ("weight free", "weight full", "ifmap free", "ifmap full", "psum free", "psum full")
QUEUES = len(HALVES) + SEMAPHORES
WEIGHT_FREE, WEIGHT_FULL, IFMAP_FREE, IFMAP_FULL, PSUM_FREE, PSUM_FULL = range(len(HALVES))


def queue_name(queue: int) -> str:
    """A token queue as a trap names it."""
    if queue < len(HALVES):
        file, state = HALVES[queue].split()
        return f"{state} half of the {file} file"
    return f"token of semaphore {queue - len(HALVES) + 1}"


def queue_of(semaphore: int) -> int:
    """The queue of a semaphore's tokens."""
    return len(HALVES) - 1 + semaphore


def free_halves(arch: Arch) -> dict[int, int]:
    """The halves that are free when a program begins: all of each register file, by queue."""
    return {WEIGHT_FREE: arch.pe.weight_halves, IFMAP_FREE: arch.pe.ifmap_halves, PSUM_FREE: arch.pe.psum_halves}


def partner(queue: int) -> int:
    """The queue of a half after `queue`: a free half becomes full, a full one free."""
    # In HALVES free and full of one file are neighbours, free first.
    return queue ^ 1


@dataclass(frozen=True)
class EngineToken:
    """A token taken or given when the loops of `mask` are in their first (last) iteration."""

    queue: int
    mask: int


@dataclass(frozen=True)
class EngineTask:
    """An instruction as its engine sees it."""

    engine: int
    takes: tuple[EngineToken, ...]
    gives: tuple[EngineToken, ...]


def _token(inst: Instruction, field: str, queue: int) -> tuple[EngineToken, ...]:
    mask = mask_of(inst.when(field))
    return () if mask is None else (EngineToken(queue, mask),)


def _semaphore(inst: Instruction, field: str) -> tuple[EngineToken, ...]:
    number = inst.number(field)
    return _token(inst, f"{field}_when", queue_of(number)) if number else ()


def task_of(inst: Instruction) -> EngineTask:
    """The task of an instruction that an engine runs (TOKEN-1 to TOKEN-4)."""
    engine = ENGINES.index(inst.spec.engine)
    kind = inst.spec.kind
    if kind not in RUN_BY_ENGINES:
        raise AssertionError(f"no engine runs {kind}")
    match kind:
        case Kind.LOAD:
            free = HALVES.index(f"{inst.text('kind')} free")
            takes, gives = _token(inst, "open", free), _token(inst, "close", partner(free))
        case Kind.MAC:
            weights = "weight" in operands_of(inst.operation())
            takes = _token(inst, "take_weight", WEIGHT_FULL) * weights + _token(inst, "take_ifmap", IFMAP_FULL)
            gives = _token(inst, "give_weight", WEIGHT_FREE) * weights + _token(inst, "give_ifmap", IFMAP_FREE)
            # The order of tokens is that of CAUSE-1: weights, ifmap, psum, semaphore.
            clear, send = _token(inst, "clear", PSUM_FREE), _token(inst, "send", PSUM_FULL)
            return EngineTask(engine, takes + clear, gives + send)
        case Kind.COMMIT if inst.text("source") == "psum":
            takes, gives = (EngineToken(PSUM_FULL, 0),), (EngineToken(PSUM_FREE, 0),)
        case Kind.UNIT | Kind.TABLE:
            return EngineTask(engine, (), ())
        case Kind.COMMIT | Kind.DMA:
            takes = gives = ()
        case _:
            assert_never(kind)
    return EngineTask(engine, takes + _semaphore(inst, "take"), gives + _semaphore(inst, "give"))
