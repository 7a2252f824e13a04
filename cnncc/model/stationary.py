"""The stationary operand of a mapping, and hence the name of its dataflow. No IR.

An operand is resident in the register files during the loops in time between its stage there and the box: so many
macro-instructions use its words. Sums are resident while only loops over c, r and s run. In the GLB an operand is
resident during the loops inside its stage there; without a stage, for the whole layer. The longest residency gives
the name:

    STATIONARY-1  The operand whose words stay for the most macro-instructions is stationary: weight, input or output
                  (sums).
    STATIONARY-2  If none stays for more than one, the operand whose words a macro-instruction uses most often is.
    STATIONARY-3  If a macro-instruction uses no word more than once, there is no local reuse.
    STATIONARY-4  If loops over r and h both run in space and a PE uses its weights along w while they stay, rows are
                  stationary: each PE has a row of the kernel for a row of the image, which PEs on a diagonal share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from cnncc.mapping.mapping import Loop, Mapping, extents
from cnncc.model.layer_shape import LayerShape, inside
from cnncc.model.register_files import ifmap_words
from cnncc.model.routes import Nest

NAMES = {"weight": "weight stationary", "ifmap": "input stationary", "sums": "output stationary"}


@dataclass(frozen=True)
class Residency:
    """The residency of an operand's words. loops: the loops in time that run meanwhile, from outside to inside.

    macros: the macro-instructions of full tiles in these loops. all_along: whether they are all the layer's loops.
    """

    loops: tuple[str, ...]
    macros: int
    all_along: bool = False


def residencies(shape: LayerShape, mapping: Mapping, memory: str) -> dict[str, Residency]:
    """The residency of each operand's words in register files (memory `rf`) or in the GLB (`glb`).

    Loops that run once are left out. `sums` are a PE's partial sums; the GLB has the output instead.
    """
    depths = {stage.operand: stage.depth for stage in mapping.stages if stage.memory == memory}
    if memory == "glb":
        depths = {"ifmap": 0, "output": 0} | depths
    else:
        nest = Nest(shape, mapping)
        depths["sums"] = next(depth for depth in range(len(nest.outer) + 1) if _sums_stay(nest, depth))
    return {operand: _residency(shape, mapping, depth) for operand, depth in depths.items()}


def _sums_stay(nest: Nest, depth: int) -> bool:
    return nest.summed_over(depth, inside(nest.shape.sizes, nest.outer[:depth])) is not None


def _residency(shape: LayerShape, mapping: Mapping, depth: int) -> Residency:
    around = zip(loop_names(mapping.loops), mapping.loops, extents(shape.sizes, mapping.loops), strict=True)
    in_time = [
        (number >= depth, name, -(-extent // loop.step))
        for number, (name, loop, extent) in enumerate(around)
        if not loop.on and not loop.keep and extent > loop.step
    ]
    within = [(name, count) for is_inside, name, count in in_time if is_inside]
    return Residency(tuple(name for name, _ in within), prod(count for _, count in within), len(within) == len(in_time))


def loop_names(loops: Sequence[Loop]) -> list[str]:
    """Names of loops as mappings write them. The j-th of several loops over a dimension has j primes."""
    often, seen = Counter(loop.dim for loop in loops), Counter[str]()
    names: list[str] = []
    for loop in loops:
        seen[loop.dim] += 1
        names.append(loop.dim + "'" * (seen[loop.dim] if often[loop.dim] > 1 else 0))
    return names


def name_of(shape: LayerShape, mapping: Mapping) -> str:
    """The name of a mapping's dataflow, by STATIONARY-1 to STATIONARY-4."""
    if _side_by_side(shape, mapping) >= {"r", "h"} and _along_rows(shape, mapping):
        return "row stationary"
    macros = {operand: residency.macros for operand, residency in residencies(shape, mapping, "rf").items()}
    longest = _longest(macros)
    return longest or _longest(_uses(shape, mapping)) or "no local reuse"


def _longest(often: Map[str, int | Fraction]) -> str:
    most = max(often.values())
    names = [NAMES[operand] for operand in NAMES if often.get(operand) == most]
    return " and ".join(names).replace(" stationary and", " and") if most > 1 else ""


def _side_by_side(shape: LayerShape, mapping: Mapping) -> set[str]:
    around = zip(mapping.loops, extents(shape.sizes, mapping.loops), strict=True)
    return {loop.dim for loop, extent in around if loop.on and extent > loop.step}


def _along_rows(shape: LayerShape, mapping: Mapping) -> bool:
    depth = mapping.file_depths.get("weight")
    within = () if depth is None else list(zip(mapping.loops, extents(shape.sizes, mapping.loops), strict=True))[depth:]
    return any(loop.dim == "w" and not loop.on and extent > loop.step for loop, extent in within)


def _uses(shape: LayerShape, mapping: Mapping) -> dict[str, int | Fraction]:
    """Uses of each word in a macro-instruction, by operand; for the ifmap on average."""
    box = inside(shape.sizes, [loop for loop in mapping.loops if not loop.keep])
    steps = prod(box.values())
    uses: dict[str, int | Fraction] = {
        "ifmap": Fraction(steps, prod(ifmap_words(shape, box))),
        "sums": box["c"] * box["r"] * box["s"],
    }
    return uses | ({"weight": box["n"] * box["h"] * box["w"]} if shape.is_mac else {})
