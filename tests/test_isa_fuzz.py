"""Random program words and damaged programs: legal or one refusal; what is legal runs to its end, a trap, or a limit.

Limits bound the work of an interpreter, whatever a program's loops say. From ten times the examples on
(CNNCC_EXAMPLES, see examples.py) each program is also held to a second.
"""

from __future__ import annotations

import random
import re
import resource
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_cases import CALIBRATION, SAMPLES
from core_cases import PAPER, SMALL, ProgramWriter, chain
from examples import FACTOR, SEED, examples
from isa_fuzz import Garbler
from test_machine_values import Writer, random_arch, with_pong
from trap_cases import ADD, ARCH, COMMIT, FAR, FIRST, HOSTILE, LOAD, PONG, SETUP, SOUTH, VALUES

from cnncc.arch.model import Arch, load_arch
from cnncc.binary.container import Binary
from cnncc.binary.isa_module import build_binary
from cnncc.binary.run import Machine
from cnncc.driver.pipeline import Settings, import_model
from cnncc.errors import Refusal
from cnncc.isa.assembly import assemble, disassemble
from cnncc.isa.codec import Words, decode_program, encode_program, has_cores
from cnncc.isa.table import Instruction
from cnncc.machine.cores.core_checks import check_cores
from cnncc.machine.cores.core_races import core_races
from cnncc.machine.cores.core_times import simulate_cores
from cnncc.machine.cores.core_walk import Pick, run_together
from cnncc.machine.cores.programs import cores_of
from cnncc.machine.program import build_tree
from cnncc.machine.times.times import simulate
from cnncc.machine.traffic.counts import count_traffic
from cnncc.machine.traps import Trap
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import Memory
from cnncc.machine.values.work_limit import PER_INSTRUCTION
from cnncc.util.npz import read_npz

MANY_WORDS, MANY_MUTANTS, MANY_CORES = examples(300), examples(40), examples(80)
MEASURED = FACTOR >= 10
WORK, STEPS = 1 << 24, 1 << 13
MOST_S, MOST_MB = 1.0, 200.0
SETTING_UP = assemble(SETUP + "halt")[:-1]


def small_memory() -> Memory:
    memory = Memory("dram", 64, 1)
    memory.write(np.arange(64), np.arange(64)[None])
    return memory


def values(words: Words, arch: Arch, dram: Memory, limit: int = WORK) -> Interpreter:
    interpreter = Interpreter(arch, dram, lambda segment, dram: None)
    interpreter.work.limit = limit
    interpreter.run(build_tree(decode_program(words)))
    return interpreter


def outcome(run: Callable[[], object]) -> str:
    """Runs, or traps with one line; anything else is a defect."""
    try:
        run()
    except Trap as trap:
        assert "\n" not in str(trap) and str(trap).startswith(f"instruction {trap.index} (word 0x"), trap
        return "limit" if "limit of" in trap.happened else "traps"
    return "runs"


def execute(words: Words, arch: Arch, dram: Callable[[], Memory]) -> str:
    """Decode; where that is legal, run in values, times and traffic."""
    try:
        program = decode_program(words)
    except Refusal as refusal:
        assert (
            "\n" not in str(refusal)
            and str(refusal).startswith(("word 0x", "instruction ", "the program is"))
            or re.search("loops? without end", str(refusal))
        ), refusal
        return "refused"
    tree, started = build_tree(program), time.process_time()
    try:
        outcomes = [
            outcome(lambda: values(words, arch, dram())),
            outcome(lambda: simulate(tree, arch, limit_steps=STEPS)),
            outcome(lambda: count_traffic(tree, arch)),
        ]
    except Exception as error:
        error.add_note(disassemble(program))
        raise
    note_time(started, 3 * MOST_S, program)
    return " ".join(outcomes)


SLOWEST: list[float] = []


def note_time(started: float, most_s: float, program: Sequence[Instruction]) -> None:
    """A program took this long, if times are measured."""
    took = time.process_time() - started
    if MEASURED:
        assert took < most_s, f"{took:.1f} s:\n{disassemble(program)}"
        SLOWEST.append(took)


def report(kind: str, outcomes: Counter[str]) -> None:
    if MEASURED:
        slow, peak = sorted(SLOWEST)[-3:], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(f"\n{kind}: {outcomes.total()} programs, slowest {[f'{s:.2f} s' for s in slow]}, peak {peak:.0f} MB")
        for what, count in outcomes.most_common():
            print(f"  {count:>7} {what}")
        SLOWEST.clear()


def test_random_program_words() -> None:
    """A quarter are any words under a known opcode, the others instructions of the table with random fields."""
    outcomes: Counter[str] = Counter()
    archs = (ARCH, PONG, replace(SOUTH, operand_bits=8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(MANY_WORDS):
            garbler = Garbler(random.Random(f"{SEED} {number}"))
            words = garbler.words() if number % 4 == 0 else garbler.program(SETTING_UP if number % 4 > 1 else ())
            outcomes[execute(words, archs[number % 3], small_memory)] += 1
    report("random words", outcomes)
    assert outcomes["refused"] > 0.1 * MANY_WORDS
    assert outcomes["runs runs runs"] > 0.03 * MANY_WORDS
    assert sum(count for what, count in outcomes.items() if "traps" in what) > 0.1 * MANY_WORDS


def execute_cores(binary: Binary, frames: int) -> str:
    """Decode and check; where that is legal, run in values, times, traffic and races."""
    arch, started = binary.arch, time.process_time()
    try:
        program = decode_program(binary.program)
        check_cores(program, arch)
    except Refusal as refusal:
        assert "\n" not in str(refusal)
        return "refused"
    if not has_cores(program) or any(inst.spec.name == "host" for inst in program):
        return "one core, or a host without segments, which the loader refuses"
    results: dict[str, object] = {}

    def run_values(pick: Pick[None] | None = None) -> list[int]:
        machine = Machine(binary, frames)
        for tensor in binary.tensors[:1]:
            machine.store(tensor, np.arange(frames * tensor.words).reshape(frames, *tensor.shape[1:]) % 100)
        walks = machine.cores()
        walks[0].interpreter.work.limit = WORK
        run_together(walks, pick)
        memories = (walks[0].interpreter.glb, machine.dram)
        return [int(memory.read(np.flatnonzero(memory._written)).sum()) for memory in memories]

    cores, turns = cores_of(program, arch, frames), random.Random(frames).choice
    of_cores: dict[str, Callable[[], object]] = {
        "values": run_values,
        "times": lambda: simulate_cores(cores, limit_steps=STEPS, causes=True),
        "traffic": lambda: [count_traffic(core.tree, core.arch) for core in cores],
        "races": lambda: core_races(program, arch, frames)[0],
    }
    try:
        outcomes: list[str] = []
        for name, run in of_cores.items():
            if name != "races" or outcomes[0] == "runs":
                outcomes.append(outcome(lambda name=name, run=run: results.update({name: run()})))
        if outcomes[:2] == ["runs", "runs"]:
            assert simulate_cores(cores, causes=True, pick=turns) == results["times"]
            if results.get("races") == []:
                assert run_values(turns) == results["values"]
    except Exception as error:
        error.add_note(disassemble(program))
        raise
    note_time(started, 5 * MOST_S, program)
    return " ".join(outcomes)


def run_drawn_cores(kind: str, number: int, draw: Callable[[Garbler], Binary], monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw binaries of cores and run them: there is something of each outcome."""
    monkeypatch.setattr("cnncc.machine.races.MOST_STEPS", STEPS)
    outcomes: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in range(number):
            garbler = Garbler(random.Random(f"{SEED} {each}"))
            outcomes[execute_cores(draw(garbler), garbler.random.randint(1, 2))] += 1
    report(kind, outcomes)
    assert outcomes["refused"] > 0.1 * number
    assert outcomes["runs runs runs runs"] > 0.05 * number
    assert sum(count for what, count in outcomes.items() if "traps" in what) > 0.02 * number


def test_random_programs_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(garbler: Garbler) -> Binary:
        words = np.arange(64, dtype=np.int8)
        return Binary(encode_program(garbler.cores()), [("w", words)], [], [], PAPER)

    run_drawn_cores("random cores", MANY_CORES, draw, monkeypatch)


def test_damaged_programs_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of layers on six cores, with its weights and images, with up to three mistakes in its words."""
    chained = ProgramWriter(chain(*SMALL), PAPER).binary()

    def draw(garbler: Garbler) -> Binary:
        return replace(chained, program=garbler.mistaken(chained.program))

    run_drawn_cores("damaged cores", examples(30), draw, monkeypatch)


def by_hand() -> list[tuple[Words, Arch, Callable[[], Memory]]]:
    """Programs of the tests, some of which trap, and random legal ones with memory of their own."""
    texts = (
        [text for text, _, _ in VALUES]
        + list(HOSTILE.values())
        + [f"{LOAD} kind=ifmap extent3=8\n{ADD} taps=8\n{COMMIT}"]
    )
    found: list[tuple[Words, Arch, Callable[[], Memory]]] = [
        (encode_program(assemble(f"{SETUP}{text}\nhalt")), ARCH, small_memory) for text in texts
    ]
    for seed in range(40):
        r = random.Random(seed)
        arch = with_pong(r, random_arch(r))
        memory = Memory("dram", 900, 1)
        memory.write(np.arange(900), np.array([[r.randint(-9, 9) for _ in range(900)]]))
        found.append((encode_program(Writer(r, arch).write()), arch, lambda memory=memory: copied(memory)))
    return found


def copied(memory: Memory) -> Memory:
    return memory.part(0, memory.words)


def compiled(model: str, arch_name: str, folder: Path) -> tuple[Words, Arch, Callable[[], Memory]]:
    """A sample model's program, its weights and noise for its tensors in DRAM."""
    arch = load_arch(arch_name)
    bits = 8 if "_q" in model else arch.operand_bits
    path, calibrate = SAMPLES / "models" / f"{model}.onnx", "_q" not in model
    compilation = import_model(path, 1, Settings(arch, arch_name, bits, None))
    if calibrate:
        from cnncc.main_function import input_names

        compilation.settings = Settings(arch, arch_name, bits, read_npz(CALIBRATION, input_names(compilation.module)))
    compilation.run("isa", [])
    binary = build_binary(compilation.module, compilation.ctx.weights, arch)
    memory, at = Memory("dram", binary.dram_words, 1), 0
    for _, array in binary.weights:
        memory.write(np.arange(at, at + array.size), array.reshape(1, -1).astype(np.int64))
        at += array.size
    noise = np.random.default_rng(0).integers(-100, 100, (1, binary.dram_words - at))
    memory.write(np.arange(at, binary.dram_words), noise)
    return binary.program, arch, lambda: copied(memory)


MODELS = [("lenet", "spatial-8x8"), ("mnist", "seed-4x4")]
MORE_MODELS = [
    ("depthwise_qoperator_s8_pc", "spatial-4x4"), ("lenet_qoperator_u8", "spatial-4x4"), ("resnet20", "spatial-8x8"),
    ("resnet20_qdq_s8_pc", "spatial-16x16"), ("depthwise", "seed-6x6"), ("mnist", "spatial-16x16"),
]  # fmt: skip


def test_damaged_programs(tmp_path: Path) -> None:
    """Real programs with up to three mistakes in their words."""
    models = [*MODELS, *(MORE_MODELS if MEASURED else [])]
    corpus = [*by_hand(), *[compiled(*model, tmp_path) for model in models] * (10 if MEASURED else 5)]
    outcomes: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(MANY_MUTANTS):
            r = random.Random(f"{SEED} {number}")
            words, arch, dram = r.choice(corpus)
            outcomes[execute(Garbler(r).mistaken(words), arch, dram)] += 1
    report("damaged programs", outcomes)
    assert outcomes["refused"] and outcomes["runs runs runs"]
    assert sum(count for what, count in outcomes.items() if "traps" in what) > 0.05 * MANY_MUTANTS


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_end_soon_in_little_memory(name: str) -> None:
    words = encode_program(assemble(f"{SETUP}{HOSTILE[name]}\nhalt"))
    tracemalloc.start()
    try:
        assert execute(words, ARCH, small_memory) != "refused"
        peak_mb = tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
    assert peak_mb < MOST_MB


@pytest.mark.parametrize("text", FAR)
def test_addresses_beyond_64_bits_are_out_of_range(text: str) -> None:
    with pytest.raises(Trap, match="glb address -[0-9]+ is below 0") as trap:
        values(encode_program(assemble(f"{SETUP}{text}\nhalt")), ARCH, small_memory())
    assert trap.value.index == FIRST + 1


def test_the_work_of_values_is_bounded() -> None:
    """A loop ends at its limit; what one iteration needs is what is charged, at once or one by one."""
    body = f"{LOAD} kind=ifmap extent3=8\n{ADD} taps=8\n{COMMIT}"
    once = values(encode_program(assemble(f"{SETUP}{body}\nhalt")), ARCH, small_memory()).work.done
    twice = values(encode_program(assemble(f"{SETUP}{body}\n{body}\nhalt")), ARCH, small_memory()).work.done
    setup = 2 * once - twice
    assert once - setup == 3 * PER_INSTRUCTION + 8 + 8 + 1
    text = encode_program(assemble(f"{SETUP}loop count=5\n{body}\ndesc id=7\nend\nhalt"))
    needed = values(text, ARCH, small_memory()).work.done
    assert needed == setup + 5 * (once - setup + 2 * PER_INSTRUCTION)
    assert values(text, ARCH, small_memory(), needed).work.done == needed
    with pytest.raises(Trap, match=f"the interpreter's limit of {needed - 1} words and operations is exceeded") as trap:
        values(text, ARCH, small_memory(), needed - 1)
    assert trap.value.instruction.spec.name == "desc"

    def work(mac: str) -> int:
        text = f"{SETUP}{LOAD} kind=ifmap extent3=8\n{ADD} {mac}\nhalt"
        return values(encode_program(assemble(text)), ARCH, small_memory()).work.done

    # Steps whose psum slots meet are done one by one.
    assert work("taps=3 step_range=2 psum_i=1 psum_j=1") == work("taps=6") + 6 * PER_INSTRUCTION


def test_the_steps_of_times_are_bounded() -> None:
    """A state that returns costs no steps: the number of iterations does not matter, different states do."""
    alike = build_tree(assemble("loop count=1000000\nmac taps=6\nend\nhalt"))
    simulate(alike, ARCH, limit_steps=100)
    unlike = build_tree(assemble("loop count=1000\nsignal semaphore=1 count=1\nend\nhalt"))
    simulate(unlike, ARCH, limit_steps=3000)
    with pytest.raises(Trap, match="the interpreter's limit of 900 steps in time is exceeded"):
        simulate(unlike, ARCH, limit_steps=900)
