"""A memory of words, for one or many images at once.

Words that are the same for every image (weights, parameters) are stored once. Words that differ have an image axis,
the first one. Arrays of values have that axis too, with size 1 if all images agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cnncc.machine.values.addresses import Ints, Mask
from cnncc.machine.values.strided import Strided

Operands = npt.NDArray[np.int16]
Place = Ints | Strided  # addresses of words, as a list or by steps

_LONG_RUN = 8  # words of a run for each word of a place, up to which the run is read as a whole


class OutOfRange(Exception):
    """An address that the memory does not have, or a word that was never written; the message says which."""


class Memory:
    """A memory of `words` words; those below `shared_words` are equal for all images."""

    def __init__(self, name: str, words: int, images: int, shared_words: int = 0) -> None:
        self.name, self.words, self.images, self.shared_words = name, words, images, shared_words
        self._common = np.zeros(words, np.int16)
        self._own: Operands | None = None
        self._differs = np.zeros(words, np.bool_)
        self._written = np.zeros(words, np.bool_)

    def part(self, start: int, stop: int) -> Memory:
        """A copy of the words start .. stop - 1, at addresses from 0 on. This memory must have no shared words."""
        part, words = Memory(self.name, stop - start, self.images), slice(start, stop)
        part._common[:] = self._common[words]
        part._differs[:] = self._differs[words]
        part._written[:] = self._written[words]
        if self._own is not None and part._differs.any():
            part._own = self._own[:, words].copy()
        return part

    def put_back(self, start: int, part: Memory) -> None:
        """Restore the words from `start` on to `part`, an earlier copy."""
        words = slice(start, start + part.words)
        self._common[words], self._differs[words], self._written[words] = part._common, part._differs, part._written
        # Words for which a part holds none of its own do not differ, and `_own` is read for words that differ alone.
        if self._own is not None and part._own is not None:
            self._own[:, start : start + part._own.shape[1]] = part._own

    def check(self, place: Place) -> None:
        """Raises OutOfRange for an address outside."""
        low, high = ends(place) if place.size else (0, 0)
        if low < 0:
            raise OutOfRange(f"{self.name} address {low} is below 0")
        if high >= self.words:
            raise OutOfRange(f"{self.name} address {high} is beyond the last word {self.words - 1}")

    def view(self, place: Strided) -> Operands | None:
        """The words [images or 1, *place.sizes] as a view; None if there is none, or not all are written."""
        low, high = place.ends
        if low < 0 or high >= self.words:
            return None
        if not _holds(self._written, place):
            return None
        if self._own is None or high < self.shared_words:
            return place.of(self._common[None])
        if not _holds(self._differs, place):
            # Words that differ and words that do not lie in two arrays: no view has both.
            return None if place.of(self._differs).any() else place.of(self._common[None])
        return replace(place, start=place.start - self.shared_words).of(self._own)

    def read(self, place: Place, used: Mask | None = None) -> Operands:
        """The words at `place`, [images or 1, *its shape]. used: a mask; unused positions may have any value.

        Raises: OutOfRange, for an address outside, or a used word that was never written (MEM-3).
        """
        if isinstance(place, Strided):
            view = self.view(place)
            return self.read(place.listed(), used) if view is None else view
        address = place
        if used is not None:
            # An unused position may be no address at all.
            address = np.where(used, address, address[used].flat[0] if used.any() else 0)
        self.check(address)
        written = self._written[address]
        if not written.all():
            missing = address[~written] if used is None else address[~written & used]
            if missing.size:
                raise OutOfRange(f"{self.name} word {int(missing.flat[0])} is read but was never written")
        differs = self._differs[address]
        if self._own is None or not differs.any():
            return self._common[address][None]
        # Shared words have no entry in `_own`: they are clipped to any, and the common words replace them.
        own = np.take(self._own, address - self.shared_words, axis=1, mode="clip")
        return own if differs.all() else np.where(differs, own, self._common[address])

    def write_in_order(self, place: Place, values: npt.NDArray[np.integer]) -> None:
        """Store values one after the other; the last of several for one word remains. Raises OutOfRange."""
        if isinstance(place, Strided) and place.distinct:
            self.write(place, values)
            return
        address = (place.listed() if isinstance(place, Strided) else place).ravel()
        # Of equal addresses `unique` takes the first: here the one that is written last.
        words, from_end = np.unique(address[::-1], return_index=True)
        self.write(words, values.reshape(values.shape[0], -1)[:, address.size - 1 - from_end])

    def write(self, place: Place, values: npt.NDArray[np.integer]) -> None:
        """Store values [images or 1, *the place's shape], for different words each. Raises OutOfRange."""
        self.check(place)
        fill(self._written, place, True)
        if values.shape[0] == 1:
            fill(self._common, place, values[0])
            fill(self._differs, place, False)
            return
        if not place.size:
            return
        low, high = ends(place)
        if low < self.shared_words:
            raise OutOfRange(f"{self.name} word {low} holds weights, which differ for no image")
        own = self._own_words(high + 1 - self.shared_words)
        if isinstance(place, Strided):
            replace(place, start=place.start - self.shared_words).of(own)[...] = values
        else:
            own[:, place - self.shared_words] = values
        fill(self._differs, place, True)

    def _own_words(self, least: int) -> Operands:
        """The words [images, words] that differ, at least so many: an array may have a GLB that no program fills."""
        held = 0 if self._own is None else self._own.shape[1]
        if self._own is None or held < least:
            grown = np.zeros((self.images, min(max(least, 2 * held), self.words - self.shared_words)), np.int16)
            if self._own is not None:
                grown[:, :held] = self._own
            self._own = grown
        return self._own


def _holds(mask: Mask, place: Strided) -> bool:
    """Whether a mask of words is set at a place."""
    low, high = place.ends
    # A whole run is read several times as quickly, unless the place has few of its words.
    if high - low <= _LONG_RUN * place.size and mask[low : high + 1].all():
        return True
    return bool(place.of(mask).all())


def ends(place: Place) -> tuple[int, int]:
    """The least and the greatest address of a place that is not empty."""
    return place.ends if isinstance(place, Strided) else (int(place.min()), int(place.max()))


def shape_of(place: Place) -> tuple[int, ...]:
    """The sizes of a place's axes."""
    return place.sizes if isinstance(place, Strided) else place.shape


def reach(places: Iterable[Place]) -> tuple[int, int]:
    """The least and the greatest address of some places; 0 and -1 if all are empty."""
    each = [ends(place) for place in places if place.size]
    return min((low for low, _ in each), default=0), max((high for _, high in each), default=-1)


def overlap(places: Iterable[Place], others: Iterable[Place]) -> bool:
    """Whether one of the places may overlap one of the others: its least to its greatest address does."""
    one, other = ([ends(place) for place in each if place.size] for each in (places, others))
    if not one or not other or max(high for _, high in one) < min(low for low, _ in other):
        return False
    if max(high for _, high in other) < min(low for low, _ in one):
        return False
    return any(a[0] <= b[1] and b[0] <= a[1] for a in one for b in other)


def fill(words: npt.NDArray[np.generic], place: Place, values: npt.NDArray[np.integer] | int) -> None:
    """Set the words at a place."""
    if isinstance(place, Strided):
        place.of(words)[...] = values
    else:
        words[place] = values
