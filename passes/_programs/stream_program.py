"""The program of an elementwise layer, as plain records: words of two tensors through the output units, PEs idle.

Rules: COMMIT-1.

The loops outside its stages are hardware loops over blocks, and the one over n where images lie apart in an operand. A
block is one run of words in every operand, which one commit streams. Operands that do not lie in the GLB are staged
there, block by block, in one buffer or two (`layer_transfers.py`).
"""

from __future__ import annotations

from cnncc.dialects import array as A
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Loop
from cnncc.model.glb_tokens import Semaphore, input_free, output_free
from cnncc.model.layer_shape import Extents, inside, whole
from cnncc.model.loop_walk import MOST_BODIES
from cnncc.passes._programs.layer_order import IterationOrder
from cnncc.passes._programs.layer_records import AxisStep, Body, LoopPieces, Node, Operand, Position, ProgramLayer


def stream_program(layer: ProgramLayer) -> list[Node]:
    """The program of a layer of kind copy, views first. Raises Refusal where the mapping has not the form above."""
    return _StreamProgram(layer).program()


class _StreamProgram:
    """One layer; the fields are fixed at the start."""

    def __init__(self, layer: ProgramLayer) -> None:
        self.layer, self.staged, loops = layer, layer.mapping.glb_stages, LoopPieces(_blocks(layer))
        extent, sizes = inside(layer.shape.sizes, loops.loops), whole(layer.shape.sizes)
        self.runs, self.plane = extent["n"] * extent["k"], extent["h"] * extent["w"]
        self.depth, self.loops = len(loops.loops), loops
        self.inputs = [name for name in ("ifmap", "residual") if name in self.staged]
        self.of_inputs = self.staged[self.inputs[0]].buffers if self.inputs else 1
        self.of_output = self.staged["output"].buffers if "output" in self.staged else 0
        self.twice = any(stage.buffers > 1 for stage in self.staged.values()) and self.depth > 0
        self.order = IterationOrder(loops, sizes, [1] * self.depth, self.depth if self.of_inputs > 1 else 0)
        self._check()

    def _check(self) -> None:
        problem, buffers = "", {name: stage.buffers for name, stage in self.staged.items()}
        if max(buffers.values(), default=1) > 2 or len({buffers[name] for name in self.inputs}) > 1:
            problem = "stages of an elementwise layer have one buffer or two, those of its inputs as many"
        elif self.of_inputs == 2 and self.of_output == 1:
            problem = "inputs of an elementwise layer have two buffers only where its output has"
        elif any(
            home.plane != self.layer.shape.sizes.h * self.layer.shape.sizes.w
            for home in self.layer.tensors.homes().values()
        ):
            problem = "channels that are interleaved with others do not stream past the array: cnn-legalize copies them"
        elif self.twice and _apart(self.layer):
            problem = "images that lie apart move through one buffer in an elementwise layer, not two"
        elif (copies := self.order.copies(0, self.order.peeled, self.order.sizes)) > MOST_BODIES:
            problem = f"two buffers inside {self.depth} loops take {copies} copies of loop bodies: one buffer"
        if problem:
            raise Refusal(f"layer {self.layer.label}: {problem}")

    @property
    def words(self) -> int:
        """Words of a block."""
        return self.runs * self.plane

    def program(self) -> list[Node]:
        start = Position(self.order.sizes)
        firsts = self._fetched(self.order.first(start, self.depth)) if self.order.peeled else []
        return [*self._views(), self.layer.unit, *firsts, *self._walk(start)]

    def _walk(self, at: Position) -> list[Node]:
        depth = len(at.pieces)
        if depth < self.depth:
            bodies = self.order.bodies(at, [self.depth] if self.order.peeled else [])
            name = self.loops.name(depth)
            return [Body(A.Repeat(name, count), tuple(self._walk(inside))) for (count, _, _), inside in bodies]
        fetched = self._fetched(at.following.get(depth) if self.order.peeled else at)
        return [*fetched, self._commit(at), *([self._transfer("output", at)] if "output" in self.staged else [])]

    def _views(self) -> list[Node]:
        views: list[Node] = []
        turns = self.order.strides(self.depth) or {}
        between = tuple(A.LoopTerm(self.loops.name(i), "lin", n * self.words) for i, n in turns.items())
        for name, home in self.layer.tensors.homes().items():
            steps = self.loops.steps(_flat(self.layer, home.image))
            if stage := self.staged.get(name):
                # A commit has one start for all operands: where it moves from buffer to buffer, a single one comes
                # round.
                wrap = stage.buffers * self.words if self.twice else 0
                alternates = between if stage.buffers > 1 else ()
                views.append(A.View(f"{name}.dram", home.tensor, steps=steps))
                views.append(A.View(name, self.layer.tensors.buffers[name], wrap=wrap, steps=alternates))
            else:
                views.append(A.View(name, home.tensor, steps=steps))
        return views

    def _fetched(self, at: Position | None) -> list[Node]:
        """The transfers of the inputs of a block; none where there is none."""
        return [self._transfer(name, at) for name in self.inputs] if at else []

    def _start(self, at: Position) -> int:
        """Words before a block, but for those that loops step over: in all operands, as blocks follow each other."""
        return self.order.before(at, self.depth) * self.words

    def _transfer(self, name: str, at: Position) -> A.Dma:
        home, start = self.layer.tensors.homes()[name], self._start(at)
        dram = self.loops.start(_flat(self.layer, home.image), at).offset
        offset = start % (self.words * self.staged[name].buffers)
        direction = A.Direction.OUT if name == "output" else A.Direction.IN
        return A.Dma(
            direction, f"{name}.dram", name, self.words, dram_offset=dram, glb_offset=offset, tokens=self._tokens(name)
        )

    def _tokens(self, name: str) -> A.Tokens:
        """Of a block's transfers in, the first waits for a free buffer and the last says that all has come."""
        if name == "output":
            return A.Tokens(int(Semaphore.OUTPUT_FULL), self._free())
        full = int(Semaphore.RESIDUAL_FULL)
        return A.Tokens(self._free() if name == self.inputs[0] else 0, full if name == self.inputs[-1] else 0)

    def _free(self) -> int:
        """The semaphore of free buffers of a block; 0 where nothing is staged."""
        output, ends = self.staged.get("output"), [input_free(self.staged[name]) for name in self.inputs]
        return int(output_free(output) if output else next(iter(ends), Semaphore.NONE))

    def _commit(self, at: Position) -> A.Commit:
        take = int(Semaphore.RESIDUAL_FULL) if self.inputs else self._free()
        give = int(Semaphore.OUTPUT_FULL) if self.of_output else self._free()
        return A.Commit(
            "output",
            A.Place(),
            A.Start(self._start(at)),
            source=A.Source.GLB,
            operand="ifmap",
            residual="residual" if self.layer.tensors.residual else "",
            # One run of words, as two extents: the field of each has 16 bits.
            pixels=A.Extent(self.runs, "lin", self.plane),
            channels=A.Extent(self.plane, "lin", 1),
            tokens=A.Tokens(take, give),
        )


def _flat(layer: ProgramLayer, image: int) -> Operand:
    sizes = layer.shape.sizes
    steps = {"n": image, "k": sizes.h * sizes.w, "h": sizes.w, "w": 1}
    return Operand({dim: AxisStep("lin", step) for dim, step in steps.items()})


def _apart(layer: ProgramLayer) -> bool:
    """Whether images lie apart in an operand."""
    sizes = layer.shape.sizes
    return sizes.n > 1 and any(home.image != sizes.k * sizes.h * sizes.w for home in layer.tensors.homes().values())


def _is_part(extent: Extents, sizes: Extents, dim: str, outer: str) -> bool:
    """Whether a block has parts along `dim` of several channels or rows, which are no run of words."""
    return extent[dim] < sizes[dim] and any(extent[each] > 1 for each in outer)


def _blocks(layer: ProgramLayer) -> tuple[Loop, ...]:
    """The loops over blocks. Raises Refusal where a block is no run of words."""
    loops, sizes = layer.mapping.loops, layer.shape.sizes
    depths = {stage.depth for stage in layer.mapping.stages} or {0}
    apart = _apart(layer)
    # Images that lie apart are no run of words, so that the outermost loop, over n, is one over blocks, too.
    blocks = loops[: max(max(depths), int(apart))]
    extent, every, problem = inside(sizes, blocks), whole(sizes), ""
    is_run = extent["n"] == 1 or (not apart and all(extent[dim] == every[dim] for dim in "khw"))
    if len(depths) > 1 or any(stage.memory != "glb" for stage in layer.mapping.stages):
        problem = "stages of an elementwise layer are in glb, all at one place"
    elif not is_run or _is_part(extent, every, "h", "k") or _is_part(extent, every, "w", "kh"):
        problem = "blocks of an elementwise layer are whole channels, rows of one, or a part of a row, of one image"
    elif any(inside(sizes, blocks[:depth])[loop.dim] % loop.step or loop.on for depth, loop in enumerate(blocks)):
        problem = "blocks of an elementwise layer are of one size, in time"
    if problem:
        raise Refusal(f"layer {layer.label}: {problem}")
    return blocks
