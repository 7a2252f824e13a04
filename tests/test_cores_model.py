"""Layers side by side: what the model predicts is what the interpreter counts of the compiled program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from examples import SEED, examples
from group_cases import random_chain

from cnncc.arch.model import load_arch
from cnncc.binary.container import Binary
from cnncc.binary.counters import program_stats
from cnncc.binary.modules import build_binary
from cnncc.dialects.nest import CoresOp
from cnncc.driver.pipeline import ASSIGN, Compilation, Settings, Step, new_context
from cnncc.driver.program_parts import cores_plan_of
from cnncc.errors import Refusal
from cnncc.machine.cores.core_times import simulate_cores
from cnncc.machine.cores.programs import cores_of
from cnncc.model.cores_counts import all_counts
from cnncc.model.cores_plan import CoresPlan
from cnncc.model.cores_schedule import PredictedFrames, predicted_frames
from cnncc.model.energy import with_energy
from cnncc.model.plan_json import as_json, from_json
from cnncc.passes.nest_cores import NestCoresPass

PLACES = {
    1: ("2x3@1,1",),
    2: ("2x8@0,0", "3x3@4,2"),
    3: ("1x4@0,0", "3x2@2,4", "2x4@5,0"),
    4: ("2x2@0,0", "1x3@2,0", "4x4@4,4", "2x3@4,0"),
}
PASSES = (("array", "nest-to-array"), ("array", "array-prefetch"), ("array", "array-allocate"), ("isa", "array-to-isa"))
ARRAYS = {  # what differs from spatial-8x8, and the table of cores
    "slow tokens": ({}, "words_per_cycle = 8\nlatency_cycles = 40"),
    "slow memories": (
        {"words_per_cycle = 8": "words_per_cycle = 1", "latency_cycles = 64": "latency_cycles = 300"},
        "words_per_cycle = 2\nlatency_cycles = 0",
    ),
    "short queues": ({"queue_depth = 4": "queue_depth = 1"}, "words_per_cycle = 16\nlatency_cycles = 3"),
}


@pytest.fixture(scope="module", params=ARRAYS)
def array(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    changes, cores = ARRAYS[request.param]
    text = (Path(__file__).parents[1] / "cnncc/arch/spatial-8x8.toml").read_text()
    for old, new in {**changes, "words = 65536": "words = 65536\nbanks = 64"}.items():
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path_factory.mktemp("arrays") / "cores.toml"
    path.write_text(f"{text}\n[cores]\nmost = 8\nbuses = 4\n{cores}\n")
    return str(path)


def programs(array: str, seed: int) -> Iterator[tuple[CoresPlan, Binary]]:
    """Random chains on 1 to 4 cores: their plans and their binaries."""
    rng = np.random.default_rng([SEED, seed])
    while True:
        ctx, chain = new_context(), random_chain(rng, 5, most_rows=13, most_images=1)
        compilation = Compilation(ctx, chain.module(ctx), Settings(load_arch(array), array, 16))
        compilation.run_before(ASSIGN)
        labels = chain.labels
        cuts = sorted({0, len(labels), *rng.integers(1, len(labels), rng.integers(0, 4)).tolist()})
        parts = [labels[a:b] for a, b in pairwise(cuts)]
        rows = tuple(int(rng.integers(1, 4)) for _ in parts)
        cores = ";".join(",".join(part) for part in parts)
        try:
            NestCoresPass(cores, ";".join(PLACES[len(parts)]), rows, lag=int(rng.integers(1, 3)), arch=array).apply(
                ctx, compilation.module
            )
            plan = cores_plan_of(next(op for op in compilation.module.walk() if isinstance(op, CoresOp)))
            for level, name in PASSES:
                compilation.step(Step(level, name, f'arch="{array}"' if level == "array" else ""))
        except Refusal as refusal:
            assert any(text in str(refusal) for text in REFUSED), refusal
            continue
        yield plan, build_binary(compilation.module, ctx.weights, compilation.settings.arch)


REFUSED = (
    "only the result of a core's last layer leaves it",
    "a core reads one value",
    "one engine does (CORE-5)",
    "row of a ring of",
    "no mapping",
)


def check(plan: CoresPlan, binary: Binary, frames: int) -> PredictedFrames:
    """All that is predicted is what is counted."""
    arch = binary.arch
    predicted = predicted_frames(plan, arch, frames, causes=True)
    counted = simulate_cores(cores_of(binary.instructions, arch, frames), causes=True)
    assert [vars(core) for core in predicted.cores] == [vars(core.cycles) for core in counted.cores]
    assert (predicted.first, predicted.period) == (counted.frames.first, counted.frames.period)
    assert predicted.peaks == list(counted.rings.values())
    assert all(peak <= channel.keeps for peak, channel in zip(predicted.peaks, plan.channels, strict=True))
    return predicted


def test_what_is_predicted_is_what_is_counted(array: str) -> None:
    drawn = programs(array, 28)
    for _ in range(examples(3)):
        plan, binary = next(drawn)
        assert from_json(json.loads(json.dumps(as_json([plan])))) == [plan]
        for frames in (1, 6, 30):
            check(plan, binary, frames)
        counted, predicted = program_stats(binary, frames=6), all_counts([plan], binary.arch, frames=6)
        assert with_energy(predicted, binary.arch.energy) == counted
