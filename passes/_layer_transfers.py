"""What moves between DRAM and the GLB while a layer runs: the transfers at its stages, and the tokens around them.

One DMA engine does all transfers in program order: one that waits holds up those behind it, and one that has arrived
vouches for those before it. The buffer of a stage is filled anew in each iteration of the loops around it:

    weights, params   taken as free (FREE: two slices in turn; FREE_ONE: one), given as full to the loads; params per
                      position that come with the blocks of ifmap or output are as free as these
    residual          given as full to the commits (RESIDUAL_FULL)
    ifmap             given as full to the loads (IFMAP_FULL)
    output            taken as full from the commits (OUTPUT_FULL), given back as free (OUTPUT_FREE)

What frees ifmap and residual is the last commit of their block. It gives OUTPUT_FULL, for which the transfer of the
output waits, and with it those behind; or INPUT_FREE where the output stays in the GLB.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from cnncc.dialects import array as A
from cnncc.dialects.nest import Loop, Stage
from cnncc.errors import Refusal
from cnncc.mapper.layer_shape import activation_box, inside
from cnncc.passes._layer_operands import Operands, buffer_box, full_slice
from cnncc.passes._layer_records import Layer, Node, Piece, Position

FREE = 1
FULL = (2, 3)  # weights, in turn from layer to layer: those of the next may arrive during this one
IFMAP_FULL = 4
INPUT_FREE = 5
RESIDUAL_FULL = 6
OUTPUT_FULL = 7
OUTPUT_FREE = 8
FREE_ONE = 9
PRIMED = {FREE: 2, INPUT_FREE: 1, OUTPUT_FREE: 1, FREE_ONE: 1}  # what is free before the first layer


def is_one_slice(outside: Sequence[Loop]) -> bool:
    """Whether the weights that all PEs need inside these loops are all taps of neighbouring output channels."""
    over_k = [bool(loop.on) for loop in outside if loop.dim == "k"]
    parts = [loop for loop in outside if loop.dim in "rs" or (loop.on and loop.dim == "c")]
    return over_k == sorted(over_k) and not parts


class Transfers:
    """The transfers of one layer. `outputs`: how many loops there are outside the first over c, r, s."""

    def __init__(self, layer: Layer, operands: Operands, outputs: int) -> None:
        self.layer, self.operands, self.loops, self.outputs = layer, operands, operands.loops, outputs
        self.stages = operands.stages
        params = self.stages.get("params")
        self._with_blocks = bool(params and params.depth and self.stages.keys() & {"ifmap", "output"})
        self._check()

    def _refuse(self, why: str) -> Refusal:
        return Refusal(f"layer {self.layer.label}: {why}")

    def _check(self) -> None:
        """The stages are such that the tokens do. Raises Refusal."""
        depth = {operand: stage.depth for operand, stage in self.stages.items()}
        moving = [operand for operand in ("ifmap", "residual", "output") if operand in depth]
        if "output" not in depth and len({depth[operand] for operand in moving}) > 1:
            raise self._refuse("ifmap and residual are staged in glb at one place, unless the output is, too")
        if "output" in depth and not depth.get("ifmap", 0) <= depth.get("residual", depth["output"]) == depth["output"]:
            raise self._refuse("residual is staged in glb where output is, ifmap there or outside")
        if self.layer.shape.per_position:
            self._check_positions(depth, moving)
        elif depth.get("params") and (moving or self.layer.shape.shuffle > 1):
            raise self._refuse("params come in slices only where ifmap, residual and output lie in the GLB, unshuffled")
        elif depth.get("params") and "weight" in depth and not self._alike("params", "weight"):
            raise self._refuse("slices of params are staged in glb where and as those of weights are")
        for stage in self.stages.values():
            if stage.buffers > 1 and (stage.operand in moving or stage.depth > self.outputs or self._in_space(stage)):
                raise self._refuse(f"{stage.operand} is staged there in one buffer, not in {stage.buffers}")
            if stage.operand in moving:
                self._check_blocks(stage, moving)
            if stage.operand == "weight" and not is_one_slice(self.loops.loops[: stage.depth]):
                raise self._refuse(
                    "weights are staged in glb outside loops over r and s, over c in space, and over k in time inside "
                    "those in space"
                )

    def _check_positions(self, depth: dict[str, int], moving: list[str]) -> None:
        """Of params per position: what a commit needs of them is there, and they step as the output does."""
        sizes, loops = self.layer.shape.sizes, self.loops.loops
        if "params" not in depth:
            raise self._refuse("params per position must be staged in glb: they come from DRAM")
        if depth["params"] and ("weight" in depth or any(depth[operand] != depth["params"] for operand in moving)):
            raise self._refuse("params per position come in slices only where ifmap and output do, and no weights")
        if len({inside(sizes, loops[: depth.get(operand, 0)])["w"] for operand in ("output", "params")}) > 1:
            raise self._refuse("params per position are staged in glb where the output is, if columns are cut there")
        for dim in "hw":  # a block begins where the ring of its rows (columns) does
            steps = [loop.step for loop in loops[: depth.get("output", 0)] if loop.dim == dim]
            if any(step % steps[-1] for step in steps):
                raise self._refuse(f"steps of the loops over {dim} around blocks of the output must divide each other")

    def _alike(self, *operands: str) -> bool:
        return len({(self.stages[operand].depth, self.stages[operand].buffers) for operand in operands}) == 1

    def _in_space(self, stage: Stage) -> bool:
        return any(loop.on for loop in self.loops.loops[: stage.depth])

    def _check_blocks(self, stage: Stage, moving: list[str]) -> None:
        outside = self.loops.loops[: stage.depth]
        if (images := inside(self.layer.shape.sizes, outside)["n"]) > 1:
            raise self._refuse(
                f"{stage.operand} is staged in glb image by image, not {images}: inside all loops over n"
            )
        if stage.operand == "output" and self.layer.shape.shuffle > 1 and any(loop.dim == "k" for loop in outside):
            raise self._refuse("channels that are shuffled are staged in glb all at once: outside the loops over k")
        if stage.operand == "ifmap" or not self.layer.tensors.residual or {"residual", "output"} <= set(moving):
            return
        # A commit starts at one channel for both: that of the other counts the loops outside, too.
        extent = self.layer.shape.sizes.k
        for loop in (loop for loop in outside if loop.dim == "k"):
            if extent % loop.step:
                raise self._refuse(f"blocks of {loop.step} channels of {extent}, of {stage.operand} alone, must divide")
            extent = loop.step

    # -- transfers -----------------------------------------------------------------------------------------------

    def fetches(self, depth: int, at: Position) -> list[Node]:
        """The transfers into the buffers staged at `depth`."""
        here = {operand for operand, stage in self.stages.items() if stage.depth == depth}
        result: list[Node] = []
        if "params" in here:  # before the others, which mean full params when they are full
            give = 0 if self.stages.keys() & {"weight", "ifmap"} else self.layer.full
            result.append(self._slice("params", at, self._slice_free("params"), give))
        if "weight" in here:
            free = 0 if "params" in here else self._slice_free("weight")
            result.append(self._slice("weight", at, free, self.layer.full))
        if "residual" in here:
            free = OUTPUT_FREE if "output" in self.stages else INPUT_FREE
            result.append(self._block("in", "residual", at, A.Tokens(free, RESIDUAL_FULL)))
        if "ifmap" in here:
            free = 0 if self._with_blocks or self.stages.keys() & {"output", "residual"} else INPUT_FREE
            result.append(self._block("in", "ifmap", at, A.Tokens(free, IFMAP_FULL)))
        return result

    def drains(self, depth: int, at: Position) -> list[Node]:
        """The transfer of what has been gathered at `depth`."""
        if "output" not in self.stages or self.stages["output"].depth != depth:
            return []
        return [self._block("out", "output", at, A.Tokens(OUTPUT_FULL, OUTPUT_FREE))]

    def _slice_free(self, operand: str) -> int:
        stage = self.stages[operand]
        if operand == "params" and self._with_blocks:  # a transfer of the output has waited for the last commit
            return 0 if "output" in self.stages else INPUT_FREE
        return 0 if stage.depth == 0 else FREE if stage.buffers > 1 else FREE_ONE

    def _slice(self, operand: str, at: Position, take: int, give: int) -> A.Dma:
        """A slice of weights or params: one block, or one an output channel where not all its weights come."""
        stage, sizes = self.stages[operand], self.layer.shape.sizes
        if operand == "params" and self.layer.shape.per_position:
            return self._positions(at, A.Tokens(take, give))
        dram = self.operands.weight_in_dram if operand == "weight" else self.operands.params_in_dram
        step, dram_step = (o.coordinates["k"].step for o in (self.operands.glb[operand], dram))
        count = at.extent["k"] * prod(count for loop, count in at.space if loop.dim == "k")
        words = step if operand == "params" else at.extent["c"] * sizes.r * sizes.s
        total = full_slice(self.layer, stage)
        glb_offset = self.operands.slices_before(stage, at) * total % (stage.buffers * total)
        place = {"dram_offset": self.loops.start(dram, at).offset, "glb_offset": glb_offset}
        tokens = A.Tokens(take, give)
        if words == step == dram_step:
            return A.Dma("in", f"{operand}.dram", operand, count * words, **place, tokens=tokens)
        steps = {"dram_step": dram_step, "glb_step": step}
        return A.Dma("in", f"{operand}.dram", operand, words, count, **place, **steps, tokens=tokens)

    def _positions(self, at: Position, tokens: A.Tokens) -> A.Dma:
        """The params of some rows and columns of positions: one block, or one a row where these are not all columns."""
        layer, stage = self.layer, self.stages["params"]
        dram, glb = self.operands.params_in_dram, self.operands.glb["params"]
        rows, words = at.extent["h"], at.extent["w"] * layer.params_words
        total = full_slice(layer, stage)
        offset = self.operands.slices_before(stage, at) * total % (stage.buffers * total)
        place = {"dram_offset": self.loops.start(dram, at).offset, "glb_offset": offset}
        dram_step, glb_step = (each.coordinates["h"].step for each in (dram, glb))
        if words == dram_step == glb_step:
            return A.Dma("in", "params.dram", "params", rows * words, **place, tokens=tokens)
        steps = {"dram_step": dram_step, "glb_step": glb_step}
        return A.Dma("in", "params.dram", "params", words, rows, **place, **steps, tokens=tokens)

    def _block(self, direction: str, operand: str, at: Position, tokens: A.Tokens) -> A.Dma:
        """Rows of channels of an activation; what of them lies in the padding is not copied (X1)."""
        layer, home = self.layer, self.operands.home[operand]
        box, start = activation_box(layer.shape, operand, dict(at.extent)), self.loops.start(home, at)
        buffer = buffer_box(layer, self.stages[operand])
        top, left = layer.shape.window.pad[:2] if operand == "ifmap" else (0, 0)
        sizes = (layer.shape.ih, layer.shape.iw) if operand == "ifmap" else (layer.shape.sizes.h, layer.shape.sizes.w)
        plane = sizes[0] * sizes[1]
        return A.Dma(
            direction, f"{operand}.dram", operand, words=box.cols, count=box.channels, rows=box.rows,
            dram_offset=start.offset + start.channel * plane, dram_step=plane, glb_step=buffer.plane,
            y=0 if box.all_rows else start.y - top, x=0 if box.all_cols else start.x - left, tokens=tokens,
        )  # fmt: skip

    # -- the tokens of loads and commits -------------------------------------------------------------------------

    def _between(self, operand: str, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return pieces[self.stages[operand].depth :]

    def weight_tokens(self, at: Position) -> A.Tokens:
        """Of a load of weights: it waits for their slice, and gives it back, unless its params are needed longer."""
        pieces = self._between("weight", at.pieces)
        first, last = self.loops.first(pieces), self.loops.last(pieces)
        params = self.stages.get("params")
        give = self._slice_free("weight") if not (params and params.depth) and last is not None else 0
        return A.Tokens(self.layer.full if first is not None else 0, give, first or (), (last or ()) if give else ())

    def ifmap_tokens(self, at: Position) -> A.Tokens:
        """Of a load of the ifmap: it waits for its block; where no weights are loaded, for the params."""
        if "ifmap" in self.stages:
            first, take = self.loops.first(self._between("ifmap", at.pieces)), IFMAP_FULL
        elif "params" in self.stages and "weight" not in self.stages:
            first, take = self.loops.first(self._between("params", at.pieces)), self.layer.full
        else:
            return A.Tokens()
        return A.Tokens() if first is None else A.Tokens(take=take, take_when=first)

    def commit_tokens(self, at: Position) -> A.Tokens:
        """Of a commit: it waits for residual or room, and its last one frees what its block needed."""
        taken = next((operand for operand in ("residual", "output") if operand in self.stages), "")
        first = self.loops.first(self._between(taken, at.pieces)) if taken else None
        take = 0 if first is None else RESIDUAL_FULL if taken == "residual" else OUTPUT_FREE
        given, give = self._freed()
        last = self.loops.last(self._between(given, at.pieces)) if given else None
        return A.Tokens(take, give if last is not None else 0, first or (), last or ())

    def _freed(self) -> tuple[str, int]:
        """The operand whose block ends with a commit, and the semaphore that says so."""
        if "output" in self.stages:
            return "output", OUTPUT_FULL
        for operand in ("ifmap", "residual"):
            if operand in self.stages:
                return operand, INPUT_FREE
        params = self.stages.get("params")
        return ("params", self._slice_free("params")) if params and params.depth else ("", 0)
