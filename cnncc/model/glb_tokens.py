"""The tokens that order the transfers, loads and commits of a layer on its buffers in the GLB. No IR.

    semaphore           meaning                                              given by       taken by
    FULL, NEXT_FULL     weights and parameters have arrived; layers          transfer       load, else commit
                        alternate between the two semaphores
    FREE, FREE_ONE      a slice of weights or parameters is used up;         load, commit   transfer
                        two buffers, one buffer
    IFMAP_FULL          a block of the ifmap has arrived                     transfer       load
    IFMAP_FREE          one of two buffers of the ifmap is used up, and      load           transfer
                        no transfer of the output implies it
    RESIDUAL_FULL       a block of the residual has arrived                  transfer       commit
    OUTPUT_FULL         a block of the output is complete                    commit         transfer to DRAM
    OUTPUT_FREE, …_TWO  a block of the output is in DRAM; one buffer, two    transfer       transfer, commit
    INPUT_FREE, …_TWO   a block of an input is used up, the output is        commit         transfer
                        resident; one buffer, two
    STRIPE_FULL         a stripe of a group is complete                      commit         load
    ROWS_FULL           rows for a stripe of a group have arrived            transfer       load
    ROWS_FREE           rows in a group's ring of an input are read          load, commit   transfer

The DMA works in program order. So a transfer needs no token if an earlier transfer has waited for a token that is given
as late. Example: every transfer after one that waits for a block's OUTPUT_FULL comes after the last use of all buffers
of that block.

The lowering (`passes/_programs/layer_transfers.py`) writes these tokens into the program, and the cost model
(`transfers.py`) runs them. Both share this table, because a difference could only be a mistake. The interpreter does
not use it: it follows the program, so a wrong token shows as other cycles or as a race.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from enum import IntEnum

from cnncc.mapping.mapping import Stage


class Semaphore(IntEnum):
    """The semaphores of layers, by the number that instructions have; 0 is none."""

    NONE = 0
    FREE = 1
    FULL = 2
    NEXT_FULL = 3
    IFMAP_FULL = 4
    INPUT_FREE = 5
    RESIDUAL_FULL = 6
    OUTPUT_FULL = 7
    OUTPUT_FREE = 8
    FREE_ONE = 9
    IFMAP_FREE = 10
    INPUT_FREE_TWO = 11
    OUTPUT_FREE_TWO = 12
    STRIPE_FULL = 13
    ROWS_FULL = 14
    ROWS_FREE = 15


S = Semaphore
# Tokens before the first layer: one for each free buffer.
PRIMED: dict[Semaphore, int] = {
    S.FREE: 2, S.FREE_ONE: 1, S.IFMAP_FREE: 2, S.INPUT_FREE: 1, S.INPUT_FREE_TWO: 2, S.OUTPUT_FREE: 1,
    S.OUTPUT_FREE_TWO: 2, S.ROWS_FREE: 1,
}  # fmt: skip
FULL_IN_TURN = (S.FULL, S.NEXT_FULL)  # the weights of the next layer may arrive during this one
FREE_TWICE = (S.FREE, S.INPUT_FREE_TWO)  # transfers of weights and parameters into two buffers wait for these
ORDER = ("params", "weight", "residual", "ifmap")  # of transfers in one place: the last token covers those before it


def input_free(stage: Stage) -> Semaphore:
    """The semaphore for "a block of this input is used", if the output is resident."""
    return S.INPUT_FREE_TWO if stage.buffers > 1 else S.INPUT_FREE


def output_free(stage: Stage) -> Semaphore:
    """The semaphore for "a block of the output is in DRAM"."""
    return S.OUTPUT_FREE_TWO if stage.buffers > 1 else S.OUTPUT_FREE


def _slice_free(stage: Stage) -> Semaphore:
    if stage.depth == 0:
        return S.NONE  # fetched once, resident until the layer ends
    return S.FREE if stage.buffers > 1 else S.FREE_ONE


class GlbTokens:
    """The tokens of one layer.

    - stages: its stages in the GLB, by operand
    - full: the layer's one of `FULL_IN_TURN`
    - sliced_params: whether parameters come in slices
    - with_blocks: whether these slices come with the blocks of ifmap or output
    """

    def __init__(self, stages: Map[str, Stage], full: Semaphore) -> None:
        self.stages, self.full = stages, full
        params = stages.get("params")
        self.sliced_params = bool(params and params.depth)
        self.with_blocks = self.sliced_params and bool(stages.keys() & {"ifmap", "output"})

    def taken_by_transfer(self, operand: str) -> Semaphore:
        """The semaphore that a transfer into the operand's buffer waits for."""
        stage, output, params = self.stages[operand], self.stages.get("output"), self.stages.get("params")
        match operand:
            case "weight":
                # In one place the transfer of params comes first: it waits for the buffers of both.
                return S.NONE if params and params.depth == stage.depth else _slice_free(stage)
            case "params":
                return self._params_free(stage)
            # Of a block's operands the first in ORDER waits, and the others come behind it.
            case "residual":
                return output_free(output) if output else S.NONE if self.with_blocks else input_free(stage)
            case _ if self.is_freed_by_loads():
                return S.IFMAP_FREE
            case _:
                return S.NONE if output or self.with_blocks or "residual" in self.stages else S.INPUT_FREE

    def given_by_transfer(self, operand: str) -> Semaphore:
        """The semaphore for "the operand has arrived"; none if a later operand's token implies it."""
        if operand == "params" and self.stages.keys() & {"weight", "ifmap"}:
            return S.NONE
        return {"ifmap": S.IFMAP_FULL, "residual": S.RESIDUAL_FULL}.get(operand, self.full)

    def is_freed_by_loads(self) -> bool:
        """Whether the last load of a block of the ifmap says that its buffer is free, and no output's transfer does."""
        stage, output = self.stages["ifmap"], self.stages.get("output")
        return stage.buffers > 1 and (output is None or stage.depth > output.depth)

    def _params_free(self, stage: Stage) -> Semaphore:
        if self.with_blocks:  # free as the blocks are with which they come
            return S.NONE if "output" in self.stages else input_free(stage)
        return _slice_free(stage)

    def given_by_weight_load(self) -> Semaphore:
        """The semaphore that a weight slice's last load gives; none if the slice's parameters are needed longer."""
        return S.NONE if self.sliced_params else _slice_free(self.stages["weight"])

    def of_ifmap_load(self) -> tuple[str, Semaphore, Semaphore]:
        """(operand, taken, given): the first load in a block of the operand takes, the last one gives.

        Without weights to wait for, the load waits for the parameters. operand: "" if it waits for nothing.
        """
        if "ifmap" in self.stages:
            return "ifmap", S.IFMAP_FULL, S.IFMAP_FREE if self.is_freed_by_loads() else S.NONE
        if "params" in self.stages and "weight" not in self.stages:
            return "params", self.full, S.NONE
        return "", S.NONE, S.NONE

    def taken_by_commit(self) -> tuple[str, Semaphore]:
        """(operand, semaphore): the first commit in a block of the operand waits for a residual or a free buffer."""
        if "residual" in self.stages:
            return "residual", S.RESIDUAL_FULL
        if output := self.stages.get("output"):
            return "output", output_free(output)
        return "", S.NONE

    def given_by_commit(self) -> tuple[str, Semaphore]:
        """(operand, semaphore): the last commit in a block of the operand gives the semaphore."""
        if "output" in self.stages:
            return "output", S.OUTPUT_FULL
        for operand in ("ifmap", "residual"):
            stage = self.stages.get(operand)
            # Loads free an ifmap by IFMAP_FREE alone. Else commits say it, as they come behind all that reads a block.
            if stage and self.taken_by_transfer(operand) != S.IFMAP_FREE:
                return operand, input_free(stage)
        if self.sliced_params:
            return "params", self._params_free(self.stages["params"])
        return "", S.NONE
