"""The atomic schedule of a PE: its macro-instructions in a layer, cycle by cycle, with the words that they use.

The evaluator of `array` runs the layer's PE-set program on names instead of values. Loads, transfers and neighbours
move a name as they would move its value. So each slot of a register file names the pixel or the weight that it holds. A
sum gets its name when it is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import Arch
from cnncc.arch.operations import MacOperation
from cnncc.dialects import array as A
from cnncc.dialects.weights import arrays_of
from cnncc.errors import Refusal
from cnncc.eval._array_rules import ArrayState, addresses, multiplies, named
from cnncc.eval._places import Words, last_columns, position, rectangle, slots
from cnncc.eval._register_files import RegisterFile
from cnncc.numerics import Ints
from cnncc.weights import WeightStore

PADDING = -1  # the word that a load delivers outside of the image
OF_TENSOR = 1 << 32  # words of tensor number t are t * OF_TENSOR + their index
SUMS = 1 << 52  # words from here on are sums, by their number
NAME_BITS = 60  # operand bits of the tracer: every name passes the width checks of words


@dataclass(frozen=True)
class Word:
    """A word of a tensor by its indices; in the padding, of no tensor."""

    tensor: str = ""
    at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Atom:
    """A PE's work in one cycle: multiply-accumulates (max, add) into one psum, and the words of its n2n links.

    psum: the slot. terms: (ifmap, weight) of each lane. own: each lane has a psum of its own, in slot psum + lane
    (MAC-7). source: the sender of `received`, east or virtual.
    """

    cycle: int
    psum: int
    terms: tuple[tuple[Word, Word | None], ...]
    sent: Word | None = None
    received: Word | None = None
    source: str = ""
    own: bool = False


@dataclass
class Reuse:
    """One macro-instruction of a PE.

    Attributes:
        number   among the layer's macro-instructions, from 0
        loops    the index of each loop around it
        loaded   the words that loads brought for it, by operand
        sends    whether its sums leave the PE
        part     whether other PEs or macro-instructions have the rest of its sums (COMMIT-5, COMMIT-6)
        sums     by psum slot: the name of its sum, or of the output that the sum is part of
    """

    number: int
    loops: dict[str, int]
    op: MacOperation
    loaded: dict[str, list[Word]]
    atoms: list[Atom]
    sends: bool
    part: bool = False
    sums: dict[int, Word] = field(default_factory=dict[int, Word])


def atomic_schedule(
    module: ModuleOp, store: WeightStore, arch: Arch, label: str, pe: tuple[int, int], wanted: range
) -> list[Reuse]:
    """The `wanted` macro-instructions of a PE (row, column) in a layer, without those that the PE takes no part in.

    module: as `nest-to-array` leaves it, with each layer's transfers in the layer itself.
    Raises: Refusal, for an unknown layer or PE, and as the evaluator does.
    """
    layers = programs(module)
    if label not in layers:
        raise Refusal(f"no layer '{label}' has macro-instructions; there are {', '.join(layers) or 'none'}")
    if not (0 <= pe[0] < arch.rows and 0 <= pe[1] < arch.cols):
        raise Refusal(f"there is no PE {pe[0]},{pe[1]}: {arch.name} has {arch.rows} x {arch.cols}, counted from 0")
    tracer = _Tracer(replace(arch, operand_bits=NAME_BITS), 1, arrays_of(module, store), A.tensors_of(module))
    tracer.start(layers[label], pe, wanted)
    try:
        for op in layers[label].body.block.ops:
            named(op, tracer.run)
    except _Complete:
        pass
    if wanted.start >= tracer.macros:
        what = f"{tracer.macros} macro-instructions, counted from 0"
        raise Refusal(f"layer '{label}' has {what}: there is no number {wanted.start}")
    return tracer.reuses


def programs(module: ModuleOp) -> dict[str, A.LayerOp]:
    """The layers that have macro-instructions, by label."""
    layers = {op.label.data: op for op in module.ops if isinstance(op, A.LayerOp)}
    return {name: op for name, op in layers.items() if any(isinstance(inner, A.MacOp) for inner in op.walk())}


class _Complete(Exception):
    """All wanted macro-instructions and the names of their sums are known."""


class _Tracer(ArrayState):
    """A machine whose words are names."""

    def start(self, layer: A.LayerOp, pe: tuple[int, int], wanted: range) -> None:
        """Name all words that the layer can see, and note the wanted macro-instructions."""
        self.pe, self.wanted, self.macros, self.sums = pe, wanted, 0, 0
        self.reuses: list[Reuse] = []
        self.open: list[Reuse] = []  # macro-instructions whose sums are in the PE
        # Sums in a buffer: the macro-instructions and psum slots that have a part in each.
        self.waiting: dict[int, list[tuple[list[Reuse], int]]] = {}
        self.start_layer(layer)
        for view in (op for op in layer.walk() if isinstance(op, A.ViewOp)):
            tensor = self.tensor(view.record.data.tensor)
            self._name(tensor)

    def _fill(self, tensor: A.Tensor, values: Ints) -> None:
        self._name(tensor)

    def _name(self, tensor: A.Tensor) -> None:
        names = list(self.tensors).index(tensor.name) * OF_TENSOR + np.arange(tensor.words)
        self.words[tensor.name].write(addresses(tensor), names[None])

    def view(self, view: A.View) -> None:
        """Set the view, with PADDING as the value of padding."""
        super().view(replace(view, fill=PADDING, zero=0))

    def with_tokens(self, tokens: A.Tokens, rule: Callable[[], None]) -> None:
        """Run the rule without tokens: other layers may have given the first ones."""
        rule()

    def _word(self, name: int) -> Word:
        if name == PADDING:
            return Word()
        tensor = list(self.tensors.values())[name // OF_TENSOR]
        shape = tensor.shape or (tensor.words,)
        return Word(tensor.name, tuple(int(i) for i in np.unravel_index(name % OF_TENSOR, shape)))

    # -- macro-instructions --------------------------------------------------------------------------------------

    def _accumulate(self, mac: A.Mac, pes: tuple[slice, slice]) -> None:
        number, self.macros = self.macros, self.macros + 1
        row, col = self.pe[0] - mac.place.row0, self.pe[1] - mac.place.col0
        if number not in self.wanted or not (0 <= row < mac.place.rows and 0 <= col < mac.place.cols):
            return
        last = bool(last_columns(mac.place)[col])
        loaded = {"ifmap": self._loaded(self.ifmap, last)}
        if multiplies(mac.op):
            loaded["weight"] = self._loaded(self.weight, last)
        indices = {name: index for name, (index, _) in self.loops.running.items()}
        reuse = Reuse(number, indices, mac.op, loaded, self._atoms(mac, col, last), self.loops.last(mac.send))
        self.reuses.append(reuse)
        self.open.append(reuse)

    def _loaded(self, file: RegisterFile, last: bool) -> list[Word]:
        """The words that loads have put into the PE's half, by slot."""
        half = file.taken()
        slots = sorted(half.loads | (half.edges if last else set()))
        return [self._word(int(half.words[(0, *self.pe, slot)])) for slot in slots]

    def _atoms(self, mac: A.Mac, col: int, last: bool) -> list[Atom]:
        ifmap = self.ifmap.taken().words[(0, *self.pe)]
        weight = self.weight.taken().words[(0, *self.pe)] if multiplies(mac.op) else None
        # MAC-6: with ping and pong the last column takes words in passing, too, from the FIFO of its virtual neighbour.
        receives, sends = not last or self.arch.pe.pong_words > 0, col % mac.place.set_cols > 0
        atoms: list[Atom] = []
        for cycle, (z, j, i) in enumerate(np.ndindex(mac.pixels, mac.taps, mac.step_range)):
            psum, x, w = (
                of.base + z * of.pixel + j * of.tap + i * of.channel for of in (mac.psum, mac.ifmap, mac.weight)
            )
            terms: list[tuple[Word, Word | None]] = []
            for lane in range(mac.lanes):
                factor = None if weight is None else self._word(int(weight[w + lane * mac.weight.lane]))
                terms.append((self._word(int(ifmap[x + lane * mac.ifmap.lane])), factor))
            atom = Atom(cycle, psum, tuple(terms), own=bool(mac.psum.lane))
            if i == 0 and (k := cycle // mac.step_range) < mac.data_reuse:
                sent, received = (self._word(int(ifmap[slot])) for slot in (k, mac.n2n_slot + k))
                atom = replace(atom, sent=sent if sends else None, received=received if receives else None)
                atom = replace(atom, source=("virtual" if last else "east") if receives else "")
            atoms.append(atom)
        return atoms

    # -- where sums go -------------------------------------------------------------------------------------------

    def commit(self, commit: A.Commit) -> None:
        """Write the sums' numbers in place of results. Sums that are added up have one number."""
        pes = rectangle(commit.place, self.arch.rows, self.arch.cols)
        view, target = self._view(commit.view)
        address, _ = position(commit.place, commit.start, commit.pattern).address(view, self.loops)
        place, places = np.unique(address, return_inverse=True)
        names = SUMS + self.sums + places.reshape(address.shape)
        self.sums += place.size
        earlier = target.read(address)[0] if commit.sums and not self.loops.first(commit.fresh) else names
        # A partial sum that is added to gets a new number: what was noted for the old one goes along.
        for name, before in {*zip(names.flat, earlier.flat, strict=True)}:
            if before != name and int(before) in self.waiting:
                self.waiting[int(name)] = self.waiting.pop(int(before))
        target.write(address, names[None])
        if commit.source == A.Source.PSUM:
            self.psum.take()
            self.psum.give()
            row, col = self.pe[0] - pes[0].start, self.pe[1] - pes[1].start
            if self.open:  # the PE is among those that commit (COMMIT-1)
                psums = slots(commit.psum, tuple(extent.n for extent in commit.pattern))
                for slot, name in zip(psums.flat, names[row, col].flat, strict=True):
                    self.waiting.setdefault(int(name), []).append((self.open, int(slot)))
                for reuse in self.open:
                    reuse.part = commit.reduce or bool(commit.sums)
            self.open = []
        self._settle(view.tensor)

    def dma(self, dma: A.Dma) -> None:
        """Run the transfer; outgoing words may be sums."""
        super().dma(dma)
        if dma.direction == A.Direction.OUT:
            self._settle(self.views[dma.dram].tensor)

    def _settle(self, name: str) -> None:
        """Name the sums that have arrived in a tensor with a shape; a buffer has none."""
        tensor = self.tensor(name)
        if self.waiting and tensor.shape:
            for index, word in enumerate(self._view_words(tensor).tolist()):
                if word in self.waiting:
                    at = tuple(int(i) for i in np.unravel_index(index, tensor.shape))
                    for reuses, slot in self.waiting.pop(word):
                        for reuse in reuses:
                            reuse.sums[slot] = Word(name, at)
        if self.macros >= self.wanted.stop and not self.waiting and not self.open:
            raise _Complete

    def _view_words(self, tensor: A.Tensor) -> Ints:
        words = self.words[tensor.name]
        at = addresses(tensor)
        return words.words[0, at] if isinstance(words, Words) else words.whole.words[0, at + words.offset]
