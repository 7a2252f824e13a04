"""Weights of layers in DRAM, and their biases and scales as words beside them (MEM-1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from cnncc.dialects import array as A
from cnncc.dialects.cnn import shuffled
from cnncc.dialects.nest import LayerOp
from cnncc.dialects.weights import RefAttr, constant_array, new_global, tensor_type
from cnncc.errors import Refusal
from cnncc.mapping.strips import split_strip
from cnncc.passes._programs.tensors import ArrayTensors
from cnncc.weights import Array, WeightStore


def param_words(arrays: Sequence[Array], operand_bits: int) -> Array:
    """The parameters of the output units as words: for each channel (or position) its bias, then its scale.

    Rules: MEM-1, COMMIT-2.

    arrays: 32-bit arrays of one value each. Returns operand words of shape [channel or position, words of one].
    """
    columns = np.stack([np.ascontiguousarray(a).view(np.uint32) for a in arrays], axis=1)
    words = columns.astype("<u4").view(np.dtype(f"<i{operand_bits // 8}"))
    return words.reshape(len(columns), -1)


class DramWeights:
    """The tensors of weights in DRAM.

    - globals: all weights.globals, by name; bits: of an operand
    - new: those that were made for the parameters of layers
    - tensor_of: the tensor that holds a weights.global, by the name of this
    """

    def __init__(self, weights: dict[str, Operation], store: WeightStore, tensors: ArrayTensors, bits: int) -> None:
        self.globals, self.store, self.tensors, self.bits = weights, store, tensors, bits
        self.new: list[Operation] = []
        self.tensor_of: dict[str, str] = {}

    def array(self, name: str) -> Array:
        """The array of a weights.global. Raises Refusal where there is none of that name."""
        if name not in self.globals:
            raise Refusal(f"there is no weights.global @{name}")
        return constant_array(self.globals[name], self.store)

    def params(self, label: str, op: LayerOp) -> tuple[str, int]:
        """The tensor of a layer's biases and scales, in the order of its results, and the words of one of these.

        Raises Refusal if a position lacks its scale.
        """
        names = [name for name in (op.steps.data.bias, op.steps.data.scale) if name]
        if not names:
            return "", 0
        arrays, steps = [self.array(name) for name in names], op.steps.data
        if steps.per_position and arrays[0].shape != (sizes := (op.sizes.data.h, op.sizes.data.w)):
            raise Refusal(f"scales {arrays[0].shape} are not one for each of {sizes[0]} x {sizes[1]} positions")
        words = param_words([array.ravel() for array in arrays], self.bits)
        if not steps.per_position:
            words[[shuffled(k, len(words), steps.shuffle) for k in range(len(words))]] = words.copy()
        if (name := f"{split_strip(label)[0]}.params") in self.tensor_of and np.array_equal(self.array(name), words):
            return self.tensor_of[name], words.shape[1]  # of another strip of the layer
        while name in self.tensor_of:
            name += "'"
        self.new.append(new_global(name, words, self.store))
        self.globals[name] = self.new[-1]
        return self.weight(name), words.shape[1]

    def weight(self, name: str) -> str:
        """The DRAM tensor of a weight, declared once however many layers use it."""
        if name not in self.tensor_of:
            array = self.array(name)
            if array.dtype.itemsize * 8 > self.bits:
                raise Refusal(f"weights {name} are {array.dtype}: this array's operands have {self.bits} bits")
            # Narrower operands travel as whole words (MEM-1).
            words = array.astype(np.dtype(f"int{self.bits}"))
            self.globals[name].properties["value"] = RefAttr.to(words, self.store)
            self.globals[name].properties["type"] = tensor_type(words)
            self.tensor_of[name] = self.tensors.declare(A.Tensor(name, "dram", array.size, array.shape, "weight"))
            self.globals[name].properties["sym_name"] = StringAttr(self.tensor_of[name])
        return self.tensor_of[name]
