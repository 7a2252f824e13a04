"""Runs IR of the `cnn` dialect on residues modulo a prime, with the degrees of their polynomials (docs/proof.md).

It is the network's side of a proof. The machine's side computes the same images from instructions
(`machine/values/residues.py`). Both take the images of data and constants from `draws.py`, and share nothing else.
The module is one that `cnn-legalize` has left: layers, reshapes, slices, concatenations and host segments.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from cnncc.dialects.cnn import (
    ConcatOp,
    ConvOp,
    ElementwiseOp,
    HostOp,
    PoolOp,
    ReshapeOp,
    SliceOp,
    Steps,
    quants_of,
    shape,
    value_key,
)
from cnncc.dialects.weights import arrays_of
from cnncc.draws import MAXIMUM_START, PRIME, Draws, Residues
from cnncc.errors import Refusal
from cnncc.eval.cnn import array_of, concatenated, convolution, name_of, pool_values, shuffle_channels, table_of
from cnncc.eval.cnn_degrees import degree_of
from cnncc.main_function import input_names, main_function
from cnncc.numerics import Ints
from cnncc.weights import WeightStore

Values = npt.NDArray[np.float64]
PARAM_BITS = 32  # of a bias and a scale


@dataclass(frozen=True)
class Polynomials:
    """The results of a layer, or other integers: their residues [draw, *shape], and the greatest of their degrees."""

    residues: Residues
    degree: int


@dataclass(frozen=True)
class Evaluation:
    """What a network computes.

    - values: the integers of layers and host segments by key
    - inputs, outputs: in the network's order; None for what only the host knows
    - hosts: the operands and the results of each host segment, in their order
    - fresh: the words from which it goes on behind some values, by key
    """

    values: Mapping[str, Polynomials]
    inputs: Sequence[Polynomials | None]
    outputs: Sequence[Polynomials | None]
    hosts: Sequence[tuple[HostOp, Sequence[Polynomials | None], Sequence[Polynomials | None]]]
    fresh: Mapping[str, Residues] = field(default_factory=dict[str, Residues])

    @property
    def degree(self) -> int:
        """The greatest degree."""
        return max((known.degree for known in self.values.values()), default=1)


def evaluate(
    module: ModuleOp,
    store: WeightStore,
    operand_bits: int,
    draws: Draws,
    frames: int = 1,
    fresh: Container[str] = (),
) -> Evaluation:
    """Run a network on drawn inputs and weights. Raises Refusal for an op that has no image.

    - frames: images with the same weights. Their residues are [draw, frame * batch, …].
    - fresh: layers' values, by key, behind which the network goes on from fresh words; of one frame alone
    """
    runs = (_ResidueRun(module, store, operand_bits, draws, at, fresh) for at in range(frames))
    return _together([_evaluate_frame(run) for run in runs])


def words_of_values(module: ModuleOp) -> int:
    """Integers of all layers of a network."""
    values = (op.results[0] for op in main_function(module).body.block.ops if value_key(op) is not None)
    return sum(prod(shape(value.type)) for value in values)


def _together(frames: Sequence[Evaluation]) -> Evaluation:
    """The evaluations of frames as one of all of them."""
    if len(frames) == 1:
        return frames[0]

    def side(pick: Callable[[Evaluation], Sequence[Polynomials | None]]) -> list[Polynomials | None]:
        return [_joined(each) for each in zip(*map(pick, frames), strict=True)]

    values = {key: _joined([frame.values[key] for frame in frames]) for key in frames[0].values}
    hosts = [
        (op, side(lambda frame, at=at: frame.hosts[at][1]), side(lambda frame, at=at: frame.hosts[at][2]))
        for at, (op, _, _) in enumerate(frames[0].hosts)
    ]
    inputs, outputs = side(lambda frame: frame.inputs), side(lambda frame: frame.outputs)
    return Evaluation({key: known for key, known in values.items() if known}, inputs, outputs, hosts)


def _joined(frames: Sequence[Polynomials | None]) -> Polynomials | None:
    known = [each for each in frames if each is not None]
    if not known:
        return None
    return Polynomials(np.concatenate([each.residues for each in known], axis=1), max(each.degree for each in known))


def _evaluate_frame(run: _ResidueRun) -> Evaluation:
    module, func = run.module, main_function(run.module)
    names, quants = input_names(module), quants_of(func.arg_attrs, len(func.args))
    for name, quant, value in zip(names, quants, func.args, strict=True):
        run.known[value] = run.drawn(f"input {name}", value) if quant is not None else None
    inputs = [run.known[value] for value in func.args]
    for op in func.body.block.ops:
        if isinstance(op, ReturnOp):
            outputs = [run.known[value] for value in op.operands]
            return Evaluation(run.values, inputs, outputs, run.hosts, run.fresh_words)
        run.op(op)
    raise Refusal("@main does not end with func.return")


def reduced(values: Values) -> Values:
    """Residues 0 … PRIME - 1."""
    # Up to ten times as quick as `values % PRIME`.
    return values - PRIME * np.floor(values / PRIME)


@dataclass
class _ResidueRun:
    """The values known so far."""

    module: ModuleOp
    store: WeightStore
    operand_bits: int
    draws: Draws
    frame: int = 0
    fresh: Container[str] = ()
    known: dict[SSAValue, Polynomials | None] = field(default_factory=dict[SSAValue, Polynomials | None])
    values: dict[str, Polynomials] = field(default_factory=dict[str, Polynomials])
    hosts: list[Any] = field(default_factory=list[Any])
    fresh_words: dict[str, Residues] = field(default_factory=dict[str, Residues])

    def __post_init__(self) -> None:
        self.symbols = arrays_of(self.module, self.store)

    # -- what is drawn ---------------------------------------------------------------------------------------------

    def drawn(self, name: str, value: SSAValue) -> Polynomials:
        """Integers from outside: each frame has its own."""
        name = f"{name} of frame {self.frame}" if self.frame else name
        return Polynomials(self.draws.words(name, *shape(value.type)), 1)

    def params(self, name: str, op: Operation) -> Values:
        """Biases or scales [draw, …]: Σ word * 2^(operand_bits * i) of their drawn words."""
        dims = array_of(self.symbols, name, op).shape
        words = self.draws.words(f"weight {name}", *dims, PARAM_BITS // self.operand_bits)
        places = [2.0 ** (self.operand_bits * i) % PRIME for i in range(words.shape[-1])]
        return reduced(words.astype(np.float64) @ np.array(places))

    # -- ops -------------------------------------------------------------------------------------------------------

    def op(self, op: Operation) -> None:
        """Compute the results of an op."""
        if isinstance(op, HostOp):
            self.host(op)
            return
        result = Polynomials(self.residues(op), degree_of(op, lambda value: self.operand(value, op).degree))
        self.known[op.results[0]] = result
        if (key := value_key(op)) is None:
            return
        self.values[key] = result
        if key in self.fresh:
            self.known[op.results[0]] = drawn = self.drawn(f"value {key}", op.results[0])
            self.fresh_words[key] = drawn.residues

    def residues(self, op: Operation) -> Residues:
        """The residues [draw, *shape] of an op's results."""
        match op:
            case ConvOp():
                name = op.weights.root_reference.data
                dims, x = array_of(self.symbols, name, op).shape, self.operand(op.x, op).residues
                weights = self.draws.words(f"weight {name}", *dims)
                sums = self.by_draw(lambda d: convolution(x[d].astype(np.float64), weights[d], op.window.data))
                return self.finish(sums, op.steps.data if op.steps else Steps(), op, op.residual)
            case PoolOp():
                x = self.operand(op.x, op).residues
                sums = self.by_draw(lambda d: pool_values(x[d].astype(np.float64), op.window.data, "sum"))
                if op.kind.data == "max":
                    # docs/proof.md: the image of a maximum is MAXIMUM_START + Σ factor * x_i.
                    sums = reduced(sums) * _along_draws(self.draws.maximum(), sums.ndim) + MAXIMUM_START
                return self.finish(sums, op.steps.data if op.steps else Steps(), op, op.residual)
            case ElementwiseOp():
                return self.finish(self.operand(op.x, op).residues.astype(np.float64), op.steps.data, op, op.residual)
            case ConcatOp():
                parts = zip(*(self.operand(value, op).residues for value in op.inputs), strict=True)
                return np.stack([concatenated(op, each) for each in parts])
            case SliceOp():
                first = op.first.value.data
                return self.operand(op.x, op).residues[:, :, first : first + shape(op.result.type)[1]]
            case ReshapeOp():
                return self.operand(op.x, op).residues.reshape(self.draws.count, *shape(op.result.type))
            case _:
                raise Refusal(f"{name_of(op)} has no image: cnn-legalize leaves none of these")

    def operand(self, value: SSAValue, op: Operation) -> Polynomials:
        """The integers that a layer reads."""
        if (known := self.known[value]) is None:
            raise Refusal(f"{name_of(op)} reads what only the host knows")
        return known

    def by_draw(self, rule: Callable[[int], Values]) -> Values:
        """The results of a rule for each draw, as residues [draw, …]."""
        return np.stack([reduced(rule(draw)) for draw in range(self.draws.count)])

    def finish(self, v: Values, steps: Steps, op: Operation, residual: SSAValue | None) -> Residues:
        """The results [draw, n, k, …] of sums after their epilogue."""
        if steps.bias:
            v = v + _by_channel(self.params(steps.bias, op), v.ndim)
        if steps.scale:
            scale = self.params(steps.scale, op)
            v = reduced(v) * (scale[:, None, None] if steps.per_position else _by_channel(scale, v.ndim))
            if steps.slope != 1:
                v = reduced(v) * _along_draws(self.draws.real("slope", steps.slope), v.ndim)
            v = v + steps.zero
        v = self.clamped(v, "clamp", steps.clamp)
        if (table := table_of(self.symbols, steps, op)) is not None:
            v = self.scaled(v, self.draws.table(table.entries, table.shift))
        if steps.factors:
            assert residual is not None
            other = self.operand(residual, op).residues
            reals = zip(("factor_a", "factor_b", "fixed"), array_of(self.symbols, steps.factors, op), strict=True)
            a, b, fixed = (_along_draws(self.draws.real(name, real), v.ndim) for name, real in reals)
            v = reduced(v * reduced(other - b)) * a if steps.multiply else v * a + other * b
            v = self.clamped(v + fixed, "add_clamp", steps.add_clamp)
        # Residues 0 … PRIME - 1 fit: the prime is below 2^15.
        results = v.astype(np.int16)
        return np.stack([shuffle_channels(each, steps.shuffle) for each in results]) if steps.shuffle != 1 else results

    def clamped(self, v: Values, stage: str, bounds: tuple[int, ...]) -> Values:
        """The image of a clamp."""
        return self.scaled(v, self.draws.clamp(stage, bounds))

    def scaled(self, v: Values, drawn: tuple[Ints, Ints]) -> Values:
        """v times a factor [draw], plus an addend [draw]."""
        factor, addend = (_along_draws(each, v.ndim) for each in drawn)
        return reduced(reduced(v) * factor + addend)

    def host(self, op: HostOp) -> None:
        """A host segment: its integer results are drawn."""
        operands = [self.known[value] for value in op.inputs]
        results: list[Polynomials | None] = []
        for index, (value, quant) in enumerate(zip(op.outputs, op.output_quants, strict=True)):
            known = self.drawn(f"host {len(self.hosts)}.{index}", value) if quant.data.scale else None
            self.known[value] = known
            results.append(known)
        self.hosts.append((op, operands, results))


def _by_channel(params: Values, axes: int) -> Values:
    """Parameters [draw, k] of results [draw, n, k, …]."""
    return params.reshape(len(params), 1, -1, *[1] * (axes - 3))


def _along_draws(drawn: npt.NDArray[Any], axes: int) -> Values:
    """What is drawn along the first of `axes` axes."""
    return drawn.reshape(-1, *[1] * (axes - 1)).astype(np.float64)
