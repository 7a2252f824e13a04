"""The weight store: arrays by content, kept outside the IR.

The IR holds `#weights.ref<"key">`. The arrays are in this store, and in one `.npz` file beside dumped IR. A key is the
head of the sha256 of type, shape and bytes. So equal arrays are stored once, all dumps of one compilation share one
file, and a damaged file is noticed.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnncc.errors import Refusal

# The exceptions of numpy and zipfile for damaged or foreign files.
DAMAGED = (
    ValueError, EOFError, KeyError, MemoryError, RuntimeError, SyntaxError, struct.error, zipfile.BadZipFile, zlib.error
)  # fmt: skip

Array = npt.NDArray[Any]

KEY_LENGTH = 16  # hexadecimal digits, 64 bits of the digest


def content_key(array: Array) -> str:
    """The key of `array`: the head of the sha256 of its type, shape and little-endian bytes."""
    plain = np.ascontiguousarray(array)
    if plain.dtype.byteorder == ">":
        plain = plain.astype(plain.dtype.newbyteorder("<"))
    digest = hashlib.sha256(f"{plain.dtype.str}{array.shape}".encode())  # ascontiguousarray makes () (1,)
    digest.update(plain.data if plain.size else b"")
    return digest.hexdigest()[:KEY_LENGTH]


class WeightStore:
    """Arrays by content key."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def add(self, array: Array) -> str:
        """Keep `array` (as read-only) and return its key."""
        key = content_key(array)
        if key not in self._arrays:
            kept = np.ascontiguousarray(array).reshape(array.shape)
            # A key is the content's: nobody may change an array behind it.
            kept.flags.writeable = False
            self._arrays[key] = kept
        return key

    def __getitem__(self, key: str) -> Array:
        if key not in self._arrays:
            raise Refusal(
                f"weight '{key}' is not in the weight store: the IR was read without its weights file "
                f"(NAME.npz or weights.npz beside NAME.mlir)"
            )
        return self._arrays[key]

    def __len__(self) -> int:
        return len(self._arrays)

    def to_bytes(self) -> bytes:
        """The .npz file of all arrays, in the order of their keys, so that equal stores give equal files."""
        stream = io.BytesIO()
        np.savez(stream, allow_pickle=False, **{key: self._arrays[key] for key in sorted(self._arrays)})
        return stream.getvalue()

    def load(self, path: Path) -> None:
        """Add the arrays of `path`. Raises Refusal for a damaged file, or an array that does not match its key."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                if sum(info.file_size for info in arrays.zip.infolist()) > path.stat().st_size:
                    raise Refusal(f"{path}: not a weights file: its arrays are packed, or overlap")
                for key in arrays.files:
                    array = arrays[key]
                    if not isinstance(array, np.ndarray) or content_key(array) != key:
                        raise Refusal(f"{path}: weight '{key}' does not match its content")
                    self.add(array)
        except (*DAMAGED, OSError, AttributeError) as error:  # no `zip`: a single array
            raise Refusal(f"{path}: not a weights file: {' '.join(str(error).split())[:200]}") from error
