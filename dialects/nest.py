"""Layers as loop nests: where scheduling happens.

A `nest.layer` computes one layer as a perfect nest of named loops over

    n batch   k output channel   c input channel   h w OUTPUT row and column   r s kernel row and column

around one `nest.mac`. A dimension may be split over several loops: `nest.for h step 4` counts tiles of four rows,
a further loop over h inside it runs over those four. The extent of a loop is the step of the nearest loop over the same
dimension around it, or the layer's size; where the step does not divide the extent, the last tile is smaller.
`nest.par` runs its iterations side by side on the rows or columns of the array; of several on one axis the inner
ones vary fastest. `keep` marks the loops of the box: those that one macro-instruction of a PE runs.

    nest.layer %image weights @conv1.w … {
      nest.stage ifmap in glb buffers 1
      nest.for h step 4 {
        nest.par h on rows {
          nest.for c {
            nest.stage weight in rf buffers 2
            nest.stage ifmap in rf buffers 2
            nest.for s keep { nest.for r keep { nest.for k keep { nest.mac } } } } } } }

A stage at the head of a loop's body fetches, once per iteration, the slice of its operand that the loops inside
need. What a layer means without any tiling is `dialects/cnn.py`: out[n, k, h, w] = epilogue(Σ_{c, r, s} …).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self, cast

from xdsl.dialects.builtin import StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import Block, Dialect, Operation, Region
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from cnncc.dialects._records import RecordAttr
from cnncc.dialects.cnn import StepsAttr, WindowAttr, shape

OPERANDS = ("weight", "ifmap", "params")
DIMS = ("n", "k", "c", "h", "w", "r", "s")
REDUCTION_DIMS = frozenset("crs")


@dataclass(frozen=True)
class Sizes:
    """The layer's size in each dimension; c counts the input channels of one group."""

    n: int
    k: int
    c: int
    h: int
    w: int
    r: int
    s: int

    def __post_init__(self) -> None:
        if min(self.of(dim) for dim in DIMS) < 1:
            raise ValueError("every size is at least 1")

    def of(self, dim: str) -> int:
        """The size of dimension `dim`."""
        return cast("int", getattr(self, dim))


@dataclass(frozen=True)
class Loop:
    """One loop of a mapping: `step` iterations of `dim` at a time, in time or on an axis of the array."""

    dim: str
    step: int = 1
    on: str = ""
    keep: bool = False


@dataclass(frozen=True)
class Stage:
    """A fetch of `operand` into `memory`, inside the `depth` outermost loops of the mapping, around the others."""

    operand: str
    memory: str
    depth: int
    buffers: int = 1


@dataclass(frozen=True)
class Mapping:
    """The nest that the scheduling passes are to reach: all loops, outermost first, and all stages."""

    loops: tuple[Loop, ...]
    stages: tuple[Stage, ...] = ()


@irdl_attr_definition
class SizesAttr(RecordAttr[Sizes]):
    """Sizes of a layer: `#nest.sizes<n = 1, k = 16, c = 3, h = 8, w = 8, r = 3, s = 3>`."""

    name = "nest.sizes"


@irdl_attr_definition
class MappingAttr(RecordAttr[Mapping]):
    """A mapping that was chosen for a layer and not applied yet."""

    name = "nest.mapping"


@irdl_attr_definition
class LoopAttr(RecordAttr[Loop]):
    """One loop, as `nest.for` and `nest.par` hold it."""

    name = "nest.loop"


@irdl_attr_definition
class StageAttr(RecordAttr[Stage]):
    """One fetch, as `nest.stage` holds it (its depth follows from where it stands)."""

    name = "nest.fetch"


@irdl_op_definition
class LayerOp(IRDLOperation):
    """One layer as a loop nest; `kind` is mac, max, add (pools; channels as groups) or copy (elementwise).

    Sizes and window say what is computed, the region in which order and where.
    """

    name = "nest.layer"
    kind = prop_def(StringAttr)
    ifmap = operand_def(TensorType)
    residual = opt_operand_def(TensorType)
    weights = opt_prop_def(SymbolRefAttr)
    sizes = prop_def(SizesAttr)
    window = prop_def(WindowAttr)
    steps = prop_def(StepsAttr)
    mapping = opt_prop_def(MappingAttr)
    label = opt_prop_def(StringAttr)
    until = opt_prop_def(StringAttr)
    body = region_def("single_block")
    result = result_def(TensorType)
    traits = traits_def(NoTerminator())
    assembly_format = (
        "$kind $ifmap (`residual` $residual^ `:` type($residual))? (`weights` $weights^)? `sizes` $sizes "
        "`window` $window `then` $steps (`mapping` $mapping^)? (`label` $label^)? (`until` $until^)? "
        "attr-dict-with-keyword `:` type($ifmap) `->` type($result) $body"
    )

    def verify_(self) -> None:
        if self.kind.data not in ("mac", "max", "add", "copy"):
            raise VerifyException(f"nest.layer: kind is mac, max, add or copy, not {self.kind.data}")
        if (self.kind.data == "mac") != (self.weights is not None):
            raise VerifyException("nest.layer: a mac layer has weights, no other has")
        sizes = self.sizes.data
        if shape(self.result.type) != (sizes.n, sizes.k, sizes.h, sizes.w):
            raise VerifyException(f"nest.layer: sizes {sizes} do not fit the result {shape(self.result.type)}")
        _check_steps(self)


class _LoopOp(IRDLOperation):
    """What `nest.for` and `nest.par` share: a loop and its body."""

    loop = prop_def(LoopAttr)
    body = region_def("single_block")

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """`DIM step N [on AXIS] [keep] { … }`; a step of 1 may be left out."""
        dim = parser.parse_identifier("a dimension")
        step = parser.parse_integer() if parser.parse_optional_keyword("step") else 1
        on = parser.parse_identifier("an axis") if parser.parse_optional_keyword("on") else ""
        keep = parser.parse_optional_keyword("keep") is not None
        body = parser.parse_region()
        return cls.create(properties={"loop": LoopAttr(Loop(dim, step, on, keep))}, regions=[body])

    def print(self, printer: Printer) -> None:
        """The syntax that `parse` reads."""
        loop = self.loop.data
        step = f" step {loop.step}" if loop.step != 1 else ""
        on = f" on {loop.on}" if loop.on else ""
        printer.print_string(f" {loop.dim}{step}{on}{' keep' if loop.keep else ''} ")
        printer.print_region(self.body)

    def verify_(self) -> None:
        loop = self.loop.data
        if loop.dim not in DIMS or loop.on not in ("", "rows", "cols"):
            raise VerifyException(f"{self.name}: no dimension '{loop.dim}' or no axis '{loop.on}'")
        if (self.name == "nest.par") != bool(loop.on) or (loop.on and loop.keep):
            raise VerifyException(f"{self.name}: a par loop, and only it, is on an axis; a kept loop runs in time")


@irdl_op_definition
class ForOp(_LoopOp):
    """A loop in time: `nest.for h step 4 { … }`; with `keep`, a loop of the box."""

    name = "nest.for"
    traits = traits_def(NoTerminator())


@irdl_op_definition
class ParOp(_LoopOp):
    """A loop in space: `nest.par k on cols { … }`."""

    name = "nest.par"
    traits = traits_def(NoTerminator())


@irdl_op_definition
class StageOp(IRDLOperation):
    """Fetch the slice of an operand that the loops inside need: `nest.stage weight in rf buffers 2`."""

    name = "nest.stage"
    fetch = prop_def(StageAttr)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """`OPERAND in MEMORY [buffers N]`."""
        operand = parser.parse_identifier("an operand")
        parser.parse_keyword("in")
        memory = parser.parse_identifier("a memory")
        buffers = parser.parse_integer() if parser.parse_optional_keyword("buffers") else 1
        return cls.create(properties={"fetch": StageAttr(Stage(operand, memory, 0, buffers))})

    def print(self, printer: Printer) -> None:
        """The syntax that `parse` reads."""
        fetch = self.fetch.data
        printer.print_string(f" {fetch.operand} in {fetch.memory} buffers {fetch.buffers}")

    def verify_(self) -> None:
        fetch = self.fetch.data
        if fetch.operand not in OPERANDS or fetch.memory not in ("glb", "rf") or fetch.buffers < 1:
            raise VerifyException(f"nest.stage: {fetch.operand} in {fetch.memory} buffers {fetch.buffers} is no stage")


@irdl_op_definition
class MacOp(IRDLOperation):
    """One multiply-accumulate (or max, add, copy) at the current indices."""

    name = "nest.mac"
    assembly_format = "attr-dict"


def nest_blocks(layer: LayerOp) -> Iterator[Block]:
    """The blocks of a perfect nest, outermost first: the layer's own, then each loop's body."""
    block: Block | None = layer.body.block
    while block is not None:
        yield block
        last = block.last_op
        block = last.body.block if isinstance(last, ForOp | ParOp) else None


def mapping_of(layer: LayerOp) -> Mapping:
    """The loops and stages that the region holds."""
    loops: list[Loop] = []
    stages: list[Stage] = []
    for depth, block in enumerate(nest_blocks(layer)):
        for op in block.ops:
            match op:
                case ForOp() | ParOp():
                    loops.append(op.loop.data)
                case StageOp():
                    stages.append(replace(op.fetch.data, depth=depth))
                case _:
                    pass
    return Mapping(tuple(loops), tuple(stages))


def build_nest(mapping: Mapping) -> Region:
    """The region of a layer with these loops and stages around one `nest.mac`."""
    region = Region(Block([*_stage_ops(mapping, len(mapping.loops)), MacOp.create()]))
    for depth in reversed(range(len(mapping.loops))):
        loop = mapping.loops[depth]
        op = (ParOp if loop.on else ForOp).create(properties={"loop": LoopAttr(loop)}, regions=[region])
        region = Region(Block([*_stage_ops(mapping, depth), op]))
    return region


def _stage_ops(mapping: Mapping, depth: int) -> list[Operation]:
    here = [replace(stage, depth=0) for stage in mapping.stages if stage.depth == depth]
    return [StageOp.create(properties={"fetch": StageAttr(stage)}) for stage in here]


def extents(sizes: Sizes, loops: tuple[Loop, ...]) -> tuple[int, ...]:
    """The extent of each loop: the step of the nearest loop over its dimension around it, or the size."""
    current = {dim: sizes.of(dim) for dim in DIMS}
    result: list[int] = []
    for loop in loops:
        result.append(current[loop.dim])
        current[loop.dim] = min(loop.step, current[loop.dim])
    return tuple(result)


def _check_steps(layer: LayerOp) -> None:
    """The nest is perfect and visits every index once. Raises VerifyException."""
    for block in nest_blocks(layer):
        *stages, last = block.ops
        if not isinstance(last, ForOp | ParOp | MacOp) or not all(isinstance(op, StageOp) for op in stages):
            raise VerifyException("nest.layer: a body is stages, then one loop or nest.mac")
    current = {dim: layer.sizes.data.of(dim) for dim in DIMS}
    for loop in mapping_of(layer).loops:
        if not 1 <= loop.step <= current[loop.dim]:
            raise VerifyException(
                f"nest.layer: loop {loop.dim} steps by {loop.step} in an extent of {current[loop.dim]}"
            )
        current[loop.dim] = loop.step
    if left := [dim for dim, step in current.items() if step != 1]:
        raise VerifyException(f"nest.layer: no loop runs over single indices of {', '.join(left)}")


NEST = Dialect(
    "nest",
    [LayerOp, ForOp, ParOp, StageOp, MacOp],
    [SizesAttr, MappingAttr, LoopAttr, StageAttr],
)
