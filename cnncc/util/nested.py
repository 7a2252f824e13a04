"""Tables in tables, as `asdict` and counters have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values by name, with a dot between a key and one inside it: `layers.c1.cycles.total`."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
