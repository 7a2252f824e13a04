"""The PE-set program of one output-stationary layer, as plain records: no IR.

The loops of a mapping, outermost first, are output loops (n k h w, in time or in space), then reduction loops in time
(c r), then the kept loops of one macro-instruction. A loop whose step does not divide its extent becomes two pieces:
its full tiles, and a body of its own for the remainder. Space loops give a piece its rectangle of PEs; their remainder
is a further step in time. Each piece of a time loop is a `Repeat`, also of one iteration, so that a loop has the same
register in all bodies of the layer. The rest of the innermost loop over channels in space is spread over its sets.

The input channels of output channel k, of K in g groups, begin at k // (K / g) * c. A loop over k adds to that
(step / (K / g)) * c an iteration where its step is a multiple of K / g, and nothing where it is inside one group.
Channels that are computed side by side are of one group and share their ifmap; or each is a group of its own and has
its own (*channelwise*: pools and depthwise convolutions). In slots:

    kept loops           ifmap             weights
    w s c r k            s c r             s c r k
    w k s r channelwise  k s r             k s r

What moves between DRAM and the GLB meanwhile is in `_layer_transfers.py`, where operands lie in `_layer_operands.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cnncc.arch.model import Arch
from cnncc.dialects import array as A
from cnncc.dialects.nest import REDUCTION_DIMS, Loop, rest_sets
from cnncc.errors import Refusal
from cnncc.passes._layer_operands import Operands, full_slice, glb_stages
from cnncc.passes._layer_records import Body, Coordinates, Layer, Node, Piece, Position, split
from cnncc.passes._layer_shape import inside, whole
from cnncc.passes._layer_transfers import Transfers
from cnncc.passes._register_files import macro_words, shared_columns, window_columns


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
        self.sets = rest_sets(layer.shape.sizes, loops, layer.shape.tiled_together)
        self._check_form()
        self.operands = Operands(layer, self.outer)
        self.loops, self.glb = self.operands.loops, self.operands.glb
        self.transfers = Transfers(layer, self.operands, self.outputs)

    @property
    def pools(self) -> bool:
        return not self.layer.shape.is_mac

    def _refuse(self, why: str) -> Refusal:
        return Refusal(f"layer {self.layer.label}: {why}")

    def _check_form(self) -> None:
        self._check_groups()
        for loop in self.outer[self.outputs :]:
            if loop.on or loop.dim not in REDUCTION_DIMS:
                raise self._refuse(f"output stationary needs the loop over {loop.dim} outside those over c, r and s")
        order = "wksr" if self.layer.shape.channelwise else "wscrk"
        kept = "".join(loop.dim for loop in self.kept)
        if any(loop.step != 1 for loop in self.kept) or kept != "".join(dim for dim in order if dim in kept):
            raise self._refuse(f"the kept loops are '{kept}', a macro-instruction runs '{order}' with steps of 1")
        rf = {s.operand: s.depth for s in self.layer.mapping.stages if s.memory == "rf"}
        wanted = {"ifmap"} if self.pools else {"ifmap", "weight"}
        if not self.pools and "weight" not in glb_stages(self.layer):
            raise self._refuse("weights must be staged in glb: they come from DRAM")
        if set(rf) != wanted or any(depth != len(self.outer) for depth in rf.values()):
            raise self._refuse(f"{' and '.join(sorted(wanted))} must be staged in rf right around the kept loops")
        self._check_files()

    def _check_files(self) -> None:
        """One macro-instruction finds room in a half of each register file."""
        extent = inside(self.layer.shape.sizes, self.outer)
        for resource, needed in macro_words(self.layer.shape, self.arch, extent).items():
            if needed > (has := int(getattr(self.arch.pe, resource))):
                raise self._refuse(
                    f"pe.{resource} = {has} of {self.arch.name} is too small for the {needed} words of a "
                    f"macro-instruction: its kept loops run over too much"
                )

    def _check_groups(self) -> None:
        """Every loop over k goes from group to group, or runs inside one."""
        extent, group = self.layer.shape.sizes.k, self.layer.shape.tiled_together
        for loop in (loop for loop in (*self.outer, *self.kept) if loop.dim == "k"):
            if extent > group and loop.step % group:
                raise self._refuse(
                    f"the loop over k takes {loop.step} of {extent} output channels at a time, across groups of "
                    f"{group}: it needs steps that are multiples of {group}, or a loop of step {group} around it"
                )
            extent = min(loop.step, extent)

    # -- the walk ------------------------------------------------------------------------------------------------

    def program(self) -> list[Node]:
        start = Position(whole(self.layer.shape.sizes))
        return [*self.operands.views(), self.layer.unit, *self._walk_outputs(0, start)]

    def _walk_outputs(self, depth: int, at: Position) -> list[Node]:
        fetches, drains = self.transfers.fetches(depth, at), self.transfers.drains(depth, at)
        if depth < self.outputs:
            return [*fetches, *self._pieces(depth, at, self._walk_outputs), *drains]
        return [*fetches, *self._walk_reductions(depth, at), self._commit(at), *drains]

    def _walk_reductions(self, depth: int, at: Position) -> list[Node]:
        fetches = self.transfers.fetches(depth, at) if depth > self.outputs else []
        if depth < len(self.outer):
            return [*fetches, *self._pieces(depth, at, self._walk_reductions)]
        return [*fetches, *self._loads(at), self._mac(at)]

    def _pieces(self, depth: int, at: Position, inner: Callable[[int, Position], list[Node]]) -> list[Node]:
        loop = self.outer[depth]
        pieces = split(at.extent[loop.dim], loop.step, self.sets[depth])
        result: list[Node] = []
        for number, (count, size, base) in enumerate(pieces):
            piece = Piece(depth, base // loop.step, 1 if loop.on else count, number == 0, number == len(pieces) - 1)
            space = (*at.space, (replace(loop, step=size), count)) if loop.on else at.space
            body = inner(depth + 1, Position({**at.extent, loop.dim: size}, (*at.pieces, piece), space))
            result += body if loop.on else [Body(A.Repeat(self.loops.name(depth), count), tuple(body))]
        return result

    def _place(self, at: Position, coordinates: Coordinates) -> A.Place:
        rows, set_rows, row, row_set = self._side(at, "rows", coordinates)
        cols, set_cols, col, col_set = self._side(at, "cols", coordinates)
        return A.Place(rows, cols, 0, 0, set_rows, set_cols, row, row_set, col, col_set)

    def _side(self, at: Position, on: str, coordinates: Coordinates) -> tuple[int, int, A.Term, A.Term]:
        """PEs, PEs of a set and the terms on one side of the array: h or w inside a set, others from set to set."""
        loops = [(loop, count) for loop, count in at.space if loop.on == on]
        inner = loops[-1] if loops and self._inside_set(loops[-1][0], at.extent["w"]) else None
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

    def _inside_set(self, loop: Loop, pixels: int) -> bool:
        """Whether PEs beside each other may be of one set: each passes on what the window after its own needs first.

        pixels: of a PE, in this body of the loops; fewer than elsewhere where they are what is left over.
        """
        shape, s = self.layer.shape, inside(self.layer.shape.sizes, self.outer)["s"]
        shares = loop.on == "cols" and shared_columns(shape, self.arch, s, pixels) > 0
        return loop.dim == "w" and loop.step == pixels or loop.dim in "hw" and not shares

    def _term(self, placed: tuple[Loop, int] | None, coordinates: Coordinates) -> A.Term:
        if placed is None or placed[1] == 1 or placed[0].dim not in coordinates:
            return A.Term()
        along = coordinates[placed[0].dim]
        step = along.of(placed[0].step)
        return A.Term(along.axis, step) if step else A.Term()

    # -- instructions --------------------------------------------------------------------------------------------

    def _loads(self, at: Position) -> list[Node]:
        columns, reuse = self._columns(at)
        place = self._place(at, self.glb["ifmap"].coordinates)
        start = self.loops.start(self.glb["ifmap"], at)
        window = self.layer.shape.window
        start = replace(start, y=start.y - window.pad[0], x=start.x - window.pad[1])
        loads: list[Node] = [] if self.pools else [self._weight_load(at)]
        fresh = self._pattern(at, columns - reuse)
        close, tokens = () if not reuse else None, self.transfers.ifmap_tokens(at)
        loads.append(A.Load("ifmap", "ifmap", place, start, fresh, open=(), close=close, tokens=tokens))
        if reuse:
            # The east neighbour's window starts where this PE's fresh columns end.
            edge = replace(start, x=start.x + columns - reuse)
            slot = (columns - reuse) * self._column_words(at)
            loads.append(A.Load("ifmap", "ifmap", place, edge, self._pattern(at, reuse), slot, edge=True, close=()))
        return loads

    def _columns(self, at: Position) -> tuple[int, int]:
        """Columns of the image that a PE's pixels need, and how many of the last come from its east neighbour."""
        s, z, shape = at.extent["s"], at.extent["w"], self.layer.shape
        if shape.window.dilation[1] > 1 and z > 1:
            raise self._refuse("several pixels a macro-instruction need dilation 1")
        passes_on = self.arch.pe.pong_words or self._place(at, self.glb["ifmap"].coordinates).set_cols > 1
        return window_columns(shape, s, z), shared_columns(shape, self.arch, s, z) if passes_on else 0

    def _column_words(self, at: Position) -> int:
        """Words of one image column in a PE: of its q channels, R rows each (channelwise: of one channel)."""
        return at.extent["r"] * at.extent["c"]

    def _pattern(self, at: Position, columns: int) -> tuple[A.Extent, ...]:
        window = self.layer.shape.window
        column = A.Extent(columns, "x", window.dilation[1])
        row = A.Extent(at.extent["r"], "y", window.dilation[0])
        if self.layer.shape.channelwise:
            return (A.Extent(at.extent["k"], "k", self.layer.shape.sizes.c), column, row)
        return (column, A.Extent(at.extent["c"], "k", 1), row)

    def _weight_load(self, at: Position) -> A.Load:
        weight, stage = self.glb["weight"], self.operands.stages["weight"]
        place, start = self._place(at, weight.coordinates), self.loops.start(weight, at)
        base = self.operands.slices_before(stage, at) * full_slice(self.layer, stage)
        order = "ksr" if self.layer.shape.channelwise else "scrk"
        steps = [(at.extent[dim], weight.coordinates[dim]) for dim in order]
        pattern = tuple(A.Extent(extent, along.axis, along.step) for extent, along in steps)
        start, tokens = replace(start, offset=start.offset + base), self.transfers.weight_tokens(at)
        return A.Load("weight", "weight", place, start, pattern, open=(), close=(), tokens=tokens)

    def _mac(self, at: Position) -> A.Mac:
        p, z = at.extent["k"], at.extent["w"]
        columns, reuse = self._columns(at)
        words = self._column_words(at)
        place = self._place(at, {})
        reductions = at.pieces[self.outputs :]
        stride = self.layer.shape.window.stride[1]
        if self.layer.shape.channelwise:
            channel, weight = columns * words, A.Slots(0, 0, 1, at.extent["s"] * words)
        else:
            channel, weight = 0, A.Slots(0, 0, p, 1)
        return A.Mac(
            "mac" if not self.pools else self.layer.shape.kind,
            place,
            pixels=z,
            taps=at.extent["s"] * words,
            step_range=p,
            data_reuse=reuse * words,
            n2n_slot=(columns - reuse) * words,
            ifmap=A.Slots(0, stride * words, 1, channel),
            weight=A.Slots() if self.pools else weight,
            psum=A.Slots(0, p, 0, 1),
            clear=self.loops.first(reductions),
            send=self.loops.last(reductions),
            take_weight=None if self.pools else (),
            give_weight=None if self.pools else (),
            take_ifmap=(),
            give_ifmap=(),
        )

    def _commit(self, at: Position) -> A.Commit:
        output = self.glb["output"]
        return A.Commit(
            "output",
            self._place(at, output.coordinates),
            self.loops.start(output, at),
            residual="residual" if self.layer.tensors.residual else "",
            params="params" if "params" in self.glb else "",
            param=self._param(at),
            pixels=self._extent("w", at),
            channels=self._extent("k", at),
            psum=A.Slots(0, at.extent["k"], 0, 1),
            tokens=self.transfers.commit_tokens(at),
        )

    def _extent(self, dim: str, at: Position) -> A.Extent:
        along = self.glb["output"].coordinates[dim]
        return A.Extent(at.extent[dim], along.axis, along.of(1))

    def _param(self, at: Position) -> int:
        """The place of the first parameters, in units of those of a channel (or position)."""
        if "params" not in self.glb:
            return 0
        stage = self.operands.stages["params"]
        before = self.operands.slices_before(stage, at) * full_slice(self.layer, stage)
        return (before + self.loops.start(self.glb["params"], at).offset) // self.layer.params_words
