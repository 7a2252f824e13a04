"""The Pareto front of an exploration, as a table and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from cnncc.errors import one_line, plural
from cnncc.explore.array_grid import OBJECTIVE, array_of, config_text, value_text
from cnncc.explore.evaluate import ALSO, MEASURES
from cnncc.explore.results import Result
from cnncc.util.terminal import Column, amount, table

REFUSED_SHOWN = 5
BEATEN_SHOWN = 10


def pareto(results: Sequence[Result], objectives: Sequence[str]) -> list[Result]:
    """The Pareto front: results that no other dominates, sorted by the objectives.

    Result a dominates b if a <= b in every objective and a < b in one. Equal results are all kept, in the given order;
    of those of one array the first.
    """
    points = [(tuple(result[name] for name in objectives), result) for result in results if "refused" not in result]
    points.sort(key=lambda point: point[0])
    front, seen = list[tuple[tuple[float, ...], Result]](), set[tuple[object, ...]]()
    for point, result in points:  # a dominating point sorts before the dominated one
        if (key := (point, config_text(array_of(result["config"])))) in seen:
            continue
        seen.add(key)
        if not any(other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other, _ in front):
            front.append((point, result))
    return [result for _, result in front]


def as_csv(results: Sequence[Result], objectives: Sequence[str]) -> bytes:
    """A row for each configuration, in the given order: keys, measures, whether on the Pareto front, refusal."""
    best = {config_text(result["config"]) for result in pareto(results, objectives)}
    keys = list(results[0]["config"])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, *MEASURES, *ALSO, "pareto", "refused"])
    for result in results:
        measures = [result.get(name, "") for name in (*MEASURES, *ALSO)]
        is_best = int(config_text(result["config"]) in best)
        writer.writerow([*_values(result), *measures, is_best, result.get("refused", "")])
    return text.getvalue().encode()


def _values(result: Result) -> list[str]:
    return list(map(value_text, result["config"].values()))


def _table(results: Sequence[Result], objectives: Sequence[str], unit: str) -> Iterator[str]:
    """A row for each result. unit: of energy."""
    heads = [f"{name} [{unit}]" if name == "energy" else name for name in MEASURES]
    # In a narrow terminal the measures that are no objectives leave first, the last one before the others.
    measures = (Column(head, drop=at * (MEASURES[at] not in objectives)) for at, head in enumerate(heads))
    rows = [
        [*_values(result), *(amount(result[name]) for name in MEASURES), f"{100 * result['utilisation']:.1f} %"]
        for result in results
    ]
    yield from table([*results[0]["config"], *measures, Column("utilisation", drop=9)], rows) if results else ()


def as_text(results: Sequence[Result], objectives: Sequence[str], unit: str) -> Iterator[str]:
    """The table of the Pareto front, a few results that it beats, and the first refusals. unit: of energy."""
    refused = [result for result in results if "refused" in result]
    best = pareto(results, objectives)
    each = len({result["config"][OBJECTIVE] for result in results})
    how = f" ({plural(len(results) // each, 'array')} x {each} objectives)" if each > 1 else ""
    count = f"{plural(len(results), 'configuration')}{how}, {len(refused):,} refused"
    yield f"{count}; best in {', '.join(objectives)}: {len(best):,}"
    yield from _table(best, objectives, unit)
    beaten = [result for result in results if result not in best and result not in refused]
    if len(beaten) > BEATEN_SHOWN:
        yield f"  and {len(beaten):,} beaten by these, in the files"
    elif beaten:
        yield "beaten by these:"
        yield from _table(beaten, objectives, unit)
    for result in refused[:REFUSED_SHOWN]:
        yield f"  refused {config_text(result['config'])}: {one_line(result['refused'])}"
    if len(refused) > REFUSED_SHOWN:
        yield f"  and {len(refused) - REFUSED_SHOWN:,} more refused, with their reasons in the files"
