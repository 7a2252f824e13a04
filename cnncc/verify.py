"""Every level against the one above: runs the IR after each step and names the step and the value that changed.

Above `cnn` the outputs are compared as floats, within a stated relative tolerance; from `cnn` down every value that
two levels have in common is compared as integers; the last step is run from its encoded binary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from cnncc.errors import Refusal
from cnncc.pipeline import CALIBRATE, Compilation, Step, StepFailed
from cnncc.weights import Array

OUTPUT = "output "  # and its number: the key of an output
RELATIVE_TOLERANCE = 1e-4  # of the largest magnitude of an output, for float graphs that were rewritten


@dataclass(frozen=True)
class Check:
    """The outcome for one step: `detail` says what was compared, or what differs first."""

    step: str
    level: str
    agrees: bool
    detail: str


@dataclass(frozen=True)
class Accuracy:
    """An output of the quantised network against float: SQNR in dB, greatest error, share of equal argmax."""

    output: str
    sqnr_db: float
    max_error: float
    top1_agreement: float


Values = Mapping[str, Array]


def accuracy(name: str, exact: Array, got: Array) -> Accuracy:
    """How far `got` is from `exact` (both real, [n, …])."""
    reference = np.asarray(exact, np.float64)
    error = np.asarray(got, np.float64) - reference
    noise, signal = float((error**2).sum()), float((reference**2).sum())
    sqnr = float("inf") if noise == 0 else 10 * float(np.log10(signal / noise)) if signal else float("-inf")
    rows = (reference.reshape(len(reference), -1), np.asarray(got).reshape(len(reference), -1))
    agree = float((rows[0].argmax(axis=1) == rows[1].argmax(axis=1)).mean())
    return Accuracy(name, sqnr, float(np.abs(error).max()), agree)


def compare_floats(exact: Values, got: Values) -> str:
    """The empty string, or which output differs most and by how much."""
    for name, reference in exact.items():
        if name not in got:
            return f"output '{name}' is missing"
        scale = float(np.abs(reference).max()) or 1.0
        worst = float(np.abs(np.asarray(got[name], np.float64) - reference).max()) / scale
        if not worst <= RELATIVE_TOLERANCE and not np.array_equal(got[name], reference, equal_nan=True):
            return f"output '{name}' differs by {worst:.2e} of its largest value, more than {RELATIVE_TOLERANCE:.0e}"
    return ""


def compare_integers(before: Values, after: Values) -> str:
    """The empty string, or the first value, in the order of the network, that differs, and where."""
    for name, reference in before.items():
        if name not in after:
            if name.startswith(OUTPUT):
                return f"{name} is missing"
            continue
        got = np.asarray(after[name])
        if got.size != reference.size:
            return f"value '{name}' has shape {list(got.shape)} instead of {list(reference.shape)}"
        got = got.reshape(reference.shape)
        same = (got == reference) | ((got != got) & (reference != reference))  # NaN from a host segment is one, too
        if (different := np.argwhere(~same)).size:
            at = tuple(int(i) for i in different[0])
            return (
                f"value '{name}' differs in {len(different):,} of {reference.size:,} places, "
                f"first at {list(at)}: {got[at]} instead of {reference[at]}"
            )
    return ""


class Differs(Exception):
    """The last check failed: there is nothing to compare what follows with."""


class Verifier:
    """Observes a compilation step by step and collects the checks; raises Differs at the first that fails."""

    def __init__(self, compilation: Compilation, inputs: Values) -> None:
        self.compilation, self.inputs = compilation, inputs
        self.checks: list[Check] = []
        self.accuracy: list[Accuracy] = []
        self._floats = self._run_floats(compilation.module)
        self._integers: Values = {}
        self._quantised: Sequence[Array] = ()

    def __call__(self, step: Step, module: ModuleOp) -> None:
        """Run `module` and compare it with the level before `step`."""
        if step.name == CALIBRATE:
            return
        try:
            difference, compared = self._check(step, module)
        except Refusal as refusal:  # a Trap is one, too
            difference, compared = f"cannot be run: {refusal}", ""
        except Exception as error:
            difference, compared = f"cannot be run: {type(error).__name__}: {error}", ""
        self.checks.append(Check(step.name, step.level, not difference, difference or compared))
        if difference:
            raise Differs

    def failed(self, failure: StepFailed) -> None:
        """Note a step that did not come to its end."""
        step, error = failure.step, failure.error
        self.checks.append(Check(step.name, step.level, False, f"{type(error).__name__}: {error}"))

    def _check(self, step: Step, module: ModuleOp) -> tuple[str, str]:
        """What differs, or the empty string; what was compared."""
        if step.level == "onnx":
            difference = compare_floats(self._floats, self._run_floats(module))
            return difference, f"{len(self._floats)} output(s) within {RELATIVE_TOLERANCE:.0e}"
        return self._check_integers(step, module)

    def _run_floats(self, module: ModuleOp) -> Values:
        """The float outputs, batch by batch of the model's size."""
        from cnncc.dialects.cnn import shape
        from cnncc.eval.cnn import joined
        from cnncc.eval.onnx import Evaluator
        from cnncc.frontend.export_onnx import input_names, main_arguments, output_names, returned

        sizes = [shape(value.type)[0] for value in main_arguments(module)]
        names = input_names(module)
        session = Evaluator(module, self.compilation.ctx.weights, returned(module))
        runs = range(len(self.inputs[names[0]]) // sizes[0])
        feeds = [
            {name: self.inputs[name][i * size : (i + 1) * size] for name, size in zip(names, sizes, strict=True)}
            for i in runs
        ]
        results = [session.run(feed) for feed in feeds]
        return {name: joined([result[i] for result in results]) for i, name in enumerate(output_names(module))}

    def _check_integers(self, step: Step, module: ModuleOp) -> tuple[str, str]:
        if not self._integers:
            return "", self._first_integers(module)
        values = self._evaluated(step.level, module)
        common = [name for name in self._integers if name in values]
        difference = compare_integers(self._integers, values)
        self._integers = {**self._integers, **values}
        return difference, f"{len(common)} value(s), {sum(values[n].size for n in common):,} integers"

    def _first_integers(self, module: ModuleOp) -> str:
        """The quantised network: measured against float, and the integers that all below must have."""
        from cnncc.eval.cnn import dequantise_outputs, evaluate, quantise_inputs

        self._quantised = quantise_inputs(module, self.inputs)
        outputs, trace = evaluate(module, self.compilation.ctx.weights, self._quantised)
        real = dequantise_outputs(module, outputs)
        self._integers = _keyed(outputs, trace)
        self.accuracy = [accuracy(name, self._floats[name], real[name]) for name in self._floats]
        return "quantised: " + ", ".join(f"{a.output} {a.sqnr_db:.1f} dB" for a in self.accuracy)

    def _evaluated(self, level: str, module: ModuleOp) -> Values:
        store, arch = self.compilation.ctx.weights, self.compilation.settings.arch
        match level:
            case "cnn":
                from cnncc.eval import cnn

                outputs, trace = cnn.evaluate(module, store, self._quantised)
            case "nest":
                from cnncc.eval import nest

                outputs, trace = nest.evaluate(module, store, self._quantised)
            case "array":
                from cnncc.eval import array

                outputs, trace = array.evaluate(module, store, arch, self._quantised)
            case _:
                from cnncc.eval import isa

                outputs, trace = isa.evaluate(module, store, arch, self._quantised)
        return _keyed(outputs, trace)


def _keyed(outputs: Sequence[Array], trace: Values) -> Values:
    return {**trace, **{f"{OUTPUT}{i}": value for i, value in enumerate(outputs)}}
