"""samples/reproduce/cbrain_mapper.py: schemes beside the mapper. Layers mapped alone are those that passes make."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import cbrain_mapper
import pytest
from click.testing import CliRunner
from nest_cases import Small

from cnncc.arch.model import load_arch
from cnncc.cbrain.convolution import Convolution, convolution_of
from cnncc.cbrain.schemes import CBrain, Scheme
from cnncc.dialects.cnn import ConvOp
from cnncc.dialects.nest import LayerOp
from cnncc.driver.pipeline import new_context
from cnncc.passes._scheduling.layer_alone import partitioned, shape_of
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes.cnn_partition_kernel import CnnPartitionKernelPass
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.window import Window

ARRAY, ARCH = CBrain(16, 16), load_arch("cbrain-16-16")
WINDOWS = {
    "stride": Window((7, 5), stride=(2, 3), pad=(3, 2, 3, 2)),
    "rows that no window reads": Window((3, 3), stride=(4, 4)),
    "groups": Window((3, 2), stride=(3, 1), pad=(0, 1, 2, 0), group=2),
    "stride 1": Window((3, 3), pad=(1, 1, 1, 1)),
    "one row": Window((1, 3), stride=(2, 2)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_cbrain_mapper_layers_alone_have_the_shapes_of_the_passes(name: str) -> None:
    """Whole, and as `cnn-partition-kernel` makes them."""
    window, ctx = WINDOWS[name], new_context()
    module = Small("mac", 1, 4, 3, (15, 13), window).network(ctx)
    (conv,) = (op for op in module.walk() if isinstance(op, ConvOp))
    layer = convolution_of(conv)
    for layers in ([layer], partitioned(layer)):
        if len(layers) > 1 or layers[0] is not layer:
            CnnPartitionKernelPass((layer.name,)).apply(ctx, module)
        lowered = module.clone()
        CnnToNestPass().apply(ctx, lowered)
        shapes = [layer_shape(op) for op in lowered.walk() if isinstance(op, LayerOp)]
        alone = [shape_of(each) for each in layers]
        assert [replace(each, params=0) for each in shapes] == [replace(each, params=0) for each in alone]


@pytest.mark.parametrize(
    ("layer", "scheme"),
    [
        (Convolution("deep", (6, 6), 24, 20, Window((3, 3), pad=(1, 1, 1, 1))), Scheme.INTER),
        (Convolution("first", (35, 35), 3, 16, Window((11, 11), stride=(4, 4))), Scheme.PARTITION),
        (Convolution("slides", (12, 12), 3, 16, Window((4, 4), stride=(4, 4))), Scheme.SLIDING),
    ],
)
def test_cbrain_mapper_is_never_slower(layer: Convolution, scheme: Scheme) -> None:
    row = cbrain_mapper.compared("drawn", layer, ARRAY, ARCH)
    assert row.scheme == scheme.value and 0 < row.by_mapper <= row.by_scheme
    assert row.by_scheme >= row.formula and sum(row.uses.values()) == row.more
    assert row.reason == "the same" or re.match(r"[0-9,]+ cycles? more of", row.reason)


def test_cbrain_mapper_prints_gains() -> None:
    """All rows, the largest gain first, and uses that add up to all gains."""
    rows = [
        cbrain_mapper.Compared("A", "16-16", "one", "inter-kernel", 90, 100, 99, {"fill": 1}, "1 cycle more", "m"),
        cbrain_mapper.Compared("A", "32-32", "two", "inter-kernel", 90, 100, 80, {"steps": 25, "fill": -5}, "why", "m"),
    ]
    lines = list(cbrain_mapper.as_text(rows))
    assert [line.split()[2] for line in lines[1:3]] == ["two", "one"] and "20.0 %" in lines[1]
    assert lines[3:] == [
        "  the mapper is faster in 2 of 2 cases, slower in 0",
        "  25 cycles less of steps, as more multipliers work",
        "  -4 cycles less of waiting for the layer's fill",
    ]


def test_cbrain_mapper_command_refuses_a_layer_of_no_network() -> None:
    result = CliRunner().invoke(cbrain_mapper.main, ["--network", "AlexNet", "--layer", "conv9", "--json"])
    assert result.exit_code == 1 and "no network has a layer conv9" in result.output
    with pytest.raises(json.JSONDecodeError):
        json.loads(result.stdout)


def test_cbrain_mapper_command_says_each_layer_on_stderr() -> None:
    result = CliRunner().invoke(cbrain_mapper.main, ["--network", "AlexNet", "--layer", "conv5", "--json"])
    rows = json.loads(result.stdout)
    assert all(row["by_mapper"] <= row["by_scheme"] for row in rows)
    said = [f"{row['width']}, conv5: {row['by_mapper']:,} cycles, by the scheme {row['by_scheme']:,}" for row in rows]
    assert result.stderr == f"1 of 2: AlexNet, {said[0]}\n2 of 2: AlexNet, {said[1]}\n"
