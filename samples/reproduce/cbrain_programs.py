"""Schemes of C-Brain as mappings, compiled for its array and run: what `cbrain.py` has in its column of programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from cnncc.binary.counters import program_stats
from cnncc.binary.run import random_inputs, run
from cnncc.cbrain.convolution import Convolution
from cnncc.cbrain.kernel_partition import partition
from cnncc.cbrain.schemes import CBrain, Scheme
from cnncc.driver.build import compiled
from cnncc.driver.sources import CompileOptions
from cnncc.weights import Array

LABEL, CUT = "conv", "conv.cut"


@dataclass(frozen=True)
class ProgramCycles:
    """What the interpreter counts for a layer.

    - computing: cycles in which PEs multiply
    - layer: all cycles of the layer, until its results are in the global buffer, or in DRAM if they do not fit there
    - cutting: cycles of the layer that makes small windows, 0 without one
    """

    computing: int
    layer: int
    cutting: int

    @property
    def total(self) -> int:
        """Cycles of both layers."""
        return self.layer + self.cutting


def mappings(layer: Convolution, scheme: Scheme, array: CBrain) -> dict[str, str]:
    """A text for each layer of the program. All PEs have the same data, each one a kernel of its own.

    Inter-kernel has the input maps on the multipliers. Kernel partition has a small window of one map there, and as
    many pieces of a row of the kernel, or of the kernel, as are left room for.
    """
    outside = f"k':{array.tout} > k''||{array.tout}@rows > weight@rf*2 > h > w > ifmap@rf*2"
    if scheme is Scheme.INTER:
        return {LABEL: f"{outside} > {{r > s > c||{layer.depth}@lanes}}"}
    parts = partition(layer)
    (down, right), (rows, cols) = parts.side, parts.grid
    if parts.taps == 1:
        return {LABEL: f"{outside} > {{c > s||{cols}@lanes > r||{rows}@lanes}}"}
    inside = f"s||{cols}@lanes > " if cols * parts.taps <= array.tin else ""
    inside = f"r > {'' if inside else 's > '}c':{parts.taps} > {inside}c''||{parts.taps}@lanes"
    beside = f"[k':{parts.taps}||{layer.inputs}@rows h||{array.tout // layer.inputs}@rows]"
    cut = f"{beside} > weight@rf*2 > w > ifmap@rf*2 > {{k'' > s||{right}@lanes > r||{down}@lanes}}"
    return {LABEL: f"{outside} > {{{inside}}}", CUT: cut}


def program_cycles(layer: Convolution, scheme: Scheme, array: CBrain) -> tuple[ProgramCycles, Mapping[str, Array]]:
    """Compile a layer with random weights for a scheme on the preset of the array. Returns its outputs, too.

    Raises Refusal for a layer that no mapping of the scheme fits.
    """
    with TemporaryDirectory() as name:
        model, schedule = Path(name) / "conv.onnx", Path(name) / "schemes.toml"
        model.write_bytes(_model(layer).SerializeToString())
        texts = mappings(layer, scheme, array)
        schedule.write_text("\n".join(f'["{label}"]\nmapping = "{text}"' for label, text in texts.items()))
        options = CompileOptions(f"cbrain-{array.tin}-{array.tout}", schedule=schedule)
        if scheme is Scheme.PARTITION:
            options = replace(options, partition=LABEL)
        binary = compiled(model, options)
    layers: dict[str, Any] = {label: each["cycles"] for label, each in program_stats(binary)["layers"].items()}
    own, cut = layers[LABEL], layers.get(CUT, {"total": 0})
    return ProgramCycles(own["compute"], own["total"], cut["total"]), run(binary, random_inputs(binary))


def _model(layer: Convolution) -> ModelProto:
    window, draw = layer.window, np.random.default_rng(0)
    shape = (layer.outputs, layer.depth, *window.kernel)
    weights = numpy_helper.from_array(draw.normal(0, 0.1, shape).astype(np.float32), "w")
    given: dict[str, Any] = {"strides": window.stride, "pads": window.pad, "group": window.group}
    node = helper.make_node("Conv", ["x", "w"], ["y"], LABEL, **given)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, layer.inputs, *layer.image))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, layer.outputs, *layer.results))
    graph = helper.make_graph([node], LABEL, [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
