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
    # MEM-1: the least significant word comes first, whatever the byte order of this computer.
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

    def _array(self, name: str) -> Array:
        return constant_array(self.globals[name], self.store)

    def params(self, label: str, op: LayerOp) -> tuple[str, int]:
        """The tensor of a layer's biases and scales, in the order of its results, and the words of one of these.

        Raises Refusal unless each channel (or position) has one of each.
        """
        steps, sizes = op.steps.data, op.sizes.data
        named = [(name, kind) for name, kind in ((steps.bias, "int32"), (steps.scale, "float32")) if name]
        if not named:
            return "", 0
        dims = (sizes.h, sizes.w) if steps.per_position else (sizes.k,)
        arrays = [self._of_layer(label, name, dims, kind) for name, kind in named]
        words = param_words([array.ravel() for array in arrays], self.bits)
        if not steps.per_position:
            words[[shuffled(k, len(words), steps.shuffle) for k in range(len(words))]] = words.copy()
        if (name := f"{split_strip(label)[0]}.params") in self.tensor_of and np.array_equal(self._array(name), words):
            return self.tensor_of[name], words.shape[1]  # of another strip of the layer
        while name in self.tensor_of:
            name += "'"
        self.new.append(new_global(name, words, self.store))
        self.globals[name] = self.new[-1]
        return self.weight(name), words.shape[1]

    def of_layer(self, label: str, op: LayerOp) -> str:
        """The DRAM tensor of a layer's weights; empty where it has none. Raises Refusal for those of other sizes."""
        if op.weights is None:
            return ""
        name, sizes = op.weights.root_reference.data, op.sizes.data
        self._of_layer(label, name, (sizes.k, sizes.c, sizes.r, sizes.s))
        return self.weight(name)

    def _of_layer(self, label: str, name: str, dims: tuple[int, ...], kind: str = "") -> Array:
        """The array of a weights.global that a layer reads. kind: of its numbers; without, integers of any width."""
        if name not in self.globals:
            raise Refusal(f"layer {label}: there is no weights.global @{name}")
        array = self._array(name)
        if array.shape != dims or (array.dtype.name != kind if kind else array.dtype.kind not in "iu"):
            raise Refusal(
                f"layer {label}: @{name} is {array.dtype}{list(array.shape)}, "
                f"the layer reads {kind or 'integers'}{list(dims)}: name an array of this type"
            )
        return array

    def weight(self, name: str) -> str:
        """The DRAM tensor of a weight, declared once however many layers use it."""
        if name not in self.tensor_of:
            array = self._array(name)
            if array.dtype.itemsize * 8 > self.bits:
                raise Refusal(f"weights {name} are {array.dtype}: this array's operands have {self.bits} bits")
            # Narrower operands travel as whole words (MEM-1).
            words = array.astype(np.dtype(f"int{self.bits}"))
            self.globals[name].properties["value"] = RefAttr.to(words, self.store)
            self.globals[name].properties["type"] = tensor_type(words)
            self.tensor_of[name] = self.tensors.declare(A.Tensor(name, "dram", array.size, array.shape, "weight"))
            self.globals[name].properties["sym_name"] = StringAttr(self.tensor_of[name])
        return self.tensor_of[name]
