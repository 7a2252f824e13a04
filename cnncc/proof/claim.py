"""What a proof is about."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from cnncc.binary.container import Binary
from cnncc.weights import WeightStore


@dataclass(frozen=True)
class Claim:
    """That a binary computes a network for all inputs and all weights.

    module, store: the network as `cnn-legalize` leaves it, and the arrays of its symbols
    """

    binary: Binary
    module: ModuleOp
    store: WeightStore
