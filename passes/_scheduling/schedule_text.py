"""Schedule files of what the compiler has chosen, for a user to change. No pass: for `compile --emit schedule`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields

from cnncc.mapping.text import text
from cnncc.passes._scheduling.candidates import label
from cnncc.passes._scheduling.core_chain import CoreChain
from cnncc.passes._scheduling.decision import Decision
from cnncc.passes._scheduling.schedule_file import CORE, GROUP, OUTPUT, RESIDENT, STREAMED, GivenCore, GivenGroup

# Layers of a file are mapped before its groups are made (docs/schedule.md).
CROWDED = """\
# The GLB has room for the rings of these groups, but not for the whole values between their layers. Layers of a
# file are mapped before its groups are made: other values may be streamed then, and a group may be refused.

"""


def schedule_text(chosen: Decision | CoreChain, given: Sequence[GivenGroup] = ()) -> str:
    """The mapping of each layer, where its results lie, and the groups; or the cores. given: groups of a schedule file.

    Layers in strips of columns, and elementwise ones in groups, have no mapping here: `nest-group` finds it again.
    """
    if isinstance(chosen, CoreChain):
        return "\n".join([f"lag = {chosen.lag}\n", *(_table(CORE, core, GivenCore((), "")) for core in chosen.options)])
    options = [*given, *(group.options for group in chosen.groups)]
    groups = (_table(GROUP, group, GivenGroup((), 0)) for group in options)
    about = CROWDED if chosen.groups and chosen.crowded else ""
    return about + "\n".join([*groups, *_layer_tables(chosen)])


def _layer_tables(decision: Decision) -> Iterator[str]:
    in_strips = {layer for group in decision.groups if group.strips for layer in group.layers}
    for layer, mapping in decision.mappings.items():
        sizes, lines = layer.sizes.data, list[str]()
        if mapping and layer not in in_strips and layer.kind.data != "copy":
            lines.append(f"mapping = {_toml(text(mapping, sizes))}")
        if layer in decision.places:
            lines.append(f"{OUTPUT} = {_toml(RESIDENT if decision.places[layer] else STREAMED)}")
        if lines and (name := label(layer)) is not None:
            extents = " ".join(f"{dim} {size}" for dim, size in vars(sizes).items())
            yield "\n".join([f"[{_toml(name)}]  # {extents}", *lines, ""])


def _table(name: str, given: GivenGroup | GivenCore, usual: GivenGroup | GivenCore) -> str:
    """A listed table with the keys that differ from the usual ones."""
    keys = {each.name: getattr(given, each.name) for each in fields(given)}
    lines = (f"{key} = {_toml(value)}" for key, value in keys.items() if value != getattr(usual, key))
    return "\n".join([f"[[{name}]]", *lines, ""])


def _toml(value: object) -> str:
    """A text, a number, true or false, or a list of these. JSON writes them alike, but for the character DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
