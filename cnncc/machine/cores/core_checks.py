"""What is refused of a program of cores before it runs (CORE-1 to CORE-5, CORE-8)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from cnncc.arch.model import Arch
from cnncc.errors import Refusal
from cnncc.isa.codec import has_cores
from cnncc.isa.table import Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.cores.banks import check_banks
from cnncc.machine.cores.programs import MOST_FRAMES, Core, Semaphore, TokenUse, Wiring, cores_of, wiring_of
from cnncc.machine.program import LoopNode, leaves

ENGINES_WITH_PES = ("load", "array", "commit")


def check_cores(instructions: Sequence[Instruction], arch: Arch) -> None:
    """Check a program's cores; a program without `core` has none. Raises Refusal."""
    if not has_cores(instructions):
        return
    cores = cores_of(instructions, arch)
    _check_regions(cores, arch)
    for core in cores:
        _check_program(core, len(cores))
    wiring = wiring_of(cores)
    _check_semaphores(wiring)
    if len(cores) > 1:
        # Of a run with any number of frames: a ring over frames reaches further words from the second frame on.
        check_banks(cores_of(instructions, arch, MOST_FRAMES), arch)


# -- CORE-1, CORE-5: regions -------------------------------------------------------------------------------------------


def _check_regions(cores: Sequence[Core], arch: Arch) -> None:
    if len(cores) > arch.cores.most:
        raise Refusal(f"{len(cores)} cores, {arch.name} has {arch.cores.most} (cores.most, CORE-1)")
    for core in cores:
        rows, cols = _side(core, "row"), _side(core, "col")
        if not rows and not cols and not core.number:
            continue
        if not rows or not cols:
            raise Refusal(f"core {core.number} has no PEs: only core 0 may have none, as rows=0 cols=0 (CORE-1)")
        if rows.stop > arch.rows or cols.stop > arch.cols:
            where = f"rows {rows.start}..{rows[-1]}, columns {cols.start}..{cols[-1]}"
            raise Refusal(f"core {core.number}: {where} are not all in the array of {arch.rows} x {arch.cols} (CORE-1)")
    for one, other in combinations(cores, 2):
        rows, cols = (sorted({*_side(one, side)} & {*_side(other, side)}) for side in ("row", "col"))
        if rows and cols:
            raise Refusal(
                f"cores {one.number} and {other.number} both have PE {rows[0]},{cols[0]}: regions are disjoint (CORE-1)"
            )
    for side, name, count, bus in (("row", "row", arch.rows, "buses"), ("col", "column", arch.cols, "chains")):
        for at in range(count):
            sharing = [str(core.number) for core in cores if at in _side(core, side)]
            if len(sharing) > arch.cores.buses:
                raise Refusal(
                    f"cores {', '.join(sharing)} share {name} {at}, which has {arch.cores.buses} {bus} "
                    "(cores.buses, CORE-5)"
                )


def _side(core: Core, side: str) -> range:
    """The rows (columns) of the array that a core's region has."""
    first = core.head.number(f"{side}0")
    return range(first, first + core.head.number(f"{side}s"))


# -- CORE-1, CORE-3, CORE-8: one core's program ------------------------------------------------------------------------


def _check_program(core: Core, cores: int) -> None:
    others = False  # whether anything but core and routes has come
    for leaf, depth in core.leaves:
        inst, kind = leaf.instruction, leaf.instruction.spec.kind
        where = f"core {core.number}, instruction {leaf.index} ({kind})"
        if core.number and (inst.spec.engine == "dma" or kind is Kind.HOST):
            raise Refusal(f"{where}: only core 0 has the dma engine and the host (CORE-1)")
        if inst.spec.engine in ENGINES_WITH_PES and not core.arch.rows:
            raise Refusal(f"{where}: the core has no PEs (CORE-1)")
        if kind is Kind.ROUTE:
            if others or depth:
                raise Refusal(f"{where}: routes stand directly behind core (CORE-3)")
            if inst.number("core") >= cores:
                raise Refusal(
                    f"{where}: a route to core {inst.number('core')}, there are cores 0 to {cores - 1} (CORE-3)"
                )
        others = others or kind not in (Kind.CORE, Kind.ROUTE)
    for node in core.tree:
        if isinstance(node, LoopNode):
            _check_frames(core, node, outermost=True)


def _check_frames(core: Core, loop: LoopNode, *, outermost: bool) -> None:
    where = f"core {core.number}, instruction {loop.first}"
    if loop.over_frames and not outermost:
        raise Refusal(f"{where}: a loop over frames stands in another loop (CORE-8)")
    for node in loop.body:
        if isinstance(node, LoopNode):
            _check_frames(core, node, outermost=False)
    if loop.over_frames and any(leaf.instruction.spec.kind is Kind.HOST for leaf in leaves(loop.body)):
        raise Refusal(f"{where}: the host runs for all frames at once, not in a loop over frames (CORE-8)")


# -- CORE-4: semaphores ------------------------------------------------------------------------------------------------


def _check_semaphores(wiring: Wiring) -> None:
    for target, sources in wiring.sources.items():
        if len(sources) > 1:
            some = " and ".join(f"semaphore {number} of core {core}" for core, number in sources)
            raise Refusal(f"{_name(target)} has routes from {some}: tokens have one giver (CORE-4)")
    reached = {target for given in wiring.gives for target in wiring.targets(given)}
    for taken, uses in wiring.takes.items():
        if taken not in reached:
            raise Refusal(
                f"{uses[0]} takes {_name(taken)}, which nothing gives: a give, a signal, "
                f"or a route to core {taken[0]}, to={taken[1]} is missing (CORE-4)"
            )
    for given, uses in wiring.gives.items():
        for target in wiring.targets(given):
            if target not in wiring.takes:
                how = "the route leads to" if given in wiring.routes else "without a route these are tokens of"
                raise Refusal(
                    f"{uses[0]} gives semaphore {given[1]}: {how} {_name(target)}, which nothing takes (CORE-4)"
                )
    for target in wiring.sources:
        _check_one_giver_and_taker(target, wiring)


def _check_one_giver_and_taker(target: Semaphore, wiring: Wiring) -> None:
    """A semaphore at the end of a route: its giver, its taker, and where signals stand."""
    (source,) = wiring.sources[target]
    # A target that is the head of routes, too, gets no tokens of its own core: these leave by the routes.
    own = () if target in wiring.routes else wiring.gives.get(target, ())
    givers = [*wiring.gives.get(source, ()), *own]
    for uses, what in ((givers, "gives"), (wiring.takes.get(target, ()), "takes")):
        by_engine: dict[tuple[int, str], TokenUse] = {}
        for use in uses:
            if not _is_signal(use):
                by_engine.setdefault((use.core, use.leaf.instruction.spec.engine), use)
        if len(by_engine) > 1:
            one, other = list(by_engine.values())[:2]
            raise Refusal(f"{one} and {other}: one engine of one core {what} tokens of {_name(target)} (CORE-4)")
    for use in filter(_is_signal, givers):
        # A signal comes before all other uses by its core: what that gives and, if it is the taker, what it takes.
        same = [*wiring.gives[use.core, use.leaf.instruction.number("semaphore")]]
        same += wiring.takes.get(target, ()) if use.core == target[0] else []
        others = [each.leaf.index for each in same if not _is_signal(each)]
        if use.depth or use.leaf.index > min(others, default=use.leaf.index):
            raise Refusal(f"{use}: signals of {_name(target)} stand in no loop, and before its other uses (CORE-4)")


def _is_signal(use: TokenUse) -> bool:
    return use.leaf.instruction.spec.kind is Kind.SIGNAL


def _name(semaphore: Semaphore) -> str:
    return f"semaphore {semaphore[1]} of core {semaphore[0]}"
