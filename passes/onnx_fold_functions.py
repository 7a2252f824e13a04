"""Makes one node of those that exporters write for a function of single numbers: SiLU, GELU, Mish, HardSwish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from math import isclose, sqrt

from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, f32
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp
from cnncc.frontend.export_onnx import opset_imports
from cnncc.frontend.microsoft_ops import MICROSOFT
from cnncc.main_function import main_function
from cnncc.passes._onnx.layers import is_tensor_of
from cnncc.passes._onnx.normalisation import constant_f32
from cnncc.passes._onnx.placement import hosted_operators
from cnncc.passes._onnx.replacement import NodeNames, Replacement, dims_of, import_microsoft
from cnncc.weights import WeightStore


@dataclass(frozen=True)
class _Pattern:
    """A node. Its operands are other nodes, constants of a single number, or X."""

    op_type: str
    operands: Sequence[_Pattern | float | None]

    def operators(self) -> set[str]:
        """The operators of all its nodes."""
        return {self.op_type}.union(*(each.operators() for each in self.operands if isinstance(each, _Pattern)))


@dataclass(frozen=True)
class _WrittenFunction:
    """An operator, and the patterns that are written for it.

    opset: the first that has the operator; 0 for one of onnxruntime's own.
    """

    op_type: str
    patterns: Sequence[_Pattern]
    opset: int = 0
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])


X = None  # in patterns: the number
_ERF_BY = ("Div", sqrt(2)), ("Mul", sqrt(0.5))
_ERF = [_Pattern("Add", [_Pattern("Erf", [_Pattern(by, [X, number])]), 1.0]) for by, number in _ERF_BY]
_GELU = [
    pattern
    for erf in _ERF
    for pattern in (
        _Pattern("Mul", [_Pattern("Mul", [X, erf]), 0.5]),
        _Pattern("Mul", [X, _Pattern("Mul", [erf, 0.5])]),
        _Pattern("Mul", [_Pattern("Mul", [X, 0.5]), erf]),
    )
]
_CLIP = _Pattern("Clip", [_Pattern("Add", [X, 3.0]), 0.0, 6.0])
_HARD_SIGMOID = [
    _Pattern("Clip", [_Pattern("Add", [_Pattern("Mul", [X, 1 / 6]), 0.5]), 0.0, 1.0]),
    _Pattern("Div", [_CLIP, 6.0]),
    _Pattern("Mul", [_CLIP, 1 / 6]),
]
_HARD_SWISH = [
    *(_Pattern("Mul", [X, each]) for each in _HARD_SIGMOID),
    _Pattern("Div", [_Pattern("Mul", [X, _CLIP]), 6.0]),
    _Pattern("Mul", [_Pattern("Mul", [X, _CLIP]), 1 / 6]),
]
WRITTEN = (
    _WrittenFunction("QuickGelu", [_Pattern("Mul", [X, _Pattern("Sigmoid", [X])])], 0, {"alpha": FloatAttr(1.0, f32)}),
    _WrittenFunction("Gelu", _GELU),
    _WrittenFunction("Mish", [_Pattern("Mul", [X, _Pattern("Tanh", [_Pattern("Softplus", [X])])])], 18),
    _WrittenFunction("HardSwish", _HARD_SWISH, 14),
)


def _operands_near(root: NodeOp) -> list[SSAValue]:
    """Where X is in all patterns: an operand of the last node, or of one right before it."""
    before = chain.from_iterable(each.owner.operands for each in root.operands if isinstance(each.owner, NodeOp))
    return list(dict.fromkeys((*root.operands, *before)))


def _nodes(value: SSAValue, pattern: _Pattern | float | None, x: SSAValue, store: WeightStore) -> list[NodeOp] | None:
    """The nodes of a pattern that compute `value` from x, operands first; None for another value.

    Nothing else reads what is between them.
    """
    if pattern is None:
        return [] if value is x else None
    if not isinstance(pattern, _Pattern):
        constant = constant_f32(value, store)
        if constant is None or constant.size != 1 or not isclose(constant.flat[0], pattern, rel_tol=1e-6):
            return None
        return []
    node = value.owner
    if not isinstance(node, NodeOp) or not node.is_op(pattern.op_type) or len(node.operands) != len(pattern.operands):
        return None
    for operands in (node.operands, node.operands[::-1]) if node.is_op("Add", "Mul") else (node.operands,):
        inner = [_nodes(each, wanted, x, store) for each, wanted in zip(operands, pattern.operands, strict=True)]
        before = [each for each in inner if each is not None]
        if len(before) == len(inner) and all(nodes[-1].results[0].has_one_use() for nodes in before if nodes):
            return [*chain.from_iterable(before), node]
    return None


def _written(
    root: NodeOp, opset: int, hosted: set[str], store: WeightStore
) -> Iterator[tuple[_WrittenFunction, SSAValue, list[NodeOp]]]:
    """The function that nodes up to `root` are written for, its number x, and these nodes."""
    for function in WRITTEN if root.is_op("Mul", "Div") else ():
        for pattern, x in product(function.patterns, _operands_near(root)):
            is_on_array = hosted.isdisjoint({function.op_type, *pattern.operators()})
            is_number = x.type == root.results[0].type and is_tensor_of(x, f32)
            if opset < function.opset or not is_on_array or not is_number:
                continue
            if nodes := _nodes(root.results[0], pattern, x, store):
                yield function, x, nodes


@dataclass(frozen=True)
class OnnxFoldFunctionsPass(ModulePass):
    """Turn the nodes that exporters write for SiLU, GELU, Mish or HardSwish into one node.

    Why: it is a function of a single number, which the output units look up in a table (COMMIT-7). As a product it
    would be a layer more, of two rounded factors.

        %0 = onnx.node "Sigmoid"(%x)   ->   %1 = onnx.node "QuickGelu" domain "com.microsoft"(%x) {alpha = 1.0 : f32}
        %1 = onnx.node "Mul"(%x, %0)

    | function | written as | operator |
    |---|---|---|
    | SiLU | x * Sigmoid(x) | QuickGelu of onnxruntime's, with alpha = 1 |
    | GELU | x * (1 + Erf(x / sqrt(2))) / 2, in several orders | Gelu of onnxruntime's |
    | Mish | x * Tanh(Softplus(x)) | Mish, from opset 18 on |
    | HardSwish | x * Clip(x + 3, 0, 6) / 6, in several orders | HardSwish, from opset 14 on |
    | HardSwish | x * Clip(x / 6 + 0.5, 0, 1) | HardSwish, from opset 14 on |

    Nodes stay where others read what is between them. They stay, too, where the array file has one of them on the host,
    or the operator that they would become.
    """

    name = "onnx-fold-functions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        opset, hosted, store = opset_imports(op)[""], hosted_operators(op), weights_of(ctx)
        block = main_function(op).body.block
        names = NodeNames(block)
        for root in list(block.ops):
            if isinstance(root, NodeOp) and (written := next(_written(root, opset, hosted, store), None)):
                function, x, nodes = written
                domain = "" if function.opset else MICROSOFT
                if domain:
                    import_microsoft(op)
                new = Replacement(nodes, store, names)
                new.finish(new.node(function.op_type, [x], dims_of(x), function.attributes, root, domain=domain))
