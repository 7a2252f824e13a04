"""Every level against the one above: runs the IR after each step and names the step and the value that changed.

Above `cnn`, outputs are compared as floats, within a stated relative tolerance. The integers of a quantised model must
give onnxruntime's outputs, bit for bit. From `cnn` down, every value that two levels have in common is compared as
integers. The last step runs from its encoded binary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from cnncc.dialects.onnx import NodeOp
from cnncc.driver.accuracy import Accuracy, LayerAccuracy, References, accuracy, greatest_drop, run_floats
from cnncc.driver.layer_noise import LIMIT, LayerNoise, layer_noise
from cnncc.driver.pipeline import CALIBRATE, FOLD_QDQ, TO_PROGRAMS, Compilation, Step, StepFailed
from cnncc.errors import Refusal, first_of, one_line, plural
from cnncc.main_function import output_names, returned
from cnncc.passes._onnx.placement import place_nodes
from cnncc.util.terminal import NAME, TEXT, Column, table
from cnncc.weights import Array

OUTPUT = "output "  # followed by its number: the key of an output
FUSED = "cnn-legalize"  # the step after which a layer has one value
WORST = 3  # layers in the short print
SCHEMA = 1  # of the JSON; raise it with every change of the format
RELATIVE_TOLERANCE = 1e-4  # of the largest magnitude of an output, for float graphs that were rewritten
# The tolerance for operators between DequantizeLinear and QuantizeLinear, moved to integers: each may differ by a step.
QDQ_TOLERANCE = 0.05
# onnxruntime's Sigmoid errs by 1e-7, which is much of an output that is 1e-6 everywhere.
SIGMOID_ERROR = 1e-6
NO_STEPS: Mapping[str, float] = {}
# Operators of the host whose results differ by no more than what they read.
NO_WIDER = (
    "Concat", "DepthToSpace", "DequantizeLinear", "Expand", "Flatten", "Gather", "Pad", "ReduceMax", "ReduceMean",
    "ReduceMin", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """The outcome for one step. detail: the compared values, or the first difference."""

    step: str
    level: str
    agrees: bool
    detail: str


Values = Mapping[str, Array]
Mask = npt.NDArray[np.bool_]


def compare_floats(
    exact: Values, got: Values, tolerance: float = RELATIVE_TOLERANCE, steps: Mapping[str, float] = NO_STEPS
) -> str:
    """The first output that differs, and by how much; '' if none. steps: additional absolute tolerance by output."""
    for name, reference in exact.items():
        if name not in got:
            return f"output '{name}' is missing"
        scale = float(np.abs(reference).max(initial=0.0)) or 1.0
        with np.errstate(invalid="ignore"):  # of infinite values, which are equal or not
            worst = float(np.abs(np.asarray(got[name], np.float64) - reference).max(initial=0.0)) / scale
        # `not <=`, as a NaN is not `>` either; at the same places in both it is no difference.
        if not worst <= tolerance + steps.get(name, 0.0) / scale and not np.array_equal(
            got[name], reference, equal_nan=True
        ):
            return f"output '{name}' differs by {worst:.2e} of its largest value, more than {tolerance:.0e}"
    return ""


def compare_integers(before: Values, after: Values, where: Callable[[str, Mask], str] = lambda _, __: "") -> str:
    """The first value, in the order of the network, that differs, and its place; '' if none differs.

    where: a text about the differing places of a value, from its name and a mask.
    """
    for name, reference in before.items():
        if name not in after:
            if name.startswith(OUTPUT):
                return f"{name} is missing"
            continue
        got = np.asarray(after[name])
        if got.size != reference.size:
            return f"value '{name}' has shape {list(got.shape)} instead of {list(reference.shape)}"
        got = got.reshape(reference.shape)
        same = (got == reference) | ((got != got) & (reference != reference))  # a host segment may give NaN
        if (different := np.argwhere(~same)).size:
            at = tuple(int(i) for i in different[0])
            return (
                f"value '{name}' differs in {len(different):,} of {reference.size:,} places, "
                f"first at {list(at)}: {got[at]} instead of {reference[at]}{where(name, ~same)}"
            )
    return ""


def _rounding(module: ModuleOp) -> dict[str, float]:
    """The absolute tolerance of outputs that a Sigmoid computes, by name."""
    owners = zip(output_names(module), (value.owner for value in returned(module)), strict=True)
    return {name: SIGMOID_ERROR for name, op in owners if isinstance(op, NodeOp) and op.is_op("Sigmoid")}


class Differs(Exception):
    """The last check failed, so that later levels have no reference."""


class Verifier:
    """Observes a compilation step by step and collects the checks; raises Differs at the first that fails."""

    def __init__(self, compilation: Compilation, inputs: Values) -> None:
        self.compilation, self.inputs = compilation, inputs
        self.checks: list[Check] = []
        self.accuracy: list[Accuracy] = []
        self.layers: list[LayerAccuracy] = []
        self.noises: list[LayerNoise] = []
        self._floats = self._run_floats(compilation.module)
        self._integers: Values = {}
        self._quantised: Sequence[Array] = ()
        self._is_exact = False  # whether all integers are the model's own
        self._calibrated = ModuleOp([])
        self._programs = ModuleOp([])  # the PE-set programs that `array` and `isa` run

    def __call__(self, step: Step, module: ModuleOp) -> None:
        """Run `module` and compare it with the level before `step`."""
        if step.name == CALIBRATE:
            self._is_exact = place_nodes(module, self.compilation.ctx.weights).is_exact
            if self._is_exact:
                self._floats = self._run_floats(module)  # folds of the host's floats round otherwise
            self._calibrated = module.clone()
            return
        try:
            difference, compared = self._check(step, module)
        except Refusal as refusal:  # a Trap is one, too
            difference, compared = f"cannot be run: {refusal}", ""
        except MemoryError:
            raise  # no step is wrong
        except Exception as error:
            difference, compared = f"cannot be run: {type(error).__name__}: {error}", ""
        self.checks.append(Check(step.name, step.level, not difference, difference or compared))
        if difference:
            raise Differs

    def failed(self, failure: StepFailed) -> None:
        """Note a step that raised."""
        step, error = failure.step, failure.error
        self.checks.append(Check(step.name, step.level, False, f"{type(error).__name__}: {error}"))

    def _check(self, step: Step, module: ModuleOp) -> tuple[str, str]:
        """(difference, compared): the difference or ''; the compared values."""
        if step.level == "onnx":
            got = self._run_floats(module)
            tolerance = RELATIVE_TOLERANCE
            rounding = _rounding(module)
            difference = compare_floats(self._floats, got, steps=rounding)
            if difference and step.name == FOLD_QDQ:
                tolerance = QDQ_TOLERANCE
                difference = compare_floats(self._floats, got, tolerance, rounding | self._steps(module))
            if step.name == FOLD_QDQ:
                self._floats = got  # later steps must equal the model after this step, on integers
            return difference, f"{plural(len(self._floats), 'output')} within {tolerance:.0e}"
        return self._check_integers(step, module)

    def _run_floats(self, module: ModuleOp) -> Values:
        """The float outputs by name."""
        outputs = run_floats(module, self.compilation.ctx.weights, self.inputs, returned(module))
        return dict(zip(output_names(module), outputs, strict=True))

    def _steps(self, module: ModuleOp) -> dict[str, float]:
        """The scale of one step of its codes, by output that is codes or was computed from them."""
        placement = place_nodes(module, self.compilation.ctx.weights)
        steps = dict[SSAValue, float]()
        for node in module.walk():
            read = [steps.get(value, 0.0) for value in node.operands]
            alike = max(read, default=0.0) if isinstance(node, NodeOp) and node.is_op(*NO_WIDER) else 0.0
            for value in node.results:
                steps[value] = codes.scale if (codes := placement.codes(value)) else alike
        return {name: steps.get(value, 0.0) for name, value in zip(output_names(module), returned(module), strict=True)}

    def _check_integers(self, step: Step, module: ModuleOp) -> tuple[str, str]:
        if not self._integers:
            return self._first_integers(module)
        if step.name == TO_PROGRAMS:
            self._programs = module.clone()
        values = self._evaluated(step.level, module)
        if step.name == FUSED and not self._is_exact:
            self._measure(values)
        common = [name for name in self._integers if name in values]
        difference = compare_integers(self._integers, values, self._where)
        self._integers = {**self._integers, **values}
        integers = sum(values[name].size for name in common)
        return difference, f"{plural(len(common), 'value')}, {plural(integers, 'integer')}"

    def _where(self, name: str, wrong: Mask) -> str:
        """The PE that computed the first wrong result, once there are programs."""
        from cnncc.eval.wrong_reuses import locate

        store, arch = self.compilation.ctx.weights, self.compilation.settings.arch
        try:
            location = locate(self._programs, store, arch, name, wrong)
        except Refusal:  # a wrong program may also break a rule
            return ""
        return f"; {location}" if location else ""

    def _first_integers(self, module: ModuleOp) -> tuple[str, str]:
        """The quantised network: measured against float, and the reference integers of all levels below.

        The outputs of a quantised model must be onnxruntime's, bit for bit.
        """
        from cnncc.eval.cnn import dequantise_outputs, evaluate, quantise_inputs

        self._quantised = quantise_inputs(module, self.inputs)
        outputs, trace = evaluate(module, self.compilation.ctx.weights, self._quantised)
        real = dequantise_outputs(module, outputs)
        self._integers = _keyed(outputs, trace)
        if self._is_exact:
            return compare_integers(self._floats, real), f"{plural(len(real), 'output')} as onnxruntime's in every bit"
        self.accuracy = [accuracy(name, self._floats[name], real[name]) for name in self._floats]
        return "", "quantised: " + ", ".join(f"{a.output} {a.sqnr_db:.1f} dB" for a in self.accuracy)

    def _measure(self, values: Values) -> None:
        """Measure all values after fusion against float: each value, and each layer by itself."""
        from cnncc.driver.calibrate import samples

        store, settings = self.compilation.ctx.weights, self.compilation.settings
        references = References(self._calibrated, store, (settings.operand_bits, settings.arch.psum_bits))
        self.layers = references.measured(values, self.inputs, self._quantised)
        images = len(next(iter(self.inputs.values())))
        self.noises = layer_noise(references, store, samples(self._calibrated, settings.calibration, images))

    @property
    def beyond_noise(self) -> list[LayerNoise]:
        """The layers with a larger error than rounding explains."""
        return [layer for layer in self.noises if layer.cause]

    def _evaluated(self, level: str, module: ModuleOp) -> Values:
        from cnncc.eval import array, cnn, isa, nest

        store, arch = self.compilation.ctx.weights, self.compilation.settings.arch
        match level:
            case "cnn":
                outputs, trace = cnn.evaluate(module, store, self._quantised)
            case "nest":
                outputs, trace = nest.evaluate(module, store, self._quantised)
            case "array":
                outputs, trace = array.evaluate(module, store, arch, self._quantised)
            case _:
                outputs, trace = isa.evaluate(module, store, arch, self._quantised)
        return _keyed(outputs, trace)


def _keyed(outputs: Sequence[Array], trace: Values) -> Values:
    return {**trace, **{f"{OUTPUT}{i}": value for i, value in enumerate(outputs)}}


# -- what is printed ---------------------------------------------------------------------------------------------------


def checks_text(checks: Sequence[Check]) -> list[str]:
    """One line for each step."""
    columns = [Column(kind=NAME), Column(kind=NAME), Column(kind=NAME), Column(kind=TEXT)]
    marks = {True: "agrees", False: "DIFFERS"}
    return table(columns, [(each.level, each.step, marks[each.agrees], one_line(each.detail)) for each in checks])


def accuracy_text(outputs: Sequence[Accuracy], layers: Sequence[LayerAccuracy], *, whole: bool) -> list[str]:
    """Lines for the outputs, the layers with the largest drops (whole: all layers in order), and the largest of all."""
    lines = [
        f"{a.output} against float: SQNR {a.sqnr_db:.1f} dB, greatest error {a.max_error:.3g}, "
        f"top-1 agreement {100 * a.top1_agreement:.1f} %"
        for a in outputs
    ]
    most = greatest_drop(layers)
    if most is None:
        return lines
    shown = layers if whole else sorted(layers, key=lambda layer: -layer.drop_db)[:WORST]
    rows = [(layer.label, f"{layer.sqnr_db:.1f}", f"{layer.drop_db:.1f}") for layer in shown]
    lines += table([Column("value", NAME), "SQNR dB", "drop dB"], rows)
    lines.append(f"{most.label} loses most: {most.drop_db:.1f} dB")
    beyond = sorted((layer for layer in layers if layer.beyond), key=lambda layer: -layer.beyond)
    for layer in beyond if whole else beyond[:WORST]:
        lines.append(f"{100 * layer.beyond:.3g} % of {layer.label} saturates: calibrate with data like these inputs")
    return lines


def noise_text(layers: Sequence[LayerNoise], *, whole: bool = False) -> list[str]:
    """Lines for the layers whose error, with exact operands, exceeds their noise; or for the largest error of all.

    whole: name all layers with narrowed weights, not the first few.
    """
    narrowed = [f"{label} ({count} channels)" for layer in layers for label, count in layer.narrowed.items()]
    names = ", ".join(narrowed) if whole else first_of(narrowed)
    lines = [f"psums narrow the weights of {names}"] if narrowed else []
    if beyond := [layer for layer in layers if layer.cause]:
        return [*lines, *(f"layer {layer.text}" for layer in beyond)]
    times, label = max(((layer.error / layer.noise, layer.label) for layer in layers), default=(0.0, ""))
    if layers:
        lines.append(f"by itself no layer errs by more than {LIMIT} times its noise: at most {times:.2f}, at {label}")
    return lines


def as_json(verifier: Verifier, model: Path) -> dict[str, Any]:
    """The JSON of docs/verify.md; a number that is not finite is null."""
    most = greatest_drop(verifier.layers)
    return {
        "schema": SCHEMA,
        "model": str(model),
        "agrees": all(check.agrees for check in verifier.checks),
        "steps": [asdict(check) for check in verifier.checks],
        "outputs": [_finite(asdict(output)) for output in verifier.accuracy],
        "layers": [_finite(asdict(layer)) for layer in verifier.layers],
        "loses_most": most.label if most else None,
        "noises": [_finite(asdict(layer)) for layer in verifier.noises],
    }


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in record.items()}
