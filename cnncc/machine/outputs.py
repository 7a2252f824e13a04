"""The output units: their settings, and the parameters of each result's channel (rule C2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cnncc.isa.fields import LOOP_REGISTERS, Term
from cnncc.isa.table import Instruction
from cnncc.machine.positions import PE_AXES, Descriptor, Grid, Index, Ints, on_block, position
from cnncc.numerics import Epilogue


@dataclass(frozen=True)
class Unit:
    """What a `unit` instruction sets; bias and scale say what the parameters of a channel are."""

    bias: bool = False
    scale: bool = False
    epilogue: Epilogue = field(default_factory=Epilogue)

    @classmethod
    def of(cls, inst: Instruction) -> Unit:
        """The settings of a `unit` instruction."""
        factors = np.array([inst.number(name) for name in ("factor_a", "factor_b", "fixed")], np.uint32)
        epilogue = Epilogue(
            zero=inst.number("zero"),
            clamp=(inst.number("clamp_lo"), inst.number("clamp_hi")),
            factors=factors.view(np.float32) if inst.number("residual") else None,
            add_clamp=(inst.number("add_lo"), inst.number("add_hi")),
        )
        return cls(bool(inst.number("bias")), bool(inst.number("scale")), epilogue)

    @property
    def params(self) -> int:
        """Parameters of a channel."""
        return self.bias + self.scale

    def param_address(
        self,
        inst: Instruction,
        grid: Grid,
        pattern: Sequence[tuple[int, Term]],
        descriptor: Descriptor,
        loops: Sequence[Index],
        param_words: int,
    ) -> Ints:
        """Where the parameters of a commit's results lie, as [block…, *grid, pixel, channel, parameter, word] or 1s."""
        words = self.params * param_words
        channel = position(inst, grid, [0] * LOOP_REGISTERS, pattern).terms["k"] - inst.number("channel")
        start = descriptor.linear(
            inst.number("param") * words, [on_block(loop, PE_AXES + len(pattern)) for loop in loops]
        )
        first = np.asarray(start + channel * words)[..., None, None]
        return first + param_words * np.arange(self.params)[:, None] + np.arange(param_words)

    def function(self, params: Ints) -> Epilogue:
        """What is done with each result. params: the bits of its parameters as int32, [image, …, parameter]."""
        bias = params[..., 0] if self.bias else None
        scale = params[..., -1].astype(np.int32).view(np.float32) if self.scale else None
        return replace(self.epilogue, bias=bias, scale=scale)


def params_of_words(words: Ints, operand_bits: int) -> Ints:
    """Signed 32-bit quantities from their words [..., word], the least significant first (W1)."""
    shift = np.asarray(operand_bits * np.arange(words.shape[-1]), np.int64)
    bits = (words & np.int64((1 << operand_bits) - 1)) << shift
    return np.asarray(bits.sum(axis=-1), np.int64).astype(np.uint32).astype(np.int32).astype(np.int64)
