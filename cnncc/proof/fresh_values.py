"""Values behind which a proof goes on from fresh words: they are compared, then replaced (docs/proof.md).

Polynomials behind such a value are of low degree again. Any word may be replaced that was compared. But a program
which is right is proven only if all that reads the value reads replaced words. So the value has one place, all of it is
there when its layer is done, and layers alone read it from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cnncc.binary.isa_module import binary_to_module
from cnncc.dialects.array import Tensor, TensorOp
from cnncc.dialects.cnn import ConvOp, ElementwiseOp, PoolOp, shape, value_key
from cnncc.dialects.isa import LayerOp
from cnncc.eval import cnn_degrees
from cnncc.eval.isa import result_tensors
from cnncc.isa.codec import has_cores
from cnncc.main_function import main_function
from cnncc.proof.claim import Claim

LAYERS = (ConvOp, PoolOp, ElementwiseOp)


def fresh_values(claim: Claim) -> Mapping[int, tuple[str, Tensor]]:
    """What is drawn afresh when so many instructions are done: the value's key and its tensor."""
    if has_cores(claim.binary.instructions):
        return {}  # no layer is done at one time
    program, _ = binary_to_module(claim.binary)
    names = {op.record.data.name for op in program.ops if isinstance(op, TensorOp)}
    times = Counter(op.record.data.value for op in program.ops if isinstance(op, LayerOp))
    shapes = _read_by_layers(claim)
    placed = {
        value: (done, (value, tensor))
        for done, (value, tensor) in result_tensors(program).items()
        if shapes.get(value) == tensor.shape and times[value] == 1 and not {value, f"{value}.glb"} <= names
    }
    fresh = cnn_degrees.fresh_values(claim.module, placed)
    return dict(placed[value] for value in placed if value in fresh)


def _read_by_layers(claim: Claim) -> Mapping[str, tuple[int, ...]]:
    """The shapes of values of the network that layers compute, and nothing but layers reads."""
    ops = [op for op in main_function(claim.module).body.block.ops if isinstance(op, LAYERS)]
    return {
        key: shape(op.result.type)
        for op in ops
        if (key := value_key(op)) is not None and all(isinstance(use.operation, LAYERS) for use in op.result.uses)
    }
