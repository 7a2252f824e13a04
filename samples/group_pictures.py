"""Draw a group of layers for docs/groups.md: what a row of the last layer needs, and what a ring holds over time.

The group is the example there: two 3x3 convolutions and a pool on an image of 8 rows. Rows, delays and rings are those
that `nest-group` computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from pictures import COLOURS, GREY, INK, LOADED, MOVED, PALE, PAPER, Picture

from cnncc.mapping.groups import GroupLayer, RowRead
from cnncc.mapping.mapping import Loop, Mapping, Sizes
from cnncc.passes._scheduling.stripes import with_least_delays, with_least_rings

HEIGHT, CELL = 8, 24
STRIPE = 2  # of the pyramid: one whose windows do not reach into the padding
NEW, KEPT, GONE = MOVED, LOADED, PALE


def example() -> list[GroupLayer]:
    """Layers c1, c2 and p2, with their delays and rings."""

    def layer(label: str, height: int, rows: int, *reads: RowRead) -> GroupLayer:
        sizes = Sizes(1, 1, 1, height, 1, 1, 1)
        return GroupLayer(label, "mac", sizes, Mapping((Loop("h", rows),)), 0, 0, reads, label == "p2")

    layers = [
        layer("c1", HEIGHT, 2),
        layer("c2", HEIGHT, 2, RowRead(0, "ifmap", extent=3, stride=1, pad=1)),
        layer("p2", HEIGHT // 2, 1, RowRead(1, "ifmap", extent=2, stride=2)),
    ]
    return with_least_rings(with_least_delays(layers), [1, 1, 1])


def pyramid(layers: Sequence[GroupLayer]) -> Picture:
    """Which rows of each value one row of the last layer needs, and which of them are new."""
    picture = Picture(1000, 320, "A pyramid: the rows that one row of the last layer needs, layer by layer")
    image = RowRead(-1, "ifmap", extent=3, stride=1, pad=1)
    needed = layers[-1].stripes.start(STRIPE), layers[-1].stripes.start(STRIPE + 1)
    before = needed[0]
    columns = [("p2", layers[-1].sizes.h, needed, before)]
    for number in reversed(range(len(layers))):
        read = layers[number].reads[0] if layers[number].reads else image
        height = layers[read.producer].sizes.h if read.producer >= 0 else HEIGHT
        before = read.rows(0, before, height)[1]
        needed = read.rows(needed[0], needed[1] - needed[0], height)
        columns.append((layers[read.producer].label if read.producer >= 0 else "image", height, needed, before))
    for at, (label, height, (low, end), old) in enumerate(reversed(columns)):
        x = 40 + 200 * at
        picture.text(x + 60, 34, label, 14, INK, "middle", bold=True)
        for row in range(height):
            fill = PAPER if not low <= row < end else NEW if row >= old else KEPT
            y = 50 + row * CELL + (HEIGHT - height) * CELL // 2
            picture.box(x, y, 120, CELL - 2, fill)
            picture.text(x + 60, y + 16, str(row), 12, GREY, "middle")
        if at < len(columns) - 1:
            picture.path([(x + 128, 146), (x + 190, 146)], COLOURS["array"])
    _legend(
        picture,
        268,
        ((NEW, "new rows for this row of p2"), (KEPT, "needed too, computed before"), (PAPER, "other rows")),
    )
    picture.text(40, 308, f"Row {STRIPE} of p2 needs {_counts(columns[1:])}.", 13, GREY)
    return picture


def _counts(columns: Sequence[tuple[str, int, tuple[int, int], int]]) -> str:
    texts = [f"{end - low} rows of {label}, {end - max(low, old)} of them new" for label, _, (low, end), old in columns]
    return f"{'; '.join(texts[:-1])}; and {texts[-1]}"


def ring(layers: Sequence[GroupLayer]) -> Picture:
    """What each slot of the first layer's ring holds, step by step, and what the second layer reads."""
    first, second = layers[0], layers[1]
    steps = second.delay + second.stripes.count
    picture = Picture(1000, 290, f"The ring of {first.label}, which keeps {first.keeps} rows, over time")
    for slot in range(first.keeps):
        picture.text(40, 84 + slot * CELL, f"slot {slot}", 12, GREY)
    held: list[int | None] = [None] * first.keeps
    for step in range(steps):
        x = 110 + 160 * step
        picture.text(x + 60, 34, f"step {step}", 14, INK, "middle", bold=True)
        written = range(first.stripes.start(step - first.delay), first.stripes.start(step - first.delay + 1))
        for row in written:
            held[row % first.keeps] = row
        stripe = step - second.delay
        low, end = second.stripes.reads(second.reads[0], stripe, first.sizes.h) if stripe >= 0 else (0, 0)
        for slot, row in enumerate(held):
            is_read = row is not None and low <= row < end
            fill = PAPER if row is None else NEW if row in written else KEPT if is_read else GONE
            picture.box(x, 68 + slot * CELL, 120, CELL - 2, fill)
            text = "" if row is None else f"row {row}{', read' if is_read else ''}"
            picture.text(x + 60, 84 + slot * CELL, text, 12, INK if is_read else GREY, "middle")
        said = f"reads rows {low} to {end - 1}" if end > low else "does not run"
        picture.text(x + 60, 56, f"{second.label} {said}", 12, GREY, "middle")
    bottom = 84 + first.keeps * CELL
    _legend(
        picture,
        bottom + 8,
        ((NEW, f"written by {first.label} in this step"), (KEPT, f"read by {second.label}"), (GONE, "not needed now")),
    )
    rule = (
        f"Row y lies in slot y mod {first.keeps}. A row is overwritten after its last read: {second.label} runs behind."
    )
    picture.text(40, bottom + 52, rule, 13, GREY)
    return picture


def _legend(picture: Picture, y: int, entries: Sequence[tuple[str, str]]) -> None:
    for number, (colour, text) in enumerate(entries):
        picture.box(40 + 280 * number, y, 16, 16, colour)
        picture.text(64 + 280 * number, y + 13, text)
