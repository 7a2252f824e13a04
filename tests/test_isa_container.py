"""The `.cnb` file: the same bytes for the same binary, and one clear refusal for whatever is wrong with it."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_cases import INPUTS, arch_2x2, module
from cli_cases import refused
from test_isa_lowering import lower, two_in_two_out

from cnncc.arch.model import load_arch
from cnncc.binary.container import Binary, from_bytes, load, pack, save, to_bytes
from cnncc.binary.isa_module import binary_to_module, build_binary, comments, layers
from cnncc.binary.run import Machine, quantise_input
from cnncc.dialects.array import Tensor, TensorAttr, TensorOp
from cnncc.dialects.weights import GlobalOp
from cnncc.errors import Refusal
from cnncc.isa.assembly import assemble
from cnncc.isa.codec import encode_program
from cnncc.isa.table import instruction
from cnncc.passes.array_allocate import ArrayAllocatePass
from cnncc.passes.array_to_isa import ArrayToIsaPass


def conv_binary() -> Binary:
    program, ctx = lower()
    return build_binary(program, ctx.weights, arch_2x2(), {"model": {"name": "réseau", "sha256": "ab" * 32}})


def host_binary() -> Binary:
    """Weights, a segment, and a result in the host's own memory."""
    _, ctx = module()
    key = ctx.weights.add(np.frombuffer(two_in_two_out(), np.uint8))
    host = f'array.host inputs [x, x], outputs [p, y] model <"{key}">'
    real = "array.tensor p, memory host, words 6, shape [2, 3], role output"
    program, _ = module(real, INPUTS, host, ctx=ctx)
    ArrayAllocatePass("spatial-8x8").apply(ctx, program)
    ArrayToIsaPass().apply(ctx, program)
    return build_binary(program, ctx.weights, arch_2x2())


BINARIES = [conv_binary, host_binary]


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_isa_container_members_have_no_time_and_no_system() -> None:
    """Two machines write the same bytes."""
    with zipfile.ZipFile(io.BytesIO(to_bytes(conv_binary()))) as archive:
        said = {(each.date_time, each.create_system, each.external_attr) for each in archive.infolist()}
    assert said == {((1980, 1, 1, 0, 0, 0), 3, 0o644 << 16)}


def with_manifest(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another manifest, otherwise as it should be."""
    parts = members(data)
    manifest = json.loads(parts["manifest.json"])
    change(manifest)
    return pack(parts | {"manifest.json": json.dumps(manifest).encode()})


@pytest.mark.parametrize("make", BINARIES)
def test_isa_container_round_trip(make: Callable[[], Binary], tmp_path: Path) -> None:
    path = tmp_path / "net.cnb"
    save(make(), path)
    first = path.read_bytes()
    again = load(path)
    assert to_bytes(again) == first == to_bytes(make())
    assert [item.name for item in tmp_path.iterdir()] == ["net.cnb"]
    np.testing.assert_array_equal(again.program, make().program)
    assert again.program.dtype == np.uint32
    assert again.arch == arch_2x2()
    assert list(again.tensors) == list(make().tensors)


@pytest.mark.parametrize("make", BINARIES)
def test_isa_container_is_an_ordinary_zip(make: Callable[[], Binary]) -> None:
    parts = members(to_bytes(make()))
    assert list(parts)[:4] == ["manifest.json", "program.bin", "weights/000-conv1.w.npy", "weights/001-conv1.p.npy"]
    weights = np.load(io.BytesIO(parts["weights/000-conv1.w.npy"]), allow_pickle=False)
    np.testing.assert_array_equal(weights, make().weights[0][1])
    assert parts["program.bin"][:4] == make().program[:1].astype("<u4").tobytes()


@pytest.mark.parametrize("make", BINARIES)
def test_isa_binary_to_module_and_back(make: Callable[[], Binary]) -> None:
    binary = from_bytes(to_bytes(make()))
    program, store = binary_to_module(binary)
    program.verify()
    computed = ("arch_sha256", "weights", "layers", "comments", "buffers", "segments")
    about = {key: value for key, value in binary.metadata.items() if key not in computed}
    assert to_bytes(build_binary(program, store, binary.arch, about)) == to_bytes(binary)


def test_isa_container_knows_layers_and_comments() -> None:
    binary = from_bytes(to_bytes(conv_binary()))
    found = layers(binary)
    assert [(layer.label, layer.value) for layer, _ in found][1] == ("conv1", "relu1")
    assert found[1][1] == {"mapping": "k2 > h2 > [k h||2@rows w||2@cols] > c"}
    assert comments(binary)[found[1][0].first] == "conv1: x: x.glb"
    bare = replace(binary, metadata={"layers": binary.metadata["layers"]})
    assert comments(bare)[found[1][0].first] == "conv1"
    assert layers(replace(binary, metadata={})) == []


@pytest.mark.parametrize("wrong", [{"first": -1}, {"count": "2"}, {"label": 3}, {"about": []}])
def test_isa_container_refuses_entries_that_are_no_layers(wrong: dict[str, object]) -> None:
    binary = conv_binary()
    entry = {**binary.metadata["layers"][1], **wrong}
    with pytest.raises(Refusal, match="layers: .* is no layer"):
        layers(replace(binary, metadata={"layers": [entry]}))


def test_isa_container_names_the_file_of_wrong_entries(tmp_path: Path) -> None:
    path = tmp_path / "net.cnb"
    path.write_bytes(with_manifest(to_bytes(conv_binary()), lambda manifest: manifest.update(layers=[{}])))
    assert refused("run", path).startswith(f"cnncc: {path}: manifest.json: layers: {{}} is no layer")
    path.write_bytes(with_manifest(to_bytes(conv_binary()), lambda manifest: manifest.update(buffers=[{}])))
    with pytest.raises(Refusal, match=f"^{path}: manifest.json: buffers: {{}} is no buffer"):
        binary_to_module(load(path))


@pytest.mark.parametrize("key", ["offset", "image", "plane", "pitch", "column"])
@pytest.mark.parametrize("wrong", ["x", -1, 1 << 32, 1 << 63])
def test_isa_container_refuses_parts_that_lie_nowhere(key: str, wrong: object) -> None:
    part = {"memory": "dram", "of": "x", key: wrong}
    entry = {"name": "part", "at": 88, "words": 4, "shape": [1, 1, 2, 2], "part": part}
    with pytest.raises(Refusal, match=r"^manifest\.json: buffers: .* is no buffer"):
        binary_to_module(replace(conv_binary(), metadata={"buffers": [entry]}))


def test_isa_container_tensors_follow_the_weights() -> None:
    """Rule MEM-2: 72 + 16 words of weights, then x, r, y, z."""
    binary = conv_binary()
    assert [(tensor.name, tensor.at) for tensor in binary.tensors] == [("x", 88), ("r", 100), ("y", 132), ("z", 148)]
    assert binary.dram_words == 180
    assert [(tensor.name, tensor.memory, tensor.at) for tensor in host_binary().tensors][-1] == ("p", "host", -1)


@pytest.mark.parametrize("make", BINARIES)
def test_isa_container_runs_without_metadata(make: Callable[[], Binary]) -> None:
    """All that a run reads is there when only format, arch and tensors are."""
    data = to_bytes(make())

    def strip(manifest: dict[str, Any]) -> None:
        for key in set(manifest) - {"format", "arch", "tensors"}:
            del manifest[key]

    bare, full = from_bytes(with_manifest(data, strip)), from_bytes(data)
    assert not bare.metadata
    assert (bare.tensors, bare.arch, bare.segments) == (full.tensors, full.arch, full.segments)
    np.testing.assert_array_equal(bare.program, full.program)
    for (_, a), (_, b) in zip(bare.weights, full.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert binary_to_module(bare)[0].verify() is None


@pytest.mark.parametrize("make", BINARIES)
def test_isa_container_notices_every_flipped_bit(make: Callable[[], Binary]) -> None:
    data = to_bytes(make())
    rng = np.random.default_rng(3)
    structure = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("P"))  # headers begin with it
    around = {int(at + k) for at in structure for k in range(46) if at + k < len(data)}
    some = sorted({*around, *map(int, rng.integers(0, len(data), 1500)), *range(len(data) - 60, len(data))})
    for at in some:
        bad = bytearray(data)
        bad[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(Refusal):
            from_bytes(bytes(bad))


@pytest.mark.parametrize("make", BINARIES)
def test_isa_container_notices_every_truncation(make: Callable[[], Binary]) -> None:
    data = to_bytes(make())
    for size in [*range(0, len(data), 97), len(data) - 1]:
        with pytest.raises(Refusal, match="not a cnncc binary, or damaged"):
            from_bytes(data[:size])
    with pytest.raises(Refusal, match=f"damaged at byte {len(data):#x}|not a cnncc binary"):
        from_bytes(data + b"\0")


def npy(array: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def replaced(name: str, data: bytes | None) -> Callable[[bytes], bytes]:
    """The file with a member replaced or left out, and a manifest without digests."""

    def change(file: bytes) -> bytes:
        parts = members(with_manifest(file, lambda manifest: manifest.pop("members")))
        parts[name] = data or b""
        if data is None:
            del parts[name]
        return pack(parts)

    return change


ZEROS = npy(np.zeros(9, np.int16))


def weights(data: bytes) -> Callable[[bytes], bytes]:
    return replaced("weights/000-conv1.w.npy", data)


def words(*insts: Any) -> bytes:
    return encode_program(insts).tobytes()


def foreign(file: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("readme.txt", "hello")
    return stream.getvalue()


def deflated(file: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members(file).items():
            archive.writestr(name, data)
    return stream.getvalue()


def other_dates(file: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members(file).items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 2, 3, 4, 6)), data)
    return stream.getvalue()


def twice(file: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for name in (*members(file), "program.bin"):
            archive.writestr(name, members(file)[name])
    return stream.getvalue()


def claimed(file: bytes) -> bytes:
    """The last entry of the archive's directory says that its member has 2^30 bytes more."""
    entry = file.rindex(b"PK\1\2") + 24
    size = int.from_bytes(file[entry : entry + 4], "little") + (1 << 30)
    return file[:entry] + size.to_bytes(4, "little") + file[entry + 4 :]


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    return lambda file: with_manifest(file, change)


def tensor(**fields: Any) -> Callable[[bytes], bytes]:
    return changed(lambda manifest: manifest["tensors"][0].update(fields))


CORRUPTIONS: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("nothing", lambda file: b"", "not a cnncc binary, or damaged .0 bytes"),
    ("text", lambda file: b"hello" * 100, "not a cnncc binary, or damaged .500 bytes"),
    ("foreign zip", foreign, "member manifest.json is missing: not a cnncc binary"),
    ("deflated", deflated, "manifest.json: is compressed or encrypted"),
    ("other dates", other_dates, "damaged at byte 0xa: not as cnncc writes a binary"),
    ("a member twice", twice, "members are out of order or twice"),
    ("a huge claim", claimed, r"its members claim 10737\d+ bytes, the file has \d+"),
    ("no program", replaced("program.bin", None), "member program.bin is missing"),
    ("a stray member", replaced("virus.exe", b"x"), "member virus.exe has no meaning"),
    ("a missing weight", replaced("weights/000-conv1.w.npy", None), "not numbered from 0"),
    ("wrong digest", changed(lambda m: m["members"].update({"program.bin": "00"})), "program.bin: its sha256 .* 00"),
    ("a digest less", changed(lambda m: m["members"].popitem()), "weights/001-conv1.p.npy: its sha256 .* says None"),
    ("digests no table", changed(lambda m: m.update(members=[])), "manifest.json: members is no table"),
    ("no JSON", replaced("manifest.json", b"{"), "manifest.json: not JSON"),
    ("not a table", replaced("manifest.json", b"[1]"), "manifest.json: format version None, this cnncc reads 6"),
    ("deep JSON", replaced("manifest.json", b"[" * 100000), "manifest.json: not JSON"),
    ("NaN", replaced("manifest.json", b'{"format": NaN}'), "manifest.json: not JSON: NaN is no number"),
    ("1e999", replaced("manifest.json", b'{"format": 1e999}'), "manifest.json: not JSON: 1e999 is no number"),
    ("no text", replaced("manifest.json", b'{"format": 1, "a": "\\ud800"}'), "manifest.json: not JSON"),
    ("later format", changed(lambda m: m.update(format=8)), "format version 8, this cnncc reads 6"),
    ("earlier format", changed(lambda m: m.update(format=1)), "format version 1, this cnncc reads 6"),
    ("no arch", changed(lambda m: m.pop("arch")), "arch is missing"),
    ("odd arch", changed(lambda m: m["arch"].update(rows=0)), "arch: rows = 0 is outside 1 to 32"),
    ("other arch", changed(lambda m: m["arch"].update(rows=3)), "arch_sha256 is not that of arch"),
    ("unknown arch key", changed(lambda m: m["arch"].update(row=3)), "arch: unknown key 'row'; did you mean 'rows'"),
    ("no tensors", changed(lambda m: m.pop("tensors")), "tensors are missing"),
    ("tensor is text", changed(lambda m: m.update(tensors=["x"])), "tensor None: name is None"),
    ("tensors twice", changed(lambda m: m.update(tensors=m["tensors"] * 2)), "two tensors have one name"),
    ("no zero", tensor(zero=None), "tensor 'x': zero is None"),
    ("odd scale", tensor(scale="1"), "tensor x: scale is '1'"),
    ("endless scale", tensor(scale=-1), "tensor x: scale is -1"),
    ("odd element", tensor(element="int4"), "tensor x: element is 'int4', not one of float32, int8, uint8"),
    ("odd role", tensor(role="weight"), "tensor x: no role weight"),
    ("huge dim", tensor(shape=[1 << 40]), "are out of range"),
    ("huge shape", tensor(shape=[1 << 20, 1 << 20]), "is out of range"),
    ("negative dim", tensor(shape=[-1, 2]), r"shape \[-1, 2\] is out of range"),
    ("real dim", tensor(shape=[1.5]), "are out of range"),
    ("true as a dim", tensor(shape=[True, 9]), "are out of range"),
    ("true as a scale", tensor(scale=True), "tensor x: scale is True"),
    ("empty and huge", tensor(shape=[0, 1 << 31, 1 << 31]), "is out of range"),
    ("high rank", tensor(shape=[1] * 17), "are out of range"),
    ("odd clamp", tensor(clamp=[1]), "are out of range"),
    ("much DRAM", tensor(shape=[1 << 30]), "take 1073741992 words, DRAM has 1073741824"),
    ("too few names", changed(lambda m: m.update(weights=["a"])), "manifest.json: weights are not 2 names"),
    ("names that are none", changed(lambda m: m.update(weights=[[], {}])), "weights are not 2 names"),
    ("odd bytes", replaced("program.bin", b"abc"), "program.bin: 3 bytes are no whole number of words"),
    ("half a word", replaced("program.bin", b"abcdef"), "program.bin: 6 bytes are no whole number of words"),
    ("no words", replaced("program.bin", b""), "program.bin: the program is empty"),
    ("opcode", replaced("program.bin", b"\xff\xff\xff\xff"), "program.bin: word 0x0000: 0xffffffff has no"),
    ("no halt", replaced("program.bin", words(instruction("end"))), "program.bin: instruction 0: end without loop"),
    ("no segment", replaced("program.bin", words(instruction("host", segment=1), instruction("halt"))),
     "program.bin: instruction 0: host segment 1, there are 0"),
    ("float weights", weights(npy(np.zeros(72, np.float32))), "conv1.w.npy: not a plain array"),
    ("8-bit weights", weights(npy(np.zeros(72, np.int8))), "a plain array of 16-bit words"),
    ("pickle", weights(npy(np.array([{}]), allow_pickle=True)), "not a plain array"),
    ("other order", weights(npy(np.zeros((8, 9), np.int16, "F"))), "not a plain array"),
    ("short", weights(ZEROS[:-2]), "shape .9. does not take the 16 bytes"),
    ("header", weights(ZEROS.replace(b"(9,)", b"(9 )")), "its header is not as"),
    ("many digits", weights(ZEROS.replace(b"(9,)", b"(%s, 1X)" % (b"1" * 40))), "not a plain array"),
    ("huge for 0 words", weights(ZEROS[:-18].replace(b"(9,)", b"(4294967296, 4294967296, 0)")), "take the 0 bytes"),
    ("absurd shape", weights(ZEROS.replace(b"(9,), } ", b"(99999), }")),
     "shape .99999. does not take"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in CORRUPTIONS], ids=[row[0] for row in CORRUPTIONS])
def test_isa_container_refuses(change: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.cnb"
    path.write_bytes(change(to_bytes(conv_binary())))
    with pytest.raises(Refusal, match=message) as refusal:
        load(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("segment", "message"),
    [(b"\xff\xff", "segments/00.onnx: a host segment does not hold an ONNX model"),
     (two_in_two_out(), "segments/00.onnx: there is no tensor 'q', which it reads or writes")],
)  # fmt: skip
def test_isa_container_refuses_segments(segment: bytes, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        from_bytes(replaced("segments/00.onnx", segment)(to_bytes(host_binary())))


def test_isa_reals_saturate_to_the_clamp_of_their_tensor() -> None:
    """The clamp may be narrower than a word, as that of a symmetric scale is, or wider, as that of unsigned codes."""
    reals = np.array([-1e9, -2.0, 2.0, 1e9])
    for clamp, wanted in (((-127, 100), [-127, -4, 4, 100]), ((-200, 255), [-128, -4, 4, 127])):
        tensor = Tensor("x", "dram", 4, scale=0.5, clamp=clamp)
        assert quantise_input(tensor, reals, 8).tolist() == wanted


def test_isa_runs_say_how_far_they_are() -> None:
    """By the number of the next instruction, behind each loop and each instruction that is in none."""
    program = assemble("desc id=1\nloop count=2\nloop count=3\nsignal semaphore=1 count=1\nend\nend\nhalt")
    seen, said = list[int](), list[str]()
    machine = Machine(Binary(encode_program(program), [], [], [], arch_2x2()), 1)
    machine.run(lambda following, _: seen.append(following), lambda what, *_: said.append(what))
    assert seen == [1, 6, 7]
    assert set(said) == {"running, 0 %"}


def test_isa_container_files(tmp_path: Path) -> None:
    binary = conv_binary()
    with pytest.raises(Refusal, match="missing.cnb: cannot be read: No such file"):
        load(tmp_path / "missing.cnb")
    with pytest.raises(Refusal, match="Is a directory"):
        load(tmp_path)
    save(binary, tmp_path / "new" / "net.cnb")
    shutil.rmtree(tmp_path / "new")
    with pytest.raises(Refusal, match="is a folder"):
        save(binary, tmp_path)
    target = tmp_path / "kept.cnb"
    target.write_text("precious")
    target.chmod(0o444)
    with pytest.raises(Refusal, match="kept.cnb: is read-only"):
        save(binary, target)
    assert target.read_text() == "precious"
    target.unlink()
    assert not list(tmp_path.parent.glob(".unfinished*")) + list(tmp_path.iterdir())
    shutil.rmtree(tmp_path)


def test_isa_build_binary_checks_what_the_program_counts_on() -> None:
    program, ctx = lower()
    arch = arch_2x2()
    with pytest.raises(Refusal, match="weights conv1.w are int16, the words of 2x2 have 8 bits"):
        build_binary(program, ctx.weights, replace(arch, operand_bits=8))
    for op in [op for op in program.ops if isinstance(op, TensorOp)]:
        was = op.record
        if was.data.memory == "dram":
            op.record = TensorAttr(replace(was.data, at=was.data.at + 1))
            with pytest.raises(Refusal, match=f"tensor {was.data.name} lies at word .* run array-allocate"):
                build_binary(program, ctx.weights, arch)
            op.record = was
    assert load_arch("spatial-4x4").operand_bits == arch.operand_bits
    *_, weights = (op for op in program.ops if isinstance(op, GlobalOp))
    name = weights.sym_name.data
    (tensor,) = (op for op in program.ops if isinstance(op, TensorOp) and op.record.data.name == name)
    weights.detach()
    with pytest.raises(Refusal, match=f"there are no weights {name}"):
        build_binary(program, ctx.weights, arch)
    program.body.block.add_op(weights)
    tensor.detach()
    with pytest.raises(Refusal, match=f"weights {name} have no tensor"):
        build_binary(program, ctx.weights, arch)
