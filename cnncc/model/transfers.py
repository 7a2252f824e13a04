"""What moves between DRAM and the GLB while a layer runs, as tasks: where they stand, their tokens. No IR.

Which tokens order them is said in docs/model.md; it is what `nest-to-array` does.
"""

from __future__ import annotations

from collections.abc import Set
from math import prod
from typing import NamedTuple

from cnncc.dialects._mapping import Mapping, Stage
from cnncc.model.layer_shape import activation_box, slices
from cnncc.model.loop_walk import At, WalkOrder
from cnncc.model.occupancy import Engines, Tokens
from cnncc.model.timed_program import HALVES, Task, Token

(
    FREE, FREE_ONE, FULL, NEXT_FULL, IFMAP_FREE, IFMAP_FULL, INPUT_FREE, INPUT_FREE_TWO, RESIDUAL_FULL, OUTPUT_FREE,
    OUTPUT_FREE_TWO, OUTPUT_FULL,
) = range(HALVES, HALVES + 12)  # fmt: skip
# What is free before the first layer: as many as there are buffers.
PRIMED = {FREE: 2, FREE_ONE: 1, IFMAP_FREE: 2, INPUT_FREE: 1, INPUT_FREE_TWO: 2, OUTPUT_FREE: 1, OUTPUT_FREE_TWO: 2}
ORDER = ("params", "weight", "residual", "ifmap")  # of transfers in one place: the last vouches for those before it


class Fetch(NamedTuple):
    """A transfer of an operand into its buffer, of so many words."""

    operand: str
    words: int
    task: Task


class Transfers:
    """The transfers of one layer, and the tokens of its loads and commits.

    - full: the token of weights that have arrived
    - at: by depth: the operands of stages inside loops
    - depths: those of stages with two buffers, whose blocks are prefetched
    - slices: those among them inside the blocks of the output, with one loop in time between
    - opened: the number of that loop, else -1
    """

    def __init__(self, mapping: Mapping, engines: Engines, full: int) -> None:
        self.engines, self.shape, self.full = engines, engines.shape, full
        self.stages = {stage.operand: stage for stage in mapping.stages if stage.memory == "glb"}
        self.doubled = {
            operand for operand, stage in self.stages.items() if stage.buffers > 1 and stage.depth and operand in ORDER
        }
        self.depths = sorted({self.stages[operand].depth for operand in self.doubled})
        inside = [(stage.depth, operand) for operand, stage in self.stages.items() if stage.depth]
        self.at = {depth: {operand for other, operand in inside if other == depth} for depth, _ in inside}
        self.slices, self.opened = slices(mapping)
        self.output_depth = self.stages["output"].depth if "output" in self.stages else 0
        params = self.stages.get("params")
        self._sliced_params = bool(params and params.depth)
        self._with_blocks = self._sliced_params and bool(self.stages.keys() & {"ifmap", "output"})

    def keep_order(self) -> None:
        """Second slices come behind results, in their loop, which is not opened."""
        self.slices, self.opened = [], -1

    @property
    def watched(self) -> list[int]:
        """The depths of stages of which it has to be known which block is next."""
        return sorted({*self.depths, self.output_depth}) if self.slices else self.depths

    def firsts(self, at: At, order: WalkOrder) -> list[Fetch]:
        """What a layer begins with: what comes once, and the first blocks of what is fetched ahead."""
        found = self._fetched({operand for operand, stage in self.stages.items() if not stage.depth}, at)
        for depth in self.depths:
            found += self._fetched(self._doubled_at(depth), order.first(at, 0, depth))
        return found

    def _doubled_at(self, depth: int) -> set[str]:
        return {operand for operand in self.doubled if self.stages[operand].depth == depth}

    def fetches(self, depth: int, at: At) -> list[Task]:
        """What an iteration begins with: into one buffer its own block, into two the next one."""
        if not (here := self.at.get(depth)):
            return []
        found = self._fetched(here - self.doubled, at)
        if here & self.doubled and (following := at.following.get(depth)) and not self._has_come(depth, at):
            found += self._fetched(here & self.doubled, following)
        return [fetch.task for fetch in found]

    def _has_come(self, depth: int, at: At) -> bool:
        """Whether the slice after the present one has come before: it is the second of a block of the output."""
        inside = -1 << self.output_depth & (1 << depth) - 1
        return depth in self.slices and not (at.late | at.runs) & inside and bool(at.early & inside)

    def seconds(self, block: At, order: WalkOrder) -> list[Task]:
        """The second slices of a block of the output."""
        found: list[Fetch] = []
        for depth in self.slices:
            slice_ = block
            for loop in range(self.output_depth, depth):
                slice_ = order.bodies(slice_, loop, (depth,))[0][1]
            if self._has_come(depth, slice_):
                found += self._fetched(self._doubled_at(depth), slice_.following[depth])
        return [fetch.task for fetch in found]

    def _fetched(self, operands: Set[str], at: At) -> list[Fetch]:
        found: list[Fetch] = []
        for operand in (each for each in ORDER if each in operands):
            sliced = operand in ("params", "weight")
            words = self._slice(operand, at) if sliced else self._block(operand, at)
            found.append(Fetch(operand, words, self._transfer(words, self._free(operand), self._full(operand))))
        return found

    def _full(self, operand: str) -> int:
        """Which tokens say that an operand is there; 0: those of one behind it do."""
        if operand == "params" and self.stages.keys() & {"weight", "ifmap"}:
            return 0
        return {"ifmap": IFMAP_FULL, "residual": RESIDUAL_FULL}.get(operand, self.full)

    def _free(self, operand: str) -> int:
        """Which tokens say that there is room; 0: a transfer before it has waited."""
        stage, output, params = self.stages[operand], self.stages.get("output"), self.stages.get("params")
        if operand == "weight":
            return 0 if params and params.depth == stage.depth else _slice_free(stage)
        if operand == "params":
            return self._params_free(stage)
        if operand == "residual":
            return budget(output) if output else 0 if self._with_blocks else input_free(stage)
        if stage.buffers > 1 and not (output and stage.depth <= output.depth):
            return IFMAP_FREE
        return 0 if output or self._with_blocks or "residual" in self.stages else INPUT_FREE

    def _params_free(self, stage: Stage) -> int:
        if self._with_blocks:  # free as the blocks are with which they come
            return 0 if "output" in self.stages else input_free(stage)
        return _slice_free(stage)

    def drains(self, depth: int, at: At, order: WalkOrder) -> list[Task]:
        """What has been gathered at a depth and leaves, behind the second slices of the next block."""
        if "output" not in self.stages or self.stages["output"].depth != depth:
            return []
        following = at.following.get(depth)
        seconds = self.seconds(following, order) if following else []
        return [*seconds, self._transfer(self._block("output", at), OUTPUT_FULL, budget(self.stages["output"]))]

    def _transfer(self, words: int, take: int, give: int) -> Task:
        return self.engines.transfer(words, (Token(take),) if take else (), (Token(give),) if give else ())

    def _slice(self, operand: str, at: At) -> int:
        """Words of a slice of weights or params, for all PEs."""
        channels = at.extent["k"] * prod(side.pes for side in at.sides if side.dim == "k")
        if operand == "weight":
            return channels * at.extent["c"] * self.shape.sizes.r * self.shape.sizes.s
        indices = at.extent["h"] * at.extent["w"] if self.shape.per_position else channels
        return indices * self.engines.params_words

    def _block(self, operand: str, at: At) -> int:
        """Words of a block of an activation, with what of it lies in the padding."""
        box = activation_box(self.shape, operand, at.extent)
        return box.channels * box.plane

    # -- the tokens of loads and commits -------------------------------------------------------------------------

    def weight_tokens(self, at: At) -> tuple[Tokens, Tokens]:
        """A load of weights takes their slice, and gives it back unless params of the slice are needed longer."""
        stage = self.stages["weight"]
        free = 0 if self._sliced_params else _slice_free(stage)
        return _tokens(self.full, at.first(stage.depth)), _tokens(free, at.last(stage.depth))

    def ifmap_tokens(self, at: At) -> tuple[Tokens, Tokens]:
        """A load of the ifmap takes its block; where there are no weights to wait for, the params.

        It gives one of two buffers back, where no transfer of the output does that.
        """
        if stage := self.stages.get("ifmap"):
            free = IFMAP_FREE if self._free("ifmap") == IFMAP_FREE else 0
            return _tokens(IFMAP_FULL, at.first(stage.depth)), _tokens(free, at.last(stage.depth))
        if "params" in self.stages and "weight" not in self.stages:
            return _tokens(self.full, at.first(self.stages["params"].depth)), ()
        return (), ()

    def commit_tokens(self, at: At) -> tuple[Tokens, Tokens]:
        """A commit takes its residual, or room; the last of a block frees what the block needed."""
        takes: Tokens = ()
        if stage := self.stages.get("residual"):
            takes = _tokens(RESIDUAL_FULL, at.first(stage.depth))
        elif stage := self.stages.get("output"):
            takes = _tokens(budget(stage), at.first(stage.depth))
        return takes, self._freed(at)

    def _freed(self, at: At) -> Tokens:
        if stage := self.stages.get("output"):
            return _tokens(OUTPUT_FULL, at.last(stage.depth))
        for operand in ("ifmap", "residual"):
            stage = self.stages.get(operand)
            if stage and self._free(operand) != IFMAP_FREE:
                return _tokens(input_free(stage), at.last(stage.depth))
        if self._sliced_params:
            stage = self.stages["params"]
            return _tokens(self._params_free(stage), at.last(stage.depth))
        return ()


def _slice_free(stage: Stage) -> int:
    return 0 if stage.depth == 0 else FREE if stage.buffers > 1 else FREE_ONE


def input_free(stage: Stage) -> int:
    """Which tokens say that there is room for a block of an input whose output lies in the GLB."""
    return INPUT_FREE_TWO if stage.buffers > 1 else INPUT_FREE


def budget(output: Stage) -> int:
    """Which tokens say that there is room for a block of the output."""
    return OUTPUT_FREE_TWO if output.buffers > 1 else OUTPUT_FREE


def _tokens(queue: int, when: int | None) -> Tokens:
    return (Token(queue, when),) if queue and when is not None else ()
