"""What a program takes on an array with other numbers, its mappings kept (LIMIT-6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cnncc.arch.model import load_arch
from cnncc.errors import Refusal
from cnncc.estimate.layer_limits import LIMITS, cause_text, limit_of
from cnncc.estimate.mapped_program import Program
from cnncc.explore.array_grid import Config, read_value, with_config
from cnncc.util.terminal import NAME, TEXT, Column, table

KEYS = (  # on which no program depends
    "dram.", "bus.", "commit.", "sequencer.", "glb.words_per_cycle", "pe.start_cycles", "pe.finish_cycles",
    "pe.words_per_cycle", "pe.weight_halves", "pe.ifmap_halves", "pe.psum_halves",
)  # fmt: skip
NO_CYCLES = ("energy.", "clock_mhz")
SIDE_BY_SIDE = "cores."
ANY = "spatial-8x8"  # all arrays have the same keys
CHANGE = ("cycles", "cycles then", "change")


def read_changes(texts: Sequence[str]) -> Config:
    """The values of `KEY=VALUE`. Raises Refusal for what is none, and for keys that programs depend on."""
    changes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals or not value:
            raise Refusal(f"--what-if {text}: is not KEY=VALUE, for example dram.words_per_cycle=16")
        if key in changes:
            raise Refusal(f"--what-if {text}: {key} is changed already")
        if "," in value:
            raise Refusal(f"--what-if {text}: takes one value, `cnncc explore --vary {text}` several: it maps for each")
        changes[key] = read_value(value, f"--what-if {text}")
        if key.startswith(KEYS):
            continue
        with_config(load_arch(ANY), {key: changes[key]}, "--what-if")
        if key.startswith(NO_CYCLES):
            raise Refusal(f"--what-if {text}: cycles do not depend on {key}: change it in a file for --arch")
        if key.startswith(SIDE_BY_SIDE):
            what = f"{key} is of layers side by side (docs/cores.md)"
            raise Refusal(f"--what-if {text}: {what}: change it in a file for --arch")
        raise Refusal(
            f"--what-if {text}: programs depend on {key}, so the mappings cannot be kept; "
            f"`cnncc explore --vary {text}` maps the network anew"
        )
    return changes


def what_if(program: Program, changes: Config) -> dict[str, Any]:
    """What `--json` has of it: the values, and the cycles of the program and of its layers on that array."""
    counters = program.counters(with_config(program.arch, changes, "--what-if"))
    layers = {label: layer["cycles"] for label, layer in counters["layers"].items()}
    return {"changed": dict(changes), "cycles": counters["cycles"], "layers": layers}


def as_text(estimate: Mapping[str, Any], program: Program) -> Iterator[str]:
    """Cycles and limits of all layers, and the stalls by cause, now and then. estimate: with what `what_if` says."""
    then = estimate["what_if"]
    changed = ", ".join(f"{key} {_at(program, key)} -> {value}".lower() for key, value in then["changed"].items())
    yield f"{program.source} on {program.arch.name} with {changed}, mappings kept"
    pairs = [(label, layer["cycles"], then["layers"][label]) for label, layer in estimate["layers"].items()]
    pairs = [*(pair for pair in pairs if pair[1]["total"]), ("total", estimate["cycles"], then["cycles"])]
    yield from table(
        [Column("layer", NAME), *CHANGE, Column("limit", TEXT), Column("limit then", TEXT)],
        [(label, *_change(now["total"], other["total"]), _limit(now), _limit(other)) for label, now, other in pairs],
    )
    yield ""
    stalls = [(cause, now, then["cycles"]["stall"][cause]) for cause, now in estimate["cycles"]["stall"].items()]
    rows = [(cause_text(cause), *_change(now, other)) for cause, now, other in stalls if now or other]
    yield from table([Column("cause", TEXT), *CHANGE], rows)


def _limit(cycles: Mapping[str, Any]) -> str:
    """The limit of a layer in words; empty where the array neither works nor waits."""
    return LIMITS[limit_of(cycles)[0]].text if cycles["compute"] or any(cycles["stall"].values()) else ""


def _at(program: Program, key: str) -> object:
    table, name = key.split(".")
    return getattr(getattr(program.arch, table), name)


def _change(now: int, then: int) -> tuple[str, str, str]:
    return f"{now:,}", f"{then:,}", f"{100 * (then / now - 1):+.1f} %" if now else ""
