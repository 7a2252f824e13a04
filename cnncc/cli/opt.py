"""`cnncc opt`."""

from __future__ import annotations

from inspect import cleandoc

import click


@click.command("opt", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...]) -> None:
    """Apply passes to FILE.mlir or MODEL.onnx, as xdsl-opt does; or say what passes there are.

    \b
    cnncc opt net.mlir -p 'nest-tile{dim=h size=4}'   run a pass
    cnncc opt --passes                                list all passes
    cnncc opt --passes nest-tile                      what a pass does, and its options
    """
    manual_of = list(args[1:])
    if args[:1] == ("--passes",) and len(manual_of) <= 1:
        from cnncc.driver.pass_manual import listing, page

        click.echo(page(manual_of[0]) if manual_of else listing(), nl=False)
        return
    from cnncc.driver.opt_main import run_opt

    run_opt(args, cleandoc(command.help or "").replace("\b\n", ""))
