"""cnn-legalize: turns steps left unfused into ops of the array, and gives each operand of a concatenation one place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, UnitAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.dialects.cnn import (
    ClampOp,
    ConcatOp,
    ConvOp,
    ElementwiseOp,
    HostOp,
    LookupOp,
    PoolOp,
    RequantOp,
    ReshapeOp,
    ShuffleOp,
    SliceOp,
    Steps,
    StepsAttr,
    WindowAttr,
    element_bits,
    is_per_channel,
    shape,
    value_key,
)
from cnncc.passes._onnx.labels import free_name
from cnncc.window import Window

OPERAND_BITS = 16  # the widest operand; wider values are psums


@dataclass(frozen=True)
class CnnLegalizePass(ModulePass):
    """A step that `cnn-fuse-epilogue` leaves becomes a pooling over one pixel with an epilogue.

        %2 = cnn.clamp %1 by <clamp = [0, 127]> label "relu"

    becomes

        %2 = cnn.pool "max" %1 window <kernel = [1, 1]> then <clamp = [0, 127]> label "relu"

    Why: the value before has other readers, so its own epilogue cannot do the step. A sum or product with one pixel a
    channel becomes such a pooling, too, as it cannot stream past the array. Only conv, pool, add, mul, reshape, slice,
    concat and host remain.

    An operand of a concatenation is computed in its place in the result. Some are copied first, by such a pooling
    without epilogue. These are an operand of two places, a reshape to other rows and columns, a slice, and a value that
    host or user share. A value that is read as other images is copied, too, as behind each image lie the other parts.
    So is a slice of channels that is read as other images, or by host or user.

        %2 = cnn.concat %0, %0 label "cat"   ->   %1 = cnn.pool "max" %0 window <kernel = [1, 1]> label "cat.copy1"
                                                  %2 = cnn.concat %0, %1 label "cat"

    A shuffle of a concatenation of G equal operands, by G, is that concatenation interleaved: each operand is computed
    channel by channel in its places, and nothing is shuffled. Its operands have no other readers, and are no sums
    that stream past the array, nor concatenations; others are copied.

        %2 = cnn.concat %0, %1 label "cat"            ->   %3 = cnn.concat %0, %1 interleaved label "s"
        %3 = cnn.shuffle %2 groups 2 label "s"

    Operands whose pixels are in turn are computed and copied by the same rules. Those that are slices of a
    concatenation, each an operand of it, become these operands.

        %2 = cnn.concat %0, %1 label "cat"                     ->   %5 = cnn.concat %0, %1 pixels 1 by 2 label "up"
        %3 = cnn.slice %2 from 0 label "up.part0"
        %4 = cnn.slice %2 from 8 label "up.part1"
        %5 = cnn.concat %3, %4 pixels 1 by 2 label "up"

    Slices that follow each other in a value and among these operands are one operand, which may be the whole value;
    but not where channels interleave, or pixels are in turn.
    """

    name = "cnn-legalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite all of them in `op`."""
        for candidate in list(op.walk()):
            match candidate:
                case ClampOp() | RequantOp() | LookupOp():
                    _legalize(candidate, candidate.by)
                case ElementwiseOp() if is_per_channel(candidate.residual, candidate.result):
                    _legalize(candidate, candidate.steps)
                case ShuffleOp() if _is_of_operands(candidate):
                    _interleave(candidate)
                case ShuffleOp():
                    _legalize(candidate, StepsAttr(Steps(shuffle=candidate.groups.value.data)))
                case ConcatOp() if candidate.pixels is not None:
                    _take_operands(candidate)
                case _:
                    pass
        labels = {key for inner in op.walk() if (key := value_key(inner)) is not None}
        placed: set[SSAValue] = set()
        for candidate in reversed(list(op.walk())):  # slices of slices first: those around may then stay
            if isinstance(candidate, SliceOp) and not _is_read_in_place(candidate.result):
                _copy_slice(candidate, labels)
        for candidate in list(op.walk()):
            if isinstance(candidate, ConcatOp):
                if _follow(candidate):  # joined slices would not be taken in turn
                    _join_slices(candidate, labels)
                _place_operands(candidate, placed, labels)


def _legalize(op: ClampOp | RequantOp | LookupOp | ShuffleOp | ElementwiseOp, steps: StepsAttr) -> None:
    if element_bits(op.x.type) > OPERAND_BITS or len(shape(op.x.type)) != 4:
        return  # a pooling has no psums as operands; only hand-written IR reads them twice
    until = {"until": op.until} if isinstance(op, ElementwiseOp) and op.until else {}
    properties = _one_pixel(op.label) | until | {"steps": steps}
    pool = PoolOp.create(
        operands=op.operands, properties=properties, attributes=dict(op.attributes), result_types=[op.result.type]
    )
    Rewriter.replace_op(op, pool)


def _is_of_operands(shuffle: ShuffleOp) -> bool:
    """Whether a shuffle takes the channels of the operands of a concatenation in turn, and alone reads it."""
    concat = shuffle.x.owner
    if not isinstance(concat, ConcatOp) or not _follow(concat) or not concat.result.has_one_use():
        return False
    return len(concat.inputs) == shuffle.groups.value.data and len({value.type for value in concat.inputs}) == 1


def _interleave(shuffle: ShuffleOp) -> None:
    """Let the concatenation before a shuffle interleave its operands."""
    concat = shuffle.x.owner
    assert isinstance(concat, ConcatOp)
    together = ConcatOp.create(
        operands=concat.inputs,
        properties={"interleaved": UnitAttr(), **({"label": shuffle.label} if shuffle.label else {})},
        attributes=dict(shuffle.attributes),
        result_types=[shuffle.result.type],
    )
    Rewriter.replace_op(shuffle, together)
    Rewriter.erase_op(concat)


def _follow(concat: ConcatOp) -> bool:
    """Whether the operands of a concatenation follow each other; else channels interleave, or pixels are in turn."""
    return concat.interleaved is None and concat.pixels is None


def _take_operands(concat: ConcatOp) -> None:
    """Let operands that are slices of a concatenation, each one operand of it, be these operands."""
    before = dict.fromkeys(concat.inputs)
    concat.operands = [_sliced_operand(value) for value in concat.inputs]
    sources = dict.fromkeys(value.owner.x for value in before if isinstance(value.owner, SliceOp))
    _erase_unread([*before, *sources])


def _sliced_operand(value: SSAValue) -> SSAValue:
    """The operand of a concatenation that `value` is a slice of; `value` itself if it is no slice of one operand."""
    if not isinstance(value.owner, SliceOp):
        return value
    concat, first = value.owner.x.owner, value.owner.first.value.data
    for operand in concat.inputs if isinstance(concat, ConcatOp) and _follow(concat) else ():
        if first == 0 and operand.type == value.type:
            return operand
        first -= shape(operand.type)[1]
    return value


def _erase_unread(values: Iterable[SSAValue]) -> None:
    """Erase slices and concatenations that nothing reads."""
    for value in values:
        if isinstance(value.owner, SliceOp | ConcatOp) and value.first_use is None:
            Rewriter.erase_op(value.owner)


def _one_pixel(label: StringAttr | None) -> dict[str, Attribute]:
    named: dict[str, Attribute] = {"label": label} if label else {}
    return {"kind": StringAttr("max"), "window": WindowAttr(Window((1, 1))), **named}


def _is_read_in_place(value: SSAValue) -> bool:
    """Whether layers alone read a value, as the same images: other words may lie between these."""
    values = [value]
    # The list grows by reshapes and slices of what is in it.
    for each in values:
        values += [use.operation.results[0] for use in each.uses if isinstance(use.operation, ReshapeOp | SliceOp)]
    shared = any(isinstance(use.operation, HostOp | ReturnOp) for each in values for use in each.uses)
    return not shared and len({_padded_dims(each)[0] for each in values}) == 1


def _copy_slice(op: SliceOp, labels: set[str]) -> None:
    """Let others read a copy of a slice."""
    after = op.next_op
    assert after is not None, "func.return follows"
    uses = list(op.result.uses)
    copy = _copied(op.result, after, free_name(f"{value_key(op) or op.name}.copy", labels))
    for use in uses:
        use.operation.operands[use.index] = copy


def _join_slices(concat: ConcatOp, labels: set[str]) -> None:
    """Let operands that are slices, and follow each other in one value, be one operand."""
    runs = list[list[SSAValue]]()
    for value in concat.inputs:
        if runs and _follows(runs[-1][-1], value):
            runs[-1].append(value)
        else:
            runs.append([value])
    before = dict.fromkeys(concat.inputs)
    concat.operands = [run[0] if len(run) == 1 else _joined(run, concat, labels) for run in runs]
    _erase_unread(before)


def _follows(value: SSAValue, other: SSAValue) -> bool:
    one, two = value.owner, other.owner
    if not (isinstance(one, SliceOp) and isinstance(two, SliceOp)) or one.x is not two.x:
        return False
    return two.first.value.data == one.first.value.data + shape(value.type)[1]


def _joined(run: Sequence[SSAValue], concat: ConcatOp, labels: set[str]) -> SSAValue:
    """The channels of slices that follow each other."""
    first = run[0].owner
    assert isinstance(first, SliceOp) and isinstance(kind := first.x.type, TensorType)
    images, *rest = shape(kind)
    rest[0] = sum(shape(value.type)[1] for value in run)
    if rest[0] == shape(kind)[1]:
        return first.x
    label = StringAttr(free_name(f"{value_key(concat)}.slices", labels))
    types = [TensorType(kind.element_type, [images, *rest])]
    op = SliceOp.create(operands=[first.x], properties={"first": first.first, "label": label}, result_types=types)
    Rewriter.insert_op(op, InsertPoint.before(concat))
    return op.result


def _place_operands(concat: ConcatOp, placed: set[SSAValue], labels: set[str]) -> None:
    """Copy the operands of `concat` that cannot be computed in their place. placed: values with a place so far."""
    for index, value in enumerate(concat.inputs):
        source = _source(value)
        alone = _follow(concat) or (source is value and _is_alone(value))
        alone = alone and not (concat.pixels and _is_scaled_by_position(value))
        if source is None or source in placed or not _is_free(source) or not alone:
            concat.operands[index] = source = _copied(
                value, concat, free_name(f"{value_key(concat)}.copy{index}", labels)
            )
            source = _source(source)
        assert source is not None
        placed.add(source)


def _is_free(source: SSAValue) -> bool:
    """Whether a layer computes `source` for layers alone, and these read the same images.

    A value that user or host share is a tensor of its own.
    """
    return isinstance(source.owner, ConvOp | PoolOp | ElementwiseOp | ConcatOp) and _is_read_in_place(source)


def _is_alone(value: SSAValue) -> bool:
    """Whether nothing else reads a value, which is neither a concatenation nor a sum that streams past the array."""
    return isinstance(value.owner, ConvOp | PoolOp) and value.has_one_use()


def _is_scaled_by_position(value: SSAValue) -> bool:
    """Whether each position has a scale of its own: a commit counts positions, which follow each other then."""
    steps = value.owner.steps if isinstance(value.owner, ConvOp | PoolOp) else None
    return steps is not None and steps.data.per_position


def _source(value: SSAValue) -> SSAValue | None:
    """The value that `value` is a reshape of, or itself; None if the reshape changes channels, rows or columns."""
    image = _padded_dims(value)
    while isinstance(value.owner, ReshapeOp):
        value = value.owner.x
    return value if _padded_dims(value) == image else None


def _padded_dims(value: SSAValue) -> tuple[int, ...]:
    """n c h w, missing ones as 1, and any further dims."""
    dims = shape(value.type)
    return dims + (1,) * (4 - len(dims))


def _copied(value: SSAValue, before: Operation, label: str) -> SSAValue:
    """A copy of `value`, of the same shape, by a pooling of images."""
    ops = list(_copy_ops(value, StringAttr(label)))
    Rewriter.insert_op(ops, InsertPoint.before(before))
    return ops[-1].results[0]


def _copy_ops(value: SSAValue, label: StringAttr) -> Iterator[Operation]:
    whole = value.type
    assert isinstance(whole, TensorType)
    image = TensorType(whole.element_type, _padded_dims(value))
    if whole != image:
        reshape = ReshapeOp.create(operands=[value], result_types=[image])
        yield reshape
        value = reshape.result
    pool = PoolOp.create(operands=[value], properties=_one_pixel(label), result_types=[image])
    yield pool
    if whole != image:
        yield ReshapeOp.create(operands=[pool.result], result_types=[whole])
