"""Values of a program: the effect of each instruction on the memories and register files, for all images at once.

Instructions run one after the other in program order (PROG-5), each for all its PEs, pixels, taps and channels. Loops
whose iterations do not depend on each other run as a block: iterations become array axes (`loop_blocks.py`). Times are
computed apart, in `times.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, assert_never

import numpy.typing as npt

from cnncc.arch.model import LOOP_REGISTERS, Arch
from cnncc.isa.fields import When
from cnncc.isa.table import Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.instruction_sizes import ceil_div, commit_results, load_words
from cnncc.machine.mac_operations import operands_of
from cnncc.machine.program import LoopNode, Node
from cnncc.machine.traps import Trap
from cnncc.machine.values.addresses import PE_AXES, Descriptor, Descriptors, Grid, Index, Ints, axis_index
from cnncc.machine.values.arithmetic import Arithmetic
from cnncc.machine.values.commits import CommitRun
from cnncc.machine.values.delivery import Delivered, deliver, with_axes
from cnncc.machine.values.integers import Integers
from cnncc.machine.values.loop_blocks import (
    FilesBefore,
    LoopBlock,
    OrderMatters,
    TooMany,
    depth,
    divisible,
    find,
    independent,
    largest_array,
)
from cnncc.machine.values.loop_fetches import leading_fetches
from cnncc.machine.values.loop_stores import trailing_stores
from cnncc.machine.values.mac_arithmetic import accumulate, check_neighbours, check_sizes
from cnncc.machine.values.memory import Memory, OutOfRange
from cnncc.machine.values.output_units import NO_ENTRIES, OutputUnit, psum_slots, table_entries
from cnncc.machine.values.partial_sums import reduced
from cnncc.machine.values.regfile import Half, HalfFault, Halves, PsumHalf, Words, active_grid
from cnncc.machine.values.transfer_addresses import sides
from cnncc.machine.values.work_limit import PER_INSTRUCTION, WorkLimit, work_of

Rules = dict[Kind, Callable[[Instruction], None] | None]

BLOCK_ELEMENTS = 1 << 22  # the most elements of one array in a block; larger loops run in smaller blocks

HostCall = Callable[[int, Memory], None]


class Interpreter:
    """The state of the machine; `run` executes a tree. Raises Trap."""

    def __init__(self, arch: Arch, dram: Memory, host: HostCall, arithmetic: Arithmetic | None = None) -> None:
        self.arch, self.dram, self.host = arch, dram, host
        self.arithmetic = arithmetic or Integers(arch)
        self.glb = Memory("glb", arch.glb.words, dram.images)
        self.descriptors = Descriptors()
        self.files = {"weight": Halves(), "ifmap": Halves()}
        self.limits = {
            "weight": (arch.pe.weight_halves, arch.pe.weight_words),
            "ifmap": (arch.pe.ifmap_halves, arch.pe.ifmap_words),
        }
        self.sums: PsumHalf | None = None
        self.sent: list[PsumHalf] = []
        self.unit, self.entries = OutputUnit(), NO_ENTRIES
        self.index: list[Index] = [0] * LOOP_REGISTERS
        self.count = [1] * LOOP_REGISTERS
        self.block: LoopBlock | None = None
        self.block_elements = BLOCK_ELEMENTS
        self.work = WorkLimit()
        self._independent: dict[tuple[object, ...], bool] = {}
        self.rules: Rules = {kind: self._rule(kind) for kind in Kind}

    def run(self, nodes: Sequence[Node]) -> None:
        """Execute nodes in order."""
        for node in nodes:
            try:
                if isinstance(node, LoopNode):
                    self._loop(node)
                elif (rule := self.rules[node.instruction.spec.kind]) is not None:
                    at_once = [self.block.counts[axis] for axis in self.block.scope] if self.block else []
                    self.work.spend(PER_INSTRUCTION + work_of(node.instruction) * prod(at_once) * self.dram.images)
                    rule(node.instruction)
            except (HalfFault, OutOfRange) as fault:
                raise (node.head if isinstance(node, LoopNode) else node).trap(str(fault)) from fault

    def _rule(self, kind: Kind) -> Callable[[Instruction], None] | None:
        """What an instruction does with values; None where it concerns time alone, or loops."""
        match kind:
            case Kind.DESC | Kind.STEP:
                return self.descriptors.set
            case Kind.DMA:
                return self._dma
            case Kind.LOAD:
                return self._load
            case Kind.MAC:
                return self._mac
            case Kind.UNIT:
                return self._set_unit
            case Kind.TABLE:
                return self._set_table
            case Kind.COMMIT:
                return self._commit
            case Kind.HOST:
                return self._host
            case Kind.SYNC | Kind.SIGNAL | Kind.HALT | Kind.CORE | Kind.ROUTE | Kind.LOOP | Kind.END:
                return None
            case _:
                assert_never(kind)

    # -- loops ---------------------------------------------------------------------------------------------------

    def _loop(self, loop: LoopNode) -> None:
        if loop.count == 1:
            self.run(loop.body)
        elif self.block is not None:
            self._axis(loop, self.block, range(loop.count))
        else:
            self.count[loop.register] = loop.count
            self._iterate(loop)
        # PROG-2: a register without a running loop counts as in its first and in its last iteration.
        self.index[loop.register], self.count[loop.register] = 0, 1

    def _iterate(self, loop: LoopNode) -> None:
        """All iterations, in blocks as large as possible. Once a block fails, the rest runs one by one."""
        start, most = 0, loop.count
        while start < loop.count:
            part = range(start, start + (min(most, self._at_once(loop, loop.count - start)) if most > 1 else 1))
            if len(part) > 1:
                try:
                    done = self._ran_as_block(loop, part)
                except TooMany as too_many:
                    most = too_many.fits if divisible(loop) else 1
                    continue
                if done:
                    start = part.stop
                    continue
            most = 1
            self.work.spend(PER_INSTRUCTION)
            self.index[loop.register] = start
            self.run(loop.body)
            start += 1

    def _at_once(self, loop: LoopNode, left: int) -> int:
        """The number of iterations of the next block, of `left` remaining ones; 1: no block."""
        images, most = self.dram.images, self.block_elements
        if not self._makes_block(loop):
            return 1
        # Some arrays do not grow with the iterations (`_array`), so all may fit where the quotient below says fewer.
        if images * largest_array(loop, left, self.descriptors) <= most:
            return left
        per_iteration = images * largest_array(loop, 1, self.descriptors)
        if per_iteration > most or not divisible(loop):
            return 1
        return ceil_div(left, ceil_div(left, most // per_iteration))  # blocks of nearly equal size

    def _makes_block(self, loop: LoopNode) -> bool:
        if self.sent or any(file.opened for file in self.files.values()):
            return False
        weight, ifmap = ((file.current is not None, len(file.full)) for file in self.files.values())
        files = FilesBefore(weight, ifmap, self.sums is not None)
        # A loop's register is its depth: lower registers belong to the loops around it.
        around = range(loop.register)
        not_first = {register for register in around if self.index[register] != 0}
        not_last = {register for register in around if self.index[register] != self.count[register] - 1}
        key = (loop.first, files, frozenset(not_first), frozenset(not_last))
        if key not in self._independent:
            self._independent[key] = independent(loop, files, not_first, not_last)
        return self._independent[key]

    def _ran_as_block(self, loop: LoopNode, iterations: range) -> bool:
        """Run iterations of a loop as a block, unless it turns out that their order matters."""
        files = {name: file.copy() for name, file in self.files.items()}
        sums = replace(self.sums, half=self.sums.half.copy()) if self.sums else None
        self.block = block = LoopBlock(depth(loop), loop.register, iterations)
        try:
            fetches, stores = leading_fetches(loop), trailing_stores(loop)
            self.work.spend(len(iterations) * (len(fetches) + len(stores)) * PER_INSTRUCTION)
            # TooMany comes from here alone, before anything has changed: there is nothing to restore.
            block.fetch(fetches, self.index, self.descriptors, (self.dram, self.glb), self.block_elements)
            self._reshape_live(lambda data, axes: data.reshape(data.shape[0], *[1] * axes, *data.shape[1:]))
            self._axis(loop, self.block, iterations)
            self._reshape_live(lambda data, axes: data.reshape(data.shape[0], *data.shape[1 + axes :]))
            block.stores = block.places(stores, self.index, self.descriptors, self.glb.words)
            block.write(self.dram, self.glb)
        except (OrderMatters, HalfFault, OutOfRange, Trap):
            # Iteration by iteration, a trap also names the instruction that runs into it first.
            for fetched in block.fetched:
                self.glb.put_back(fetched.low, fetched.before)
            # No half was sent before the block: `_makes_block` has seen to that.
            self.files, self.sums, self.sent = files, sums, []
            # The failed block leaves arrays of indices in its loops' registers.
            self.index[loop.register :] = [0] * (LOOP_REGISTERS - loop.register)
            return False
        finally:
            self.block = None
        return True

    def _axis(self, loop: LoopNode, block: LoopBlock, iterations: range) -> None:
        """Iterations of a loop of a block, all at once, on a new axis."""
        self.work.spend(PER_INSTRUCTION + len(iterations))
        axis = len(block.scope)
        self.index[loop.register] = iterations.start + axis_index(len(iterations), axis, block.axes)
        block.counts[axis], block.axis_of[loop.register] = len(iterations), axis
        block.scope = (*block.scope, axis)
        self.run(loop.body)
        block.scope = block.scope[:-1]
        del block.axis_of[loop.register]

    def _reshape_live(self, reshape: Callable[[npt.NDArray[Any], int], npt.NDArray[Any]]) -> None:
        """Give the halves in use the block's axes, or take them away."""
        axes = self._axes()
        sums = [*self.sent, *([self.sums] if self.sums else [])]
        for half in [half for file in self.files.values() for half in file.held()] + [s.half for s in sums]:
            # The reserve has the old axes: slots that come later need a new one.
            half.data, half.reserved = reshape(half.data, axes), None
        for s in sums:
            s.bound = reshape(s.bound, axes)

    def _holds(self, when: When, last: bool) -> bool:
        """Whether a condition holds now (PROG-2). A block's own loops count as holding: `independent` made sure."""
        if when is None:
            return False
        inside = self.block.axis_of if self.block else {}
        return all(loop in inside or self.index[loop] == (self.count[loop] - 1 if last else 0) for loop in when)

    # -- the sequencer and the DMA -------------------------------------------------------------------------------

    def _host(self, inst: Instruction) -> None:
        self.host(inst.number("segment"), self.dram)

    def _dma(self, inst: Instruction) -> None:
        if self.block is not None:
            return  # `LoopBlock.fetch` has done it for all iterations, or `LoopBlock.write` will
        dram, glb = sides(inst, self.index, self.descriptors, self.glb.words)
        if inst.text("direction") == "in":
            self.glb.write_in_order(glb, self.dram.read(dram))
        else:
            self.dram.write_in_order(dram, self.glb.read(glb))

    # -- loads ---------------------------------------------------------------------------------------------------

    def _load(self, inst: Instruction) -> None:
        kind = inst.text("kind")
        file, (halves, words) = self.files[kind], self.limits[kind]
        if kind == "ifmap" and inst.number("edge") and self.arch.pe.pong_words:
            words += self.arch.pe.virtual_words  # a virtual neighbour's words wait outside of ping and pong (MAC-6)
        if inst.number("slot") + (count := load_words(inst)) > words:
            raise HalfFault(f"{count} words from {kind} slot {inst.number('slot')} on are beyond the {words} of a half")
        grid = active_grid(inst, inst.number("set_rows"), self.arch)
        if self._holds(inst.when("open"), last=False):
            if file.opened is not None:
                raise HalfFault(f"the {kind} half being filled was not closed")
            if len(file.held()) >= halves:
                raise HalfFault(f"no {kind} half is free")
            file.opened = Half.empty(grid, self._axes())
        if file.opened is None:
            raise HalfFault(f"no {kind} half is open")
        if file.opened.grid != grid:
            raise HalfFault("the loads of one half go to the same PEs in the same sets")
        edge = bool(inst.number("edge"))
        file.opened.put(inst.number("slot"), self._words(inst, replace(grid, edge=edge)), edge, words)
        if self._holds(inst.when("close"), last=True):
            file.full.append(file.opened)
            file.opened = None

    def _axes(self) -> int:
        return self.block.axes if self.block else 0

    def _words(self, inst: Instruction, grid: Grid) -> Words:
        """The words of a load as [image, block…, *grid or 1s, *pattern] (DESC-2, DESC-3)."""

        def read(memory: Memory, loops: Sequence[Index], descriptor: Descriptor) -> Delivered:
            taken = deliver(memory, inst, grid, loops, descriptor, self.arithmetic)
            # The axes of images, of the block's loops and of PEs, and four for the extents of a load.
            return Delivered(with_axes(taken.words, 1 + self._axes() + PE_AXES + 4), taken.reads)

        return find(self.block, read, self.glb, self.index, self.descriptors[inst.number("desc")])

    # -- macro-instructions --------------------------------------------------------------------------------------

    def _mac(self, inst: Instruction) -> None:
        check_sizes(inst, self.arch)
        names = operands_of(inst.operation())
        halves = {name: self._take(inst, name) for name in names}
        grid = self._mac_grid(inst, halves["ifmap"])
        takes, gives = inst.when("take_ifmap"), inst.when("give_ifmap")
        whole = self._holds(takes, last=False) and self._holds(gives, last=True)
        ifmap = halves["ifmap"].window(grid, "ifmap")
        check_neighbours(inst, ifmap, whole, self.arch)
        if reuse := inst.number("data_reuse"):
            ifmap.shift_west(inst.number("n2n_slot"), reuse)
            # A window of fewer PEs is a copy: the moved words would be missing in the next macro-instruction.
            if ifmap is not halves["ifmap"]:
                halves["ifmap"].replace(ifmap)
                ifmap = halves["ifmap"].window(grid, "ifmap")
        sums = self._clear(inst, grid)
        weight = halves["weight"].window(grid, "weight") if "weight" in halves else None
        accumulate(inst, sums, ifmap, weight, self._reduced(sums), self.arithmetic, self.work)
        for name in names:
            if self._holds(inst.when(f"give_{name}"), last=True):
                self.files[name].current = None
        if self._holds(inst.when("send"), last=True):
            self.sent.append(sums)
            self.sums = None

    def _take(self, inst: Instruction, name: str) -> Half:
        file = self.files[name]
        if self._holds(inst.when(f"take_{name}"), last=False):
            if file.current is not None:
                raise HalfFault(f"the {name} half in use was not given back")
            if not file.full:
                raise HalfFault(f"no {name} half is full")
            file.current = file.full.pop(0)
        if file.current is None:
            raise HalfFault(f"no {name} half is in use")
        return file.current

    def _mac_grid(self, inst: Instruction, ifmap: Half) -> Grid:
        """The sets of a macro-instruction: columns as it says, rows as its psums were cleared or its ifmap loaded."""
        grid = active_grid(inst, inst.number("rows"), self.arch)
        clears = self._holds(inst.when("clear"), last=False)
        # DESC-4: a mac gives `set_cols` alone. The psums come first, as `_clear` compares their sets with these.
        for half in ([self.sums.half] if self.sums and not clears else []) + [ifmap]:
            if half.grid.rectangle == grid.rectangle:
                return active_grid(inst, half.grid.set_rows, self.arch)
        return grid

    def _clear(self, inst: Instruction, grid: Grid) -> PsumHalf:
        """The psum half that the instruction adds to (TOKEN-3)."""
        if self._holds(clear := inst.when("clear"), last=False):
            if self.sums is not None:
                raise HalfFault("the psum half in use was not sent")
            if len(self.sent) >= self.arch.pe.psum_halves:
                raise HalfFault("no psum half is free")
            axis_of, scope = (self.block.axis_of, self.block.scope) if self.block else ({}, ())
            # A half that only the first iteration of a loop clears lives through all of them: this axis is summed over.
            own = frozenset(scope) - {axis_of[loop] for loop in clear or () if loop in axis_of}
            self.sums = PsumHalf.fresh(grid, self._axes(), self.arithmetic.start(inst.operation()), own)
        if self.sums is None:
            raise HalfFault("no psum half is open: the first macro-instruction must clear")
        if self.sums.half.grid != grid:
            raise HalfFault("the macro-instructions from clear to send have the same PEs in the same sets")
        return self.sums

    def _reduced(self, sums: PsumHalf) -> dict[int, int]:
        """Array axes of the block loops that are summed over, with their iterations."""
        if self.block is None:
            return {}
        return {1 + axis: self.block.counts[axis] for axis in self.block.scope if axis not in sums.scope}

    # -- output units --------------------------------------------------------------------------------------------

    def _set_unit(self, inst: Instruction) -> None:
        self.unit = OutputUnit.of(inst, self.entries)

    def _set_table(self, inst: Instruction) -> None:
        self.entries = table_entries(self.entries, inst)
        self.unit = self.unit.with_entries(self.entries)

    def _commit(self, inst: Instruction) -> None:
        grid = active_grid(inst, inst.number("set_rows"), self.arch)
        # Checked before anything else: the arrays below have an element for each result.
        if commit_results(inst) > self.arch.glb.words:
            raise HalfFault("there are more results than words in the GLB")
        output = CommitRun(self.arithmetic, self.glb, self.descriptors, self.unit, self.block, inst, grid, self.index)
        sums = output.operand("operand") if inst.text("source") == "glb" else self._committed(inst, grid)
        if inst.number("reduce"):
            south, sums = reduced(inst, grid, sums, self.arithmetic)
            output = replace(output, grid=south)
        if inst.number("partial"):
            ends = self._asked(inst.when("fresh"), last=False), self._asked(inst.when("final"), last=True)
            sums, turns = output.with_partial_sums(sums, ends)
            if not turns.final:
                return
            # COMMIT-5: only the commit that completes a sum writes a result, so the addresses are those of its
            # iteration.
            output = output.at_last(turns.summed)
        output.results(sums)

    def _asked(self, when: When, last: bool) -> frozenset[int] | None:
        """The axes of the block whose first (last) iterations a condition asks for; None if it never holds (PROG-2)."""
        if when is None or not self._holds(when, last):
            return None
        if (block := self.block) is None:
            return frozenset()
        # A block may be a part of the loop, without the iteration that the condition asks for.
        has_end = block.iterations.stop == self.count[block.register] if last else block.iterations.start == 0
        if block.register in when and not has_end:
            return None
        return frozenset(block.axis_of[loop] for loop in when if loop in block.axis_of)

    def _committed(self, inst: Instruction, grid: Grid) -> Ints:
        """The psums of the half that was sent first, as [image, block…, *grid, *pattern] (COMMIT-1)."""
        if not self.sent:
            raise HalfFault("no psum half was sent")
        sums = self.sent.pop(0)
        slots = psum_slots(inst, self.arch.pe.psum_words)
        # TOKEN-3: psums are never empty. Slots that no macro-instruction has used hold what `clear` puts there.
        sums.grow(slots.ends[1] + 1)
        return self.arithmetic.psums(sums.half.window(grid, "psum").read(slots, "psum"))
