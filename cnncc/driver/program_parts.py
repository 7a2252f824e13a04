"""The parts of a network's program, as input of the cost model (`cnncc/model/`), from a module of mapped layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue

from cnncc.arch.model import Arch
from cnncc.dialects import array
from cnncc.dialects.cnn import HostOp, Quant, quants_of, shape
from cnncc.dialects.nest import (
    CoresOp,
    GroupOp,
    LayerOp,
    group_layers,
    image_readers,
    image_shape,
    links_of,
    mapping_of,
)
from cnncc.driver.pipeline import CORES, GROUP, STAGE, TO_PROGRAMS, Compilation, Observer, Step
from cnncc.main_function import main_function
from cnncc.model.cores_counts import all_counts
from cnncc.model.cores_plan import CoresPlan, cores_plan
from cnncc.model.energy import with_energy
from cnncc.model.group_schedule import GroupPlan, group_plan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.program_schedule import HostPart, Part, copies
from cnncc.passes._programs.tensors import image_step, is_read_in_glb, planes_apart, source, staged, uses
from cnncc.passes._programs.tensors import parts as concatenated
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape

Prefetched = Mapping[str, frozenset[str]]


def plan_of(op: LayerOp, prefetched: frozenset[str] = frozenset()) -> LayerPlan:
    """The plan of a mapped layer for the cost model. prefetched: operands."""
    return LayerPlan(label_of(op), layer_shape(op), mapping_of(op), op.residual is not None, prefetched, _apart(op))


def group_plan_of(op: GroupOp) -> GroupPlan:
    """The plan of a group for the cost model."""
    return group_plan(op.label.data, [plan_of(layer) for layer in op.layers()], group_layers(op))


def cores_plan_of(op: CoresOp) -> CoresPlan:
    """The plan of layers side by side for the cost model."""
    return cores_plan(
        op.label.data,
        op.lag.value.data,
        [(group_plan_of(group), group.place.data) for group in op.groups() if group.place],
        image_readers(op),
        links_of(op),
        _words(op.image),
        _words(op.outputs[0]),
        image_shape(op.image.type)[2],
    )


def _apart(op: LayerOp) -> bool:
    """Whether an operand has several images with gaps between, because they are parts of larger images.

    Channels that are interleaved with others lie as far apart within an image as from image to image.
    """
    values = [op.ifmap, op.result, *([op.residual] if op.residual else [])]
    several = [value for value in values if shape(value.type)[0] > 1]
    return any(image_step(value) != planes_apart(value) * prod(shape(value.type)[1:]) for value in several)


class _Network:
    """The parts of a network's program in order, and the values in GLB and DRAM so far."""

    def __init__(self, func: FuncOp, prefetched: Prefetched) -> None:
        self.func, self.prefetched = func, prefetched
        self.concatenated = concatenated(func.body.block)
        self.in_glb: set[SSAValue] = set()
        self.in_dram: set[tuple[SSAValue, Quant]] = set()  # by the scales that the host may read

    def parts(self) -> Iterator[Part]:
        """All parts, in program order."""
        quants = quants_of(self.func.arg_attrs, len(self.func.args))
        given = [(arg, quant) for arg, quant in zip(self.func.args, quants, strict=True) if quant is not None]
        yield from self._arrive("inputs", given)
        for op in self.func.body.block.ops:
            match op:
                case LayerOp():
                    if "output" not in staged(op):
                        self._into_glb(op.result)
                    yield plan_of(op, self.prefetched.get(label_of(op), frozenset()))
                case GroupOp():
                    for value, output in zip(op.yielded(), op.outputs, strict=True):
                        if isinstance(value.owner, LayerOp) and "output" not in staged(value.owner):
                            self._into_glb(output)
                    yield group_plan_of(op)
                case CoresOp():
                    yield cores_plan_of(op)
                case HostOp():
                    yield from self._host(op)
                case ReturnOp():
                    yield from copies(
                        "outputs", "out", [_words(value) for value in op.arguments if source(value) in self.in_glb]
                    )
                case _:
                    pass

    def _into_glb(self, value: SSAValue) -> None:
        """Note that a value is in the GLB, with the values that it is a part of."""
        self.in_glb.add(source(value))
        if source(value) in self.concatenated:
            self._into_glb(self.concatenated[source(value)][0])

    def _arrive(self, label: str, values: Sequence[tuple[SSAValue, Quant]]) -> Iterator[Part]:
        """Values that arrive in DRAM at a scale; a copy to the GLB follows for values that are read there."""
        self.in_dram |= {(source(value), quant) for value, quant in values}
        read = [value for value, quant in values if any(is_read_in_glb(use, quant) for use in uses(value))]
        for value in read:
            self._into_glb(value)
        yield from copies(label, "in", [_words(value) for value in read])

    def _host(self, op: HostOp) -> Iterator[Part]:
        label = op.label.data if op.label else "host"
        operands: list[SSAValue] = []
        for value, quant in zip(op.inputs, op.input_quants.data, strict=True):
            if (source(value), quant.data) not in self.in_dram and source(value) in self.in_glb:
                operands.append(value)
                self.in_dram.add((source(value), quant.data))
        yield from copies(f"{label} operands", "out", [_words(value) for value in operands])
        yield HostPart()
        results = [
            (value, quant.data)
            for value, quant in zip(op.outputs, op.output_quants.data, strict=True)
            if quant.data.scale != 0.0
        ]
        yield from self._arrive(f"{label} results", results)


def _words(value: SSAValue) -> int:
    return prod(shape(value.type))


def program_parts(module: ModuleOp, prefetched: Prefetched) -> list[Part]:
    """The program's parts of a module with mapped layers. prefetched: operands by layer."""
    return list(_Network(main_function(module), prefetched).parts())


def predicted_counters(module: ModuleOp, arch: Arch, prefetched: Prefetched) -> dict[str, Any]:
    """The predicted counters of the program, by the keys of `run --stats` (docs/stats.md)."""
    return with_energy(all_counts(program_parts(module, prefetched), arch), arch.energy)


class PartsObserver:
    """Observes a compilation and collects its program's parts; None if it starts below the nest level."""

    def __init__(self, compilation: Compilation) -> None:
        names = [step.name for step in compilation.remaining()]
        # The steps that leave mapped layers may be over: then the module has them now.
        self.mapped = compilation.module.clone() if names[:1] == [TO_PROGRAMS] else None
        self.parts: list[Part] | None = None

    def __call__(self, step: Step, module: ModuleOp) -> None:
        """Keep the mapped layers after `nest-stage`, and read their prefetched operands after `array-prefetch`."""
        if step.name in (STAGE, GROUP, CORES):
            self.mapped = module.clone()
        elif step.name == "array-prefetch" and self.mapped is not None:
            self.parts = program_parts(self.mapped, prefetched_operands(module))


def prefetched_operands(module: ModuleOp) -> dict[str, frozenset[str]]:
    """The prefetched operands by layer, which the layer before fetches, in a module after `array-prefetch`."""
    prefetched: dict[str, frozenset[str]] = {}
    before: array.LayerOp | None = None
    for op in module.ops:
        if isinstance(op, array.LayerOp):
            # `array-prefetch` has moved a layer's first transfers into the layer before, with views called `next.NAME`.
            fetched = [dma.record.data.glb for dma in before.walk() if isinstance(dma, array.DmaOp)] if before else []
            prefetched[op.label.data] = frozenset(
                name.removeprefix("next.") for name in fetched if name.startswith("next.")
            )
            before = op
    return prefetched


def mapped_parts(compilation: Compilation, others: Sequence[Observer] = ()) -> list[Part]:
    """The program's parts of a compilation at the nest level or above.

    Runs the compilation through the `array` level, so that every step that may refuse the network has accepted it.
    Raises: Refusal.
    """
    observer = PartsObserver(compilation)
    compilation.run("array", [observer, *others])
    assert observer.parts is not None
    return observer.parts
