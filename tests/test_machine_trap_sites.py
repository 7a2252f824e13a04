"""Every trap of the machine, and every refusal of program words, has a program by hand that runs into it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from test_isa_fuzz import small_memory, values
from test_machine_times import ARCH as OTHER_ARCH
from test_machine_traps import run
from trap_cases import (
    ARCH,
    BANKS,
    CORES,
    CORES_ARCH,
    DEADLOCKS,
    OTHERS,
    OWN,
    PING_PONG,
    PONG,
    TIMES,
    TRAFFIC,
    VALUES,
    WORDS,
)

import cnncc
from cnncc.errors import Refusal
from cnncc.isa.assembly import assemble
from cnncc.isa.codec import decode_program, encode_program
from cnncc.machine.cores.core_checks import check_cores
from cnncc.machine.cores.core_times import EngineRuns, simulate_cores
from cnncc.machine.cores.programs import cores_of
from cnncc.machine.program import build_tree
from cnncc.machine.times.times import simulate
from cnncc.machine.traffic.counts import count_traffic
from cnncc.machine.traps import Trap

ROOT = Path(cnncc.__file__).parent
ABOUT_FILES = ("bus_messages.py", "races.py", "degrees.py")  # not what a program does
NO_TRAPS = ("OrderMatters", "TooMany", "_Dependent", "_Reached", "AssertionError")
CALLER_CHECKS = ("of",)  # functions that raise where a caller should have looked
DECODER = ("_decode_one", "decode_program", "check_structure", "_check_core", "from_bits")

Site = tuple[str, int, int]  # file, first and last line of a raise


def raises(source: str, file: str) -> Iterator[Site]:
    """The statements that say what went wrong; those that only pass it on have a cause."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or function.name in CALLER_CHECKS:
            continue
        if file.startswith("isa/") and function.name not in DECODER:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Raise) and node.cause is None and node.exc is not None:
                call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                if not (isinstance(call, ast.Name) and call.id in NO_TRAPS):
                    yield file, node.lineno, node.end_lineno or node.lineno


def all_sites() -> set[Site]:
    paths = [path for path in (ROOT / "machine").rglob("*.py") if path.name not in ABOUT_FILES]
    paths += [ROOT / "isa" / "codec.py", ROOT / "isa" / "fields.py"]
    return {site for path in paths for site in raises(path.read_text(), f"{path.parent.name}/{path.name}")}


def where(error: BaseException) -> tuple[str, int]:
    """The file and line that raised the first error of a chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    path = Path(trace.tb_frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}", trace.tb_lineno


def provoked() -> Iterator[tuple[str, int]]:
    """Where each program by hand ends."""
    yield from (ends(lambda text=text: run(text)) for text, _, _ in VALUES)
    yield from (ends(lambda text=text: run(text, PONG)) for text, _, _ in PING_PONG)
    yield from (ends(lambda text=text: run(text, BANKS)) for text, _, _ in OWN)
    for case in OTHERS:
        yield ends(lambda case=case: run(case.text, case.arch, list(case.dram), case.images, case.shared))
    for text, _, _ in TIMES:
        yield ends(lambda text=text: simulate(build_tree(assemble(text)), OTHER_ARCH))
    slow = build_tree(assemble("loop count=9\nsignal semaphore=1 count=1\nend\nhalt"))
    yield ends(lambda: simulate(slow, OTHER_ARCH, limit_cycles=9))
    yield ends(lambda: simulate(slow, OTHER_ARCH, limit_steps=9))
    yield ends(lambda: values(encode_program(assemble("loop count=9\ndesc\nend\nhalt")), ARCH, small_memory(), 9999))
    yield from (ends(lambda text=text: count_traffic(build_tree(assemble(text)), OTHER_ARCH)) for text, _, _ in TRAFFIC)
    yield from (ends(lambda text=text: check_cores(assemble(text), CORES_ARCH)) for text, _ in CORES)
    yield ends(lambda: build_tree(assemble("core\nhalt")))
    yield ends(lambda: cores_of(assemble("core\nhalt"), CORES_ARCH, 1 << 16))
    for text in DEADLOCKS:
        yield ends(lambda text=text: simulate_cores(cores_of(assemble(text), CORES_ARCH)))
    turns = assemble("loop count=9\nunit\nend\nhalt")
    yield ends(lambda: simulate_cores(cores_of(turns, OTHER_ARCH), timeline=EngineRuns(range(len(turns)), most=2)))
    for words, _ in WORDS:
        codes = np.array([int(word, 16) for word in words.split()], np.uint32)
        yield ends(lambda codes=codes: decode_program(codes))


def ends(run_it: Callable[[], object]) -> tuple[str, int]:
    try:
        run_it()
    except (Trap, Refusal) as error:
        return where(error)
    raise AssertionError("runs to its end")


def without_program(sites: set[Site], seen: set[tuple[str, int]]) -> list[Site]:
    return sorted(
        (file, first, last)
        for file, first, last in sites
        if not any(at == file and first <= line <= last for at, line in seen)
    )


def test_every_trap_has_a_program() -> None:
    sites = all_sites()
    assert len(sites) > 50
    missing = [f"cnncc/{file}:{first}" for file, first, _ in without_program(sites, set(provoked()))]
    assert not missing, f"add a program to tests/trap_cases.py for each of {missing}"


def test_a_new_trap_would_be_noticed() -> None:
    source = "def rule(x):\n    if x:\n        raise Fault(\n            f'new {x}')\n    raise OrderMatters\n"
    (site,) = raises(source, "machine/new.py")
    assert site == ("machine/new.py", 3, 4)
    assert without_program({site}, {("machine/new.py", 2), ("machine/other.py", 3)}) == [site]
    assert without_program({site}, {("machine/new.py", 4)}) == []
