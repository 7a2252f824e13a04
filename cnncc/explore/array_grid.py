"""The arrays of an exploration: the values that `--vary KEY=VALUES` gives to keys of the architecture file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from math import prod
from typing import Any

from cnncc.arch.model import Arch, arch_from_table, load_arch
from cnncc.errors import Refusal
from cnncc.util.toml import read_toml

Value = bool | int | float
Vary = Mapping[str, Sequence[Value | str]]
"""By the keys of docs/arch.md, with the table's name: `pe.weight_words`; by `arch` the presets or files of arrays."""
Config = Mapping[str, Value | str]
"""The values of an array, by key, and the `objective` of the network on it."""
OBJECTIVE, ARCH = "objective", "arch"
CONFIGURATIONS_LIMIT = 1_000_000  # more are a typing error rather than an exploration
_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})(?::(\d{1,18}))?")


def read_vary(texts: Sequence[str], base: Arch) -> dict[str, list[Value | str]]:
    """The values of each key, in the order given: `rows=4,8,16`, `cols=4:16:4` (16 included), `arch=seed-4x4,my.toml`.

    Raises Refusal for a key or a value that the architecture file does not have.
    """
    vary: dict[str, list[Value | str]] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not key or not equals or not values:
            raise Refusal(f"--vary {text}: is not KEY=VALUES, for example rows=4,8,16 or cols=4:16:4")
        if key in vary:
            raise Refusal(f"--vary {text}: {key} is varied already")
        arrays = map(str.strip, values.split(","))
        vary[key], before = list(arrays if key == ARCH else _values(text, values)), set[str]()
        for value in vary[key]:
            if (written := value_text(value)) in before:
                raise Refusal(f"--vary {text}: {written} is there twice")
            before.add(written)
            array = array_in({key: value}, base, f"--vary {key}", apart=True)
            if array.energy.unit != base.energy.unit:
                units = f"energies in {array.energy.unit}, --arch {base.name} in {base.energy.unit}"
                raise Refusal(f"--vary {text}: {written} has {units}: give arrays with one unit")
    if (number := prod(map(len, vary.values()))) > CONFIGURATIONS_LIMIT:
        raise Refusal(f"--vary: {number:,} configurations, the limit is {CONFIGURATIONS_LIMIT:,}")
    return vary


def _values(text: str, values: str) -> Iterator[Value]:
    for part in map(str.strip, values.split(",")):
        if ":" in part and not _RANGE.fullmatch(part):
            form = "FIRST:LAST or FIRST:LAST:STEP, three whole numbers, the step from 1"
            raise Refusal(f"--vary {text}: {part} is no range {form}")
        if match := _RANGE.fullmatch(part):
            first, last, step = int(match[1]), int(match[2]), int(match[3] or "1")
            if not step or first > last:
                why = "the first is above the last" if step else "the step is 0"
                raise Refusal(f"--vary {text}: {part} is no range FIRST:LAST or FIRST:LAST:STEP: {why}")
            if last >= first + CONFIGURATIONS_LIMIT * step:
                raise Refusal(f"--vary {text}: {part} has more than {CONFIGURATIONS_LIMIT:,} values")
            yield from range(first, last + 1, step)
            continue
        yield read_value(part, f"--vary {text}")


def read_value(text: str, where: str) -> Value:
    """A value as the architecture file has it. Raises Refusal, also for more than a value."""
    try:
        table = read_toml(f"value = {text}", where)
    except Refusal:
        table = {}
    value = table.get("value")
    # TOML would take `8 # words` as 8, and a text of two lines as two keys.
    if not isinstance(value, bool | int | float) or len(table) > 1 or "#" in text:
        raise Refusal(f"{where}: '{text}' is no number, true or false")
    return value


def configurations(vary: Vary, objectives: Sequence[str]) -> list[Config]:
    """All combinations of values, each for every objective; the last key varies fastest."""
    each = product(*vary.values(), objectives)
    return [dict(zip((*vary, OBJECTIVE), values, strict=True)) for values in each]


def array_of(config: Config) -> Config:
    """The values of the array alone."""
    return {key: value for key, value in config.items() if key != OBJECTIVE}


def array_in(
    config: Config, base: Arch, where: str = "configuration", *, apart: bool = False, exponent: float = 0
) -> Arch:
    """The array of a configuration: `base`, or the one that it names, with its values. Raises Refusal.

    apart: see `arch_from_table`. exponent: of energies by the sizes of memories, against those of the array without
    the values (GRID-6).
    """
    values = {key: value for key, value in array_of(config).items() if key != ARCH}
    named = load_arch(str(config[ARCH])) if ARCH in config else base
    array = with_config(named, values, where, apart=apart)
    return with_config(array, _energies(array, named, exponent), where, apart=apart) if exponent else array


def _energies(array: Arch, base: Arch, exponent: float) -> dict[str, Value]:
    """The energies of the memories that have another size in `base`."""
    sizes, were, energies = _words(array), _words(base), asdict(array.energy)
    return {
        f"energy.{access}": energies[access] * (words / were[memory]) ** exponent
        for memory, words in sizes.items()
        for access in (f"{memory}_read", f"{memory}_write")
        if words != were[memory]
    }


def _words(arch: Arch) -> dict[str, int]:
    """The words of each memory of the array, by its name in the keys of energies."""
    pe = arch.pe
    return {"weight": pe.weight_words, "ifmap": pe.ifmap_words, "psum": pe.psum_words, "glb": arch.glb.words}


def with_config(base: Arch, config: Config, where: str = "configuration", *, apart: bool = False) -> Arch:
    """The array with these values. Raises Refusal for an unknown key or a value out of its range."""
    table = asdict(base)
    for key, value in config.items():
        *names, last = key.split(".")
        inner: dict[str, Any] = table
        for name in names:
            if not isinstance(inner.get(name), dict):
                raise Refusal(f"{where}: the architecture file has no table [{name}]")
            inner = inner[name]
        if isinstance(inner.get(last), dict):
            keys = ", ".join(f"{key}.{each}" for each in inner[last])
            raise Refusal(f"{where}: {key} is a table: vary one of its keys: {keys}")
        inner[last] = value
    return arch_from_table(table, where, apart=apart)


def config_text(config: Config) -> str:
    """A configuration in the syntax of `--vary`: `rows=4 links.south=true objective=cycles`."""
    return " ".join(f"{key}={value_text(value)}" for key, value in config.items())


def value_text(value: Value | str) -> str:
    """A value in that syntax."""
    return str(value).lower() if isinstance(value, bool) else str(value)
