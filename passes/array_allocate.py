"""Gives every tensor its first word: in DRAM behind the tensor before, in the GLB where words are free meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.arch.model import Glb
from cnncc.dialects.array import LayerOp, Tensor, TensorAttr, TensorOp, ViewOp, cores_of
from cnncc.dialects.isa import InstOp
from cnncc.dialects.weights import GlobalOp
from cnncc.errors import Finding, Refusal
from cnncc.isa.dram_layout import dram_layout
from cnncc.passes._programs.array_mark import marked_array
from cnncc.passes._programs.core_banks import bank_places
from cnncc.passes._programs.glb_packing import Lifetime, pack
from cnncc.passes._programs.word_bounds import whole_of


def _lifetimes(module: ModuleOp, tensors: Mapping[str, Tensor]) -> list[Lifetime]:
    layers: dict[str, list[int]] = {}
    for number, layer in enumerate(op for op in module.ops if isinstance(op, LayerOp)):
        for name in (op.record.data.tensor for op in layer.walk() if isinstance(op, ViewOp)):
            if name not in tensors:
                raise Refusal(f"layer {layer.label.data}: a view names tensor '{name}', which does not exist")
            layers.setdefault(whole_of(tensors[name], tensors)[0].name, []).append(number)
    return [
        Lifetime(name, tensor.words, min(layers[name]), max(layers[name]))
        for name, tensor in tensors.items()
        if tensor.memory == "glb" and name in layers
    ]


def check_places(module: ModuleOp, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that share words of the GLB and are needed at the same time. Raises Refusal."""
    placed = {name: tensor for name, tensor in tensors.items() if tensor.at >= 0}
    in_glb = [tensor for tensor in placed.values() if tensor.memory == "glb" and not tensor.part_of]
    if cores_of(module):  # run all at once
        _check_apart(in_glb)
        return
    needed: dict[int, list[Tensor]] = {}
    for name, _, first, last in _lifetimes(module, tensors):
        for number in range(first, last + 1) if name in placed else ():
            needed.setdefault(number, []).append(placed[name])
    for together in needed.values():
        _check_apart(together)


def _check_apart(tensors: Sequence[Tensor]) -> None:
    """Raises Refusal for tensors that share words."""
    for one, other in pairwise(sorted((tensor for tensor in tensors if tensor.words), key=lambda tensor: tensor.at)):
        if other.at < one.at + one.words:
            raise Refusal(f"tensors {one.name} and {other.name} share word {other.at} of the GLB: run array-allocate")


def _check_size(module: ModuleOp, lifetimes: Sequence[Lifetime], needed: int, glb_words: int) -> None:
    if needed <= glb_words:
        return
    labels = [op.label.data for op in module.ops if isinstance(op, LayerOp)]
    live = [sum(t.words for t in lifetimes if t.first <= i <= t.last) for i in range(len(labels))]
    worst = live.index(max(live))
    what = "its tensors and those kept for later do not fit the GLB"
    help_ = f"the smallest that would do is {needed:,}; or smaller slices of weights, or fewer rows of a group"
    findings = [
        Finding(what, where=label, resource="glb.words", value=words, limit=glb_words, help=help_)
        for i, (label, words) in enumerate(zip(labels, live, strict=True))
        # The worst layer may fit by itself: then the gaps between tensors exceed the GLB.
        if words > glb_words or i == worst
    ]
    message = (
        f"layer {labels[worst]}: its tensors and those kept for later take {live[worst]} words, the array has "
        f"glb.words = {glb_words}; with these mappings the smallest that would do is {needed}: use a "
        f"larger array, smaller slices of the weights, or fewer rows of a group"
    )
    raise Refusal(message if len(findings) == 1 else f"array-allocate: {len(findings)} problems", *findings)


def _weights(module: ModuleOp, tensors: Mapping[str, Tensor]) -> list[str]:
    """The weights that lie in DRAM, in the order of the module's symbols."""
    sizes = {op.sym_name.data: prod(op.type.get_shape()) for op in module.ops if isinstance(op, GlobalOp)}
    for tensor in tensors.values():
        if tensor.role == "weight" and tensor.words != sizes.get(tensor.name):
            raise Refusal(f"tensor {tensor.name}: {tensor.words} words, its weights have {sizes.get(tensor.name)}")
    return [name for name in sizes if name in tensors and tensors[name].role == "weight"]


def allocate(module: ModuleOp, glb: Glb) -> dict[str, int]:
    """The first word of every tensor that lies in DRAM or the GLB. Raises Refusal where the GLB is too small."""
    records = [op.record.data for op in module.ops if isinstance(op, TensorOp)]
    tensors = {tensor.name: tensor for tensor in records}
    if len(tensors) < len(records):
        twice = next(t.name for i, t in enumerate(records) if t.name in {other.name for other in records[:i]})
        raise Refusal(f"there are two tensors '{twice}'")
    if cores := cores_of(module):
        placed = bank_places(cores, tensors, glb)
    else:
        lifetimes = _lifetimes(module, tensors)
        needed, placed = pack(lifetimes)
        _check_size(module, lifetimes, needed, glb.words)
    in_dram = [*_weights(module, tensors), *(tensor.name for tensor in tensors.values() if tensor.in_record)]
    placed |= dict(zip(in_dram, dram_layout([tensors[name].words for name in in_dram]), strict=True))
    for tensor in tensors.values():
        whole, offset = whole_of(tensor, tensors)
        if tensor.part_of and whole.name in placed:
            placed[tensor.name] = placed[whole.name] + offset
    return placed


@dataclass(frozen=True)
class ArrayAllocatePass(ModulePass):
    """Give every tensor its first word.

    DRAM is laid out by rule MEM-2: the weights in the order of their symbols, then the tensors in the order of the
    module. A tensor in the GLB lives from the first to the last layer that has a view on it. Layers do not run at the
    same time (rule TOKEN-5), so other tensors may have its place before and after. A tensor without view gets no place.
    A tensor that is part of another has its place there.

    Cores run at the same time. So each of their tensors keeps its words for the whole run. One engine reads the bank
    that a tensor lies in, and one engine writes it (rule CORE-5).

        array.tensor x.glb, memory glb, words 192   ->   array.tensor x.glb, memory glb, words 192, at 0
    """

    name = "array-allocate"
    arch: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Set `at` in place. Raises Refusal, also for programs that are encoded, with the places in them."""
        if any(isinstance(part, InstOp) for part in op.ops):
            raise Refusal(
                f"{self.name}: the instructions hold the places of tensors already: run it before array-to-isa"
            )
        at = allocate(op, marked_array(op, self.arch, self.name).glb)
        for tensor_op in op.ops:
            if isinstance(tensor_op, TensorOp):
                tensor = tensor_op.record.data
                tensor_op.record = TensorAttr(replace(tensor, at=at.get(tensor.name, -1)))
