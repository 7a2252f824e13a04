"""The mapping of a layer that takes the fewest words of the GLB, and whether any fits a budget (SPACE-15). No IR.

Mappings are looked at that have one PE, boxes and tiles of single indices, and of each dimension that blocks cut single
indices or all: some hundreds. A mapping with larger tiles or boxes takes fewer words only if it has fewer partial sums:
where it computes at once what single indices compute in several steps. Searches find such mappings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.mapper.block_sizes import cut_dims, positions_in_blocks
from cnncc.mapper.space import BlockPlan, Form, Point, StagePlace, forms_of, mapping_of
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_shape import GlbBudget, LayerShape, buffer_words
from cnncc.model.legal import can_run
from cnncc.model.routes import Nest


class Small(NamedTuple):
    """A mapping, the words of its buffers and partial sums, and those of its buffers alone."""

    words: int
    buffers: int
    mapping: Mapping


def has_mapping(shape: LayerShape, arch: Arch, budget: GlbBudget, dataflow: str = "") -> bool:
    """Whether one of them fits the budget. dataflow: of the forms with this name."""
    small = _small(shape, arch, budget, dataflow)
    return any(each.words <= budget.words and can_run(shape, arch, each.mapping, budget.residual) for each in small)


def may_have_mapping(shape: LayerShape, arch: Arch, budget: GlbBudget, dataflow: str = "") -> bool:
    """Whether any mapping may fit the budget: one that is smaller than all of them has fewer partial sums."""
    return any(each.buffers <= budget.words for each in _small(shape, arch, budget, dataflow))


def smallest(shape: LayerShape, arch: Arch, budget: GlbBudget, dataflow: str = "") -> Small | None:
    """The mapping with the fewest words, in a budget of any size; None if the forms with this name have none."""
    # Neither words nor `tight` change these mappings: all budgets share what is kept.
    return _smallest(shape, arch, replace(budget, words=0, tight=True), dataflow)


@lru_cache(maxsize=4096)
def _smallest(shape: LayerShape, arch: Arch, budget: GlbBudget, dataflow: str) -> Small | None:
    small = sorted(_small(shape, arch, budget, dataflow), key=lambda each: each.words)
    return next((each for each in small if can_run(shape, arch, each.mapping, budget.residual)), None)


def _small(shape: LayerShape, arch: Arch, budget: GlbBudget, dataflow: str) -> Iterator[Small]:
    """All of them, each once. Some are illegal."""
    seen = set[Mapping]()
    for form in forms_of(shape, dataflow):
        at = Point(form, (1, 1, 1, 1), (1, 1, 1), (1, 1, 1, 1, 1, 1))
        for plan in _plans(shape, replace(budget, tight=True), form):
            mapping = mapping_of(shape, arch, at, plan)
            if mapping not in seen:
                seen.add(mapping)
                words, partial = buffer_words(shape, arch, mapping, False), Nest(shape, mapping).has_partial_sums()
                yield Small(buffer_words(shape, arch, mapping, True) if partial else words, words, mapping)


def _plans(shape: LayerShape, budget: GlbBudget, form: Form) -> Iterator[BlockPlan]:
    """Blocks of single indices, or of all; each operand in one buffer, but slices of c of the ifmap in two."""
    extents = {"k": shape.tiled_together, "h": shape.sizes.h, "w": shape.sizes.w}
    cut = cut_dims(shape, budget)
    sizes = [sorted({1, extent}) if dim in cut else [extent] for dim, extent in extents.items()]
    slices = (False, True) if form.order.startswith("c") and "ifmap" in budget.streamed else (False,)
    for (place, params), (k, h, w) in product(_places(shape, budget, form), product(*sizes)):
        orders = (True, False) if k < extents["k"] else (True,)  # of one block of k both orders are the same mapping
        for k_outside, sliced in product(orders, slices):
            buffers = tuple((operand, 1 + (sliced and operand == "ifmap")) for operand in sorted(budget.streamed))
            yield BlockPlan(k, h, w, k_outside, place, 1, buffers, sliced, params)


def _places(shape: LayerShape, budget: GlbBudget, form: Form) -> Iterator[tuple[int, bool]]:
    """Places of weights from inside all blocks on, and whether parameters come in slices (SPACE-12, SPACE-13)."""
    if not shape.is_mac:
        yield StagePlace.IN_BLOCK, positions_in_blocks(shape, budget)
        return
    before, inside = form.order.split("|")
    loops = before.partition("r")[0] + "c" * inside.startswith("c")
    for count in range(len(loops) + 1):
        with_params = not budget.streamed and shape.shuffle == 1 and "c" not in loops[:count]
        yield from product([StagePlace.IN_BLOCK + count], (False, True)[: 1 + with_params])
