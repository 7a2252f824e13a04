"""The programs of cores, as plain records. Which tokens there are is said in `cnncc/model/core_steps.py`.

    core 0     weights and params of all groups       once
               i0, over frames                        one image in, one result out
    core i     i0, over frames
                 the steps of its group               as `group_program.py` has them, without transfers

Images and results lie in circles of buffers: a loop over frames moves their views by an image, and `wrap` brings it
back. Channels and rings do not move, as each frame begins in slot 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from xdsl.ir import SSAValue

from cnncc.arch.model import Arch, core_arch
from cnncc.dialects import array as A
from cnncc.dialects.cnn import value_key
from cnncc.dialects.nest import CoresOp, LayerOp, chain_of, group_layers
from cnncc.mapping.channels import buffers
from cnncc.mapping.groups import GroupLayer
from cnncc.model.core_steps import core_routes, first_tokens, over_frames, weight_semaphores
from cnncc.model.glb_tokens import Semaphore
from cnncc.passes._programs.group_program import GroupProgram
from cnncc.passes._programs.layer_records import ActivationLayout, Body, Node, ProgramLayer
from cnncc.passes._programs.tensors import ArrayTensors
from cnncc.passes._scheduling.nest_layers import label_of

WIDEST = (1 << 16) - 1  # columns of a descriptor


class ChainProgram:
    """The programs of `nest.cores`, and the tensors between them.

    Attributes:
        value           what the last layer computes
        weights         the transfers of weights and params, with their views
        frames          a loop over frames: one image in, one result out
        cores           those with PEs: the place and the program of each
        routes, tokens  of all cores, core 0 first: where tokens go, and those that a core gives itself at first
    """

    def __init__(
        self,
        op: CoresOp,
        tensors: ArrayTensors,
        rings: dict[SSAValue, ActivationLayout],
        program_layer: Callable[[LayerOp, str, GroupLayer], ProgramLayer],
        arch: Arch,
    ) -> None:
        groups, lag, chain = op.groups(), op.lag.value.data, chain_of(op)
        result = groups[-1].yielded()[0]
        last = result.owner
        assert isinstance(last, LayerOp)
        self.value = value_key(last) or label_of(last)
        tensors.place("dram", op.outputs[0], self.value)
        images = tensors.circle(f"{label_of(groups[0].layers()[0])}.images", op.image, buffers(lag))
        results = tensors.circle(f"{self.value}.results", result, buffers(lag))
        rings |= {op.image: images, result: results}
        inside: dict[SSAValue, SSAValue] = {
            output: group.inside_of(output) for group in groups for output in group.outputs
        }
        for ring, channel in zip(op.channels(), chain.channels, strict=True):
            home = tensors.ring(f"{channel.label}.channel", channel.producer, channel.ring)
            rings |= {inside[ring.value]: home, ring.result: home}
        plans = [over_frames(group_layers(group), buffers(lag)) for group in groups]
        programs, self.cores = list[GroupProgram](), list[tuple[A.CorePlace, Sequence[Node]]]()
        for group, own, tokens in zip(groups, plans, chain.ends, strict=True):
            assert group.place is not None
            for layer, plan in zip(group.layers(), own, strict=True):
                if plan.keeps:
                    rings[layer.result] = tensors.ring(f"{value_key(layer) or plan.label}.ring", plan, plan.keeps)
            place, label = group.place.data, group.label.data
            layers = [program_layer(layer, plan.label, plan) for layer, plan in zip(group.layers(), own, strict=True)]
            programs.append(GroupProgram(layers, own, core_arch(arch, place.rows, place.cols), tokens))
            self.cores.append((A.CorePlace(label, **vars(place)), programs[-1].steps()))
        transfers = [program.transfers() for program in programs]
        full = weight_semaphores(len(groups))
        self.weights = [node for own, each in zip(transfers, full, strict=True) for node in weights_in(own, each)]
        self.frames = frames_through(
            (tensors.in_frames(op.image), images), (tensors.in_frames(op.outputs[0]), results), lag
        )
        self.routes = core_routes([any(program.waits) for program in programs])
        self.tokens = first_tokens(chain.links, lag)


def weights_in(transfers: Sequence[Node], full: Semaphore) -> list[Node]:
    """A group's transfers as core 0 makes them: each of weights says by `full` that it is done."""
    named = {name for node in transfers if isinstance(node, A.Dma) for name in (node.dram, node.glb)}
    result: list[Node] = []
    for node in transfers:
        if isinstance(node, A.Dma):
            tokens = replace(node.tokens, give=int(full)) if node.tokens.give else node.tokens
            result.append(replace(node, tokens=tokens))
        elif isinstance(node, A.View) and node.name in named:
            # The loops that step a view stand in the program of the core. Here each operand comes once, as a whole.
            result.append(replace(node, steps=()))
    return result


def frames_through(image: tuple[str, ActivationLayout], result: tuple[str, ActivationLayout], lag: int) -> list[Node]:
    """An image in and a result out for each frame, from and to these tensors in DRAM, and their circles in the GLB."""
    images, results = _Frames("image", *image), _Frames("result", *result)
    transfers = (
        images.transfer(A.Direction.IN, A.Tokens(int(Semaphore.INPUT_FREE), int(Semaphore.IFMAP_FULL))),
        results.transfer(A.Direction.OUT, A.Tokens(int(Semaphore.OUTPUT_FULL), int(Semaphore.OUTPUT_FREE)), -lag),
    )
    # CORE-8: frames + lag iterations. The first `lag` of them take no result away, the last `lag` bring no image.
    loop = A.Repeat("i0", 1 + lag, frames=True)
    return [*images.views(), *results.views(), Body(loop, transfers)]


@dataclass(frozen=True)
class _Frames:
    """A value of each frame in DRAM, and the circle of buffers that it passes through."""

    name: str
    dram: str
    circle: ActivationLayout

    @property
    def blocks(self) -> int:
        """The blocks of a transfer: rows of a descriptor have a limit."""
        words = self.circle.image
        return next(count for count in range(ceil(words / WIDEST), words + 1) if words % count == 0)

    def views(self) -> list[A.View]:
        width, words = self.circle.image // self.blocks, self.circle.image
        return [
            A.View(f"{self.name}.dram", self.dram, width=width, frames=True, steps=(A.LoopTerm("i0", "y", 1),)),
            A.View(self.name, self.circle.tensor, wrap=self.circle.wrap, steps=(A.LoopTerm("i0", "lin", words),)),
        ]

    def transfer(self, direction: A.Direction, tokens: A.Tokens, first: int = 0) -> A.Dma:
        """The transfer of a frame. first: the frame in the first iteration."""
        step = self.circle.image // self.blocks
        more = {"count": self.blocks, "dram_step": step, "glb_step": step} if self.blocks > 1 else {}
        return A.Dma(
            direction, f"{self.name}.dram", self.name, words=step, y=first, glb_offset=first * self.circle.image,
            tokens=tokens, **more,
        )  # fmt: skip
