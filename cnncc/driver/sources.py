"""The start of a compilation: an ONNX file, or dumped IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, cast

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType

from cnncc.arch.model import load_arch
from cnncc.dialects.nest import CoresOp
from cnncc.dialects.onnx import NodeOp
from cnncc.driver.ir_files import dump_file, read_ir
from cnncc.driver.pipeline import (
    ASSIGN,
    CALIBRATE,
    CORES,
    GROUP,
    NESTS,
    NONE,
    PARTITION,
    TO_PROGRAMS,
    Compilation,
    Settings,
    import_model,
    new_context,
    operand_bits,
)
from cnncc.errors import Refusal
from cnncc.frontend.input_shapes import NO_SHAPES, Shapes
from cnncc.main_function import input_names, main_function
from cnncc.mapper.objective import Objective
from cnncc.passes._scheduling.dataflows import AUTO, check_dataflow
from cnncc.passes._scheduling.layer_groups import GROUPS
from cnncc.passes._scheduling.schedule_file import objective_of, read_schedule
from cnncc.util.npz import read_npz
from cnncc.util.progress import Progress, silent
from cnncc.weights import Array, WeightStore


@dataclass(frozen=True)
class CompileOptions:
    """The options of every command that compiles a network.

    Attributes:
        arch        a preset or a TOML file
        precision   int8 or int16; None is the array's width
        calibrate   samples of the inputs
        batch       the size of a symbolic batch dimension
        schedule    the mappings of some layers
        dataflow    the dataflow of the other layers
        objective   what the network is optimised for (`objective.py`); None is what the schedule says, or cycles
        slack       the share of the fewest cycles that less energy may cost; None likewise
        groups      auto, none, or a schedule file with groups; None is what the schedule has, or auto
        partition   layers whose kernels are partitioned: none, auto, mapper, or labels with commas; None is none
        parallel    `layers` for layers side by side; None is what the schedule has
        fps         frames a second, for the fewest PEs then
        shapes      the sizes of all dims of inputs and outputs that have symbolic ones, by name
    """

    arch: Path | str = "spatial-8x8"
    precision: str | None = None
    calibrate: Path | str | None = None
    batch: int | None = None
    schedule: Path | str | None = None
    dataflow: str | None = None
    objective: str | None = None
    slack: float | None = None
    groups: Path | str | None = None
    partition: str | None = None
    parallel: str | None = None
    fps: float | None = None
    shapes: Shapes = field(default_factory=lambda: NO_SHAPES)

    def settings(self) -> Settings:
        """The settings, with the array read and without calibration data. Raises Refusal."""
        dataflow = AUTO if self.dataflow is None else self.dataflow
        check_dataflow(dataflow)
        array, name = load_arch(self.arch), str(self.arch)
        schedule = str(self.schedule) if self.schedule else None
        bits = operand_bits(self.precision, array)
        objective = self.minimised(schedule)
        groups = groups_setting(self.groups, schedule)
        parallel, partition = self.is_parallel(schedule), self.partition or NONE
        return Settings(array, name, bits, None, schedule, dataflow, objective, groups, partition, parallel, self.fps)

    def minimised(self, schedule: str | None) -> Objective:
        """The objective; what no option says the schedule does. Raises Refusal."""
        if self.slack is not None and self.objective not in (None, Objective().name):
            raise Refusal(f"--slack has no effect with --objective {self.objective}: it is a share of the cycles")
        return objective_of(schedule, self.objective, self.slack)

    def is_parallel(self, schedule: str | None) -> bool:
        """Whether layers run side by side. Raises Refusal for options that do not go with that."""
        if self.parallel not in (None, "layers"):
            raise Refusal(f"--parallel {self.parallel}: give layers, or leave it out")
        cores = read_schedule(schedule).cores if schedule else ()
        if self.parallel is None and not cores:
            if self.fps is not None:
                raise Refusal("--fps needs layers side by side: add --parallel layers")
            return False
        if self.parallel is not None and schedule and not cores:
            raise Refusal(f"{schedule}: --parallel layers takes tables [[core]] of a schedule (docs/schedule.md)")
        if self.fps is not None and cores:
            raise Refusal(f"--fps chooses the cores, and {schedule} has them: give one of both")
        if self.fps is not None and not (self.fps > 0 and isfinite(self.fps)):
            raise Refusal(f"--fps {self.fps}: give the frames a second that are enough, more than 0")
        for option in ("dataflow", "objective", "slack", "groups"):
            if getattr(self, option) is not None:
                raise Refusal(f"--{option} has no effect on layers side by side: leave it out")
        return True


def groups_setting(given: Path | str | None, schedule: str | None) -> str:
    """AUTO, NONE or a file, for `--groups`; without it the schedule, if that has groups. Raises Refusal."""
    given = None if given is None else str(given)
    if given in (AUTO, NONE):
        return given
    if given is not None and not Path(given).exists():
        raise Refusal(f"--groups {given}: no such file: give {AUTO}, {NONE}, or a schedule file")
    if given is not None and not read_schedule(given).groups:
        raise Refusal(f"--groups {given}: it has no table [[group]] (docs/schedule.md)")
    return given or (schedule if schedule and read_schedule(schedule).groups else AUTO)


def check_in_turn(compilation: Compilation, what: str) -> None:
    """Refuse layers side by side for what is of layers one after the other. Raises Refusal."""
    if compilation.settings.parallel:
        schedule = compilation.settings.schedule
        of_cores = f"the tables [[core]] of {schedule}" if schedule else "--parallel layers"
        raise Refusal(f"{what} works for layers one after the other alone: leave out {of_cores}")
    if any(isinstance(op, CoresOp) for op in compilation.module.walk()):
        raise Refusal(f"{what} works for layers one after the other alone: give the model, or IR from before {CORES}")


def start_compilation(
    model: Path, options: CompileOptions, calibration: Mapping[str, Array] | None = None
) -> Compilation:
    """A compilation of an ONNX file, with calibration data named after its inputs. Raises Refusal.

    calibration: the data, in the place of a file of it.
    """
    if options.schedule is not None:
        read_schedule(str(options.schedule))  # its own faults are refused before any work
    compilation = import_model(model, options.batch, options.settings(), options.shapes)
    if options.calibrate is not None and calibration is None:
        calibration = read_npz(options.calibrate, input_names(compilation.module))
    compilation.settings = replace(compilation.settings, calibration=calibration)
    return compilation


def start_before_programs(source: Path, options: CompileOptions, progress: Progress = silent) -> Compilation:
    """A compilation of an ONNX file, or of IR dumped before nest-to-array.

    It is for counts: without calibration data its values have made-up ranges.

    Raises: Refusal, also for IR dumped after that step.
    """
    source = dump_file(source)
    start = resume if source.suffix == ".mlir" else start_compilation
    compilation = start(source, options)
    compilation.settings = replace(compilation.settings, measured=False)
    compilation.ctx.progress = progress
    if not compilation.awaits(TO_PROGRAMS):
        raise Refusal(f"{source}: was lowered beyond {TO_PROGRAMS}: give IR from before that step, or the model")
    return compilation


def resume(start: Path, options: CompileOptions) -> Compilation:
    """A compilation resumed from dumped IR, with its weights beside it. Raises Refusal."""
    ctx, start = new_context(), dump_file(start)
    if start.suffix != ".mlir":
        raise Refusal(f"{start}: expected a .mlir file, as `compile --dump-dir` and `compile --emit` write")
    module = read_ir(start, ctx)
    bits = module.attributes.get("cnn.operand_bits")
    if isinstance(bits, IntegerAttr):  # quantised already
        dumped = f"int{cast('IntegerAttr[Any]', bits).value.data}"
        if options.precision not in (None, dumped):
            raise _too_late(start, f"was quantised to {dumped}", f"--precision {options.precision}", CALIBRATE)
        options = replace(options, precision=dumped)
    settings = options.settings()
    if GROUPS in module.attributes:
        if options.groups is not None:
            raise _too_late(start, "its groups are chosen already", f"--groups {options.groups}", ASSIGN)
        # The step that makes the chosen groups is among the steps then.
        settings = replace(settings, groups=AUTO)
    compilation = Compilation(ctx, module, settings, edited=start)
    _check_nodes(module, ctx.weights, start)
    remaining = [step.name for step in compilation.remaining()]
    mapped = "its layers are mapped already"
    of_mapping = ("schedule", "dataflow", "objective", "slack", "parallel", "fps")
    for option, value in ((f"--{name}", getattr(options, name)) for name in of_mapping):
        if value is not None and not {ASSIGN, CORES} & {*remaining}:
            raise _too_late(start, mapped, f"{option} {value}", ASSIGN)
    # The mappings are chosen with the compiler's own groups in mind; those of a file are made of any mapped layers.
    last, what = (ASSIGN, mapped) if options.groups in (AUTO, NONE) else (GROUP, "its groups are made already")
    if options.groups is not None and last not in remaining:
        raise _too_late(start, what, f"--groups {options.groups}", last)
    if options.partition not in (None, NONE) and PARTITION not in remaining:
        raise _too_late(start, f"was lowered beyond {PARTITION}", f"--partition {options.partition}", NESTS)
    if options.calibrate is not None and CALIBRATE in remaining:
        compilation.settings = replace(settings, calibration=read_npz(options.calibrate, input_names(module)))
    elif options.calibrate is not None:
        compilation.warnings.append(f"--calibrate {options.calibrate} has no effect: {start} was calibrated already")
    return compilation


def _check_nodes(module: ModuleOp, store: WeightStore, start: Path) -> None:
    """Raises Refusal for edited ONNX nodes that do not fit together, or whose results are not of their types."""
    if not any(isinstance(op, NodeOp) for op in module.walk()):
        return
    from cnncc.frontend.export_onnx import export_onnx
    from cnncc.frontend.load_onnx import with_shapes

    nodes = [op for op in main_function(module).body.block.ops if isinstance(op, NodeOp)]
    model = export_onnx(module, store)
    graph = with_shapes(model, start).graph
    types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
    inferred = {name: [dim.dim_value for dim in of.shape.dim] for name, of in types.items() if of.HasField("shape")}
    for op, node in zip(nodes, model.graph.node, strict=False):  # behind them may stand nodes that rename outputs
        for value, name in zip(op.results, node.output, strict=True):
            shape = inferred.get(name, [0])
            if 0 not in shape and isinstance(value.type, TensorType) and shape != list(value.type.get_shape()):
                raise Refusal(f"{start}: {op.label()}: its result is {value.type}, and would have the shape {shape}")


def _too_late(start: Path, what: str, option: str, step: str) -> Refusal:
    """The refusal of an option that concerns `step`, of IR that has the step behind it."""
    return Refusal(f"{start}: {what}, {option} comes too late: give IR from before {step}, or the model")
