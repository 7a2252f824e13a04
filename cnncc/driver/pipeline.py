"""The steps from a model to the machine's instructions, in order.

A step is a pass by name, or the calibration, which needs data and is no pass. Every step leaves its name on the module,
so that a compilation can resume from a dumped file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from xdsl.dialects.builtin import ArrayAttr, Float32Type, IntAttr, IntegerType, ModuleOp, StringAttr, TensorType
from xdsl.passes import PassPipeline

from cnncc.arch.model import Arch, array_title
from cnncc.context import CompilerContext
from cnncc.dialects.onnx import NodeOp
from cnncc.driver.ir_files import ir_text
from cnncc.errors import Finding, Refusal, Refusals, hint, one_line
from cnncc.frontend.input_shapes import NO_SHAPES, Shapes
from cnncc.main_function import input_names, main_arguments, output_names
from cnncc.mapper.objective import Objective
from cnncc.passes._onnx.layers import OWN_READERS, READERS
from cnncc.passes._onnx.placement import HOST, NOT_ON_CORES
from cnncc.passes._onnx.quantised_layers import QUANTISED_READERS
from cnncc.passes._programs.array_mark import mark_of
from cnncc.passes._scheduling.dataflows import AUTO
from cnncc.passes._scheduling.schedule_file import objective_of
from cnncc.passes.nest_assign_mapping import ONE_BY_ONE as NONE
from cnncc.universe import PASSES, known_dialects
from cnncc.util.progress import silent
from cnncc.weights import Array

DONE = "cnncc.done"  # module attribute: the last step that has run
CALIBRATE = "onnx-calibrate"
FOLD_QDQ = "onnx-fold-qdq"
TO_PROGRAMS = "nest-to-array"  # leaves PE-set programs, each layer with its own transfers
LEGALIZE = "cnn-legalize"
CHOOSE_SCHEME, PARTITION = "cnn-choose-scheme", "cnn-partition-kernel"  # steps of a network with partitioned kernels
MAPPER = "mapper"  # of `partition`: the mapper compares whole and partitioned kernels
ASSIGN = "nest-assign-mapping"
NESTS = "cnn-to-nest"  # leaves layers that are not mapped
STAGE, GROUP = "nest-stage", "nest-group"  # leave mapped layers, the second one in groups
CORES = "nest-cores"  # leaves mapped layers side by side


@dataclass(frozen=True)
class Step:
    """One step: the module's level after it, its name, and its options as on the command line."""

    level: str
    name: str
    options: str = ""

    @property
    def spec(self) -> str:
        """The step in a pass list: `nest-assign-mapping{arch=spatial-8x8}`."""
        return f"{self.name}{{{self.options}}}" if self.options else self.name


_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f", "\v": r"\v"}
FUNCTIONS = "onnx.functions"  # module attribute: the functions that the model defines
DOMAINS = ("ai.onnx", "com.microsoft", "com.ms.", "org.pytorch.")  # prefixes of onnxruntime's operator domains
PRECISIONS = ("int8", "int16")
LEVELS = ("onnx", "cnn", "nest", "array", "isa")


@dataclass(frozen=True)
class Settings:
    """The settings of a compilation.

    - arch: the array. Passes read it by its name or file, `arch_source`.
    - schedule: a file with mappings of some layers, or with the cores.
    - dataflow: of the layers that have no mapping there.
    - objective: what the network is optimised for.
    - groups: AUTO for the compiler's choice, NONE for none, or a schedule file.
    - parallel: layers run side by side, on cores.
    - fps: frames a second for which the cores have the fewest PEs. None asks for the most frames.
    - partition: labels of the layers whose kernels are partitioned. NONE is for none, AUTO for those of C-Brain's
      Algorithm 2, MAPPER for those that the mapper maps faster so.
    - measured: without calibration data, the network is run on random inputs for the ranges of its values. False where
      no value is asked for: cycles, words and energy depend on no range.
    """

    arch: Arch
    arch_source: str
    operand_bits: int
    calibration: Mapping[str, Array] | None = None
    schedule: str | None = None
    dataflow: str = AUTO
    objective: Objective = Objective()
    groups: str = AUTO
    partition: str = NONE
    parallel: bool = False
    fps: float | None = None
    measured: bool = True

    def __post_init__(self) -> None:
        if self.operand_bits > self.arch.operand_bits:
            width = f"the operands of {self.arch.name} have {self.arch.operand_bits} bits"
            raise Refusal(f"--precision int{self.operand_bits}: {width}")

    @property
    def host_operators(self) -> tuple[str, ...]:
        """The operators that the host computes although the array could: where layers run side by side."""
        return beside_cores(self.arch) if self.parallel else ()


def beside_cores(arch: Arch) -> tuple[str, ...]:
    """The operators that the host computes where layers run side by side: those of the array file, and some more."""
    return *arch.cores.host, *NOT_ON_CORES


def operand_bits(precision: str | None, arch: Arch) -> int:
    """The width that `--precision` names, as `int8`; the array's own without it. Raises Refusal for another name."""
    if precision is None:
        return arch.operand_bits
    if precision not in PRECISIONS:
        raise Refusal(f"there is no precision '{precision}'; there are: {', '.join(PRECISIONS)}")
    return int(precision.removeprefix("int"))


def _quoted(name: str) -> str:
    """A string as pass options write it; file names may contain any character."""
    return f'"{name.translate(str.maketrans(_ESCAPES))}"'


def _plain(number: float) -> str:
    """A number as pass options write it, which have no exponents.

    >>> _plain(1e6), _plain(0.00001), _plain(29.97)
    ('1000000', '0.00001', '29.97')
    """
    return f"{Decimal(repr(number)):f}".removesuffix(".0")


def steps(settings: Settings) -> tuple[Step, ...]:
    """All steps from an imported model to instructions."""
    arch = f"arch={_quoted(settings.arch_source)}"
    schedule = f" schedule={_quoted(settings.schedule)}" if settings.schedule else ""
    dataflow, objective = f" dataflow={settings.dataflow}", settings.objective
    of_file = objective_of(settings.schedule, None, None)  # which the pass takes by itself
    wanted = "" if objective == of_file else f" objective={objective.name} slack={objective.slack:f}"
    groups = " groups=auto" if settings.groups == AUTO else ""
    given = "" if settings.groups in (AUTO, NONE) else f" schedule={_quoted(settings.groups)}"
    in_turn = (
        Step("nest", ASSIGN, arch + schedule + dataflow + wanted + groups),
        Step("nest", "nest-tile"),
        Step("nest", "nest-permute"),
        Step("nest", "nest-unroll"),
        Step("nest", STAGE),
        *([Step("nest", GROUP, arch + given)] if settings.groups != NONE else []),
    )
    fps = f" fps={_plain(settings.fps)}" if settings.fps is not None else ""
    mapped = (Step("nest", CORES, arch + schedule + fps),) if settings.parallel else in_turn
    widths = f"operand-bits={settings.operand_bits} psum-bits={settings.arch.psum_bits}"
    return (
        # The order matters: later passes look for constants and for direct neighbours. fold-qdq leaves floats to the
        # passes behind it. fold-affine makes what fold-batch-norm folds, also into a ConvTranspose. split-sum makes
        # values to be calibrated. space-to-depth looks for a Conv right behind, whose Pad fold-pad has folded.
        # pixels-in-turn would take what conv-transpose leaves to the host for a PixelShuffle.
        Step("onnx", "onnx-fold-constants"),
        Step("onnx", "onnx-remove-identity"),
        Step("onnx", "onnx-concat-codes"),
        Step("onnx", FOLD_QDQ),
        Step("onnx", "onnx-matmul-to-conv"),
        Step("onnx", "onnx-hard-to-clip"),
        Step("onnx", "onnx-fold-functions"),
        Step("onnx", "onnx-split-prelu"),
        Step("onnx", "onnx-fold-affine"),
        Step("onnx", "onnx-fold-batch-norm"),
        Step("onnx", "onnx-fold-pad"),
        Step("onnx", "onnx-space-to-depth"),
        Step("onnx", "onnx-pad-to-conv"),
        Step("onnx", "onnx-fold-transpose"),
        Step("onnx", "onnx-split-sum"),
        Step("onnx", "onnx-split-to-slice"),
        Step("onnx", "onnx-1d-to-2d"),
        Step("onnx", "onnx-pixels-in-turn"),
        Step("onnx", "onnx-conv-transpose"),
        Step("onnx", "onnx-dead-code"),
        Step("onnx", CALIBRATE),
        Step("cnn", "onnx-to-cnn", widths),
        Step("cnn", "cnn-fuse-epilogue"),
        Step("cnn", LEGALIZE),
        *_partition_steps(settings),
        Step("nest", NESTS),
        *mapped,
        Step("array", TO_PROGRAMS, arch),
        Step("array", "array-prefetch", arch),
        Step("array", "array-allocate", arch),
        Step("isa", "array-to-isa"),
    )


def _partition_steps(settings: Settings) -> tuple[Step, ...]:
    if settings.partition == NONE:
        return ()
    if settings.partition == AUTO:
        return Step("cnn", CHOOSE_SCHEME, f"tin={settings.arch.pe.lanes}"), Step("cnn", PARTITION)
    if settings.partition == MAPPER:
        options = f"arch={_quoted(settings.arch_source)} mapper=true"
        return Step("cnn", CHOOSE_SCHEME, options), Step("cnn", PARTITION)
    labels = ",".join(map(_quoted, settings.partition.split(",")))
    return (Step("cnn", PARTITION, f"layers={labels}"),)


def new_context() -> CompilerContext:
    """A context that knows all dialects."""
    ctx = CompilerContext()
    for name, dialect in known_dialects().items():
        ctx.register_dialect(name, dialect)
    return ctx


class StepFailed(Exception):
    """A defect of a step: an unexpected exception, or IR that does not verify."""

    def __init__(self, step: Step, error: Exception) -> None:
        super().__init__(f"step {step.name}: {type(error).__name__}: {error}")
        self.step, self.error = step, error


@lru_cache(maxsize=256)  # a pass holds its options and nothing else
def _pass_of(spec: str) -> PassPipeline:
    """The pass of a step with its options."""
    return PassPipeline.parse_spec(PASSES, spec)


Observer = Callable[[Step, ModuleOp], None]


@dataclass
class Compilation:
    """A module on its way down the ladder.

    - edited: the file that it was read from, if a user may have edited it
    - verify_each: whether each step's module is verified, or that of a level's last step alone
    """

    ctx: CompilerContext
    module: ModuleOp
    settings: Settings
    notes: list[Finding] = field(default_factory=list[Finding])
    warnings: list[str] = field(default_factory=list[str])
    edited: Path | None = None
    verify_each: bool = True

    def __post_init__(self) -> None:
        self.ctx.warning = self.warnings.append

    def remarks(self, values: bool) -> list[str]:
        """Its notes and warnings, each once. values: whether values matter, and with them random inputs."""
        from cnncc.driver.calibrate import RANDOM_INPUTS

        notes = [f"note: {note.where}: {note.text}" for note in self.notes]
        warnings = [f"warning: {text}" for text in self.warnings if values or text != RANDOM_INPUTS]
        return list(dict.fromkeys([*notes, *warnings]))

    def remaining(self) -> tuple[Step, ...]:
        """The steps that have not run yet, by the mark of the last one.

        Raises: Refusal, for an unknown mark, or IR that was mapped to another array.
        """
        mark = self.module.attributes.get(DONE)
        todo = steps(self.settings)
        if not isinstance(mark, StringAttr) or mark.data == "import":
            return todo
        names = [step.name for step in todo]
        done = mark.data
        if done not in names:  # a module that a step of an option has left goes on where one without it does
            of_cores = {STAGE: NESTS} if self.settings.parallel else {CORES: STAGE, GROUP: STAGE}
            done = {CHOOSE_SCHEME: LEGALIZE, PARTITION: LEGALIZE, **of_cores}.get(done, done)
        if done not in names:
            raise Refusal(f"the IR says it was left by step '{mark.data}', which is none of {', '.join(names)}")
        array, mapped = array_title(self.settings.arch), mark_of(self.module)
        if mapped not in (None, array):
            raise Refusal(f"the IR was mapped to {mapped}, not to {array}: give the same --arch as then")
        return todo[names.index(done) + 1 :]

    def level(self) -> str:
        """That of the step which the module was left by. Raises as `remaining` does."""
        every = steps(self.settings)
        return every[max(0, len(every) - len(self.remaining()) - 1)].level

    def run(self, level: str = "isa", after: Sequence[Observer] = ()) -> None:
        """Run the remaining steps up to and including `level`. after: observers of the module after each step.

        Raises: Refusal; StepFailed, for a defect of a step.
        """
        for step in self.remaining():
            if LEVELS.index(step.level) > LEVELS.index(level):
                return
            self.step(step)
            for observer in after:
                observer(step, self.module)

    def awaits(self, name: str) -> bool:
        """Whether the step called `name` has not run yet. Raises as `remaining` does."""
        return name in (step.name for step in self.remaining())

    def run_before(self, name: str) -> None:
        """Run the remaining steps up to the one called `name`, without it. Raises as `run` does."""
        for step in takewhile(lambda step: step.name != name, self.remaining()):
            self.step(step)

    def run_through(self, name: str) -> None:
        """Run the remaining steps up to the one called `name`, and it. Raises as `run` does."""
        self.run_before(name)
        self.step(self.remaining()[0])

    def step(self, step: Step) -> None:
        """Run one step.

        Raises: Refusal, also for edited IR that it cannot run; MemoryError; StepFailed for a defect of the step.
        """
        self.ctx.progress(step.name)
        try:
            self._run(step)
            self.module.attributes[DONE] = StringAttr(step.name)
            if self.verify_each or self._is_last_of_level(step):
                self.module.verify()
        except (Refusal, MemoryError):
            raise
        except Exception as error:
            failure = StepFailed(step, error)
            if self.edited is None:
                raise failure from error
            raise Refusal(f"{self.edited}: edited IR that is not consistent? {failure}") from error

    def _is_last_of_level(self, step: Step) -> bool:
        *_, last = (other.name for other in steps(self.settings) if other.level == step.level)
        return step.name == last

    def _run(self, step: Step) -> None:
        if step.name != CALIBRATE:
            # What a user chose, or gets chosen, is for every user; other notes are for those who call passes by hand.
            self.ctx.note = self._noted if step.name in (CHOOSE_SCHEME, PARTITION) else silent
            _pass_of(step.spec).apply(self.ctx, self.module)
            return
        from cnncc.driver.calibrate import assume_ranges, calibrate
        from cnncc.quant.split import candidate_tops

        _check_domains(self.module)
        data, bits = self.settings.calibration, self.settings.operand_bits
        if data is None and not self.settings.measured:
            assume_ranges(self.module, candidate_tops(bits)[-1])
            return
        self.warnings += calibrate(self.module, self.ctx.weights, data, bits, self.settings.arch.psum_bits)

    def _noted(self, message: str) -> None:
        where, _, what = message.partition(": ")
        self.notes.append(Finding(what, "note", where))


def import_model(path: Path, batch: int | None, settings: Settings, shapes: Shapes = NO_SHAPES) -> Compilation:
    """A compilation of an ONNX file. Raises Refusal."""
    from cnncc.frontend.import_onnx import read_onnx

    refusals, ctx, module = Refusals(), new_context(), ModuleOp([])
    with refusals.kept():
        module = read_onnx(path, ctx, refusals, batch, shapes)
        check_interface(path, module)
    refusals.raise_any(str(path))
    mark_host_operators(module, settings.host_operators)
    module.attributes[DONE] = StringAttr("import")
    return Compilation(ctx, module, settings, refusals.notes)


def mark_host_operators(module: ModuleOp, operators: Sequence[str]) -> None:
    """Note in an imported module the operators that the host computes although the array could.

    Raises Refusal for what is no operator of ONNX.
    """
    from onnx import defs

    module.attributes.pop(HOST, None)
    on_array = {*READERS, *OWN_READERS, *(name for _, name in QUANTISED_READERS)}
    if unknown := next((name for name in operators if name not in on_array and not defs.has(name)), None):
        raise Refusal(f"cores.host: there is no operator '{one_line(unknown, 40)}'; {hint(unknown, sorted(on_array))}")
    if operators:
        module.attributes[HOST] = ArrayAttr(map(StringAttr, operators))


def check_interface(path: Path, module: ModuleOp) -> None:
    """Check that inputs are batches of f32 or bytes, and that names of inputs and outputs differ. Raises Refusal."""
    inputs, outputs = input_names(module), output_names(module)
    if not inputs:
        raise Refusal(f"{path}: the model has no inputs: its outputs are constant, there is nothing to compile")
    if not outputs:
        raise Refusal(f"{path}: the model has no outputs: there is nothing to compile")
    refusals = Refusals()
    for name, argument in zip(inputs, main_arguments(module), strict=True):
        match argument.type:
            case TensorType(element_type=Float32Type() | IntegerType(width=IntAttr(data=8))) as kind if (
                kind.get_shape() and min(kind.get_shape()) > 0
            ):
                pass
            case _:
                what = f"is {argument.type}: export the model with inputs of f32, i8 or ui8 with a leading batch dim"
                refusals.add(Refusal(f"{path}: input '{name}' {what}", Finding(what, where=f"input '{name}'")))
    for i, name in enumerate(outputs):
        if name in inputs or name in outputs[:i]:
            what, help_ = "has the name of another input or output", "give it one of its own"
            finding = Finding(what, where=f"output '{name}'", help=help_)
            refusals.add(Refusal(f"{path}: output '{name}' {what}: {help_}", finding))
    refusals.raise_any(str(path))


def _check_domains(module: ModuleOp) -> None:
    """Refuse nodes of domains that onnxruntime, which runs the graph, does not have. Raises Refusal."""
    refusals = Refusals()
    for op in module.walk():
        if isinstance(op, NodeOp) and op.domain and not _is_known(op.domain.data, module):
            where, help_ = op.label(), "replace the node by standard operators, or define it as a function of the model"
            what = f"operator domain '{op.domain.data}' is unknown to onnxruntime"
            refusals.add(Refusal(f"{where}: {what}: {help_}", Finding(what, where=where, help=help_)))
    refusals.raise_any()


def _is_known(domain: str, module: ModuleOp) -> bool:
    """Whether onnxruntime has operators of `domain`, or the model may define them itself."""
    return domain.startswith(DOMAINS) or FUNCTIONS in module.attributes


class Dump:
    """Writes the module after every step as NN-step.mlir into a folder, and the weights beside them."""

    def __init__(self, folder: Path, compilation: Compilation) -> None:
        self.folder, self.compilation, self.number, self.saved = folder, compilation, 0, 0
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise Refusal(f"--dump-dir {folder}: {existing} is no folder")
        # The mode's bits, not `os.access`: what is marked read-only is refused to root, too.
        if not existing.stat().st_mode & 0o222:
            raise Refusal(f"--dump-dir {folder}: {existing} is read-only")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refusal(f"--dump-dir {folder}: {error.strerror}") from error
        self._write("import", compilation.module)

    def __call__(self, step: Step, module: ModuleOp) -> None:
        """Write the module after `step`."""
        self._write(step.name, module)

    def _write(self, name: str, module: ModuleOp) -> None:
        try:
            (self.folder / f"{self.number:02}-{name}.mlir").write_text(ir_text(module))
            if len(self.compilation.ctx.weights) != self.saved:  # a store only grows
                (self.folder / "weights.npz").write_bytes(self.compilation.ctx.weights.to_bytes())
                self.saved = len(self.compilation.ctx.weights)
        except OSError as error:
            raise Refusal(f"--dump-dir {self.folder}: {error.strerror}") from error
        self.number += 1
