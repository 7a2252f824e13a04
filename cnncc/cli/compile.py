"""`cnncc compile`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from cnncc.cli.options import FILE, compile_options, output_option, parallel_options, print_remarks, write_text
from cnncc.errors import Refusal
from cnncc.util.progress import progress_line
from cnncc.util.terminal import fitted

if TYPE_CHECKING:
    from cnncc.driver.build import Build
    from cnncc.driver.pipeline import Compilation
    from cnncc.driver.sources import CompileOptions
    from cnncc.model.cores_plan import CoresPlan


@click.command("compile")
@click.argument("model", type=FILE, required=False)
@output_option("Default: MODEL.cnb here; IR and assembly go to the terminal.")
@click.option(
    "--emit",
    type=click.Choice(["onnx", "cnn", "nest", "array", "isa", "asm", "bin", "schedule"]),
    default="bin",
    show_default=True,
    help="Stop at this level and write it; schedule: what the compiler chooses, for --schedule.",
)
@click.option("--dump-dir", type=FILE, help="Write the IR after every step there, as NN-step.mlir.")
@click.option(
    "--from", "start", type=FILE, help="Compile on from a dumped, perhaps edited .mlir, or from its step: ir/nest-tile."
)
@compile_options
@parallel_options
def command(
    model: Path | None, output: Path | None, options: CompileOptions, emit: str, dump_dir: Path | None,
    start: Path | None,
) -> None:  # fmt: skip
    """Compile MODEL.onnx to a binary, MODEL.cnb.

    \b
    cnncc compile net.onnx
    cnncc compile net.onnx --emit nest                    read the loop nests
    cnncc compile net.onnx --emit schedule -o chosen.toml
    cnncc compile net.onnx --schedule chosen.toml         layers mapped by hand
    cnncc compile net.onnx --dataflow ws                  weight stationary
    cnncc compile net.onnx --arch tcpa-4x4 --parallel layers
    cnncc compile net.onnx --dump-dir ir                  the IR after every step
    cnncc compile --from ir/nest-permute -o net.cnb       … and on from any of them
    """
    from cnncc.driver.build import Build
    from cnncc.driver.chosen_schedule import ChosenSchedule
    from cnncc.driver.ir_files import dump_file
    from cnncc.driver.pipeline import LEVELS, Dump
    from cnncc.driver.sources import resume, start_compilation
    from cnncc.util.files import check_writable

    if (model is None) == (start is None):
        raise click.UsageError("give either MODEL.onnx or --from DUMP.mlir")
    for option, given in (("--batch", options.batch), ("--shape", options.shapes)):
        if start is not None and given:
            raise click.UsageError(f"{option} has no effect on a dump: its shapes are fixed")
    source = dump_file(cast("Path", start or model))
    if output is None and emit == "bin":  # IR and assembly go to the terminal
        output = Path(f"{source.stem}.cnb")
    check_writable(output, inputs=(source, options.calibrate, options.schedule))
    compilation = resume(source, options) if start is not None else start_compilation(source, options)
    if emit in LEVELS and LEVELS.index(emit) < LEVELS.index(level := compilation.level()):
        raise Refusal(f"{source}: its level is {level} already, which is below {emit}: give --emit {level}")
    build, chosen = Build(compilation, source), ChosenSchedule(compilation, source)
    dump = [Dump(dump_dir, compilation)] if dump_dir else []
    with progress_line() as progress:
        compilation.ctx.progress = compilation.ctx.note = progress
        compilation.run(emit if emit in LEVELS else "nest" if emit == "schedule" else "isa", [build, *dump])
    if emit == "schedule":
        write_text(output, chosen.text())
    elif emit in LEVELS:
        _write_ir(compilation, output)
    else:
        _write_program(build, output, emit)
    if emit == "bin" and dump_dir is not None:
        click.echo(f"  IR       {dump_dir}/: after every step, with its weights")
    if emit == "bin" and build.share.cores is not None:
        _print_one_core(build, build.share.cores, None if start else options)
    print_remarks(compilation)


def _print_one_core(build: Build, plan: CoresPlan, options: CompileOptions | None) -> None:
    """The hardware of cores beside that of a single core. options: of a model, for what it takes there."""
    from cnncc.estimate.cores_table import one_core_json, one_core_text
    from cnncc.estimate.mapped_program import on_one_core

    arch = build.compilation.settings.arch
    with progress_line() as progress:
        alone = on_one_core(build.source, options, progress) if options else None
    click.echo(fitted(one_core_text(one_core_json(plan, arch, alone), arch.clock_mhz)))


def _write_program(build: Build, output: Path | None, emit: str) -> None:
    from cnncc.binary.container import from_bytes, to_bytes
    from cnncc.binary.isa_module import disassembly
    from cnncc.driver.build_text import build_text
    from cnncc.util.files import write_atomically

    edited = build.compilation.edited
    with _refusals_of_edited(edited):
        binary = build.binary()
    if emit == "asm":
        write_text(output, disassembly(binary))
        return
    assert output is not None
    with _refusals_of_edited(edited):
        data = to_bytes(binary)
        if edited is not None:
            from_bytes(data)
    write_atomically(output, data)
    click.echo(fitted(build_text(build, binary, output, len(data))))


@contextmanager
def _refusals_of_edited(file: Path | None) -> Generator[None]:
    """Refusals that are raised inside name the file that a user may have edited, if there is one."""
    try:
        yield
    except Refusal as refusal:
        if file is None:
            raise
        raise Refusal(f"{file}: edited IR that makes no binary? {refusal}") from refusal


def _write_ir(compilation: Compilation, output: Path | None) -> None:
    """The IR, and in a file beside it its weights, from which `--from` and `opt` read on. Raises Refusal."""
    from cnncc.driver.ir_files import ir_text
    from cnncc.util.files import write_atomically

    text, store = ir_text(compilation.module), compilation.ctx.weights
    if output is not None and len(store):
        weights = output.with_suffix(".npz")
        if weights.exists():
            _check_is_weights(weights)
        write_atomically(weights, store.to_bytes())
    write_text(output, text)


def _check_is_weights(path: Path) -> None:
    """Never overwrite a user's arrays with weights. Raises Refusal."""
    from cnncc.weights import WeightStore

    try:
        WeightStore().load(path)
    except Refusal as refusal:
        raise Refusal(f"{path}: exists and holds no weights, which would be written there") from refusal
