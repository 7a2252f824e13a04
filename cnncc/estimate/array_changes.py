"""What other numbers of the array do for one layer: each key by itself, the layer mapped anew, all others as they are.

See LIMIT-2 of docs/estimate.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from cnncc.arch.model import Arch
from cnncc.errors import Refusal
from cnncc.estimate.mapped_network import MappedNetwork, mapping_in
from cnncc.estimate.mapped_program import Program
from cnncc.explore.array_grid import Value, with_config
from cnncc.mapper.cached_search import search_ahead
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapping.text import text
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.layer_shape import GlbBudget
from cnncc.model.program_schedule import Part, program_cycles
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.util.nested import leaves
from cnncc.util.progress import Progress

# With other values of these the network would be another one, or nothing would.
KEPT = ("operand_bits", "psum_bits", "clock_mhz", "cores", "glb.banks", "energy")
MOST = 3  # changes that are reported
OF_PES = ("pe.", "links.")  # keys that what a mapping holds in a PE depends on


@dataclass(frozen=True)
class Change:
    """What another value of a key makes of the cycles of a layer, and of the program if only this layer is mapped anew.

    mapping: what it has then, as text.
    """

    key: str
    was: Value
    value: Value
    layer: int
    program: int
    mapping: str


def variations(arch: Arch) -> Iterator[tuple[str, Value, Value]]:
    """Each key with its value, and with the one to try.

    Sizes, numbers and rates twice as large, cycles that something takes half as many, links and overlap where there are
    none; as far as the architecture file allows.
    """
    for key, value in leaves(asdict(arch)):
        if key.startswith(KEPT) or isinstance(value, str):
            continue
        if key == "pe.lane_sums" and arch.pe.lanes == 1:
            continue  # one lane has its own sum already
        if isinstance(value, bool):
            tried: Value = True
        else:
            tried = value // 2 if key.endswith("_cycles") else 2 * value
        if tried != value:
            yield key, value, tried


def changes(program: Program, label: str, progress: Progress) -> list[Change]:
    """The `MOST` changes of a single key with which the layer is fastest, the fastest first."""
    now, shape = program_cycles(program.parts, program.arch)[1][label].total, program.layers()[label].shape
    arrays: list[tuple[int, str, Value, Value, Arch]] = []
    for key, was, value in variations(program.arch):
        with suppress(Refusal):  # out of range
            arch = with_config(program.arch, {key: value})
            # The cycles with all multipliers busy are a lower bound. Arrays are tried in its order, so the loop below
            # may stop.
            arrays.append((0 if shape.kind == "copy" else shape.busy_cycles(arch), key, was, value, arch))
    arrays.sort(key=lambda entry: entry[0])
    remapped = _RemappedLayer(program.network, label) if program.network and program.network.candidates else None
    fastest: list[Change] = []
    for first in range(0, len(arrays), MOST):
        if len(fastest) == MOST and fastest[-1].layer <= arrays[first][0]:
            break  # no other can be faster
        batch = arrays[first : first + MOST]
        if remapped:
            remapped.search_ahead([arch for *_, arch in batch], progress)
        for _, key, was, value, arch in batch:
            progress(f"{label}: {key}")
            tried = remapped.programs(arch, kept=not key.startswith(OF_PES)) if remapped else [program.parts]
            programs = [(program_cycles(parts, arch), parts) for parts in tried]
            if not programs:
                continue  # no mapping fits
            (whole, layers), parts = min(programs, key=lambda program: program[0][0].total)
            plan = next(part for part in parts if isinstance(part, LayerPlan) and part.label == label)
            mapping = text(plan.mapping, plan.shape.sizes)
            fastest.append(Change(key, was, value, layers[label].total, whole.total, mapping))
        fastest = [change for change in fastest if change.layer < now]
        fastest = sorted(fastest, key=lambda change: (change.layer, change.program))[:MOST]
    return fastest


class _RemappedLayer:
    """One layer of a network, mapped anew to other arrays within its GLB budget.

    A larger GLB makes the budget larger. A mapping that was chosen for fewer words (CHAIN-1) is a second budget.
    """

    def __init__(self, network: MappedNetwork, label: str) -> None:
        assert network.candidates
        self.network, self.label, self.candidates = network, label, network.candidates
        self.layer = network.layer(label)
        self.own = mapping_in(self.layer)
        self.budgets = list(dict.fromkeys((network.budget(label), network.taken(label))))

    def _budgets(self, arch: Arch) -> list[GlbBudget]:
        more = arch.glb.words - self.network.arch.glb.words
        return [replace(budget, words=budget.words + more) for budget in self.budgets]

    def search_ahead(self, arrays: Sequence[Arch], progress: Progress) -> None:
        """Do the searches for these arrays in parallel; `programs` then finds their results."""
        if self.layer.kind.data != "copy" and self.candidates(self.network.arch).is_searched(self.layer):
            shape = layer_shape(self.layer)
            search_ahead(
                [SearchTask(shape, arch, budget) for arch in arrays for budget in self._budgets(arch)], progress
            )

    def programs(self, arch: Arch, kept: bool) -> list[Sequence[Part]]:
        """The program on another array with each mapping of the layer that is tried. kept: with its own, too."""
        network, candidates = self.network, self.candidates(arch)
        mappings = [self.own] if kept else []
        for budget in self._budgets(arch) if not candidates.violations(self.layer) else ():
            with suppress(Refusal):  # does not fit
                mapping = candidates.best(self.layer, budget)
                mappings += [mapping] if mapping and mapping not in mappings else []
        as_it_was = arch.glb.words == network.arch.glb.words
        return [
            network.parts if as_it_was and mapping == self.own else network.with_mapping(self.label, mapping, arch)
            for mapping in mappings
        ]
