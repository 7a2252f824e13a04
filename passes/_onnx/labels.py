"""Labels for the ops of the `cnn` dialect and for their weights. No pass."""

from __future__ import annotations

import re
from itertools import zip_longest

from cnncc.dialects.onnx import NodeOp, text
from cnncc.dialects.weights import ConstantOp

# Suffixes that the lowering adds to a node's label.
PARTS = ("", ".bias", ".requant", ".in", ".in2", ".sum", ".out")

TENSORFLOW = ("convolution", "depthwise", "MaxPool2d", "AvgPool", "AvgPool2d", "Relu6")  # its names of operators


def tidy(name: str, op_type: str) -> str:
    """A node's name without its redundant parts: "/layer1/layer1.0/conv1/Conv" becomes "layer1.0.conv1".

    Exporters put the operator last, and each module's path before the next longer one. onnxruntime's quantiser names
    the QLinearConv of this node "/layer1/layer1.0/conv1/Conv_quant". From TensorFlow the operators have its names, as
    in "StatefulPartitionedCall/net/conv1/convolution", which becomes "net.conv1".
    """
    parts = [part for part in name.split("/") if part and not part.startswith("StatefulPartitionedCall")]
    operators = "|".join(re.escape(each) for each in (op_type, re.sub("^Q(Linear)?", "", op_type), *TENSORFLOW))
    if len(parts) > 1 and (last := re.fullmatch(rf"(?:{operators})(_\d+)?(_quant)?", parts[-1])):
        parts.pop()
        parts[-1] += last[1] or ""
    kept = [part for part, longer in zip_longest(parts, parts[1:], fillvalue="") if not longer.startswith(part + ".")]
    return re.sub(r"[^A-Za-z0-9_.]", "_", ".".join(kept))


# How PyTorch and tf2onnx number nodes, and what they call a module's weights. onnxruntime's quantiser adds an ending.
NUMBERED = re.compile(r"node_\w+|n\d+(_\d+)?|[A-Z][A-Za-z]*_{1,2}\d+(_quant)?")
# A numbered node behind its module (`import_onnx`), perhaps with the ending or the number of what a pass made of it.
IN_MODULE = re.compile(r"(.+)/(?:node_\w+|n\d+(?:_\d+)?)(?:(\.[a-z][a-z.\d]*)|\.\d+)?")
WEIGHTS = re.compile(r"(.+)(\.weight|/merged_input:0)(_quantized)?")


def module_of_weights(node: NodeOp) -> str | None:
    """The module of which `node` reads the weights."""
    for value in node.operands:
        name = value.owner.attributes.get("onnx.name") if isinstance(value.owner, ConstantOp) else None
        if name is not None and (weights := WEIGHTS.fullmatch(text(name))):
            return weights[1]
    return None


# Parts of a program that are no layers of the network, and the last row of tables.
OTHERS = ("semaphores", "inputs", "outputs", "total")


def free_name(wanted: str, taken: set[str]) -> str:
    """`wanted`, with marks if it is taken; the result is taken then.

    >>> taken = {"a"}
    >>> free_name("a", taken), free_name("a", taken)
    ('a_', 'a__')
    """
    while wanted in taken:
        wanted += "_"
    taken.add(wanted)
    return wanted


class Labels:
    """Gives each node a unique label, different also from the labels of other nodes' parts and of `OTHERS`."""

    def __init__(self) -> None:
        self._taken = {*OTHERS}

    def of(self, node: NodeOp, index: int) -> str:
        """The label of `node`, from its name; without one, from its operator and its number `index` in the graph.

        Nodes that are numbered, as node_Conv_809, node_max_pool2d_1, n4_2 or Conv__12, have that of their module.
        """
        op_type = node.op_type.data
        name = text(node.node_name) if node.node_name else ""
        if numbered := IN_MODULE.fullmatch(name):
            name = (module_of_weights(node) or numbered[1]) + (numbered[2] or "")
        elif NUMBERED.fullmatch(name):
            name = module_of_weights(node) or name.removeprefix("node_")
        return self.free(tidy(name, op_type) or f"{tidy(op_type, '').lower()}_{index}")

    def free(self, wanted: str) -> str:
        """`wanted`, with a number if it is taken."""
        label, number = wanted, 2
        while any(label + part in self._taken for part in PARTS):
            label, number = f"{wanted}_{number}", number + 1
        self._taken.update(label + part for part in PARTS)
        return label

    def numbered(self, label: str, count: int) -> str:
        """`label`, with a number if `label.0`, `label.1` and so on, of so many values, are not all free.

        They are taken then.
        """
        values = range(count if count > 1 else 0)
        # Host segments call their results so; another node may be called `conv.1`, too.
        while any(f"{label}.{i}" in self._taken for i in values):
            label = self.free(label)
        self._taken.update(f"{label}.{i}" for i in values)
        return label
