"""Any sequence of passes on `nest`, in any order, leaves what a layer computes, or is refused and leaves its nest.

Integers of the nest evaluator are compared with brute force in numpy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from examples import SEED, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_cases import Case, any_mappings, cases, layer_of, lowered
from test_nest_eval import result
from xdsl.passes import ModulePass

from cnncc.dialects.nest import LayerOp, build_nest, mapping_of
from cnncc.errors import Refusal
from cnncc.mapping.mapping import DIMS, Loop, Mapping, Stage, extents
from cnncc.passes._scheduling.nest_layers import reschedule
from cnncc.passes._scheduling.rewrites import interchange, merged, normalised, split
from cnncc.passes.nest_interchange import NestInterchangePass
from cnncc.passes.nest_keep import NestKeepPass
from cnncc.passes.nest_merge_loops import NestMergeLoopsPass
from cnncc.passes.nest_normalise import NestNormalisePass
from cnncc.passes.nest_permute import NestPermutePass
from cnncc.passes.nest_split import NestSplitPass
from cnncc.passes.nest_stage import NestStagePass
from cnncc.passes.nest_tile import NestTilePass
from cnncc.passes.nest_unroll import NestUnrollPass
from cnncc.universe import PASSES
from cnncc.window import Window

ARCH = "spatial-8x8"
Random = np.random.Generator


def random_pass(rng: Random, mapping: Mapping) -> ModulePass:
    """One pass with options that make sense as often as not."""
    here = [loop.dim for loop in mapping.loops] or ["n"]
    dims = [str(rng.choice(here if rng.random() < 0.9 else DIMS)) for _ in range(3)]
    which = int(rng.integers(1, 3)) if rng.random() < 0.4 else None
    arch = ARCH if rng.random() < 0.5 else None
    sizes = tuple(int(size) for size in rng.integers(1, 8, 2))
    numbered = f"{dims[0]}{which or ''}"
    choices: list[ModulePass] = [
        NestTilePass((dims[0],), sizes[:1]),
        NestTilePass((dims[0], dims[1]), sizes),
        NestSplitPass(dims[0], sizes[0], which),
        NestSplitPass(dims[0], sizes[0], which),
        NestMergeLoopsPass(dims[0], which or 1, arch),
        NestMergeLoopsPass(dims[0], which or 1, arch),
        NestInterchangePass((numbered, dims[1])),
        NestInterchangePass((numbered, dims[1])),
        NestPermutePass(tuple(map(str, rng.permutation(here)))),
        NestUnrollPass(dims[0], str(rng.choice(["rows", "cols"])), which, arch),
        NestStagePass("ifmap", str(rng.choice(["glb", "rf"])), int(rng.integers(0, len(here) + 1))),
        NestKeepPass(tuple(dims[: int(rng.integers(1, 4))]), arch),
        NestNormalisePass(),
    ]
    return choices[rng.integers(len(choices))]


@settings(max_examples=examples(20))
@given(cases(groups=True), st.integers(0, 1 << 30), st.integers(1, 9))
def test_any_sequence_of_passes_is_brute_force(case: Case, seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    ctx, module = lowered(case)
    want = case.sums()
    for _ in range(length):
        before = mapping_of(layer_of(module))
        step = random_pass(rng, before)
        try:
            step.apply(ctx, module)
        except Refusal as refusal:
            assert str(refusal).startswith(f"{step.name}: layer 'layer0': "), refusal
            assert mapping_of(layer_of(module)) == before
            continue
        module.verify()
    np.testing.assert_array_equal(result(ctx, module, case), want)


# Of each pass, on a layer of 4 x 5 x 5 outputs and 2 x 3 x 3 inputs each: passes that are done, one that is refused.
DIRECTED: dict[type[ModulePass], tuple[list[ModulePass], ModulePass | None]] = {
    NestTilePass: ([NestTilePass(("h", "w"), (2, 3))], NestTilePass(("h",), (9,))),
    NestSplitPass: ([NestSplitPass("h", 2)], NestSplitPass("h", 9)),
    NestMergeLoopsPass: ([NestSplitPass("h", 2), NestMergeLoopsPass("h", 1)], NestMergeLoopsPass("h", 1)),
    NestInterchangePass: ([NestInterchangePass(("k", "h"))], NestInterchangePass(("k", "k"))),
    NestPermutePass: ([NestPermutePass(("c", "s", "k", "h", "r", "w"))], NestPermutePass(("c", "s"))),
    NestUnrollPass: ([NestUnrollPass("h", "rows")], NestUnrollPass("h", "diagonals")),
    NestStagePass: ([NestStagePass("ifmap", "glb", 0)], NestStagePass("ifmap", "glb", 9)),
    NestKeepPass: ([NestKeepPass(("r", "s"))], NestKeepPass(("r", "r"))),
    NestNormalisePass: ([NestUnrollPass("k", "cols"), NestUnrollPass("h", "rows"), NestNormalisePass()], None),
}


# They choose mappings, or lead to another level.
OTHERS = ("nest-assign-mapping", "nest-cores", "nest-group", "nest-to-array", "nest-to-scf")


def test_every_nest_pass_is_tested() -> None:
    """In `DIRECTED` and `random_pass`."""
    names = {name for name in PASSES if name.startswith("nest-")} - {*OTHERS}
    assert names == {pass_.name for pass_ in DIRECTED}
    rng, mapping = np.random.default_rng(SEED), Mapping(tuple(Loop(dim) for dim in DIMS))
    assert names == {random_pass(rng, mapping).name for _ in range(500)}


@pytest.mark.parametrize("pass_", DIRECTED)
def test_each_pass_is_done_and_refused(pass_: type[ModulePass]) -> None:
    case = Case("mac", 1, 4, 2, (7, 7), Window((3, 3)))
    done, refused = DIRECTED[pass_]
    ctx, module = lowered(case)
    if refused is not None:
        before = mapping_of(layer_of(module))
        with pytest.raises(Refusal, match=f"^{refused.name}: layer 'layer0': "):
            refused.apply(ctx, module)
        assert mapping_of(layer_of(module)) == before
    for step in done:
        before = mapping_of(layer_of(module))
        step.apply(ctx, module)
        module.verify()
        assert mapping_of(layer_of(module)) != before
    np.testing.assert_array_equal(result(ctx, module, case), case.sums())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stage("ifmap", "glb", 0, buffers=0), "ifmap in glb buffers 0 is no stage"),
        (lambda: Stage("ifmap", "rf", 0, buffers=1 << 31), "ifmap in rf buffers 2147483648 is no stage"),
        (lambda: Loop("h", 0), "loop h: no step 0: it is at least 1"),
        (lambda: Mapping((), (Stage("ifmap", "glb", 1),)), "stage ifmap in glb: depth 1 is not in 0 to 0"),
    ],
)
def test_what_is_no_mapping_is_refused(make: Callable[[], Mapping], message: str) -> None:
    """`reschedule` names the pass and the layer; other errors of a pass stay defects."""
    ctx, module = lowered(Case("mac", 1, 4, 2, (7, 7), Window((3, 3))))
    with pytest.raises(Refusal, match=f"^nest-x: layer 'layer0': {message}"):
        reschedule("nest-x", ctx, module, None, lambda layer, mapping: make())
    with pytest.raises(ValueError, match="a defect"):
        reschedule("nest-x", ctx, module, None, _defect)


def _defect(layer: LayerOp, mapping: Mapping) -> Mapping:
    raise ValueError("a defect")


# -- what the passes are to each other ---------------------------------------------------------------------------------


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), cases(small=True))
def test_fuse_and_interchange_undo(data: st.DataObject, case: Case) -> None:
    mapping = data.draw(any_mappings(case))
    sizes = layer_of(lowered(case)[1]).sizes.data
    for depth, (loop, extent) in enumerate(zip(mapping.loops, extents(sizes, mapping.loops), strict=True)):
        for size in range(loop.step + 1, extent):
            assert merged(split(mapping, sizes, depth, size), depth) == mapping
        for other in range(depth + 1, len(mapping.loops)):
            try:
                swapped = interchange(mapping, depth, other)
            except Refusal:
                continue
            assert interchange(swapped, other, depth) == mapping


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), cases(groups=True))
def test_normal_form_computes_the_same_and_is_its_own(data: st.DataObject, case: Case) -> None:
    mapping = data.draw(any_mappings(case))
    ctx, module = lowered(case)
    layer = layer_of(module)
    normal = normalised(mapping, layer.sizes.data)
    assert normalised(normal, layer.sizes.data) == normal
    layer.detach_region(layer.body)
    layer.add_region(build_nest(normal))
    module.verify()
    np.testing.assert_array_equal(result(ctx, module, case), case.sums())
    spaces = [(depth, loop.on) for depth, loop in enumerate(normal.loops) if loop.on]
    for (depth, on), (after, then) in zip(spaces, spaces[1:], strict=False):
        staged = any(stage.depth == after for stage in normal.stages)
        if after == depth + 1 and not staged and normal.loops[depth].dim != normal.loops[after].dim:
            before_same = {loop.dim for loop in normal.loops[: depth + 1] if loop.on == "cols"}
            assert (on, then) != ("cols", "rows") or normal.loops[after].dim in before_same
