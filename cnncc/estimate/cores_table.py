"""The tables of an estimate of layers side by side, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from cnncc.arch.model import Arch
from cnncc.errors import Refusal, one_line, plural
from cnncc.estimate.mapped_program import Program
from cnncc.mapping.text import text
from cnncc.model.cores_plan import CoresPlan
from cnncc.model.stationary import name_of
from cnncc.util.terminal import NAME, TEXT, Column, amount, table

FRAMES = 64  # of a run where nobody says how many: states recur within few frames
CHANNELS = ("channel_in", "channel_out")
OF_A_CORE = ("rows", "cols", "row0", "col0", "rf_peak")  # a longer run does not add to them


def as_json(program: Program, frames: int, alone: Program | Refusal | None = None) -> dict[str, Any]:
    """The keys of `run --stats` of a run of so many frames; what cores and channels are; a frame in steady state.

    alone: see `one_core_json`.
    """
    plan = program.cores
    assert plan is not None
    counters = program.counters(frames=frames)
    period = counters["frames"]["period"]
    steady = None
    if period:
        # Two runs that differ by a period of frames differ by what a period takes.
        behind = program.counters(frames=frames + period["frames"])
        pairs = zip(counters["cores"], behind["cores"], strict=True)
        cores = [_steady_core(one, other, program.arch.pe.lanes) for one, other in pairs]
        more = {name: _less(counters[name], behind[name]) for name in ("words", "energy")}
        steady = {"frames": period["frames"], "cycles": period["cycles"], **more, "cores": cores}
    groups = [
        {
            "label": group.label,
            "layers": {
                own.label: {
                    "rows": own.rows,
                    "delay": own.delay,
                    "keeps": own.keeps,
                    "kind": own.kind,
                    "dataflow": name_of(layer.shape, layer.mapping),
                    "mapping": text(layer.mapping, layer.shape.sizes),
                }
                for own, layer in group.plans
                if layer
            },
        }
        for group in plan.groups
    ]
    channels = [
        {
            **counted,
            "label": ring.label,
            "keeps": ring.keeps,
            "fewest": ring.least,
            "words_of_row": ring.producer.sizes.k * ring.producer.sizes.w,
        }
        for counted, ring in zip(counters["channels"], plan.chain.channels, strict=True)
    ]
    return {
        **{"source": program.source, "arch": program.arch.name, "clock_mhz": program.arch.clock_mhz},
        **counters,
        "channels": channels,
        "groups": groups,
        "steady": steady,
        "host": program.host,
        **one_core_json(plan, program.arch, alone),
    }


def one_core_json(plan: CoresPlan, arch: Arch, alone: Program | Refusal | None) -> dict[str, Any]:
    """The hardware of cores and of a single core, and what an image takes there.

    alone: the same network on a single core, or why that cannot run it; None if it is not known.
    """
    hardware = {"cores": hardware_of(plan, arch), "one_core": hardware_of(None, arch)}
    return {"hardware": hardware, "one_core": _alone(alone)}


def _alone(program: Program | Refusal | None) -> dict[str, Any] | None:
    if program is None:
        return None
    if isinstance(program, Refusal):
        return {"refused": one_line(str(program))}
    counters = program.counters()
    return {"cycles": counters["cycles"]["total"], "macs": counters["macs"], "words": counters["words"]}


def _less(before: Mapping[str, Any], behind: Mapping[str, Any]) -> dict[str, Any]:
    """How much greater counters are than before."""
    more: dict[str, Any] = {}
    for key, count in behind.items():
        was = before[key]
        if isinstance(count, Mapping):
            more[key] = _less(was, cast("Mapping[str, Any]", count))
        elif isinstance(count, int | float):
            more[key] = count - was
    return more


def _steady_core(before: Mapping[str, Any], behind: Mapping[str, Any], lanes: int) -> dict[str, Any]:
    """How much greater the counters of a core are than before, its utilisation meanwhile, and what stays as it is."""
    more = _less(before, behind) | {name: behind[name] for name in OF_A_CORE}
    # The difference of two shares is none, so the utilisation is computed anew.
    multipliers = more["rows"] * more["cols"] * lanes
    busy = {name: more["cycles"][name] * multipliers for name in more["utilisation"]}
    return more | {"utilisation": {name: more["macs"] / most if most else 0.0 for name, most in busy.items()}}


def hardware_of(plan: CoresPlan | None, arch: Arch) -> dict[str, int]:
    """The hardware that a program uses: of cores; without a plan, of a single core with all PEs."""
    if plan is None:
        words, columns, sequencers, pes = arch.glb.words_per_cycle, arch.cols, 1, arch.rows * arch.cols
    else:
        words = len(plan.regions) * (arch.cores.words_per_cycle or arch.glb.words_per_cycle)
        columns, sequencers = sum(region.cols for region in plan.regions), 1 + len(plan.regions)
        pes = sum(region.rows * region.cols for region in plan.regions)
    units = columns * arch.commit.units_per_column
    return {"sequencers": sequencers, "pes": pes, "output_units": units, "load_words": words}


def as_text(estimate: Mapping[str, Any], program: Program) -> Iterator[str]:
    """Tables of cores, channels and mappings; the times of frames; the hardware, beside that of a single core."""
    arch, frames, steady = program.arch, estimate["frames"], estimate["steady"]
    array = f"{arch.name} ({arch.rows} x {arch.cols} PEs)"
    yield f"{program.source} on {array}: layers side by side, predicted; unit of energy: {arch.energy.unit}"
    each = steady["frames"] if steady else frames["count"]
    cores = steady["cores"] if steady else estimate["cores"]
    labels = ["DRAM", *(group["label"] for group in estimate["groups"])]
    heads = ("PEs", "busy", "waits for words", "for space", "other stalls", "MACs")
    rows = [
        _core(number, label, place, core, each)
        for number, (label, place, core) in enumerate(zip(labels, estimate["cores"], cores, strict=True))
    ]
    yield from table(["core", Column("layers", NAME), *heads], rows)
    what = "a frame in steady state" if steady else f"a frame, on an average of {frames['count']}"
    yield f"  cycles and MACs are of {what}"
    yield ""
    if estimate["channels"]:
        yield from table(
            [Column("channel", NAME), "from core", "to core", "rows kept", "fewest", "most waiting", "words of a row"],
            map(_channel, estimate["channels"]),
        )
        yield ""
    layers = [
        (name, own["dataflow"], own["mapping"]) for group in estimate["groups"] for name, own in group["layers"].items()
    ]
    yield from table([Column("layer", NAME), Column("dataflow", TEXT), Column("mapping", TEXT)], layers)
    yield ""
    yield from _frames(estimate)
    yield from program.not_counted()
    yield ""
    yield from one_core_text(estimate, arch.clock_mhz)


def _core(number: int, label: str, place: Mapping[str, Any], core: Mapping[str, Any], frames: int) -> list[str]:
    cycles, stall = core["cycles"], core["cycles"]["stall"]
    pes = f"{place['rows']} x {place['cols']} at {place['row0']},{place['col0']}" if place["rows"] else "none"
    busy = cycles["compute"] if place["rows"] else cycles["dma"]
    rest = sum(stall.values()) - sum(stall.get(name, 0) for name in CHANNELS)
    stalls = [_share(count, frames) for count in (*(stall[name] for name in CHANNELS), rest)] if stall else [""] * 3
    return [str(number), label, pes, _share(busy, frames), *stalls, _share(core["macs"], frames)]


def _channel(channel: Mapping[str, Any]) -> list[str]:
    keys = ("from", "to", "keeps", "fewest", "rows", "words_of_row")
    return [channel["label"], *(f"{channel[key]:,}" for key in keys)]


def _share(count: float, frames: int) -> str:
    """The count of one frame, with a decimal if it is no whole number."""
    return f"{count // frames:,.0f}" if count % frames == 0 else f"{count / frames:,.1f}"


def _frames(estimate: Mapping[str, Any]) -> Iterator[str]:
    frames, steady, clock = estimate["frames"], estimate["steady"], estimate["clock_mhz"]
    takes = "takes" if frames["count"] == 1 else "take"
    total = f"{plural(frames['count'], 'frame')} {takes} {estimate['cycles']['total']:,}"
    yield f"the first frame takes {frames['first']:,} cycles, {total}"
    if steady is None:
        yield "no steady state within these frames: more --frames may show one"
        return
    each = steady["frames"]
    rate = f", {clock * 1e6 * each / steady['cycles']:,.1f} frames a second at {clock} MHz" if clock else ""
    yield f"in steady state a frame takes {_share(steady['cycles'], each)} cycles{rate}"
    words, energy = steady["words"], steady["energy"]["total"]
    moved = [_share(words[name], each) for name in ("dram_read", "dram_write", "glb_read", "glb_write")]
    yield (
        f"it reads {moved[0]} words of DRAM and writes {moved[1]}, reads {moved[2]} words of the GLB and writes "
        f"{moved[3]}; energy {amount(energy / each)}"
    )


def one_core_text(compared: Mapping[str, Any], clock: int) -> Iterator[str]:
    """What `one_core_json` says. clock: in MHz; 0 if it is not known."""
    hardware = compared["hardware"]
    names = ("sequencers", "PEs", "output units", "words a cycle of loads")
    yield from table(
        [Column("hardware", TEXT), *names],
        [
            (text, *(f"{count:,}" for count in hardware[key].values()))
            for text, key in (("these cores", "cores"), ("a single core", "one_core"))
        ],
    )
    if (alone := compared["one_core"]) is None:
        return
    if "refused" in alone:
        yield f"  a single core cannot run the network: {alone['refused']}"
    else:
        cycles = alone["cycles"]
        rate = f", {clock * 1e6 / cycles:,.1f} a second" if clock else ""
        words = alone["words"]
        yield (
            f"  a single core takes {cycles:,} cycles for an image{rate}, with {alone['macs']:,} MACs; it reads "
            f"{words['dram_read']:,} words of DRAM and {words['glb_read']:,} of the GLB"
        )
