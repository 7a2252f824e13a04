"""The rows of a group's input that come from DRAM into a ring, as plain records: no IR. Rules: GROUP-10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnncc.dialects import array as A
from cnncc.mapping.mapping import Loop
from cnncc.passes._programs.layer_records import ActivationLayout, AxisStep, LoopPieces, Node, Operand, Position


@dataclass(frozen=True)
class LoadedRows:
    """A value in DRAM and the ring for its rows. channels, height, width: of the value."""

    dram: ActivationLayout
    ring: ActivationLayout
    channels: int
    height: int
    width: int

    def section(self, around: Sequence[Loop], at: Position, rows: int) -> list[Node]:
        """The transfer of the rows of one stripe, with its views."""
        loops, width = LoopPieces(around, by_register=True), self.width
        dram = Operand({"n": AxisStep("lin", self.dram.image), "h": AxisStep("y", 1)})
        ring = Operand({"h": AxisStep("y", 1)})
        start, tokens = loops.start(dram, at), at.stripe
        assert tokens is not None
        source = A.View(
            "rows.dram", self.dram.tensor, self.height, width, self.dram.pitch, self.dram.plane, steps=loops.steps(dram)
        )
        target = A.View(
            "rows", self.ring.tensor, self.height, width, width, self.ring.plane, ring_y=self.ring.ring,
            steps=loops.steps(ring),
        )  # fmt: skip
        transfer = A.Dma(
            A.Direction.IN, "rows.dram", "rows", words=width, count=self.channels, rows=rows, dram_offset=start.offset,
            dram_step=self.dram.plane, glb_step=self.ring.plane, y=start.y,
            tokens=A.Tokens(int(tokens.takes), int(tokens.gives)),
        )  # fmt: skip
        return [source, target, transfer]
