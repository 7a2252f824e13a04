"""A plain clock of several cores, to compare the real one with: the plain clocks of one core, and tokens between them.

Written from CORE-3, CORE-7 and CAUSE-7. A number of a semaphore is either taken from or routed, in these programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from test_machine_times import Event, Plain, at

from cnncc.arch.model import Arch
from cnncc.isa.table import Instruction


class PlainCore(Plain):
    def __init__(self, program: list[Instruction], arch: Arch) -> None:
        head = program[0]
        glb = replace(arch.glb, words_per_cycle=arch.cores.words_per_cycle or arch.glb.words_per_cycle)
        own = replace(arch, rows=head.number("rows"), cols=head.number("cols"), glb=glb)
        super().__init__(program, own, [])
        self.routes = [
            (inst.number("semaphore"), inst.number("core"), inst.number("to"))
            for inst in program
            if inst.spec.name == "route"
        ]

    def arrive(self, semaphore: int, time: int, cause: str) -> None:
        self.tokens[semaphore].append((Event(0, ((cause, time), ("", 0)), None), "end"))

    def walk(self) -> Iterator[None]:
        """Run, and yield where a token is missing."""
        stack: list[list[int]] = []
        number = 0
        while True:
            inst = self.program[number]
            name, before = inst.spec.name, self.now
            if name == "loop":
                stack.append([number, 0, inst.number("count")])
                self.spend(1)
            elif name == "end":
                stack[-1][1] += 1
                if stack[-1][1] < stack[-1][2]:
                    number = stack[-1][0]
                else:
                    stack.pop()
            else:
                firsts, lasts = [i == 0 for _, i, _ in stack], [i == n - 1 for _, i, n in stack]
                when = inst.values.get("take_when")
                takes = isinstance(when, tuple) and all(firsts[loop] for loop in when if loop < len(firsts))
                while takes and inst.number("take") and not self.tokens[inst.number("take")]:
                    yield
                self.step(number, inst, firsts, lasts)
            self.count(number, "total", self.now - before)
            if name == "halt":
                return
            number += 1


def split(program: Sequence[Instruction], frames: int) -> list[list[Instruction]]:
    """The programs of cores, with the iterations of loops over frames."""
    parts: list[list[Instruction]] = []
    for inst in program:
        if inst.spec.name == "core":
            parts.append([])
        if inst.spec.name == "loop" and inst.number("frames"):
            inst = replace(inst, values={"frames": 0, "count": inst.number("count") + frames - 1})
        parts[-1].append(inst)
    return parts


def cause_of(core: Sequence[Instruction], semaphore: int) -> str:
    (taker,) = {
        (inst.spec.name, inst.values.get("direction"))
        for inst in core
        if inst.values.get("take") == semaphore and inst.values.get("take_when") is not None
    }
    return "channel_in" if taker in (("load", None), ("dma", "out")) else "channel_out"


def plain_cores(program: Sequence[Instruction], arch: Arch, frames: int) -> list[PlainCore]:
    cores = [PlainCore(part, arch) for part in split(program, frames)]
    walks = [core.walk() for core in cores]
    left = set(range(len(cores)))
    while left:
        for number in sorted(left):
            if next(walks[number], "ended") == "ended":
                left.remove(number)
            for semaphore, to, target in cores[number].routes:
                for point in cores[number].tokens[semaphore]:
                    cause = cause_of(cores[to].program, target)
                    cores[to].arrive(target, at(point) + arch.cores.latency_cycles, cause)
                cores[number].tokens[semaphore] = []
    return cores
