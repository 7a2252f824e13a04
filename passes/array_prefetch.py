"""Brings the first weights of a layer into the GLB while the layer before it computes.

The model places these transfers by the same rule in its own program (`_carrying` in `cnncc/model/program_schedule.py`).
`tests/test_predict.py` compares the counters of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.dialects.array import (
    CommitOp,
    Direction,
    DmaAttr,
    DmaOp,
    LayerOp,
    LoadOp,
    RepeatOp,
    UnitOp,
    ViewAttr,
    ViewOp,
    tensors_of,
)
from cnncc.errors import Refusal
from cnncc.model.glb_tokens import FREE_TWICE
from cnncc.passes._programs.array_mark import marked_array
from cnncc.passes._programs.word_bounds import whole_of
from cnncc.passes.array_allocate import allocate


@dataclass(frozen=True)
class ArrayPrefetchPass(ModulePass):
    """Move the first transfers of weights and parameters of marked layers into the layers before.

        array.layer "conv2" { … }                               array.layer "conv2" { … array.dma in, … next.weight … }
        array.layer "conv4" prefetched { array.dma … }    ->    array.layer "conv4" { … }

    Operands that come once are prefetched as a whole, others by their first slice if they have two buffers. The first
    load of weights waits for their semaphore wherever the transfer stands. Its place in the layer before is, by the
    first case that holds:

    1. Both slices of the last block have come: behind the loads of the first slice, which free a buffer.
    2. Transfers bring blocks in: behind the last of them.
    3. Behind the first transfers.

    Without the pass every layer starts by waiting for its weights. A marked layer that cannot be prefetched is refused.
    """

    name = "array-prefetch"
    arch: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Move what is marked, layer by layer."""
        marked = False
        for before, layer in pairwise([None, *op.ops]):
            if isinstance(layer, LayerOp) and layer.prefetched is not None:
                _move(op, layer, before)
                layer.prefetched, marked = None, True
        if marked:
            # `array-allocate` would refuse it, too, but could not say that prefetching is why.
            try:
                allocate(op, marked_array(op, self.arch, self.name).glb)
            except Refusal as refusal:
                raise Refusal(f"with the prefetched operands: {refusal}", *refusal.findings) from refusal


def _refuse(layer: LayerOp, why: str) -> Refusal:
    return Refusal(f"layer {layer.label.data} is to be prefetched, but {why}")


def _transfers(module: ModuleOp, layer: LayerOp) -> list[DmaOp]:
    """The first transfers of parameters and of weights, among those that the layer begins with.

    A transfer that waits for its only buffer is not prefetched. Later transfers are not either, because the DMA runs
    all transfers in order.
    """
    tensors, views, first = tensors_of(module), _views(layer), dict[str, DmaOp]()
    for op in (op for op in _head(layer.body.block) if isinstance(op, DmaOp)):
        if tensors[views[op.record.data.dram].record.data.tensor].role == "weight":
            first.setdefault(op.record.data.glb, op)
    return list(takewhile(lambda op: op.record.data.tokens.take in (0, *FREE_TWICE), first.values()))


def _views(layer: LayerOp) -> dict[str, ViewOp]:
    return {op.record.data.name: op for op in layer.body.block.ops if isinstance(op, ViewOp)}


def _head(block: Block) -> Iterator[Operation]:
    """What a block begins with, up to its first loop, load or commit."""
    return takewhile(lambda op: isinstance(op, ViewOp | UnitOp | DmaOp), block.ops)


def _comes_in(op: Operation) -> bool:
    return any(isinstance(inner, DmaOp) and inner.record.data.direction == Direction.IN for inner in op.walk())


def _last_that_comes_in(before: LayerOp) -> Operation:
    """What the transfers of the next layer stand behind."""
    block = before.body.block
    head = list(_head(block))
    later = [op for op in block.ops if op not in head and _comes_in(op)]
    if not later:
        return [op for op in head if isinstance(op, ViewOp | DmaOp)][-1]
    last = later[-1]
    # Loops around blocks in two buffers are peeled: what brings the last block stands in loops of one iteration.
    while isinstance(last, RepeatOp) and last.record.data.count == 1:
        inner = [op for op in last.body.block.ops if _comes_in(op)]
        # The transfer stands in this loop itself: the place is behind it, as behind a loop of several iterations.
        if not any(isinstance(op, RepeatOp) for op in inner):
            break
        last = inner[-1]
    return last


def _where_free(anchor: Operation, semaphore: int) -> Operation:
    """The op, from `anchor` on, after which one of two buffers is free: one of their tokens comes later, not both."""

    def given(op: Operation) -> int:
        records = (inner.record.data for inner in op.walk() if isinstance(inner, LoadOp | CommitOp | DmaOp))
        return sum(record.tokens.give == semaphore for record in records)

    while sum(map(given, _behind(anchor))) > 1:
        anchor = next(op for op in _behind(anchor) if given(op))
        while isinstance(anchor, RepeatOp) and given(anchor) > 1:
            anchor = next(op for op in anchor.body.block.ops if given(op))
    return anchor


def _behind(op: Operation) -> Iterator[Operation]:
    """What follows in its block, and in those around it."""
    while not isinstance(op, LayerOp):
        following = op.next_op
        while following is not None:
            yield following
            following = following.next_op
        parent = op.parent_op()
        assert parent is not None
        op = parent


def _check_apart(module: ModuleOp, layer: LayerOp, before: LayerOp, transfers: list[DmaOp]) -> None:
    """Refuse transfers into words that the layer before still uses. Raises Refusal."""
    tensors, views = tensors_of(module), _views(layer)

    def whole(view: ViewOp) -> str:
        return whole_of(tensors[view.record.data.tensor], tensors)[0].name

    used = {whole(op) for op in before.walk() if isinstance(op, ViewOp)}
    for dma in (op.record.data for op in transfers):
        if (name := whole(views[dma.glb])) in used:
            source = views[dma.dram].record.data.tensor
            raise _refuse(layer, f"{source} would come into tensor {name}, which layer {before.label.data} before uses")


def _move(module: ModuleOp, layer: LayerOp, before: Operation | None) -> None:
    """Put the first transfers of a layer into the one before, with views of their own. Raises Refusal."""
    # `semaphores`, the layer that gives tokens to all others, has no views.
    if not isinstance(before, LayerOp) or not _views(before):
        raise _refuse(layer, "there is no layer before it")
    if not any(isinstance(op, ViewOp | DmaOp) for op in _head(before.body.block)):
        raise _refuse(layer, f"layer {before.label.data} before it begins with a loop, so that no place is left")
    if not (transfers := _transfers(module, layer)):
        raise _refuse(layer, "none of its weights and parameters can be: they come as a whole, or in two buffers")
    _check_apart(module, layer, before, transfers)
    views, anchor = _views(layer), _last_that_comes_in(before)
    for take in dict.fromkeys(op.record.data.tokens.take for op in transfers):
        anchor = _where_free(anchor, take) if take else anchor
    for op in transfers:
        dma = op.record.data
        names = {name: f"next.{name}" for name in (dma.dram, dma.glb)}
        for name, new_name in names.items():
            view = ViewOp.create(
                properties={"record": ViewAttr(replace(views[name].record.data, name=new_name, steps=()))}
            )
            Rewriter.insert_op(view, InsertPoint.after(anchor))
            anchor = view
        op.detach()
        op.record = DmaAttr(replace(dma, dram=names[dma.dram], glb=names[dma.glb]))
        Rewriter.insert_op(op, InsertPoint.after(anchor))
        anchor = op
