"""What each layer's operands move at each level of the array, how often words are used, what stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnncc.arch.model import Arch
from cnncc.dialects._mapping_text import text
from cnncc.dialects.nest import LayerOp, Mapping, Sizes, mapping_of, operands
from cnncc.driver.pipeline import Compilation
from cnncc.driver.sources import CompileOptions, start_before_programs
from cnncc.model.energy import energy
from cnncc.model.operand_traffic import PLACES, OperandTraffic, operand_traffic
from cnncc.model.stationary import Residency, name_of, residencies
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
class Row:
    """A layer with what is known of it. residencies: by memory (rf, glb) and operand; none of an elementwise layer."""

    label: str
    kind: str
    sizes: Sizes
    mapping: Mapping
    traffic: OperandTraffic
    dataflow: str
    residencies: dict[str, dict[str, Residency]]
    energy: dict[str, float]

    @property
    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "kind": self.kind,
            "mapping": text(self.mapping, self.sizes),
            "dataflow": self.dataflow,
            **self.traffic.counters(),
            "dram": {
                direction: {name: words[place] for name, words in self.traffic.words.items() if words[place]}
                for direction, place in (("read", "dram_read"), ("write", "dram_write"))
            },
            "energy": self.energy,
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
            operand: {level: self.traffic.steps / words[place] for level, place in USED.items() if words[place]}
            for operand, words in self.traffic.words.items()
            if operand in ("weight", "ifmap") and self.traffic.steps
        }


def row_of(op: LayerOp, arch: Arch) -> Row:
    """What is known of a layer that is mapped."""
    shape, mapping = layer_shape(op), mapping_of(op)
    first = op.first.value.data if op.first else 0
    words = operand_traffic(shape, mapping, arch, "residual" in operands(op), first)
    label, kind, takes = label_of(op), op.kind.data, energy(words.counters(), arch.energy)
    if kind == "copy":
        return Row(label, kind, shape.sizes, mapping, words, "PEs idle", {}, takes)
    by_memory = {memory: residencies(shape, mapping, memory) for memory in ("rf", "glb")}
    return Row(label, kind, shape.sizes, mapping, words, name_of(shape, mapping), by_memory, takes)


def analyse(source: Path, options: CompileOptions, progress: Progress = silent) -> tuple[Compilation, list[Row]]:
    """All layers of an ONNX file, or of IR that was dumped before nest-to-array. Raises Refusal as `compile` does."""
    compilation, (*steps, to_programs) = start_before_programs(source, options)
    compilation.ctx.progress = progress
    for step in steps:
        compilation.step(step)
    mapped = [op for op in compilation.module.clone().walk() if isinstance(op, LayerOp)]
    compilation.step(to_programs)  # refuses what the array cannot run
    return compilation, [row_of(op, compilation.settings.arch) for op in mapped]


def as_json(rows: Sequence[Row], source: Path, arch: Arch) -> dict[str, Any]:
    """The whole answer."""
    return {"source": source.name, "arch": arch.name, "layers": {row.label: row.as_json for row in rows}}


def as_text(rows: Sequence[Row]) -> Iterator[str]:
    """A table for each layer."""
    for row in rows:
        sizes = " ".join(f"{dim} {size}" for dim, size in vars(row.sizes).items())
        yield f"{row.label}  {row.kind}, {sizes}: {row.dataflow}, {row.traffic.steps:,} operations"
        yield f"  {text(row.mapping, row.sizes)}"
        yield from _table(row)


def _table(row: Row) -> Iterator[str]:
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


def _during(residency: Residency) -> str:
    if residency.all_along:
        return "all along"
    return f"over {' '.join(residency.loops)} ({residency.macros:,})" if residency.loops else "1"
