"""Programs of several cores as they run: values against numpy, times by hand and by other ways, any order of turns."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_cases import done, refused
from core_cases import PAPER, SMALL, ProgramWriter, chain, macs_of_busiest, random_case, reference, with_macro_cycles
from examples import examples
from plain_cores import plain_cores
from test_machine_times import random_program
from test_races import ORDER
from trap_cases import CORES_ARCH, DEADLOCKS

from cnncc.binary.container import Binary, from_bytes, save, to_bytes
from cnncc.binary.isa_module import disassembly
from cnncc.binary.run import Machine, inputs_of, outputs_of, run
from cnncc.errors import Refusal
from cnncc.isa.assembly import assemble
from cnncc.isa.codec import encode_program
from cnncc.isa.table import instruction
from cnncc.machine.cores import core_times
from cnncc.machine.cores.core_races import core_races
from cnncc.machine.cores.core_times import CoresTimes, simulate_cores
from cnncc.machine.cores.core_walk import CoreWalk, run_together
from cnncc.machine.cores.programs import cores_of
from cnncc.machine.program import build_tree
from cnncc.machine.races import races
from cnncc.machine.stats import stats
from cnncc.machine.times.times import simulate
from cnncc.machine.traps import Trap
from cnncc.machine.values.work_limit import PER_INSTRUCTION

pytestmark = pytest.mark.usefixtures("short_searches")


def small(lag: int = 1, seed: int = 0) -> tuple[Binary, Sequence[object]]:
    layers = chain(*SMALL, seed)
    return from_bytes(to_bytes(ProgramWriter(layers, PAPER, lag).binary())), layers


def images(binary: Binary, count: int) -> np.ndarray:
    (x,) = inputs_of(binary)
    return np.random.default_rng(count).integers(-128, 128, (count, *x.shape[1:]))


def timed(binary: Binary, frames: int, pick: object = None, causes: bool = False) -> CoresTimes:
    return simulate_cores(cores_of(binary.instructions, binary.arch, frames), causes=causes, pick=pick)


def randomly(seed: int):
    r = random.Random(seed)
    return r.choice


def last(ready: Sequence[CoreWalk]) -> CoreWalk:
    return ready[-1]


ORDERS = [None, last, randomly(1), randomly(2)]


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_frames_in_flight_compute_what_numpy_does(frames: int, lag: int) -> None:
    binary, layers = small(lag, seed=frames)
    x = images(binary, frames)
    (y,) = run(binary, {"x": x.astype(np.float32)}).values()
    assert len(set(reference(layers, x).ravel().tolist())) > 15
    np.testing.assert_array_equal(y, reference(layers, x))


def test_values_do_not_depend_on_the_order_of_turns() -> None:
    binary, layers = small()
    x = images(binary, 3)
    for pick in ORDERS:
        machine = Machine(binary, 3)
        machine.store(inputs_of(binary)[0], x)
        run_together(machine.cores(), pick)
        np.testing.assert_array_equal(machine.integers(outputs_of(binary)[0]), reference(layers, x))


# -- times -------------------------------------------------------------------------------------------------------------

PAPER_CYCLES = [
    ((4, 1, 8, 1, 2), 63_504, 336),
    ((4, 1, 12, 1, 2), 42_336, 336),
    ((1, 1, 2, 1, 1), 254_016, 1_008),
]


@pytest.mark.parametrize(("pes", "cycles", "more"), PAPER_CYCLES)
def test_the_papers_mappings_take_the_cycles_of_the_calculus(pes: tuple[int, ...], cycles: int, more: int) -> None:
    """0 + steps + 0 cycles a macro-instruction; 3 + steps + 1 add 4 for each of the busiest core's."""
    layers = chain(pes)
    for arch, period in ((with_macro_cycles(PAPER, 0, 0), cycles), (PAPER, cycles + more)):
        writer = ProgramWriter(layers, arch)
        assert macs_of_busiest(layers, writer) == cycles
        counted = timed(from_bytes(to_bytes(writer.binary())), 12)
        assert counted.frames.period == (period, 1)
        assert period < counted.frames.first < 2 * period


def test_times_do_not_depend_on_the_order_of_turns() -> None:
    binary, _ = small()
    first, *others = [timed(binary, 7, pick, causes=True) for pick in ORDERS]
    assert all(other == first for other in others)


@pytest.mark.parametrize("frames", [1, 2, 3, 9, 40])
@pytest.mark.parametrize("lag", [0, 1])
def test_frames_that_are_multiplied_are_counted_as_those_that_are_stepped(
    frames: int, lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary, _ = small(lag)
    multiplied = timed(binary, frames, causes=True)
    monkeypatch.setattr(core_times, "_skip", lambda *_: None)
    stepped = timed(binary, frames, causes=True)
    assert multiplied == stepped
    assert (multiplied.frames.period is not None) == (frames >= 9)


LAST_FRAME = """
    core
    route semaphore=1 core=1 to=2
    signal semaphore=3 count=1
    desc id=0 frames=1 width=64 pitch=64
    step id=0 by=y*1
    desc id=1 base=2048
    loop frames=1
      dma words=64 dram=0 glb=1 take=3 take_when=always give=1 give_when=always
    end
    dma direction=out words=1 dram=2 glb=3 take=4 take_when=always
    halt
    core rows=1 cols=1
    route semaphore=4 core=0 to=3
    route semaphore=5 core=0 to=4
    loop frames=1
      load kind=ifmap extent3=64 term3=lin*1 open=always close=always take=2 take_when=always give=4 give_when=always
      mac op=add taps=64 ifmap_j=1 take_ifmap=always give_ifmap=always clear=0 send=0
    end
    commit give=5 give_when=always
    loop frames=1
      load kind=ifmap extent3=64 term3=lin*1 open=always close=always
      mac op=add taps=64 ifmap_j=1 take_ifmap=always give_ifmap=always clear=0 send=0
    end
    commit
    halt
"""


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 6, 7, 20])
def test_conditions_on_the_first_and_last_frame(frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Psums of all frames are added up: cleared in the first one, sent in the last one."""
    cores = cores_of(assemble(LAST_FRAME), PAPER, frames)
    multiplied = simulate_cores(cores, causes=True)
    monkeypatch.setattr(core_times, "_skip", lambda *_: None)
    assert multiplied == simulate_cores(cores, causes=True)
    plain = plain_cores(assemble(LAST_FRAME), PAPER, frames)
    assert [core.cycles.total for core in multiplied.cores] == [core.now for core in plain]
    assert multiplied.cores[1].cycles.stall["channel_in"] == plain[1].counts["*", "channel_in"]


@pytest.mark.parametrize("seed", range(examples(6)))
def test_times_and_causes_are_those_of_plain_clocks(seed: int) -> None:
    """On random arrays: ports, latencies, queues, halves, cycles of macro-instructions."""
    text, arch, _ = random_case(seed)
    program = assemble(text)
    counted = simulate_cores(cores_of(program, arch, 6), causes=True).cores
    for core, plain in zip(counted, plain_cores(program, arch, 6), strict=True):
        cycles = core.cycles
        seen = {name: getattr(cycles, name) for name in ("total", "load", "commit", "dma")} | {"array": cycles.compute}
        assert seen == {name: plain.counts.get(("*", name), 0) for name in seen}
        assert dict(cycles.stall) == {cause: plain.counts.get(("*", cause), 0) for cause in cycles.stall}


def test_a_million_frames_take_no_longer() -> None:
    binary, _ = small()
    some, many = (timed(binary, frames) for frames in (100, 60_100))
    assert some.frames.period is not None
    cycles, frames = some.frames.period
    assert many.cores[0].cycles.total - some.cores[0].cycles.total == 60_000 // frames * cycles


def test_compute_and_stalls_of_each_core_add_up() -> None:
    binary, _ = small()
    for number, core in enumerate(timed(binary, 6, causes=True).cores):
        cycles = core.cycles
        if number:
            assert cycles.compute + sum(cycles.stall.values()) == cycles.total
            assert cycles.stall["channel_in"] > 0


def test_a_core_alone_is_todays_machine() -> None:
    """All PEs, the GLB's own port: the same times, but for the cycle of `core` before the first instruction."""
    for seed in range(10):
        program, arch = random_program(seed)
        alone = simulate(build_tree(program), arch, causes=True).cycles
        (core,) = simulate_cores(cores_of([instruction("core", rows=4, cols=4), *program], arch), causes=True).cores
        more = {cause: count - alone.stall.get(cause, 0) for cause, count in core.cycles.stall.items()}
        assert core.cycles == replace(alone, total=alone.total + 1, stall=core.cycles.stall)
        assert sorted(more.values()) == [0] * (len(more) - 1) + [1]
        assert more["fill"] + more["sequencer"] + more["drain"] == 1


def test_a_token_by_hand() -> None:
    """Core 0: `core` and `route` end at 2. Its DMA is decoded at 2, starts at 3, takes 4 words at 2 a cycle until 5,
    and is done at 8. A route takes 3 cycles: the token is in core 1 at 11. Core 1's load is decoded at 2 and would
    start at 3. It starts at 11, takes 4 cycles and arrives 1 later, at 16. `halt` finds all done then.
    """
    text = """
        core
        route semaphore=1 core=1 to=2
        dma words=4 give=1 give_when=always
        halt
        core rows=1 cols=1
        sync array=1
        load kind=ifmap extent3=4 term3=lin*1 open=always close=always take=2 take_when=always
        halt
    """
    counted = simulate_cores(cores_of(assemble(text), CORES_ARCH), causes=True).cores
    assert [core.cycles.total for core in counted] == [8, 16]
    assert {cause: count for cause, count in counted[1].cycles.stall.items() if count} == {
        "channel_in": 9, "write_port": 4, "row_bus": 1, "sequencer": 2,
    }  # fmt: skip


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_deadlock_names_all_that_wait() -> None:
    program = assemble(DEADLOCKS[0])
    says = (
        r"instruction 2 \(word 0x0002\): deadlock: no core can go on: "
        r"core 0 at instruction 2 \(dma waits for semaphore 1\), core 1 at instruction 6 "
        r"\(load waits for semaphore 1\) \(CORE-6\): dma take=1"
    )
    for pick in ORDERS:
        with pytest.raises(Trap, match=says):
            simulate_cores(cores_of(program, CORES_ARCH), pick=pick)
        with pytest.raises(Trap, match=says):
            run_together(Machine(Binary(encode_program(program), [], [], [], CORES_ARCH), 1).cores(), pick)


@pytest.mark.parametrize("entries", [1, 2])
def test_a_ring_that_is_too_small_is_a_deadlock(entries: int) -> None:
    """A window of three rows needs three entries."""
    layers = chain(*SMALL)
    layers[2].entries = entries
    binary = from_bytes(to_bytes(ProgramWriter(layers, PAPER).binary()))
    for pick in ORDERS:
        with pytest.raises(Trap, match="deadlock: no core can go on: core 0 at .*, core 2 at .* core 5 at"):
            timed(binary, 2, pick)
    with pytest.raises(Trap, match="deadlock: no core can go on"):
        run(binary, {"x": images(binary, 2).astype(np.float32)})


def test_each_token_too_few_is_a_race() -> None:
    """All tokens that instructions take, one by one. Without two of them, others still keep the order."""
    binary, _ = small()
    program = binary.instructions
    assert core_races(program, PAPER, 3)[0] == []
    taking = [at for at, inst in enumerate(program) if inst.values.get("take")]
    quiet: list[int] = []
    for at in taking:
        wrong = [*program]
        wrong[at] = replace(wrong[at], values={**wrong[at].values, "take": 0})
        if not core_races(wrong, PAPER, 3)[0]:
            quiet.append(at)
    assert len(taking) == 32
    # The images' and the results' space: the dma core brings a frame only when the results of the one before left.
    assert [(str(program[at].spec.kind), program[at].number("take")) for at in quiet] == [("dma", 1), ("commit", 3)]


def test_a_race_is_refused_by_a_run() -> None:
    binary, _ = small()
    text = disassembly(binary)
    line = next(line for line in text.splitlines() if line.strip().startswith("load") and "take=1" in line)
    wrong = replace(binary, program=encode_program(assemble(text.replace(line, line.replace(" take=1", "")))))
    says = r"values depend on chance: instruction \d+ \(load of core 1\) may use GLB word 0 before .* \(CORE-6\)"
    with pytest.raises(Refusal, match=says):
        run(wrong, {"x": images(binary, 2).astype(np.float32)})


def test_races_of_programs_of_one_core_are_the_same() -> None:
    """As of `races`, from `core` on."""
    for takes in ("take=1 take_when=always", ""):
        text = ORDER.format(between="", takes=f"kind=ifmap {takes}")
        arch = replace(PAPER, cores=replace(PAPER.cores, most=1))
        alone, _ = races(assemble(text), arch)
        one, _ = core_races(assemble(f"core rows=4 cols=4\n{text}"), arch, 1)
        assert [(each.word, each.is_write, each.late.index + 1) for each in alone] == [
            (each.word, each.is_write, each.late.index) for each in one
        ]
        assert bool(one) == (not takes)


def test_loops_over_frames_end_at_a_limit_of_work() -> None:
    """Also loops in which nothing runs."""
    text = "core\nloop count=50\nloop count=50\nloop frames=1\nend\nend\nend\nhalt"
    machine = Machine(Binary(encode_program(assemble(text)), [], [], [], PAPER), 2)
    cores = machine.cores()
    cores[0].interpreter.work.limit = 10 * PER_INSTRUCTION
    with pytest.raises(Trap, match="limit of 81920 words and operations is exceeded"):
        run_together(cores)


def test_runs_of_cores_say_so() -> None:
    said = list[str]()
    binary = Binary(encode_program(assemble("core\nhalt")), [], [], [], PAPER)
    Machine(binary, 2).run(progress=lambda what, *_: said.append(what))
    assert said == ["running 2 images on several cores"]


def test_too_many_frames() -> None:
    binary, _ = small()
    with pytest.raises(Refusal, match="65536 frames, a run has at most 65535"):
        cores_of(binary.instructions, binary.arch, 1 << 16)


# -- counters ----------------------------------------------------------------------------------------------------------


def test_counters_of_cores_and_of_all_together() -> None:
    binary, layers = small()
    counted = stats(binary.instructions, binary.arch, frames=4)
    cores = counted["cores"]
    assert counted["cycles"]["total"] == max(core["cycles"]["total"] for core in cores)
    for key in ("macs", "max"):
        assert counted[key] == sum(core[key] for core in cores)
    macs = sum(layer.height * layer.width * layer.k * layer.c * 9 for layer in layers if layer.kind == "conv")
    assert counted["macs"] == 4 * macs
    sizes = [int(np.prod(tensor.shape)) for tensor in binary.tensors]
    weights = sum(array.size for _, array in binary.weights)
    assert counted["words"]["dram_read"] == 4 * sizes[0] + weights and counted["words"]["dram_write"] == 4 * sizes[1]
    assert cores[3]["rows"] == 2 and cores[3]["cols"] == 4 and cores[0]["rows"] == 0


# -- the command line --------------------------------------------------------------------------------------------------


def test_run_prints_frames_in_flight(tmp_path: Path) -> None:
    """Latency, steady state and stalls of each core; outputs of the first frames of the input."""
    binary, layers = small()
    save(binary, tmp_path / "small.cnb")
    x = images(binary, 12)
    np.savez(tmp_path / "x.npz", x=x.astype(np.float32))
    files = ("--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz", "--stats", tmp_path / "s.json")
    text = done("run", tmp_path / "small.cnb", "--frames", 10, *files).stdout
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], reference(layers, x[:10]))
    counted, (cycles, frames) = timed(binary, 10, causes=True), timed(binary, 10).frames.period or (0, 0)
    each = f"{cycles:,} cycles" + (f" for {frames} frames" if frames > 1 else " a frame")
    fps = f"{50e6 * frames / cycles:,.1f} frames a second at 50 MHz"
    assert f"10 frames in {counted.cores[0].cycles.total:,} cycles" in text
    assert f"the first one done after {counted.frames.first:,}" in text and f"steady state {each}: {fps}" in text
    for number, core in enumerate(counted.cores):
        assert re.search(rf"^ +{number} .* {core.cycles.total:,} +{core.cycles.compute:,} ", text, re.MULTILINE)
    written = json.loads((tmp_path / "s.json").read_text())
    assert written["frames"] == {
        "count": 10, "first": counted.frames.first, "period": {"cycles": cycles, "frames": frames},
    }  # fmt: skip
    assert [core["cycles"]["stall"] for core in written["cores"]] == [dict(core.cycles.stall) for core in counted.cores]


def test_commands_refuse_what_they_cannot_do_with_cores(tmp_path: Path) -> None:
    binary, _ = small()
    save(binary, file := tmp_path / "small.cnb")
    (one := tmp_path / "one.cnb").write_bytes(to_bytes(replace(binary, program=encode_program(assemble("halt")))))
    np.savez(tmp_path / "x.npz", x=images(binary, 2).astype(np.float32))
    assert "takes image by image, no frames in flight: leave out --frames" in refused("run", one, "--frames", 2)
    assert "--frames 3: the inputs hold 2 images: --frames 2, or" in refused(
        "run", file, "--frames", 3, "--input", tmp_path / "x.npz"
    )
    for command in (("messages", file), ("messages", file, "--at", "0")):
        assert "`cnncc messages` works for layers one after the other alone" in refused(*command)
    assert "its metadata has no plan" in refused("estimate", file)
    assert "core  ; 0000\n" in done("disasm", file).stdout
