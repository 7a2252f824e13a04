"""The parts of a network's program, as the cost model takes them, from a compilation while it runs."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from cnncc.dialects.array import DmaOp, HostOp, LayerOp
from cnncc.mapper.program_schedule import Part
from cnncc.pipeline import TO_PROGRAMS, Compilation, Step
from cnncc.predict import program_parts


class Planned:
    """Watches a compilation for the parts of its program: None where it starts below the nest level."""

    def __init__(self, compilation: Compilation) -> None:
        names = [step.name for step in compilation.remaining()]
        self.mapped = compilation.module.clone() if names[:1] == [TO_PROGRAMS] else None
        self.parts: list[Part] | None = None

    def __call__(self, step: Step, module: ModuleOp) -> None:
        """Keep the mapped layers, and look later at what is fetched ahead for them."""
        if step.name == "nest-stage":
            self.mapped = module.clone()
        elif step.name == "array-prefetch" and self.mapped is not None:
            self.parts = program_parts(self.mapped, fetched_ahead(module))


def fetched_ahead(module: ModuleOp) -> dict[str, frozenset[str]]:
    """By layer the operands that the layer before fetches for it, in a module that `array-prefetch` has left."""
    found: dict[str, frozenset[str]] = {}
    before: LayerOp | None = None
    for op in module.ops:
        if isinstance(op, LayerOp):
            moved = [each.record.data.glb for each in before.walk() if isinstance(each, DmaOp)] if before else []
            found[op.label.data] = frozenset(name.removeprefix("next.") for name in moved if name.startswith("next."))
            before = op
        elif isinstance(op, HostOp):
            before = None
    return found


def mapped_parts(compilation: Compilation) -> list[Part]:
    """The parts of the program of a compilation that has not come below the nest level.

    Goes on with it until all steps that may refuse it have taken it. Raises Refusal.
    """
    plan = Planned(compilation)
    compilation.run("array", [plan])
    assert plan.parts is not None
    return plan.parts
