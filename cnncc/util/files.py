"""Files that are written: whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cnncc.errors import Refusal


def write_atomically(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write all of `data`, or of its pieces one by one, to `path` or nothing. Raises Refusal."""
    part = path.with_name(f".unfinished-{path.name}")
    check_writable(path)
    try:
        with part.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
        part.replace(path)
    except OSError as error:
        raise Refusal(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def check_writable(*paths: Path | None) -> None:
    """Before any work: can these files be written? Raises Refusal."""
    for path in paths:
        if path is None:
            continue
        if not path.parent.is_dir():
            raise Refusal(f"{path}: the folder {path.parent} does not exist")
        if path.is_dir():
            raise Refusal(f"{path}: is a folder")
        if path.exists() and not path.stat().st_mode & 0o222:
            raise Refusal(f"{path}: is read-only")
        if not path.parent.stat().st_mode & 0o222:
            raise Refusal(f"{path}: the folder {path.parent} is read-only")
