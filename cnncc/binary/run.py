"""Runs a binary: its instructions on its weights and inputs, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

import numpy as np

from cnncc.binary.container import DRAM_LIMIT_WORDS, Binary
from cnncc.binary.core_names import deadlock_by_names
from cnncc.dialects.array import Tensor
from cnncc.errors import Refusal, plural
from cnncc.frontend.segments import RunModel, interface, run_on_host
from cnncc.isa.codec import has_cores
from cnncc.machine.cores.core_races import core_races
from cnncc.machine.cores.core_values import CoreValues
from cnncc.machine.cores.core_walk import SharedTokens, run_together
from cnncc.machine.cores.programs import cores_of, has_frames, wiring_of
from cnncc.machine.program import LoopNode, Node, build_tree
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import Memory, OutOfRange
from cnncc.machine.values.strided import Strided
from cnncc.numerics import dequantise, integer_range, quantise
from cnncc.util.npz import count_batches, noise
from cnncc.util.progress import Progress, silent
from cnncc.weights import Array

RACE_FRAMES = 3  # in which races are looked for: two neighbours and the steady state
Watch = Callable[[int, Interpreter], None]


@dataclass
class Machine:
    """A binary with its memory filled for some images.

    An image is one pass through the program: as many samples as the model's batch. frames: of a program over frames,
    how many images follow each other; 0 stands for all of them (CORE-8).
    """

    binary: Binary
    images: int
    run_model: RunModel = run_on_host
    frames: int = 0
    dram: Memory = field(init=False)
    on_host: dict[str, Array] = field(default_factory=dict[str, Array])

    def __post_init__(self) -> None:
        # All images share the weights, so DRAM stores them once.
        shared = self.binary.weight_words
        self._record = self.binary.dram_words - shared
        self.frames = (self.frames or self.images) if has_frames(self.binary.instructions) else 1
        if (words := shared + self.frames * self._record) > DRAM_LIMIT_WORDS:
            raise Refusal(
                f"{self.frames} frames take {words} words of DRAM, the limit is {DRAM_LIMIT_WORDS}: fewer frames"
            )
        self.dram = Memory("dram", words, self.images // self.frames, shared)
        for (_, array), at in zip(self.binary.weights, self.binary.weight_places, strict=True):
            self.dram.write(_run(at, array.size), array.reshape(1, -1))

    def store(self, tensor: Tensor, values: Array) -> None:
        """Store the values [images * batch, …] of a tensor: integers in DRAM, reals in the host's memory."""
        if tensor.memory == "host":
            self.on_host[tensor.name] = values.reshape(self.images, *tensor.shape)
            return
        place = self._place(tensor)
        self.dram.write(place, np.ascontiguousarray(values).reshape(self.images // self.frames, *place.sizes))

    def _place(self, tensor: Tensor) -> Strided:
        """The words of a tensor in DRAM: those of each frame (CORE-8)."""
        if self.frames == 1:
            return _run(tensor.at, tensor.words)
        return Strided(tensor.at, (self.frames, tensor.words), (self._record, 1))

    def integers(self, tensor: Tensor) -> Array:
        """The integers of a tensor in DRAM, as [images * batch, …]."""
        place = self._place(tensor)
        words = self.dram.read(place)
        # Words that all images have in common are read once: [1, …].
        rows = np.broadcast_to(words, (self.images // self.frames, *place.sizes)).astype(np.int64)
        return rows.reshape(_batched(tensor, self.images))

    def real(self, tensor: Tensor) -> Array:
        """A tensor as real numbers."""
        if tensor.memory == "host":
            if tensor.name not in self.on_host:
                raise Refusal(f"tensor {tensor.name} is read before any host segment has written it")
            return self.on_host[tensor.name].reshape(_batched(tensor, self.images))
        return dequantise(self.integers(tensor), tensor.scale, tensor.zero).astype(tensor.element, copy=False)

    def interpreter(self) -> Interpreter:
        """The interpreter of the program, before its first instruction."""
        return Interpreter(self.binary.arch, self.dram, self._segment)

    def run(self, watch: Watch | None = None, progress: Progress = silent) -> None:
        """Execute the program. watch: called after each outermost node, with the number of the next instruction.

        In a program of cores no node is done at one time, so there watch is not called.
        Raises: Trap, for a fault of the program.
        """
        if has_cores(self.binary.instructions):
            progress(f"running {plural(self.images, 'image')} on several cores")
            with deadlock_by_names(self.binary):
                run_together(self.cores())
            return
        interpreter, nodes = self.interpreter(), build_tree(self.binary.instructions)
        *work, total = accumulate(map(operations, nodes), initial=0)
        for node, done in zip(nodes, work, strict=True):
            progress(f"running, {100 * done / max(total, 1):.0f} %", done, total)
            interpreter.run([node])
            if watch is not None:
                watch(1 + (node.last if isinstance(node, LoopNode) else node.index), interpreter)

    def cores(self) -> list[CoreValues]:
        """The cores of a program that has some, before their first instructions."""
        cores = cores_of(self.binary.instructions, self.binary.arch, self.frames)
        tokens, walks, first = SharedTokens[None](wiring_of(cores)), list[CoreValues](), self.interpreter()
        for core in cores:
            interpreter = self.interpreter()
            # CORE-1: a core sees its own PEs. The GLB is that of all cores, and so is the limit on work.
            interpreter.arch, interpreter.glb, interpreter.work = core.arch, first.glb, first.work
            walks.append(CoreValues(core, tokens, interpreter))
        return walks

    def _segment(self, number: int, _: Memory) -> None:
        """A host segment, image by image: real numbers in, real numbers out (PROG-4)."""
        operands, outputs = self.host_tensors(number)
        reals = [self.real(tensor).reshape(self.images, *tensor.shape) for tensor in operands]
        model = self.binary.segments[number]
        results = [self.run_model(model, [real[image] for real in reals]) for image in range(self.images)]
        for i, tensor in enumerate(outputs):
            self.take(tensor, np.stack([result[i] for result in results]))

    def host_tensors(self, number: int) -> tuple[list[Tensor], list[Tensor]]:
        """The operands and the results of a host segment."""
        tensors = {tensor.name: tensor for tensor in self.binary.tensors}
        operands, results = interface(self.binary.segments[number])
        return [tensors[name] for name in operands], [tensors[name] for name in results]

    def take(self, tensor: Tensor, values: Array) -> None:
        """Store real numbers, quantised for a tensor of integers. Raises Refusal for values of another size."""
        if values.size != self.images * tensor.words:
            raise Refusal(f"tensor {tensor.name} has shape {list(tensor.shape)}, its values {list(values.shape)}")
        on_host = tensor.memory == "host"
        self.store(tensor, values if on_host else quantise_input(tensor, values, self.binary.arch.operand_bits))


def operations(node: Node) -> int:
    """Multiply-accumulates, maxima and sums of all PEs in all iterations, which are most of the work of running it."""
    if isinstance(node, LoopNode):
        return node.count * sum(map(operations, node.body))
    if node.instruction.spec.name != "mac":
        return 0
    return prod(map(node.instruction.number, ("rows", "cols", "pixels", "taps", "step_range", "lanes")))


def _run(start: int, words: int) -> Strided:
    """Words one after the other."""
    return Strided(start, (words,), (1,))


def _batched(tensor: Tensor, images: int) -> tuple[int, ...]:
    if not tensor.shape:
        return () if images == 1 else (images,)
    return (images * tensor.shape[0], *tensor.shape[1:])


def quantise_input(tensor: Tensor, values: Array, bits: int) -> Array:
    """Real values as a tensor's integers, saturated to its clamp."""
    low, high = integer_range(bits)
    return quantise(values, tensor.scale, tensor.zero, max(low, tensor.clamp[0]), min(high, tensor.clamp[1]))


def inputs_of(binary: Binary) -> list[Tensor]:
    """The network's inputs."""
    return [tensor for tensor in binary.tensors if tensor.role == "input"]


def outputs_of(binary: Binary) -> list[Tensor]:
    """The network's outputs."""
    return [tensor for tensor in binary.tensors if tensor.role == "output"]


def count_images(binary: Binary, inputs: Mapping[str, Array]) -> int:
    """The number of images in real `inputs`. Raises Refusal for a wrong type or shape, NaN or infinity."""
    given = inputs_of(binary)
    return count_batches(inputs, {t.name: t.shape for t in given}, {t.name: t.element for t in given})


def run(binary: Binary, inputs: Mapping[str, Array], progress: Progress = silent) -> dict[str, Array]:
    """The network's outputs, as real numbers by name, for real `inputs` of any number of images. Raises Refusal."""
    machine = Machine(binary, count_images(binary, inputs))
    for tensor in inputs_of(binary):
        machine.take(tensor, inputs[tensor.name].astype(tensor.element, copy=False))
    machine.run(progress=progress)
    refuse_races(binary, min(machine.frames, RACE_FRAMES))
    return {tensor.name: _output(machine, tensor) for tensor in outputs_of(binary)}


def refuse_races(binary: Binary, frames: int) -> None:
    """Refuse a program of cores in which two accesses to a word race: its values depend on chance (CORE-6).

    It has run to its end before: the check takes sizes as they are.
    """
    if not has_cores(binary.instructions):
        return
    races, _ = core_races(binary.instructions, binary.arch, frames)
    if races:
        more = f", and {len(races) - 1} more" if len(races) > 1 else ""
        raise Refusal(f"the cores' values depend on chance: {races[0]} (CORE-6){more}")


def _output(machine: Machine, tensor: Tensor) -> Array:
    try:
        return machine.real(tensor)
    except OutOfRange as error:
        raise Refusal(f"the program never writes all of output '{tensor.name}': {error}") from error


def random_inputs(binary: Binary, seed: int = 0, images: int = 1) -> dict[str, Array]:
    """Seeded noise for each input."""
    rng = np.random.default_rng(seed)
    return {tensor.name: noise(_batched(tensor, images), tensor.element, rng) for tensor in inputs_of(binary)}


def first_images(binary: Binary, inputs: Mapping[str, Array], images: int) -> dict[str, Array]:
    """The first images of inputs. Raises Refusal for fewer."""
    if (there := count_images(binary, inputs)) < images:
        raise Refusal(f"--frames {images}: the inputs hold {plural(there, 'image')}: --frames {there}, or leave it out")
    return {tensor.name: inputs[tensor.name][: images * tensor.shape[0]] for tensor in inputs_of(binary)}
