"""Small files of every kind that stand for endless work, memory or recursion: one message for each.

A command may take 10 s and 2 GiB more than the process has already. test_bombs.py has graphs of absurd sizes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import resource
import struct
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import refused, write_conv_files
from onnx import TensorProto, helper
from test_bombs import YES, a_loop, conv, model, node

from cnncc.errors import Refusal
from cnncc.util.files import read_bytes

pytestmark = pytest.mark.usefixtures("short_searches")

SECONDS, MOST_BYTES = 10, 2 << 30
MANY, DEEP = 1 << 31, 100_000
GIGABYTES = 5 << 30


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """No more time and memory than a bomb may take. A library that never returns ends the process, with a traceback."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, hard))
    faulthandler.dump_traceback_later(30 * SECONDS, exit=True)
    start = time.process_time()
    try:
        yield
        assert time.process_time() - start < SECONDS
    finally:
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its binary, its assembly, and its IR after every step."""
    folder = tmp_path_factory.mktemp("made")
    write_conv_files(folder)
    return folder


def with_gigabytes(path: Path) -> Path:
    """A file that takes no room on the disk."""
    path.touch()
    os.truncate(path, GIGABYTES)
    return path


# -- whatever a path may name ------------------------------------------------------------------------------------------

READERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "model": (("compile", "BOMB.onnx"), "use external data"),
    "binary": (("run", "BOMB.cnb"), "a binary has at most 4 GiB"),
    "inputs": (("run", "net.cnb", "--input", "BOMB.npz"), "not an .npz file"),
    "calibration": (("compile", "net.onnx", "--calibrate", "BOMB.npz"), "not an .npz file"),
    "array": (("compile", "net.onnx", "--arch", "BOMB.toml"), "the limit of a TOML file"),
    "schedule": (("compile", "net.onnx", "--schedule", "BOMB.toml"), "the limit of a TOML file"),
    "groups": (("compile", "net.onnx", "--groups", "BOMB.toml"), "the limit of a TOML file"),
    "IR": (("compile", "--from", "BOMB.mlir"), "the limit of IR is 256 MiB"),
    "IR of one step": (("opt", "BOMB.mlir"), "the limit of IR is 256 MiB"),
    "assembly": (("asm", "BOMB.s", "--data", "net.cnb", "-o", "new.cnb"), "the limit of assembly is 256 MiB"),
    "binary of assembly": (("asm", "net.s", "--data", "BOMB.cnb", "-o", "new.cnb"), "a binary has at most 4 GiB"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_device_and_a_file_of_gigabytes_are_refused(
    name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    args, message = READERS[name]
    path = tmp_path / next(arg for arg in args if arg.startswith("BOMB"))
    command = [path if arg.startswith("BOMB") else arg for arg in args]
    with_gigabytes(path)
    assert message in refused(*command)
    path.unlink()
    path.symlink_to("/dev/zero")
    said = refused(*command)
    assert "is a device, not a file" in said or message in said


# -- models ------------------------------------------------------------------------------------------------------------


def external(location: str, **entries: object) -> onnx.ModelProto:
    """A model whose weights lie elsewhere."""
    net = model([conv()])
    stored = net.graph.initializer[0]
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        stored.external_data.add(key=key, value=str(value))
    return net


def branches(depth: int) -> onnx.ModelProto:
    """An If in both branches of an If, and so on: 2 ^ depth nodes."""
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b", "c", "d"])]
    nodes = [node("Relu", ["x"], ["y"])]
    for _ in range(depth):
        inner = helper.make_graph(nodes, "g", [], result)
        nodes = [node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)]
    return model(nodes, yes=YES)


def functions(levels: int, calls: int) -> onnx.ModelProto:
    """Each function calls the one below several times: calls ^ levels nodes in all. On level 1 it calls itself."""
    net = model([node(f"F{levels - 1}", ["x"], ["y"], domain="f")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    net.opset_import.append(opsets[1])
    for level in range(levels):
        names = ["x", *(f"t{i}" for i in range(calls - 1)), "y"]
        inner, domain = (f"F{level - 1}", "f") if level else ("F0", "f") if levels == 1 else ("Relu", "")
        nodes = [node(inner, [a], [b], domain=domain) for a, b in zip(names, names[1:], strict=False)]
        net.functions.append(helper.make_function("f", f"F{level}", ["x"], ["y"], nodes, opsets))
    return net


def with_sum_of(*nodes: Any, **arrays: object) -> onnx.ModelProto:
    """Nodes with a value c, whose sum a convolution's input takes in."""
    added = [node("ReduceSum", ["c"], ["r"], keepdims=0), node("Add", ["x", "r"], ["a"]), conv("a")]
    return model([*nodes, *added], **arrays)


def loop_in_loop() -> onnx.ModelProto:
    nodes = a_loop("m")
    inner = a_loop("m")[0]
    inner.input[2], inner.output[0], inner.name = "s", "t", "inner"
    del nodes[0].attribute[0].g.node[1]
    nodes[0].attribute[0].g.node.append(inner)
    return model(nodes, m=np.array(10**5), yes=YES)


def lying(*dims: int) -> onnx.ModelProto:
    net = model([conv()])
    net.graph.initializer[0].dims[:] = dims
    return net


def later() -> onnx.ModelProto:
    net = model([conv()])
    net.opset_import[0].version = MANY
    return net


def field(number: int, length: int, data: bytes = b"") -> bytes:
    """A field of protobuf that says it has so many bytes."""
    size = bytearray()
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + data


def deep_fields() -> bytes:
    """Graphs in graphs: a graph is field 6 of an attribute, which is field 5 of a node, which is field 1 of a graph."""
    data = b""
    for number in (6, 5, 1) * 1000:
        data = field(number, len(data), data)
    return field(7, len(data), data)


Made = Callable[[], onnx.ModelProto | bytes]
ELEMENTS = "the limit is 134,217,728: a smaller image"
MODELS: Mapping[str, tuple[Made, str]] = {
    "a device": (lambda: external("/dev/zero"), "external data '/dev/zero' of tensor 'w': not inside the model's own"),
    "outside": (lambda: external("../../dev/zero"), "not inside the model's own folder"),
    "a device behind a link": (lambda: external("zeros"), "not inside the model's own folder"),
    "a folder behind a link": (lambda: external("devices/zero"), "not inside the model's own folder"),
    "a pipe": (lambda: external("pipe"), "external data 'pipe' of tensor 'w': no file"),
    "gigabytes": (lambda: external("huge"), "5,368,709,120 bytes, the limit is 2 GiB"),
    "more bytes than there are": (lambda: external("net.onnx", length=1 << 60), "bytes 0 to 1152921504606846976 of a"),
    "bytes before a file": (lambda: external("net.onnx", offset=-5), "bytes -5 to "),
    "an offset of many digits": (lambda: external("net.onnx", offset="9" * DEEP), "is not a number"),
    "branches": (lambda: branches(15), "nodes 65,535, the limit is 50,000: split the model"),
    "functions": (lambda: functions(40, 2), "nodes 2,199,023,255,551, the limit is 50,000: split the model"),
    "a function of itself": (lambda: functions(1, 1), "not a valid ONNX model: Cycle detected"),
    "a loop without an end": (
        lambda: model(a_loop(""), yes=YES),
        "Loop node 'again': it has a condition and no number",
    ),
    "a loop in a loop": (loop_in_loop, "Loop node 'inner': trips 10,000,000,000, the limit is 1,000,000"),
    "dims": (lambda: lying(MANY, MANY, MANY, MANY), "tensor 'w': Tensor dimension product overflow"),
    "negative dims": (lambda: lying(-1, -1, 3, 3), "tensor 'w': Negative dimension value"),
    "a rank": (lambda: lying(*[1] * DEEP), "its shapes do not fit together"),
    "an opset": (later, "Opset import version 2147483648 is out of supported range"),
    "a name": (lambda: model([node("Foo", ["x"], ["y"], name="n" * 10**6)]), "not a valid ONNX model: Foo node 'nnnn"),
    "many operands": (lambda: model([node("Concat", ["x"] * DEEP * 8, ["y"], axis=1)]), ELEMENTS),
    "a range": (
        lambda: with_sum_of(
            node("Range", ["lo", "hi", "by"], ["c"]), lo=np.float32(0), hi=np.float32(1e12), by=np.float32(1)
        ),
        ELEMENTS,
    ),
    "a product": (
        lambda: with_sum_of(node("MatMul", ["u", "v"], ["c"]), u=np.ones((DEEP, 1)), v=np.ones((1, DEEP))),
        ELEMENTS,
    ),
    "many digits in one": (
        lambda: with_sum_of(node("OneHot", ["i", "d", "v"], ["c"]), i=np.arange(5), d=np.array(10**11), v=np.ones(2)),
        ELEMENTS,
    ),
    "noise": (lambda: with_sum_of(node("RandomNormal", [], ["c"], shape=[10**6, 10**6])), ELEMENTS),
    "a block": (
        lambda: model([node("DepthToSpace", ["x"], ["a"], name="d", blocksize=1 << 40), conv("a")]),
        "DepthToSpace node 'd': blocksize 1,099,511,627,776, the limit is 1,048,576",
    ),
    "no block": (
        lambda: model([node("SpaceToDepth", ["x"], ["a"], name="d", blocksize=0), conv("a")]),
        "SpaceToDepth node 'd': blocksize 0, expected at least 1",
    ),
    "no group": (
        lambda: model([node("ConvTranspose", ["x", "w"], ["y"], name="t", group=0)]),
        "ConvTranspose node 't': group 0, expected at least 1",
    ),
    "deep fields": (deep_fields, "not an ONNX model, or truncated"),
    "a field's length": (lambda: field(7, MANY), "not an ONNX model, or truncated"),
    "a number without an end": (lambda: b"\x3a" + b"\xff" * DEEP, "not an ONNX model, or truncated"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_refused(name: str, tmp_path: Path) -> None:
    make, message = MODELS[name]
    path, given = tmp_path / "net.onnx", make()
    path.write_bytes(given if isinstance(given, bytes) else given.SerializeToString())
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "devices").symlink_to("/dev")
    os.mkfifo(tmp_path / "pipe")
    with_gigabytes(tmp_path / "huge")
    assert message in refused("compile", path, "-o", tmp_path / "net.cnb")


def test_a_pipe_that_never_ends_is_refused(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")

    def fill() -> None:
        with contextlib.suppress(BrokenPipeError), pipe.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(100))

    writer = threading.Thread(target=fill)
    writer.start()
    with pytest.raises(Refusal, match=r"pipe: more than 1,000 bytes, that is the limit"):
        read_bytes(pipe, 1000, "that is the limit")
    writer.join()


# -- texts -------------------------------------------------------------------------------------------------------------


def attribute(text: str) -> str:
    return "builtin.module attributes {a = " + text + "} {}"


IR: Mapping[str, tuple[str, str]] = {
    "regions": ("builtin.module {" * DEEP, "recursion|deep"),
    "brackets": (attribute("[" * DEEP), "recursion|deep"),
    "tuples": (attribute("tuple<" * DEEP), "recursion|deep"),
    "digits": (attribute("9" * DEEP), "Exceeds the limit .4300 digits."),
    "bits": (attribute("1 : i8000000000"), ":1: integers of 8000000000 bits, the limit is 64"),
    "elements": (
        "\n" + attribute("dense<0> : tensor<99999x99999xi32>"),
        ":2: a tensor of 99999x99999x elements, the limit is 2,147,483,648",
    ),
    "a string without an end": (attribute('"' + "x" * DEEP), ":1: a string has no end, or an unknown escape"),
    "aliases": (
        "".join(f"#a{i + 1} = [#a{i}, #a{i}]\n" for i in range(60)) + attribute("#a60"),
        ":1: an alias of an attribute or a type; cnncc's IR has none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IR)
def test_ir_is_refused(name: str, tmp_path: Path) -> None:
    text, message = IR[name]
    path = tmp_path / "net.mlir"
    path.write_text(text)
    for command in (("compile", "--from", path, "-o", tmp_path / "net.cnb"), ("opt", path)):
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(refused(*command))


TABLES: Mapping[str, tuple[str, str, str]] = {
    "parts of a key": ("--arch", "[" + "a." * DEEP + "b]", "a key has more than 32 parts between dots"),
    "tables in tables": ("--groups", "a = " + "{b=" * DEEP, "nested too deeply"),
    "digits": ("--schedule", '["c1"]\ntoy = ' + "9" * DEEP, "not TOML: "),
    "a number": ("--schedule", f'["c1"]\ntoy = {1 << 62}', "toy is from 1 to 2,147,483,647"),
    "groups": ("--groups", "[[group]]\n" * 1000, " 1000 problems"),
    "layers": (
        "--groups",
        "[[group]]\nlayers = [" + '"c1",' * DEEP + f"]\nrows = {MANY}",
        "group 1: rows is a whole number, from 1 to 2,147,483,647: ",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_refused(name: str, made: Path, tmp_path: Path) -> None:
    option, text, message = TABLES[name]
    path = tmp_path / "bomb.toml"
    path.write_text(text)
    assert message in refused("compile", made / "net.onnx", option, path, "-o", tmp_path / "net.cnb")


ASSEMBLY: Mapping[str, tuple[str, str]] = {
    "trips": ("loop count=4294967295\n" * 60, "line 1: count: 4294967295 is outside 1..16777215"),
    "digits": ("loop count=" + "9" * DEEP, "line 1: count: '9999"),
    "hex digits": ("loop count=0x" + "f" * DEEP, "line 1: Exceeds the limit"),
    "a line": ("nop " * DEEP, "line 1: 'nop' is not field=value"),
}


@pytest.mark.parametrize("name", ASSEMBLY)
def test_assembly_is_refused(name: str, made: Path, tmp_path: Path) -> None:
    text, message = ASSEMBLY[name]
    (tmp_path / "bomb.s").write_text(text)
    command = ("asm", tmp_path / "bomb.s", "--data", made / "net.cnb", "-o", tmp_path / "new.cnb")
    assert f"bomb.s: {message}" in refused(*command)


# -- arrays ------------------------------------------------------------------------------------------------------------


def zipped(members: Mapping[str, bytes], packed: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packed) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def array(shape: str, kind: str = "<f4", data: bytes = b"") -> bytes:
    """An .npz file with an array x whose header says what it likes."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return zipped({"x.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header + data})


def overlapping(number: int) -> bytes:
    """Many entries that share one body."""
    data = zipped({"x.npy": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)
    entries, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    entry, tail = data[entries:end], bytearray(data[end:])
    tail[8:16] = struct.pack("<HHI", number, number, number * len(entry))
    return data[:entries] + entry * number + bytes(tail)


ARRAYS: Mapping[str, bytes] = {
    "a dim": array("(1152921504606846976,)"),
    "dims": array("(4294967296, 4294967296)"),
    "none of many": array("(0, 1152921504606846976, 1152921504606846976)"),
    "a negative dim": array("(-1,)"),
    "brackets": array("(" * DEEP),
    "a rank": array("(" + "1," * DEEP + ")"),
    "a power": array("(9**9**9,)"),
    "a call": array("(__import__('os').getpid(),)"),
    "a pickle": array("(1,)", "|O", b"cos\nsystem\n(S'exit 1'\ntR."),
    "an element": array("(1,)", "|V2147483647"),
    "a header's length": zipped({"x.npy": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"}),
    "overlapping members": overlapping(5000),
    "an archive in an archive": zipped({"x.npy": zipped({"x.npy": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)}),
    "a path": zipped({"../x.npy": b""}),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_refused(name: str, made: Path, tmp_path: Path) -> None:
    """As inputs, as data for calibration, and as the weights of IR."""
    (tmp_path / "net.mlir").write_text(next((made / "ir").glob("*-cnn-legalize.mlir")).read_text())
    commands: Sequence[tuple[str, tuple[object, ...]]] = (
        ("x.npz", ("run", made / "net.cnb", "--input", tmp_path / "x.npz")),
        ("x.npz", ("compile", made / "net.onnx", "--calibrate", tmp_path / "x.npz")),
        ("weights.npz", ("compile", "--from", tmp_path / "net.mlir")),
    )
    for file, command in commands:
        (tmp_path / file).write_bytes(ARRAYS[name])
        assert f"{file}: " in refused(*command)
