"""Random arrays, from any source of choices, and their files."""

from __future__ import annotations

import tomllib
from typing import Any

from choices import Choice

from cnncc.arch.model import PRESETS, preset_names


def random_array(choice: Choice) -> dict[str, Any]:
    """The numbers of an array's file: usually such that a row of a kernel fits its register files."""
    number, one = choice.integer, choice.one
    small = number(0, 9) == 9  # a row of a kernel may not fit
    bits = one([16, 16, 8])
    return {
        "rows": number(1, 8),
        "cols": number(1, 8),
        "operand_bits": bits,
        "psum_bits": one([32, 32, 32, 48, 40, 26]),
        "pe": {
            "weight_words": number(1, 7) if small else number(7, 150),
            "ifmap_words": number(1, 25) if small else number(25, 60),
            "psum_words": number(1, 16),
            "weight_halves": one([2, 1, 3]),
            "ifmap_halves": one([2, 1, 3]),
            "psum_halves": one([2, 1, 3]),
            "max_pixels": one([16, 1, 3]),
            "words_per_cycle": one([1, 1, 1, 3]),
            "pong_words": one([0, 0, 12]),
            "virtual_words": one([0, 4, 24]),
        },
        "glb": {"words": glb_words(choice), "words_per_cycle": number(1, 9)},
        "dram": {"words_per_cycle": one([*range(1, 10), 0.3, 1.25, 2.5]), "latency_cycles": number(0, 70)},
        "bus": {"burst_words": number(1, 10), "latency_cycles": number(0, 3)},
        "commit": {"units_per_column": number(1, 3), "latency_cycles": number(0, 5)},
        "links": {"n2n": choice.yes()},
        "sequencer": {"queue_depth": number(1, 5), "overlap": one([True, True, False])},
    }


def odd_array(choice: Choice) -> dict[str, Any]:
    """A preset, or a random array with widths, lanes and links that few arrays have."""
    if choice.integer(0, 5) == 5:
        table = tomllib.loads((PRESETS / f"{choice.one(preset_names())}.toml").read_text())
        return {key: value for key, value in table.items() if key != "name"}
    array = random_array(choice)
    array["operand_bits"] = choice.one([16, 16, 16, 8])
    array["psum_bits"] = choice.one([32, 32, 40, 48, 48, 48, 36, 33, 28, 24, 20])
    array["pe"]["lanes"] = choice.one([1, 1, 1, 2, 4])
    array["links"]["south"] = choice.integer(0, 4) > 0
    array["pe"]["lane_sums"] = array["rows"] % 2 == 0 and array["pe"]["psum_words"] % array["pe"]["lanes"] == 0
    return array


def glb_words(choice: Choice) -> int:
    """Large, so small that something moves, and too small: the refusal then says what would do."""
    return choice.integer(*choice.one([(65536, 65536), (300, 4000), (1, 300), (1, 300)]))


def as_toml(array: dict[str, Any]) -> str:
    """An array's file."""

    def said(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else repr(value)

    lines = ['name = "random"']
    for name, value in array.items():
        text = f"{{ {', '.join(f'{k} = {said(v)}' for k, v in value.items())} }}" if isinstance(value, dict) else value
        lines.append(f"{name} = {text}")
    return "\n".join(lines) + "\n"
