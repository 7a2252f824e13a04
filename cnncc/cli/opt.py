"""`cnncc opt`."""

from __future__ import annotations

import click


@click.command("opt", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...]) -> None:
    """Apply passes to FILE.mlir or MODEL.onnx, as xdsl-opt does."""
    from cnncc.driver.opt_main import run_opt

    run_opt(args)
