"""Output files, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cnncc.errors import Refusal


def write_atomically(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write all of `data`, bytes or pieces of bytes, to `path`, or nothing. The folder is created. Raises Refusal."""
    part = path.with_name(f".unfinished-{path.name}")
    check_writable(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
        part.replace(path)
    except OSError as error:
        raise Refusal(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def check_writable(*paths: Path | None) -> None:
    """Check, before any work, that these files can be written, in folders that exist or can be made. Raises Refusal."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise Refusal(f"{path}: is a folder")
        if path.exists() and not path.stat().st_mode & 0o222:
            raise Refusal(f"{path}: is read-only")
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if not folder.is_dir():
            raise Refusal(f"{path}: {folder} is no folder")
        if not folder.stat().st_mode & 0o222:
            raise Refusal(f"{path}: the folder {folder} is read-only")
