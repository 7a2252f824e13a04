"""Every trap of values: by hand, each naming its instruction and saying what happened, in a block as one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_machine import PlainMachine, PlainTrap
from trap_cases import (
    ADD,
    ARCH,
    BANKS,
    COMMIT,
    FIRST,
    LOAD,
    OTHERS,
    OWN,
    PING_PONG,
    PONG,
    ROOMY,
    SETUP,
    SUMS,
    TAKE,
    VALUES,
    Case,
)

from cnncc.arch.model import Arch, Links
from cnncc.isa.assembly import assemble
from cnncc.machine.program import build_tree
from cnncc.machine.traps import Trap
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import Memory


def run(text: str, arch: Arch = ARCH, dram: list[int] | None = None, images: int = 1, shared: int = 0) -> Interpreter:
    """Run the setup and `text`. Images differ in no word, as far as the machine knows only in the `shared` first."""
    memory = Memory("dram", 64, images, shared)
    words = np.array([dram or range(64)] * images)
    memory.write(np.arange(shared), words[:1, :shared])
    memory.write(np.arange(shared, 64), words[:, shared:])
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


@pytest.mark.parametrize(("text", "at", "says"), VALUES)
def test_traps(text: str, at: int, says: str) -> None:
    trap_of(text, at, says)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.says)
def test_traps_of_other_arrays_words_and_sizes(case: Case) -> None:
    """Also counts that fit their fields but no machine: a trap, not all of the host's memory."""
    if case.images == 1 and not case.hostile:
        trap_of(case.text, case.at, case.says, case.arch, list(case.dram))
        return
    with pytest.raises(Trap, match=case.says) as trap:
        run(case.text, case.arch, list(case.dram), case.images, case.shared)
    assert trap.value.index == FIRST + case.at


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
    """MAC-2: 2 * 32767² fits in 32 bits, a third does not, even where a fourth would bring the sum back."""
    machine = run(products("++--") + "\n" + COMMIT, dram=EXTREMES)
    assert machine.glb.read(np.array([48]))[0, 0] == 0
    run(products("+-+-+-"), dram=EXTREMES)
    trap_of(products("+++-"), 5, "psum 0 leaves 32 bits at pixel 0, tap 2, channel 0: mac", dram=EXTREMES)
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
    lanes = f"mac op=add ifmap_j=2 taps=2 lanes=2 ifmap_l=1 psum_l=1 {TAKE} {SUMS}"
    arch, says = replace(BANKS, psum_bits=16), "psum 1 leaves 16 bits at pixel 0, tap 1, channel 0, lane 1: mac"
    trap_of(f"{LOAD} kind=ifmap extent3=4\n{lanes}", 1, says, arch, [1, 20000, 1, 20000] + [0] * 60)


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


def test_links_are_needed_only_for_neighbours() -> None:
    text = f"{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n{ADD} cols=4 set_cols=4 taps=2"
    run(text, replace(ARCH, links=Links(n2n=False)))


def test_padding_covers_what_was_never_written() -> None:
    """Outside the bounds nothing is read (DESC-3): not what was never written, nor what the GLB does not have."""
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
    """DESC-3: on an array of 8 bits they are -256..255, whether a word or the fill is delivered."""
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


@pytest.mark.parametrize(("text", "index", "message"), OWN)
def test_traps_of_lanes_with_sums_of_their_own(text: str, index: int, message: str) -> None:
    trap_of(text, index, message, BANKS)


@pytest.mark.parametrize(("text", "index", "message"), PING_PONG)
def test_ping_and_pong(text: str, index: int, message: str) -> None:
    """Rule MAC-6, each trap once."""
    trap_of(text, index, message, PONG)


def test_a_trap_stops_all_images() -> None:
    with pytest.raises(Trap, match="ifmap slot 3 is read but empty"):
        run(f"{LOAD} kind=ifmap extent3=3\n{ADD} taps=4", images=3)
