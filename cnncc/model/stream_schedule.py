"""The program of an elementwise layer as records of a timeline: words through the output units, PEs idle. No IR."""

from __future__ import annotations

from cnncc.arch.model import Arch
from cnncc.mapping.mapping import Mapping
from cnncc.model.glb_tokens import Semaphore, input_free, output_free
from cnncc.model.layer_shape import LayerShape, inside, whole
from cnncc.model.loop_walk import WalkOrder, WalkPosition
from cnncc.model.occupancy import Engines, tokens_of, transfer
from cnncc.model.routes import Nest
from cnncc.model.timed_program import Node, SequencerCycles, Task, repeat, settings


class StreamSchedule:
    """One layer: blocks of all operands, one after the other, inside `depth` loops.

    apart: whether an operand's images have gaps between them.
    """

    def __init__(self, shape: LayerShape, mapping: Mapping, arch: Arch, residual: bool, apart: bool) -> None:
        self.shape, self.engines, self.residual = shape, Engines(shape, arch), residual
        self.staged = {stage.operand: stage for stage in mapping.stages}
        # Images are the outermost loop: no commit crosses the gap between two of them.
        self.depth = max([int(apart), *(stage.depth for stage in mapping.stages)])
        self.inputs = [operand for operand in ("ifmap", "residual") if operand in self.staged]
        self.doubled = any(self.staged[operand].buffers > 1 for operand in self.inputs)
        self.blocks = mapping.loops[: self.depth]
        self.order = WalkOrder(Nest(shape, mapping), set(), self.depth if self.doubled else 0)
        block = inside(shape.sizes, self.blocks)
        self.words = block["n"] * block["k"] * block["h"] * block["w"]

    def nodes(self) -> list[Node]:
        """The program up to its `sync`: descriptors, settings, the first block if blocks are prefetched, the loops."""
        first = self._fetched() if self.doubled and self.depth else []
        return [
            SequencerCycles(self._descriptors()),
            *settings(self.shape.table),
            *first,
            *self._walk(0, WalkPosition(whole(self.shape.sizes))),
        ]

    def _descriptors(self) -> int:
        operands = 2 + self.residual
        turns = self.order.turns(self.depth)
        between = sum(turns for stage in self.staged.values() if stage.buffers > 1)
        # Each operand has a step for each loop, two buffers another one for each loop that alternates them (COST-8).
        return operands + len(self.staged) + operands * len(self.blocks) + between

    def _walk(self, depth: int, at: WalkPosition) -> list[Node]:
        if depth < self.depth:
            bodies = self.order.bodies(at, depth, [self.depth] if self.doubled else [])
            return [repeat(count, 1 << depth, tuple(self._walk(depth + 1, inner))) for count, inner in bodies]
        # With two buffers the next block comes, and behind the last one there is none.
        all_came = self.doubled and self.depth and self.depth not in at.following
        return [*([] if all_came else self._fetched()), self._commit(), *self._drained()]

    def _free(self) -> Semaphore:
        """The semaphore for "the buffers of a block are free"."""
        output = self.staged.get("output")
        return output_free(output) if output else input_free(self.staged[self.inputs[0]])

    def _fetched(self) -> list[Node]:
        """The inputs of a block. The first transfer waits for a free buffer; the last gives RESIDUAL_FULL for all."""
        transfers: list[Node] = []
        for operand in self.inputs:
            take = self._free() if operand == self.inputs[0] else Semaphore.NONE
            give = Semaphore.RESIDUAL_FULL if operand == self.inputs[-1] else Semaphore.NONE
            transfers.append(transfer("activations", self.words, self.engines.arch, take, give))
        return transfers

    def _commit(self) -> Task:
        waits = tokens_of(Semaphore.RESIDUAL_FULL if self.inputs else self._free()) if self.staged else ()
        says = tokens_of(Semaphore.OUTPUT_FULL if "output" in self.staged else self._free()) if self.staged else ()
        return self.engines.stream(self.words, self.residual, waits, says)

    def _drained(self) -> list[Node]:
        if "output" not in self.staged:
            return []
        return [transfer("results", self.words, self.engines.arch, Semaphore.OUTPUT_FULL, self._free())]
