"""How much a random search improves the mapper's mappings: 32 layers on four small arrays with two sizes of the GLB.

    python benchmarks/random_search.py [--seconds 15] [--layer conv3_s2 …] [--arch 4x4 …] [--images 4]
                                       [--cases 20 --seed 1]
    python benchmarks/random_search.py --model samples/models/lenet.onnx

It shares no code with the mapper. It anneals over all that a mapping says: loops, their order, steps and axes, stages,
their places and buffers. Moves follow the seed alone; seconds say how many there are. A mapping counts if the lowering
accepts it and its buffers fit the layer's budget. It takes the cycles that the cost model says, of the layer by itself.

An operand is streamed if it takes more than a quarter of the GLB. The small GLB has a third of the words of ifmap,
output and weights, the large one 65,536.

With --model the cases are the layers of a network on spatial-8x8, with the mapping that the compiler chooses for each.
The random search has the words of the GLB that this mapping takes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil, inf, log, prod
from pathlib import Path
from random import Random

from cnncc.arch.model import Arch, load_arch
from cnncc.dialects import array as A
from cnncc.dialects.nest import LayerOp, mapping_of
from cnncc.driver.pipeline import NONE, Settings, import_model
from cnncc.errors import Refusal
from cnncc.mapper.cached_search import searched
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapping.mapping import DIMS, Loop, Mapping, Sizes, extents, mapping_problem
from cnncc.mapping.text import text
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_schedule
from cnncc.model.layer_shape import GlbBudget, LayerShape, buffer_words, reach
from cnncc.model.legal import is_legal
from cnncc.model.routes import Nest
from cnncc.passes._programs.layer_program import layer_program
from cnncc.passes._programs.layer_records import ActivationLayout, ProgramLayer, Tensors
from cnncc.passes._programs.layer_sums import has_partial_sums
from cnncc.passes._scheduling.array_fit import space_problems
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape
from cnncc.util import disk_cache
from cnncc.window import Window

ARRAYS = {"2x2": (2, 2), "3x2": (3, 2), "4x4": (4, 4), "8x8": (8, 8)}
MODEL_ARRAY = "spatial-8x8"
LARGE_WORDS = 65536
LITTLE, LOTS = 0.02, 0.2  # improvements that are counted
ROUND = 500  # moves from the best mapping on, while it gets colder
HOT, COLD = 0.1, 0.0005  # shares of cycles that a mapping may lose in a move


def convolution(
    k: int, c: int, side: int | tuple[int, int], taps: int = 3, stride: int = 1, dilation: int = 1, group: int = 1,
    kind: str = "mac", pad: bool = True,
) -> LayerShape:  # fmt: skip
    """A convolution or a pool. side: of the image. c: input channels of a group."""
    image = (side, side) if isinstance(side, int) else side
    span = dilation * (taps - 1) // 2 if pad else 0
    window = Window((taps, taps), (stride, stride), (span,) * 4, (dilation, dilation), group)
    h, w = window.output(*image)
    window = replace(window, stride=(stride if taps > 1 else 1, stride))  # rows that nothing reads are left out
    sides = zip((h, w), window.stride, image, strict=True)
    ih, iw = (min(size, reach(n, taps, by, dilation) - span) for n, by, size in sides)
    return LayerShape(kind, Sizes(1, k, c, h, w, taps, taps), window, 0 if kind == "max" else 2, ih, iw)


LAYERS = {
    "conv1_16": convolution(16, 16, 14, 1),
    "conv1_64": convolution(64, 32, 7, 1),
    "conv1_few": convolution(3, 8, 16, 1),
    "conv1_s2": convolution(16, 24, 14, 1, 2),
    "conv1_prime": convolution(13, 17, 11, 1),
    "one_pixel": convolution(40, 24, 1, 1),
    "conv3_8": convolution(8, 8, 14),
    "conv3_rgb": convolution(16, 3, 24),
    "conv3_s2": convolution(16, 8, 16, 3, 2),
    "conv3_s3": convolution(8, 4, 20, 3, 3),
    "conv3_10_6": convolution(10, 6, 12),
    "conv3_prime": convolution(7, 11, 13),
    "conv3_wide": convolution(8, 4, (6, 40)),
    "conv3_tall": convolution(8, 4, (40, 6)),
    "conv3_dilated": convolution(8, 6, 14, dilation=2),
    "conv3_deep": convolution(32, 32, 6),
    "conv3_groups": convolution(12, 4, 12, group=3),
    "conv3_residual": convolution(8, 8, 12),
    "conv5_22": convolution(8, 4, 22, 5),
    "conv5_s2": convolution(16, 6, 20, 5, 2),
    "conv5_prime": convolution(5, 7, 17, 5),
    "conv5_deep": convolution(16, 16, 8, 5),
    "conv7_s2": convolution(8, 3, 28, 7, 2),
    "dw3_8": convolution(8, 1, 14, group=8),
    "dw3_s2": convolution(12, 1, 15, 3, 2, group=12),
    "dw3_prime": convolution(11, 1, 13, group=11),
    "dw5_6": convolution(6, 1, 16, 5, group=6),
    "fc_120_84": convolution(84, 120, 1, 1),
    "fc_64_10": convolution(10, 64, 1, 1),
    "fc_prime": convolution(53, 97, 1, 1),
    "max2": convolution(8, 1, 16, 2, 2, group=8, kind="max", pad=False),
    "sum3_s2": convolution(8, 1, 15, 3, 2, group=8, kind="add"),
}


@dataclass(frozen=True)
class Case:
    """A layer on an array, in a GLB budget."""

    name: str
    shape: LayerShape
    arch: Arch
    budget: GlbBudget

    def mapping(self) -> Mapping | None:
        """The mapper's."""
        result = searched(SearchTask(self.shape, self.arch, self.budget))
        return result and result.mapping

    def cycles(self, mapping: Mapping, most: float = inf) -> int | None:
        """Those of the layer by itself; None for an illegal mapping, one that exceeds the budget or `most` cycles."""
        shape, arch, residual = self.shape, self.arch, self.budget.residual
        if mapping_problem(mapping, shape.sizes, self._operands) or any(space_problems(mapping, shape, arch)):
            return None
        if buffer_words(shape, arch, mapping, has_partial_sums(shape, mapping.loops)) > self.budget.words:
            return None
        try:
            if not is_legal(shape, mapping, residual) or self._least(mapping) > most:
                return None
            layer_program(self._lowered(mapping), arch)
        except Refusal:
            return None
        cycles = layer_schedule(LayerPlan(self.name, shape, mapping, residual, PREFETCHED), arch).cycles(arch)
        return cycles if cycles <= most else None

    def _least(self, mapping: Mapping) -> int:
        """The cycles of the array at least: all macro-instructions, on as many PEs as there ever are."""
        nest, sizes = Nest(self.shape, mapping), self.shape.sizes
        around = zip(mapping.loops, extents(sizes, mapping.loops), strict=True)
        pes = prod(ceil(extent / loop.step) for loop, extent in around if loop.on)
        each = self.arch.pe.start_cycles + self.arch.pe.finish_cycles
        return nest.trips(DIMS, len(nest.outer)) * each + prod(vars(sizes).values()) // pes

    def _lowered(self, mapping: Mapping) -> ProgramLayer:
        """The layer for `nest-to-array`, which refuses what the array cannot run."""
        homes = [ActivationLayout(name, 1 << 20, 1 << 10, 1 << 5) for name in ("ifmap", "output", "residual")]
        buffers = {name: name for name in (*mapping.glb_stages, "sums")}
        tensors = Tensors(homes[0], homes[1], homes[2] if self.budget.residual else None, "w", "p", buffers)
        unit, words = A.Unit(self.shape.params > 0), self.shape.params * self.arch.words_per_param
        return ProgramLayer(self.name, self.shape, mapping, tensors, words, unit, Semaphore.FULL)

    @cached_property
    def _operands(self) -> set[str]:
        has = {"weight": self.shape.is_mac, "params": self.shape.params > 0, "residual": self.budget.residual}
        return {"ifmap", "output", *(name for name, there in has.items() if there)}


def case_of(layer: str, array: str, is_large: bool, images: int = 1) -> Case:
    """A layer of the table for some images, with its operands streamed where they are large for the GLB."""
    shape, (rows, cols), residual = LAYERS[layer], ARRAYS[array], layer.endswith("residual")
    shape = replace(shape, sizes=replace(shape.sizes, n=images))
    output = images * shape.sizes.k * shape.sizes.h * shape.sizes.w
    values = {"ifmap": images * shape.channels * shape.ih * shape.iw, "output": output}
    values |= {"residual": output} if residual else {}
    words = LARGE_WORDS if is_large else ceil((sum(values.values()) + shape.weight_words) / 3)
    streamed = frozenset(name for name, needs in values.items() if 4 * needs > words)
    left = words - sum(needs for name, needs in values.items() if name not in streamed)
    preset = load_arch("spatial-8x8")
    arch = replace(preset, name=array, rows=rows, cols=cols, glb=replace(preset.glb, words=words))
    name = f"{layer}.{array}.{'large' if is_large else 'small'}"
    return Case(name, shape, arch, GlbBudget(left, streamed, residual))


def layers_of(model: Path) -> dict[tuple[Case, Mapping], int]:
    """The different layers of a network with their mappings, and how often each occurs. No groups."""
    arch, counts = load_arch(MODEL_ARRAY), dict[tuple[Case, Mapping], int]()
    names = dict[object, str]()
    compilation = import_model(model, 1, Settings(arch, MODEL_ARRAY, arch.operand_bits, groups=NONE, measured=False))
    compilation.run("nest")
    for layer in compilation.module.walk():
        if isinstance(layer, LayerOp) and layer.kind.data != "copy":
            shape, mapping = layer_shape(layer), mapping_of(layer)
            name = names.setdefault((shape, mapping), label_of(layer))
            words = buffer_words(shape, arch, mapping, has_partial_sums(shape, mapping.loops))
            streamed = frozenset(mapping.glb_stages) & {"ifmap", "output", "residual"}
            case = Case(name, shape, arch, GlbBudget(words, streamed, layer.residual is not None))
            counts[case, mapping] = counts.get((case, mapping), 0) + 1
    return counts


# -- moves -------------------------------------------------------------------------------------------------------------


class Draft:
    """A mapping that is being changed. Its loops may break rules, which `mapping` mends."""

    def __init__(self, mapping: Mapping, sizes: Sizes, rng: Random) -> None:
        self.loops, self.stages, self.sizes, self.rng = [*mapping.loops], [*mapping.stages], sizes, rng

    def mapping(self) -> Mapping:
        """Steps fall to 1, loops inside all stages in register files are kept, loops that run once are left out."""
        for dim in "nkchwrs":
            places = [i for i, loop in enumerate(self.loops) if loop.dim == dim]
            steps = sorted((min(self.loops[i].step, self.sizes.of(dim)) for i in places), reverse=True)
            for i, step in zip(places, [*steps[:-1], 1], strict=False):
                self.loops[i] = replace(self.loops[i], step=step)
        loops, stages = self.loops, self.stages
        runs = [loop.step < extent for loop, extent in zip(loops, extents(self.sizes, tuple(loops)), strict=True)]
        box = max((stage.depth for stage in stages if stage.memory == "rf"), default=len(loops))
        loops = [replace(loop, on="" if i >= box else loop.on, keep=i >= box) for i, loop in enumerate(loops)]
        stages = [replace(stage, depth=sum(runs[: min(stage.depth, box)])) for stage in stages]
        stages.sort(key=lambda stage: (stage.depth, stage.memory, stage.operand == "ifmap"))
        return Mapping(tuple(loop for loop, there in zip(loops, runs, strict=True) if there), tuple(stages))

    def change(self) -> None:
        """One move."""
        steps = (self.step, self.step, self.exchange, self.carry, self.turn, self.split, self.drop)
        self.rng.choice((*(steps if self.loops else (self.split,)), self.stage, self.buffer))()

    def step(self) -> None:
        """A loop takes other steps: equal parts, or a little more or less."""
        i = self.rng.randrange(len(self.loops))
        loop = self.loops[i]
        near = max(1, loop.step + self.rng.choice((-1, 1)))
        self.loops[i] = replace(loop, step=self.rng.choice((near, self.part(loop.dim))))

    def part(self, dim: str) -> int:
        """An equal part of a dimension."""
        size = self.sizes.of(dim)
        return ceil(size / self.rng.randint(1, size))

    def exchange(self) -> None:
        """Two loops change places."""
        i, j = self.rng.randrange(len(self.loops)), self.rng.randrange(len(self.loops))
        self.loops[i], self.loops[j] = self.loops[j], self.loops[i]

    def carry(self) -> None:
        """A loop goes to another place, past stages."""
        loop = self.remove(self.rng.randrange(len(self.loops)))
        self.insert(self.rng.randint(0, len(self.loops)), loop)

    def turn(self) -> None:
        """A loop runs on another axis, or in time."""
        i = self.rng.randrange(len(self.loops))
        self.loops[i] = replace(self.loops[i], on=self.rng.choice(("", "rows", "cols")), keep=False)

    def split(self) -> None:
        """One loop more over some dimension."""
        dim = self.rng.choice([dim for dim in "nkchwrs" if self.sizes.of(dim) > 1])
        loop = Loop(dim, self.part(dim), self.rng.choice(("", "", "rows", "cols")))
        self.insert(self.rng.randint(0, len(self.loops)), loop)

    def drop(self) -> None:
        """One loop less, if its dimension has others."""
        i = self.rng.randrange(len(self.loops))
        if sum(loop.dim == self.loops[i].dim for loop in self.loops) > 1:
            self.remove(i)

    def stage(self) -> None:
        """A stage, or all of them that stand with it, goes to another place."""
        chosen, depth = self.rng.choice(self.stages), self.rng.randint(0, len(self.loops))
        alone = self.rng.random() < 0.5
        for i, stage in enumerate(self.stages):
            if stage is chosen or (not alone and (stage.depth, stage.memory) == (chosen.depth, chosen.memory)):
                self.stages[i] = replace(stage, depth=depth)

    def buffer(self) -> None:
        """A stage in the GLB gets a buffer more or less."""
        if there := [i for i, stage in enumerate(self.stages) if stage.memory == "glb"]:
            i = self.rng.choice(there)
            self.stages[i] = replace(self.stages[i], buffers=3 - self.stages[i].buffers)

    def insert(self, place: int, loop: Loop) -> None:
        """Stages at this place may stand outside or inside."""
        self.loops.insert(place, loop)
        outside = self.rng.random() < 0.5
        self.stages = [replace(each, depth=each.depth + (each.depth >= place + outside)) for each in self.stages]

    def remove(self, place: int) -> Loop:
        """Take a loop out."""
        self.stages = [replace(each, depth=each.depth - (each.depth > place)) for each in self.stages]
        return self.loops.pop(place)


def anneal(case: Case, start: Mapping, rng: Random) -> Iterator[tuple[Mapping, int]]:
    """After each move the best mapping so far, and its cycles. It never ends."""
    first = case.cycles(start)
    assert first is not None, f"{case.name}: the mapper's mapping is illegal"
    best = current = (start, first)
    known = {start: first}
    while True:
        current = best
        for number in range(ROUND):
            heat = HOT * (COLD / HOT) ** (number / ROUND)
            most = current[1] * (1 - heat * log(1 - rng.random()))
            draft = Draft(current[0], case.shape.sizes, rng)
            for _ in range(rng.choice((1, 1, 2, 3))):
                draft.change()
            mapping = draft.mapping()
            cycles = known[mapping] if mapping in known else case.cycles(mapping, most)
            if cycles is not None and cycles <= most:
                known[mapping] = cycles
                current = (mapping, cycles)
                best = min(best, current, key=lambda each: each[1])
            yield best


def within(seconds: float, best: Iterator[tuple[Mapping, int]]) -> tuple[Mapping, int, int]:
    """The best mapping that is found in so many seconds, its cycles, and the number of moves."""
    end, moves = time.process_time() + seconds, 0
    for moves, (mapping, cycles) in enumerate(best, 1):
        if time.process_time() >= end:
            return mapping, cycles, moves
    raise AssertionError("a search ended by itself")


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """The cycles of the mapper's mapping, and of the best that the random search finds. count: of such layers."""

    case: Case
    cycles: int
    fewest: int
    count: int = 1

    @property
    def gain(self) -> float:
        """The share of cycles that the random search wins."""
        return 1 - self.fewest / self.cycles

    def __str__(self) -> str:
        streamed = ", ".join(sorted(self.case.budget.streamed)) or "-"
        return f"{self.case.name:24}{streamed:26}{self.cycles:>10,}{self.fewest:>10,}{self.gain:>8.1%}"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """How many cases improve, with streamed operands and without."""
    for is_streamed in (True, False):
        gains = [row.gain for row in rows if bool(row.case.budget.streamed) == is_streamed]
        counts = (f"{sum(gain > least for gain in gains)} by more than {least:.0%}" for least in (LITTLE, LOTS))
        yield f"{'streamed' if is_streamed else 'resident'}: of {len(gains)} improve {', '.join(counts)}"


def main() -> None:
    """Print a row for each case, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15.0, help="of CPU, for each case (default: %(default)s)")
    parser.add_argument("--layer", nargs="*", choices=LAYERS, default=[*LAYERS], metavar="LAYER", help="only these")
    parser.add_argument("--arch", nargs="*", choices=ARRAYS, default=[*ARRAYS], metavar="ROWSxCOLS", help="only these")
    parser.add_argument("--model", type=Path, metavar="ONNX", help="the layers of this network instead")
    parser.add_argument("--images", type=int, default=1, help="of each layer (default: %(default)s)")
    parser.add_argument("--cases", type=int, help="so many of all cases, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0, help="of cases and moves (default: %(default)s)")
    parser.add_argument("--mappings", action="store_true", help="print the mappings of improved cases, too")
    options = parser.parse_args()
    os.environ[disk_cache.FOLDER] = "off"
    print(f"{'case':24}{'streamed':26}{'mapper':>10}{'random':>10}{'gain':>8}")
    rows = list[Row]()
    for case, start, count in starts(options):
        if start is None:
            print(f"{case.name:24}exceeds the GLB", flush=True)
            continue
        search = anneal(case, start, Random(f"{options.seed} {case.name}"))
        best, fewest, moves = within(options.seconds, search)
        rows.append(Row(case, case.cycles(start) or 0, fewest, count))
        print(f"{rows[-1]}{moves:>9,} moves", flush=True)
        if options.mappings and rows[-1].gain > LITTLE:
            print(*(f"    {text(mapping, case.shape.sizes)}" for mapping in (start, best)), sep="\n", flush=True)
    print(*summary(rows), sep="\n")
    if options.model:
        cycles, fewest = (
            sum(row.count * each(row) for row in rows) for each in (lambda r: r.cycles, lambda r: r.fewest)
        )
        print(f"all layers: {cycles:,} cycles, {fewest:,} by the random search ({1 - fewest / cycles:.2%} fewer)")


def starts(options: argparse.Namespace) -> Iterator[tuple[Case, Mapping | None, int]]:
    """The cases, with the mappings from which the random search starts, and how often each counts."""
    if options.model:
        yield from ((*each, count) for each, count in layers_of(options.model).items())
        return
    every = list(product(options.layer, options.arch, (True, False)))
    if options.cases:
        every = Random(options.seed).sample(every, min(options.cases, len(every)))
    for each in every:
        case = case_of(*each, options.images)
        yield case, case.mapping(), 1


if __name__ == "__main__":
    main()
