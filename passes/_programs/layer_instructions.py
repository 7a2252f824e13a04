"""The instructions of a layer's program that PEs see: loads, macro-instructions, commits. No IR.

A macro-instruction runs all loops of the box. Its three counters are, as far as they go, pixels (loops over n, h, w),
taps (c, r, s) and channels (k). Loops become one counter where one continues the other in every register file.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from math import prod
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.arch.operations import MacOperation
from cnncc.dialects import array as A
from cnncc.errors import Refusal
from cnncc.mapping.mapping import LANES, OUTPUT_DIMS, REDUCTION_DIMS, Loop
from cnncc.model.register_files import (
    channel_slots,
    held_extents,
    ifmap_layout,
    lanes_used,
    passes_columns,
    shared_columns,
    weight_layout,
)
from cnncc.passes._programs.layer_operands import Operands
from cnncc.passes._programs.layer_records import Coordinates, HeldOperand, Node, Position, ProgramLayer
from cnncc.passes._programs.layer_sums import SumConditions

COUNTERS = 3


class BoxSteps(NamedTuple):
    """How one loop of the box, or several that are one counter, goes through the three register files."""

    dims: str
    trips: int
    ifmap: int
    weight: int
    psum: int

    def around(self, inner: BoxSteps) -> BoxSteps | None:
        """One counter for this loop and the next inner one; None if they need two."""
        own, other = self[2:], inner[2:]
        if any(step != inner.trips * inner_step for step, inner_step in zip(own, other, strict=True)):
            return None
        return BoxSteps(self.dims + inner.dims, self.trips * inner.trips, *other)


NO_STEPS = BoxSteps("", 1, 0, 0, 0)


def _as_few(each: Sequence[BoxSteps]) -> list[BoxSteps]:
    """As few counters as these loops, outermost first, need."""
    groups: list[BoxSteps] = []
    for steps in each:
        if steps.trips == 1:
            continue
        if groups and (both := groups[-1].around(steps)):
            groups[-1] = both
        else:
            groups.append(steps)
    return groups


class LayerInstructions:
    """Loads, macro-instructions and commits of one layer at positions of its walk."""

    def __init__(self, layer: ProgramLayer, arch: Arch, operands: Operands) -> None:
        self.layer, self.arch, self.operands = layer, arch, operands
        self.shape, self.loops, self.glb = layer.shape, operands.loops, operands.glb
        mapping = layer.mapping
        kept = [loop for loop in mapping.loops if loop.keep]
        self.kept, self.lane_dims = kept, "".join(loop.dim for loop in kept if loop.on)
        self._check_box([loop for loop in kept if not loop.on])
        self.box = "".join(dict.fromkeys(loop.dim for loop in kept))
        self.passes = passes_columns(layer.shape, arch, mapping.loops, mapping.stages)
        outer = [loop for loop in mapping.loops if not loop.keep]
        self.taps = held_extents(layer.shape, outer, len(outer))["s"]

    def _refuse(self, why: str) -> Refusal:
        return Refusal(f"layer {self.layer.label}: {why}")

    def _check_box(self, timed: list[Loop]) -> None:
        dims = [loop.dim for loop in timed]
        whole = [loop.step == 1 or (loop.dim in self.lane_dims and not loop.on) for loop in self.kept]
        if not all(whole) or len(set(dims)) < len(dims):
            raise self._refuse("the box has one loop over a dimension, with a step of 1, and one on lanes inside it")
        if self.lane_dims == "k":
            self._check_own_sums(dims)
        elif self.lane_dims and not self.shape.is_mac:
            raise self._refuse("lanes that are added up are multipliers, a pool has none")
        if any(loop.on == LANES and not loop.keep for loop in self.layer.mapping.loops):
            raise self._refuse("a loop on lanes stands in the box: a PE holds the words of all its lanes")

    def _check_own_sums(self, dims: list[str]) -> None:
        """Lanes over output channels need banks of psums, and neighbouring channels in neighbouring banks (MAC-7)."""
        if not self.arch.pe.lane_sums:
            raise self._refuse("k is on lanes, each with a sum of its own, but this array has no pe.lane_sums")
        if inside := [dim for dim in dims[dims.index("k") + 1 :] if dim in OUTPUT_DIMS] if "k" in dims else []:
            raise self._refuse(f"k is on lanes, so it is the last output in the box, not outside {' '.join(inside)}")

    # -- places --------------------------------------------------------------------------------------------------

    def _place(self, at: Position, coordinates: Coordinates) -> A.Place:
        rows, set_rows, row, row_set = self._side(at, "rows", coordinates)
        cols, set_cols, col, col_set = self._side(at, "cols", coordinates)
        for needed, most, on in ((rows, self.arch.rows, "rows"), (cols, self.arch.cols, "cols")):
            if needed > most:
                raise self._refuse(f"{needed} PEs side by side do not fit {most} {on}")
        return A.Place(rows, cols, 0, 0, set_rows, set_cols, row, row_set, col, col_set)

    def _side(self, at: Position, on: str, coordinates: Coordinates) -> tuple[int, int, A.IndexTerm, A.IndexTerm]:
        """PEs, PEs of a set and the terms on one side of the array: of two loops the inner one is inside a set."""
        loops = [(loop, count) for loop, count in at.space if loop.on == on]
        inner = loops[-1] if len(loops) > 1 or (loops and self._inside_set(loops[-1][0], at.extent)) else None
        outer = loops[:-1] if inner else loops
        if len(outer) > 1:
            raise self._refuse(f"{len(loops)} loops are on {on}, at most one over sets and one inside a set fit")
        inner_count, outer_count = inner[1] if inner else 1, outer[0][1] if outer else 1
        return (
            inner_count * outer_count,
            inner_count,
            _term(inner, coordinates),
            _term(outer[0] if outer else None, coordinates),
        )

    def _inside_set(self, loop: Loop, extent: Map[str, int]) -> bool:
        """Whether the PEs of the only loop on a side are one set: each passes on what the next window needs.

        All macro-instructions of a sum have the same sets, also where fewer taps are left over for the last of them.
        """
        # Where neighbours pass columns on, only PEs with windows side by side are in one set (MAC-3). Output channels
        # and images always have sets of their own.
        shares = loop.on == "cols" and self.passes and shared_columns(self.shape, self.arch, self.taps, extent["w"])
        return (loop.dim == "w" and loop.step == extent["w"]) or (loop.dim in "hwcrs" and not shares)

    # -- loads ---------------------------------------------------------------------------------------------------

    def loads(self, operand: str, at: Position, tokens: A.Tokens) -> tuple[HeldOperand, list[Node]]:
        """What PEs hold of an operand from here on, and the loads that bring it."""
        return self._ifmap(at, tokens) if operand == "ifmap" else self._weights(at, tokens)

    def _weights(self, at: Position, tokens: A.Tokens) -> tuple[HeldOperand, list[Node]]:
        weight, stage = self.glb["weight"], self.operands.stages["weight"]
        place, start = self._place(at, weight.coordinates), self.loops.start(weight, at)
        base = self.operands.buffer(stage, at)
        steps = {dim: along.step for dim, along in weight.coordinates.items()}
        layout = weight_layout(self.shape, dict(at.extent), steps, self.box)
        start = replace(start, offset=start.offset + base)
        load = A.Load(A.LoadKind.WEIGHT, "weight", place, start, layout.pattern, open=(), close=(), tokens=tokens)
        return HeldOperand(layout), [load]

    def _ifmap(self, at: Position, tokens: A.Tokens) -> tuple[HeldOperand, list[Node]]:
        ifmap = self.glb["ifmap"]
        place, start = self._place(at, ifmap.coordinates), self.loops.start(ifmap, at)
        top, left = self.shape.window.pad[:2]
        if stage := self.operands.stages.get("ifmap"):
            start = replace(start, offset=start.offset + self.operands.buffer(stage, at))
        # Rows and columns are those of the image, so that padding lies at -1, -2, … (DESC-3).
        start = replace(start, y=start.y - top, x=start.x - left)
        layout = ifmap_layout(self.shape, dict(at.extent), ifmap.coordinates["n"].step, self.box)
        if len(layout.axes) > 4:
            raise self._refuse("a load has four extents: n and c stand in the box, or inside the ifmap's stage, both")
        shared = self._shared(at, place)
        pattern = layout.pattern
        if not shared:
            load = A.Load(A.LoadKind.IFMAP, "ifmap", place, start, pattern, open=(), close=(), tokens=tokens)
            return HeldOperand(layout), [load]

        def of(count: int) -> tuple[A.Extent, ...]:
            return tuple(replace(extent, n=count) if extent.axis == "x" else extent for extent in pattern)

        columns = next(extent.n for extent in pattern if extent.axis == "x")
        words = layout.words // columns
        take, give = replace(tokens, give=0, give_when=()), replace(tokens, take=0, take_when=())
        fresh = A.Load(A.LoadKind.IFMAP, "ifmap", place, start, of(columns - shared), open=(), close=None, tokens=take)
        # The east neighbour's window starts where this PE's fresh columns end.
        edge = replace(start, x=start.x + columns - shared)
        slot = (columns - shared) * words
        rest = A.Load(A.LoadKind.IFMAP, "ifmap", place, edge, of(shared), slot, edge=True, close=(), tokens=give)
        return HeldOperand(layout, shared * words), [fresh, rest]

    def _shared(self, at: Position, place: A.Place) -> int:
        """How many columns of the image, the last ones, come from a PE's east neighbour."""
        # In a set of one column each PE has a virtual neighbour, whose words the GLB reads for it alone: nothing is
        # saved. With pong words, the half of an ifmap has no room for shared columns otherwise (MAC-6).
        if not self.passes or not (self.arch.pe.pong_words or place.set_cols > 1):
            return 0
        return shared_columns(self.shape, self.arch, at.extent["s"], at.extent["w"])

    # -- macro-instructions --------------------------------------------------------------------------------------

    def mac(self, at: Position, staged: Map[str, int]) -> A.Mac:
        """A macro-instruction; `staged`: inside how many loops each operand comes into the register files."""
        held, section = at.held, at.pieces[at.section or 0 :]
        (z, j, i), lane = self._counters(at), self._lane(at)
        own = lane.trips > 1 and self.lane_dims == "k"
        ifmap = self._slots("ifmap", at, staged, (z.ifmap, j.ifmap, i.ifmap, lane.ifmap))
        weight, whens = A.Slots(), dict[str, A.Names | None](take_weight=None, give_weight=None)
        if self.shape.is_mac:
            weight = self._slots("weight", at, staged, (z.weight, j.weight, i.weight, lane.weight))
        for operand, depth in staged.items():
            pieces = at.pieces[depth:]
            whens |= {f"take_{operand}": self.loops.first(pieces), f"give_{operand}": self.loops.last(pieces)}
        reuse = held["ifmap"].reuse
        return A.Mac(
            MacOperation(self.layer.shape.kind),
            self._place(at, {}),
            pixels=z.trips,
            taps=j.trips,
            step_range=i.trips,
            lanes=lane.trips,
            data_reuse=reuse,
            n2n_slot=held["ifmap"].layout.words - reuse if reuse else 0,
            ifmap=ifmap,
            weight=weight,
            psum=A.Slots(0, z.psum, j.psum, i.psum, lane=int(own)),
            clear=self.loops.first(section),
            send=self.loops.last(section),
            **whens,
        )

    def _slots(self, operand: str, at: Position, staged: Map[str, int], steps: tuple[int, int, int, int]) -> A.Slots:
        """The slots of an operand: unrolled loops inside its stage begin somewhere in the half."""
        layout, base = at.held[operand].layout, 0
        for piece in at.pieces[staged[operand] :]:
            loop = self.loops.loops[piece.loop]
            if not loop.on:
                base += piece.base * loop.step * layout.step(loop.dim)
        return A.Slots(base, *steps)

    def _counters(self, at: Position) -> tuple[BoxSteps, BoxSteps, BoxSteps]:
        """The loops of the box as pixels, taps and channels."""
        each = list[BoxSteps]()
        for dim in self.box:
            width = self._lanes(dim, at)
            each.append(BoxSteps(dim, at.extent[dim] // width, *(width * step for step in self._steps(dim, at))))
        groups = _as_few(each)
        if len(groups) > COUNTERS:
            raise self._refuse(
                f"the box {{{' > '.join(self.box)}}} needs {len(groups)} counters, a macro-instruction has "
                f"{COUNTERS}: move a loop out of it, or together what is together in the image and in the weights"
            )
        padded = [*groups, *[NO_STEPS] * (COUNTERS - len(groups))]
        # Sums are the same in any order of the counters (MAC-1). Of equally good orders the first one is as in the box.
        pixels, taps, channels = min(permutations(padded), key=self._misplaced)
        if pixels.trips > self.arch.pe.max_pixels:
            raise self._refuse(
                f"{pixels.trips} pixels of the box are more than pe.max_pixels = {self.arch.pe.max_pixels}"
            )
        return pixels, taps, channels

    def _lane(self, at: Position) -> BoxSteps:
        """The loops on lanes: like a counter, lanes take words at equal distances of each other."""
        asked = prod(self._asked(dim, at) for dim in self.lane_dims)
        if asked > self.arch.pe.lanes:
            raise self._refuse(f"{asked} products at a time are more than pe.lanes = {self.arch.pe.lanes}")
        each = [BoxSteps(dim, self._lanes(dim, at), *self._steps(dim, at)) for dim in self.box if dim in self.lane_dims]
        one, *more = _as_few(each) or [NO_STEPS]
        if more:
            names = " and ".join(f"{steps.dims} by {steps.ifmap} and {steps.weight}" for steps in (one, *more))
            raise self._refuse(
                f"lanes over {' '.join(self.lane_dims)} step through ifmap and weights in one way: {names} words are "
                f"two ways. Loops on lanes stand last in the box, and take whole what is inside another of them"
            )
        return one

    def _asked(self, dim: str, at: Position) -> int:
        """Indices of a dimension inside the loop around that on lanes."""
        return min([at.extent[dim], *(loop.step for loop in self.kept if loop.dim == dim and not loop.on)])

    def _lanes(self, dim: str, at: Position) -> int:
        """Indices of a dimension that lanes take at a time: the loop around that on lanes has equal parts."""
        count = lanes_used(self.kept, dim, at.extent[dim])
        if at.extent[dim] % count:
            raise self._refuse(
                f"{at.extent[dim]} indices of {dim} in the box are no multiple of {count} lanes: a loop over {dim} "
                f"around the box takes what is left over"
            )
        if dim == "k" and 1 < count < min(self.arch.pe.lanes, at.extent[dim]):
            raise self._refuse(
                f"{count} of {at.extent[dim]} channels at a time: lanes with sums of their own take all channels of "
                f"the box, or as many as the PE has, {self.arch.pe.lanes}"
            )
        return count

    def _misplaced(self, counters: tuple[BoxSteps, ...]) -> int:
        """How far counters are from what they are named for."""
        pixels, taps, channels = counters
        over = pixels.trips > self.arch.pe.max_pixels
        mixed = sum(bool(counter.dims) and counter.psum == 0 for counter in (pixels, channels)) + (taps.psum != 0)
        return 8 * over + 4 * mixed + ("k" in pixels.dims) + any(dim in channels.dims for dim in "nhw")

    def _steps(self, dim: str, at: Position) -> tuple[int, int, int]:
        """Slots from an index of a dimension of the box to its next: of ifmap, weights, psums."""
        weight = at.held["weight"].layout.step(dim) if self.shape.is_mac else 0
        return at.held["ifmap"].layout.step(dim), weight, self._psum_step(dim, at)

    def _psum_step(self, dim: str, at: Position) -> int:
        outputs = [output_dim for output_dim in self.box if output_dim in OUTPUT_DIMS]
        if dim not in outputs:
            return 0
        inner = {output_dim: at.extent[output_dim] for output_dim in outputs[outputs.index(dim) + 1 :]}
        if "k" in inner and self.lane_dims == "k":
            # MAC-7: the psums of a pixel fill whole rows of banks.
            inner["k"] = channel_slots(self.arch, inner["k"], self._lanes("k", at))
        return prod(inner.values())

    # -- commits -------------------------------------------------------------------------------------------------

    def commit(self, at: Position, ends: SumConditions | None, tokens: A.Tokens) -> A.Commit:
        """The commit of a section; `ends`: when its sums are complete, if they are partial."""
        if ends and not self.shape.is_mac:
            raise self._refuse("a pool is not put together from parts: no loop over its window outside others")
        output = self.glb["output"]
        place = self._place(at, output.coordinates)
        summed = [(loop, count) for loop, count in at.space if loop.on == "rows" and loop.dim in REDUCTION_DIMS]
        if summed:
            place = self._summed(at, place)
        (pixels, lines, channels), slots = self._committed(at)
        if self.operands.residual_apart and self.operands.counts_images(at):
            raise self._refuse(
                "images of residual and output lie at different distances, and a commit has one start for both: loops "
                "over n in time, in equal parts, outside ifmap@rf"
            )
        return A.Commit(
            "output",
            place,
            self.operands.commit_start(at),
            residual="residual" if self.layer.tensors.residual else "",
            params="params" if "params" in self.glb else "",
            param=self._param(at),
            pixels=pixels,
            lines=lines,
            channels=channels,
            psum=slots,
            reduce=prod(count for _, count in summed) > 1,
            sums="sums" if ends else "",
            fresh=ends.fresh if ends else None,
            final=ends.final if ends else None,
            tokens=tokens,
        )

    def _summed(self, at: Position, place: A.Place) -> A.Place:
        """The place of a commit that adds up rows: sets of all rows of the loops over c, r, s."""
        rows = [(loop, count) for loop, count in at.space if loop.on == "rows"]
        inner = [loop.dim in REDUCTION_DIMS for loop, _ in rows]
        if inner != sorted(inner):
            names = " ".join(loop.dim for loop, _ in rows)
            raise self._refuse(f"of the loops {names} on rows those over c, r, s come last: sums go to the next row")
        together = prod(count for loop, count in rows if loop.dim in REDUCTION_DIMS)
        outer = next((placed for placed in rows if placed[0].dim not in REDUCTION_DIMS), None)
        term = _term(outer, self.glb["output"].coordinates)
        return replace(place, set_rows=together, row=A.IndexTerm(), row_set=term)

    def _committed(self, at: Position) -> tuple[list[A.Extent], A.Slots]:
        """The outputs of a PE as pixels, lines and channels of a commit, and their slots."""
        left = [dim for dim in self.box if dim in OUTPUT_DIMS and at.extent[dim] > 1]
        usual = {"pixels": "w", "lines": "h", "channels": "k"}
        chosen = {name: dim for name, dim in usual.items() if dim in left}
        # Images have no extent of their own in a commit, and take one that is free.
        for dim in (dim for dim in left if dim not in chosen.values()):
            free = next((name for name in usual if name not in chosen), "")
            if not free:
                raise self._refuse(f"the box has loops over {' '.join(left)}, a commit has three extents")
            chosen[free] = dim
        along, extents, steps = self.glb["output"].coordinates, dict[str, A.Extent](), dict[str, int]()
        for name, dim in chosen.items():
            extents[name] = A.Extent(at.extent[dim], along[dim].axis, along[dim].of(1))
            steps[name] = self._psum_step(dim, at)
        return [extents.get(name, A.Extent()) for name in usual], A.Slots(0, *(steps.get(name, 0) for name in usual))

    def _param(self, at: Position) -> int:
        """The place of the first parameters, in units of those of a channel (or position)."""
        if "params" not in self.glb:
            return 0
        stage = self.operands.stages["params"]
        start = self.loops.start(self.glb["params"], at).offset
        return (self.operands.buffer(stage, at) + start) // self.layer.words_per_channel


def _term(placed: tuple[Loop, int] | None, coordinates: Coordinates) -> A.IndexTerm:
    if placed is None or placed[1] == 1 or placed[0].dim not in coordinates:
        return A.IndexTerm()
    along = coordinates[placed[0].dim]
    step = along.of(placed[0].step)
    return A.IndexTerm(along.axis, step) if step else A.IndexTerm()
