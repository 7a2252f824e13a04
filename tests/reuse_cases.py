"""What the programs of layers move, counted instruction by instruction: against the analysis of their mappings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

from cnncc.arch.model import Arch
from cnncc.isa.table import Instruction
from cnncc.machine.durations import EXTENTS, commit_results, load_offsets, load_words, mac_steps
from cnncc.machine.program import Loop, Node
from cnncc.machine.traffic import count_traffic
from cnncc.mapper.reuse import Moved

TOTALS = ("dram_read", "dram_write", "glb_read", "glb_write", "bus", "n2n")
Counts = dict[str, int]


def executed(nodes: Sequence[Node], times: int = 1) -> Iterator[tuple[int, Instruction, int]]:
    """Every instruction: its number, itself, how often it runs."""
    for node in nodes:
        if isinstance(node, Loop):
            yield from executed(node.body, times * node.count)
        else:
            yield node.index, node.instruction, times


def counted(tree: Sequence[Node], arch: Arch, first: int, end: int) -> Counts:
    """What the interpreter counts of instructions first .. end - 1, and what their fields say of register files."""
    each = list(executed(tree))
    per = count_traffic(tree, arch, [(str(number), number) for number, _, _ in each]).layers
    found = Counter[str]()
    for number, inst, times in each:
        if not first <= number < end:
            continue
        traffic = vars(per[str(number)])
        found += Counter({name: traffic[name] for name in TOTALS})
        found["macs"] += traffic["macs"] + traffic["max"] + traffic["add"]
        match inst.spec.name:
            case "load":
                kind = inst.text("kind")
                found += Counter({f"{kind} {name}": traffic[name] for name in ("glb_read", "bus")})
                found[f"{kind} rf_write"] += times * load_words(inst) * prod(len(side) for side in load_offsets(inst))
            case "mac":
                steps = times * mac_steps(inst) * inst.number("rows") * inst.number("cols")
                found["ifmap rf_write"] += traffic["n2n"]
                found["ifmap rf_read"] += steps
                found["weight rf_read"] += steps if inst.text("op") == "mac" else 0
                found["sums rf_read"] += steps
                found["sums rf_write"] += steps
            case "commit" if inst.text("source") != "glb":
                psums = times * inst.number("cols") * prod(inst.number(f"{extent}s") for extent in EXTENTS)
                found["sums rf_read"] += psums * inst.number("rows")
                sets = inst.number("rows") // inst.number("set_rows")
                found["sums south"] += psums * (inst.number("rows") - sets) if inst.number("reduce") else 0
            case "commit":
                found["ifmap glb_read"] += times * commit_results(inst)
            case _:
                pass
    return {name: count for name, count in found.items() if count}


def analysed(moved: Moved) -> Counts:
    """The same, of an analysis."""
    found = {"macs": moved.macs, **{name: moved.of(name) for name in TOTALS}}
    for operand, words in moved.words.items():
        for name, count in words.items():
            loaded = operand in ("weight", "ifmap") and name in ("glb_read", "bus")
            if loaded or name in ("rf_read", "rf_write", "south"):
                found[f"{operand} {name}"] = count
    return {name: count for name, count in found.items() if count}
