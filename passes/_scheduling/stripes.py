"""Layers of a group in stripes: how many rows each one has, and the mapping of a layer that runs stripe by stripe.

The stripes of a group are those of its last layer. A stripe of R rows that is read with stride S needs S * R new rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import lcm

from cnncc.arch.model import Arch
from cnncc.dialects.nest import LayerOp
from cnncc.errors import Refusal
from cnncc.mapper.cached_search import searched
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.search import Result
from cnncc.mapping.groups import STREAMED, GroupLayer, RowRead, least_lag, least_ring
from cnncc.mapping.mapping import Loop, Stage
from cnncc.mapping.mapping import Mapping as Nest
from cnncc.model.layer_shape import GlbBudget, LayerShape, reach
from cnncc.passes._scheduling.nest_layers import layer_shape

Reads = Sequence[tuple[RowRead, ...]]


def stripe_rows(names: Sequence[str], heights: Sequence[int], reads: Reads, rows: int, several: bool) -> list[int]:
    """Rows of a stripe of each layer, `rows` for the last one. Raises Refusal where layers need different ones.

    several: other layers may leave the group, too. They go with what they read, else with the last layer.
    """
    result = {len(names) - 1: min(rows, heights[-1])}
    for consumer in reversed(range(len(names))):
        if consumer not in result:
            if not several:
                raise Refusal(f"no later layer of the group reads {names[consumer]}: a group has one last layer")
            known = (result[read.producer] // read.stride for read in reads[consumer] if read.producer in result)
            own = next(known, result[len(names) - 1] * heights[consumer] // heights[-1])
            result[consumer] = min(max(1, own), heights[consumer])
        for read in reads[consumer]:
            needed = min(heights[read.producer], read.stride * result[consumer])
            if result.setdefault(read.producer, needed) != needed:
                raise Refusal(
                    f"{names[consumer]} needs {needed} rows of {names[read.producer]} for a stripe, other layers "
                    f"{result[read.producer]}: leave one of them out of the group"
                )
    return [result[number] for number in range(len(names))]


def with_least_delays(
    layers: Sequence[GroupLayer], slack: Sequence[int] = (), given: Sequence[int | None] = ()
) -> list[GroupLayer]:
    """The layers, each as few stripes behind the first as its reads allow. Loads run one stripe further ahead.

    slack: stripes that each layer waits longer. given: delays of layers, None for the least.
    """
    result: list[GroupLayer] = []
    for number, layer in enumerate(layers):
        producers = [(read, result[read.producer]) for read in layer.reads]
        behind = [each.delay + least_lag(layer.stripes, read, each.stripes) + each.is_load for read, each in producers]
        least = max(behind, default=0) + (slack[number] if slack else 0)
        delay = given[number] if given else None
        result.append(replace(layer, delay=least if delay is None else delay))
    return result


def with_least_rows(layers: Sequence[GroupLayer]) -> list[GroupLayer]:
    """The layers, each as few rows ahead of its readers as these need: first stripes have fewer rows than others.

    A layer that is *a* rows ahead of the last one's steps has computed `a + i * rows` rows after step i. Its first
    stripe has the rows beyond whole stripes. Layers of one stripe, and those whose blocks come from DRAM, stay ahead by
    whole stripes.
    """
    # GROUP-11. Readers stand behind what they read, so that `ahead` is known of all of them.
    ahead: dict[int, int] = {}
    for number in reversed(range(len(layers))):
        layer = layers[number]
        wanted = [layer.rows] if layer.leaves else []
        for at, other in enumerate(layers):
            for read in (read for read in other.reads if read.producer == number):
                wanted.append(read.stride * (ahead[at] - 1) + read.extent - read.pad)
        ahead[number] = layer.rows if layer.stripes.count == 1 else max(wanted)
        if layer.mapping.glb_stages.keys() & {"ifmap", "residual"}:
            ahead[number] = -(-ahead[number] // layer.rows) * layer.rows
    return with_least_delays([replace(layer, first=ahead[number] % layer.rows) for number, layer in enumerate(layers)])


def with_least_rings(layers: Sequence[GroupLayer], apart: Sequence[int]) -> list[GroupLayer]:
    """The layers with the smallest rings for their delays; apart: how far the rows lie apart that each layer reads.

    A ring has a whole number of these distances, as far as its value has so many rows.
    """
    result: list[GroupLayer] = []
    for number, layer in enumerate(layers):
        readers = [
            (at, other, read) for at, other in enumerate(layers) for read in other.reads if read.producer == number
        ]
        least = max(
            (least_ring(other.stripes, read, layer.stripes, other.delay - layer.delay) for _, other, read in readers),
            default=0,
        )
        unit = lcm(*(apart[at] for at, _, read in readers if read.operand == "ifmap"))
        result.append(replace(layer, keeps=min(-(-least // unit) * unit, layer.sizes.h)))
    return result


def kind_in_group(layer: LayerOp) -> str:
    """The kind of a layer in a group. An elementwise layer is a sum of one pixel there, and loads what it reads."""
    return "add" if layer.kind.data == "copy" else layer.kind.data


def _around(images: int, rows: int) -> tuple[Loop, ...]:
    """The loops over images, if there are several, and over stripes of so many rows."""
    return (*((Loop("n"),) if images > 1 else ()), Loop("h", rows))


def is_striped(mapping: Nest, images: int, rows: int) -> bool:
    """Whether a nest runs stripe by stripe already: over images, then over stripes of so many rows, in time."""
    around = _around(images, rows)
    return mapping.loops[: len(around)] == around


def striped(
    layer: LayerOp,
    mapping: Nest,
    rows: int,
    streamed: Collection[str],
    arch: Arch | None,
    single: bool = False,
    sums: bool = True,
) -> Nest:
    """The nest of a layer in stripes.

    streamed: operands that come through the GLB stripe by stripe. single: see `buffers_of`. sums: see `stripe_task`.

    A nest that has this form keeps its loops. One without stages gets a loop over stripes around it. Any other is
    replaced by the best mapping of a stripe on `arch`, as is that of an elementwise layer that loads nothing.
    """
    sizes = layer.sizes.data
    elementwise = layer.kind.data == "copy" and not any(stage.memory == "rf" for stage in mapping.stages)
    around = _around(sizes.n, rows)
    if is_striped(mapping, sizes.n, rows) and not (elementwise and arch):
        loops, stages, depth = mapping.loops, mapping.stages, 0
    else:
        nest = mapping
        if arch is not None and (mapping.stages or elementwise):
            nest = best_of_stripe(layer, rows, arch, sums)
        inner = [replace(loop, step=min(loop.step, rows)) if loop.dim == "h" else loop for loop in nest.loops]
        # The loops around are made anew: those over images and stripes that the nest has go.
        kept = [at for at, loop in enumerate(inner) if loop.dim != "n" and (loop.dim, loop.step) != ("h", rows)]
        # Stages in register files count the loops around them, of which none may go then.
        if mapping.stages and len(kept) < len(inner):
            raise Refusal("its nest runs over images or stripes inside other loops")
        loops, stages, depth = (*around, *(inner[at] for at in kept)), nest.stages, len(around)
    stages = _stages(stages, depth, len(around), buffers_of(streamed, single))
    return Nest(loops, tuple(sorted(stages, key=lambda stage: stage.depth)))


def buffers_of(streamed: Collection[str], single: bool) -> dict[str, int]:
    """How many buffers each streamed operand of a layer has.

    single: the output has one, not two. So has its residual then, as its transfers wait for the output's buffers.
    """
    shared = ("residual", "output") if single and "output" in streamed else ()
    return {operand: 1 if operand in shared else 2 for operand in STREAMED if operand in streamed}


def _stages(stages: Sequence[Stage], more: int, depth: int, buffers: Mapping[str, int]) -> list[Stage]:
    """Weights and parameters come once, streamed operands by stripes, and register files are filled inside these.

    buffers: of each streamed operand.
    """
    once = [replace(s, depth=0, buffers=1) for s in stages if s.memory == "glb" and s.operand in ("weight", "params")]
    blocks = [Stage(operand, "glb", depth, count) for operand, count in buffers.items()]
    files = [replace(s, depth=max(s.depth + more, depth)) for s in stages if s.memory == "rf"]
    return [*once, *blocks, *files]


def stripe_shape(shape: LayerShape, rows: int) -> LayerShape:
    """A stripe as a layer: so many output rows of one image, without the padding above and below."""
    window, sizes = shape.window, replace(shape.sizes, n=1, h=rows)
    _, left, _, right = window.pad
    ih = reach(rows, sizes.r, window.stride[0], window.dilation[0])
    return replace(shape, sizes=sizes, window=replace(window, pad=(0, left, 0, right)), ih=ih)


def whole_mapping(result: Result | None) -> Nest | None:
    """The mapping that a search found, if all that it stages in the GLB lies there as a whole; else None."""
    if result is None or any(stage.depth for stage in result.mapping.glb_stages.values()):
        return None
    return result.mapping


def stripe_task(
    shape: LayerShape, rows: int, arch: Arch, residual: bool, dataflow: str = "", sums: bool = True
) -> SearchTask:
    """The search for the mapping of a stripe, whose operands and results all lie in the GLB.

    sums: whether partial sums may lie there, too. Without them the GLB has weights and parameters alone.
    """
    stripe = stripe_shape(shape, rows)
    words = arch.glb.words if sums else min(arch.glb.words, stripe.weight_words + stripe.param_words(arch))
    task = SearchTask(stripe, arch, GlbBudget(words, residual=residual), dataflow)
    return replace(task, effort=task.effort.of_stripe())


def best_of_stripe(layer: LayerOp, rows: int, arch: Arch, sums: bool = True) -> Nest:
    """The best mapping of a stripe whose operands all lie in the GLB. sums: see `stripe_task`.

    Raises Refusal where there is none.
    """
    shape = replace(layer_shape(layer), kind=kind_in_group(layer))
    mapping = whole_mapping(searched(stripe_task(shape, rows, arch, layer.residual is not None, sums=sums)))
    if mapping is None:
        words = shape.weight_words + shape.param_words(arch)
        raise Refusal(
            f"its weights and parameters, {words} words, do not fit glb.words = {arch.glb.words}: leave the layer out, "
            f"or use a larger array"
        )
    return mapping
