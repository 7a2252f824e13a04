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
range. A key with a *default* may be left out. A word has `operand_bits`: of 16 bits, 64 KiB are 32,768 words, and 8
bytes a cycle are 4. [machine.md](machine.md) says what the machine does with the numbers; its rules
([rules.md](rules.md)) stand in brackets. The last columns say what the presets have: the number that a family
shares, or all of its numbers, smaller arrays first.

The least that a file says:

```toml least.toml
name = "least"
rows = 4
cols = 4

[pe]
weight_words = 112
ifmap_words = 48
psum_words = 16

[glb]
words = 65536
words_per_cycle = 16

[dram]
words_per_cycle = 8
latency_cycles = 64
```

`cnncc arch show FILE` checks a file and prints it, with `--all` all keys, the defaults included:

```sh
cnncc arch show least.toml --all
```
"""

_CBRAIN = """
## The arrays of C-Brain

`cbrain-16-16` and `cbrain-32-32` are T_in-T_out of L. Song et al., "C-Brain" (DAC 2016): T_out PEs, each with T_in
multipliers and a tree of adders. The paper gives the numbers of its Table 3. What it leaves open is assumed:

- **PEs.** T_out `rows` of one PE, so that each PE has a row bus of its own; `lanes` are T_in. *Assumed:* no `links`.
- **Numbers.** Operands have 16 bits. *Assumed:* psums have 32, for which the quantiser narrows operands where it must.
- **Cycles.** 1 GHz; multiply, add, load and store take a cycle each. *Assumed:* they are stages of a pipeline that goes
  on from one macro-instruction to the next, so `start_cycles` and `finish_cycles` are 0.
- **Buffers.** InOut 2 MB, weights 1 MB, biases 4 KB. *Assumed:* `glb.words` is their sum, and each use may have any
  part of it.
- **Bandwidths.** A cycle brings T_in · T_out weights or T_in input words, and takes T_out results. So a PE takes T_in
  words a cycle (`burst_words`, `pe.words_per_cycle`), all PEs as many each (`glb.words_per_cycle`), or all the same
  ones. *Assumed:* PEs that need different input words get them as fast as weights. In the paper's schemes there are no
  such PEs.
- **Add-and-store.** The output units add partial sums up on their way to the GLB ([COMMIT-5](machine.md#commit)),
  T_out results a cycle.
- **What a PE keeps.** Weights or data, for several operations. *Assumed:* halves of 512 words (1,024 for T_in = 32),
  64 sums, macro-instructions of 64 pixels.
- **External memory.** *Assumed:* 16 words a cycle. The times of the paper's Table 4 are then those of its operations
  and of loading all weights once.

Any other T_in-T_out is a preset, too: `--arch cbrain-8-24` has 24 PEs of 8 multipliers. It is `cbrain-16-16` with these
keys:

| key | value | `cbrain-8-24` | `cbrain-16-64` |
|---|---|---|---|
| `rows`, `cols` | T_out PEs: `rows` the largest divisor of T_out that is at most 32 | 24, 1 | 32, 2 |
| `pe.lanes`, `pe.words_per_cycle` | T_in | 8 | 16 |
| `pe.weight_words`, `pe.ifmap_words` | 32 · T_in | 256 | 512 |
| `bus.burst_words` | T_in for each column | 8 | 32 |
| `glb.words_per_cycle` | T_in · T_out | 192 | 1024 |
| `commit.units_per_column` | T_out / `cols` | 24 | 32 |

`cnncc arch show cbrain-8-24` prints the file, for other buffers, memories or clocks.
"""


def families() -> dict[str, list[Arch]]:
    """The presets by the first part of their names, smaller ones first: `spatial` has `spatial-4x4` and so on."""
    by_family: dict[str, list[Arch]] = {}
    for arch in sorted(map(load_arch, preset_names()), key=lambda arch: arch.rows):
        by_family.setdefault(arch.name.partition("-")[0], []).append(arch)
    return by_family


def _all(values: Iterable[object]) -> str:
    """Values as TOML has them, which is as JSON does; equal ones once."""
    return ", ".join(dict.fromkeys(map(json.dumps, values)))


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
            default = "" if field.default is MISSING else json.dumps(field.default)
            has = [_all(getattr(part, field.name) for part in parts) for parts in presets.values()]
            cells = [f"`{field.name}`", key.unit, _range(kind.__origin__, key), default, key.meaning, *has]
            yield f"| {' | '.join(cells)} |"
    for name, inner in known.items():
        if isinstance(inner, type) and is_dataclass(inner):
            parts = {family: [getattr(part, name) for part in parts] for family, parts in presets.items()}
            yield from _section(f"[{name}]", inner, parts)


def manual() -> str:
    """The page, in Markdown."""
    return _HEAD + "\n".join(_section("The array", Arch, families())) + "\n" + _CBRAIN


if __name__ == "__main__":
    print(manual(), end="")
