"""What of a layer stays where it is while loops run, derived from its mapping; and the name of the dataflow. No IR.

An operand's words stay in the register files while the loops in time run that are between its stage there and the box:
so many macro-instructions use them. Sums stay while nothing but loops over c, r and s runs. In the GLB words stay
while the loops inside their stage there run; without one for the whole layer. The longest stay gives the name:

    STATIONARY-1  The operand whose words stay for the most macro-instructions is stationary: weight, input or output
                  (sums).
    STATIONARY-2  Where none stays for more than one, the operand whose words a macro-instruction uses most often.
    STATIONARY-3  Where it uses none more than once there is no local reuse.
    STATIONARY-4  But where loops over r and h both run side by side and a PE uses its weights along w while they stay,
                  rows are
        stationary: each PE has a row of the kernel for a row of the image, which PEs on a diagonal share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from cnncc.dialects._mapping import Loop, Mapping, extents
from cnncc.model.layer_shape import LayerShape, inside
from cnncc.model.register_files import ifmap_words
from cnncc.model.routes import Nest

NAMES = {"weight": "weight stationary", "ifmap": "input stationary", "sums": "output stationary"}


@dataclass(frozen=True)
class Stay:
    """The loops in time that run meanwhile, from outside, and the macro-instructions of full tiles in them.

    all_along: these are all loops in time of the layer.
    """

    loops: tuple[str, ...]
    macros: int
    all_along: bool = False


def stays(shape: LayerShape, mapping: Mapping, memory: str) -> dict[str, Stay]:
    """For how long the words of each operand stay in register files (`rf`) or in the GLB (`glb`).

    Loops that run once are left out. Sums are those of a PE; in the GLB they are the output's.
    """
    depths = {stage.operand: stage.depth for stage in mapping.stages if stage.memory == memory}
    if memory == "glb":
        depths = {"ifmap": 0, "output": 0} | depths
    else:
        nest = Nest(shape, mapping)
        depths["sums"] = next(depth for depth in range(len(nest.outer) + 1) if _sums_stay(nest, depth))
    return {operand: _stay(shape, mapping, depth) for operand, depth in depths.items()}


def _sums_stay(nest: Nest, depth: int) -> bool:
    return nest.summed_over(depth, inside(nest.shape.sizes, nest.outer[:depth])) is not None


def _stay(shape: LayerShape, mapping: Mapping, depth: int) -> Stay:
    around = zip(loop_names(mapping.loops), mapping.loops, extents(shape.sizes, mapping.loops), strict=True)
    found = [
        (number >= depth, name, -(-extent // loop.step))
        for number, (name, loop, extent) in enumerate(around)
        if not loop.on and not loop.keep and extent > loop.step
    ]
    within = [(name, count) for is_inside, name, count in found if is_inside]
    return Stay(tuple(name for name, _ in within), prod(count for _, count in within), len(within) == len(found))


def loop_names(loops: Sequence[Loop]) -> list[str]:
    """As mappings write them: of several loops over a dimension the j-th has j primes."""
    often, seen = Counter(loop.dim for loop in loops), Counter[str]()
    names: list[str] = []
    for loop in loops:
        seen[loop.dim] += 1
        names.append(loop.dim + "'" * (seen[loop.dim] if often[loop.dim] > 1 else 0))
    return names


def name_of(shape: LayerShape, mapping: Mapping) -> str:
    """The name of what PEs do, by STATIONARY-1 to STATIONARY-4."""
    if _side_by_side(shape, mapping) >= {"r", "h"} and _along_rows(shape, mapping):
        return "row stationary"
    macros = {operand: stay.macros for operand, stay in stays(shape, mapping, "rf").items()}
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
    depth = next((stage.depth for stage in mapping.stages if (stage.operand, stage.memory) == ("weight", "rf")), None)
    within = () if depth is None else list(zip(mapping.loops, extents(shape.sizes, mapping.loops), strict=True))[depth:]
    return any(loop.dim == "w" and not loop.on and extent > loop.step for loop, extent in within)


def _uses(shape: LayerShape, mapping: Mapping) -> dict[str, int | Fraction]:
    """How often a macro-instruction uses each word that it has; of the ifmap on average."""
    box = inside(shape.sizes, [loop for loop in mapping.loops if not loop.keep])
    steps = prod(box.values())
    found: dict[str, int | Fraction] = {
        "ifmap": Fraction(steps, prod(ifmap_words(shape, box))),
        "sums": box["c"] * box["r"] * box["s"],
    }
    return found | ({"weight": box["n"] * box["h"] * box["w"]} if shape.is_mac else {})
