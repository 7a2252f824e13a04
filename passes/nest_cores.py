"""Puts layers side by side on cores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.arch.model import Arch
from cnncc.context import CompilerContext, note
from cnncc.dialects.nest import CoresOp, GroupOp
from cnncc.errors import Refusal, refusals_of
from cnncc.mapping.channels import Region
from cnncc.passes._programs.array_mark import mark, marked_array
from cnncc.passes._scheduling.core_chain import CoreChain, CorePlan, cores_op, regions_in_array_problem, span
from cnncc.passes._scheduling.core_choice import CoreSearch
from cnncc.passes._scheduling.core_mapping import core_layers
from cnncc.passes._scheduling.core_parts import LayerGraph
from cnncc.passes._scheduling.flattened_inputs import read_unflattened
from cnncc.passes._scheduling.layer_groups import check_stripe
from cnncc.passes._scheduling.nest_layers import chosen_layers, label_of, layer_shape, listed
from cnncc.passes._scheduling.schedule_file import GivenCore, read_schedule
from cnncc.util.progress import silent

PLACE = re.compile(r"(\d+)x(\d+)@(\d+),(\d+)")
MOST_SIDE = 1 << 15  # of a rectangle of PEs, or its first row or column; arrays have 32 at most


@dataclass(frozen=True)
class NestCoresPass(ModulePass):
    """Puts the layers side by side: those of each core run as a group on PEs of its own, with channels between them.

    Why: several images are then in the array at once, and rows flow from core to core (docs/cores.md). With
    `cores="conv0;pool1,conv2" places="1x4@3,0;3x4@0,0"`:

        %1 = nest.layer "mac" %0 … label "conv0" … { … }
        %2 = nest.layer "max" %1 … label "pool1" … { … }
        %3 = nest.layer "mac" %2 … label "conv2" … { … }
        ->
        %3 = nest.cores "conv0..conv2" lag 1 : tensor<…> {
          %4 = nest.group "conv0" on <rows = 1, cols = 4, row0 = 3> : tensor<…> { … }
          %5 = nest.channel "conv0" %4 keeps 2 : tensor<…>
          %6 = nest.group "pool1..conv2" on <rows = 3, cols = 4> : tensor<…> { … }
          nest.yield %6 : tensor<…>
        }

    `places`: rows x columns of PEs, then the first row and column. `rows`: of a stripe of each core's last layer, one
    number for all cores or one for each. `keeps`: the rows of channels behind each core; without it the fewest.
    `delays`: how many stripes each layer of a core runs behind its first one, the cores parted by `;`. `lag`: by how
    many frames results leave behind the images.

    A nest that runs stripe by stripe and fits the core keeps its loops. The others, and delays that are not given, are
    those with which the core takes the fewest cycles for a frame. Layers that are not mapped yet, and those mapped to
    an array of a file, need `arch`.

    With `schedule` the cores are those of a schedule file (docs/schedule.md). Without it and `cores` the pass chooses
    them, with the most frames in a time, or with the fewest PEs for `fps` frames a second.
    """

    name = "nest-cores"

    cores: str | None = None
    places: str = ""
    rows: tuple[int, ...] = (1,)
    keeps: tuple[int, ...] = ()
    delays: str = ""
    lag: int = 1
    schedule: str | None = None
    fps: int | float | None = None
    arch: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        try:
            if self.cores is None and any(isinstance(inner, CoresOp) for inner in op.walk()):
                note(ctx, f"{self.name}: nothing to do: the layers are on cores already")
                return
            arch = marked_array(op, self.arch, self.name)
            if isinstance(ctx, CompilerContext):
                read_unflattened(op, ctx.weights)
            if self.cores is not None and (self.schedule is not None or self.fps is not None):
                raise Refusal("give either cores, or a schedule, or fps")
            if (given := self._given()) is not None:
                chain = _given_chain(op, given, self._lag(), arch)
            else:
                chain = self._chosen(ctx, op, arch)
            if problem := chain.problem(arch):
                raise Refusal(problem)
        except Refusal as refusal:
            if str(refusal).startswith(self.name):
                raise
            raise Refusal(f"{self.name}: {refusal}") from refusal
        if isinstance(ctx, CompilerContext):
            ctx.decided(chain)
        cores_op(chain)
        mark(op, arch)

    def _lag(self) -> int:
        lag = self.lag if self.schedule is None else read_schedule(self.schedule).lag
        if lag < 1:
            raise Refusal(f"lag {lag}: results leave 1 or more frames behind")
        return lag

    def _given(self) -> list[GivenCore] | None:
        """The cores that options or a schedule file say; None where they are to be chosen. Raises Refusal."""
        if self.schedule is not None and (given := read_schedule(self.schedule).cores):
            return list(given)
        if self.cores is None:
            return None
        names = [listed((part,)) for part in self.cores.split(";")]
        count, places = len(names), [part.strip() for part in self.places.split(";")]
        rows = self.rows * count if len(self.rows) == 1 else self.rows
        delays = [_numbers(part) for part in self.delays.split(";")] if self.delays else [()] * count
        keeps = self.keeps or (0,) * (count - 1)
        _check_count("places", places, count, "cores: one rectangle for each")
        _check_count("rows", rows, count, "cores: one number, or one for each")
        _check_count("keeps", keeps, count - 1, "channels: one for each")
        _check_count("delays", delays, count, "cores: one list for each, parted by ';'")
        of_cores = zip(names, places, rows, delays, (*keeps, 0), strict=True)
        return [GivenCore(tuple(each), place, own, later, kept) for each, place, own, later, kept in of_cores]

    def _chosen(self, ctx: Context, module: ModuleOp, arch: Arch) -> CoreChain:
        """The chain that is the best on the array. Raises Refusal."""
        graph, _ = parted(module, [[label_of(layer) for layer in chosen_layers(module, None)]])
        if arch.cores.most < 2:
            raise Refusal(f"{arch.name} has {arch.cores.most} core (cores.most, CORE-1): another array, as tcpa-4x4")
        shapes = [layer_shape(layer) for layer in graph.layers]
        words = sum(shape.weight_words + shape.param_words(arch) for shape in shapes)
        if words > arch.glb.words:
            raise Refusal(
                f"{arch.name}: all weights and parameters lie in the GLB: {words:,} words, limit {arch.glb.words:,}; "
                f"a larger GLB, or layers one after the other (without --parallel)"
            )
        search = CoreSearch(graph, arch, ctx.progress if isinstance(ctx, CompilerContext) else silent)
        if self.fps is None:
            return search.fastest().chain
        if not arch.clock_mhz:
            raise Refusal(f"fps = {self.fps:g}: {arch.name} has no clock_mhz")
        return search.fewest_pes(self.fps).chain


def _given_chain(module: ModuleOp, given: Sequence[GivenCore], lag: int, arch: Arch) -> CoreChain:
    """The chain of given cores. Raises Refusal."""
    places = [(span(core.layers), _region(core.place)) for core in given]
    if problem := regions_in_array_problem(places, arch):
        raise Refusal(problem)
    plans = list[CorePlan]()
    graph, bounds = parted(module, [core.layers for core in given])
    for (first, end), core, (_, place) in zip(pairwise(bounds), given, places, strict=True):
        with refusals_of(f"core '{span(core.layers)}'"):
            check_stripe(core.rows, graph.layers[end - 1])
            if core.delays and len(core.delays) != end - first:
                raise Refusal(f"delays has {len(core.delays)} numbers for {end - first} layers: one for each")
            part = graph.part(first, end)
            plans.append(CorePlan(place, part, core_layers(part, place, core.rows, arch, core.delays).group))
    if given[-1].keeps:
        raise Refusal(f"core '{span(given[-1].layers)}': keeps is of the channel behind a core, and it is the last one")
    chain = CoreChain.with_fewest_rows(plans, lag)
    links = chain.as_data.links
    # Of several channels behind a core one may have fewer rows than its schedule keeps.
    keeps = [
        (min(core.keeps, each.height) if len(link.channels) > 1 else core.keeps) or each.keeps
        for core, link in zip(given, links, strict=False)
        for each in link.channels
    ]
    return replace(chain, keeps=tuple(keeps))


def _check_count(name: str, given: Sequence[object], wanted: int, what: str) -> None:
    if len(given) != wanted:
        raise Refusal(f"{name} has {len(given)} entries for {wanted} {what}")


def _region(text: str) -> Region:
    """`3x4@0,2`: so many rows and columns from a row and a column on."""
    match = PLACE.fullmatch(text)
    numbers = [int(number) for number in match.groups()] if match else []
    if not numbers or min(numbers[:2]) < 1 or max(numbers) > MOST_SIDE:
        raise Refusal(f"'{text}' is no rectangle of PEs: ROWSxCOLS@ROW,COL, as 1x2@3,0")
    rows, cols, row0, col0 = numbers
    return Region(rows, cols, row0, col0)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(",") if number.strip())
    except ValueError as error:
        raise Refusal(f"delays: '{text}' is no list of whole numbers") from error


def parted(module: ModuleOp, names: Sequence[Sequence[str]]) -> tuple[LayerGraph, list[int]]:
    """The layers, and the numbers of those at which cores begin, with the end. Raises Refusal where cores cannot."""
    layers = chosen_layers(module, None)
    flat = [name for part in names for name in part]
    if twice := next((name for name in flat if flat.count(name) > 1), None):
        raise Refusal(f"layer '{twice}' is named twice: a layer runs on one core")
    labels = [label_of(layer) for layer in layers]
    if unknown := next((name for name in flat if name not in labels), None):
        raise Refusal(
            f"there is no layer '{unknown}' for a core; layers: {', '.join(labels) or 'none'}; "
            f"what the host computes is on no core (cores.host)"
        )
    wanted = {name: chosen_layers(module, name) for name in flat}
    parts = [sorted((each for name in part for each in wanted[name]), key=layers.index) for part in names]
    if inside := next((layer for layer in layers if isinstance(layer.parent_op(), GroupOp)), None):
        raise Refusal(f"layer '{label_of(inside)}' is in a group already: groups of cores are made from single layers")
    if left := next((layer for layer in layers if label_of(layer) not in wanted), None):
        raise Refusal(f"layer '{label_of(left)}' is on no core: all layers are, or the host computes them (cores.host)")
    if early := next((layer for layer in layers if layer.mapping), None):
        what = f"layer '{label_of(early)}' has a mapping that is not applied yet"
        raise Refusal(f"{what}: cores are for a dump after cnn-to-nest or nest-stage")
    if several := next((layer for layer in layers if layer.sizes.data.n > 1), None):
        raise Refusal(
            f"layer '{label_of(several)}' has {several.sizes.data.n} images: frames follow each other, an image each: "
            f"compile with --batch 1"
        )
    in_turn = [layer for part in parts for layer in part]
    if wrong := next((pair for pair in zip(in_turn, layers, strict=True) if pair[0] is not pair[1]), None):
        at, due = map(label_of, wrong)
        raise Refusal(f"layer '{at}' stands where '{due}' is due: cores follow each other as the layers do")
    return LayerGraph.of(layers), [0, *accumulate(map(len, parts))]
