"""Random mappings of any dataflow: loops in any order, sums in the PE or not, operands held for any number of loops.

Outputs of the binary are compared with brute force (conv_grid_cases.py). Some mappings break a rule that a draw does
not look for (REASONS); they are few, and refused by that rule. Each mapping is then broken in one way (FLAWS), which
must be refused with the right reason.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
import pytest
from conv_grid_cases import Case, case_of, filled
from examples import SEED, examples
from glb_races import both_races, dram_of
from test_conv_grid import lowered, result_and_cycles, unmapped
from xdsl.dialects.builtin import ModuleOp, UnitAttr

from cnncc.arch.model import Arch, parse_arch
from cnncc.context import CompilerContext
from cnncc.dialects.isa import instructions
from cnncc.dialects.nest import LayerOp, MappingAttr, operands
from cnncc.driver.check_findings import array_work
from cnncc.errors import Refusal
from cnncc.isa.codec import decode_program, encode_program
from cnncc.mapping.mapping import DIMS, Loop, Mapping, Stage, extents, mapping_problem
from cnncc.mapping.text import parse
from cnncc.mapping.text import text as text_of
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import file_words
from cnncc.passes._programs.layer_sums import has_partial_sums
from cnncc.passes._programs.layer_transfers import is_one_slice
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.prefetch import prefetchable

EXAMPLES = examples(24)
PARTS = 2
LANES = 4
Random = np.random.Generator

# What a mapping may meet that is drawn by the rules NEST-1 to NEST-6: rules LEGAL-1 to LEGAL-6, each says so.
REASONS = {
    "counters": "a macro-instruction has 3",
    "unrolled": "unrolled copies, more than",
    "uneven": "that do not take equal parts",
    "no neighbours": "over k in space around weights in glb, ",
    "not beside": "do not lie beside each other",
    "order on rows": "come last: sums go to the next row",
    "extents of a commit": "a commit has three extents",
    "extents of a load": "a load has four extents",
    "groups": "inside the loops over groups",
    "lanes": "in the box are no multiple of 2 lanes",
    "order of sums": "k is on lanes, so it is the last output in the box",
    "two of four banks": "lanes with sums of their own take all channels of the box, or as many as the PE has, 4",
    "deep": "deep, the array has 8",
    "sums around": "inside loops that add up sums in the PEs",
    "even and odd": "an even number of blocks at times and an odd one at others",
    "peeled": "copies of loop bodies, more than",
}


def random_case(rng: Random) -> Case:
    """A small layer with room in its PEs and in the GLB."""
    pinned = {"kind": "mac", "files": rng.choice(["large"] * 5 + ["pong", "small"])}
    while True:
        point = filled(pinned, lambda _, values: values[rng.integers(len(values))])
        case = replace(case_of({**point, "glb": 1 << 18}, int(rng.integers(9))), n=int(rng.integers(1, 4)))
        if case.macs < 6_000:
            return case


def arch_text(case: Case) -> str:
    text = case.arch_text().replace("[links]", "[links]\n            south = true")
    text = re.sub(r"psum_words = (\d+)", lambda words: f"psum_words = {-(-int(words[1]) // LANES) * LANES}", text)
    return text.replace("[pe]", f"[pe]\n            lanes = {LANES}\n            lane_sums = true")


def tiles(rng: Random, extent: int, share: float) -> list[int]:
    """Steps of loops over tiles of an extent; half of them divide it."""
    found: list[int] = []
    while extent > 1 and rng.random() < share:
        divisors = [size for size in range(1, extent) if extent % size == 0]
        extent = int(rng.choice(divisors)) if rng.random() < 0.5 else int(rng.integers(1, extent))
        found.append(extent)
    return found


def random_loops(rng: Random, shape: LayerShape, streamed: bool) -> list[Loop]:
    """Loops in any order, and a box of up to three of any dimensions but n."""
    sizes = shape.sizes
    chains = {dim: tiles(rng, sizes.of(dim), 0.7 if streamed and dim in "khw" else 0.4) for dim in DIMS}
    if shape.tiled_together < sizes.k:
        chains["k"] = [shape.tiled_together, *tiles(rng, shape.tiled_together, 0.4)]
    inner = {dim: chain[-1] if chain else sizes.of(dim) for dim, chain in chains.items()}
    box = [dim for dim, size in inner.items() if size > 1 and rng.random() < (0.1 if dim == "n" else 0.5)]
    rng.shuffle(box)
    if rng.random() < 0.5:  # more often one that three counters can run
        box = [dim for dim in ("wksr" if shape.channelwise else "wscrk") if dim in box]
    for dim, size in inner.items():
        if size > 1 and dim not in box:
            chains[dim].append(1)
    loops: list[Loop] = []
    queues = [[Loop(dim, step) for step in chains[dim]] for dim in DIMS]
    while left := [chain for chain in queues if chain]:
        loops.append(left[rng.integers(len(left))].pop(0))
    if streamed:  # images and tiles outermost
        loops.sort(key=lambda loop: 0 if loop.dim == "n" else 1 if loop.dim in "khw" and loop.step > 1 else 2)
    kept = [Loop(dim, keep=True) for dim in box]
    return [*loops, *(on_lanes(rng, kept, inner) if rng.random() < 0.4 else kept)]


def on_lanes(rng: Random, kept: list[Loop], sizes: dict[str, int]) -> list[Loop]:
    """The loops of a box, some indices of one over k, c, r or s at a time."""
    may = [loop for loop in kept if loop.dim in "kcrs"]
    if not may:
        return kept
    chosen = may[rng.integers(len(may))]
    lane = Loop(chosen.dim, 1, "lanes", keep=True)
    if sizes[chosen.dim] <= LANES:
        return [*(loop for loop in kept if loop != chosen), lane]
    step = LANES if chosen.dim == "k" and rng.random() < 0.9 else 2
    return [*(replace(loop, step=step) if loop == chosen else loop for loop in kept), lane]


def in_space(rng: Random, shape: LayerShape, arch: Arch, loops: list[Loop]) -> list[Loop]:
    """Some loops on rows or columns, at most two on each; sums down the columns, the innermost on rows."""
    left, used, result = {"rows": arch.rows, "cols": arch.cols}, Counter[str](), list[Loop]()
    summed = False
    for loop, extent in zip(loops, extents(shape.sizes, tuple(loops)), strict=True):
        sums = loop.dim in "crs"
        axis = str(rng.choice(["", "rows", "rows" if sums else "cols"]))
        count = -(-extent // loop.step)
        fits = axis and not loop.keep and 1 < count <= left[axis] and used[axis] < 2
        if fits and not (sums and axis == "cols") and not (summed and not sums and axis == "rows"):
            left[axis], used[axis] = left[axis] // count, used[axis] + 1
            summed = summed or sums
            result.append(Loop(loop.dim, loop.step, axis))
        else:
            result.append(loop)
    return result


def random_blocks(rng: Random, loops: list[Loop], held: dict[str, int], streamed: bool) -> list[Stage]:
    """Stages in the GLB, in one or two buffers, of what may move through it; held: depths of those in rf."""

    def buffers(depth: int) -> int:
        return int(rng.integers(1, 3)) if depth else 1

    outer = [depth for depth, loop in enumerate(loops) if loop.on or loop.keep or loop.dim in "crs"]
    images = max((depth + 1 for depth, loop in enumerate(loops) if loop.dim == "n"), default=0)
    inside = min(outer[0] if outer else len(loops), held["ifmap"])
    blocks = streamed and images <= inside
    block = int(rng.integers(images, inside + 1)) if blocks else 0
    found: list[Stage] = []
    if blocks:
        which = [["ifmap"], ["output"], ["ifmap", "output"]][rng.integers(3)]
        of_ifmap = int(rng.integers(images, block + 1))
        depths = {"ifmap": of_ifmap, "output": block}
        found = [Stage(operand, "glb", depths[operand], buffers(depths[operand])) for operand in which]
    depths = [depth for depth in range(held["weight"] + 1) if is_one_slice(loops[:depth])]
    depth = int(rng.choice(depths)) if rng.random() < 0.6 else 0
    weight = Stage("weight", "glb", depth, buffers(depth))
    finished = all(loop.dim not in "crs" and not loop.on for loop in loops[:depth])
    params = replace(weight, operand="params") if not blocks and finished else Stage("params", "glb", 0)
    return [weight, params, *found]


def random_stages(rng: Random, loops: list[Loop], arch: Arch, streamed: bool) -> list[Stage]:
    """Register files are filled right around the box, or further outside; the GLB before, as a whole or in blocks."""
    box = next((depth for depth, loop in enumerate(loops) if loop.keep), len(loops))
    depths = {operand: max(0, box - int(rng.integers(4))) for operand in ("weight", "ifmap")}
    depths[str(rng.choice(["weight", "ifmap"]))] = box
    halves = {"weight": arch.pe.weight_halves, "ifmap": arch.pe.ifmap_halves}
    rf = [Stage(operand, "rf", depth, halves[operand]) for operand, depth in depths.items()]
    return sorted([*random_blocks(rng, loops, depths, streamed), *rf], key=lambda stage: (stage.depth, stage.memory))


def random_mapping(rng: Random, shape: LayerShape, arch: Arch, has_params: bool) -> Mapping:
    """moving: it is such that activations can move through the GLB."""
    streamed = rng.random() < 0.4
    while True:
        loops = in_space(rng, shape, arch, random_loops(rng, shape, streamed))
        stages = [
            stage for stage in random_stages(rng, loops, arch, streamed) if has_params or stage.operand != "params"
        ]
        words = file_words(shape, arch, loops, stages)
        if all(words[key] <= getattr(arch.pe, key) for key in words):
            return Mapping(tuple(loops), tuple(stages))


@dataclass(frozen=True)
class Drawn:
    case: Case
    arch: Arch
    mapping: Mapping

    @cached_property
    def layer(self) -> LayerOp:
        return next(op for op in unmapped(self.case)[0].walk() if isinstance(op, LayerOp))

    @property
    def shape(self) -> LayerShape:
        return layer_shape(self.layer)

    @property
    def operands(self) -> Set[str]:
        return operands(self.layer)

    def __repr__(self) -> str:
        return f"{self.case} {text_of(self.mapping, self.shape.sizes)}"


def draw(rng: Random) -> Drawn:
    case = random_case(rng)
    empty = Drawn(case, parse_arch(arch_text(case), "drawn"), Mapping(()))
    mapping = random_mapping(rng, empty.shape, empty.arch, "params" in empty.operands)
    assert mapping_problem(mapping, empty.shape.sizes, empty.operands) is None
    return replace(empty, mapping=mapping)


def arch_toml(arch: Arch) -> str:
    """The file of an array."""
    keys = {field.name: getattr(arch, field.name) for field in fields(arch)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items() if isinstance(value, int | str)]
    for table, values in keys.items():
        if not isinstance(values, int | str):
            lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in asdict(values).items())]
    return "\n".join(lines)


def compiled(drawn: Drawn, folder: Path) -> tuple[ModuleOp, CompilerContext]:
    """The program of a layer by a mapping. Raises Refusal where the array cannot run it."""
    module, ctx = unmapped(drawn.case)
    layer = next(op for op in module.walk() if isinstance(op, LayerOp))
    layer.mapping = MappingAttr(drawn.mapping)
    copied_in = all((stage.operand, stage.memory) != ("ifmap", "glb") for stage in drawn.mapping.stages)
    layer.prefetched = UnitAttr() if drawn.case.seed % 2 and copied_in and prefetchable(drawn.mapping) else None
    (folder / "array.toml").write_text(arch_toml(drawn.arch))
    lowered(module, ctx, str(folder / "array.toml"))
    return module, ctx


def check(rng: Random, folder: Path, seen: Counter[str]) -> None:
    """Draw a layer, an array and a mapping, run it, and compare."""
    drawn = draw(rng)
    try:
        module, ctx = compiled(drawn, folder)
    except Refusal as refusal:
        why = next((name for name, text in REASONS.items() if text in str(refusal)), None)
        assert why, (str(refusal), drawn)
        seen[why] += 1
        return
    result, cycles = result_and_cycles(drawn.case, module, ctx, drawn.arch)
    assert np.array_equal(result, drawn.case.expected), drawn
    assert cycles.compute == array_work(drawn.shape, drawn.mapping, drawn.arch).cycles, drawn
    if any(stage.memory == "glb" and stage.depth for stage in drawn.mapping.stages):
        assert races_of(drawn, module, ctx) == [], drawn
    seen["run"] += 1
    seen.update(features(drawn))
    seen.update(f"without {flaw}" for flaw in FLAWS if broken(rng, drawn, flaw, folder))


def races_of(drawn: Drawn, module: ModuleOp, ctx: CompilerContext) -> list[str]:
    """Races for words of the GLB."""
    dram = dram_of(module, ctx, {"x": drawn.case.x})
    return both_races(decode_program(encode_program(instructions(module))), drawn.arch, dram)


def features(drawn: Drawn) -> Iterator[str]:
    """What a mapping has of what this file is for."""
    loops = drawn.mapping.loops
    outer = [loop for loop in loops if not loop.keep]
    depth = {stage.operand: stage.depth for stage in drawn.mapping.stages if stage.memory == "rf"}
    yield from (f"{operand} held" for operand in depth if depth[operand] < len(outer))
    yield from ("sums down rows" for loop in outer if loop.on and loop.dim in "crs")
    yield from ("partial sums" for _ in range(has_partial_sums(drawn.shape, drawn.mapping.loops)))
    yield from (f"box over {loop.dim}" for loop in loops if loop.keep and loop.dim in "hn")
    yield from (f"lanes over {'k' if loop.dim == 'k' else 'crs'}" for loop in loops if loop.on == "lanes")
    for stage in drawn.mapping.stages:
        if stage.memory == "glb" and stage.depth:
            yield f"{stage.operand} in {stage.buffers}"


# -- what breaks one rule ----------------------------------------------------------------------------------------------


def with_loop(mapping: Mapping, depth: int, loop: Loop) -> Mapping:
    return replace(mapping, loops=(*mapping.loops[:depth], loop, *mapping.loops[depth + 1 :]))


def too_long(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """A step above what its loop goes over."""
    loops = drawn.mapping.loops
    depth = int(rng.integers(len(loops))) if loops else -1
    if depth < 0:
        return None
    extent = extents(drawn.shape.sizes, loops)[depth]
    return with_loop(drawn.mapping, depth, replace(loops[depth], step=extent + int(rng.integers(1, 9)))), drawn.arch


def missing(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """No loop over single indices of a dimension."""
    loops = drawn.mapping.loops
    last = [depth for depth, loop in enumerate(loops) if loop.dim not in [each.dim for each in loops[depth + 1 :]]]
    if not last:
        return None
    depth = int(rng.choice(last))
    return with_loop(drawn.mapping, depth, replace(loops[depth], step=loops[depth].step + 1)), drawn.arch


def not_kept(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """A loop outside a stage in rf that is in the box."""
    outer = [depth for depth, loop in enumerate(drawn.mapping.loops) if not loop.keep and not loop.on]
    if not outer:
        return None
    depth = int(rng.choice(outer))
    return with_loop(drawn.mapping, depth, replace(drawn.mapping.loops[depth], keep=True)), drawn.arch


def no_operand(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """A stage of what the layer has not, or in a memory that does not hold it."""
    extra = Stage(*[("residual", "glb"), ("output", "rf"), ("residual", "rf")][rng.integers(3)], 0)
    return replace(drawn.mapping, stages=(extra, *drawn.mapping.stages)), drawn.arch


def across_columns(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """A loop over c, r, s on columns."""
    found = [depth for depth, loop in enumerate(drawn.mapping.loops) if loop.dim in "crs" and not loop.keep]
    sizes = extents(drawn.shape.sizes, drawn.mapping.loops)
    found = [depth for depth in found if sizes[depth] > drawn.mapping.loops[depth].step]
    if not found:
        return None
    depth = int(rng.choice(found))
    return with_loop(drawn.mapping, depth, replace(drawn.mapping.loops[depth], on="cols")), drawn.arch


def no_links(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """Sums down the rows of an array that has no links for that."""
    sizes = extents(drawn.shape.sizes, drawn.mapping.loops)
    around = zip(drawn.mapping.loops, sizes, strict=True)
    if not any(loop.on == "rows" and loop.dim in "crs" and size > loop.step for loop, size in around):
        return None
    return drawn.mapping, replace(drawn.arch, links=replace(drawn.arch.links, south=False))


def small_files(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """One word less than what a PE is to hold."""
    words = file_words(drawn.shape, drawn.arch, drawn.mapping.loops, drawn.mapping.stages)
    keys = [key for key in ("weight_words", "psum_words") if words.get(key, 0) > 1]
    if not keys:
        return None
    key = str(rng.choice(keys))
    few = words[key] - 1
    if key == "psum_words":
        few -= few % LANES  # the banks of all lanes are equal (MAC-7)
    return (drawn.mapping, replace(drawn.arch, pe=replace(drawn.arch.pe, **{key: few}))) if few else None


def few_pes(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """One row or column less than what runs side by side."""
    for axis in ("rows", "cols"):
        around = zip(drawn.mapping.loops, extents(drawn.shape.sizes, drawn.mapping.loops), strict=True)
        used = prod(size // loop.step for loop, size in around if loop.on == axis)
        if used > 1:
            return drawn.mapping, replace(drawn.arch, **{axis: used - 1})
    return None


def few_lanes(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """An array without lanes."""
    if not any(loop.on == "lanes" for loop in drawn.mapping.loops):
        return None
    return drawn.mapping, replace(drawn.arch, pe=replace(drawn.arch.pe, lanes=1))


def no_banks(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """An array whose lanes have no sums of their own."""
    if not any(loop.on == "lanes" and loop.dim == "k" for loop in drawn.mapping.loops):
        return None
    return drawn.mapping, replace(drawn.arch, pe=replace(drawn.arch.pe, lane_sums=False))


def outputs_on_lanes(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """A loop over images, rows or columns on lanes."""
    found = [depth for depth, loop in enumerate(drawn.mapping.loops) if loop.dim in "nhw" and not loop.on]
    if not found:
        return None
    depth = int(rng.choice(found))
    return with_loop(drawn.mapping, depth, replace(drawn.mapping.loops[depth], on="lanes")), drawn.arch


def many_buffers(rng: Random, drawn: Drawn) -> tuple[Mapping, Arch] | None:
    """An array whose register files have fewer halves than a stage says."""
    staged = [stage for stage in drawn.mapping.stages if stage.memory == "rf" and stage.buffers > 1]
    if not staged:
        return None
    key = f"{rng.choice(staged).operand}_halves"
    return drawn.mapping, replace(drawn.arch, pe=replace(drawn.arch.pe, **{key: 1}))


Flaw = Callable[[Random, Drawn], tuple[Mapping, Arch] | None]
FLAWS: dict[str, tuple[Flaw, str]] = {
    "steps that fall": (too_long, "(NEST-1)"),
    "single indices": (missing, "(NEST-1)"),
    "a box inside the stages": (not_kept, "(NEST-2)"),
    "the operand": (no_operand, "(NEST-3)"),
    "links to the east": (across_columns, "no link from west to east"),
    "links to the south": (no_links, "no links.south"),
    "room in a PE": (small_files, "a PE is to hold more words than it has"),
    "halves enough": (many_buffers, "is in more buffers than a register file has"),
    "PEs enough": (few_pes, "side by side do not fit"),
    "lanes enough": (few_lanes, "products at a time are more than pe.lanes"),
    "banks": (no_banks, "no pe.lane_sums"),
    "lanes for it": (outputs_on_lanes, "(NEST-6)"),
}


def broken(rng: Random, drawn: Drawn, flaw: str, folder: Path) -> bool:
    """Whether a mapping can be broken like this; then it is refused with the reason."""
    breaks, why = FLAWS[flaw]
    if (made := breaks(rng, drawn)) is None:
        return False
    mapping, arch = made
    if problem := mapping_problem(mapping, drawn.shape.sizes, drawn.operands):
        assert "(N" in why and "(N" in problem, (flaw, problem, drawn)
        return True
    with pytest.raises(Refusal) as refused:
        compiled(replace(drawn, mapping=mapping, arch=arch), folder)
    assert why in str(refused.value), (flaw, str(refused.value), drawn)
    return True


def layer_of(case: Case) -> LayerOp:
    return next(op for op in unmapped(case)[0].walk() if isinstance(op, LayerOp))


def result_by(case: Case, mapping: str, folder: Path) -> np.ndarray:
    """What a layer computes by a mapping."""
    sizes = layer_shape(layer_of(case)).sizes
    drawn = Drawn(case, parse_arch(arch_text(case), "drawn"), parse(mapping, sizes))
    return result_and_cycles(case, *compiled(drawn, folder), drawn.arch)[0]


def test_columns_of_a_set_that_are_no_neighbours_share_none(tmp_path: Path) -> None:
    """Each of four PEs takes two columns in turn: what it needs of the next one's window is not there at that time."""
    case = Case(kernel=(3, 3), c=3, k=4, image=(6, 10), array=(4, 8), glb=1 << 18)
    stages = "> weight@rf*2 > ifmap@rf*2 > {s > c > r}"
    mapping = f"weight@glb > params@glb > [h||4@rows k':2||2@cols w':2||4@cols] > k'' > w'' {stages}"
    assert np.array_equal(result_by(case, mapping, tmp_path), case.expected)


def test_channels_with_sums_of_their_own_are_the_last_outputs_of_a_box(tmp_path: Path) -> None:
    """Four of eight channels at a time, whose sums are in neighbouring banks: not with columns between them."""
    case = Case(kernel=(1, 1), c=2, k=8, image=(4, 2), array=(4, 4), glb=1 << 18)
    mapping = "weight@glb > params@glb > [h||4@rows] > weight@rf*2 > ifmap@rf*2 > {{{} > c > k''||4@lanes}}"
    with pytest.raises(Refusal, match="k is on lanes, so it is the last output in the box, not outside w"):
        result_by(case, mapping.format("k':4 > w"), tmp_path)
    assert np.array_equal(result_by(case, mapping.format("w > k':4"), tmp_path), case.expected)


def test_images_move_through_the_glb_together_or_one_by_one(tmp_path: Path) -> None:
    case = Case(kernel=(3, 3), c=3, k=4, image=(6, 6), n=4, array=(4, 4), glb=1 << 18)
    stages = "[h||4@rows w||4@cols] > weight@rf*2 > ifmap@rf*2 > {s > c > r}"
    for blocks in "n':2 > ifmap@glb > n''", "n':2 > n'' > ifmap@glb":
        mapping = f"weight@glb > params@glb > {blocks} > k > {stages}"
        assert np.array_equal(result_by(case, mapping, tmp_path), case.expected)


def test_loops_through_register_files_are_unrolled_a_limited_number_of_times(tmp_path: Path) -> None:
    """Of 3 kernel columns in tiles of 2 the last tile counts, too: 2 copies for each kernel row and output column."""
    mapping = "weight@glb > params@glb > [h||3@rows] > k > ifmap@rf > w > r > s':2 > weight@rf > {s''}"

    def compiled_of(cols: int) -> object:
        case = Case(kernel=(3, 3), c=1, k=2, image=(5, cols + 2), array=(3, 4), glb=1 << 18)
        arch, sizes = parse_arch(arch_text(case), "drawn"), layer_shape(layer_of(case)).sizes
        arch = replace(arch, pe=replace(arch.pe, ifmap_words=3 * (cols + 2)))
        return compiled(Drawn(case, arch, parse(mapping, sizes)), tmp_path)

    assert compiled_of(42)
    with pytest.raises(Refusal, match="loops w r s step through what .* hold and take 258 unrolled copies, more than"):
        compiled_of(43)


def test_a_pe_holds_words_that_lie_beside_each_other(tmp_path: Path) -> None:
    """Of 4 channels in tiles of 2, one a column, a column has channels 0 and 2. In tiles of 4 it has one."""
    case = Case(kernel=(1, 3), c=2, k=4, image=(3, 6), array=(3, 4), glb=1 << 18)
    mapping = "weight@glb > params@glb > [h||3@rows] > weight@rf > {}@cols] > ifmap@rf > {{w > s > c}}"
    with pytest.raises(Refusal, match="weight is staged in rf outside a loop over k in time around one in space"):
        result_by(case, mapping.format("k':2 > [k''||2"), tmp_path)
    assert np.array_equal(result_by(case, mapping.format("[k||4"), tmp_path), case.expected)


def test_weights_of_all_pes_are_of_neighbouring_channels(tmp_path: Path) -> None:
    """Three PEs side by side have three channels each, in tiles of 2 and 1: the first tiles are 0, 1, 3, 4, 6 and 7."""
    case = Case(kernel=(1, 3), c=1, k=9, image=(3, 6), array=(3, 4), glb=1 << 18)
    rest = "weight@glb > h > w > k''' > weight@rf > ifmap@rf > {s}"
    with pytest.raises(Refusal, match="over k in space around weights in glb, 3 and 2, must divide each other"):
        result_by(case, f"params@glb > [k':3||3@cols k'':2||2@rows] > {rest}", tmp_path)
    rest = rest.replace("k''' > ", "")
    result = result_by(case, f"params@glb > [k':3||3@cols k''||3@rows] > {rest}", tmp_path)
    assert np.array_equal(result, case.expected)


@pytest.mark.parametrize(("outside", "inside"), [("r", "k > s"), ("s", "k > r"), ("[k':2||2@cols] > k''", "r > s")])
def test_a_transfer_of_weights_has_all_taps_of_neighbouring_channels(outside: str, inside: str, tmp_path: Path) -> None:
    """Their words lie beside each other in DRAM. Tiles of channels may be outside, the loops below may not."""
    case = Case(kernel=(3, 3), c=2, k=4, image=(5, 6), array=(3, 4), glb=1 << 18)
    mapping = "params@glb > [h||3@rows] > {} > weight@glb > {} > weight@rf > ifmap@rf > {{w > c}}"
    with pytest.raises(Refusal, match="weights are staged in glb outside loops over r and s, over c in space, and"):
        result_by(case, mapping.format(outside, inside), tmp_path)
    assert np.array_equal(result_by(case, mapping.format("k':2", "k'' > r > s"), tmp_path), case.expected)


FEATURES = (
    "weight held",
    "ifmap held",
    "sums down rows",
    "partial sums",
    "box over h",
    "lanes over crs",
    "lanes over k",
)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_dataflows(part: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([SEED, part])
    count = -(-EXAMPLES // PARTS)
    seen: Counter[str] = Counter()
    while seen["run"] < count or (seen["run"] < 3 * count and any(seen[each] < count // 20 for each in FEATURES)):
        check(rng, tmp_path, seen)
    refused = sum(seen[why] for why in REASONS)
    assert refused < count // 2, seen
    for feature in FEATURES:
        assert seen[feature] >= count // 20, (feature, seen)
    assert count < 20 or all(seen[f"without {flaw}"] for flaw in FLAWS), seen
