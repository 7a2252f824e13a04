"""The programs of cores, as plain records: no IR. Which tokens there are is said in `cnncc/model/core_steps.py`.

    core 0     weights and params of all groups       once
               i0, over frames                        one image in, one result out
    core i     i0, over frames
                 the steps of its group               as `group_program.py` has them, without transfers

Images and results lie in circles of buffers: a loop over frames moves their views by an image, and `wrap` brings it
back. Channels and rings do not move, as each frame begins in slot 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from cnncc.arch.model import Arch, core_arch
from cnncc.dialects import array as A
from cnncc.dialects._channels import Region
from cnncc.dialects._groups import GroupLayer
from cnncc.model.core_steps import BUFFERS
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.group_steps import ChannelEnds
from cnncc.passes._programs.group_program import GroupProgram
from cnncc.passes._programs.layer_records import Body, Home, Node, ProgramLayer

WIDEST = (1 << 16) - 1  # columns of a descriptor


@dataclass(frozen=True)
class CoreSteps:
    """What a core with PEs computes: its steps, and the transfers that core 0 makes for it."""

    steps: list[Node]
    transfers: list[Node]

    @property
    def has_weights(self) -> bool:
        """Whether it waits for weights."""
        return any(isinstance(node, A.Dma) and node.tokens.give for node in self.transfers)


def core_steps(
    layers: Sequence[ProgramLayer], group: Sequence[GroupLayer], region: Region, arch: Arch, ends: ChannelEnds
) -> CoreSteps:
    """The program of a group on its core. group: its layers over frames. Raises Refusal."""
    program = GroupProgram(layers, group, core_arch(arch, region.rows, region.cols), ends)
    return CoreSteps(program.steps(), program.transfers())


def weights_in(transfers: Sequence[Node], full: Semaphore) -> list[Node]:
    """Transfers of weights as core 0 makes them: each says by `full` that it is done, if its core waits for it."""
    named = {name for node in transfers if isinstance(node, A.Dma) for name in (node.dram, node.glb)}
    result: list[Node] = []
    for node in transfers:
        if isinstance(node, A.Dma):
            tokens = replace(node.tokens, give=int(full)) if node.tokens.give else node.tokens
            result.append(replace(node, tokens=tokens))
        elif isinstance(node, A.View) and node.name in named:
            result.append(replace(node, steps=()))
    return result


def frames_through(image: tuple[str, Home], result: tuple[str, Home], lag: int) -> list[Node]:
    """An image in and a result out for each frame, from and to these tensors in DRAM, and their circles in the GLB."""
    start = _Frames("image", *image), _Frames("result", *result)
    full, free = Semaphore.IFMAP_FULL, Semaphore.INPUT_FREE
    out_full, out_free = Semaphore.OUTPUT_FULL, Semaphore.OUTPUT_FREE
    transfers = (
        start[0].transfer(A.Direction.IN, A.Tokens(int(free), int(full))),
        start[1].transfer(A.Direction.OUT, A.Tokens(int(out_full), int(out_free)), -lag),
    )
    loop = A.Repeat("i0", 1 + lag, frames=True)
    return [*(view for side in start for view in side.views()), Body(loop, transfers)]


@dataclass(frozen=True)
class _Frames:
    """A value of each frame in DRAM, and the circle of buffers that it passes through."""

    name: str
    dram: str
    circle: Home

    @property
    def blocks(self) -> int:
        """The blocks of a transfer: rows of a descriptor have a limit."""
        words = self.circle.image
        return next(count for count in range(ceil(words / WIDEST), words + 1) if words % count == 0)

    def views(self) -> list[A.View]:
        width, words = self.circle.image // self.blocks, self.circle.image
        return [
            A.View(f"{self.name}.dram", self.dram, width=width, frames=True, steps=(A.LoopTerm("i0", "y", 1),)),
            A.View(self.name, self.circle.tensor, wrap=BUFFERS * words, steps=(A.LoopTerm("i0", "lin", words),)),
        ]

    def transfer(self, direction: A.Direction, tokens: A.Tokens, first: int = 0) -> A.Dma:
        """The transfer of a frame. first: the frame in the first iteration."""
        step = self.circle.image // self.blocks
        more = {"count": self.blocks, "dram_step": step, "glb_step": step} if self.blocks > 1 else {}
        return A.Dma(
            direction, f"{self.name}.dram", self.name, words=step, y=first, glb_offset=first * self.circle.image,
            tokens=tokens, **more,
        )  # fmt: skip
