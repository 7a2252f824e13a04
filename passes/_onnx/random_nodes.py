"""Nodes that draw random numbers: no two runs of theirs agree."""

from __future__ import annotations

from cnncc.dialects.onnx import NodeOp, constant_operand
from cnncc.weights import WeightStore

RANDOM_OPS = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def is_dropout_in_inference(op: NodeOp, opset: int, store: WeightStore) -> bool:
    """Whether `op` is a Dropout that returns its input."""
    if not op.is_op("Dropout"):
        return False
    if opset < 7:  # training is the default
        return op.int_attr("is_test", 0) == 1
    # From opset 12 on, the model itself may ask for training mode.
    training = op.operand(2) if opset >= 12 else None
    if training is None:
        return True
    flag = constant_operand(training, store)
    return flag is not None and not flag.any()
