"""The traffic of a program, counted without values: operations, words, slots (docs/machine.md: Counters)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import prod
from typing import assert_never

from cnncc.arch.model import DESCRIPTORS, Arch
from cnncc.arch.operations import MacOperation
from cnncc.isa.fields import FieldTerm, When
from cnncc.isa.table import CHANGING_SETTINGS, MOVING_WORDS, Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.instruction_sizes import (
    UnitSettings,
    ceil_div,
    commit_params,
    commit_results,
    load_offsets,
    load_positions,
    load_words,
    mac_operations,
    mac_steps,
    result_rows,
    step_sums,
)
from cnncc.machine.program import Leaf, LoopNode, Node
from cnncc.machine.times.durations import mac_occupancy
from cnncc.machine.times.times import owners, program_length
from cnncc.machine.traffic.in_bounds import BoundedIndex, count_inside


@dataclass
class Traffic:
    """Counts of a program or a layer; docs/stats.md defines each.

    - macs, max, add: operations of active PEs
    - dram_*, glb_*, bus_*, n2n, psum_link, rf_*: words, in the GLB and on buses by their use
    - *_peak: the most slots used in a half
    """

    macs: int = 0
    max: int = 0
    add: int = 0
    idle_pe_cycles: int = 0
    dram_read: int = 0
    dram_write: int = 0
    glb_read_weight: int = 0
    glb_read_ifmap: int = 0
    glb_read_params: int = 0
    glb_read_residual: int = 0
    glb_read_operand: int = 0
    glb_read_sums: int = 0
    glb_read_dma: int = 0
    glb_write_results: int = 0
    glb_write_sums: int = 0
    glb_write_dma: int = 0
    bus_weight: int = 0
    bus_ifmap: int = 0
    n2n: int = 0
    psum_link: int = 0
    rf_weight_read: int = 0
    rf_weight_write: int = 0
    rf_ifmap_read: int = 0
    rf_ifmap_write: int = 0
    rf_psum_read: int = 0
    rf_psum_write: int = 0
    weight_peak: int = 0
    ifmap_peak: int = 0
    psum_peak: int = 0

    def parts(self, what: str) -> dict[str, int]:
        """The counts `what`_NAME by NAME: weight, ifmap, … for glb_read."""
        return {name.removeprefix(f"{what}_"): n for name, n in vars(self).items() if name.startswith(f"{what}_")}

    @property
    def glb_read(self) -> int:
        """Words read from the GLB."""
        return sum(self.parts("glb_read").values())

    @property
    def glb_write(self) -> int:
        """Words written to the GLB."""
        return sum(self.parts("glb_write").values())

    @property
    def bus(self) -> int:
        """Words that loads put on the row buses."""
        return sum(self.parts("bus").values())

    def include(self, other: Traffic, times: int = 1) -> None:
        """Add `other`'s counts, `times` times. A peak becomes the greater of both."""
        mine = vars(self)
        for name, more in vars(other).items():
            if more:
                mine[name] = max(mine[name], more) if name in _PEAKS else mine[name] + more * times


_PEAKS = frozenset(count.name for count in fields(Traffic) if count.name.endswith("_peak"))


@dataclass(frozen=True)
class _Descriptor:
    """The fields of a descriptor that decide which words are padding; linear steps do not (DESC-1, DESC-3)."""

    height: int = 0
    width: int = 0
    steps: Mapping[int, FieldTerm] = field(default_factory=dict[int, FieldTerm])

    def with_step(self, register: int, term: FieldTerm) -> _Descriptor:
        return self if term.axis == "lin" else replace(self, steps={**self.steps, register: term})


@dataclass(frozen=True)
class _Settings:
    """The settings of a program at one moment: descriptors by number, output units."""

    descriptors: tuple[_Descriptor, ...] = (_Descriptor(),) * DESCRIPTORS
    unit: UnitSettings = UnitSettings()

    def with_descriptor(self, number: int, descriptor: _Descriptor) -> _Settings:
        before, after = self.descriptors[:number], self.descriptors[number + 1 :]
        return _Settings((*before, descriptor, *after), self.unit)

    def after(self, inst: Instruction) -> _Settings:
        """The settings after `desc`, `step`, `unit`, or any other instruction."""
        kind = inst.spec.kind
        if kind not in CHANGING_SETTINGS:
            return self
        match kind:
            case Kind.DESC:
                return self.with_descriptor(inst.number("id"), _Descriptor(inst.number("height"), inst.number("width")))
            case Kind.STEP:
                number = inst.number("id")
                changed = self.descriptors[number].with_step(inst.number("loop"), inst.term("by"))
                return self.with_descriptor(number, changed)
            case Kind.UNIT:
                return _Settings(self.descriptors, UnitSettings.of(inst))
            case _:
                assert_never(kind)


# The iterations [from, to) of each loop around an instruction, by register.
Ranges = tuple[tuple[int, int], ...]
# `count_inside`, perhaps cached.
Count = Callable[[tuple[int, ...], int, tuple[BoundedIndex, ...]], int]


def load_reads(inst: Instruction, descriptor: _Descriptor, ranges: Ranges, count: Count) -> int:
    """GLB words, without padding, that a load reads in all iterations of the loops around it (DESC-3, LOAD-3)."""
    indices = _loop_terms(descriptor, ranges)
    indices += [(BoundedIndex(0, extent, 1), term) for extent, term in inst.pattern]
    starts = [{"y": inst.number("y") + y, "x": inst.number("x") + x} for _, _, y, x in load_positions(inst)[0]]
    # y and x are bounded independently, so starts that share one of them are counted together: groups by the axis
    # with fewer distinct starts are the fewest.
    one, other = sorted(("y", "x"), key=lambda axis: len({start[axis] for start in starts}))
    groups: dict[int, list[int]] = {}
    for start in starts:
        groups.setdefault(start[one], []).append(start[other])
    return sum(
        _inside(descriptor, indices, count, {one: (at,), other: tuple(sorted(others))}) for at, others in groups.items()
    )


def dma_copies(inst: Instruction, descriptor: _Descriptor, ranges: Ranges, count: Count) -> int:
    """Words that a DMA transfer copies in all iterations of the loops around it. descriptor: the DRAM's (DMA-1)."""
    extents = {"lin": inst.number("count"), "y": inst.number("rows"), "x": inst.number("words")}
    indices = [(BoundedIndex(0, extent, 1), FieldTerm(axis, 1)) for axis, extent in extents.items()]
    starts = {axis: (inst.number(axis),) for axis in ("y", "x")}
    return _inside(descriptor, [*_loop_terms(descriptor, ranges), *indices], count, starts)


def _loop_terms(descriptor: _Descriptor, ranges: Ranges) -> list[tuple[BoundedIndex, FieldTerm]]:
    return [
        (BoundedIndex(low, high, 1), descriptor.steps.get(register, FieldTerm()))
        for register, (low, high) in enumerate(ranges)
    ]


def _inside(
    descriptor: _Descriptor,
    terms: list[tuple[BoundedIndex, FieldTerm]],
    count: Count,
    starts: dict[str, tuple[int, ...]],
) -> int:
    """Positions inside the bounds (DESC-3), counted from every pair of a row and a column in `starts`."""
    if descriptor.height == 0:
        return prod(map(len, starts.values())) * prod(index.high - index.low for index, _ in terms)
    limits = {"y": descriptor.height, "x": descriptor.width}
    inside = prod(index.high - index.low for index, term in terms if term.axis not in limits)
    for axis, limit in limits.items():
        along = tuple([BoundedIndex(index.low, index.high, term.step) for index, term in terms if term.axis == axis])
        inside *= count(starts[axis], limit, along)
    return inside


def _mac(inst: Instruction, arch: Arch) -> Traffic:
    rows, cols = inst.number("rows"), inst.number("cols")
    reuse, pes = inst.number("data_reuse"), rows * cols
    sums, operations = pes * mac_steps(inst) * step_sums(inst), pes * mac_operations(inst)
    # MAC-3: of each set all columns but the last one take words from their neighbours.
    receivers = rows * (cols - ceil_div(cols, inst.number("set_cols")))
    counters = {"z": "pixels", "j": "taps", "i": "step_range", "l": "lanes"}
    farthest = sum(max(0, (inst.number(n) - 1) * inst.number(f"psum_{c}")) for c, n in counters.items())
    count = Traffic(
        idle_pe_cycles=(arch.rows * arch.cols - pes) * mac_occupancy(inst, arch).busy,
        n2n=reuse * receivers,
        rf_ifmap_read=operations,
        rf_ifmap_write=reuse * receivers,
        rf_psum_read=sums,
        rf_psum_write=sums,
        ifmap_peak=_n2n_peak(inst.number("n2n_slot"), reuse, arch),
        psum_peak=inst.number("psum_slot") + farthest + 1,
    )
    match operation := inst.operation():
        case MacOperation.MAC:
            count.macs = count.rf_weight_read = operations
        case MacOperation.MAX:
            count.max = operations
        case MacOperation.ADD:
            count.add = operations
        case _:
            assert_never(operation)
    return count


def _n2n_peak(slot: int, reuse: int, arch: Arch) -> int:
    """Slots of an ifmap half that hold words once the neighbour's have come; with a pong, those of both (MAC-6)."""
    if not reuse:
        return 0
    return slot + (min(slot, reuse) if arch.pe.pong_words else reuse)


def _load(inst: Instruction, arch: Arch) -> Traffic:
    words, (rows, cols) = load_words(inst), load_offsets(inst)
    sent, taken = words * len(load_positions(inst)[0]), words * len(rows) * len(cols)
    peak = inst.number("slot") + words
    if inst.text("kind") == "weight":
        return Traffic(bus_weight=sent, rf_weight_write=taken, weight_peak=peak)
    waits = arch.pe.pong_words and inst.number("edge")  # outside of ping and pong
    return Traffic(bus_ifmap=sent, rf_ifmap_write=taken, ifmap_peak=0 if waits else peak)


def _commit(inst: Instruction, settings: _Settings, ranges: Ranges, counts: Sequence[int], arch: Arch) -> Traffic:
    """The traffic of all iterations of a commit. Its conditions say when partial sums are read and kept (COMMIT-5)."""
    times = final = prod(high - low for low, high in ranges)
    results, stream, read = commit_results(inst), inst.text("source") == "glb", 0
    if inst.number("partial"):
        read = times - _met(inst.when("fresh"), ranges, counts, last=False)
        final = _met(inst.when("final"), ranges, counts, last=True)
    # A psum is read in every row of PEs, also in those whose psums are added up on the way to one row of results.
    psums = 0 if stream else times * results // result_rows(inst)[0]  # of each row of PEs
    return Traffic(
        glb_read_params=final * commit_params(inst, settings.unit, arch),
        glb_read_residual=final * results * settings.unit.residual,
        glb_read_operand=times * results * stream,
        glb_read_sums=read * arch.words_per_sum * results,
        glb_write_results=final * results,
        glb_write_sums=(times - final) * arch.words_per_sum * results,
        rf_psum_read=psums * inst.number("rows"),
        psum_link=psums * (inst.number("rows") - result_rows(inst)[0]),
    )


def _met(when: When, ranges: Ranges, counts: Sequence[int], last: bool) -> int:
    """In how many of the iterations `ranges` a condition holds (PROG-2). counts: all iterations of each loop."""
    if when is None:
        return 0
    times = 1
    for register, (low, high) in enumerate(ranges):
        wanted = counts[register] - 1 if last else 0
        times *= (low <= wanted < high) if register in when else high - low
    return times


class _TrafficWalk:
    """Counts by layer, over a program in program order."""

    def __init__(self, arch: Arch, owner: Sequence[int]) -> None:
        self.arch = arch
        self.owner = owner
        self.counts: dict[int, Traffic] = {}
        self.iterations: list[int] = []  # of each loop around
        self._count = cache(count_inside)

    def nodes(self, nodes: Sequence[Node], settings: _Settings, ranges: Ranges) -> _Settings:
        """Count nodes; returns the settings after them."""
        for node in nodes:
            settings = (
                self._loop(node, settings, ranges) if isinstance(node, LoopNode) else self._leaf(node, settings, ranges)
            )
        return settings

    def _loop(self, loop: LoopNode, settings: _Settings, ranges: Ranges) -> _Settings:
        """All iterations at once, if the body keeps the settings. Otherwise the first counts apart and sets them."""
        after = _settings_after(loop.body, settings)
        self.iterations.append(loop.count)
        if after == settings:
            self.nodes(loop.body, settings, (*ranges, (0, loop.count)))
        else:
            self.nodes(loop.body, settings, (*ranges, (0, 1)))
            if loop.count > 1:
                self.nodes(loop.body, after, (*ranges, (1, loop.count)))
        self.iterations.pop()
        return after

    def _leaf(self, leaf: Leaf, settings: _Settings, ranges: Ranges) -> _Settings:
        counts = self.counts.setdefault(self.owner[leaf.index], Traffic())
        try:
            self._count_instruction(leaf.instruction, settings, ranges, counts)
        except ValueError as error:
            raise leaf.trap(str(error)) from error
        return settings.after(leaf.instruction)

    def _count_instruction(self, inst: Instruction, settings: _Settings, ranges: Ranges, counts: Traffic) -> None:
        """Add what an instruction does in all iterations of the loops around it."""
        kind = inst.spec.kind
        if kind not in MOVING_WORDS:
            return
        times = prod(high - low for low, high in ranges)
        match kind:
            case Kind.MAC:
                counts.include(_mac(inst, self.arch), times)
            case Kind.LOAD:
                counts.include(_load(inst, self.arch), times)
                words = load_reads(inst, settings.descriptors[inst.number("desc")], ranges, self._count)
                is_weight = inst.text("kind") == "weight"
                counts.include(Traffic(glb_read_weight=words) if is_weight else Traffic(glb_read_ifmap=words))
            case Kind.DMA:
                words = dma_copies(inst, settings.descriptors[inst.number("dram")], ranges, self._count)
                if inst.text("direction") == "in":
                    counts.include(Traffic(dram_read=words, glb_write_dma=words))
                else:
                    counts.include(Traffic(glb_read_dma=words, dram_write=words))
            case Kind.COMMIT:
                counts.include(_commit(inst, settings, ranges, self.iterations, self.arch))
            case _:
                assert_never(kind)


def _settings_after(nodes: Sequence[Node], settings: _Settings) -> _Settings:
    """The settings after nodes. Once through a body is as good as many times: it sets constants."""
    for node in nodes:
        settings = (
            _settings_after(node.body, settings) if isinstance(node, LoopNode) else settings.after(node.instruction)
        )
    return settings


@dataclass(frozen=True)
class Counts:
    """The traffic of a program and of its layers."""

    whole: Traffic
    layers: dict[str, Traffic] = field(default_factory=dict[str, Traffic])


def count_traffic(tree: Sequence[Node], arch: Arch, layers: Sequence[tuple[str, int]] = ()) -> Counts:
    """The traffic of a program. layers: (label, first instruction), as for `simulate`.

    Raises: Trap, if an instruction's positions are spread too far to be counted.
    """
    walk = _TrafficWalk(arch, owners(program_length(tree), layers))
    walk.nodes(tree, _Settings(), ())
    whole = Traffic()
    for traffic in walk.counts.values():
        whole.include(traffic)
    return Counts(whole, {label: walk.counts.get(owner, Traffic()) for owner, (label, _) in enumerate(layers)})
