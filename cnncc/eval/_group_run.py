"""A `nest.group`, run on integers step by step, with the rings between its layers.

Steps, stripes and rings follow from the ops alone. Each slot of a ring knows its row. So a layer that runs too early,
or a ring that is too small, is noticed where a row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from xdsl.ir import SSAValue

from cnncc.dialects.cnn import value_key
from cnncc.dialects.nest import ColumnsOp, GroupOp, JoinOp, LayerOp, LoadOp, group_layers, image_shape
from cnncc.errors import Refusal, refusals_of
from cnncc.eval._lanes import Ints, LaneBody, LaneBuffer
from cnncc.eval._layer_run import LayerRun
from cnncc.mapping.groups import GroupLayer
from cnncc.mapping.mapping import DIMS
from cnncc.weights import Array


class Ring:
    """The last rows of a value: row y lies in slot y mod `keeps`. words: int64[batch, channel, slot, column]."""

    def __init__(self, name: str, shape: tuple[int, int, int, int], keeps: int) -> None:
        batches, channels, _, cols = shape
        self.name, self.keeps = name, keeps
        self.words = np.zeros((batches, channels, keeps, cols), np.int64)
        self.holds: list[tuple[int, int]] = [(-1, -1)] * keeps  # the image and the row in each slot

    def write(self, image: int, first: int, rows: Ints) -> None:
        """Put rows [batch, channel, row, column] of an image into their slots, the first one first."""
        for number in range(rows.shape[2]):
            slot = (first + number) % self.keeps
            self.words[:, :, slot], self.holds[slot] = rows[:, :, number], (image, first + number)

    def read(self, image: int, low: int, end: int) -> Ints:
        """Rows `low` … `end` - 1 of an image. Raises Refusal where one is not there."""
        for row in range(low, end):
            held_image, held = self.holds[row % self.keeps]
            if (held_image, held) != (image, row):
                gone = held_image == image and held > row
                why = f"has left its ring of {self.keeps} rows" if gone else "is not computed yet"
                raise Refusal(f"row {row} of {self.name} {why}")
        return self.words[:, :, [row % self.keeps for row in range(low, end)]]


class WholeValue:
    """A value that lies outside of rings, as a whole: int64[batch, image, channel, row, column]."""

    def __init__(self, words: Ints) -> None:
        self.words = words

    def read(self, image: int, low: int, end: int) -> Ints:
        """Rows `low` … `end` - 1 of an image."""
        return self.words[:, image, :, low:end]


class _Columns:
    """Some columns of a value, wherever it lies."""

    def __init__(self, op: ColumnsOp, source: Source) -> None:
        self.op, self.source = op, source

    def read(self, image: int, low: int, end: int) -> Ints:
        """Rows `low` … `end` - 1 of an image."""
        return columns(self.op, self.source.read(image, low, end))


class FrameRing:
    """A ring of rows of a value, image after image: row y of image f lies in slot (f * height + y) mod `keeps`."""

    def __init__(self, name: str, value: SSAValue, keeps: int) -> None:
        _, channels, self.height, cols = image_shape(value.type)
        self.name, self.ring = name, Ring(name, (1, channels, self.height, cols), keeps)

    def write(self, image: int, first: int, rows: Ints) -> None:
        """Put rows of an image into their slots, the first one first."""
        self.ring.write(0, image * self.height + first, rows)

    def read(self, image: int, low: int, end: int) -> Ints:
        """Rows `low` … `end` - 1 of an image. Raises Refusal where one is not there."""
        first = image * self.height
        with refusals_of(f"image {image}, of which row y is row {first} + y"):
            return self.ring.read(0, first + low, first + end)


Source = Ring | FrameRing | WholeValue | _Columns
Sources = Mapping[SSAValue, Source]


def columns(op: ColumnsOp, words: Ints) -> Ints:
    """The columns that `op` takes of words [image, channel, row, column]: of each image, or all strips of it."""
    first, (images, *_, width) = op.first.value.data, image_shape(op.result.type)
    count = images if op.apart else 1
    strips = [words[..., first + at * op.apart :][..., :width] for at in range(count)]
    return np.stack(strips, axis=1).reshape(-1, *strips[0].shape[1:])


def joined(op: JoinOp, parts: Sequence[Ints]) -> Ints:
    """The parts side by side, and the strips of each: [image, channel, row, column]."""
    images, channels, rows, _ = image_shape(op.result.type)
    wide = list[Ints]()
    for value, words in zip(op.inputs, parts, strict=True):
        count, width = image_shape(value.type)[0] // images, words.shape[3]
        strips = words.reshape(-1, count, channels, rows, width).transpose(0, 2, 3, 1, 4)
        wide.append(strips.reshape(-1, channels, rows, count * width))
    return np.concatenate(wide, axis=3)


class _Stripes:
    """A layer of a group, run stripe by stripe. `run.outputs` gathers all its rows."""

    def __init__(self, layer: LayerOp, symbols: Mapping[str, Array], batches: int, images: int) -> None:
        self.layer, self.symbols, self.batches, self.images = layer, symbols, batches, images
        self.run = LayerRun.idle(layer, symbols, batches * images)
        self.depth = next(depth for depth, loop in enumerate(self.run.loops, 1) if loop.dim == "h")
        # `stripe` runs the body of the loop over h, so the sums of a stripe are finished there or further inside.
        self.run.finished_at = max(self.depth, self.run.finished_at)
        self.rows = self.run.loops[self.depth - 1].step
        self.head = layer.first.value.data if layer.first is not None else self.rows
        self.count = 1 + max(0, -(-(layer.sizes.data.h - self.head) // self.rows))
        self.delay = layer.delay.value.data if layer.delay is not None else 0

    def step(self, image: int, number: int, sources: Sources) -> None:
        """Run a stripe of an image, and put its rows into the ring of the result."""
        first, rows = self.stripe(image, number, sources)
        target = sources.get(self.layer.result)
        if isinstance(target, Ring | FrameRing):
            target.write(image, first, rows)

    def stripe(self, image: int, number: int, sources: Sources) -> tuple[int, Ints]:
        """Run a stripe of an image. Returns its first row, and its rows [batch, channel, row, column]."""
        run, sizes = self.run, self.layer.sizes.data
        first = self.head + (number - 1) * self.rows if number else 0
        count = min(self.rows if number else self.head, sizes.h - first)
        with refusals_of(f"layer {value_key(self.layer) or ''}: stripe {number}"):
            body = self._body(image, first, count, sources)
        run.run(self.depth, body)  # stages outside hold all that a stripe reads
        outputs = run.outputs.reshape(self.batches, self.images, *run.outputs.shape[1:])
        return first, outputs[:, image, :, first : first + count]

    def _body(self, image: int, first: int, count: int, sources: Sources) -> LaneBody:
        """The indices of a stripe, and what it reads. Each batch is a lane."""
        run, batches = self.run, np.arange(self.batches)
        starts = {dim: np.zeros(self.batches, np.int64) for dim in DIMS}
        starts["n"], starts["h"] = batches * self.images + image, starts["h"] + first
        extent = {dim: self.layer.sizes.data.of(dim) for dim in DIMS} | {"n": 1, "h": count}
        body = LaneBody(starts, extent, {}, self.batches)
        padded, top, left = self._ifmap(sources[self.layer.ifmap], image, body)
        buffers = dict[str, LaneBuffer]()
        for name, (values, origin) in run.constants(self.symbols, padded - run.window.zero, (0, 0, top, left)):
            # Weights and parameters are those of all batches, rows are a batch's own.
            whole = LaneBuffer.whole(values, origin, self.batches)
            buffers[name] = self._own(values, starts["n"], top, left) if name == "ifmap" else whole
        if self.layer.residual is not None:
            rows = sources[self.layer.residual].read(image, first, first + count)
            buffers["residual"] = self._own(rows, starts["n"], first, 0)
        return replace(body, buffers=buffers)

    def _own(self, values: Array, images: Ints, top: int, left: int) -> LaneBuffer:
        """A part for each batch: values [batch, channel, row, column] of these images, from a row and a column on."""
        origin = np.stack([images, *(np.full_like(images, at) for at in (0, top, left))], axis=1)
        return LaneBuffer(values[:, None], origin, np.arange(self.batches))

    def _ifmap(self, source: Source, image: int, body: LaneBody) -> tuple[Ints, int, int]:
        """The rows that the windows of a stripe touch, in their padding; their first row and column."""
        run, (_, channels, height, width) = self.run, image_shape(self.layer.ifmap.type)
        _, left, _, right = run.window.pad
        first, last = body.first["h"], body.first["h"] + body.extent["h"] - 1
        top = int(run.position(0, first, np.zeros_like(first))[0])
        end = int(run.position(0, last, np.full_like(last, run.sizes.r - 1))[0]) + 1
        padded = np.full((self.batches, channels, end - top, left + width + right), run.window.fill, np.int64)
        low, high = max(0, top), min(height, end)
        if low < high:
            rows = source.read(image, low, high)
            padded[:, :, low - top : high - top, left : left + width] = rows
        return padded, top, -left


class _Loaded:
    """Rows that come from DRAM, stripe by stripe: those that a layer reads."""

    def __init__(self, load: LoadOp, plan: GroupLayer, ring: Ring) -> None:
        self.load, self.plan, self.ring, self.delay, self.count = load, plan, ring, plan.delay, plan.stripes.count

    def step(self, image: int, number: int, sources: Sources) -> None:
        """Bring the rows of a stripe of an image."""
        first, count = self.plan.stripes.start(number), self.plan.stripes.rows_of(number)
        self.ring.write(image, first, sources[self.load.value].read(image, first, first + count))


Member = _Stripes | _Loaded
Section = tuple[int, Member, int]  # the stripe of a member of a group: image, member, number


class GroupRun:
    """A group, run stripe by stripe. The layers of a step run in the order written."""

    def __init__(
        self, group: GroupOp, symbols: Mapping[str, Array], outside: Sources, batches: int, images: int
    ) -> None:
        """outside: what the layers read from outside, and where a last result goes if that is a channel."""
        self.group, self.images = group, images
        self.layers = [_Stripes(layer, symbols, batches, images) for layer in group.layers()]
        self.sources = dict(outside)
        self.members = list[Member]()
        layers_of, plans = iter(self.layers), group_layers(group)
        for op, plan in zip(group.members(), plans, strict=True):
            _, *sides = image_shape(op.result.type)
            ring = Ring(value_key(op) or "", (batches, sides[0], sides[1], sides[2]), plan.keeps)
            if plan.keeps:
                self.sources[op.result] = ring
            self.members.append(_Loaded(op, plan, ring) if isinstance(op, LoadOp) else next(layers_of))
        for op in group.body.block.ops:
            if isinstance(op, ColumnsOp):
                self.sources[op.result] = _Columns(op, self.sources[op.x])

    @classmethod
    def of_values(cls, group: GroupOp, symbols: Mapping[str, Array], values: Mapping[SSAValue, Ints]) -> GroupRun:
        """A group that reads whole `values`, run. Raises Refusal for a row that is not there."""
        given = {value: values[value] for op in group.body.block.ops for value in op.operands if value in values}
        images = group.layers()[0].sizes.data.n
        batches = len(next(iter(given.values()))) // images
        outside = {
            value: WholeValue(array.reshape(batches, images, *image_shape(value.type)[1:]))
            for value, array in given.items()
        }
        run = cls(group, symbols, outside, batches, images)
        for section in run.sections():
            run.run(section)
        return run

    def sections(self) -> Iterator[Section]:
        """All stripes in their order."""
        steps = max(member.delay + member.count for member in self.members)
        for image in range(self.images):
            for step in range(steps):
                for member in self.members:
                    if 0 <= (number := step - member.delay) < member.count:
                        yield image, member, number

    def run(self, section: Section) -> None:
        """Run a stripe. Raises Refusal for a row that is not there."""
        image, member, number = section
        with refusals_of(f"nest.group '{self.group.label.data}'"):
            member.step(image, number, self.sources)

    def results(self) -> list[Ints]:
        """The values that leave the group, int64 of the results' shapes."""
        by_value: dict[SSAValue, Ints] = {layer.layer.result: self._result(layer) for layer in self.layers}
        return [by_value[value] for value in self.group.yielded()]

    def trace(self) -> dict[str, Ints]:
        """All rows of every layer that has a key, by that key."""
        return {key: self._result(layer) for layer in self.layers if (key := value_key(layer.layer))}

    @staticmethod
    def _result(layer: _Stripes) -> Ints:
        outputs = layer.run.outputs
        return outputs.reshape(len(outputs), *layer.layer.result.type.get_shape()[1:])
