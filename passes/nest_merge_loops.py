"""Makes one loop of two over the same dimension."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.arch.model import Arch, load_arch
from cnncc.dialects.nest import LayerOp
from cnncc.mapping.mapping import Mapping
from cnncc.passes._scheduling.array_fit import checked_in_space
from cnncc.passes._scheduling.nest_layers import reschedule
from cnncc.passes._scheduling.rewrites import find, merged


@dataclass(frozen=True)
class NestMergeLoopsPass(ModulePass):
    """Makes one loop of the one over `dim` and the one over `dim` directly inside it: the inverse of `nest-split`.

    `occurrence` counts the loops over `dim` from outside, 1 being the outermost and the default. With `dim=h`:

        nest.for h step 4 { nest.for h { … } }           ->   nest.for h { … }
        nest.for h step 4 { nest.par h on rows { … } }   ->   nest.par h on rows { … }

    Illegal if a loop or a stage stands between them, or if only the outer one runs in space. The loop in space takes
    more PEs then: with `arch` (a preset or a file) it is refused if that array has too few.
    """

    name = "nest-merge-loops"

    dim: str
    occurrence: int = 1
    arch: str | None = None
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        arch = load_arch(self.arch) if self.arch else None
        reschedule(self.name, ctx, op, self.layer, lambda layer, mapping: self._merged(layer, mapping, arch))

    def _merged(self, layer: LayerOp, mapping: Mapping, arch: Arch | None) -> Mapping:
        return checked_in_space(merged(mapping, find(mapping, self.dim, self.occurrence)), layer, arch)
