"""The command line: parses, calls one function, and turns its outcome into an exit code.

    0   done
    1   the input is refused: one line on stderr, and one for each problem if there are several; or it takes more memory
        than there is
    2   wrong usage
    3   a defect of cnncc: one line; with CNNCC_TRACEBACK=1 also the traceback

`cnncc NAME` is the file `cnncc/cli/NAME.py`, which is imported when the command is used.
"""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import cast

import click

import cnncc
from cnncc.errors import Refusal, one_line
from cnncc.util.memory_settings import prefer_time_to_memory

NO_COMMANDS = ("main", "options")  # modules of this package
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
SENTENCE_LIMIT = 500  # characters: no first sentence of a command's help is that long

# numpy reads it when it is first imported, which the commands do. Why one thread: the matrix products of a program are
# small, and a second thread costs more than it gives (2026-11: LeNet's convolutions 2.8 times slower with two).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _check_given_once(ctx: click.Context, args: list[str]) -> None:
    """Raises what click takes for wrong usage, if an option with one value is given twice: click takes the last.

    What click raises itself of an option without its value does not name the command. It does behind this.
    """
    try:
        given = Counter(ctx.command.make_parser(ctx).parse_args(list(args))[2])
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise
    for option, times in given.items():
        if times > 1 and isinstance(option, click.Option) and not (option.multiple or option.is_flag):
            raise click.UsageError(f"{max(option.opts, key=len)} is given {times} times, but has one value", ctx)


class _Commands(click.Group):
    """The commands beside this file; they end in the exit codes above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, sorted."""
        names = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
        return sorted(name for name in names if name not in NO_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The object `command` of the file."""
        if cmd_name not in self.list_commands(ctx):
            return super().get_command(ctx, cmd_name)
        return cast("click.Command", importlib.import_module(f"cnncc.cli.{cmd_name}").command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with. Raises what click takes for wrong usage, with the nearest name."""
        try:
            name, command, rest = super().resolve_command(ctx, args)
            if command:
                _check_given_once(click.Context(command, ctx, name, **command.context_settings), rest)
            return name, command, rest
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with the whole first sentence of its help, which click cuts at the end of a line."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(SENTENCE_LIMIT)) for name, command in commands if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; what it raises becomes an exit code."""
        prefer_time_to_memory()
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
            if isinstance(error, OSError) and error.errno in CANNOT_WRITE and error.filename is None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left when it ends
                click.echo(f"cnncc: standard output cannot be written: {error.strerror}", err=True)
                sys.exit(1)
            if os.environ.get("CNNCC_TRACEBACK") == "1":
                traceback.print_exc()
            if isinstance(error, MemoryError):
                advice = "give fewer images, a smaller batch, or an array with fewer glb.words"
                click.echo("cnncc: " + one_line(f"not enough memory: {str(error) or 'it is full'}: {advice}"), err=True)
                sys.exit(1)
            advice = "this is a defect of cnncc, please report (CNNCC_TRACEBACK=1 shows where)"
            click.echo("cnncc: " + one_line(f"{type(error).__name__}: {error}: {advice}"), err=True)
            sys.exit(3)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(cnncc.__version__)
def main() -> None:
    """Compile ONNX convolutional networks to instructions for an array of processing elements, and run them.

    \b
    cnncc compile samples/models/lenet.onnx --batch 1 --calibrate samples/inputs/digits_calibration.npz
    cnncc run lenet.cnb --input samples/inputs/digits_test.npz
    cnncc verify samples/models/lenet.onnx --batch 1 --input samples/inputs/digits_test.npz
    """
