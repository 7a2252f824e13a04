"""What the row buses deliver for each load and mac of a program, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from cnncc.binary.container import Binary
from cnncc.binary.modules import layers
from cnncc.binary.run import Machine, count_images, inputs_of, random_inputs
from cnncc.errors import Refusal
from cnncc.isa.table import Instruction
from cnncc.machine.bus_messages import WITH_MESSAGES, Message, messages_at, messages_of
from cnncc.weights import Array


def addresses(program: Sequence[Instruction]) -> list[int]:
    """The first word of each instruction."""
    return list(accumulate((inst.spec.words for inst in program), initial=0))[:-1]


def listing(binary: Binary) -> Iterator[str]:
    """Every load and mac with its messages, as far as they do not depend on data and hold for every iteration."""
    program = binary.instructions
    owners = {at: layer.label for layer, _ in layers(binary) for at in range(layer.first, layer.first + layer.count)}
    for number, (at, inst) in enumerate(zip(addresses(program), program, strict=True)):
        if inst.spec.name in WITH_MESSAGES:
            yield " ".join(filter(None, (f"{at:04x}", inst.spec.name, owners.get(number))))
            yield from (f"  {line}" for line in _summary(inst, binary))


def _summary(inst: Instruction, binary: Binary) -> Iterator[str]:
    if inst.spec.name == "mac":
        send = inst.when("send")
        for each in messages_of(inst, binary.arch, send == ()):
            loops = " and ".join(f"loop {loop}" for loop in send or ())
            yield _line(each) + (f"; send_output=1 in the last iteration of {loops}" if loops else "")
        return
    messages = messages_of(inst, binary.arch)
    groups = len({(each.rows, each.cols) for each in messages})
    sizes = [each.head.number("input_words") for each in messages[: len(messages) // groups]]
    each_to = (
        f"{len(messages[0].rows) * len(messages[0].cols)} PEs" if groups == 1 else f"each of {groups} groups of PEs"
    )
    positions = len({each.position for each in messages})
    each_to += f" at {positions} positions" if positions < groups else ""
    plural = f"{len(sizes)} messages" if len(sizes) > 1 else "a message"
    yield f"{plural} of {_sizes(sizes)} words to {each_to}: {_head(messages[0].head)}"


def _sizes(sizes: Sequence[int]) -> str:
    """`10 10 6`, or `20 x 10 and 6` where they are many."""
    if len(sizes) <= 4:
        return " ".join(map(str, sizes))
    last = f" and {sizes[-1]}" if sizes[-1] != sizes[0] else ""
    return f"{len(sizes) - bool(last)} x {sizes[0]}{last}"


def at_instruction(binary: Binary, address: int, inputs: Mapping[str, Array] | None) -> Iterator[str]:
    """The messages of the load or mac at a word of the program when it runs for the first time, with their words.

    Raises Refusal where there is none, Trap where the program traps before it.
    """
    starts = addresses(binary.instructions)
    if address not in starts:
        raise Refusal(f"no instruction begins at word {address:04x}; the disassembly says where they do")
    data = random_inputs(binary) if inputs is None else inputs
    machine = Machine(binary, count_images(binary, data))
    for tensor in inputs_of(binary):
        machine.take(tensor, data[tensor.name].astype(tensor.element, copy=False))
    for each in messages_at(machine.interpreter(), binary.instructions, starts.index(address)):
        yield f"{_line(each)}  ; {' '.join(f'{word:08x}' for word in each.encoded[: each.head.spec.words])}"
        if each.words is not None:
            yield f"  {' '.join(map(str, each.words))}"


def _line(each: Message) -> str:
    return f"rows {_ranges(each.rows)}, columns {_ranges(each.cols)}: {_head(each.head)}"


def _head(head: Instruction) -> str:
    """All fields but the tag, which the columns say: the reader of a message wants to see zeros, too."""
    fields = [field for field in head.spec.fields if not field.name.startswith("tag")]
    parts = [f"{field.name}={field.to_text(head.values[field.name])}" for field in fields]
    return " ".join([head.spec.name, *parts])


def _ranges(numbers: Sequence[int]) -> str:
    """`0..3 5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(first) if first == last else f"{first}..{last}" for first, last in runs)
