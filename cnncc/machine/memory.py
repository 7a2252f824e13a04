"""A memory of words, for one or many images at once.

Words that are the same for every image (weights, parameters) are stored once; words that differ have an
image axis. Arrays of values carry that axis first, of size 1 where all images agree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Operands = npt.NDArray[np.int16]


class OutOfRange(Exception):
    """An address that the memory does not have, or a word that was never written; the message says which."""


class Memory:
    """`words` words; those below `shared_words` can only hold what is equal for all images."""

    def __init__(self, name: str, words: int, images: int, shared_words: int = 0) -> None:
        self.name, self.words, self.images, self.shared_words = name, words, images, shared_words
        self._common = np.zeros(words, np.int16)
        self._each: Operands | None = None
        self._differs = np.zeros(words, np.bool_)
        self._written = np.zeros(words, np.bool_)

    def check(self, address: Ints) -> None:
        """Raises OutOfRange for an address outside."""
        if address.size and (low := int(address.min())) < 0:
            raise OutOfRange(f"{self.name} address {low} is below 0")
        if address.size and (high := int(address.max())) >= self.words:
            raise OutOfRange(f"{self.name} address {high} is beyond the last word {self.words - 1}")

    def read(self, address: Ints, used: Mask | None = None) -> Operands:
        """The words at `address` as [images or 1, *address.shape]; where `used` is False any value.

        Raises OutOfRange for an address outside, or a used word that was never written (W3).
        """
        if used is not None:
            address = np.where(used, address, address[used].flat[0] if used.any() else 0)
        self.check(address)
        written = self._written[address]
        if not written.all():
            missing = address[~written] if used is None else address[~written & used]
            if missing.size:
                raise OutOfRange(f"{self.name} word {int(missing.flat[0])} is read but was never written")
        differs = self._differs[address]
        if self._each is None or not differs.any():
            return self._common[address][None]
        each = np.take(self._each, address - self.shared_words, axis=1, mode="clip")
        return each if differs.all() else np.where(differs, each, self._common[address])

    def write(self, address: Ints, values: npt.NDArray[np.integer]) -> None:
        """Store values [images or 1, *address.shape]. Raises OutOfRange."""
        self.check(address)
        self._written[address] = True
        if values.shape[0] == 1:
            self._common[address] = values[0]
            self._differs[address] = False
            return
        if address.size and int(address.min()) < self.shared_words:
            raise OutOfRange(f"{self.name} word {int(address.min())} holds weights, which differ for no image")
        if self._each is None:
            self._each = np.zeros((self.images, self.words - self.shared_words), np.int16)
        self._each[:, address - self.shared_words] = values
        self._differs[address] = True
