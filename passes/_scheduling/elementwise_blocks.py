"""The blocks in which the operands of an elementwise layer are streamed. No IR."""

from __future__ import annotations

from itertools import chain

from cnncc.arch.model import Arch
from cnncc.mapping.mapping import Loop, Mapping, Stage
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.glb_words import buffers_too_large
from cnncc.passes._scheduling.numbered_nest import those_running

MOST_WORDS = (1 << 16) - 1  # that a commit streams from one channel (a field's width)


def copy_mapping(shape: LayerShape, arch: Arch, budget: GlbBudget) -> Mapping | None:
    """The blocks of an elementwise layer; None where all operands lie in the GLB.

    They are whole channels, rows of one, or parts of a row. Raises Refusal where not even a word of each fits.
    """
    if not budget.streamed:
        return None
    sizes = shape.sizes
    most = min(budget.words // len(budget.streamed), MOST_WORDS)
    blocks = chain(
        ((k, sizes.h, sizes.w) for k in range(sizes.k, 0, -1)),
        ((1, h, sizes.w) for h in range(sizes.h, 0, -1)),
        ((1, 1, w) for w in range(sizes.w, 0, -1)),
    )
    for k, h, w in blocks:
        # `stream_program` takes blocks of one size alone.
        if k * h * w <= most and sizes.k % k == 0 and sizes.h % h == 0 and sizes.w % w == 0:
            steps = [Loop("n"), Loop("k", k), Loop("h", h), Loop("w", w)]
            inner = [Loop("k"), Loop("h"), Loop("w")]
            running = those_running(shape, [*steps, *inner])
            depth = sum(loop is not None for loop in running[: len(steps)])
            stages = tuple(Stage(operand, "glb", depth) for operand in sorted(budget.streamed))
            return Mapping(tuple(loop for loop in running if loop is not None), stages)
    raise buffers_too_large(arch, budget, len(budget.streamed))
