"""Puts two loops of a nest in each other's place."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.errors import Refusal
from cnncc.passes._scheduling.nest_layers import listed, loop_name, reschedule
from cnncc.passes._scheduling.rewrites import find, interchange


@dataclass(frozen=True)
class NestInterchangePass(ModulePass):
    """Puts two loops in each other's place, with their axes: `loops=h1,c`.

    A dimension names the innermost loop over it. A number after it counts from outside: h1 is the outermost loop
    over h. With `loops=h,c`:

        nest.for h step 4 { nest.for h { nest.for w { nest.for c { … } } } }
        ->
        nest.for h step 4 { nest.for c { nest.for w { nest.for h { … } } } }

    Legal are all but these: tiles stay around what they are tiles of, and no stage may stand between the two loops, as
    it would fetch another slice then.
    """

    name = "nest-interchange"

    loops: tuple[str, ...]
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        names = [loop_name(name) for name in listed(self.loops)]
        if len(names) != 2:
            raise Refusal(f"nest-interchange: loops are two, for example h,c, not {','.join(self.loops)}")
        one, other = names
        reschedule(
            self.name, ctx, op, self.layer, lambda _, nest: interchange(nest, find(nest, *one), find(nest, *other))
        )
