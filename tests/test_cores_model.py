"""Layers side by side: what the model predicts is what the interpreter counts of the compiled program."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Mapped
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cli_cases import done, refused
from examples import SEED, examples
from group_cases import random_chain

from cnncc.arch.model import load_arch
from cnncc.binary.container import Binary, load, save
from cnncc.binary.counters import program_stats
from cnncc.binary.isa_module import build_binary
from cnncc.binary.run import Machine, inputs_of, outputs_of
from cnncc.dialects.nest import CoresOp
from cnncc.driver.pipeline import ASSIGN, Compilation, Settings, Step, new_context
from cnncc.driver.program_parts import cores_plan_of
from cnncc.errors import Refusal
from cnncc.isa.assembly import assemble
from cnncc.isa.codec import encode_program
from cnncc.isa.table import Instruction
from cnncc.machine.cores.core_checks import check_cores
from cnncc.machine.cores.core_races import core_races
from cnncc.machine.cores.core_times import simulate_cores
from cnncc.machine.cores.core_walk import Pick, run_together
from cnncc.machine.cores.programs import cores_of
from cnncc.machine.cores.ring_rows import RingNotes, RingStep, ring_peaks
from cnncc.machine.program import Leaf
from cnncc.mapping.channels import Channel, Link, Reader
from cnncc.mapping.groups import GroupLayer, RowRead
from cnncc.mapping.mapping import Loop, Mapping, Sizes
from cnncc.model import cores_schedule
from cnncc.model.cores_counts import all_counts
from cnncc.model.cores_plan import CoresPlan
from cnncc.model.cores_schedule import PredictedFrames, predicted_frames
from cnncc.model.energy import with_energy
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.plan_json import as_json, from_json
from cnncc.passes.nest_cores import NestCoresPass

pytestmark = pytest.mark.usefixtures("short_searches")

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
    "short queues and lanes": (
        {"queue_depth = 4": "queue_depth = 1", "[pe]": "[pe]\nlanes = 2"},
        "words_per_cycle = 16\nlatency_cycles = 3",
    ),
}


@pytest.fixture(scope="module", params=ARRAYS)
def array(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return with_cores(tmp_path_factory.mktemp("arrays") / "cores.toml", *ARRAYS[request.param])


def with_cores(path: Path, changes: Mapped[str, str], cores: str) -> str:
    """An array with cores in a file."""
    text = (Path(__file__).parents[1] / "cnncc/arch/spatial-8x8.toml").read_text()
    for old, new in {**changes, "words = 65536": "words = 65536\nbanks = 64"}.items():
        assert old in text
        text = text.replace(old, new, 1)
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
        rows = tuple(min(int(rng.integers(1, 4)), chain.dims[end][2]) for end in cuts[1:])
        cores = ";".join(",".join(part) for part in parts)
        try:
            NestCoresPass(cores, ";".join(PLACES[len(parts)]), rows, lag=int(rng.integers(1, 6)), arch=array).apply(
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
    "leave the cores",
    "leave one of them out",
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


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[CoresPlan, Path]:
    """A chain on several cores, as a file with its plan."""
    folder = tmp_path_factory.mktemp("compiled")
    array = with_cores(folder / "cores.toml", *ARRAYS["slow tokens"])
    plan, binary = next(each for each in programs(array, 3) if len(each[0].groups) > 1)
    save(replace(binary, metadata={**binary.metadata, "plan": as_json([plan])}), folder / "net.cnb")
    return plan, folder / "net.cnb"


def test_a_token_less_in_the_program_shows(compiled: tuple[CoresPlan, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plan, path = compiled
    right = cores_schedule.first_tokens

    def with_less_space(links: Sequence[Link], lag: int) -> list[dict[Semaphore, int]]:
        first, second, *others = right(links, lag)
        return [first, {semaphore: count - 1 for semaphore, count in second.items()}, *others]

    check(plan, binary := load(path), 6)
    monkeypatch.setattr(cores_schedule, "first_tokens", with_less_space)
    with pytest.raises((AssertionError, LookupError)):
        check(plan, binary, 6)


def test_rows_wait_from_their_last_commit_to_their_last_load() -> None:
    """Rows 0 to 3, a 3x3 window with padding 1: rows 0 and 1, then 0 to 2, 1 to 3, 2 and 3 are read."""

    def layer(label: str) -> GroupLayer:
        return GroupLayer(label, "mac", Sizes(1, 1, 1, 4, 1, 1, 1), Mapping((Loop("h", 1),)), 0)

    link = Channel("a", [layer("a")], 0, [layer("b")], (Reader(0, RowRead(0, "ifmap", 3, 1, 1)),), 4)
    assert cores_schedule.most_waiting(link, [10, 20, 30, 40], {0: [25, 35, 45, 55]}) == 3
    assert cores_schedule.most_waiting(link, [10, 20, 30, 40], {0: [45, 55, 65, 75]}) == 4
    # In one cycle a load ends first: row 0 is read when row 2 is written.
    assert cores_schedule.most_waiting(link, [10, 20, 35, 45], {0: [25, 35, 45, 55]}) == 2


def test_estimate_of_a_binary_with_cores(compiled: tuple[CoresPlan, Path]) -> None:
    plan, path = compiled
    text = done("estimate", path).stdout
    assert f"{plan.groups[0].label}" in text and "in steady state a frame takes" in text
    estimate = json.loads(done("estimate", path, "--json", "--frames", 20).stdout)
    counted = program_stats(load(path), frames=20)
    assert {key: estimate[key] for key in ("cycles", "frames", "cores", "words")} == {
        key: counted[key] for key in ("cycles", "frames", "cores", "words")
    }
    for steady, core in zip(estimate["steady"]["cores"][1:], plan.regions, strict=True):
        cycles = steady["cycles"]
        assert cycles["compute"] + sum(cycles["stall"].values()) == cycles["total"] == estimate["steady"]["cycles"]
        assert {name: steady[name] for name in vars(core)} == vars(core)
        multipliers = core.rows * core.cols * load(path).arch.pe.lanes
        assert steady["utilisation"] == {
            name: pytest.approx(steady["macs"] / (cycles[name] * multipliers)) for name in ("compute", "total")
        }
    assert [core["rf_peak"] for core in estimate["steady"]["cores"]] == [core["rf_peak"] for core in counted["cores"]]
    assert "counters are as predicted" in done("estimate", path, "--check-counters").stdout


def test_estimate_refuses_what_is_not_of_cores(compiled: tuple[CoresPlan, Path], tmp_path: Path) -> None:
    _, path = compiled
    assert "--explain works for layers one after the other alone" in refused("estimate", path, "--explain", "l0")
    assert "--what-if works for layers" in refused("estimate", path, "--what-if", "dram.latency_cycles=8")
    binary = load(path)
    (plan,) = binary.metadata["plan"]
    first, *others = plan["channels"]
    for wrong, why in (
        ({"channels": [first | {"keeps": 1}, *others]}, f" keeps {first['keeps']} would do (CHANNEL-5)"),
        ({"lag": 0}, "lag, keeps and words of frames are positive"),
        ({"groups": [], "channels": []}, "cores are groups with their PEs, and with what they read"),
    ):
        metadata = {**binary.metadata, "plan": [plan | wrong]}
        save(replace(binary, metadata=metadata), tmp_path / "wrong.cnb")
        assert why in refused("estimate", tmp_path / "wrong.cnb")


def test_rows_that_a_reader_skips_are_read_with_those_before_them() -> None:
    """Row 1 of its view is row 2 of the ring: two rows wait at most, not three."""
    written = [RingStep(0, 0, 2, 10, 4), RingStep(0, 2, 4, 20, 4)]
    read = [RingStep(0, 0, 1, 15, 8), RingStep(0, 1, 2, 25, 8)]
    ring = 0, 1, 64
    assert ring_peaks([RingNotes(steps={ring: written}), RingNotes(steps={ring: read})]) == {ring: 2}


@pytest.mark.parametrize("extent", range(4))
def test_a_load_uses_rows_by_each_of_its_extents(extent: int) -> None:
    """Rows 2 to 4 of an image of 9."""
    load_of_rows = assemble(f"desc id=1 height=9 pitch=8\nload desc=1 y=2 extent{extent}=3 term{extent}=y*1\nhalt")
    notes = RingNotes(uses={1: ((0, 1), 0)})
    notes.descriptors.set(load_of_rows[0])
    notes.note(Leaf(1, 0, load_of_rows[1]), [0, 0], 10)
    assert notes.steps == {(0, 1, 0): [RingStep(0, 2, 5, 10, 8)]}


def values(binary: Binary, program: Sequence[Instruction], pick: Pick[None]) -> bytes:
    """What the program computes of three drawn images, in an order of turns."""
    machine = Machine(replace(binary, program=encode_program(program)), 3)
    (tensor,) = inputs_of(binary)
    machine.store(tensor, np.random.default_rng(0).integers(-60, 60, (3, *tensor.shape[1:])))
    run_together(machine.cores(), pick)
    return machine.integers(outputs_of(binary)[0]).tobytes()


def test_without_a_token_there_is_a_race_or_the_same_values(array: str) -> None:
    """Where the race check finds nothing, another token orders the same: no order of turns changes a value."""
    r = random.Random(SEED)
    turns: list[Pick[None]] = [lambda ready: ready[0], lambda ready: ready[-1], r.choice]
    drawn = (binary for plan, binary in programs(array, 6) if len(plan.groups) > 1)
    for _ in range(examples(1)):
        binary = next(drawn)
        program = list(binary.instructions)
        tokens = [
            (at, side)
            for at, inst in enumerate(program)
            for side in ("take", "give")
            if inst.spec.name in ("dma", "load", "commit") and inst.number(side)
        ]
        for at, side in r.sample(tokens, min(6, len(tokens))):
            less = [*program]
            less[at] = replace(program[at], values={**program[at].values, side: 0, f"{side}_when": None})
            try:
                check_cores(less, binary.arch)
                if core_races(less, binary.arch, 3)[0]:
                    continue
            except Refusal:  # a trap, too
                continue
            assert {values(binary, less, pick) for pick in turns} == {values(binary, program, turns[0])}, (at, side)
