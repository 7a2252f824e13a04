"""`cnncc verify`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cnncc.cli.options import (
    FILE,
    Probability,
    compile_options,
    given_options,
    json_option,
    option_of,
    parallel_options,
    print_remarks,
)
from cnncc.errors import Refusal, one_line
from cnncc.util.progress import progress_line
from cnncc.util.terminal import fitted

if TYPE_CHECKING:
    from cnncc.driver.sources import CompileOptions
    from cnncc.driver.verify import Verifier
    from cnncc.weights import Array


@click.command("verify")
@click.argument("model", type=FILE)
@click.option("--input", "inputs", type=FILE, help="Inputs to run (.npz by tensor name); default: random.")
@click.option("--images", type=click.IntRange(min=1), default=4, show_default=True, help="How many of them.")
@click.option("--layers", is_flag=True, help="Print the accuracy of every value, not of the worst few.")
@json_option()
@click.option("--min-sqnr", type=float, metavar="DB", help="Exit code 1 if an output is less accurate.")
@click.option("--prove", is_flag=True, help="Prove the compiled program for all inputs and weights instead.")
@click.option(
    "--error", type=Probability(), default="2^-50", show_default=True, help="Of a proof: the probability of an error."
)
@click.option("--model", "network", type=FILE, help="With --prove of a binary: the network that it was compiled from.")
@compile_options
@parallel_options
@click.pass_context
def command(
    ctx: click.Context, model: Path, options: CompileOptions, inputs: Path | None, images: int, layers: bool,
    as_json: bool, min_sqnr: float | None, prove: bool, error: float, network: Path | None,
) -> None:  # fmt: skip
    """Run MODEL.onnx at every level and after every step, and compare: names the step that changed a value.

    Then says how far the quantised network is from float, which layer loses most, and whether one errs by more than
    the steps of its integers explain.

    \b
    cnncc verify net.onnx --precision int8 --input images.npz
    cnncc verify net.onnx --prove
    cnncc verify net.cnb --prove --model net.onnx

    Exit code 3 if a step changed a value, or if something is not proven; 4 if a layer errs by more, 1 below --min-sqnr
    (docs/verify.md, docs/proof.md).
    """
    given = given_options(ctx)
    if prove:
        if unused := given & {"inputs", "images", "layers", "min_sqnr"}:
            raise click.UsageError(f"--prove runs no data: {option_of(ctx, min(unused))} has no effect")
        _prove(model, network, options, error, as_json)
        return
    if given & {"error", "network"}:
        raise click.UsageError("--error and --model go with --prove")
    verifier = _compared(model, options, inputs, images)
    _print_comparison(verifier, model, layers=layers, as_json=as_json)
    if min_sqnr is not None:
        _check_sqnr(verifier, min_sqnr)


def _compared(model: Path, options: CompileOptions, inputs: Path | None, images: int) -> Verifier:
    """The model after every step, up to the one that changes a value; prints the remarks of the compilation."""
    from cnncc.driver import verify
    from cnncc.driver.pipeline import StepFailed
    from cnncc.driver.sources import start_compilation
    from cnncc.main_function import input_names, main_arguments

    compilation = start_compilation(model, options)
    names, arguments = input_names(compilation.module), main_arguments(compilation.module)
    shapes = {name: value.type for name, value in zip(names, arguments, strict=True)}
    verifier = verify.Verifier(compilation, _inputs(inputs, shapes, images))
    try:
        with progress_line() as progress:
            compilation.ctx.progress = progress
            compilation.run("isa", [verifier])
    except StepFailed as failure:
        verifier.failed(failure)
    except verify.Differs:
        pass
    print_remarks(compilation)
    return verifier


def _print_comparison(verifier: Verifier, model: Path, *, layers: bool, as_json: bool) -> None:
    """Checks and accuracy. Exits with code 3 if a step changed a value, with 4 if a layer errs by more."""
    from cnncc.driver import verify

    measured = [
        *verify.accuracy_text(verifier.accuracy, verifier.layers, whole=layers),
        *verify.noise_text(verifier.noises, whole=layers),
    ]
    report = json.dumps(verify.as_json(verifier, model), indent=1) if as_json else ""
    click.echo(report or fitted([*verify.checks_text(verifier.checks), *measured]))
    failed = [check for check in verifier.checks if not check.agrees]
    if failed:
        click.echo(one_line(f"cnncc: step {failed[0].step} is wrong: {failed[0].detail}"), err=True)
        raise SystemExit(3)
    if not as_json:
        click.echo(f"all {len(verifier.checks)} steps agree (calibration changes no value)")
    if beyond := verifier.beyond_noise:
        more = f"; {len(beyond) - 1} more" if len(beyond) > 1 else ""
        click.echo(one_line(f"cnncc: layer {beyond[0].text}{more}"), err=True)
        raise SystemExit(4)


def _prove(model: Path, network: Path | None, options: CompileOptions, error_bits: float, as_json: bool) -> None:
    """Print what is proven of a model's program, or of a binary."""
    from cnncc.driver.prove import claim_of_binary, claim_of_model, model_hint
    from cnncc.proof.proof import prove
    from cnncc.proof.proof_text import proof_json, proof_text, verdict

    if (model.suffix == ".cnb") != (network is not None):
        raise click.UsageError("--prove of a binary takes its network, --model NET.onnx; of a model it takes none")
    with progress_line() as progress:
        claim = claim_of_binary(model, network, options) if network else claim_of_model(model, options, progress)
        proof = prove(claim, error_bits, progress)
    click.echo(json.dumps(proof_json(proof, model), indent=1) if as_json else fitted(proof_text(proof)))
    if failures := proof.failures:
        hint = f": {model_hint(claim.binary, network)}" if network and proof.differences else ""
        click.echo(one_line(f"cnncc: {model} is not proven: {failures[0]}{hint}"), err=True)
        raise SystemExit(3)
    if not as_json:
        click.echo(verdict(proof))


def _check_sqnr(verifier: Verifier, least_db: float) -> None:
    """Raises Refusal for an output that is less accurate."""
    from cnncc.driver.accuracy import greatest_drop

    if not verifier.accuracy:
        click.echo("cnncc: warning: --min-sqnr: the model's own integers are not compared with float", err=True)
    most = greatest_drop(verifier.layers)
    for output in verifier.accuracy:
        if not output.sqnr_db >= least_db:  # nor of nan
            where = f": {most.label} loses most, {most.drop_db:.1f} dB" if most else ""
            raise Refusal(f"output '{output.output}': SQNR {output.sqnr_db:.1f} dB, --min-sqnr {least_db:g}{where}")


def _inputs(path: Path | None, shapes: Mapping[str, Any], images: int) -> dict[str, Array]:
    """The first `images` samples of a file, or seeded noise, in whole batches. Raises Refusal."""
    import numpy as np

    from cnncc.dialects.cnn import shape
    from cnncc.dialects.weights import element_dtype
    from cnncc.util.npz import count_batches, noise, read_npz

    dims = {name: shape(kind) for name, kind in shapes.items()}
    elements = {name: element_dtype(kind.element_type).name for name, kind in shapes.items()}
    batches = max(-(-images // batch) for batch, *_ in dims.values())
    if path is None:
        rng = np.random.default_rng(0)
        sizes = {name: (batches * batch, *rest) for name, (batch, *rest) in dims.items()}
        return {name: noise(size, elements[name], rng) for name, size in sizes.items()}
    data = read_npz(path, list(dims))
    count_batches(data, dims, elements)
    return {name: data[name][: batches * dims[name][0]].astype(elements[name]) for name in dims}
