"""Registers the dialects and passes, for cnncc's own tools and for every xDSL tool, through the entry point.

A file `passes/nest_tile.py` holds the class `NestTilePass` and is `nest-tile` on the command line. A file
`dialects/nest.py` holds the dialect object `NEST`. Nothing is listed by hand.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache

from xdsl.ir import Dialect
from xdsl.passes import ModulePass
from xdsl.universe import Universe

import cnncc.dialects
import cnncc.passes


def _modules(path: list[str]) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(path) if not module.name.startswith("_"))


def _dialect(name: str) -> Callable[[], Dialect]:
    return lambda: getattr(importlib.import_module(f"cnncc.dialects.{name}"), name.upper())


def _pass(name: str) -> Callable[[], type[ModulePass]]:
    class_name = "".join(word.capitalize() for word in name.split("_")) + "Pass"
    return lambda: getattr(importlib.import_module(f"cnncc.passes.{name}"), class_name)


DIALECTS: dict[str, Callable[[], Dialect]] = {name: _dialect(name) for name in _modules(list(cnncc.dialects.__path__))}
PASSES: dict[str, Callable[[], type[ModulePass]]] = {
    name.replace("_", "-"): _pass(name) for name in _modules(list(cnncc.passes.__path__))
}
CNNCC_UNIVERSE = Universe(all_dialects=DIALECTS, all_passes=PASSES)


@cache  # it looks for entry points in all installed packages
def known_dialects() -> Mapping[str, Callable[[], Dialect]]:
    """The dialects of all installed packages. cnncc's own are there in a bare checkout, too."""
    return {**Universe.get_multiverse().all_dialects, **DIALECTS}
