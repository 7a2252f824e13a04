"""The program of a group of layers, as plain records: no IR.

    weights and params of all layers              once
    i0, count images                              a loop over images, where there are several
      i1, count steps                             a hardware loop for each body (`cnncc/model/group_steps.py`)
        views, transfer of rows from DRAM         a section of a load: one stripe
        views, unit, loops of the first layer     a section: one stripe
        views, unit, loops of the second layer
      …

Each section sets its descriptors anew, so that 16 of them do for any number of layers. Loops are named after their
registers, which the layers share.

The weights of all layers arrive by one semaphore, in the order in which layers first run. Params of layers without
weights come before all weights and blocks. The first load of the group waits for what comes after them.

On a core the loop over images is one over frames, and core 0 has the transfers (`core_program.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cnncc.arch.model import Arch
from cnncc.dialects import array as A
from cnncc.errors import Refusal
from cnncc.mapping.channels import CoreEnds
from cnncc.mapping.groups import GroupLayer
from cnncc.model.core_steps import waits_on_core
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.group_steps import GroupBody, Section, check_stages, group_bodies, transfer_order, waits_for_weights
from cnncc.model.layer_shape import whole
from cnncc.passes._programs.layer_program import ProgramWalk
from cnncc.passes._programs.layer_records import Body, Node, Piece, Position, ProgramLayer
from cnncc.passes._programs.loaded_rows import LoadedRows


def group_program(layers: Sequence[ProgramLayer | LoadedRows], group: Sequence[GroupLayer], arch: Arch) -> list[Node]:
    """The program of a group. Raises Refusal where the array cannot run it, saying why."""
    program = GroupProgram(layers, group, arch)
    return [*program.transfers(), *program.steps()]


class GroupProgram:
    """One group; the fields are fixed at the start. ends: the tokens of what a core reads and writes."""

    def __init__(
        self,
        members: Sequence[ProgramLayer | LoadedRows],
        group: Sequence[GroupLayer],
        arch: Arch,
        ends: CoreEnds | None = None,
    ) -> None:
        self.group, self.over_frames = group, ends is not None
        self.depth, self.images = group[0].depth, group[0].sizes.n
        self.waits = waits_on_core(group) if self.over_frames else waits_for_weights(group)
        self.walks: dict[int, ProgramWalk] = {}
        self.loads: dict[int, LoadedRows] = {}
        for number, (member, waits) in enumerate(zip(members, self.waits, strict=True)):
            if isinstance(member, LoadedRows):
                self.loads[number] = member
            else:
                layer = replace(member, full=member.full if waits else Semaphore.NONE)
                self.walks[number] = ProgramWalk(layer, arch)
        layers = {number: walk.layer for number, walk in self.walks.items()}
        with_residual = {number for number, layer in layers.items() if layer.tensors.residual}
        if not self.over_frames:
            check_stages(group, [number in with_residual for number in range(len(group))])
        for layer in layers.values():
            if layer.shape.per_position:
                where = "no core takes it" if self.over_frames else "leave it out of the group"
                raise Refusal(f"layer {layer.label} has a scale for each position: {where}")
        self.prefetches = [
            number in self.walks and bool(self.walks[number].transfers.depths) for number in range(len(group))
        ]
        self.bodies = group_bodies(group, self.prefetches, ends)

    def transfers(self) -> list[Node]:
        """The transfers of weights, params and first blocks, with their views."""
        order = transfer_order(self.group, self.waits, self.prefetches)
        return [node for number in order for node in self.walks[number].head()]

    def steps(self) -> list[Node]:
        """All images, one after the other."""
        if self.depth == 1:
            return self._image(None)
        if self.over_frames:
            frames = Piece(0, 0, self.images, True, True)
            return [Body(A.Repeat("i0", 1, frames=True), tuple(self._image(frames)))]
        return [Body(A.Repeat("i0", piece.count), tuple(self._image(piece))) for piece in self._images()]

    def _images(self) -> list[Piece]:
        """The images. The last one is a piece of its own if the others prefetch the first stripe of the next image."""
        if not any(self.prefetches):
            return [Piece(0, 0, self.images, True, True)]
        return [Piece(0, 0, self.images - 1, True, False), Piece(0, self.images - 1, 1, False, True)]

    def _image(self, image: Piece | None) -> list[Node]:
        return [
            Body(
                A.Repeat(f"i{self.depth - 1}", body.steps),
                tuple(node for section in body.sections for node in self._section(body, section, image)),
            )
            for body in self.bodies
        ]

    def _section(self, body: GroupBody, section: Section, image: Piece | None) -> list[Node]:
        layer = self.group[section.layer]
        # GROUP-11: behind a first stripe of 1 row, stripes of 4 begin at rows 1, 5, …: 3 less than their numbers say.
        less = section.stripe * layer.rows - layer.stripes.start(section.stripe)
        # No condition of a layer in a group asks for its last stripe.
        stripe = Piece(self.depth - 1, section.stripe, body.steps, section.stripe == 0, False, less)
        if load := self.loads.get(section.layer):
            pieces = (*((image,) if image else ()), stripe)
            return load.section(layer.around, Position({}, pieces, stripe=section.tokens), section.rows)
        following = self._following(section, stripe, image) if self.prefetches[section.layer] else None
        at = replace(
            self._position(section.layer, stripe, section.rows, image),
            following={self.depth: following} if following else {},
            stripe=section.tokens,
        )
        return self.walks[section.layer].section(at)

    def _position(self, number: int, stripe: Piece, rows: int, image: Piece | None) -> Position:
        sizes = whole(self.walks[number].layer.shape.sizes)
        return Position({**sizes, "n": 1, "h": rows}, (*((image,) if image else ()), stripe))

    def _following(self, section: Section, stripe: Piece, image: Piece | None) -> Position | None:
        """The next stripe of the layer: of this image, else of the next one."""
        if section.following:
            return self._position(section.layer, replace(stripe, base=stripe.base + 1), section.following, image)
        if image is None or image.last:
            return None
        # In the last of several images of a piece the next one is the first of the next piece: one further, too.
        rows = self.group[section.layer].stripes.rows_of(0)
        return self._position(section.layer, replace(stripe, base=0, less=0), rows, replace(image, base=image.base + 1))
