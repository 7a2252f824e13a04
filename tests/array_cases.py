"""A small network by hand in the `array` dialect, on an array of 2 x 2 PEs, and what it computes, by brute force.

conv   3x3, 2 -> 4 channels, pad top 1, left 1, bottom 2, right 1, then bias, scale and residual: with n2n, the virtual
       neighbour, two tiles of rows, two input channels, weights and parameters in two slices, by semaphores
pool   maximum 2x1, stride 2x1: two pixels of two channels a macro-instruction, committed as lines, two PE sets on rows
sum    sum 2x2, stride 2x2: two PE sets on columns
add    elementwise: conv + conv
lines  maximum 3x1, pad 1: its input r goes from DRAM through three rows of the GLB, one fetched for each row of results
parts  the sum of r's channels: of two in the rows of a set, added up down the columns, and of two such parts in the GLB
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from cnncc.arch.model import Arch, Links, load_arch
from cnncc.context import CompilerContext
from cnncc.driver.pipeline import new_context
from cnncc.numerics import Epilogue

C, IH, IW, K, OH, OW = 2, 3, 2, 4, 4, 2
ZERO = 3
LOW, HIGH = -40, 90

CONV = """
  array.layer "conv1" computes "relu1" attributes {mapping = "k2 > h2 > [k h||2@rows w||2@cols] > c"} {
    array.view <name = "x", tensor = "x.glb", height = 3, width = 2, pitch = 2, plane = 6, fill = 3, zero = 3,
                steps = [{loop = "h1", axis = "y", step = 2}, {loop = "c2", axis = "k", step = 1}]>
    array.view <name = "w.dram", tensor = "conv1.w", steps = [{loop = "k0", axis = "lin", step = 36}]>
    array.view <name = "w", tensor = "conv1.w.glb", wrap = 72,
                steps = [{loop = "k0", axis = "lin", step = 36}, {loop = "c2", axis = "lin", step = 9}]>
    array.view <name = "p.dram", tensor = "conv1.p", steps = [{loop = "k0", axis = "lin", step = 8}]>
    array.view <name = "p", tensor = "conv1.p.glb", wrap = 16, steps = [{loop = "k0", axis = "lin", step = 8}]>
    array.view <name = "y", tensor = "conv1.glb", height = 4, width = 2, pitch = 2, plane = 8,
                steps = [{loop = "k0", axis = "k", step = 2}, {loop = "h1", axis = "y", step = 2}]>
    array.view <name = "r", tensor = "r.glb", height = 4, width = 2, pitch = 2, plane = 8,
                steps = [{loop = "k0", axis = "k", step = 2}, {loop = "h1", axis = "y", step = 2}]>
    array.unit <bias = true, scale = true, zero = 2, clamp = [-40, 90], factors = "conv1.f", add_clamp = [-60, 99]>
    array.repeat <loop = "k0", count = 2> {
      array.dma <direction = "in", dram = "p.dram", glb = "p", words = 8, tokens = {take = 1}>
      array.dma <direction = "in", dram = "w.dram", glb = "w", words = 18, count = 2, dram_step = 18, glb_step = 18,
                 tokens = {give = 2}>
      array.repeat <loop = "h1", count = 2> {
        array.repeat <loop = "c2", count = 2> {
          array.load <kind = "weight", view = "w", place = {rows = 2, cols = 2, set_rows = 2, set_cols = 2},
            start = {}, pattern = [{n = 3, axis = "lin", step = 1}, {n = 3, axis = "lin", step = 3},
                       {n = 2, axis = "lin", step = 18}],
            open = always, close = always, tokens = {take = 2, take_when = ["h1", "c2"]}>
          array.load <kind = "ifmap", view = "x", start = {y = -1, x = -1}, place = {rows = 2, cols = 2, set_rows = 2,
            set_cols = 2, row = {axis = "y", step = 1}, col = {axis = "x", step = 1}},
            pattern = [{n = 1, axis = "x", step = 1}, {n = 3, axis = "y", step = 1}], open = always>
          array.load <kind = "ifmap", view = "x", start = {y = -1, x = 0}, place = {rows = 2, cols = 2, set_rows = 2,
            set_cols = 2, row = {axis = "y", step = 1}, col = {axis = "x", step = 1}},
            pattern = [{n = 2, axis = "x", step = 1}, {n = 3, axis = "y", step = 1}], slot = 3,
            edge = true, close = always,
            tokens = {give = 3, give_when = ["c2"]}>
          array.mac <op = "mac", place = {rows = 2, cols = 2, set_rows = 2, set_cols = 2}, taps = 9, step_range = 2,
            data_reuse = 6, n2n_slot = 3, ifmap = {tap = 1}, weight = {tap = 2, channel = 1}, psum = {channel = 1},
            clear = ["c2"], send = ["c2"], take_weight = always, give_weight = always, take_ifmap = always,
            give_ifmap = always>
        }
        array.commit <view = "y", residual = "r", params = "p", place = {rows = 2, cols = 2, set_rows = 2, set_cols = 2,
          row = {axis = "y", step = 1}, col = {axis = "x", step = 1}}, channels = {n = 2, axis = "k", step = 1},
          psum = {channel = 1}, tokens = {take = 3, give = 1, give_when = ["h1"]}>
      }
    }
    array.sync ["dma", "load", "array", "commit"]
  }
"""
POOL = """
  array.layer "pool1" computes "pool1" {
    array.view <name = "x", tensor = "conv1.glb", height = 4, width = 2, pitch = 2, plane = 8>
    array.view <name = "y", tensor = "pool1.glb", height = 2, width = 2, pitch = 2, plane = 4>
    array.unit <>
    array.load <kind = "ifmap", view = "x", start = {}, place = {rows = 2, cols = 2, set_cols = 2,
      col = {axis = "y", step = 2}, row_set = {axis = "k", step = 1}},
      pattern = [{n = 2, axis = "k", step = 2}, {n = 2, axis = "x", step = 1}, {n = 2, axis = "y", step = 1}],
      open = always, close = always>
    array.mac <op = "max", place = {rows = 2, cols = 2, set_cols = 2}, pixels = 4, taps = 2,
      ifmap = {pixel = 2, tap = 1}, psum = {pixel = 1}, clear = always, send = always, take_ifmap = always,
      give_ifmap = always>
    array.commit <view = "y", place = {rows = 2, cols = 2, set_cols = 2, col = {axis = "y", step = 1},
      row_set = {axis = "k", step = 1}}, pixels = {n = 2, axis = "k", step = 2}, lines = {n = 2, axis = "x", step = 1},
      psum = {pixel = 2, tap = 1}>
    array.sync ["load", "array", "commit"]
  }
"""
SUM = """
  array.layer "sum1" computes "sum1" {
    array.view <name = "x", tensor = "conv1.glb", height = 4, width = 2, pitch = 2, plane = 8,
                steps = [{loop = "k0", axis = "k", step = 2}]>
    array.view <name = "y", tensor = "sum1.glb", height = 2, width = 1, pitch = 1, plane = 2,
                steps = [{loop = "k0", axis = "k", step = 2}]>
    array.unit <>
    array.repeat <loop = "k0", count = 2> {
      array.load <kind = "ifmap", view = "x", start = {}, place = {rows = 2, cols = 2, set_rows = 2,
        row = {axis = "y", step = 2}, col_set = {axis = "k", step = 1}},
        pattern = [{n = 2, axis = "x", step = 1}, {n = 2, axis = "y", step = 1}], open = always, close = always>
      array.mac <op = "add", place = {rows = 2, cols = 2, set_rows = 2}, taps = 4, ifmap = {tap = 1},
        clear = always, send = always, take_ifmap = always, give_ifmap = always>
      array.commit <view = "y", place = {rows = 2, cols = 2, set_rows = 2, row = {axis = "y", step = 1},
        col_set = {axis = "k", step = 1}}>
    }
    array.sync ["load", "array", "commit"]
  }
"""
ADD = """
  array.layer "add1" computes "add1" {
    array.view <name = "a", tensor = "conv1.glb">
    array.view <name = "y", tensor = "add1.glb">
    array.unit <factors = "conv1.f", add_clamp = [-99, 99]>
    array.commit <source = "glb", view = "y", place = {}, operand = "a", residual = "a",
      pixels = {n = 4, axis = "lin", step = 8}, channels = {n = 8, axis = "lin", step = 1}>
    array.sync ["commit"]
  }
"""
LINES = """
  array.layer "lines1" computes "lines1" {
    array.view <name = "d", tensor = "r", height = 4, width = 2, pitch = 2, plane = 8,
                steps = [{loop = "h0", axis = "y", step = 1}]>
    array.view <name = "g", tensor = "lines.glb", pitch = 2, plane = 6, ring_y = 3,
                steps = [{loop = "h0", axis = "y", step = 1}]>
    array.view <name = "x", tensor = "lines.glb", height = 4, width = 2, pitch = 2, plane = 6, fill = -99, ring_y = 3,
                steps = [{loop = "h0", axis = "y", step = 1}, {loop = "k1", axis = "k", step = 2}]>
    array.view <name = "y", tensor = "lines1.glb", height = 4, width = 2, pitch = 2, plane = 8,
                steps = [{loop = "h0", axis = "y", step = 1}, {loop = "k1", axis = "k", step = 2}]>
    array.unit <>
    array.dma <direction = "in", dram = "d", glb = "g", count = 4, words = 2, dram_step = 8, glb_step = 6>
    array.repeat <loop = "h0", count = 4> {
      array.dma <direction = "in", dram = "d", glb = "g", count = 4, words = 2, y = 1, dram_step = 8, glb_step = 6,
                 tokens = {take = 4, give = 5}>
      array.repeat <loop = "k1", count = 2> {
        array.load <kind = "ifmap", view = "x", start = {y = -1}, place = {rows = 2, cols = 2, set_rows = 2,
          set_cols = 2, row = {axis = "k", step = 1}, col = {axis = "x", step = 1}},
          pattern = [{n = 3, axis = "y", step = 1}], open = always, close = always,
          tokens = {take = 5, take_when = ["k1"], give = 4, give_when = ["k1"]}>
        array.mac <op = "max", place = {rows = 2, cols = 2, set_cols = 2}, taps = 3, ifmap = {tap = 1},
          clear = always, send = always, take_ifmap = always, give_ifmap = always>
        array.commit <view = "y", place = {rows = 2, cols = 2, set_rows = 2, set_cols = 2,
          row = {axis = "k", step = 1}, col = {axis = "x", step = 1}}>
      }
    }
    array.sync ["dma", "load", "array", "commit"]
  }
"""
PARTS = """
  array.layer "parts1" computes "parts1" {
    array.view <name = "x", tensor = "r.glb", height = 4, width = 2, pitch = 2, plane = 8,
                steps = [{loop = "c0", axis = "k", step = 2}, {loop = "h1", axis = "y", step = 1}]>
    array.view <name = "s", tensor = "parts.sums", height = 4, width = 2, pitch = 2,
                steps = [{loop = "h1", axis = "y", step = 1}]>
    array.view <name = "y", tensor = "parts1.glb", height = 4, width = 2, pitch = 2,
                steps = [{loop = "h1", axis = "y", step = 1}]>
    array.unit <>
    array.repeat <loop = "c0", count = 2> {
      array.repeat <loop = "h1", count = 4> {
        array.load <kind = "ifmap", view = "x", start = {}, place = {rows = 2, cols = 2, set_rows = 2, set_cols = 2,
          row = {axis = "k", step = 1}, col = {axis = "x", step = 1}}, pattern = [], open = always, close = always>
        array.mac <op = "add", place = {rows = 2, cols = 2, set_cols = 2}, clear = always, send = always,
        take_ifmap = always,
          give_ifmap = always>
        array.commit <view = "y", place = {rows = 2, cols = 2, set_rows = 2, set_cols = 2,
          col = {axis = "x", step = 1}}, reduce = true, sums = "s", fresh = ["c0"], final = ["c0"]>
      }
    }
    array.sync ["load", "array", "commit"]
  }
"""
INPUTS = """
  array.layer "inputs" computes "" {
    array.view <name = "d0", tensor = "x", height = 3, width = 2, pitch = 2>
    array.view <name = "g0", tensor = "x.glb", pitch = 2>
    array.view <name = "d1", tensor = "r">
    array.view <name = "g1", tensor = "r.glb">
    array.dma <direction = "in", dram = "d0", glb = "g0", count = 2, rows = 3, words = 2, dram_step = 6, glb_step = 6>
    array.dma <direction = "in", dram = "d1", glb = "g1", words = 32>
    array.signal <semaphore = 1, count = 1>
    array.signal <semaphore = 4, count = 1>
    array.sync ["dma"]
  }
"""
OUTPUTS = """
  array.layer "outputs" computes "" {
    array.view <name = "g0", tensor = "pool1.glb">
    array.view <name = "d0", tensor = "y">
    array.view <name = "g1", tensor = "add1.glb">
    array.view <name = "d1", tensor = "z">
    array.dma <direction = "out", dram = "d0", glb = "g0", words = 16>
    array.dma <direction = "out", dram = "d1", glb = "g1", words = 32>
    array.sync ["dma"]
  }
"""
TENSORS = """
  array.tensor <name = "conv1.w", memory = "dram", words = 72, shape = [4, 2, 3, 3], role = "weight">
  array.tensor <name = "conv1.p", memory = "dram", words = 16, shape = [4, 4], role = "weight">
  array.tensor <name = "x", memory = "dram", words = 12, shape = [1, 2, 3, 2], role = "input", scale = 0.5, zero = 3>
  array.tensor <name = "r", memory = "dram", words = 32, shape = [1, 4, 4, 2], role = "input", scale = 0.25>
  array.tensor <name = "y", memory = "dram", words = 16, shape = [1, 4, 2, 2], role = "output", scale = 0.1>
  array.tensor <name = "z", memory = "dram", words = 32, shape = [1, 4, 4, 2], role = "output", scale = 0.1, zero = -1>
  array.tensor <name = "x.glb", memory = "glb", words = 12, shape = [1, 2, 3, 2]>
  array.tensor <name = "r.glb", memory = "glb", words = 32, shape = [1, 4, 4, 2]>
  array.tensor <name = "conv1.w.glb", memory = "glb", words = 72>
  array.tensor <name = "conv1.p.glb", memory = "glb", words = 16>
  array.tensor <name = "conv1.glb", memory = "glb", words = 32, shape = [1, 4, 4, 2]>
  array.tensor <name = "pool1.glb", memory = "glb", words = 16, shape = [1, 4, 2, 2]>
  array.tensor <name = "sum1.glb", memory = "glb", words = 8, shape = [1, 4, 2, 1]>
  array.tensor <name = "add1.glb", memory = "glb", words = 32, shape = [1, 4, 4, 2]>
  array.tensor <name = "lines.glb", memory = "glb", words = 24, shape = [1, 4, 3, 2]>
  array.tensor <name = "lines1.glb", memory = "glb", words = 32, shape = [1, 4, 4, 2]>
  array.tensor <name = "parts.sums", memory = "glb", words = 16>
  array.tensor <name = "parts1.glb", memory = "glb", words = 8, shape = [1, 1, 4, 2]>
"""


def arch_2x2() -> Arch:
    """Two rows and two columns; otherwise the 4x4 preset, whatever its sizes, with two halves of everything."""
    preset = load_arch("spatial-4x4")
    pe = replace(
        preset.pe, weight_words=18, ifmap_words=9, psum_words=4, weight_halves=2, ifmap_halves=2, psum_halves=2
    )
    return replace(preset, name="2x2", rows=2, cols=2, operand_bits=16, pe=pe, links=Links(south=True))


def weights() -> dict[str, np.ndarray]:
    """Weights i16[k, c, r, s], biases i32[k], scales f32[k], factors of the residual add."""
    rng = np.random.default_rng(7)
    return {
        "w": rng.integers(-9, 10, (K, C, 3, 3)).astype(np.int16),
        "bias": rng.integers(-200, 200, K).astype(np.int32),
        "scale": rng.uniform(0.05, 0.3, K).astype(np.float32),
        "f": np.array([1.25, 0.75, 0.5], np.float32),
    }


def inputs(images: int = 1) -> list[np.ndarray]:
    """x and r, all values different enough that no two places look alike."""
    rng = np.random.default_rng(8)
    return [
        rng.integers(-30, 60, (images, C, IH, IW)).astype(np.int64),
        rng.integers(-30, 30, (images, K, OH, OW)).astype(np.int64),
    ]


def expected(x: np.ndarray, r: np.ndarray) -> dict[str, np.ndarray]:
    """The values of the layers, with plain loops."""
    w = weights()
    sums = np.zeros((len(x), K, OH, OW), np.int64)
    for n, k, h, wo in np.ndindex(sums.shape):
        for c, i, j in np.ndindex(C, 3, 3):
            y, xx = h + i - 1, wo + j - 1
            if 0 <= y < IH and 0 <= xx < IW:
                sums[n, k, h, wo] += (x[n, c, y, xx] - ZERO) * int(w["w"][k, c, i, j])
    k = np.arange(K).reshape(1, K, 1, 1)
    epilogue = Epilogue(w["bias"].astype(np.int64), w["scale"], 2, (LOW, HIGH), w["f"], (-60, 99))
    conv = epilogue.apply(sums, k, r)
    pool = conv.reshape(-1, K, 2, 2, 2).max(axis=3)
    sums = conv.reshape(-1, K, 2, 2, 1, 2).sum(axis=(3, 5))
    add = Epilogue(factors=w["f"], add_clamp=(-99, 99)).apply(conv, slice(None), conv)
    rows = np.pad(r, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=-99)
    lines = np.maximum(np.maximum(rows[:, :, :-2], rows[:, :, 1:-1]), rows[:, :, 2:])
    parts = r.sum(axis=1, keepdims=True)
    return {"relu1": conv, "pool1": pool, "sum1": sums, "add1": add, "lines1": lines, "parts1": parts}


def module(*layers: str, ctx: CompilerContext | None = None) -> tuple[ModuleOp, CompilerContext]:
    """The network, or other layers on the same tensors."""
    ctx = ctx or new_context()
    w = weights()
    params = np.concatenate([w["bias"].view("<i2").reshape(K, 2), w["scale"].view("<i2").reshape(K, 2)], axis=1)
    arrays = {"conv1.w": w["w"], "conv1.p": params, "conv1.f": w["f"]}
    text = "".join(
        f"  weights.global @{name} : tensor<{'x'.join(map(str, a.shape))}x{'f32' if a.dtype == np.float32 else 'i16'}>"
        f' = #weights.ref<"{ctx.weights.add(a)}">\n'
        for name, a in arrays.items()
    )
    body = "".join(layers or (INPUTS, CONV, POOL, SUM, ADD, LINES, PARTS, OUTPUTS))
    return Parser(ctx, f"builtin.module {{\n{text}{TENSORS}{body}}}").parse_module(), ctx
