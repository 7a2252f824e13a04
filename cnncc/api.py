"""cnncc from Python: what `compile`, `run` and `estimate` do, with arrays in memory. docs/python.md shows it.

These names stay: a version may add to them, and the change log names all that it changes. All other modules may change.
What cannot be done raises `Refusal`, with the message of the command.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cnncc.binary.container import Binary, load, save
from cnncc.binary.counters import program_stats
from cnncc.binary.run import run
from cnncc.driver.build import Build
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.estimate import cores_table, estimate_table
from cnncc.estimate.mapped_program import of_binary, of_model, on_one_core
from cnncc.util.progress import Progress, silent
from cnncc.weights import Array

__all__ = ["Binary", "CompileOptions", "Refusal", "compile_model", "estimate", "load", "program_stats", "run", "save"]

Remark = Callable[[str], object]
DEFAULTS = CompileOptions()


def _warn(text: str) -> None:
    # 1 would be this line, 2 the function below that has a remark, 3 is the user's call of it.
    warnings.warn(text, stacklevel=3)


@contextmanager
def _all_lines() -> Generator[None]:
    """Let a traceback of Python print all lines of a Refusal."""
    try:
        yield
    except Refusal as refusal:
        for line in refusal.lines[1:]:
            refusal.add_note(line)
        raise


def compile_model(
    model: Path | str,
    options: CompileOptions = DEFAULTS,
    calibration: Mapping[str, Array] | None = None,
    progress: Progress = silent,
    remark: Remark = _warn,
) -> Binary:
    """The binary of an ONNX file, as `cnncc compile` writes it.

    Args:
        calibration: samples of each input by its name, [samples * batch, …], in the place of `options.calibrate`
        progress: is told what is being done
        remark: is told the notes and warnings of the command; without it they are warnings of Python

    Raises: Refusal
    """
    with _all_lines():
        compilation = start_compilation(Path(model), options, calibration)
        build = Build(compilation, Path(model))
        compilation.ctx.progress = progress
        compilation.run(after=[build])
        for text in compilation.remarks(values=True):
            remark(text)
        return build.binary()


def estimate(
    source: Path | str,
    options: CompileOptions = DEFAULTS,
    progress: Progress = silent,
    remark: Remark = _warn,
) -> dict[str, Any]:
    """What a network and each of its layers take, without running it: what `cnncc estimate --json` prints.

    Args:
        source: an ONNX file, IR from before nest-to-array, or a binary, which takes no options
        progress, remark: as of `compile_model`

    Raises: Refusal
    """
    with _all_lines():
        path = Path(source)
        if path.suffix == ".cnb":
            if options != DEFAULTS:
                raise Refusal(f"{path}: a binary is mapped, to an array of its own: give no options")
            program = of_binary(path)
        else:
            program, compilation = of_model(path, options, progress)
            for text in compilation.remarks(values=False):
                remark(text)
        if program.cores is None:
            return estimate_table.as_json(program)
        alone = None if path.suffix == ".cnb" else on_one_core(path, options, progress)
        return cores_table.as_json(program, cores_table.FRAMES, alone)
