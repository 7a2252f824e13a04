"""One layer of the `nest` dialect, run on integers: its loops and stages.

Every bound, step, slice and index comes from the ops of the nest. Iterations of a loop run side by side in numpy as far
as memory allows. Inside all stages the rest of the nest is one product over its indices. Neither changes a value: sums
of integers do not depend on the order. A body reads only what its stages have copied; an index outside raises
IndexError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Self

import numpy as np
from xdsl.ir import Operation

from cnncc.dialects.cnn import is_per_channel, shuffled
from cnncc.dialects.nest import LayerOp, image_shape, mapping_of, rest_sets_of
from cnncc.errors import Refusal
from cnncc.eval._lanes import Ints, LaneBody, LaneBuffer, Values, loop_indices, spread
from cnncc.eval._sums import psum_range
from cnncc.eval.cnn import array_of, name_of, table_of
from cnncc.mapping.mapping import DIMS, OF_OUTPUTS, Loop, Stage, even_sets
from cnncc.numerics import Epilogue
from cnncc.weights import Array

EXACT_LIMIT = 1 << 53  # of integers in float64
VOLUME_LIMIT = 1 << 18  # values that numpy is given at once
LEAST = -(1 << 62)  # below every operand: the start of a maximum


class LayerRun:
    """One layer, run. `result`: int64 of the result's shape; `fetched`: copies by (operand, memory, words of one),
    those of outputs being copies back.

    `runs`: how often the body of the innermost stage runs, one run after the other, by the number of PEs that do.
    """

    def __init__(self, layer: LayerOp, symbols: Mapping[str, Array], ifmap: Ints, residual: Ints | None = None) -> None:
        """ifmap, residual: as the layer's operands, or several such batches. symbols: the weights, by name.

        Raises: Refusal where a sum overflows a psum, or for a missing weight.
        """
        self._prepare(layer, symbols, len(ifmap))
        per_channel = is_per_channel(layer.residual, layer.result)
        dims = (*self.sums.shape[:2], 1, 1) if per_channel else self.sums.shape
        self.residual = None if residual is None else np.broadcast_to(residual.reshape(dims), self.sums.shape)
        self.run(0, self.whole(symbols, ifmap.reshape(len(ifmap), *image_shape(layer.ifmap.type)[1:])))
        self.result = self.outputs.reshape(len(ifmap), *layer.result.type.get_shape()[1:])

    @classmethod
    def idle(cls, layer: LayerOp, symbols: Mapping[str, Array], images: int) -> Self:
        """A layer of which nothing has run, for stripes (`_group_run.py`)."""
        run = cls.__new__(cls)
        run._prepare(layer, symbols, images)
        run.residual = None
        return run

    def _prepare(self, layer: LayerOp, symbols: Mapping[str, Array], images: int) -> None:
        """The loops, the stages, and the sums and outputs of so many images before the first run."""
        self.layer = layer
        self.kind, self.sizes, self.window = layer.kind.data, layer.sizes.data, layer.window.data
        mapping = mapping_of(layer)
        self.loops, self.stages = mapping.loops, mapping.stages
        self.sets = rest_sets_of(layer)
        self.fetched: Counter[tuple[str, str, int]] = Counter()
        self.runs: Counter[int] = Counter()
        sizes = (images, self.sizes.k, self.sizes.h, self.sizes.w)
        self.sums = np.full(sizes, LEAST if self.kind == "max" else 0, np.int64)
        self.outputs = np.zeros(sizes, np.int64)
        # Sums are finished by the innermost body that holds what that takes (rule NEST-5), else by the layer's.
        self.finished_at = max((stage.depth for stage in self.stages if stage.operand in OF_OUTPUTS), default=0)
        steps = layer.steps.data
        self.param_dims = "hw" if steps.per_position else "k"
        self.factors = array_of(symbols, steps.factors, layer) if steps.factors else None
        self.table = table_of(symbols, steps, layer)

    def whole(self, symbols: Mapping[str, Array], image: Ints) -> LaneBody:
        """The outermost body: all indices, and all operands in memory. Each batch is a lane."""
        batches = len(image) // self.sizes.n
        first = {dim: np.zeros(batches, np.int64) for dim in DIMS}
        first["n"] = np.arange(batches) * self.sizes.n
        extent = {dim: self.sizes.of(dim) for dim in DIMS}
        operands = {name: LaneBuffer.whole(*part, batches) for name, part in self.operands(symbols, image)}
        return LaneBody(first, extent, operands, batches)

    def operands(
        self, symbols: Mapping[str, Array], image: Ints
    ) -> Iterator[tuple[str, tuple[Values, tuple[int, ...]]]]:
        """What there is to read, and where it begins: the image lies in its padding, less `zero`."""
        top, left, bottom, right = self.window.pad
        pads = ((0, 0), (0, 0), (top, bottom), (left, right))
        padded = np.pad(image, pads, constant_values=self.window.fill)
        yield from self.constants(symbols, padded - self.window.zero, (0, 0, -top, -left))
        if self.residual is not None:
            yield "residual", (self.residual, (0, 0, 0, 0))

    def constants(
        self, symbols: Mapping[str, Array], padded: Values, origin: tuple[int, ...]
    ) -> Iterator[tuple[str, tuple[Values, tuple[int, ...]]]]:
        """Weights, parameters, and the padded image that begins at `origin`, in a type that keeps products exact."""
        steps = self.layer.steps.data
        for name, symbol in (("bias", steps.bias), ("scale", steps.scale)):
            if symbol:
                values = array_of(symbols, symbol, self.layer)
                yield name, (values, (0,) * values.ndim)
        if self.layer.weights is not None:
            weights = array_of(symbols, self.layer.weights.root_reference.data, self.layer).astype(np.int64)
            largest = int(np.abs(padded).max()) * int(np.abs(weights).max()) * weights[0].size
            # float64 has a fast matrix product, and is as exact while nothing reaches 2^53.
            kind = np.float64 if largest < EXACT_LIMIT else np.int64
            yield "weight", (weights.astype(kind), (0, 0, 0, 0))
            padded = padded.astype(kind)
        yield "ifmap", (padded, origin)

    def run(self, depth: int, body: LaneBody) -> None:
        """Run the body of the loop at `depth` - 1: its stages, then what is inside them."""
        for stage in (stage for stage in self.stages if stage.depth == depth):
            body = self.fetch(stage, body)
        if depth == max((stage.depth for stage in self.stages), default=0):
            self.runs[body.lanes // body.serial_lanes] += body.serial_lanes
        self.run_inside(depth, body)
        if depth == self.finished_at:
            self.commit(body)

    def run_inside(self, depth: int, body: LaneBody) -> None:
        """Run the loop at `depth`, or all that is left where one product can hold it."""
        all_staged = all(stage.depth <= depth for stage in self.stages)
        if depth == len(self.loops) or (all_staged and body.volume() <= VOLUME_LIMIT):
            self.product(self.loops[depth:], body)
            return
        loop = self.loops[depth]
        whole, rest = divmod(body.extent[loop.dim], loop.step)
        starts = np.arange(whole) * loop.step
        inside = replace(body, extent={**body.extent, loop.dim: loop.step}).volume()
        some = max(1, VOLUME_LIMIT // inside)
        # A loop in space is one run, so it is not cut into several.
        for at in range(0, whole, max(1, whole) if loop.on else some):
            few = starts if loop.on else starts[at : at + some]
            self.run(depth + 1, body.iterations(loop.dim, few, loop.step, bool(loop.on)))
        if rest:
            # docs/model.md: the rest of the innermost loop over k in space is spread over as many sets as share it
            # evenly.
            count = even_sets(rest, self.sets[depth])
            first = whole * loop.step + np.arange(count) * (rest // count)
            self.run(depth + 1, body.iterations(loop.dim, first, rest // count, bool(loop.on)))

    def fetch(self, stage: Stage, body: LaneBody) -> LaneBody:
        """The body with the slice that its inside needs in place of the operand."""
        match stage.operand:
            case "weight":
                slices = {"weight": ([body.first[dim] for dim in "kcrs"], [body.extent[dim] for dim in "kcrs"])}
            case "ifmap":
                slices = {"ifmap": self.image_slice(body)}
            case "residual":
                slices = {"residual": ([body.first[dim] for dim in "nkhw"], [body.extent[dim] for dim in "nkhw"])}
            case "output":
                slices = {}
                self.fetched["output", stage.memory, prod(body.extent[dim] for dim in "nkhw")] += body.lanes
            case _:
                held = [name for name in ("bias", "scale") if name in body.buffers]
                at = ([body.first[dim] for dim in self.param_dims], [body.extent[dim] for dim in self.param_dims])
                slices = dict.fromkeys(held, at)
        cuts = {name: body.buffers[name].cut(*bounds) for name, bounds in slices.items()}
        if cuts:
            words = sum(cut.values[0].size for cut in cuts.values())
            self.fetched[stage.operand, stage.memory, words] += body.lanes
        return replace(body, buffers={**body.buffers, **cuts})

    def image_slice(self, body: LaneBody) -> tuple[list[Ints], list[int]]:
        """First coordinates n, channel, y, x and sizes of what the windows of `body` touch."""
        first, extent = body.first, body.extent
        last = {dim: first[dim] + extent[dim] - 1 for dim in DIMS}
        low, high = self.channel(first["k"], first["c"]), self.channel(last["k"], last["c"])
        channels = int((high - low).max()) + 1
        source = body.buffers["ifmap"]
        # Lanes that touch fewer groups than others take more channels, but none beyond the last.
        low = np.minimum(low, source.origin[source.of, 1] + source.values.shape[2] - channels)
        starts = [self.position(0, first["h"], first["r"]), self.position(1, first["w"], first["s"])]
        ends = [self.position(0, last["h"], last["r"]), self.position(1, last["w"], last["s"])]
        # Extents are equal in all lanes, and so are the spans.
        spans = [int((end - start)[0]) + 1 for start, end in zip(starts, ends, strict=True)]
        return [first["n"], low, *starts], [extent["n"], channels, *spans]

    def channel(self, k: Ints, c: Ints) -> Ints:
        """The input channel: that of the group of output channel k, c further."""
        return k // (self.sizes.k // self.window.group) * self.sizes.c + c

    def position(self, axis: int, output: Ints, tap: Ints) -> Ints:
        """The input row (axis 0) or column (axis 1) of a kernel tap at an output position."""
        window = self.window
        return output * window.stride[axis] + tap * window.dilation[axis] - window.pad[axis]

    def product(self, loops: Sequence[Loop], body: LaneBody) -> None:
        """Run `loops` and the op inside them for all their indices at once."""
        at: dict[str, Ints] = {}
        for dim in DIMS:
            steps = tuple(loop.step for loop in loops if loop.dim == dim)
            at[dim] = body.first[dim][:, None] + loop_indices(body.extent[dim], steps)
        for together in self.by_group(at["k"]):
            self.accumulate({**at, "k": at["k"][:, together]}, body.buffers)

    def by_group(self, k: Ints) -> list[slice | Ints]:
        """Which of the output channels k [lane, index] are of one group in every lane, group by group."""
        if self.window.group == 1:
            return [slice(None)]
        different = np.unique(k[:, 0], return_index=True)[1]  # lanes with the same first channel have all in common
        groups = self.channel(k[different], np.zeros_like(k[different]))
        _, group = np.unique(groups, axis=1, return_inverse=True)
        return [np.flatnonzero(group.ravel() == number) for number in range(int(group.max()) + 1)]

    def accumulate(self, at: dict[str, Ints], buffers: Mapping[str, LaneBuffer]) -> None:
        """Add to the sums (or maxima) at the indices `at` [lane, index], whose output channels are of one group."""
        y = self.position(0, at["h"][:, :, None, None, None], at["r"][:, None, None, None])
        x = self.position(1, at["w"][:, :, None, None, None], at["s"][:, None, None, None])
        # Axes n h w c r s after the lanes.
        starts = ((at["n"], 0), (self.channel(at["k"][:, :1], at["c"]), 3), (y, 1), (x, 2))
        terms = buffers["ifmap"].read(*[spread(numbers, axis, 6) for numbers, axis in starts])
        terms = terms.reshape(*terms.shape[:4], -1)
        match self.kind:
            case "mac":
                weights = buffers["weight"].read(*[spread(at[dim], axis, 4) for axis, dim in enumerate("kcrs")])
                part = self.matrix_product(terms, weights)
            case "max":
                part = terms.max(axis=-1, keepdims=True)
            case "add" | "copy":
                part = terms.sum(axis=-1, keepdims=True)
            case kind:
                raise Refusal(f"nest.layer: there is no kind {kind}")
        n, h, w, k = (spread(at[dim], axis, 4) for axis, dim in enumerate("nhwk"))
        # Lanes share outputs where loops over c, r, s are lanes.
        (np.maximum if self.kind == "max" else np.add).at(self.sums, (n, k, h, w), part.astype(np.int64))

    @staticmethod
    def matrix_product(terms: Values, weights: Values) -> Values:
        """[lane, n, h, w, k] from terms [lane, n, h, w, term] and weights [lane, k, c, r, s]."""
        lanes, n, h, w, length = terms.shape
        columns = weights.reshape(lanes, -1, length).transpose(0, 2, 1)
        return (terms.reshape(lanes, n * h * w, length) @ columns).reshape(lanes, n, h, w, -1)

    def commit(self, body: LaneBody) -> None:
        """Finish the sums of the outputs of `body`."""
        ranges = {dim: body.first[dim][:, None] + np.arange(body.extent[dim]) for dim in "nkhw"}
        index = tuple(spread(ranges[dim], axis, 4) for axis, dim in enumerate("nkhw"))
        at = [index["nkhw".index(dim)] for dim in self.param_dims]
        held = {name: body.buffers[name].read(*at) for name in ("bias", "scale") if name in body.buffers}
        steps = self.layer.steps.data
        epilogue = Epilogue(
            held.get("bias"), held.get("scale"), steps.zero, steps.clamp, self.factors, steps.multiply,
            steps.add_clamp, steps.slope, self.table,
        )  # fmt: skip
        sums = self.checked(self.sums[index])
        if epilogue.bias is not None:
            self.checked(sums + epilogue.bias)
        residual = body.buffers["residual"].read(*index) if "residual" in body.buffers else None
        # The shuffle decides where a result goes, not what it is.
        channels = np.array([shuffled(k, self.sizes.k, steps.shuffle) for k in range(self.sizes.k)])
        self.outputs[index[0], channels[index[1]], index[2], index[3]] = epilogue.apply(sums, slice(None), residual)

    def checked(self, sums: Ints) -> Ints:
        """`sums`, if all fit a psum. Raises Refusal."""
        module = self.layer.get_toplevel_object()
        assert isinstance(module, Operation)
        lo, hi = psum_range(module)
        if sums.min() < lo or sums.max() > hi:
            raise Refusal(
                f"{name_of(self.layer)}: sums reach {sums.min()} to {sums.max()}, outside the psum range {lo} to {hi}"
            )
        return sums
