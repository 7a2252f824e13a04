"""The words of weights and parameters: those that a network gives a binary, and the drawn ones in their places.

A proof runs the program on drawn words, so the binary's own words are compared apart. Both come from one function of
the network's arrays, which says where each word lies. Say that it is wrong, and the binary's words agree nevertheless.
Then a proof still holds, because this function places the words of the proof and of the binary alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cnncc.dialects.cnn import ConvOp, ElementwiseOp, PoolOp, Steps
from cnncc.dialects.weights import arrays_of
from cnncc.draws import Draws, Residues
from cnncc.errors import Refusal
from cnncc.proof.claim import Claim
from cnncc.weights import Array

PARAM_BITS = 32
Words = Callable[[str], Array]  # of a symbol: [draw, *its shape], with a last axis for the words of a parameter


@dataclass(frozen=True)
class WeightWords:
    """The weights of a binary by name, as words of a network's arrays."""

    claim: Claim

    @cached_property
    def symbols(self) -> dict[str, Array]:
        """The network's arrays by symbol."""
        return arrays_of(self.claim.module, self.claim.store)

    def differences(self) -> Iterator[str]:
        """What differs between the binary's words and the network's, one line for each array. Raises Refusal."""
        bits = self.claim.binary.arch.operand_bits

        def words(symbol: str) -> Array:
            array = self.symbols[symbol]
            if array.dtype.itemsize * 8 != PARAM_BITS:
                return array[None]
            low_first = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
            return low_first.view(f"<i{bits // 8}").reshape(1, *array.shape, PARAM_BITS // bits)

        for name, array in self.claim.binary.weights:
            wanted, got = self._placed(name, words).ravel(), array.ravel()
            if wanted.size != got.size:
                sizes = f"{got.size} words, the network's {wanted.size}"
                raise Refusal(f"weights {name} have {sizes}: give the model that the binary is from")
            if len(wrong := np.flatnonzero(wanted != got)):
                first = int(wrong[0])
                yield (
                    f"weights {name}: {len(wrong)} of {got.size} words differ, first word {first}: "
                    f"{int(got[first])} instead of {int(wanted[first])}"
                )

    def drawn(self, name: str, draws: Draws) -> Residues:
        """The words [draw, word] that stand for the weights called `name`."""
        count = PARAM_BITS // self.claim.binary.arch.operand_bits

        def words(symbol: str) -> Array:
            array = self.symbols[symbol]
            last = (count,) if array.dtype.itemsize * 8 == PARAM_BITS else ()
            return draws.words(f"weight {symbol}", *array.shape, *last)

        return self._placed(name, words).reshape(draws.count, -1)

    def _placed(self, name: str, words: Words) -> Array:
        """The words of the binary's weights `name`, in their order. Raises Refusal for weights of no network."""
        plain = name.rstrip("'")  # marks tell names apart that the network's interface has too
        for symbol in (name, plain):
            if symbol in self.symbols:
                return words(symbol)
        if (layer := self._layer(plain.removesuffix(".params"))) is None:
            raise Refusal(
                f"weights {name} belong to no layer of the network: give the model that the binary is from, with its "
                "options"
            )
        return _params(layer.steps.data if layer.steps else Steps(), words)

    def _layer(self, label: str) -> ConvOp | PoolOp | ElementwiseOp | None:
        """The layer whose label it is."""
        for op in self.claim.module.walk():
            if isinstance(op, ConvOp | PoolOp | ElementwiseOp) and op.label and op.label.data == label:
                return op
        return None


def _params(steps: Steps, words: Words) -> Array:
    """The parameters of a layer, [draw, channel or position, parameter, word], in the order of its results."""
    arrays = [words(name) for name in (steps.bias, steps.scale) if name]
    together = np.stack([array.reshape(len(array), -1, array.shape[-1]) for array in arrays], axis=2)
    if steps.shuffle == 1 or steps.per_position:
        return together
    draws, channels = together.shape[:2]
    by_group = together.reshape(draws, steps.shuffle, channels // steps.shuffle, *together.shape[2:])
    return by_group.swapaxes(1, 2)
