"""The transfers between DRAM and the GLB while a layer runs, as tasks: their places and their tokens. No IR.

`glb_tokens.py` has the tokens that order them; `nest-to-array` uses it too.
"""

from __future__ import annotations

from collections.abc import Set
from math import prod
from typing import NamedTuple

from cnncc.mapping.mapping import Mapping
from cnncc.model.glb_tokens import ORDER, PRIMED, GlbTokens, Semaphore, output_free
from cnncc.model.layer_shape import activation_block, slices
from cnncc.model.loop_walk import WalkOrder, WalkPosition
from cnncc.model.occupancy import Engines, Tokens, tokens_of, transfer
from cnncc.model.timed_program import HALVES, Task

PRIMED_QUEUES = {HALVES + semaphore: count for semaphore, count in PRIMED.items()}


class Fetch(NamedTuple):
    """A transfer of an operand's words into its buffer."""

    operand: str
    words: int
    task: Task


class Transfers:
    """The transfers of one layer, and the tokens of its loads and commits.

    - apart: whether there are gaps between the images of an operand
    - tokens: the tokens that order them
    - at: the operands of stages inside loops, by depth
    - depths: the depths of stages with two buffers, whose blocks are prefetched
    - slices, opened: as `layer_shape.slices` returns them
    - known: the transfers so far, by operand and extents
    """

    def __init__(self, mapping: Mapping, engines: Engines, full: Semaphore, apart: bool) -> None:
        self.engines, self.shape, self.apart = engines, engines.shape, apart
        self.stages = mapping.glb_stages
        self.doubled = {
            operand for operand, stage in self.stages.items() if stage.buffers > 1 and stage.depth and operand in ORDER
        }
        self.depths = sorted({self.stages[operand].depth for operand in self.doubled})
        inside = [(stage.depth, operand) for operand, stage in self.stages.items() if stage.depth]
        self.at = {depth: {operand for other, operand in inside if other == depth} for depth, _ in inside}
        self.slices, self.opened = slices(mapping)
        self.output_depth = self.stages["output"].depth if "output" in self.stages else 0
        self.tokens = GlbTokens(self.stages, full)
        self.known = dict[tuple[object, ...], list[Fetch]]()

    def keep_order(self) -> None:
        """Issue second slices behind results, in their own loop, which is not opened."""
        self.slices, self.opened = [], -1

    @property
    def watched(self) -> list[int]:
        """The depths of stages whose next block a position has to name."""
        # Second slices are those of the output's next block (`drains`).
        return sorted({*self.depths, self.output_depth}) if self.slices else self.depths

    def firsts(self, at: WalkPosition, order: WalkOrder) -> list[Fetch]:
        """The transfers at the head of a layer: operands fetched once, and the first blocks of prefetched ones."""
        fetches = self._fetched({operand for operand, stage in self.stages.items() if not stage.depth}, at)
        for depth in self.depths:
            fetches += self._fetched(self._doubled_at(depth), order.first(at, 0, depth))
        return fetches

    def _doubled_at(self, depth: int) -> set[str]:
        return {operand for operand in self.doubled if self.stages[operand].depth == depth}

    def fetches(self, depth: int, at: WalkPosition) -> list[Task]:
        """The transfers at the head of an iteration: its own block into one buffer, the next block into two."""
        if not (operands := self.at.get(depth)):
            return []
        fetches = self._fetched(operands - self.doubled, at)
        if operands & self.doubled and (following := at.following.get(depth)) and not self._has_come(depth, at):
            fetches += self._fetched(operands & self.doubled, following)
        return [fetch.task for fetch in fetches]

    def _has_come(self, depth: int, at: WalkPosition) -> bool:
        """Whether the next slice was fetched earlier, as the second slice of a block of the output."""
        # In the first iteration of the opened loop, which stands between both stages, if others follow.
        inside = -1 << self.output_depth & (1 << depth) - 1
        return depth in self.slices and not (at.past_first | at.repeated) & inside and bool(at.before_last & inside)

    def seconds(self, block: WalkPosition, order: WalkOrder) -> list[Task]:
        """The second slices of a block of the output."""
        fetches: list[Fetch] = []
        for depth in self.slices:
            slice_ = block
            for loop in range(self.output_depth, depth):
                slice_ = order.bodies(slice_, loop, (depth,))[0][1]
            # A block of a single slice has no second one.
            if self._has_come(depth, slice_):
                fetches += self._fetched(self._doubled_at(depth), slice_.following[depth])
        return [fetch.task for fetch in fetches]

    def _fetched(self, operands: Set[str], at: WalkPosition) -> list[Fetch]:
        return [fetch for name in ORDER if name in operands for fetch in self._moved(name, at)]

    def _moved(self, operand: str, at: WalkPosition) -> list[Fetch]:
        """The transfers of an operand's slice, or of its block. Many positions have equal ones."""
        if (fetches := self.known.get(key := (operand, at.sides, *at.extent.values()))) is None:
            fetches = self.known[key] = self._transfers(operand, at)
        return fetches

    def _transfers(self, operand: str, at: WalkPosition) -> list[Fetch]:
        if operand == "output":
            return self._block("results", operand, at, Semaphore.OUTPUT_FULL, output_free(self.stages[operand]))
        take, give = self.tokens.taken_by_transfer(operand), self.tokens.given_by_transfer(operand)
        if operand in ("params", "weight"):
            words = self._slice(operand, at)
            return [Fetch(operand, words, transfer("weights", words, self.engines.arch, take, give))]
        return self._block("activations", operand, at, take, give)

    def drains(self, depth: int, at: WalkPosition, order: WalkOrder) -> list[Task]:
        """The transfer of a depth's results to DRAM, behind the second slices of the next block."""
        if "output" not in self.stages or self.stages["output"].depth != depth:
            return []
        following = at.following.get(depth)
        seconds = self.seconds(following, order) if following else []
        return [*seconds, *(fetch.task for fetch in self._moved("output", at))]

    def _slice(self, operand: str, at: WalkPosition) -> int:
        """Words of a slice of weights or params, for all PEs."""
        channels = at.extent["k"] * prod(side.pes for side in at.sides if side.dim == "k")
        if operand == "weight":
            return channels * at.extent["c"] * self.shape.sizes.r * self.shape.sizes.s
        indices = at.extent["h"] * at.extent["w"] if self.shape.per_position else channels
        return indices * self.engines.words_per_channel

    def _block(self, moved: str, operand: str, at: WalkPosition, take: Semaphore, give: Semaphore) -> list[Fetch]:
        """A block of an activation, its padding included: the first transfer takes, the last one gives."""
        block, none = activation_block(self.shape, operand, at.extent), Semaphore.NONE
        count = block.transfers(self.shape.channels_of(operand), self.apart)
        words = block.words // count
        tokens = [(none if i else take, give if i == count - 1 else none) for i in range(count)]
        return [Fetch(operand, words, transfer(moved, words, self.engines.arch, *each)) for each in tokens]

    def since(self) -> set[int]:
        """The depths of the stages that the tokens of loads and commits are about."""
        tokens = self.tokens
        operands = {tokens.of_ifmap_load()[0], tokens.taken_by_commit()[0], tokens.given_by_commit()[0], "weight"}
        return {stage.depth for operand, stage in self.stages.items() if operand in operands}

    # -- the tokens of loads and commits -------------------------------------------------------------------------

    def weight_tokens(self, at: WalkPosition) -> tuple[Tokens, Tokens]:
        """(takes, gives): the tokens of the first and of the last load of a slice of weights."""
        depth, free = self.stages["weight"].depth, self.tokens.given_by_weight_load()
        return tokens_of(self.tokens.full, at.first(depth)), tokens_of(free, at.last(depth))

    def ifmap_tokens(self, at: WalkPosition) -> tuple[Tokens, Tokens]:
        """(takes, gives): the tokens of the first and of the last load of a block."""
        operand, full, free = self.tokens.of_ifmap_load()
        return (self._at_first(operand, full, at), self._at_last(operand, free, at)) if operand else ((), ())

    def commit_tokens(self, at: WalkPosition) -> tuple[Tokens, Tokens]:
        """(takes, gives): the tokens of the first and of the last commit of a block."""
        return self._at_first(*self.tokens.taken_by_commit(), at), self._at_last(*self.tokens.given_by_commit(), at)

    def _at_first(self, operand: str, semaphore: Semaphore, at: WalkPosition) -> Tokens:
        return tokens_of(semaphore, at.first(self.stages[operand].depth)) if operand else ()

    def _at_last(self, operand: str, semaphore: Semaphore, at: WalkPosition) -> Tokens:
        return tokens_of(semaphore, at.last(self.stages[operand].depth)) if operand else ()
