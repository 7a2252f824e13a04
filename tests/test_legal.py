"""Which mappings of a layer a program can follow (cnncc/model/legal.py)."""

from __future__ import annotations

from cnncc.dialects._layers import Window
from cnncc.dialects._mapping import Loop, Mapping, Sizes
from cnncc.isa.fields import LOOP_REGISTERS
from cnncc.model.layer_shape import LayerShape
from cnncc.model.legal import is_legal


def test_as_many_loops_in_time_as_registers_are_legal() -> None:
    """Loops in space and in the box need no register."""
    shape = LayerShape("mac", Sizes(1, 1 << LOOP_REGISTERS, 2, 4, 4, 1, 1), Window((1, 1)), 0, 4, 4)
    halved = [Loop("k", 1 << i) for i in reversed(range(LOOP_REGISTERS + 1))]
    rest = (Loop("h", 1, "rows"), Loop("c", 1, keep=True), Loop("w", 1, keep=True))
    assert is_legal(shape, Mapping((*halved[1:], *rest)), residual=False)
    assert not is_legal(shape, Mapping((*halved, *rest)), residual=False)
