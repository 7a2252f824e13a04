"""A program and its network on the same draws, compared layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import Operation

from cnncc.binary.isa_module import binary_to_module
from cnncc.binary.run import outputs_of
from cnncc.dialects.array import Tensor
from cnncc.dialects.cnn import ReshapeOp, value_key
from cnncc.dialects.isa import LayerOp
from cnncc.draws import PRIME, Draws
from cnncc.eval.cnn_residues import Evaluation, Polynomials
from cnncc.eval.isa import result_tensors, store_values, tensor_values
from cnncc.machine.values.memory import OutOfRange
from cnncc.machine.values.residues import Residues
from cnncc.main_function import input_names, output_names, returned
from cnncc.numerics import Ints
from cnncc.proof.claim import Claim
from cnncc.proof.interface_check import operand_numbers
from cnncc.proof.locate_result import TensorReader, locate_result
from cnncc.proof.program_run import ProgramRun
from cnncc.proof.weight_words import WeightWords


@dataclass(frozen=True)
class ProofPart:
    """A part of a program: a layer, an output, or the operands of a host segment.

    - value: its name in the network.
    - results: how many were compared. 0: they stand nowhere as a whole, and later parts read them.
    - degree: of the network's polynomials.
    - wrong: what is wrong, empty if nothing is. None: the comparison ended before.
    - fresh: whether what reads the value is compared for any words of it, which are drawn afresh.
    """

    name: str
    value: str
    results: int
    degree: int
    wrong: str | None
    fresh: bool = False


class _Wrong(Exception):
    """A result is wrong: what follows has no meaning."""


class Comparison:
    """A run of the program of a binary on some draws, and what its network computes on them."""

    def __init__(self, claim: Claim, network: Evaluation, draws: Draws, frames: int = 1) -> None:
        self.weights, self.network, self.draws, self.frames = WeightWords(claim), network, draws, frames
        self.binary, self.module = claim.binary, claim.module
        self.program, _ = binary_to_module(self.binary)
        self.layers = [op.record.data for op in self.program.ops if isinstance(op, LayerOp)]
        self.tensors = {**self._output_tensors(), **result_tensors(self.program)}
        self.next = 0  # the instruction after the outermost node that was done last
        self.compared = list[ProofPart]()

    def parts(self) -> list[ProofPart]:
        """All parts in the program's order. After a wrong one, no other is reached."""
        names = input_names(self.module)
        inputs = {name: known.residues for name, known in zip(names, self.network.inputs, strict=True) if known}
        arithmetic = Residues(self.binary.arch, self.draws)
        run = ProgramRun(
            self.binary,
            self.draws.count,
            arithmetic,
            lambda name: self.weights.drawn(name, self.draws),
            inputs.__getitem__,
            self._segment,
            self.frames,
        )
        rest: str | None = None
        try:
            run.run(lambda done, _: self._layer_done(done, run))
            self.next = len(self.binary.instructions)
            self._outputs(run)
            rest = ""
        except _Wrong:
            pass
        values, seen = self.network.values, {part.value for part in self.compared}
        others = [layer for layer in self.layers if layer.value in values and layer.value not in seen]
        return [
            *self.compared,
            *(ProofPart(each.label, each.value, 0, values[each.value].degree, rest) for each in others),
        ]

    def _output_tensors(self) -> dict[int, tuple[str, Tensor]]:
        """The results of layers that are outputs of the network and nothing else, as of `result_tensors`."""
        tensors = {tensor.name: tensor for tensor in outputs_of(self.binary) if tensor.memory == "dram"}
        named = dict[str, Tensor]()
        for name, value in zip(output_names(self.module), returned(self.module), strict=True):
            owner = value.owner
            while isinstance(owner, ReshapeOp):
                owner = owner.x.owner
            if isinstance(owner, Operation) and (key := value_key(owner)) is not None and name in tensors:
                named[key] = tensors[name]
        return {each.first + each.count: (each.value, named[each.value]) for each in self.layers if each.value in named}

    def _layer_done(self, done: int, run: ProgramRun) -> None:
        """Compare a layer's result when its last instruction is done."""
        self.next = done
        if done not in self.tensors:
            return
        value, tensor = self.tensors[done]
        if (known := self.network.values.get(value)) is not None:
            label = next(layer.label for layer in self.layers if layer.first + layer.count == done)
            self._compare(label, value, known, lambda at: tensor_values(tensor, at.running, at.images), run)
        if (words := self.network.fresh.get(value)) is not None:
            store_values(tensor, run.running, words)
            self.compared[-1] = replace(self.compared[-1], fresh=True)

    def _segment(self, number: int, run: ProgramRun) -> None:
        """Compare the operands of a host segment; store draws as its results."""
        op, operands, results = self.network.hosts[number]
        read, written = run.host_tensors(number)
        values = dict(zip(operand_numbers(op), operands, strict=True))
        for tensor, known in zip(read, values.values(), strict=True):
            if known is not None:
                self._compare(f"host segment {number}", tensor.name, known, _integers(tensor), run)
        for tensor, known in zip(written, results, strict=True):
            if known is not None:
                run.store(tensor, known.residues)

    def _outputs(self, run: ProgramRun) -> None:
        """Compare the network's outputs when all is done."""
        names, values = output_names(self.module), self.network.outputs
        for name, tensor, known in zip(names, outputs_of(self.binary), values, strict=True):
            if known is not None:
                self._compare("outputs", name, known, _integers(tensor), run)

    def _compare(self, name: str, value: str, known: Polynomials, read: TensorReader, run: ProgramRun) -> None:
        """Compare a tensor with what the network has. Raises _Wrong."""
        wrong = self._difference(known, read, run)
        self.compared.append(ProofPart(name, value, known.residues[0].size, known.degree, wrong))
        if wrong:
            raise _Wrong

    def _difference(self, known: Polynomials, read: TensorReader, run: ProgramRun) -> str:
        """The number of wrong results and the first of them, with what wrote it; empty if all are right."""
        try:
            got = read(run).reshape(known.residues.shape)
        except OutOfRange as error:
            return f"a result is never committed: {error}"
        # The machine has residues of least magnitude, the network those from 0 on.
        differs = ((got - known.residues) % PRIME != 0).any(axis=0)
        if not differs.any():
            return ""
        first = tuple(int(i) for i in np.argwhere(differs)[0])

        def word(at: ProgramRun) -> Ints:
            return read(at).reshape(at.draws, *differs.shape)[(slice(None), *first)]

        cause = locate_result(self.binary, self.next, word, self.frames)
        return f"{int(differs.sum()):,} of {differs.size:,} results differ, first at {list(first)}: {cause}"


def _integers(tensor: Tensor) -> TensorReader:
    """The words of a tensor in DRAM."""
    return lambda run: run.integers(tensor)
