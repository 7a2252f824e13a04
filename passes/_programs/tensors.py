"""Where the values of a network lie: the tensors that `nest-to-array` declares. No pass.

| value | lies in |
|---|---|
| result of a layer that stages its output in the GLB | DRAM |
| result of any other layer | GLB |
| result of a host segment, input of the network | DRAM, and the GLB too if a layer reads it there |

The operands of a concatenation are parts of its tensor, so that nothing is copied: one after the other, or interleaved
channel by channel or pixel by pixel. Strips of columns are parts, too: joined strips of the tensor of the result,
strips that are read of the tensor of the whole value. So are channels that are sliced, of that of the whole value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, SSAValue, Use

from cnncc.dialects import array as A
from cnncc.dialects.cnn import ConcatOp, HostOp, Quant, QuantAttr, ReshapeOp, SliceOp, quants_of, shape, value_key
from cnncc.dialects.nest import ColumnsOp, CoresOp, JoinOp, LayerOp, LoadOp, columns_of, image_shape, mapping_of
from cnncc.dialects.onnx import text
from cnncc.errors import Refusal
from cnncc.mapping.groups import GroupLayer
from cnncc.passes._onnx.codes import codes_of
from cnncc.passes._programs.layer_records import ActivationLayout


def source(value: SSAValue) -> SSAValue:
    """What `value` is a reshape of, or itself: they are the same words."""
    while isinstance(value.owner, ReshapeOp):
        value = value.owner.x
    return value


class Channels(NamedTuple):
    """A value as channels of another: from word `offset` of an image on, with `image` words between images.

    Where `image` is 0 it is that value, reshaped perhaps, and its images follow each other.
    """

    whole: SSAValue
    offset: int = 0
    image: int = 0


def channels_of(value: SSAValue) -> Channels:
    """What `value` is channels of. Raises Refusal where the images of a slice are read as other images."""
    whole, offset, image = source(value), 0, 0
    while isinstance(op := whole.owner, SliceOp):
        if image_shape(op.result.type)[0] != image_shape(value.type)[0]:
            images = " and ".join(str(image_shape(each)[0]) for each in (op.result.type, value.type))
            raise Refusal(
                f"'{value_key(op) or op.name}' is read as {images} images, as other channels lie between them; "
                f"cnn-legalize copies such slices"
            )
        _, *dims = shape(op.x.type)
        image = prod(dims)
        whole, offset = source(op.x), offset + op.first.value.data * prod(dims[1:])
    return Channels(whole, offset, image)


def uses(value: SSAValue) -> Iterator[Use]:
    """The uses of a value, also through reshapes, slices and columns, which are no uses themselves."""
    for use in value.uses:
        if isinstance(use.operation, ReshapeOp | SliceOp | ColumnsOp):
            yield from uses(use.operation.result)
        else:
            yield use


def no_scale(name: str) -> Refusal:
    """The refusal of an output of integers that says of none what it stands for."""
    return Refusal(f"output '{name}' is computed as integers, but has no cnn.quant with a scale: give it one")


def image_step(value: SSAValue) -> int:
    """Words from an image of a value to the next: other channels, or other parts of a concatenation, lie between."""
    whole, _, step = channels_of(value)
    step = step or prod(shape(value.type)[1:])
    # A part lies as far from image to image as the whole does, which may be a part, too.
    while whole := next((use.operation.results[0] for use in uses(whole) if isinstance(use.operation, ConcatOp)), None):
        step = prod(shape(whole.type)[1:])
    return step


def planes_apart(value: SSAValue) -> int:
    """From a channel of a value to the next, in its own channels: 1, or as many as values are interleaved."""
    concats = (use.operation for use in uses(value) if isinstance(use.operation, ConcatOp))
    return next((len(op.inputs) for op in concats if op.interleaved is not None or op.pixels), 1)


def pixels_in_turn(value: SSAValue) -> tuple[int, int]:
    """How many rows and columns of values are in turn where a value is one of them, or 1 and 1."""
    concats = (use.operation for use in uses(value) if isinstance(use.operation, ConcatOp))
    return next((op.pixels for op in concats if op.pixels), (1, 1))


def staged(layer: LayerOp) -> set[str]:
    """The operands that the layer stages in the GLB."""
    return set(mapping_of(layer).glb_stages)


def is_in_cores(layer: LayerOp) -> bool:
    """Whether a layer is one of `nest.cores`."""
    group = layer.parent_op()
    return group is not None and isinstance(group.parent_op(), CoresOp)


def is_read_in_glb(use: Use, quant: Quant) -> bool:
    """Whether a use of a value that is in DRAM by a scale is of its words in the GLB."""
    match use.operation:
        case LayerOp() as layer if is_in_cores(layer):
            return False  # core 0 brings image after image
        case LayerOp() as layer:
            return ("ifmap", "residual")[use.index] not in staged(layer)
        case LoadOp():
            return False
        case HostOp() as host:  # by another scale it is another tensor, which is copied from the GLB
            return host.input_quants.data[use.index].data != quant
        case _:
            return True


def given_quants(func: FuncOp) -> dict[SSAValue, Quant]:
    """The integers that come from the network's user or from host segments, with the scale that they have there."""
    given = zip(func.args, quants_of(func.arg_attrs, len(func.args)), strict=True)
    quants: dict[SSAValue, Quant] = {arg: quant for arg, quant in given if quant is not None}
    for op in func.body.block.ops:
        if isinstance(op, HostOp):
            results = zip(op.outputs, op.output_quants, strict=True)
            quants |= {value: quant.data for value, quant in results if quant.data.scale != 0.0}
    return quants


def _whole(value: SSAValue) -> SSAValue:
    """What a value is a reshape of, or itself. Raises Refusal for a slice, which has no tensor of its own."""
    value = source(value)
    if isinstance(op := value.owner, SliceOp):
        what = f"'{value_key(op) or op.name}' is channels of a tensor, which host and user cannot read"
        raise Refusal(f"{what}; cnn-legalize copies them")
    return value


class PartOf(NamedTuple):
    """A value that is written into another one, from word `offset` of an image on.

    Attributes:
        plane          words between its channels; 0 if they follow each other
        pitch          words between its rows; 0 if it is not columns of the whole
        image          words between its images; 0 if these are not strips of one image of the whole
        column         words between its columns; 0 if they follow each other
    """

    whole: SSAValue
    offset: int
    plane: int = 0
    pitch: int = 0
    image: int = 0
    column: int = 0


def parts(block: Block) -> dict[SSAValue, PartOf]:
    """What the operands of concatenations, and columns that are joined, are parts of. Raises Refusal."""
    parts: dict[SSAValue, PartOf] = {}
    for op in block.ops:
        if not isinstance(op, ConcatOp | JoinOp):
            continue
        at = 0
        for operand in op.operands:
            images, _, rows, cols = image_shape(op.results[0].type)
            if isinstance(op, JoinOp):
                count, *_, own = image_shape(operand.type)
                parts[operand] = PartOf(op.result, at, rows * cols, cols, own if count > images else 0)
                at += count // images * own
            elif isinstance(source(operand).owner, SliceOp):
                raise Refusal(f"'{value_key(op) or op.name}' has a slice as operand; cnn-legalize copies such operands")
            elif op.pixels:
                _check_image(op, operand, "pixels")
                down, across = op.pixels
                first = at // across * cols + at % across
                parts[source(operand)] = PartOf(op.result, first, rows * cols, down * cols, column=across)
                at += 1
            elif op.interleaved is not None:
                _check_image(op, operand, "channels")
                parts[source(operand)] = PartOf(op.result, at, len(op.inputs) * rows * cols)
                at += rows * cols
            else:
                parts[source(operand)] = PartOf(op.result, at)
                at += prod(shape(operand.type)[1:])
    return parts


def _check_image(op: ConcatOp, operand: SSAValue, of: str) -> None:
    """Raises Refusal for a reshape of an image of other channels, rows or columns."""
    if image_shape(source(operand).type) != image_shape(operand.type):
        what = f"'{value_key(op) or op.name}' interleaves the {of} of a reshape"
        raise Refusal(f"{what}; cnn-legalize copies such operands")


@dataclass
class ArrayTensors:
    """The tensors declared so far, and where values (none of them a reshape) lie: tensors by memory and value."""

    func: FuncOp
    declared: dict[str, A.Tensor] = field(default_factory=dict[str, A.Tensor])
    places: dict[tuple[str, SSAValue], str] = field(default_factory=dict[tuple[str, SSAValue], str])
    exchanged: dict[tuple[SSAValue, Quant], str] = field(default_factory=dict[tuple[SSAValue, Quant], str])

    def __post_init__(self) -> None:
        attrs = [*(self.func.arg_attrs or ()), *(self.func.res_attrs or ())]
        self.names = {text(name) for attr in attrs if (name := attr.data.get("onnx.name")) is not None}
        self.parts = parts(self.func.body.block)

    def declare(self, tensor: A.Tensor) -> str:
        """Declare a tensor and return its name, with a prime where another tensor or the interface has the name."""
        # Inputs and outputs keep their names: `names` keeps others from taking them first.
        name = tensor.name
        while tensor.role in ("value", "weight") and (name in self.declared or name in self.names):
            name += "'"
        self.declared[name] = replace(tensor, name=name)
        return name

    def lies_in(self, memory: A.Memory, value: SSAValue) -> bool:
        """Whether a value, or what it is columns or channels of, has a tensor in a memory."""
        return (memory, channels_of(columns_of(value).whole).whole) in self.places

    def tensor(self, memory: A.Memory, value: SSAValue) -> str:
        """The name of a value's tensor. Raises Refusal for a slice."""
        return self.places[memory, _whole(value)]

    def home(self, memory: A.Memory, value: SSAValue) -> ActivationLayout:
        """A value's tensor, as the layer sees it that has the value under its type. Raises Refusal."""
        columns, first, apart = columns_of(value)
        whole, offset, image = channels_of(columns)
        tensor = self.declared[self.tensor(memory, whole)]
        images, _, rows, cols = image_shape(columns.type)
        if tensor.part_of and images != tensor.shape[0]:
            raise Refusal(
                f"tensor {tensor.name} is part of {tensor.part_of}: its {tensor.shape[0]} images cannot be read as "
                f"{images}, as other parts lie between them; cnn-legalize copies such parts"
            )
        # What no layer reads or writes may have more than four dims.
        image, plane = tensor.image or image or prod(shape(columns.type)[1:]), tensor.plane or rows * cols
        interleaved = tensor.plane and (tensor.column or not tensor.pitch)
        if interleaved and (offset or (*tensor.shape, 1, 1)[1:4] != image_shape(columns.type)[1:]):
            raise Refusal(
                f"tensor {tensor.name} is interleaved with others in {tensor.part_of}: no slice or reshape of it is "
                f"read; cnn-legalize copies such parts"
            )
        home = ActivationLayout(tensor.name, image, plane, tensor.pitch or cols, column=tensor.column)
        column = tensor.column or 1
        home = self.part(self.part(home, offset, "words"), first * column, "columns")
        return replace(home, image=apart * column) if apart else home

    def part(self, home: ActivationLayout, first: int, of: str) -> ActivationLayout:
        """The layout of a value's columns, or words, from `first` on. home: that of the whole value."""
        if not first:
            return home
        tensor, name = self.declared[home.tensor], f"{home.tensor}.{of}{first}"
        if name not in self.declared:
            images = tensor.shape[0] if tensor.shape else 1
            # To the end, where columns follow each other.
            words = (images - 1) * home.image + max(1, tensor.words // images - first)
            self.declared[name] = A.Tensor(name, tensor.memory, words, part_of=tensor.name, offset=first)
        return replace(home, tensor=name)

    def ring(self, name: str, plan: GroupLayer, rows: int) -> ActivationLayout:
        """A ring of so many rows of a layer's result."""
        plane = rows * plan.sizes.w
        tensor = self.declare(A.Tensor(name, "glb", plane * plan.sizes.k))
        return ActivationLayout(tensor, 0, plane, plan.sizes.w, rows if rows < plan.sizes.h else 0)

    def circle(self, name: str, value: SSAValue, images: int) -> ActivationLayout:
        """Buffers for so many images of a value, which follow each other."""
        _, channels, rows, cols = image_shape(value.type)
        words = channels * rows * cols
        tensor = self.declare(A.Tensor(f"{name}.glb", "glb", images * words))
        return ActivationLayout(tensor, words, rows * cols, cols, wrap=images * words)

    def in_frames(self, value: SSAValue) -> str:
        """The tensor of a value in the record of a frame. Raises Refusal where it is none of its own."""
        whole = channels_of(columns_of(value).whole)
        name = self.places.get(("dram", whole.whole), "")
        if not name or self.declared[name].memory != "dram":
            raise Refusal("what the first core reads, and the last one computes, are integers in DRAM")
        if self.declared[name].part_of or columns_of(value).first or whole.image:
            raise Refusal(f"{name} is part of another tensor: the first core reads, and the last one computes, a whole")
        return name

    def place(self, memory: A.Memory, value: SSAValue, name: str) -> str:
        """Give a value a tensor: an output's, a part of a concatenation, or one of its own."""
        value = source(value)
        if memory == "dram" and (output := self._output(value)) and (memory, value) not in self.places:
            return self.exchange(*output)
        if (memory, value) not in self.places:
            dims = shape(value.type)
            # A tensor with scale 0 would be in the host's memory (docs/machine.md, "The binary").
            label, scale = (f"{name}.glb", 0.0) if memory == "glb" else (name, 1.0)
            tensor = A.Tensor(label, memory, prod(dims), dims, scale=scale)
            if part := self.parts.get(value):
                owner = part.whole.owner
                assert isinstance(owner, ConcatOp | JoinOp)
                whole = self.declared[self.place(memory, part.whole, owner.label.data if owner.label else "joined")]
                if whole.plane and isinstance(owner, ConcatOp):
                    raise Refusal(
                        f"concatenation {whole.name} is a part whose channels lie apart; cnn-legalize copies such parts"
                    )
                places = {
                    # Strips count columns, which may lie apart in a whole that is a part itself.
                    "offset": part.offset * (whole.column or 1),
                    "image": part.image * (whole.column or 1) or whole.image or prod(shape(part.whole.type)[1:]),
                    "plane": whole.plane or part.plane,
                    "pitch": whole.pitch or part.pitch,
                    "column": whole.column or part.column,
                }
                tensor = replace(tensor, part_of=whole.name, **places)
            self.places[memory, value] = self.declare(tensor)
        return self.places[memory, value]

    def _output(self, value: SSAValue) -> tuple[SSAValue, str, A.Role, Quant] | None:
        """The network's output that a value is, reshaped perhaps, with its name, role and scale.

        Raises Refusal where it can be none in DRAM.
        """
        returned = [use for use in uses(value) if isinstance(use.operation, ReturnOp)]
        if not returned:
            return None
        attrs = list(self.func.res_attrs or ())[returned[0].index].data
        name, quant = text(attrs["onnx.name"]), attrs.get("cnn.quant")
        if not isinstance(quant, QuantAttr):
            raise no_scale(name)
        if len(returned) > 1 or value in self.parts:
            raise Refusal(f"output '{name}' is not in the GLB, and is no tensor of its own: stage it for no layer")
        return returned[0].operation.operands[returned[0].index], name, "output", quant.data

    def exchange(self, value: SSAValue, name: str, role: A.Role, quant: Quant) -> str:
        """Give a value a tensor in DRAM that the network's user or a host segment shares, with its scale.

        Raises Refusal for a slice, and for the scale 0, which integers do not have.
        """
        if not quant.scale:
            raise Refusal(
                f"'{name}' is computed or read as integers, but its cnn.quant has the scale 0: give it a scale"
            )
        dims = shape(value.type)
        name = self.declare(A.Tensor(name, "dram", prod(dims), dims, role, **vars(quant)))
        self.places["dram", _whole(value)] = self.exchanged[source(value), quant] = name
        return name

    def rescale(self, value: SSAValue, quant: Quant) -> None:
        """Give what only layers wrote the scale and the shape in which a host segment reads it.

        Raises Refusal for a second scale.
        """
        name = self.tensor("dram", value)
        if name in self.exchanged.values():
            raise Refusal(f"tensor {name} is read by two scales, and is not in the GLB")
        self.declared[name] = replace(self.declared[name], shape=shape(value.type), **vars(quant))
        self.exchanged[source(value), quant] = name

    def on_host(self, value: SSAValue, name: str, role: A.Role) -> str:
        """Give a value that has no integers a tensor in the host's memory.

        Raises Refusal for one that the array reads.
        """
        if any(not isinstance(use.operation, HostOp | ReturnOp) for use in uses(value)):
            raise Refusal(f"'{name}' is read as integers, but has no cnn.quant with a scale: give it one")
        dims, codes = shape(value.type), codes_of(value.type)
        tensor = A.Tensor(name, "host", prod(dims), dims, role, element=codes.element if codes else "float32")
        self.places["dram", source(value)] = self.declare(tensor)
        return self.tensor("dram", value)
