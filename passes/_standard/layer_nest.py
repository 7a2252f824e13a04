"""One nest in standard dialects: each loop, stage and mac of a `nest.layer`, in its place.

- A loop runs over absolute indices, from the first to the last of the tile around it. Its own tile ends at
  min(first + step, end) if the step does not divide the extent.
- A stage is a buffer of the most words that the loops inside need, filled at the head of the body. Padding is not
  copied; a read there gives `fill`.
- Sums have a buffer around the outermost loop over c, r or s. After that loop they become outputs (rule NEST-5).
- A loop in space over n, k, h or w is an `scf.parallel`. A loop in space over c, r or s is an `scf.for`, because its
  iterations share sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import SSAValue

from cnncc.dialects.cnn import is_per_channel
from cnncc.dialects.nest import LayerOp, image_shape, mapping_of
from cnncc.mapping.mapping import DIMS, OUTPUT_DIMS, REDUCTION_DIMS, Stage
from cnncc.numerics import integer_range
from cnncc.passes._standard.epilogue import Parameters, finish
from cnncc.passes._standard.limits import integer_tensor
from cnncc.passes._standard.ops import ZERO, Buffer, Emitter, Index, Span

Spans = Mapping[str, Span]
Buffers = Mapping[str, Buffer]


class StandardNest:
    """Writes one layer."""

    def __init__(self, emit: Emitter, layer: LayerOp, operands: Mapping[str, SSAValue], psum: IntegerType) -> None:
        """operands: memrefs of ifmap and output, and of weight, residual, bias, scale, factors, table if they exist."""
        self.emit, self.layer, self.psum = emit, layer, psum
        self.sizes, self.window, self.steps = layer.sizes.data, layer.window.data, layer.steps.data
        self.image = image_shape(layer.ifmap.type)[2:]
        mapping = mapping_of(layer)
        self.loops, self.stages = mapping.loops, mapping.stages
        reductions = (depth for depth, loop in enumerate(self.loops) if loop.dim in REDUCTION_DIMS)
        self.sums_depth = next(reductions, len(self.loops))
        self.has_pixel = is_per_channel(layer.residual, layer.result)
        self.param_dims = "hw" if self.steps.per_position else "k"
        whole = {name: Buffer(value) for name, value in operands.items()}
        # Equal for all outputs, so they are read once.
        factors = whole.pop("factors", None)
        self.factors = tuple(emit.load(factors, [Index(offset=i)]) for i in range(3)) if factors else ()
        self.table = whole.pop("table", None)
        self.output = whole["output"]
        self.body(0, {dim: Span.whole(self.sizes.of(dim)) for dim in DIMS}, whole)

    def body(self, depth: int, spans: Spans, around: Buffers) -> None:
        """The body of the loop at `depth` - 1: stages, sums, the inner loops; then results go to their buffers."""
        buffers, made = dict(around), list[Buffer]()
        for stage in self.stages:
            if stage.depth == depth:
                staged = self.fetch(stage, spans, buffers)
                buffers |= staged
                made += staged.values()
        if depth == self.sums_depth:
            buffers["sums"] = self.empty_sums(spans)
            made.append(buffers["sums"])
        self.inside(depth, spans, buffers)
        if depth == self.sums_depth:
            self.commit(spans, buffers)
        if buffers["output"] is not around["output"]:
            self.write_back(spans, buffers["output"])
        for buffer in made:
            self.emit.do(memref.DeallocOp.get(buffer.memref))

    def inside(self, depth: int, spans: Spans, buffers: Buffers) -> None:
        """The loop at `depth`, or the mac if there is none left."""
        if depth == len(self.loops):
            self.mac({dim: span.first for dim, span in spans.items()}, buffers)
            return
        loop = self.loops[depth]
        span = spans[loop.dim]
        side_by_side = bool(loop.on) and loop.dim not in REDUCTION_DIMS
        with self.emit.loop(span, loop.dim, loop.step, side_by_side) as first:
            # Only then all tiles have equal sizes, which are known here.
            exact = loop.step == 1 or (span.exact and span.most % loop.step == 0)
            end = first + loop.step if exact else self.emit.least(first + loop.step, span.end)
            self.body(depth + 1, {**spans, loop.dim: Span(first, end, min(loop.step, span.most), exact)}, buffers)

    def fetch(self, stage: Stage, spans: Spans, around: Buffers) -> dict[str, Buffer]:
        """The filled buffers of a stage; the output's buffer is empty."""
        match stage.operand:
            case "ifmap":
                return {"ifmap": self.cut("ifmap", "ncyx", self.image_spans(spans), stage, around)}
            case "params":
                names, dims = [name for name in ("bias", "scale") if name in around], self.param_dims
            case name:
                names, dims = [name], "kcrs" if name == "weight" else OUTPUT_DIMS
        return {name: self.cut(name, dims, [spans[dim] for dim in dims], stage, around) for name in names}

    def cut(self, name: str, dims: str, spans: Sequence[Span], stage: Stage, around: Buffers) -> Buffer:
        """A buffer for the elements of `spans`, filled from the buffer in `around`."""
        source = around[name]
        memory = self.emit.alloc([span.most for span in spans], source.element, f"{name}_{stage.memory}")
        buffer = Buffer(memory, tuple(span.first for span in spans))
        if name != "output":
            copied = self.in_image(spans) if name == "ifmap" else spans
            with self.emit.loops(copied, dims) as at:
                self.emit.store(self.emit.load(source, at), buffer, at)
        return buffer

    def image_spans(self, spans: Spans) -> list[Span]:
        """Images, channels, rows and columns that the windows of `spans` touch, padding included."""
        k, c = spans["k"], spans["c"]
        last = self.channel(k.end - 1, c.end - 1)
        per_group = self.sizes.k // self.window.group
        # With 3 channels in a group, 4 in a row are of 2 groups, 5 of up to 3: the last channel of one, a whole one,
        # the first of another.
        groups = min(self.window.group, (k.most + per_group - 2) // per_group + 1)
        exact = c.exact and (groups == 1 or (per_group == 1 and k.exact))
        channels = Span(self.channel(k.first, c.first), last + 1, (groups - 1) * self.sizes.c + c.most, exact)
        return [
            spans["n"],
            channels,
            self.positions(0, spans["h"], spans["r"]),
            self.positions(1, spans["w"], spans["s"]),
        ]

    def positions(self, axis: int, output: Span, tap: Span) -> Span:
        """Input rows (axis 0) or columns (axis 1) from the first to the last that the windows touch."""
        first, last = self.position(axis, output.first, tap.first), self.position(axis, output.end - 1, tap.end - 1)
        most = self.window.stride[axis] * (output.most - 1) + self.window.dilation[axis] * (tap.most - 1) + 1
        return Span(first, last + 1, most, output.exact and tap.exact)

    def in_image(self, spans: Sequence[Span]) -> list[Span]:
        """The spans n, channel, row and column without the padding."""
        cut = list(spans)
        for axis, size in enumerate(self.image):
            span = spans[2 + axis]
            before, after = self.window.pad[axis], self.window.pad[2 + axis]
            if before:
                cut[2 + axis] = span = replace(span, first=self.emit.most(span.first, ZERO), exact=False)
            if after:
                cut[2 + axis] = replace(span, end=self.emit.least(span.end, Index(offset=size)), exact=False)
        return cut

    def channel(self, k: Index, c: Index) -> Index:
        """The input channel: number c in the group of output channel k."""
        match self.window.group:
            case 1:
                return c
            case self.sizes.k:
                return k * self.sizes.c + c
            case group:
                return self.emit.quotient(k, self.sizes.k // group) * self.sizes.c + c

    def position(self, axis: int, output: Index, tap: Index) -> Index:
        """The input row (axis 0) or column (axis 1) of a kernel tap at an output position."""
        return output * self.window.stride[axis] + tap * self.window.dilation[axis] - self.window.pad[axis]

    def empty_sums(self, spans: Spans) -> Buffer:
        """A buffer for the sums of `spans`, each the sum (or maximum) of nothing."""
        dims = [spans[dim] for dim in OUTPUT_DIMS]
        memory = self.emit.alloc([span.most for span in dims], self.psum, "sums")
        sums = Buffer(memory, tuple(span.first for span in dims))
        least, _ = integer_range(self.psum.width.data)
        with self.emit.loops(dims, OUTPUT_DIMS) as at:
            self.emit.store(self.emit.constant(least if self.layer.kind.data == "max" else 0, self.psum), sums, at)
        return sums

    def mac(self, at: Mapping[str, Index], buffers: Buffers) -> None:
        """One multiply-accumulate; a maximum or an addition in a pool, an addition to 0 in a copy."""
        emit, output = self.emit, [at[dim] for dim in OUTPUT_DIMS]
        term = self.pixel(at, buffers["ifmap"])
        if self.layer.kind.data == "mac":
            weight = emit.integer(emit.load(buffers["weight"], [at[dim] for dim in "kcrs"]), self.psum)
            term = emit.add(arith.MuliOp(term, weight))
        add = arith.MaxSIOp if self.layer.kind.data == "max" else arith.AddiOp
        emit.store(emit.add(add(emit.load(buffers["sums"], output), term)), buffers["sums"], output)

    def pixel(self, at: Mapping[str, Index], ifmap: Buffer) -> SSAValue:
        """The value in the window, less the zero point, in the sums' type."""
        emit = self.emit
        place = [self.position(0, at["h"], at["r"]), self.position(1, at["w"], at["s"])]
        channel = self.channel(at["k"], at["c"])

        def value() -> SSAValue:
            return emit.integer(emit.load(ifmap, [at["n"], channel, *place]), self.psum)

        inside: SSAValue | None = None
        for axis, size in enumerate(self.image):
            if self.window.pad[axis] or self.window.pad[2 + axis]:
                # As an unsigned number, a row above the image is beyond its last one.
                within = emit.add(arith.CmpiOp(emit.index(place[axis]), emit.number(size), "ult"))
                inside = within if inside is None else emit.add(arith.AndIOp(inside, within))
        fill = self.window.fill
        pixel = value() if inside is None else emit.either(inside, self.psum, value, emit.constant(fill, self.psum))
        zero = self.window.zero
        return emit.add(arith.SubiOp(pixel, emit.constant(zero, self.psum))) if zero else pixel

    def commit(self, spans: Spans, buffers: Buffers) -> None:
        """Compute the outputs from the sums of `spans`."""
        emit = self.emit
        with emit.loops([spans[dim] for dim in OUTPUT_DIMS], OUTPUT_DIMS) as at:
            params = [at[OUTPUT_DIMS.index(dim)] for dim in self.param_dims]
            acc = emit.load(buffers["sums"], at)
            read = {name: emit.load(buffers[name], params) for name in ("bias", "scale") if name in buffers}
            pixel = [*at[:2], Index(), Index()] if self.has_pixel else at
            residual = emit.load(buffers["residual"], pixel) if "residual" in buffers else None
            given = Parameters(read.get("bias"), read.get("scale"), residual, self.factors, self.table)
            self.put(finish(emit, acc, self.steps, given), buffers["output"], at)

    def write_back(self, spans: Spans, gathered: Buffer) -> None:
        """Copy the outputs in a stage's buffer to the result."""
        with self.emit.loops([spans[dim] for dim in OUTPUT_DIMS], OUTPUT_DIMS) as at:
            self.put(self.emit.load(gathered, at), self.output, at)

    def put(self, value: SSAValue, output: Buffer, at: Sequence[Index]) -> None:
        """Store an output. A channel shuffle applies in the result alone, not in a stage's buffer of it."""
        n, k, h, w = at
        groups = self.steps.shuffle
        if output is self.output and groups != 1:
            members = self.sizes.k // groups
            k = self.emit.remainder(k, members) * groups + self.emit.quotient(k, members)
        element = integer_tensor("the result", output.element, self.psum)
        self.emit.store(self.emit.integer(value, element), output, [n, k, h, w])
