"""Operations of the `array` dialect, made of a program's plain records."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Attribute, Block, Operation, Region

from cnncc.dialects import array as A
from cnncc.passes._programs.core_program import ChainProgram
from cnncc.passes._programs.layer_records import Body, Node

COMPUTING = (A.Engine.LOAD, A.Engine.ARRAY, A.Engine.COMMIT)

_OPS: dict[type, tuple[type[Operation], type]] = {
    A.View: (A.ViewOp, A.ViewAttr),
    A.Dma: (A.DmaOp, A.DmaAttr),
    A.Load: (A.LoadOp, A.LoadAttr),
    A.Mac: (A.MacOp, A.MacAttr),
    A.Unit: (A.UnitOp, A.UnitAttr),
    A.Commit: (A.CommitOp, A.CommitAttr),
    A.Tensor: (A.TensorOp, A.TensorAttr),
    A.Signal: (A.SignalOp, A.SignalAttr),
    A.Sync: (A.SyncOp, A.SyncAttr),
    A.TokenRoute: (A.RouteOp, A.RouteAttr),
}


def record_op(record: object) -> Operation:
    """The operation that holds a record."""
    op, attr = _OPS[type(record)]
    return op.create(properties={"record": attr(record)})


def node_op(node: Node) -> Operation:
    """The operation of a node, with all that a loop repeats."""
    if not isinstance(node, Body):
        return record_op(node)
    body = Region(Block([node_op(inner) for inner in node.nodes]))
    return A.RepeatOp.create(properties={"record": A.RepeatAttr(node.repeat)}, regions=[body])


def layer_op(
    label: str, value: str, ops: Sequence[Operation], engines: tuple[A.Engine, ...], prefetched: UnitAttr | None = None
) -> A.LayerOp:
    """A layer that ends when these engines are idle."""
    names: dict[str, Attribute] = {"label": StringAttr(label), "value": StringAttr(value)}
    names |= {"prefetched": prefetched} if prefetched else {}
    sync = [record_op(A.Sync(engines))] if engines else []
    return A.LayerOp.create(properties=names, regions=[Region(Block([*ops, *sync]))])


def core_ops(chain: ChainProgram, program: Sequence[Operation]) -> list[Operation]:
    """All cores. program: of core 0."""
    cores: list[tuple[A.CorePlace, Sequence[Operation]]] = [(A.CorePlace("dram"), program)]
    cores += ((at, [layer_op(at.label, "", list(map(node_op, nodes)), COMPUTING)]) for at, nodes in chain.cores)
    result: list[Operation] = []
    for (place, inside), routes, tokens in zip(cores, chain.routes, chain.tokens, strict=True):
        signals = [A.Signal(int(semaphore), count) for semaphore, count in tokens.items() if count]
        body = Region(Block([*map(record_op, routes), *map(record_op, signals), *inside]))
        result.append(A.CoreOp.create(properties={"record": A.CoreAttr(place)}, regions=[body]))
    return result
