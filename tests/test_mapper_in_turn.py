"""The mapper on arrays on which nothing overlaps: what it takes is no slower than what is output stationary.

There a macro-instruction may have more words of the image than ping, which the space leaves out.
"""

from __future__ import annotations

import pytest
from nest_cases import SCHEDULE, Case, layer_of, lowered

from cnncc.arch.model import load_arch
from cnncc.dialects._layers import Window
from cnncc.mapper.chain import EARLY
from cnncc.mapper.layer_schedule import layer_cycles
from cnncc.passes._dataflows import AUTO
from cnncc.passes._nest_layers import layer_shape
from cnncc.passes._os_plan import Room
from cnncc.passes.nest_schedule_os import NestScheduleOsPass
from cnncc.predict import plan_of
from cnncc.searched import searched

ARRAY = "seed-4x4"


def cycles(case: Case, dataflow: str | None) -> int:
    ctx, module = lowered(case)
    for each in (NestScheduleOsPass(ARRAY, dataflow=dataflow), *SCHEDULE):
        each.apply(ctx, module)
    return layer_cycles(plan_of(layer_of(module), EARLY), load_arch(ARRAY))


@pytest.mark.parametrize(("k", "c", "side", "better"), [(4, 6, 4, "os"), (2, 3, 4, "os"), (8, 6, 8, "space")])
def test_what_is_taken_is_the_quicker(k: int, c: int, side: int, better: str) -> None:
    case = Case("mac", 1, k, c, (side, side), Window((3, 3), pad=(1, 1, 1, 1)))
    arch = load_arch(ARRAY)
    found = searched(layer_shape(layer_of(lowered(case)[1])), arch, Room(arch.glb.words))
    assert found is not None and found.least == found.cycles  # it came to its end: nothing of the space is quicker
    by_name = cycles(case, None)
    assert (by_name < found.cycles) == (better == "os")
    assert cycles(case, AUTO) == min(by_name, found.cycles)
