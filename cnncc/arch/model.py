"""The description of an array, read from a short TOML file and checked. No other file knows a size, width or rate."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from datetime import date
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

from cnncc.errors import Refusal, hint
from cnncc.util.toml import read_text, read_toml

PRESETS = Path(__file__).parent
CBRAIN = re.compile(r"cbrain-([0-9]{1,4})-([0-9]{1,4})")  # T_in-T_out
CBRAIN_LINES = 32  # of T_in words, that a half of a register file of C-Brain holds
LOOP_REGISTERS = 8  # of the sequencer of every array: the deepest nest of loops
DESCRIPTORS = 16  # of the sequencer of every array (DESC-1)
HALVES_LIMIT = 64  # of a register file: states of the times have each half, and two or three overlap all that can


@dataclass(frozen=True)
class Key:
    """The meaning of a key of the file: unit, text and range. The fields of instructions bound the range.

    The meaning cites rules of docs/machine.md in brackets.

    Attributes:
        only     the legal numbers of a key without a range
        unsaid   whether texts and digests leave out the key at its default, so that older arrays keep theirs
        decimals the most decimals of a number with a fraction, so that counts are exact; None is any
    """

    unit: str
    meaning: str
    least: float = 1
    most: int = 1 << 16
    only: tuple[int, ...] = ()
    unsaid: bool = False
    decimals: int | None = None


def _said_repr(table: object) -> str:
    """The text of a table without unsaid keys at their defaults: digests of arrays are made from it."""
    said = (f"{key}={getattr(table, key)!r}" for key in said_keys(table))
    return f"{type(table).__name__}({', '.join(said)})"


@lru_cache(maxsize=64)  # each transfer asks for it
def _fraction(number: float) -> Fraction:
    """A number of the file, by its decimals."""
    return Fraction(str(number))


@dataclass(frozen=True)
class Pe:
    """The register files of a PE (MEM-4), and the limits and cycles of its macro-instructions (MAC-4, MAC-5)."""

    weight_words: Annotated[int, Key("words", "a half of the weights file")]
    ifmap_words: Annotated[int, Key("words", "a half of the ifmap file, or ping of it (MAC-6)")]
    psum_words: Annotated[int, Key("psums", "a half of the psum file")]
    weight_halves: Annotated[
        int, Key("halves", "of the weights file; with 2, loads overlap with macs (TOKEN-1)", most=HALVES_LIMIT)
    ] = 2
    ifmap_halves: Annotated[int, Key("halves", "of the ifmap file, likewise", most=HALVES_LIMIT)] = 2
    psum_halves: Annotated[
        int, Key("halves", "of the psum file; with 2, commits overlap with macs (TOKEN-3)", most=HALVES_LIMIT)
    ] = 2
    pong_words: Annotated[int, Key("words", "pong of an ifmap half (MAC-6); 0: a half is one memory", 0)] = 0
    virtual_words: Annotated[int, Key("words", "the FIFO of a virtual neighbour, beside pong (MAC-6)", 0)] = 0
    lanes: Annotated[
        int, Key("lanes", "multipliers of a PE, whose products a tree adds up (MAC-1, MAC-5)", most=64)
    ] = 1
    lane_sums: Annotated[
        bool,
        Key("", "a psum half has a bank for each lane, so that lanes may have sums of their own (MAC-7)", unsaid=True),
    ] = False
    words_per_cycle: Annotated[
        int, Key("words a cycle", "of the write port of a half of weights or ifmap, for loads (LOAD-2)", unsaid=True)
    ] = 1
    max_pixels: Annotated[int, Key("pixels", "most output pixels of a PE in one macro-instruction (MAC-5)")] = 16
    start_cycles: Annotated[int, Key("cycles", "before the steps of a macro-instruction (MAC-4)", 0)] = 3
    finish_cycles: Annotated[int, Key("cycles", "after them (MAC-4)", 0)] = 1

    def __repr__(self) -> str:
        return _said_repr(self)


@dataclass(frozen=True)
class Bus:
    """The row buses (LOAD-2)."""

    burst_words: Annotated[int, Key("words", "most words of a message")] = 10
    latency_cycles: Annotated[int, Key("cycles", "until a message has arrived", 0)] = 1


@dataclass(frozen=True)
class Glb:
    """The global buffer."""

    words: Annotated[int, Key("words", "its size", most=1 << 31)]
    words_per_cycle: Annotated[int, Key("words a cycle", "of its port for loads (LOAD-2), and for commits (COMMIT-3)")]
    banks: Annotated[
        int,
        Key(
            "banks",
            "memories that it consists of; with several cores each has one reader and one writer (CORE-5)",
            most=1 << 10,
            unsaid=True,
        ),
    ] = 1

    @property
    def bank_words(self) -> int:
        """The words of a bank: all have as many."""
        return self.words // self.banks

    def __repr__(self) -> str:
        return _said_repr(self)


@dataclass(frozen=True)
class Dram:
    """The memory behind the DMA (DMA-2).

    There is one DMA, and one transfer at a time, either way. Twice the words a cycle come closest to a second port.
    """

    words_per_cycle: Annotated[
        float, Key("words a cycle", "of a transfer, either way, with up to three decimals", 0.001, decimals=3)
    ]
    latency_cycles: Annotated[int, Key("cycles", "until a transfer is done", 0)]

    @cached_property
    def rate_words(self) -> int:
        """Words that move in `rate_cycles` cycles: 5 in 2 at 2.5 words a cycle."""
        return _fraction(self.words_per_cycle).numerator

    @cached_property
    def rate_cycles(self) -> int:
        """The fewest cycles in which a whole number of words moves."""
        return _fraction(self.words_per_cycle).denominator


@dataclass(frozen=True)
class OutputUnits:
    """The output units (COMMIT-3)."""

    units_per_column: Annotated[int, Key("units", "for each column of PEs; a unit takes a psum a cycle")] = 1
    latency_cycles: Annotated[int, Key("cycles", "until a commit is done", 0)] = 4


@dataclass(frozen=True)
class Links:
    """The links between neighbouring PEs."""

    n2n: Annotated[bool, Key("", "ifmap words go from east to west (MAC-3)")] = True
    south: Annotated[bool, Key("", "psums go down a column (COMMIT-6)")] = False


@dataclass(frozen=True)
class Sequencer:
    """The sequencer, which issues instructions to the engines (PROG-3)."""

    queue_depth: Annotated[int, Key("instructions", "that the queue of each engine holds (TIME-1)", most=64)] = 4
    overlap: Annotated[bool, Key("", "engines work at the same time (TIME-6)")] = True


@dataclass(frozen=True)
class Cores:
    """The cores: sequencers with engines of their own, each on a rectangle of the PEs (CORE-1)."""

    most: Annotated[int, Key("cores", "of a program (CORE-1)", most=64, unsaid=True)] = 1
    words_per_cycle: Annotated[
        int,
        Key(
            "words a cycle",
            "of each core's port for loads, and for commits; 0: as many as the GLB's (CORE-5)",
            0,
            unsaid=True,
        ),
    ] = 0
    buses: Annotated[
        int,
        Key(
            "buses", "of each row of PEs, and chains to the output units of each column (CORE-5)", most=64, unsaid=True
        ),
    ] = 1
    latency_cycles: Annotated[int, Key("cycles", "until a token has come to another core (CORE-3)", 0, unsaid=True)] = 1
    host: Annotated[
        tuple[str, ...],
        Key("", "operators of ONNX that the host computes where layers run side by side: a list of names", unsaid=True),
    ] = ()


@dataclass(frozen=True)
class Energy:
    """The energy of an operation, and of a word at each memory and link.

    These numbers are multiplied with the counters of [stats.md](stats.md); no time or value depends on them. The
    defaults are relative to a MAC. They come from Y.-H. Chen, J. Emer and V. Sze ("Eyeriss", ISCA 2016, table IV), for
    a commercial 65 nm process: register file 1, from PE to PE 2, buffer of more than 100 KB 6, DRAM 200. Like that
    table, the defaults have one number for reads and writes, one for all wires of the array, and one for all register
    files of any size and width.
    """

    unit: Annotated[str, Key("", "what the numbers are in: `pJ`, or a MAC's energy")] = "MAC"
    mac: Annotated[float, Key("energy", "an operation of a PE: multiply-accumulate, maximum or addition", 0)] = 1.0
    weight_read: Annotated[float, Key("energy", "a word from a weights file", 0)] = 1.0
    weight_write: Annotated[float, Key("energy", "a word into it", 0)] = 1.0
    ifmap_read: Annotated[float, Key("energy", "a word from an ifmap file", 0)] = 1.0
    ifmap_write: Annotated[float, Key("energy", "a word into it", 0)] = 1.0
    psum_read: Annotated[float, Key("energy", "a psum from a psum file", 0)] = 1.0
    psum_write: Annotated[float, Key("energy", "a psum into it", 0)] = 1.0
    n2n: Annotated[float, Key("energy", "a word to the neighbour (MAC-3)", 0)] = 2.0
    south: Annotated[float, Key("energy", "a psum down a column (COMMIT-6)", 0)] = 2.0
    bus: Annotated[float, Key("energy", "a word on the row buses, however many PEs take it (LOAD-2)", 0)] = 2.0
    glb_read: Annotated[float, Key("energy", "a word from the GLB", 0)] = 6.0
    glb_write: Annotated[float, Key("energy", "a word into it", 0)] = 6.0
    dram_read: Annotated[float, Key("energy", "a word from DRAM", 0)] = 200.0
    dram_write: Annotated[float, Key("energy", "a word into it", 0)] = 200.0


@dataclass(frozen=True)
class Arch:
    """An array: its name, its PEs, the widths of its words."""

    name: Annotated[str, Key("", "what messages and binaries call it")]
    rows: Annotated[int, Key("PEs", "in a column", most=32)]
    cols: Annotated[int, Key("PEs", "in a row", most=32)]
    pe: Pe
    glb: Glb
    dram: Dram
    operand_bits: Annotated[int, Key("bits", "of a word: weights and activations (MEM-1)", only=(8, 16))] = 16
    psum_bits: Annotated[int, Key("bits", "of a psum (MAC-2)", 16, 48)] = 32
    clock_mhz: Annotated[
        int, Key("MHz", "its clock, for frames a second; 0: not known. No count depends on it", 0, unsaid=True)
    ] = 0
    bus: Bus = Bus()
    commit: OutputUnits = OutputUnits()
    links: Links = Links()
    sequencer: Sequencer = Sequencer()
    cores: Cores = Cores()
    energy: Energy = Energy()

    def __repr__(self) -> str:
        return self._said

    @cached_property
    def _said(self) -> str:  # the key of every search has it
        return _said_repr(self)

    @cached_property
    def words_per_param(self) -> int:
        """Words that a bias or a scale takes, of 32 bits (rule MEM-1)."""
        return 32 // self.operand_bits

    @property
    def sum_bits(self) -> int:
        """Bits of a partial sum in the GLB: as many as a psum has, and at least 32 (rule COMMIT-5)."""
        return max(32, self.psum_bits)

    @cached_property
    def words_per_sum(self) -> int:
        """Words that a partial sum takes in the GLB (rule MEM-1)."""
        return -(-self.sum_bits // self.operand_bits)


@lru_cache(maxsize=64)  # each layer of a network asks for it
def counted_arch(arch: Arch) -> Arch:
    """The array without what no count depends on, so that arrays with equal counts are equal."""
    return replace(arch, name="", clock_mhz=0, energy=Energy())


def core_arch(arch: Arch, rows: int, cols: int) -> Arch:
    """The array as a core on so many rows and columns sees it: with its own port of the GLB (CORE-1, CORE-5)."""
    glb = replace(arch.glb, words_per_cycle=arch.cores.words_per_cycle or arch.glb.words_per_cycle)
    return replace(arch, rows=rows, cols=cols, glb=glb)


@cache
def key_types(table: type) -> dict[str, Any]:
    """The keys of a table with their types: another table, or a type annotated with its `Key`."""
    return get_type_hints(table, include_extras=True)


def said_keys(table: object, *, all_keys: bool = False) -> dict[str, Any]:
    """The keys of a table and of its tables, with their values.

    Without `Key.unsaid` ones at their defaults, unless `all_keys`.
    """
    known, said = key_types(type(table)), dict[str, Any]()
    for field in fields(cast("Any", table)):
        value, kind = getattr(table, field.name), known[field.name]
        if is_dataclass(value):
            if inner := said_keys(value, all_keys=all_keys):
                said[field.name] = inner
        elif all_keys or not kind.__metadata__[0].unsaid or value != field.default:
            said[field.name] = value
    return said


def _shown(value: object) -> str:
    """A value as TOML has it, if it is no table or list."""
    return str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, date) else repr(value)


def _number(where: str, name: str, kind: type, key: Key, value: object) -> int | float:
    # In Python true and false are integers, too.
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise Refusal(f"{where}: {name} is a {'whole ' if kind is int else ''}number, not {_shown(value)}")
    if key.only and value not in key.only:
        raise Refusal(f"{where}: {name} is {' or '.join(map(str, key.only))}, not {value}")
    if not key.least <= value <= key.most:
        raise Refusal(f"{where}: {name} = {value} is outside {key.least} to {key.most}")
    if key.decimals is None:
        return kind(value)
    if value != round(value, key.decimals):
        raise Refusal(f"{where}: {name} = {value} has more than {key.decimals} decimals")
    # 8.0 becomes 8, so that equal arrays have equal texts and digests.
    return int(value) if value == int(value) else value


def _build(where: str, cls: type[Any], table: dict[str, Any]) -> Any:
    """An instance of `cls` from a TOML table: unknown, missing and illegal keys are refused."""
    known = key_types(cls)
    for key in table:
        if key not in known:
            raise Refusal(f"{where}: unknown key '{key}'; {hint(key, known)}")
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.name in table:
            values[field.name] = _value(where, field.name, known[field.name], table[field.name])
        elif field.default is MISSING:
            raise Refusal(f"{where}: key '{field.name}' is missing")
    return cls(**values)


def _names(where: str, name: str, value: object) -> tuple[str, ...]:
    """A list of texts. Raises Refusal for what is none."""
    names = cast("Sequence[object]", value) if isinstance(value, list | tuple) else [None]
    if not all(isinstance(each, str) for each in names):
        raise Refusal(f'{where}: {name} is a list of names, as ["Gemm"], not {_shown(cast("object", value))}')
    return tuple(cast("Sequence[str]", names))


def _value(where: str, name: str, type_: Any, value: object) -> object:
    if is_dataclass(type_):
        if not isinstance(value, dict):
            raise Refusal(f"{where}: [{name}] must be a table")
        return _build(f"{where} [{name}]", cast("type[Any]", type_), cast("dict[str, Any]", value))
    kind, key = type_.__origin__, type_.__metadata__[0]
    if kind not in (int, float, bool, str):
        return _names(where, name, value)
    if kind in (int, float):
        return _number(where, name, kind, key, value)
    if not isinstance(value, kind):
        raise Refusal(f"{where}: {name} is {'a text' if kind is str else 'true or false'}, not {_shown(value)}")
    if isinstance(value, str) and not (value.isprintable() and value.strip()):
        raise Refusal(f"{where}: {name} is a text of printable characters, not {_shown(value)}")
    return value


@lru_cache(maxsize=64)  # every pass of a compilation reads the file
def parse_arch(text: str, where: str) -> Arch:
    """The array that TOML `text` describes. Raises Refusal, with `where`, the key, the limit and the value."""
    return arch_from_table(read_toml(text, where), where)


def arch_from_table(table: dict[str, Any], where: str, *, apart: bool = False) -> Arch:
    """The array of a parsed table, as `said_keys` gives it. Raises Refusal like `parse_arch`.

    apart: each key is checked by itself, as others may change, too.
    """
    arch: Arch = _build(where, Arch, table)
    if not apart:
        _check_together(arch, where)
    return arch


def _check_together(arch: Arch, where: str) -> None:
    """Raises Refusal for numbers that do not go together."""
    if arch.pe.lane_sums and (rest := arch.pe.psum_words % arch.pe.lanes):
        words = arch.pe.psum_words
        raise Refusal(
            f"{where} [pe]: lane_sums needs a bank of psums for each lane, but psum_words = {words} is no multiple of "
            f"lanes = {arch.pe.lanes}: {words - rest or arch.pe.lanes} is one"
        )
    if arch.glb.words % arch.glb.banks:
        words, banks = arch.glb.words, arch.glb.banks
        raise Refusal(
            f"{where} [glb]: banks are of equal size, but words = {words} is no multiple of banks = {banks}: "
            f"{-(-words // banks) * banks} is one"
        )


def arch_text(arch: Arch, *, all_keys: bool = False) -> str:
    """The TOML text of an array with its keys (`said_keys`); `parse_arch` reads it back."""
    sections = {"": dict[str, object]()}
    for key, value in said_keys(arch, all_keys=all_keys).items():
        if isinstance(value, dict):
            sections[key] = cast("dict[str, object]", value)
        else:
            sections[""][key] = value
    lines: list[str] = []
    for title, values in sections.items():
        lines += ["", f"[{title}]"] if title else []
        # Text, numbers, true and false are in JSON as in TOML.
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=64)  # every pass of a compilation asks for it
def array_title(arch: Arch) -> str:
    """An array's name, size and the head of a hash of all its numbers, as two files may bear one name."""
    digest = hashlib.sha256(repr(arch).encode()).hexdigest()[:8]
    return f"{arch.name} ({arch.rows} x {arch.cols} PEs, #{digest})"


@cache
def preset_names() -> tuple[str, ...]:
    """The arrays that come with cnncc."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def load_arch(name_or_file: Path | str) -> Arch:
    """A preset by name, or an array from a TOML file. Raises Refusal."""
    name_or_file = str(name_or_file)
    if is_cbrain(name_or_file):
        return _cbrain(name_or_file)
    preset = PRESETS / f"{name_or_file}.toml"
    path = preset if name_or_file in preset_names() else Path(name_or_file)
    try:
        return parse_arch(read_text(path), name_or_file)
    except UnicodeDecodeError as error:
        presets = ", ".join(preset_names())
        raise Refusal(f"{name_or_file}: is no TOML (it is not text), so no array; presets are {presets}") from error
    except OSError as error:
        raise Refusal(
            f"no array '{name_or_file}': neither a readable file nor a preset ({', '.join(preset_names())})"
        ) from error


def is_cbrain(name: str) -> bool:
    """Whether a name is that of an array of C-Brain which has no file: `cbrain-8-24`."""
    # A name that has a file is read from it: `_cbrain` itself begins with that of `cbrain-16-16`.
    return CBRAIN.fullmatch(name) is not None and name not in preset_names()


@lru_cache(maxsize=64)
def _cbrain(name: str) -> Arch:
    """The array of C-Brain with T_out PEs of T_in multipliers: `cbrain-16-16` with other sizes and rates.

    Raises Refusal for sizes outside the range of their keys, and for a T_out that fills no rectangle of PEs.
    """
    tin, tout = map(int, name.split("-")[1:])
    most = key_types(Arch)["rows"].__metadata__[0].most
    # The most rows come first: each row has a bus of its own.
    sides = [(rows, tout // rows) for rows in range(most, 0, -1) if tout % rows == 0 and 0 < tout <= rows * most]
    if not sides:
        what = f"no rectangle of at most {most} x {most} PEs has {tout} PEs"
        raise Refusal(f"{name}: {what}: give a T_out that fills one")
    rows, cols = sides[0]
    table = said_keys(load_arch("cbrain-16-16"))
    table |= {"name": name, "rows": rows, "cols": cols}
    words = CBRAIN_LINES * tin
    table["pe"] |= {"lanes": tin, "words_per_cycle": tin, "weight_words": words, "ifmap_words": words}
    # A cycle brings T_in words for each PE of a row, T_in · T_out weights in all, and takes T_out results.
    table["bus"] |= {"burst_words": tin * cols}
    table["glb"] |= {"words_per_cycle": tin * tout}
    table["commit"] |= {"units_per_column": rows}
    return arch_from_table(table, name)
