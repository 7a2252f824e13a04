"""What a deadlock of cores means for the layers of a network, by the names in a binary's metadata."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from cnncc.binary.container import Binary
from cnncc.binary.isa_module import layers
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.cores.core_walk import CoreWait, Deadlock


@contextmanager
def deadlock_by_names(binary: Binary) -> Generator[None]:
    """Have a deadlock say which layers wait for what of which."""
    try:
        yield
    except Deadlock as trap:
        names = _names(binary)
        if not names:
            raise
        text = "; ".join(_text(wait, names) for wait in trap.waits)
        happened = f"{trap.happened}; {text}"
        raise Deadlock(trap.index, trap.address, trap.instruction, happened, trap.waits) from trap


def _names(binary: Binary) -> dict[int, str]:
    """The last layer of each core, by the core's number."""
    names, number, at = dict[int, str](), -1, {layer.first: layer.label for layer, _ in layers(binary)}
    for index, inst in enumerate(binary.instructions):
        number += inst.spec.kind is Kind.CORE
        if index in at:
            names[number] = at[index]
    return names


def _text(wait: CoreWait, names: dict[int, str]) -> str:
    inst = wait.leaf.instruction
    for_words = inst.spec.kind is Kind.LOAD or (inst.spec.kind is Kind.DMA and inst.text("direction") == "out")
    own, giver = (names.get(core, f"core {core}") for core in (wait.core, wait.giver))
    return f"{own} waits for {'words of' if for_words else 'space from'} {giver}"
