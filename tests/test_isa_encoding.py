"""The instruction table and its expansions: encodings worked out by hand, round trips, illegal words, the manual."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from examples import SEED, examples
from hypothesis import given
from hypothesis import strategies as st
from trap_cases import WORDS

from cnncc.arch.model import LOOP_REGISTERS
from cnncc.arch.operations import MacOperation
from cnncc.errors import Refusal
from cnncc.isa.assembly import assemble, disassemble, format_instruction, parse_instruction
from cnncc.isa.codec import check_structure, decode_program, encode, encode_program
from cnncc.isa.fields import AXES, Field, FieldTerm, Value
from cnncc.isa.manual import manual
from cnncc.isa.table import OPCODE, SPECS, Instruction, Spec, instruction

# Words worked out by hand from the bit positions in docs/isa.md: opcode in bits 31..26; a term is its axis in bits
# 31..30 and a step of 30 bits; a condition is 0x100 and a mask.
ENCODINGS = [
    ("halt", "00000000"),
    ("loop count=3", "04000003"),
    ("loop count=16777215", "04ffffff"),
    ("loop frames=1 count=3", "06000003"),
    ("end", "08000000"),
    ("sync dma=1 commit=1", "0c000009"),
    ("sync load=1 array=1", "0c000006"),
    ("signal semaphore=5 count=7", "11400007"),
    ("host segment=258", "14000102"),
    ("desc id=3 base=0x12345678 height=8 width=7 pitch=9 plane=56 fill=-3 zero=-128 wrap=1000 ring_y=5 "
     "ring_x=6", "18c00000 12345678 00080007 00000009 00000038 fffdff80 000003e8 00050006"),
    ("desc id=2 column=258", "18800102 00000000 00000000 00000000 00000000 00000000 00000000 00000000"),
    ("desc id=1 frames=1 pitch=1568", "18600000 00000000 00000000 00000620 00000000 00000000 00000000 00000000"),
    ("step id=15 loop=7 by=y*-2", "1fc00007 bffffffe"),
    ("step id=0 loop=1 by=k*5", "1c000001 40000005"),
    ("step id=1 loop=0 by=x*-1", "1c400000 ffffffff"),
    ("step id=1 loop=0 by=lin*-1", "1c400000 3fffffff"),
    ("dma direction=out dram=1 glb=2 count=3 take=4 give=5 take_when=always give_when=0+2 words=100 dram_offset=-1 "
     "glb_offset=16 dram_step=32 glb_step=48 rows=7 y=-1 x=2",
     "22120003 45100105 00000064 ffffffff 00000010 00000020 00000030 ffff0002 00000007"),
    ("dma", "20000001 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000001"),
    ("load row0=1 rows=4 col0=2 cols=8 take=2 give=3 take_when=1 give_when=never kind=ifmap set_rows=2 set_cols=4 "
     "desc=5 slot=6 open=always close=0+1 edge=1 offset=-2 channel=3 y=-1 x=4 extent0=1 extent1=2 extent2=3 extent3=5 "
     "term0=lin*1 term1=k*2 term2=y*3 term3=x*-4 row=y*1 row_set=lin*72 col=x*1 col_set=k*-1",
     "25044088 23102000 08450006 81000103 fffffffe 00000003 ffff0004 00010002 00030005 00000001 40000002 80000003 "
     "fffffffc 80000001 00000048 c0000001 7fffffff"),
    ("load", "24001001 00000000 04100000 00000000 00000000 00000000 00000000 00010001 00010001" + " 00000000" * 8),
    ("mac op=max row0=1 rows=4 col0=2 cols=8 set_cols=4 clear=0 send=2 take_weight=always give_weight=1 "
     "take_ifmap=0+1+2 give_ifmap=never pixels=2 taps=9 step_range=4 data_reuse=6 n2n_slot=3 ifmap_slot=1 "
     "weight_slot=5 psum_slot=9 "
     "ifmap_z=2 ifmap_j=-1 ifmap_i=4 weight_z=6 weight_j=7 weight_i=8 psum_z=10 psum_j=11 psum_i=-12 "
     "lanes=5 ifmap_l=-3 weight_l=13",
     "29044088 11010104 01000102 01070000 00020009 00040006 00030001 00050009 0002ffff 00040006 00070008 000a000b "
     "fff40005 fffd000d"),
    ("mac op=max lanes=2 psum_l=1", "29001001 06000000 00000000 00000000 00010001 00010000" + " 00000000" * 6
     + " 00000002 00000000"),
    ("mac op=add", "2a001001 04000000 00000000 00000000 00010001 00010000" + " 00000000" * 6 + " 00000001 00000000"),
    ("unit bias=1 residual=1 zero=-5 clamp_lo=-40 clamp_hi=90 factor_a=0x3f800000 factor_b=0xbf000000 fixed=0x3f000000 "
     "add_lo=-60 add_hi=99",
     "2e800000 fffffffb ffffffd8 0000005a 3f800000 bf000000 3f000000 ffffffc4 00000063 00000000"),
    ("unit residual=1 multiply=1 factor_a=0x38a5493b factor_b=0x40400000 fixed=0x40000000 add_lo=-7 add_hi=7",
     "2ca00000 00000000 00000000 00000000 38a5493b 40400000 40000000 fffffff9 00000007 00000000"),
    ("unit scale=1 leaky=1 slope=0x3dcccccd", "2d400000" + " 00000000" * 8 + " 3dcccccd"),
    ("unit lookup=1 shift=9 last=-2", "2c19fffe" + " 00000000" * 9),
    ("table part=5 entry0=1 entry1=-2 entry2=3 entry3=-4 entry4=5 entry5=-6 entry6=7 entry7=-8 entry8=9 entry9=-10 "
     "entry10=11 entry11=-12 entry12=13 entry13=-14 entry14=15 entry15=-16 entry16=17 entry17=-18 entry18=19 "
     "entry19=-20 entry20=21 entry21=-22 entry22=23 entry23=-24 entry24=25 entry25=-26 entry26=27 entry27=-28 "
     "entry28=29 entry29=-30 entry30=32767 entry31=-32768",
     "3c000005 0001fffe 0003fffc 0005fffa 0007fff8 0009fff6 000bfff4 000dfff2 000ffff0 0011ffee 0013ffec 0015ffea "
     "0017ffe8 0019ffe6 001bffe4 001dffe2 7fff8000"),
    ("table entry1=258", "3c000000 00000102" + " 00000000" * 15),
    ("commit source=glb row0=1 rows=4 col0=2 cols=8 take=9 take_when=always give=1 give_when=0 set_rows=2 "
     "set_cols=4 desc=5 operand=6 residual=7 params=8 offset=16 channel=3 y=2 x=-1 param=-4 "
     "pixels=2 lines=3 channels=4 pixel_term=x*1 line_term=y*-3 channel_term=k*1 psum_slot=1 "
     "psum_z=12 psum_j=4 psum_i=-1 reduce=1 partial=1 sums=10 fresh=always final=0+3 "
     "row=y*1 row_set=lin*2 col=x*1 col_set=k*3",
     "32044088 91100101 08456780 00000010 00000003 0002ffff fffffffc 00020003 00040001 c0000001 bffffffd 40000001 "
     "000c0004 ffff0001 95000109 80000001 00000002 c0000001 40000003"),
    ("core row0=1 rows=3 col0=2 cols=4", "34043084"),
    ("core", "34000000"),
    ("route semaphore=13 core=2 to=14", "3b40020e"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), ENCODINGS)
def test_isa_encoding_by_hand(text: str, words: str) -> None:
    assert " ".join(f"{word:08x}" for word in encode(parse_instruction(text))) == words


def test_isa_encodings_by_hand_have_every_instruction_and_field() -> None:
    written: dict[str, set[str]] = {}
    for text, _ in ENCODINGS:
        name, *fields = text.split()
        written.setdefault(name, set()).update(field.partition("=")[0] for field in fields)
    assert written == {spec.name: {field.name for field in spec.fields} for spec in SPECS}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_isa_table_fields_do_not_overlap(spec: Spec) -> None:
    used = {0: ((1 << OPCODE.bits) - 1) << OPCODE.lsb}
    for field in spec.fields:
        assert 0 <= field.lsb <= field.msb <= 31
        assert 0 <= field.word < spec.words
        mask = ((1 << field.bits) - 1) << field.lsb
        assert not used.get(field.word, 0) & mask, field
        used[field.word] = used.get(field.word, 0) | mask
    assert len({field.name for field in spec.fields}) == len(spec.fields)
    assert set(used) == set(range(spec.words)), "a word without field"


def test_isa_table_opcodes_and_names_are_different() -> None:
    assert len({spec.opcode for spec in SPECS}) == len({spec.name for spec in SPECS}) == len(SPECS)
    assert all(spec.opcode < 1 << OPCODE.bits for spec in SPECS)


def values(field: Field) -> st.SearchStrategy[Value]:
    """Legal values of a field, extremes likely."""
    match field.kind:
        case "term":
            return st.builds(
                FieldTerm, st.sampled_from(AXES), st.integers(-(1 << field.bits - 3), (1 << field.bits - 3) - 1)
            )
        case "when":
            loops = st.sets(st.integers(0, LOOP_REGISTERS - 1))
            return st.none() | loops.map(lambda loops: tuple(sorted(loops)))
        case "enum":
            return st.sampled_from(field.names)
        case "int":
            return st.integers(-(1 << field.bits - 1), (1 << field.bits - 1) - 1)
        case _:
            return st.integers(field.least, (1 << field.bits) - 1)


def instances(spec: Spec) -> st.SearchStrategy[Instruction]:
    fields = st.fixed_dictionaries({field.name: values(field) for field in spec.fields})
    return fields.map(lambda fields: instruction(spec.name, **fields))


CORE, ROUTE = (next(spec for spec in SPECS if spec.name == name) for name in ("core", "route"))
PLAIN = [spec for spec in SPECS if spec.name not in ("halt", "loop", "end", "core", "route")]


def without_frames(inst: Instruction) -> Instruction:
    """Frames are for programs of cores."""
    return instruction(inst.spec.name, **{**inst.values, "frames": 0}) if inst.spec.name == "desc" else inst


def bodies(specs: list[Spec], frames: int) -> st.SearchStrategy[list[Instruction]]:
    """Instructions in loops, then halt. frames: 1 where loops may be over frames."""
    return st.recursive(
        st.lists(
            st.one_of(*map(instances, specs)).map(lambda inst: inst if frames else without_frames(inst)), max_size=3
        ),
        lambda inner: st.tuples(st.integers(1, (1 << 24) - 1), st.integers(0, frames), inner, inner).map(
            lambda part: [instruction("loop", count=part[0], frames=part[1]), *part[2], instruction("end"), *part[3]]
        ),
        max_leaves=LOOP_REGISTERS,
    ).map(lambda body: [*body, instruction("halt")])


cores = st.lists(st.tuples(instances(CORE), bodies([*PLAIN, ROUTE], 1)), min_size=1, max_size=3)
programs = bodies(PLAIN, 0) | cores.map(lambda parts: [inst for head, body in parts for inst in (head, *body)])


@given(programs)
def test_isa_encode_decode(program: list[Instruction]) -> None:
    words = encode_program(program)
    assert words.dtype == np.uint32
    assert words.size == sum(inst.spec.words for inst in program)
    assert decode_program(words) == program


@given(programs)
def test_isa_assemble_disassemble(program: list[Instruction]) -> None:
    assert assemble(disassemble(program)) == program
    assert assemble(disassemble(program, dict.fromkeys(range(len(program)), "any; text = 1"))) == program


WHERE = re.compile(r"word 0x[0-9a-f]{4,}: |instruction \d+: |\d+ loops? without end|the program is empty")


def check_words(words: np.ndarray) -> str:
    """Words are legal, and encode as they were, or are refused with the offset."""
    try:
        program = decode_program(words)
    except Refusal as refusal:
        assert WHERE.match(str(refusal)), refusal
        return "refused"
    np.testing.assert_array_equal(encode_program(program), words)
    for inst in program:
        assert parse_instruction(format_instruction(inst)) == inst
    return "legal"


LOOPS_AND_CORES = ("loop", "end", "core", "route")


def test_isa_random_words_are_legal_or_refused() -> None:
    """Programs of random words under known opcodes, and as many legal ones with one bit flipped."""
    rng, count = np.random.default_rng([11, SEED]), examples(1500)
    plain = (text for text, _ in ENCODINGS if text.split()[0] not in LOOPS_AND_CORES and "frames=1" not in text)
    texts = [*plain][1:]
    good = encode_program(assemble("\n".join([*texts, "halt"])))
    outcomes: dict[str, int] = {}
    for turn in range(count):
        words = rng.integers(0, 1 << 32, rng.integers(1, 40), dtype=np.uint32)
        spec = SPECS[turn % len(SPECS)]
        words[0] = words[0] & np.uint32((1 << OPCODE.lsb) - 1) | np.uint32(spec.opcode << OPCODE.lsb)
        flipped = good.copy()
        flipped[rng.integers(good.size)] ^= np.uint32(1 << int(rng.integers(32)))
        for case in (words, flipped):
            outcome = check_words(case)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert sum(outcomes.values()) == 2 * count
    assert min(outcomes["refused"], outcomes["legal"]) > count / 5


@pytest.mark.parametrize(("words", "message"), WORDS)
def test_isa_illegal_words(words: str, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        decode_program(np.array([int(word, 16) for word in words.split()], np.uint32))


UNWRITABLE = [
    ("jump", "line 2: no instruction 'jump'"),
    ("loop times=3", "line 2: loop has no field times; it has frames, count"),
    ("loop name=3", "line 2: loop has no field name; it has frames, count"),
    ("loop count=x", "line 2: count: 'x' is no number"),
    ("loop count=1 count=2", "'count=2' is not field=value, or the field is given twice"),
    ("loop 3", "'3' is not field=value"),
    ("step by=z*1", "by: z.1 is not an axis"),
    ("step by=y", "by: 'y' is no term such as y.2"),
    ("step by=y*536870912", "is not an axis of .* and a step of .536870912"),
    ("load open=8", "open: loops .8,. are not all below 8"),
    ("load open=sometimes", "open: 'sometimes' is neither never, always nor loops such as 0.2"),
    ("load kind=psum", "kind: 'psum' is none of weight, ifmap"),
    ("load y=32768", "y: 32768 is outside -32768..32767"),
    ("load rows=0", "rows: 0 is outside 1..63"),
    ("end", "instruction 0: end without loop"),
]


@pytest.mark.parametrize(("line", "message"), UNWRITABLE)
def test_isa_assembly_refusals(line: str, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        assemble(f"; a comment\n{line} ; another\nhalt\n")


def test_isa_disassembly_reads_well() -> None:
    program = [parse_instruction(text) for text in ("loop count=3", "step id=1 loop=0 by=y*-2", "end", "halt")]
    assert disassemble(program, {0: "conv1 c", 1: "row"}) == (
        "loop count=3  ; 0000 conv1 c\n"
        "  step id=1 by=y*-2  ; 0001 row\n"
        "end  ; 0003\n"
        "halt  ; 0004\n"
    )  # fmt: skip
    check_structure(program)


def test_isa_manual_is_up_to_date() -> None:
    page = Path(__file__).parent.parent / "docs" / "isa.md"
    assert page.read_text() == manual(), "run `python -m cnncc.isa.manual > docs/isa.md`"
    for spec in SPECS:
        assert f"\n## {spec.name}\n" in manual()
        for field in spec.fields:
            assert f"| `{field.name}` |" in manual()


def test_every_operation_of_the_table_is_implemented() -> None:
    """`MacOperation` names those that the table has, in its order; each implementation matches them all."""
    (mac,) = [spec for spec in SPECS if spec.name == "mac"]
    assert mac.by_name["op"].names == tuple(MacOperation)
    with pytest.raises(ValueError, match="min"):
        Instruction(mac, {**mac.defaults, "op": "min"}).operation()
