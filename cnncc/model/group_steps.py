"""The program of a group: which stripes run in which loop, and the tokens between its layers. No IR.

The steps of a group are cut into *bodies*. All steps of a body run the same layers, on stripes of the same sizes, with
the same tokens, so that a body is one hardware loop. Long groups have a prologue, a steady state and an epilogue.

Tokens (GROUP-7). The commit engine writes rings, the load engine reads them, and each works in program order. A load
that waits for a stripe waits for all stripes before it. So it takes a token only if it needs a later stripe than any
load before it has waited for. Tokens are then taken in the order in which they are given: one semaphore does for all
layers (TOKEN-4). No token frees a slot of a ring (GROUP-8).

The lowering (`passes/_programs/group_program.py`) and the cost model share these bodies, as they do `glb_tokens.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from cnncc.dialects._groups import GroupLayer, stripe_needed
from cnncc.errors import Refusal


class Section(NamedTuple):
    """A stripe of layer number `layer` in the first step of a body: its number and rows.

    - following: rows of the next stripe, 0 after the last
    - takes: whether its first load takes a token; gives: whether its last commit gives one
    """

    layer: int
    stripe: int
    rows: int
    following: int
    takes: bool
    gives: bool


class GroupBody(NamedTuple):
    """So many steps; in each the stripes are one further."""

    steps: int
    sections: tuple[Section, ...]


class StripeTokens(NamedTuple):
    """Whether the first load of a stripe takes a token and its last commit gives one. depth: of the loops around it."""

    depth: int
    takes: bool = False
    gives: bool = False


def group_bodies(layers: Sequence[GroupLayer], prefetches: Sequence[bool]) -> list[GroupBody]:
    """The bodies of one image. prefetches: the layers that fetch their next stripe from DRAM, of a known size."""
    takes, gives = _tokens(layers)
    steps: list[tuple[Section, ...]] = []
    for step in range(max(layer.delay + layer.stripes for layer in layers)):
        sections = list[Section]()
        for number, layer in enumerate(layers):
            stripe = step - layer.delay
            if rows := layer.stripe_rows(stripe):
                following = layer.stripe_rows(stripe + 1)
                at = (step, number)
                sections.append(Section(number, stripe, rows, following, at in takes, at in gives))
        steps.append(tuple(sections))

    def signature(sections: tuple[Section, ...]) -> list[Section]:
        """What the steps of a body have in common."""
        return [each._replace(stripe=0, following=each.following * prefetches[each.layer]) for each in sections]

    bodies = [list(run) for _, run in groupby(steps, signature)]
    return [GroupBody(len(body), body[0]) for body in bodies if body[0]]


Point = tuple[int, int]  # a step, and the number of a layer that commits a stripe in it


def _tokens(layers: Sequence[GroupLayer]) -> tuple[set[Point], set[Point]]:
    """The stripes whose first load takes a token, and those whose last commit gives one."""
    takes, gives, waited = set[Point](), set[Point](), (-1, -1)
    for step in range(max(layer.delay + layer.stripes for layer in layers)):
        for number, layer in enumerate(layers):
            stripe = step - layer.delay
            if not layer.stripe_rows(stripe):
                continue
            needed = waited
            for read in layer.reads:
                producer = layers[read.producer]
                if (last := stripe_needed(layer, read, producer, stripe)) >= 0:
                    needed = max(needed, (last + producer.delay, read.producer))
            if needed > waited:
                takes.add((step, number))
                gives.add(needed)
                waited = needed
    return takes, gives


def first_runs(layers: Sequence[GroupLayer]) -> list[int]:
    """The layers in the order of their first stripes."""
    return sorted(range(len(layers)), key=lambda number: (layers[number].delay, number))


def last_run(layers: Sequence[GroupLayer]) -> int:
    """The layer with the last stripe of all."""
    return max(range(len(layers)), key=lambda number: (layers[number].delay + layers[number].stripes, number))


def waits_for_weights(layers: Sequence[GroupLayer]) -> list[bool]:
    """Whether each layer has a token that says that its weights and params have come.

    Raises Refusal where no load of the group would wait for the params of a layer without weights.
    """
    staged = [layer.mapping.stages_in("glb") for layer in layers]
    first, waits = first_runs(layers)[0], ["weight" in each for each in staged]
    if (
        any("params" in each and "weight" not in each for each in staged)
        and not {"weight", "ifmap"} & staged[first].keys()
    ):
        if "params" not in staged[first]:
            why = "its first layer waits for no transfer, but a pool of it has params"
            raise Refusal(f"layer {layers[first].label}: {why}: begin the group with another layer")
        waits[first] = True
    return waits
