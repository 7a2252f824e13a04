"""Runs IR of the `cnn` dialect on residues modulo a prime, and counts the degrees of their polynomials (docs/proof.md).

It is the network's side of a proof. The machine's side computes the same images from instructions
(`machine/values/residues.py`). Both take the images of data and constants from `draws.py`, and share nothing else.
The module is one that `cnn-legalize` has left: layers, reshapes, slices, concatenations and host segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from cnncc.draws import MAXIMUM_START, PRIME, Draws, Residues, clamps
from cnncc.errors import Refusal
from cnncc.eval.cnn import array_of, concatenated, convolution, name_of, pool_values, shuffle_channels
from cnncc.main_function import input_names, main_function
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
    """

    values: Mapping[str, Polynomials]
    inputs: Sequence[Polynomials | None]
    outputs: Sequence[Polynomials | None]
    hosts: Sequence[tuple[HostOp, Sequence[Polynomials | None], Sequence[Polynomials | None]]]

    @property
    def degree(self) -> int:
        """The greatest degree."""
        return max((known.degree for known in self.values.values()), default=1)


def evaluate(module: ModuleOp, store: WeightStore, operand_bits: int, draws: Draws, frames: int = 1) -> Evaluation:
    """Run a network on drawn inputs and weights. Raises Refusal for an op that has no image.

    frames: images with the same weights. Their residues are [draw, frame * batch, …].
    """
    return _together([_evaluate_frame(_Run(module, store, operand_bits, draws, at)) for at in range(frames)])


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


def _evaluate_frame(run: _Run) -> Evaluation:
    module, func = run.module, main_function(run.module)
    names, quants = input_names(module), quants_of(func.arg_attrs, len(func.args))
    for name, quant, value in zip(names, quants, func.args, strict=True):
        run.known[value] = run.drawn(f"input {name}", value) if quant is not None else None
    inputs = [run.known[value] for value in func.args]
    for op in func.body.block.ops:
        if isinstance(op, ReturnOp):
            return Evaluation(run.values, inputs, [run.known[value] for value in op.operands], run.hosts)
        run.op(op)
    raise Refusal("@main does not end with func.return")


def reduced(values: Values) -> Values:
    """Residues 0 … PRIME - 1."""
    # Up to ten times as quick as `values % PRIME`.
    return values - PRIME * np.floor(values / PRIME)


@dataclass
class _Run:
    """The values known so far."""

    module: ModuleOp
    store: WeightStore
    operand_bits: int
    draws: Draws
    frame: int = 0
    known: dict[SSAValue, Polynomials | None] = field(default_factory=dict[SSAValue, Polynomials | None])
    values: dict[str, Polynomials] = field(default_factory=dict[str, Polynomials])
    hosts: list[Any] = field(default_factory=list[Any])

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
        match op:
            case HostOp():
                self.host(op)
                return
            case ConvOp():
                name = op.weights.root_reference.data
                dims, x = array_of(self.symbols, name, op).shape, self.operand(op.x, op)
                weights = self.draws.words(f"weight {name}", *dims)
                sums = self.by_draw(lambda d: convolution(x.residues[d].astype(np.float64), weights[d], op.window.data))
                result = self.finish(sums, x.degree + 1, op.steps.data if op.steps else Steps(), op, op.residual)
            case PoolOp():
                x, is_max = self.operand(op.x, op), op.kind.data == "max"
                sums = self.by_draw(lambda d: pool_values(x.residues[d].astype(np.float64), op.window.data, "sum"))
                if is_max:
                    # docs/proof.md: the image of a maximum is MAXIMUM_START + Σ factor * x_i.
                    sums = reduced(sums) * _along_draws(self.draws.maximum(), sums.ndim) + MAXIMUM_START
                steps = op.steps.data if op.steps else Steps()
                result = self.finish(sums, x.degree + is_max, steps, op, op.residual)
            case ElementwiseOp():
                x = self.operand(op.x, op)
                result = self.finish(x.residues.astype(np.float64), x.degree, op.steps.data, op, op.residual)
            case ConcatOp():
                parts = [self.operand(value, op) for value in op.inputs]
                by_draw = zip(*(part.residues for part in parts), strict=True)
                together = np.stack([concatenated(op, each) for each in by_draw])
                result = Polynomials(together, max(part.degree for part in parts))
            case SliceOp():
                x, first = self.operand(op.x, op), op.first.value.data
                result = Polynomials(x.residues[:, :, first : first + shape(op.result.type)[1]], x.degree)
            case ReshapeOp():
                x = self.operand(op.x, op)
                result = Polynomials(x.residues.reshape(self.draws.count, *shape(op.result.type)), x.degree)
            case _:
                raise Refusal(f"{name_of(op)} has no image: cnn-legalize leaves none of these")
        self.known[op.results[0]] = result
        if (key := value_key(op)) is not None:
            self.values[key] = result

    def operand(self, value: SSAValue, op: Operation) -> Polynomials:
        """The integers that a layer reads."""
        if (known := self.known[value]) is None:
            raise Refusal(f"{name_of(op)} reads what only the host knows")
        return known

    def by_draw(self, rule: Callable[[int], Values]) -> Values:
        """The results of a rule for each draw, as residues [draw, …]."""
        return np.stack([reduced(rule(draw)) for draw in range(self.draws.count)])

    def finish(self, v: Values, degree: int, steps: Steps, op: Operation, residual: SSAValue | None) -> Polynomials:
        """The results [draw, n, k, …] of sums after their epilogue."""
        if steps.bias:
            v, degree = v + _by_channel(self.params(steps.bias, op), v.ndim), max(degree, 1)
        if steps.scale:
            scale = self.params(steps.scale, op)
            by_place = scale[:, None, None] if steps.per_position else _by_channel(scale, v.ndim)
            v, degree = reduced(v) * by_place, degree + 1
            if steps.slope != 1:
                v, degree = reduced(v) * _along_draws(self.draws.real("slope", steps.slope), v.ndim), degree + 1
            v = v + steps.zero
        v, degree = self.clamped(v, "clamp", steps.clamp), degree + clamps("clamp", steps.clamp)
        if steps.factors:
            assert residual is not None
            other = self.operand(residual, op)
            reals = zip(("factor_a", "factor_b", "fixed"), array_of(self.symbols, steps.factors, op), strict=True)
            a, b, fixed = (_along_draws(self.draws.real(name, real), v.ndim) for name, real in reals)
            if steps.multiply:
                v, degree = reduced(v * reduced(other.residues - b)) * a, degree + max(other.degree, 1)
            else:
                v, degree = v * a + other.residues * b, max(degree, other.degree)
            v, degree = self.clamped(v + fixed, "add_clamp", steps.add_clamp), degree + 2
        # Residues 0 … PRIME - 1 fit: the prime is below 2^15.
        results = v.astype(np.int16)
        if steps.shuffle != 1:
            results = np.stack([shuffle_channels(each, steps.shuffle) for each in results])
        return Polynomials(results, degree)

    def clamped(self, v: Values, stage: str, bounds: tuple[int, ...]) -> Values:
        """The image of a clamp."""
        factor, addend = (_along_draws(each, v.ndim) for each in self.draws.clamp(stage, bounds))
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
