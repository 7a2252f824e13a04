"""Lanes over several of c, r and s: the taps of a window at a time (LEGAL-6)."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from conv_grid_cases import Case
from examples import SEED, examples
from test_conv_grid import result_and_cycles
from test_dataflows import Drawn, compiled, layer_of

from cnncc.arch.model import Arch, parse_arch
from cnncc.driver.check_findings import array_work
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Loop, Mapping, Stage, mapping_problem
from cnncc.mapping.text import parse
from cnncc.mapping.text import text as text_of
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.schedule_file import MappingText
from cnncc.passes._scheduling.written_mappings import written_mapping

LANES = 16
OPERANDS = {"weight", "ifmap", "params", "output"}


def array(case: Case, lanes: int = LANES) -> Arch:
    arch = parse_arch(case.arch_text(), "windows")
    pe = replace(arch.pe, lanes=lanes, psum_words=64, ifmap_words=256, weight_words=256, max_pixels=8)
    return replace(arch, pe=pe)


def tiles(rng: np.random.Generator, extent: int) -> int:
    return int(rng.integers(1, extent + 1))


def window_mapping(rng: np.random.Generator, shape: LayerShape) -> Mapping:
    """Tiles of k, w, c, r, s in a box. Lanes take all indices of two or three of c, r, s in it, or a part of c."""
    sizes = shape.sizes
    while True:
        box = {dim: tiles(rng, sizes.of(dim)) for dim in "crs"}
        box |= {"k": tiles(rng, min(sizes.k, 3)), "w": tiles(rng, min(sizes.w, 4))}
        taken = [dim for dim in "scr" if rng.random() < 0.7]
        lanes = {dim: box[dim] for dim in taken}
        if "c" in lanes and taken[0] == "c":  # the outermost may go on in time
            parts = [size for size in range(1, box["c"] + 1) if box["c"] % size == sizes.c % box["c"] % size == 0]
            lanes["c"] = int(rng.choice(parts))
        apart = "s" in lanes and box["w"] > 1 and shape.window.dilation[1] > 1
        if len(taken) > 1 and prod(lanes.values()) <= LANES and not apart:
            break
    order = "wk" + "".join(dim for dim in "scr" if dim not in taken)
    outer = [Loop(dim, box[dim]) for dim in rng.permutation(list("kwcrs"))]
    sums = min(i for i, loop in enumerate(outer) if loop.dim in "crs")
    outer = [*outer[:sums], *sorted(outer[sums:], key=lambda loop: loop.dim in "crs")]  # sums stay in the PEs
    kept = [Loop(dim, keep=True) for dim in order]
    if lanes.get("c", box["c"]) < box["c"]:
        kept.append(Loop("c", lanes["c"], keep=True))
    kept += [Loop(dim, 1, "lanes", keep=True) for dim in taken]
    loops, left = list[Loop](), dict(vars(sizes))
    for loop in [Loop("n"), Loop("h"), *outer, *kept]:
        if loop.step < left[loop.dim]:
            loops.append(loop)
            left[loop.dim] = loop.step
    depth = sum(not loop.keep for loop in loops)
    stages = [Stage("weight", "glb", 0), Stage("params", "glb", 0), Stage("weight", "rf", depth, 2)]
    return Mapping(tuple(loops), (*stages, Stage("ifmap", "rf", depth, 2)))


def steps_of(mapping: Mapping, shape: LayerShape) -> int:
    """Steps of all macro-instructions, each counted by its own tiles."""
    parts = {}
    for dim in "nkhwcrs":
        own = [loop for loop in mapping.loops if loop.dim == dim]
        tile = next((loop.step for loop in own if not loop.keep), shape.sizes.of(dim))
        lanes = max([1, *(own[-2].step if len(own) > 1 and own[-2].keep else tile for loop in own if loop.on)])
        whole, rest = divmod(shape.sizes.of(dim), tile)
        parts[dim] = whole * -(-tile // lanes) + -(-rest // lanes)
    return prod(parts.values())


def test_random_windows(tmp_path: Path) -> None:
    rng, seen = np.random.default_rng(SEED), set[tuple[str, ...]]()
    for seed in range(examples(40)):
        kernel = tuple(int(rng.integers(1, 6)) for _ in range(2))
        case = Case(
            kernel=kernel, stride=tuple(rng.integers(1, 4, 2).tolist()),
            dilation=tuple(rng.choice([1, 1, 2], 2).tolist()),
            pad=str(rng.choice(["none", "same"])), c=int(rng.integers(1, 7)), k=int(rng.integers(1, 5)),
            image=(11, 12), array=(1, 1), glb=1 << 18, seed=seed,
        )  # fmt: skip
        shape = layer_shape(layer_of(case))
        mapping = window_mapping(rng, shape)
        drawn = Drawn(case, array(case), mapping)
        result, cycles = result_and_cycles(case, *compiled(drawn, tmp_path), drawn.arch)
        assert np.array_equal(result, case.expected), drawn
        work = array_work(shape, mapping, drawn.arch)
        assert cycles.compute == work.cycles, drawn
        assert work.steps == steps_of(mapping, shape), drawn
        seen.add(tuple(loop.dim for loop in mapping.loops if loop.on))
    assert SEED or seen >= {("s", "r"), ("c", "r"), ("s", "c"), ("s", "c", "r")}, seen


def completed(text: str, case: Case, lanes: int = LANES) -> str:
    """The loops of a text, completed."""
    shape, arch = layer_shape(layer_of(case)), array(case, lanes)
    found = written_mapping(shape, arch, GlbBudget(arch.glb.words), MappingText(text))
    return text_of(Mapping(found.loops), shape.sizes)


@pytest.mark.parametrize(
    ("lanes", "text", "found"),
    [
        (16, "k > h > c > {w > s||@lanes > r||@lanes}", "k > h > c > {w > s||3@lanes > r||3@lanes}"),
        (16, "k > h > c > {s||@lanes > r||@lanes > w}", "k > h > c > {w > s||3@lanes > r||3@lanes}"),
        # c outside s and r in the register files: the taps of a channel lie beside each other.
        (16, "k > h > {s||@lanes > w > c > r||@lanes}", "k > h > {w > c > s||3@lanes > r||3@lanes}"),
        # Inner loops get lanes first: three rows of taps, then four channels or two columns.
        (16, "k > h > {w > s > c||@lanes > r||@lanes}", "k > h > {w > s > c||4@lanes > r||3@lanes}"),
        (7, "k > h > s' > {w > c > s''||@lanes > r||@lanes}", "k > h > s':2 > {w > c > s''||2@lanes > r||3@lanes}"),
    ],
)
def test_completed_windows(lanes: int, text: str, found: str) -> None:
    case = Case(kernel=(3, 3), c=4, k=3, image=(8, 8), array=(1, 1), glb=1 << 18)
    assert completed(text, case, lanes) == found


@pytest.mark.parametrize(
    ("loops", "why"),
    [
        # The kernel is held: two of three columns lie beside each other, two of three rows do not.
        ("weight@rf > s':2 > ifmap@rf*2 > {w > c > s''||@lanes > r||@lanes}", ""),
        (
            "weight@rf > r':2 > ifmap@rf*2 > {w > c > s||@lanes > r''||@lanes}",
            "s by 2 and 3 and r by 1 and 1 words are",
        ),
        ("weight@rf > ifmap@rf*2 > {w > s||@lanes > c > r||@lanes}", "s by 12 and 12 and r by 1 and 1 words are two"),
        ("weight@rf > ifmap@rf*2 > {w > c||@lanes > s||@lanes > r||@lanes}", "36 products at a time are more than"),
    ],
)
def test_lanes_have_one_step(loops: str, why: str, tmp_path: Path) -> None:
    """Words in lanes are at equal distances, of the ifmap and of weights."""
    case = Case(kernel=(3, 3), c=4, k=3, image=(8, 8), array=(1, 1), glb=1 << 18)
    sizes = layer_shape(layer_of(case)).sizes
    drawn = Drawn(case, array(case), parse(f"weight@glb > params@glb > k > h > {loops}", sizes))
    if not why:
        result, _ = result_and_cycles(case, *compiled(drawn, tmp_path), drawn.arch)
        assert np.array_equal(result, case.expected)
        return
    with pytest.raises(Refusal, match=why):
        compiled(drawn, tmp_path)


def test_columns_that_lie_apart(tmp_path: Path) -> None:
    """With dilation, two output columns need columns between a window's: its taps have two distances."""
    case = Case(kernel=(3, 3), dilation=(1, 2), c=1, k=3, image=(8, 10), array=(1, 1), glb=1 << 18)
    sizes = layer_shape(layer_of(case)).sizes
    text = "weight@glb > params@glb > k > h > {} > weight@rf*2 > ifmap@rf*2 > {{{}s||@lanes > r||@lanes}}"
    one = Drawn(case, array(case), parse(text.format("w", ""), sizes))
    assert np.array_equal(result_and_cycles(case, *compiled(one, tmp_path), one.arch)[0], case.expected)
    with pytest.raises(Refusal, match="s by 6 and 3 and r by 1 and 1 words are two ways"):
        compiled(replace(one, mapping=parse(text.format("w':2", "w'' > "), sizes)), tmp_path)


@pytest.mark.parametrize(
    ("loops", "why"),
    [
        ("k > h > w > weight@rf > ifmap@rf > {c > r':2||@lanes > s||@lanes > r''||@lanes}", "loops rsr on lanes"),
        ("h > w > weight@rf > ifmap@rf > {c > r > s||@lanes > k||@lanes}", "loops sk on lanes"),
    ],
)
def test_loops_that_lanes_do_not_take_together(loops: str, why: str) -> None:
    case = Case(kernel=(3, 3), c=4, k=3, image=(8, 8), array=(1, 1), glb=1 << 18)
    shape = layer_shape(layer_of(case))
    problem = mapping_problem(parse(f"weight@glb > {loops}", shape.sizes), shape.sizes, OPERANDS)
    assert problem and why in problem and "(NEST-6)" in problem
