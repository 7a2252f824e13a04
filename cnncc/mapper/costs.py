"""What a mapping costs by prices per event: exactly, and estimates for many mappings at once. No IR."""

from __future__ import annotations

from collections.abc import Set
from typing import TypeVar

import numpy as np

from cnncc.arch.model import Arch, Energy
from cnncc.mapper.arrays import Amounts, Counts, PerPlan
from cnncc.mapper.blocks import Blocks, Weights
from cnncc.mapper.combinations import Bounds, tables
from cnncc.mapper.space import Form, Numbers, block_distributed
from cnncc.mapping.mapping import Mapping
from cnncc.model.energy import energy
from cnncc.model.layer_shape import LayerShape
from cnncc.model.operand_traffic import operand_traffic

Words = TypeVar("Words", PerPlan, float)


def cost_of(shape: LayerShape, mapping: Mapping, arch: Arch, residual: bool, costs: Energy, first: int = 0) -> float:
    """The cost of a mapping. Prefetched words count for the layer that reads them. first: rows of a first stripe."""
    return energy(operand_traffic(shape, mapping, arch, residual, first).counters(), costs)["total"]


def array_energy(numbers: Numbers, form: Form, indices: Counts, costs: Energy, cut: bool) -> Amounts:
    """An estimate of what combinations cost in the array and at the GLB's ports: axes `[combination]`.

    Loads count as `Bounds.loads` has them (`combinations.py`), in words:

        weights    all of them · (trips over h, w; 1 for ws): GLB, bus, and each PE of h and w
        ifmap      words of a PE · PEs that share no word: GLB and bus, or a link; words of a PE · PEs: register files
        sums       a psum for each step, for each lane that has its own; one for each PE that adds up, for each commit
        params     those of a macro-instruction's channels, for each macro-instruction over h and w: GLB

    cut: blocks may have any size.
    """
    shape, arch, sizes, own = numbers.shape, numbers.arch, numbers.shape.sizes, numbers.shape.channelwise
    of = Bounds(numbers, form, cut, tables(numbers, form, cut), *np.ascontiguousarray(indices.T))
    (rk, rh, rc, rr), (ck, ch, cw) = list[Counts](of.rows), list[Counts](of.cols)
    operations = float(shape.operations)
    cost = operations * (costs.mac + costs.ifmap_read + costs.weight_read * shape.is_mac)
    if shape.is_mac:
        loads = float(shape.weight_words * sizes.n) * (1 if form.name == "ws" else of.h.trips * of.w.trips)
        cost = cost + loads * (costs.glb_read + costs.bus + costs.weight_write * rh * ch * cw)
    again = of.k.held if own else 1 if form.name == "is" else of.k.trips
    lines = float(of.groups) * again * (of.h.held if sizes.r == 1 else of.h.trips) * of.sums.held
    of_pe, passed = lines * of.windows(), lines * _passed_columns(of)
    # LOAD-2: PEs on a diagonal take the same rows.
    diagonal = (rr > 1) & (shape.window.stride[0] == shape.window.dilation[0])
    places: Amounts = np.where(diagonal, rh * ch + rr - 1, rh * ch * rr) * rc * cw
    places = places * rk * ck if own else places
    cost = cost + (of_pe - passed) * places * (costs.glb_read + costs.bus)
    cost = cost + of.rows.prod(axis=0) * of.cols.prod(axis=0) * (of_pe * costs.ifmap_write + passed * costs.n2n)
    summed, results = rc * rr, float(shape.results)
    over_pixels, by_c = of.h.trips * of.w.trips > 1, (of.k.trips > 1) & form.order.startswith("c")
    # Sums are partial where a loop over c, r or s has another one inside that runs: over pixels, or over k.
    is_cut = {"os": False, "ws": over_pixels | cut, "is": of.k.trips > 1}[form.name]
    times = np.where(is_cut, of.sums.trips * of.s.trips, np.where(by_c, of.c.trips, 1))
    commits = times * results
    cost = cost + operations / of.lanes * (costs.psum_read + costs.psum_write)
    cost = cost + commits * (summed * costs.psum_read + (summed - 1) * costs.south)
    cost = cost + arch.words_per_sum * (commits - results) * (costs.glb_read + costs.glb_write)
    channels = sizes.h * sizes.w * of.k.trips if shape.per_position else sizes.k * of.h.trips * of.w.trips
    params = float(shape.params * arch.words_per_param * sizes.n) * channels
    return cost + params * costs.glb_read + results * costs.glb_write


def _passed_columns(of: Bounds) -> Amounts:
    """Columns of the image that a PE gets from its east neighbour (`passes_columns`), in the mean of a row of PEs.

    The last PE of a row has no such neighbour.
    """
    window, pe, in_row = of.shape.window, of.arch.pe, of.cols[2]
    if not of.arch.links.n2n or of.shape.channelwise or window.dilation[1] > 1:
        return np.zeros(len(in_row))
    ends = (of.k.trips == 1) | of.form.order.endswith("I")
    beside = (of.w.trips == 1) | (not block_distributed(of.form, "w"))
    passes = ends & beside & ((of.bw == 1) | (not pe.pong_words)) & (of.lanes == 1)
    overlap = np.maximum(0, of.bs - window.stride[1])
    return passes * overlap * of.w.trips * of.s.trips * (in_row - 1) / in_row


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
