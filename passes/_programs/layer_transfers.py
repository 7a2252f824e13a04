"""What moves between DRAM and the GLB while a layer runs: the transfers at its stages, and the tokens around them.

One DMA engine does all transfers in program order. A transfer that waits holds up those behind it. When a transfer has
arrived, so have those before it. The buffer of a stage is filled anew in each iteration of the loops around it:

    one buffer     at the head of an iteration, with its own block
    two buffers    at the head of an iteration, with the next one's block, into the buffer that is not in use; the first
                   block at the head of the layer

Blocks of ifmap or weights may be slices of what a block of the output needs, fetched in one loop in time inside it. At
the end of a block two transfers are due: its results, which nobody needs soon, and the second slice of the next block.
The slice goes first. The second slice of the first block comes at the head of the layer. The loop's first iteration has
nothing to fetch then, so that it is peeled, unless the program had too many copies of loop bodies.

Which tokens order transfers, loads and commits is said in `cnncc/model/glb_tokens.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Mapping as Map
from dataclasses import replace
from itertools import pairwise
from math import prod

from cnncc.dialects import array as A
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Loop, Stage
from cnncc.model.glb_tokens import ORDER, GlbTokens, Semaphore, output_free
from cnncc.model.layer_shape import MOST_IMAGES, activation_block, inside, slices, stage_block
from cnncc.passes._programs.layer_operands import Operands, buffer_block
from cnncc.passes._programs.layer_records import Node, Piece, Position, ProgramLayer

ACTIVATIONS = ("ifmap", "residual", "output")


def alternating(stages: Map[str, Stage]) -> list[Stage]:
    """The double-buffered stages of inputs: each block is prefetched while the one before it is in use."""
    return [stage for stage in stages.values() if stage.buffers > 1 and stage.depth and stage.operand != "output"]


def is_one_slice(outside: Sequence[Loop]) -> bool:
    """Whether the weights that all PEs need inside these loops are all taps of neighbouring output channels."""
    # With a loop in time inside one in space, PEs would need channels that lie apart: tiles of 4 on 2 PEs, halved, are
    # channels 0, 1 and 4, 5.
    over_k = [bool(loop.on) for loop in outside if loop.dim == "k"]
    parts = [loop for loop in outside if loop.dim in "rs" or (loop.on and loop.dim == "c")]
    return over_k == sorted(over_k) and not parts


class LayerTransfers:
    """The transfers of one layer. `depths`: those of double-buffered stages of inputs."""

    def __init__(self, layer: ProgramLayer, operands: Operands) -> None:
        self.layer, self.operands, self.loops = layer, operands, operands.loops
        self.stages = operands.stages
        self.doubled = {stage.operand for stage in alternating(self.stages)}
        self.depths = sorted({stage.depth for stage in alternating(self.stages)})
        self.slices = slices(layer.mapping)[0] if operands.order.opened >= 0 else []
        self.tokens = GlbTokens(self.stages, layer.full)
        homes = layer.tensors.homes().items()
        # Images with other words between them take a transfer each (`ActivationBlock.transfers`).
        self.apart = any(home.image != layer.shape.channels_of(name) * home.plane for name, home in homes)
        self._check()

    def _refuse(self, why: str) -> Refusal:
        return Refusal(f"layer {self.layer.label}: {why}")

    def _check(self) -> None:
        """The stages are such that the tokens do. Raises Refusal."""
        depth = {operand: stage.depth for operand, stage in self.stages.items()}
        streamed = [operand for operand in ACTIVATIONS if operand in depth]
        if "output" not in depth and len({depth[operand] for operand in streamed}) > 1:
            raise self._refuse("ifmap and residual are staged in glb at one place, unless the output is, too")
        if "output" in depth and depth.get("residual", depth["output"]) != depth["output"]:
            raise self._refuse("residual is staged in glb where output is")
        # Inside a block of the output loads free the buffers, by a semaphore that only two have (IFMAP_FREE).
        if "output" in depth and depth.get("ifmap", 0) > depth["output"] and self.stages["ifmap"].buffers == 1:
            raise self._refuse("ifmap is staged in glb in two buffers where that is inside the blocks of the output")
        if self.layer.shape.per_position:
            self._check_positions(depth, streamed)
        elif depth.get("params") and (streamed or self.layer.shape.shuffle > 1):
            raise self._refuse("params come in slices only where ifmap, residual and output lie in the GLB, unshuffled")
        elif depth.get("params") and "weight" in depth and not self._alike("params", "weight"):
            raise self._refuse("slices of params are staged in glb where and as those of weights are")
        self._check_buffers()
        for stage in self.stages.values():
            if stage.operand in streamed:
                self._check_blocks(stage, streamed)
            if stage.operand == "weight" and not is_one_slice(self.loops.loops[: stage.depth]):
                raise self._refuse(
                    "weights are staged in glb outside loops over r and s, over c in space, and over k in time inside "
                    "those in space"
                )
            if stage.operand == "weight":
                self._check_channels(self.loops.loops[: stage.depth])

    def _check_channels(self, outside: Sequence[Loop]) -> None:
        """The output channels of all PEs are neighbours: a loop in space leaves no rest inside another one."""
        steps = [loop.step for loop in outside if loop.dim == "k" and loop.on]
        if any(outer % inner for outer, inner in pairwise(steps)):
            raise self._refuse(
                f"steps of the loops over k in space around weights in glb, {' and '.join(map(str, steps))}, must "
                f"divide each other"
            )

    def _check_buffers(self) -> None:
        """Each stage has one or two buffers. Operands that share a token have equally many."""
        buffers = {operand: stage.buffers for operand, stage in self.stages.items()}
        if wrong := [operand for operand, count in buffers.items() if count > 2]:
            raise self._refuse(f"{wrong[0]} is staged in glb in one buffer or two, not in {buffers[wrong[0]]}")
        # The residual waits for free blocks of the output, else of the ifmap. By itself it has any number.
        other = buffers.get("output", buffers.get("ifmap", 2))
        if buffers.get("residual", 1) > other:
            name = "output" if "output" in buffers else "ifmap"
            raise self._refuse(f"residual is staged in glb in two buffers only where {name} is, too: {name}@glb*2")
        if self.tokens.with_blocks and "ifmap" in buffers and not self._alike("params", "ifmap"):
            raise self._refuse("params per position are staged in glb in as many buffers as the ifmap")

    def _check_positions(self, depth: dict[str, int], streamed: list[str]) -> None:
        """Params per position are in the GLB when a commit needs them, and step as the output does."""
        sizes, loops = self.layer.shape.sizes, self.loops.loops
        if depth["params"] and ("weight" in depth or any(depth[operand] != depth["params"] for operand in streamed)):
            raise self._refuse("params per position come in slices only where ifmap and output do, and no weights")
        if len({inside(sizes, loops[: depth.get(operand, 0)])["w"] for operand in ("output", "params")}) > 1:
            raise self._refuse("params per position are staged in glb where the output is, if columns are cut there")
        for dim in "hw":  # a block begins where the ring of its rows (columns) does
            steps = [loop.step for loop in loops[: depth.get("output", 0)] if loop.dim == dim]
            if any(step % steps[-1] for step in steps):
                raise self._refuse(f"steps of the loops over {dim} around blocks of the output must divide each other")

    def _alike(self, *operands: str) -> bool:
        return len({(self.stages[operand].depth, self.stages[operand].buffers) for operand in operands}) == 1

    def _check_blocks(self, stage: Stage, streamed: list[str]) -> None:
        outside, shape = self.loops.loops[: stage.depth], self.layer.shape
        block = stage_block(shape, self.loops.loops, stage)
        if block.transfers(shape.channels_of(stage.operand)) > MOST_IMAGES:
            raise self._refuse(
                f"{stage.operand} is staged in glb with {block.channels} channels of {block.images} images: that many "
                f"transfers, more than {MOST_IMAGES}: with all channels, or inside a loop over n"
            )
        if stage.operand == "output" and shape.shuffle > 1 and any(loop.dim == "k" for loop in outside):
            raise self._refuse("channels that are shuffled are staged in glb all at once: outside the loops over k")
        if stage.operand == "ifmap" or not self.layer.tensors.residual or {"residual", "output"} <= set(streamed):
            return
        # A commit starts at one place for both: that of the other counts the loops outside, too, but not in a ring.
        if any(home.ring for name, home in self.layer.tensors.homes().items() if name != "ifmap"):
            return
        if block.images > 1:
            raise self._refuse(
                f"{stage.operand}, of residual and output, is staged in glb alone: then image by image, not "
                f"{block.images}: inside all loops over n"
            )
        peeled = self.loops.loops[: self.operands.order.peeled]
        if {"n", "k"} & {loop.dim for loop in peeled} or (stage.buffers > 1 and shape.sizes.n > 1):
            raise self._refuse(
                f"{stage.operand}, of residual and output, is staged in glb alone: then no two buffers inside loops "
                f"over n or k"
            )
        extent = shape.sizes.k
        for loop in (loop for loop in outside if loop.dim == "k"):
            if extent % loop.step:
                raise self._refuse(f"blocks of {loop.step} channels of {extent}, of {stage.operand} alone, must divide")
            extent = loop.step

    # -- transfers -----------------------------------------------------------------------------------------------

    def firsts(self, at: Position) -> list[Node]:
        """The transfers that a layer begins with: operands that come once, and the first block of the others."""
        once = [operand for operand, stage in self.stages.items() if stage.depth == 0]
        result = self._fetched(once, at)
        for depth in self.depths:
            prefetched = [operand for operand in self.doubled if self.stages[operand].depth == depth]
            result += self._fetched(prefetched, self.operands.order.first(at, depth))
        if self.slices:
            result += self._seconds(self.operands.order.first(at, self.stages["output"].depth))
        return result

    def fetches(self, depth: int, at: Position) -> list[Node]:
        """The transfers at the head of an iteration: into one buffer its own block, into two the next one."""
        operands = {operand for operand, stage in self.stages.items() if stage.depth == depth > 0}
        # GLB-3: the second slice came behind the block before.
        following = None if depth in self.slices and self._has_second(at) else at.following.get(depth)
        prefetched = self._fetched(operands & self.doubled, following) if following else []
        return [*self._fetched(operands - self.doubled, at), *prefetched]

    def _has_second(self, at: Position) -> bool:
        """Whether a slice is the first of several of its block of the output."""
        inside = at.pieces[self.stages["output"].depth :]
        return all(piece.first and piece.count == 1 for piece in inside) and not all(piece.last for piece in inside)

    def _seconds(self, block: Position) -> list[Node]:
        """The transfers of the second slices of a block of the output."""
        result: list[Node] = []
        for depth in self.slices:
            slice_ = block
            while len(slice_.pieces) < depth:
                # Down to the first slice of the block: what follows that is the second one.
                _, slice_ = self.operands.order.bodies(slice_, [depth])[0]
            if self._has_second(slice_):
                prefetched = {operand for operand in self.doubled if self.stages[operand].depth == depth}
                result += self._fetched(prefetched, slice_.following[depth])
        return result

    def _fetched(self, operands: Collection[str], at: Position) -> list[Node]:
        """The transfers of blocks at a position."""
        result: list[Node] = []
        for operand in (name for name in ORDER if name in operands):
            take, give = self.tokens.taken_by_transfer(operand), self.tokens.given_by_transfer(operand)
            tokens = A.Tokens(int(take), int(give))
            if operand in ("params", "weight"):
                result.append(self._slice(operand, at, tokens))
            else:
                result += self._block(A.Direction.IN, operand, at, tokens)
        return result

    def drains(self, depth: int, at: Position) -> list[Node]:
        """The transfer of what has been gathered at `depth`, behind the second slices of the next block."""
        if "output" not in self.stages or self.stages["output"].depth != depth:
            return []
        following = at.following.get(depth)
        seconds = self._seconds(following) if following else []
        tokens = A.Tokens(int(Semaphore.OUTPUT_FULL), int(output_free(self.stages["output"])))
        return [*seconds, *self._block(A.Direction.OUT, "output", at, tokens)]

    def _slice(self, operand: str, at: Position, tokens: A.Tokens) -> A.Dma:
        """A slice of weights or params: one block, or one for each output channel if only some of its weights come.

        Params of positions are likewise one block, or one for each row if columns are left out.
        """
        stage, shape = self.stages[operand], self.layer.shape
        dram = self.operands.weight_in_dram if operand == "weight" else self.operands.params_in_dram
        by_row = operand == "params" and shape.per_position
        both = (self.operands.glb[operand], dram)
        step, dram_step = (each.coordinates["h" if by_row else "k"].step for each in both)
        if by_row:
            count, words = at.extent["h"], at.extent["w"] * self.layer.words_per_channel
        else:
            count = at.extent["k"] * prod(count for loop, count in at.space if loop.dim == "k")
            words = step if operand == "params" else at.extent["c"] * shape.sizes.r * shape.sizes.s
        place = {"dram_offset": self.loops.start(dram, at).offset, "glb_offset": self._buffer(stage, at)}
        if words == step == dram_step:
            return A.Dma(A.Direction.IN, f"{operand}.dram", operand, count * words, **place, tokens=tokens)
        steps = {"dram_step": dram_step, "glb_step": step}
        return A.Dma(A.Direction.IN, f"{operand}.dram", operand, words, count, **place, **steps, tokens=tokens)

    def _buffer(self, stage: Stage, at: Position) -> int:
        """Where the buffer of a block begins among those of its stage."""
        return self.operands.buffer(stage, at) % (stage.buffers * self.operands.buffer_words(stage))

    def _block(self, direction: A.Direction, operand: str, at: Position, tokens: A.Tokens) -> list[A.Dma]:
        """Rows of channels of an activation, without those parts that lie in the padding (DMA-1).

        Of several transfers the first takes the token, and the last gives it.
        """
        layer, home = self.layer, self.operands.home[operand]
        block, start = activation_block(layer.shape, operand, dict(at.extent)), self.loops.start(home, at)
        buffer = buffer_block(layer, self.stages[operand])
        top, left = layer.shape.window.pad[:2] if operand == "ifmap" else (0, 0)
        plane, count = (
            layer.tensors.homes()[operand].plane,
            block.transfers(layer.shape.channels_of(operand), self.apart),
        )
        images = block.images // count  # of a transfer
        # DMA-1: an instruction says where it starts by offset, y and x. So the first channel is a part of the offset.
        first = A.Dma(
            direction, f"{operand}.dram", operand, words=block.cols, count=images * block.channels, rows=block.rows,
            dram_offset=start.offset + start.channel * plane, glb_offset=self._buffer(self.stages[operand], at),
            dram_step=plane, glb_step=buffer.plane,
            y=0 if block.all_rows else start.y - top, x=0 if block.all_cols else start.x - left,
        )  # fmt: skip
        in_dram, in_glb = (of[operand].coordinates["n"].step for of in (self.operands.home, self.operands.glb))
        return [
            replace(
                first,
                dram_offset=first.dram_offset + image * in_dram,
                glb_offset=first.glb_offset + image * in_glb,
                tokens=A.Tokens(0 if image else tokens.take, tokens.give if image + images == block.images else 0),
            )
            for image in range(0, block.images, images)
        ]

    # -- the tokens of loads and commits -------------------------------------------------------------------------

    def weight_tokens(self, at: Position) -> A.Tokens:
        """What the first load of a slice of weights takes, and the last one gives."""
        return self._tokens("weight", self.layer.full, "weight", self.tokens.given_by_weight_load(), at)

    def ifmap_tokens(self, at: Position) -> A.Tokens:
        """What the first load of a block takes, and the last one gives."""
        operand, full, free = self.tokens.of_ifmap_load()
        tokens = self._tokens(operand, full, operand, free, at)
        return self._with_stripe(tokens, at.stripe.takes, at.stripe.frees, at) if at.stripe else tokens

    def commit_tokens(self, at: Position) -> A.Tokens:
        """What the first commit of a block takes, and the last one gives."""
        tokens = self._tokens(*self.tokens.taken_by_commit(), *self.tokens.given_by_commit(), at)
        return self._with_stripe(tokens, at.stripe.space, at.stripe.gives, at) if at.stripe else tokens

    def _with_stripe(self, tokens: A.Tokens, take: Semaphore, give: Semaphore, at: Position) -> A.Tokens:
        """With what the first one of a stripe takes, and the last one gives."""
        assert at.stripe is not None
        inside = at.pieces[at.stripe.depth :]
        if take and (first := self.loops.first(inside)) is not None:
            assert not tokens.take  # GROUP-7, CHANNEL-4
            tokens = replace(tokens, take=int(take), take_when=first)
        if give and (last := self.loops.last(inside)) is not None:
            assert not tokens.give  # GROUP-7
            tokens = replace(tokens, give=int(give), give_when=last)
        return tokens

    def _tokens(self, taken: str, take: Semaphore, given: str, give: Semaphore, at: Position) -> A.Tokens:
        """Taken in the first iteration of a block of the operand `taken`, given in the last of one of `given`."""
        first = self.loops.first(self._between(taken, at.pieces)) if take else None
        last = self.loops.last(self._between(given, at.pieces)) if give else None
        take, give = take if first is not None else Semaphore.NONE, give if last is not None else Semaphore.NONE
        return A.Tokens(int(take), int(give), first or (), last or ())

    def _between(self, operand: str, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return pieces[self.stages[operand].depth :]
