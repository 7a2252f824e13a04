"""The report of the chosen groups as text, and as findings of `check`."""

from __future__ import annotations

from collections.abc import Iterator

from cnncc.errors import Finding, plural
from cnncc.passes._scheduling.group_report import Alternative, ChosenGroup, Costs, GroupReport, UnfitGroup
from cnncc.util.terminal import NAME, Column, amount, table

MOST_UNFIT = 3  # that text names
HEADS = ("cycles", "together", "DRAM words", "together", "energy", "together")


def as_text(report: GroupReport) -> Iterator[str]:
    """A table of what the layers of each group take one by one and together, then what else was considered."""
    if report.groups:
        rows = [(each.group, *_row(each.alone, each.together)) for each in report.groups]
        rows.append(("all layers", *_row(report.alone, report.network)))
        yield "groups: what their layers take one by one, and together"
        yield from table([Column("group", NAME), *map(Column, HEADS)], rows)
    for each in report.groups:
        yield f"{each.group}: {each.form}"
        if each.nearest:
            yield f"  {nearest(each.nearest, report.network)}"
    for each in report.unfit[:MOST_UNFIT]:
        yield f"{each.group}: no group: {unfit(each)}"
    if (more := len(report.unfit) - MOST_UNFIT) > 0:
        yield f"{plural(more, 'more group')} would not fit: --json names them"


def _row(before: Costs, after: Costs) -> list[str]:
    pairs = zip(vars(before).values(), vars(after).values(), strict=True)
    return [cell for one, other in pairs for cell in (amount(one), f"{amount(other)} ({change(one, other)})")]


def change(before: float, after: float) -> str:
    """In percent."""
    return f"{100 * (after / before - 1):+.1f} %" if before else "+0.0 %"


def nearest(other: Alternative, now: Costs) -> str:
    """The nearest alternative, and what the network takes with it beside what it takes now."""
    names = {"cycles": "cycles", "dram_words": "DRAM words", "energy": "energy"}
    costs = ", ".join(
        f"{_more(vars(other.network)[key] - vars(now)[key])} {name}"
        f" ({100 * (vars(other.network)[key] / vars(now)[key] - 1):+.2f} %)"
        for key, name in names.items()
        if vars(now)[key]
    )
    return f"nearest alternative: {other.group}, {other.form}: the network {costs}"


def _more(number: float) -> str:
    return f"{'-' if number < 0 else '+'}{amount(abs(number))}"


def unfit(each: UnfitGroup) -> str:
    """What does not fit, and by how much. The words of its parts add up."""
    others = each.needed - each.ring_words - each.weights - each.resident
    parts = {"weights": each.weights, "values that stay in the GLB": each.resident, "other rings and buffers": others}
    return (
        f"it takes {each.needed:,} words of the GLB, {each.missing:,} are missing: the ring of {each.ring} has "
        f"{each.ring_words:,} ({each.rows} rows)" + "".join(f", {name} {n:,}" for name, n in parts.items() if n)
    )


def findings(report: GroupReport, words: int) -> list[Finding]:
    """Notes of `check`: each group with its gain and the nearest alternative, and what does not fit."""
    return [
        *(
            Finding(_as_group(each, report), "note", each.group, "cycles", each.together.cycles)
            for each in report.groups
        ),
        *(
            Finding(f"no group: {unfit(each)}", "note", each.group, "glb.words", each.needed, words)
            for each in report.unfit[:MOST_UNFIT]
        ),
    ]


def _as_group(each: ChosenGroup, report: GroupReport) -> str:
    text = f"as a group in {each.form}; {gain(each)}"
    return f"{text}; {nearest(each.nearest, report.network)}" if each.nearest else text


def gain(each: ChosenGroup) -> str:
    """What the layers of a group take one by one, and how much of that the group saves."""
    before, after = each.alone, each.together
    return (
        f"its layers one by one take {before.cycles:,} cycles (together {change(before.cycles, after.cycles)}), "
        f"{before.dram_words:,} DRAM words ({change(before.dram_words, after.dram_words)}), "
        f"energy {amount(before.energy)} ({change(before.energy, after.energy)})"
    )
