"""The parts of a network's program as JSON, which a binary's metadata keeps: `from_json` undoes `as_json`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import asdict
from typing import Any, cast

from cnncc.errors import Refusal
from cnncc.mapping.channels import Reader, Region
from cnncc.mapping.groups import KINDS, GroupLayer, RowRead, group_problem, load_of_rows
from cnncc.mapping.mapping import Mapping, Sizes, mapping_problem
from cnncc.mapping.text import parse, text
from cnncc.model.cores_plan import ChannelPlan, CoresPlan
from cnncc.model.cores_plan import problem as cores_problem
from cnncc.model.group_schedule import GroupPlan, group_plan
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan
from cnncc.model.layer_shape import LayerShape
from cnncc.model.legal import has_place_of_params, has_tokens
from cnncc.model.program_schedule import CopyPart, HostPart, Part
from cnncc.window import Window

Json = dict[str, Any]
MOST_NUMBER = 1 << 40  # words of a tensor are fewer
COPY = "copy"  # the kind of elementwise layers, beside KINDS
MOST_INDICES = 1 << 24  # of a dimension: with more an estimate takes hours


def as_json(parts: Sequence[Part]) -> list[Json]:
    """An entry for each part, by its kind: `copy`, `layer`, `group`, `cores`, `host`."""
    return [_entry(part) for part in parts]


def _entry(part: Part) -> Json:
    match part:
        case CopyPart():
            return {"copy": part.label, "direction": part.direction, "words": list(part.words)}
        case HostPart():
            return {"host": True}
        case CoresPlan():
            groups = [
                _entry(group) | {"place": asdict(place), "reads": [{"layer": at, **asdict(read)} for at, read in reads]}
                for group, place, reads in zip(part.groups, part.regions, part.reads, strict=True)
            ]
            channels = [asdict(channel) for channel in part.channels]
            sizes = {"image": part.image, "result": part.result, "height": part.height}
            return {"cores": part.label, "lag": part.lag, **sizes, "groups": groups, "channels": channels}
        case GroupPlan():
            layers = [(_entry(layer) if layer else _load(own)) | _in_group(own) for own, layer in part.plans]
            return {"group": part.label, "layers": layers}
        case LayerPlan(shape=shape):
            names = ("kind", "params", "ih", "iw", "shuffle", "per_position", "image", "residual_apart", "table")
            plain = {name: getattr(shape, name) for name in names}
            return {
                "layer": part.label,
                **plain,
                "sizes": vars(shape.sizes),
                "window": asdict(shape.window),
                "mapping": text(part.mapping, shape.sizes),
                "residual": part.residual,
                "prefetched": sorted(part.prefetched),
                "apart": part.apart,
            }


def _load(load: GroupLayer) -> Json:
    return {"load": load.label, "shape": [load.sizes.of(dim) for dim in "nkhw"], "rows": load.rows}


def _in_group(layer: GroupLayer) -> Json:
    reads = [asdict(read) for read in layer.reads]
    return {"delay": layer.delay, "keeps": layer.keeps, "reads": reads, "leaves": layer.leaves, "first": layer.first}


def from_json(entries: object) -> list[Part]:
    """The parts of entries. Raises Refusal for an entry that is no part."""
    if not isinstance(entries, list):
        raise Refusal("plan: is no list")
    return [_part(number, entry) for number, entry in enumerate(cast("list[object]", entries))]


def program_from_json(entries: object) -> list[Part]:
    """The parts of a whole program. Raises Refusal also for parts that are none together."""
    parts, labels = from_json(entries), set[str]()
    for number, (before, part) in enumerate(zip([HostPart(), *parts], parts, strict=False)):
        if isinstance(part, LayerPlan) and part.prefetched and isinstance(before, HostPart):
            raise Refusal(f"plan: entry {number} is prefetched, but no part of the program runs before it")
        if isinstance(part, CopyPart | LayerPlan | GroupPlan):
            if not part.label or part.label in labels:
                raise Refusal(f"plan: entry {number} is called '{part.label}', which is no name of its own")
            labels.add(part.label)
    return parts


def _part(number: int, value: object) -> Part:
    try:
        entry = cast("Json", value)
        if "copy" in entry:
            direction = {"in": "in", "out": "out"}[entry["direction"]]  # refuses others, by a KeyError
            return CopyPart(str(entry["copy"]), direction, tuple(map(_whole, entry["words"])))
        if "cores" in entry:
            return _cores(entry)
        return HostPart() if "host" in entry else _group(entry) if "group" in entry else _alone(entry)
    except (KeyError, TypeError, ValueError, AttributeError, Refusal) as error:
        why = error if isinstance(error, Refusal) else "a key is missing, or has a value of another kind"
        raise Refusal(
            f"plan: entry {number} is no part of a program: {why}; plans of other versions of cnncc are not read"
        ) from error


def _whole(value: Any) -> int:
    """A number of a plan. Raises ValueError for what is none, and Refusal for one that no program has."""
    if abs(number := int(value)) >= MOST_NUMBER:
        raise Refusal(f"a number of {MOST_NUMBER:,} or more")
    return number


def _cores(entry: Json) -> CoresPlan:
    sides = ("rows", "cols", "row0", "col0")
    plan = CoresPlan(
        str(entry["cores"]),
        _whole(entry["lag"]),
        tuple(map(_group, entry["groups"])),
        tuple(Region(**{side: _whole(group["place"][side]) for side in sides}) for group in entry["groups"]),
        tuple(tuple(Reader(_whole(own["layer"]), _read(own)) for own in group["reads"]) for group in entry["groups"]),
        tuple(
            ChannelPlan(str(channel["label"]), *(_whole(channel[name]) for name in ("keeps", "group", "layer")))
            for channel in entry["channels"]
        ),
        *(_whole(entry[name]) for name in ("image", "result", "height")),
    )
    if wrong := cores_problem(plan):
        raise Refusal(wrong)
    return plan


def _group(entry: Json) -> GroupPlan:
    plans, group = list[LayerPlan](), list[GroupLayer]()
    for own in entry["layers"]:
        delay, keeps, first = (_whole(own[name]) for name in ("delay", "keeps", "first"))
        leaves = bool(own["leaves"])
        if "load" in own:
            n, k, h, w = map(_whole, own["shape"])
            group.append(load_of_rows(str(own["load"]), (n, k, h, w), _whole(own["rows"]), delay, keeps, first))
            continue
        plans.append(plan := _layer(own))
        reads = [_read(read) for read in own["reads"]]
        # The rules of a group look layers up by these numbers.
        if any(not 0 <= read.producer < len(group) for read in reads):
            raise Refusal(f"layer {plan.label} reads a layer that is not before it")
        kind, sizes, mapping = plan.shape.kind, plan.shape.sizes, plan.mapping
        group.append(GroupLayer(plan.label, kind, sizes, mapping, delay, keeps, tuple(reads), leaves, first))
    if problem := group_problem(group) if plans else "a group without layers":
        raise Refusal(problem)
    return group_plan(str(entry["group"]), plans, group)


def _read(entry: Json) -> RowRead:
    numbers = {name: _whole(entry[name]) for name in ("producer", "extent", "stride", "pad")}
    if min(numbers["extent"], numbers["stride"]) < 1 or numbers["pad"] < 0:
        raise Refusal("extent and stride are at least 1, pad at least 0")
    return RowRead(operand=str(entry["operand"]), **numbers)


def _alone(entry: Json) -> LayerPlan:
    """A layer in no group, whose stages tokens can order."""
    plan = _layer(entry)
    if plan.shape.kind != COPY and not (has_tokens(plan.mapping) and has_place_of_params(plan.shape, plan.mapping)):
        raise Refusal(f"no tokens order the stages of {entry['mapping']}")
    return plan


def _layer(entry: Json) -> LayerPlan:
    sizes = Sizes(**{dim: _whole(size) for dim, size in entry["sizes"].items()})
    if max(vars(sizes).values()) > MOST_INDICES:
        raise Refusal(f"a dimension has {max(vars(sizes).values()):,} indices, the limit is {MOST_INDICES:,}")
    given = cast("Json", entry["window"])
    kernel, stride, pad, dilation = (
        tuple(map(_whole, given[name])) for name in ("kernel", "stride", "pad", "dilation")
    )
    window = Window(kernel, stride, pad, dilation, *(_whole(given[name]) for name in ("group", "fill", "zero")))
    numbers = {name: _whole(entry[name]) for name in ("params", "ih", "iw", "shuffle", "image")}
    flags = {name: bool(entry[name]) for name in ("per_position", "residual_apart")}
    # A program without a table may be of a time without tables.
    shape = LayerShape(str(entry["kind"]), sizes, window, **numbers, **flags, table=bool(entry.get("table", False)))
    if shape.kind not in (*KINDS, COPY):
        raise Refusal(f"no layer is of kind '{shape.kind}': they are {', '.join((*KINDS, COPY))}")
    if min(shape.params, shape.ih, shape.iw, shape.image) < 0:
        given = f"params {shape.params}, ih {shape.ih}, iw {shape.iw} and image {shape.image}"
        raise Refusal(f"{given} are at least 0")
    if shape.shuffle < 1 or sizes.k % shape.shuffle or sizes.k % window.group:
        raise Refusal(f"{sizes.k} channels of {window.group} groups, {shape.shuffle} of them shuffled")
    mapping = parse(str(entry["mapping"]), sizes)
    residual = bool(entry["residual"])
    operands = shape.operands(residual)
    if problem := mapping_problem(mapping, sizes, operands) or _lacking_stage(shape.kind, mapping, operands):
        raise Refusal(problem)
    prefetched = frozenset(map(str, entry["prefetched"]))
    if unknown := sorted(prefetched - PREFETCHED):
        raise Refusal(f"{unknown[0]} is prefetched: {' and '.join(sorted(PREFETCHED))} may be")
    return LayerPlan(str(entry["layer"]), shape, mapping, residual, prefetched, bool(entry["apart"]))


def _lacking_stage(kind: str, mapping: Mapping, operands: Set[str]) -> str | None:
    """A stage that all programs of layers of this kind have, and this mapping does not; None if it has all."""
    if kind == COPY:
        return None
    staged = {f"{stage.operand}@{stage.memory}" for stage in mapping.stages}
    needed = ("ifmap@rf", "weight@rf", "weight@glb", "params@glb")
    lacking = (stage for stage in needed if stage not in staged and stage.partition("@")[0] in operands)
    return next((f"a mapping without {stage}" for stage in lacking), None)
