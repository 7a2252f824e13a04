"""Groups of values of an `onnx` graph that share one scale. No pass: placement uses them.

A MaxPool, Reshape, Slice or DepthToSpace only moves its operand's integers to its result. So does a concatenation with
the integers of all its operands, and a Relu, Clip or LeakyRelu of `scale_keepers`. Values that such layers connect are
a *group*. The *makers* of a group are its values that no such layer computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.ir import SSAValue

from cnncc.dialects.onnx import NodeOp
from cnncc.passes._onnx.codes import Codes, codes_of
from cnncc.passes._onnx.layers import (
    ClampLayer,
    ConcatLayer,
    ConvLayer,
    LeakyLayer,
    PixelsLayer,
    PoolLayer,
    ReshapeLayer,
    ShuffleLayer,
    SliceLayer,
)
from cnncc.passes._onnx.quantised_layers import AnyLayer, DequantizeLayer

CodesOf = Callable[[Sequence[SSAValue]], Codes | None]
Layers = Mapping[NodeOp, AnyLayer]


def moves_integers(layer: AnyLayer | None) -> bool:
    """Whether `layer` only selects, moves or compares integers, so that its result may have its operand's scale."""
    if isinstance(layer, PoolLayer):
        return layer.kind == "max"
    movers = ReshapeLayer | SliceLayer | ShuffleLayer | PixelsLayer | ConcatLayer
    return isinstance(layer, ClampLayer | LeakyLayer | movers)


def leaky_after(value: SSAValue, layers: Layers) -> tuple[NodeOp, LeakyLayer] | None:
    """The only reader of `value`, if it is a LeakyRelu and `value` is a result of products or sums of reals."""
    node, use = value.owner, value.get_user_of_unique_use()
    made = layers.get(node) if isinstance(node, NodeOp) else None
    layer = layers.get(use) if isinstance(use, NodeOp) else None
    has_sums = isinstance(made, ConvLayer) or (isinstance(made, PoolLayer) and made.kind == "sum")
    if not (has_sums and isinstance(use, NodeOp) and isinstance(layer, LeakyLayer)):
        return None
    return use, layer


def sources(node: NodeOp, layer: AnyLayer) -> Sequence[SSAValue]:
    """The operands of a layer that moves integers."""
    return node.operands if isinstance(layer, ConcatLayer) else node.operands[:1]


def saturates_at_reader(value: SSAValue, layers: Layers) -> bool:
    """Whether the only reader of `value` moves its integers, so that `value` may saturate where the reader does."""
    use = value.get_user_of_unique_use()
    layer = layers.get(use) if isinstance(use, NodeOp) else None
    if isinstance(layer, LeakyLayer):
        return leaky_after(value, layers) is not None
    return moves_integers(layer)


def scale_keepers(layers: Layers) -> frozenset[NodeOp]:
    """The nodes whose results keep their operands' scale. layers: in the graph's order.

    A LeakyRelu keeps the scale if it is computed with the sum before it, before rounding: see `leaky_after`. A Relu or
    Clip keeps it if its operand, and all values the operand is made of, have no other reader: the scale then serves its
    result alone. It also keeps codes of the model. Otherwise its range may be a small part of its operand's, or lie
    outside:

        a = Conv(x), r = Relu(a), y = Add(r, x)    r keeps the scale of a
        a = Conv(x), r = Relu(a), y = Add(r, a)    r has its own: a may be -9..0.1, r is 0..0.1
    """
    nodes: set[NodeOp] = set()
    alone: set[SSAValue] = set()  # results of `nodes` made of values without other readers
    coded: set[SSAValue] = set()  # results of `nodes` that are codes

    def is_alone(value: SSAValue) -> bool:
        return value.has_one_use() and (value.owner not in nodes or value in alone)

    def is_coded(value: SSAValue) -> bool:
        made = layers.get(value.owner) if isinstance(value.owner, NodeOp) else None
        return codes_of(value.type) is not None or isinstance(made, DequantizeLayer) or value in coded

    for node, layer in layers.items():
        if not moves_integers(layer):
            continue
        read, result = sources(node, layer), node.results[0]
        if isinstance(layer, LeakyLayer) and leaky_after(read[0], layers) is None:
            continue
        if isinstance(layer, ClampLayer) and not (is_alone(read[0]) or is_coded(read[0])):
            continue
        nodes.add(node)
        alone |= {result} if all(map(is_alone, read)) else set()
        coded |= {result} if all(map(is_coded, read)) else set()
    return frozenset(nodes)


class ScaleGroups:
    """The groups, as a forest of values (union-find); the root of a group is its first maker."""

    def __init__(self, layers: Layers, keepers: frozenset[NodeOp], codes_of: CodesOf) -> None:
        """Build the groups. layers: in the graph's order. codes_of: the model's own codes of a group, from its makers.

        A concatenation joins groups only if they have the same codes, or all none.
        """
        self._parents: dict[SSAValue, SSAValue] = {}
        self._makers: dict[SSAValue, list[SSAValue]] = {}
        self._joined: set[SSAValue] = set()
        for node, layer in layers.items():
            if node not in keepers:
                continue
            first, *others = dict.fromkeys(self.root(value) for value in sources(node, layer))
            if any(codes_of(self.makers(other)) != codes_of(self.makers(first)) for other in others):
                continue
            if isinstance(layer, ConcatLayer):
                self._joined.add(first)
            self._makers[first] = [maker for root in (first, *others) for maker in self.makers(root)]
            self._parents |= dict.fromkeys((*others, node.results[0]), first)
        # Later nodes may have joined these groups to others.
        self._joined = {self.root(value) for value in self._joined}

    def root(self, value: SSAValue) -> SSAValue:
        """The representative of the group of `value`."""
        while (parent := self._parents.get(value)) is not None:
            value = parent
        return value

    def makers(self, value: SSAValue) -> Sequence[SSAValue]:
        """The makers of the group of `value`."""
        root = self.root(value)
        return self._makers.get(root, [root])

    def is_joined(self, value: SSAValue) -> bool:
        """Whether there is a concatenation in the group of `value`."""
        return self.root(value) in self._joined
