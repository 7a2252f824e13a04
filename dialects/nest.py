"""Layers as loop nests: where scheduling happens.

A `nest.layer` computes one layer as a perfect nest of named loops over

    n batch   k output channel   c input channel   h w OUTPUT row and column   r s kernel row and column

around one `nest.mac`. A dimension may be split over several loops: `nest.for h step 4` counts tiles of four rows,
a further loop over h inside it runs over those four. The extent of a loop is the step of the nearest loop over the same
dimension around it, or the layer's size. If the step does not divide the extent, the last tile is smaller.
`cnncc/mapping/mapping.py` says how channels side by side share that tile.
`nest.par` runs its iterations side by side on the rows or columns of the array. Of several loops on one axis the inner
ones vary fastest. `keep` marks the loops of the box, which one macro-instruction of a PE runs.

    nest.layer %image weights @conv1.w … {
      nest.stage ifmap in glb buffers 1
      nest.for h step 4 {
        nest.par h on rows {
          nest.for c {
            nest.stage weight in rf buffers 2
            nest.stage ifmap in rf buffers 2
            nest.for s keep { nest.for r keep { nest.for k keep { nest.mac } } } } } } }

A stage at the head of a loop's body fetches, once per iteration, the slice of its operand that the loops inside need.
A stage of the output gathers what the loops inside compute; it goes back when they are done. What a layer means without
any tiling is `dialects/cnn.py`: out[n, k, h, w] = epilogue(Σ_{c, r, s} …). A dimension of size 1 needs no loop; the
nest that `cnn-to-nest` makes has none for it.

The rules that a nest keeps, NEST-1 to NEST-6, are in docs/mapping.md.

A `nest.group` runs several layers stripe by stripe. The rows between them lie in rings in the GLB. The rules that it
keeps, GROUP-1 to GROUP-4, are in docs/groups.md. `nest.cores` runs groups side by side, with channels between them. Its
rules, CHANNEL-1 to CHANNEL-5, are in docs/cores.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, SymbolRefAttr, TensorType, UnitAttr, i64
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import (
    BaseAttr,
    IRDLOperation,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsTerminator, NoTerminator
from xdsl.utils.exceptions import VerifyException

from cnncc.dialects._columns import ColumnsOp as ColumnsOp
from cnncc.dialects._columns import JoinOp as JoinOp
from cnncc.dialects._columns import columns_of as columns_of
from cnncc.dialects._mapping_attr import MappingAttr as MappingAttr
from cnncc.dialects._mapping_attr import OnLayer
from cnncc.dialects._nest_loops import ForOp, LoopAttr, MacOp, ParOp, StageAttr, StageOp, is_perfect, mapping_in
from cnncc.dialects._nest_loops import build_nest as build_nest
from cnncc.dialects._records import RecordAttr
from cnncc.dialects._verifiers import use_simple_verifiers
from cnncc.dialects.cnn import Steps, StepsAttr, WindowAttr, check_residual, check_shuffle, is_per_channel, shape
from cnncc.mapping.channels import Channel, Link, Reader, Region, channel_problem, image_tokens, regions_problem
from cnncc.mapping.groups import GroupLayer, RowRead, group_problem, load_of_rows, without_unread_rows
from cnncc.mapping.liveness import CoreChainData, liveness_problem
from cnncc.mapping.mapping import Mapping, Sizes, mapping_problem, rest_sets, tiled_together
from cnncc.window import Window


@irdl_attr_definition
class SizesAttr(RecordAttr[Sizes]):
    """Sizes of a layer: `#nest.sizes<n = 1, k = 16, c = 3, h = 8, w = 8, r = 3, s = 3>`."""

    name = "nest.sizes"


@irdl_op_definition
class LayerOp(IRDLOperation):
    """One layer as a loop nest. `kind` is mac, max or add (pools, each channel a group), or copy (elementwise).

    Sizes and window say what is computed, the region in which order and where. `prefetched`: its first weights
    and parameters come into the GLB while the layer before runs. `delay`, `keeps`, `first`: see `nest.group`.
    """

    name = "nest.layer"
    kind = prop_def(StringAttr)
    ifmap = operand_def(TensorType)
    residual = opt_operand_def(TensorType)
    weights = opt_prop_def(SymbolRefAttr)
    sizes = prop_def(SizesAttr)
    window = prop_def(WindowAttr)
    steps = prop_def(StepsAttr)
    mapping = opt_prop_def(MappingAttr)
    prefetched = opt_prop_def(UnitAttr)
    delay = opt_prop_def(IntegerAttr.constr(i64))
    keeps = opt_prop_def(IntegerAttr.constr(i64))
    first = opt_prop_def(IntegerAttr.constr(i64))
    label = opt_prop_def(StringAttr)
    until = opt_prop_def(StringAttr)
    body = region_def("single_block")
    result = result_def(TensorType)
    traits = traits_def(NoTerminator())
    custom_directives = (OnLayer,)
    assembly_format = (
        "$kind $ifmap (`residual` $residual^ `:` type($residual))? (`weights` $weights^)? `sizes` $sizes "
        "`window` $window `then` $steps (`mapping` custom<OnLayer>($mapping)^)? (`label` $label^)? "
        "(`until` $until^)? (`prefetched` $prefetched^)? (`delay` $delay^)? (`keeps` $keeps^)? (`first` $first^)? "
        "attr-dict-with-keyword `:` type($ifmap) `->` type($result) $body"
    )

    def verify_(self) -> None:
        if self.kind.data not in ("mac", "max", "add", "copy"):
            raise VerifyException(f"nest.layer: kind is mac, max, add or copy, not {self.kind.data}")
        if (self.kind.data == "mac") != (self.weights is not None):
            raise VerifyException("nest.layer: a mac layer has weights, no other has")
        if (self.residual is not None) != bool(self.steps.data.factors):
            raise VerifyException("nest.layer: a residual and its factors go together")
        if self.kind.data == "copy":
            _check_copy(self.window.data, self.steps.data)
        check_shuffle("nest.layer", self.steps.data.shuffle, self.result.type)
        if (self.delay is not None) != isinstance(self.parent_op(), GroupOp) or (
            (self.keeps or self.first) and self.delay is None
        ):
            raise VerifyException(
                "nest.layer: layers of a group, and only they, have a delay, may keep rows, and have a first stripe"
            )
        _check_shapes(self)
        if not is_perfect(self.body):
            raise VerifyException("nest.layer: a body is stages, then one loop or nest.mac")
        for mapping in (mapping_of(self), *([self.mapping.data] if self.mapping else [])):
            if problem := mapping_problem(mapping, self.sizes.data, operands(self)):
                raise VerifyException(f"nest.layer: {problem}")


@irdl_op_definition
class LoadOp(IRDLOperation):
    """Brings the rows of a value from DRAM into a ring of a group, so many for a stripe; each row comes once.

        %1 = nest.load "conv1.ifmap" %0 rows 2 delay 0 keeps 6 : tensor<1x3x224x224xi16>

    It runs as a layer of the group does: at step i the rows of stripe `i - delay` come, into slots `y mod keeps`.
    """

    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))

    name = "nest.load"
    label = prop_def(StringAttr)
    value = operand_def(T)
    rows = prop_def(IntegerAttr.constr(i64))
    delay = prop_def(IntegerAttr.constr(i64))
    keeps = prop_def(IntegerAttr.constr(i64))
    first = opt_prop_def(IntegerAttr.constr(i64))
    result = result_def(T)
    assembly_format = (
        "$label $value `rows` $rows `delay` $delay `keeps` $keeps (`first` $first^)? attr-dict-with-keyword "
        "`:` type($value)"
    )

    def verify_(self) -> None:
        group = self.parent_op()
        if not isinstance(group, GroupOp):
            raise VerifyException("nest.load: it stands in a group")
        if self.value.owner in group.members():
            raise VerifyException("nest.load: it loads a value from outside of its group")
        if self.rows.value.data < 1:
            raise VerifyException(f"nest.load: {self.rows.value.data} rows: it loads one or more at a time")


@irdl_attr_definition
class RegionAttr(RecordAttr[Region]):
    """The PEs of a core: `#nest.region<rows = 1, cols = 2, row0 = 3>`."""

    name = "nest.region"


@irdl_op_definition
class YieldOp(IRDLOperation):
    """The values that leave a group: `nest.yield %4 : tensor<…>`."""

    name = "nest.yield"
    values = var_operand_def(TensorType)
    traits = traits_def(IsTerminator())
    assembly_format = "$values attr-dict `:` type($values)"


@irdl_op_definition
class GroupOp(IRDLOperation):
    """Layers that run stripe by stripe, without a trip to DRAM in between.

    A group runs in steps, image by image. At step i a layer runs iteration `i - delay` of its loop over stripes, the
    outermost one over h, if there is this iteration. The layers of a step run in the order written. The result of a
    layer that others of the group read lies in a ring: row y in slot `y mod keeps`. The values of `nest.yield` leave
    the group; no ring does. `nest.load` brings what comes from DRAM row by row. A first stripe may have fewer rows than
    the others: `first 1`. In `nest.cores` a group is what a core runs, and it has the core's PEs: `on <rows = 1, …>`.

        %3 = nest.group "conv1..conv2" : tensor<…> {
          %1 = nest.layer "mac" %0 … label "conv1" delay 0 keeps 5 … { nest.for h step 2 { … } }
          %2 = nest.layer "mac" %1 … label "conv2" delay 1 … { nest.for h step 2 { … } }
          nest.yield %2 : tensor<…>
        }

    Source: Alwani et al., Fused-layer CNN accelerators, MICRO 2016.
    """

    name = "nest.group"
    label = prop_def(StringAttr)
    place = opt_prop_def(RegionAttr)
    outputs = var_result_def(TensorType)
    body = region_def("single_block")
    assembly_format = "$label (`on` $place^)? attr-dict-with-keyword `:` type($outputs) $body"

    def verify_(self) -> None:
        *members, last = self.body.block.ops
        inside = all(isinstance(op, Member | ColumnsOp) for op in members)
        if not isinstance(last, YieldOp) or not self.layers() or not inside:
            raise VerifyException("nest.group: a group is layers, loads and nest.columns, then nest.yield")
        if tuple(last.values.types) != tuple(self.outputs.types):
            raise VerifyException("nest.group: its results have the types of the values of nest.yield")
        if any(not isinstance(value.owner, LayerOp) or value.owner.parent_op() is not self for value in last.values):
            raise VerifyException("nest.group: nest.yield names results of the group's layers")
        uses = ((op, use) for op in self.members() for use in op.result.uses)
        if outside := next((op for op, use in uses if use.operation.parent_op() is not self), None):
            raise VerifyException(f"nest.group: {label_of(outside)} is read outside of the group: nest.yield it")
        if (self.place is not None) != isinstance(self.parent_op(), CoresOp):
            raise VerifyException(f"nest.group {self.label.data}: groups of nest.cores, and only they, stand on PEs")
        if problem := group_problem(group_layers(self)):
            raise VerifyException(f"nest.group {self.label.data}: {problem}")

    def layers(self) -> list[LayerOp]:
        """The layers, in the order written."""
        return [op for op in self.body.block.ops if isinstance(op, LayerOp)]

    def members(self) -> list[Member]:
        """The layers and what is loaded for them, in the order written."""
        return [op for op in self.body.block.ops if isinstance(op, Member)]

    def yielded(self) -> tuple[SSAValue, ...]:
        """The values inside that leave the group, in the order of its results."""
        last = self.body.block.last_op
        return tuple(last.operands) if isinstance(last, YieldOp) else ()

    def inside_of(self, output: SSAValue) -> SSAValue:
        """The value inside that one of its results is."""
        return self.yielded()[self.outputs.index(output)]


Member = LayerOp | LoadOp  # of a group


@irdl_op_definition
class ChannelOp(IRDLOperation):
    """The rows of a result on their way from a core to the next one, in a ring in the GLB.

        %2 = nest.channel "conv0" %1 keeps 2 : tensor<1x24x28x28xi8>

    At most `keeps` rows are written and not yet read. The result is what layers of the next core read, as their ifmaps.
    """

    T: ClassVar = VarConstraint("T", BaseAttr(TensorType))

    name = "nest.channel"
    label = prop_def(StringAttr)
    value = operand_def(T)
    keeps = prop_def(IntegerAttr.constr(i64))
    result = result_def(T)
    assembly_format = "$label $value `keeps` $keeps attr-dict-with-keyword `:` type($value)"

    def verify_(self) -> None:
        if not isinstance(self.parent_op(), CoresOp):
            raise VerifyException("nest.channel: it stands in nest.cores")


@irdl_op_definition
class CoresOp(IRDLOperation):
    """Layers side by side: a chain of groups, each on a core with PEs of its own, with channels to the next one.

    All groups run at once. Each runs image after image, and goes on as its channels have rows for it, and slots. The
    image of a frame lies in the GLB as a whole when the first core begins it, and so does the result of the last core.
    The image of frame f comes before the result of frame f - `lag` leaves: both use the one DMA.

        %4 = nest.cores "conv0..conv2" lag 1 : tensor<…> {
          %1 = nest.group "conv0" on <rows = 1, cols = 2, row0 = 3> : tensor<…> { … nest.yield %0 : tensor<…> }
          %2 = nest.channel "conv0" %1 keeps 2 : tensor<…>
          %3 = nest.group "pool1..conv2" on <rows = 3, cols = 4> : tensor<…> { … }
          nest.yield %3 : tensor<…>
        }

    Source: Heidorn et al., Efficient mapping of CNNs onto tightly coupled processor arrays, JCP 14(8), 2019.
    """

    name = "nest.cores"
    label = prop_def(StringAttr)
    lag = prop_def(IntegerAttr.constr(i64))
    outputs = var_result_def(TensorType)
    body = region_def("single_block")
    assembly_format = "$label `lag` $lag attr-dict-with-keyword `:` type($outputs) $body"

    def verify_(self) -> None:
        *inside, last = self.body.block.ops
        if not isinstance(last, YieldOp) or not all(isinstance(op, GroupOp | ChannelOp) for op in inside):
            raise VerifyException("nest.cores: it is groups and channels, then nest.yield")
        if self.lag.value.data < 1:
            raise VerifyException(f"nest.cores: lag {self.lag.value.data}: results leave 1 or more frames behind")
        if problem := _chain_problem(self, last):
            raise VerifyException(f"nest.cores {self.label.data}: {problem} (CHANNEL-1)")
        regions = [(group.label.data, group.place.data) for group in self.groups() if group.place]
        # `chain_of` reads the ops as a chain, which `_chain_problem` has checked.
        chain = chain_of(self)
        problem = regions_problem(regions) or next(filter(None, map(channel_problem, chain.channels)), None)
        if problem := problem or liveness_problem(chain):
            raise VerifyException(f"nest.cores {self.label.data}: {problem}")

    def groups(self) -> list[GroupOp]:
        """The groups, a core each, in the order of the chain."""
        return [op for op in self.body.block.ops if isinstance(op, GroupOp)]

    def channels(self) -> list[ChannelOp]:
        """All channels."""
        return [op for op in self.body.block.ops if isinstance(op, ChannelOp)]

    def channels_behind(self, group: GroupOp) -> list[ChannelOp]:
        """The channels of the results of a group."""
        return [op for op in self.channels() if op.value.owner is group]

    @property
    def image(self) -> SSAValue:
        """What the first core reads."""
        return self.groups()[0].layers()[0].ifmap


def links_of(cores: CoresOp) -> list[Link]:
    """What leads from each core to the next one, as plain data."""
    result, groups = list[Link](), cores.groups()
    for group, following in pairwise(groups):
        ops, before, behind = cores.channels_behind(group), group_layers(group), group_layers(following)
        readers = _readers(following, [op.result for op in ops])
        channels = list[Channel]()
        for number, op in enumerate(ops):
            writer = next(at for at, layer in enumerate(group.layers()) if layer.result is group.inside_of(op.value))
            own = tuple(reader for reader in readers if reader.read.producer == number)
            channels.append(Channel(op.label.data, before, writer, behind, own, op.keeps.value.data))
        result.append(Link(tuple(channels)))
    return result


def image_readers(cores: CoresOp) -> list[Reader]:
    """How layers of the first core read the image."""
    return _readers(cores.groups()[0], [cores.image])


def _readers(group: GroupOp, values: Sequence[SSAValue]) -> list[Reader]:
    reads = [reads_of_values(layer, values) for layer in group.layers()]
    return [Reader(number, read) for number, own in enumerate(reads) for read in own]


def chain_of(cores: CoresOp) -> CoreChainData:
    """The cores as plain data."""
    groups = [group_layers(group) for group in cores.groups()]
    image = image_tokens(groups[0], image_readers(cores), image_shape(cores.image.type)[2])
    return CoreChainData(groups, links_of(cores), image)


def _chain_problem(cores: CoresOp, last: YieldOp) -> str | None:
    """What keeps cores from being a chain; None if nothing does."""
    groups = cores.groups()
    in_turn = [op for group in groups for op in (group, *cores.channels_behind(group))]
    if not groups or [*cores.body.block.ops] != [*in_turn, last]:
        return "a group, the channels of its results, the next group: they do not stand in this order"
    # What a core may read from outside: the image, which is what the first layer of all reads, or the channels before
    # it.
    entries: set[SSAValue] = {groups[0].layers()[0].ifmap}
    if any(isinstance(value.owner, ChannelOp) for value in entries):
        return "the first group reads a channel"
    for group in groups:
        name, layers, channels = group.label.data, group.layers(), cores.channels_behind(group)
        inside = {layer.result for layer in layers}
        if len(group.members()) > len(layers) or layers[0].sizes.data.n > 1:
            return f"{name} has nest.load, or several images: frames follow each other, an image each"
        for layer in layers:
            if any(value not in inside | entries for value in layer.operands):
                return f"{label_of(layer)} reads what neither its core computes nor the one before it passes on"
            if layer.residual in entries:
                return f"{label_of(layer)} has as its residual what comes from outside of its core: loads read it alone"
        if unread := next((value for value in entries if not any(value in layer.operands for layer in layers)), None):
            what = unread.owner.label.data if isinstance(unread.owner, ChannelOp) else "the image"
            return f"{name} does not read {what}"
        if group is not groups[-1] and [channel.value for channel in channels] != [*group.outputs]:
            return f"each result of {name} has a channel, in their order"
        entries = {channel.result for channel in channels}
    if len(groups[-1].outputs) != 1 or entries:
        return "the last group has one result, and no channel"
    if tuple(last.values) != tuple(groups[-1].outputs) or tuple(last.values.types) != tuple(cores.outputs.types):
        return "nest.yield names the result of the last group, and it has this type"
    return None


def mapping_of(layer: LayerOp) -> Mapping:
    """The loops and stages that the region holds."""
    return mapping_in(layer.body)


def rest_sets_of(layer: LayerOp) -> tuple[int, ...]:
    """Over how many sets, at most, the rest of each loop of the layer is spread (`rest_sets`)."""
    sizes = layer.sizes.data
    together = tiled_together(layer.kind.data, sizes, layer.window.data.group, layer.steps.data.shuffle)
    return rest_sets(sizes, mapping_of(layer).loops, together)


def reads_of_values(layer: LayerOp, values: Sequence[SSAValue]) -> tuple[RowRead, ...]:
    """How a layer reads `values`; a residual is read row by row."""
    number = {value: at for at, value in enumerate(values)}
    window, kernel, reads = layer.window.data, layer.sizes.data.r, list[RowRead]()
    if (ifmap := columns_of(layer.ifmap, number).whole) in number:
        extent = (kernel - 1) * window.dilation[0] + 1
        reads.append(RowRead(number[ifmap], "ifmap", extent, window.stride[0], window.pad[0]))
    if layer.residual and (residual := columns_of(layer.residual, number).whole) in number:
        reads.append(RowRead(number[residual], "residual"))
    return tuple(reads)


def group_layers(group: GroupOp) -> list[GroupLayer]:
    """The layers of a group, and its loads, as plain data."""
    members, leaves = group.members(), group.yielded()
    results = [member.result for member in members]

    def plain(op: Member) -> GroupLayer:
        delay, keeps, first = _number(op.delay), _number(op.keeps), _number(op.first)
        if isinstance(op, LoadOp):
            return load_of_rows(label_of(op), image_shape(op.value.type), op.rows.value.data, delay, keeps, first)
        kind, sizes, reads = op.kind.data, op.sizes.data, reads_of_values(op, results)
        return GroupLayer(label_of(op), kind, sizes, mapping_of(op), delay, keeps, reads, op.result in leaves, first)

    # A load brings rows up to the last one that a window touches.
    return without_unread_rows([plain(op) for op in members])


def _number(attribute: IntegerAttr | None) -> int:
    return attribute.value.data if attribute is not None else 0


def label_of(op: Member) -> str:
    """The label, or a stand-in for messages."""
    return op.label.data if op.label else "(no label)"


def image_shape(value_type: Attribute) -> tuple[int, int, int, int]:
    """The shape n k h w of a tensor with up to four dims; those that it lacks are 1."""
    n, k, h, w, *_ = (*shape(value_type), 1, 1, 1, 1)
    return n, k, h, w


def operands(layer: LayerOp) -> set[str]:
    """What the layer reads and writes: all that a stage may be of."""
    steps = layer.steps.data
    has = {
        "weight": layer.kind.data == "mac",
        "params": bool(steps.bias or steps.scale),
        # One pixel a channel is resident: its blocks would not be those of the output.
        "residual": layer.residual is not None and not is_per_channel(layer.residual, layer.result),
    }
    return {"ifmap", "output"} | {operand for operand, is_read in has.items() if is_read}


def _check_shapes(layer: LayerOp) -> None:
    """Sizes, window and tensors agree. Raises VerifyException."""
    sizes, window = layer.sizes.data, layer.window.data
    n, channels, ih, iw = image_shape(layer.ifmap.type)
    if image_shape(layer.result.type) != (sizes.n, sizes.k, sizes.h, sizes.w):
        raise VerifyException(f"nest.layer: sizes {sizes} do not fit the result {shape(layer.result.type)}")
    check_residual("nest.layer", layer.residual, layer.result)
    if layer.kind.data == "copy" and is_per_channel(layer.residual, layer.result):
        raise VerifyException("nest.layer: a copy has a residual of its own shape")
    if (n, channels) != (sizes.n, sizes.c * window.group) or sizes.k % window.group:
        raise VerifyException(f"nest.layer: sizes {sizes} and group {window.group} do not fit {channels} channels")
    if layer.kind.data != "mac" and (sizes.c, window.group) != (1, sizes.k):
        raise VerifyException(f"nest.layer: {layer.kind.data} works channel by channel: c = 1, group = k")
    if (sizes.r, sizes.s) != window.kernel or window.output(ih, iw) != (sizes.h, sizes.w):
        raise VerifyException(f"nest.layer: sizes {sizes} do not fit window {window} on {ih} x {iw}")


def _check_copy(window: Window, steps: Steps) -> None:
    """A copy passes single words on, which the output units only add up or multiply. Raises VerifyException."""
    if window != Window(kernel=(1, 1), group=window.group):
        raise VerifyException(f"nest.layer: a copy has a window of one pixel without a zero point, not {window}")
    if steps.bias or steps.scale or steps.table:
        raise VerifyException("nest.layer: a copy has no bias, no scale and no table, only factors")
    if steps.shuffle != 1:
        raise VerifyException("nest.layer: a copy has no shuffle")


NEST = Dialect(
    "nest",
    [LayerOp, LoadOp, GroupOp, ChannelOp, CoresOp, YieldOp, ForOp, ParOp, StageOp, MacOp, ColumnsOp, JoinOp],
    [SizesAttr, MappingAttr, LoopAttr, StageAttr, RegionAttr],
)
use_simple_verifiers(NEST)
