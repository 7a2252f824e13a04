"""A small network by hand in the `array` dialect, on an array of 2 x 2 PEs, and what it computes, by brute force.

conv   3x3, 2 -> 4 channels, pad top 1, left 1, bottom 2, right 1, then bias, scale, table and residual: with n2n, the
       virtual neighbour, two tiles of rows, two input channels, weights and parameters in two slices, by semaphores
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
from cnncc.numerics import Epilogue, Table

C, IH, IW, K, OH, OW = 2, 3, 2, 4, 4, 2
ZERO = 3
LOW, HIGH = -40, 90

CONV = """
  array.layer "conv1" computes "relu1" attributes {mapping = "k2 > h2 > [k h||2@rows w||2@cols] > c"} {
    array.view x, tensor x.glb, height 3, width 2, pitch 2, plane 6, fill 3, zero 3, steps [y+2*h1, k+c2]
    array.view w.dram, tensor conv1.w, steps [lin+36*k0]
    array.view w, tensor conv1.w.glb, wrap 72, steps [lin+36*k0, lin+9*c2]
    array.view p.dram, tensor conv1.p, steps [lin+8*k0]
    array.view p, tensor conv1.p.glb, wrap 16, steps [lin+8*k0]
    array.view y, tensor conv1.glb, height 4, width 2, pitch 2, plane 8, steps [k+2*k0, y+2*h1]
    array.view r, tensor r.glb, height 4, width 2, pitch 2, plane 8, steps [k+2*k0, y+2*h1]
    array.unit bias, scale, zero 2, clamp [-40, 90], factors conv1.f, add_clamp [-60, 99], table conv1.t, shift 2
    array.repeat k0, count 2 {
      array.dma in, dram p.dram, glb p, words 8, tokens take 1
      array.dma in, dram w.dram, glb w, words 18, count 2, dram_step 18, glb_step 18, tokens give 2
      array.repeat h1, count 2 {
        array.repeat c2, count 2 {
          array.load weight, view w, place rows 2 cols 2 set 2x2, pattern [3 by lin+1, 3 by lin+3, 2 by lin+18],
              open always, close always, tokens take 2 when [h1, c2]
          array.load ifmap, view x, start y-1 x-1, place rows 2 cols 2 set 2x2 y+row x+col,
              pattern [1 by x+1, 3 by y+1], open always
          array.load ifmap, view x, start y-1, place rows 2 cols 2 set 2x2 y+row x+col, pattern [2 by x+1, 3 by y+1],
              slot 3, edge, close always, tokens give 3 when [c2]
          array.mac mac, place rows 2 cols 2 set 2x2, taps 9, step_range 2, data_reuse 6, n2n_slot 3, ifmap tap,
              weight 2*tap+channel, psum channel, clear [c2], send [c2], take_weight always, give_weight always,
              take_ifmap always, give_ifmap always
        }
        array.commit y, residual r, params p, place rows 2 cols 2 set 2x2 y+row x+col, channels 2 by k+1, psum channel,
            tokens take 3 give 1 when [h1]
      }
    }
    array.sync [dma, load, array, commit]
  }
"""
POOL = """
  array.layer "pool1" computes "pool1" {
    array.view x, tensor conv1.glb, height 4, width 2, pitch 2, plane 8
    array.view y, tensor pool1.glb, height 2, width 2, pitch 2, plane 4
    array.unit
    array.load ifmap, view x, place rows 2 cols 2 set 1x2 k+row_set y+2*col, pattern [2 by k+2, 2 by x+1, 2 by y+1],
        open always, close always
    array.mac max, place rows 2 cols 2 set 1x2, pixels 4, taps 2, ifmap 2*pixel+tap, psum pixel, clear always,
        send always, take_ifmap always, give_ifmap always
    array.commit y, place rows 2 cols 2 set 1x2 k+row_set y+col, pixels 2 by k+2, lines 2 by x+1, psum 2*pixel+tap
    array.sync [load, array, commit]
  }
"""
SUM = """
  array.layer "sum1" computes "sum1" {
    array.view x, tensor conv1.glb, height 4, width 2, pitch 2, plane 8, steps [k+2*k0]
    array.view y, tensor sum1.glb, height 2, width 1, pitch 1, plane 2, steps [k+2*k0]
    array.unit
    array.repeat k0, count 2 {
      array.load ifmap, view x, place rows 2 cols 2 set 2x1 y+2*row k+col_set, pattern [2 by x+1, 2 by y+1],
          open always, close always
      array.mac add, place rows 2 cols 2 set 2x1, taps 4, ifmap tap, clear always, send always, take_ifmap always,
          give_ifmap always
      array.commit y, place rows 2 cols 2 set 2x1 y+row k+col_set
    }
    array.sync [load, array, commit]
  }
"""
ADD = """
  array.layer "add1" computes "add1" {
    array.view a, tensor conv1.glb
    array.view y, tensor add1.glb
    array.unit factors conv1.f, add_clamp [-99, 99]
    array.commit y, source glb, operand a, residual a, pixels 4 by lin+8, channels 8 by lin+1
    array.sync [commit]
  }
"""
LINES = """
  array.layer "lines1" computes "lines1" {
    array.view d, tensor r, height 4, width 2, pitch 2, plane 8, steps [y+h0]
    array.view g, tensor lines.glb, pitch 2, plane 6, ring_y 3, steps [y+h0]
    array.view x, tensor lines.glb, height 4, width 2, pitch 2, plane 6, fill -99, ring_y 3, steps [y+h0, k+2*k1]
    array.view y, tensor lines1.glb, height 4, width 2, pitch 2, plane 8, steps [y+h0, k+2*k1]
    array.unit
    array.dma in, dram d, glb g, count 4, words 2, dram_step 8, glb_step 6
    array.repeat h0, count 4 {
      array.dma in, dram d, glb g, count 4, words 2, y 1, dram_step 8, glb_step 6, tokens take 4 give 5
      array.repeat k1, count 2 {
        array.load ifmap, view x, start y-1, place rows 2 cols 2 set 2x2 k+row x+col, pattern [3 by y+1], open always,
            close always, tokens take 5 when [k1] give 4 when [k1]
        array.mac max, place rows 2 cols 2 set 1x2, taps 3, ifmap tap, clear always, send always, take_ifmap always,
            give_ifmap always
        array.commit y, place rows 2 cols 2 set 2x2 k+row x+col
      }
    }
    array.sync [dma, load, array, commit]
  }
"""
PARTS = """
  array.layer "parts1" computes "parts1" {
    array.view x, tensor r.glb, height 4, width 2, pitch 2, plane 8, steps [k+2*c0, y+h1]
    array.view s, tensor parts.sums, height 4, width 2, pitch 2, steps [y+h1]
    array.view y, tensor parts1.glb, height 4, width 2, pitch 2, steps [y+h1]
    array.unit
    array.repeat c0, count 2 {
      array.repeat h1, count 4 {
        array.load ifmap, view x, place rows 2 cols 2 set 2x2 k+row x+col, open always, close always
        array.mac add, place rows 2 cols 2 set 1x2, clear always, send always, take_ifmap always, give_ifmap always
        array.commit y, place rows 2 cols 2 set 2x2 x+col, reduce, sums s, fresh [c0], final [c0]
      }
    }
    array.sync [load, array, commit]
  }
"""
INPUTS = """
  array.layer "inputs" computes "" {
    array.view d0, tensor x, height 3, width 2, pitch 2
    array.view g0, tensor x.glb, pitch 2
    array.view d1, tensor r
    array.view g1, tensor r.glb
    array.dma in, dram d0, glb g0, count 2, rows 3, words 2, dram_step 6, glb_step 6
    array.dma in, dram d1, glb g1, words 32
    array.signal semaphore 1, count 1
    array.signal semaphore 4, count 1
    array.sync [dma]
  }
"""
OUTPUTS = """
  array.layer "outputs" computes "" {
    array.view g0, tensor pool1.glb
    array.view d0, tensor y
    array.view g1, tensor add1.glb
    array.view d1, tensor z
    array.dma out, dram d0, glb g0, words 16
    array.dma out, dram d1, glb g1, words 32
    array.sync [dma]
  }
"""
TENSORS = """
  array.tensor conv1.w, memory dram, words 72, shape [4, 2, 3, 3], role weight
  array.tensor conv1.p, memory dram, words 16, shape [4, 4], role weight
  array.tensor x, memory dram, words 12, shape [1, 2, 3, 2], role input, scale 0.5, zero 3
  array.tensor r, memory dram, words 32, shape [1, 4, 4, 2], role input, scale 0.25
  array.tensor y, memory dram, words 16, shape [1, 4, 2, 2], role output, scale 0.1
  array.tensor z, memory dram, words 32, shape [1, 4, 4, 2], role output, scale 0.1, zero -1
  array.tensor x.glb, memory glb, words 12, shape [1, 2, 3, 2]
  array.tensor r.glb, memory glb, words 32, shape [1, 4, 4, 2]
  array.tensor conv1.w.glb, memory glb, words 72
  array.tensor conv1.p.glb, memory glb, words 16
  array.tensor conv1.glb, memory glb, words 32, shape [1, 4, 4, 2]
  array.tensor pool1.glb, memory glb, words 16, shape [1, 4, 2, 2]
  array.tensor sum1.glb, memory glb, words 8, shape [1, 4, 2, 1]
  array.tensor add1.glb, memory glb, words 32, shape [1, 4, 4, 2]
  array.tensor lines.glb, memory glb, words 24, shape [1, 4, 3, 2]
  array.tensor lines1.glb, memory glb, words 32, shape [1, 4, 4, 2]
  array.tensor parts.sums, memory glb, words 16
  array.tensor parts1.glb, memory glb, words 8, shape [1, 1, 4, 2]
"""


def arch_2x2() -> Arch:
    """Two rows and two columns; otherwise the 4x4 preset, whatever its sizes, with two halves of everything."""
    preset = load_arch("spatial-4x4")
    pe = replace(
        preset.pe, weight_words=18, ifmap_words=9, psum_words=4, weight_halves=2, ifmap_halves=2, psum_halves=2
    )
    return replace(preset, name="2x2", rows=2, cols=2, operand_bits=16, pe=pe, links=Links(south=True))


def weights() -> dict[str, np.ndarray]:
    """Weights i16[k, c, r, s], biases i32[k], scales f32[k], a table, factors of the residual add."""
    rng = np.random.default_rng(7)
    return {
        "w": rng.integers(-9, 10, (K, C, 3, 3)).astype(np.int16),
        "bias": rng.integers(-200, 200, K).astype(np.int32),
        "scale": rng.uniform(0.05, 0.3, K).astype(np.float32),
        "t": rng.integers(-60, 60, 257).astype(np.int16),
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
    table = Table(w["t"].astype(np.int64), 2)
    epilogue = Epilogue(
        w["bias"].astype(np.int64), w["scale"], 2, (LOW, HIGH), w["f"], add_clamp=(-60, 99), table=table
    )
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
    arrays = {"conv1.w": w["w"], "conv1.p": params, "conv1.t": w["t"], "conv1.f": w["f"]}
    text = "".join(
        f"  weights.global @{name} : tensor<{'x'.join(map(str, a.shape))}x{'f32' if a.dtype == np.float32 else 'i16'}>"
        f' = #weights.ref<"{ctx.weights.add(a)}">\n'
        for name, a in arrays.items()
    )
    body = "".join(layers or (INPUTS, CONV, POOL, SUM, ADD, LINES, PARTS, OUTPUTS))
    return Parser(ctx, f"builtin.module {{\n{text}{TENSORS}{body}}}").parse_module(), ctx
