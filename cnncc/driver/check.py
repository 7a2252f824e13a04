"""Checks a model before it is run: what stops a compilation, what it costs, what was folded.

The steps of a compilation run one after the other. A step's refusal is noted. The checker then goes on with a stand-in:

    weights that are NaN      0
    calibration               made-up ranges, of integers of 8 bits
    sums that exceed a psum   made-up ranges, of integers of 2 bits
    a schedule                the compiler's own mappings
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp, StringAttr

from cnncc.arch.model import load_arch
from cnncc.dialects.nest import CoresOp
from cnncc.driver import check_findings, cores_text, group_text
from cnncc.driver.calibrate import assume_ranges
from cnncc.driver.pipeline import (
    ASSIGN,
    CALIBRATE,
    DONE,
    GROUP,
    NONE,
    Compilation,
    Settings,
    Step,
    check_interface,
    mark_host_operators,
    new_context,
    operand_bits,
    steps,
)
from cnncc.driver.program_parts import PartsObserver, cores_plan_of
from cnncc.driver.sources import CompileOptions, groups_setting
from cnncc.errors import ALIKE, SEVERITIES, Finding, Refusal, Refusals, first_of, one_line, plural
from cnncc.frontend.import_onnx import read_onnx
from cnncc.main_function import input_names
from cnncc.model.program_schedule import Part
from cnncc.passes._scheduling.dataflows import AUTO, check_dataflow
from cnncc.passes._scheduling.decision import Decision
from cnncc.passes._scheduling.group_report import group_report
from cnncc.passes._scheduling.schedule_file import read_schedule
from cnncc.quant.split import candidate_tops
from cnncc.util.npz import read_npz
from cnncc.util.progress import Progress, silent
from cnncc.util.terminal import NAME, TEXT, Column, table

SCHEMA = 1  # of the JSON; a change that a reader would notice raises it
FEWEST_TOP = 1  # integers of 2 bits: what overflows with these does with any


def check(path: Path, options: CompileOptions, progress: Progress = silent) -> list[Finding]:
    """All findings of a model on an array, blocking ones first. `compile` refuses it if there is one of these.

    Raises StepFailed for a defect of a step.
    """
    refusals = Refusals()
    with refusals.kept("--arch"):
        array = load_arch(options.arch)
        settings = Settings(array, str(options.arch), array.operand_bits)
        with refusals.kept("--precision"):
            settings = replace(settings, operand_bits=operand_bits(options.precision, array))
        with refusals.kept("--schedule"):
            if options.schedule is not None:
                read_schedule(str(options.schedule))
                settings = replace(settings, schedule=str(options.schedule))
        with refusals.kept("--dataflow"):
            if options.dataflow is not None:
                check_dataflow(options.dataflow)
                settings = replace(settings, dataflow=options.dataflow)
        with refusals.kept("--objective"):
            settings = replace(settings, objective=options.minimised(settings.schedule))
        settings = replace(settings, partition=options.partition or NONE)
        with refusals.kept("--groups"):
            settings = replace(settings, groups=groups_setting(options.groups, settings.schedule))
        with refusals.kept("--parallel"):
            settings = replace(settings, parallel=options.is_parallel(settings.schedule), fps=options.fps)
        checker = _Checker(settings, refusals)
        if compilation := checker.read(path, options, progress):
            checker.steps(compilation)
        return _sorted([*refusals.findings, *checker.findings])
    return _sorted(refusals.findings)


def _sorted(findings: Sequence[Finding]) -> list[Finding]:
    """Each once, by severity."""
    return sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))


class _Checker:
    """A compilation that goes on after a refusal, as long as there is something to look at."""

    def __init__(self, settings: Settings, refusals: Refusals) -> None:
        self.settings, self.refusals = settings, refusals
        self.findings: list[Finding] = []
        self.assumes_ranges, self.least_top = False, candidate_tops(settings.operand_bits)[-1]
        self.decisions: list[Decision] = []

    def read(self, path: Path, options: CompileOptions, progress: Progress) -> Compilation | None:
        """The model and the calibration data; None without a model."""
        ctx, compilation = new_context(), None
        ctx.progress, ctx.decided = progress, self.decisions.append
        with self.refusals.kept():
            module = read_onnx(path, ctx, self.refusals, options.batch, options.shapes)
            self.findings += self.refusals.notes
            mark_host_operators(module, self.settings.host_operators)
            module.attributes[DONE] = StringAttr("import")
            compilation = Compilation(ctx, module, self.settings)
            with self.refusals.kept():
                check_interface(path, module)
            with self.refusals.kept("--calibrate"):
                data = read_npz(options.calibrate, input_names(module)) if options.calibrate else None
                compilation.settings = replace(self.settings, calibration=data)
                return compilation
            # Reached only where the data was refused: the steps go on with made-up ranges.
            self.assumes_ranges = True
        return compilation

    def steps(self, compilation: Compilation) -> None:
        """Run them, reading costs between them."""
        observer = PartsObserver(compilation)
        for step in compilation.remaining():
            if step.name == CALIBRATE and self.assumes_ranges:
                assume_ranges(compilation.module, self.least_top)
                continue
            self.before(step, compilation)
            # `set_aside` goes back to the module before a step on these levels alone.
            whole = compilation.module.clone() if step.level in ("onnx", "cnn") else compilation.module
            try:
                compilation.step(step)
            except Refusal as refusal:
                self.refusals.add(refusal)
                if not self.set_aside(step, whole, compilation):
                    what = f"the steps from {step.name} on could not be looked at"
                    self.findings.append(Finding(what, "note", "network"))
                    return
            observer(step, compilation.module)
            self.after(step, whole, compilation, observer.parts)

    def before(self, step: Step, compilation: Compilation) -> None:
        """What is read before it is lowered."""
        if step.name == "onnx-to-cnn":
            self.findings += check_findings.host_nodes(compilation.module, compilation.ctx.weights)

    def after(self, step: Step, before: ModuleOp, compilation: Compilation, parts: Sequence[Part] | None) -> None:
        """What a step has done, and what its result will cost. parts: those of the program, once they are known."""
        module, arch = compilation.module, self.settings.arch
        match step.name:
            case "onnx-calibrate":
                severity = "costly" if compilation.settings.calibration is None else "note"
                self.findings += [Finding(text, severity, where="--calibrate") for text in compilation.warnings]
            case "onnx-to-cnn":
                lost = [] if self.assumes_ranges else check_findings.lost_bits(module, compilation.ctx.weights)
                self.findings += [*lost, *check_findings.macs_on_array(module)]
            case "cnn-choose-scheme":
                self.findings += compilation.notes
            case "nest-assign-mapping":
                choice = self.decisions[-1].choice if self.decisions else None
                report = group_report(choice) if choice else None
                self.findings += group_text.findings(report, arch.glb.words) if report else []
                self.findings += [*check_findings.idle_pes(module, arch), *check_findings.layers_in_blocks(module)]
            case "nest-cores":
                plan = next(cores_plan_of(op) for op in module.walk() if isinstance(op, CoresOp))
                self.findings += cores_text.findings(plan, arch)
            case "array-allocate":
                if parts is not None and not self.settings.parallel:
                    self.findings += check_findings.cycles(parts, arch)
                self.findings += check_findings.glb_use(module, arch)
            case _ if step.level == "onnx":
                self.findings += check_findings.removed_nodes(step.name, before, module)
            case _:
                pass

    def set_aside(self, step: Step, whole: ModuleOp, compilation: Compilation) -> bool:
        """Put the module into a form from which the rest can be looked at; False where there is none."""
        if step.name == GROUP:
            return True  # layers run one after the other
        if step.level == "onnx":
            compilation.module = whole
            if step.name == CALIBRATE:
                self.assumes_ranges = True
                assume_ranges(whole, self.least_top)
            return True
        if step.name == "onnx-to-cnn":
            compilation.module = whole
            self.assumes_ranges = True
            assume_ranges(whole, FEWEST_TOP)
            with Refusals().kept():
                compilation.step(step)
                return True
        if step.name == ASSIGN and (self.settings.schedule or self.settings.dataflow != AUTO):
            # The compiler's own mappings stand in.
            self.settings = replace(self.settings, schedule=None, dataflow=AUTO, groups=NONE)
            own = next(step for step in steps(self.settings) if step.name == ASSIGN)
            with Refusals().kept():
                compilation.step(own)
                return True
        return False


# -- what is printed ---------------------------------------------------------------------------------------------------


def count(findings: Sequence[Finding]) -> dict[str, int]:
    """How many there are of each severity."""
    return {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}


def as_text(findings: Sequence[Finding], model: Path) -> list[str]:
    """A group for each severity that occurs, one aligned line a finding, and a summary."""
    lines: list[str] = []
    for severity in SEVERITIES:
        group = [finding for finding in findings if finding.severity == severity]
        lines += [severity, *findings_table(_folded(group))] if group else []
    numbers = count(findings)
    verdict = "does not compile" if numbers["blocking"] else "compiles"
    costly, notes = numbers["costly"], numbers["note"]
    return [*lines, f"{model} {verdict}: {numbers['blocking']} blocking, {costly} costly, {plural(notes, 'note')}"]


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with one for all that say the same of more places than `ALIKE`."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        groups.setdefault((_kind(each.where), each.resource, each.limit, each.text, each.excerpt), []).append(each)
    return [each for group in groups.values() for each in (group if len(group) <= ALIKE else [_of_all(group)])]


def _kind(where: str) -> str:
    """`Mul node` of `Mul node 'Mul_3'`; what has no kind is a layer."""
    return where.partition(" '")[0] if " '" in where else "layer"


def _of_all(group: Sequence[Finding]) -> Finding:
    """One finding with the names of the first places; with a value if all have the same."""
    first, names = group[0], [each.where.partition(" '")[2].removesuffix("'") or each.where for each in group]
    return replace(
        first,
        what=first.text,
        where=plural(len(group), _kind(first.where)),
        value=first.value if len({each.value for each in group}) == 1 else None,
        help=first_of(names),
    )


def findings_table(findings: Sequence[Finding]) -> list[str]:
    """Where, the resource with value and limit, what and help; below it the place in the user's text."""
    rows = list[Sequence[str] | str]()
    for finding in findings:
        rows += [(one_line(finding.where), finding.numbers, finding.text), *finding.excerpt]
    return table([Column(kind=NAME), Column(kind=TEXT), Column(kind=TEXT)], rows)


def as_json(findings: Sequence[Finding], model: Path, arch: str) -> dict[str, Any]:
    """What docs/check.md describes."""
    return {
        "schema": SCHEMA,
        "model": str(model),
        "arch": arch,
        "compiles": not count(findings)["blocking"],
        "count": count(findings),
        "findings": [asdict(finding) for finding in findings],
    }
