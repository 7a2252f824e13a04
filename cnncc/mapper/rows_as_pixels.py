"""Products of a matrix with several rows: mappings of the convolution whose pixels are the rows (LOCAL-5). No IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cnncc.arch.model import Arch, Energy
from cnncc.mapper.costs import cost_of
from cnncc.mapper.search import Tradeoff
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_schedule import layer_cycles, plan_in
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.legal import can_run, fits_glb
from cnncc.window import Window


def as_image(shape: LayerShape, budget: GlbBudget) -> LayerShape | None:
    """The convolution of one image whose pixels are the rows of a matrix product.

    None for other layers, for a single row, and where an activation is streamed: its rows come one by one.
    """
    sizes = shape.sizes
    is_product = shape.is_mac and not shape.channelwise and shape.shuffle == 1 and shape.window == Window((1, 1))
    if not is_product or sizes.n == 1 or (sizes.h, sizes.w) != (1, 1) or budget.streamed:
        return None
    return replace(shape, sizes=replace(sizes, n=1, w=sizes.n), iw=sizes.n)


def of_rows(mapping: Mapping) -> Mapping:
    """A mapping of the image as one of the matrix product: its loops over w are loops over n."""
    return replace(mapping, loops=tuple(replace(loop, dim="n") if loop.dim == "w" else loop for loop in mapping.loops))


def tradeoffs(
    shape: LayerShape, arch: Arch, budget: GlbBudget, mappings: Sequence[Mapping], costs: Energy
) -> Iterator[Tradeoff]:
    """Cycles and costs of those of the mappings that can be programs."""
    for mapping in mappings:
        if can_run(shape, arch, mapping, budget.residual) and fits_glb(shape, arch, mapping, budget.words):
            cycles = layer_cycles(plan_in(budget, shape, mapping), arch)
            yield Tradeoff(mapping, cycles, cost_of(shape, mapping, arch, budget.residual, costs))


def undominated(each: Sequence[Tradeoff]) -> tuple[Tradeoff, ...]:
    """The front of some mappings, the cheapest first: each takes fewer cycles than the one before."""
    front = list[Tradeoff]()
    for one in sorted(each, key=lambda one: (one.cost, one.cycles)):
        if not front or one.cycles < front[-1].cycles:
            front.append(one)
    return tuple(front)
