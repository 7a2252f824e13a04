"""The PE-set program of one layer, as plain records: no IR.

The loops of a mapping outside the box, outermost first, become loops of the program or PEs side by side (in space). A
loop that steps through words that a register file holds already is *unrolled*, a copy for each iteration. A loop whose
step does not divide its extent becomes two pieces: its full tiles, and a body of its own for the remainder. Space loops
give a piece its rectangle of PEs; their remainder is a further step in time. Each piece of a time loop is a `Repeat`,
also of one iteration, so that a loop has the same register in all bodies of the layer. The rest of the innermost loop
over channels in space is spread over its sets.

Sums stay in their PEs during loops over c, r, s without a loop over outputs inside them. A commit takes the sums after
these loops. It adds them up down the columns if loops over c, r, s are on rows (rule COMMIT-6). If further loops over
c, r, s are outside, the sums are partial, and the GLB adds them up (rule COMMIT-5).

The input channels of output channel k, of K in g groups, begin at k // (K / g) * c. An iteration of a loop over k adds

    step / (K / g) * c   if its step is a multiple of K / g
    0                    if the loop runs inside one group

Channels side by side are of one group and share their ifmap; or each is a group with an ifmap of its own
(*channelwise*: pools and depthwise convolutions).

| file | holds |
|---|---|
| `layer_instructions.py` | loads, macro-instructions, commits |
| `layer_transfers.py` | transfers between DRAM and the GLB |
| `layer_operands.py` | the places of operands in DRAM and the GLB |
| `cnncc/model/register_files.py` | the places of operands in a PE |
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from cnncc.arch.model import Arch
from cnncc.dialects import array as A
from cnncc.errors import Refusal
from cnncc.mapping.mapping import rest_sets
from cnncc.model.layer_shape import slices, whole
from cnncc.model.loop_walk import MOST_BODIES
from cnncc.model.register_files import indexed_by
from cnncc.passes._programs.layer_instructions import LayerInstructions
from cnncc.passes._programs.layer_operands import Operands
from cnncc.passes._programs.layer_order import IterationOrder
from cnncc.passes._programs.layer_records import Body, LoopPieces, Node, Position, ProgramLayer, split
from cnncc.passes._programs.layer_sums import Sections
from cnncc.passes._programs.layer_transfers import LayerTransfers, alternating
from cnncc.passes._scheduling.array_fit import file_problems, link_problems, refuse_any


def layer_program(layer: ProgramLayer, arch: Arch) -> list[Node]:
    """The program of a layer, views first. Raises Refusal where the array cannot run the mapping, saying why."""
    return ProgramWalk(layer, arch).program()


class ProgramWalk:
    """One walk through a layer's nest; the fields are fixed at the start."""

    def __init__(self, layer: ProgramLayer, arch: Arch) -> None:
        self.layer, self.arch = layer, arch
        loops = layer.mapping.loops
        self.outer = tuple(loop for loop in loops if not loop.keep)
        self.sets = rest_sets(layer.shape.sizes, loops, layer.shape.tiled_together)
        self.rf = layer.mapping.file_depths
        self._check_form()
        self.unrolled = self._unrolled()
        self.order = self._order()
        self.operands = Operands(layer, self.order)
        self.sections = Sections(layer.shape, self.outer, self.sets)
        self.instructions = LayerInstructions(layer, arch, self.operands)
        self.transfers = LayerTransfers(layer, self.operands)
        self.watched = sorted({stage.depth for stage in self.transfers.stages.values()})

    def _refuse(self, why: str) -> Refusal:
        return Refusal(f"layer {self.layer.label}: {why}")

    def _check_form(self) -> None:
        self._check_groups()
        mapping, shape = self.layer.mapping, self.layer.shape
        for problems in (link_problems, file_problems):
            refuse_any(problems(mapping, shape, self.arch), f"layer {self.layer.label}: ")
        wanted = {"ifmap", "weight"} if shape.is_mac else {"ifmap"}
        if shape.is_mac and "weight" not in self.layer.mapping.glb_stages:
            raise self._refuse("weights must be staged in glb: they come from DRAM")
        if shape.params and "params" not in self.layer.mapping.glb_stages:
            per = "params per position" if shape.per_position else "params"
            raise self._refuse(f"{per} must be staged in glb: they come from DRAM")
        if set(self.rf) != wanted:
            raise self._refuse(f"{' and '.join(sorted(wanted))} must be staged in rf")

    def _check_groups(self) -> None:
        """Every loop over k goes from period to period of an operand, or runs inside one; a PE has one ifmap."""
        for operand, period in self.layer.shape.periods.items():
            extent = self.layer.shape.sizes.k
            for depth, loop in enumerate(self.layer.mapping.loops):
                if loop.dim != "k":
                    continue
                if extent > period and loop.step % period:
                    raise self._refuse(
                        f"the loop over k takes {loop.step} of {extent} output channels at a time, across groups of "
                        f"{period} in the {operand}: it needs steps that are multiples of {period}, or a loop of step "
                        f"{period} around it"
                    )
                if operand == "ifmap" and extent > period and self.rf.get("ifmap", depth + 1) <= depth:
                    raise self._refuse("the ifmap is staged in rf inside the loops over groups: each has its own")
                extent = min(loop.step, extent)

    def _unrolled(self) -> frozenset[int]:
        """The loops in time that step through what a register file holds. Raises Refusal for too many iterations."""
        unrolled = {
            depth
            for operand, staged in self.rf.items()
            for depth, loop in enumerate(self.outer)
            if depth >= staged and not loop.on and loop.dim in indexed_by(self.layer.shape, operand)
        }
        extent, counts = whole(self.layer.shape.sizes), dict[int, int]()
        for depth, loop in enumerate(self.outer):
            counts[depth] = -(-extent[loop.dim] // loop.step)
            extent[loop.dim] = min(loop.step, extent[loop.dim])
        if (copies := prod(counts[depth] for depth in unrolled)) > MOST_BODIES:
            names = " ".join(self.outer[depth].dim for depth in sorted(unrolled))
            raise self._refuse(
                f"loops {names} step through what the register files hold and take {copies} unrolled copies, more than "
                f"{MOST_BODIES}: put them in the box, or stage inside them"
            )
        return frozenset(unrolled)

    def _order(self) -> IterationOrder:
        """The order of pieces, loops peeled around stages with two buffers. Raises Refusal for too many copies."""
        sizes = whole(self.layer.shape.sizes)
        loops = LoopPieces(self.outer, self.unrolled, self.layer.in_group)
        peeled = max((stage.depth for stage in alternating(self.layer.mapping.glb_stages)), default=0)
        order = IterationOrder(loops, sizes, self.sets, peeled, slices(self.layer.mapping)[1])
        # GLB-3: a layer that is too large with the first iterations peeled, too, may do without that.
        if order.opened >= 0 and order.copies(0, peeled, sizes) > MOST_BODIES:
            order = IterationOrder(loops, sizes, self.sets, peeled)
        if (copies := order.copies(0, peeled, sizes)) > MOST_BODIES:
            raise self._refuse(
                f"the {peeled} loops around a stage in glb with two buffers take {copies} copies of loop bodies, more "
                f"than {MOST_BODIES}: one buffer, or a stage inside fewer loops"
            )
        return order

    # -- the walk ------------------------------------------------------------------------------------------------

    def program(self) -> list[Node]:
        start = Position(whole(self.layer.shape.sizes))
        return [*self.operands.views(), self.layer.unit, *self.transfers.firsts(start), *self._walk(0, start)]

    def head(self) -> list[Node]:
        """The transfers that a layer of a group begins with, and their views; nothing where there are none."""
        firsts = self.transfers.firsts(Position(whole(self.layer.shape.sizes)))
        return [*self.operands.views(), *firsts] if firsts else []

    def section(self, at: Position) -> list[Node]:
        """The program of a stripe of a group."""
        return [*self.operands.views(), self.layer.unit, *self._walk(len(at.pieces), at)]

    def _walk(self, depth: int, at: Position) -> list[Node]:
        fetches, drains = self.transfers.fetches(depth, at), self.transfers.drains(depth, at)
        if at.section is not None or not self.sections.opens(depth, at.extent):
            return [*fetches, *self._inside(depth, at), *drains]
        self._check_section(depth)
        at = replace(at, section=depth)
        ends = self.sections.ends(self.operands.loops, at.pieces)
        commit = self.instructions.commit(self._spread(depth, at), ends, self.transfers.commit_tokens(at))
        return [*fetches, *self._inside(depth, at), commit, *drains]

    def _check_section(self, depth: int) -> None:
        for stage in self.layer.mapping.glb_stages.values():
            by_loads = stage.operand == "weight" or (
                stage.operand == "ifmap" and self.transfers.tokens.is_freed_by_loads()
            )
            # The commit, which frees other buffers, comes behind all iterations: the second slice would wait for ever.
            if stage.depth > depth and not by_loads:
                raise self._refuse(f"{stage.operand} is staged in glb inside loops that add up sums in the PEs")

    def _inside(self, depth: int, at: Position) -> list[Node]:
        nodes: list[Node] = []
        # As transfers come (`glb_tokens.ORDER`): loads run in order, and one that waits holds up weights that are
        # there.
        for operand in ("weight", "ifmap"):
            if self.rf.get(operand) == depth:
                spread = self._spread(depth, at, operand)
                tokens = self.transfers.weight_tokens(at) if operand == "weight" else self.transfers.ifmap_tokens(at)
                held, loads = self.instructions.loads(operand, spread, tokens)
                at, nodes = replace(at, held={**at.held, operand: held}), [*nodes, *loads]
        if depth == len(self.outer):
            return [*nodes, self.instructions.mac(at, self.rf)]
        return [*nodes, *self._pieces(depth, at)]

    def _pieces(self, depth: int, at: Position) -> list[Node]:
        result: list[Node] = []
        for (count, _, _), inside in self.order.bodies(at, self.watched):
            body = self._walk(depth + 1, inside)
            plain = self.outer[depth].on or depth in self.unrolled
            result += body if plain else [Body(A.Repeat(self.operands.loops.name(depth), count), tuple(body))]
        return result

    def _spread(self, depth: int, at: Position, operand: str = "") -> Position:
        """A position spread over the PEs of the loops in space inside it: these PEs, and the part that each has.

        operand: what is to be loaded there. Raises Refusal where PEs would not have the same at all times.
        """
        if not any(loop.on for loop in self.outer[depth:]):
            return at
        if not self.sections.uniform(depth, at.extent):
            raise self._refuse(
                f"{operand} is staged in rf outside loops in space that do not take equal parts: tiles must divide "
                f"what is around them there, or the stage stand inside these loops"
            )
        # `tile` shrinks by all loops inside; `held`, what a PE gets of the operand, by those in space alone.
        tile, held, space = dict(at.extent), dict(at.extent), at.space
        timed: set[str] = set()
        for i, loop in enumerate(self.outer[depth:], depth):
            (count, size, _), *_ = split(tile[loop.dim], loop.step, self.sets[i])
            if loop.on:
                if loop.dim in timed and loop.dim in indexed_by(self.layer.shape, operand):
                    raise self._refuse(
                        f"{operand} is staged in rf outside a loop over {loop.dim} in time around one in space: a PE "
                        f"would hold parts of it that do not lie beside each other"
                    )
                space, held[loop.dim] = (*space, (replace(loop, step=size), count)), size
            elif count > 1:
                timed.add(loop.dim)
            tile[loop.dim] = size
        return replace(at, extent=held, space=space)
