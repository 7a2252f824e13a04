"""What an array is, read from a short TOML file and checked. No other file knows a size, width or rate."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cnncc.errors import Refusal

PRESETS = Path(__file__).parent


@dataclass(frozen=True)
class Pe:
    """The register files of a PE (words of one half, number of halves) and its macro-instruction's overheads.

    pong_words, virtual_words: where ifmap halves are ping and pong (rule A6), pong and FIFO for virtual neighbours.
    """

    weight_words: int
    ifmap_words: int
    psum_words: int
    weight_halves: int = 2
    ifmap_halves: int = 2
    psum_halves: int = 2
    pong_words: int = 0
    virtual_words: int = 0
    max_pixels: int = 16
    start_cycles: int = 3
    finish_cycles: int = 1


@dataclass(frozen=True)
class Bus:
    """The row buses: words a message, cycles until a message has arrived."""

    burst_words: int = 10
    latency_cycles: int = 1


@dataclass(frozen=True)
class Glb:
    """The global buffer: its size, and the words a cycle of each of its ports (load, commit)."""

    words: int
    words_per_cycle: int


@dataclass(frozen=True)
class Dram:
    """The memory behind the DMA."""

    words_per_cycle: int
    latency_cycles: int


@dataclass(frozen=True)
class Commit:
    """The output units."""

    units_per_column: int = 1
    latency_cycles: int = 4


@dataclass(frozen=True)
class Links:
    """Which links join neighbouring PEs: n2n carries ifmap words from east to west, south psums down a column."""

    n2n: bool = True
    south: bool = False


@dataclass(frozen=True)
class Sequencer:
    """Decoded instructions that each engine's queue holds; whether engines work at the same time (rule Z6)."""

    queue_depth: int = 4
    overlap: bool = True


@dataclass(frozen=True)
class Arch:
    """An array. Every number is at least what `_LEAST` says and at most what `_MOST` says (the ISA's field widths)."""

    name: str
    rows: int
    cols: int
    pe: Pe
    glb: Glb
    dram: Dram
    lanes: int = 1
    operand_bits: int = 16
    psum_bits: int = 32
    bus: Bus = Bus()
    commit: Commit = Commit()
    links: Links = Links()
    sequencer: Sequencer = Sequencer()

    @property
    def words_per_param(self) -> int:
        """Words that a 32-bit quantity takes (rule W1)."""
        return 32 // self.operand_bits


_MOST = {"rows": 32, "cols": 32, "lanes": 1, "psum_bits": 48, "words": 1 << 31, "queue_depth": 64}
_MOST_OF_ANY = 1 << 16
_MAY_BE_ZERO = ("start_cycles", "finish_cycles", "latency_cycles", "pong_words", "virtual_words")
_LEAST = {"psum_bits": 16, **dict.fromkeys(_MAY_BE_ZERO, 0)}
_WHY = {"lanes": "dot-product lanes are not supported yet"}


def _number(where: str, name: str, value: object) -> int:
    least, most = _LEAST.get(name, 1), _MOST.get(name, _MOST_OF_ANY)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refusal(f"{where}: {name} must be a whole number, not {value!r}")
    if not least <= value <= most:
        raise Refusal(f"{where}: {name} = {value} is outside {least} to {most}" + _because(name))
    if name == "operand_bits" and value not in (8, 16):
        raise Refusal(f"{where}: operand_bits is 8 or 16, not {value}")
    return value


def _because(name: str) -> str:
    return f" ({_WHY[name]})" if name in _WHY else ""


def _build(where: str, cls: type[Any], table: dict[str, Any]) -> Any:
    """An instance of `cls` from a TOML table: unknown, missing and illegal keys are refused."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in table:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(fields)}"
            raise Refusal(f"{where}: unknown key '{key}'; {hint}")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _value(where, name, str(field.type), table[name])
        elif field.default is dataclasses.MISSING:
            raise Refusal(f"{where}: key '{name}' is missing")
    return cls(**values)


_TABLES: dict[str, type] = {"Pe": Pe, "Bus": Bus, "Glb": Glb, "Dram": Dram, "Commit": Commit, "Links": Links}
_TABLES["Sequencer"] = Sequencer


def _value(where: str, name: str, kind: str, value: object) -> object:
    if kind in _TABLES:
        if not isinstance(value, dict):
            raise Refusal(f"{where}: [{name}] must be a table")
        return _build(f"{where} [{name}]", _TABLES[kind], cast("dict[str, Any]", value))
    if kind == "int":
        return _number(where, name, value)
    if not isinstance(value, {"str": str, "bool": bool}[kind]):
        raise Refusal(f"{where}: {name} must be a {kind}, not {value!r}")
    return value


def parse_arch(text: str, where: str) -> Arch:
    """The array that TOML `text` describes. Raises Refusal naming `where`, the key, the limit and the value."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Refusal(f"{where}: not TOML: {error}") from error
    return arch_from_table(table, where)


def arch_from_table(table: dict[str, Any], where: str) -> Arch:
    """The array of a parsed table, as `dataclasses.asdict` gives it. Raises Refusal like `parse_arch`."""
    return _build(where, Arch, table)


def preset_names() -> list[str]:
    """The arrays that come with cnncc."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_arch(name_or_file: str) -> Arch:
    """A preset by name, or an array from a TOML file. Raises Refusal."""
    preset = PRESETS / f"{name_or_file}.toml"
    path = preset if name_or_file in preset_names() else Path(name_or_file)
    try:
        return parse_arch(path.read_text(), str(name_or_file))
    except UnicodeDecodeError as error:
        presets = ", ".join(preset_names())
        raise Refusal(f"{name_or_file}: is no TOML (it is not text), so no array; presets are {presets}") from error
    except OSError as error:
        raise Refusal(
            f"no array '{name_or_file}': neither a readable file nor a preset ({', '.join(preset_names())})"
        ) from error
