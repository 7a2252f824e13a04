"""`cnncc estimate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cnncc.cli.options import (
    FILE,
    compile_options,
    given_options,
    json_option,
    option_of,
    parallel_options,
    print_remarks,
)
from cnncc.errors import Refusal
from cnncc.util.progress import progress_line
from cnncc.util.terminal import fitted

if TYPE_CHECKING:
    from cnncc.driver.sources import CompileOptions

OUTPUTS = {"explained", "what_if", "frames", "as_json", "page", "certificate", "front"}
# What prints something of its own: the options that it does not go with, and what is said then.
ALONE = {
    "check_certificate": (OUTPUTS | {"check_counters"}, "--check-certificate goes with no other output"),
    "check_counters": (OUTPUTS, "--check-counters goes with no other output"),
    "front": (
        OUTPUTS - {"front", "as_json"} | {"objective", "slack"},
        "--front goes with no other output, and with no objective: it has several",
    ),
    "explained": ({"what_if"}, "--explain and --what-if go one at a time"),
    "page": ({"explained", "what_if"}, "--html is of the whole estimate: it goes with neither --explain nor --what-if"),
}


@click.command("estimate")
@click.argument("source", type=FILE)
@click.option("--explain", "explained", metavar="LAYER", help="Why this layer takes so long, and what would help.")
@click.option(
    "--what-if", metavar="KEY=VALUE", multiple=True, help="What the same program takes on an array with this value."
)
@click.option("--front", is_flag=True, help="What more cycles save of energy: the network's Pareto front of both.")
@click.option(
    "--frames",
    # A run has at most 65,535 frames (CORE-8), and `cores_table.as_json` runs a period of frames more.
    type=click.IntRange(1, 60_000),
    help="Of layers side by side: images that follow each other (64).",
)
@json_option()
@click.option("--html", "page", type=FILE, help="Write all of it as a page, with pictures.")
@click.option("--certificate", type=FILE, help="Write what is proven of each layer's mapping, as JSON.")
@click.option(
    "--check-certificate", type=FILE, help="Check such a file, with no code of the search; print no estimate."
)
@click.option(
    "--check-counters",
    is_flag=True,
    help="Count what a binary's program does, and compare every counter with the estimate; print no estimate.",
)
@compile_options
@parallel_options
@click.pass_context
def command(
    ctx: click.Context, source: Path, options: CompileOptions, explained: str | None, what_if: tuple[str, ...],
    front: bool, frames: int | None, as_json: bool, page: Path | None, certificate: Path | None,
    check_certificate: Path | None, check_counters: bool,
) -> None:  # fmt: skip
    """Say what each layer takes: its mapping, cycles, words, energy, and what limits it.

    By analysis, without running anything: the numbers are those that `run --stats` counts. SOURCE is a model, IR that
    was dumped before nest-to-array, or a binary, of which the metadata is read and not the program.

    \b
    cnncc estimate net.onnx --arch spatial-16x16
    cnncc estimate net.cnb --explain conv2
    cnncc estimate net.cnb --what-if dram.words_per_cycle=16
    cnncc estimate net.cnb --check-counters
    cnncc estimate net.onnx --html net.html
    cnncc estimate net.onnx --front
    cnncc estimate net.onnx --arch tcpa-4x4 --parallel layers
    """
    given = given_options(ctx)
    for output, (others, message) in ALONE.items():
        if output in given and others & given:
            raise click.UsageError(message)
    if source.suffix == ".cnb" and not check_certificate:
        if of_compilation := given & {each.name for each in fields(options)}:
            option = option_of(ctx, min(of_compilation))
            raise click.UsageError(f"{option} has no effect: a binary is mapped, to an array of its own")
        for output in given & {"certificate", "front"}:
            raise click.UsageError(f"--{output} needs a model: the mappings of a binary are fixed")
    if check_certificate:
        _check(source, check_certificate, options)
    elif check_counters:
        if source.suffix != ".cnb":
            raise click.UsageError("--check-counters needs a binary: compile the model")
        _check_counters(source)
    elif front:
        _print_front(source, options, as_json)
    else:
        _estimate(source, options, explained, what_if, frames, as_json, page, certificate)


def _estimate(
    source: Path, options: CompileOptions, explained: str | None, changes: Sequence[str], frames: int | None,
    as_json: bool, page: Path | None, proof: Path | None,
) -> None:  # fmt: skip
    from cnncc.certificate.certificate import certificate
    from cnncc.estimate import cores_table, estimate_table, explain, explain_group, what_if
    from cnncc.estimate.mapped_program import of_binary, of_model, on_one_core
    from cnncc.estimate.page import as_page
    from cnncc.util.files import check_writable, write_atomically

    for output in page, proof:
        check_writable(output, inputs=(source, options.calibrate, options.schedule))
    changed = what_if.read_changes(changes)
    is_binary = source.suffix == ".cnb"
    with progress_line() as progress:
        program, compilation = (of_binary(source), None) if is_binary else of_model(source, options, progress)
        if program.cores:
            outputs = {"--explain": explained is not None, "--what-if": changes, "--html": page, "--certificate": proof}
            if one := next((option for option, given in outputs.items() if given), None):
                raise Refusal(
                    f"{one} works for layers one after the other alone, and {source.name} has some side by side: "
                    f"`cnncc estimate {source.name} --json` has the stalls of each core by cause"
                )
            alone = None if is_binary else on_one_core(source, options, progress)
            beside = cores_table.as_json(program, frames or cores_table.FRAMES, alone)
            lines = [json.dumps(beside, indent=1)] if as_json else cores_table.as_text(beside, program)
            if compilation is not None:
                print_remarks(compilation, values=False)
            click.echo("\n".join(lines) if as_json else fitted(lines))
            return
        if frames is not None:
            raise Refusal(f"--frames needs layers side by side, and {source.name} has none (docs/cores.md)")
        group = explain_group.group_of(program, explained) if explained is not None else None
        if explained is not None and not group and explained not in (labels := [*program.layers(), *program.groups()]):
            raise Refusal(f"there is no layer '{explained}'; layers: {', '.join(labels) or 'none'}")
        estimate = estimate_table.as_json(program)
        if explained is not None and group:
            estimate["explain"] = explain_group.explain_group(program, explained)
        elif explained is not None:
            estimate["explain"] = explain.explain_layer(program, explained, progress)
        if changed:
            estimate["what_if"] = what_if.what_if(program, changed)
        if page:
            write_atomically(page, as_page(estimate, program).encode())
        if proof:
            text = json.dumps(certificate(source, options, progress), indent=1)
            write_atomically(proof, f"{text}\n".encode())
    if compilation is not None:
        print_remarks(compilation, values=False)
    if as_json:
        click.echo(json.dumps(estimate, indent=1))
    elif group:
        click.echo(fitted(explain_group.as_text(estimate, program)))
    elif explained is not None:
        click.echo(fitted(explain.as_text(estimate, program.layers()[explained])))
    elif changed:
        click.echo(fitted(what_if.as_text(estimate, program)))
    else:
        click.echo(fitted(estimate_table.as_text(estimate, program)))


def _print_front(source: Path, options: CompileOptions, as_json: bool) -> None:
    from cnncc.arch.model import load_arch
    from cnncc.estimate import network_front

    with progress_line() as progress:
        front = network_front.network_front(source, options, progress)
    if as_json:
        click.echo(json.dumps(network_front.as_json(front), indent=1))
    else:
        click.echo(fitted(network_front.as_text(front, load_arch(options.arch).energy.unit)))


def _check(source: Path, file: Path, options: CompileOptions) -> None:
    """Raises Refusal for what is not as the certificate says."""
    from cnncc.certificate.certificate import check

    with progress_line() as progress:
        entries = list(check(source, file, options, progress))
    click.echo(f"{file.name}: all {len(entries)} of its entries, layers and groups, are as it says")
    click.echo(fitted(line for lines in entries for line in lines))


def _check_counters(source: Path) -> None:
    """Raises Refusal for counters that are not as predicted."""
    from cnncc.estimate.counter_check import check_counters

    click.echo(check_counters(source))
