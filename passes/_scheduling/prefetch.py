"""Which layers get their first weights and parameters while the layer before them runs. No pass.

`nest.layer` carries the decision (`prefetched`), `array-prefetch` executes it. Prefetched words lie in the GLB for one
layer more. So layers get them one by one, as long as all tensors still have a place.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence

from xdsl.ir import SSAValue

from cnncc.arch.model import Arch
from cnncc.dialects.cnn import ConcatOp, HostOp
from cnncc.dialects.nest import LayerOp
from cnncc.mapping.mapping import Mapping
from cnncc.passes._programs.glb_packing import Lifetime, fits
from cnncc.passes._scheduling.glb_words import stage_sizes
from cnncc.passes._scheduling.layer_groups import LayerGroup
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.network_values import Network, Value
from cnncc.passes._scheduling.smaller_budgets import prefetchable


def lifetimes(
    network: Network, arch: Arch, mappings: Map[LayerOp, Mapping], groups: Sequence[LayerGroup]
) -> dict[str, Lifetime]:
    """What is in the GLB, by name, when nothing is prefetched.

    Each number of the network counts as as many as the groups have parts, for strips run one after the other.
    """
    times, lives = _times(groups), dict[str, Lifetime]()

    def add(name: str, words: int, first: int, last: int) -> None:
        lives[name] = Lifetime(name, words, first, last)

    for i, value in enumerate(resident_values(network, mappings)):
        add(f"value {i}", value.words, value.first * times, value.last * times + times - 1)
    grouped = {layer for group in groups for layer in group.layers}
    for layer in (layer for layer in mappings if layer not in grouped):
        number = network.number[layer]
        for name, words in stage_sizes(layer_shape(layer), arch, mappings[layer]).items():
            add(f"{name} {number}", words, number * times, number * times + times - 1)
    for group in groups:
        number = network.number[group.layers[0]]
        for at, part in enumerate(group.parts, number * times):
            for name, words in part.words(arch).items():
                add(f"{name} {number}", words, at, at)
    return lives


def _times(groups: Sequence[LayerGroup]) -> int:
    return max((len(group.parts) for group in groups), default=1)


def prefetched_layers(
    network: Network, arch: Arch, mappings: Map[LayerOp, Mapping], groups: Sequence[LayerGroup]
) -> list[LayerOp]:
    """The layers whose weights the GLB has words for. mappings: of all layers. Layers in groups wait for theirs."""
    lives = lifetimes(network, arch, mappings, groups)
    in_glb, fitting = {value.root for value in resident_values(network, mappings)}, list[LayerOp]()
    grouped = {layer for group in groups for layer in group.layers}
    ends = {network.number[group.layers[0]]: len(group.parts) - 1 for group in groups}
    headless = {network.number[group.layers[0]] for group in groups if not group.has_head}
    for layer in (layer for layer in network.layers if layer not in grouped):
        before, number = _before(network, layer, in_glb), network.number[layer]
        prefetched = {f"{name} {number}" for name in prefetchable(mappings[layer])}
        if before is None or before in headless or not prefetched:
            continue
        # Behind a group, these words come in its last strip.
        first = before * _times(groups) + ends.get(before, 0)
        longer = {name: lives[name]._replace(first=first) for name in prefetched}
        if fits(list((lives | longer).values()), arch.glb.words):
            lives |= longer
            fitting.append(layer)
    return fitting


def resident_values(network: Network, mappings: Map[LayerOp, Mapping]) -> list[Value]:
    """The values that no mapping streams."""
    streamed = {
        root
        for layer, mapping in mappings.items()
        for operand, root in network.operands(layer).items()
        if operand in mapping.glb_stages
    }
    return [value for value in network.values if value.root not in streamed]


def _before(network: Network, layer: LayerOp, in_glb: set[SSAValue]) -> int | None:
    """When what runs before a layer does: a layer, or transfers of what comes from outside. None where nothing does."""
    number = network.number[layer] - 1
    # Nothing runs for a concatenation, nor here for a layer of a group, which runs where the last of them stands.
    while number >= 0 and (isinstance(op := network.ops[number], ConcatOp) or network.number[op] != number):
        number -= 1
    maker = network.ops[number] if number >= 0 else None
    if isinstance(maker, LayerOp):
        return number
    arguments = [value for value in network.given if not isinstance(value.owner, HostOp)]
    given = list(maker.results) if maker is not None else arguments
    ready = network.ready(maker) if maker is not None else number
    return ready if any(network.root(value) in in_glb for value in given) else None
