"""Labels: short, safe as symbols, and each given once."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import StringAttr

from cnncc.dialects.onnx import NodeOp, new_constant, text_attr
from cnncc.passes._onnx.labels import Labels, tidy
from cnncc.weights import WeightStore


@pytest.mark.parametrize(
    ("name", "op_type", "expected"),
    [
        ("/conv0/Conv", "Conv", "conv0"),
        ("/layer1/layer1.0/conv1/Conv", "Conv", "layer1.0.conv1"),
        ("/layer1/layer1.0/relu/Relu_1", "Relu", "layer1.0.relu_1"),
        ("/conv1/Conv_quant", "QLinearConv", "conv1"),
        ("/fc/Gemm_2_quant", "QGemm", "fc_2"),
        ("/Add_3", "Add", "Add_3"),
        ("StatefulPartitionedCall/net/conv2d_1/convolution", "Conv", "net.conv2d_1"),
        ("StatefulPartitionedCall_1/net/pool/MaxPool2d_quant", "MaxPool", "net.pool"),
        ("StatefulPartitionedCall/net/pool/AvgPool", "AveragePool", "net.pool"),
        ("Conv", "Conv", "Conv"),
        ("größe weg!", "Conv", "gr__e_weg_"),
        ("///", "Conv", ""),
    ],
)
def test_quant_labels_are_tidy(name: str, op_type: str, expected: str) -> None:
    assert tidy(name, op_type) == expected


@pytest.mark.parametrize(
    ("name", "op_type", "weights", "expected"),
    [
        ("node_Conv_809", "Conv", "features.0.0.weight", "features.0.0"),
        ("Conv_12_quant", "QLinearConv", "layer1.0.conv1.weight_quantized", "layer1.0.conv1"),
        ("conv1", "Conv", "features.0.0.weight", "conv1"),
        ("Conv_12", "Conv", "w", "Conv_12"),
        ("Conv__12", "Conv", "StatefulPartitionedCall/net/conv2d_3/convolution/merged_input:0", "net.conv2d_3"),
        ("Conv__12_quant", "QLinearConv", "net/conv2d_3/convolution/merged_input:0_quantized", "net.conv2d_3"),
        ("node_max_pool2d_1", "MaxPool", None, "max_pool2d_1"),
        ("n4_2", "Clip", None, "n4_2"),
        ("n4_2", "PRelu", "act.weight", "act"),
        ("layer1.0.pool/node_max_pool2d_1", "MaxPool", None, "layer1.0.pool"),
        ("layer1.0.act/n4_2", "Clip", None, "layer1.0.act"),
        ("layer1.0.bn1/node_Conv_809", "Conv", "layer1.0.conv1.weight", "layer1.0.conv1"),
        ("up.2/node_convolution", "Conv", None, "up.2"),
        ("up.2/node_convolution.3", "Conv", None, "up.2"),
        ("up.2/node_convolution.reshape.2", "Reshape", None, "up.2.reshape.2"),
    ],
)
def test_quant_labels_of_numbered_nodes(name: str, op_type: str, weights: str | None, expected: str) -> None:
    names = [weights] if weights else []
    constants = [new_constant(np.zeros(1, np.float32), WeightStore(), text_attr(each)) for each in names]
    node = NodeOp.create(
        operands=[constant.result for constant in constants],
        properties={"op_type": StringAttr(op_type), "node_name": text_attr(name)},
    )
    assert Labels().of(node, 7) == expected


def test_quant_labels_are_unique_with_their_parts() -> None:
    labels = Labels()
    assert [labels.free(name) for name in ("a", "a", "a.bias", "b.requant", "b", "a_2")] == [
        "a",
        "a_2",
        "a.bias_2",
        "b.requant",
        "b_2",
        "a_2_2",
    ]


def test_quant_labels_are_no_other_rows_of_tables() -> None:
    labels = Labels()
    assert [labels.free(name) for name in ("semaphores", "total", "a")] == ["semaphores_2", "total_2", "a"]


def test_quant_labels_of_several_values_are_no_labels_of_nodes() -> None:
    labels = Labels()
    assert [labels.free(name) for name in ("h", "h.1", "g")] == ["h", "h.1", "g"]
    assert [labels.numbered("h", 1), labels.numbered("h", 2), labels.numbered("g", 2)] == ["h", "h_2", "g"]
    assert [labels.free(name) for name in ("g.1", "g.2")] == ["g.1_2", "g.2"]
