"""Where the operands of a layer lie, as a whole and in the buffers that its stages in the GLB fill. No IR.

Parameters go by the channel axis of a commit (rule C2). Where each position has its own, the output in the GLB has its
positions on that axis, a row `pitch` after the other, and its channels as linear steps. In the buffer of a stage these
positions count from where the block begins, and with it the ring of its rows (columns).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from cnncc.dialects import array as A
from cnncc.dialects.nest import Loop, Stage
from cnncc.mapper.layer_shape import Box, inside, slice_words, stage_box
from cnncc.passes._layer_records import Along, Layer, Loops, Operand, Position


def glb_stages(layer: Layer) -> dict[str, Stage]:
    """The stages in the GLB, by operand."""
    return {stage.operand: stage for stage in layer.mapping.stages if stage.memory == "glb"}


def buffer_box(layer: Layer, stage: Stage) -> Box:
    """What the buffer of a stage of an activation holds."""
    return stage_box(layer.shape, layer.mapping.loops, stage)


def full_slice(layer: Layer, stage: Stage) -> int:
    """Words of a full slice of weights or params."""
    return slice_words(layer.shape, layer.mapping.loops, stage, layer.params_words)


class Operands:
    """The operands of one layer: `home[…]` as a whole, `glb[…]` in the GLB, which is the same without a stage."""

    def __init__(self, layer: Layer, outer: Sequence[Loop], unrolled: Set[int] = frozenset()) -> None:
        self.layer, self.loops, self.stages = layer, Loops(outer, unrolled), glb_stages(layer)
        self.home = {name: self._activation(name, home.image) for name, home in layer.tensors.homes().items()}
        self.glb = {name: self._in_glb(name, operand) for name, operand in self.home.items()}
        if layer.shape.per_position:
            self.glb["output"] = self._output_by_position()
        taps = layer.shape.sizes.r * layer.shape.sizes.s
        self.weight_in_dram = self._weight(layer.shape.sizes.c * taps, 0)
        if weight := self.stages.get("weight"):
            extent = inside(layer.shape.sizes, outer[: weight.depth])
            self.glb["weight"] = self._weight(extent["c"] * taps, weight.depth)
        self.params_in_dram = self._params(0)
        if params := self.stages.get("params"):
            self.glb["params"] = self._params(params.depth)

    def _params(self, depth: int) -> Operand:
        """Parameters in a buffer that is filled inside `depth` loops."""
        words = self.layer.params_words
        if not self.layer.shape.per_position:
            return Operand({"k": self._channel(words, "lin")}, depth)
        cols = inside(self.layer.shape.sizes, self.loops.loops[:depth])["w"]
        return Operand({"h": Along("lin", cols * words), "w": Along("lin", words)}, depth)

    def _channel(self, words: int, axis: str) -> Along:
        """How results move from output channel to output channel."""
        shuffle, channels = self.layer.shape.shuffle, self.layer.shape.sizes.k
        return Along(axis, words, channels // shuffle, shuffle * words) if shuffle > 1 else Along(axis, words)

    def _activation(self, name: str, image: int, depth: int = 0) -> Operand:
        shape, window = self.layer.shape, self.layer.shape.window
        if name != "ifmap":
            along = {"k": self._channel(1, "k"), "h": Along("y", 1), "w": Along("x", 1)}
            return Operand({"n": Along("lin", image), **along}, depth)
        return Operand(
            {
                "n": Along("lin", image),
                "k": Along("k", shape.sizes.c, per=shape.group),
                "c": Along("k", 1),
                "h": Along("y", window.stride[0]),
                "r": Along("y", window.dilation[0]),
                "w": Along("x", window.stride[1]),
                "s": Along("x", window.dilation[1]),
            },
            depth,
        )

    def _in_glb(self, name: str, home: Operand) -> Operand:
        stage = self.stages.get(name)
        if stage is None:
            return home
        box = buffer_box(self.layer, stage)
        return self._activation(name, box.channels * box.plane, stage.depth)

    def _output_by_position(self) -> Operand:
        sizes, stage, images = self.layer.shape.sizes, self.stages.get("output"), self.glb["output"].coordinates["n"]
        box = buffer_box(self.layer, stage) if stage else Box(1, sizes.k, sizes.h, sizes.w, True, True)
        along = {"k": self._channel(box.plane, "lin"), "h": Along("k", box.cols), "w": Along("k", 1)}
        return Operand({"n": images, **along}, stage.depth if stage else 0)

    def _weight(self, channel_words: int, depth: int) -> Operand:
        sizes = self.layer.shape.sizes
        along = {"k": channel_words, "c": sizes.r * sizes.s, "r": sizes.s, "s": 1}
        return Operand({dim: Along("lin", step) for dim, step in along.items()}, depth)

    # -- views ---------------------------------------------------------------------------------------------------

    def views(self) -> list[A.View]:
        """The views of all operands; of a staged one also of where it lies as a whole, `….dram`."""
        homes = self.layer.tensors.homes()
        found = self._activation_views("ifmap", homes["ifmap"].tensor)
        for name, tensor, dram in (
            ("weight", self.layer.tensors.weight, self.weight_in_dram),
            ("params", self.layer.tensors.params, self.params_in_dram),
        ):
            if stage := self.stages.get(name):
                wrap = stage.buffers * full_slice(self.layer, stage) if stage.buffers > 1 else 0
                steps = self.slice_terms(stage) + self.loops.steps(self.glb[name])
                found.append(A.View(f"{name}.dram", tensor, steps=self.loops.steps(dram, stage.depth)))
                found.append(A.View(name, self.layer.tensors.buffers[name], wrap=wrap, steps=steps))
        for name in ("output", "residual"):
            found += self._activation_views(name, homes[name].tensor) if name in homes else []
        if tensor := self.layer.tensors.buffers.get("sums"):
            output = next(view for view in found if view.name == "output")
            found.append(replace(output, name="sums", tensor=tensor))
        return found

    def _activation_views(self, name: str, tensor: str) -> list[A.View]:
        shape = self.layer.shape
        height, width = (shape.ih, shape.iw) if name == "ifmap" else (shape.sizes.h, shape.sizes.w)
        fill, zero = (shape.window.fill, shape.window.zero) if name == "ifmap" else (0, 0)
        plane, steps = height * width, self.loops.steps(self.glb[name])
        by_position = shape.per_position and name == "output"
        stage = self.stages.get(name)
        if stage is None:
            channel = 1 if by_position else plane
            return [A.View(name, tensor, height, width, width, channel, fill, zero, steps=steps)]
        box, outside = buffer_box(self.layer, stage), self.loops.steps(self.home[name], stage.depth)
        return [
            A.View(f"{name}.dram", tensor, height, width, width, plane, steps=outside),
            A.View(
                name, self.layer.tensors.buffers[name], height, width, box.cols, 1 if by_position else box.plane, fill,
                zero, ring_y=box.ring_y, ring_x=box.ring_x, steps=steps,
            ),
        ]  # fmt: skip

    # -- slices that alternate between two buffers ---------------------------------------------------------------

    def _sequence(self, depth: int) -> dict[int, int]:
        """How many slices pass from one iteration of each loop outside `depth` to its next."""
        extent = inside(self.layer.shape.sizes, ())
        counts: list[int] = []
        for loop in self.loops.loops[:depth]:
            counts.append(-(-extent[loop.dim] // loop.step))
            extent[loop.dim] = min(loop.step, extent[loop.dim])
        result: dict[int, int] = {}
        slices = 1
        for i in reversed(range(len(counts))):
            result[i] = slices
            slices *= counts[i]
        return result

    def slice_terms(self, stage: Stage) -> tuple[A.LoopTerm, ...]:
        """How the loops outside a stage step from slice to slice."""
        if stage.buffers == 1:
            return ()
        words = full_slice(self.layer, stage)
        return tuple(
            A.LoopTerm(self.loops.name(i), "lin", n * words)
            for i, n in self._sequence(stage.depth).items()
            if i not in self.loops.unrolled
        )

    def slices_before(self, stage: Stage, at: Position) -> int:
        """How many slices come before the pieces at a position, as far as buffers alternate."""
        sequence = self._sequence(stage.depth) if stage.buffers > 1 else {}
        return sum(piece.base * sequence.get(piece.loop, 0) for piece in at.pieces if piece.loop < stage.depth)
