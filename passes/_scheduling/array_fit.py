"""What an array can run side by side of a mapping: PEs, links for sums, room in register files. No IR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from cnncc.arch.model import Arch
from cnncc.dialects.nest import LayerOp
from cnncc.errors import Finding, Refusal
from cnncc.mapping.mapping import AXES, LANES, OUTPUT_DIMS, REDUCTION_DIMS, Mapping
from cnncc.model.layer_shape import LayerShape
from cnncc.model.legal import loops_in_space
from cnncc.model.register_files import file_words
from cnncc.passes._scheduling.nest_layers import layer_shape


def space_problems(mapping: Mapping, shape: LayerShape, arch: Arch) -> Iterator[Finding]:
    """More PEs than an axis has; sums that would have to travel where there is no link."""
    counts = loops_in_space(shape, mapping)
    for axis in AXES:
        pes = [count for loop, count in counts if loop.on == axis]
        if prod(pes) > (most := int(getattr(arch.pe if axis == LANES else arch, axis))):
            what = f"{' x '.join(map(str, pes))} PEs do not fit {most} {axis}"
            help_ = "fewer PEs: ||N, or nest-split by hand"
            yield Finding(what, resource=axis, value=prod(pes), limit=most, help=help_)
    yield from lane_problems(mapping, arch)
    yield from link_problems(mapping, shape, arch)


def lane_problems(mapping: Mapping, arch: Arch) -> Iterator[Finding]:
    """Lanes over output channels where lanes have no sums of their own."""
    if not arch.pe.lane_sums and any(loop.on == LANES and loop.dim in OUTPUT_DIMS for loop in mapping.loops):
        what = "k is on lanes, each with a sum of its own, but this array has no pe.lane_sums"
        yield Finding(what, help="an array with lane_sums = true, or k in time")


def link_problems(mapping: Mapping, shape: LayerShape, arch: Arch) -> Iterator[Finding]:
    """Sums that would have to travel where there is no link."""
    # One finding for a dimension on an axis, however many loops it has there.
    for loop in dict.fromkeys(replace(loop, step=1) for loop, count in loops_in_space(shape, mapping) if count > 1):
        if loop.dim not in REDUCTION_DIMS or loop.on == LANES:
            continue
        if loop.on == "cols":
            what = f"{loop.dim} is reduced across columns, but sums have no link from west to east"
            yield Finding(what, help=f"{loop.dim}||@rows, or {loop.dim} in time")
        elif not arch.links.south:
            what = f"{loop.dim} is reduced down the rows, but this array has no links.south"
            yield Finding(what, help=f"an array with links.south = true, or {loop.dim} in time")
        elif shape.kind == "max":
            what = f"{loop.dim} is reduced down the rows, where sums are added, but this layer takes maxima"
            yield Finding(what, help=f"{loop.dim} in time")


def file_problems(mapping: Mapping, shape: LayerShape, arch: Arch) -> Iterator[Finding]:
    """Register files that are too small for what is staged in them, and for the box; too many buffers in them."""
    for key, needed in file_words(shape, arch, mapping.loops, mapping.stages).items():
        if needed > (has := int(getattr(arch.pe, key))):
            what = "a PE is to hold more words than it has"
            help_ = f"smaller tiles in the box and inside stages in rf, or {key} of at least {needed}"
            yield Finding(what, resource=f"pe.{key}", value=needed, limit=has, help=help_)
    for stage in mapping.stages:
        key = f"{stage.operand}_halves"
        if stage.memory == "rf" and stage.buffers > (has := int(getattr(arch.pe, key))):
            what, help_ = f"{stage.operand} is in more buffers than a register file has", f"{stage.operand}@rf*{has}"
            yield Finding(what, resource=f"pe.{key}", value=stage.buffers, limit=has, help=help_)


def refuse_any(findings: Iterator[Finding], where: str = "") -> None:
    """Raises Refusal with the first, if there is one; the message begins with `where`."""
    if finding := next(findings, None):
        numbers = f"{finding.numbers}: " if finding.value is not None else ""
        raise Refusal(f"{where}{numbers}{finding.text}", finding)


def checked_in_space(mapping: Mapping, layer: LayerOp, arch: Arch | None) -> Mapping:
    """The mapping, if `arch` (where one is given) has the PEs and links for it. Raises Refusal."""
    if arch is not None:
        refuse_any(space_problems(mapping, layer_shape(layer), arch))
    return mapping
