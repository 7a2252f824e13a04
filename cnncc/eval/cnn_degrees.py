"""The degrees of the polynomials of a network of the `cnn` dialect, from its ops alone (docs/proof.md).

They are those of the images that `cnn_residues.py` computes: 1 for what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from cnncc.dialects.cnn import ConvOp, ElementwiseOp, HostOp, PoolOp, Steps, value_key
from cnncc.draws import clamps
from cnncc.main_function import main_function

DegreeOf = Callable[[SSAValue], int]

# A network goes on from fresh words behind a value of a higher degree. A product with a value below has about twice as
# much: a draw of it errs with a probability of 2^-4. Of the samples without products DenseNet-121 has the most, 559.
MOST = 1_024


def degree_of(op: Operation, degree: DegreeOf) -> int:
    """The degree of an op's results, by that of each operand."""
    match op:
        case ConvOp():
            return _finished(op, degree(op.x) + 1, degree)
        case PoolOp():
            return _finished(op, degree(op.x) + (op.kind.data == "max"), degree)
        case ElementwiseOp():
            return _finished(op, degree(op.x), degree)
        case _:  # words are moved, not computed
            return max(degree(value) for value in op.operands)


def fresh_values(module: ModuleOp, may_be_fresh: Container[str]) -> frozenset[str]:
    """The values, by key, behind which a network goes on from fresh words: all of a degree above `MOST` that may."""
    degrees, fresh = dict[SSAValue, int](), set[str]()
    for op in main_function(module).body.block.ops:
        if isinstance(op, HostOp | ReturnOp):
            continue  # what a host computes is drawn
        degree, key = degree_of(op, lambda value: degrees.get(value, 1)), value_key(op)
        if degree > MOST and key is not None and key in may_be_fresh:
            fresh.add(key)
            degree = 1
        degrees[op.results[0]] = degree
    return frozenset(fresh)


def _finished(op: ConvOp | PoolOp | ElementwiseOp, sums: int, degree: DegreeOf) -> int:
    """The degree of results after their epilogue."""
    steps = op.steps.data if op.steps else Steps()
    result = max(sums, 1) if steps.bias else sums
    if steps.scale:
        result += 1 + (steps.slope != 1)
    result += clamps("clamp", steps.clamp) + bool(steps.table)
    if steps.factors:
        assert op.residual is not None
        other = degree(op.residual)
        # Two factors more: the first one of `factors`, and that of the second clamp.
        result = (result + max(other, 1) if steps.multiply else max(result, other)) + 2
    return result
