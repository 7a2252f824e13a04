"""Arrays that users bring: `.npz` files by tensor name."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cnncc.errors import Refusal
from cnncc.weights import Array


def read_npz(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """The arrays `names` of an .npz file; others in it are left unread.

    Raises Refusal for a file that is none, holds Python objects, or lacks a name.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if not hasattr(archive, "files"):
                raise Refusal(f"{path}: a single array; expected an .npz file with arrays by tensor name")
            if missing := [name for name in names if name not in archive.files]:
                there = ", ".join(archive.files) or "none"
                raise Refusal(f"{path}: no array '{missing[0]}'; it has {there}: arrays are named after the inputs")
            return {name: archive[name] for name in names}
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError, zlib.error) as error:
        reason = " ".join(str(error).split())[:200]
        raise Refusal(f"{path}: not an .npz file of plain arrays: {reason}") from error
