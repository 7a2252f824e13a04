"""docs/arch.md from the keys of an array: `python -m cnncc.arch.manual` prints it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import cleandoc
from typing import Any

from cnncc.arch.model import Arch, Key, key_types, load_arch, preset_names

_HEAD = """# The architecture file

Generated from `cnncc/arch/model.py` by `python -m cnncc.arch.manual`; do not edit.

An array is a TOML file with these keys. The shortest way to one is a copy of a preset:

```sh
cnncc arch list
cnncc arch show spatial-8x8 > mine.toml
```

`--arch mine.toml` takes it wherever `--arch` takes a preset. Unknown keys are refused, and so are numbers outside their
range. A key with a *default* may be left out. [machine.md](machine.md) says what the machine does with the numbers; its
rules ([rules.md](rules.md)) stand in brackets. The last columns say what the presets have: the number that a family
shares, or all of its numbers, smaller arrays first.
"""


def families() -> dict[str, list[Arch]]:
    """The presets by the first part of their names, smaller ones first: `spatial` has `spatial-4x4` and so on."""
    by_family: dict[str, list[Arch]] = {}
    for arch in sorted(map(load_arch, preset_names()), key=lambda arch: arch.rows):
        by_family.setdefault(arch.name.partition("-")[0], []).append(arch)
    return by_family


def _shown(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, tuple):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def _all(values: Iterable[object]) -> str:
    """Values, equal ones once."""
    return ", ".join(dict.fromkeys(map(_shown, values)))


def _range(kind: type, key: Key) -> str:
    if kind not in (int, float):
        return {"bool": "true, false", "str": "text", "tuple": "names"}[kind.__name__]
    return _all(key.only) or _all(dict.fromkeys((key.least, key.most))).replace(", ", " to ")


def _section(title: str, table: type[Any], presets: Mapping[str, list[Any]]) -> Iterator[str]:
    """The plain keys of a table, then its inner tables. presets: the family's values of this table."""
    known = key_types(table)
    yield f"\n## {title}\n\n{cleandoc(table.__doc__ or '')}\n"
    yield f"| key | unit | range | default | meaning | {' | '.join(f'{family}-…' for family in presets)} |"
    yield f"|---|---|---|---|---|{'---|' * len(presets)}"
    for field in fields(table):
        if not is_dataclass(kind := known[field.name]):
            key: Key = kind.__metadata__[0]
            default = "" if field.default is MISSING else _shown(field.default)
            has = [_all(getattr(part, field.name) for part in parts) for parts in presets.values()]
            cells = [f"`{field.name}`", key.unit, _range(kind.__origin__, key), default, key.meaning, *has]
            yield f"| {' | '.join(cells)} |"
    for name, inner in known.items():
        if isinstance(inner, type) and is_dataclass(inner):
            parts = {family: [getattr(part, name) for part in parts] for family, parts in presets.items()}
            yield from _section(f"[{name}]", inner, parts)


def manual() -> str:
    """The page, in Markdown."""
    return _HEAD + "\n".join(_section("The array", Arch, families())) + "\n"


if __name__ == "__main__":
    print(manual(), end="")
