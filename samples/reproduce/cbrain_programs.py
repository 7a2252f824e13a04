"""Schemes of C-Brain as mappings, compiled for its array and run: what `cbrain.py` has in its column of programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from proven import error_bits

from cnncc.binary.counters import program_stats
from cnncc.binary.run import random_inputs, run
from cnncc.cbrain.convolution import Convolution
from cnncc.cbrain.kernel_partition import partition
from cnncc.cbrain.schemes import CBrain, Scheme
from cnncc.driver.build import Build
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.model.program_counts import program_counts
from cnncc.proof.claim import Claim
from cnncc.weights import Array

if TYPE_CHECKING:
    from networks.seeded import Network

CUT = ".cut"
NAMED = {Scheme.INTER: "inter", Scheme.UNROLLED: "intra", Scheme.SLIDING: "intra-sliding"}
PE_ENERGY = ("mac", "weight_rf", "ifmap_rf", "psum_rf")  # parts of `energy` in docs/stats.md
BUFFERS = {"glb_read": ("weight", "ifmap", "sums"), "glb_write": ("results", "sums")}


@dataclass(frozen=True)
class Program:
    """What the interpreter counts of a network, from the image in DRAM to the results in DRAM.

    - convolving: cycles in which PEs compute convolutions
    - cutting: those in which they make small windows
    - others: those of pools
    - stalls: all other cycles, by cause (CAUSE-2)
    - words: between the global buffer and the PEs, in convolutions, of 16 bits
    - products: of all multipliers while PEs convolve or make small windows, those with zeros on idle ones included
    - added: partial sums of convolutions that are added to stored ones
    - pe_energy: what PEs take for convolutions and small windows by `[energy]` of the array file (CBRAIN-14)
    - error_bits: of its proof, which errs with a probability of at most 2^-bits; None without one
    """

    convolving: int
    cutting: int
    others: int
    stalls: Mapping[str, int]
    words: int
    products: int
    added: int
    pe_energy: float
    error_bits: float | None = None

    @property
    def total(self) -> int:
        """All cycles."""
        return self.convolving + self.cutting + self.others + sum(self.stalls.values())

    @property
    def on_chip(self) -> int:
        """Cycles without those in which the array waits for DRAM."""
        return self.total - sum(cycles for cause, cycles in self.stalls.items() if cause.startswith("dram"))


@dataclass(frozen=True)
class Mapped:
    """A network whose mappings the compiler chooses: cycles with kernels partitioned by Algorithm 2, and without.

    All layers are output stationary then. Outputs are equal, and the first program is proven.
    """

    network: str
    width: str
    adaptive: int
    stationary: int
    error_bits: float


@dataclass(frozen=True)
class Task:
    """A network with a scheme for each of its convolutions. array: T_in and T_out of its preset."""

    network: Network
    layers: Sequence[Convolution]
    schemes: Sequence[Scheme]
    array: CBrain

    @property
    def labels(self) -> list[str]:
        """The names of the convolutions in the program: those of their nodes."""
        return [node.name for node in self.network.model.graph.node if node.op_type == "Conv"]

    def schedule(self) -> str:
        """The schedule file."""
        cases = zip(self.labels, self.layers, self.schemes, strict=True)
        tables = [f'["{label}"]\n{_mapping(layer, scheme, self.array)}' for label, layer, scheme in cases]
        layers = zip(self.labels, self.layers, strict=True)
        cut = {label: cutting(layer, self.array) for label, layer in layers if label in self.cut()}
        return "\n".join([*tables, *(f'["{label}{CUT}"]\nmapping = "{text}"' for label, text in cut.items())])

    def cut(self) -> list[str]:
        """The labels of layers whose image is cut into small windows."""
        cases = zip(self.labels, self.layers, self.schemes, strict=True)
        return [label for label, layer, scheme in cases if scheme is Scheme.PARTITION and layer.window.stride != (1, 1)]


def _mapping(layer: Convolution, scheme: Scheme, array: CBrain) -> str:
    """What a schedule file says of a convolution. All PEs have the same data, each one a kernel of its own.

    Improved inter-kernel keeps kernels of as many input maps as a PE has room for, so that fewer sums are stored than
    in the paper.
    """
    if scheme in NAMED:
        return f'dataflow = "{NAMED[scheme]}"'
    if scheme is Scheme.PARTITION:
        return f'mapping = "{over_small_windows(layer, array)}"'
    text = _text("c' > r'", ["s", "r''", "c''", f"c'''||{min(layer.depth, array.tin)}@lanes"])
    return f'mapping = "{text}"'


def over_small_windows(layer: Convolution, array: CBrain) -> str:
    """The mapping of kernel partition: a convolution over small windows, whose words are its channels.

    On the multipliers are words of one small window, of a column of pieces, or of several columns: those that take the
    fewest steps. Sums are stored after each such choice of words, as in Algorithm 1.
    """
    parts = partition(layer)
    (rows, cols), sizes = parts.grid, (*parts.grid, layer.depth * parts.taps)
    pieces = [(1, 1), *((rows, beside) for beside in range(1, cols + 1))]
    spans = [(*span, words) for span in pieces for words in range(1, parts.taps + 1)]

    def steps(span: tuple[int, int, int]) -> tuple[int, int]:
        return prod(-(-size // many) for size, many in zip(sizes, span, strict=True)), -span[2]

    down, beside, words = min((span for span in spans if prod(span) <= array.tin), key=steps)
    inner = "s" if beside == cols else "s''"
    box = ["s"] * (beside == 1) + ["r"] * (down == 1) + [f"{inner}||{beside}@lanes"] * (beside > 1)
    box += [f"c''||{words}@lanes"] * (words > 1) + [f"r||{down}@lanes"] * (down > 1)
    return _text(f"c':{words}" + f" > s':{beside}" * (1 < beside < cols), box)


def _text(blocks: str, box: Sequence[str]) -> str:
    """A mapping. blocks: the loops over words that PEs keep for all pixels; box: those of a pixel."""
    outside = f"n > h' > k' > [k''||@cols k'''||@rows] > {blocks} > weight@rf*2 > h'' > w' > ifmap@rf*2"
    return f"{outside} > {{w'' > {' > '.join(box)}}}"


def cutting(layer: Convolution, array: CBrain) -> str:
    """The mapping of what makes small windows: maps and rows on PEs, the words of a window on the multipliers."""
    parts, rows = partition(layer), max(1, array.tout // layer.inputs)
    (down, right), taps = parts.side, parts.taps
    beside = f"[k':{taps}||{layer.inputs}@rows h||{rows}@rows]"
    return f"{beside} > weight@rf*2 > w > ifmap@rf*2 > {{k'' > s||{right}@lanes > r||{down}@lanes}}"


def program(task: Task, *, proven: bool = False) -> tuple[Program, Mapping[str, Array]]:
    """Compile a network with seeded weights, and run it on seeded noise. Returns its outputs, too.

    proven: with a proof. Raises Refusal for a layer that no mapping of its scheme fits, and as `_compiled` does.
    """
    partitioned = ",".join(task.cut()) or None
    with TemporaryDirectory() as name:
        model, schedule = Path(name) / "network.onnx", Path(name) / "schemes.toml"
        task.network.write(model, 0)
        schedule.write_text(task.schedule())
        arch = f"cbrain-{task.array.tin}-{task.array.tout}"
        options = CompileOptions(arch, schedule=schedule, groups="none", slack=0.0, partition=partitioned)
        stats, claim = _compiled(model, options)
    layers: dict[str, Any] = stats["layers"]
    cuts = [label + CUT for label in task.cut()]
    computed = {label: each["cycles"]["compute"] for label, each in layers.items()}
    convolving, cutting = (sum(computed[label] for label in labels) for labels in (task.labels, cuts))
    operands = [layers[label]["operands"] for label in task.labels]
    words = sum(each[way][operand] for each in operands for way, names in BUFFERS.items() for operand in names)
    added = sum(each["glb_read"]["sums"] for each in operands) // claim.binary.arch.words_per_sum
    energy = sum(layers[label]["energy"][part] for label in (*task.labels, *cuts) for part in PE_ENERGY)
    stalls = {cause: cycles for cause, cycles in stats["cycles"]["stall"].items() if cycles}
    others, bits = sum(computed.values()) - convolving - cutting, error_bits(claim, model.name) if proven else None
    products = (convolving + cutting) * task.array.multipliers
    return Program(convolving, cutting, others, stalls, words, products, added, energy, bits), _outputs(claim)


def mapped(model: Path, array: CBrain) -> Mapped:
    """Compile a network from its file twice, by the mapper: adaptive, and output stationary.

    Raises Refusal if the two give other outputs, and as `_compiled` and `error_bits` do.
    """
    arch = f"cbrain-{array.tin}-{array.tout}"
    stats, claim = _compiled(model, CompileOptions(arch, partition="auto"))
    stationary, other = _compiled(model, CompileOptions(arch, dataflow="os"))
    if not same(_outputs(claim), _outputs(other)):
        raise Refusal(f"{model.name}: gives other outputs with output stationary mappings: a defect of cnncc")
    adaptive, os = (each["cycles"]["total"] for each in (stats, stationary))
    return Mapped(model.stem, f"{array.tin}-{array.tout}", adaptive, os, error_bits(claim, model.name))


def _compiled(model: Path, options: CompileOptions) -> tuple[dict[str, Any], Claim]:
    """What a program counts, and the claim that it computes its network.

    Raises Refusal if it takes other cycles than the cost model predicts.
    """
    compilation = start_compilation(model, options)
    build = Build(compilation, model)
    compilation.run("cnn", [build])
    module = compilation.module.clone()
    compilation.run("isa", [build])
    claim, parts = Claim(build.binary(), module, compilation.ctx.weights), build.observer.parts
    stats = program_stats(claim.binary)
    assert parts is not None
    if (predicted := program_counts(parts, claim.binary.arch)["cycles"]) != stats["cycles"]:
        raise Refusal(f"{model.name}: counts {stats['cycles']}, predicted are {predicted}: a defect of cnncc")
    return stats, claim


def _outputs(claim: Claim) -> dict[str, Array]:
    return run(claim.binary, random_inputs(claim.binary))


def same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Whether two runs give equal outputs."""
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
