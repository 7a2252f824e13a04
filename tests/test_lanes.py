"""Lanes (MAC-1 to MAC-3, MAC-7): random macro-instructions by brute force, on all that run them; what they cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from examples import examples
from plain_machine import PlainMachine, PlainTrap
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from cnncc.arch.model import Arch, load_arch
from cnncc.arch.operations import MacOperation
from cnncc.context import CompilerContext
from cnncc.dialects import array as A
from cnncc.dialects._clauses import format_clauses
from cnncc.dialects.isa import instructions
from cnncc.driver.pipeline import new_context
from cnncc.errors import Refusal
from cnncc.eval.array import evaluate as run_array
from cnncc.eval.atomic import atomic_schedule
from cnncc.eval.atomic_text import schedule_text
from cnncc.eval.isa import evaluate as run_isa
from cnncc.isa.assembly import assemble
from cnncc.machine.instruction_sizes import mac_steps
from cnncc.machine.program import build_tree
from cnncc.machine.stats import stats
from cnncc.machine.traps import Trap
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import Memory
from cnncc.passes.array_allocate import ArrayAllocatePass
from cnncc.passes.array_to_isa import ArrayToIsaPass

PRESET = load_arch("spatial-4x4")
ARCH = replace(PRESET, pe=replace(PRESET.pe, lanes=4, lane_sums=True, psum_words=12))
WORDS = 300  # of the ifmap tensor and of the weights


@dataclass(frozen=True)
class Case:
    """A mac in two loops: h around a commit, c around what is added up. own: ifmap words before those of neighbours."""

    mac: A.Mac
    rows: int
    cols: int
    h: int
    c: int
    own: int
    weights: int

    @property
    def psums(self) -> int:
        """Psums of a PE, from slot 0 on."""
        mac, psum = self.mac, self.mac.psum
        last = (mac.pixels - 1) * psum.pixel + (mac.step_range - 1) * psum.channel + (mac.lanes - 1) * psum.lane
        return 1 + last

    @property
    def results(self) -> int:
        """Of one iteration of h."""
        return self.rows * self.cols * self.psums


def counts(mac: A.Mac) -> list[tuple[int, int, int, int]]:
    """z, j, i, l of each product, in order."""
    return list(product(range(mac.pixels), range(mac.taps), range(mac.step_range), range(mac.lanes)))


def slot(of: A.Slots, z: int, j: int, i: int, lane: int = 0) -> int:
    return of.base + z * of.pixel + j * of.tap + i * of.channel + lane * of.lane


def random_case(r: random.Random) -> Case:
    pixels, taps, channels, lanes = r.randint(1, 2), r.randint(1, 4), r.randint(1, 3), r.randint(1, 4)
    if r.random() < 0.5:  # as a mapping would: lanes of input channels, each word for all output channels
        ifmap = A.Slots(0, taps * lanes, lanes, 0, 1)
        weight = A.Slots(0, 0, lanes * channels, 1, channels)
    else:
        ifmap, weight = (A.Slots(r.randint(0, 2), *(r.randint(0, 3) for _ in range(4))) for _ in range(2))
    psum = A.Slots(0, r.choice([channels, channels, 0]), 0, r.choice([1, 1, 1, 0]))
    if r.random() < 0.4:  # each lane has its own sums, in banks of its own (MAC-7)
        channels = min(channels, 3 // pixels)
        psum = A.Slots(0, r.choice([4 * channels, 0]), 0, r.choice([4, 4, 0]), 1)
    bare = A.Mac(MacOperation.MAC, A.Place(), pixels, taps, channels, lanes, 0, 0, ifmap, weight, psum)
    words, weights = (1 + max(slot(of, *at) for at in counts(bare)) for of in (ifmap, weight))
    rows, cols = r.randint(1, 2), r.randint(1, 4)
    reuse = min(r.randint(0, words - 1), pixels * taps) if r.random() < 0.5 else 0
    mac = replace(
        bare, place=A.Place(rows, cols, set_rows=rows, set_cols=cols), data_reuse=reuse, n2n_slot=words - reuse,
        clear=("c",), send=("c",), take_weight=(), give_weight=(), take_ifmap=(), give_ifmap=(),
    )  # fmt: skip
    return Case(mac, rows, cols, r.randint(1, 2), r.randint(1, 3), words - reuse, weights)


def module(case: Case) -> tuple[ModuleOp, CompilerContext]:
    """Each PE's words begin 5 a row and 3 a column farther on in the ifmap, its weights 7 a column."""
    place = A.Place(case.rows, case.cols, set_rows=case.rows, set_cols=case.cols)
    where = replace(place, row=A.IndexTerm("lin", 5), col=A.IndexTerm("lin", 3))
    word = (A.Extent(case.own, "lin", 1),)
    loads = [A.Load(A.LoadKind.WEIGHT, "w", replace(place, col=A.IndexTerm("lin", 7)), A.Start(),
                    (A.Extent(case.weights, "lin", 1),), open=(), close=())]  # fmt: skip
    if reuse := case.mac.data_reuse:
        edge = (A.Extent(reuse, "lin", 1),)
        loads += [
            A.Load(A.LoadKind.IFMAP, "x", where, A.Start(), word, open=()),
            A.Load(A.LoadKind.IFMAP, "x", where, A.Start(100), edge, case.own, edge=True, close=()),
        ]
    else:
        loads.append(A.Load(A.LoadKind.IFMAP, "x", where, A.Start(), word, open=(), close=()))
    commit = A.Commit(
        "y", replace(place, row=A.IndexTerm("lin", case.cols * case.psums), col=A.IndexTerm("lin", case.psums)),
        pixels=A.Extent(case.psums, "lin", 1), psum=A.Slots(pixel=1),
    )  # fmt: skip
    outputs = case.h * case.results
    ctx = new_context()
    text = f"""builtin.module {{
      array.tensor x, memory dram, words {WORDS}, shape [1, {WORDS}], role input, scale 1.0
      array.tensor w, memory dram, words {WORDS}, shape [1, {WORDS}], role input, scale 1.0
      array.tensor y, memory dram, words {outputs}, shape [1, {outputs}], role output, scale 1.0
      array.tensor x.glb, memory glb, words {WORDS}
      array.tensor w.glb, memory glb, words {WORDS}
      array.tensor y.glb, memory glb, words {outputs}
      array.layer "l" computes "" {{
        array.view x.dram, tensor x array.view w.dram, tensor w
        array.view y.dram, tensor y
        array.view x, tensor x.glb, steps [lin+11*h, lin+13*c]
        array.view w, tensor w.glb, steps [lin+17*c]
        array.view y, tensor y.glb, steps [lin+{case.results}*h]
        array.dma in, dram x.dram, glb x, words {WORDS}
        array.dma in, dram w.dram, glb w, words {WORDS}
        array.sync [dma]
        array.unit
        array.repeat h, count {case.h} {{
          array.repeat c, count {case.c} {{
            {" ".join(f"array.load {format_clauses(load)}" for load in loads)}
            array.mac {format_clauses(case.mac)}
          }}
          array.commit {format_clauses(commit)}
        }}
        array.sync [load, array, commit]
        array.dma out, dram y.dram, glb y, words {outputs}
        array.sync [dma]
      }} }}"""
    parsed = Parser(ctx, text).parse_module()
    parsed.verify()
    return parsed, ctx


def ifmap_of(case: Case, x: np.ndarray, h: int, c: int, row: int) -> np.ndarray:
    """The words [column, slot] of a row of PEs, when all have arrived."""
    mac, first = case.mac, 11 * h + 13 * c + 5 * row
    found = np.zeros((case.cols, case.own + mac.data_reuse), np.int64)
    for col in reversed(range(case.cols)):
        at = first + 3 * col
        found[col, : case.own] = x[at : at + case.own]
        for k in range(mac.data_reuse):
            found[col, case.own + k] = found[col + 1, k] if col + 1 < case.cols else x[at + 100 + k]
    return found


def expected(case: Case, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The results [h, row, column, psum], product by product."""
    mac = case.mac
    sums = np.zeros((case.h, case.rows, case.cols, case.psums), np.int64)
    for h, c, row, col in product(*map(range, (case.h, case.c, case.rows, case.cols))):
        words, weights = ifmap_of(case, x, h, c, row)[col], w[17 * c + 7 * col :]
        for z, j, i, lane in counts(mac):
            term = words[slot(mac.ifmap, z, j, i, lane)] * weights[slot(mac.weight, z, j, i, lane)]
            sums[h, row, col, slot(mac.psum, z, j, i, lane)] += term
    return sums


def too_early(case: Case) -> bool:
    """Whether a lane reads a neighbour's word before it can: word k from pixel step k + 1 on (MAC-3)."""
    mac = case.mac
    reads = [(z * mac.taps + j, slot(mac.ifmap, z, j, i, lane) - case.own) for z, j, i, lane in counts(mac)]
    return case.cols > 1 and any(step <= word for step, word in reads if 0 <= word < mac.data_reuse)


Run = Callable[[Case, Arch, np.ndarray, np.ndarray], list[np.ndarray]]


def by_array(case: Case, arch: Arch, x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    program, ctx = module(case)
    return list(run_array(program, ctx.weights, arch, [x, w])[0][0])


def lowered(case: Case) -> tuple[ModuleOp, CompilerContext]:
    program, ctx = module(case)
    ArrayAllocatePass("spatial-4x4").apply(ctx, program)
    return program, ctx


def by_machine(case: Case, arch: Arch, x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    program, ctx = lowered(case)
    ArrayToIsaPass().apply(ctx, program)
    return list(run_isa(program, ctx.weights, arch, [x, w])[0][0])


def by_plain_machine(case: Case, arch: Arch, x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    program, ctx = lowered(case)
    at = {op.record.data.name: op.record.data.at for op in program.ops if isinstance(op, A.TensorOp)}
    ArrayToIsaPass().apply(ctx, program)
    found: list[np.ndarray] = []
    for image in range(len(x)):
        dram = [0] * (max(at["x"], at["w"], at["y"]) + WORDS)
        dram[at["x"] : at["x"] + WORDS], dram[at["w"] : at["w"] + WORDS] = x[image].tolist(), w[image].tolist()
        machine = PlainMachine(arch, dram)
        machine.run(instructions(program))
        found.append(np.array(machine.dram[at["y"] : at["y"] + case.h * case.results]))
    return found


RUNS: dict[str, Run] = {"array": by_array, "machine": by_machine, "plain machine": by_plain_machine}
REFUSALS = (Refusal, Trap, PlainTrap)


def outcome(run: Run, case: Case, x: np.ndarray, w: np.ndarray, arch: Arch = ARCH) -> list[list[int]] | str:
    """The results of each image, or why it is refused."""
    try:
        return [image.tolist() for image in run(case, arch, x, w)]
    except REFUSALS as refusal:
        return str(refusal)


def test_lanes_random_macs_by_brute_force() -> None:
    ran: set[tuple[int, int]] = set()
    early = 0
    for seed in range(examples(50)):
        case, rng = random_case(random.Random(seed)), np.random.default_rng(seed)
        x, w = (rng.integers(-9, 10, (2, WORDS)) for _ in range(2))
        found = {name: outcome(run, case, x, w) for name, run in RUNS.items()}
        if too_early(case):
            assert all("arrives" in refusal for refusal in found.values()), (seed, found)
            early += 1
            continue
        wanted = [expected(case, *both).ravel().tolist() for both in zip(x, w, strict=True)]
        assert found == dict.fromkeys(RUNS, wanted), (seed, case)
        ran.add((case.mac.lanes, case.mac.psum.lane))
    lanes, own = map(set, zip(*ran, strict=True))
    assert (lanes, own) == ({1, 2, 3, 4}, {0, 1}) and early


def one_psum(taps: int, lanes: int) -> Case:
    """A PE that adds up products, those of a step first."""
    steps = A.Slots(tap=lanes, lane=1)
    always = {"take_weight": (), "give_weight": (), "take_ifmap": (), "give_ifmap": (), "clear": (), "send": ()}
    mac = A.Mac(MacOperation.MAC, A.Place(), taps=taps, lanes=lanes, ifmap=steps, weight=steps, **always)
    return Case(mac, 1, 1, 1, 1, taps * lanes, taps * lanes)


@pytest.mark.parametrize("name", RUNS)
def test_lanes_are_added_up_before_the_psum_is_checked(name: str) -> None:
    """40000 - 40000 + 9: within 16 bits after a step of three lanes, not after the first of three steps (MAC-2)."""
    narrow = replace(ARCH, psum_bits=16)
    x, w = np.zeros((1, WORDS), np.int64), np.zeros((1, WORDS), np.int64)
    x[0, :3], w[0, :3] = (200, 200, 3), (200, -200, 3)
    assert outcome(RUNS[name], one_psum(1, 3), x, w, narrow) == [[9]]
    assert "psum" in outcome(RUNS[name], one_psum(3, 1), x, w, narrow)
    x[0, 2] = 20000  # the step leaves the psum's width
    assert "psum" in outcome(RUNS[name], one_psum(1, 3), x, w, narrow)


@pytest.mark.parametrize("name", RUNS)
def test_lanes_that_a_pe_does_not_have(name: str) -> None:
    x = np.ones((1, WORDS), np.int64)
    few = replace(ARCH, pe=replace(ARCH.pe, lanes=2))
    assert outcome(RUNS[name], one_psum(2, 2), x, x, few) == [[4]]
    assert "lanes" in outcome(RUNS[name], one_psum(2, 3), x, x, few)


def test_lanes_of_records() -> None:
    with pytest.raises(ValueError, match="a max of 2 lanes: only a mac adds up lanes, others have a psum each"):
        A.Mac(MacOperation.MAX, A.Place(), lanes=2)
    assert A.Mac(MacOperation.MAX, A.Place(), lanes=2, psum=A.Slots(lane=1)).lanes == 2
    with pytest.raises(ValueError, match="a mac of 0 lanes"):
        A.Mac(MacOperation.MAC, A.Place(), lanes=0)
    with pytest.raises(ValueError, match=r"psum: lane = 3: lanes add up \(0\), or lane l has psum slot \+ l \(1\)"):
        A.Mac(MacOperation.MAC, A.Place(), psum=A.Slots(lane=3))
    with pytest.raises(ValueError, match="psum: lane = 1, but a commit has no lanes"):
        A.Commit("y", A.Place(), psum=A.Slots(lane=1))


def test_lanes_in_atomic_schedules() -> None:
    """The words that a PE multiplies, by name: their products are its sums."""
    case = replace(random_case(random.Random(1)), c=1)
    for seed in range(40):
        case = replace(random_case(random.Random(seed)), h=1, c=1)
        if case.mac.lanes > 1 and not case.mac.psum.lane and not too_early(case) and not case.mac.data_reuse:
            break
    rng = np.random.default_rng(3)
    values = {name: rng.integers(-9, 10, WORDS) for name in ("x", "w")}
    program, ctx = module(case)
    (reuse,) = atomic_schedule(program, ctx.weights, ARCH, "l", (0, 0), range(1))
    sums = np.zeros(case.psums, np.int64)
    for atom in reuse.atoms:
        assert len(atom.terms) == case.mac.lanes
        for ifmap, weight in atom.terms:
            assert weight is not None
            sums[atom.psum] += values[ifmap.tensor][ifmap.at[1]] * values[weight.tensor][weight.at[1]]
    np.testing.assert_array_equal(sums, expected(case, values["x"], values["w"])[0, 0, 0])
    assert [atom.cycle for atom in reuse.atoms] == list(range(len(counts(case.mac)) // case.mac.lanes))
    (line,) = [text for text in schedule_text("l", (0, 0), [reuse]) if text.startswith("      0 ")]
    assert line.count(" * ") == case.mac.lanes and line.count("+= ") == 1


@pytest.mark.parametrize("name", RUNS)
def test_own_sums_need_banks(name: str) -> None:
    """On an array without lane_sums, and where a lane's psums do not lie in its bank (MAC-7)."""
    x, mac = np.ones((1, WORDS), np.int64), replace(one_psum(2, 2).mac, psum=A.Slots(lane=1))
    case = Case(mac, 1, 1, 1, 1, 4, 4)
    assert outcome(RUNS[name], case, x, x) == [[2, 2]]
    without = replace(ARCH, pe=replace(ARCH.pe, lane_sums=False))
    assert "lane_sums" in outcome(RUNS[name], case, x, x, without)
    for field in ("base", "pixel", "tap", "channel"):
        wrong = replace(case, mac=replace(mac, psum=replace(mac.psum, **{field: 6})))
        assert "lanes" in outcome(RUNS[name], wrong, x, x)


@pytest.mark.parametrize("op", ["max", "add"])
def test_own_sums_of_pools(op: str) -> None:
    """Three channels of four words in three lanes: what one lane does in three times the steps."""
    text = "\n".join([
        "desc id=1", "dma dram=1 glb=1 words=12", "sync dma=1", "unit clamp_lo=-99 clamp_hi=99",
        "load kind=ifmap desc=1 open=always close=always extent3=12 term3=lin*1",
        f"mac op={op} take_ifmap=always give_ifmap=always clear=always send=always taps=4 ifmap_j=1 {{}}",
        "commit channels=3 psum_i=1 channel_term=lin*1 desc=2",
        "sync commit=1", "dma direction=out dram=2 glb=2 words=3", "sync dma=1", "halt",
    ])  # fmt: skip
    words = [3, -4, 7, 1, -9, -2, -5, -3, 8, 0, 0, 2]
    wanted = [(max if op == "max" else sum)(words[at : at + 4]) for at in (0, 4, 8)]
    for fields in ("lanes=3 ifmap_l=4 psum_l=1", "step_range=3 ifmap_i=4 psum_i=1"):
        program = assemble("desc id=2 base=12\n" + text.format(fields))
        machine = PlainMachine(ARCH, words + [0] * 3)
        machine.run(program)
        assert machine.dram[12:] == wanted
        dram = Memory("dram", 15, 1)
        dram.write(np.arange(12), np.array([words]))
        Interpreter(ARCH, dram, lambda *_: None).run(build_tree(program))
        assert dram.read(np.arange(12, 15)).tolist() == [wanted]
        assert mac_steps(next(inst for inst in program if inst.spec.name == "mac")) == (4 if "psum_l" in fields else 12)


def test_lanes_cost_no_cycles() -> None:
    """As many steps, three products each; the PE could do four, and two of 16 PEs work."""
    text = "mac rows=2 taps=6 step_range=2 {} clear=always send=always\ncommit rows=2 channels=2\nhalt"
    one, three = (stats(assemble(text.format(lanes)), ARCH) for lanes in ("", "lanes=3 ifmap_l=1"))
    assert (one["cycles"], one["macs"], three["macs"]) == (three["cycles"], 24, 72)
    assert three["cycles"]["compute"] == 3 + 12 + 1
    assert three["utilisation"]["compute"] == 72 / (16 * 16 * 4)
    reads = {"weight": 72, "ifmap": 72, "psum": 24 + 4}
    assert {name: file["read"] for name, file in three["rf"].items()} == reads
    own = stats(assemble(text.format("lanes=3 ifmap_l=1 psum_l=1 psum_i=4")), ARCH)
    assert own["cycles"] == three["cycles"]
    assert {name: file["read"] for name, file in own["rf"].items()} == {**reads, "psum": 72 + 4}
    assert own["rf"]["psum"]["write"] == 72
