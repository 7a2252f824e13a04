"""A group of layers with the nests of its stripes: its plan, its words in the GLB, its options. No pass."""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute

from cnncc.arch.model import Arch
from cnncc.dialects._groups import GroupLayer
from cnncc.dialects.nest import LayerOp, Mapping, reads_of_values
from cnncc.errors import one_line
from cnncc.model.group_schedule import GroupPlan, group_plan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.passes._programs.layer_sums import partial_sums
from cnncc.passes._scheduling.glb_words import stage_sizes
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape, rows_apart
from cnncc.passes._scheduling.schedule_file import GivenGroup
from cnncc.passes._scheduling.stripes import stripe_rows, with_least_delays, with_least_rings

GROUPS = "nest.groups"  # module attribute: the groups that `nest-assign-mapping` has chosen, for `nest-group`
EXAMPLE = 'a list such as [{layers = ["conv1", "conv2"], rows = 2}]'


@dataclass(frozen=True)
class LayerGroup:
    """Layers in the order of the program, and what each is in the group, with the nest of its stripes."""

    layers: tuple[LayerOp, ...]
    plans: tuple[GroupLayer, ...]

    @property
    def label(self) -> str:
        """As `nest-group` names it."""
        return f"{self.plans[0].label}..{self.plans[-1].label}"

    @property
    def mappings(self) -> dict[LayerOp, Mapping]:
        """The nest of each layer."""
        return {layer: plan.mapping for layer, plan in zip(self.layers, self.plans, strict=True)}

    @property
    def options(self) -> GivenGroup:
        """The options of `nest-group` that make this group of layers that run stripe by stripe."""
        names, delays = tuple(plan.label for plan in self.plans), tuple(plan.delay for plan in self.plans)
        least = tuple(plan.delay for plan in with_least_delays(self.plans))
        return GivenGroup(names, self.plans[-1].rows, () if delays == least else delays)

    def plan(self) -> GroupPlan:
        """As the cost model takes it."""
        plans = [
            LayerPlan(plan.label, layer_shape(layer), plan.mapping, layer.residual is not None)
            for layer, plan in zip(self.layers, self.plans, strict=True)
        ]
        return group_plan(self.label, plans, self.plans)

    def words(self, arch: Arch) -> dict[str, int]:
        """Words in the GLB of all rings, buffers and partial sums, by name."""
        words = dict[str, int]()
        for layer, plan in zip(self.layers, self.plans, strict=True):
            shape, name = layer_shape(layer), plan.label
            if plan.keeps:
                words[f"{name} ring"] = plan.keeps * plan.sizes.w * plan.sizes.k
            sizes = stage_sizes(shape, arch, plan.mapping)
            if sizes.pop("sums", 0):
                sizes["sums"] = arch.words_per_sum * partial_sums(shape, plan.mapping, ring=plan.keeps)
            words |= {f"{name} {operand}": size for operand, size in sizes.items()}
        return words


def groups_attr(groups: Sequence[GivenGroup]) -> ArrayAttr[DictionaryAttr]:
    """As the module has them: `[{layers = ["conv1", "conv2"], rows = 2}]`, with `delays` that are not the least."""
    return ArrayAttr(
        DictionaryAttr(
            {
                "layers": ArrayAttr(map(StringAttr, group.layers)),
                "rows": IntegerAttr(group.rows, i64),
                **({"delays": ArrayAttr(IntegerAttr(delay, i64) for delay in group.delays)} if group.delays else {}),
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
        groups.append(GivenGroup(tuple(names), _number(keys.get("rows")), tuple(delays)))
    if not groups or any(min(group.rows, *group.delays, 0) < 0 for group in groups):
        raise ValueError(f"expected {EXAMPLE}, not {one_line(str(attribute), 80)}")
    return groups


def _items(attribute: Attribute | None) -> Sequence[Attribute]:
    return attribute.data if isinstance(attribute, ArrayAttr) else ()


def _number(attribute: Attribute | None) -> int:
    return attribute.value.data if isinstance(attribute, IntegerAttr) else -1


def heights(layers: Sequence[LayerOp], rows: int) -> list[int]:
    """Rows of a stripe of each layer, `rows` for the last one. Raises Refusal where layers need different ones."""
    reads = [reads_of_values(layer, [each.result for each in layers]) for layer in layers]
    return stripe_rows([label_of(layer) for layer in layers], [layer.sizes.data.h for layer in layers], reads, rows)


def with_rings(layers: Sequence[LayerOp], mappings: Sequence[Mapping], slack: Sequence[int] = ()) -> LayerGroup:
    """The group of layers with these nests, with the least rings. slack: stripes that each layer waits longer."""
    reads = [reads_of_values(layer, [each.result for each in layers]) for layer in layers]
    plans = [
        GroupLayer(
            label_of(layer), layer.kind.data, layer.sizes.data, mapping, 0, reads=own,
            leaves=not any(read.producer == number for others in reads for read in others),
        )
        for number, (layer, mapping, own) in enumerate(zip(layers, mappings, reads, strict=True))
    ]  # fmt: skip
    plans = with_least_delays(plans, slack)
    plans = with_least_rings(plans, [rows_apart(layer) for layer in layers])
    return LayerGroup(tuple(layers), tuple(plans))
