"""Reproduce the thesis on output-stationary arrays: AlexNet and ResNet-20 with its tables, on three arrays.

A layer has the cycles of the printed formulas, of the corrected one, and those that the interpreter counts. `cnncc
compile --schedule` makes the counted binary from the printed row, on the preset of that array. A row that cannot work
as it is printed is refused, and the compiler's own mapping runs. Cycles do not depend on values: weights and images are
random.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from os_formulas import change, corrected, errata, multiplications, printed_ideal, printed_real
from os_tables import NAMES, SHAPES, TILES, UNROLLING, rows

from cnncc.api import CompileOptions, compile_model, program_stats
from cnncc.driver.check import check
from cnncc.util.progress import Progress, progress_line, silent
from cnncc.util.terminal import Column, fitted, table

SEED = 0
SIDES = (4, 6, 8)
KEYS = ("tif", "tof", "toy", "tox", "tky", "tkx")
COLUMNS = (
    "layer",
    Column("MACs", drop=1),
    Column("(6.2) tile", drop=3),
    Column("(6.3) tile", drop=2),
    Column("change %", drop=4),
    "corrected",
    "counted",
    "in all",
    "utilisation",
    "",
)
FACTORS = ("poy", "pox", "p", "pofv", "pofh")


@dataclass(frozen=True)
class Layer:
    """A layer on an array: cycles by the formulas and as counted; `refused` says why the printed row is not used."""

    layer: int
    macs: int
    ideal: int
    real: int
    change: float
    corrected: int
    compute: int
    total: int
    utilisation: float
    refused: list[str]


def convolutions(net: str) -> onnx.ModelProto:
    """The convolutions of a network, each with an input of its own."""
    rng = np.random.default_rng(SEED)
    nodes, weights = list[onnx.NodeProto](), list[onnx.TensorProto]()
    inputs, outputs = list[onnx.ValueInfoProto](), list[onnx.ValueInfoProto]()
    for number, s in rows(SHAPES[net]).items():
        w = rng.standard_normal((s["nof"], s["nif"], s["nky"], s["nkx"])).astype(np.float32)
        w /= np.sqrt(w[0].size)
        name = f"conv{number}"
        pads = [s["py"], s["px"]] * 2
        nodes.append(
            helper.make_node(
                "Conv", [f"x{number}", f"w{number}"], [f"y{number}"], name, pads=pads, strides=[s["stride"]] * 2
            )
        )
        weights.append(numpy_helper.from_array(w, f"w{number}"))
        inputs.append(helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, [1, s["nif"], s["niy"], s["nix"]]))
        outputs.append(
            helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, [1, s["nof"], s["noy"], s["nox"]])
        )
    graph = helper.make_graph(nodes, net, inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def schedule(net: str, side: int, layers: list[int]) -> str:
    """The printed rows of some layers as a schedule file."""
    tiled, unrolled = rows(TILES[net, side]), rows(UNROLLING[net, side])
    lines: list[str] = []
    for layer in layers:
        values = [*((key, tiled[layer][key]) for key in KEYS), *((key, unrolled[layer][key]) for key in FACTORS)]
        lines += [f"[conv{layer}]", *(f"{key} = {value}" for key, value in values), ""]
    return "\n".join(lines)


def refusals(model: Path, arch: str, file: Path) -> dict[int, list[str]]:
    """Why rows of a schedule are refused, by layer."""
    reasons: dict[int, list[str]] = {}
    for finding in check(model, CompileOptions(arch, schedule=file)):
        if finding.severity == "blocking":
            reasons.setdefault(int(finding.where.removeprefix("conv")), []).append(f"{finding.numbers}: {finding.text}")
    return reasons


def layers_of(net: str, side: int, model: Path, folder: Path) -> Iterator[Layer]:
    """All layers of a network on an array, with the printed rows where they work."""
    shapes, tiled, unrolled = rows(SHAPES[net]), rows(TILES[net, side]), rows(UNROLLING[net, side])
    arch, file = f"seed-{side}x{side}", folder / "schedule.toml"
    file.write_text(schedule(net, side, list(shapes)))
    refused = refusals(model, arch, file)
    file.write_text(schedule(net, side, [layer for layer in shapes if layer not in refused]))
    binary = compile_model(model, CompileOptions(arch, schedule=file), remark=silent)
    counted = program_stats(binary)["layers"]
    for layer, shape in shapes.items():
        tile, unroll, counts = tiled[layer], unrolled[layer], counted[f"conv{layer}"]
        cycles = counts["cycles"]
        yield Layer(
            layer, multiplications(shape), printed_ideal(tile, unroll), printed_real(tile, unroll),
            change(tile, unroll), corrected(shape, tile, unroll), cycles["compute"], cycles["total"],
            counts["macs"] / (cycles["compute"] * side * side), refused.get(layer, []),
        )  # fmt: skip


def reproduce(networks: tuple[str, ...], sides: tuple[int, ...], progress: Progress) -> dict[str, Any]:
    """The networks on arrays of so many rows and columns, and the errata, as plain data."""
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for net in networks:
            model = folder / f"{net}.onnx"
            model.write_bytes(convolutions(net).SerializeToString())
            for side in sides:
                progress(f"{net} on {side} x {side} PEs", len(runs), len(networks) * len(sides))
                layers = list(layers_of(net, side, model, folder))
                runs.append({
                    "network": net, "array": f"seed-{side}x{side}", "tables": NAMES[net, side],
                    "mean_change": mean(layer.change for layer in layers),
                    "layers": [asdict(layer) for layer in layers],
                })  # fmt: skip
    return {"runs": runs, "errata": [asdict(erratum) for erratum in errata()]}


def as_text(result: dict[str, Any]) -> Iterator[str]:
    """Tables to read."""
    for run in result["runs"]:
        yield f"{run['network']} on {run['array']}, Tables {' and '.join(run['tables'])}"
        yield from table(COLUMNS, [_row(layer) for layer in run["layers"]])
        yield f"  mean relative change {run['mean_change']:.3f} %"
        for reason, layers in _by_reason(run["layers"]).items():
            yield f"  * layer {layers} as printed: {reason}"
        more = [
            layer["layer"] for layer in run["layers"] if not layer["refused"] and layer["compute"] != layer["corrected"]
        ]
        if more:
            yield f"  layer {_spans(more)}: sets that fill no rectangle, or have fewer channels, come apart"
        yield ""
    yield "Errata"
    for erratum in result["errata"]:
        yield f"  {erratum['where']}: {erratum['printed']} -> {erratum['right']} ({erratum['why']})"


def _row(layer: dict[str, Any]) -> list[str]:
    return [
        str(layer["layer"]),
        *(f"{layer[key]:,}" for key in ("macs", "ideal", "real")),
        f"{layer['change']:.3f}",
        *(f"{layer[key]:,}" for key in ("corrected", "compute", "total")),
        f"{100 * layer['utilisation']:.1f} %",
        "*" if layer["refused"] else "",
    ]


def _by_reason(layers: list[dict[str, Any]]) -> dict[str, str]:
    """Which layers were refused, by the reason."""
    refused: dict[str, list[int]] = {}
    for layer in layers:
        for reason in layer["refused"]:
            refused.setdefault(reason, []).append(layer["layer"])
    return {reason: _spans(numbers) for reason, numbers in refused.items()}


def _spans(numbers: list[int]) -> str:
    """Numbers with neighbours drawn together.

    >>> _spans([1, 2, 3, 5])
    '1-3, 5'
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--network", type=click.Choice(list(SHAPES)), help="Only this one.")
@click.option("--side", type=click.Choice(["4", "6", "8"]), help="Only the array of so many rows and columns.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def main(network: str | None, side: str | None, as_json: bool) -> None:
    """Reproduce the thesis on output-stationary arrays: formulas, corrections, and cycles counted in binaries.

    \b
    python samples/reproduce/os_compiler.py
    python samples/reproduce/os_compiler.py --network ResNet-20 --side 8
    python samples/reproduce/os_compiler.py --json > os_compiler.json

    \b
    (6.2), (6.3)  the thesis' formulas: one tile
    corrected     the layer, with sets in rounds and the cycles around every instruction
    counted       cycles of the array, in the binary
    in all        cycles with loads, commits and transfers
    """
    networks, sides = (network,) if network else tuple(SHAPES), (int(side),) if side else SIDES
    with progress_line() as progress:
        result = reproduce(networks, sides, progress)
    click.echo(json.dumps(result, indent=1) if as_json else fitted(as_text(result)))


if __name__ == "__main__":
    main()
