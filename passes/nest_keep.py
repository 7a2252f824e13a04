"""Puts loops into the box, where a PE keeps what they need."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.arch.model import load_arch
from cnncc.dialects.nest import LayerOp
from cnncc.mapping.mapping import Mapping
from cnncc.passes._scheduling.array_fit import file_problems, refuse_any
from cnncc.passes._scheduling.nest_layers import layer_shape, listed, reschedule
from cnncc.passes._scheduling.rewrites import keep


@dataclass(frozen=True)
class NestKeepPass(ModulePass):
    """Makes the box of the innermost loops over the dimensions in `loops`, in this order, comma-separated.

    They move inside all others, and weights and ifmap are staged in register files around them: the textbook's box,
    "the corresponding data is cached locally". With `loops=s,r`:

        nest.for r { nest.for s { nest.for h { nest.mac } } }
        ->
        nest.for h { nest.stage weight in rf buffers 1  nest.stage ifmap in rf buffers 1
                     nest.for s keep { nest.for r keep { nest.mac } } }

    Illegal for loops in space, for loops inside which something is staged already, and where there is a box.
    With `arch` (a preset or a file) there are as many buffers as its files have halves, and a box for which these are
    too small is refused.
    """

    name = "nest-keep"

    loops: tuple[str, ...]
    arch: str | None = None
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        reschedule(self.name, ctx, op, self.layer, self._kept)

    def _kept(self, layer: LayerOp, mapping: Mapping) -> Mapping:
        arch = load_arch(self.arch) if self.arch else None
        buffers = {"ifmap": arch.pe.ifmap_halves if arch else 1}
        if layer.weights is not None:
            buffers = {"weight": arch.pe.weight_halves if arch else 1, **buffers}
        kept = keep(mapping, listed(self.loops), buffers)
        if arch is not None:
            refuse_any(file_problems(kept, layer_shape(layer), arch))
        return kept
