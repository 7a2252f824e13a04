"""Machine instructions, one op each, in program order: what a binary holds, as IR.

    isa.layer <label = "conv1", value = "relu1", first = 0, count = 27>
    isa.inst "desc id=0 base=432 height=8 width=8 pitch=8 plane=64" comment "conv1: ifmap"
    isa.inst "loop count=3" comment "c2"
    isa.inst "load rows=4 cols=4 kind=ifmap open=always close=0"
    isa.inst "end"
    isa.inst "halt"

An instruction is written as the assembler writes it (`cnncc/isa/assembly.py`) and checked against the instruction
table. Loops are flat, as `loop` and `end`. Beside the program stand its memory (`weights.global`, `array.tensor`), the
host's segments and the table of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import BytesAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, Dialect
from xdsl.irdl import IRDLOperation, irdl_attr_definition, irdl_op_definition, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException

from cnncc.dialects._records import RecordAttr
from cnncc.dialects._verifiers import use_simple_verifiers
from cnncc.dialects.array import Names
from cnncc.dialects.onnx import text_attr
from cnncc.dialects.weights import RefAttr
from cnncc.isa.assembly import format_instruction, parse_instruction
from cnncc.isa.table import Instruction


@dataclass(frozen=True)
class Layer:
    """Which instructions belong to a layer: `count` from number `first` on. `value` is what it computes."""

    label: str
    first: int
    count: int
    value: str = ""


@dataclass(frozen=True)
class Segment:
    """A host segment: its number, and the tensors that it reads and writes."""

    number: int
    inputs: Names = ()
    outputs: Names = ()


@irdl_attr_definition
class LayerAttr(RecordAttr[Layer]):
    """A layer record."""

    name = "isa.layer_record"


@irdl_attr_definition
class SegmentAttr(RecordAttr[Segment]):
    """A segment record."""

    name = "isa.segment_record"


@irdl_op_definition
class InstOp(IRDLOperation):
    """One instruction: `isa.inst "loop count=3" comment "c2"`."""

    name = "isa.inst"
    text = prop_def(StringAttr)
    comment = opt_prop_def(StringAttr | BytesAttr)
    assembly_format = "$text (`comment` $comment^)? attr-dict"

    def verify_(self) -> None:
        try:
            parse_instruction(self.text.data)
        except ValueError as error:
            raise VerifyException(f"isa.inst: {error}") from error


@irdl_op_definition
class LayerOp(IRDLOperation):
    """Which instructions a layer became. Further facts, such as its mapping, are attributes, all of them text."""

    name = "isa.layer"
    record = prop_def(LayerAttr)
    assembly_format = "$record attr-dict"

    def verify_(self) -> None:
        for name, value in self.attributes.items():
            if not isinstance(value, StringAttr):
                raise VerifyException(f"isa.layer: attribute {name} is not text")


@irdl_op_definition
class SegmentOp(IRDLOperation):
    """A host segment, run by `host segment=number`: `isa.segment <number = 0, …> model <"5f0c…">`.

    The inputs and outputs of the ONNX model bear the names of the tensors.
    """

    name = "isa.segment"
    record = prop_def(SegmentAttr)
    model = prop_def(RefAttr)
    assembly_format = "$record `model` $model attr-dict"


def inst_op(inst: Instruction, comment: str = "") -> InstOp:
    """The op of an instruction."""
    properties: dict[str, Attribute] = {"text": StringAttr(format_instruction(inst))}
    if comment:
        properties["comment"] = text_attr(comment)
    return InstOp.create(properties=properties)


def instructions(module: ModuleOp) -> list[Instruction]:
    """The program of a module that was verified."""
    return [parse_instruction(op.text.data) for op in module.ops if isinstance(op, InstOp)]


ISA = Dialect("isa", [InstOp, LayerOp, SegmentOp], [LayerAttr, SegmentAttr])
use_simple_verifiers(ISA)
