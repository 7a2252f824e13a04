"""A program as it runs in a proof: from drawn words, in another arithmetic, several draws at once as images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cnncc.binary.container import Binary
from cnncc.binary.run import Machine, inputs_of
from cnncc.machine.values.arithmetic import Arithmetic
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import Memory
from cnncc.machine.values.strided import Strided
from cnncc.weights import Array

WordsOf = Callable[[str], Array]  # of weights or an input, by name: [draw, …]
OnSegment = Callable[[int, "ProgramRun"], None]


class ProgramRun(Machine):
    """A binary whose weights and inputs are drawn. on_segment: what the host does. frames: of each draw (CORE-8)."""

    def __init__(
        self,
        binary: Binary,
        draws: int,
        arithmetic: Arithmetic,
        weights: WordsOf,
        inputs: WordsOf,
        on_segment: OnSegment,
        frames: int = 1,
    ) -> None:
        super().__init__(binary, draws * frames, frames=frames)
        self.arithmetic, self.on_segment, self.draws = arithmetic, on_segment, draws
        # Each draw has its own weights: no words of DRAM are shared.
        self.dram = Memory("dram", words_of_run(binary, frames), draws)
        for (name, array), at in zip(binary.weights, binary.weight_places, strict=True):
            self.dram.write(Strided(at, (array.size,), (1,)), weights(name).reshape(-1, array.size))
        for tensor in inputs_of(binary):
            if tensor.memory == "dram":
                self.store(tensor, np.broadcast_to(words := inputs(tensor.name), (draws, *words.shape[1:])))

    def interpreter(self) -> Interpreter:
        """The interpreter of a program, before its first instruction; also `running` from then on."""
        self.running = Interpreter(
            self.binary.arch, self.dram, lambda number, _: self.on_segment(number, self), self.arithmetic
        )
        return self.running


def words_of_run(binary: Binary, frames: int) -> int:
    """Words of DRAM of a draw."""
    return binary.weight_words + frames * (binary.dram_words - binary.weight_words)


def degree_run(binary: Binary, arithmetic: Arithmetic, images: int = 1, frames: int = 1) -> ProgramRun:
    """The run of a binary on words that are all 1, the degree of what is drawn."""

    sizes = {name: array.size for name, array in binary.weights}
    sizes |= {tensor.name: frames * tensor.words for tensor in binary.tensors}

    def ones(name: str) -> Array:
        return np.ones((1, sizes[name]), np.int16)

    def on_segment(number: int, run: ProgramRun) -> None:
        for tensor in run.host_tensors(number)[1]:
            if tensor.memory == "dram":
                run.store(tensor, np.ones((images, sizes[tensor.name]), np.int16))

    return ProgramRun(binary, images, arithmetic, ones, ones, on_segment, frames)
