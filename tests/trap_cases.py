"""Programs that trap, by hand: for each what the trap says, and in which instruction.

`test_machine_trap_sites.py` makes sure that every trap of the machine has one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cnncc.arch.model import Arch, Cores, Dram, Glb, Links, Pe

ARCH = Arch("tiny", 2, 4, Pe(8, 8, 4, lanes=3, max_pixels=4), Glb(64, 4), Dram(2, 3))
BANKS = replace(ARCH, pe=replace(ARCH.pe, lanes=2, lane_sums=True))
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
MAC = f"mac {TAKE} {SUMS} take_weight=always give_weight=always"
COMMIT = "commit desc=2"

PONG = replace(ARCH, pe=replace(ARCH.pe, ifmap_words=6, pong_words=3, virtual_words=4))
PING = "load kind=ifmap desc=1 cols=4 set_cols=4 open=always"
EDGE = "load kind=ifmap desc=1 cols=4 set_cols=4 edge=1 close=always"
SET = f"{ADD} cols=4 set_cols=4"
ALONE = "load kind=ifmap desc=1 cols=1 set_cols=1"

# Values: what follows the setup, the line of it that traps, what the trap says.
VALUES: list[tuple[str, int, str]] = [
    # Register files (MEM-4, MEM-5).
    (f"{LOAD} kind=ifmap extent3=9", 0, "9 words from ifmap slot 0 on are beyond the 8 of a half"),
    (f"{LOAD} kind=weight slot=5 extent3=4", 0, "weight slot 5 on are beyond the 8 of a half"),
    (f"{LOAD} kind=ifmap extent3=3\n{ADD} taps=4", 1, "ifmap slot 3 is read but empty"),
    (f"{LOAD} kind=ifmap slot=1\n{ADD} taps=2", 1, "ifmap slot 0 is read but empty"),
    (f"{LOAD} kind=ifmap extent3=3\n{ADD} taps=2 ifmap_slot=0 ifmap_z=-1 pixels=2 psum_z=1", 1, "slot -1"),
    (f"{LOAD} kind=ifmap extent3=2\n{ADD} psum_slot=4", 1, "psum slots 4..4 are not in the 4 of a half"),
    (f"{LOAD} kind=ifmap extent3=2\n{ADD} taps=2 psum_j=-1", 1, "psum slots -1..0 are not in"),
    (f"{LOAD} kind=ifmap\n{ADD} pixels=5", 1, "5 pixels are more than max_pixels = 4"),
    (f"{LOAD} kind=ifmap extent3=4\n{MAC} lanes=4 ifmap_l=1", 1, "4 lanes are more than the 3 of a PE"),
    (f"{LOAD} kind=ifmap extent3=4\n{ADD} lanes=2 ifmap_l=1", 1, "2 lanes of a add, which has no products to add up"),
    (f"{LOAD} kind=ifmap extent3=4\n{LOAD} kind=weight extent3=5\n{MAC} taps=2 lanes=3 ifmap_l=1 weight_j=3"
     " weight_l=1", 2, "weight slot 5 is read but empty"),
    (f"{LOAD} kind=ifmap extent3=4\n{LOAD} kind=weight extent3=5\n{MAC} lanes=2 ifmap_l=-1", 2, "ifmap slot -1 is"),
    (f"{LOAD} kind=ifmap\n{ADD} \n{COMMIT} psum_slot=3 channels=2 psum_i=1 channel_term=lin*1", 2, "slots 3..4"),
    (f"{LOAD} kind=ifmap extent3=4\n{ADD} lanes=2 ifmap_l=1 psum_l=1", 1, "this array has no lane_sums"),
    # A slot that only the last columns have: nothing comes from the neighbour.
    (f"load kind=ifmap desc=1 cols=3 set_cols=3 open=always\n"
     f"load kind=ifmap desc=1 cols=3 set_cols=3 slot=1 edge=1 close=always\n{ADD} cols=3 set_cols=3 taps=2",
     2, "ifmap slot 1 is read but empty in some PE"),
    # PEs.
    (f"{LOAD} kind=ifmap cols=5", 0, "rows 0..0, columns 0..4 are not all in the 2 x 4 PEs"),
    (f"{LOAD} kind=ifmap row0=1 rows=2", 0, "rows 1..2, columns 0..0 are not all in the 2 x 4 PEs"),
    (f"{LOAD} kind=ifmap cols=2\n{ADD} cols=3", 1,
     "rows 0..0, columns 0..2 are not all among the PEs with ifmap: rows 0..0, columns 0..1"),
    (f"{LOAD} kind=ifmap cols=2\n{ADD} cols=2\n{COMMIT} col0=1 cols=2 set_cols=2 col=lin*1", 2,
     "rows 0..0, columns 1..2 are not all among the PEs with psum: rows 0..0, columns 0..1"),
    ("load kind=ifmap desc=1 cols=2 open=always\nload kind=ifmap desc=1 slot=1 cols=4 close=always", 1,
     "same PEs in the same sets"),
    ("load kind=ifmap desc=1 cols=4 set_cols=2 open=always\nload kind=ifmap desc=1 slot=1 cols=4 close=always", 1,
     "same PEs in the same sets"),
    # Halves (TOKEN-1 to TOKEN-3).
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
    # The neighbour (MAC-3).
    (f"{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n{ADD} cols=4 set_cols=4 taps=4 data_reuse=5 n2n_slot=2", 1,
     "data_reuse 5 is more than the 4 pixel steps"),
    (f"{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n{ADD} cols=4 set_cols=4 taps=2 data_reuse=1 n2n_slot=0", 1,
     "ifmap slot 0 is used before its word arrives"),
    (f"{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n{ADD} cols=4 set_cols=4 taps=4 data_reuse=2 n2n_slot=7", 1,
     "n2n fills ifmap slot 8, beyond the 8 of a half"),
    (f"{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n{ADD} cols=4 set_cols=4 taps=4 data_reuse=4 n2n_slot=3", 1,
     "sent to the west neighbour from empty slots"),
    (f"{LOAD} kind=weight cols=4 set_cols=4 extent3=2\n{LOAD} kind=ifmap cols=4 set_cols=4 extent3=2\n"
     f"{MAC} cols=4 set_cols=4 taps=2 lanes=2 ifmap_l=2 data_reuse=1 n2n_slot=2", 2,
     "ifmap slot 2 is used before its word arrives"),
    # The last column of a set gets its words from an edge load, or not at all; also where the set is cut short.
    (f"{LOAD} kind=ifmap cols=4 set_cols=2 extent3=2\n{ADD} cols=4 set_cols=2 taps=4 data_reuse=2 n2n_slot=2", 1,
     "ifmap slot 2 is read but empty in some PE"),
    ("load kind=ifmap desc=1 cols=4 set_cols=3 open=always extent3=2\n"
     "load kind=ifmap desc=1 cols=2 set_cols=2 slot=2 extent3=2 close=always", 1, "same PEs in the same sets"),
    # Memories (MEM-3).
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
    # Where results go (COMMIT-4).
    (f"{LOAD} kind=ifmap cols=3\n{ADD} cols=3\ncommit desc=3 y=3 x=2 cols=3 set_cols=3 col=x*1", 2,
     "a result lies outside its tensor of 4 rows and 4 columns, at row 3, column 4"),
    (f"{LOAD} kind=ifmap cols=3\n{ADD} cols=3\ncommit desc=3 y=-1 cols=3 set_cols=3 col=x*1", 2,
     "a result lies outside its tensor of 4 rows and 4 columns, at row -1, column 0"),
    (f"{LOAD} kind=ifmap cols=3\n{ADD} cols=3\n{COMMIT} cols=3", 2, "two results go to glb word 48"),
    ("commit source=glb desc=2 operand=3 x=2 pixels=3 pixel_term=x*1", 0, "operand words lie outside their tensor"),
    ("unit residual=1\ncommit source=glb desc=2 operand=1 residual=3 y=4", 1, "residual words lie outside"),
    ("commit source=glb desc=2 operand=4 offset=2 pixels=4 pixel_term=lin*4\n"
     "unit bias=1\ndesc id=6 base=62\ncommit source=glb desc=2 operand=1 params=6 param=1", 3, "glb address 65"),
    ("unit bias=1\ndesc id=6 base=61\ncommit source=glb desc=2 operand=1 params=6", 2, "never written"),
]  # fmt: skip

# Rule MAC-6, on PONG.
PING_PONG: list[tuple[str, int, str]] = [
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
    (f"{LOAD} kind=weight cols=4 set_cols=4\n{PING} extent3=2\n{EDGE} slot=2 extent3=3\n{MAC} cols=4 set_cols=4 taps=3"
     " lanes=2 ifmap_slot=1 ifmap_l=-1 data_reuse=3 n2n_slot=2", 3,
     "ifmap slot 0 is used after another word has taken its place"),
    # Words of a virtual neighbour come step by step, too, also where each column is a set of its own: slot 1 in step 0.
    (f"{ALONE} open=always\n{ALONE} edge=1 close=always slot=1\n"
     f"mac op=add {TAKE} {SUMS} cols=1 set_cols=1 ifmap_slot=1 data_reuse=1 n2n_slot=1", 2,
     "ifmap slot 1 is used before its word arrives"),
]  # fmt: skip

# On an array whose lanes may have sums of their own.
OWN: list[tuple[str, int, str]] = [
    (f"{LOAD} kind=ifmap extent3=4\n{ADD} lanes=3 ifmap_l=1 psum_l=1", 1, "3 lanes are more than the 2 of a PE"),
    (f"{LOAD} kind=ifmap extent3=4\n{ADD} lanes=2 ifmap_l=1", 1, "2 lanes of a add, which has no products to add up"),
    *((f"{LOAD} kind=ifmap extent3=4\n{ADD} lanes=2 ifmap_l=1 psum_l=1 {name}={step}", 1,
       f"{name} = {step} is no multiple of the 2 lanes of a PE (psum_l)")
      for name, step in (("psum_slot", 1), ("psum_z", 3), ("psum_j", -1), ("psum_i", 5))),
    (f"{LOAD} kind=ifmap extent3=4\n{ADD} pixels=2 lanes=2 ifmap_l=1 psum_z=4 psum_l=1", 1,
     "psum slots 0..5 are not in the 4 of a half"),
    (f"{LOAD} kind=ifmap extent3=4\n{ADD} lanes=2 ifmap_l=4 psum_l=1", 1, "ifmap slot 4 is read but empty"),
]  # fmt: skip

# Times: a whole program, the instruction that traps, what the trap says.
TIMES: list[tuple[str, int, str]] = [
    ("mac take_weight=always\nhalt", 0, "deadlock: no full half of the weight file"),
    ("mac clear=always\nmac clear=always\nhalt", 1, "takes a free half of the psum file while it still holds one"),
    ("commit\nhalt", 0, "deadlock: no full half of the psum file"),
    ("loop count=3\nmac clear=always send=always\nend\nhalt", 1, "deadlock: no free half of the psum file"),
    ("dma take=3 take_when=always\nsignal semaphore=3 count=1\nhalt", 0, "deadlock: no token of semaphore 3"),
    ("signal semaphore=3 count=2\nloop count=3\ndma take=3 take_when=always\nend\nhalt", 2, "deadlock"),
    ("load kind=ifmap close=always\nhalt", 0, "gives a full half of the ifmap file but holds none"),
    ("mac give_ifmap=always\nhalt", 0, "gives a free half of the ifmap file but holds none"),
    ("mac send=always\nhalt", 0, "gives a full half of the psum file but holds none"),
    ("loop count=70000\nsignal semaphore=1 count=1\nend\nhalt", 1, "a semaphore holds at most 65535 tokens"),
]


@dataclass(frozen=True)
class Case:
    """What follows the setup, on an array and with words of its own.

    shared: words of DRAM that no image may change. hostile: so large that the plain interpreter would not come back.
    """

    text: str
    at: int
    says: str
    arch: Arch = ARCH
    dram: tuple[int, ...] = tuple(range(64))
    images: int = 1
    shared: int = 0
    hostile: bool = False


SOUTH = replace(ARCH, links=Links(south=True))
DOWN = f"{LOAD} kind=ifmap rows=2 set_rows=2\n{ADD} rows=2\n"  # a set of two rows, and its sums
PART = f"{LOAD} kind=ifmap\n{ADD}\n{COMMIT} partial=1 sums=1"

_FRESH = "desc id=1 base=45\ndesc id=5 base=40\nstep id=5 loop=0 by=lin*40"

OTHERS = [
    # Sums of rows (COMMIT-6), sums in parts (COMMIT-5).
    Case(f"{DOWN}{COMMIT} rows=2 set_rows=2 reduce=1", 2, "this array has no links for psums to the south"),
    Case(f"{DOWN}{COMMIT} rows=2 set_rows=2 reduce=1 row=lin*1", 2, "do not depend on the row", SOUTH),
    Case(f"{DOWN}{COMMIT} rows=2 set_rows=2 reduce=1 source=glb operand=1", 2, "come from no rows", SOUTH),
    Case(f"{DOWN}{COMMIT} rows=2 set_rows=2 reduce=1", 2, "a psum leaves 16 bits on its way south",
         replace(SOUTH, psum_bits=16), (20000,) * 64),
    Case(f"{PART.replace('sums=1', 'sums=3')} offset=-64", 2, "glb address"),
    Case(f"{PART.replace('sums=1', 'sums=3')} y=4", 2, "partial sums lie outside their tensor"),
    # Sums that are fresh in all iterations of a loop, which are done at once: nothing is read there before.
    Case(
        f"{_FRESH}\nloop count=2\n{PART.replace('sums=1', 'sums=5')} fresh=always\nend", 6, "glb address 121 is beyond"
    ),
    Case(f"{LOAD} kind=ifmap\n{ADD}\n{COMMIT} partial=1 sums=1 pixels=2", 2, "two partial sums lie in one place"),
    Case(PART.replace("kind=ifmap", "kind=ifmap offset=3"), 2, "leaves 32 bits", dram=(-1, 32767, *range(62))),
    Case(f"{LOAD} kind=ifmap cols=4 set_cols=4\n{ADD} cols=4 set_cols=4 data_reuse=1 n2n_slot=1", 1,
         "this array has no n2n links", replace(ARCH, links=Links(n2n=False))),
    Case(f"desc id=5 zero=-250\n{LOAD.replace('desc=1', 'desc=5')} kind=ifmap offset=6", 1,
         "an operand less its zero point -250 is outside -256..255", replace(ARCH, operand_bits=8)),
    Case(f"{LOAD} kind=ifmap extent3=2\n{ADD} taps=2", 1, "psum 0 leaves 16 bits at pixel 0, tap 1, channel 0",
         replace(ARCH, psum_bits=16), (20000,) * 64),
    Case("dma direction=out dram=1 glb=1 words=3 dram_offset=4", 0, "dram word 4 holds weights", images=2, shared=6),
    Case(f"{LOAD} kind=ifmap extent0=65535 extent1=65535 extent2=65535 extent3=65535", 0, "beyond the 8 of a half",
         hostile=True),
    Case(f"{LOAD} kind=ifmap\n{ADD}\n{COMMIT} pixels=65535 channels=65535", 2, "more results than words in the GLB",
         hostile=True),
    Case(f"{LOAD} kind=ifmap\n{ADD.replace('ifmap_j=1', '')} taps=65535 step_range=65535", 1,
         "more than the 16777216 of this interp", hostile=True),
    Case("dma dram=1 glb=1 count=65535 rows=65535 words=4294967295", 0,
         "65535 blocks of 65535 rows of 4294967295 words are more than the 64 of the GLB", hostile=True),
]  # fmt: skip

# Values, what follows the setup on ARCH: sizes that fit their fields, and should cost nobody time or room.
HOSTILE: dict[str, str] = {
    "n2n over 2^48 steps": f"{LOAD} kind=ifmap\n{ADD} pixels=65535 taps=65535 step_range=65535 data_reuse=1",
    "n2n over 2^24 steps": f"{LOAD} kind=ifmap cols=4 set_cols=4\nmac op=add {TAKE} {SUMS} cols=4 set_cols=4 pixels=4"
    " taps=65535 step_range=64 data_reuse=1 n2n_slot=1",
    "one word for all taps": f"{LOAD} kind=ifmap rows=2 cols=4 set_rows=2 set_cols=4 row=lin*1 col=lin*1\n"
    f"{LOAD} kind=weight rows=2 cols=4 set_rows=2 set_cols=4 row=lin*1 extent3=4\nmac {TAKE} {SUMS} take_weight=always"
    " give_weight=always rows=2 cols=4 set_cols=4 taps=65535 step_range=4 weight_i=1 psum_i=1 pixels=1",
    "one psum for all": f"{LOAD} kind=ifmap\nmac op=add {TAKE} {SUMS} pixels=4 taps=65535 step_range=64\n{COMMIT}",
    "results of a block": f"loop count=65536\n{LOAD} kind=ifmap\n{ADD}\n{COMMIT} channels=60 channel_term=lin*0\nend",
    "empty loops": "loop count=16777215\n" * 8 + "end\n" * 8,
    "loops of streams": "loop count=16777215\nloop count=1000\ncommit source=glb desc=2 operand=1\nend\nend",
    "loops of a descriptor": "loop count=16777215\nloop count=16777215\ndesc id=3\nend\nend",
    "loops of a layer": f"loop count=16777215\n{LOAD} kind=ifmap\n{ADD}\n{COMMIT}\nend",
    "rings of one word": f"desc id=5 ring_y=1 ring_x=1\nstep id=5 loop=0 by=y*1\nloop count=16777215\n"
    f"{LOAD.replace('desc=1', 'desc=5')} kind=ifmap extent2=2 extent3=4 term2=y*1\n{ADD}\n{COMMIT}\nend",
    "tokens": "loop count=65000\nsignal semaphore=2 count=1\nloop count=65000\nsignal semaphore=1 count=1\nend\n"
    "loop count=65000\ndma take=1 take_when=always\nend\nend",
    "unlike engines": "loop count=16777215\nloop count=16777215\ndma words=7\ndma words=5\nunit\nend\ndma words=3\nend",
    "positions": "desc id=3 height=5 width=5\n"
    + "".join(f"step id=3 loop={i} by={'yx'[i % 2]}*{step}\n" for i, step in enumerate((1, -1, 3, -3, 7, -7, 2, 1)))
    + "loop count=2000\n" * 8
    + "load desc=3 kind=ifmap extent0=2000 term0=y*11 term1=x*13\n"
    + "end\n" * 8,
}

# Values: addresses that need more than 64 bits, in the line after a descriptor.
_FARTHEST = "desc id=5 plane=4294967295 pitch=4294967295"
_START = "channel=-2147483648 y=-32768"
FAR = [
    f"{_FARTHEST}\nload desc=5 kind=ifmap open=always close=always {_START}",
    f"{_FARTHEST}\nload desc=5 kind=ifmap open=always close=always cols=3 set_cols=2 col=lin*1 {_START}",
    f"{_FARTHEST}\nload desc=5 kind=ifmap open=always close=always cols=3 set_cols=2 col=k*-1 {_START}",
    f"{_FARTHEST}\ncommit source=glb desc=2 operand=5 {_START}",
    f"{_FARTHEST}\ncommit source=glb desc=2 operand=5 cols=3 set_cols=2 col=lin*1 col_set=lin*2 {_START}",
    f"{_FARTHEST}\ncommit source=glb desc=5 operand=1 {_START}",
    f"{_FARTHEST}\ncommit source=glb desc=5 operand=1 pixels=2 {_START}",
    f"{_FARTHEST}\ncommit source=glb desc=2 operand=1 partial=1 fresh=always sums=5 {_START}",
]

# Traffic: a whole program, the instruction that traps, what the trap says.
TRAFFIC = [
    (
        "desc height=9 width=9\nstep loop=0 by=y*1\nstep loop=1 by=y*-1\nloop count=16777215\nloop count=16777215\n"
        "load kind=ifmap\nend\nend\nhalt",
        5,
        "positions spread over more than 1048576 places",
    ),
]

# Program words that are none, and what the refusal says.
WORDS = [
    ("fc000000", "word 0x0000: 0xfc000000 has no known opcode"),
    ("0c000000 18000000 00000000 00000000", "word 0x0001: desc takes 8 words, 3 are left"),
    ("04000000 08000000 00000000", "word 0x0000: loop: count: 0 is less than 1"),
    ("05000001 08000000 00000000", "word 0x0000: loop: reserved bits 0x01000000 of word 0 are set"),
    ("2b001001 04000000 00000000 00000000 00010001 00010000" + " 00000000" * 8, "mac: op: 3 is outside 0..2"),
    (
        "28001001 04000001 00000000 00000000 00010001 00010000" + " 00000000" * 8,
        "send: a loop mask without the enable bit",
    ),
    ("00000000 00000000", "instruction 0: halt must be the last instruction, and only that"),
    ("0c000000", "instruction 0: halt must be the last instruction, and only that"),
    ("08000000 00000000", "instruction 0: end without loop"),
    ("04000001 00000000", "1 loop without end"),
    ("04000001 " * 9 + "08000000 " * 9 + "00000000", "instruction 8: loops nest deeper than 8"),
    ("", "the program is empty"),
    ("34000000 38400001 00000000 04000001", "instruction 3: after halt comes core"),
    ("34000000 34000000 00000000", "instruction 1: core stands behind halt alone"),
    ("34000000 04000001 00000000", "instruction 2: halt in 1 loop without end"),
    ("34000000 0c000001", "instruction 1: the last core's program does not end with halt"),
    ("0c000000 34000000 00000000", "instruction 1: core needs a program whose first instruction is core"),
    ("38400001 00000000", "instruction 0: route needs a program whose first instruction is core"),
    ("06000001 08000000 00000000", "instruction 0: loop with frames=1 needs a program whose first instruction is core"),
]

# Programs of cores, and what they are refused for (CORE-1 to CORE-5, CORE-8). The array has 4 x 4 PEs, up to 4 cores,
# 2 buses in each row and column, and 4 banks of 64 words.
CORES_ARCH = replace(ARCH, rows=4, cols=4, glb=replace(ARCH.glb, words=256, banks=4), cores=Cores(4, 8, 2, 3))
LOAD_4 = "load kind=ifmap extent3=4 term3=lin*1 open=always close=always"
GIVES_1 = "give=1 give_when=always"
TAKES_1 = "take=1 take_when=always"
ROUTE_1 = f"core\nroute semaphore=1 core=1 to=1\ndma {GIVES_1}\nhalt\ncore rows=1 cols=1"
CORES = [
    ("core\nhalt\n" * 5, "5 cores, .* has 4 .cores.most, CORE-1."),
    ("core\nhalt\ncore rows=2\nhalt", "core 1 has no PEs: only core 0 may have none"),
    ("core rows=3 cols=4 row0=2\nhalt", "core 0: rows 2..4, columns 0..3 are not all in the array of 4 x 4"),
    ("core rows=2 cols=2\nhalt\ncore rows=3 cols=1 row0=1 col0=1\nhalt", "cores 0 and 1 both have PE 1,1"),
    (
        "core rows=1 cols=1\nhalt\ncore rows=1 cols=1 col0=1\nhalt\ncore rows=1 cols=1 col0=2\nhalt",
        "cores 0, 1, 2 share row 0, which has 2 buses",
    ),
    (
        "core rows=1 cols=1\nhalt\ncore rows=1 cols=1 row0=1\nhalt\ncore rows=1 cols=1 row0=2\nhalt",
        "cores 0, 1, 2 share column 0, which has 2 chains",
    ),
    ("core\nhalt\ncore rows=1 cols=1\ndma\nhalt", "core 1, instruction 3 .dma.: only core 0 has the dma engine"),
    ("core\nmac\nhalt", "core 0, instruction 1 .mac.: the core has no PEs"),
    ("core\nsync\nroute semaphore=1 to=2\nhalt", "instruction 2 .route.: routes stand directly behind core"),
    ("core\nroute semaphore=1 core=1 to=2\nhalt", "a route to core 1, there are cores 0 to 0"),
    ("core\nloop count=2\nloop frames=1\nend\nend\nhalt", "core 0, instruction 2: a loop over frames stands in anot"),
    ("core\nloop frames=1\nhost\nend\nhalt", "core 0, instruction 1: the host runs for all frames at once"),
    # Semaphores.
    (
        f"{ROUTE_1}\nroute semaphore=1 core=1 to=1\nload {TAKES_1}\nhalt",
        "semaphore 1 of core 1 has routes from semaphore 1 of core 0 and semaphore 1 of core 1",
    ),
    (
        f"core\nhalt\ncore rows=1 cols=1\nload {TAKES_1}\nhalt",
        "core 1, instruction 3 .load. takes semaphore 1 of core 1, which nothing gives: .* a route to core 1, to=1 is",
    ),
    (
        f"core\ndma {GIVES_1}\nhalt",
        "core 0, instruction 1 .dma. gives semaphore 1: without a route .* of core 0, which nothing",
    ),
    (
        f"core\nroute semaphore=1 to=2\ndma {GIVES_1}\nhalt",
        "the route leads to semaphore 2 of core 0, which nothing takes",
    ),
    (
        f"{ROUTE_1}\nload {TAKES_1}\ncommit {TAKES_1}\nhalt",
        "core 1, instruction 5 .load. and core 1, instruction 6 .commit.: one engine of one core takes tokens of",
    ),
    (
        f"{ROUTE_1}\nload {GIVES_1} {TAKES_1}\nhalt",
        "core 0, instruction 2 .dma. and core 1, instruction 5 .load.: one engine of one core gives tokens of",
    ),
    (
        f"{ROUTE_1}\nload {TAKES_1}\nsignal semaphore=1 count=1\nhalt",
        "core 1, instruction 6 .signal.: signals of semaphore 1 of core 1 stand in no loop",
    ),
    # Banks: words are read by two engines, or written by two.
    (
        f"core rows=1 cols=1\n{LOAD_4}\nhalt\ncore rows=1 cols=1 row0=1\n{LOAD_4}\nhalt",
        "bank 0 of the GLB, words 0 to 63, is read by core 0, instruction 1 .load. and by core 1, instruction 4 .load.",
    ),
    (
        "core rows=1 cols=1\ndma words=70\nhalt\ncore rows=1 cols=1 row0=1\ndesc base=60\n"
        "commit source=glb operand=1 pixels=9 pixel_term=lin*1\nhalt",
        "bank 0 of the GLB, words 0 to 63, is written by core 0, .* and by core 1, instruction 5",
    ),
]

# Programs of cores that wait for each other.
DEADLOCKS = [
    f"core\nroute semaphore=1 core=1 to=1\ndma {TAKES_1} {GIVES_1}\nhalt\n"
    f"core rows=1 cols=1\nroute semaphore=1 core=0 to=1\nload {TAKES_1} {GIVES_1}\nhalt",
]
