"""A convolution mapped by itself, before its network is: by the mapper, or by texts in the notation. No pass.

The layer has the GLB to itself. Image and results are resident if a mapping has room beside them. Else the results are
streamed, and if that does not do, the image, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from cnncc.arch.model import Arch
from cnncc.cbrain.convolution import Convolution
from cnncc.cbrain.kernel_partition import partition
from cnncc.errors import Refusal
from cnncc.mapper.cached_search import searched
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapping.mapping import Sizes
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.nest_layers import touched
from cnncc.passes._scheduling.schedule_file import MappingText
from cnncc.passes._scheduling.written_mappings import written_mapping
from cnncc.window import Window

PLACES = (frozenset[str](), frozenset({"output"}), frozenset({"ifmap", "output"}))  # what is streamed
PARAMS = 2  # of an output channel: bias and scale


def shape_of(layer: Convolution) -> LayerShape:
    """The shape of a layer of one frame, with a bias and a scale for each output map."""
    sizes = Sizes(1, layer.outputs, layer.depth, *layer.results, *layer.window.kernel)
    return touched(LayerShape("mac", sizes, layer.window, PARAMS, *layer.image))


def partitioned(layer: Convolution) -> tuple[Convolution, ...]:
    """The layers that `cnn-partition-kernel` makes: one that cuts the image, and the one over small windows.

    A layer of stride 1 stays. Raises Refusal for a dilated kernel.
    """
    parts = partition(layer)
    if layer.window.stride == (1, 1):
        return (layer,)
    (top, left, *_), (rows, cols) = layer.window.pad, layer.image
    rest = (max(0, parts.image[0] - top - rows), max(0, parts.image[1] - left - cols))
    window = Window(parts.side, parts.side, (top, left, *rest), group=layer.inputs)
    inputs = layer.inputs * parts.taps
    return (
        Convolution(f"{layer.name}.cut", layer.image, layer.inputs, inputs, window),
        Convolution(layer.name, parts.windows, inputs, layer.outputs, Window(parts.grid, group=layer.window.group)),
    )


def budgets(shape: LayerShape, arch: Arch) -> Iterator[GlbBudget]:
    """GLB words for the layer's buffers, with more and more operands streamed."""
    resident = {"ifmap": shape.sizes.n * shape.channels * shape.ih * shape.iw, "output": shape.results}
    for streamed in PLACES:
        words = arch.glb.words - sum(size for operand, size in resident.items() if operand not in streamed)
        if words > 0:
            yield GlbBudget(words, streamed)


def by_mapper(layer: Convolution, arch: Arch, places: Iterable[GlbBudget] | None = None) -> LayerPlan:
    """The fastest mapping that the mapper finds in the first of some budgets that has room for one. Raises Refusal."""
    shape = shape_of(layer)
    for budget in budgets(shape, arch) if places is None else places:
        if result := searched(SearchTask(shape, arch, budget)):
            return LayerPlan(layer.name, shape, result.mapping, prefetched=PREFETCHED)
    raise Refusal(f"{layer.name}: no mapping fits {arch.glb.words:,} words of the GLB: an array with a larger one")


def by_texts(layer: Convolution, arch: Arch, texts: Iterable[str]) -> tuple[LayerPlan, GlbBudget]:
    """The fastest of some texts, each completed, in the first budget in which one fits. Raises Refusal of the last."""
    shape, texts, refusal = shape_of(layer), list(texts), Refusal(f"{layer.name}: there is no text")
    for budget in budgets(shape, arch):
        plans = list[LayerPlan]()
        for text in texts:
            try:
                mapping = written_mapping(shape, arch, budget, MappingText(text))
            except Refusal as refused:
                refusal = refused
                continue
            plans.append(LayerPlan(layer.name, shape, mapping, prefetched=PREFETCHED))
        if plans:
            return min(plans, key=lambda plan: layer_cycles(plan, arch)), budget
    raise Refusal(f"{layer.name}: {refusal}")


def mapped_cycles(layers: Iterable[Convolution], arch: Arch) -> int | None:
    """Cycles of layers one after the other, as the mapper maps each; None if one has no mapping."""
    with suppress(Refusal):
        return sum(layer_cycles(by_mapper(layer, arch), arch) for layer in layers)
    return None
