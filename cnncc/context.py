"""The compilation's context: xDSL's, and the weights that its IR refers to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from xdsl.context import Context

from cnncc.errors import Refusal
from cnncc.util.progress import Progress, silent
from cnncc.weights import WeightStore


def to_stderr(message: str) -> None:
    """Prints a note, which is no error."""
    sys.stderr.write(f"cnncc: note: {message}\n")


def warning_to_stderr(message: str) -> None:
    """Prints a warning, which is no error."""
    sys.stderr.write(f"cnncc: warning: {message}\n")


@dataclass
class CompilerContext(Context):
    """An xDSL context that owns a weight store, shared by its clones (keys are content, so sharing is safe).

    - progress: receives the current step of a pass that takes long
    - note: receives what a user of a pass by hand may not expect
    - warning: receives what a user of any command may not expect
    - decided: receives what a pass has decided that is more than the IR says: `Decision` of `nest-assign-mapping`,
      `CoreChain` of `nest-cores`
    - processes: the number that a pass may use; None: one for each core
    """

    weights: WeightStore = field(default_factory=WeightStore)
    progress: Progress = silent
    note: Callable[[str], None] = silent
    warning: Callable[[str], None] = silent
    decided: Callable[[Any], None] = silent
    processes: int | None = None

    def clone(self) -> CompilerContext:
        """A context with the same registrations and the same store."""
        other = copy(self)
        # xDSL's `clone` gives a plain context, whose registrations are taken over.
        other.__dict__.update(super().clone().__dict__)
        return other


def note(ctx: Context, message: str) -> None:
    """Tell the user of `ctx` something that is no error; under stock xDSL tools on stderr."""
    (ctx.note if isinstance(ctx, CompilerContext) else to_stderr)(message)


def warn(ctx: Context, message: str) -> None:
    """Warn the user of `ctx`; under stock xDSL tools on stderr."""
    (ctx.warning if isinstance(ctx, CompilerContext) else warning_to_stderr)(message)


def weights_of(ctx: Context) -> WeightStore:
    """The weight store of `ctx`. Raises Refusal under a plain xDSL context, which has none."""
    if not isinstance(ctx, CompilerContext):
        raise Refusal("this pass reads weights, which stock xDSL tools do not carry: use `cnncc opt`")
    return ctx.weights
