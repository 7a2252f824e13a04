"""What `cnncc run` prints of counters: a table of layers, or of cores and frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cnncc.errors import plural
from cnncc.util.terminal import NAME, Column, table


def counters_text(counters: Mapping[str, Any], batch: int = 1, clock_mhz: int = 0) -> Iterator[str]:
    """Tables of what `program_stats` counts, of a program that takes `batch` images at a time."""
    yield from _of_cores(counters, clock_mhz) if "cores" in counters else _of_layers(counters, batch, clock_mhz)


def a_second(cycles: int, clock_mhz: int) -> str:
    """How often the array does so many cycles; empty where there is no clock, or nothing to do."""
    return f"{clock_mhz * 1e6 / cycles:,.1f} times a second at {clock_mhz} MHz" if clock_mhz and cycles else ""


def _of_layers(counters: Mapping[str, Any], batch: int, clock_mhz: int) -> Iterator[str]:
    """A table of the layers and the totals."""
    layers = {label: layer for label, layer in counters["layers"].items() if layer["cycles"]["total"]}
    rows = [
        [
            label,
            f"{layer['cycles']['total']:,}",
            f"{layer['cycles']['compute']:,}",
            f"{layer['macs']:,}",
            f"{100 * layer['utilisation']['total']:.1f} %",
        ]
        for label, layer in [*layers.items(), ("total", counters)]
    ]
    yield from table([Column("layer", NAME), "cycles", "compute", "MACs", "utilisation"], rows)
    each = "image" if batch == 1 else f"batch of {batch} images"
    rate = a_second(counters["cycles"]["total"], clock_mhz)
    yield f"  cycles and MACs are per {each}" + (f"; the array does it {rate}" if rate else "")


def _of_cores(counters: Mapping[str, Any], clock_mhz: int) -> Iterator[str]:
    """A table of the cores, then the times of frames."""
    rows: list[list[str]] = []
    for number, core in enumerate(counters["cores"]):
        cycles, stall = core["cycles"], core["cycles"]["stall"]
        place = f"{core['rows']} x {core['cols']} at {core['row0']},{core['col0']}" if core["rows"] else "none"
        of_channels = [stall.get("channel_in"), stall.get("channel_out")]
        rest = sum(stall.values()) - sum(filter(None, of_channels)) if core["rows"] else None
        shown = ["" if count is None else f"{count:,}" for count in (*of_channels, rest)]
        rows.append([str(number), place, f"{cycles['total']:,}", f"{cycles['compute']:,}", *shown, f"{core['macs']:,}"])
    columns = ["core", "PEs", "cycles", "compute", "waits for words", "for space", "other stalls", "MACs"]
    yield from table(columns, rows)
    frames, total = counters["frames"], counters["cycles"]["total"]
    count, first, period = frames["count"], frames["first"], frames["period"]
    yield f"  {plural(count, 'frame')} in {total:,} cycles" + (f", the first one done after {first:,}" if first else "")
    if period is None:
        if count > 1:
            yield "  no steady state within these frames: more --frames may show one"
        return
    each = f"{period['cycles']:,} cycles" + (f" for {period['frames']} frames" if period["frames"] > 1 else " a frame")
    fps = f": {clock_mhz * 1e6 * period['frames'] / period['cycles']:,.1f} frames a second at {clock_mhz} MHz"
    yield f"  steady state {each}" + (fps if clock_mhz else "; clock_mhz in the array file gives frames a second")
