"""Random chains of layers for tests of groups: their IR at the cnn level, and what they compute by its evaluator.

A chain has convolutions (dense, grouped, depthwise), pools, kernels up to 5 rows, strides, dilations, paddings that
differ from side to side, odd and prime heights, several images, and sums with an earlier value of the chain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from cnncc.arch.model import load_arch, preset_names
from cnncc.context import CompilerContext
from cnncc.dialects._records import format_record
from cnncc.driver.pipeline import DONE, Compilation, Settings, new_context
from cnncc.eval import cnn
from cnncc.window import Window

PRESETS = tuple(name for first in range(3) for name in preset_names()[first::3])  # unlike ones follow each other
QUANT = "cnn.quant = #cnn.quant<scale = 1.0>"
Dims = tuple[int, int, int, int]


@dataclass
class Chain:
    """A network that is a chain of layers l0, l1, … on the input x. arrays: weights by name."""

    x: np.ndarray
    lines: list[str] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    dims: list[Dims] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        return [f"l{number}" for number in range(len(self.lines))]

    def module(self, ctx: CompilerContext, bits: int = 16) -> ModuleOp:
        """`main`, as the step before `cnn-to-nest` leaves it. bits: of an operand."""
        globals_ = list[str]()
        for name, array in self.arrays.items():
            # A table has 16 bits, whatever a word has.
            is_words = array.dtype == np.int16 and not name.startswith("t")
            words = array.astype(f"int{bits}") if is_words else array
            ref = f'#weights.ref<"{ctx.weights.add(words)}">'
            globals_.append(f"weights.global @{name} : {tensor(words.shape, _element(words))} = {ref}")
        last = len(self.lines)
        main = f"""
            func.func @main(%v0 : {tensor(self.x.shape)} {{onnx.name = "x", {QUANT}}})
                -> ({tensor(self.dims[-1])} {{onnx.name = "y", {QUANT}}}) {{
              {chr(10).join(self.lines)}
              func.return %v{last} : {tensor(self.dims[-1])}
            }}""".replace("xi16>", f"xi{bits}>")
        module = Parser(
            ctx,
            f"""builtin.module attributes {{{DONE} = "cnn-legalize", cnn.psum_bits = 32 : i64}} {{
            {chr(10).join(globals_)}
            {main}
            }}""",
        ).parse_module()
        module.verify()
        return module

    def compilation(self, arch: str, **settings: Any) -> Compilation:
        """From that step on, for an array by its name or its file."""
        ctx, array = new_context(), load_arch(arch)
        module = self.module(ctx, array.operand_bits)
        return Compilation(ctx, module, Settings(array, arch, array.operand_bits, **settings))

    def result(self) -> np.ndarray:
        """What the chain computes."""
        ctx = new_context()
        outputs, _ = cnn.evaluate(self.module(ctx), ctx.weights, [self.x])
        return outputs[0]


def turn(number: int) -> int:
    """Of an example: what alternates with it, and the other way round after each turn of all presets."""
    return number + number // len(PRESETS)


def _element(array: np.ndarray) -> str:
    return {"int8": "i8", "int16": "i16", "int32": "i32", "float32": "f32"}[str(array.dtype)]


def tensor(shape: tuple[int, ...], element: str = "i16") -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{element}>"


def two_convolutions(rows: int) -> Chain:
    """3x3, of 16 channels on 8 columns."""
    rng, dims = np.random.default_rng(5), (1, 16, rows, 8)
    chain = Chain(rng.integers(-9, 10, dims).astype(np.int64), dims=[dims] * 3)
    for number in range(2):
        chain.arrays[f"w{number}"] = rng.integers(-9, 10, (16, 16, 3, 3)).astype(np.int16)
        chain.lines.append(
            f"%v{number + 1} = cnn.conv %v{number} weights @w{number} window <kernel = [3, 3], pad = [1, 1, 1, 1]> "
            f'then <clamp = [-900, 900]> label "l{number}" : {tensor(dims)} -> {tensor(dims)}'
        )
    return chain


def random_chain(
    rng: np.random.Generator,
    most_layers: int = 4,
    most_rows: int = 19,
    most_images: int = 2,
    residual: bool = True,
    most_cols: int = 8,
    elementwise: bool = False,
) -> Chain:
    """A chain of two or more layers. elementwise: with sums of two values that are layers of their own."""
    n, c = int(rng.integers(1, most_images + 1)), int(rng.integers(1, 5))
    size = (int(rng.integers(4, most_rows + 1)), int(rng.integers(3, most_cols + 1)))
    chain = Chain(rng.integers(-60, 60, (n, c, *size)).astype(np.int64))
    values: list[Dims] = [(n, c, *size)]
    count = int(rng.integers(2, most_layers + 1))
    while len(chain.lines) < count:
        if elementwise and len(values) > 1 and rng.random() < 0.4:
            _add_sum(chain, values, rng)
        else:
            _add_layer(chain, values, rng, residual)
    chain.dims = values
    return chain


def with_tables(chain: Chain, every: int = 1) -> Chain:
    """The chain with a table in the epilogue of every layer, or of every second one. Sums of two values have none."""
    for number in range(0, len(chain.lines), every):
        entries = np.random.default_rng(number).integers(-120, 121, 257).astype(np.int16)
        table = f'clamp = [-120, 120], table = "t{number}"'
        line = chain.lines[number].replace("clamp = [-120, 120]", table)
        if line != chain.lines[number]:
            chain.lines[number], chain.arrays[f"t{number}"] = line, entries
    return chain


def _add_layer(chain: Chain, values: list[Dims], rng: np.random.Generator, residual: bool) -> None:
    number, (n, c, ih, iw) = len(chain.lines), values[-1]
    kind = rng.choice(["conv", "conv", "conv", "depthwise", "group", "max", "sum"])
    rows, cols = int(rng.integers(1, min(5, ih) + 1)), int(rng.integers(1, min(3, iw) + 1))
    dilation = (int(rng.integers(1, 3)) if 2 * (rows - 1) < ih else 1, 1)
    stride = (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
    pad = tuple(int(rng.integers(0, (k - 1) * d + 1)) for k, d in zip((rows, cols) * 2, dilation * 2, strict=True))
    same = residual and number > 0 and rng.random() < 0.4
    if same:
        kind, rows, cols, stride, dilation, pad = "conv", 3, 1, (1, 1), (1, 1), (1, 0, 1, 0)
    if kind == "max":
        pad = tuple(min(side, k // 2) for side, k in zip(pad, (rows, cols) * 2, strict=True))
    dense = kind in ("conv", "group")
    group = 1 if kind == "conv" or (kind == "group" and c % 2) else 2 if kind == "group" else c
    k = group * int(rng.integers(1, 5)) if dense else c
    partners = [at for at, dims in enumerate(values) if dims[2:] == (ih, iw) and at > 0]
    partner = int(rng.choice(partners)) if same and partners else None
    if partner is not None:
        k = values[partner][1]
    window = Window((rows, cols), stride, pad, dilation, group, fill=-99 if kind == "max" else 0)
    oh, ow = window.output(ih, iw)
    if min(oh, ow) < 1:
        return
    out, then, op = (n, k, oh, ow), "clamp = [-120, 120]", f"%v{number}"
    if kind != "max":
        chain.arrays[f"b{number}"] = rng.integers(-50, 50, (k,)).astype(np.int32)
        chain.arrays[f"s{number}"] = rng.uniform(0.02, 0.2, (k,)).astype(np.float32)
        then = f'bias = "b{number}", scale = "s{number}", {then}'
    if partner is not None:
        chain.arrays[f"f{number}"] = np.array([1, 0.5, 0], np.float32)
        then += f', factors = "f{number}", add_clamp = [-99, 99]'
        op += f" residual %v{partner} : {tensor(values[partner])}"
    if kind in ("max", "sum"):
        layer = f'cnn.pool "{kind}" {op}'
    else:
        chain.arrays[f"w{number}"] = rng.integers(-9, 10, (k, c // group, rows, cols)).astype(np.int16)
        layer = f"cnn.conv {op} weights @w{number}"
    chain.lines.append(
        f'%v{number + 1} = {layer} window <{format_record(window)}> then <{then}> label "l{number}" '
        f": {tensor(values[-1])} -> {tensor(out)}"
    )
    values.append(out)


def _add_sum(chain: Chain, values: list[Dims], rng: np.random.Generator) -> None:
    """An elementwise layer: the last value and an earlier one of its shape, or itself, each times a factor."""
    number, dims = len(chain.lines), values[-1]
    partner = int(rng.choice([at for at, other in enumerate(values) if other == dims]))
    chain.arrays[f"f{number}"] = np.array([0.75, 0.5, 3], np.float32)
    chain.lines.append(
        f"%v{number + 1} = cnn.add %v{number} residual %v{partner} : {tensor(dims)} then "
        f'<factors = "f{number}", add_clamp = [-99, 99]> label "l{number}" : {tensor(dims)} -> {tensor(dims)}'
    )
    values.append(dims)
