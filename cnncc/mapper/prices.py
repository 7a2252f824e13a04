"""What a mapping costs by prices per event: exactly, and estimates for many mappings at once. No IR."""

from __future__ import annotations

from collections.abc import Set
from math import prod
from typing import TypeVar

import numpy as np

from cnncc.arch.model import Arch, Energy
from cnncc.dialects._mapping import Mapping
from cnncc.mapper.arrays import Amounts, Counts, PerPlan
from cnncc.mapper.blocks import Blocks, Weights
from cnncc.mapper.combinations import tables
from cnncc.mapper.space import BOX_DIMS, COL_DIMS, ROW_DIMS, Form, Numbers, shared
from cnncc.model.energy import energy
from cnncc.model.layer_shape import LayerShape
from cnncc.model.operand_traffic import operand_traffic

Words = TypeVar("Words", PerPlan, float)


def cost_of(shape: LayerShape, mapping: Mapping, arch: Arch, residual: bool, costs: Energy, first: int = 0) -> float:
    """The cost of a mapping. Prefetched words count for the layer that reads them. first: rows of a first stripe."""
    return energy(operand_traffic(shape, mapping, arch, residual, first).counters(), costs)["total"]


def array_energy(numbers: Numbers, form: Form, indices: Counts, costs: Energy, cut: bool) -> Amounts:
    """An estimate of what combinations cost in the array and at the GLB's ports: axes `[combination]`.

    Loads count as `_Bounds.loads` has them (`combinations.py`), in words:

        weights    all of them · (trips over h, w; 1 for ws): GLB, bus, and each PE of h and w
        ifmap      words of a PE · PEs that share no word: GLB and bus, or a link; words of a PE · PEs: register files
        sums       a psum for each step, for each lane that has its own; one for each PE that adds up, for each commit
        params     those of a macro-instruction's channels, for each macro-instruction over h and w: GLB

    cut: blocks may have any size.
    """
    shape, arch, sizes, own = numbers.shape, numbers.arch, numbers.shape.sizes, numbers.shape.channelwise
    of_each: list[Counts] = [*np.ascontiguousarray(indices.T)]
    listed = zip((numbers.rows, numbers.cols, numbers.boxes), of_each, strict=True)
    rows, cols, boxes = (each.T.take(at, axis=1) for each, at in listed)
    on_rows = dict[str, Counts](zip(ROW_DIMS, rows, strict=True))
    on_cols = dict[str, Counts](zip(COL_DIMS, cols, strict=True))
    box, lanes = dict[str, Counts](zip(BOX_DIMS, boxes, strict=False)), boxes[6:9].prod(axis=0)
    pes, trips, held = dict[str, Counts](), dict[str, Amounts](), dict[str, Amounts]()
    one = np.ones(len(indices), np.int64)
    for dim, loops in tables(numbers, form, cut).items():
        of_rows, of_cols = on_rows.get(dim, one), on_cols.get(dim, one)
        pes[dim], (trips[dim], held[dim]) = of_rows * of_cols, loops.of(of_rows, of_cols, box[dim])
    operations = float(shape.operations)
    cost = operations * (costs.mac + costs.ifmap_read + costs.weight_read * shape.is_mac)
    if shape.is_mac:
        loads = float(shape.weight_words * sizes.n) * (1 if form.name == "ws" else trips["h"] * trips["w"])
        cost = cost + loads * (costs.glb_read + costs.bus + costs.weight_write * pes["h"] * pes["w"])
    again = held["k"] if own else 1 if form.name == "is" else trips["k"]
    lines = (held["h"] if sizes.r == 1 else trips["h"]) * held["c"] * held["r"]
    stride, dilation = shape.window.stride, shape.window.dilation
    fewest_taps = sizes.s - (trips["s"] - 1) * box["s"]
    fresh = trips["s"] * (np.minimum(stride[1], fewest_taps) if dilation[1] == 1 else 1)
    windows = fresh * (held["w"] - trips["w"]) + sizes.s * trips["w"]
    lines = lines * float(sizes.n * (sizes.k // shape.tiled_together)) * again
    passed = lines * _passed_columns(numbers, form, box, lanes, pes["w"], trips)
    of_pe = lines * windows
    diagonal = (pes["r"] > 1) & (stride[0] == dilation[0])
    places = np.where(diagonal, pes["h"] + pes["r"] - 1, pes["h"] * pes["r"]) * pes["c"] * pes["w"]
    places = places * pes["k"] if own else places
    cost = cost + (of_pe - passed) * places * (costs.glb_read + costs.bus)
    cost = cost + prod(pes.values(), start=one) * (of_pe * costs.ifmap_write + passed * costs.n2n)
    summed, results = pes["c"] * pes["r"], float(shape.results)
    over_pixels, by_c = trips["h"] * trips["w"] > 1, (trips["k"] > 1) & form.order.startswith("c")
    is_cut = {"os": False, "ws": over_pixels | cut, "is": trips["k"] > 1}[form.name]
    times = np.where(is_cut, trips["c"] * trips["r"] * trips["s"], np.where(by_c, trips["c"], 1))
    commits = times * results
    cost = cost + operations / lanes * (costs.psum_read + costs.psum_write)
    cost = cost + commits * (summed * costs.psum_read + (summed - 1) * costs.south)
    cost = cost + arch.words_per_sum * (commits - results) * (costs.glb_read + costs.glb_write)
    places = sizes.h * sizes.w * trips["k"] if shape.per_position else sizes.k * trips["h"] * trips["w"]
    params = float(shape.params * arch.words_per_param * sizes.n) * places
    return cost + params * costs.glb_read + results * costs.glb_write


def _passed_columns(
    numbers: Numbers, form: Form, box: dict[str, Counts], lanes: Counts, pes: Counts, trips: dict[str, Amounts]
) -> Amounts:
    """Columns of the image that a PE gets from its east neighbour (`passes_columns`), in the mean of a row of PEs.

    The last PE of a row has no such neighbour. pes: those of a row, over w.
    """
    shape, pe = numbers.shape, numbers.arch.pe
    if not numbers.arch.links.n2n or shape.channelwise or shape.window.dilation[1] > 1:
        return np.zeros(len(pes))
    ends = (trips["k"] == 1) | form.order.endswith("I")
    beside = (trips["w"] == 1) | (not shared(form, "w"))
    in_halves = (box["w"] == 1) | (not pe.pong_words)
    passes = ends & beside & in_halves & (lanes == 1)
    overlap = np.maximum(0, box["s"] - shape.window.stride[1])
    return passes * overlap * trips["w"] * trips["s"] * (pes - 1) / pes


def dram_energy(shape: LayerShape, streamed: Set[str], fetched: Words, costs: Energy) -> Words:
    """What words from DRAM into the GLB cost, and results that leave if they are streamed."""
    leaves = shape.results * ("output" in streamed)
    return fetched * (costs.dram_read + costs.glb_write) + leaves * (costs.dram_write + costs.glb_read)


def words_energy(blocks: Blocks, stage: Weights, costs: Energy) -> PerPlan:
    """What the words of plans cost between DRAM and GLB, and of `ws` the weights that each image block reads again."""
    shape, sizes, streamed = blocks.shape, blocks.shape.sizes, blocks.budget.streamed
    fetched = blocks.moved_image + stage.words + blocks.params + blocks.everything * ("residual" in streamed)
    cost = dram_energy(shape, streamed, fetched, costs)
    if blocks.tiles.form.name == "ws":
        again = shape.weight_words * sizes.n * (blocks.of_image - 1)
        cost = cost + again * (costs.glb_read + costs.bus)
    return cost
