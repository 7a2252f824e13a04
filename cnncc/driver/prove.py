"""What a proof compares: a binary, and the network that it was compiled from at the `cnn` level."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from cnncc.binary.container import Binary, from_bytes, load, to_bytes
from cnncc.driver.build import binary_of
from cnncc.driver.pipeline import Compilation, operand_bits
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.util.progress import Progress, silent
from cnncc.weights import WeightStore


@dataclass(frozen=True)
class Pair:
    """A binary, and its network as `cnn-legalize` leaves it with the arrays of its symbols."""

    binary: Binary
    module: ModuleOp
    store: WeightStore


def compiled_pair(model: Path, options: CompileOptions, progress: Progress = silent) -> Pair:
    """The pair of a model, which is compiled. Raises Refusal."""
    compilation = start_compilation(model, options)
    compilation.ctx.progress = progress
    return pair_of(compilation)


def pair_of(compilation: Compilation) -> Pair:
    """The pair of a compilation, which runs to its end. The binary goes through the bytes of its file."""
    compilation.run("cnn")
    module = compilation.module.clone()
    compilation.run()
    return Pair(from_bytes(to_bytes(binary_of(compilation))), module, compilation.ctx.weights)


def loaded_pair(binary: Path, model: Path, options: CompileOptions) -> Pair:
    """The pair of a binary and the model that it is said to be from, for the array of the binary. Raises Refusal."""
    loaded = load(binary)
    compilation = start_compilation(model, options)
    bits = operand_bits(options.precision, loaded.arch)
    compilation.settings = replace(compilation.settings, arch=loaded.arch, operand_bits=bits)
    compilation.run("cnn")
    return Pair(loaded, compilation.module, compilation.ctx.weights)
