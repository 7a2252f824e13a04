"""The claims that are proven: of a model that is compiled, or of a binary and the model that it is said to be from."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from cnncc.binary.container import Binary, from_bytes, load, to_bytes
from cnncc.driver.build import binary_of
from cnncc.driver.pipeline import Compilation, mark_host_operators, operand_bits
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.isa.codec import has_cores
from cnncc.proof.claim import Claim
from cnncc.util.progress import Progress, silent


def claim_of_model(model: Path, options: CompileOptions, progress: Progress = silent) -> Claim:
    """The claim of a model that is compiled. Raises Refusal."""
    compilation = start_compilation(model, options)
    compilation.ctx.progress = progress
    return claim_of(compilation)


def claim_of(compilation: Compilation) -> Claim:
    """The claim of a compilation, which runs to its end. The binary goes through the bytes of its file."""
    compilation.run("cnn")
    module = compilation.module.clone()
    compilation.run()
    return Claim(from_bytes(to_bytes(binary_of(compilation))), module, compilation.ctx.weights)


def claim_of_binary(binary: Path, model: Path, options: CompileOptions) -> Claim:
    """The claim of a binary and a model. The binary has the array, and says whether layers run side by side on it.

    Raises Refusal.
    """
    loaded = load(binary)
    compilation = start_compilation(model, options)
    bits = operand_bits(options.precision, loaded.arch)
    parallel = has_cores(loaded.instructions)
    compilation.settings = replace(compilation.settings, arch=loaded.arch, operand_bits=bits, parallel=parallel)
    # Marked once by the options; the array and the cores are the binary's.
    mark_host_operators(compilation.module, compilation.settings.host_operators)
    compilation.run("cnn")
    return Claim(loaded, compilation.module, compilation.ctx.weights)


def model_hint(binary: Binary, network: Path) -> str:
    """How a binary that differs from a network can be proven, by the hash of its model in the metadata."""
    name, digest = (binary.metadata.get(key) for key in ("model", "model_sha256"))
    if digest == hashlib.sha256(network.read_bytes()).hexdigest():
        return "give the options with which the binary was compiled, such as --batch, --precision and --calibrate"
    if digest is None:
        return "give the model that the binary is from, with the options of its compilation"
    return f"the binary is from another file than {network}: give --model {name}"
