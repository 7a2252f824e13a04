"""What limits a layer: the PEs, or the cause of most of the array's idle cycles; and what lifts it (LIMIT-1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

from cnncc.arch.model import Arch
from cnncc.errors import Refusal, plural
from cnncc.explore.array_grid import Value, with_config
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.program_schedule import Part, program_cycles

COMPUTE = "compute"
FEW = 0.1  # share of a layer's cycles below which a cause does not limit it
BUSY = 0.9  # share of a layer's cycles, or of multipliers, from which on there is little to win
MOVED = ("weights", "activations", "results")  # what transfers move (CAUSE-6)
MOST_SENTENCES = 5  # layers whose limits are named below the table of an estimate


class Cause(NamedTuple):
    """A cause in words, the keys of the array that it depends on, and what of a mapping lessens it."""

    text: str
    keys: tuple[str, ...]
    mapping: str


_LOADS = ("glb.words_per_cycle", "bus.burst_words", "bus.latency_cycles")
_COMMITS = ("commit.units_per_column", "glb.words_per_cycle", "commit.latency_cycles")
_BANDWIDTH, _LATENCY = ("dram.words_per_cycle",), ("dram.latency_cycles",)
LIMITS = {
    COMPUTE: Cause("the PEs", (), "a larger array (rows, cols, pe.lanes)"),
    "dram_bandwidth_weights": Cause(
        "DRAM bandwidth for weights", _BANDWIDTH, "weights that come less often (larger blocks of pixels, a batch)"
    ),
    "dram_bandwidth_activations": Cause(
        "DRAM bandwidth for activations", _BANDWIDTH, "inputs that stay in the GLB, or fewer blocks of output channels"
    ),
    "dram_bandwidth_results": Cause("DRAM bandwidth for results", _BANDWIDTH, "results that stay in the GLB"),
    "dram_latency_weights": Cause("DRAM latency for weights", _LATENCY, "fewer, larger transfers in two buffers"),
    "dram_latency_activations": Cause(
        "DRAM latency for activations", _LATENCY, "fewer, larger transfers in two buffers"
    ),
    "dram_latency_results": Cause("DRAM latency for results", _LATENCY, "fewer, larger transfers in two buffers"),
    "glb_port": Cause("the GLB's port", ("glb.words_per_cycle",), "words that PEs hold longer or share"),
    "row_bus": Cause("the row buses", ("bus.burst_words", "bus.latency_cycles"), "words that the PEs of a row share"),
    "write_port": Cause(
        "the write port of register files", ("pe.words_per_cycle",), "words that PEs hold for more macro-instructions"
    ),
    "output_units": Cause("the output units", _COMMITS, "more columns, or sums over more input channels"),
    "column_bus": Cause("the links to the south", (), "fewer rows in a PE set"),
    "sequencer": Cause("the sequencer", ("sequencer.queue_depth",), "fewer, longer macro-instructions"),
    "weight_file": Cause("halves of the weights file", ("pe.weight_halves",), "weights that serve more pixels"),
    "ifmap_file": Cause("halves of the ifmap file", ("pe.ifmap_halves",), "input words that serve more channels"),
    "psum_file": Cause("halves of the psum file", ("pe.psum_halves",), "sums over more input channels"),
    "fill": Cause("the layer's fill", _LOADS, "smaller first loads"),
    "drain": Cause("the layer's drain", _COMMITS, "smaller last commits"),
}


def cause_text(cause: str) -> str:
    """A key of `cycles.stall` in words."""
    return LIMITS[cause].text


def charged(cycles: Mapping[str, Any]) -> int:
    """The cycles that a layer is charged with: more than it has, if it ends a wait that began before it (TIME-5)."""
    return cycles[COMPUTE] + sum(cycles["stall"].values())


def limit_of(cycles: Mapping[str, Any]) -> tuple[str, int]:
    """The cause of the most idle cycles, or `compute` if it has few; and its cycles.

    If the DMA is busy almost all the time, its latency counts as its bandwidth: other words move meanwhile. If the
    array waits for it, it is the limit then, whatever else the array waits for: the words take that long to move.
    """
    stall = cycles["stall"]
    if cycles["dma"] >= BUSY * cycles["total"]:
        dram = {
            f"dram_bandwidth_{moved}": stall[f"dram_bandwidth_{moved}"] + stall[f"dram_latency_{moved}"]
            for moved in MOVED
        }
        if sum(dram.values()) >= FEW * charged(cycles):
            return max(dram.items(), key=itemgetter(1))
    # An elementwise layer has no cycles of compute: whatever it waits for most is its limit.
    cause, most = max(stall.items(), key=itemgetter(1))
    return (COMPUTE, cycles[COMPUTE]) if most < min(FEW * charged(cycles), cycles[COMPUTE]) else (cause, most)


class HelpfulChange(NamedTuple):
    """A key of the array that lessens a limit: with another value, the mappings kept, the layer takes these cycles."""

    key: str
    was: Value
    value: Value
    cycles: int


class KeyChanges:
    """The program on arrays of which one key is changed: rates and halves doubled, latencies halved."""

    def __init__(self, parts: Sequence[Part], arch: Arch) -> None:
        self.parts, self.arch = parts, arch
        self._tried: dict[str, tuple[Value, Value, dict[str, int]]] = {}

    def best(self, label: str, cause: str, cycles: int) -> HelpfulChange | None:
        """The change that helps a layer most; None if none does."""
        tried = [
            HelpfulChange(key, was, value, layers[label])
            for key in LIMITS[cause].keys
            for was, value, layers in self._changed(key)
        ]
        best = min(tried, key=lambda each: each.cycles, default=None)
        return best if best and best.cycles < cycles else None

    def _changed(self, key: str) -> Iterator[tuple[Value, Value, dict[str, int]]]:
        if key not in self._tried:
            table, name = key.split(".")
            was = getattr(getattr(self.arch, table), name)
            value = was // 2 if name.endswith("_cycles") else 2 * was
            with suppress(Refusal):  # out of range
                layers = program_cycles(self.parts, with_config(self.arch, {key: value}))[1]
                self._tried[key] = was, value, {label: counts.total for label, counts in layers.items()}
        if key in self._tried:
            yield self._tried[key]


def limits(parts: Sequence[Part], arch: Arch, layers: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of each mapped layer and group its limit, as `--json` prints it. layers: their counters."""
    lifts, by_label = KeyChanges(parts, arch), dict[str, dict[str, Any]]()
    for label in (part.label for part in parts if isinstance(part, LayerPlan | GroupPlan)):
        cycles = layers[label]["cycles"]
        cause, count = limit_of(cycles)
        lifted = lifts.best(label, cause, cycles["total"])
        by_label[label] = {"cause": cause, "cycles": count, "lifted": lifted._asdict() if lifted else None}
    return by_label


def sentence(label: str, layer: Mapping[str, Any]) -> str:
    """The limit of a layer, as `limits` has it, and what lifts it."""
    limited, total, whole = layer["limit"], layer["cycles"]["total"], charged(layer["cycles"])
    cause, lifted = LIMITS[limited["cause"]], limited["lifted"]
    text = f"{label}: limited by {cause.text} ({100 * limited['cycles'] / whole:.0f} % of {whole:,} cycles"
    if whole > total:  # a copy in front of the layer began the wait: these are not the cycles of the table
        text += ", with a wait that began before the layer"
    if limited["cause"] == COMPUTE and layer["macs"]:
        text += f", at {100 * layer['utilisation']['compute']:.0f} % utilisation"
    helps = [cause.mapping]
    if limited["cause"] == COMPUTE and layer["macs"] and layer["utilisation"]["compute"] < BUSY:
        helps.insert(0, "a mapping that keeps more PEs busy")
    if lifted:
        gain = 100 * (1 - lifted["cycles"] / total)
        helps.insert(0, f"{lifted['key']} {lifted['was']:,} -> {lifted['value']:,} (-{gain:.1f} %)")
    return f"{text}); what helps: {', or '.join(helps)}"


def limit_sentences(layers: Mapping[str, Any]) -> list[str]:
    """Sentences on the layers that lose the most cycles to anything but operations, and where those on others are."""
    lost = {
        label: layer["cycles"]["total"] * (1 - layer["utilisation"]["total"])
        for label, layer in layers.items()
        if "limit" in layer
    }
    most = sorted(lost, key=lost.__getitem__, reverse=True)[:MOST_SENTENCES]
    sentences = [sentence(label, layer) for label, layer in layers.items() if label in most]
    if others := len(lost) - len(most):
        sentences.append(f"these lose the most cycles; --explain LAYER says it of {plural(others, 'other layer')}")
    return sentences
