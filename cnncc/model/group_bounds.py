"""Lower bounds of a group, whatever the stripes, the rings and the mappings of its layers are. No IR.

words    weights and parameters once; values that lie in DRAM once
cycles   the operations of all layers on all multipliers; these words through the DRAM port
"""

from __future__ import annotations

from cnncc.arch.model import Arch
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.layer_shape import image_words
from cnncc.model.occupancy import ceil_div


def least_group_cycles(plan: GroupPlan, arch: Arch) -> int:
    """Cycles of the group at least."""
    busy = sum(layer.shape.busy_cycles(arch) for layer in plan.layers)
    return max(busy, ceil_div(least_group_words(plan, arch) * arch.dram.rate_cycles, arch.dram.rate_words))


def least_group_words(plan: GroupPlan, arch: Arch) -> int:
    """Words from and to DRAM of the group at least."""
    loaded = sum(_loaded(plan, number) for number, own in enumerate(plan.group) if own.is_load)
    return loaded + sum(_words(layer, arch) for layer in plan.layers)


def _loaded(plan: GroupPlan, number: int) -> int:
    """Words of a value that comes row by row: of the reader that reads the most of it."""
    return max(
        image_words(layer.shape) if read.operand == "ifmap" else layer.shape.results
        for own, layer in plan.plans
        if layer
        for read in own.reads
        if read.producer == number
    )


def _words(layer: LayerPlan, arch: Arch) -> int:
    """Weights, parameters, and what lies in DRAM of ifmap, residual and output: each word once."""
    shape, staged = layer.shape, layer.mapping.glb_stages
    words = shape.param_words(arch) if "params" in staged else 0
    words += shape.weight_words if "weight" in staged else 0
    words += shape.results * (("residual" in staged) + ("output" in staged))
    return words + (image_words(shape) if "ifmap" in staged else 0)
