"""The command line: parses, calls one function, and turns its outcome into an exit code.

0 done; 1 the input is refused (one line on stderr, and one for each problem where there are several); 2 wrong usage;
3 a defect of cnncc (one line; with CNNCC_TRACEBACK=1 also the traceback).
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

import cnncc
from cnncc.errors import MESSAGE_LIMIT, Refusal, one_line

FILE = click.Path(path_type=Path)

# numpy reads it when it is first imported, which the commands do. Why one thread: the matrix products of a program are
# small, and a second thread costs more than it gives (2026-11: LeNet's convolutions 2.8 times slower with two).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class _ExitCodes(click.Group):
    """A group whose commands end in the exit codes above."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except Refusal as refusal:
            click.echo("cnncc: " + "\n".join(refusal.lines), err=True)
            sys.exit(1)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader has gone: click's business
            if os.environ.get("CNNCC_TRACEBACK") == "1":
                traceback.print_exc()
            message = one_line(str(error), MESSAGE_LIMIT - 150)
            click.echo(
                f"cnncc: {type(error).__name__}: {message}: this is a defect of cnncc, please report "
                f"(CNNCC_TRACEBACK=1 shows where)",
                err=True,
            )
            sys.exit(3)


@click.group(cls=_ExitCodes, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(cnncc.__version__)
def main() -> None:
    """Compile ONNX convolutional networks to instructions for an array of processing elements, and run them.

    \b
    cnncc compile samples/models/lenet.onnx --batch 1 --calibrate samples/inputs/digits_calibration.npz
    cnncc run lenet.cnb --input samples/inputs/digits_test.npz
    cnncc verify samples/models/lenet.onnx --batch 1 --input samples/inputs/digits_test.npz
    """


def _model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `compile`, `check` and `verify` have in common."""
    options = (
        click.option("--arch", default="spatial-8x8", show_default=True, help="Array: a preset or a TOML file."),
        click.option("--precision", type=click.Choice(["int8", "int16"]), help="Operands; default: the array's width."),
        click.option("--calibrate", type=FILE, help="Samples of the inputs (.npz by tensor name), for the scales."),
        click.option("--batch", type=click.IntRange(min=1), help="Size of a symbolic batch dimension."),
        click.option("--schedule", type=FILE, help="Mappings of some layers (TOML, docs/schedule.md), used as given."),
        click.option(
            "--dataflow",
            metavar="NAME",
            help="Of the layers that --schedule leaves: auto (the default, the best of all), os, ws, is, rs or nlr.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@click.argument("model", type=FILE, required=False)
@click.option("-o", "--output", type=FILE, help="Default: MODEL.cnb here; IR and assembly go to the terminal.")
@_model_options
@click.option(
    "--emit",
    type=click.Choice(["onnx", "cnn", "nest", "array", "isa", "asm", "bin"]),
    default="bin",
    show_default=True,
    help="Stop at this level and write it.",
)
@click.option("--dump-dir", type=FILE, help="Write the IR after every step there, as NN-step.mlir.")
@click.option("--from", "start", type=FILE, help="Compile on from a dumped, perhaps edited .mlir.")
def compile(**options: Any) -> None:
    """Compile MODEL.onnx to a binary, MODEL.cnb.

    \b
    cnncc compile net.onnx
    cnncc compile net.onnx --emit nest                    read the loop nests
    cnncc compile net.onnx --schedule mine.toml           layers mapped by hand
    cnncc compile net.onnx --dataflow ws                  weight stationary
    cnncc compile net.onnx --dump-dir ir                  the IR after every step
    cnncc compile --from ir/16-nest-permute.mlir -o net.cnb     … and on from any of them
    """
    from cnncc.commands import compile_command

    compile_command(progress=_progress(), **options)


@main.command()
@click.argument("binary", type=FILE)
@click.option("--input", "inputs", type=FILE, help="Inputs (.npz by tensor name); default: random.")
@click.option("--output", type=FILE, help="Write the outputs there (.npz by tensor name).")
@click.option("--stats", type=FILE, help="Write all counters there, as JSON.")
def run(binary: Path, inputs: Path | None, output: Path | None, stats: Path | None) -> None:
    """Run BINARY.cnb from its instructions alone, counting cycles and words.

    \b
    cnncc run lenet.cnb --input images.npz --output logits.npz --stats counters.json
    """
    from cnncc.commands import run_command

    run_command(binary, inputs, output, stats)


class _Pair(click.ParamType[tuple[int, int]]):
    """Two numbers with a separator between."""

    def __init__(self, name: str, separator: str) -> None:
        self.name, self.separator = name, separator

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return cast("tuple[int, int]", value)
        first, _, second = str(value).partition(self.separator)
        if not (first.isdecimal() and second.isdecimal()):
            self.fail(f"'{value}' is not {self.name.upper()}, for example 0{self.separator}1", param, ctx)
        return int(first), int(second)


@main.command()
@click.argument("source", type=FILE)
@_model_options
@click.option("--layer", help="A layer's label; default: the first.")
@click.option("--pe", type=_Pair("row,col", ","), default=(0, 0), help="The PE; default: 0,0.")
@click.option("--macros", type=_Pair("from:to", ":"), default=(0, 1), help="Its macro-instructions; default: 0:1.")
def atoms(macros: tuple[int, int], **options: Any) -> None:
    """Print what one PE does cycle by cycle: its multiply-accumulates, what it sends west and receives from the east.

    SOURCE is a model, or IR that was dumped before nest-to-array.

    \b
    cnncc atoms net.onnx --arch seed-4x4 --layer conv1 --pe 0,1 --macros 0:2
    """
    from cnncc.atoms import atoms_command

    atoms_command(macros=range(*macros), **options)


@main.command()
@click.argument("source", type=FILE)
@_model_options
@click.option("--layer", help="Only the layer with this label.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def reuse(**options: Any) -> None:
    """Say what each layer's operands move at each level of the array, how often words are used, and what stays where.

    By analysis of the mappings, without running anything: the words are those that `run --stats` counts. SOURCE is a
    model, or IR that was dumped before nest-to-array.

    \b
    cnncc reuse net.onnx --schedule mine.toml --layer conv1
    """
    from cnncc.commands import reuse_command

    reuse_command(**options)


@main.command()
@click.argument("source", type=FILE)
@_model_options
@click.option("--explain", "explained", metavar="LAYER", help="Why this layer takes so long, and what would help.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.option("--certificate", type=FILE, help="Write what is proven of each layer's mapping, as JSON.")
@click.option(
    "--check-certificate", type=FILE, help="Show that it is so, with no code of the search; print no estimate."
)
@click.pass_context
def estimate(
    ctx: click.Context, source: Path, explained: str | None, as_json: bool, certificate: Path | None,
    check_certificate: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Say what each layer takes: its mapping, cycles, words, energy, and what limits it.

    By analysis, without running anything: the numbers are those that `run --stats` counts. SOURCE is a model, IR that
    was dumped before nest-to-array, or a binary, of which the metadata is read and not the program.

    \b
    cnncc estimate net.onnx --arch spatial-16x16
    cnncc estimate net.cnb --explain conv2
    """
    from cnncc.estimate.command import check_command, estimate_command

    given = [name for name in options if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if check_certificate:
        if explained or as_json or certificate:
            raise click.UsageError("--check-certificate goes with no other output")
        check_command(source, check_certificate, _progress(), **options)
    else:
        estimate_command(source, explained, as_json, certificate, _progress(), given, **options)


@main.command()
@click.argument("model", type=FILE)
@click.option("--vary", multiple=True, required=True, metavar="KEY=VALUES", help="rows=4,8 or pe.psum_words=8:32:8 …")
@_model_options
@click.option(
    "-o", "--out", type=FILE, help="The results: a .jsonl file or a folder; default: MODEL.explore.jsonl here."
)
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Processes; default: as many as processors.")
@click.option("--objective", "objectives", multiple=True, metavar="NAME", help="What is to be small, several times.")
def explore(**options: Any) -> None:
    """Say what MODEL.onnx takes on every array that --vary spans, with --arch for all other keys, and which are best.

    Each result is added to a file at once. The same command goes on where it was ended, by whatever. Objectives are
    cycles, energy, multipliers, memory_bits and dram_words; default: the first three.

    \b
    cnncc explore net.onnx --vary rows=4,8,16 --vary cols=4:16:4 --vary links.south=true,false
    """
    from cnncc.explore.command import explore_command

    explore_command(progress=_progress(), **options)


@main.command()
@click.argument("model", type=FILE)
@_model_options
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(**options: Any) -> None:
    """Say all that is wrong with MODEL.onnx, what costs time or accuracy, and what was folded; writes nothing.

    \b
    cnncc check net.onnx --arch mine.toml

    Exit code 1 if anything stops `compile`.
    """
    from cnncc.commands import check_command

    check_command(progress=_progress(), **options)


@main.command()
@click.argument("model", type=FILE)
@_model_options
@click.option("--input", "inputs", type=FILE, help="Inputs to run (.npz by tensor name); default: random.")
@click.option("--images", type=click.IntRange(min=1), default=4, show_default=True, help="How many of them.")
@click.option("--layers", is_flag=True, help="Print the accuracy of every value, not of the worst few.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.option("--min-sqnr", type=float, metavar="DB", help="Exit code 1 if an output is less accurate.")
def verify(**options: Any) -> None:
    """Run MODEL.onnx at every level and after every step, and compare: names the step that changed a value.

    Then says how far the quantised network is from float, which layer loses most, and whether one errs by more than
    the steps of its integers explain.

    \b
    cnncc verify net.onnx --precision int8 --input images.npz

    Exit code 3 if a step changed a value, 4 if a layer errs by more, 1 below --min-sqnr.
    """
    from cnncc.commands import verify_command

    verify_command(progress=_progress(), **options)


@main.command()
@click.argument("binary", type=FILE)
@click.option("-o", "--output", type=FILE, help="Write there instead of to the terminal.")
def disasm(binary: Path, output: Path | None) -> None:
    """Print the program of BINARY.cnb as assembly, with the layer of each part as a comment."""
    from cnncc.commands import disasm_command

    disasm_command(binary, output)


@main.command()
@click.argument("binary", type=FILE)
@click.option("--at", metavar="ADDRESS", help="Of one load or mac, by its word as in the disassembly: with input data.")
@click.option("--input", "inputs", type=FILE, help="Inputs (.npz by tensor name) for --at; default: random.")
def messages(binary: Path, at: str | None, inputs: Path | None) -> None:
    """Print what the row buses deliver to PEs for each load and mac of BINARY.cnb: the thesis' fields.

    \b
    cnncc messages lenet.cnb
    cnncc messages lenet.cnb --at 00c2                    runs the program up to there
    """
    from cnncc.commands import messages_command

    messages_command(binary, at, inputs)


@main.command()
@click.argument("source", type=FILE)
@click.option("-o", "--output", type=FILE, required=True, help="The binary to write.")
@click.option("--data", type=FILE, required=True, help="Binary that gives array, weights and tensors.")
def asm(source: Path, output: Path, data: Path) -> None:
    """Assemble SOURCE.s into a binary with the weights and tensors of another.

    \b
    cnncc disasm lenet.cnb -o lenet.s
    cnncc asm lenet.s --data lenet.cnb -o same.cnb
    """
    from cnncc.commands import asm_command

    asm_command(source, output, data)


@main.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def opt(args: tuple[str, ...]) -> None:
    """Apply passes to FILE.mlir or MODEL.onnx, as xdsl-opt does."""
    from cnncc.opt import run_opt

    run_opt(args)


@main.group()
def arch() -> None:
    """The arrays that come with cnncc; any of them is a start for a file of one's own."""


@arch.command("list")
def arch_list() -> None:
    """List the presets."""
    from cnncc.commands import arch_list_command

    arch_list_command()


@arch.command("show")
@click.argument("name")
def arch_show(name: str) -> None:
    """Print an array's file.

    \b
    cnncc arch show spatial-8x8 > mine.toml
    """
    from cnncc.commands import arch_show_command

    arch_show_command(name)


def _progress() -> Callable[[str], None]:
    """Says what is being done on one line of a terminal; nothing on a pipe."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda step: click.echo(f"\r\033[K{step}", nl=False, err=True)
