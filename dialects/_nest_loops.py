"""The loops of a layer: `nest.for` and `nest.par` around one `nest.mac`, and `nest.stage` at the heads of their bodies.

`nest.py` says what they mean. Here they are read from text, and a mapping becomes the region of a layer and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Self, TypeVar

from xdsl.ir import Block, Operation, Region
from xdsl.irdl import IRDLOperation, irdl_attr_definition, irdl_op_definition, prop_def, region_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from cnncc.dialects._records import RecordAttr
from cnncc.mapping.mapping import Loop, Mapping, Stage

RecordT = TypeVar("RecordT")


@irdl_attr_definition
class LoopAttr(RecordAttr[Loop]):
    """One loop, as `nest.for` and `nest.par` hold it."""

    name = "nest.loop"


@irdl_attr_definition
class StageAttr(RecordAttr[Stage]):
    """One fetch, as `nest.stage` holds it (its depth follows from where it stands)."""

    name = "nest.fetch"


def _record(parser: Parser, build: Callable[[], RecordT]) -> RecordT:
    """What `build` makes; its ValueError as an error at the parser's position."""
    try:
        return build()
    except ValueError as error:
        parser.raise_error(str(error))


class _PartOfNest(IRDLOperation):
    """What stands in a nest.layer: around it there are loops, if anything."""

    def verify_(self) -> None:
        parent = self.parent_op()
        if parent is not None and not isinstance(parent, _LoopOp) and parent.name != "nest.layer":
            raise VerifyException(f"{self.name}: it stands in no nest.layer, so that nothing would run it")


class _LoopOp(_PartOfNest):
    """What `nest.for` and `nest.par` share: a loop and its body."""

    loop = prop_def(LoopAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """`DIM step N [on AXIS] [keep] { … }`; a step of 1 may be left out."""
        dim = parser.parse_identifier(context_msg=": a dimension")
        step = parser.parse_integer() if parser.parse_optional_keyword("step") else 1
        on = parser.parse_identifier(context_msg=": an axis") if parser.parse_optional_keyword("on") else ""
        keep = parser.parse_optional_keyword("keep") is not None
        loop = _record(parser, lambda: LoopAttr(Loop(dim, step, on, keep)))
        return cls.create(properties={"loop": loop}, regions=[parser.parse_region()])

    def print(self, printer: Printer) -> None:
        """The syntax that `parse` reads."""
        loop = self.loop.data
        step = f" step {loop.step}" if loop.step != 1 else ""
        on = f" on {loop.on}" if loop.on else ""
        printer.print_string(f" {loop.dim}{step}{on}{' keep' if loop.keep else ''} ")
        printer.print_region(self.body)

    def verify_(self) -> None:
        super().verify_()
        if (self.name == "nest.par") != bool(self.loop.data.on):
            raise VerifyException(f"{self.name}: a par loop, and only it, is on an axis")


@irdl_op_definition
class ForOp(_LoopOp):
    """A loop in time: `nest.for h step 4 { … }`; with `keep`, a loop of the box."""

    name = "nest.for"


@irdl_op_definition
class ParOp(_LoopOp):
    """A loop in space: `nest.par k on cols { … }`."""

    name = "nest.par"


@irdl_op_definition
class StageOp(_PartOfNest):
    """Fetch the slice of an operand that the loops inside need: `nest.stage weight in rf buffers 2`."""

    name = "nest.stage"
    fetch = prop_def(StageAttr)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """`OPERAND in MEMORY [buffers N]`."""
        operand = parser.parse_identifier(context_msg=": an operand")
        parser.parse_keyword("in")
        memory = parser.parse_identifier(context_msg=": a memory")
        buffers = parser.parse_integer() if parser.parse_optional_keyword("buffers") else 1
        fetch = _record(parser, lambda: StageAttr(Stage(operand, memory, 0, buffers)))
        return cls.create(properties={"fetch": fetch})

    def print(self, printer: Printer) -> None:
        """The syntax that `parse` reads."""
        fetch = self.fetch.data
        printer.print_string(f" {fetch.operand} in {fetch.memory} buffers {fetch.buffers}")


@irdl_op_definition
class MacOp(_PartOfNest):
    """One multiply-accumulate (or max, add, copy) at the current indices."""

    name = "nest.mac"
    assembly_format = "attr-dict"


def blocks_of(nest: Region) -> Iterator[Block]:
    """The blocks of a perfect nest, outermost first: the region's own, then each loop's body."""
    block: Block | None = nest.block
    while block is not None:
        yield block
        last = block.last_op
        block = last.body.block if isinstance(last, ForOp | ParOp) else None


def mapping_in(nest: Region) -> Mapping:
    """The loops and stages that the region holds."""
    loops: list[Loop] = []
    stages: list[Stage] = []
    for depth, block in enumerate(blocks_of(nest)):
        for op in block.ops:
            match op:
                case ForOp() | ParOp():
                    loops.append(op.loop.data)
                case StageOp():
                    stages.append(replace(op.fetch.data, depth=depth))
                case _:
                    pass
    return Mapping(tuple(loops), tuple(stages))


def is_perfect(nest: Region) -> bool:
    """Is each body stages, then one loop or `nest.mac`?"""
    for block in blocks_of(nest):
        # None is the last op of an empty body.
        *stages, last = [None, *block.ops]
        if not isinstance(last, ForOp | ParOp | MacOp) or not all(isinstance(op, StageOp) for op in stages[1:]):
            return False
    return True


def build_nest(mapping: Mapping) -> Region:
    """The region of a layer with these loops and stages around one `nest.mac`."""
    region = Region(Block([*_stage_ops(mapping, len(mapping.loops)), MacOp.create()]))
    for depth in reversed(range(len(mapping.loops))):
        loop = mapping.loops[depth]
        op = (ParOp if loop.on else ForOp).create(properties={"loop": LoopAttr(loop)}, regions=[region])
        region = Region(Block([*_stage_ops(mapping, depth), op]))
    return region


def _stage_ops(mapping: Mapping, depth: int) -> list[Operation]:
    stages = [replace(stage, depth=0) for stage in mapping.stages if stage.depth == depth]
    return [StageOp.create(properties={"fetch": StageAttr(stage)}) for stage in stages]
