"""The messages of the row buses for each load and mac of a program, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from cnncc.binary.container import Binary
from cnncc.binary.isa_module import layers
from cnncc.binary.run import Machine, count_images, inputs_of, random_inputs
from cnncc.errors import Refusal, plural
from cnncc.isa.codec import has_cores
from cnncc.isa.table import Instruction
from cnncc.machine.bus_messages import WITH_MESSAGES, Message, messages_at, messages_of
from cnncc.weights import Array


def addresses(program: Sequence[Instruction]) -> list[int]:
    """The first word of each instruction."""
    return list(accumulate((inst.spec.words for inst in program), initial=0))[:-1]


def listing(binary: Binary) -> Iterator[str]:
    """Every load and mac with its messages: the part that depends neither on data nor on the iteration."""
    _refuse_cores(binary)
    program = binary.instructions
    owners = {at: layer.label for layer, _ in layers(binary) for at in range(layer.first, layer.first + layer.count)}
    for number, (at, inst) in enumerate(zip(addresses(program), program, strict=True)):
        if inst.spec.name in WITH_MESSAGES:
            yield " ".join(filter(None, (f"{at:04x}", inst.spec.name, owners.get(number))))
            yield from (f"  {line}" for line in _summary(inst, binary))


def _refuse_cores(binary: Binary) -> None:
    """Rows and tags of a core count within its region: shown as those of the array they would be wrong."""
    if has_cores(binary.instructions):
        raise Refusal(
            "`cnncc messages` works for layers one after the other alone; "
            "`cnncc disasm` shows the loads and macs of cores"
        )


def _summary(inst: Instruction, binary: Binary) -> Iterator[str]:
    if inst.spec.name == "mac":
        send = inst.when("send")
        for message in messages_of(inst, binary.arch, send == ()):
            loops = " and ".join(f"loop {loop}" for loop in send or ())
            yield _line(message) + (f"; send_output=1 in the last iteration of {loops}" if loops else "")
        return
    messages = messages_of(inst, binary.arch)
    groups = len({(message.rows, message.cols) for message in messages})
    # A load gives all PEs as many words, so the messages of the first group are like those of any other.
    sizes = [message.head.number("input_words") for message in messages[: len(messages) // groups]]
    one = plural(len(messages[0].rows) * len(messages[0].cols), "PE")
    pes = one if groups == 1 else f"each of {groups} groups of PEs"
    positions = len({message.position for message in messages})
    pes += f" at {positions} positions" if positions < groups else ""
    several = f"{len(sizes)} messages of {_sizes(sizes)} words"
    what = several if len(sizes) > 1 else f"a message of {plural(sizes[0], 'word')}"
    yield f"{what} to {pes}: {_head(messages[0].head)}"


def _sizes(sizes: Sequence[int]) -> str:
    """`10 10 6`; more than four sizes as `20 x 10 and 6`."""
    if len(sizes) <= 4:
        return " ".join(map(str, sizes))
    last = f" and {sizes[-1]}" if sizes[-1] != sizes[0] else ""
    return f"{len(sizes) - bool(last)} x {sizes[0]}{last}"


def at_instruction(binary: Binary, address: int, inputs: Mapping[str, Array] | None) -> Iterator[str]:
    """The messages of the load or mac at a word of the program when it runs for the first time, with their words.

    Raises: Refusal, if no instruction begins there or it sends no messages. Trap, if the program traps before it.
    """
    _refuse_cores(binary)
    starts = addresses(binary.instructions)
    if address not in starts:
        raise Refusal(f"no instruction begins at word {address:04x}; the disassembly says where they do")
    data = random_inputs(binary) if inputs is None else inputs
    machine = Machine(binary, count_images(binary, data))
    for tensor in inputs_of(binary):
        machine.take(tensor, data[tensor.name].astype(tensor.element, copy=False))
    for message in messages_at(machine.interpreter(), binary.instructions, starts.index(address)):
        yield f"{_line(message)}  ; {' '.join(f'{word:08x}' for word in message.encoded[: message.head.spec.words])}"
        if message.words is not None:
            yield f"  {' '.join(map(str, message.words))}"


def _line(message: Message) -> str:
    return f"rows {_ranges(message.rows)}, columns {_ranges(message.cols)}: {_head(message.head)}"


def _head(head: Instruction) -> str:
    """All fields except the tag, which the columns show. Defaults are printed too, unlike in assembly."""
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
