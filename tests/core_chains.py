"""Random chains of layers on cores, for tests: the layers of `group_cases.py`, cut into cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from group_cases import Chain, random_chain
from xdsl.dialects.builtin import ModuleOp

from cnncc.context import CompilerContext
from cnncc.dialects.nest import CoresOp, mapping_of
from cnncc.driver.pipeline import new_context
from cnncc.errors import Refusal
from cnncc.eval import cnn
from cnncc.mapping.channels import Region
from cnncc.passes._scheduling.core_chain import CoreChain, CorePlan, cores_op
from cnncc.passes._scheduling.core_parts import CorePart
from cnncc.passes._scheduling.layer_groups import heights, with_rings
from cnncc.passes._scheduling.stripes import striped
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.passes.nest_cores import parted

FRAMES = 3


@dataclass
class CoreCase:
    """A network on cores, and images that follow each other."""

    chain: Chain
    ctx: CompilerContext
    module: ModuleOp
    frames: np.ndarray

    @property
    def cores(self) -> CoresOp:
        return next(op for op in self.module.walk() if isinstance(op, CoresOp))

    def result(self) -> np.ndarray:
        """What the layers compute, one after the other."""
        ctx = new_context()
        return cnn.evaluate(self.chain.module(ctx), ctx.weights, [self.frames])[0][0]


def plan_of(part: CorePart, number: int, rows: int, slack: Sequence[int]) -> CorePlan:
    """A core whose nests are those of the layers, in stripes. Raises Refusal."""
    nests = [
        striped(layer, mapping_of(layer), own, (), None)
        for layer, own in zip(part.layers, heights(part.layers, rows, several=True), strict=True)
    ]
    return CorePlan(Region(1, 1, number, 0), part, with_rings(part.layers, nests, slack=slack))


def core_case(number: int, seed: int, more: int = 3) -> CoreCase:
    """A network, cut anywhere. more: rows that channels keep beyond the fewest."""
    rng = np.random.default_rng([seed, number])
    while True:
        chain = random_chain(rng, most_images=1, most_layers=5, most_rows=13, most_cols=5)
        ctx = new_context()
        module = chain.module(ctx)
        CnnToNestPass().apply(ctx, module)
        cuts = [0, *(at for at in range(1, len(chain.labels)) if rng.random() < 0.6), len(chain.labels)]
        names = [chain.labels[first:end] for first, end in zip(cuts, cuts[1:], strict=False)]
        try:
            graph, bounds = parted(module, names)
            parts = [graph.part(first, end) for first, end in pairwise(bounds)]
            rows = [int(rng.integers(1, 4)) for _ in parts]
            slack = [[int(rng.integers(0, 2)) for _ in part.layers] for part in parts]
            plans = [plan_of(part, at, rows[at], slack[at]) for at, part in enumerate(parts)]
            break
        except Refusal as refusal:
            expected = ("leave one of them out", "leave the cores")
            assert any(text in str(refusal) for text in expected), refusal
    planned = CoreChain.with_fewest_rows(plans)
    keeps = [min(each.keeps + int(rng.integers(0, more + 1)), each.height) for each in planned.channels]
    cores_op(replace(planned, keeps=tuple(keeps)))
    frames = rng.integers(-60, 60, (FRAMES, *chain.x.shape[1:])).astype(np.int64)
    return CoreCase(chain, ctx, module, frames)
