"""The addresses of a transfer between DRAM and GLB (rule DMA-1)."""

from __future__ import annotations

from collections.abc import Sequence

from cnncc.isa.fields import FieldTerm
from cnncc.isa.table import Instruction
from cnncc.machine.values.addresses import Descriptor, Index, IndexArrays, Ints, Mask, axis_index
from cnncc.machine.values.memory import Place
from cnncc.machine.values.regfile import HalfFault
from cnncc.machine.values.strided import EvenPositions, even_from


def sides(
    inst: Instruction, loops: Sequence[Index], descriptors: Sequence[Descriptor], most: int
) -> tuple[Place, Place]:
    """The places in DRAM and GLB, word by word in the same order. Raises HalfFault for more than `most` words."""
    count, rows, words = _shape(inst)
    if count * rows * words > most:
        raise HalfFault(f"{count} blocks of {rows} rows of {words} words are more than the {most} of the GLB")
    dram, glb = (descriptors[inst.number(side)] for side in ("dram", "glb"))
    source, target = _even(inst, "dram", loops, dram), _even(inst, "glb", loops, glb)
    # DMA-1: the bounds of DRAM alone leave words out; those of the GLB do nothing here.
    if source is not None and target is not None and source.inside(dram):
        places = source.addresses(dram), target.addresses(glb)
        if places[0] is not None and places[1] is not None:
            return places[0], places[1]
    (far, inside), (near, _) = (_listed(inst, name, loops, side) for name, side in (("dram", dram), ("glb", glb)))
    return (far, near) if inside is None else (far[inside], near[inside])


def _shape(inst: Instruction) -> list[int]:
    return [inst.number(name) for name in ("count", "rows", "words")]


def _even(inst: Instruction, side: str, loops: Sequence[Index], descriptor: Descriptor) -> EvenPositions | None:
    terms = (FieldTerm("lin", inst.number(f"{side}_step")), FieldTerm("y", 1), FieldTerm("x", 1))
    pattern = list(zip(_shape(inst), terms, strict=True))
    return even_from((inst.number(f"{side}_offset"), 0, inst.number("y"), inst.number("x")), loops, pattern, descriptor)


def _listed(inst: Instruction, side: str, loops: Sequence[Index], descriptor: Descriptor) -> tuple[Ints, Mask | None]:
    block, row, word = (axis_index(size, axis, 3) for axis, size in enumerate(_shape(inst)))
    terms: dict[str, Index] = {"lin": block * inst.number(f"{side}_step"), "k": 0}
    terms |= {"y": inst.number("y") + row, "x": inst.number("x") + word}
    return IndexArrays(loops, inst.number(f"{side}_offset"), terms).address(descriptor)
