"""The instruction table: the only place that knows a bit position.

It has two formats: the instructions of a program, and the messages that row buses deliver. Each field is one row: name,
word, msb, lsb, kind, meaning. Encoder, decoder, assembler, disassembler, the `isa` dialect, docs/isa.md and the
generators of tests only expand it. Bits without a field are reserved and zero. docs/machine.md defines the semantics by
the rules cited here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from cnncc.arch.operations import MacOperation
from cnncc.isa.fields import Field, FieldTerm, Value, When


class InstructionKind(StrEnum):
    """The instructions by name. Whoever implements them matches all of them, or one of the sets below.

    So the type checker names every place that a new row concerns.
    """

    HALT = "halt"
    LOOP = "loop"
    END = "end"
    SYNC = "sync"
    SIGNAL = "signal"
    HOST = "host"
    DESC = "desc"
    STEP = "step"
    DMA = "dma"
    LOAD = "load"
    MAC = "mac"
    UNIT = "unit"
    TABLE = "table"
    COMMIT = "commit"
    CORE = "core"
    ROUTE = "route"


RUN_BY_ENGINES: Final = (
    InstructionKind.DMA, InstructionKind.LOAD, InstructionKind.MAC, InstructionKind.UNIT, InstructionKind.TABLE,
    InstructionKind.COMMIT,
)  # fmt: skip
MOVING_WORDS: Final = (InstructionKind.DMA, InstructionKind.LOAD, InstructionKind.MAC, InstructionKind.COMMIT)
CHANGING_SETTINGS: Final = (InstructionKind.DESC, InstructionKind.STEP, InstructionKind.UNIT)
# They use words of the GLB, or set what the addresses of words depend on.
ADDRESSING: Final = (
    InstructionKind.DESC, InstructionKind.STEP, InstructionKind.DMA, InstructionKind.LOAD, InstructionKind.UNIT,
    InstructionKind.COMMIT,
)  # fmt: skip

ENTRIES = 32  # of the output units' table, in an instruction

# The axes of a commit's pattern, the slowest first: field `pixels`, term `pixel_term` (COMMIT-1).
EXTENTS = ("pixel", "line", "channel")

OPCODE = Field("opcode", 0, 31, 26, "uint", "which instruction")


@dataclass(frozen=True)
class Spec:
    """One kind of instruction or message, of `words` 32-bit words; `engine` runs the one or carries the other."""

    name: str
    opcode: int
    engine: str
    words: int
    meaning: str
    fields: tuple[Field, ...]

    @cached_property
    def kind(self) -> InstructionKind:
        """Which instruction it is. Raises ValueError for one that nobody implements."""
        return InstructionKind(self.name)

    @cached_property
    def by_name(self) -> dict[str, Field]:
        """The fields by name."""
        return {field.name: field for field in self.fields}

    @cached_property
    def defaults(self) -> dict[str, Value]:
        """The values of fields that the assembly leaves out, by name."""
        return {field.name: field.default for field in self.fields}

    @cached_property
    def default_words(self) -> list[int]:
        """The words with all fields at their defaults."""
        words = [self.opcode << OPCODE.lsb, *(0 for _ in range(1, self.words))]
        for field in self.fields:
            words[field.word] |= field.default_bits << field.lsb
        return words

    @cached_property
    def reserved(self) -> list[int]:
        """The bits of each word that no field has."""
        used = [OPCODE.mask << OPCODE.lsb, *(0 for _ in range(1, self.words))]
        for field in self.fields:
            used[field.word] |= field.mask << field.lsb
        return [~bits & 0xFFFFFFFF for bits in used]


@dataclass(frozen=True)
class Instruction:
    """One instruction: a row of the table and a value for each of its fields."""

    spec: Spec
    values: Mapping[str, Value]

    def number(self, field: str) -> int:
        """The value of a uint, int or hex field."""
        value = self.values[field]
        assert isinstance(value, int)
        return value

    def text(self, field: str) -> str:
        """The value of an enum field."""
        value = self.values[field]
        assert isinstance(value, str)
        return value

    def operation(self) -> MacOperation:
        """The operation of a mac. Raises ValueError for an operation that no level implements."""
        return MacOperation(self.text("op"))

    def term(self, field: str) -> FieldTerm:
        """The value of a term field."""
        value = self.values[field]
        assert isinstance(value, FieldTerm)
        return value

    @cached_property
    def pattern(self) -> list[tuple[int, FieldTerm]]:
        """The extents of a load's or a commit's pattern, the slowest first, and their terms (LOAD-1, COMMIT-1)."""
        if self.spec.kind is InstructionKind.LOAD:
            return [(self.number(f"extent{i}"), self.term(f"term{i}")) for i in range(4)]
        return [(self.number(f"{extent}s"), self.term(f"{extent}_term")) for extent in EXTENTS]

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """The extents of a load's or a commit's pattern alone."""
        return tuple([extent for extent, _ in self.pattern])

    def when(self, field: str) -> When:
        """The value of a when field."""
        value = self.values[field]
        assert value is None or (isinstance(value, tuple) and not isinstance(value, FieldTerm))
        return value


def _fields(rows: str, word: int = 0) -> tuple[Field, ...]:
    """Fields from rows of `name word msb lsb kind meaning`, their words counted from `word`."""
    parts = [line.split(maxsplit=5) for line in rows.strip().splitlines()]
    return tuple(_field(name, word + int(at), int(msb), int(lsb), kind, meaning)
                 for name, at, msb, lsb, kind, meaning in parts)  # fmt: skip


def _field(name: str, word: int, msb: int, lsb: int, kind: str, meaning: str) -> Field:
    kind, _, names = kind.partition(":")
    least = 1 if kind == "count" else 0
    return Field(name, word, msb, lsb, "uint" if kind == "count" else kind, meaning, least, tuple(names.split(",")))


# The kinds are those of `Field`, with two abbreviations: count is a uint of at least 1, and enum:a,b lists its names.
_RECTANGLE = """
    row0        0 23 18 uint   first active row (DESC-4)
    rows        0 17 12 count  active rows (DESC-4)
    col0        0 11  6 uint   first active column (DESC-4)
    cols        0  5  0 count  active columns (DESC-4)
"""
_PLACE = """
    row         0 31  0 term   row within its set (DESC-2)
    row_set     1 31  0 term   number of the set, by rows (DESC-2)
    col         2 31  0 term   column within its set (DESC-2)
    col_set     3 31  0 term   number of the set, by columns (DESC-2)
"""
_TOKENS = """
    take        0 31 28 uint   semaphore taken; 0 = none (TOKEN-4)
    give        0 27 24 uint   semaphore given; 0 = none (TOKEN-4)
    take_when   0 20 12 when   first iterations in which it takes
    give_when   0  8  0 when   last iterations in which it gives
"""
_SYNC = """
    dma         0  3  3 uint   1: wait for the dma engine
    load        0  2  2 uint   1: wait for the load engine
    array       0  1  1 uint   1: wait for the array engine
    commit      0  0  0 uint   1: wait for the commit engine
"""
_LOOP = """
    frames      0 25 25 uint   1: frames + count - 1 iterations (CORE-8)
    count       0 23  0 count  iterations
"""
_SIGNAL = """
    semaphore   0 25 22 count  which
    count       0 15  0 count  tokens
"""
_HOST = """
    segment     0 15  0 uint   number of the segment
"""
_DESC = """
    id          0 25 22 uint   which descriptor
    frames      0 21 21 uint   1: height is the number of frames (CORE-8)
    column      0 15  0 uint   words from column to column; 0 = 1
    base        1 31  0 uint   first word of the tensor
    height      2 31 16 uint   rows; 0 = no bounds (DESC-3)
    width       2 15  0 uint   columns
    pitch       3 31  0 uint   words from row to row
    plane       4 31  0 uint   words from channel to channel
    fill        5 31 16 int    value outside the bounds (DESC-3)
    zero        5 15  0 int    zero point, subtracted by a load (DESC-3)
    wrap        6 31  0 uint   words after which the loops' linear part wraps; 0 = never (DESC-2)
    ring_y      7 31 16 uint   rows that are kept: row y lies at y mod ring_y; 0 = all (DESC-2)
    ring_x      7 15  0 uint   columns that are kept: column x lies at x mod ring_x; 0 = all (DESC-2)
"""
_STEP = """
    id          0 25 22 uint   which descriptor
    loop        0  2  0 uint   loop register
    by          1 31  0 term   step of the loop
"""
_DMA = """
    direction   0 25 25 enum:in,out  DRAM to GLB, or back
    dram        0 23 20 uint   descriptor of the DRAM side
    glb         0 19 16 uint   descriptor of the GLB side
    count       0 15  0 count  blocks
    words       2 31  0 count  words a row
    dram_offset 3 31  0 int    start on the DRAM side
    glb_offset  4 31  0 int    start on the GLB side
    dram_step   5 31  0 uint   words from block to block, DRAM side
    glb_step    6 31  0 uint   words from block to block, GLB side
    y           7 31 16 int    start, row of the image, both sides (DESC-2)
    x           7 15  0 int    start, column of the image, both sides (DESC-2)
    rows        8 15  0 count  rows a block
"""
_LOAD = """
    kind        0 25 24 enum:weight,ifmap  data type
    set_rows    2 31 26 count  rows of a PE set (DESC-4)
    set_cols    2 25 20 count  columns of a PE set (DESC-4)
    desc        2 19 16 uint   descriptor of the tensor
    slot        2 15  0 uint   first slot filled (LOAD-1)
    open        3 24 16 when   takes a free half: first iterations (TOKEN-1)
    close       3  8  0 when   gives the half as full: last iterations (TOKEN-1)
    edge        3 31 31 uint   1: only the last column of each set (LOAD-1)
    offset      4 31  0 int    start, linear words (DESC-2)
    channel     5 31  0 int    start, channel (DESC-2)
    y           6 31 16 int    start, row of the image (DESC-2)
    x           6 15  0 int    start, column of the image (DESC-2)
    extent0     7 31 16 count  slowest extent of the pattern (LOAD-1)
    extent1     7 15  0 count  second extent
    extent2     8 31 16 count  third extent
    extent3     8 15  0 count  fastest extent
    term0       9 31  0 term   step of extent0
    term1      10 31  0 term   step of extent1
    term2      11 31  0 term   step of extent2
    term3      12 31  0 term   step of extent3
"""
_MAC = """
    op          0 25 24 enum:mac,max,add  what is done with each pair (MAC-1)
    set_cols    1 31 26 count  columns of a PE set: the last one has a virtual neighbour (MAC-3)
    psum_l      1 25 25 uint   psum slots from lane to lane; 0: the products of a step are added up (MAC-7)
    clear       1 24 16 when   starts a fresh psum half: first iterations (TOKEN-3)
    send        1  8  0 when   hands the psum half to commit: last iterations (TOKEN-3)
    take_weight 2 24 16 when   goes on to the next full weight half: first iterations (TOKEN-2)
    give_weight 2  8  0 when   returns the weight half: last iterations (TOKEN-2)
    take_ifmap  3 24 16 when   goes on to the next full ifmap half: first iterations (TOKEN-2)
    give_ifmap  3  8  0 when   returns the ifmap half: last iterations (TOKEN-2)
    pixels      4 31 16 count  z: output pixels (MAC-1)
    taps        4 15  0 count  j: taps (MAC-1)
    step_range  5 31 16 count  i: output channels interleaved (MAC-1)
    data_reuse  5 15  0 uint   words taken from the east neighbour (MAC-3)
    n2n_slot    6 31 16 uint   slot of the first of them (MAC-3)
    ifmap_slot  6 15  0 uint   first ifmap slot (MAC-1)
    weight_slot 7 31 16 uint   first weight slot (MAC-1)
    psum_slot   7 15  0 uint   first psum slot (MAC-1)
    ifmap_z     8 31 16 int    ifmap slots from pixel to pixel
    ifmap_j     8 15  0 int    ifmap slots from tap to tap
    ifmap_i     9 31 16 int    ifmap slots from channel to channel
    weight_z    9 15  0 int    weight slots from pixel to pixel
    weight_j   10 31 16 int    weight slots from tap to tap
    weight_i   10 15  0 int    weight slots from channel to channel
    psum_z     11 31 16 int    psum slots from pixel to pixel
    psum_j     11 15  0 int    psum slots from tap to tap
    psum_i     12 31 16 int    psum slots from channel to channel
    lanes      12 15  0 count  l: products a step (MAC-1)
    ifmap_l    13 31 16 int    ifmap slots from lane to lane
    weight_l   13 15  0 int    weight slots from lane to lane
"""
_CORE = """
    row0        0 23 18 uint   first row of its PEs in the array (CORE-1)
    rows        0 17 12 uint   rows of its PEs; 0 = it has none
    col0        0 11  6 uint   first column of its PEs in the array
    cols        0  5  0 uint   columns of its PEs
"""
_ROUTE = """
    semaphore   0 25 22 count  whose tokens go (CORE-3)
    core        0 13  8 uint   to which core
    to          0  3  0 count  to which of its semaphores
"""
_UNIT = """
    bias        0 25 25 uint   1: add the channel's bias (COMMIT-2)
    scale       0 24 24 uint   1: multiply by the channel's scale and round (COMMIT-2)
    residual    0 23 23 uint   1: add a residual, or multiply by it (COMMIT-2)
    multiply    0 21 21 uint   1: multiply by the residual (COMMIT-2)
    leaky       0 22 22 uint   1: multiply negative products by the slope (COMMIT-2)
    lookup      0 20 20 uint   1: take the value of the table (COMMIT-7)
    shift       0 19 16 uint   the table has an entry for every 2^shift-th integer (COMMIT-7)
    last        0 15  0 int    entry 256 of the table (COMMIT-7)
    zero        1 31  0 int    added after the multiplication
    clamp_lo    2 31  0 int    least result before the residual
    clamp_hi    3 31  0 int    greatest result before the residual
    factor_a    4 31  0 hex    f32: factor of the result so far, or of the product
    factor_b    5 31  0 hex    f32: factor of the residual that is added; zero point of one that is multiplied
    fixed       6 31  0 hex    f32: added with the residual, or to the product
    add_lo      7 31  0 int    least result after the residual
    add_hi      8 31  0 int    greatest result after the residual
    slope       9 31  0 hex    f32: factor of negative products
"""
_TABLE = "    part        0  2  0 uint   which entries: 32 * part and the 31 after it (COMMIT-7)\n" + "".join(
    f"    entry{at:<7}{1 + at // 2:2} {31 - at % 2 * 16:2} {16 - at % 2 * 16:2} int    entry 32 * part + {at}\n"
    for at in range(ENTRIES)
)
_COMMIT = """
    source      0 25 25 enum:psum,glb  where the sums are (COMMIT-1)
    set_rows    2 31 26 count  rows of a PE set (DESC-4)
    set_cols    2 25 20 count  columns of a PE set (DESC-4)
    desc        2 19 16 uint   descriptor of the result
    operand     2 15 12 uint   descriptor of the streamed operand, source glb
    residual    2 11  8 uint   descriptor of the residual
    params      2  7  4 uint   descriptor of biases and scales
    offset      3 31  0 int    start, linear words (COMMIT-1)
    channel     4 31  0 int    start, channel (COMMIT-1)
    y           5 31 16 int    start, row of the image (COMMIT-1)
    x           5 15  0 int    start, column of the image (COMMIT-1)
    param       6 31  0 int    first channel's place among the parameters
    pixels      7 31 16 count  z: slowest extent of the pattern
    lines       7 15  0 count  j: second extent
    channels    8 31 16 count  i: fastest extent
    psum_slot   8 15  0 uint   first psum slot
    pixel_term  9 31  0 term   step of pixels
    line_term  10 31  0 term   step of lines
    channel_term 11 31 0 term  step of channels
    psum_z     12 31 16 int    psum slots from pixel to pixel
    psum_j     12 15  0 int    psum slots from line to line
    psum_i     13 31 16 int    psum slots from channel to channel
    reduce     13  0  0 uint   1: the psums of a set's rows are added up (COMMIT-6)
    partial    14 31 31 uint   1: partial sums are added up in the GLB (COMMIT-5)
    sums       14 28 25 uint   descriptor of the partial sums (COMMIT-5)
    fresh      14 24 16 when   there are none yet: first iterations (COMMIT-5)
    final      14  8  0 when   the sums are complete: last iterations (COMMIT-5)
"""

SPECS: tuple[Spec, ...] = (
    Spec("halt", 0, "sequencer", 1, "wait until all engines are idle, then stop (TIME-4)", ()),
    Spec("loop", 1, "sequencer", 1, "repeat up to the matching end (PROG-2)", _fields(_LOOP)),
    Spec("end", 2, "sequencer", 1, "end of a loop's body (PROG-2)", ()),
    Spec("sync", 3, "sequencer", 1, "wait until engines are idle (PROG-4)", _fields(_SYNC)),
    Spec("signal", 4, "sequencer", 1, "give tokens to a semaphore (TOKEN-4)", _fields(_SIGNAL)),
    Spec("host", 5, "sequencer", 1, "let the host run a segment (PROG-4)", _fields(_HOST)),
    Spec("desc", 6, "sequencer", 8, "set a descriptor and clear its steps (DESC-1)", _fields(_DESC)),
    Spec("step", 7, "sequencer", 2, "give a descriptor its step for a loop register (DESC-1)", _fields(_STEP)),
    Spec("dma", 8, "dma", 9, "copy rectangles between DRAM and GLB (DMA-1)", _fields(_DMA) + _fields(_TOKENS, 1)),
    Spec(
        "load", 9, "load", 17, "deliver words from the GLB to register files (LOAD-1)",
        _fields(_RECTANGLE) + _fields(_TOKENS, 1) + _fields(_LOAD) + _fields(_PLACE, 13),
    ),
    Spec("mac", 10, "array", 14, "a macro-instruction of every active PE (MAC-1)", _fields(_RECTANGLE) + _fields(_MAC)),
    Spec("unit", 11, "commit", 10, "set up the output units (COMMIT-2)", _fields(_UNIT)),
    Spec(
        "commit", 12, "commit", 19, "psums or words through the output units to the GLB (COMMIT-1)",
        _fields(_RECTANGLE) + _fields(_TOKENS, 1) + _fields(_COMMIT) + _fields(_PLACE, 15),
    ),
    Spec("core", 13, "sequencer", 1, "the program of the next core begins (CORE-2)", _fields(_CORE)),
    Spec("route", 14, "sequencer", 1, "tokens of a semaphore go to another core (CORE-3)", _fields(_ROUTE)),
    Spec("table", 15, "commit", 17, "32 entries of the output units' table (COMMIT-7)", _fields(_TABLE)),
)  # fmt: skip
BY_NAME = {spec.name: spec for spec in SPECS}
BY_OPCODE = {spec.opcode: spec for spec in SPECS}

# The second format: messages of the row buses to PEs, formed from an instruction and the running machine, never stored.
# The fields have the thesis's names; the tag (LOAD-4), lanes (MAC-1) and lane_sums (MAC-7) are added. Its *type of
# command* is the opcode.
_DATA = """
    command       0 25 24 enum:load           what the PE does: fills its open half
    type_of_data  0 23 22 enum:weight,ifmap   register file
    virtual_n2n   0 21 21 uint   1: words of the virtual neighbour, to the last column of a set (LOAD-1, edge)
    input_words   0 15  0 count  words of input data that follow in this message
    max_iteration 1 31  0 count  words that the PE is to load, in this message and the others of the same instruction
    tag0          2 31  0 hex    columns 31..0 of the array, a bit each: 1 where the row's PE takes the message (LOAD-4)
    tag1          3 31  0 hex    columns 63..32 likewise
"""
_OP = """
    command       0 25 24 enum:mac,max,add    what the PE does with each pair (MAC-1)
    virtual_n2n   0 21 21 uint   1: its east neighbour is virtual: it is in the last column of its set (MAC-3)
    send_output   0 20 20 uint   1: the psums go to commit (TOKEN-3, send)
    lane_sums     0 19 19 uint   1: each lane has a psum of its own (MAC-7)
    step_range    0 15  0 count  channels between which an ifmap word is used again (MAC-1)
    max_iteration 1 31  0 count  steps of the PE: pixels * taps * step_range
    lanes       2 31 16 count  products a step (MAC-1)
    data_reuse    2 15  0 uint   words taken from the east neighbour (MAC-3)
    tag0          3 31  0 hex    columns 31..0 of the array, a bit each: 1 where the row's PE takes the message (LOAD-4)
    tag1          4 31  0 hex    columns 63..32 likewise
"""
MESSAGES: tuple[Spec, ...] = (
    Spec("DATA", 1, "row bus", 4, "words for a register file; input_words words of input data follow", _fields(_DATA)),
    Spec("OP", 2, "row bus", 5, "a macro-instruction", _fields(_OP)),
)
MESSAGE_BY_NAME = {spec.name: spec for spec in MESSAGES}


def instruction(name: str, /, **values: Value) -> Instruction:
    """The instruction `name` with the given fields, the others at their defaults.

    Raises: ValueError, for an unknown instruction or field, or a value that does not fit its bits.
    """
    if name not in BY_NAME:
        raise ValueError(f"no instruction '{name}'; there are {', '.join(BY_NAME)}")
    return _with_fields(BY_NAME[name], values)


def message(name: str, /, **values: Value) -> Instruction:
    """The head of a message, as `instruction` makes an instruction."""
    return _with_fields(MESSAGE_BY_NAME[name], values)


def _with_fields(spec: Spec, values: Mapping[str, Value]) -> Instruction:
    fields = spec.by_name
    if unknown := sorted(values.keys() - fields.keys()):
        raise ValueError(f"{spec.name} has no field {', '.join(unknown)}; it has {', '.join(fields)}")
    for field, value in values.items():
        fields[field].to_bits(value)
    return Instruction(spec, {**spec.defaults, **values})
