"""The words of the GLB that the tensors of several cores take, in banks of their own (CORE-5). No pass.

One engine of one core reads a bank, and one writes it. Tensors with the same reader and writer lie one after the other.
The next ones begin in the next bank. All lie there for the whole run, as all cores run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from math import ceil

from xdsl.ir import Operation

from cnncc.arch.model import Glb
from cnncc.dialects import array as A
from cnncc.errors import Refusal

READS, WRITES = "read", "written"
MOST_NAMED = 3


def bank_places(cores: Sequence[A.CoreOp], tensors: Mapping[str, A.Tensor], glb: Glb) -> dict[str, int]:
    """The first word of every tensor in the GLB that cores use. Raises Refusal where they take too many banks."""
    words, pools = glb.bank_words, dict[tuple[str, str], list[A.Tensor]]()
    for name, users in _users(cores, tensors).items():
        for how, engines in users.items():
            if len(engines) > 1:
                raise Refusal(
                    f"tensor {name} is {how} by {' and by '.join(sorted(engines))}: one engine of one core does, as a "
                    f"bank of the GLB has one port for it (CORE-5)"
                )
        pools.setdefault((_only(users[READS]), _only(users[WRITES])), []).append(tensors[name])
    banks = {engines: ceil(sum(t.words for t in pool) / words) for engines, pool in pools.items()}
    if (needed := sum(banks.values())) > glb.banks:
        placed = [tensor for pool in pools.values() for tensor in pool]
        most = sorted(placed, key=lambda tensor: -tensor.words)[:MOST_NAMED]
        total, largest = sum(t.words for t in placed), ", ".join(f"{t.name} {t.words:,}" for t in most)
        raise Refusal(
            f"the tensors of the cores take {total:,} words in {needed} banks of {words:,} words, the array has "
            f"{glb.banks} (glb.words = {glb.words:,}, glb.banks, CORE-5); the largest are {largest}: fewer "
            f"rows in stripes or channels, fewer layers side by side, or a larger GLB"
        )
    places, bank = dict[str, int](), 0
    for engines, pool in pools.items():
        at = bank * words
        for tensor in pool:
            places[tensor.name] = at
            at += tensor.words
        bank += banks[engines]
    return places


def _only(engines: Set[str]) -> str:
    return next(iter(engines), "")


def _users(cores: Sequence[A.CoreOp], tensors: Mapping[str, A.Tensor]) -> dict[str, dict[str, set[str]]]:
    """The engines that read, and those that write, each tensor in the GLB, as texts: `load of core conv1`."""
    users = {name: {READS: set[str](), WRITES: set[str]()} for name, each in tensors.items() if each.memory == "glb"}
    for core in cores:
        for layer in (op for op in core.body.block.ops if isinstance(op, A.LayerOp)):
            for engine, how, tensor in _accesses(layer):
                if tensor in users:
                    users[tensor][how].add(f"{engine} of core {core.record.data.label}")
    return {name: each for name, each in users.items() if any(each.values())}


def _accesses(layer: A.LayerOp) -> Iterator[tuple[str, str, str]]:
    """(engine, how, tensor) of all instructions of a layer that name a view. Views stand before their uses."""
    # A commit names no view of what it does not read; "" is no tensor.
    tensor: dict[str, str] = {"": ""}
    for op in layer.walk():
        if isinstance(op, A.ViewOp):
            tensor[op.record.data.name] = op.record.data.tensor
        yield from ((engine, how, tensor[view]) for engine, how, view in _views(op))


def _views(op: Operation) -> Iterator[tuple[str, str, str]]:
    """(engine, how, view) of an operation."""
    match op:
        case A.DmaOp():
            dma = op.record.data
            yield "dma", WRITES if dma.direction == A.Direction.IN else READS, dma.glb
        case A.LoadOp():
            yield "load", READS, op.record.data.view
        case A.CommitOp():
            commit = op.record.data
            yield "commit", WRITES, commit.view
            for view in (commit.operand, commit.residual, commit.params, commit.sums):
                yield "commit", READS, view
            yield "commit", WRITES, commit.sums
        case _:
            pass
