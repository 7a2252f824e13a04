"""Users' arrays: `.npz` files by tensor name."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from cnncc.errors import Finding, Refusal
from cnncc.weights import DAMAGED, Array


def _array(archive: Mapping[str, object], name: str) -> Array:
    member = archive[name]
    if not isinstance(member, np.ndarray):
        raise ValueError(f"'{name}' is no array")
    return cast("Array", member)


MOST_BYTES = 1 << 30  # of the arrays of a file, unpacked
_ZIP, _NPY = b"PK", b"\x93NUMPY"  # the first bytes of files with many arrays and with one


def _check_size(archive: zipfile.ZipFile, path: Path, names: Sequence[str]) -> None:
    """A few packed bytes may stand for many. Raises Refusal."""
    sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
    if (size := sum(sizes.get(name, 0) for name in names)) > MOST_BYTES:
        what, help_ = "too many bytes when unpacked", "fewer or smaller images"
        finding = Finding(what, where=str(path), resource="bytes", value=size, limit=MOST_BYTES, help=help_)
        raise Refusal(f"{path}: {size:,} bytes when unpacked, the limit is {MOST_BYTES:,}: {help_}", finding)


def npz_bytes(arrays: Mapping[str, Array]) -> bytes:
    """An .npz file of arrays under any names: equal arrays give equal files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue())  # dated 1980, not now
    return stream.getvalue()


def noise(shape: Sequence[int], element: str, rng: np.random.Generator) -> Array:
    """Random values: N(0, 1) for float32, uniform over the whole range for an integer type."""
    if element == "float32":
        return rng.standard_normal(shape).astype(np.float32)
    info = np.iinfo(element)
    return rng.integers(info.min, info.max, shape, element, endpoint=True)


def array_of(arrays: object, name: str) -> Array:
    """The array of an input, of `arrays` by name. Raises Refusal where there is none."""
    if not isinstance(arrays, Mapping):
        raise Refusal(f"inputs are arrays by name, {{'{name}': …}}, not {type(arrays).__name__}")
    by_name = cast("Mapping[str, object]", arrays)
    if name not in by_name:
        raise Refusal(f"input '{name}' is missing, there is {', '.join(by_name) or 'nothing'}")
    array = by_name[name]
    if not isinstance(array, np.ndarray):
        raise Refusal(f"input '{name}' is no array of numpy, but {type(array).__name__}")
    return cast("Array", array)


def count_batches(arrays: Mapping[str, Array], shapes: Mapping[str, Sequence[int]], elements: Mapping[str, str]) -> int:
    """The number of whole batches of inputs of these shapes in the arrays.

    elements: "float32" for any float type, else the exact type. Raises: Refusal, for arrays that do not fit.
    """
    counts: set[int] = set()
    for name, (batch, *rest) in shapes.items():
        array, element = array_of(arrays, name), elements[name]
        if array.dtype.kind != "f" if element == "float32" else array.dtype != element:
            wanted = "floating point numbers, as .astype('float32') gives" if element == "float32" else element
            raise Refusal(f"input '{name}' has type {array.dtype}, expected {wanted}")
        if array.ndim != 1 + len(rest) or list(array.shape[1:]) != rest or len(array) % batch or not len(array):
            several = f"{batch} or a multiple" if batch > 1 else "1 or more"
            wanted = ", ".join([several, *map(str, rest)])
            raise Refusal(f"input '{name}' has shape {list(array.shape)}, expected [{wanted}]")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Refusal(f"input '{name}' has values that are not finite (NaN or infinity)")
        counts.add(len(array) // batch)
    if len(counts) > 1:
        raise Refusal(f"the inputs hold different numbers of images: {sorted(counts)}")
    return counts.pop() if counts else 1


def read_npz(path: Path | str, names: Sequence[str]) -> dict[str, Array]:
    """The arrays `names` of an .npz file; others in it are left unread.

    Raises: Refusal, for a file that is no .npz, holds Python objects, or lacks a name.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            # numpy takes any other file for a pickle, and would say only that pickles are not allowed.
            if not file.read(len(_NPY)).startswith((_ZIP, _NPY)):
                raise Refusal(f"{path}: not an .npz file")
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise Refusal(f"{path}: a single array; expected an .npz file with arrays by tensor name")
            if missing := [name for name in names if name not in archive.files]:
                present, help_ = ", ".join(archive.files) or "none", "arrays are named after the inputs"
                findings = [
                    Finding(f"no array '{name}'; it has {present}", where=str(path), help=help_) for name in missing
                ]
                raise Refusal(f"{path}: no array '{missing[0]}'; it has {present}: {help_}", *findings)
            assert archive.zip is not None
            _check_size(archive.zip, path, names)
            return {name: _array(cast("Mapping[str, object]", archive), name) for name in names}
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror or error}") from error
    except DAMAGED as error:
        reason = "it holds Python objects" if "allow_pickle" in str(error) else " ".join(str(error).split())[:200]
        raise Refusal(f"{path}: not an .npz file of plain arrays: {reason}") from error
