"""The output units: their settings, and the parameters of each result's channel (rule COMMIT-2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from cnncc.arch.model import LOOP_REGISTERS
from cnncc.isa.table import ENTRIES, Instruction
from cnncc.machine.values.addresses import PE_AXES, Descriptor, Grid, Index, Ints, on_block, position
from cnncc.machine.values.memory import Place
from cnncc.machine.values.regfile import HalfFault
from cnncc.machine.values.strided import Strided, addresses_of, params
from cnncc.numerics import SEGMENTS, Epilogue, Table

NO_ENTRIES = np.zeros(SEGMENTS, np.int64)  # COMMIT-7: of the table before the first `table`


@dataclass(frozen=True)
class OutputUnit:
    """The settings of a `unit` instruction. bias, scale: the parameters that each channel has."""

    bias: bool = False
    scale: bool = False
    epilogue: Epilogue = field(default_factory=Epilogue)

    @classmethod
    def of(cls, inst: Instruction, entries: Ints = NO_ENTRIES) -> OutputUnit:
        """The settings of a `unit` instruction. entries: those of the table, i64[256]."""
        table = Table(np.append(entries, inst.number("last")), inst.number("shift")) if inst.number("lookup") else None
        factors = np.array([inst.number(name) for name in ("factor_a", "factor_b", "fixed")], np.uint32)
        epilogue = Epilogue(
            zero=inst.number("zero"),
            clamp=(inst.number("clamp_lo"), inst.number("clamp_hi")),
            factors=factors.view(np.float32) if inst.number("residual") else None,
            multiply=bool(inst.number("multiply")),
            add_clamp=(inst.number("add_lo"), inst.number("add_hi")),
            slope=float(np.uint32(inst.number("slope")).view(np.float32)) if inst.number("leaky") else 1.0,
            table=table,
        )
        return cls(bool(inst.number("bias")), bool(inst.number("scale")), epilogue)

    def with_entries(self, entries: Ints) -> OutputUnit:
        """The settings with another table."""
        if (table := self.epilogue.table) is None:
            return self
        table = replace(table, entries=np.append(entries, table.entries[-1:]))
        return replace(self, epilogue=replace(self.epilogue, table=table))

    @property
    def params(self) -> int:
        """Parameters of a channel."""
        return self.bias + self.scale

    def param_address(
        self,
        inst: Instruction,
        grid: Grid,
        descriptor: Descriptor,
        loops: Sequence[Index],
        param_words: int,
    ) -> Place:
        """The addresses [block…, *grid, *pattern, parameter, word] of a commit's parameters; size 1 where equal."""
        words = self.params * param_words
        if (evenly := params(inst, grid, loops, descriptor, words)) is not None:
            sizes, steps = (*evenly.sizes, self.params, param_words), (*evenly.steps, param_words, 1)
            return Strided(evenly.start, sizes, steps)
        # COMMIT-2: of the result's position the instruction's channel terms alone count, without start and loops.
        channel = position(inst, grid, [0] * LOOP_REGISTERS).terms["k"] - inst.number("channel")
        start = descriptor.linear(
            inst.number("param") * words, [on_block(loop, PE_AXES + len(inst.extents)) for loop in loops]
        )
        first = np.asarray(start + channel * words)[..., None, None]
        return first + param_words * np.arange(self.params)[:, None] + np.arange(param_words)

    def function(self, params: Ints) -> Epilogue:
        """The function of each result. params: the bits of its parameters as int32, [image, …, parameter]."""
        bias = params[..., 0] if self.bias else None
        scale = params[..., -1].astype(np.int32).view(np.float32) if self.scale else None
        return replace(self.epilogue, bias=bias, scale=scale)


def place_of(inst: Instruction, grid: Grid, loops: Sequence[Index], descriptor: Descriptor, outside: str) -> Place:
    """The addresses of a commit's results, residuals or streamed words (COMMIT-4).

    Raises: HalfFault(outside), for an address beyond the bounds.
    """
    place, inside = addresses_of(inst, grid, loops, descriptor)
    if inside is not None:
        row, col = position(inst, grid, loops).first_outside(descriptor)
        size = f"{descriptor.height} rows and {descriptor.width} columns"
        raise HalfFault(f"{outside} of {size}, at row {row}, column {col}")
    return place


def distinct_place(place: Place, shape: tuple[int, ...], whole: bool) -> Place:
    """The places of results of a `shape`. Raises HalfFault if `whole` and two go to one word (COMMIT-4)."""
    if isinstance(place, Strided) and place.sizes == shape[-len(place.sizes) :] and place.distinct:
        return place
    listed = place.listed() if isinstance(place, Strided) else place
    if whole and np.unique(listed).size < prod(shape):
        words, times = np.unique(np.broadcast_to(listed, shape), return_counts=True)
        raise HalfFault(f"two results go to glb word {words[times > 1][0]}")
    return listed


def place_of_shape(place: Place, shape: tuple[int, ...]) -> Place:
    """The places of results of a `shape`, one each."""
    if isinstance(place, Strided) and place.sizes == shape:
        return place
    return np.broadcast_to(place.listed() if isinstance(place, Strided) else place, shape)


def table_entries(entries: Ints, inst: Instruction) -> Ints:
    """The entries of the table after a `table` instruction (COMMIT-7)."""
    first = ENTRIES * inst.number("part")
    own = [inst.number(f"entry{at}") for at in range(ENTRIES)]
    return np.concatenate([entries[:first], own, entries[first + ENTRIES :]])


def psum_slots(inst: Instruction, words: int) -> Strided:
    """The psum slots [pixel, line, channel] of a commit (COMMIT-1). Raises HalfFault beyond a half of `words`."""
    slots = Strided(inst.number("psum_slot"), inst.extents, tuple(inst.number(f"psum_{counter}") for counter in "zji"))
    low, high = slots.ends
    if low < 0 or high >= words:
        raise HalfFault(f"psum slots {low}..{high} are not in the {words} of a half")
    return slots
