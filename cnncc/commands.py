"""What the commands of the command line do, and what they print."""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import click
import numpy as np

from cnncc import verify
from cnncc.accuracy import loses_most
from cnncc.arch.model import PRESETS, load_arch, preset_names
from cnncc.errors import Refusal, one_line
from cnncc.files import check_writable, write_atomically
from cnncc.inputs import count_batches, noise, npz_bytes, read_npz
from cnncc.mapper import plans
from cnncc.mapper.energy import with_energy
from cnncc.passes._schedule_file import read_schedule
from cnncc.pipeline import (
    LEVELS,
    Compilation,
    Dump,
    Observer,
    StepFailed,
)
from cnncc.planned import Planned
from cnncc.report import Report
from cnncc.starts import resume, start_compilation
from cnncc.verify import Differs, Verifier
from cnncc.weights import Array, WeightStore

Progress = Callable[[str], None]


def _write(path: Path | None, text: str) -> None:
    if path is None:
        click.echo(text, nl=False)
    else:
        write_atomically(path, text.encode())


# -- compile -----------------------------------------------------------------------------------------------------------


def compile_command(
    model: Path | None, output: Path | None, arch: str, precision: str | None, calibrate: Path | None,
    batch: int | None, schedule: Path | None, dataflow: str | None, emit: str,
    dump_dir: Path | None, start: Path | None, progress: Progress,
) -> None:  # fmt: skip
    """`cnncc compile`."""
    if (model is None) == (start is None):
        raise click.UsageError("give either MODEL.onnx or --from DUMP.mlir")
    if start is not None and batch is not None:
        raise click.UsageError("--batch has no effect on a dump: its shapes are fixed")
    output = output or _default_output(emit, cast("Path", start or model))
    check_writable(output)
    if start is not None:
        source = start
        compilation = resume(start, arch, precision, calibrate, schedule, dataflow)
    else:
        source = cast("Path", model)
        compilation = start_compilation(source, arch, precision, calibrate, batch, schedule, dataflow)
    report, plan = Report(), Planned(compilation)
    report.read(compilation.module)
    dump = [Dump(dump_dir, compilation)] if dump_dir else []
    compilation.ctx.progress = progress
    try:
        compilation.run(emit if emit in LEVELS else "isa", [_shown(progress), report, plan, *dump])
    except StepFailed as failure:
        if start is None:
            raise
        raise Refusal(f"{start}: edited IR that is not consistent? {failure}") from failure
    progress("")
    _emit(compilation, report, plan, source, output, emit, dump_dir)
    for warning in compilation.warnings:
        click.echo(f"cnncc: warning: {warning}", err=True)


def _default_output(emit: str, source: Path) -> Path | None:
    """A binary is a file; IR and assembly go to the terminal."""
    return Path(f"{source.stem}.cnb") if emit == "bin" else None


def _shown(progress: Progress) -> Observer:
    return lambda step, _: progress(step.name)


def _emit(
    compilation: Compilation,
    report: Report,
    plan: Planned,
    source: Path,
    output: Path | None,
    emit: str,
    dump_dir: Path | None,
) -> None:
    from cnncc.machine.container import to_bytes
    from cnncc.machine.modules import build_binary

    if emit in LEVELS:
        _write_ir(compilation, output)
        return
    about = {"model": source.name, "model_sha256": hashlib.sha256(source.read_bytes()).hexdigest(), **report.about()}
    about |= {} if plan.parts is None else {"plan": plans.as_json(plan.parts)}
    binary = build_binary(compilation.module, compilation.ctx.weights, compilation.settings.arch, about)
    if emit == "asm":
        _write(output, disassembly(binary))
        return
    assert output is not None
    data = to_bytes(binary)
    write_atomically(output, data)
    click.echo(f"{source} -> {output}, {len(data):,} bytes")
    words = sum(array.size for _, array in binary.weights)
    click.echo(f"  array    {binary.arch.name}, int{compilation.settings.operand_bits} operands")
    click.echo(f"  program  {binary.program.nbytes:,} bytes; weights {words:,} words")
    if report.all_macs:
        click.echo(f"  MACs     {report.macs:,} of {report.all_macs:,} on the array ({100 * report.share:.2f} %)")
    if (schedule := compilation.settings.schedule) is not None:
        click.echo(f"  schedule {len(read_schedule(schedule))} layer(s) mapped as {schedule} says")
    if report.blocks:
        click.echo(f"  GLB      {report.blocks}")
    for reason in report.hosted:
        click.echo(f"  host     {reason}")
    if dump_dir is not None:
        click.echo(f"  IR       {dump_dir}/: after every step, with its weights")


def _write_ir(compilation: Compilation, output: Path | None) -> None:
    """The IR, and in a file beside it its weights, from which `--from` and `opt` read on. Raises Refusal."""
    text, store = str(compilation.module) + "\n", compilation.ctx.weights
    if output is not None and len(store):
        weights = output.with_suffix(".npz")
        if weights.exists():
            _check_is_weights(weights)
        write_atomically(weights, store.to_bytes())
    _write(output, text)


def _check_is_weights(path: Path) -> None:
    """Never overwrite a user's arrays with weights. Raises Refusal."""
    try:
        WeightStore().load(path)
    except Refusal as refusal:
        raise Refusal(f"{path}: exists and holds no weights, which would be written there") from refusal


# -- check -------------------------------------------------------------------------------------------------------------


def check_command(
    model: Path, arch: str, precision: str | None, calibrate: Path | None, batch: int | None, schedule: Path | None,
    dataflow: str | None, as_json: bool, progress: Progress,
) -> None:  # fmt: skip
    """`cnncc check`. Exit code 1 where a finding stops `compile`."""
    from cnncc import check

    findings = check.check(model, arch, precision, calibrate, batch, schedule, dataflow, progress)
    progress("")
    text = json.dumps(check.as_json(findings, model, arch), indent=1) if as_json else ""
    click.echo(text or "\n".join(check.as_text(findings, model)))
    if check.count(findings)["blocking"]:
        raise SystemExit(1)


# -- reuse -------------------------------------------------------------------------------------------------------------


def reuse_command(
    source: Path, arch: str, precision: str | None, calibrate: Path | None, batch: int | None, schedule: Path | None,
    dataflow: str | None, layer: str | None, as_json: bool,
) -> None:  # fmt: skip
    """`cnncc reuse`."""
    from cnncc import reuse

    compilation, rows = reuse.analyse(source, arch, precision, calibrate, batch, schedule, dataflow)
    if layer is not None and layer not in (labels := [row.label for row in rows]):
        raise Refusal(f"there is no layer '{layer}'; layers: {', '.join(labels) or 'none'}")
    rows = [row for row in rows if layer in (None, row.label)]
    report = json.dumps(reuse.as_json(rows, source, compilation.settings.arch), indent=1) if as_json else ""
    click.echo(report or "\n".join(reuse.as_text(rows)))


# -- run ---------------------------------------------------------------------------------------------------------------


def run_command(path: Path, inputs: Path | None, output: Path | None, stats: Path | None) -> None:
    """`cnncc run`."""
    from cnncc.machine.container import load
    from cnncc.machine.run import count_images, inputs_of, random_inputs, run

    gc.freeze()  # the modules just imported: going through them again and again took a fifth of the run (2026-11)
    check_writable(output, stats)
    binary = load(path)
    names = [tensor.name for tensor in inputs_of(binary)]
    data = random_inputs(binary) if inputs is None else read_npz(inputs, names)
    images = count_images(binary, data)
    counters = program_stats(binary)
    results = run(binary, data)
    if output is not None:
        write_atomically(output, npz_bytes(results))
    if stats is not None:
        write_atomically(stats, (json.dumps(counters, indent=1) + "\n").encode())
    if inputs is None:
        click.echo("cnncc: no --input: ran one image of seeded random numbers", err=True)
    batch = max((tensor.shape[0] for tensor in inputs_of(binary) if tensor.shape), default=1)
    array = f"{binary.arch.name} ({binary.arch.rows} x {binary.arch.cols} PEs)"
    click.echo(f"{path.name}: {images * batch} image(s) through {array}")
    print_stats(counters, batch)
    for name, values in results.items():
        click.echo(f"output {name} {list(values.shape)}" + (f" -> {output}" if output else ""))


def program_stats(binary: Any) -> dict[str, Any]:
    """All counters of a run of a binary's program, and their energy; per layer where the metadata lists layers."""
    from cnncc.machine.modules import layers
    from cnncc.machine.stats import stats

    named = [(layer.label, layer.first) for layer, _ in layers(binary)]
    return with_energy(stats(binary.instructions, binary.arch, named), binary.arch.energy)


def print_stats(counters: Mapping[str, Any], batch: int = 1) -> None:
    """A table of the layers and the totals, of a program that takes `batch` images at a time."""
    rows = [(label, layer) for label, layer in counters["layers"].items() if layer["cycles"]["total"]]
    width = max([len(label) for label, _ in rows] + [8])
    click.echo(f"  {'layer':<{width}} {'cycles':>12} {'compute':>12} {'MACs':>14} {'utilisation':>12}")
    for label, layer in [*rows, ("total", counters)]:
        cycles, used = layer["cycles"], f"{100 * layer['utilisation']['total']:.1f} %"
        click.echo(
            f"  {label:<{width}} {cycles['total']:>12,} {cycles['compute']:>12,} {layer['macs']:>14,} {used:>12}"
        )
    stalls = ", ".join(f"{name} {n:,}" for name, n in counters["cycles"]["stall"].items() if n)
    each = "image" if batch == 1 else f"batch of {batch} images"
    click.echo(f"  cycles and MACs are per {each}; the array waited for: {stalls or 'nothing'}")


# -- verify ------------------------------------------------------------------------------------------------------------


def verify_command(
    model: Path, arch: str, precision: str | None, calibrate: Path | None, batch: int | None, schedule: Path | None,
    dataflow: str | None, inputs: Path | None, images: int, layers: bool, as_json: bool,
    min_sqnr: float | None, progress: Progress,
) -> None:  # fmt: skip
    """`cnncc verify`. Exit codes as docs/verify.md says."""
    from cnncc.frontend.export_onnx import input_names, main_arguments

    compilation = start_compilation(model, arch, precision, calibrate, batch, schedule, dataflow)
    names, arguments = input_names(compilation.module), main_arguments(compilation.module)
    shapes = {name: value.type for name, value in zip(names, arguments, strict=True)}
    data = _verify_inputs(inputs, shapes, images)
    verifier = Verifier(compilation, data)
    compilation.ctx.progress = progress
    try:
        compilation.run("isa", [_shown(progress), verifier])
    except StepFailed as failure:
        verifier.failed(failure)
    except Differs:
        pass
    progress("")
    for warning in compilation.warnings:
        click.echo(f"cnncc: warning: {warning}", err=True)
    measured = [
        *verify.accuracy_text(verifier.accuracy, verifier.layers, whole=layers),
        *verify.noise_text(verifier.noises),
    ]
    report = json.dumps(verify.as_json(verifier, model), indent=1) if as_json else ""
    click.echo(report or "\n".join([*verify.checks_text(verifier.checks), *measured]))
    failed = [check for check in verifier.checks if not check.agrees]
    if failed:
        click.echo(one_line(f"cnncc: step {failed[0].step} is wrong: {failed[0].detail}"), err=True)
        raise SystemExit(3)
    if not as_json:
        click.echo(f"all {len(verifier.checks)} steps agree")
    if beyond := verifier.beyond_noise:
        more = f"; {len(beyond) - 1} more" if len(beyond) > 1 else ""
        click.echo(one_line(f"cnncc: layer {beyond[0].text}{more}"), err=True)
        raise SystemExit(4)
    if min_sqnr is not None:
        _check_sqnr(verifier, min_sqnr)


def _check_sqnr(verifier: verify.Verifier, least_db: float) -> None:
    """Raises Refusal for an output that is less accurate."""
    if not verifier.accuracy:
        click.echo("cnncc: warning: --min-sqnr: the model's own integers are not compared with float", err=True)
    most = loses_most(verifier.layers)
    for output in verifier.accuracy:
        if output.sqnr_db < least_db:
            where = f": {most.label} loses most, {most.drop_db:.1f} dB" if most else ""
            raise Refusal(f"output '{output.output}': SQNR {output.sqnr_db:.1f} dB, --min-sqnr {least_db:g}{where}")


def _verify_inputs(path: Path | None, shapes: Mapping[str, Any], images: int) -> dict[str, Array]:
    """The first `images` samples of a file, or seeded noise, in whole batches. Raises Refusal."""
    from cnncc.dialects.cnn import shape
    from cnncc.dialects.weights import element_dtype

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


# -- the other commands ------------------------------------------------------------------------------------------------


def disassembly(binary: Any) -> str:
    """The program of a binary as assembly, with what is known of each instruction as a comment."""
    from cnncc.isa.assembly import disassemble
    from cnncc.machine.modules import comments

    return disassemble(binary.instructions, comments(binary))


def disasm_command(path: Path, output: Path | None) -> None:
    """`cnncc disasm`."""
    from cnncc.machine.container import load

    check_writable(output)
    _write(output, disassembly(load(path)))


def messages_command(path: Path, at: str | None, inputs: Path | None) -> None:
    """`cnncc messages`."""
    from cnncc.machine.container import load
    from cnncc.machine.run import inputs_of
    from cnncc.messages import at_instruction, listing

    if at is None and inputs is not None:
        raise click.UsageError("--input is for --at: without it nothing is run")
    binary = load(path)
    if at is None:
        lines = listing(binary)
    else:
        if not re.fullmatch(r"[0-9a-fA-F]{1,8}", at):
            raise click.UsageError(f"--at is an address as the disassembly prints it, such as 00c2, not '{at}'")
        data = None if inputs is None else read_npz(inputs, [tensor.name for tensor in inputs_of(binary)])
        lines = list(at_instruction(binary, int(at, 16), data))
        if inputs is None:
            click.echo("cnncc: no --input: ran one image of seeded random numbers", err=True)
    click.echo("\n".join(lines))


def asm_command(source: Path, output: Path, data: Path) -> None:
    """`cnncc asm`."""
    import dataclasses

    from cnncc.isa.assembly import assemble
    from cnncc.isa.codec import decode_program, encode_program
    from cnncc.machine.container import from_bytes, load, to_bytes
    from cnncc.machine.modules import check_names

    check_writable(output)
    try:
        text = source.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{source}: cannot be read as text") from error
    binary = load(data)
    try:
        instructions = assemble(text)
        program = encode_program(instructions)
        metadata = dict(binary.metadata)
        if len(instructions) != len(decode_program(binary.program)):  # what is said of them by number no longer fits
            metadata = {key: value for key, value in metadata.items() if key not in ("layers", "comments")}
        content = to_bytes(dataclasses.replace(binary, program=program, metadata=metadata))
        from_bytes(content)  # what no one could load is not written
        check_names(text, binary)
    except Refusal as refusal:
        raise Refusal(f"{source}: {refusal}") from refusal
    write_atomically(output, content)
    click.echo(f"{source} -> {output}, {program.nbytes:,} bytes of program")


def arch_list_command() -> None:
    """`cnncc arch list`."""
    for name in sorted(preset_names(), key=lambda n: (load_arch(n).rows, n)):
        a = load_arch(name)
        click.echo(f"{name:<16} {a.rows} x {a.cols} PEs, {a.operand_bits}-bit operands, GLB {a.glb.words:,} words")


def arch_show_command(name: str) -> None:
    """`cnncc arch show`."""
    load_arch(name)
    path = PRESETS / f"{name}.toml" if name in preset_names() else Path(name)
    click.echo(path.read_text(), nl=False)
