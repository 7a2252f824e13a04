"""Gives layers the mapping of a dataflow, or one that is written down."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.arch.model import load_arch
from cnncc.dialects._notation import NotationError, read
from cnncc.errors import Refusal
from cnncc.passes._scheduling.dataflows import dataflow
from cnncc.passes._scheduling.schedule_file import Named, Written
from cnncc.passes.nest_schedule_os import Choice, choose


@dataclass(frozen=True)
class NestSetDataflowPass(ModulePass):
    """Writes the mapping of a `dataflow` (os, ws, is, rs, nlr), or a `mapping` in the notation, on `layer` or on all.

    What it leaves out is completed for the layer and for `arch` (a preset or a file), by the rules of docs/mapping.md.
    With `dataflow=ws arch=spatial-8x8`:

        nest.layer "mac" … { … }
        ->
        nest.layer "mac" … mapping "weight@glb > k':8 > [c||6@rows k''||8@cols] > weight@rf*2 > h > w > …" { … }

    `nest-tile`, `nest-permute`, `nest-unroll` and `nest-stage` then bring the nest into that form. Refused is what the
    array has no PEs, links, register files or GLB for. A single layer has the whole GLB for its buffers; where all are
    mapped, pools and elementwise layers get the compiler's own mapping, as by `nest-schedule-os`.
    """

    name = "nest-set-dataflow"

    arch: str
    dataflow: str | None = None
    mapping: str | None = None
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        choose(op, self.layer, Choice(self.name, load_arch(self.arch), {}, self._what()))

    def _what(self) -> Named | Written:
        try:
            if self.dataflow is not None and self.mapping is None:
                dataflow(self.dataflow)
                return Named(self.dataflow)
            if self.mapping is not None and self.dataflow is None:
                read(self.mapping)
                return Written(self.mapping)
        except (NotationError, Refusal) as wrong:
            raise Refusal(f"{self.name}: {wrong}") from wrong
        raise Refusal(f"{self.name}: give either a dataflow or a mapping")
