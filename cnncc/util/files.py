"""Output files, written whole or not at all."""

from __future__ import annotations

import secrets
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from cnncc.errors import Refusal

OLD_S = 3600.0  # nobody writes a file for so long


def read_bytes(path: Path, most_bytes: int, limit: str) -> bytes:
    """The content of a file or a pipe of limited size. Raises Refusal, with the text of the limit if it is larger."""
    try:
        status = path.stat()
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            raise Refusal(f"{path}: is a device, not a file")
        size_bytes, data = status.st_size, b""
        if size_bytes <= most_bytes:
            with path.open("rb") as file:
                # A pipe says that it has 0 bytes. One byte beyond the limit shows that it has more.
                data = file.read(most_bytes + 1 if stat.S_ISFIFO(status.st_mode) else size_bytes)
    except OSError as error:
        raise Refusal(f"{path}: cannot be read: {error.strerror}") from error
    if size_bytes > most_bytes:
        raise Refusal(f"{path}: {size_bytes:,} bytes, {limit}")
    if len(data) > most_bytes:
        raise Refusal(f"{path}: more than {most_bytes:,} bytes, {limit}")
    return data


def write_atomically(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write all of `data`, bytes or pieces of bytes, to `path`, or nothing. The folder is created. Raises Refusal.

    Several processes may write one path at once: each has an unfinished file of its own, and the last one stays. A link
    stays one, and so does a device or a pipe.
    """
    check_writable(path)
    part, target = None, path.resolve()
    try:
        if not is_stream(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = unfinished(target)
        with part.open("xb") if part else path.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
        if part:
            part.replace(target)
    except OSError as error:
        raise Refusal(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Whether it is a device or a pipe, as /dev/stdout, which no file may replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


def unfinished(path: Path) -> Path:
    """A new name beside a file, under which to write it. Old ones, of killed processes, are removed. Raises OSError."""
    prefix = f".unfinished-{path.name}-"
    for left in path.parent.iterdir():
        if left.name.startswith(prefix):
            with suppress(FileNotFoundError):  # its process has finished it
                if time.time() - left.stat().st_mtime > OLD_S:
                    left.unlink()
    return path.with_name(f"{prefix}{secrets.token_hex(4)}{path.suffix}")  # numpy looks at the suffix


def check_writable(*paths: Path | None, inputs: Sequence[Path | str | None] = ()) -> None:
    """Check, before any work, that these files can be written, in folders that exist or can be made. Raises Refusal.

    inputs: files that the command reads, of which none may be written. No file may be written twice.
    """
    taken = {Path(path).resolve() for path in inputs if path is not None}
    for path in paths:
        if path is None or is_stream(path):
            continue
        if path.resolve() in taken:
            raise Refusal(f"{path}: is an input, or another output, of this command: give another name")
        taken.add(path.resolve())
        if path.is_dir():
            raise Refusal(f"{path}: is a folder")
        # The mode's bits, not `os.access`: what is marked read-only is refused to root, too.
        if path.exists() and not path.stat().st_mode & 0o222:
            raise Refusal(f"{path}: is read-only")
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if not folder.is_dir():
            raise Refusal(f"{path}: {folder} is no folder")
        if not folder.stat().st_mode & 0o222:
            raise Refusal(f"{path}: the folder {folder} is read-only")
