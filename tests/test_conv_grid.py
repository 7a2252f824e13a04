"""One layer, from its integers to its words and back: what it computes and how long it takes, over the whole grid.

Every case is compiled by the passes, encoded, decoded and run. Its output is compared with a brute-force evaluation
(conv_grid_cases.py), its cycles with a walk over the tiles of the chosen mapping (tile_walk.py): both written from
dialects/cnn.py and docs/machine.md, sharing nothing with the passes and the interpreter but the mapping and the
architecture's numbers.

Covered are convolutions and pools (max, sum) with

    kernels      1x1 to 11x11, 1xN and Nx1, whole in a PE, a few rows at a time, a part of a row at a time
    strides      1 to 4, also mixed and larger than the kernel
    dilations    1 to 3, also mixed
    padding      none, same, asymmetric
    channels     1 to 96 of a group, odd and prime numbers among them
    groups       1, 2, 3; depthwise, with a multiplier of 2, and of several channels each
    arrays       2x2 to 8x8; files that hold little more than a kernel row, or less; 1, 2, 3 halves; links or none;
                 8 and 16 bits
    the rest     images of 5 to 19 rows and columns, 1 and 2 of them; zero points; with and without a scale; a GLB that
                 holds the weights, or slices of them

once by one (GRID), every two values of two parameters together, and at random. A usual run has cases of GRID in which
each value occurs. Not here: activations that do not fit the GLB (test_glb_blocks.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from conv_grid_cases import FACTORS, Case, all_pairs, every_pair, pairs_of, random_layers
from examples import FACTOR, covering, examples
from hypothesis import HealthCheck, example, given, settings
from nest_cases import layer_of
from searches import FEWEST, search_with
from tile_walk import Walk
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from cnncc.arch.model import Arch, load_arch
from cnncc.context import CompilerContext
from cnncc.dialects.array import TensorOp
from cnncc.dialects.cnn import CNN
from cnncc.dialects.isa import instructions
from cnncc.dialects.weights import WEIGHTS, GlobalOp, constant_array
from cnncc.isa.codec import decode_program, encode_program
from cnncc.machine.program import Node, build_tree
from cnncc.machine.times.times import Cycles, simulate
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import Memory
from cnncc.mapping.mapping import Mapping
from cnncc.passes.array_allocate import ArrayAllocatePass
from cnncc.passes.array_prefetch import ArrayPrefetchPass
from cnncc.passes.array_to_isa import ArrayToIsaPass
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.passes.nest_assign_mapping import NestAssignMappingPass
from cnncc.passes.nest_permute import NestPermutePass
from cnncc.passes.nest_stage import NestStagePass
from cnncc.passes.nest_tile import NestTilePass
from cnncc.passes.nest_to_array import NestToArrayPass
from cnncc.passes.nest_unroll import NestUnrollPass
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

# Compiled and run.


def unmapped(case: Case) -> tuple[ModuleOp, CompilerContext]:
    ctx = CompilerContext()
    for dialect in (Builtin, Func, CNN, WEIGHTS):
        ctx.load_dialect(dialect)
    module = Parser(ctx, case.text(ctx)).parse_module()
    module.verify()
    CnnToNestPass().apply(ctx, module)
    return module, ctx


def scheduled(
    case: Case, arch: str, schedule: str | None = None, dataflow: str = "os"
) -> tuple[ModuleOp, CompilerContext, Mapping]:
    """Mapped by the file, or by the mapper."""
    module, ctx = unmapped(case)
    NestAssignMappingPass(arch, schedule=schedule, dataflow=dataflow).apply(ctx, module)
    mapping = layer_of(module).mapping
    assert mapping is not None
    return module, ctx, mapping.data


def lowered(module: ModuleOp, ctx: CompilerContext, arch: str, is_verified: bool = True) -> None:
    """Verified on each level, unless many mappings of one layer are lowered."""
    for level in (
        (NestTilePass(), NestPermutePass(), NestUnrollPass(), NestStagePass()),
        (NestToArrayPass(arch), ArrayPrefetchPass(arch), ArrayAllocatePass(arch)),
        (ArrayToIsaPass(),),
    ):
        for lowering in level:
            lowering.apply(ctx, module)
        if is_verified:
            module.verify()


def run(
    case: Case, arch_file: Path, schedule: str | None = None, dataflow: str = "os"
) -> tuple[np.ndarray, Cycles, Mapping, Arch]:
    """What the machine's words compute, in how many cycles; by which mapping, on which array."""
    arch_file.write_text(case.arch_text())
    return run_scheduled(case, arch_file, scheduled(case, str(arch_file), schedule, dataflow))


def run_scheduled(
    case: Case, arch_file: Path, layer: tuple[ModuleOp, CompilerContext, Mapping]
) -> tuple[np.ndarray, Cycles, Mapping, Arch]:
    """The same, of a layer that has its mapping."""
    module, ctx, mapping = layer
    lowered(module, ctx, str(arch_file))
    arch = load_arch(str(arch_file))
    return *result_and_cycles(case, module, ctx, arch), mapping, arch


def instructions_of(module: ModuleOp) -> Sequence[Node]:
    """The program of a module, from its words."""
    return build_tree(decode_program(encode_program(instructions(module))))


def result_and_cycles(case: Case, module: ModuleOp, ctx: CompilerContext, arch: Arch) -> tuple[np.ndarray, Cycles]:
    """What the words of a module compute, in how many cycles."""
    tree = instructions_of(module)
    return result_of(tree, case, module, ctx, arch), simulate(tree, arch).cycles


def result_of(tree: Sequence[Node], case: Case, module: ModuleOp, ctx: CompilerContext, arch: Arch) -> np.ndarray:
    """What the program of a module computes."""
    tensors = [op.record.data for op in module.ops if isinstance(op, TensorOp) and op.record.data.memory == "dram"]
    arrays = {op.sym_name.data: constant_array(op, ctx.weights) for op in module.ops if isinstance(op, GlobalOp)}
    dram = Memory("dram", max(t.at + t.words for t in tensors), 1)
    for tensor in tensors:
        if tensor.role != "output":
            words = arrays[tensor.name] if tensor.role == "weight" else case.x
            dram.write(np.arange(tensor.at, tensor.at + tensor.words), words.reshape(1, -1))
    Interpreter(arch, dram, lambda segment, memory: None).run(tree)
    output = next(tensor for tensor in tensors if tensor.role == "output")
    return dram.read(np.arange(output.at, output.at + output.words)).reshape(output.shape)


def check(case: Case, folder: Path, schedule: str | None = None, dataflow: str = "os") -> Mapping:
    """By which mapping."""
    return check_run(case, *run(case, folder / "array.toml", schedule, dataflow))


def check_run(case: Case, result: np.ndarray, cycles: Cycles, mapping: Mapping, arch: Arch) -> Mapping:
    """By which mapping."""
    assert np.array_equal(result, case.expected), case
    assert cycles.total == Walk(case, mapping, arch).total(), case
    return mapping


# The grid.

KERNELS, STRIDES, DILATIONS, CHANNELS, SIZES, ARRAYS = (
    FACTORS[name] for name in ("kernel", "stride", "dilation", "k", "height", "array")
)

GRID = [
    Case(),
    *(Case(kernel=kernel, pad=pad, array=(3, 5), image=(11, 12)) for kernel in KERNELS for pad in ("none", "same")),
    *(Case(kernel=kernel, pad="asymmetric", array=(3, 5)) for kernel in KERNELS),
    *(Case(stride=stride, kernel=kernel, image=(11, 13)) for stride in STRIDES for kernel in ((1, 1), (3, 3), (1, 5))),
    *(Case(dilation=dilation, stride=stride, pad=pad, image=(11, 13))
      for dilation in DILATIONS for stride, pad in (((1, 1), "same"), ((2, 3), "asymmetric"))),
    *(Case(c=c, k=k) for c in CHANNELS for k in (1, 17)),
    *(Case(c=3, k=k, array=(8, 8)) for k in CHANNELS),
    *(Case(c=c, k=k, kernel=(1, 1), image=(5, 5)) for c, k in ((64, 64), (67, 96), (96, 67))),
    *(Case(image=(size, 5), array=(4, 8)) for size in SIZES),
    *(Case(image=(6, size), pad="asymmetric") for size in SIZES),
    *(Case(array=array, c=5, k=17, image=(13, 11), pad="same") for array in ARRAYS),
    *(Case(files="small", kernel=kernel, array=array, image=(11, 11))
      for kernel in KERNELS for array in ((2, 2), (4, 8))),
    *(Case(files="tiny", kernel=kernel, dilation=(1, dilation), pad="same")
      for kernel in KERNELS if kernel[1] > 3 for dilation in (1, 2)),
    *(Case(group=group, kernel=kernel, stride=(1, 2), pad="same") for group in ("two", "three") for kernel in KERNELS),
    *(Case(group="two", array=array, image=(size, size)) for array in ARRAYS for size in (5, 7)),
    *(Case(group=group, c=1, kernel=kernel, pad="same", k=17) for group in ("each", "pairs") for kernel in KERNELS),
    *(Case(group=group, c=1, dilation=dilation, stride=(2, 1), pad="asymmetric", array=(8, 3))
      for group in ("each", "pairs") for dilation in DILATIONS),
    *(Case(group="each", c=c, k=k, files=files, array=(8, 8))
      for c, k in ((1, 67), (2, 16), (3, 5)) for files in ("large", "small")),
    *(Case(group=group, c=c, k=16, glb=0, stride=(2, 1), zero=-7)
      for group in ("one", "three", "each") for c in (1, 17)),
    Case(c=17, k=16, glb=1800),
    Case(c=64, k=16, glb=4400),
    *(Case(kind=kind, kernel=kernel, stride=(2, 2), pad="same", k=17) for kind in ("max", "add") for kernel in KERNELS),
    *(Case(kind=kind, dilation=dilation, pad="same", k=3) for kind in ("max", "add") for dilation in DILATIONS),
    *(Case(kind=kind, files="small", n=2, k=5, array=(8, 3)) for kind in ("max", "add")),
    *(Case(bits=8, c=17, k=16, zero=zero, n=2, pad="same") for zero in (0, -7, 60)),
    *(Case(halves=halves, files=files, k=16) for halves in (1, 3) for files in ("large", "small")),
    *(Case(c=17, k=17, kernel=(5, 5), glb=1 << 14, files=files, array=array, n=2, scaled=scaled)
      for files, array, scaled in (("large", (8, 8), True), ("large", (2, 4), False), ("small", (4, 4), True))),
    Case(kind="add", k=17, scaled=True, glb=160, image=(2, 2), kernel=(2, 2), array=(2, 2), files="small"),
]  # fmt: skip


@pytest.mark.parametrize("case", covering(GRID, lambda case: asdict(case).values()), ids=lambda case: "-".join(
    f"{name}={value}".replace(" ", "") for name, value in asdict(case).items() if value != getattr(Case(), name)
))  # fmt: skip
def test_grid(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def kinds(case: Case, mapping: Mapping) -> set[str]:
    """What a mapping has that others have not."""
    seen: set[str] = set()
    loops = [loop for loop in mapping.loops if not loop.keep]
    sizes = {"n": {case.n}, "k": {case.channels_out}, "c": {case.c}}
    sizes |= {dim: {size} for dim, size in zip("hwrs", (*case.output, *case.kernel), strict=True)}
    for loop in loops:
        extents, place = sizes[loop.dim], f"{loop.dim} {loop.on or 'time'}"
        whole, rests = {loop.step for extent in extents if extent >= loop.step}, {e % loop.step for e in extents} - {0}
        names = {place, f"{place} with a rest"} if rests else {place}
        sizes[loop.dim] = whole | rests
        kind = "channelwise" if case.groups == case.channels_out else "groups:"
        seen |= names | ({f"{kind} {name}" for name in names} if case.groups > 1 else set())
        if 1 < case.groups < case.channels_out and loop.dim == "k":
            seen.add("groups in turn" if loop.step == case.per_group else "groups in parts")
    if 1 < case.groups == case.channels_out and max(sizes["k"]) > 1:
        seen.add("channelwise in a PE")
    for stage in (stage for stage in mapping.stages if stage.memory == "glb" and stage.depth):
        inside = any(loop.dim == "c" for loop in loops[: stage.depth])
        seen.add(f"{stage.operand} in slices{' of c' if inside else ''}, {stage.buffers} at a time")
    return seen


# Mappings of each kind, with those below.
KINDS = [
    Case(kernel=(1, 7), array=(3, 5), image=(11, 12)),
    Case(group="two", array=(2, 4), image=(5, 5)),
    Case(group="two", array=(2, 4)),
    Case(group="each", kernel=(2, 2), c=1, k=17, pad="same"),
    Case(group="pairs", kernel=(1, 1), c=1, k=17),
    Case(group="each", c=1, dilation=(2, 2), stride=(2, 1), pad="asymmetric", array=(8, 3)),
    Case(group="each", c=2, k=16, array=(8, 8)),
    Case(group="three", c=17, k=16, glb=0, stride=(2, 1), zero=-7),
]

SLICED = Case(c=17, k=16)
WRITTEN = [
    # What the mapper's mappings have in a small GLB alone: slices in one buffer, parameters in slices.
    (SLICED, "k':4 > weight@glb > params@glb > h':4 > w':4 > [h''||4@rows w''||4@cols] > c > {s > r > k''}"),
    (SLICED, "k':4 > weight@glb*2 > params@glb*2 > h':4 > w':4 > [h''||4@rows w''||4@cols] > c > {s > r > k''}"),
    (SLICED, "params@glb > h':4 > w':4 > k':4 > [h''||4@rows w''||4@cols] > c':5 > weight@glb > c'' > {s > r > k''}"),
    (Case(kind="add", k=17), "k':6 > params@glb > w':4 > [k'':3||2@rows w''||4@cols] > h > {k''' > s > r}"),
    (Case(kind="add", k=17), "k':6 > params@glb*2 > w':4 > [k'':3||2@rows w''||4@cols] > h > {k''' > s > r}"),
    # Weights and block-distributed loops, or the ifmap, held in register files, with partial sums and without.
    (Case(c=5, k=6), "k':2 > c':2 > [h':3||2@rows w':3||2@cols] > weight@rf*2 > h'' > w'' > ifmap@rf*2 > "
                     "{s > c'' > r > k''}"),
    (Case(c=1, k=6, n=2), "n > k':2 > [h':3||2@rows w':3||2@cols] > weight@rf*2 > h'' > ifmap@rf*2 > "
                          "{w'' > s > r > k''}"),
    (Case(c=5, k=7), "h':4 > w':4 > c':2 > [h''||4@rows w''||4@cols] > ifmap@rf*2 > k':2 > weight@rf*2 > "
                     "{s > c'' > r > k''}"),
    # Some taps of a window in a PE at a time, and the others after them.
    (Case(c=5, k=7), "h':4 > w':4 > [h''||4@rows w''||4@cols] > c > r':2 > s':2 > {s'' > r'' > k}"),
    # Depthwise, with several channels in a PE.
    (Case(c=1, k=6, group="each"), "k':4 > h':4 > w':4 > [h''||4@rows w''||4@cols] > {k'' > s > r}"),
    # Pixels of one macro-instruction whose windows share columns that lie apart.
    (Case(c=3, dilation=(1, 2), image=(7, 11)), "h':4 > w':6 > [h''||4@rows w'':2||3@cols] > c > r > {w''' > s > k}"),
]  # fmt: skip


def test_grid_of_kinds_of_mappings(tmp_path: Path) -> None:
    """Weights whole and in slices, reductions over c and over r, remainders in space, sets side by side, groups."""
    seen: set[str] = set()
    for case, text in [*((case, "") for case in KINDS), *WRITTEN]:
        seen |= kinds(case, check(case, tmp_path, written(text, tmp_path) if text else None))
    wanted = {f"{dim} time" for dim in "nkhwcrs"} | {"k rows", "h rows", "k cols", "w cols"}
    wanted |= {f"{loop} with a rest" for loop in ("k time", "h time", "w time", "c time", "r time", "s time", "k rows")}
    wanted |= {
        "k cols with a rest",
        "groups in turn",
        "groups in parts",
        "groups: k rows with a rest",
        "groups: k cols with a rest",
    }
    wanted |= {f"channelwise {loop}" for loop in ("k time", "k rows", "k cols", "c time", "r time", "in a PE")}
    wanted |= {f"{operand} in slices, {count} at a time" for operand in ("weight", "params") for count in (1, 2)}
    assert wanted | {"weight in slices of c, 1 at a time"} <= seen, sorted(seen)


def written(text: str, folder: Path) -> str:
    """A schedule file with a mapping of the layer."""
    (folder / "written.toml").write_text(f'["layer"]\nmapping = "{text}"\n')
    return str(folder / "written.toml")


PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_every_pair_of_values(part: int, tmp_path: Path) -> None:
    """By mappings of any form, as users get them; in a long run by output stationary ones, too."""
    for case in every_pair()[part::PARTS]:
        mapping = check(case, tmp_path, dataflow="auto")
        if FACTOR > 1 and (other := scheduled(case, str(tmp_path / "array.toml")))[2] != mapping:
            check_run(case, *run_scheduled(case, tmp_path / "array.toml", other))


def test_every_pair_is_there() -> None:
    """A pair that says nothing is none: the groups of a pool, the scale of a maximum."""
    found: set[frozenset[tuple[str, object]]] = set()
    for case in every_pair():
        point = asdict(case)
        point["height"], point["width"] = point.pop("image")
        found |= pairs_of({name: point[name] for name in FACTORS})
    assert set(all_pairs()) == found


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=random_layers())
@example(case=Case(stride=(2, 1), kernel=(2, 2), image=(5, 19), array=(2, 2), files="small"))
def test_random_layers(case: Case, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        search_with(patch, FEWEST)
        check(case, tmp_path)


def test_results_are_of_all_kinds() -> None:
    """Clamped on both sides, and mostly not; without a scale, too."""
    clamped = [case for case in every_pair() if case.kind != "max"]
    for scaled in (True, False):
        results = [(case.expected, case.clamp) for case in clamped if case.scaled == scaled]
        inside = [((result > low) & (result < high)).mean() for result, (low, high) in results]
        assert np.mean([share > 0.5 for share in inside]) > 0.8
        assert all(any((result == end[side]).any() for result, end in results) for side in (0, 1))
    assert max(int(np.abs(sums).max()) for case in clamped for _, sums in case.sums()) > 1 << 24


def test_window_is_what_the_cases_say() -> None:
    """The outputs' size by ONNX's formula, once."""
    case = Case(kernel=(5, 5), stride=(3, 2), pad="asymmetric", image=(11, 7))
    assert case.output == Window((5, 5), (3, 2), case.pads).output(11, 7) == ((11 + 2 + 4 - 5) // 3 + 1, 4)
    case = Case(kernel=(3, 2), dilation=(3, 2), pad="same", image=(6, 7))
    assert case.pads == (3, 1, 3, 1)
    assert case.output == Window((3, 2), (1, 1), case.pads, (3, 2)).output(6, 7) == (6, 7)
