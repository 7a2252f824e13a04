"""All counters of a program, as `run --stats` writes them."""

from __future__ import annotations

from collections.abc import Sequence

from cnncc.arch.model import Arch
from cnncc.isa.codec import has_cores
from cnncc.isa.table import Instruction
from cnncc.machine.cores.core_times import layers_of, simulate_cores
from cnncc.machine.cores.programs import cores_of
from cnncc.machine.program import build_tree
from cnncc.machine.times.times import Cycles, simulate
from cnncc.machine.traffic.counts import Traffic, count_traffic

Stats = dict[str, object]


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _stats(cycles: Cycles, traffic: Traffic, arch: Arch, computing: int | None = None) -> Stats:
    """computing: the multipliers of each macro-instruction's core, times its cycles; None: all multipliers."""
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
            "compute": _ratio(traffic.macs, cycles.compute * multipliers if computing is None else computing),
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
    causes: bool = True,
    constant_words: int = 0,
    frames: int = 1,
) -> Stats:
    """The counters of a program and, under `layers`, of its layers by label (docs/machine.md: Counters).

    layers: (label, first instruction), in the program's order; see `times.owners` and `times.Times`.
    causes, constant_words: see `times.simulate`. frames: of the run (CORE-8).
    Raises Refusal for a program that is none, Trap for one that the machine cannot run to its end.
    """
    if has_cores(instructions):
        return _cores_stats(instructions, arch, layers, causes, constant_words, frames)
    tree = build_tree(instructions)
    times = simulate(tree, arch, layers, causes=causes, constant_words=constant_words)
    counts = count_traffic(tree, arch, layers)
    by_layer = {label: _stats(times.layers[label], counts.layers[label], arch) for label, _ in layers}
    return {**_stats(times.cycles, counts.whole, arch), "layers": by_layer}


def _cores_stats(
    instructions: Sequence[Instruction],
    arch: Arch,
    layers: Sequence[tuple[str, int]],
    causes: bool,
    constant_words: int,
    frames: int,
) -> Stats:
    """The counters of a program of cores; also of each core, and of frames (CORE-7, CORE-8)."""
    cores = cores_of(instructions, arch, frames)
    timed = simulate_cores(cores, layers, causes=causes, constant_words=constant_words)
    whole, computing = Traffic(), 0
    by_core: list[Stats] = []
    by_layer: Stats = {}
    for core, times in zip(cores, timed.cores, strict=True):
        own = layers_of(core, layers)
        counts = count_traffic(core.tree, core.arch, own)
        whole.include(counts.whole)
        computing += times.cycles.compute * core.arch.rows * core.arch.cols * arch.pe.lanes
        by_core.append({**core.region, **_stats(times.cycles, counts.whole, core.arch)})
        by_layer |= {label: _stats(times.layers[label], counts.layers[label], core.arch) for label, _ in own}
    period = timed.frames.period
    return {
        **_stats(_together([times.cycles for times in timed.cores]), whole, arch, computing),
        "frames": {
            "count": frames,
            "first": timed.frames.first,
            "period": {"cycles": period[0], "frames": period[1]} if period else None,
        },
        "channels": [{"from": one, "to": other, "rows": rows} for (one, other, _), rows in timed.rings.items()],
        "cores": by_core,
        "layers": by_layer,
    }


def _together(cores: Sequence[Cycles]) -> Cycles:
    """The cycles of all cores: the total is the longest one, all others are sums."""
    sums = {name: sum(getattr(core, name) for core in cores) for name in ("compute", "load", "commit", "dma")}
    stall = {cause: sum(each.stall.get(cause, 0) for each in cores) for core in cores for cause in core.stall}
    return Cycles(max(core.total for core in cores), stall=stall, **sums)
