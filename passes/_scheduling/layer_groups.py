"""A group of layers with the nests of its stripes: its plan, its words in the GLB, its options. No pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Map
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.arch.model import Arch, Energy
from cnncc.dialects.nest import (
    ColumnsOp,
    GroupOp,
    JoinOp,
    LayerOp,
    LoadOp,
    YieldOp,
    build_nest,
    image_shape,
    reads_of_values,
)
from cnncc.errors import Refusal, one_line
from cnncc.mapper.costs import cost_of
from cnncc.mapper.least_cost import least_cost
from cnncc.mapping.groups import STREAMED, GroupLayer, RowRead, group_problem, load_of_rows
from cnncc.mapping.mapping import Mapping, Sizes, Stage
from cnncc.model.core_steps import waits_on_core
from cnncc.model.group_schedule import GroupPlan, group_plan
from cnncc.model.group_steps import check_stages, group_bodies
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._programs.layer_records import ActivationLayout
from cnncc.passes._programs.layer_sums import partial_sums
from cnncc.passes._programs.tensors import pixels_in_turn
from cnncc.passes._scheduling.glb_words import stage_sizes
from cnncc.passes._scheduling.loaded_inputs import load_label, loaded_values, rows_read
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape, rows_apart
from cnncc.passes._scheduling.schedule_file import FLAGS, GivenGroup
from cnncc.passes._scheduling.stripes import (
    kind_in_group,
    stripe_rows,
    with_least_delays,
    with_least_rings,
    with_least_rows,
)

GROUPS = "nest.groups"  # module attribute: the groups that `nest-assign-mapping` has chosen, for `nest-group`
EXAMPLE = 'a list such as [{layers = ["conv1", "conv2"], rows = 2}]'


@dataclass(frozen=True)
class LayerGroup:
    """Layers in the order of the program, and the values that come for them row by row from DRAM.

    - label: as `nest-group` names it
    - shapes: of the layers
    - plans: of the loads, then what each layer is, with the nest of its stripes
    - strips: the groups that it runs as one after the other, each on some columns, if rings of all do not fit
    """

    label: str
    layers: tuple[LayerOp, ...]
    shapes: tuple[LayerShape, ...]
    plans: tuple[GroupLayer, ...]
    loaded: tuple[SSAValue, ...] = ()
    strips: tuple[LayerGroup, ...] = ()

    @property
    def parts(self) -> tuple[LayerGroup, ...]:
        """The groups that the program has of it: its strips, or itself."""
        return self.strips or (self,)

    @property
    def loads(self) -> tuple[GroupLayer, ...]:
        """What comes row by row from DRAM."""
        return self.plans[: len(self.loaded)]

    @property
    def of_layers(self) -> tuple[GroupLayer, ...]:
        """The plans of the layers alone."""
        return self.plans[len(self.loaded) :]

    @property
    def members(self) -> Iterator[tuple[LayerOp, LayerShape, GroupLayer]]:
        """The layers with their shapes and plans."""
        return zip(self.layers, self.shapes, self.of_layers, strict=True)

    @property
    def mappings(self) -> dict[LayerOp, Mapping]:
        """The nest of each layer, as `nest-group` takes it: a value that is to be loaded is staged."""
        return {layer: self._with_stages(plan) for layer, _, plan in self.members}

    def _with_stages(self, plan: GroupLayer) -> Mapping:
        loaded = [read.operand for read in plan.reads if self.plans[read.producer].is_load]
        stages = [*plan.mapping.stages, *(Stage(operand, "glb", plan.depth, 2) for operand in loaded)]
        return Mapping(plan.mapping.loops, tuple(sorted(stages, key=lambda stage: (stage.depth, stage.memory == "rf"))))

    @property
    def options(self) -> GivenGroup:
        """The options of `nest-group` that make this group of layers that run stripe by stripe."""
        ahead = self.of_layers[0].delay  # how far loads run ahead of the first layer
        least = with_least_delays(self.plans)[len(self.loads) :]
        names = tuple(plan.label for plan in self.of_layers)
        delays = tuple(plan.delay - ahead for plan in self.of_layers)
        is_least = [plan.delay for plan in least] == [plan.delay for plan in self.of_layers]
        rows, rowwise = self.plans[-1].rows, any(plan.first for plan in self.plans)
        # `loads = false` is said only where `nest-group` would have a load.
        loads = bool(self.loads) or not next(loaded_values(self.layers, rows, self.mappings))
        leaving = self.plans[-1].mapping.glb_stages.get("output")
        single = leaving is not None and leaving.buffers == 1
        columns = self.strips[0].plans[-1].sizes.w if self.strips else 0
        given = () if is_least else delays
        return GivenGroup(names, rows, given, rowwise=rowwise, columns=columns, loads=loads, single=single)

    def plan(self) -> GroupPlan:
        """As the cost model takes it, of a group without strips."""
        plans = [
            LayerPlan(plan.label, shape, plan.mapping, layer.residual is not None)
            for layer, shape, plan in self.members
        ]
        return group_plan(self.label, plans, self.plans)

    def words(self, arch: Arch) -> dict[str, int]:
        """Words in the GLB of all rings, buffers and partial sums, by name; of the strip that has the most."""
        return max((part._own_words(arch) for part in self.parts), key=lambda words: sum(words.values()))

    def _own_words(self, arch: Arch) -> dict[str, int]:
        words = {f"{plan.label} ring": ring_words(plan) for plan in self.plans if plan.keeps}
        for plan, sizes in zip(self.of_layers, self.buffers(arch), strict=True):
            words |= {f"{plan.label} {operand}": size for operand, size in sizes.items()}
        return words

    def buffers(self, arch: Arch) -> list[dict[str, int]]:
        """Words in the GLB of the buffers of each layer by operand, and of its partial sums."""
        result = list[dict[str, int]]()
        for layer, shape, plan in self.members:
            sizes = stage_sizes(shape, arch, plan.mapping)
            if sizes.pop("sums", 0):
                output = _output(layer, shape.sizes, plan.keeps)
                sizes["sums"] = arch.words_per_sum * partial_sums(shape, plan.mapping, output)
            result.append(sizes)
        return result

    def most_sums(self, arch: Arch) -> int:
        """Words of partial sums in the GLB if each layer that adds up channels has some."""
        sums = (
            sum(_result_words(plan) for _, shape, plan in part.members if shape.is_mac and not shape.channelwise)
            for part in self.parts
        )
        return arch.words_per_sum * max(sums)

    @property
    def has_head(self) -> bool:
        """Whether it begins with transfers, behind which those for the next layer may stand."""
        stages = [stage for plan in self.plans for stage in plan.mapping.glb_stages.values()]
        return any(not stage.depth or (stage.operand != "output" and stage.buffers > 1) for stage in stages)

    def cost(self, arch: Arch, costs: Energy) -> float:
        """What its layers and its loads cost, in all strips."""
        return sum(part._own_cost(arch, costs) for part in self.parts)

    def _own_cost(self, arch: Arch, costs: Energy) -> float:
        of_layers = (
            cost_of(shape, plan.mapping, arch, layer.residual is not None, costs, plan.first)
            for layer, shape, plan in self.members
        )
        return sum(of_layers) + self._cost_of_loads(costs)

    def _cost_of_loads(self, costs: Energy) -> float:
        words = sum(prod(load.sizes.of(dim) for dim in "nkhw") for load in self.loads)
        return words * (costs.dram_read + costs.glb_write)

    def least_cost(self, arch: Arch, costs: Energy) -> float:
        """A lower bound of the cost, whatever the mappings of stripes are, of a group without strips."""
        of_layers = list[float]()
        for layer, shape, plan in self.members:
            streamed = frozenset(plan.mapping.glb_stages).intersection(STREAMED)
            budget = GlbBudget(arch.glb.words, streamed, bool(layer.residual))
            of_layers.append(least_cost(shape, arch, budget, costs))
        return sum(of_layers) + self._cost_of_loads(costs)

    def check(self) -> None:
        """Raises Refusal where the array has no program for the group."""
        residuals = [layer.residual is not None for layer in self.layers]
        for plans in {part.plans[0].sizes.n: part.plans for part in self.parts}.values():  # columns change no rule
            if problem := group_problem(plans):
                raise Refusal(problem)
            check_stages(plans, [False] * len(self.loads) + residuals)
            group_bodies(plans, [False] * len(plans))

    def check_on_core(self) -> None:
        """Raises Refusal where a core has no program for the group."""
        if problem := group_problem(self.plans):
            raise Refusal(problem)
        waits_on_core(self.plans)


def _output(layer: LayerOp, sizes: Sizes, ring: int) -> ActivationLayout:
    """Where the results lie that a layer of a group has at a time, of so many rows where they are a ring."""
    joins = (use.operation for use in layer.result.uses if isinstance(use.operation, JoinOp))
    joined = next(joins, None)  # a strip writes into a whole result
    whole = joined.result if joined else layer.result
    (images, _, rows, cols), (down, across) = image_shape(whole.type), pixels_in_turn(whole)
    plane, pitch, column = down * rows * across * cols, down * across * cols, across if across > 1 else 0
    image = sizes.w * across if sizes.n > images else 0  # images that are strips lie side by side
    return ActivationLayout("", image, plane, pitch, ring, column=column)


def _result_words(plan: GroupLayer) -> int:
    """Words of the part of a layer's result that lies in the GLB at a time."""
    rows = plan.keeps or (plan.rows if "output" in plan.mapping.glb_stages else plan.sizes.n * plan.sizes.h)
    return rows * plan.sizes.w * plan.sizes.k


def ring_words(plan: GroupLayer) -> int:
    """Words of a layer's ring."""
    return plan.keeps * plan.sizes.w * plan.sizes.k


def groups_attr(groups: Sequence[GivenGroup]) -> ArrayAttr[DictionaryAttr]:
    """As the module has them: `[{layers = ["conv1", "conv2"], rows = 2}]`, with options that are not the usual ones."""
    return ArrayAttr(
        DictionaryAttr(
            {
                "layers": ArrayAttr(map(StringAttr, group.layers)),
                "rows": IntegerAttr(group.rows, i64),
                **({"columns": IntegerAttr(group.columns, i64)} if group.columns else {}),
                **({"delays": ArrayAttr(IntegerAttr(delay, i64) for delay in group.delays)} if group.delays else {}),
                **{
                    name: BoolAttr.from_bool(getattr(group, name))
                    for name, default in FLAGS.items()
                    if getattr(group, name) != default
                },
            }
        )
        for group in groups
    )


def groups_of(attribute: Attribute) -> list[GivenGroup]:
    """The reverse. Raises ValueError for what is no list of groups."""
    groups = list[GivenGroup]()
    for entry in _items(attribute):
        keys: Map[str, Attribute] = entry.data if isinstance(entry, DictionaryAttr) else {}
        names = [name.data for name in _items(keys.get("layers")) if isinstance(name, StringAttr)]
        delays = [_number(delay) for delay in _items(keys.get("delays"))]
        flags = {name: keys[name] == BoolAttr.from_bool(True) for name in FLAGS if name in keys}
        columns = _number(keys["columns"]) if "columns" in keys else 0
        given = GivenGroup(tuple(names), _number(keys.get("rows")), tuple(delays), columns=columns)
        given = replace(given, **flags)
        if groups_attr([given]).data[0] != entry:
            given = replace(given, rows=-1)  # keys or values that are none
        groups.append(given)
    if not groups or any(min(group.rows, group.columns, *group.delays) < 0 for group in groups):
        raise ValueError(f"expected {EXAMPLE}, not {one_line(str(attribute), 80)}")
    return groups


def _items(attribute: Attribute | None) -> Sequence[Attribute]:
    return attribute.data if isinstance(attribute, ArrayAttr) else ()


def _number(attribute: Attribute | None) -> int:
    return attribute.value.data if isinstance(attribute, IntegerAttr) else -1


def check_stripe(rows: int, last: LayerOp) -> None:
    """A stripe is some rows of the last layer's result, at most all of them. Raises Refusal."""
    height = last.sizes.data.h
    if not 1 <= rows <= height:
        raise Refusal(f"stripes of {rows} rows: rows is 1 to {height}, all of the last layer, '{label_of(last)}'")


def heights(layers: Sequence[LayerOp], rows: int, loaded: Sequence[SSAValue] = (), several: bool = False) -> list[int]:
    """Rows of a stripe of each value that is loaded and of each layer, `rows` for the last one.

    several: see `stripe_rows`. Raises Refusal where layers need different ones.
    """
    names = [*(load_label(value, layers) for value in loaded), *map(label_of, layers)]
    sizes = [*(rows_read(value, layers) for value in loaded), *(layer.sizes.data.h for layer in layers)]
    return stripe_rows(names, sizes, _reads(layers, loaded), rows, several)


def _reads(layers: Sequence[LayerOp], loaded: Sequence[SSAValue]) -> list[tuple[RowRead, ...]]:
    values = [*loaded, *(layer.result for layer in layers)]
    return [*((),) * len(loaded), *(reads_of_values(layer, values) for layer in layers)]


def ring_operands(layer: LayerOp, layers: Sequence[LayerOp], loaded: Sequence[SSAValue] = ()) -> set[str]:
    """The operands of a layer that lie in rings of its group."""
    reads = reads_of_values(layer, [*loaded, *(each.result for each in layers)])
    is_read = any(reads_of_values(other, [layer.result]) for other in layers)
    return {read.operand for read in reads} | ({"output"} if is_read else set[str]())


def with_rings(
    layers: Sequence[LayerOp],
    mappings: Sequence[Mapping],
    loaded: Sequence[SSAValue] = (),
    slack: Sequence[int] = (),
    rowwise: bool = False,
) -> LayerGroup:
    """The group of layers with these nests, with the least rings.

    loaded: values that come row by row. slack: stripes that each layer waits longer. rowwise: delays are in rows.
    """
    reads = _reads(layers, loaded)
    # GROUP-1: the loop over stripes is the outermost one, or stands directly inside that over images.
    rows = mappings[-1].loops[1 if layers[-1].sizes.data.n > 1 else 0].step
    plans = list[GroupLayer]()
    # `heights` refuses several results that leave. Groups of cores have these, and no loads.
    for value, step in zip(loaded, heights(layers, rows, loaded) if loaded else (), strict=False):
        n, channels, _, cols = image_shape(value.type)
        plans.append(load_of_rows(load_label(value, layers), (n, channels, rows_read(value, layers), cols), step))
    for layer, mapping, own in zip(layers, mappings, reads[len(loaded) :], strict=True):
        leaves = not any(read.producer == len(plans) for others in reads for read in others)
        kind, sizes = kind_in_group(layer), layer.sizes.data
        plans.append(GroupLayer(label_of(layer), kind, sizes, mapping, 0, reads=own, leaves=leaves))
    waits = [*[0] * len(loaded), *slack] if slack else ()
    plans = with_least_rows(plans) if rowwise else with_least_delays(plans, waits)
    plans = with_least_rings(plans, [*[1] * len(loaded), *map(rows_apart, layers)])
    shapes = (replace(layer_shape(layer), kind=kind_in_group(layer)) for layer in layers)
    label = f"{label_of(layers[0])}..{label_of(layers[-1])}"
    return LayerGroup(label, tuple(layers), tuple(shapes), tuple(plans), tuple(loaded))


def group_op(label: str, planned: LayerGroup) -> GroupOp:
    """Moves the layers into a group, which stands where the last one stood."""
    layers = planned.layers
    last, inside = layers[-1], Block()
    leaving = [layer.result for layer, plan in zip(layers, planned.of_layers, strict=True) if plan.leaves]
    group = GroupOp.create(
        properties={"label": StringAttr(label)},
        result_types=[value.type for value in leaving],
        regions=[Region(inside)],
    )
    Rewriter.insert_op(group, InsertPoint.before(last))
    for value, output in zip(leaving, group.outputs, strict=True):
        value.replace_all_uses_with(output)
    for value, plan in zip(planned.loaded, planned.loads, strict=True):
        load = _load_op(value, plan)
        inside.add_op(load)
        value.replace_uses_with_if(load.result, lambda use: _reads_in(use.operation, layers))
    results = {op.result for op in (*layers, *inside.ops) if isinstance(op, LayerOp | LoadOp)}
    for layer, plan in zip(layers, planned.of_layers, strict=True):
        for value in layer.operands:
            # Columns of a value that has become one of the group's: they are taken inside.
            if isinstance(columns := value.owner, ColumnsOp) and columns.x in results:
                columns.detach()
                inside.add_op(columns)
        layer.detach()
        layer.kind = StringAttr(kind_in_group(layer))
        layer.delay, layer.prefetched, layer.mapping = IntegerAttr(plan.delay, i64), None, None
        layer.keeps = IntegerAttr(plan.keeps, i64) if plan.keeps else None
        layer.first = IntegerAttr(plan.first, i64) if plan.first else None
        layer.detach_region(layer.body)
        layer.add_region(build_nest(plan.mapping))
        inside.add_op(layer)
    inside.add_op(YieldOp.create(operands=leaving))
    return group


def _reads_in(op: Operation, layers: Sequence[LayerOp]) -> bool:
    """Whether an operation is one of the layers, or columns for them."""
    return op in layers or (isinstance(op, ColumnsOp) and all(use.operation in layers for use in op.result.uses))


def _load_op(value: SSAValue, plan: GroupLayer) -> LoadOp:
    numbers = {"rows": plan.rows, "delay": plan.delay, "keeps": plan.keeps}
    if plan.first:
        numbers["first"] = plan.first
    properties = {name: IntegerAttr(number, i64) for name, number in numbers.items()}
    return LoadOp.create(
        operands=[value], properties={"label": StringAttr(plan.label), **properties}, result_types=[value.type]
    )
