"""What an array can run side by side of a mapping: PEs, links for sums, and the register files for its box. No IR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from cnncc.arch.model import Arch
from cnncc.dialects._mapping import AXES, REDUCTION_DIMS
from cnncc.dialects.nest import LayerOp, Mapping, extents
from cnncc.errors import Finding, Refusal
from cnncc.passes._layer_shape import LayerShape, inside
from cnncc.passes._nest_layers import layer_shape
from cnncc.passes._register_files import macro_words


def space_problems(mapping: Mapping, shape: LayerShape, arch: Arch) -> Iterator[Finding]:
    """More PEs than an axis has; sums that would have to travel where there is no link."""
    around = zip(extents(shape.sizes, mapping.loops), mapping.loops, strict=True)
    counts = [(loop, -(-extent // loop.step)) for extent, loop in around if loop.on]
    for axis in AXES:
        pes = [count for loop, count in counts if loop.on == axis]
        if prod(pes) > (most := int(getattr(arch, axis))):
            what = f"{' x '.join(map(str, pes))} PEs do not fit {most} {axis}"
            help_ = "fewer PEs: ||N, or nest-split by hand"
            yield Finding(what, resource=axis, value=prod(pes), limit=most, help=help_)
    for loop in dict.fromkeys(replace(loop, step=1) for loop, count in counts if count > 1):
        if loop.dim not in REDUCTION_DIMS:
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


def box_problems(mapping: Mapping, shape: LayerShape, arch: Arch) -> Iterator[Finding]:
    """Register files that are too small for the box."""
    outer = [loop for loop in mapping.loops if not loop.keep]
    for key, needed in macro_words(shape, arch, inside(shape.sizes, outer)).items():
        if needed > (has := int(getattr(arch.pe, key))):
            what, help_ = (
                "the box needs more words than a PE has",
                f"smaller tiles in it, or {key} of at least {needed}",
            )
            yield Finding(what, resource=f"pe.{key}", value=needed, limit=has, help=help_)


def refuse_any(findings: Iterator[Finding]) -> None:
    """Raises Refusal with the first, if there is one."""
    if finding := next(findings, None):
        numbers = f"{finding.numbers}: " if finding.value is not None else ""
        raise Refusal(f"{numbers}{finding.text}", finding)


def checked_in_space(mapping: Mapping, layer: LayerOp, arch: Arch | None) -> Mapping:
    """The mapping, if `arch` (where one is given) has the PEs and links for it. Raises Refusal."""
    if arch is not None:
        refuse_any(space_problems(mapping, layer_shape(layer), arch))
    return mapping
