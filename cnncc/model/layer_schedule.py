"""The program of a layer as records of a timeline, from its shape and mapping alone. No IR.

It mirrors the result of `nest-to-array`, instruction by instruction, as far as times depend on it; docs/model.md has
the rules. The two share the meaning of a mapping alone (`routes.py`, `register_files.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.mapping.mapping import OUTPUT_DIMS, REDUCTION_DIMS, Mapping
from cnncc.model.causes import stalls
from cnncc.model.descriptors import descriptor_cycles
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.group_steps import StripeTokens
from cnncc.model.layer_shape import GlbBudget, LayerShape, whole
from cnncc.model.loop_walk import MOST_BODIES, WalkOrder, WalkPosition
from cnncc.model.occupancy import Engines, SpatialLoop, tokens_of
from cnncc.model.register_files import ifmap_words, indexed_by, passes_columns, shared_columns
from cnncc.model.routes import Nest, passing_loop
from cnncc.model.stream_schedule import StreamSchedule
from cnncc.model.timed_program import (
    ARRAY,
    COMMIT,
    DMA,
    IFMAP_FREE,
    IFMAP_FULL,
    LOAD,
    PSUM_FREE,
    PSUM_FULL,
    WEIGHT_FREE,
    WEIGHT_FULL,
    Node,
    PredictedCycles,
    SequencerCycles,
    Task,
    Token,
    Wait,
    repeat,
    settings,
)
from cnncc.model.timeline import Timeline, TimelineMachine, TimelineState, idle_state, predicted_cycles
from cnncc.model.transfers import PRIMED_QUEUES, Fetch, Transfers

PREFETCHED = frozenset({"weight", "params"})  # the operands that may be prefetched while the layer before runs


@dataclass(frozen=True)
class LayerPlan:
    """A layer and its mapping.

    - prefetched: operands. Their first transfers are in the layer before.
    - apart: an operand is a part of a larger one. Its images have gaps between them.
    - drains: the layer waits for its results to be in DRAM (`program_schedule._drains`).
    - rings: operands. They lie in rings of the layer's group.
    - first: rows of the first stripe in a group. 0 stands for as many as others have.
    """

    label: str
    shape: LayerShape
    mapping: Mapping
    residual: bool = False
    prefetched: frozenset[str] = frozenset()
    apart: bool = False
    drains: bool = True
    rings: frozenset[str] = frozenset()
    first: int = 0


def plan_in(budget: GlbBudget, shape: LayerShape, mapping: Mapping) -> LayerPlan:
    """A layer by itself, with a mapping in a GLB budget."""
    return LayerPlan("", shape, mapping, budget.residual, PREFETCHED if budget.prefetched else frozenset())


class LayerSchedule(NamedTuple):
    """The program of a layer with its `sync`. prefetched: its transfers in the layer before."""

    nodes: tuple[Node, ...]
    prefetched: tuple[Fetch, ...]

    def start(self, arch: Arch) -> TimelineState:
        """An idle machine before the layer, with all buffers free except those of prefetched operands."""
        state = idle_state(TimelineMachine.of(arch))
        tokens = list(state.tokens)
        for queue, count in PRIMED_QUEUES.items():
            tokens[queue] = (0,) * count
        for fetch in self.prefetched:
            for queue, _ in fetch.task.takes:
                tokens[queue] = tokens[queue][1:]
            for queue, _ in fetch.task.gives:
                tokens[queue] += (0,)
        return state._replace(tokens=tuple(tokens))

    def cycles(self, arch: Arch) -> int:
        """Cycles from `start` to the end of the layer's `sync`."""
        return Timeline(TimelineMachine.of(arch), self.nodes).run(self.start(arch)).now


@lru_cache(maxsize=64)
def layer_schedule(plan: LayerPlan, arch: Arch, full: Semaphore = Semaphore.FULL) -> LayerSchedule:
    """The program of a layer, by a mapping that `nest-to-array` accepts. full: the semaphore of its weights."""
    staged = plan.mapping.glb_stages
    wait = Wait((LOAD, ARRAY, COMMIT, *((DMA,) if plan.drains and "output" in staged else ())))
    if plan.shape.kind == "copy":
        stream = StreamSchedule(plan.shape, plan.mapping, arch, plan.residual, plan.apart)
        return LayerSchedule((*stream.nodes(), wait), ())
    walk = ScheduleWalk(plan, arch, full)
    return LayerSchedule((*walk.nodes(), wait), tuple(walk.prefetched))


@lru_cache(maxsize=4096)
def layer_cycles(plan: LayerPlan, arch: Arch) -> int:
    """Cycles of a layer from an idle machine, with prefetched operands present, to the end of its `sync`."""
    return layer_schedule(plan, arch).cycles(arch)


def layer_counts(plan: LayerPlan, arch: Arch) -> PredictedCycles:
    """The cycles of `layer_cycles`, with the engines' busy cycles and the array's stalls by cause."""
    schedule = layer_schedule(plan, arch)
    (idle,) = stalls(TimelineMachine.of(arch), schedule.start(arch), [schedule.nodes])
    return predicted_cycles(schedule.nodes, schedule.cycles(arch), idle)


class ChannelNotes(NamedTuple):
    """Queues, 0 for none: a stripe's last load of rows of a channel, and its last commit of such, give tokens to them.

    Nothing waits for these tokens. They say when rows are read, and when they are written.
    """

    read: int = 0
    written: int = 0


class ScheduleWalk:
    """One walk through a layer's nest. stripe: the tokens of the stripe of a group that it walks through.

    notes: what is noted of the layer's stripes, on a core.
    """

    def __init__(self, plan: LayerPlan, arch: Arch, full: Semaphore) -> None:
        self.plan, self.shape, self.arch = plan, plan.shape, arch
        mapping = plan.mapping
        self.nest = Nest(plan.shape, mapping)
        self.outer = self.nest.outer
        self.engines = Engines(plan.shape, arch)
        self.transfers = Transfers(mapping, self.engines, full, plan.apart)
        self.rf = mapping.file_depths
        self.passes = passes_columns(plan.shape, arch, mapping.loops, mapping.stages)
        self.outputs = [dim for dim in OUTPUT_DIMS if any(loop.dim == dim for loop in self.nest.kept)]
        # LEGAL-3: a loop that steps through what PEs hold has a copy of its body for each iteration.
        unrolled = {
            depth
            for operand, stage_depth in self.rf.items()
            for depth, loop in enumerate(self.outer)
            if depth >= stage_depth and not loop.on and loop.dim in indexed_by(plan.shape, operand)
        }
        peeled = max(self.transfers.depths, default=0)
        self.order = WalkOrder(self.nest, unrolled, peeled, self.transfers.opened)
        if (
            self.transfers.slices
            and self.order.bodies_of(WalkPosition(whole(self.shape.sizes)), 0, peeled) > MOST_BODIES
        ):
            # GLB-3: with too many copies of loop bodies second slices come behind the results.
            self.transfers.keep_order()
            self.order = WalkOrder(self.nest, unrolled, peeled)
        self.watched = self.transfers.watched
        self.summed = sum(1 << depth for depth, loop in enumerate(self.outer) if loop.dim in REDUCTION_DIMS)
        self.partial = False  # seen at commits: `Nest.has_partial_sums` would take a second walk
        self.prefetched: list[Fetch] = []
        self.fetched_until = max((stage.depth for stage in self.transfers.stages.values()), default=0)
        self.since = sorted({*self.rf.values(), *self.transfers.since()})
        self.known: dict[object, list[Node]] = {}
        self.stripe, self.notes = StripeTokens(0), ChannelNotes()

    def nodes(self) -> list[Node]:
        """The program without its `sync`."""
        start = WalkPosition(whole(self.shape.sizes))
        fetches = self.transfers.firsts(start, self.order)
        self.prefetched = [fetch for fetch in fetches if fetch.operand in self.plan.prefetched]
        firsts = [fetch.task for fetch in fetches if fetch.operand not in self.plan.prefetched]
        if self.transfers.slices:
            block = self.order.first(start, 0, self.transfers.output_depth)
            firsts += self.transfers.seconds(block, self.order)
        body = self._walk(0, start)
        return [self.views(), *settings(self.shape.table), *firsts, *body]

    def views(self) -> SequencerCycles:
        """The cycles of the descriptors, known when all has been walked through."""
        staged, plan = self.transfers.stages, self.plan
        return SequencerCycles(
            descriptor_cycles(self.shape, self.order, staged, plan.residual, self.partial, plan.rings)
        )

    def head(self) -> list[Task]:
        """The transfers that a layer of a group begins with."""
        return [fetch.task for fetch in self.transfers.firsts(WalkPosition(whole(self.shape.sizes)), self.order)]

    def section(self, at: WalkPosition, stripe: StripeTokens) -> list[Node]:
        """The program of a stripe of a group, without its descriptors and settings."""
        if stripe != self.stripe:
            self.stripe, self.known = stripe, {}
        return self._walk(stripe.depth, at)

    def _walk(self, depth: int, at: WalkPosition) -> list[Node]:
        """The program inside `depth` loops. Inside all transfers it depends on few facts: positions share it."""
        if depth <= self.fetched_until:
            return self._nodes(depth, at)
        key = depth, tuple(at.extent.values()), at.sides, at.section, self._conditions(depth, at)
        if (nodes := self.known.get(key)) is None:
            nodes = self.known[key] = self._nodes(depth, at)
        return nodes

    def _conditions(self, depth: int, at: WalkPosition) -> tuple[int | None, ...]:
        """All that the tokens and the partial sums inside `depth` loops know of the loops around them."""
        section = (at.section,) if at.section >= 0 else ()
        stripe = (self.stripe.depth,) if any(self.stripe[1:]) or any(self.notes) else ()
        sums = at.section < 0 and self._is_partial(depth, at)
        since = (*self.since, *stripe, *section)
        return sums, *map(at.first, since), *map(at.last, since)

    def _is_partial(self, depth: int, at: WalkPosition) -> bool:
        """Whether a loop in time over a reduction dimension, among the `depth` outermost, has several iterations."""
        return bool((at.repeated | at.past_first | at.before_last) & self.summed & ((1 << depth) - 1))

    def _nodes(self, depth: int, at: WalkPosition) -> list[Node]:
        fetches, drains = self.transfers.fetches(depth, at), self.transfers.drains(depth, at, self.order)
        if at.section >= 0 or self.nest.summed_over(depth, at.extent) is None:
            return [*fetches, *self._inside(depth, at), *drains]
        at = at._replace(section=depth)
        return [*fetches, *self._inside(depth, at), self._commit(depth, at), *drains]

    def _inside(self, depth: int, at: WalkPosition) -> list[Node]:
        nodes: list[Node] = []
        if self.rf.get("weight") == depth:
            nodes.append(self._weights(self._spread(depth, at)))
        if self.rf.get("ifmap") == depth:
            nodes += self._ifmap(self._spread(depth, at))
        if depth == len(self.outer):
            return [*nodes, self._macro(at)]
        return nodes + self._pieces(depth, at)

    def _pieces(self, depth: int, at: WalkPosition) -> list[Node]:
        loop, result = self.outer[depth], list[Node]()
        for count, inner in self.order.bodies(at, depth, self.watched):
            body = self._walk(depth + 1, inner)
            if loop.on or depth in self.order.unrolled:
                result += body
            else:
                # No condition names a loop that runs once (`WalkPosition.repeated`): it needs no bit.
                result.append(repeat(count, 1 << depth if count > 1 else 0, tuple(body)))
        return result

    def _spread(self, depth: int, at: WalkPosition) -> WalkPosition:
        """`at` with the PEs of the loops in space further inside, and the extents of one PE."""
        if not any(loop.on for loop in self.outer[depth:]):
            return at
        tile, held, sides = dict(at.extent), dict(at.extent), list(at.sides)
        for number, loop in enumerate(self.outer[depth:], depth):
            # LEGAL-3: all PEs inside have equal parts of what is fetched, so that the first piece stands for all.
            count, size, _ = next(self.nest.pieces(number, tile[loop.dim]))
            if loop.on:
                sides.append(SpatialLoop(loop.dim, size, count, loop.on))
                held[loop.dim] = size
            tile[loop.dim] = size
        return at._replace(extent=held, sides=tuple(sides))

    # -- instructions --------------------------------------------------------------------------------------------

    def _weights(self, at: WalkPosition) -> Task:
        takes, gives = self.transfers.weight_tokens(at)
        words = prod(at.extent[dim] for dim in "kcrs")
        return self.engines.weights(words, at.sides, (Token(WEIGHT_FREE), *takes), (Token(WEIGHT_FULL), *gives))

    def _ifmap(self, at: WalkPosition) -> list[Node]:
        """One load, or two if PEs pass columns on: each PE's own columns, and those that a set's last PE lacks."""
        columns, column = ifmap_words(self.shape, at.extent)
        takes, gives = self.transfers.ifmap_tokens(at)
        takes = (*takes, *tokens_of(self.stripe.takes, at.first(self.stripe.depth)))
        gives = (*gives, *self._at_last(self.stripe.frees, self.notes.read, at))
        takes, gives = (Token(IFMAP_FREE), *takes), (Token(IFMAP_FULL), *gives)
        chain = passing_loop([side for side in at.sides if side.dim == "w"], at.extent["w"])
        shared = shared_columns(self.shape, self.arch, at.extent["s"], at.extent["w"]) if self.passes else 0
        # MAC-6: ping has room for one turn. Other columns are a load of their own even if a PE is a set by itself.
        if not shared or not (self.arch.pe.pong_words or (chain and chain.pes > 1)):
            return [self.engines.ifmap(columns * column, at.sides, takes, gives)]
        lasts = tuple(side for side in at.sides if side is not chain)
        return [
            self.engines.ifmap((columns - shared) * column, at.sides, takes, ()),
            self.engines.ifmap(shared * column, lasts, (), gives),
        ]

    def _at_last(self, semaphore: Semaphore, note: int, at: WalkPosition) -> tuple[Token, ...]:
        """What the last load, or the last commit, of a stripe gives."""
        when = at.last(self.stripe.depth)
        return (*tokens_of(semaphore, when), *((Token(note, when),) if note and when is not None else ()))

    def _macro(self, at: WalkPosition) -> Task:
        steps = prod(at.extent.values())
        for dim in self.nest.lane_dims:
            steps //= self.nest.lanes(dim, at.extent[dim])
        # CAUSE-1: of tokens that come together the first in `takes` counts: weights, ifmap, psums.
        used = [("ifmap", IFMAP_FULL, IFMAP_FREE)]
        if self.shape.is_mac:
            used.insert(0, ("weight", WEIGHT_FULL, WEIGHT_FREE))
        halves = [(full, free, self.rf[operand]) for operand, full, free in used]
        halves.append((PSUM_FREE, PSUM_FULL, at.section))
        takes = [Token(queue, when) for queue, _, depth in halves if (when := at.first(depth)) is not None]
        gives = [Token(queue, when) for _, queue, depth in halves if (when := at.last(depth)) is not None]
        return self.engines.macro(steps, tuple(takes), tuple(gives))

    def _commit(self, depth: int, at: WalkPosition) -> Task:
        partial = self._is_partial(depth, at)
        self.partial = self.partial or partial
        takes, gives = self.transfers.commit_tokens(at)
        takes = (*takes, *tokens_of(self.stripe.space, at.first(self.stripe.depth)))
        gives = (*gives, *self._at_last(self.stripe.gives, self.notes.written, at))
        at = self._spread(depth, at)
        sums = prod(at.extent[dim] for dim in self.outputs)
        # COMMIT-6: the sums of so many PEs of a column are one result.
        together = prod(side.pes for side in at.sides if side.dim in REDUCTION_DIMS)
        rows, cols = (prod(side.pes for side in at.sides if side.on == on) for on in ("rows", "cols"))
        own = "hw" if self.shape.per_position else "k"
        channels = prod(at.extent[dim] for dim in own) * prod(side.pes for side in at.sides if side.dim in own)
        return self.engines.commit(
            rows // together * cols * sums, cols, channels, together - 1, partial, self.plan.residual,
            (Token(PSUM_FULL), *takes), (Token(PSUM_FREE), *gives),
        )  # fmt: skip
