"""Random legal output-stationary mappings of random layers: what the binary computes, and in how many cycles.

Outputs are compared with brute force, cycles with a walk over the tiles by the rules of docs/machine.md (tile_walk.py).
At least a third of the mappings have z, p or q above 1 each, and remainders of a tile over the PEs of a set.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from conv_grid_cases import Case, case_of, filled
from examples import SEED, examples
from nest_cases import layer_of
from test_conv_grid import lowered, result_and_cycles, unmapped
from tile_walk import Walk
from xdsl.dialects.builtin import UnitAttr

from cnncc.arch.model import LOOP_REGISTERS, Arch, parse_arch
from cnncc.dialects.nest import MappingAttr
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import macro_words, most_channels
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.numbered_nest import OutputStationaryPlan, Tile, mapping_of
from cnncc.passes._scheduling.prefetch import prefetchable

EXAMPLES = examples(32)
PARTS = 4
Random = np.random.Generator


def random_case(rng: Random) -> Case:
    """A layer whose weights lie in the GLB as a whole, mostly with room for several channels and pixels in a PE."""
    pinned = {"kind": rng.choice(["mac"] * 9 + ["max"]), "files": rng.choice(["large"] * 5 + ["pong", "small"])}
    pinned |= {"k": int(rng.choice([3, 5, 16, 17]))} if rng.random() < 0.8 else {}
    if rng.random() < 0.8:
        pinned |= {"group": "one", "c": int(rng.choice([3, 5, 16, 17])), "dilation": (1, 1)}
    point = filled(pinned, lambda _, values: values[rng.integers(len(values))])
    return case_of({**point, "glb": 1 << 18}, int(rng.integers(9)))


def kernel_columns(shape: LayerShape, arch: Arch) -> int:
    """Kernel columns of a macro-instruction: all, or an even part where a row is too long for the files of a PE."""
    even = dict.fromkeys(-(-shape.sizes.s // parts) for parts in range(1, shape.sizes.s + 1))
    return next(s for s in even if most_channels(shape, arch, {"k": 1, "w": 1, "r": 1, "s": s}))


def nest_of(shape: LayerShape, arch: Arch, tile: Tile, plan: OutputStationaryPlan) -> Mapping:
    return mapping_of(shape, arch, tile, plan, kernel_columns(shape, arch))


def fits(shape: LayerShape, arch: Arch, tile: Tile) -> bool:
    extent = {"k": tile.p, "c": tile.q, "w": tile.z, "r": tile.taps, "s": kernel_columns(shape, arch)}
    words = macro_words(shape, arch, extent)
    return all(each <= getattr(arch.pe, key) for key, each in words.items())


def upto(rng: Random, most: int) -> int:
    """Small numbers often, and the greatest."""
    return int(rng.choice([1, most, rng.integers(1, most + 1), rng.integers(1, min(most, 4) + 1)]))


def above_one(rng: Random, most: int, share: float) -> int:
    """1, or with a probability of `share` some of 2, 3, 4 and up to 9 that is not above `most`."""
    return int(min(most, rng.choice([2, 3, 4, 9]))) if rng.random() < share else 1


def random_tile(rng: Random, shape: LayerShape, arch: Arch) -> Tile:
    """Sets, interleaving and pixels within the array, the layer and the register files."""
    sizes, together = shape.sizes, shape.tiled_together
    while True:
        ph, pw = upto(rng, min(sizes.h, arch.rows)), upto(rng, min(sizes.w, arch.cols))
        kr, kc = upto(rng, arch.rows // ph), upto(rng, arch.cols // pw)
        p, q = above_one(rng, together, 0.8), 1 if shape.channelwise else above_one(rng, sizes.c, 0.8)
        z = above_one(rng, min(sizes.w, arch.pe.max_pixels), 0.8) if shape.window.dilation[1] == 1 else 1
        tile = Tile(ph, pw, kr, kc, p, q, upto(rng, sizes.r), z)
        if fits(shape, arch, tile):
            return tile


def random_plan(rng: Random, shape: LayerShape) -> OutputStationaryPlan:
    """Loops over blocks around the tiles; everything lies in the GLB."""
    sizes = shape.sizes
    return OutputStationaryPlan(
        upto(rng, shape.tiled_together), upto(rng, sizes.h), upto(rng, sizes.w), upto(rng, sizes.c)
    )


@dataclass(frozen=True)
class Drawn:
    case: Case
    tile: Tile
    plan: OutputStationaryPlan
    remainders: bool


def compare(case: Case, tile: Tile, plan: OutputStationaryPlan, folder: Path) -> None:
    """Run a layer by this mapping; its output and its cycles are those of the references."""
    arch = parse_arch(case.arch_text(), "drawn")
    (folder / "array.toml").write_text(case.arch_text())
    module, ctx = unmapped(case)
    layer = layer_of(module)
    mapping = nest_of(layer_shape(layer), arch, tile, plan)
    layer.mapping, layer.prefetched = MappingAttr(mapping), UnitAttr() if prefetchable(mapping) else None
    lowered(module, ctx, str(folder / "array.toml"))
    result, cycles = result_and_cycles(case, module, ctx, arch)
    assert np.array_equal(result, case.expected), (case, tile, plan)
    assert cycles.total == Walk(case, mapping, arch).total(), (case, tile, plan)


def check(rng: Random, folder: Path) -> Drawn:
    """Draw a layer, an array and a mapping, and compare."""
    case = random_case(rng)
    arch, shape = parse_arch(case.arch_text(), "drawn"), layer_shape(layer_of(unmapped(case)[0]))
    tile, plan = random_tile(rng, shape, arch), random_plan(rng, shape)
    if not shape.is_mac or shape.channelwise:
        plan = replace(plan, c=shape.sizes.c)
    in_time = [loop for loop in nest_of(shape, arch, tile, plan).loops if not (loop.on or loop.keep)]
    if len(in_time) > LOOP_REGISTERS:
        return check(rng, folder)  # no program: another draw
    compare(case, tile, plan, folder)
    rows, cols = min(plan.h, shape.sizes.h), min(plan.w, shape.sizes.w)
    return Drawn(case, tile, plan, bool(rows % tile.ph or cols % (tile.pw * tile.z)))


def test_a_set_whose_last_pe_has_fewer_pixels(tmp_path: Path) -> None:
    """Of 7 columns two PEs of a set compute 4 and 3; four sets lie beside each other, on the same side of the array."""
    case = Case(kernel=(2, 2), c=4, k=17, image=(6, 8), array=(4, 8), glb=1 << 18)
    compare(
        case, Tile(ph=4, pw=2, kr=1, kc=4, p=1, q=3, taps=2, z=4), OutputStationaryPlan(k=6, h=4, w=7, c=4), tmp_path
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_random_mappings(part: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([SEED, part])
    count = -(-EXAMPLES // PARTS)
    seen: Counter[str] = Counter()
    for _ in range(count):
        drawn = check(rng, tmp_path)
        seen.update(name for name in "zpq" if getattr(drawn.tile, name) > 1)
        seen["remainders"] += drawn.remainders
    assert all(seen[name] >= count // 3 for name in ("z", "p", "q", "remainders")), seen
