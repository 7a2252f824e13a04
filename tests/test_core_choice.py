"""The choice of cores: rectangles that fit, units of a chain, the options of `compile`, and what it reaches."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cli_cases import refused
from examples import FACTOR, SEED, examples
from group_cases import random_chain
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import load_arch
from cnncc.dialects.nest import LayerOp
from cnncc.driver.pipeline import new_context
from cnncc.passes._scheduling.core_chain import regions_in_array_problem
from cnncc.passes._scheduling.core_choice import CoreSearch, places_of, units_of
from cnncc.passes.cnn_to_nest import CnnToNestPass

ROOT = Path(__file__).parent.parent
ARCH = load_arch("tcpa-4x4")


@pytest.mark.parametrize("number", range(examples(40)))
def test_rectangles_are_laid_on_the_array_as_they_are(number: int) -> None:
    rng = np.random.default_rng([SEED, number])
    shapes = [(int(rng.integers(1, 5)), int(rng.integers(1, 5))) for _ in range(int(rng.integers(1, 5)))]
    places = places_of(shapes, ARCH)
    if places is None:
        return
    assert [(place.rows, place.cols) for place in places] == shapes
    assert regions_in_array_problem([(str(at), place) for at, place in enumerate(places)], ARCH) is None


def test_all_pairs_of_rectangles_that_fit_are_found() -> None:
    sides = list(product(range(1, 5), repeat=2))
    for one, two in product(sides, sides):
        fits = (one[0] + two[0] <= 4) or (one[1] + two[1] <= 4)
        assert (places_of([one, two], ARCH) is not None) == fits


def chain(number: int) -> ModuleOp:
    ctx = new_context()
    module = random_chain(np.random.default_rng([SEED, number]), most_images=1, most_layers=6).module(ctx)
    CnnToNestPass().apply(ctx, module)
    return module


@pytest.mark.parametrize("number", range(examples(20)))
def test_between_units_one_value_goes_from_one_layer_to_the_next(number: int) -> None:
    layers = [op for op in chain(number).walk() if isinstance(op, LayerOp)]
    units = units_of(layers)
    assert [layer for unit in units for layer in unit] == layers
    for at in range(1, len(layers)):
        before, behind = set(layers[:at]), layers[at:]
        edges = [
            (value.owner, op, value is op.ifmap) for op in behind for value in op.operands if value.owner in before
        ]
        assert (edges == [(layers[at - 1], layers[at], True)]) == any(unit[0] is layers[at] for unit in units)


@pytest.mark.skipif(FACTOR < 1.5, reason="15 s of searches")
def test_the_mnist_net_does_1_100_frames_a_second() -> None:
    import subprocess

    model, data = ROOT / "samples/models/mnist.onnx", ROOT / "samples/inputs/digits_calibration.npz"
    command = f"cnncc compile {model} --batch 1 --arch tcpa-4x4 --parallel layers --calibrate {data} --emit nest"
    text = subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout
    assert text.count("nest.channel") == 2 and text.count(" keeps 7 ") == 2
    assert CoreSearch is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fps", "100"], "--fps is of layers side by side: --parallel layers"),
        (["--parallel", "layers", "--groups", "none"], "--groups has no effect on layers side by side"),
        (["--parallel", "layers", "--dataflow", "ws"], "--dataflow has no effect on layers side by side"),
        (["--schedule", "FILE", "--parallel", "layers"], "--parallel layers takes tables [[core]]"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], message: str, tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.toml"
    schedule.write_text('[[group]]\nlayers = ["conv0", "pool1"]\nrows = 2\n')
    given = [str(schedule) if option == "FILE" else option for option in options]
    model = str(ROOT / "samples/models/mnist.onnx")
    assert message in refused("compile", model, "--arch", "tcpa-4x4", *given)
