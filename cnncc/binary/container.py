"""The `.cnb` file: a ZIP archive of a program, its weights, its host segments and their description.

    manifest.json            format version, array, tensors; and metadata, which no run depends on
    program.bin              the program's words, little-endian
    weights/000-conv1.w.npy  operand words, in the order in which they lie in DRAM (rule MEM-2)
    segments/00.onnx         host segments by number, their inputs and outputs named after tensors

Members are stored, in this order, under fixed dates: equal binaries are equal files. After reading, the binary is
written again in memory, and a file with any other byte is refused. So no damage goes unnoticed.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np

from cnncc.arch.model import Arch, arch_from_table, said_keys
from cnncc.dialects.array import Tensor
from cnncc.dialects.cnn import ELEMENTS
from cnncc.errors import Refusal
from cnncc.frontend.segments import interface
from cnncc.isa.codec import Words, begins_with_core, decode_program
from cnncc.isa.dram_layout import dram_layout
from cnncc.isa.table import Instruction
from cnncc.machine.cores.core_checks import check_cores
from cnncc.util import strict_json
from cnncc.util.files import read_bytes, write_atomically
from cnncc.weights import Array

FORMAT = 6
FORMAT_OF_CORES = 7  # of a program that begins with `core` (CORE-2)
MANIFEST, PROGRAM = "manifest.json", "program.bin"
FILE_LIMIT_BYTES = (1 << 32) - 1  # of a ZIP file without extensions
MANIFEST_LIMIT_BYTES = 1 << 26  # parsed JSON takes a multiple of its size in memory
DRAM_LIMIT_WORDS = 1 << 30  # a limit for the memory of the computer that interprets the binary
RANK_LIMIT = 16  # of tensors; `_NPY` matches as many dims
# numpy's own header of a plain array. np.load would accept others, and allocate memory before any check. What has
# matched stays so (`+`): otherwise many digits could be cut into dims in endlessly many ways.
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>..)"
    rb"\{'descr': '(?P<type><i2|\|i1)', 'fortran_order': False, "
    rb"'shape': \((?P<shape>(?:\d{1,10}+,?+ ?+){0,16}+)\), \} *\n",
    re.DOTALL,
)

Members = Mapping[str, bytes]


@dataclass(frozen=True, eq=False)
class Binary:
    """The content of a `.cnb` file.

    - program: uint32[words].
    - weights: (name, operand words) in the order of DRAM.
    - tensors: in DRAM after the weights, or in the host's own memory; `at` is set.
    - segments: ONNX models by number.
    - metadata: further JSON; no value or time depends on it.
    - manifest: what refusals call the place of the metadata: the file, if there is one, and the member.
    """

    program: Words
    weights: Sequence[tuple[str, Array]]
    tensors: Sequence[Tensor]
    segments: Sequence[bytes]
    arch: Arch
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    manifest: str = MANIFEST

    @cached_property
    def instructions(self) -> list[Instruction]:
        """The program, decoded. Raises Refusal."""
        return decode_program(self.program)

    @property
    def weight_places(self) -> list[int]:
        """The first word of each of the weights (rule MEM-2)."""
        return dram_layout([array.size for _, array in self.weights])

    @property
    def weight_words(self) -> int:
        """Words of DRAM that weights take; the tensors lie after them."""
        return sum(array.size for _, array in self.weights)

    @property
    def dram_words(self) -> int:
        """Words of DRAM that weights and tensors take."""
        return self.weight_words + sum(tensor.words for tensor in self.tensors if tensor.memory == "dram")


def with_dram_addresses(tensors: Sequence[Tensor], weights: Sequence[tuple[str, Array]]) -> list[Tensor]:
    """The tensors, those in DRAM with their first word after the weights (rule MEM-2)."""
    at = sum(array.size for _, array in weights)
    in_dram = [tensor for tensor in tensors if tensor.memory == "dram"]
    layout = dict(zip((t.name for t in in_dram), dram_layout([t.words for t in in_dram]), strict=True))
    return [replace(t, at=at + layout[t.name] if t.name in layout else -1) for t in tensors]


def digest(data: bytes) -> str:
    """The sha256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def arch_digest(arch: Arch) -> str:
    """The sha256 of an array's description."""
    return digest(_json(said_keys(arch)))


# -- writing -----------------------------------------------------------------------------------------------------------


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _format_of(program: Words) -> int:
    """The format's version: older readers know no cores, and take all else."""
    return FORMAT_OF_CORES if program.size and begins_with_core(program) else FORMAT


def _npy(array: Array) -> bytes:
    stream = io.BytesIO()
    plain = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).reshape(array.shape)
    np.lib.format.write_array(stream, plain, version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def _member_name(number: int, name: str) -> str:
    return f"weights/{number:03}-{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:80]}.npy"


def _tensor_entry(tensor: Tensor, types: Mapping[str, str]) -> dict[str, object]:
    fields = ("name", "role", "shape", "scale", "zero", "clamp")
    reals = {} if tensor.element == "float32" else {"element": tensor.element}
    return {"type": types[tensor.name], **{name: getattr(tensor, name) for name in fields}, **reals}


def _types(binary: Binary) -> dict[str, str]:
    """The element type of each tensor: operand words in DRAM, the type of a segment's value in the host's memory."""
    types = {tensor.name: tensor.element for tensor in binary.tensors if tensor.role == "input"}
    types |= {name: kind for model in binary.segments for side in interface(model) for name, kind in side.items()}
    in_dram = {tensor.name: f"int{binary.arch.operand_bits}" for tensor in binary.tensors if tensor.memory == "dram"}
    unknown = [tensor.name for tensor in binary.tensors if tensor.memory == "host" and tensor.name not in types]
    if unknown:
        raise Refusal(f"tensor {unknown[0]} is in the host's memory, but no segment writes it")
    return types | in_dram


def _members(binary: Binary) -> dict[str, bytes]:
    """The members in their order."""
    rest = {PROGRAM: np.asarray(binary.program, "<u4").tobytes()}
    rest |= {_member_name(i, name): _npy(array) for i, (name, array) in enumerate(binary.weights)}
    rest |= {f"segments/{i:02}.onnx": model for i, model in enumerate(binary.segments)}
    return {MANIFEST: _json(_manifest_of(binary, rest)), **rest}


def _manifest_of(binary: Binary, rest: Members) -> dict[str, Any]:
    """What the manifest says. rest: the other members."""
    types = _types(binary)
    return {
        "format": _format_of(binary.program),
        "members": {name: digest(data) for name, data in rest.items()},
        "arch": said_keys(binary.arch),
        "tensors": [_tensor_entry(tensor, types) for tensor in binary.tensors],
        **binary.metadata,
    }


def pack(members: Members) -> bytes:
    """The archive of `members`, the same bytes for the same members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16  # as on Unix, wherever this runs
            archive.writestr(info, data)
    return stream.getvalue()


def to_bytes(binary: Binary) -> bytes:
    """The file's content. Raises Refusal for a file that would be too large."""
    members = _members(binary)
    # A MiB is left for the archive's own headers.
    if (size_bytes := sum(map(len, members.values()))) > FILE_LIMIT_BYTES - (1 << 20):
        raise Refusal(f"the binary would have {size_bytes} bytes, the limit of its format is 4 GiB")
    return pack(members)


def save(binary: Binary, path: Path | str) -> None:
    """Write the file: all of it or nothing. Raises Refusal if it cannot be written."""
    write_atomically(Path(path), to_bytes(binary))


# -- reading -----------------------------------------------------------------------------------------------------------

_SOURCES = {
    ".onnx": "is an ONNX model, no binary: compile it first, with `cnncc compile`",
    ".mlir": "is IR, no binary: compile it first, with `cnncc compile --from`",
}


def load(path: Path | str) -> Binary:
    """The binary in a file. Raises Refusal, with the file, the member and the fault."""
    path = Path(path)
    data = read_bytes(path, FILE_LIMIT_BYTES, "a binary has at most 4 GiB")
    try:
        return replace(from_bytes(data), manifest=f"{path}: {MANIFEST}")
    except Refusal as refusal:
        raise Refusal(f"{path}: {_SOURCES.get(path.suffix, refusal)}") from refusal


def from_bytes(data: bytes) -> Binary:
    """The binary of a file's content. Raises Refusal like `load`."""
    members = _unpack(data)
    manifest = _in_member(MANIFEST, _read_manifest, members)
    _check_digests(manifest, members)
    arch = _in_member(MANIFEST, _arch, manifest)
    weights = _weights(members, manifest, arch)
    tensors = with_dram_addresses(_in_member(MANIFEST, _tensors, manifest, arch), weights)
    segments = [data for name, data in members.items() if name.startswith("segments/")]
    program = _in_member(PROGRAM, _program, members[PROGRAM], len(segments), arch)
    if manifest["format"] != (wanted := _format_of(program)):
        raise Refusal(f"{MANIFEST}: format version {manifest['format']}, that of this program is {wanted}")
    metadata = {key: value for key, value in manifest.items() if key not in ("format", "members", "arch", "tensors")}
    binary = Binary(program, weights, tensors, segments, arch, metadata)
    if binary.dram_words > DRAM_LIMIT_WORDS:
        raise Refusal(f"{MANIFEST}: weights and tensors take {binary.dram_words} words, DRAM has {DRAM_LIMIT_WORDS}")
    for number, model in enumerate(segments):
        _in_member(f"segments/{number:02}.onnx", _check_segment, model, {tensor.name for tensor in tensors})
    return binary


def _in_member(name: str, rule: Callable[..., Any], *args: object) -> Any:
    """The result of `rule`, whose refusals get the member's name."""
    try:
        return rule(*args)
    except Refusal as refusal:
        raise Refusal(f"{name}: {refusal}") from refusal


def _unpack(data: bytes) -> dict[str, bytes]:
    """The members by name, after a check that `pack` would write the same archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            for info in infos:
                if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                    raise Refusal(f"{info.filename}: is compressed or encrypted, members of a binary are stored")
            # Stored members are not larger than the file, so this bounds the memory that reading takes.
            if (claimed := sum(info.file_size for info in infos)) > len(data):
                raise Refusal(f"its members claim {claimed} bytes, the file has {len(data)}")
            members = {info.filename: archive.read(info) for info in infos}
    except zipfile.BadZipFile as error:
        raise Refusal(f"not a cnncc binary, or damaged ({len(data)} bytes): {error}") from error
    except (OSError, EOFError, ValueError, struct.error, NotImplementedError, RuntimeError, OverflowError) as error:
        raise Refusal(f"damaged archive ({len(data)} bytes): {error}") from error
    _check_names([info.filename for info in infos])
    again = pack(members)
    if again != data:
        raise Refusal(f"damaged at byte {_first_difference(again, data):#x}: not as cnncc writes a binary")
    return members


def _first_difference(a: bytes, b: bytes) -> int:
    shared = min(len(a), len(b))
    different = np.flatnonzero(np.frombuffer(a, np.uint8, shared) != np.frombuffer(b, np.uint8, shared))
    return int(different[0]) if different.size else shared


def _check_names(names: Sequence[str]) -> None:
    for needed in (MANIFEST, PROGRAM):
        if needed not in names:
            raise Refusal(f"member {needed} is missing: not a cnncc binary")
    weights = [name for name in names if re.fullmatch(r"weights/\d{3,}-[A-Za-z0-9._-]*\.npy", name)]
    segments = [name for name in names if re.fullmatch(r"segments/\d{2,}\.onnx", name)]
    right = [MANIFEST, PROGRAM, *weights, *segments]
    if list(names) != right:
        odd = next((name for name in names if name not in right), None)
        raise Refusal(
            f"member {odd} has no meaning" if odd else f"members are out of order or twice: {', '.join(names)}"
        )
    numbers = [int(re.split(r"[/.-]", name)[1]) for name in (*weights, *segments)]
    if numbers != [*range(len(weights)), *range(len(segments))]:
        raise Refusal("members are missing: weights and segments are not numbered from 0 on")


def _read_manifest(members: Members) -> dict[str, Any]:
    if len(members[MANIFEST]) > MANIFEST_LIMIT_BYTES:
        raise Refusal(f"{len(members[MANIFEST])} bytes, the limit is {MANIFEST_LIMIT_BYTES}")
    try:
        manifest = strict_json.parse(members[MANIFEST].decode())
        json.dumps(manifest, ensure_ascii=False).encode()  # text that is no Unicode could not be printed
    except (ValueError, RecursionError) as error:
        raise Refusal(f"not JSON: {error}") from error
    version: object = cast("dict[str, Any]", manifest).get("format") if isinstance(manifest, dict) else None
    if not isinstance(version, int) or version not in (FORMAT, FORMAT_OF_CORES):
        raise Refusal(f"format version {version!r}, this cnncc reads {FORMAT} and {FORMAT_OF_CORES}")
    return cast("dict[str, Any]", manifest)


def _check_digests(manifest: Mapping[str, Any], members: Members) -> None:
    """Check the manifest's digests of all other members, if it has any. Raises Refusal."""
    if "members" not in manifest:
        return
    digests = manifest["members"]
    if not isinstance(digests, dict):
        raise Refusal(f"{MANIFEST}: members is no table")
    for name, data in members.items():
        listed = cast("dict[str, Any]", digests).get(name)
        if name != MANIFEST and listed != digest(data):
            raise Refusal(f"{name}: its sha256 is {digest(data)}, the manifest says {listed}")


def _arch(manifest: Mapping[str, Any]) -> Arch:
    if not isinstance(manifest.get("arch"), dict):
        raise Refusal("arch is missing: the description of the array")
    arch = arch_from_table(manifest["arch"], "arch")
    if manifest.get("arch_sha256", arch_digest(arch)) != arch_digest(arch):
        raise Refusal("arch_sha256 is not that of arch")
    return arch


def _program(data: bytes, segments: int, arch: Arch) -> Words:
    if len(data) % 4:
        raise Refusal(f"{len(data)} bytes are no whole number of words")
    words = np.frombuffer(data, "<u4").astype(np.uint32)
    instructions = decode_program(words)
    check_cores(instructions, arch)
    for number, inst in enumerate(instructions):
        if inst.spec.name == "host" and inst.number("segment") >= segments:
            raise Refusal(f"instruction {number}: host segment {inst.number('segment')}, there are {segments}")
    return words


def _weights(members: Members, manifest: Mapping[str, Any], arch: Arch) -> list[tuple[str, Array]]:
    files = [name for name in members if name.startswith("weights/")]
    names = manifest.get("weights", [name.partition("-")[2].removesuffix(".npy") for name in files])
    if not _is_names(names) or len(names) != len(files):
        raise Refusal(f"{MANIFEST}: weights are not {len(files)} names")
    return [(name, _in_member(file, _array, members[file], arch)) for name, file in zip(names, files, strict=True)]


def _is_names(value: object) -> bool:
    """Whether `value` is a list of different texts."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in cast("list[object]", value)):
        return False
    return len(set(cast("list[str]", value))) == len(cast("list[str]", value))


def _array(data: bytes, arch: Arch) -> Array:
    """The array of an .npy file of operand words alone; sizes are checked before memory is allocated."""
    header = _NPY.match(data)
    kind = {2: "<i2", 1: "|i1"}[arch.operand_bits // 8]
    if header is None or header["type"].decode() != kind:
        raise Refusal(f"not a plain array of {arch.operand_bits}-bit words")
    shape = tuple(int(dim) for dim in re.findall(rb"\d+", header["shape"]))
    body = len(data) - header.end()
    if not _is_possible(shape) or prod(shape) * arch.operand_bits // 8 != body:
        raise Refusal(f"shape {list(shape)} does not take the {body} bytes that are there")
    array = np.frombuffer(data, kind, offset=header.end()).reshape(shape)
    if _npy(array) != data:
        raise Refusal("its header is not as cnncc writes it")
    return array


def _is_possible(shape: Sequence[int]) -> bool:
    """Whether there can be arrays of this shape. numpy limits the product of the other dims even if one dim is zero."""
    return min(shape, default=0) >= 0 and prod(max(dim, 1) for dim in shape) <= DRAM_LIMIT_WORDS


def _tensors(manifest: Mapping[str, Any], arch: Arch) -> list[Tensor]:
    table = manifest.get("tensors")
    if not isinstance(table, list):
        raise Refusal("tensors are missing")
    tensors = [_tensor(entry, arch) for entry in cast("list[object]", table)]
    if not _is_names([tensor.name for tensor in tensors]):
        raise Refusal("two tensors have one name")
    return tensors


def _tensor(value: object, arch: Arch) -> Tensor:
    entry = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    for key, kind in (("name", str), ("type", str), ("role", str), ("shape", list), ("zero", int), ("clamp", list)):
        if not isinstance(entry.get(key), kind):
            raise Refusal(f"tensor {entry.get('name')!r}: {key} is {entry.get(key)!r}")
    name, shape, clamp = entry["name"], entry["shape"], entry["clamp"]
    numbers = [*shape, *clamp, entry["zero"]]
    # `type`: to `isinstance`, true and false are integers.
    if not all(type(n) is int and abs(n) <= 1 << 31 for n in numbers) or len(clamp) != 2 or len(shape) > RANK_LIMIT:
        raise Refusal(f"tensor {name}: shape {shape}, clamp {clamp}, zero {entry['zero']} are out of range")
    scale = entry.get("scale")
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 <= scale < 1 << 126:
        raise Refusal(f"tensor {name}: scale is {scale!r}")
    element = entry.get("element", "float32")
    if element not in ELEMENTS:
        raise Refusal(f"tensor {name}: element is {element!r}, not one of {', '.join(ELEMENTS)}")
    if entry["role"] not in ("input", "output", "value"):
        raise Refusal(f"tensor {name}: no role {entry['role']}")
    if not _is_possible(shape):
        raise Refusal(f"tensor {name}: shape {shape} is out of range")
    # The host's own integers have no scale.
    memory = "dram" if entry["type"] == f"int{arch.operand_bits}" and scale else "host"
    rest = (entry["role"], float(scale), entry["zero"], tuple(clamp))
    return Tensor(name, memory, prod(shape), tuple(shape), *rest, element=element)


def _check_segment(model: bytes, tensors: set[str]) -> None:
    for side in interface(model):
        for name in side:
            if name not in tensors:
                raise Refusal(f"there is no tensor '{name}', which it reads or writes")
