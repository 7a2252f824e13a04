"""The race check sees what two plain machines see at one array's times, and what they would see at others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from glb_races import dram_of
from glb_races import races as timed_races
from test_conv_groups import array_file
from test_glb_buffers import CONV, MAPPINGS, compiled

from cnncc.arch.model import load_arch
from cnncc.isa.assembly import assemble
from cnncc.machine.accesses import AccessWalk
from cnncc.machine.program import build_tree
from cnncc.machine.races import races
from cnncc.machine.traps import Trap
from cnncc.machine.values.memory import Place
from cnncc.machine.values.strided import Strided

pytestmark = pytest.mark.usefixtures("short_searches")

TOKENS = {
    "residual alone": (7, 7),
    "output alone in one": (5, 5),
    "weights in slices": (4, 4),
}


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_that_is_not_taken(name: str, tmp_path: Path) -> None:
    """Some are redundant: one engine gives and takes them, or another token says as much."""
    compilation, program = compiled(CONV, MAPPINGS[name], array_file(tmp_path, "4x4"))
    arch = compilation.settings.arch
    dram = dram_of(compilation.module, compilation.ctx, {"x": CONV.x, "r": CONV.residual})
    assert races(program, arch)[0] == []
    tokens, seen, seen_at_these_times = 0, 0, 0
    for at, inst in enumerate(program):
        if inst.values.get("take"):
            wrong = [*program]
            wrong[at] = replace(inst, values={**inst.values, "take": 0})
            raced, timed = bool(races(wrong, arch)[0]), bool(timed_races(wrong, arch, dram))
            assert raced or not timed, f"instruction {at}"
            tokens, seen, seen_at_these_times = tokens + 1, seen + raced, seen_at_these_times + timed
    assert (tokens, seen) == TOKENS[name]
    assert 0 < seen_at_these_times < seen


ORDER = """
    desc id=0
    desc id=1 base=8
    dma words=4 glb=1 give=1 give_when=always
    {between}
    load desc=1 extent3=4 term3=lin*1 open=always close=always {takes}
    mac taps=4 op=add ifmap_j=1 take_ifmap=always give_ifmap=always clear=always send=always
    halt
"""


@pytest.mark.parametrize(
    ("between", "takes", "raced"),
    [
        ("", "take=1 take_when=always", False),
        ("sync dma=1", "", False),
        ("sync load=1 array=1 commit=1", "", True),
        ("", "", True),
        ("signal semaphore=2 count=1", "take=2 take_when=always", True),
    ],
)
def test_what_orders_two_engines(between: str, takes: str, raced: bool, tmp_path: Path) -> None:
    arch = load_arch(str(array_file(tmp_path, "4x4")))
    program = assemble(ORDER.format(between=between, takes=f"kind=ifmap {takes}"))
    seen, steps = races(program, arch)
    assert steps == len(program)
    assert [str(race) for race in seen] == [
        f"instruction {len(program) - 3} (load) may use GLB word 8 before instruction 2 (dma) has written it: "
        "a token or a sync is missing"
    ] * raced
    one_by_one = replace(arch, sequencer=replace(arch.sequencer, overlap=False))
    assert races(program, one_by_one)[0] == []


def test_a_token_that_never_comes(tmp_path: Path) -> None:
    program = assemble(ORDER.format(between="", takes="kind=ifmap take=3 take_when=always"))
    with pytest.raises(Trap, match="deadlock: no token of semaphore 3 will ever come"):
        races(program, load_arch(str(array_file(tmp_path, "4x4"))))


def test_a_program_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cnncc.machine.races.MOST_STEPS", 20)
    program = assemble("loop count=30\nsignal semaphore=1 count=1\nend\nhalt")
    with pytest.raises(Trap, match="instruction 1 .* the race check's limit of 20 instructions is exceeded"):
        races(program, load_arch(str(array_file(tmp_path, "4x4"))))


PARTIAL = """
    desc id=2 base=100 pitch=2
    desc id=3 base=200 pitch=2
    desc id=4 base=300 pitch=2
    unit residual=1
    loop count=3
      commit desc=2 sums=3 residual=4 rows=2 cols=2 set_rows=2 set_cols=2 row=y*1 col=x*1 partial=1 fresh=0 final=0
    end
    halt
"""


def test_what_a_commit_of_partial_sums_uses(tmp_path: Path) -> None:
    """Two words a sum; result and residual only with the last part."""
    arch = load_arch(str(array_file(tmp_path, "4x4")))
    walk = AccessWalk(arch).walk(build_tree(assemble(PARTIAL)))
    steps = [step for step in walk if step.leaf.instruction.spec.name == "commit"]
    used = [tuple(sorted(words(place)) for place in places) for step in steps for places in (step.reads, step.writes)]
    sums, results, residuals = list(range(200, 208)), list(range(100, 104)), list(range(300, 304))
    assert used == [(), (sums,), (sums,), (sums,), (sums, residuals), (results,)]


@pytest.mark.parametrize("name", ["ifmap in slices", "partial sums of two outputs", "columns"])
def test_accesses_of_loops_that_come_back(name: str, tmp_path: Path) -> None:
    """Those that are kept are those that are computed anew."""
    compilation, program = compiled(CONV, MAPPINGS[name], array_file(tmp_path, "4x4"))
    kept, anew = (AccessWalk(compilation.settings.arch) for _ in range(2))
    tree, again = build_tree(program), 0
    for step, other in zip(kept.walk(tree), anew.walk(tree), strict=True):
        anew.known.clear()
        uses = [[words(place) for place in places] for each in (step, other) for places in (each.reads, each.writes)]
        assert uses[:2] == uses[2:]
        again += bool(step.reads or step.writes)
    assert again > 1.5 * len(kept.known)


def test_steps_that_are_set_again_are_known_once() -> None:
    """A loop that sets the steps of a descriptor, by hand: what is kept of it does not grow with the iterations."""
    setting = "step id=1 loop=0 by=lin*2\nstep id=1 loop=1 by=lin*3\nload kind=ifmap desc=1 open=always close=always"
    program = f"desc id=1\nloop count=3\nloop count=400\n{setting}\nend\nend\nhalt"
    walk = AccessWalk(load_arch("spatial-4x4"))
    loads = [step for step in walk.walk(build_tree(assemble(program))) if step.reads]
    assert [words(step.reads[0]) for step in loads] == [[2 * i + 3 * j] for i in range(3) for j in range(400)]
    assert [len(each) for each in walk.made if each] == [3]


def test_compact_places() -> None:
    """The same words in the same order, those that come again at once left out, in fewer axes."""
    place = Strided(7, (2, 1, 3, 2, 4, 2), (40, 9, 0, 4, 1, 0))
    assert place.compact() == Strided(7, (2, 8), (40, 1))
    assert words(place.compact()) == list(dict.fromkeys(words(place)))
    assert words(Strided(7, (1,), (5,)).compact()) == [7]


def words(place: Place) -> list[int]:
    return (place.listed() if isinstance(place, Strided) else place).ravel().tolist()
