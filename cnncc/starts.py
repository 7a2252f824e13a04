"""Where a compilation starts: at an ONNX file, or at IR that was dumped on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from xdsl.dialects.builtin import IntegerAttr

from cnncc.arch.model import load_arch
from cnncc.errors import Refusal
from cnncc.inputs import read_npz
from cnncc.passes._dataflows import check_dataflow
from cnncc.passes._schedule_file import read_schedule
from cnncc.pipeline import (
    CALIBRATE,
    SCHEDULE,
    TO_PROGRAMS,
    Compilation,
    Settings,
    Step,
    import_model,
    new_context,
    operand_bits,
)
from cnncc.weights import Array


def _settings(
    arch: str,
    precision: str | None,
    calibration: Mapping[str, Array] | None,
    schedule: Path | None,
    dataflow: str | None,
) -> Settings:
    array = load_arch(arch)
    file = str(schedule) if schedule else None
    return Settings(array, arch, operand_bits(precision, array), calibration, file, dataflow)


def start_compilation(
    model: Path,
    arch: str,
    precision: str | None,
    calibrate: Path | None,
    batch: int | None,
    schedule: Path | None = None,
    dataflow: str | None = None,
) -> Compilation:
    """A compilation of an ONNX file, with calibration data named after its inputs. Raises Refusal."""
    from cnncc.frontend.export_onnx import input_names

    if schedule is not None:
        read_schedule(str(schedule))  # what is wrong with it alone is said before anything is run
    if dataflow is not None:
        check_dataflow(dataflow)
    compilation = import_model(model, batch, _settings(arch, precision, None, schedule, dataflow))
    if calibrate is not None:
        data = read_npz(calibrate, input_names(compilation.module))
        compilation.settings = _settings(arch, precision, data, schedule, dataflow)
    return compilation


def start_before_programs(
    source: Path,
    arch: str,
    precision: str | None,
    calibrate: Path | None,
    batch: int | None,
    schedule: Path | None,
    dataflow: str | None,
) -> tuple[Compilation, list[Step]]:
    """A compilation of an ONNX file, or of IR dumped before nest-to-array, and its steps up to that one.

    Raises Refusal, also for IR from after that step.
    """
    if source.suffix == ".mlir":
        compilation = resume(source, arch, precision, calibrate, schedule, dataflow)
    else:
        compilation = start_compilation(source, arch, precision, calibrate, batch, schedule, dataflow)
    if TO_PROGRAMS not in (names := [step.name for step in compilation.remaining()]):
        raise Refusal(f"{source}: was lowered beyond {TO_PROGRAMS}: give IR from before that step, or the model")
    return compilation, list(compilation.remaining()[: names.index(TO_PROGRAMS) + 1])


def resume(
    start: Path,
    arch: str,
    precision: str | None,
    calibrate: Path | None,
    schedule: Path | None,
    dataflow: str | None = None,
) -> Compilation:
    """A compilation that goes on from dumped IR, its weights beside it. Raises Refusal."""
    from cnncc.frontend.export_onnx import input_names
    from cnncc.opt import read_ir

    ctx = new_context()
    module = read_ir(start, ctx)
    bits = module.attributes.get("cnn.operand_bits")
    if isinstance(bits, IntegerAttr):  # quantised already
        dumped = f"int{cast('IntegerAttr[Any]', bits).value.data}"
        if precision not in (None, dumped):
            raise Refusal(f"{start}: was quantised to {dumped}, --precision {precision} comes too late")
        precision = dumped
    compilation = Compilation(ctx, module, _settings(arch, precision, None, schedule, dataflow))
    remaining = [step.name for step in compilation.remaining()]
    if dataflow is not None:
        check_dataflow(dataflow)
    for option, value in (("--schedule", schedule), ("--dataflow", dataflow)):
        if value is not None and SCHEDULE not in remaining:
            raise Refusal(f"{start}: its layers are mapped already, {option} {value} comes too late")
    if calibrate is not None and CALIBRATE in remaining:
        data = read_npz(calibrate, input_names(module))
        compilation.settings = _settings(arch, precision, data, schedule, dataflow)
    elif calibrate is not None:
        compilation.warnings.append(f"--calibrate {calibrate} has no effect: {start} was calibrated already")
    return compilation
