"""The PE-set program of one output-stationary layer, as plain records: no IR.

The loops of a mapping, outermost first, are output loops (n k h w, in time or in space), then reduction loops in time
(c r), then the kept loops of one macro-instruction. A loop whose step does not divide its extent becomes two pieces:
its full tiles, and a body of its own for the remainder. Space loops give a piece its rectangle of PEs; their remainder
is a further step in time. Each piece of a time loop is a `Repeat`, also of one iteration, so that a loop has the same
register in all bodies of the layer.

The input channels of output channel k, of K in g groups, begin at k // (K / g) * c. A loop over k adds to that
(step / (K / g)) * c an iteration where its step is a multiple of K / g, and nothing where it is inside one group.
Channels that are computed side by side are of one group and share their ifmap; or each is a group of its own and has
its own (*channelwise*: pools and depthwise convolutions). In slots:

    kept loops           ifmap             weights
    w s c r k            s c r             s c r k
    w k s r channelwise  k s r             k s r
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cnncc.arch.model import Arch
from cnncc.dialects import array as A
from cnncc.dialects.nest import DIMS, REDUCTION_DIMS, Loop, Stage
from cnncc.errors import Refusal
from cnncc.passes._layer_records import (
    FREE,
    Along,
    Body,
    Coordinates,
    Layer,
    Node,
    Piece,
    Position,
    operand_coordinates,
    split,
)


def layer_program(layer: Layer, arch: Arch) -> list[Node]:
    """The program of a layer, views first. Raises Refusal where the mapping has not the form above."""
    return _Walk(layer, arch).program()


class _Walk:
    """One walk through a layer's nest; the fields are fixed at the start."""

    def __init__(self, layer: Layer, arch: Arch) -> None:
        self.layer, self.arch = layer, arch
        loops = layer.mapping.loops
        self.outer = tuple(loop for loop in loops if not loop.keep)
        self.kept = tuple(loop for loop in loops if loop.keep)
        self.outputs = next((i for i, loop in enumerate(self.outer) if loop.dim in REDUCTION_DIMS), len(self.outer))
        self.weight_stage = self._glb_stage("weight")
        self.params_stage = self._glb_stage("params")
        self._check_form()
        self.ifmap, self.weight, self.output, self.params = operand_coordinates(layer)

    @property
    def pools(self) -> bool:
        return self.layer.kind != "mac"

    def _refuse(self, why: str) -> Refusal:
        return Refusal(f"layer {self.layer.label}: {why}")

    def _glb_stage(self, operand: str) -> Stage | None:
        stages = [s for s in self.layer.mapping.stages if s.operand == operand and s.memory == "glb"]
        return stages[0] if stages else None

    def _check_form(self) -> None:
        self._check_groups()
        for loop in self.outer[self.outputs :]:
            if loop.on or loop.dim not in REDUCTION_DIMS:
                raise self._refuse(f"output stationary needs the loop over {loop.dim} outside those over c, r and s")
        order = "wksr" if self.layer.channelwise else "wscrk"
        kept = "".join(loop.dim for loop in self.kept)
        if any(loop.step != 1 for loop in self.kept) or kept != "".join(dim for dim in order if dim in kept):
            raise self._refuse(f"the kept loops are '{kept}', a macro-instruction runs '{order}' with steps of 1")
        rf = {s.operand: s.depth for s in self.layer.mapping.stages if s.memory == "rf"}
        wanted = {"ifmap"} if self.pools else {"ifmap", "weight"}
        if set(rf) != wanted or any(depth != len(self.outer) for depth in rf.values()):
            raise self._refuse(f"{' and '.join(sorted(wanted))} must be staged in rf right around the kept loops")

    def _check_groups(self) -> None:
        """Every loop over k goes from group to group, or runs inside one."""
        extent, group = self.layer.sizes.k, self.layer.group
        for loop in (loop for loop in (*self.outer, *self.kept) if loop.dim == "k"):
            if extent > group and loop.step % group:
                raise self._refuse(
                    f"the loop over k takes {loop.step} of {extent} output channels at a time, across groups of "
                    f"{group}: it needs steps that are multiples of {group}, or a loop of step {group} around it"
                )
            extent = min(loop.step, extent)

    # -- the walk ------------------------------------------------------------------------------------------------

    def program(self) -> list[Node]:
        start = Position({dim: self.layer.sizes.of(dim) for dim in DIMS})
        return [*self._views(), self.layer.unit, *self._walk_outputs(0, start)]

    def _walk_outputs(self, depth: int, at: Position) -> list[Node]:
        fetches = self._fetches(depth, at)
        if depth < self.outputs:
            return [*fetches, *self._pieces(depth, at, self._walk_outputs)]
        return [*fetches, *self._walk_reductions(depth, at), self._commit(at)]

    def _walk_reductions(self, depth: int, at: Position) -> list[Node]:
        if depth < len(self.outer):
            return self._pieces(depth, at, self._walk_reductions)
        return [*self._loads(at), self._mac(at)]

    def _pieces(self, depth: int, at: Position, inner: Callable[[int, Position], list[Node]]) -> list[Node]:
        loop = self.outer[depth]
        pieces = split(at.extent[loop.dim], loop.step)
        result: list[Node] = []
        for number, (count, size, base) in enumerate(pieces):
            piece = Piece(depth, base // loop.step, 1 if loop.on else count, number == 0, number == len(pieces) - 1)
            space = (*at.space, (loop, count)) if loop.on else at.space
            body = inner(depth + 1, Position({**at.extent, loop.dim: size}, (*at.pieces, piece), space))
            result += body if loop.on else [Body(A.Repeat(self._name(depth), count), tuple(body))]
        return result

    def _name(self, depth: int) -> str:
        return f"{self.outer[depth].dim}{depth}"

    def _first(self, pieces: tuple[Piece, ...]) -> A.Names | None:
        """The condition that all these loops are in their first iteration."""
        return tuple(self._name(p.loop) for p in pieces if p.count > 1) if all(p.first for p in pieces) else None

    def _last(self, pieces: tuple[Piece, ...]) -> A.Names | None:
        return tuple(self._name(p.loop) for p in pieces if p.count > 1) if all(p.last for p in pieces) else None

    # -- positions -----------------------------------------------------------------------------------------------

    def _start(self, coordinates: Coordinates, at: Position, inside: int = 0) -> A.Start:
        """Where the pieces of the loops from number `inside` on begin."""
        sums: dict[str, int] = dict.fromkeys(A.AXES, 0)
        for piece in at.pieces:
            loop = self.outer[piece.loop]
            if piece.loop >= inside and loop.dim in coordinates:
                along = coordinates[loop.dim]
                sums[along.axis] += piece.base * along.of(loop.step)
        return A.Start(sums["lin"], sums["k"], sums["y"], sums["x"])

    def _steps(self, coordinates: Coordinates, inside: int = 0) -> tuple[A.LoopTerm, ...]:
        return tuple(
            A.LoopTerm(self._name(i), along.axis, along.of(loop.step))
            for i, loop in enumerate(self.outer)
            if i >= inside and not loop.on and loop.dim in coordinates
            for along in [coordinates[loop.dim]]
            if along.of(loop.step)
        )

    def _place(self, at: Position, coordinates: Coordinates) -> A.Place:
        rows, set_rows, row, row_set = self._side(at, "rows", coordinates)
        cols, set_cols, col, col_set = self._side(at, "cols", coordinates)
        return A.Place(rows, cols, 0, 0, set_rows, set_cols, row, row_set, col, col_set)

    def _side(self, at: Position, on: str, coordinates: Coordinates) -> tuple[int, int, A.Term, A.Term]:
        """PEs, PEs of a set and the terms on one side of the array: h or w inside a set, k from set to set."""
        loops = [(loop, count) for loop, count in at.space if loop.on == on]
        inner = loops[-1] if loops and loops[-1][0].dim in "hw" else None
        outer = loops[:-1] if inner else loops
        if len(outer) > 1:
            raise self._refuse(f"at most one loop over sets and one inside a set fit on {on}")
        inner_count, outer_count = inner[1] if inner else 1, outer[0][1] if outer else 1
        return (
            inner_count * outer_count,
            inner_count,
            self._term(inner, coordinates),
            self._term(outer[0] if outer else None, coordinates),
        )

    def _term(self, placed: tuple[Loop, int] | None, coordinates: Coordinates) -> A.Term:
        if placed is None or placed[1] == 1 or placed[0].dim not in coordinates:
            return A.Term()
        along = coordinates[placed[0].dim]
        step = along.of(placed[0].step)
        return A.Term(along.axis, step) if step else A.Term()

    # -- slices of weights and params in the GLB -----------------------------------------------------------------

    def _slice_channels(self, depth: int) -> int:
        """Output channels of one full slice staged inside the `depth` outermost loops."""
        return next((loop.step for loop in reversed(self.outer[:depth]) if loop.dim == "k"), self.layer.sizes.k)

    def _sequence(self, depth: int) -> dict[int, int]:
        """How many slices pass from one iteration of each loop outside `depth` to its next."""
        extent = {dim: self.layer.sizes.of(dim) for dim in DIMS}
        counts: list[int] = []
        for loop in self.outer[:depth]:
            counts.append(-(-extent[loop.dim] // loop.step))
            extent[loop.dim] = min(loop.step, extent[loop.dim])
        result: dict[int, int] = {}
        slices = 1
        for i in reversed(range(len(counts))):
            result[i] = slices
            slices *= counts[i]
        return result

    def _slice_terms(self, depth: int, words: int) -> tuple[A.LoopTerm, ...]:
        return tuple(A.LoopTerm(self._name(i), "lin", n * words) for i, n in self._sequence(depth).items())

    def _slice_base(self, depth: int, at: Position) -> int:
        sequence = self._sequence(depth)
        return sum(piece.base * sequence[piece.loop] for piece in at.pieces if piece.loop < depth)

    def _fetches(self, depth: int, at: Position) -> list[Node]:
        """The DMA transfers of the slices staged here: params first, so that full weights mean full params."""
        staged = [
            (self.params_stage, "params", self.params["k"].step),
            (self.weight_stage, "weight", self.weight["k"].step),
        ]
        here = [(stage, name, words) for stage, name, words in staged if stage and stage.depth == depth]
        result: list[Node] = []
        for number, (stage, name, words) in enumerate(here):
            slice_words = self._slice_channels(depth) * words
            tokens = A.Tokens(
                take=FREE if depth and number == 0 else 0, give=self.layer.full if number == len(here) - 1 else 0
            )
            start = self._start({"k": Along("lin", words)}, at).offset
            glb_offset = self._slice_base(depth, at) * slice_words % (stage.buffers * slice_words)
            result.append(
                A.Dma("in", f"{name}.dram", name, at.extent["k"] * words, 1, start, glb_offset, tokens=tokens)
            )
        return result

    # -- instructions --------------------------------------------------------------------------------------------

    def _views(self) -> list[Node]:
        layer, tensors, sizes = self.layer, self.layer.tensors, self.layer.sizes
        window = layer.window
        views: list[Node] = [
            A.View(
                "ifmap", tensors.ifmap, layer.ih, layer.iw, layer.iw, layer.ih * layer.iw, window.fill, window.zero,
                steps=self._steps(self.ifmap),
            )
        ]  # fmt: skip
        for stage, name, dram, glb, coordinates in (
            (self.weight_stage, "weight", tensors.weight, tensors.weight_glb, self.weight),
            (self.params_stage, "params", tensors.params, tensors.params_glb, self.params),
        ):
            if stage is not None:
                words = self._slice_channels(stage.depth) * coordinates["k"].step
                dram_steps = tuple(t for t in self._steps({"k": coordinates["k"]}) if self._outside(t, stage.depth))
                glb_steps = self._slice_terms(stage.depth, words) + self._steps(coordinates, stage.depth)
                views.append(A.View(f"{name}.dram", dram, steps=dram_steps))
                views.append(A.View(name, glb, wrap=words * stage.buffers if stage.depth else 0, steps=glb_steps))
        steps = self._steps(self.output)
        for name, tensor in (("output", tensors.output), ("residual", tensors.residual)):
            if tensor:
                views.append(A.View(name, tensor, sizes.h, sizes.w, sizes.w, sizes.h * sizes.w, steps=steps))
        return views

    def _outside(self, term: A.LoopTerm, depth: int) -> bool:
        return term.loop in {self._name(i) for i in range(depth)}

    def _loads(self, at: Position) -> list[Node]:
        columns, reuse = self._columns(at)
        place = self._place(at, self.ifmap)
        start = self._start(self.ifmap, at)
        window = self.layer.window
        start = replace(start, y=start.y - window.pad[0], x=start.x - window.pad[1])
        loads: list[Node] = [] if self.pools else [self._weight_load(at)]
        fresh = self._pattern(at, columns - reuse)
        loads.append(A.Load("ifmap", "ifmap", place, start, fresh, open=(), close=() if not reuse else None))
        if reuse:
            # The east neighbour's window starts where this PE's fresh columns end.
            edge = replace(start, x=start.x + columns - reuse)
            slot = (columns - reuse) * self._column_words(at)
            loads.append(A.Load("ifmap", "ifmap", place, edge, self._pattern(at, reuse), slot, edge=True, close=()))
        return loads

    def _columns(self, at: Position) -> tuple[int, int]:
        """Columns of the image that a PE's pixels need, and how many of the last come from its east neighbour."""
        s, z = at.extent["s"], at.extent["w"]
        stride, dilation = self.layer.window.stride[1], self.layer.window.dilation[1]
        if dilation > 1 and z > 1:
            raise self._refuse("several pixels a macro-instruction need dilation 1")
        columns = (z - 1) * stride + s
        # What a neighbour passes on is one run of slots: the columns must be those that vary slowest.
        shares = not self.layer.channelwise and dilation == 1 and self.arch.links.n2n
        return columns, max(0, s - stride) if shares and self._place(at, self.ifmap).set_cols > 1 else 0

    def _column_words(self, at: Position) -> int:
        """Words of one image column in a PE: of its q channels, R rows each (channelwise: of one channel)."""
        return at.extent["r"] * at.extent["c"]

    def _pattern(self, at: Position, columns: int) -> tuple[A.Extent, ...]:
        window = self.layer.window
        column = A.Extent(columns, "x", window.dilation[1])
        row = A.Extent(at.extent["r"], "y", window.dilation[0])
        if self.layer.channelwise:
            return (A.Extent(at.extent["k"], "k", self.layer.sizes.c), column, row)
        return (column, A.Extent(at.extent["c"], "k", 1), row)

    def _weight_load(self, at: Position) -> A.Load:
        assert self.weight_stage is not None
        depth = self.weight_stage.depth
        place = self._place(at, self.weight)
        start = self._start(self.weight, at, depth)
        base = self._slice_base(depth, at) * self._slice_channels(depth) * self.weight["k"].step
        order = "ksr" if self.layer.channelwise else "scrk"
        pattern = tuple(A.Extent(at.extent[dim], self.weight[dim].axis, self.weight[dim].step) for dim in order)
        first = self._first(at.pieces[depth:])
        tokens = A.Tokens() if first is None else A.Tokens(take=self.layer.full, take_when=first)
        start = replace(start, offset=start.offset + base)
        return A.Load("weight", "weight", place, start, pattern, open=(), close=(), tokens=tokens)

    def _mac(self, at: Position) -> A.Mac:
        p, z = at.extent["k"], at.extent["w"]
        columns, reuse = self._columns(at)
        words = self._column_words(at)
        place = self._place(at, {})
        reductions = at.pieces[self.outputs :]
        stride = self.layer.window.stride[1]
        if self.layer.channelwise:
            channel, weight = columns * words, A.Slots(0, 0, 1, at.extent["s"] * words)
        else:
            channel, weight = 0, A.Slots(0, 0, p, 1)
        return A.Mac(
            "mac" if not self.pools else self.layer.kind,
            place,
            pixels=z,
            taps=at.extent["s"] * words,
            step_range=p,
            data_reuse=reuse * words,
            n2n_slot=(columns - reuse) * words,
            ifmap=A.Slots(0, stride * words, 1, channel),
            weight=A.Slots() if self.pools else weight,
            psum=A.Slots(0, p, 0, 1),
            clear=self._first(reductions),
            send=self._last(reductions),
            take_weight=None if self.pools else (),
            give_weight=None if self.pools else (),
            take_ifmap=(),
            give_ifmap=(),
        )

    def _commit(self, at: Position) -> A.Commit:
        start = self._start(self.output, at)
        p = at.extent["k"]
        return A.Commit(
            "output",
            self._place(at, self.output),
            start,
            residual="residual" if self.layer.tensors.residual else "",
            params="params" if self.params_stage else "",
            param=self._param(at),
            pixels=A.Extent(at.extent["w"], "x", 1),
            channels=A.Extent(p, "k", 1),
            psum=A.Slots(0, p, 0, 1),
            tokens=self._commit_tokens(at),
        )

    def _param(self, at: Position) -> int:
        if self.params_stage is None:
            return 0
        depth = self.params_stage.depth
        return self._slice_base(depth, at) * self._slice_channels(depth) + self._start(self.output, at, depth).channel

    def _commit_tokens(self, at: Position) -> A.Tokens:
        """Return the slice after its last commit; where no weights are loaded, it is commit that waits for params."""
        stage = self.weight_stage or self.params_stage
        if stage is None:
            return A.Tokens()
        inside = at.pieces[stage.depth : self.outputs]
        first, last = self._first(inside), self._last(inside)
        take = self.layer.full if self.pools and first is not None else 0
        give = FREE if stage.depth and last is not None else 0
        return A.Tokens(take, give, first or (), last or ())


def stream_program(layer: Layer) -> list[Node]:
    """An elementwise layer: words of two tensors through the output units, PEs idle (C1)."""
    sizes = layer.sizes
    views: list[Node] = [
        A.View("ifmap", layer.tensors.ifmap),
        A.View("residual", layer.tensors.residual),
        A.View("output", layer.tensors.output),
    ]
    plane = sizes.h * sizes.w
    commit = A.Commit(
        "output",
        A.Place(),
        source="glb",
        operand="ifmap",
        residual="residual",
        pixels=A.Extent(sizes.n * sizes.k, "lin", plane),
        channels=A.Extent(plane, "lin", 1),
    )
    return [*views, layer.unit, commit]
