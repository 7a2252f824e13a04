"""Words between buffers and PEs by C-Brain's formulas (CBRAIN-6), beside those of compiled layers.

Each layer is mapped by itself for `cbrain-16-16`, by the text of a scheme (docs/mapping.md, "C-Brain's schemes"). Words
are those that the cost model predicts and `cnncc run --stats` counts (docs/stats.md):

| here | formula | counters |
|---|---|---|
| data | data | `operands.glb_read.ifmap` |
| weights | weights | `operands.glb_read.weight` |
| sums | accesses to sums | `operands.glb_write.results`; `glb_read.sums` and `glb_write.sums`, by `words_per_sum` |

The formulas count words here, not lines, as programs do. A sum is stored for all input maps together; in the way
`intra, each map` for each map, which is the assumption that fits the paper's figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
from cbrain_networks import SOURCES, layers_of, network_of

from cnncc.arch.model import Arch, load_arch
from cnncc.cbrain.convolution import Convolution
from cnncc.cbrain.memory_order import order_cycles
from cnncc.cbrain.scheme_choice import StoredOrder, adaptive, plan
from cnncc.cbrain.schemes import Accesses, CBrain, Counting, Scheme, accesses, layer_cycles, percent_saved
from cnncc.errors import Refusal
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.operand_traffic import operand_traffic
from cnncc.passes._scheduling.dataflows import TEXTS
from cnncc.passes._scheduling.layer_alone import by_texts, partitioned, shape_of
from cnncc.util.terminal import TEXT, Column, fitted, table

ARRAY = CBrain(16, 16)
EACH_MAP = "intra, each map"
OF_A_MAP = (
    "n > h' > k' > c > s' > r' > [k''||@cols k'''||@rows] > weight@rf > h'' > w > ifmap@rf "
    "> {s''||@lanes > r''||@lanes}"
)
"""Intra-kernel with one input map at a time: its sums are stored before the next map."""
NAMES = {
    Scheme.INTER: "inter",
    Scheme.IMPROVED: "inter-weights",
    Scheme.UNROLLED: "intra",
    Scheme.SLIDING: "intra-sliding",
    Scheme.PARTITION: "inter-weights",  # over small windows: pieces outside, pixels inside, as in Algorithm 1
}
WAYS = ("inter", "intra", EACH_MAP, "adap-1", "adap-2")
PAPER = {  # of Fig. 10: how many percent fewer accesses the first way has than the second one
    ("adap-2", "adap-1"): 90.13,
    ("adap-2", EACH_MAP): 73.7,
}


@dataclass(frozen=True)
class Row:
    """The words of a network's layers, in one way, by formulas and counted."""

    network: str
    way: str
    formula: Accesses
    counted: Accesses


@dataclass(frozen=True)
class Order:
    """Cycles that a network takes more for the order of its data, and its cycles by CBRAIN-1.

    - by_readers: in the orders that Algorithm 2 chooses
    - in_intra: with all data in intra-order
    """

    network: str
    by_readers: int
    in_intra: int
    cycles: int


def schemes_of(way: str, layers: Sequence[Convolution]) -> list[Scheme]:
    """The scheme of each layer."""
    if way.startswith("adap"):
        return adaptive(layers, ARRAY.tin, improved=way == "adap-2")
    return [Scheme.INTER if way == "inter" else Scheme.UNROLLED] * len(layers)


def plans(layer: Convolution, scheme: Scheme, arch: Arch, each_map: bool = False) -> list[LayerPlan]:
    """The layer, mapped by its scheme; two layers if its kernel is partitioned. Raises Refusal if it does not fit."""
    if each_map:
        return [by_texts(layer, arch, [OF_A_MAP])[0]]
    *cut, main = partitioned(layer) if scheme is Scheme.PARTITION else (layer,)
    name = NAMES[Scheme.SLIDING if scheme is Scheme.PARTITION and not cut else scheme]
    named = [*((each, "intra-sliding") for each in cut), (main, name)]
    return [by_texts(each, arch, [TEXTS[name].text(shape_of(each), arch)])[0] for each, name in named]


def counted(mapped: LayerPlan, arch: Arch) -> Accesses:
    """The words of a mapped layer by the cost model."""
    return of_counters(operand_traffic(mapped.shape, mapped.mapping, arch, mapped.residual).counters(), arch)


def of_counters(counters: dict[str, Any], arch: Arch) -> Accesses:
    """Those of a layer's counters, as `run --stats` has them."""
    read, write = counters["operands"]["glb_read"], counters["operands"]["glb_write"]
    sums = (read["sums"] + write["sums"]) // arch.words_per_sum
    return Accesses(read["ifmap"], read["weight"], write["results"] + sums)


def total(parts: Sequence[Accesses]) -> Accesses:
    """The sum of all."""
    return Accesses(*(sum(getattr(part, name) for part in parts) for name in ("data", "weights", "sums")))


def rows(network: str, layers: Sequence[Convolution], arch: Arch) -> Iterator[Row]:
    """A network in each way. Raises Refusal for a layer that does not fit."""
    for way in WAYS:
        cases, each_map = list(zip(layers, schemes_of(way, layers), strict=True)), way == EACH_MAP
        formula = [accesses(*case, ARRAY, Counting(lines=False, each_map=each_map)) for case in cases]
        words = [counted(own, arch) for case in cases for own in plans(*case, arch, each_map)]
        yield Row(network, way, total(formula), total(words))


def saved(found: Sequence[Row], way: str, base: str) -> Iterator[tuple[str, float, float]]:
    """For each network how many percent fewer words a way has than another: by formulas, and counted."""
    by = {(row.network, row.way): row for row in found}
    for network in dict.fromkeys(row.network for row in found):
        one, other = by[network, way], by[network, base]
        pairs = (one.formula, other.formula), (one.counted, other.counted)
        formula, words = (percent_saved(fewer.total, more.total) for fewer, more in pairs)
        yield network, formula, words


def orders(network: str, layers: Sequence[Convolution]) -> Order:
    """The cost of orders in memory. The image itself lies in intra-order."""
    chosen, image = plan(layers, ARRAY.tin), StoredOrder.INTRA
    cases = list(zip(layers, (choice.scheme for choice, _ in chosen), strict=True))
    stored = [image, *(order for _, order in chosen[:-1])]
    by_readers = sum(order_cycles(*case, ARRAY, order) for case, order in zip(cases, stored, strict=True))
    in_intra = sum(order_cycles(*case, ARRAY, StoredOrder.INTRA) for case in cases)
    return Order(network, by_readers, in_intra, sum(layer_cycles(*case, ARRAY) for case in cases))


def order_lines(costs: Sequence[Order]) -> Iterator[str]:
    """Two figures for each network."""
    lines = f"lines of {ARRAY.tin} words"
    yield f"order in memory: cycles more by {lines}, in the order of the readers, and all in intra-order"
    for each in costs:
        share = 100 * each.in_intra / each.cycles
        yield f"  {each.network}: {each.by_readers:,}, and {each.in_intra:,} ({share:.1f} %)"


def as_text(found: Sequence[Row]) -> Iterator[str]:
    """Words by operand, then what the paper says is saved."""
    cells = list[list[str]]()
    for row in found:
        for how, words in (("formula", row.formula), ("counted", row.counted)):
            numbers = (words.data, words.weights, words.sums, words.total)
            cells.append([row.network, row.way, how, *(f"{number:,}" for number in numbers)])
    named = [Column(title, TEXT) for title in ("network", "schemes", "words")]
    yield from table([*named, "data", "weights", "sums", "all"], cells)
    for (way, base), stated in PAPER.items():
        yield f"{way} below {base}: {stated} % by the paper, in the mean of four networks"
        for network, formula, words in saved(found, way, base):
            yield f"  {network}: {formula:.1f} % by formulas, {words:.1f} % counted"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--network", "names", multiple=True, type=click.Choice(list(SOURCES)), help="[all]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def main(names: tuple[str, ...], as_json: bool) -> None:
    """Compare C-Brain's formulas for accesses to buffers with the words that compiled layers move.

    \b
    python samples/reproduce/cbrain_accesses.py --network AlexNet
    """
    arch = load_arch("cbrain-16-16")
    try:
        found = [row for name in names or SOURCES for row in rows(name, layers_of(network_of(SOURCES[name])), arch)]
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    costs = [orders(name, layers_of(network_of(SOURCES[name]))) for name in names or SOURCES]
    if as_json:
        result = {"accesses": [asdict(row) for row in found], "orders": [asdict(each) for each in costs]}
        click.echo(json.dumps(result, indent=1))
    else:
        click.echo(fitted([*as_text(found), *order_lines(costs)]))


if __name__ == "__main__":
    main()
