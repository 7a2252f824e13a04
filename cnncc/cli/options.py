"""What commands have in common: their options, and how they print."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from cnncc.frontend.input_shapes import Shapes, input_shape, shapes_of
from cnncc.mapper.objective import MOST_SLACK, OBJECTIVES, SLACK

if TYPE_CHECKING:
    from cnncc.driver.pipeline import Compilation

FILE = click.Path(path_type=Path)
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class _InputShape(click.ParamType[tuple[str, tuple[int, ...]]]):
    """An input's name and the sizes of its dims."""

    name = "name=sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Both. Raises what click takes for wrong usage."""
        try:
            return input_shape(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _by_name(ctx: click.Context, param: click.Parameter, given: Sequence[tuple[str, Sequence[int]]]) -> Shapes:
    return shapes_of(given)


_COMPILE_OPTIONS = (
    click.option("--arch", default="spatial-8x8", show_default=True, help="Array: a preset or a TOML file."),
    click.option("--precision", type=click.Choice(["int8", "int16"]), help="Operands; default: the array's width."),
    click.option("--calibrate", type=FILE, help="Samples of the inputs (.npz by tensor name), for the scales."),
    click.option("--batch", type=click.IntRange(min=1), help="Size of a symbolic batch dimension; default: 1."),
    click.option(
        "--shape",
        "shapes",
        type=_InputShape(),
        multiple=True,
        callback=_by_name,
        help="Sizes of an input (or output) with symbolic dims: images=1,3,224,224; several may be given.",
    ),
    click.option("--schedule", type=FILE, help="Mappings of some layers (TOML, docs/schedule.md), used as given."),
    click.option(
        "--dataflow",
        metavar="NAME",
        help="For layers that --schedule does not name: auto (the default, the best of all); os, ws or is (the best "
        "of that form); rs, nlr, inter, inter-weights, inter-data, intra or intra-sliding (completed texts).",
    ),
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        help="Minimise this: cycles (the default; then energy, within --slack), energy, edp (their product), "
        "or words (from and to DRAM).",
    ),
    click.option(
        "--slack",
        type=click.FloatRange(0, MOST_SLACK),
        help=f"With cycles: the share above the fewest that may be spent on less energy; default: {SLACK}.",
    ),
    click.option(
        "--groups",
        metavar="auto|none|FILE",
        help="Layers that run together, stripe by stripe: those that are better so; none; or those of a schedule "
        "file. Default: those of --schedule, else auto.",
    ),
    click.option(
        "--partition",
        metavar="none|auto|mapper|LAYERS",
        help="Layers whose kernels are cut into pieces as large as the stride (docs/cbrain.md): none (the default), "
        "those that Algorithm 2 of C-Brain says, those that take fewer cycles so, or labels with commas between.",
    ),
)
_PARALLEL_OPTIONS = (
    click.option(
        "--parallel",
        type=click.Choice(["layers"]),
        help="Run layers side by side, on cores of the array (docs/cores.md).",
    ),
    click.option(
        "--fps",
        type=click.FloatRange(0, min_open=True),
        metavar="F",
        help="With --parallel: as few PEs as do F frames a second; default: all, for the most frames.",
    ),
)


def compile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every command that compiles; the command gets them as one argument, `options`."""

    @wraps(command)
    def with_options(**given: Any) -> Any:
        from cnncc.driver.sources import CompileOptions

        known = {each.name: given.pop(each.name) for each in fields(CompileOptions) if each.name in given}
        return command(options=CompileOptions(**known), **given)

    parsed = with_options
    for option in reversed(_COMPILE_OPTIONS):
        parsed = option(parsed)
    return parsed


def parallel_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options for layers side by side, below `compile_options`."""
    for option in reversed(_PARALLEL_OPTIONS):
        command = option(command)
    return command


class _Output(click.Path):
    """A file to write. Without `or_folder` a name such as `out/` is refused; a `Path` would forget the slash."""

    def __init__(self, or_folder: bool) -> None:
        super().__init__(path_type=Path)
        self.or_folder = or_folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises what click takes for wrong usage."""
        if str(value).endswith("/") and not self.or_folder:
            self.fail(f"'{value}' is a folder: name a file in it", param, ctx)
        return super().convert(value, param, ctx)


def output_option(what: str, *, required: bool = False, or_folder: bool = False) -> Decorator:
    """`-o, --output`."""
    return click.option("-o", "--output", type=_Output(or_folder), required=required, help=what)


def json_option(what: str = "all of it") -> Decorator:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


class Pair(click.ParamType[tuple[int, int]]):
    """Two numbers with a separator between."""

    def __init__(self, name: str, separator: str) -> None:
        self.name, self.separator = name, separator

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Both numbers. Raises what click takes for wrong usage."""
        if isinstance(value, tuple):
            return cast("tuple[int, int]", value)
        first, _, second = str(value).partition(self.separator)
        if not (first.isdecimal() and second.isdecimal()):
            self.fail(f"'{value}' is not {self.name.upper()}, for example 0{self.separator}1", param, ctx)
        return int(first), int(second)


class Probability(click.ParamType[float]):
    """A probability below 1, as `2^-50` or `1e-15`; its value is the number of bits, -log2 of it."""

    name = "probability"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The bits. Raises what click takes for wrong usage."""
        base, _, power = str(value).partition("^")
        try:
            bits = -float(power) * math.log2(float(base)) if power else -math.log2(float(base))
        except (ValueError, OverflowError):
            bits = 0.0
        if not 0 < bits < math.inf:
            self.fail(f"'{value}' is no probability between 0 and 1, for example 2^-50", param, ctx)
        return bits


def print_remarks(compilation: Compilation, values: bool = True) -> None:
    """The remarks of a compilation on stderr. values: whether the command has to do with any."""
    for remark in compilation.remarks(values):
        click.echo(f"cnncc: {remark}", err=True)


def given_options(ctx: click.Context) -> set[str]:
    """The names of the options and arguments that stand on the command line."""
    return {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def option_of(ctx: click.Context, name: str) -> str:
    """An option as users write it, by its parameter: `--shape` of `shapes`."""
    return next(max(param.opts, key=len) for param in ctx.command.params if param.name == name)


def write_text(path: Path | None, text: str) -> None:
    """To a file, or to the terminal."""
    from cnncc.util.files import write_atomically

    if path is None:
        click.echo(text, nl=False)
    else:
        write_atomically(path, text.encode())
