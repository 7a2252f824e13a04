"""The command line: parses, calls one function, and turns its outcome into an exit code.

0 done; 1 the input is refused (one line on stderr); 2 wrong usage; 3 a defect of cnncc
(one line; with CNNCC_TRACEBACK=1 also the traceback).
"""

from __future__ import annotations

import errno
import os
import sys
import traceback

import click

from cnncc.errors import Refusal


class _ExitCodes(click.Group):
    """A group whose commands end in the exit codes above."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except Refusal as refusal:
            click.echo(f"cnncc: {' '.join(str(refusal).split())}", err=True)
            sys.exit(1)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader has gone: click's business
            if os.environ.get("CNNCC_TRACEBACK") == "1":
                traceback.print_exc()
            message = " ".join(str(error).split())[:400]
            click.echo(
                f"cnncc: {type(error).__name__}: {message}: this is a defect of cnncc, please report "
                f"(CNNCC_TRACEBACK=1 shows where)",
                err=True,
            )
            sys.exit(3)


@click.group(cls=_ExitCodes, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cnncc")
def main() -> None:
    """Compile ONNX convolutional networks to instructions for an array of processing elements."""


@main.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def opt(args: tuple[str, ...]) -> None:
    """Apply passes to FILE.mlir or MODEL.onnx, as xdsl-opt does."""
    from cnncc.opt import run_opt

    run_opt(args)
