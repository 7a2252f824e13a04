"""Quantise a float sample network with onnxruntime, calibrated on training images.

    python samples/quantise.py samples/models/lenet.onnx    # or any float model with the input of the sample images
    python samples/quantise.py NET.onnx --calibrate X.npz --variants qoperator_u8

Writes NET_VARIANT.onnx beside the model, the same bytes in every run of the same versions:

    qoperator_u8      QLinearConv and its kin; activations uint8 with zero points, weights int8 with one scale a tensor
    qoperator_s8_pc   activations int8 with zero points, weights int8 with one scale a channel
    qoperator_s8_sym  all int8 with zero points 0, so that a Relu stays a node of its own
    qdq_s8_pc         as qoperator_s8_pc, as float operators between DequantizeLinear and QuantizeLinear
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime.quantization as quantization

# onnxruntime has no type stubs.
ort: Any = quantization

CALIBRATION = Path(__file__).resolve().parent / "inputs" / "digits_calibration.npz"
CALIBRATION_IMAGES = 100

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "qoperator_u8": {"quant_format": "QOperator", "activation_type": "QUInt8"},
    "qoperator_s8_pc": {"quant_format": "QOperator", "activation_type": "QInt8", "per_channel": True},
    "qoperator_s8_sym": {"quant_format": "QOperator", "activation_type": "QInt8", "symmetric": True},
    "qdq_s8_pc": {"quant_format": "QDQ", "activation_type": "QInt8", "per_channel": True},
}


def reader(images: Mapping[str, Any]) -> Any:
    """What onnxruntime reads calibration data from: one image at a time."""
    count = min(CALIBRATION_IMAGES, *(len(array) for array in images.values()))
    feeds = iter([{name: array[i : i + 1] for name, array in images.items()} for i in range(count)])

    class Reader(ort.CalibrationDataReader):
        def get_next(self) -> dict[str, Any] | None:
            return next(feeds, None)

    return Reader()


def quantise(model: Path, variant: str, images: Mapping[str, Any]) -> Path:
    """Write `model` quantised as the variant has it, and return where."""
    options = dict(VARIANTS[variant])
    path = model.with_name(f"{model.stem}_{variant}.onnx")
    with TemporaryDirectory() as folder:
        prepared = Path(folder) / model.name
        # Batch normalisations go into the convolutions before them.
        ort.quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
        _quantise(prepared, path, options, images)
    return path


def _quantise(model: Path, path: Path, options: Mapping[str, Any], images: Mapping[str, Any]) -> None:
    ort.quantize_static(
        str(model),
        str(path),
        reader(images),
        quant_format=ort.QuantFormat[options["quant_format"]],
        activation_type=ort.QuantType[options["activation_type"]],
        weight_type=ort.QuantType.QInt8,
        per_channel=options.get("per_channel", False),
        extra_options={"ActivationSymmetric": options.get("symmetric", False)},
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantise the model named on the command line."""
    parser = argparse.ArgumentParser(description="Quantise a float network with onnxruntime.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibrate", type=Path, default=CALIBRATION, help="images by input name (.npz)")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args(arguments)
    logging.getLogger().setLevel(logging.ERROR)
    with np.load(options.calibrate) as archive:
        images = {name: archive[name] for name in archive.files}
    for variant in options.variants:
        path = quantise(options.model, variant, images)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
