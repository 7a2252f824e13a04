"""Proves that a binary computes its network for all inputs and all weights (docs/proof.md).

1. The binary's words of weights and parameters are the network's, and so are its scales and host segments.
2. Its program computes the network's polynomials: both are evaluated on draws, until the error is small enough.
3. No two accesses of engines to a word of the GLB race.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil, log2

import numpy as np

from cnncc.binary.container import Binary
from cnncc.binary.isa_module import layers
from cnncc.dialects.array import Tensor
from cnncc.draws import CHOICES, PRIME, Draws
from cnncc.errors import Refusal
from cnncc.eval.cnn_residues import evaluate, words_of_values
from cnncc.eval.isa import store_values
from cnncc.isa.codec import has_cores
from cnncc.machine.cores.core_races import core_races
from cnncc.machine.races import Race, races
from cnncc.machine.traps import Trap
from cnncc.machine.values.degrees import Degrees
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import OutOfRange
from cnncc.proof.claim import Claim
from cnncc.proof.comparison import Comparison, ProofPart
from cnncc.proof.frames import frames_to_prove
from cnncc.proof.fresh_values import fresh_values
from cnncc.proof.interface_check import interface_differences
from cnncc.proof.program_run import degree_run, words_of_run
from cnncc.proof.weight_words import WeightWords
from cnncc.util.progress import Progress, silent

# Of DRAM, or of the network's values, of all draws that run at once. Large networks take less time draw by draw.
MOST_WORDS = 1 << 27
MOST_DRAWS = 1_000


@dataclass
class Proof:
    """What is proven of a binary.

    - differences: of its words, scales and host segments.
    - parts: in the order of the program.
    - races: of accesses to the GLB. `steps` instructions were checked, each as often as it runs.
    - degree: the greatest of all polynomials, of the network and of the program.
    - draws: how many there were.
    - frames: of a run of a program over frames, else 1.
    """

    differences: Sequence[str]
    weight_words: int
    parts: list[ProofPart] = field(default_factory=list[ProofPart])
    races: Sequence[Race] = ()
    steps: int = 0
    degree: int = 0
    draws: int = 0
    frames: int = 1

    @property
    def error_bits(self) -> float:
        """The error probability is at most 2^-error_bits."""
        return self.draws * log2(CHOICES / max(self.degree, 1))

    @property
    def failures(self) -> list[str]:
        """All that is wrong, the first thing first."""
        wrong = [f"{part.name}: {part.wrong}" for part in self.parts if part.wrong]
        return [*self.differences, *wrong, *map(str, self.races)]


def draws_for(degree: int, error_bits: float) -> int:
    """The fewest draws that miss a wrong result of this degree with probability at most 2^-error_bits.

    Raises: Refusal, for a degree that the prime is too small for.
    """
    if degree >= CHOICES:
        raise Refusal(f"a result has degree {degree}, proofs modulo {PRIME} reach {CHOICES - 1}: prove parts of it")
    draws = max(1, ceil(error_bits / log2(CHOICES / degree)))
    if draws > MOST_DRAWS:
        raise Refusal(f"an error of 2^-{error_bits:g} takes {draws} draws, the limit is {MOST_DRAWS}: a larger --error")
    return draws


def prove(claim: Claim, error_bits: float, progress: Progress = silent) -> Proof:
    """Try to prove a claim, with an error of at most 2^-error_bits.

    Raises: Refusal, for networks and errors that residues cannot prove.
    """
    binary, weights = claim.binary, WeightWords(claim)
    if unlike := [*interface_differences(claim)]:
        return Proof(unlike, 0)  # nothing to compare: it has other inputs, outputs or host segments
    proof = Proof([*weights.differences()], binary.weight_words)
    progress("degrees of the program")
    degrees, frames, fresh = Degrees(binary.arch), frames_to_prove(binary.instructions), fresh_values(claim)
    try:
        proof.frames = frames
        degree_run(binary, degrees, frames=frames).run(partial(_start_again, fresh))
        _compare(proof, claim, degrees.greatest, error_bits, progress, frames, [value for value, _ in fresh.values()])
        progress("races")
        if has_cores(binary.instructions):
            proof.races, proof.steps = core_races(binary.instructions, binary.arch, frames)
        else:
            proof.races, proof.steps = races(binary.instructions, binary.arch)
    except Trap as trap:
        proof.parts = [ProofPart(_layer_at(binary, trap.index), "", 0, 0, f"the program cannot be run: {trap}")]
    return proof


def _start_again(fresh: Mapping[int, tuple[str, Tensor]], done: int, interpreter: Interpreter) -> None:
    """Make the words of a value that is drawn afresh degree 1."""
    if done in fresh:
        _, tensor = fresh[done]
        with suppress(OutOfRange):  # the comparison names it
            store_values(tensor, interpreter, np.ones((1, tensor.words), np.int16))


def _layer_at(binary: Binary, index: int) -> str:
    """The layer of an instruction."""
    named = [layer.label for layer, _ in layers(binary) if layer.first <= index < layer.first + layer.count]
    return named[0] if named else "program"


def _compare(
    proof: Proof,
    claim: Claim,
    degree: int,
    error_bits: float,
    progress: Progress,
    frames: int,
    fresh: Sequence[str],
) -> None:
    """Compare as many draws as the error takes, or up to a wrong result."""
    binary, done = claim.binary, 0
    words = max(1, words_of_run(binary, frames), frames * words_of_values(claim.module))
    at_once = max(1, MOST_WORDS // words)
    proof.degree, proof.draws = degree, draws_for(degree, error_bits)
    while done < proof.draws:
        left = proof.draws - done
        count = ceil(left / ceil(left / at_once))  # all runs have nearly the same number
        progress(f"draws {done + 1} to {done + count} of {proof.draws}", done, proof.draws)
        draws = Draws(done, count)
        network = evaluate(claim.module, claim.store, binary.arch.operand_bits, draws, frames, fresh)
        # The network may have a higher degree than the program. Then more draws are needed than there were to be.
        proof.degree = max(proof.degree, network.degree)
        proof.draws = draws_for(proof.degree, error_bits)
        proof.parts = Comparison(claim, network, draws, frames).parts()
        if any(part.wrong != "" for part in proof.parts):
            return
        done += count
