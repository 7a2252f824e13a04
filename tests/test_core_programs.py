"""Programs of cores: values at every level in any order of cores, no races, and tokens that are all needed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from examples import SEED, examples
from group_cases import Chain, random_chain
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import load_arch
from cnncc.driver.pipeline import ASSIGN, Compilation, Settings, Step, new_context
from cnncc.errors import Refusal
from cnncc.eval import array, cnn
from cnncc.passes.nest_cores import NestCoresPass

EXAMPLES = examples(12)
FRAMES = 3
PLACES = {
    1: ("2x3@1,1",),
    2: ("2x8@0,0", "3x3@4,2"),
    3: ("1x4@0,0", "3x2@2,4", "2x4@5,0"),
    4: ("2x2@0,0", "1x3@2,0", "4x4@4,4", "2x3@4,0"),
}
PASSES = ("nest-to-array", "array-prefetch", "array-allocate", "array-to-isa")


@cache
def cores_array() -> str:
    """An array of 16-bit words with cores."""
    source = (Path(__file__).parents[1] / "cnncc/arch/spatial-8x8.toml").read_text()
    text = source.replace('"spatial-8x8"', '"cores-8x8"').replace("words = 65536", "banks = 64\nwords = 65536")
    path = Path(__file__).parents[1] / "build" / "cores-8x8.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{text}\n[cores]\nmost = 8\nwords_per_cycle = 8\nbuses = 4\nlatency_cycles = 2\n")
    return str(path)


@dataclass
class Case:
    """A chain on cores, before `nest-to-array`; the images of some frames, and the results of them."""

    compilation: Compilation
    x: np.ndarray
    result: np.ndarray

    def at(self, last: str) -> ModuleOp:
        """The module after the pass `last`."""
        for name in PASSES[: PASSES.index(last) + 1]:
            level = "isa" if name == "array-to-isa" else "array"
            options = "" if level == "isa" else f'arch="{cores_array()}"'
            self.compilation.step(Step(level, name, options))
        return self.compilation.module


def on_cores(chain: Chain, parts: Sequence[Sequence[str]], **options: object) -> Case:
    """A chain of one image whose layers are on cores. Raises Refusal."""
    ctx, arch = new_context(), cores_array()
    compilation = Compilation(ctx, chain.module(ctx), Settings(load_arch(arch), arch, 16))
    compilation.run_before(ASSIGN)
    cores = ";".join(",".join(part) for part in parts)
    NestCoresPass(cores, ";".join(PLACES[len(parts)]), arch=arch, **options).apply(ctx, compilation.module)
    compilation.module.verify()
    x = np.random.default_rng(5).integers(-60, 60, (FRAMES, *chain.x.shape[1:])).astype(np.int64)
    ctx = new_context()
    (result,), _ = cnn.evaluate(chain.module(ctx), ctx.weights, [x])
    return Case(compilation, x, result)


def drawn(count: int) -> list[Case]:
    """Random chains on 1 to 4 cores."""
    rng, cases = np.random.default_rng(SEED + 28), list[Case]()
    while len(cases) < count:
        chain = random_chain(rng, 5, most_rows=13, most_images=1)
        labels = chain.labels
        cuts = sorted({0, len(labels), *rng.integers(1, len(labels), rng.integers(0, 4)).tolist()})
        parts = [labels[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
        try:
            rows = tuple(int(rng.integers(1, 4)) for _ in parts)
            cases.append(on_cores(chain, parts, rows=rows, lag=int(rng.integers(1, 3))))
        except Refusal as refusal:
            assert any(text in str(refusal) for text in REFUSED), refusal
    return cases


REFUSED = (
    "only the result of a core's last layer leaves it",
    "a core reads one value",
    "one engine does (CORE-5)",
    "no mapping",
)


@pytest.mark.parametrize("number", range(EXAMPLES))
def test_chains_compute_the_same_at_every_level(number, short_searches):
    case = cases()[number]
    store, arch = case.compilation.ctx.weights, load_arch(cores_array())
    for last in PASSES[::2]:  # before and behind array-allocate
        module = case.at(last)
        for seed in (0, 1):
            pick = random.Random(seed).choice if seed else None
            outputs, _ = array.evaluate(module, store, arch, [case.x], pick=pick)
            assert np.array_equal(outputs[0], case.result), (last, seed)
