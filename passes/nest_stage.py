"""Places the fetches of a nest: which slice of an operand is copied where, and when."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.dialects.nest import LayerOp, mapping_of, operands
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Mapping, Stage
from cnncc.passes._scheduling.nest_layers import chosen_layers, goal_of, reschedule
from cnncc.passes._scheduling.rewrites import Missing, add_stage, stage_as


@dataclass(frozen=True)
class NestStagePass(ModulePass):
    """Fetches `operand` into `memory` inside the `depth` outermost loops.

    The operand is weight or ifmap in rf, and weight, ifmap, params, residual or output in glb. Of the output it is the
    reverse: what the loops inside compute is gathered and leaves when they are done.
    Loops inside all stages in register files become the kept ones, those of one macro-instruction.
    With `operand=weight memory=rf depth=1 buffers=2`:

        nest.for c { nest.for k { nest.mac } }
        ->
        nest.for c { nest.stage weight in rf buffers 2  nest.for k keep { nest.mac } }

    Without options every layer with a `mapping` gets all its stages. Its nest is then that mapping, so the attribute
    is removed.
    """

    name = "nest-stage"

    operand: str | None = None
    memory: str | None = None
    depth: int | None = None
    buffers: int = 1
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.operand is None and self.memory is None and self.depth is None:
            self._apply_mappings(ctx, op)
        elif self.operand is None or self.memory is None or self.depth is None:
            raise Refusal("nest-stage: options operand, memory and depth go together")
        else:
            stage = _stage(self.operand, self.memory, self.depth, self.buffers)
            reschedule(self.name, ctx, op, self.layer, lambda layer, mapping: _with_stage(layer, mapping, stage))

    def _apply_mappings(self, ctx: Context, op: ModuleOp) -> None:
        reschedule(self.name, ctx, op, self.layer, _staged, by_hand=False)
        for layer in chosen_layers(op, self.layer):
            if goal := goal_of(layer):
                assert mapping_of(layer) == goal, "nest-stage made another nest than the mapping says"
                layer.mapping = None


def _staged(layer: LayerOp, mapping: Mapping) -> Mapping | None:
    goal = goal_of(layer)
    return goal and stage_as(mapping, goal)


def _with_stage(layer: LayerOp, mapping: Mapping, stage: Stage) -> Mapping:
    if stage.operand not in (known := operands(layer)):
        raise Missing(f"it has no {stage.operand}, it has {', '.join(sorted(known))}")
    return add_stage(mapping, stage)


def _stage(operand: str, memory: str, depth: int, buffers: int) -> Stage:
    try:
        return Stage(operand, memory, depth, buffers)
    except ValueError as error:
        raise Refusal(f"nest-stage: {error}") from error
