"""Certificates of a network's mappings: for each layer the best cycles, and a lower bound for all mappings.

A check takes the layers from the model, mappings and numbers from the file, and uses no code of the search
(`whole_space.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from xdsl.dialects.func import FuncOp

from cnncc.arch.model import Arch, arch_text
from cnncc.certificate import whole_space
from cnncc.dialects.nest import LayerOp
from cnncc.driver.pipeline import ASSIGN, Compilation
from cnncc.driver.sources import CompileOptions, start_before_programs
from cnncc.errors import Refusal
from cnncc.estimate.mapped_network import budgets, streamed
from cnncc.model.layer_schedule import LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.plan_json import as_json, from_json
from cnncc.passes._scheduling.glb_words import glb_words
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape
from cnncc.util.progress import Progress

Json = dict[str, Any]
Known = dict[tuple[LayerShape, bool, int, int], whole_space.Seen]  # by shape, residual, GLB budget and least


def _start(source: Path, options: CompileOptions, progress: Progress, mapped: bool) -> tuple[Compilation, FuncOp]:
    """A compilation up to its layers. mapped: whether they get their mappings."""
    compilation, todo = start_before_programs(source, options)
    compilation.ctx.progress = progress
    names = [step.name for step in todo]
    if ASSIGN not in names:
        raise Refusal(f"{source}: its layers are mapped already: a certificate is of a model, or of IR before {ASSIGN}")
    for step in todo[: names.index(ASSIGN) + mapped]:
        compilation.step(step)
    return compilation, next(op for op in compilation.module.ops if isinstance(op, FuncOp))


def certificate(source: Path, options: CompileOptions, progress: Progress) -> Json:
    """The certificate of a network: an entry for each layer that the search maps. Raises Refusal as `compile` does."""
    from cnncc.mapper.cached_search import searched

    compilation, func = _start(source, options, progress, mapped=True)
    arch, moves, entries = compilation.settings.arch, streamed(func), list[Json]()
    todo = budgets(func, arch, moves)
    for done, (layer, budget) in enumerate(todo.items()):
        if layer.kind.data == "copy":
            continue
        shape = layer_shape(layer)
        progress(f"proving {label_of(layer)}", done, len(todo))
        best = searched(shape, arch, budget)
        if best is None:
            continue
        least = best.least
        if budget.streamed or not whole_space.weights_fit(shape, arch, budget.words):
            least = min(least, whole_space.streamed_least(shape, arch, budget.streamed, budget.words))
        plan = LayerPlan(label_of(layer), shape, best.mapping, budget.residual, whole_space.PREFETCHED)
        entries.append(
            as_json([plan])[0]
            | {"budget": budget.words, "streamed": sorted(budget.streamed), "cycles": best.cycles, "least": least}
            | {"bounded": best.bounded, "run": best.run, "proven": least == best.cycles}
        )
    moved = {label_of(layer): sorted(some) for layer, some in moves.items() if some}
    return {"source": source.name, "array": arch_text(arch), "moves": moved, "layers": entries}


def check(source: Path, file: Path, options: CompileOptions, progress: Progress) -> Iterator[str]:
    """A line for each layer of a certificate. Raises Refusal, with the first layer whose entry is wrong."""
    try:
        given = json.loads(file.read_text())
        entries, array = cast("list[Json]", given["layers"]), given["array"]
        moves = {str(label): frozenset(map(str, some)) for label, some in given["moves"].items()}
        plans = cast("Sequence[LayerPlan]", from_json(entries))
    except OSError as error:
        raise Refusal(f"{file}: cannot be read: {error.strerror}") from error
    except KeyError as error:
        raise Refusal(f"{file}: no certificate: there is no {error}") from error
    except (ValueError, TypeError, AttributeError, RecursionError, Refusal) as error:
        raise Refusal(f"{file}: no certificate: {error}") from error
    compilation, func = _start(source, options, progress, mapped=False)
    arch = compilation.settings.arch
    if array != arch_text(arch):
        raise Refusal(f"{file}: it is of another array than {arch.name}")
    layers = {label_of(op): op for op in func.walk() if isinstance(op, LayerOp)}
    limits, known = budgets(func, arch, {op: moves.get(label, frozenset()) for label, op in layers.items()}), Known()
    for done, (plan, entry) in enumerate(zip(plans, entries, strict=True)):
        progress(f"checking {plan.label}", done, len(plans))
        try:
            yield _checked(plan, entry, arch, layers, limits, known)
        except Refusal as refusal:
            raise Refusal(f"{file}: layer '{plan.label}': {refusal}") from refusal


def _checked(
    plan: LayerPlan, entry: Json, arch: Arch, layers: Mapping[str, LayerOp], limits: Mapping[LayerOp, GlbBudget],
    known: Known,
) -> str:  # fmt: skip
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
    if budget != limits[layer].words:
        raise Refusal(f"its GLB budget is {limits[layer].words} words, not {budget}")
    moves = {stage.operand for stage in plan.mapping.stages if stage.memory == "glb"} & {"ifmap", "output", "residual"}
    if moves != set(streamed) or (words := glb_words(shape, arch, plan.mapping)) > budget:
        raise Refusal(f"its mapping streams {', '.join(sorted(moves)) or 'nothing'} and must fit {budget} words")
    cycles = layer_cycles(plan, arch)
    if cycles != entry["cycles"]:
        raise Refusal(f"its mapping takes {cycles:,} cycles, not {entry['cycles']:,}")
    if entry["proven"] != (least == cycles):
        raise Refusal(
            f"it is said to be {'' if entry['proven'] else 'not '}proven, with {cycles:,} and {least:,} cycles"
        )
    if streamed or not whole_space.weights_fit(shape, arch, budget):
        bound = whole_space.streamed_least(shape, arch, streamed, budget)
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
    what = "the best" if entry["proven"] else f"at most {100 * (cycles / least - 1):.1f} % above the best"
    return f"  {plan.label}: {cycles:,} cycles, none below {least:,} ({how}): {what}; {words:,} of {budget:,} words"
