"""Words that a layer's operands move at each level of the array, from its shape, the mapping and the array alone.

Loops over an operand's own dimensions tile it, and each word counts once. Other loops outside its stage fetch it again:

    words = size of the operand · trips of the loops outside its stage over dimensions that it does not have

Example: register files receive K C R S weights times the trips over n, h and w outside their stage. Rows and columns of
the image overlap from tile to tile, and some lie in the padding: `routes.py` counts them.

docs/machine.md defines the levels and their words; docs/reuse.md has the formulas.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

from cnncc.arch.model import Arch
from cnncc.mapping.mapping import DIMS, OUTPUT_DIMS, REDUCTION_DIMS, Mapping, Stage
from cnncc.model.layer_shape import LayerShape
from cnncc.model.occupancy import sums
from cnncc.model.register_files import passes_columns, positions, shared_columns
from cnncc.model.routes import Nest, Route, RouteLoop, RouteTerm, count_inside, passing_loop

KINDS = {"macs": "mac", "max": "max", "add": "add"}  # operations, by the counter
OPERANDS = ("weight", "ifmap", "params", "residual", "output", "sums")
PLACES = ("dram_read", "dram_write", "glb_read", "glb_write", "bus", "n2n", "psum_link", "rf_read", "rf_write")


@dataclass(frozen=True)
class OperandTraffic:
    """Words by operand and place, `words["weight"]["glb_read"]`.

    operations: of all PEs, of the layer's `kind`. steps: in which they are done, of all PEs; all lanes of a PE work in
    one step.

    Operands are weight, ifmap, params, residual, output and sums; places

        dram_read dram_write    by DMA
        glb_read glb_write      by DMA and by loads (weight, ifmap) or commits (all others)
        bus                     row buses, padding included
        n2n psum_link           links from PE to PE, to the west and to the south
        rf_read rf_write        register files of all PEs; of sums the psums
    """

    kind: str
    operations: int
    steps: int
    words: dict[str, Counter[str]]

    def of(self, place: str) -> int:
        """Words of all operands at a place."""
        return sum(counts[place] for counts in self.words.values())

    def counters(self) -> dict[str, Any]:
        """All counts by the keys of `run --stats` (docs/stats.md)."""
        words = self.words
        loaded, fed = ("weight", "ifmap"), ("weight", "ifmap", "params", "residual")
        read = {name: words[name]["glb_read"] for name in (*fed, "sums")}
        read |= {"dma": words["output"]["glb_read"], "operand": 0}
        if self.kind == "copy":  # its commits read the ifmap, as their operand
            read["operand"], read["ifmap"] = read["ifmap"], 0
        write = {"results": words["output"]["glb_write"], "sums": words["sums"]["glb_write"]}
        return {
            **{name: self.operations if kind == self.kind else 0 for name, kind in KINDS.items()},
            "words": {place: self.of(place) for place in PLACES if not place.startswith("rf")},
            "operands": {
                "glb_read": read,
                "glb_write": write | {"dma": sum(words[name]["glb_write"] for name in fed)},
                "bus": {name: words[name]["bus"] for name in loaded},
            },
            "rf": {
                file: {access: words[name][f"rf_{access}"] for access in ("read", "write")}
                for file, name in (("weight", "weight"), ("ifmap", "ifmap"), ("psum", "sums"))
            },
        }


@lru_cache(maxsize=2048)
def operand_traffic(shape: LayerShape, mapping: Mapping, arch: Arch, residual: bool, first: int = 0) -> OperandTraffic:
    """The words that a layer moves; first: see `Nest`. Raises Refusal for a mapping that `nest-to-array` refuses.

    Two thirds of the calls ask for a layer that was asked for before, with other prices. No caller changes the result.
    """
    return _LayerWords(shape, mapping, arch, residual, first).traffic()


class DeliveredWords(NamedTuple):
    """Words of loads: read from the GLB, on the buses (with padding), over links, into register files."""

    read: int
    bus: int
    n2n: int
    filled: int


class Commits(NamedTuple):
    """Counts of commits: results, psums of PEs that they are made of, psums over links to the south."""

    results: int
    psums: int
    hops: int

    def plus(self, other: Commits, times: int) -> Commits:
        """This plus `times` times `other`."""
        return Commits(*(own + times * more for own, more in zip(self, other, strict=True)))


class _LayerWords:
    """One layer and its mapping."""

    def __init__(self, shape: LayerShape, mapping: Mapping, arch: Arch, residual: bool, first: int) -> None:
        self.shape, self.sizes, self.window, self.arch, self.residual = shape, shape.sizes, shape.window, arch, residual
        self.nest = Nest(shape, mapping, first)
        self.depth = len(self.nest.outer)
        self.glb = mapping.glb_stages
        self.rf = mapping.file_depths
        self.passes = passes_columns(shape, arch, mapping.loops, mapping.stages)
        self.outputs = prod(self.sizes.of(dim) for dim in OUTPUT_DIMS)

    def traffic(self) -> OperandTraffic:
        words = {name: Counter[str]() for name in OPERANDS}
        for operand, stage in self.glb.items():
            source, target = ("glb_read", "dram_write") if operand == "output" else ("dram_read", "glb_write")
            words[operand][source] = words[operand][target] = self.transferred(operand, stage)
        words["output"]["glb_write"] += self.outputs
        words["residual"]["glb_read"] += self.outputs if self.residual else 0
        if self.shape.kind == "copy":
            words["ifmap"]["glb_read"] += self.outputs
            return OperandTraffic(self.shape.kind, 0, 0, words)
        operations = self.shape.operations
        words["params"]["glb_read"] += self.params(self.depth)
        for operand in self.rf:
            loads = self.weights() if operand == "weight" else self.ifmap()
            words[operand] += Counter(
                glb_read=loads.read, bus=loads.bus, n2n=loads.n2n, rf_write=loads.filled, rf_read=operations
            )
        commits = self.commits()
        # TRAFFIC-6: the first commit of an output reads no partial sum, the last one writes none.
        partial = self.arch.words_per_sum * (commits.results - self.outputs)
        steps = self._steps(operations)
        # Lanes over k have psums of their own (MAC-7). Products of other lanes are added up before they are stored.
        added = operations if self.nest.lane_dims == "k" else steps
        words["sums"] += Counter(
            glb_read=partial, glb_write=partial, psum_link=commits.hops, rf_read=added + commits.psums, rf_write=added
        )
        return OperandTraffic(self.shape.kind, operations, steps, words)

    def _steps(self, operations: int) -> int:
        """The number of steps; all lanes of a step count as one."""
        for dim in self.nest.lane_dims:
            routes = self.nest.routes(dim, self.depth)
            times = sum(route.trips * route.pes * (route.held // self.nest.lanes(dim, route.held)) for route in routes)
            operations = operations // self.sizes.of(dim) * times
        return operations

    # -- DRAM ------------------------------------------------------------------------------------------------------

    def transferred(self, operand: str, stage: Stage) -> int:
        """Words that are copied at a stage in the GLB."""
        depth = stage.depth
        match operand:
            case "weight":
                return self.shape.weight_words * self.nest.trips("nhw", depth)
            case "params":
                return self.params(depth)
            case "ifmap" if self.shape.kind != "copy":
                return self._blocks(depth)
            case _:
                return self.outputs

    def params(self, depth: int) -> int:
        """Words of biases and scales that are fetched inside `depth` loops."""
        own = "hw" if self.shape.per_position else "k"
        words = self.shape.params * self.arch.words_per_param
        others = [dim for dim in OUTPUT_DIMS if dim not in own]
        return words * prod(self.sizes.of(dim) for dim in own) * self.nest.trips(others, depth)

    def _blocks(self, depth: int) -> int:
        """Words of the image that its blocks take from DRAM: whole windows, without padding."""
        channels = sum(
            k.trips * c.trips * self._channels(k, c)
            for k, c in product(self.nest.routes("k", depth), self.nest.routes("c", depth))
        )
        rows, cols = (
            sum(
                self._lines(axis, out, tap)
                for out, tap in product(self.nest.routes("hw"[axis], depth), self.nest.routes("rs"[axis], depth))
            )
            for axis in range(2)
        )
        return self.sizes.n * channels * rows * cols

    def _channels(self, k: Route, c: Route) -> int:
        """Channels of the image, from the first to the last, that these output and input channels need."""
        groups = k.held if self.shape.channelwise else max(1, k.held // self.shape.group)
        return (groups - 1) * self.sizes.c + c.held

    def _lines(self, axis: int, out: Route, tap: Route) -> int:
        """Rows (axis 0) or columns of the image in all blocks of these routes.

        A block of all outputs and taps has all of the image's, any other block those of whole windows. Loops over taps
        outside move a block but do not make it smaller.
        """
        limit = (self.shape.ih, self.shape.iw)[axis]
        stride, dilation, span = self.window.stride[axis], self.window.dilation[axis], self.window.spans[axis]
        start, lines = out.first * stride + tap.first * dilation - self.window.pad[axis], (out.held - 1) * stride + span
        if (out.held, tap.held) == ((self.sizes.h, self.sizes.w)[axis], (self.sizes.r, self.sizes.s)[axis]):
            start, lines = 0, limit
        times = [*out.terms(stride, in_space=False), *tap.terms(dilation, in_space=False)]
        return count_inside(start, limit, [*times, RouteTerm(lines, 1)])

    # -- loads -----------------------------------------------------------------------------------------------------

    def weights(self) -> DeliveredWords:
        """The loads of weights. PEs that differ in n, h or w alone share each word."""
        depth = self.rf["weight"]
        self._check_equal("kcrs", depth)
        read = self.shape.weight_words * self.nest.trips("nhw", depth)
        return DeliveredWords(read, read, 0, self.shape.weight_words * self.nest.visits("nhw", depth))

    def _check_equal(self, dims: str, depth: int) -> None:
        for dim in dims:
            self.nest.spread(dim, depth)

    def ifmap(self) -> DeliveredWords:
        """The loads of the ifmap, as products over images, channels, rows and columns."""
        depth = self.rf["ifmap"]
        self._check_equal("n", depth)
        taken, filled = self._taken_channels(depth)
        rows = self._side(0, depth)
        cols = self._side(1, depth)
        images = self.sizes.n
        return DeliveredWords(
            images * taken * rows.read * cols.read,
            images * taken * rows.bus * cols.bus,
            images * filled * rows.filled * cols.n2n,
            images * filled * rows.filled * (cols.filled + cols.n2n),
        )

    def _taken_channels(self, depth: int) -> tuple[int, int]:
        """(taken, filled): channels that loads read, once for all PEs that share them; channels that PEs receive."""
        taken = filled = 0
        for k, c in product(self.nest.spread("k", depth), self.nest.spread("c", depth)):
            words = (k.held if self.shape.channelwise else 1) * c.held * k.trips * c.trips
            # Output channels of one group read the same channels: PEs that share a group are 0 apart.
            among = [RouteTerm(run.n, run.step // self.shape.group * self.sizes.c) for run in k.runs if run.on]
            taken += words * len(sums([*among, *c.terms(1, in_space=True)]))
            filled += words * k.pes * c.pes
        return taken, filled

    def _side(self, axis: int, depth: int) -> DeliveredWords:
        """Rows (axis 0) or columns of the image, in all loads of all routes through loops over outputs and taps."""
        windows = [
            self._windows(axis, out, tap)
            for out, tap in product(self.nest.spread("hw"[axis], depth), self.nest.spread("rs"[axis], depth))
        ]
        return DeliveredWords(*map(sum, zip(*windows, strict=True)))

    def _windows(self, axis: int, out: Route, tap: Route) -> DeliveredWords:
        """The rows (columns) of one pair of routes: each PE holds a run of n; `among` and `times` move it."""
        stride, dilation = self.window.stride[axis], self.window.dilation[axis]
        limit = (self.shape.ih, self.shape.iw)[axis]
        n, step = positions(out.held, tap.held, stride, dilation)
        start = out.first * stride + tap.first * dilation - self.window.pad[axis]
        times = [*out.terms(stride, in_space=False), *tap.terms(dilation, in_space=False)]
        among = [*out.terms(stride, in_space=True), *tap.terms(dilation, in_space=True)]
        pes, trips = out.pes * tap.pes, out.trips * tap.trips
        passed, chain = self._passed(out, tap) if axis else (0, None)
        own, places = n - passed, sums(among)
        read = _at(start, limit, places, [*times, RouteTerm(own, step)])
        if not passed:
            return DeliveredWords(read, trips * len(places) * n, 0, trips * pes * n)
        east, together = places, 1
        # The last column of a set has no neighbour to the east, so a load brings the columns it would pass on.
        if chain:
            together = chain.n
            among.remove(RouteTerm(together, chain.step * stride))
            east = {offset + (together - 1) * chain.step * stride for offset in sums(among)}
        bus = len(places) * own + len(east) * passed
        read += _at(start + own * step, limit, east, [*times, RouteTerm(passed, step)])
        lasts = pes // together
        return DeliveredWords(read, trips * bus, trips * (pes - lasts) * passed, trips * (pes * own + lasts * passed))

    def _passed(self, out: Route, tap: Route) -> tuple[int, RouteLoop | None]:
        """Columns of a PE's window that its east neighbour passes on, and the loop of these PEs."""
        passed = shared_columns(self.shape, self.arch, tap.held, out.held) if self.passes else 0
        chain = passing_loop(out.runs, out.held)
        return (passed, chain) if passed and (self.arch.pe.pong_words or (chain and chain.n > 1)) else (0, None)

    # -- sums ------------------------------------------------------------------------------------------------------

    def commits(self) -> Commits:
        """The counts of all commits. The depth at which sums are committed depends on the extents left there."""
        return self._commits(0, tuple(self.sizes.of(dim) for dim in DIMS), 1, {})

    def _commits(
        self, depth: int, extents: tuple[int, ...], rows: int, known: dict[tuple[int, ...], Commits]
    ) -> Commits:  # fmt: skip
        """The counts inside `depth` loops. rows: rows of PEs whose sums loops outside add up."""
        if (key := (depth, rows, *extents)) in known:
            return known[key]
        left = dict[str, int](zip(DIMS, extents, strict=True))
        if (added := self.nest.summed_over(depth, left)) is not None:
            results = prod(left[dim] for dim in OUTPUT_DIMS)
            return Commits(results, results * rows * added, results * (rows * added - 1))
        loop, total = self.nest.outer[depth], Commits(0, 0, 0)
        for count, size, _ in self.nest.pieces(depth, left[loop.dim]):
            down = loop.on and loop.dim in REDUCTION_DIMS
            within = tuple((left | {loop.dim: size}).values())
            piece = self._commits(depth + 1, within, rows * count if down else rows, known)
            # PEs that add up a sum have one commit together (`rows`).
            total = total.plus(piece, 1 if down else count)
        return known.setdefault(key, total)


def _at(start: int, limit: int, offsets: set[int], terms: list[RouteTerm]) -> int:
    """The positions inside the image, over all PEs at `offsets`."""
    return sum(count_inside(start + offset, limit, terms) for offset in offsets)
