"""The layers of each core, in a block of their own, and the values that go from core to core. No pass.

One engine of one core reads a value in the GLB (CORE-5). The load engine of a core reads ifmaps, its commit engine
residuals, and the load engine of the next core what this one passes on. Two of them may want one value. Then the load
engine of the core reads it, and the others read a *copy*. A copy is a layer that computes each word once more.

    a value of a core that is                    copies
    read as an ifmap and as a residual           one, for the residual
    read, and read behind the core, too          one, for the next core
    from the core before, and a residual         one, for the residual
    from the core before, and read behind        one, for the next core

So every value goes from core to core as far as it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from cnncc.dialects.cnn import ReshapeOp, SliceOp, Steps, StepsAttr, WindowAttr, is_per_channel
from cnncc.dialects.nest import LayerOp, SizesAttr, build_nest, image_shape
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Sizes
from cnncc.passes._scheduling.nest_layers import label_of
from cnncc.passes._scheduling.rewrites import canonical
from cnncc.window import Window


@dataclass(frozen=True)
class LayerGraph:
    """The layers that run side by side, in program order. image: what they read."""

    layers: tuple[LayerOp, ...]
    image: SSAValue

    @classmethod
    def of(cls, layers: Sequence[LayerOp]) -> LayerGraph:
        """Raises Refusal without layers, where they read several values from outside, or others several of theirs."""
        if not layers:
            raise Refusal("no layer runs on the array: cores need some")
        if wrong := next((layer for layer in layers if is_per_channel(layer.residual, layer.result)), None):
            raise Refusal(
                f"layer '{label_of(wrong)}' has a residual of one pixel a channel, which has no rows for a channel of "
                f"cores: the host can compute the Mul or Add (cores.host)"
            )
        computed, read = {layer.result for layer in layers}, dict[SSAValue, LayerOp]()
        for layer in layers:
            for value in layer.operands:
                if isinstance(value.owner, ReshapeOp | SliceOp):
                    what, by = "a reshaped value", "it"
                    if isinstance(value.owner, SliceOp):
                        what, by = "some channels of a value", "the Slice or Split"
                    raise Refusal(f"layer '{label_of(layer)}' reads {what}: the host can compute {by} (cores.host)")
                if value not in computed:
                    read.setdefault(value, layer)
        if len(read) > 1:
            (one, first), (other, second), *_ = read.items()
            raise Refusal(
                f"layer '{label_of(first)}' reads {_source(one)}, layer '{label_of(second)}' {_source(other)}: cores "
                f"read one value, the image of a frame"
            )
        users = {
            layer: [op for op in (use.operation for use in layer.result.uses) if op not in layers] for layer in layers
        }
        leaving = [layer for layer in layers if users[layer] or not list(layer.result.uses)]
        if len(leaving) > 1:
            names = "' and '".join(map(label_of, leaving))
            raise Refusal(f"the results of layers '{names}' leave the cores: one does, the result of a frame")
        if leaving != [layers[-1]]:
            raise Refusal(
                f"the result of layer '{label_of(leaving[0])}' leaves the cores, and layers behind it read it"
            )
        if (outputs := sum(isinstance(op, ReturnOp) for op in users[layers[-1]])) > 1:
            raise Refusal(
                f"the result of layer '{label_of(layers[-1])}' is {outputs} outputs of the network: cores have one, "
                f"the result of a frame; leave the others out of the model's outputs"
            )
        return cls(tuple(layers), next(iter(read)))

    @cached_property
    def _spans(self) -> dict[SSAValue, tuple[int, int]]:
        """Of each value the number of its layer, -1 for the image, and of the last layer that reads it."""
        spans = {self.image: (-1, -1)} | {layer.result: (at, at) for at, layer in enumerate(self.layers)}
        for at, layer in enumerate(self.layers):
            spans |= {value: (spans[value][0], at) for value in layer.operands}
        return spans

    def across(self, at: int) -> list[SSAValue]:
        """The values that layers from number `at` on read, and layers before it compute, in their order."""
        return [value for value, (made, last) in self._spans.items() if made < at <= last]

    def part(self, first: int, end: int) -> CorePart:
        """The layers from number `first` up to, without, `end`, as those of a core."""
        own, entries, leaving = self.layers[first:end], self.across(first), self.across(end)
        block, originals = Block(arg_types=[value.type for value in entries]), list[LayerOp | None]()
        values: dict[SSAValue, SSAValue] = dict(zip(entries, block.args, strict=True))
        residuals = dict[SSAValue, SSAValue]()

        def add(layer: LayerOp, original: LayerOp | None) -> SSAValue:
            block.add_op(layer)
            originals.append(original)
            return layer.result

        def copies(value: SSAValue) -> None:
            """Copies of a value for all engines but the one that reads it."""
            loads = value in entries or any(layer.ifmap is value for layer in own)
            commits = next((layer for layer in own if layer.residual is value), None)
            name, inside = _name(value), values[value]
            if commits and (loads or value in leaving):
                residuals[value] = add(copy_of(inside, f"{name}.for.{label_of(commits)}"), None)
            if value in leaving and (loads or commits):
                add(copy_of(inside, f"{name}.to.{label_of(self.layers[end])}"), None)

        for value in entries:
            copies(value)
        for layer in own:
            # Layers are tried on many cores: those of the network stay as they are.
            clone = layer.clone()
            sources = {**values, **residuals}
            residual = [sources[layer.residual]] if layer.residual else []
            clone.operands = [values[layer.ifmap], *residual]
            values[layer.result] = add(clone, layer)
            copies(layer.result)
        return CorePart(block, tuple(entries), tuple(leaving), tuple(originals))


def _name(value: SSAValue) -> str:
    owner = value.owner
    return label_of(owner) if isinstance(owner, LayerOp) else "image"


@dataclass(frozen=True)
class CorePart:
    """The layers of a core in `block`, whose arguments are the values that come from outside.

    - entries: these values in the graph
    - leaving: the values that results leave for, in the order of the layers that write them
    - originals: of each layer in the block that of the graph, None of a copy
    """

    block: Block
    entries: tuple[SSAValue, ...]
    leaving: tuple[SSAValue, ...]
    originals: tuple[LayerOp | None, ...]

    @property
    def layers(self) -> list[LayerOp]:
        """All layers of the core."""
        return [op for op in self.block.ops if isinstance(op, LayerOp)]

    @property
    def labels(self) -> list[str]:
        """The names of the layers that are no copies."""
        return [label_of(layer) for layer in self.originals if layer]


def copy_of(value: SSAValue, label: str) -> LayerOp:
    """A layer whose result is a value once more: a sum of one pixel."""
    n, k, h, w = image_shape(value.type)
    sizes = Sizes(n, k, 1, h, w, 1, 1)
    properties = {
        "kind": StringAttr("add"),
        "sizes": SizesAttr(sizes),
        "window": WindowAttr(Window((1, 1), group=k)),
        "steps": StepsAttr(Steps()),
        "label": StringAttr(label),
    }
    return LayerOp.build(
        operands=[[value], []],
        result_types=[value.type],
        properties=properties,
        regions=[build_nest(canonical(sizes))],
    )


def _source(value: SSAValue) -> str:
    owner = value.owner
    return f"the result of {owner.name}" if isinstance(owner, Operation) else "an input of the network"
