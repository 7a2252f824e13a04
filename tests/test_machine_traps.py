"""Every trap of values: by hand, each naming its instruction and saying what happened, in a block as one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_machine import PlainMachine, PlainTrap

from cnncc.arch.model import Arch, Dram, Glb, Links, Pe
from cnncc.isa.assembly import assemble
from cnncc.machine.memory import Memory
from cnncc.machine.program import build_tree
from cnncc.machine.traps import Trap
from cnncc.machine.values import Interpreter

ARCH = Arch("tiny", 2, 4, Pe(8, 8, 4, max_pixels=4), Glb(64, 4), Dram(2, 3))
ROOMY = replace(ARCH, pe=replace(ARCH.pe, weight_words=64, ifmap_words=64))

# Descriptor 1 is all of the GLB, whose words 0 to 47 hold 0 to 47; 2 the results; 3 has bounds of 4 by 4 words.
SETUP = """
    desc id=1
    desc id=2 base=48
    desc id=3 height=4 width=4 pitch=4
    desc id=4
    dma dram=1 glb=1 words=48
    unit clamp_lo=-32768 clamp_hi=32767
"""
FIRST = len(SETUP.strip().splitlines())

LOAD = "load desc=1 open=always close=always term3=lin*1"
TAKE = "take_ifmap=always give_ifmap=always"
SUMS = "clear=always send=always"
ADD = f"mac op=add ifmap_j=1 {TAKE} {SUMS}"
COMMIT = "commit desc=2"


def run(text: str, arch: Arch = ARCH, dram: list[int] | None = None, images: int = 1) -> Interpreter:
    memory = Memory("dram", 64, images)
    memory.write(np.arange(64), np.array([dram or range(64)] * images))
    interpreter = Interpreter(arch, memory, lambda segment, dram: None)
    interpreter.run(build_tree(assemble(SETUP + text + "\nhalt")))
    return interpreter


def trap_of(text: str, at: int, says: str, arch: Arch = ARCH, dram: list[int] | None = None) -> None:
    """`text` traps in its line `at`, as the plain interpreter does too; with iterations of loops around it as well."""
    for around, lines in (("", 0), ("loop count=3\n", 1), ("loop count=2\nloop\nloop count=2\n", 3)):
        program = around + text + "\nend" * lines
        with pytest.raises(Trap) as trap:
            run(program, arch, dram)
        assert trap.value.index == FIRST + lines + at, trap.value
        assert says in str(trap.value), trap.value
        assert str(trap.value).startswith(f"instruction {trap.value.index} (word 0x")
        with pytest.raises(PlainTrap) as plain:
            PlainMachine(arch, dram or list(range(64))).run(assemble(SETUP + program + "\nhalt"))
        assert plain.value.index == trap.value.index


def test_the_setup_runs() -> None:
    """What the other tests change in one place does run: also in a loop, with every half in use."""
    machine = run(f"{LOAD} kind=ifmap extent3=8\n{ADD} taps=8\n{COMMIT}")
    assert machine.glb.read(np.array([48]))[0, 0] == 28


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        # Register files (W4, W5).
        (f"{LOAD} kind=ifmap extent3=9", 0, "9 words from ifmap slot 0 on are beyond the 8 of a half"),
        (f"{LOAD} kind=weight slot=5 extent3=4", 0, "weight slot 5 on are beyond the 8 of a half"),
        (f"{LOAD} kind=ifmap extent3=3\n{ADD} taps=4", 1, "ifmap slot 3 is read but empty"),
        (f"{LOAD} kind=ifmap slot=1\n{ADD} taps=2", 1, "ifmap slot 0 is read but empty"),
        (f"{LOAD} kind=ifmap extent3=3\n{ADD} taps=2 ifmap_slot=0 ifmap_z=-1 pixels=2 psum_z=1", 1, "slot -1"),
        (f"{LOAD} kind=ifmap extent3=2\n{ADD} psum_slot=4", 1, "psum slots 4..4 are not in the 4 of a half"),
        (f"{LOAD} kind=ifmap extent3=2\n{ADD} taps=2 psum_j=-1", 1, "psum slots -1..0 are not in"),
        (f"{LOAD} kind=ifmap\n{ADD} pixels=5", 1, "5 pixels are more than max_pixels = 4"),
        (f"{LOAD} kind=ifmap\n{ADD} \n{COMMIT} psum_slot=3 channels=2 psum_i=1 channel_term=lin*1", 2, "slots 3..4"),
        # A slot that only the last columns have: nothing comes from the neighbour.
        (f"load kind=ifmap desc=1 cols=3 set_cols=3 open=always\n"
         f"load kind=ifmap desc=1 cols=3 set_cols=3 slot=1 edge=1 close=always\n{ADD} cols=3 set_cols=3 taps=2",
         2, "ifmap slot 1 is read but empty in some PE"),
        # PEs.
        (f"{LOAD} kind=ifmap cols=5", 0, "columns 0..4 are not all in the array"),
        (f"{LOAD} kind=ifmap row0=1 rows=2", 0, "rows 1..2, columns 0..0 are not all in the array"),
        (f"{LOAD} kind=ifmap cols=2\n{ADD} cols=3", 1, "have no ifmap"),
        (f"{LOAD} kind=ifmap cols=2\n{ADD} cols=2\n{COMMIT} col0=1 cols=2 set_cols=2 col=lin*1", 2, "have no psum"),
        ("load kind=ifmap desc=1 cols=2 open=always\nload kind=ifmap desc=1 slot=1 cols=4 close=always", 1,
         "same PEs in the same sets"),
        ("load kind=ifmap desc=1 cols=4 set_cols=2 open=always\nload kind=ifmap desc=1 slot=1 cols=4 close=always", 1,
         "same PEs in the same sets"),
        # Halves (T1 to T3).
        (f"{LOAD} kind=ifmap\n{LOAD} kind=ifmap\n{LOAD} kind=ifmap", 2, "no ifmap half is free"),
        ("load desc=1 kind=ifmap open=always\nload desc=1 kind=ifmap open=always", 1, "was not closed"),
        ("load desc=1 kind=ifmap close=always", 0, "no ifmap half is open"),
        (f"{ADD}", 0, "no ifmap half is full"),
        (f"{LOAD} kind=ifmap\nmac op=add {SUMS}", 1, "no ifmap half is in use"),
        ("load desc=1 kind=ifmap open=always\n" + ADD, 1, "no ifmap half is full"),
        (f"{LOAD} kind=ifmap\n{LOAD} kind=ifmap\nmac op=add {SUMS} take_ifmap=always\n"
         f"mac op=add {SUMS} take_ifmap=always", 3, "the ifmap half in use was not given back"),
        (f"{LOAD} kind=ifmap\nmac {TAKE} {SUMS} take_weight=always", 1, "no weight half is full"),
        (f"{LOAD} kind=ifmap\nmac op=add {TAKE} clear=always\n{LOAD} kind=ifmap\nmac op=add {TAKE} clear=always", 3,
         "the psum half in use was not sent"),
        (f"{LOAD} kind=ifmap\n{ADD}\n{LOAD} kind=ifmap\n{ADD}\n{LOAD} kind=ifmap\n{ADD}", 5, "no psum half is free"),
        (f"{LOAD} kind=ifmap\nmac op=add {TAKE} send=always", 1, "no psum half is open"),
        (f"{COMMIT}", 0, "no psum half was sent"),
        (f"{LOAD} kind=ifmap cols=4\nmac op=add {TAKE} clear=always cols=4 set_cols=4\n{LOAD} kind=ifmap cols=4\n"
         f"mac op=add {TAKE} send=always cols=4 set_cols=2", 3, "from clear to send"),
        # The neighbour (A3).
        (f"{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n{ADD} cols=4 set_cols=4 taps=4 data_reuse=5 n2n_slot=2", 1,
         "data_reuse 5 is more than the pixel steps"),
        (f"{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n{ADD} cols=4 set_cols=4 taps=2 data_reuse=1 n2n_slot=0", 1,
         "ifmap slot 0 is used before its word arrives"),
        (f"{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n{ADD} cols=4 set_cols=4 taps=4 data_reuse=2 n2n_slot=7", 1,
         "n2n fills ifmap slot 8, beyond the 8 of a half"),
        (f"{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n{ADD} cols=4 set_cols=4 taps=4 data_reuse=4 n2n_slot=3", 1,
         "sent to the west neighbour from empty slots"),
        # The last column of a set gets its words from an edge load, or not at all; also where the set is cut short.
        (f"{LOAD} kind=ifmap cols=4 set_cols=2 extent3=2\n{ADD} cols=4 set_cols=2 taps=4 data_reuse=2 n2n_slot=2", 1,
         "ifmap slot 2 is read but empty in some PE"),
        ("load kind=ifmap desc=1 cols=4 set_cols=3 open=always extent3=2\n"
         "load kind=ifmap desc=1 cols=2 set_cols=2 slot=2 extent3=2 close=always", 1, "same PEs in the same sets"),
        # Memories (W3).
        (f"{LOAD} kind=ifmap offset=-1", 0, "glb address -1 is below 0"),
        (f"{LOAD} kind=ifmap offset=60 extent3=5", 0, "glb address 64 is beyond the last word 63"),
        (f"{LOAD} kind=ifmap offset=46 extent3=3", 0, "glb word 48 is read but was never written"),
        ("load desc=3 kind=ifmap y=11 x=3 open=always extent3=4 term3=y*1\nload desc=3 kind=ifmap x=3 channel=48 slot=4"
         " offset=100", 1, "glb address 103 is beyond"),
        ("dma dram=1 glb=1 words=4 glb_offset=61", 0, "glb address 64 is beyond"),
        ("dma dram=1 glb=1 words=4 glb_offset=-1", 0, "glb address -1 is below 0"),
        ("dma dram=1 glb=1 words=4 dram_offset=61", 0, "dram address 64 is beyond the last word 63"),
        ("dma direction=out dram=1 glb=1 words=4 dram_offset=-1", 0, "dram address -1 is below 0"),
        ("dma direction=out dram=1 glb=1 words=4 glb_offset=47", 0, "glb word 48 is read but was never written"),
        (f"{LOAD} kind=ifmap\n{ADD}\n{COMMIT} offset=16", 2, "glb address 64 is beyond"),
        (f"{LOAD} kind=ifmap\n{ADD}\n{COMMIT} offset=-49", 2, "glb address -1 is below 0"),
        # Results that do not fit a word.
        (f"unit clamp_lo=-40000 clamp_hi=40000\n{LOAD} kind=ifmap extent3=8 offset=40\n"
         f"{LOAD} kind=weight extent3=8 offset=40\nmac {TAKE} take_weight=always give_weight=always {SUMS} taps=8"
         f" ifmap_j=1 weight_j=1 step_range=4 weight_i=0 psum_i=1\n"
         f"unit clamp_lo=32768 clamp_hi=40000\n{COMMIT} channels=4 psum_i=1 channel_term=lin*1", 5,
         "a result of 32768..32768 does not fit a word"),
        # Where results go (C4).
        (f"{LOAD} kind=ifmap cols=3\n{ADD} cols=3\ncommit desc=3 y=3 x=2 cols=3 set_cols=3 col=x*1", 2,
         "a result lies outside its tensor"),
        (f"{LOAD} kind=ifmap cols=3\n{ADD} cols=3\ncommit desc=3 y=-1 cols=3 set_cols=3 col=x*1", 2, "lies outside"),
        (f"{LOAD} kind=ifmap cols=3\n{ADD} cols=3\n{COMMIT} cols=3", 2, "two results go to one word"),
        ("commit source=glb desc=2 operand=3 x=2 pixels=3 pixel_term=x*1", 0, "operand words lie outside their tensor"),
        ("unit residual=1\ncommit source=glb desc=2 operand=1 residual=3 y=4", 1, "residual words lie outside"),
        ("commit source=glb desc=2 operand=4 offset=2 pixels=4 pixel_term=lin*4\n"
         "unit bias=1\ndesc id=6 base=62\ncommit source=glb desc=2 operand=1 params=6 param=1", 3, "glb address 65"),
        ("unit bias=1\ndesc id=6 base=61\ncommit source=glb desc=2 operand=1 params=6", 2, "never written"),
    ],
)  # fmt: skip
def test_traps(text: str, at: int, says: str) -> None:
    trap_of(text, at, says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{LOAD} kind=ifmap extent0=65535 extent1=65535 extent2=65535 extent3=65535", "beyond the 8 of a half"),
        (f"{LOAD} kind=ifmap\n{ADD}\n{COMMIT} pixels=65535 channels=65535", "more results than words in the GLB"),
        (f"{LOAD} kind=ifmap\n{ADD} taps=65535 step_range=65535 ifmap_j=0", "more than the 16777216 of this interp"),
        (
            "dma dram=1 glb=1 count=65535 rows=65535 words=4294967295",
            "65535 blocks of 65535 rows of 4294967295 words are more than the GLB has",
        ),
    ],
)
def test_hostile_sizes(text: str, says: str) -> None:
    """Counts that fit their fields but no machine: a trap, not all of the host's memory."""
    with pytest.raises(Trap, match=says):
        run(text.replace("ifmap_j=1", ""))


def products(signs: str, extra: str = "") -> str:
    """A mac of 32767 * ±32768 and so on, one tap for each sign."""
    weights = "\n".join(
        f"load kind=weight desc=1 slot={i} offset={0 if sign == '+' else 1}"
        f" {'open=always' if i == 0 else ''} {'close=always' if i == len(signs) - 1 else ''}"
        for i, sign in enumerate(signs)
    )
    return (
        f"{weights}\nload kind=ifmap desc=1 offset=2 open=always close=always extent3={len(signs)} term3=lin*0\n"
        f"mac {TAKE} take_weight=always give_weight=always {SUMS} ifmap_j=1 weight_j=1 taps={len(signs)} {extra}"
    )


EXTREMES = [32767, -32767, 32767, -32768, 1] + [0] * 59


def test_every_step_of_a_sum_counts() -> None:
    """A2: 2 * 32767² fits in 32 bits, a third does not, even where a fourth would bring the sum back."""
    machine = run(products("++--") + "\n" + COMMIT, dram=EXTREMES)
    assert machine.glb.read(np.array([48]))[0, 0] == 0
    run(products("+-+-+-"), dram=EXTREMES)
    trap_of(products("+++-"), 5, "psum 0 leaves 32 bits at pixel 0, tap 2, channel 0", dram=EXTREMES)
    trap_of(products("--+-+---+"), 10, "psum 0 leaves 32 bits at pixel 0, tap 6, channel 0", ROOMY, EXTREMES)


def test_a_sum_leaves_over_several_macro_instructions() -> None:
    """The third of three overflows, the fourth would bring it back; in a loop of four, and in a peeled body."""
    part = (
        "load kind=weight desc=1 {at} open=always close=always\nload kind=ifmap desc=1 offset=2 open=always"
        " close=always\nmac {take} take_weight=always give_weight=always {when}"
    )
    parts = [part.format(at=f"offset={o}", take=TAKE, when=w)
             for o, w in ((0, "clear=always"), (0, ""), (0, ""), (1, "send=always"))]  # fmt: skip
    trap_of("\n".join(parts), 8, "psum 0 leaves 32 bits", dram=EXTREMES)
    looped = (
        "desc id=7\nstep id=7 loop=0 by=lin*1\nloop count=4\n"
        "load kind=weight desc=7 open=always close=always\n"
        "load kind=ifmap desc=1 offset=8 open=always close=always\n"
        f"mac {TAKE} take_weight=always give_weight=always clear=0 send=0\nend"
    )
    words = [32767, 32767, 32767, -32767, 0, 0, 0, 0, 32767] + [0] * 55
    with pytest.raises(Trap, match="psum 0 leaves 32 bits") as trap:
        run(looped, dram=words)
    assert trap.value.index == FIRST + 5
    run(looped, dram=[32767, 32767, -32767, 32767, *words[4:]])


@pytest.mark.parametrize("loop", ["", "loop count=2\n"])
def test_overflow_of_a_pool(loop: str) -> None:
    """Sums of words leave a narrow psum: at a step whose final sum fits again, and over the iterations of a loop."""
    narrow = replace(ARCH, psum_bits=16)
    dram = [20000, 20000, -20000, 0] + [0] * 60
    end = "end" if loop else ""
    run(f"{loop}load desc=1 kind=ifmap {TAKES_WORDS} offset=1 extent3=3\n{ADD} taps=3\n{COMMIT}\n{end}", narrow, dram)
    with pytest.raises(Trap, match="psum 0 leaves 16 bits at pixel 0, tap 1") as trap:
        run(f"{loop}load desc=1 kind=ifmap {TAKES_WORDS} extent3=3\n{ADD} taps=3\n{COMMIT}\n{end}", narrow, dram)
    assert trap.value.index == FIRST + 1 + bool(loop)
    over = f"load desc=1 kind=ifmap {TAKES_WORDS}\nmac op=add {TAKE} clear=0+1 send=0+1\n"
    run(f"loop\nloop\n{over}end\nend\n{COMMIT}", narrow, dram)
    with pytest.raises(Trap, match="leaves 16 bits") as trap:
        run(f"loop\nloop count=2\n{over}end\nend\n{COMMIT}", narrow, dram)
    assert trap.value.index == FIRST + 3


TAKES_WORDS = "open=always close=always term3=lin*1"


def test_sums_and_the_greatest_in_one_half() -> None:
    """A slot that max never touched holds the least integer: adding -1 leaves; and so may what max has found."""
    narrow, dram = replace(ARCH, psum_bits=16), [-1, 20000, *[0] * 62]

    def macs(*steps: tuple[str, int, int]) -> str:
        """(op, word, slot) one after the other."""
        lines: list[str] = []
        for i, (op, word, slot) in enumerate(steps):
            ends = "clear=always" if i == 0 else "send=always" if i == len(steps) - 1 else ""
            lines.append(f"load desc=1 kind=ifmap open=always close=always offset={word}")
            lines.append(f"mac op={op} {TAKE} psum_slot={slot} {ends}")
        return "\n".join([*lines, COMMIT])

    trap_of(macs(("max", 0, 0), ("add", 0, 1)), 3, "psum 1 leaves 16 bits", narrow, dram)
    trap_of(macs(("max", 0, 0), ("add", 0, 0), ("add", 0, 1)), 5, "psum 1 leaves 16 bits", narrow, dram)
    trap_of(macs(("max", 1, 0), ("add", 1, 0)), 3, "psum 0 leaves 16 bits", narrow, dram)
    trap_of(macs(("add", 0, 0), ("max", 1, 0), ("add", 1, 0)), 5, "psum 0 leaves 16 bits", narrow, dram)
    machine = run(macs(("add", 0, 0), ("max", 1, 0), ("add", 0, 0)), narrow, dram)
    assert machine.glb.read(np.array([48]))[0, 0] == 19999


def test_no_links() -> None:
    text = f"{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n{ADD} cols=4 set_cols=4 taps=2 data_reuse=1 n2n_slot=1"
    run(text)
    trap_of(text, 1, "this array has no n2n links", replace(ARCH, links=Links(n2n=False)))


def test_padding_covers_what_was_never_written() -> None:
    """Outside the bounds nothing is read (D3): not what was never written, nor what the GLB does not have."""
    bounds = "height=2 width=2 pitch=2 fill=5"
    for base, start in ((44, "y=2"), (62, "y=2"), (0, "x=-2"), (0, "y=-1")):
        run(f"desc id=5 base={base} {bounds}\nload desc=5 {start} kind=ifmap open=always close=always extent3=2"
            " term3=x*1")  # fmt: skip
    machine = run(
        f"desc id=5 base=44 {bounds}\nload desc=5 y=-1 x=1 kind=ifmap open=always close=always"
        f" extent2=3 term2=y*1 extent3=2 term3=x*1\n{ADD} taps=6\n{COMMIT}"
    )
    assert machine.glb.read(np.array([48]))[0, 0] == 5 + 5 + 45 + 5 + 47 + 5
    trap_of(
        f"desc id=5 base=45 {bounds}\nload desc=5 y=1 x=1 kind=ifmap open=always close=always extent3=2 term3=y*1",
        1, "glb word 48 is read but was never written",
    )  # fmt: skip


def test_operands_are_one_bit_wider_than_words() -> None:
    """D3: on an array of 8 bits they are -256..255, whether a word or the fill is delivered."""
    arch = replace(ARCH, operand_bits=8)
    load = "load desc=5 {} kind=ifmap open=always close=always"
    for zero, offset, operand in ((-250, 5, 255), (256, 0, -256), (-128, 0, 128)):
        back = -200 if operand > 0 else 200  # so that the sum fits a word again
        machine = run(
            f"unit clamp_lo=-128 clamp_hi=127\ndesc id=5 zero={zero}\n{load.format(f'offset={offset}')}\n"
            f"mac op=add {TAKE} clear=always\ndesc id=5 zero={-back}\n{load.format('')}\n"
            f"mac op=add {TAKE} send=always\n{COMMIT}",
            arch,
        )
        assert machine.glb.read(np.array([48]))[0, 0] == operand + back
    says = "an operand less its zero point {} is outside -256..255"
    trap_of("desc id=5 zero=-250\n" + load.format("offset=6"), 1, says.format(-250), arch)
    trap_of("desc id=5 zero=257\n" + load.format(""), 1, says.format(257), arch)
    bounds = "desc id=5 height=1 width=1 fill=200"
    run(f"{bounds} zero=-55\n" + load.format("y=1"), arch)
    trap_of(f"{bounds} zero=-56\n" + load.format("y=1"), 1, says.format(-56), arch)


@pytest.mark.parametrize(
    ("conditions", "at", "says"),
    [("open=0 close=0", 2, "no ifmap half is full"), ("open=0 close=always", 1, "no ifmap half is open")],
)
def test_conditions_inside_a_block_hold_as_one_by_one(conditions: str, at: int, says: str) -> None:
    """A half that the first iteration opens and the last one closes is none for the iterations by themselves."""
    with pytest.raises(Trap, match=says) as trap:
        run(f"loop count=2\nload desc=1 kind=ifmap {conditions}\n{ADD}\n{COMMIT}\nend")
    assert trap.value.index == FIRST + at


def test_the_first_of_several_traps_counts() -> None:
    """In a block the trap of a later iteration, or instruction, is not found first."""
    text = (
        "desc id=5\nstep id=5 loop=0 by=lin*20\nstep id=2 loop=0 by=lin*5\nloop count=4\n"
        f"load desc=5 kind=ifmap {TAKES_WORDS}\n{ADD}\n{COMMIT}\nend"
    )
    with pytest.raises(Trap, match="glb word 60 is read but was never written") as trap:
        run(text)
    assert trap.value.index == FIRST + 4
    with pytest.raises(Trap, match="glb address 64 is beyond the last word 63") as trap:
        run(text.replace("lin*5", "lin*8"))
    assert trap.value.index == FIRST + 6


PONG = replace(ARCH, pe=replace(ARCH.pe, ifmap_words=6, pong_words=3, virtual_words=4))
PING = "load kind=ifmap desc=1 cols=4 set_cols=4 open=always"
EDGE = "load kind=ifmap desc=1 cols=4 set_cols=4 edge=1 close=always"
SET = f"{ADD} cols=4 set_cols=4"


@pytest.mark.parametrize(
    ("text", "index", "message"),
    [
        (f"{PING} extent3=7", 0, "7 words from ifmap slot 0 on are beyond the 6 of a half"),
        (f"{PING} extent3=2\n{EDGE} slot=9 extent3=2", 1, "beyond the 10 of a half"),
        (f"{PING} extent3=2\n{EDGE} slot=2\n{SET} taps=2", 2, "a virtual neighbour has words, but data_reuse = 0"),
        (f"{PING} extent3=2\n{EDGE} slot=2\nmac op=add take_ifmap=always {SUMS} cols=4 set_cols=4 taps=2 data_reuse=1",
         2, "takes ping and pong and gives them back"),
        (f"{PING} extent3=3\n{EDGE} slot=3\n{SET} taps=3 data_reuse=1 n2n_slot=2", 2, "ping is loaded up to slot 2"),
        (f"{PING} extent3=5\n{EDGE} slot=5 extent3=4\n{SET} taps=9 data_reuse=4 n2n_slot=5", 2,
         "5 slots a turn do not fit a ping of 6 and a pong of 3"),
        (f"{PING} extent3=3\n{EDGE} slot=3 extent3=4\n{SET} taps=7 data_reuse=5 n2n_slot=3", 2,
         "5 words of a virtual neighbour do not fit its 4 (virtual_words)"),
        (f"{PING} extent3=3\n{EDGE} slot=3 extent3=3\n{SET} taps=7 data_reuse=2 n2n_slot=3", 2,
         "a virtual neighbour's words are in slots 3..5, not in 3..4"),
        (f"{PING}\n{EDGE} slot=1 extent3=3\nmac op=add {TAKE} {SUMS} cols=4 set_cols=4 taps=4 data_reuse=3 "
         "n2n_slot=1", 2, "ifmap slot 0 is used after another word has taken its place"),
    ],
)  # fmt: skip
def test_ping_and_pong(text: str, index: int, message: str) -> None:
    """Rule A6, each trap once."""
    trap_of(text, index, message, PONG)


def test_a_trap_stops_all_images() -> None:
    with pytest.raises(Trap, match="ifmap slot 3 is read but empty"):
        run(f"{LOAD} kind=ifmap extent3=3\n{ADD} taps=4", images=3)
