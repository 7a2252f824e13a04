"""How a group runs, its gain, its limit, and what is proven of it: `--explain` of a group, or of a layer in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cnncc.arch.model import Arch
from cnncc.driver.group_text import gain, nearest
from cnncc.errors import plural
from cnncc.estimate.explain import busy_and_limit
from cnncc.estimate.mapped_program import Program
from cnncc.mapper.cached_search import searched
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapping.groups import LOAD
from cnncc.mapping.mapping import Mapping as Nest
from cnncc.mapping.strips import is_meant, is_of_strip, split_strip, strip_count
from cnncc.model.group_bounds import least_group_cycles, least_group_words
from cnncc.model.group_schedule import GroupPlan, bodies_of
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._scheduling.group_report import stripes_of
from cnncc.passes._scheduling.layer_groups import ring_words
from cnncc.passes._scheduling.stripes import stripe_shape


def group_of(program: Program, label: str) -> GroupPlan | None:
    """The group of this label, or with a layer of this label; of strips the first. None where there is none."""
    named = [
        (plan, name) for plan in program.groups().values() for name in (plan.label, *(o.label for o in plan.group))
    ]
    exact = (plan for plan, name in named if is_of_strip(name, label))
    return next(exact, next((plan for plan, name in named if split_strip(name)[0] == label), None))


def explain_group(program: Program, label: str) -> dict[str, Any]:
    """What `--json` has of it. A layer or a load in the group has the group's cycles; `member` names it."""
    plan = group_of(program, label)
    assert plan is not None
    bodies, names = bodies_of(plan, program.arch), [own.label for own in plan.group]
    return {
        "group": plan.label,
        "strips": sum(map(strip_count, _strips(program, plan.label))),
        "member": next((name for name in names if is_meant(name, label)), None),
        "steps": sum(body.steps for body in bodies),
        "bodies": len(bodies),
        "rings": {own.label: ring_words(own) for own in plan.group if own.keeps},
        "stripes": {layer.label: _stripe(plan, layer, program.arch) for layer in plan.layers},
        "least": {
            "cycles": least_group_cycles(plan, program.arch),
            "dram_words": least_group_words(plan, program.arch),
        },
    }


def _strips(program: Program, label: str) -> list[str]:
    """The labels of the groups of strips that a group is one of; none if it has all columns."""
    name, strip = split_strip(label)
    return [each for each in program.groups() if strip and split_strip(each)[0] == name]


def _stripe(group: GroupPlan, plan: LayerPlan, arch: Arch) -> dict[str, int] | None:
    """Cycles of a full stripe of a layer by itself, operands in the GLB, and the fewest of any mapping of it."""
    own = next(own for own, layer in group.plans if layer is plan)
    shape = stripe_shape(plan.shape, own.rows)
    once = [stage for stage in plan.mapping.glb_stages.values() if not stage.depth]
    # The nest of a stripe begins inside the loop over stripes.
    held = [replace(stage, depth=stage.depth - own.depth) for stage in plan.mapping.stages if stage.memory == "rf"]
    alone = LayerPlan(
        plan.label, shape, Nest(plan.mapping.loops[own.depth :], (*once, *held)), plan.residual, PREFETCHED
    )
    best = searched(SearchTask(shape, arch, GlbBudget(arch.glb.words, residual=plan.residual)))
    return {"cycles": layer_cycles(alone, arch), "least": best.least} if best else None


def as_text(estimate: Mapping[str, Any], program: Program) -> Iterator[str]:
    """How it runs, what it gains, what is proven. estimate: with what `explain_group` returns as `explain`."""
    explanation = estimate["explain"]
    label, member = explanation["group"], explanation["member"]
    layer = estimate["layers"][label]
    members = layer["members"]
    if member:
        yield f"{member}: in the group {label}; its cycles are the group's, as several layers are under way at a time"
    steps, bodies = explanation["steps"], explanation["bodies"]
    if explanation["strips"]:
        yield (
            f"{split_strip(label)[0]}: {explanation['strips']} strips of columns run one after the other; this is "
            f"{label}"
        )
    one = "strip" if strip_count(label) > 1 else "image"
    loads = sum(each["kind"] == LOAD for each in members.values())
    of = f"{plural(len(members) - loads, 'layer')}{' and a load' if loads else ''}"
    yield f"{label}  group of {of}, {plural(steps, 'step')} in {plural(bodies, 'hardware loop')} for each {one}"
    words = explanation["rings"]
    for name, each in members.items():
        ring = f", ring of {plural(each['keeps'], 'row')}: {words[name]:,} words" if each["keeps"] else ""
        first = f", the first has {each['first']}" if each["first"] != each["rows"] else ""
        yield f"  {name}: {each['kind']}, {stripes_of(each['rows'])}{first}, delay {each['delay']}{ring}"
        if "mapping" in each:
            yield f"    {each['mapping']}"
            yield from _of_stripe(explanation["stripes"][name])
    yield from busy_and_limit(label, layer)
    chosen = program.chosen
    for each in (each for each in (chosen.groups if chosen else ()) if each.group == split_strip(label)[0]):
        yield f"  {'all strips: ' if explanation['strips'] else ''}{gain(each)}"
        if each.nearest and chosen:
            yield f"  {nearest(each.nearest, chosen.network)}"
    least = explanation["least"]
    yield (
        f"  proven: a group of these layers takes at least {least['cycles']:,} cycles and {least['dram_words']:,} DRAM "
        f"words, by operations and words that move once"
    )
    yield (
        "  not proven: that no other stripes or rings of these layers are better, nor other groups; a few are tried "
        "(docs/groups.md)"
    )


def _of_stripe(stripe: Mapping[str, int] | None) -> Iterator[str]:
    """What is proven of a stripe by itself."""
    if stripe:
        cycles, least = stripe["cycles"], stripe["least"]
        what = "proven the fewest" if least == cycles else f"none takes fewer than {least:,}"
        yield f"    a stripe by itself: {cycles:,} cycles, of all its mappings {what}"
