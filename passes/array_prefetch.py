"""Brings the weights of a layer into the GLB while the layer before it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from cnncc.arch.model import load_arch
from cnncc.dialects.array import DmaAttr, DmaOp, LayerOp, TensorOp, UnitOp, ViewAttr, ViewOp
from cnncc.errors import Refusal
from cnncc.passes.array_allocate import allocate


@dataclass(frozen=True)
class ArrayPrefetchPass(ModulePass):
    """Move the DMA transfers of whole weights into the layer before, where the GLB has room for both.

        array.layer "conv2" { … }                      array.layer "conv2" { … array.dma <glb = "next.weight"> … }
        array.layer "conv4" { array.dma … }     ->     array.layer "conv4" { … }

    The first load of weights waits for their semaphore wherever the transfer stands. Slices of weights stay: their
    transfers alternate with the loads of their own layer. Without it every layer starts by waiting for its weights.
    """

    name = "array-prefetch"
    arch: str = "spatial-8x8"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Move what fits, layer by layer."""
        words = load_arch(self.arch).glb.words
        for before, layer in pairwise(op.ops):
            if not isinstance(before, LayerOp) or not isinstance(layer, LayerOp) or not _views(before):
                continue
            if moved := _transfers(op, layer):
                _move(moved, layer, before)
                if not _fits(op, words):
                    _move_back(moved, layer, before)


def _transfers(module: ModuleOp, layer: LayerOp) -> list[DmaOp]:
    """The transfers of whole weights that a layer begins with: those before the first that waits or is of others.

    What stands behind others vouches for them, and stays behind them.
    """
    tensors = {t.record.data.name: t.record.data for t in module.ops if isinstance(t, TensorOp)}
    views = _views(layer)

    def whole(op: DmaOp) -> bool:
        dma = op.record.data
        return not dma.tokens.take and tensors[views[dma.dram].record.data.tensor].role == "weight"

    return list(takewhile(whole, (op for op in layer.body.block.ops if isinstance(op, DmaOp))))


def _views(layer: LayerOp) -> dict[str, ViewOp]:
    return {op.record.data.name: op for op in layer.body.block.ops if isinstance(op, ViewOp)}


def _move(transfers: Sequence[DmaOp], layer: LayerOp, before: LayerOp) -> None:
    """Put the transfers behind those of the layer before, with views of their own."""
    views = _views(layer)
    own = [op for op in before.body.block.ops if isinstance(op, ViewOp | DmaOp)]
    anchor: Operation = own[-1]
    for op in transfers:
        dma = op.record.data
        names = {name: f"next.{name}" for name in (dma.dram, dma.glb)}
        for name, new_name in names.items():
            view = ViewOp.create(
                properties={"record": ViewAttr(replace(views[name].record.data, name=new_name, steps=()))}
            )
            before.body.block.insert_op_after(view, anchor)
            anchor = view
        op.detach()
        op.record = DmaAttr(replace(dma, dram=names[dma.dram], glb=names[dma.glb]))
        before.body.block.insert_op_after(op, anchor)
        anchor = op


def _move_back(transfers: Sequence[DmaOp], layer: LayerOp, before: LayerOp) -> None:
    first = next(op for op in layer.body.block.ops if not isinstance(op, ViewOp | UnitOp))
    for op in transfers:
        dma = op.record.data
        for name in (dma.dram, dma.glb):
            view = _views(before)[name]
            view.detach()
            view.erase()
        op.detach()
        op.record = DmaAttr(replace(dma, dram=dma.dram.removeprefix("next."), glb=dma.glb.removeprefix("next.")))
        layer.body.block.insert_op_before(op, first)


def _fits(module: ModuleOp, words: int) -> bool:
    try:
        allocate(module, words)
    except Refusal:
        return False
    return True
