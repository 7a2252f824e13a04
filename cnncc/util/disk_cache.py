"""A cache on disk across commands: values by the hash of all their inputs.

A file holds one value, as JSON with a checksum, and is written whole or not at all. Why one file for each value:
parallel processes need no lock, and damage costs one value. Any fault of a file or of the folder counts as an empty
cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = "CNNCC_CACHE"  # environment variable: another folder, or `off`
OFF = "off"


def folder() -> Path | None:
    """The folder of the cache; None if it is off."""
    if given := os.environ.get(FOLDER):
        return None if given == OFF else Path(given)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base and Path(base).is_absolute():  # the XDG specification ignores relative paths
        return Path(base) / "cnncc"
    with suppress(RuntimeError):  # a user without a home
        return Path.home() / ".cache" / "cnncc"
    return None


def key_of(*parts: object) -> str:
    """The key of a value that depends on `parts`, which JSON can hold; sets are sorted."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=sorted).encode()).hexdigest()


def read(key: str) -> dict[str, Any] | None:
    """The value of a key; None if the cache does not have it."""
    if (where := folder()) is None:
        return None
    try:
        entry = json.loads(_file(where, key).read_bytes())
        value, checksum = dict[str, Any](entry["value"]), entry["sha256"]
        return value if checksum == _checksum(key, value) else None
    # RecursionError: JSON that is nested too deeply.
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write(key: str, value: dict[str, Any]) -> None:
    """Keep a value, if that is possible."""
    if (where := folder()) is None:
        return
    file = _file(where, key)
    data = json.dumps({"value": value, "sha256": _checksum(key, value)}).encode()
    with suppress(OSError, ValueError):
        file.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder: a rename is atomic within one file system alone.
        descriptor, part = tempfile.mkstemp(dir=file.parent, prefix=".unfinished-")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            os.replace(part, file)  # noqa: PTH105
        # After Ctrl-C, too: nothing else removes an unfinished file.
        except BaseException:
            with suppress(OSError):
                os.unlink(part)  # noqa: PTH108
            raise


def _file(where: Path, key: str) -> Path:
    return where / f"{key}.json"


def _checksum(key: str, value: dict[str, Any]) -> str:
    """The checksum of a value under its key, so that a renamed file is noticed."""
    return hashlib.sha256(f"{key} {json.dumps(value, sort_keys=True)}".encode()).hexdigest()
