"""What the passes on `nest.layer` share: choosing layers and giving them another nest."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import NoReturn

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from cnncc.context import note
from cnncc.dialects.cnn import shape
from cnncc.dialects.nest import GroupOp, LayerOp, build_nest, group_layers, image_shape, label_of, mapping_of, operands
from cnncc.errors import Finding, Refusal
from cnncc.mapping.groups import group_problem
from cnncc.mapping.mapping import DIMS, Malformed, Mapping, Sizes, mapping_problem, without_single
from cnncc.model.layer_shape import LayerShape, reach
from cnncc.passes._programs.tensors import image_step
from cnncc.passes._scheduling.rewrites import Missing
from cnncc.window import Window

LOOP = re.compile(f"([{''.join(DIMS)}])([1-9][0-9]{{0,3}})?")


def listed(option: tuple[str, ...]) -> list[str]:
    """The names of an option, written as a list `h,c` or as a text `"h,c"`."""
    return [name.strip() for part in option for name in part.split(",")]


def loop_name(name: str) -> tuple[str, int | None]:
    """Dimension and number of a loop that an option names: `h2` is the second over h from outside, `h` has no number.

    Raises Refusal where it is no name.
    """
    if match := LOOP.fullmatch(name):
        return match[1], int(match[2]) if match[2] else None
    raise Refusal(f"'{name}' names no loop: a dimension, perhaps with a number, h or h2")


def chosen_layers(module: ModuleOp, label: str | None) -> list[LayerOp]:
    """All layers of `module`, or the one called `label`. Raises Refusal where there is none."""
    layers = [op for op in module.walk() if isinstance(op, LayerOp)]
    if label is None:
        return layers
    if chosen := [layer for layer in layers if layer.label and layer.label.data == label]:
        return chosen
    raise Refusal(f"there is no layer '{label}'; layers: {', '.join(map(label_of, layers)) or 'none'}")


def reschedule(
    name: str,
    ctx: Context,
    module: ModuleOp,
    label: str | None,
    change: Callable[[LayerOp, Mapping], Mapping | None],
    by_hand: bool = True,
) -> None:
    """Give each chosen layer the nest that `change` makes of its present one (None: as it is).

    by_hand: options say what to change. No layer that has it is then an error; else, and where nothing changes, the
    user gets a note. Layers without it stay as they are, if others have it.

    Raises Refusal, naming the pass and the layer, where `change` does, where the nest would break a rule, or where a
    loop or stage is none, as a stage of 0 buffers.
    """
    layers, lacking = chosen_layers(module, label), list[Finding]()
    asked = changed = False
    for layer in layers:
        before = mapping_of(layer)
        try:
            mapping = change(layer, before)
            if mapping is None:
                continue
            asked = True
            if mapping == before:
                continue
            if problem := mapping_problem(mapping, layer.sizes.data, operands(layer)):
                raise Refusal(problem)
        except Missing as missing:
            lacking.append(Finding(str(missing), where=label_of(layer)))
            continue
        except (Refusal, Malformed) as refusal:
            raise Refusal(f"{name}: layer '{label_of(layer)}': {refusal}") from refusal
        changed = True
        layer.detach_region(layer.body)
        layer.add_region(build_nest(mapping))
        group = layer.parent_op()
        if isinstance(group, GroupOp) and (problem := group_problem(group_layers(group))):
            raise Refusal(f"{name}: group '{group.label.data}': {problem}")
    if by_hand and len(lacking) == len(layers):
        _refuse_all(name, lacking)
    if lacking:
        note(ctx, f"{name}: {'; '.join(f'{each.where}: {each.text}' for each in lacking)}: left as it is")
    elif not layers:
        note(ctx, f"{name}: nothing to do: the module has no nest.layer")
    elif not changed:
        why = "the nests have this form already" if asked else "no layer has a mapping"
        note(ctx, f"{name}: nothing to do: {why}")


def _refuse_all(name: str, lacking: Sequence[Finding]) -> NoReturn:
    """No layer has what an option names. Raises Refusal."""
    if not lacking:
        raise Refusal(f"{name}: the module has no nest.layer: cnn-to-nest makes them")
    if len(lacking) == 1:
        raise Refusal(f"{name}: layer '{lacking[0].where}': {lacking[0].text}")
    raise Refusal(f"{name}: no layer has what the options name", *lacking)


def goal_of(layer: LayerOp) -> Mapping | None:
    """The mapping that was decided for the layer, if one was, without loops that run once (MAP-1)."""
    goal = layer.mapping and layer.mapping.data
    return without_single(goal.loops, goal.stages, layer.sizes.data) if goal else None


def rows_apart(layer: LayerOp) -> int:
    """The distance in rows between rows that windows touch: more than 1 where a kernel of one row skips some."""
    return _rows_apart(layer.sizes.data, layer.window.data)


def _rows_apart(sizes: Sizes, window: Window) -> int:
    above, _, below, _ = window.pad
    return window.stride[0] if sizes.r == 1 and not above and not below else 1


def layer_shape(layer: LayerOp) -> LayerShape:
    """What the layer is to those who map it."""
    _, _, *image = image_shape(layer.ifmap.type)
    steps, sizes = layer.steps.data, layer.sizes.data
    params = bool(steps.bias) + bool(steps.scale)
    of = (layer.kind.data, sizes, layer.window.data, params)
    step = image_step(layer.result) if sizes.n > 1 else 0
    apart = step if step != prod(shape(layer.result.type)[1:]) else 0
    adds_others = sizes.n > 1 and layer.residual is not None and image_step(layer.residual) != step
    # A copy streams image by image where images lie apart: each of its operands then has steps of its own.
    residual_apart = adds_others and layer.kind.data != "copy"
    return touched(
        LayerShape(*of, image[0], image[1], steps.shuffle, steps.per_position, apart, residual_apart, bool(steps.table))
    )


def touched(shape: LayerShape) -> LayerShape:
    """A layer whose image has no rows and columns that no window touches."""
    sizes, apart = shape.sizes, _rows_apart(shape.sizes, shape.window)
    # Rows alone: a view says how far rows lie apart (`pitch`), but words of a row are always neighbours.
    window = replace(shape.window, stride=(shape.window.stride[0] // apart, shape.window.stride[1]))
    image = shape.ih, shape.iw
    sides = zip((sizes.h, sizes.w), (sizes.r, sizes.s), window.stride, window.dilation, window.pad, image, strict=False)
    ih, iw = (max(1, min(reach(n, taps, by, over) - pad, size)) for n, taps, by, over, pad, size in sides)
    return replace(shape, window=window, ih=ih, iw=iw)
