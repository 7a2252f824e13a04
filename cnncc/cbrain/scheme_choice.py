"""Algorithm 2: the scheme of each layer, and the order in which it stores its results, with reasons."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from cnncc.cbrain.convolution import Convolution
from cnncc.cbrain.schemes import CBrain, Scheme, layer_cycles
from cnncc.errors import Refusal


class StoredOrder(Enum):
    """Which index of stored results runs fastest: the map (D_in, X, Y), or the column of a map (X, Y, D_in)."""

    INTER = "inter-order"
    INTRA = "intra-order"


@dataclass(frozen=True)
class SchemeChoice:
    """The scheme of a layer, and why."""

    scheme: Scheme
    reason: str


def choose(layer: Convolution, tin: int) -> SchemeChoice:
    """Algorithm 2, lines 1 to 3. Inter-kernel is the original one, as in adap-1; `adaptive` has adap-2.

    >>> from cnncc.window import Window
    >>> choose(Convolution("conv1", (227, 227), 3, 96, Window((11, 11), stride=(4, 4))), 16)
    SchemeChoice(scheme=<Scheme.PARTITION: 'kernel partition'>, reason='3 input maps for 16 multipliers')

    Raises Refusal for a T_in below 1.
    """
    if tin < 1:
        raise Refusal(f"{tin} multipliers in a PE: give 1 or more")
    kernel, stride = layer.window.kernel, layer.window.stride
    if kernel == stride and layer.taps > 1 and not layer.dilated:
        return SchemeChoice(Scheme.SLIDING, f"its windows of {kernel[0]} x {kernel[1]} do not overlap")
    maps = f"{layer.depth} input map{'s' * (layer.depth > 1)} for {tin} multiplier{'s' * (tin > 1)}"
    if layer.depth < tin and layer.dilated:
        return SchemeChoice(Scheme.INTER, f"{maps}, but a dilated kernel is not partitioned")
    if layer.depth < tin:
        return SchemeChoice(Scheme.PARTITION, maps)
    return SchemeChoice(Scheme.INTER, maps)


def wanted_order(scheme: Scheme) -> StoredOrder:
    """The order in which the words of an operation lie one after the other."""
    return StoredOrder.INTER if scheme in (Scheme.INTER, Scheme.IMPROVED) else StoredOrder.INTRA


def stored_order(readers: Collection[Scheme]) -> StoredOrder:
    """Algorithm 2, lines 4 and 5: the order that the layers want which read the results; intra-order without any.

    The paper knows one next layer. If readers differ, the order is intra-order, which those need whose windows are cut.

    >>> stored_order([Scheme.INTER]), stored_order([Scheme.INTER, Scheme.PARTITION]), stored_order([])
    (<StoredOrder.INTER: 'inter-order'>, <StoredOrder.INTRA: 'intra-order'>, <StoredOrder.INTRA: 'intra-order'>)
    """
    return StoredOrder.INTER if {StoredOrder.INTER} == {*map(wanted_order, readers)} else StoredOrder.INTRA


def plan(layers: Sequence[Convolution], tin: int) -> list[tuple[SchemeChoice, StoredOrder]]:
    """Algorithm 2 for a list of layers: the next layer is the next one in the list, as printed."""
    choices = [choose(layer, tin) for layer in layers]
    readers = [[choice.scheme] for choice in choices[1:]]
    return list(zip(choices, map(stored_order, [*readers, []]), strict=True))


def adaptive(layers: Sequence[Convolution], tin: int, improved: bool = False) -> list[Scheme]:
    """The schemes of adap-1, or of adap-2, whose inter-kernel is the improved one."""
    schemes = [choose(layer, tin).scheme for layer in layers]
    return [Scheme.IMPROVED if improved and scheme is Scheme.INTER else scheme for scheme in schemes]


def faster_scheme(layer: Convolution, array: CBrain) -> Scheme | None:
    """A scheme with fewer cycles than the one of Algorithm 2, with the fewest of all; None if there is none."""
    schemes = [Scheme.INTER, Scheme.UNROLLED, *([] if layer.dilated else [Scheme.PARTITION])]
    best = min(schemes, key=lambda scheme: layer_cycles(layer, scheme, array))
    chosen = layer_cycles(layer, choose(layer, array.tin).scheme, array)
    return best if layer_cycles(layer, best, array) < chosen else None
