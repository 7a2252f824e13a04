"""The scheme that Algorithm 2 of C-Brain chooses for each layer, beside the mapping that cnncc finds.

Each layer is mapped by itself, for the preset of an array, in both ways:

- by the scheme: the fastest of its texts (docs/mapping.md, "C-Brain's schemes"); with kernel partition, the layer that
  cuts the image and the one over small windows (docs/cbrain.md);
- by the mapper: the fastest mapping that it finds in the same budget of the global buffer, whole or partitioned.

Cycles are those of the cost model, which are those of the program. The reason is the largest part of the difference.
The networks are those of `cbrain.py`, with layers of equal shapes once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import product

import click
from cbrain import WIDTHS, width
from cbrain_networks import SOURCES, layers_of, network_of
from cbrain_programs import cutting, over_small_windows

from cnncc.arch.model import Arch, load_arch
from cnncc.cbrain.convolution import Convolution
from cnncc.cbrain.scheme_choice import choose
from cnncc.cbrain.schemes import CBrain, Scheme, layer_cycles
from cnncc.errors import Refusal
from cnncc.estimate.cycle_breakdown import CycleBreakdown, cycle_breakdown, difference
from cnncc.estimate.layer_limits import cause_text
from cnncc.mapping.text import text
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._scheduling.dataflows import TEXTS
from cnncc.passes._scheduling.layer_alone import by_mapper, by_texts, partitioned, shape_of
from cnncc.util.terminal import TEXT, Column, fitted, table

DATAFLOWS = {
    Scheme.INTER: ("inter", "inter-weights", "inter-data"),
    Scheme.SLIDING: ("intra-sliding",),
    Scheme.PARTITION: ("inter-weights", "inter-data", "intra-sliding"),  # of the layer over small windows
}
Plans = Sequence[LayerPlan]
USES = {"steps": "steps, as more multipliers work", "start": "starting and finishing macro-instructions"}


@dataclass(frozen=True)
class Compared:
    """A layer of a network on an array: cycles by its scheme, by the mapper, and why they differ.

    - formula: the cycles of the scheme by CBRAIN-1, without loads and waiting
    - uses: the cycles that the scheme takes more, by their use (`CycleBreakdown`)
    - mapping: the mapper's, or both where the kernel is partitioned
    """

    network: str
    width: str
    layer: str
    scheme: str
    formula: int
    by_scheme: int
    by_mapper: int
    uses: dict[str, int]
    reason: str
    mapping: str

    @property
    def more(self) -> int:
        """Cycles that the scheme takes more."""
        return self.by_scheme - self.by_mapper


def compared(network: str, layer: Convolution, array: CBrain, arch: Arch) -> Compared:
    """Both mappings of a layer. Raises Refusal for a layer that neither way fits."""
    scheme = choose(layer, array.tin).scheme
    schemed, budget = by_scheme(layer, scheme, array, arch)
    ways = [[by_mapper(layer, arch, [budget] if budget else None)]]
    if layer.window.stride != (1, 1) and layer.taps > 1 and not layer.dilated:
        ways.append([by_mapper(each, arch) for each in partitioned(layer)])
    best = min(ways, key=lambda plans: spent(plans, arch).total)
    one, other = spent(schemed, arch), spent(best, arch)
    reason = difference(one, other) if one.total != other.total else "the same"
    formula = layer_cycles(layer, scheme, array)
    said = "; ".join(text(plan.mapping, plan.shape.sizes) for plan in best)
    numbers = formula, one.total, other.total
    uses = {use: more for use, cycles in one.cycles.items() if (more := cycles - other.cycles[use])}
    return Compared(network, width(array), layer.name, scheme.value, *numbers, uses, reason, said)


def by_scheme(layer: Convolution, scheme: Scheme, array: CBrain, arch: Arch) -> tuple[Plans, GlbBudget | None]:
    """The layer by its scheme, and the budget if it is one layer. Raises Refusal if no text fits."""
    layers = partitioned(layer) if scheme is Scheme.PARTITION else (layer,)
    by_hand = [over_small_windows(layer, array)] if scheme is Scheme.PARTITION else []
    shape = shape_of(layers[-1])
    texts = [TEXTS[name].text(shape, arch) for name in DATAFLOWS[scheme]]
    plan, budget = by_texts(layers[-1], arch, [*texts, *by_hand])
    if len(layers) == 1:
        return [plan], budget
    cut, _ = by_texts(layers[0], arch, [cutting(layer, array)])
    return [cut, plan], None


def spent(plans: Plans, arch: Arch) -> CycleBreakdown:
    """Cycles of layers one after the other, by their use."""
    return reduce(plus, (cycle_breakdown(plan, arch) for plan in plans))


def plus(one: CycleBreakdown, other: CycleBreakdown) -> CycleBreakdown:
    """The sum of two."""
    cycles = {use: one.cycles[use] + other.cycles[use] for use in one.cycles}
    return CycleBreakdown(cycles, one.macros + other.macros, one.words + other.words, one.partial + other.partial)


def layers_once(names: Sequence[str]) -> Iterator[tuple[str, Convolution]]:
    """The layers of networks, of equal shapes the first one."""
    seen = set[Convolution]()
    for name in names:
        for layer in layers_of(network_of(SOURCES[name])):
            if (shape := replace(layer, name="")) not in seen:
                seen.add(shape)
                yield name, layer


def as_text(rows: Sequence[Compared]) -> Iterator[str]:
    """A table, the layers with the largest gains first, and what makes the gains."""
    named = [Column(title, TEXT) for title in ("network", "width", "layer", "scheme")]
    columns = [*named, Column("formula", drop=1), "scheme", "mapper", "less", Column("reason", TEXT)]
    cells = list[list[str]]()
    for row in sorted(rows, key=lambda row: row.by_mapper / row.by_scheme):
        numbers = (f"{cycles:,}" for cycles in (row.formula, row.by_scheme, row.by_mapper))
        less = f"{100 * row.more / row.by_scheme:.1f} %"
        cells.append([row.network, row.width, row.layer, row.scheme, *numbers, less, row.reason])
    yield from table(columns, cells)
    slower = sum(row.more < 0 for row in rows)
    yield f"  the mapper is faster in {sum(row.more > 0 for row in rows)} of {len(rows)} cases, slower in {slower}"
    uses = Counter[str]()
    for row in rows:
        uses.update(row.uses)
    for use, cycles in uses.most_common():
        yield f"  {cycles:,} cycles less of {USES.get(use) or f'waiting for {cause_text(use)}'}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--network", "names", multiple=True, type=click.Choice(list(SOURCES)), help="[all]")
@click.option("--layer", "labels", multiple=True, help="By its name [all].")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def main(names: tuple[str, ...], labels: tuple[str, ...], as_json: bool) -> None:
    """Compare the schemes that Algorithm 2 chooses with what the mapper finds, layer by layer.

    Stderr says the cycles of each layer when it is done.

    \b
    python samples/reproduce/cbrain_mapper.py --network AlexNet
    """
    layers = [each for each in layers_once(names or tuple(SOURCES)) if not labels or each[1].name in labels]
    if not layers:
        raise click.ClickException(f"no network has a layer {' or '.join(labels)}, or another one has the same shape")
    rows, cases = list[Compared](), list(product(layers, WIDTHS))
    try:
        for number, ((network, layer), array) in enumerate(cases, 1):
            rows.append(row := compared(network, layer, array, load_arch(f"cbrain-{width(array)}")))
            said = f"{row.by_mapper:,} cycles, by the scheme {row.by_scheme:,}"
            click.echo(f"{number} of {len(cases)}: {network}, {row.width}, {row.layer}: {said}", err=True)
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    click.echo(json.dumps([asdict(row) for row in rows], indent=1) if as_json else fitted(as_text(rows)))


if __name__ == "__main__":
    main()
