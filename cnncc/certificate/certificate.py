"""Certificates of a network's mappings: for each layer the best cycles, words and energy, and their lower bounds.

A check takes the layers from the model, mappings and numbers from the file, and uses no code of the search
(`whole_space.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import ceil, isclose
from pathlib import Path
from typing import Any, NamedTuple, cast

from xdsl.dialects.func import FuncOp

from cnncc.arch.model import Arch, arch_text
from cnncc.certificate import whole_space
from cnncc.certificate.group_entries import checked_group, figures, read_groups, split_into_strips
from cnncc.certificate.least_costs import least_energy, least_words, prices_of, streamed_least
from cnncc.dialects.nest import GroupOp, LayerOp
from cnncc.driver.pipeline import ASSIGN, NONE, TO_PROGRAMS, Compilation
from cnncc.driver.program_parts import group_plan_of
from cnncc.driver.sources import CompileOptions, check_in_turn, start_before_programs
from cnncc.errors import Refusal, one_line
from cnncc.estimate.mapped_network import budgets, streamed
from cnncc.mapping.text import text
from cnncc.model.energy import energy
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.layer_schedule import LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.legal import is_legal
from cnncc.model.operand_traffic import operand_traffic
from cnncc.model.plan_json import as_json, from_json
from cnncc.passes._scheduling.glb_words import glb_words
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape
from cnncc.util import strict_json
from cnncc.util.files import read_bytes
from cnncc.util.progress import Progress
from cnncc.util.terminal import amount

Json = dict[str, Any]
COSTS = {"words": least_words, "energy": least_energy}
COST_TEXT = {"words": "DRAM words", "energy": "energy"}
COUNTS = ("bounded", "run")  # of mappings, by the search
LIMIT_BYTES = 1 << 28
ROUNDING = 1e-14  # of sums of some twenty floats; a word of 10^13 is more
DAMAGE = (AttributeError, KeyError, OverflowError, TypeError, ValueError)  # of a file that is no certificate
Known = dict[tuple[LayerShape, bool, int, int], whole_space.SpaceCheck]  # by shape, residual, GLB budget and least


def _start(source: Path, options: CompileOptions, progress: Progress) -> tuple[Compilation, FuncOp]:
    """A compilation up to its layers, which are not mapped yet."""
    compilation = start_before_programs(source, options, progress)
    check_in_turn(compilation, "a certificate")
    if not compilation.awaits(ASSIGN):
        raise Refusal(f"{source}: its layers are mapped already: give the model, or IR before {ASSIGN}")
    compilation.run_before(ASSIGN)
    return compilation, next(op for op in compilation.module.ops if isinstance(op, FuncOp))


def certificate(source: Path, options: CompileOptions, progress: Progress) -> Json:
    """The certificate of a network: an entry for each layer that the search maps, and for each group.

    The entries of layers are those of the network without groups. Raises Refusal as `compile` does.
    """
    # Imported where they are used: the search makes a certificate and has no part in its check.
    from cnncc.mapper.cached_search import searched
    from cnncc.mapper.layer_search import SearchTask
    from cnncc.mapper.objective import Objective

    compilation, func = _start(source, replace(options, groups=NONE), progress)
    compilation.run_through(ASSIGN)
    arch, moves, entries = compilation.settings.arch, streamed(func), list[Json]()
    todo = budgets(func, arch, moves)
    for done, (layer, budget) in enumerate(todo.items()):
        if layer.kind.data == "copy":
            continue
        shape = layer_shape(layer)
        progress(f"proving {label_of(layer)}", done, len(todo))
        best = searched(SearchTask(shape, arch, budget))
        if best is None:
            continue
        least = best.least
        if budget.streamed or not whole_space.is_enumerated(shape, arch, budget.words):
            bound = streamed_least(shape, arch, budget.streamed, budget.words)
            least = min(least, int(_stated(bound, best.cycles)))
        plan = LayerPlan(label_of(layer), shape, best.mapping, budget.residual, whole_space.PREFETCHED)
        entries.append(
            as_json([plan])[0]
            | {"budget": budget.words, "streamed": sorted(budget.streamed), "cycles": best.cycles, "least": least}
            | {"bounded": best.bounded, "run": best.run, "proven": least == best.cycles}
            | {"costs": {}}
        )
        for name, bound_of in COSTS.items():
            result = searched(SearchTask(shape, arch, budget, prices=Objective(name).prices(arch)))
            mapping = result.front[0].mapping if result else best.mapping
            cost = _cost(replace(plan, mapping=mapping), name, arch)
            fewest = _stated(_least_cost(float(bound_of(shape, arch, budget)), cost), cost)
            entries[-1]["costs"][name] = {
                "mapping": text(mapping, shape.sizes), "cost": cost, "least": fewest, "proven": fewest == cost
            }  # fmt: skip
    moved = {label_of(layer): sorted(some) for layer, some in moves.items() if some}
    about = {"source": source.name, "array": arch_text(arch), "moves": moved, "layers": entries}
    groups = _groups(source, options, progress)
    return about | {"groups": [as_json([group])[0] | figures(group, arch) for group in groups]}


def _stated(bound: float, known: float) -> float:
    """The bound; 0 if a known mapping takes less. That one is beyond the space of the bound, and others may be, too."""
    return bound if bound <= known else 0.0


def _least_cost(bound: float, cost: float) -> float:
    """The bound. It and the cost add up prices in orders of their own, so that equal sums may differ by rounding."""
    return cost if isclose(bound, cost, rel_tol=ROUNDING) else bound


def _groups(source: Path, options: CompileOptions, progress: Progress) -> list[GroupPlan]:
    """The groups of a network, as these options make them."""
    compilation = start_before_programs(source, options, progress)
    if compilation.settings.groups == NONE:
        return []
    compilation.run_before(TO_PROGRAMS)
    return [group_plan_of(op) for op in compilation.module.walk() if isinstance(op, GroupOp)]


def check(source: Path, file: Path, options: CompileOptions, progress: Progress) -> Iterator[list[str]]:
    """Lines for each layer of a certificate. Raises Refusal, with the first layer whose entry is wrong."""
    given = _read(file)
    compilation, func = _start(source, options, progress)
    arch = compilation.settings.arch
    if given.array != arch_text(arch):
        raise Refusal(f"{file}: it is of another array than {arch.name}")
    layers = {label_of(op): op for op in func.walk() if isinstance(op, LayerOp)}
    try:
        limits = budgets(func, arch, {op: given.moves.get(label, frozenset()) for label, op in layers.items()})
    except KeyError as error:
        raise Refusal(f"{file}: no certificate: moves: no layer there reads or writes {error}") from error
    known = Known()
    for done, (plan, entry) in enumerate(zip(given.plans, given.layers, strict=True)):
        progress(f"checking {plan.label}", done, len(given.plans))
        try:
            yield list(_checked(plan, entry, arch, layers, limits, known))
        except KeyError as error:
            raise Refusal(f"{file}: no certificate: layer '{plan.label}': there is no {error}") from error
        except DAMAGE as error:
            raise Refusal(f"{file}: no certificate: layer '{plan.label}': {error!r}") from error
        except Refusal as refusal:
            raise Refusal(f"{file}: layer '{plan.label}': {refusal}") from refusal
    try:
        groups = read_groups(given.groups)
        layers |= split_into_strips(groups, layers)
    except (*DAMAGE, Refusal) as error:
        raise Refusal(f"{file}: groups: {error}") from error
    for group, entry in zip(groups, given.groups, strict=True):
        try:
            yield [checked_group(group, entry, layers, arch)]
        except (*DAMAGE, Refusal) as error:
            raise Refusal(f"{file}: group {one_line(repr(entry), 40)}: {error}") from error


class _Certificate(NamedTuple):
    """A certificate as its file has it. plans: those of `layers`."""

    array: object
    moves: Mapping[str, frozenset[str]]
    layers: Sequence[Json]
    plans: Sequence[LayerPlan]
    groups: Sequence[Json]


def _read(file: Path) -> _Certificate:
    """The content of a file. Raises Refusal."""
    data = read_bytes(file, LIMIT_BYTES, "a certificate has at most 256 MiB")
    try:
        given = strict_json.parse(data)
        plans = from_json(given["layers"])
        moves = {str(label): frozenset(map(str, some)) for label, some in given["moves"].items()}
        if not isinstance(given["groups"], list) or not all(isinstance(plan, LayerPlan) for plan in plans):
            raise ValueError("its layers and groups are no lists of such")
        return _Certificate(
            given["array"], moves, given["layers"], cast("list[LayerPlan]", plans), cast("list[Json]", given["groups"])
        )
    except KeyError as error:
        raise Refusal(f"{file}: no certificate: there is no {error}") from error
    except (*DAMAGE, RecursionError, Refusal) as error:
        raise Refusal(f"{file}: no certificate: {error}") from error


def _checked(
    plan: LayerPlan, entry: Json, arch: Arch, layers: Mapping[str, LayerOp], limits: Mapping[LayerOp, GlbBudget],
    known: Known,
) -> Iterator[str]:  # fmt: skip
    """Lines of a layer. Raises Refusal."""
    layer = layers.get(plan.label)
    residual = layer is not None and layer.residual is not None
    if (
        layer is None
        or plan.shape != layer_shape(layer)
        or plan.residual != residual
        or plan.prefetched != whole_space.PREFETCHED
    ):
        raise Refusal("the model has no such layer")
    shape, least, budget, streamed = plan.shape, int(entry["least"]), int(entry["budget"]), frozenset(entry["streamed"])
    if least < 0:
        raise Refusal(f"its bound of {least:,} cycles is negative")
    for key in COUNTS:
        # What the search did says nothing of the bound, so that it is not done again.
        if type(entry[key]) is not int or entry[key] < 0:
            raise Refusal(f"its '{key}' is {entry[key]!r}, no whole number of at least 0")
    if budget != limits[layer].words:
        raise Refusal(f"its GLB budget is {limits[layer].words} words, not {budget}")
    words = _check_budget(plan, streamed, arch, budget)
    cycles = layer_cycles(plan, arch)
    if cycles != entry["cycles"]:
        raise Refusal(f"its mapping takes {cycles:,} cycles, not {entry['cycles']:,}")
    if entry["proven"] != (least == cycles):
        raise Refusal(
            f"it is said to be {'' if entry['proven'] else 'not '}proven, with {cycles:,} and {least:,} cycles"
        )
    if streamed or not whole_space.is_enumerated(shape, arch, budget):
        bound = min(cycles, streamed_least(shape, arch, streamed, budget))
        if bound < least:
            raise Refusal(f"some mapping may take {bound:,} cycles, fewer than {least:,}")
        how = f"{bound:,} by products and streamed words"
    else:
        key = (shape, residual, budget, least)
        seen = known.get(key) or whole_space.look(shape, arch, residual, budget, least)
        known[key] = seen
        if seen.better is not None:
            raise Refusal(f"a mapping takes {seen.better[1]:,} cycles, fewer than {least:,}")
        how = f"{seen.combinations:,} mappings looked at, {seen.run:,} run"
    what = _verdict(cycles, least)
    room = f"{words:,} of {budget:,} words of the GLB"
    yield f"  {plan.label}: {cycles:,} cycles, none below {least:,} ({how}): {what}; {room}"
    for name in COSTS:
        yield _checked_cost(entry, name, arch, limits[layer])


def _checked_cost(entry: Json, name: str, arch: Arch, budget: GlbBudget) -> str:
    """The line of a layer's DRAM words, or of its energy. Raises Refusal."""
    given = entry["costs"][name]
    cost, least = float(given["cost"]), float(given["least"])
    (plan,) = cast("Sequence[LayerPlan]", from_json([entry | {"mapping": given["mapping"]}]))
    if not is_legal(plan.shape, plan.mapping, budget.residual):
        raise Refusal(f"its mapping for {name} is illegal")
    _check_budget(plan, budget.streamed, arch, budget.words)
    if (counted := _cost(plan, name, arch)) != cost:
        raise Refusal(f"its mapping for {name} costs {amount(counted)}, not {amount(cost)}")
    if given["proven"] != (least == cost):
        raise Refusal(f"its {name} are said to be {'' if given['proven'] else 'not '}proven")
    fewest = min(cost, _least_cost(COSTS[name](plan.shape, arch, budget), cost))
    if not 0 <= least <= fewest:
        raise Refusal(f"some mapping may cost {amount(fewest)} {name}, less than {amount(least)}")
    return f"    {COST_TEXT[name]} {amount(cost)}, none below {amount(least)}: {_verdict(cost, least)}"


def _check_budget(plan: LayerPlan, streamed: Set[str], arch: Arch, budget: int) -> int:
    """The GLB words of a mapping. Raises Refusal if it streams other operands, or exceeds the budget."""
    moves = {stage.operand for stage in plan.mapping.stages if stage.memory == "glb"} & {"ifmap", "output", "residual"}
    if moves != streamed or (words := glb_words(plan.shape, arch, plan.mapping)) > budget:
        raise Refusal(f"its mapping streams {', '.join(sorted(moves)) or 'nothing'} and must fit {budget} words")
    return words


def _verdict(figure: float, least: float) -> str:
    """What a figure is, of all mappings of the layer alone in its GLB budget."""
    if figure == least:
        return "the best of the layer alone"
    if not least:
        return "not proven"
    return f"at most {ceil(1000 * (figure - least) / least) / 10:.1f} % above the best"  # rounded up, as it is a bound


def _cost(plan: LayerPlan, name: str, arch: Arch) -> float:
    """What a mapping costs: DRAM words, or energy."""
    counters = operand_traffic(plan.shape, plan.mapping, arch, plan.residual).counters()
    return energy(counters, prices_of(name, arch))["total"]
