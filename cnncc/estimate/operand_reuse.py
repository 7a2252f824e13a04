"""What each layer's operands move at each level of the array, how often words are used, what stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cnncc.arch.model import Arch
from cnncc.dialects.nest import GroupOp, LayerOp, group_layers, mapping_of, operands
from cnncc.driver import group_text
from cnncc.driver.pipeline import TO_PROGRAMS, Compilation
from cnncc.driver.sources import CompileOptions, start_before_programs
from cnncc.errors import plural
from cnncc.estimate.mapped_program import map_layers
from cnncc.mapping.mapping import Mapping, Sizes
from cnncc.mapping.strips import is_meant
from cnncc.mapping.text import text
from cnncc.model.energy import energy
from cnncc.model.operand_traffic import PLACES, OperandTraffic, operand_traffic
from cnncc.model.stationary import Residency, name_of, residencies
from cnncc.passes._scheduling.glb_words import stage_sizes
from cnncc.passes._scheduling.group_report import GroupReport, group_report, stripes_of
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape
from cnncc.util.progress import Progress, silent
from cnncc.util.terminal import NAME, Column, table

HEADS = (
    Column("DRAM read"),
    Column("DRAM write"),
    Column("GLB read"),
    Column("GLB write"),
    Column("bus"),
    Column("n2n", drop=2),
    Column("psum link", drop=1),
    Column("RF read", drop=3),
    Column("RF write", drop=4),
)  # of PLACES
USED = {"dram": "dram_read", "glb": "glb_read", "rf": "rf_write"}  # where words come from, and into the PEs


@dataclass(frozen=True)
class LayerReuse:
    """A layer with what is known of it.

    - residencies: by memory (rf, glb) and operand; none of an elementwise layer
    - buffers: words of the GLB for its blocks, by operand, and for its partial sums; none of a layer in a group
    - group: how it runs, if it does so in a group; it begins with the group's label
    """

    label: str
    kind: str
    sizes: Sizes
    mapping: Mapping
    traffic: OperandTraffic
    dataflow: str
    residencies: dict[str, dict[str, Residency]]
    energy: dict[str, float]
    buffers: dict[str, int]
    group: str = ""

    def is_called(self, label: str) -> bool:
        """Whether it is the layer, or in the group, with this label."""
        names = self.label, *([self.group.partition(": ")[0]] if self.group else [])
        return any(is_meant(name, label) for name in names)

    @property
    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "kind": self.kind,
            **({"group": self.group} if self.group else {}),
            "mapping": text(self.mapping, self.sizes),
            "dataflow": self.dataflow,
            **self.traffic.counters(),
            "dram": {
                direction: {name: words[place] for name, words in self.traffic.words.items() if words[place]}
                for direction, place in (("read", "dram_read"), ("write", "dram_write"))
            },
            "energy": self.energy,
            "glb_buffers": self.buffers,
            "macs_per_word": self.macs_per_word(),
            "stays": {
                memory: {
                    name: {"loops": list(residency.loops), "macros": residency.macros}
                    for name, residency in by_operand.items()
                }
                for memory, by_operand in self.residencies.items()
            },
        }

    def macs_per_word(self) -> dict[str, dict[str, float]]:
        """The reuse of weights and ifmap: operations for each word read in DRAM or the GLB, or brought to a PE."""
        return {
            operand: {level: self.traffic.operations / words[place] for level, place in USED.items() if words[place]}
            for operand, words in self.traffic.words.items()
            if operand in ("weight", "ifmap") and self.traffic.operations
        }


def row_of(op: LayerOp, arch: Arch) -> LayerReuse:
    """What is known of a layer that is mapped."""
    shape, mapping = layer_shape(op), mapping_of(op)
    first = op.first.value.data if op.first else 0
    words = operand_traffic(shape, mapping, arch, "residual" in operands(op), first)
    label, kind, takes = label_of(op), op.kind.data, energy(words.counters(), arch.energy)
    group = _group(op)
    buffers = {} if group else stage_sizes(shape, arch, mapping)
    if kind == "copy":
        return LayerReuse(label, kind, shape.sizes, mapping, words, "PEs idle", {}, takes, buffers, group)
    by_memory, name = {memory: residencies(shape, mapping, memory) for memory in ("rf", "glb")}, name_of(shape, mapping)
    return LayerReuse(label, kind, shape.sizes, mapping, words, name, by_memory, takes, buffers, group)


def _group(op: LayerOp) -> str:
    """What lies in rings of the group that a layer is in, in words."""
    group = op.parent_op()
    if not isinstance(group, GroupOp):
        return ""
    members = group_layers(group)
    own = members[group.members().index(op)]
    rings = [f"{read.operand} in the ring of {members[read.producer].label}" for read in own.reads]
    rings += [f"output in a ring of {own.keeps} rows"] if own.keeps else []
    return f"{group.label.data}: {', '.join([stripes_of(own.rows), *rings])}"


def analyse(
    source: Path, options: CompileOptions, progress: Progress = silent
) -> tuple[Compilation, list[LayerReuse], GroupReport | None]:
    """All layers of an ONNX file, or of IR that was dumped before nest-to-array, and what is known of chosen groups.

    Raises Refusal as `compile` does.
    """
    compilation = start_before_programs(source, options, progress)
    choice = map_layers(compilation)
    report = group_report(choice) if choice else None
    compilation.run_before(TO_PROGRAMS)
    # The next step takes the layers apart, so they are read from a copy.
    mapped = [op for op in compilation.module.clone().walk() if isinstance(op, LayerOp)]
    compilation.run_through(TO_PROGRAMS)  # refuses what the array cannot run
    return compilation, [row_of(op, compilation.settings.arch) for op in mapped], report


def as_json(rows: Sequence[LayerReuse], source: Path, arch: Arch, report: GroupReport | None) -> dict[str, Any]:
    """The whole answer."""
    layers = {row.label: row.as_json for row in rows}
    return {
        "source": source.name,
        "arch": arch.name,
        "layers": layers,
        **({"groups": asdict(report)} if report else {}),
    }


def as_text(rows: Sequence[LayerReuse], report: GroupReport | None) -> Iterator[str]:
    """A table for each layer, then what is known of groups."""
    for row in rows:
        sizes = " ".join(f"{dim} {size}" for dim, size in vars(row.sizes).items())
        yield f"{row.label}  {row.kind}, {sizes}: {row.dataflow}, {plural(row.traffic.operations, 'operation')}"
        yield f"  {text(row.mapping, row.sizes)}"
        yield from [f"  in group {row.group}"] if row.group else []
        yield from _table(row)
    yield from group_text.as_text(report) if report else []


def _table(row: LayerReuse) -> Iterator[str]:
    used = [place for place in PLACES if row.traffic.of(place)]
    heads = [HEADS[PLACES.index(place)] for place in used]
    per_word = row.macs_per_word()
    columns = [Column("operand", NAME), *heads, "uses in DRAM", "uses in GLB", "uses in PE"]
    rows = list[Sequence[str]]()
    for operand, words in row.traffic.words.items():
        if words.total():
            reuse = per_word.get(operand, {})
            factors = [f"{reuse[level]:,.1f}" if level in reuse else "" for level in USED]
            rows.append([operand, *(f"{words[place]:,}" if words[place] else "" for place in used), *factors])
    yield from table(columns, rows)
    for memory, where in (("rf", "PEs"), ("glb", "the GLB")):
        if by_operand := row.residencies.get(memory):
            spans = ", ".join(f"{name} {_during(residency)}" for name, residency in by_operand.items())
            yield f"  macro-instructions that words stay for in {where}: {spans}"
    if row.buffers:
        each = ", ".join(f"{name} {words:,}" for name, words in row.buffers.items())
        yield f"  words of its buffers in the GLB: {each}; {sum(row.buffers.values()):,} in all"


def _during(residency: Residency) -> str:
    if residency.all_along:
        return "all along"
    return f"over {' '.join(residency.loops)} ({residency.macros:,})" if residency.loops else "1"
