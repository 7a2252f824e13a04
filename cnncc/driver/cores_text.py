"""What a user is told of layers side by side: the PEs of each core, and how often a frame is done."""

from __future__ import annotations

from collections.abc import Iterator

from cnncc.arch.model import Arch
from cnncc.errors import Finding
from cnncc.model.cores_plan import CoresPlan
from cnncc.model.cores_schedule import predicted_frames

FRAMES = 24  # of the run that shows the steady state


def cores_text(plan: CoresPlan, arch: Arch) -> Iterator[str]:
    """Lines for the report of `compile`."""
    for name, pes in _cores(plan):
        yield f"  core     {name}: {pes}"
    yield f"  frames   {_frames(plan, arch)[1]}"


def findings(plan: CoresPlan, arch: Arch) -> list[Finding]:
    """Notes of `check`."""
    cycles, what = _frames(plan, arch)
    network = Finding(what, "note", "network", "cycles" if cycles else "", cycles and round(cycles))
    return [*(Finding(f"a core: {pes}", "note", name) for name, pes in _cores(plan)), network]


def _cores(plan: CoresPlan) -> Iterator[tuple[str, str]]:
    """The name of each core, and its PEs."""
    places = [f"{place.rows} x {place.cols} PEs at {place.row0},{place.col0}" for place in plan.regions]
    names = [group.group[0].label if len(group.group) == 1 else group.label for group in plan.groups]
    for number, (name, place) in enumerate(zip(names, places, strict=True)):
        keeps = [str(channel.keeps) for channel in plan.channels if channel.group == number]
        rows = f", {' and '.join(keeps)} rows to the next" if keeps else ""
        yield name, place + rows


def _frames(plan: CoresPlan, arch: Arch) -> tuple[float | None, str]:
    """The cycles of a frame in steady state, if there is one; what is known of frames."""
    used = sum(place.rows * place.cols for place in plan.regions)
    run = predicted_frames(plan, arch, FRAMES)
    pes = f"{used} of {arch.rows * arch.cols} PEs"
    if run.period is None:
        return None, f"{pes}; no steady state within {FRAMES} frames"
    cycles = run.period.cycles / run.period.frames
    rate = f" ({arch.clock_mhz * 10**6 / cycles:,.1f} a second at {arch.clock_mhz} MHz)" if arch.clock_mhz else ""
    return cycles, f"{pes}; a frame every {cycles:,.0f} cycles{rate}, the first after {run.first:,}"
