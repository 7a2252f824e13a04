"""Mappings that a user writes in the notation: which are legal, and the stages that they leave out. No IR.

Rules MAP-1 and MAP-6 to MAP-8 of docs/mapping.md are here, those of loops in `mapping_completion.py`. What is legal and
yet cannot be lowered is refused by `nest-to-array`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from operator import itemgetter

from cnncc.arch.model import Arch
from cnncc.errors import Finding
from cnncc.mapping.mapping import (
    IN_REGISTER_FILES,
    REDUCTION_DIMS,
    Loop,
    Mapping,
    Stage,
    mapping_problems,
    without_single,
)
from cnncc.mapping.notation import NotationError
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.register_files import MACHINE_ORDER, lanes_order
from cnncc.passes._programs.layer_transfers import is_one_slice
from cnncc.passes._scheduling.array_fit import file_problems, space_problems
from cnncc.passes._scheduling.glb_words import (
    NOTHING_FITS,
    GlbTooSmall,
    StaysOut,
    buffers_too_large,
    divides,
    glb_words,
    is_small,
    moved_words,
    one_pitch,
)
from cnncc.passes._scheduling.mapping_completion import completions
from cnncc.passes._scheduling.schedule_file import MappingText
from cnncc.passes._scheduling.schedule_numbers import too_many_loops

MOVING = ("residual", "ifmap", "output")
OF_WEIGHTS = frozenset("kc")


# -- what is legal -----------------------------------------------------------------------------------------------------


def written_violations(shape: LayerShape, arch: Arch, written: MappingText, operands: Set[str]) -> list[Finding]:
    """All reasons why the array cannot run a layer with this mapping. The caller sets `where`."""
    if shape.kind == "copy":
        what = "elementwise layers stream past the array, this is one"
        return [Finding(what, help="leave it out: the compiler maps it")]
    try:
        mapping = _in_files(next(completions(written.mapping, shape, arch)), shape, arch)
    except NotationError as error:
        return [Finding(error.message, resource="mapping", excerpt=error.excerpt)]
    if broken := [Finding(problem, resource="mapping") for problem in mapping_problems(mapping, shape.sizes, operands)]:
        return broken
    several = without_single(mapping.loops, mapping.stages, shape.sizes)
    on_array = [*space_problems(mapping, shape, arch), *file_problems(several, shape, arch)]
    return [*on_array, *too_many_loops(several, "fewer tiles")]


# -- the mapping -------------------------------------------------------------------------------------------------------


def written_mapping(shape: LayerShape, arch: Arch, budget: GlbBudget, written: MappingText) -> Mapping:
    """The completed mapping, with stages in the GLB that fit. Raises Refusal: GlbTooSmall where none do."""
    best, least = None, NOTHING_FITS
    for loops in completions(written.mapping, shape, arch):
        in_files = _in_files(loops, shape, arch)
        mapping = without_single(in_files.loops, in_files.stages, shape.sizes)
        given = {stage.operand for stage in mapping.stages if stage.memory == "glb"}
        if wrong := [operand for operand in MOVING if operand in given and operand not in budget.streamed]:
            raise StaysOut(wrong[0])
        # Loops over the largest blocks run once and go. Those over smaller ones may be more than there are registers.
        for each in _candidates(shape, mapping, budget, given) if not too_many_loops(mapping, "") else ():
            if not divides(shape, each, budget) or not one_pitch(shape, each):
                continue
            least = min(least, needed := glb_words(shape, arch, each))
            if needed <= budget.words:
                cost = _cost(shape, arch, each)
                best = min(best or (cost, each), (cost, each), key=itemgetter(0))
        if best is not None:  # smaller blocks move more words
            return best[1]
    if least == NOTHING_FITS:
        streamed, help_ = sorted(budget.streamed), "a loop over n in time outside the others"
        moves = "move" if len(streamed) > 1 else "moves"
        what = f"its {' and '.join(streamed)} {moves} through the GLB image by image, and in equal blocks"
        finding = Finding(what, help=f"{help_}, tiles that divide the layer, or an array with a larger GLB")
        raise GlbTooSmall(finding.text, arch.glb.words, finding)
    raise buffers_too_large(arch, budget, least, "smaller tiles around it")


def kept_resident(shape: LayerShape, arch: Arch, written: MappingText) -> list[str]:
    """The operands that stay in the GLB as a whole: a text with the stages in register files has all stages."""
    stages = next(completions(written.mapping, shape, arch)).stages
    staged = {stage.operand for stage in stages if stage.memory == "glb"}
    return [operand for operand in MOVING if operand not in staged] if any(s.memory == "rf" for s in stages) else []


def _cost(shape: LayerShape, arch: Arch, mapping: Mapping) -> tuple[bool | int, ...]:
    """Weights that are small as a whole come first, then what moves little."""
    weights = [stage for stage in mapping.stages if stage.operand == "weight" and stage.memory == "glb"]
    small = all(stage.depth == 0 for stage in weights) and is_small(shape, arch, mapping)
    buffers = sum(stage.buffers for stage in weights)
    return not small, moved_words(shape, arch, mapping), -buffers, glb_words(shape, arch, mapping)


def _in_files(mapping: Mapping, shape: LayerShape, arch: Arch) -> Mapping:
    """Rules MAP-6 and MAP-7: stages in register files around the box, whose loops are in the machine's order."""
    box = next((depth for depth, loop in enumerate(mapping.loops) if loop.keep), len(mapping.loops))
    there = {stage.operand for stage in mapping.stages if stage.memory == "rf"}
    buffers = {"weight": arch.pe.weight_halves, "ifmap": arch.pe.ifmap_halves}
    wanted = [operand for operand in IN_REGISTER_FILES if operand == "ifmap" or shape.is_mac]
    stages = [*mapping.stages, *(Stage(each, "rf", box, buffers[each]) for each in wanted if each not in there)]
    kept = mapping.loops[box:]
    lanes = "".join(loop.dim for loop in kept if loop.on)
    order = lanes_order(lanes) if set(lanes) & set("rs") else MACHINE_ORDER[shape.channelwise]
    if all(loop.keep and loop.step == 1 and loop.dim in order for loop in kept):
        kept = tuple(sorted(kept, key=lambda loop: (bool(loop.on), order.index(loop.dim))))
    return _mapping((*mapping.loops[:box], *kept), stages)


def _mapping(loops: Sequence[Loop], stages: Sequence[Stage]) -> Mapping:
    """Stages from outside; those at one place in the order of the GLB, then of register files."""
    return Mapping(tuple(loops), tuple(sorted(stages, key=lambda stage: (stage.depth, stage.memory))))


def _candidates(shape: LayerShape, mapping: Mapping, budget: GlbBudget, given: Set[str]) -> Iterator[Mapping]:
    """Rule MAP-8: the places that stages in the GLB which are not given may have."""
    loops = mapping.loops
    outer = [depth for depth, loop in enumerate(loops) if loop.on or loop.keep or loop.dim in REDUCTION_DIMS]
    blocks = outer[0] if outer else len(loops)
    images = next((depth + 1 for depth, loop in enumerate(loops) if loop.dim == "n"), 0)
    # MAP-8: inside the loop over n, outside the first loop in space, over c, r or s, or of the box.
    for block in range(images, blocks + 1) if budget.streamed - given else (0,):
        fixed = [
            Stage(operand, "glb", _place(shape, loops, operand, block)) for operand in sorted(budget.streamed - given)
        ]
        if shape.params and "params" not in given:
            by_block = shape.per_position and budget.streamed and not shape.is_mac
            fixed.append(Stage("params", "glb", block if by_block else 0))
        if not shape.is_mac or "weight" in given:
            yield _mapping(loops, [*fixed, *mapping.stages])
            continue
        yield _mapping(loops, [Stage("weight", "glb", 0), *fixed, *mapping.stages])
        # NEST-3: in the GLB weights are staged outside the register files.
        for depth, loop in enumerate(loops[: mapping.file_depths["weight"]]):
            if loop.dim in OF_WEIGHTS and not loop.on and is_one_slice(loops[: depth + 1]):
                # Further inside two buffers take few words, but slices are short: 1000 x 2048 weights in the order
                # k > [h|| w||] > c would take 68.6 M cycles on 8 x 8 PEs, and 10.2 M in two buffers inside k (2026-11).
                two = [2] if depth < blocks and not budget.streamed else []
                for buffers in (*two, 1):
                    yield _mapping(loops, [*fixed, Stage("weight", "glb", depth + 1, buffers), *mapping.stages])


def _place(shape: LayerShape, loops: Sequence[Loop], operand: str, block: int) -> int:
    """The depth at which a block of an operand begins. An ifmap that output channels share lies outside their loop."""
    if operand != "ifmap" or shape.channelwise or shape.window.group > 1:
        return block
    while block and loops[block - 1].dim == "k":
        block -= 1
    return block
