"""The nests of a core's layers with which its PEs take the fewest cycles for a frame. No pass.

The mapper minimises the cycles of a layer by itself. A core does stripe after stripe, frame after frame, so that loads
of a stripe hide behind the one before, perhaps of another layer. Three searches give each layer its choices:

1. a stripe by itself
2. the stripes of a frame, one behind the other
3. likewise, for an array that is busy for the fewest cycles: loads cost next to nothing, macro-instructions cost more

The model runs the core by itself: its inputs are there, and its results have space. Layer by layer, the choice with the
fewest cycles from one frame to the next is taken, and with it whether the layer runs a stripe later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cnncc.arch.model import Arch, core_arch
from cnncc.dialects.nest import LayerOp, mapping_of, operands
from cnncc.errors import Refusal, refusals_of
from cnncc.mapper.cached_search import searched
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapping.channels import Region
from cnncc.mapping.groups import group_problem
from cnncc.mapping.mapping import Loop, Mapping, Stage, mapping_problem
from cnncc.model.core_steps import over_frames
from cnncc.model.group_schedule import core_alone, group_plan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.layer_shape import GlbBudget
from cnncc.model.timeline import Timeline, TimelineMachine, idle_state
from cnncc.passes._scheduling.array_fit import file_problems, space_problems
from cnncc.passes._scheduling.core_parts import CorePart
from cnncc.passes._scheduling.layer_groups import LayerGroup, heights, with_rings
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape, rows_apart
from cnncc.passes._scheduling.stripes import (
    best_of_stripe,
    is_striped,
    kind_in_group,
    stripe_shape,
    striped,
    whole_mapping,
    with_least_delays,
    with_least_rings,
)

CHEAP_LOADS = 64  # times as many words a cycle through the port of the GLB and the buses
DEAR_MACROS = 100  # cycles more for each macro-instruction


@dataclass(frozen=True)
class CoreLayers:
    """The layers of a core with their nests, and the cycles from frame to frame if nothing keeps it waiting."""

    part: CorePart
    group: LayerGroup
    period: int


def core_layers(part: CorePart, region: Region, rows: int, arch: Arch, delays: Sequence[int] = ()) -> CoreLayers:
    """The layers with their nests for the core's PEs, in stripes of `rows` rows of the last one. Raises Refusal.

    Weights and params come once, and lie in the GLB. delays: of all layers but copies; without them the best ones.
    """
    own, choices, layers = core_arch(arch, region.rows, region.cols), list[list[Mapping]](), part.layers
    for layer, count in zip(layers, heights(layers, rows, several=True), strict=True):
        with refusals_of(f"layer '{label_of(layer)}'"):
            choices.append(_choices(layer, count, own))
            problems = (mapping_problem(nest, layer.sizes.data, operands(layer)) for nest in choices[-1])
            if problem := next(filter(None, problems), None):
                raise Refusal(problem)
    later = iter(delays)
    given = [next(later, None) if original else None for original in part.originals]
    return _CoreChoice(part, choices, own, given if delays else ()).best()


def fewest_words(part: CorePart) -> LayerGroup:
    """The layers in stripes of one row, with the fewest words of the GLB.

    No partial sums lie there, and no layer is later than it must. The nests have no loops in a stripe: they are for
    space alone. Raises Refusal where layers need different stripes.
    """
    stages = [[Stage(each, "glb", 0) for each in ("weight", "params") if each in operands(op)] for op in part.layers]
    counts = heights(part.layers, 1, several=True)
    nests = [Mapping((Loop("h", count),), tuple(own)) for count, own in zip(counts, stages, strict=True)]
    return with_rings(part.layers, nests)


def _choices(layer: LayerOp, rows: int, own: Arch) -> list[Mapping]:
    """The nests of a layer in stripes: its own if it has this form and fits the core, else those of three searches."""
    given, shape = mapping_of(layer), layer_shape(layer)
    keeps = given.stages and layer.kind.data != "copy" and is_striped(given, 1, rows)
    if keeps and not any((*space_problems(given, shape, own), *file_problems(given, shape, own))):
        return [striped(layer, given, rows, (), None)]
    port, bus = own.glb.words_per_cycle * CHEAP_LOADS, own.bus.burst_words * CHEAP_LOADS
    busy = replace(
        own,
        glb=replace(own.glb, words_per_cycle=port),
        bus=replace(own.bus, burst_words=bus),
        pe=replace(own.pe, start_cycles=own.pe.start_cycles + DEAR_MACROS),
    )
    nests = [best_of_stripe(layer, rows, own), *(_of_frame(layer, rows, each) for each in (own, busy))]
    return list(dict.fromkeys(striped(layer, nest, rows, (), None) for nest in nests if nest is not None))


def _of_frame(layer: LayerOp, rows: int, arch: Arch) -> Mapping | None:
    """The best mapping of a stripe when all stripes of a frame follow each other: as images, in a loop around it."""
    shape = replace(stripe_shape(layer_shape(layer), rows), kind=kind_in_group(layer))
    stripes = -(-layer.sizes.data.h // rows)
    frame = replace(shape, sizes=replace(shape.sizes, n=stripes))
    budget = GlbBudget(arch.glb.words, residual=layer.residual is not None)
    mapping = whole_mapping(searched(SearchTask(frame, arch, budget, together=False)))
    if mapping is None or all(loop.dim != "n" for loop in mapping.loops):
        return mapping
    # Images are the outermost loop, each by itself (`together`). As stripes, the core goes through them.
    stages = (replace(stage, depth=max(0, stage.depth - 1)) for stage in mapping.stages)
    return Mapping(mapping.loops[1:], tuple(stages))


class _CoreChoice:
    """One core; the fields are fixed at the start. choices: the nests of each layer."""

    def __init__(
        self, part: CorePart, choices: Sequence[Sequence[Mapping]], own: Arch, delays: Sequence[int | None]
    ) -> None:
        """delays: None for the least."""
        self.part, self.layers, self.choices, self.own, self.delays = part, part.layers, choices, own, delays

    def best(self) -> CoreLayers:
        """Layer by layer, each of its nests, with and without a stripe of slack. Raises Refusal where none is legal."""
        nests, slack = [each[-1] for each in self.choices], [0] * len(self.layers)
        best: CoreLayers | None = None
        refusal: Refusal | None = None
        # A layer is chosen while those behind it have their nests of the start. So all but the last are chosen anew.
        for number in (*range(len(self.layers)), *range(len(self.layers) - 1)):
            taken = nests[number], slack[number]
            for nest in self.choices[number]:
                for later in (0, 1) if number and not self.delays else (0,):
                    nests[number], slack[number] = nest, later
                    try:
                        run = self._run(nests, slack)
                    except Refusal as wrong:
                        refusal = wrong
                        continue
                    if best is None or run.period < best.period:
                        best, taken = run, (nest, later)
            nests[number], slack[number] = taken
        if best is None:
            assert refusal is not None
            raise refusal
        return best

    def _run(self, nests: Sequence[Mapping], slack: Sequence[int]) -> CoreLayers:
        """The group of these nests, and its cycles from frame to frame. Raises Refusal where it is not legal."""
        group = with_rings(self.layers, nests, slack=slack)
        if self.delays:
            plans = with_least_delays(group.plans, given=self.delays)
            group = replace(group, plans=tuple(with_least_rings(plans, list(map(rows_apart, self.layers)))))
            if problem := group_problem(group.plans):
                raise Refusal(f"{problem}: leave out delays for the least")
        group.check_on_core()
        # The first frame has no frame before it, behind which its loads could hide.
        return CoreLayers(self.part, group, self._cycles(group, 3) - self._cycles(group, 2))

    def _cycles(self, group: LayerGroup, frames: int) -> int:
        """Cycles of so many frames, one behind the other."""
        plans = over_frames(group.plans, frames)
        layers = [
            LayerPlan(plan.label, replace(layer_shape(layer), sizes=plan.sizes), plan.mapping, bool(layer.residual))
            for layer, plan in zip(group.layers, plans, strict=True)
        ]
        nodes = core_alone(group_plan(group.label, layers, plans), self.own)
        hardware = TimelineMachine.of(self.own)
        return Timeline(hardware, nodes).run(idle_state(hardware)).now
