"""All counters of a program, as `run --stats` writes them."""

from __future__ import annotations

from collections.abc import Sequence

from cnncc.arch.model import Arch
from cnncc.isa.table import Instruction
from cnncc.machine.program import build_tree
from cnncc.machine.times.times import DEFAULT_LIMIT_CYCLES, Cycles, simulate
from cnncc.machine.traffic.counts import Traffic, count_traffic

Stats = dict[str, object]


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _stats(cycles: Cycles, traffic: Traffic, arch: Arch) -> Stats:
    multipliers = arch.rows * arch.cols * arch.pe.lanes
    return {
        "cycles": {
            "total": cycles.total,
            "compute": cycles.compute,
            "load": cycles.load,
            "commit": cycles.commit,
            "dma": cycles.dma,
            "stall": dict(cycles.stall),
        },
        "macs": traffic.macs,
        "max": traffic.max,
        "add": traffic.add,
        "idle_pe_cycles": traffic.idle_pe_cycles,
        "utilisation": {
            "compute": _ratio(traffic.macs, cycles.compute * multipliers),
            "total": _ratio(traffic.macs, cycles.total * multipliers),
        },
        "words": {
            "dram_read": traffic.dram_read,
            "dram_write": traffic.dram_write,
            "glb_read": traffic.glb_read,
            "glb_write": traffic.glb_write,
            "bus": traffic.bus,
            "n2n": traffic.n2n,
            "psum_link": traffic.psum_link,
        },
        "operands": {what: traffic.parts(what) for what in ("glb_read", "glb_write", "bus")},
        "rf": {file: traffic.parts(f"rf_{file}") for file in ("weight", "ifmap", "psum")},
        "rf_peak": {"weight": traffic.weight_peak, "ifmap": traffic.ifmap_peak, "psum": traffic.psum_peak},
    }


def stats(
    instructions: Sequence[Instruction],
    arch: Arch,
    layers: Sequence[tuple[str, int]] = (),
    limit_cycles: int = DEFAULT_LIMIT_CYCLES,
    causes: bool = True,
    constant_words: int = 0,
) -> Stats:
    """The counters of a program and, under `layers`, of its layers by label (docs/machine.md: Counters).

    layers: (label, first instruction), in the program's order; see `times.owners` and `times.Times`.
    causes, constant_words: see `times.simulate`.
    Raises Refusal for a program that is none, Trap for one that the machine cannot run to its end.
    """
    tree = build_tree(instructions)
    times = simulate(tree, arch, layers, limit_cycles, causes=causes, constant_words=constant_words)
    counts = count_traffic(tree, arch, layers)
    by_layer = {label: _stats(times.layers[label], counts.layers[label], arch) for label, _ in layers}
    return {**_stats(times.cycles, counts.whole, arch), "layers": by_layer}
