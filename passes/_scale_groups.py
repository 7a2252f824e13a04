"""Which values of an `onnx` graph share one scale. No pass: placement uses it.

The result of a Relu, MaxPool or Reshape is made of its operand's integers, and so are a concatenation's of all its
operands'. Values that are so connected are a *group*; its *makers* are those that no such layer computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.ir import SSAValue

from cnncc.dialects.onnx import NodeOp
from cnncc.passes._onnx_layers import ClampLayer, ConcatLayer, LeakyLayer, PoolLayer, ReshapeLayer, ShuffleLayer
from cnncc.passes._quantised_layers import AnyLayer, Codes

CodesOf = Callable[[Sequence[SSAValue]], Codes | None]


def keeps_scale(layer: AnyLayer | None) -> bool:
    """Has the result of `layer` the scale of its operand, or may have that of all its operands?"""
    if isinstance(layer, PoolLayer):
        return layer.kind == "max"
    return isinstance(layer, ClampLayer | LeakyLayer | ReshapeLayer | ShuffleLayer | ConcatLayer)


class ScaleGroups:
    """The groups, as a forest of values (union-find); the root of a group is its first maker."""

    def __init__(self, layers: Mapping[NodeOp, AnyLayer], codes_of: CodesOf) -> None:
        """layers: in the graph's order. codes_of: the codes that the model states for the group of some makers.

        An operand of a concatenation whose codes differ from those of the operands before it is of another group: it
        has to be requantised.
        """
        self._parents: dict[SSAValue, SSAValue] = {}
        self._makers: dict[SSAValue, list[SSAValue]] = {}
        self._joined: set[SSAValue] = set()
        for node, layer in layers.items():
            if keeps_scale(layer):
                first, *others = node.operands if isinstance(layer, ConcatLayer) else node.operands[:1]
                self._parents[node.results[0]] = self.root(first)
                self._join([self.root(first), *(self.root(other) for other in others)], codes_of)
        self._joined = {self.root(value) for value in self._joined}

    def root(self, value: SSAValue) -> SSAValue:
        """The value that stands for the group of `value`."""
        while (parent := self._parents.get(value)) is not None:
            value = parent
        return value

    def makers(self, value: SSAValue) -> Sequence[SSAValue]:
        """The values that the group of `value` comes from."""
        root = self.root(value)
        return self._makers.get(root, [root])

    def is_joined(self, value: SSAValue) -> bool:
        """Is there a concatenation in the group of `value`?"""
        return self.root(value) in self._joined

    def _join(self, roots: Sequence[SSAValue], codes_of: CodesOf) -> None:
        if len(roots) == 1:
            return
        first = roots[0]
        self._joined.add(first)
        for root in dict.fromkeys(roots[1:]):
            if root is not first and codes_of(self.makers(root)) == codes_of(self.makers(first)):
                self._makers[first] = [*self.makers(first), *self.makers(root)]
                self._parents[root] = first
