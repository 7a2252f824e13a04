"""Causes of stalls: what is planted in an array or a program is what the array then waits for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_cases import CALIBRATION, LENET, done
from test_machine_times import ARCH, CAUSES, WORK, halves, run

from cnncc.binary.container import Binary, load
from cnncc.binary.counters import program_stats
from cnncc.explore.array_grid import with_config
from cnncc.machine.times import paths
from cnncc.model import causes, timed_program
from cnncc.model.timeline import TimelineMachine, idle_state


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeNet, row stationary: it waits for everything a bit."""
    net = tmp_path_factory.mktemp("causes") / "net.cnb"
    done("compile", LENET, "--batch", 1, "--calibrate", CALIBRATION, "--dataflow", "rs", "-o", net)
    return net


def stalls(binary: Binary, changed: dict[str, int]) -> dict[str, int]:
    """As the interpreter counts them on a changed array."""
    return program_stats(replace(binary, arch=with_config(binary.arch, changed)))["cycles"]["stall"]


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [
        ("dram.words_per_cycle", 4, "dram_bandwidth_weights"),
        ("dram.latency_cycles", 512, "dram_latency_weights"),
        ("bus.burst_words", 2, "row_bus"),
        ("bus.latency_cycles", 50, "row_bus"),
        ("glb.words_per_cycle", 4, "glb_port"),
        ("commit.latency_cycles", 100, "output_units"),
        ("pe.weight_halves", 1, "weight_file"),
        ("pe.ifmap_halves", 1, "ifmap_file"),
        ("pe.psum_halves", 1, "psum_file"),
    ],
)
def test_causes_of_a_slower_array(key: str, value: int, cause: str, lenet: Path) -> None:
    """The charge moves to what was made slower or smaller: it grows by more than all others together.

    Both say so: the interpreter, of the program, and the model, of the plan.
    """
    binary = load(lenet)
    before, after = stalls(binary, {}), stalls(binary, {key: value})
    estimate = json.loads(done("estimate", lenet, "--what-if", f"{key}={value}", "--json").stdout)
    assert (estimate["cycles"]["stall"], estimate["what_if"]["cycles"]["stall"]) == (before, after)
    grown = {each: after[each] - before[each] for each in CAUSES}
    assert grown[cause] > sum(more for each, more in grown.items() if each != cause and more > 0)


def test_causes_of_a_slower_sequencer() -> None:
    """An iteration takes 10 cycles of the array and 2 of the sequencer; with 20 descriptors more the latter are 22.

    The first macro-instruction waits for the load, 1 + 1 + 4 + 2 cycles; or for the sequencer, 1 + 22.
    """
    load = "load kind=weight extent3=4 open=always close=always\n"
    text = "loop count=50\n" + load + "{}mac taps=6 take_weight=always give_weight=always\nend\nhalt"
    quick, slow = (run(text.format("desc\n" * number), halves(2, 2, 2)).cycles for number in (0, 20))
    assert quick.stall["sequencer"] == 0 and sum(quick.stall.values()) == quick.stall["fill"]
    assert quick.stall["fill"] == 8
    assert slow.stall == quick.stall | {"fill": 23, "sequencer": 49 * (22 - 10)}


def test_causes_of_more_rows_to_add_up() -> None:
    """The links to the south add a cycle for each row but the first, the array having one half of psums."""
    arch = replace(halves(psum=1), links=replace(ARCH.links, south=True))
    text = "loop count=9\nmac rows=4 taps=1 clear=always send=always\ncommit rows=4 set_rows=4 reduce={}\nend\nhalt"
    for reduce, hops in ((0, 0), (1, 3)):
        cycles = run(text.format(reduce), arch).cycles
        assert cycles.stall["column_bus"] == 0 and cycles.stall["psum_file"] == 8 * (cycles.commit // 9 + 3)
        assert cycles.commit == 9 * ((1 if reduce else 4) + hops)


def test_causes_have_the_same_names_everywhere() -> None:
    """The model repeats the names: it shares no code with the interpreter."""
    assert paths.CAUSES == timed_program.CAUSES == tuple(CAUSES)
    assert set(WORK) == set(causes._WORK)


def test_paths_go_on_in_roots() -> None:
    """The example of COST-13: weights come 8 cycles behind the sequencer's time, which is 11 behind the mark."""
    ready, free = timed_program.Token(timed_program.WEIGHT_FULL), timed_program.Token(timed_program.WEIGHT_FREE)
    load = timed_program.Task(timed_program.LOAD, 6, 2, (free,), (ready,), (("glb_port", 6),), "row_bus")
    macro = timed_program.Task(timed_program.ARRAY, 3, 0, (ready,), (free,))
    body, machine = (macro, timed_program.SequencerCycles(20), load), TimelineMachine.of(ARCH)
    clock = causes.idle_timeline(machine, idle_state(machine))
    clock.run([load, *body], timed_program.ALL, timed_program.ALL)
    for _ in range(2):
        before = clock.effect().state
        assert before.tokens[ready.queue] == ((8, ("row_bus", 2, ("glb_port", 6, 1))),)
        assert clock.roots[1].cycles == {"sequencer": 11}
        stalls = clock.stalls
        clock.run(body, timed_program.ALL, timed_program.ALL)
        effect = clock.effect()
        grown = {cause: cycles - stalls.get(cause, 0) for cause, cycles in effect.stalls.items() if cause != "fill"}
        assert effect.state == before and grown == {"row_bus": 2, "glb_port": 6, "sequencer": 11}


def test_conditions_of_inner_loops_matter_to_outer_ones() -> None:
    """Takes look at the first iterations of loops, gives at the last ones."""
    token = timed_program.Token
    task = timed_program.Task(0, 5, takes=(token(0, 1),), gives=(token(1, 2), token(2, 8)))
    inner = timed_program.repeat(3, 1, (task, timed_program.SequencerCycles(1)))
    outer = timed_program.repeat(2, 2, (timed_program.Task(1, 1, takes=(token(3, 4),)), inner))
    assert causes._mentioned(inner) == (1, 2 | 8) and causes._mentioned(outer) == (1 | 4, 2 | 8)
