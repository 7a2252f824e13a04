"""The binary of a compilation, with metadata of the network."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from cnncc.binary.container import Binary
from cnncc.binary.isa_module import build_binary
from cnncc.driver.array_share import ArrayShare
from cnncc.driver.pipeline import Compilation, Step
from cnncc.driver.program_parts import PartsObserver
from cnncc.model.plan_json import as_json


class Build:
    """Observes a compilation of `source` for its binary's metadata: the array's share, and the plan.

    Example:
        build = Build(compilation, source)
        compilation.run("isa", [build])
        binary = build.binary()
    """

    def __init__(self, compilation: Compilation, source: Path) -> None:
        self.compilation, self.source = compilation, source
        self.share, self.observer = ArrayShare(), PartsObserver(compilation)
        # Of IR that is compiled on, the steps at which `share` reads may be over.
        self.share.read(compilation.module)

    def __call__(self, step: Step, module: ModuleOp) -> None:
        """Look at the module after `step`."""
        self.share(step, module)
        self.observer(step, module)

    def binary(self) -> Binary:
        """The binary, once the compilation is at the `isa` level."""
        digest = hashlib.sha256(self.source.read_bytes()).hexdigest()
        about = {"model": self.source.name, "model_sha256": digest, **self.share.about()}
        about |= {} if self.observer.parts is None else {"plan": as_json(self.observer.parts)}
        return binary_of(self.compilation, about)


def binary_of(compilation: Compilation, metadata: dict[str, Any] | None = None) -> Binary:
    """The binary of a compilation at the `isa` level."""
    return build_binary(compilation.module, compilation.ctx.weights, compilation.settings.arch, metadata)
