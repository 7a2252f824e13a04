"""Which part of a network the array does, and which the host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any, cast

from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from cnncc.dialects.cnn import ConvOp, HostOp
from cnncc.dialects.nest import CoresOp, LayerOp
from cnncc.driver.check_findings import glb_blocks
from cnncc.driver.pipeline import CORES, Step
from cnncc.driver.program_parts import cores_plan_of
from cnncc.errors import ALIKE, first_of, plural
from cnncc.model.cores_plan import CoresPlan

_NODE = re.compile(r"(\w+ node) '(.*)': (.*)", re.DOTALL)  # of a reason: what, its name, why
# The reasons of a segment are joined by "; " (`placement.py`), which a reason may have inside, too.
_BETWEEN = re.compile(r"; (?=\w+ node '|unnamed \w+ node: )")


def host_text(hosted: Sequence[str]) -> list[str]:
    """A line for each host segment, and one for what more than `ALIKE` nodes of all segments have in common."""
    segments = [_BETWEEN.split(reasons) for reasons in hosted]
    names: dict[tuple[str, str], list[str]] = {}
    for reason in dict.fromkeys(chain.from_iterable(segments)):
        if node := _NODE.fullmatch(reason):
            names.setdefault((node[1], node[3]), []).append(node[2])
    lines: dict[str, None] = {}
    for reasons in segments:
        alone: list[str] = []
        for reason in reasons:
            node = _NODE.fullmatch(reason)
            alike = names[node[1], node[3]] if node else []
            if node and len(alike) > ALIKE:
                lines[f"{plural(len(alike), node[1])}: {node[3]}: {first_of(alike)}"] = None
            else:
                alone.append(reason)
        lines |= {"; ".join(alone): None} if alone else {}
    return list(lines)


def hosted_by(op: Operation) -> list[str]:
    """What the host computes of a `cnn` or `nest` module, or of a function of one, and why: a text for each segment."""
    return [each.reason.data for each in op.walk() if isinstance(each, HostOp)]


class ArrayShare:
    """Watches a compilation for what its user should know: what the host does and why, its share, GLB use, cores."""

    def __init__(self) -> None:
        self.hosted: list[str] = []
        self.macs = self.all_macs = 0
        self.blocks = ""
        self.cores: CoresPlan | None = None

    def __call__(self, step: Step, module: ModuleOp) -> None:
        """Look at the quantised layers, and again at their mappings."""
        if step.name in ("cnn-legalize", "nest-assign-mapping"):
            self.read(module)
        if step.name == CORES:
            self.cores = next((cores_plan_of(op) for op in module.walk() if isinstance(op, CoresOp)), None)

    def read(self, module: ModuleOp) -> None:
        """Take what a module of the `cnn` or `nest` level knows; nothing from one of another."""
        self.hosted = hosted_by(module)
        layers = [op.sizes.data for op in module.walk() if isinstance(op, LayerOp) and op.kind.data == "mac"]
        self.macs = sum(op.macs() for op in module.walk() if isinstance(op, ConvOp)) + sum(
            prod(vars(sizes).values()) for sizes in layers
        )
        self.blocks = glb_blocks(module)
        total = module.attributes.get("cnn.macs_total")
        knows = isinstance(total, IntegerAttr) and any(isinstance(op, FuncOp) for op in module.ops)
        self.all_macs = cast("IntegerAttr", total).value.data if knows else 0

    @property
    def share(self) -> float:
        """The array's share of the network's MACs; 1 where there are none."""
        return self.macs / self.all_macs if self.all_macs else 1.0

    def about(self) -> dict[str, Any]:
        """What the binary's metadata keeps of it."""
        return {"macs": self.macs, "all_macs": self.all_macs, "host": self.hosted}
