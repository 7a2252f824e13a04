"""Messages: bits by hand, the thesis' numbers, payloads against the plain interpreter, `cnncc messages`."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from cli_cases import conv_model, done, refused, save
from plain_machine import PlainMachine

from cnncc.arch.model import Arch, Dram, Glb, Pe
from cnncc.binary.container import Binary
from cnncc.binary.message_listing import listing
from cnncc.binary.run import Machine
from cnncc.errors import Refusal
from cnncc.isa.assembly import assemble
from cnncc.isa.codec import encode_message, encode_program
from cnncc.isa.manual import manual
from cnncc.isa.table import MESSAGES, OPCODE, SPECS, Spec, Value, message
from cnncc.machine.bus_messages import Message, messages_at, messages_of
from cnncc.util import terminal

pytestmark = pytest.mark.usefixtures("short_searches")

# Type of command in bits 31..26 of word 0; input data in a word each, as worked out by hand from docs/isa.md.
ENCODINGS = [
    ("DATA", {"input_words": 1, "max_iteration": 1}, [0], "04000001 00000001 00000000 00000000 00000000"),
    (
        "DATA",
        {"type_of_data": "ifmap", "virtual_n2n": 1, "input_words": 3, "max_iteration": 12, "tag0": 1 << 31, "tag1": 6},
        [5, -1, -256],
        "04600003 0000000c 80000000 00000006 00000005 ffffffff ffffff00",
    ),
    (
        "OP",
        {"max_iteration": 36, "step_range": 4, "lanes": 3, "data_reuse": 6, "tag0": 5},
        [],
        "08000004 00000024 00030006 00000005 00000000",
    ),
    (
        "OP",
        {"command": "max", "lanes": 2, "lane_sums": 1, "tag0": 1},
        [],
        "09080001 00000001 00020000 00000001 00000000",
    ),
    (
        "OP",
        {"command": "add", "max_iteration": 70000, "step_range": 65535, "virtual_n2n": 1, "send_output": 1},
        [],
        "0a30ffff 00011170 00010000 00000000 00000000",
    ),
    ("OP", {"command": "max", "data_reuse": 0xFFFF, "tag1": 1}, [], "09000001 00000001 0001ffff 00000000 00000001"),
]


def run_up_to(machine: Machine, number: int) -> list[Message]:
    """The messages of instruction `number` when it runs for the first time."""
    return messages_at(machine.interpreter(), machine.binary.instructions, number)


@pytest.mark.parametrize(("name", "fields", "words", "code"), ENCODINGS)
def test_message_encoding_by_hand(name: str, fields: dict[str, Value], words: list[int], code: str) -> None:
    head = message(name, **fields)
    encoded = encode_message(head, words)
    assert " ".join(f"{word:08x}" for word in encoded) == code


@pytest.mark.parametrize("spec", MESSAGES, ids=lambda spec: spec.name)
def test_message_fields_do_not_overlap(spec: Spec) -> None:
    used = {0: ((1 << OPCODE.bits) - 1) << OPCODE.lsb}
    for field in spec.fields:
        mask = ((1 << field.bits) - 1) << field.lsb
        assert 0 <= field.word < spec.words and not used.get(field.word, 0) & mask, field
        used[field.word] = used.get(field.word, 0) | mask
        assert f"| `{field.name}` |" in manual()
    assert set(used) == set(range(spec.words))


def test_messages_have_the_fields_of_the_thesis() -> None:
    """Type of command is the opcode of the format, input data follows the head; the others are fields. So are lanes."""
    named = {field.name for spec in MESSAGES for field in spec.fields}
    thesis = ["command", "type of data", "max iteration", "step range", "data reuse", "virtual n2n", "send output"]
    assert named == {name.replace(" ", "_") for name in thesis} | {"input_words", "tag0", "tag1", "lanes", "lane_sums"}
    assert [spec.name for spec in MESSAGES] == ["DATA", "OP"]
    assert not {spec.name for spec in MESSAGES} & {spec.name for spec in SPECS}


# -- the thesis' schedules ---------------------------------------------------------------------------------------------

THESIS = Arch("row", 1, 3, Pe(224, 48, 16, max_pixels=1), Glb(4096, 32), Dram(8, 64))

# kx, ky, stride, p, q: max iteration and messages of the ifmap, of the weights, then of the mac its max iteration, step
# range, data reuse. Bursts have 10 words. Tables 5.4 and 5.5 of the thesis, for its examples with three PEs in a row.
SCHEDULES = [
    ((3, 3, 2, 1, 1), (6, 1), (9, 1), (9, 1, 3)),
    ((3, 3, 1, 1, 1), (3, 1), (9, 1), (9, 1, 6)),
    ((3, 3, 3, 1, 1), (9, 1), (9, 1), (9, 1, 0)),
    ((3, 3, 2, 2, 1), (6, 1), (18, 2), (18, 2, 3)),
    ((3, 3, 2, 2, 2), (12, 2), (36, 4), (36, 2, 6)),
    ((6, 3, 1, 1, 1), (3, 1), (18, 2), (18, 1, 15)),
]
ALWAYS = "take_ifmap=always give_ifmap=always take_weight=always give_weight=always clear=always send=always"


def binary(text: str, arch: Arch, dram: list[int]) -> Binary:
    return Binary(encode_program(assemble(text)), [("w", np.array(dram, np.int16))], [], [], arch, {})


def received(messages: list[Message], row: int, col: int) -> list[int]:
    """The input data for one PE, message by message."""
    return [word for each in messages if row in each.rows and col in each.cols for word in each.words or ()]


@pytest.mark.parametrize(("sizes", "ifmap", "weight", "mac"), SCHEDULES)
def test_the_messages_of_the_thesis(
    sizes: tuple[int, ...], ifmap: tuple[int, int], weight: tuple[int, int], mac: tuple[int, int, int]
) -> None:
    """Columns of the window one after the other, in each the input channels and their rows (Figures 5.20 to 5.23)."""
    kx, ky, stride, p, q = sizes
    own = min(stride, kx)
    width = 2 * stride + kx
    pixels, weights = [100 + at for at in range(q * ky * width)], list(range(kx * ky * q * p))
    program = f"""
        desc id=0
        dma words={len(pixels) + len(weights)}
        desc id=1 height={ky} width={width} pitch={width} plane={ky * width}
        desc id=2 base={len(pixels)}
        load kind=weight desc=2 cols=3 set_cols=3 open=always close=always extent3={len(weights)} term3=lin*1
        load kind=ifmap desc=1 cols=3 set_cols=3 open=always col=x*{stride} extent1={own} term1=x*1
             extent2={q} term2=k*1 extent3={ky} term3=y*1
        load kind=ifmap desc=1 cols=3 set_cols=3 edge=1 close=always slot={own * q * ky} x={own} col=x*{stride}
             extent1={max(kx - own, 1)} term1=x*1 extent2={q} term2=k*1 extent3={ky} term3=y*1
        mac cols=3 set_cols=3 taps={kx * ky * q} step_range={p} data_reuse={mac[2]} n2n_slot={own * q * ky}
             ifmap_j=1 weight_j={p} weight_i=1 psum_i=1 {ALWAYS}
        halt
    """
    text = re.sub(r"\n +(extent|ifmap_j)", r" \1", program)
    machine = Machine(binary(text, THESIS, pixels + weights), 1)
    by_weight, by_ifmap, by_edge, ops = (run_up_to(machine, number) for number in (4, 5, 6, 7))
    assert [(each.head.number("max_iteration"), len(by_weight)) for each in by_weight] == [weight] * weight[1]
    assert received(by_weight, 0, 2) == weights
    for pe in range(3):
        to_pe = [each for each in by_ifmap if each.cols == (pe,)]
        assert [each.head.number("max_iteration") for each in to_pe] == [ifmap[0]] * ifmap[1]
        assert all(each.head.number("input_words") <= 10 for each in to_pe)
        columns = range(pe * stride, pe * stride + own)
        wanted = [100 + (c * ky + y) * width + x for x in columns for c in range(q) for y in range(ky)]
        assert received(to_pe, 0, pe) == wanted
    if mac[2]:
        columns = range(2 * stride + own, 2 * stride + kx)
        wanted = [100 + (c * ky + y) * width + x for x in columns for c in range(q) for y in range(ky)]
        assert received(by_edge, 0, 2) == wanted and len(wanted) == mac[2]
        assert all(each.cols == (2,) and each.head.number("virtual_n2n") for each in by_edge)
    fields = ("max_iteration", "step_range", "data_reuse")
    assert {tuple(each.head.number(name) for name in fields) for each in ops} == {mac}
    virtual = [(each.cols, each.head.number("virtual_n2n"), each.head.number("send_output")) for each in ops]
    assert virtual == ([((0, 1), 0, 1), ((2,), 1, 1)] if mac[2] else [((0, 1, 2), 0, 1)])


# -- payloads ----------------------------------------------------------------------------------------------------------

TINY = Arch("tiny", 4, 6, Pe(60, 60, 4, max_pixels=1), Glb(600, 4), Dram(2, 3))


def random_load(r: random.Random) -> str:
    rows, cols = r.randint(1, 4), r.randint(1, 6)
    place = f"rows={rows} row0={r.randint(0, 4 - rows)} cols={cols} col0={r.randint(0, 6 - cols)}"
    sets = f"set_rows={r.randint(1, rows + 1)} set_cols={r.randint(1, cols + 1)} edge={r.randint(0, 1)}"
    terms = " ".join(
        f"{name}={r.choice(['lin', 'k', 'y', 'x'])}*{r.choice([0, 1, 2])}"
        for name in ("row", "row_set", "col", "col_set", "term0", "term1", "term2", "term3")
    )
    extents = " ".join(f"extent{i}={r.randint(1, 3 if i < 3 else 2)}" for i in range(4))
    start = f"offset=100 y={r.randint(-2, 3)} x={r.randint(-2, 3)} slot={r.randint(0, 3)}"
    return f"load kind=ifmap desc=1 open=always close=always {place} {sets} {terms} {extents} {start}"


@pytest.mark.parametrize("seed", range(40))
def test_messages_bring_what_the_plain_interpreter_loads(seed: int) -> None:
    """Every PE gets its slots, in their order, and no other PE gets any; in the first iteration of the loops around."""
    r = random.Random(seed)
    bounds = r.choice(["", "height=4 width=3 fill=-7 zero=2", "zero=-3", "height=5 width=5 ring_y=3 ring_x=4"])
    before = f"""
        desc id=0
        dma words=600
        desc id=1 pitch=7 plane=11 {bounds}
        step id=1 loop=1 by=lin*5
    """
    load = random_load(r)
    dram = [r.randint(-300, 300) for _ in range(600)]
    text = f"{before}\nloop count=2\nloop count=3\nend\nloop count=3\n{load}\nend\nend\nhalt"
    messages = run_up_to(Machine(binary(text, TINY, dram), 1), 8)
    plain = PlainMachine(TINY, dram)
    plain.run(assemble(f"{before}\n{load}\nhalt"))
    (half,) = plain.files["ifmap"].full
    for row in range(TINY.rows):
        for col in range(TINY.cols):
            slots = [slot for at_row, at_col, slot in half.slots if (at_row, at_col) == (row, col)]
            words = [half.slots[row, col, slot] for slot in sorted(slots)]
            assert received(messages, row, col) == words, (row, col)
    for each in messages:
        assert each.head.number("input_words") == len(each.words) <= TINY.bus.burst_words
        assert [col for col in range(64) if each.head.number(f"tag{col // 32}") >> col % 32 & 1] == list(each.cols)
    at = {}  # each PE's sum of terms, axis by axis
    inst = assemble(f"{load}\nhalt")[0]
    for row, col, *indices in half.places:
        if (row, col) in {(row, col) for row, col, _ in half.slots}:
            at[row, col] = dict.fromkeys(("lin", "k", "y", "x"), 0)
            for name, index in zip(("row", "row_set", "col", "col_set"), indices, strict=True):
                at[row, col][inst.term(name).axis] += inst.term(name).step * index
    for row in range(TINY.rows):  # a message of a burst for each distinct position of a row
        heard = [tuple(zip("lkyx", each.position or (), strict=True)) for each in messages if row in each.rows]
        wanted = {tuple((axis[0], step) for axis, step in at[place].items()) for place in at if place[0] == row}
        bursts = -(-(len(half.slots) // len(at)) // TINY.bus.burst_words)
        assert sorted(heard) == sorted([*wanted] * bursts)


DIAGONAL = """
desc id=0
dma words=600
load kind=ifmap desc=0 open=always close=always rows=3 cols=4 set_rows=3 set_cols=4 row=y*1 col=y*1 extent3=6 term3=x*1
halt
"""


def test_messages_on_a_diagonal_have_the_same_words() -> None:
    """Row stationary: PE r,c of 3 x 4 has row r + c of the image. A row of PEs has 4 rows of it, all have 6."""
    text = DIAGONAL.replace("desc id=0\n", "desc id=0 pitch=10\n")
    messages = run_up_to(Machine(binary(text, TINY, list(range(600))), 1), 2)
    assert [(each.rows, each.cols) for each in messages] == [((r,), (c,)) for r in range(3) for c in range(4)]
    words = {(each.rows[0] + each.cols[0], each.words) for each in messages}
    assert words == {(y, tuple(range(10 * y, 10 * y + 6))) for y in range(6)}
    listed = list(listing(binary(text, TINY, list(range(600)))))
    assert listed[1].startswith("  a message of 6 words to each of 12 groups of PEs at 6 positions: DATA command=load ")


def test_a_listing_joins_neighbouring_rows_and_columns() -> None:
    listed = list(listing(binary(f"mac op=add rows=2 cols=3 col0=1 {ALWAYS}\nhalt", TINY, [])))
    assert listed[1].startswith("  rows 0..1, columns 1..3: OP command=add ")


@pytest.mark.parametrize(
    ("words", "says"),
    [(36, "4 messages of 10 10 10 6"), (50, "5 messages of 5 x 10"), (52, "6 messages of 5 x 10 and 2")],
)
def test_a_listing_counts_messages_of_one_size(words: int, says: str) -> None:
    load = f"load kind=ifmap desc=1 extent3={words} term3=lin*1 open=always close=always"
    listed = list(listing(binary(f"desc id=0\ndma words=60\ndesc id=1\n{load}\nhalt", TINY, list(range(60)))))
    assert listed[1].startswith(f"  {says} words to ")


@pytest.mark.parametrize(
    ("words", "cols", "says"),
    [(1, 1, "1 word to 1 PE"), (1, 2, "1 word to 2 PEs"), (2, 1, "2 words to 1 PE")],
)
def test_a_listing_counts_words_and_pes(words: int, cols: int, says: str) -> None:
    load = f"load kind=ifmap desc=1 cols={cols} extent3={words} term3=lin*1 open=always close=always"
    listed = list(listing(binary(f"desc id=0\ndma words=2\ndesc id=1\n{load}\nhalt", TINY, [1, 2])))
    assert listed[1].startswith(f"  a message of {says}: DATA command=load ")


def test_send_output_holds_in_the_last_iteration() -> None:
    mac = f"load kind=ifmap desc=0 open=always close=always\nmac op=add {ALWAYS.replace('send=always', 'send={}')}"
    for when, count, sends in (("0", 2, 0), ("0", 1, 1), ("always", 2, 1), ("never", 1, 0), ("0+5", 1, 1)):
        text = f"dma words=4\nloop count={count}\n{mac.format(when)}\nend\nhalt"
        (op,) = run_up_to(Machine(binary(text, TINY, [1] * 4), 1), 3)
        assert op.head.number("send_output") == sends, when


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("messages")
    save(conv_model(), folder / "net.onnx")
    done("compile", folder / "net.onnx", "-o", folder / "net.cnb", "--arch", "seed-4x4")
    return folder


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that no line is too long for."""
    monkeypatch.setattr(terminal, "terminal_width", lambda: 10_000)


@pytest.mark.usefixtures("wide")
def test_the_command_lists_every_load_and_mac(folder: Path) -> None:
    listed = done("messages", folder / "net.cnb").stdout
    disassembled = done("disasm", folder / "net.cnb").stdout
    wanted = re.findall(r"^ *(load|mac) .*; ([0-9a-f]{4,})", disassembled, re.MULTILINE)
    assert [(name, at) for at, name in re.findall(r"^([0-9a-f]{4,}) (load|mac)", listed, re.MULTILINE)] == wanted
    assert re.search(r"^[0-9a-f]+ load c1$", listed, re.MULTILINE) and " OP command=mac " in listed
    for name, at in wanted:
        first = done("messages", folder / "net.cnb", "--at", at)
        assert "seeded random numbers" in first.stderr
        lines = first.stdout.splitlines()
        assert all(
            re.match(r"rows [0-3. ]+, columns [0-3. ]+: (DATA|OP) ", line) for line in lines[:: 1 + (name == "load")]
        )


@pytest.mark.usefixtures("wide")
def test_the_command_takes_inputs(folder: Path) -> None:
    """The first load of the ifmap brings the input's integers: ones are all alike."""
    np.savez(folder / "ones.npz", x=np.ones((1, 3, 11, 7), np.float32))
    disassembled = done("disasm", folder / "net.cnb").stdout
    at = re.findall(r"load .*kind=ifmap.*; ([0-9a-f]{4,})", disassembled)[0]
    lines = done("messages", folder / "net.cnb", "--at", at, "--input", folder / "ones.npz").stdout.splitlines()
    words = {int(word) for line in lines[1::2] for word in line.split()}
    assert len(words) == 2 and 0 in words  # the padding, and one


def test_the_command_refuses(folder: Path) -> None:
    net = folder / "net.cnb"
    at = int(re.findall(r"^desc .*; ([0-9a-f]{4,})", done("disasm", net).stdout, re.MULTILINE)[0], 16)
    assert f"no instruction begins at word {at + 1:04x}" in refused("messages", net, "--at", f"{at + 1:x}")
    assert "a desc sends no messages" in refused("messages", net, "--at", f"{at:04x}")
    for options in (["--at", "xyz"], ["--input", folder / "ones.npz"]):
        assert "Usage" in refused_usage("messages", net, *options)


def refused_usage(*args: object) -> str:
    from cli_cases import invoke

    result = invoke(*args)
    assert result.exit_code == 2
    return result.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("load extent0=65535 extent1=65535 extent2=65535 extent3=65535", "words for each PE, at most 60: load"),
        ("mac pixels=65535 taps=65535 step_range=65535", "operations for each PE, at most 16777216: mac"),
    ],
)
def test_hostile_sizes_are_refused(text: str, says: str) -> None:
    (inst,) = assemble(text + "\nhalt")[:1]
    with pytest.raises(Refusal, match=says):
        messages_of(inst, TINY)
