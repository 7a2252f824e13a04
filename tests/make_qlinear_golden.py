"""Writes tests/data/qlinear_*.npz: what onnxruntime makes of the cases of qlinear_cases.py.

    PYTHONPATH=. python tests/make_qlinear_golden.py

Run it on a CPU whose u8 x s8 products do not saturate (AVX-512 VNNI, or ARM): every result is compared with plain
numpy before it is written. A QLinearConv of types that onnxruntime has no kernel for is numpy's alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import onnxruntime
from qlinear_cases import (
    Case,
    add_cases,
    average_cases,
    constant_cases,
    conv_cases,
    expected,
    feeds_of,
    has_onnxruntime,
    leaky_cases,
    matrix_cases,
    mean_cases,
    model_of,
    product_cases,
    sigmoid_cases,
)

DATA = Path(__file__).parent / "data"


def by_onnxruntime(case: Case) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = model_of({"y": case}).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds_of({"y": case}))[0]


def write(name: str, cases: Sequence[Case]) -> None:
    found: list[np.ndarray] = []
    compared = 0
    for number, case in enumerate(cases):
        want = expected(case)
        if has_onnxruntime(case):
            got = by_onnxruntime(case)
            compared += 1
            if got.dtype != want.dtype or not np.array_equal(got, want):
                sys.exit(
                    f"{name} {number}: onnxruntime and numpy differ in {(got != want).sum()} of {want.size}: {case}"
                )
        found.append(want)
    drawn = [crc32(b"".join(np.asarray(a).tobytes() for a in (*c.fed.values(), *c.constants.values()))) for c in cases]
    codes = np.concatenate([each.ravel().view(np.uint8) for each in found])
    sizes = np.array([each.size for each in found], np.uint32)
    path = DATA / f"qlinear_{name}.npz"
    np.savez_compressed(path, codes=codes, sizes=sizes, drawn=np.array(drawn, np.uint32))
    print(f"{path.name}: {len(cases)} cases, {compared} of them equal onnxruntime's, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    write("conv", conv_cases())
    write("matrix", matrix_cases())
    write("mean", mean_cases())
    write("add", add_cases())
    write("average", average_cases())
    write("leaky", leaky_cases())
    write("sigmoid", sigmoid_cases())
    write("product", product_cases())
    write("constant", constant_cases())
