"""The schemes of C-Brain as mappings: what they compute, in how many steps, and what they fetch."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from conv_grid_cases import Case
from test_conv_grid import result_and_cycles
from test_dataflows import Drawn, compiled, layer_of

from cnncc.arch.model import load_arch
from cnncc.driver.check_findings import array_work
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.operand_traffic import operand_traffic
from cnncc.passes._scheduling.dataflows import TEXTS
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.schedule_file import MappingText
from cnncc.passes._scheduling.written_mappings import written_mapping

ARCH = load_arch("cbrain-16-16")
T_IN, T_OUT = 16, 16
SCHEMES = [name for name in TEXTS if name.startswith("int")]


@dataclass(frozen=True)
class Layer:
    """tiles: parts of a window that lanes take, each a rectangle of at most T_in taps."""

    case: Case
    tiles: int


def layer(kernel: int, tiles: int, outputs: int, c: int, k: int, stride: int = 1, group: str = "one") -> Layer:
    image = (outputs - 1) * stride + kernel
    square = {"kernel": (kernel, kernel), "stride": (stride, stride), "image": (image, image)}
    return Layer(Case(c=c, k=k, group=group, array=(1, 1), glb=1 << 18, **square), tiles)


LAYERS = {
    "AlexNet conv1": layer(11, 9, 5, c=3, k=20, stride=4),
    "AlexNet conv2": layer(5, 2, 4, c=20, k=18, group="two"),
    "AlexNet conv3": layer(3, 1, 4, c=33, k=16),
    "kernel = stride": layer(4, 1, 3, c=5, k=18, stride=4),
    "depthwise": layer(3, 1, 4, c=1, k=20, group="each"),
    "fully connected": layer(1, 1, 1, c=40, k=20),
}


def rounds(shape: LayerShape) -> int:
    """Times that T_out output channels are computed."""
    return ceil(shape.tiled_together / T_OUT) * shape.sizes.k // shape.tiled_together


def steps(scheme: str, of: Layer, shape: LayerShape) -> int:
    """The cycles of the multipliers by the paper (DATAFLOW-6)."""
    size = shape.sizes
    sums = size.r * size.s * ceil(size.c / T_IN) if scheme.startswith("inter") else size.c * of.tiles
    return size.n * size.h * size.w * rounds(shape) * sums


@pytest.mark.parametrize("name", LAYERS)
def test_schemes_compute_the_same_in_their_own_steps(name: str, tmp_path: Path) -> None:
    of = LAYERS[name]
    shape = layer_shape(layer_of(of.case))
    size, weights = shape.sizes, shape.weight_words
    windows = size.n * size.h * size.w * size.r * size.s * size.c * (size.k if shape.channelwise else rounds(shape))
    loaded = dict[str, int]()
    for scheme in SCHEMES:
        mapping = written_mapping(shape, ARCH, GlbBudget(ARCH.glb.words), MappingText(TEXTS[scheme].text(shape, ARCH)))
        drawn = Drawn(of.case, ARCH, mapping)
        result, cycles = result_and_cycles(of.case, *compiled(drawn, tmp_path), ARCH)
        assert np.array_equal(result, of.case.expected), (scheme, mapping)
        assert cycles.compute == array_work(shape, mapping, ARCH).cycles == steps(scheme, of, shape), (scheme, mapping)
        words = operand_traffic(shape, mapping, ARCH, False).words
        loaded[scheme] = words["ifmap"]["glb_read"]
        if "data" not in scheme:  # the weights of the others stay, or come for each output
            again = size.n * size.h * size.w if scheme == "inter" else 1
            assert words["weight"]["glb_read"] == weights * again, scheme
        if scheme in ("inter", "inter-weights", "intra"):  # window by window, as if unrolled (DATAFLOW-7)
            assert loaded[scheme] == windows, scheme
    assert loaded["inter-data"] <= loaded["inter"]
    assert name != "kernel = stride" or loaded["intra-sliding"] == loaded["intra"]
