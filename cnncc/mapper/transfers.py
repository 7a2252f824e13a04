"""What moves between DRAM and the GLB while a layer runs, as tasks: where they stand, their tokens. No IR.

Which tokens order them is said in docs/model.md; it is what `nest-to-array` does.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from cnncc.dialects._mapping import Mapping, Stage
from cnncc.mapper.layer_shape import activation_box
from cnncc.mapper.occupancy import Engines
from cnncc.mapper.positions import At
from cnncc.mapper.timeline import HALVES, Task, Token

FREE, FULL, IFMAP_FULL, INPUT_FREE, RESIDUAL_FULL, OUTPUT_FULL, OUTPUT_FREE, FREE_ONE, NEXT_FULL = range(
    HALVES, HALVES + 9
)
PRIMED = {FREE: 2, INPUT_FREE: 1, OUTPUT_FREE: 1, FREE_ONE: 1}  # what is free before the first layer


class Fetch(NamedTuple):
    """A transfer of an operand into its buffer, of so many words."""

    operand: str
    words: int
    task: Task


class Transfers:
    """The transfers of one layer, and the tokens of its loads and commits. `full`: of weights that have arrived."""

    def __init__(self, mapping: Mapping, engines: Engines, full: int) -> None:
        self.engines, self.shape, self.full = engines, engines.shape, full
        self.stages = {stage.operand: stage for stage in mapping.stages if stage.memory == "glb"}
        params = self.stages.get("params")
        self._sliced_params = bool(params and params.depth)
        self._with_blocks = self._sliced_params and bool(self.stages.keys() & {"ifmap", "output"})

    def _free(self, stage: Stage) -> int:
        """Which tokens say that there is room for a slice of weights or params; 0: it need not be waited for."""
        if stage.operand == "params" and self._with_blocks:
            return 0 if "output" in self.stages else INPUT_FREE
        return 0 if stage.depth == 0 else FREE if stage.buffers > 1 else FREE_ONE

    def fetches(self, depth: int, at: At) -> list[Fetch]:
        """What is brought into the buffers of the stages at a depth."""
        here = {operand: stage for operand, stage in self.stages.items() if stage.depth == depth}
        found: list[Fetch] = []
        if stage := here.get("params"):
            give = 0 if self.stages.keys() & {"weight", "ifmap"} else self.full
            found.append(self._fetch("params", self._slice("params", at), self._free(stage), give))
        if stage := here.get("weight"):
            free = 0 if "params" in here else self._free(stage)
            found.append(self._fetch("weight", self._slice("weight", at), free, self.full))
        if "residual" in here:
            free = OUTPUT_FREE if "output" in self.stages else INPUT_FREE
            found.append(self._fetch("residual", self._block("residual", at), free, RESIDUAL_FULL))
        if "ifmap" in here:
            free = 0 if self._with_blocks or self.stages.keys() & {"output", "residual"} else INPUT_FREE
            found.append(self._fetch("ifmap", self._block("ifmap", at), free, IFMAP_FULL))
        return found

    def drains(self, depth: int, at: At) -> list[Task]:
        """What has been gathered at a depth and leaves."""
        if "output" not in self.stages or self.stages["output"].depth != depth:
            return []
        return [self._transfer(self._block("output", at), OUTPUT_FULL, OUTPUT_FREE)]

    def _fetch(self, operand: str, words: int, take: int, give: int) -> Fetch:
        return Fetch(operand, words, self._transfer(words, take, give))

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

    def weight_tokens(self, at: At) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
        """A load of weights takes their slice, and gives it back unless params of the slice are needed longer."""
        stage = self.stages["weight"]
        first, last = at.first(stage.depth), at.last(stage.depth)
        free = 0 if self._sliced_params else self._free(stage)
        return _tokens(self.full, first), _tokens(free, last)

    def ifmap_tokens(self, at: At) -> tuple[Token, ...]:
        """A load of the ifmap takes its block; where there are no weights to wait for, the params."""
        if stage := self.stages.get("ifmap"):
            return _tokens(IFMAP_FULL, at.first(stage.depth))
        if "params" in self.stages and "weight" not in self.stages:
            return _tokens(self.full, at.first(self.stages["params"].depth))
        return ()

    def commit_tokens(self, at: At) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
        """A commit takes its residual, or room; the last of a block frees what the block needed."""
        takes: tuple[Token, ...] = ()
        if stage := self.stages.get("residual"):
            takes = _tokens(RESIDUAL_FULL, at.first(stage.depth))
        elif stage := self.stages.get("output"):
            takes = _tokens(OUTPUT_FREE, at.first(stage.depth))
        return takes, self._freed(at)

    def _freed(self, at: At) -> tuple[Token, ...]:
        if stage := self.stages.get("output"):
            return _tokens(OUTPUT_FULL, at.last(stage.depth))
        if stage := self.stages.get("ifmap", self.stages.get("residual")):
            return _tokens(INPUT_FREE, at.last(stage.depth))
        if self._sliced_params:
            stage = self.stages["params"]
            return _tokens(self._free(stage), at.last(stage.depth))
        return ()


def _tokens(queue: int, when: int | None) -> tuple[Token, ...]:
    return (Token(queue, when),) if queue and when is not None else ()
