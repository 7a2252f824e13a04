"""docs/passes.md and `cnncc opt --passes` from the docstrings and options of the passes.

`python -m cnncc.driver.pass_manual` prints the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from inspect import cleandoc, getdoc, getmodule
from textwrap import dedent

from xdsl.passes import ModulePass

from cnncc.errors import Refusal, hint
from cnncc.universe import PASSES
from cnncc.util.terminal import NAME, TEXT, Column, fitted, table

_HEAD = """# Passes

Generated from the docstrings of the passes by `python -m cnncc.driver.pass_manual`; do not edit. `cnncc opt --passes`
prints the list, and `cnncc opt --passes NAME` one pass:

```sh
cnncc opt --passes
cnncc opt --passes nest-split
```

`cnncc opt FILE -p 'NAME{option=value …}'` runs a pass. [ladder.md](ladder.md) has the passes of `compile`, in their
order. [adding-a-pass.md](adding-a-pass.md) adds a pass.
"""
LEVELS = {
    "onnx": "on the operators of the model",
    "cnn": "on layers",
    "nest": "on loops around a layer's multiplications",
    "array": "on the programs of layers",
}


def passes() -> dict[str, type[ModulePass]]:
    """All passes by name, in the order of their levels, then of their names."""
    levels = list(LEVELS)
    names = sorted(PASSES, key=lambda name: (levels.index(name.split("-")[0]), name))
    return {name: PASSES[name]() for name in names}


def text_of(pass_: type[ModulePass]) -> str:
    """What a pass says of itself: the docstring of its class, else that of its module."""
    own = vars(pass_).get("__doc__") or ""
    module = getdoc(getmodule(pass_)) or ""
    # A dataclass without a docstring gets its signature as one.
    return cleandoc(own if not own.startswith(f"{pass_.__name__}(") and "module's docstring" not in own else module)


def summary(pass_: type[ModulePass]) -> str:
    """The first sentence."""
    return " ".join(text_of(pass_).split("\n\n")[0].split())


def options(pass_: type[ModulePass]) -> Iterator[tuple[str, str, str]]:
    """The name, the type and the default of each option."""
    for field in fields(pass_):
        if field.name != "name":
            yield field.name.replace("_", "-"), _type_of(field), _default_of(field)


def _type_of(field: Field[object]) -> str:
    written = str(field.type).removesuffix(" | None").replace(" | ", " or ")
    names = {"str": "text", "int": "number", "bool": "true or false"}
    names |= {"tuple[str, ...]": "names, comma-separated", "tuple[int, ...]": "numbers, comma-separated"}
    return names.get(written, written)


def _default_of(field: Field[object]) -> str:
    if field.default is MISSING:
        return "must be given"
    return "none" if field.default in (None, ()) else str(field.default)


def listing() -> str:
    """A line a pass: name and summary."""
    rows = [(name, summary(pass_)) for name, pass_ in passes().items()]
    return "\n".join(table([Column(kind=NAME), Column(kind=TEXT)], rows, indent=0)) + "\n"


def page(name: str) -> str:
    """One pass: what it does, and its options. Raises Refusal for a name that no pass has."""
    known = passes()
    if name not in known:
        raise Refusal(f"no pass '{name}': {hint(name, list(known))}")
    lines = [name, "", *text_of(known[name]).splitlines()]
    if rows := list(options(known[name])):
        heads = [Column("option", NAME), Column("type", TEXT), Column("default", TEXT)]
        lines += ["", *table(heads, rows)]
    return fitted(lines) + "\n"


def manual() -> str:
    """The text of docs/passes.md."""
    parts = [_HEAD]
    known = passes()
    for level, what in LEVELS.items():
        parts.append(f"## {level}: {what}\n")
        for name, pass_ in known.items():
            if name.split("-")[0] == level:
                parts += [f"### {name}\n", f"{_fenced(text_of(pass_))}\n", *_table(pass_)]
    return "\n".join(parts)


def _fenced(text: str) -> str:
    """The text with its examples, which are indented, in fences."""
    fenced = re.sub(r"(?:^ {4}.*\n?)+", lambda block: f"```\n{dedent(block[0]).rstrip()}\n```\n", text, flags=re.M)
    return fenced.rstrip()


def _table(pass_: type[ModulePass]) -> list[str]:
    rows = [f"| `{name}` | {kind} | {default} |" for name, kind, default in options(pass_)]
    return ["\n".join(["| option | type | default |", "|---|---|---|", *rows]) + "\n"] if rows else []


if __name__ == "__main__":
    print(manual(), end="")
