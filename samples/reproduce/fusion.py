"""Reproduce what groups of layers save: DRAM words, energy and cycles of networks, beside the figures of papers.

Each network is compiled three times for an array: without groups, without groups for the fewest DRAM words, and with
the groups of its schedule file in `samples/schedules`. So groups get credit for their own gain alone. All figures are
those of the cost model, which are the ones that the interpreter counts (docs/groups.md).

- Layer by layer: every layer reads its image (and residual) from DRAM once, and writes its result there.
- Activations: the DRAM words that are no weights and no parameters.
- Rings: the words of the GLB that hold activations of a group, with the buffers of its results; of strips of columns,
  those of the one with the most.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

import click
from proven import error_bits

from cnncc.arch.model import Arch, arch_text, load_arch
from cnncc.dialects.cnn import shape
from cnncc.dialects.nest import LayerOp
from cnncc.driver.pipeline import ASSIGN, NONE, Compilation
from cnncc.driver.program_parts import mapped_parts
from cnncc.driver.prove import claim_of_model
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.mapping.strips import split_strip, strip_count
from cnncc.model.energy import with_energy
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.layer_shape import stage_words
from cnncc.model.operand_traffic import operand_traffic
from cnncc.model.program_counts import program_counts
from cnncc.model.program_schedule import CopyPart, Part
from cnncc.proof.proof_text import error_text
from cnncc.util.progress import Progress, progress_line
from cnncc.util.terminal import TEXT, Column, fitted, table

SAMPLES = Path(__file__).resolve().parents[1]
ARRAY = "spatial-16x16"
KIB, MIB = 1024, 1 << 20


@dataclass(frozen=True)
class Network:
    """A network of `models.py` up to its last convolution, or a file; about: of what paper; glb_kib: sizes of GLBs."""

    about: str
    glb_kib: tuple[int, ...] = (128, 2048)
    file: str = ""


NETWORKS = {
    "vgg19-conv3_1": Network("Alwani et al.: VGG-19 to conv3_1, all layers in one group", (2048,)),
    "fsrcnn": Network("Mei et al. (DeFiNES): FSRCNN, 560 x 960 pixels"),
    "mobilenet": Network("MobileNet"),
    "alexnet": Network("AlexNet"),
    "vgg16": Network("VGG-16"),
    "resnet50": Network("ResNet-50"),
    "mnist": Network("MNIST net", file="mnist.onnx"),
}
GROUPS = "with groups"
PAPER = "the paper: 77 MB layer by layer, 3.6 MB fused, 362 KB for rings of 8-bit words"


@dataclass(frozen=True)
class Case:
    """A network, mapped in one way: cycles, DRAM words, energy (of a MAC's), words of rings and their groups.

    error_bits: of the program's proof, which errs with a probability of at most 2^-bits; None without one.
    """

    name: str
    cycles: int
    dram_words: int
    activations: int
    energy: float
    ring_words: int = 0
    groups: tuple[str, ...] = ()
    error_bits: float | None = None


@dataclass(frozen=True)
class Run:
    """A network with a GLB. layer_by_layer: activation words where all values go through DRAM."""

    network: str
    glb_kib: int
    layer_by_layer: int
    cases: tuple[Case, ...]


def array(glb_kib: int) -> Arch:
    """The array with a GLB of this size."""
    arch = load_arch(ARRAY)
    return replace(arch, glb=replace(arch.glb, words=glb_kib * KIB * 8 // arch.operand_bits))


def model_of(name: str, image_size: int | None, folder: Path) -> Path:
    """The file of a network up to its last convolution. Raises Refusal as models.py does."""
    if file := NETWORKS[name].file:
        return SAMPLES / "models" / file
    model = folder / "net.onnx"
    size = ("--image-size", str(image_size)) if image_size else ()
    command = (sys.executable, str(SAMPLES / "models.py"), name, "--features", "-o", str(model), *size)
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise Refusal(made.stderr.strip().splitlines()[-1])
    return model


def quantised(model: Path) -> Compilation:
    """A network as loop nests that are not mapped yet."""
    compilation = start_compilation(model, CompileOptions(ARRAY, batch=1))
    compilation.run_before(ASSIGN)
    return compilation


def through_dram(start: Compilation) -> int:
    """Activation words where every layer reads its operands from DRAM, and writes its result there."""
    layers = (op for op in start.module.walk() if isinstance(op, LayerOp))
    return sum(prod(shape(value.type)) for layer in layers for value in (*layer.operands, layer.result))


def case(name: str, start: Compilation, options: CompileOptions) -> Case:
    """The network, mapped. Raises Refusal where the array cannot run it."""
    module = start.module.clone()
    module.attributes.pop("cnncc.arch", None)  # of the array that it was quantised for
    settings = options.settings()
    arch = settings.arch
    parts = mapped_parts(Compilation(start.ctx, module, settings))
    counters = with_energy(program_counts(parts, arch, causes=False), arch.energy)
    dram = counters["words"]["dram_read"] + counters["words"]["dram_write"]
    activations, others = dram_words(parts, arch)
    if activations + others != dram:
        raise Refusal(f"{name}: {activations} words of activations and {others} of weights are not {dram}")
    groups = [part for part in parts if isinstance(part, GroupPlan)]
    rings = max((ring_words(group) for group in groups), default=0)
    strips = Counter[str]()
    for group in groups:
        strips[split_strip(group.label)[0]] += strip_count(group.label)
    labels = tuple(f"{label} in {count} strips" if count > 1 else label for label, count in strips.items())
    return Case(name, counters["cycles"]["total"], dram, activations, counters["energy"]["total"], rings, labels)


def dram_words(parts: Iterable[Part], arch: Arch) -> tuple[int, int]:
    """Words between DRAM and GLB: of activations, and of weights and parameters."""
    moved, others = 0, 0
    for part in parts:
        if isinstance(part, CopyPart):
            moved += sum(part.words)
        elif isinstance(part, GroupPlan):
            moved += sum(prod(each.sizes.of(dim) for dim in "nkhw") for each in part.group if each.is_load)
        plans = part.layers if isinstance(part, GroupPlan) else (part,) if isinstance(part, LayerPlan) else ()
        for plan in plans:
            words = operand_traffic(plan.shape, plan.mapping, arch, plan.residual, plan.first).words
            of = {operand: counts["dram_read"] + counts["dram_write"] for operand, counts in words.items()}
            weights = of["weight"] + of["params"]
            moved, others = moved + sum(of.values()) - weights, others + weights
    return moved, others


def ring_words(group: GroupPlan) -> int:
    """The words of a group's rings, and of the buffers of what comes and goes by stripes."""
    rings = sum(layer.keeps * layer.sizes.k * layer.sizes.w for layer in group.group)
    for plan in group.layers:
        stages = [stage for stage in plan.mapping.glb_stages.values() if stage.depth]
        rings += sum(stage_words(plan.shape, plan.mapping.loops, stage, 0) for stage in stages)
    return rings


def reproduce(
    networks: Sequence[str], glb_kib: Sequence[int], image_size: int | None, progress: Progress, *, proven: bool = False
) -> list[Run]:
    """All networks with all sizes of the GLB that are wanted. proven: with proofs of the groups. Raises Refusal."""
    runs = list[Run]()
    for name in networks:
        with tempfile.TemporaryDirectory() as folder_name:
            folder = Path(folder_name)
            progress(name, 0, 1)
            model = model_of(name, image_size, folder)
            start = quantised(model)
            for kib in (kib for kib in NETWORKS[name].glb_kib if kib in glb_kib):
                (folder / "array.toml").write_text(arch_text(array(kib)))
                plain = CompileOptions(str(folder / "array.toml"), batch=1, groups=NONE)
                wanted = {"without groups": plain, "fewest words without groups": replace(plain, objective="words")}
                schedule = SAMPLES / "schedules" / f"{name}-{kib}.toml"
                if schedule.is_file():
                    wanted[GROUPS] = replace(plain, schedule=schedule, groups=str(schedule))
                cases = list[Case]()
                for what, options in wanted.items():
                    progress(f"{name}, {kib} KiB: {what}", len(cases), len(wanted))
                    cases.append(case(what, start, options))
                if proven and GROUPS in wanted:
                    claim = claim_of_model(model, wanted[GROUPS], progress)
                    cases[-1] = replace(cases[-1], error_bits=error_bits(claim, model.name, progress))
                runs.append(Run(name, kib, through_dram(start), tuple(cases)))
    return runs


def as_text(runs: Iterable[Run]) -> Iterator[str]:
    """Tables to read."""
    for run in runs:
        about = NETWORKS[run.network].about
        yield f"{about}; GLB of {run.glb_kib} KiB, {ARRAY}"
        yield f"  layer by layer {run.layer_by_layer:,} activation words ({_mib(run.layer_by_layer)} at 4 bytes)"
        rows = [
            [each.name, *(f"{n:,}" for n in (each.dram_words, each.activations)), _mib(each.activations),
             f"{each.energy / 1e6:,.0f} M", f"{each.cycles:,}", f"{each.ring_words:,}" if each.groups else ""]
            for each in run.cases
        ]  # fmt: skip
        columns = ["DRAM words", "activations", "at 4 bytes", "energy", "cycles", "rings"]
        yield from table([Column("", TEXT), *columns], rows)
        groups = [label for each in run.cases for label in each.groups]
        yield f"  groups: {', '.join(groups) if groups else 'none fit'}"
        if (bits := run.cases[-1].error_bits) is not None:
            yield f"  proven with groups, but for an error of at most {error_text(bits)}; no two engines race"
        if run.network.startswith("vgg19"):
            yield f"  {PAPER}"
        yield ""


def _mib(words: int) -> str:
    return f"{4 * words / MIB:.2f} MiB"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--network", "networks", multiple=True, type=click.Choice(list(NETWORKS)), help="Default: all.")
@click.option("--glb", "glb_kib", multiple=True, type=click.Choice(["128", "2048"]), help="KiB; default: both.")
@click.option("--image-size", type=click.IntRange(min=14), help="Rows of the image; default: as in the papers.")
@click.option("--prove", "proven", is_flag=True, help="Prove programs with groups, too, but for an error of 2^-50.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def main(
    networks: tuple[str, ...], glb_kib: tuple[str, ...], image_size: int | None, proven: bool, as_json: bool
) -> None:
    """Reproduce what groups of layers save, beside the figures of papers.

    All networks take about six minutes of CPU, ResNet-50 a minute for each GLB.

    \b
    python samples/reproduce/fusion.py
    python samples/reproduce/fusion.py --network mnist --glb 128
    python samples/reproduce/fusion.py --json > fusion.json
    """
    sizes = [int(kib) for kib in glb_kib or ("128", "2048")]
    try:
        with progress_line() as progress:
            result = reproduce(networks or list(NETWORKS), sizes, image_size, progress, proven=proven)
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    click.echo(json.dumps([asdict(run) for run in result], indent=1) if as_json else fitted(as_text(result)))


if __name__ == "__main__":
    main()
