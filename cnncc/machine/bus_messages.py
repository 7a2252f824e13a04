"""Messages: what the row buses deliver to PEs when an instruction runs (docs/machine.md: Messages; never stored)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from cnncc.arch.model import Arch
from cnncc.errors import Refusal
from cnncc.isa.codec import encode_message
from cnncc.isa.fields import When
from cnncc.isa.table import Instruction, message
from cnncc.machine.instruction_sizes import (
    Offset,
    ceil_div,
    is_last,
    load_offsets,
    load_words,
    mac_operations,
    mac_steps,
)
from cnncc.machine.program import LoopNode, build_tree
from cnncc.machine.values.addresses import Grid, Ints
from cnncc.machine.values.delivery import deliver
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.mac_arithmetic import MOST_OPERATIONS

WITH_MESSAGES = ("load", "mac")


@dataclass(frozen=True)
class Message:
    """A message on the buses of some rows of the array, for the PEs of the columns in its tag.

    - words: the input data; None if unknown
    - position: the position (lin, k, y, x) of a load's PEs, less the load's start (LOAD-2)
    """

    rows: tuple[int, ...]
    cols: tuple[int, ...]
    head: Instruction
    words: tuple[int, ...] | None = None
    position: Offset | None = None

    @property
    def encoded(self) -> list[int]:
        """The message as it travels, in 32-bit words."""
        return [int(word) for word in encode_message(self.head, self.words or ())]


def messages_of(inst: Instruction, arch: Arch, sends: bool = False) -> list[Message]:
    """The messages of a load or mac, without the words that a load reads. sends: whether the mac's `send` holds.

    Raises: Refusal, for more words or operations than any PE takes.
    """
    _check(inst, arch)
    return list(_data(inst, arch, None) if inst.spec.name == "load" else _op(inst, sends))


def messages_at(interpreter: Interpreter, instructions: Sequence[Instruction], number: int) -> list[Message]:
    """The messages of instruction `number`, a load or mac, when it runs for the first time.

    interpreter: a fresh one, which has run nothing yet.
    Raises: Refusal, for another kind of instruction or too much for a PE. Trap, if the program traps before it.
    """
    inst = instructions[number]
    _run_until(interpreter, instructions, number)
    _check(inst, interpreter.arch)
    if inst.spec.name == "mac":
        return list(_op(inst, _last(inst.when("send"), interpreter)))
    return list(_data(inst, interpreter.arch, _delivered(inst, interpreter)))


def _check(inst: Instruction, arch: Arch) -> None:
    """Refuse counts that fit their fields but no PE. Raises Refusal."""
    pe, is_load = arch.pe, inst.spec.name == "load"
    most = max(pe.weight_words, pe.ifmap_words + pe.virtual_words) if is_load else MOST_OPERATIONS
    if (asked := load_words(inst) if is_load else mac_operations(inst)) > most:
        raise Refusal(f"{asked} {'words' if is_load else 'operations'} for each PE, at most {most}: {inst.spec.name}")


def _data(inst: Instruction, arch: Arch, words: Ints | None) -> Iterator[Message]:
    """One message for each row, distinct position of its PEs (LOAD-2) and burst. words: [row, column, word]."""
    rows, cols = (_alike(offsets) for offsets in load_offsets(inst))
    count, burst = load_words(inst), arch.bus.burst_words
    for (down, same_rows), (along, same_cols) in product(rows.items(), cols.items()):
        lin, k, y, x = (a + b for a, b in zip(down, along, strict=True))
        at, taking = _in_array(inst, "row", same_rows), _in_array(inst, "col", same_cols)
        for turn in range(ceil_div(count, burst)):
            part = slice(turn * burst, min(count, (turn + 1) * burst))
            head = message(
                "DATA", type_of_data=inst.text("kind"), virtual_n2n=inst.number("edge"), max_iteration=count,
                input_words=part.stop - part.start, **_tag(taking),
            )  # fmt: skip
            payload = None if words is None else tuple(int(word) for word in words[same_rows[0], same_cols[0], part])
            yield Message(at, taking, head, payload, (lin, k, y, x))


def _op(inst: Instruction, sends: bool) -> Iterator[Message]:
    """One for the PEs with a neighbour, one for those whose neighbour is virtual (MAC-3)."""
    reuse, count, size = inst.number("data_reuse"), inst.number("cols"), inst.number("set_cols")
    last = [col for col in range(count) if reuse and is_last(col, count, size)]
    rows = _in_array(inst, "row", range(inst.number("rows")))
    for cols, virtual in (([col for col in range(count) if col not in last], 0), (last, 1)):
        taking = _in_array(inst, "col", cols)
        head = message(
            "OP", command=inst.text("op"), max_iteration=mac_steps(inst), step_range=inst.number("step_range"),
            lanes=inst.number("lanes"), lane_sums=inst.number("psum_l"), data_reuse=reuse, virtual_n2n=virtual,
            send_output=int(sends), **_tag(taking),
        )  # fmt: skip
        if cols:
            yield Message(rows, taking, head)


def _tag(cols: Sequence[int]) -> dict[str, int]:
    """The fields of the tag that these columns of the array take."""
    bits = sum(1 << col for col in cols)
    return {"tag0": bits & 0xFFFFFFFF, "tag1": bits >> 32}


def _alike(offsets: Mapping[int, Offset]) -> dict[Offset, list[int]]:
    """The rows (columns) that add the same to a position."""
    groups: dict[Offset, list[int]] = {}
    for index, offset in offsets.items():
        groups.setdefault(offset, []).append(index)
    return groups


def _in_array(inst: Instruction, side: str, members: Sequence[int]) -> tuple[int, ...]:
    return tuple(inst.number(f"{side}0") + index for index in members)


# -- in the running machine --------------------------------------------------------------------------------------------


class _Reached(Exception):
    """The instruction is next."""


def _run_until(interpreter: Interpreter, instructions: Sequence[Instruction], number: int) -> None:
    """Run up to right before an instruction runs for the first time."""
    if instructions[number].spec.name not in WITH_MESSAGES:
        raise Refusal(f"a {instructions[number].spec.name} sends no messages to PEs, only load and mac do")

    def stopping(rule: Callable[[Instruction], None], inst: Instruction) -> None:
        # `is`: other instructions of the program may be equal.
        if inst is instructions[number]:
            raise _Reached
        rule(inst)

    for kind, rule in interpreter.rules.items():
        if rule is not None and kind in WITH_MESSAGES:
            interpreter.rules[kind] = partial(stopping, rule)
    try:
        for node in build_tree(instructions):
            if isinstance(node, LoopNode) and node.first < number < node.last:
                interpreter.block_elements = 0  # the first iteration alone
            interpreter.run([node])
    except _Reached:
        return
    raise AssertionError("every instruction of a program runs")


def _last(when: When, interpreter: Interpreter) -> bool:
    """Whether a condition holds now (PROG-2)."""
    return when is not None and all(interpreter.index[loop] == interpreter.count[loop] - 1 for loop in when)


def _delivered(inst: Instruction, interpreter: Interpreter) -> Ints:
    """The words [row, column, word] of the load that runs next, for the first image."""
    grid, descriptor = Grid.of_load(inst), interpreter.descriptors[inst.number("desc")]
    arithmetic = interpreter.arithmetic
    words = deliver(interpreter.glb, inst, grid, interpreter.index, descriptor, arithmetic).words[0]
    taken = np.broadcast_to(words, (*grid.shape, *words.shape[-4:])).reshape(
        inst.number("rows"), grid.col_sets, len(grid.columns), -1
    )
    by_column = np.zeros((inst.number("rows"), grid.col_sets, grid.cols, taken.shape[-1]), np.int64)
    by_column[:, :, grid.columns] = taken
    return by_column.reshape(inst.number("rows"), -1, taken.shape[-1])
