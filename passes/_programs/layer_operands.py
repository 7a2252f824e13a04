"""Where the operands of a layer lie, as a whole and in the buffers that its stages in the GLB fill. No IR.

Parameters go by the channel axis of a commit (rule COMMIT-2). If each position has its own parameters, that axis counts
the positions of the output in the GLB, row by row with `pitch` positions each. Channels are linear steps then. In the
buffer of a stage, positions and the ring of rows (columns) begin where the block begins.
"""

from __future__ import annotations

from dataclasses import replace

from cnncc.dialects import array as A
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Stage
from cnncc.model.layer_shape import ActivationBlock, inside, slice_words, stage_block
from cnncc.passes._programs.layer_order import IterationOrder
from cnncc.passes._programs.layer_records import ActivationLayout, AxisStep, Operand, Position, ProgramLayer
from cnncc.passes._programs.layer_sums import layout_of_sums

OF_COMMIT = ("output", "residual")


def buffer_block(layer: ProgramLayer, stage: Stage) -> ActivationBlock:
    """What the buffer of a stage of an activation holds."""
    return stage_block(layer.shape, layer.mapping.loops, stage)


class Operands:
    """The operands of one layer: `home[…]` as a whole, `glb[…]` in the GLB, which is the same without a stage."""

    def __init__(self, layer: ProgramLayer, order: IterationOrder) -> None:
        self.layer, self.order, self.loops, self.stages = layer, order, order.loops, layer.mapping.glb_stages
        staged = [self.stages[name] for name in OF_COMMIT if name in self.stages]
        self.doubled = next((stage for stage in staged if stage.buffers > 1), None)
        self.home = {name: self._activation(name, home.image) for name, home in layer.tensors.homes().items()}
        self.glb = {name: self._in_glb(name, operand) for name, operand in self.home.items()}
        # A commit has one start for results and residual. It counts images if the GLB has several images of either.
        homes = {name: home for name, home in layer.tensors.homes().items() if name in OF_COMMIT}
        images = {home.image for name, home in homes.items() if name not in self.stages}
        self.image, self.residual_apart = max(images, default=0), len(images - {0}) > 1
        if layer.shape.per_position:
            if "output" not in self.stages and layer.tensors.output.column > 1:
                raise Refusal(
                    f"layer {layer.label}: its columns lie apart in {layer.tensors.output.tensor}, but each position "
                    f"has a scale of its own; cnn-legalize copies such parts"
                )
            self.glb["output"] = self._output_by_position()
        taps = layer.shape.sizes.r * layer.shape.sizes.s
        self.weight_in_dram = self._weight(layer.shape.sizes.c * taps, 0)
        if weight := self.stages.get("weight"):
            extent = inside(layer.shape.sizes, order.loops.loops[: weight.depth])
            self.glb["weight"] = self._weight(extent["c"] * taps, weight.depth)
        self.params_in_dram = self._params(0)
        if params := self.stages.get("params"):
            self.glb["params"] = self._params(params.depth)

    def _params(self, depth: int) -> Operand:
        """Parameters in a buffer that is filled inside `depth` loops."""
        words = self.layer.words_per_channel
        if not self.layer.shape.per_position:
            return Operand({"k": self._channel(words, "lin")}, depth)
        cols = inside(self.layer.shape.sizes, self.loops.loops[:depth])["w"]
        return Operand({"h": AxisStep("lin", cols * words), "w": AxisStep("lin", words)}, depth)

    def _channel(self, words: int, axis: A.Axis) -> AxisStep:
        """How results move from output channel to output channel."""
        shuffle, channels = self.layer.shape.shuffle, self.layer.shape.sizes.k
        return AxisStep(axis, words, channels // shuffle, shuffle * words) if shuffle > 1 else AxisStep(axis, words)

    def _activation(self, name: str, image: int, depth: int = 0) -> Operand:
        shape, window = self.layer.shape, self.layer.shape.window
        if name != "ifmap":
            along = {"k": self._channel(1, "k"), "h": AxisStep("y", 1), "w": AxisStep("x", 1)}
            return Operand({"n": AxisStep("lin", image), **along}, depth)
        return Operand(
            {
                "n": AxisStep("lin", image),
                "k": AxisStep("k", shape.sizes.c, per=shape.group),
                "c": AxisStep("k", 1),
                "h": AxisStep("y", window.stride[0]),
                "r": AxisStep("y", window.dilation[0]),
                "w": AxisStep("x", window.stride[1]),
                "s": AxisStep("x", window.dilation[1]),
            },
            depth,
        )

    def _in_glb(self, name: str, home: Operand) -> Operand:
        stage = self.stages.get(name)
        if stage is None:
            return home
        block = buffer_block(self.layer, stage)
        return self._activation(name, block.channels * block.plane, stage.depth)

    def _output_by_position(self) -> Operand:
        sizes, stage, images = self.layer.shape.sizes, self.stages.get("output"), self.glb["output"].coordinates["n"]
        block = buffer_block(self.layer, stage) if stage else ActivationBlock(1, sizes.k, sizes.h, sizes.w, True, True)
        plane = block.plane if stage else self.layer.tensors.output.plane
        along = {"k": self._channel(plane, "lin"), "h": AxisStep("k", block.cols), "w": AxisStep("k", 1)}
        return Operand({"n": images, **along}, stage.depth if stage else 0)

    def _weight(self, channel_words: int, depth: int) -> Operand:
        sizes = self.layer.shape.sizes
        along = {"k": channel_words, "c": sizes.r * sizes.s, "r": sizes.s, "s": 1}
        return Operand({dim: AxisStep("lin", step) for dim, step in along.items()}, depth)

    # -- views ---------------------------------------------------------------------------------------------------

    def views(self) -> list[A.View]:
        """The views of all operands. A staged operand has another one, `….dram`, of its whole tensor."""
        homes = self.layer.tensors.homes()
        views = self._activation_views("ifmap", homes["ifmap"])
        for name, tensor, dram in (
            ("weight", self.layer.tensors.weight, self.weight_in_dram),
            ("params", self.layer.tensors.params, self.params_in_dram),
        ):
            if stage := self.stages.get(name):
                steps = self.block_terms(stage) + self.loops.steps(self.glb[name])
                views.append(A.View(f"{name}.dram", tensor, steps=self.loops.steps(dram, stage.depth)))
                views.append(A.View(name, self.layer.tensors.buffers[name], wrap=self._circle(name), steps=steps))
        for name in ("output", "residual"):
            views += self._activation_views(name, homes[name]) if name in homes else []
        if tensor := self.layer.tensors.buffers.get("sums"):
            output = next(view for view in views if view.name == "output")
            # Sums are complete before their block leaves: one buffer of them, also where blocks alternate between two.
            wrap = self.buffer_words(self.doubled) if self.doubled else output.wrap
            if "output" not in self.stages:
                home = layout_of_sums(self.layer.shape.sizes, homes["output"])
                output = replace(output, pitch=home.pitch, column=home.column)
            plane = (output.ring_y or output.height) * output.pitch  # channels of sums follow each other
            views.append(replace(output, name="sums", tensor=tensor, plane=plane, wrap=wrap))
        return views

    def _activation_views(self, name: str, home: ActivationLayout) -> list[A.View]:
        shape = self.layer.shape
        height, width = (shape.ih, shape.iw) if name == "ifmap" else (shape.sizes.h, shape.sizes.w)
        fill, zero = (shape.window.fill, shape.window.zero) if name == "ifmap" else (0, 0)
        tensor, steps = home.tensor, self.loops.steps(self.glb[name])
        by_position = shape.per_position and name == "output"
        stage, wrap = self.stages.get(name), self._circle(name)
        if stage is None:
            channel, wrap = 1 if by_position else home.plane, home.wrap or wrap
            if name in OF_COMMIT and not home.image:
                wrap = wrap or self.image  # a ring has one image: a start that counts images comes round in it
            rings = (1, 1) if home.pixel else (home.ring, 0)
            return [
                A.View(
                    name, tensor, height, width, home.pitch, channel, fill, zero, wrap, *rings, home.column,
                    steps=steps,
                )
            ]  # fmt: skip
        block, outside = buffer_block(self.layer, stage), self.loops.steps(self.home[name], stage.depth)
        return [
            A.View(f"{name}.dram", tensor, height, width, home.pitch, home.plane, column=home.column, steps=outside),
            A.View(
                name, self.layer.tensors.buffers[name], height, width, block.cols, 1 if by_position else block.plane,
                fill, zero, wrap, ring_y=block.ring_y, ring_x=block.ring_x, steps=self.block_terms(stage) + steps,
            ),
        ]  # fmt: skip

    # -- blocks that alternate between two buffers ---------------------------------------------------------------

    def buffer_words(self, stage: Stage) -> int:
        """Words of one buffer of a stage."""
        if stage.operand in ("weight", "params"):
            return slice_words(self.layer.shape, self.layer.mapping.loops, stage, self.layer.words_per_channel)
        return buffer_block(self.layer, stage).words

    def block_terms(self, stage: Stage) -> tuple[A.LoopTerm, ...]:
        """How the loops outside a stage step from buffer to buffer. Raises Refusal where these would not alternate."""
        if stage.buffers == 1:
            return ()
        strides = self.order.strides(stage.depth)
        if strides is None:
            raise Refusal(
                f"layer {self.layer.label}: {stage.operand} is staged in glb in two buffers inside loops that have an "
                f"even number of blocks at times and an odd one at others: one buffer, or tiles that divide"
            )
        words = self.buffer_words(stage)
        return tuple(A.LoopTerm(self.loops.name(i), "lin", n * words) for i, n in strides.items())

    def buffer(self, stage: Stage, at: Position) -> int:
        """Where the buffer of a block begins, in a circle of all of them, before the loops' steps."""
        return self.order.before(at, stage.depth) * self.buffer_words(stage) if stage.buffers > 1 else 0

    def commit_start(self, at: Position) -> A.Start:
        """Where a commit starts: in the output, in the buffers that it works on."""
        output = self.glb["output"]
        if "output" not in self.stages:
            # An output in a ring has no images. The common start counts those of a residual that is resident beside it.
            images = output.coordinates["n"]._replace(step=self.image)
            output = replace(output, coordinates={**output.coordinates, "n": images})
        start = self.loops.start(output, at)
        return replace(start, offset=start.offset + (self.buffer(self.doubled, at) if self.doubled else 0))

    def counts_images(self, at: Position) -> bool:
        """Whether a commit is in several images, or starts in another than that of the views."""
        output = self.glb["output"]
        first = replace(output, coordinates={**output.coordinates, "n": AxisStep("lin", 0)})
        several = at.extent["n"] > 1 or any(loop.dim == "n" for loop, _ in at.space)
        return several or self.loops.start(first, at) != self.loops.start(output, at)

    def _circle(self, name: str) -> int:
        """The words after which the buffers of a view come round; 0 for a single buffer.

        A commit has one start position for all that it reads and writes. If the buffers of one operand alternate, this
        position moves by a buffer. Views of the other operands wrap around after one buffer, so they stay in place.
        """
        stage = self.stages.get(name)
        if name in OF_COMMIT and self.doubled:
            return self.buffer_words(self.doubled) * (stage.buffers if stage else 1)
        return stage.buffers * self.buffer_words(stage) if stage and stage.buffers > 1 else 0
