"""The choice of cores: rectangles that fit, units of a chain, the options of `compile`, and what it reaches."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import onnx
import pytest
import tcpa_programs
from cli_cases import conv_model, done, refused, save
from examples import SEED, examples
from group_cases import random_chain
from searches import search_first
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import arch_text, load_arch
from cnncc.dialects.nest import LayerOp
from cnncc.driver.pipeline import new_context
from cnncc.errors import Refusal
from cnncc.mapping.channels import Region
from cnncc.passes._scheduling import core_choice
from cnncc.passes._scheduling.core_chain import CoreChain, CorePlan, regions_in_array_problem
from cnncc.passes._scheduling.core_choice import _cuts_of, cuts_of, places_of
from cnncc.passes._scheduling.core_mapping import core_layers, fewest_words
from cnncc.passes._scheduling.core_parts import LayerGraph
from cnncc.passes._scheduling.schedule_file import GivenCore, read_schedule
from cnncc.passes.cnn_to_nest import CnnToNestPass

ROOT = Path(__file__).parent.parent
ARCH = load_arch("tcpa-4x4")


@pytest.mark.parametrize("number", range(examples(40)))
def test_rectangles_are_laid_on_the_array_as_they_are(number: int) -> None:
    rng = np.random.default_rng([SEED, number])
    shapes = [(int(rng.integers(1, 5)), int(rng.integers(1, 5))) for _ in range(int(rng.integers(1, 5)))]
    places = places_of(tuple(shapes), ARCH)
    if places is None:
        return
    assert [(place.rows, place.cols) for place in places] == shapes
    assert regions_in_array_problem([(str(at), place) for at, place in enumerate(places)], ARCH) is None


def test_all_pairs_of_rectangles_that_fit_are_found() -> None:
    sides = list(product(range(1, 5), repeat=2))
    for one, two in product(sides, sides):
        fits = (one[0] + two[0] <= 4) or (one[1] + two[1] <= 4)
        assert (places_of((one, two), ARCH) is not None) == fits


def chain(number: int) -> ModuleOp:
    ctx = new_context()
    module = random_chain(np.random.default_rng([SEED, number]), most_images=1, most_layers=6).module(ctx)
    CnnToNestPass().apply(ctx, module)
    return module


@pytest.mark.parametrize("number", range(examples(20)))
def test_behind_a_cut_layers_read_one_value_of_those_before(number: int) -> None:
    layers = [op for op in chain(number).walk() if isinstance(op, LayerOp)]
    if any(not list(layer.result.uses) for layer in layers):
        return  # several results: no graph
    cuts = cuts_of(LayerGraph.of(layers))
    assert cuts[0] == 0
    for at in range(1, len(layers)):
        inside = {layer.result for layer in layers[at:]}
        read = {value for op in layers[at:] for value in op.operands if value not in inside}
        assert (len(read) == 1) == (at in cuts)


def test_the_mnist_net_does_1_100_frames_a_second_and_is_proven(tmp_path: Path) -> None:
    model, data = ROOT / "samples/models/mnist.onnx", ROOT / "samples/inputs/digits_calibration.npz"
    options = ("--batch", 1, "--arch", "tcpa-4x4", "--parallel", "layers", "--calibrate", data)
    report = done("compile", model, *options, "-o", tmp_path / "net.cnb").stdout
    rate = re.search(r"16 of 16 PEs; a frame every [\d,]+ cycles \(([\d,.]+) a second at 50 MHz\)", report)
    assert rate and float(rate[1].replace(",", "")) > 1100
    host = "on the host, not in these figures: Gemm node '/fc/Gemm': the array file has Gemm on the host (cores.host)"
    for source in ((tmp_path / "net.cnb",), (model, *options, "--fps", 100)):
        assert host in " ".join(done("estimate", *source).stdout.split())
    given = ("--batch", 1, "--calibrate", data, "--prove")
    assert "any number of frames" in done("verify", tmp_path / "net.cnb", "--model", model, *given).stdout


def test_the_sample_of_the_paper_counts_what_the_compiler_chooses() -> None:
    """`tcpa.py --all`: with the most frames a second, and with the fewest PEs for 100 frames."""
    fastest, fewest = (tcpa_programs.compiled_side_by_side("tcpa-4x4", fps) for fps in (None, 100))
    assert sum(fastest.pes) == 16 and fastest.preset_period == fastest.period < 50_000_000 / 1_100
    assert sum(fewest.pes) == 2 and fewest.period < 50_000_000 / 100


def test_a_network_whose_weights_exceed_the_glb_is_refused_before_any_search() -> None:
    """It searched for minutes: no core of a part of it exceeds the GLB."""
    message = "all weights and parameters lie in the GLB: 276,496 words, limit 32,768; a larger GLB, or layers one"
    said = refused("compile", ROOT / "samples/models/resnet20.onnx", "--arch", "tcpa-4x4", "--parallel", "layers")
    assert message in said


def test_a_result_that_is_two_outputs_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]> g (float[1,4,8,8] x) => (float[1,4,7,7] v, float[1,4,7,7] d) {
            [v] v = MaxPool <kernel_shape = [2,2]> (x)
            [d] d = Dropout (v)
        }"""
    )
    said = refused("compile", save(model, tmp_path / "net.onnx"), "--arch", "tcpa-4x4", "--parallel", "layers")
    assert "the result of layer 'v' is 2 outputs of the network: cores have one, the result of a frame" in said


def test_rectangles_that_no_buses_allow_are_laid_in_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bus for each row, cores lie on a diagonal. A search of all ways took 24 GB for seven cores on 12 x 14."""
    arch = replace(ARCH, rows=12, cols=14, cores=replace(ARCH.cores, most=8, buses=1))
    sizes = [(1, 1), (2, 3), (10, 5), (9, 11), (12, 1), (1, 14)]
    for shapes in product(sizes, repeat=2):
        ways = _cuts_of(frozenset(enumerate(shapes)), arch.rows, arch.cols)
        named = [[(str(at), place) for at, place in way] for way in ways]
        some = any(regions_in_array_problem(way, arch) is None for way in named)
        assert (places_of(shapes, arch) is not None) == some, shapes
    monkeypatch.setattr(core_choice, "_cuts_of", None)
    assert places_of(((2, 2),) * 7, arch) is None


def test_a_glb_of_too_few_banks_is_refused_before_any_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It searched for minutes. With a bank more some chain of the network has room, under any mapping."""
    search_first(monkeypatch.setattr)
    words, model = ARCH.glb.words // ARCH.glb.banks, save(conv_model(), tmp_path / "net.onnx")
    options = ("--arch", tmp_path / "array.toml", "--parallel", "layers", "-o", tmp_path / "net.cnb")
    for banks in (3, 4):
        few = replace(ARCH, glb=replace(ARCH.glb, banks=banks, words=banks * words))
        (tmp_path / "array.toml").write_text(arch_text(few))
        if banks == 4:
            done("compile", model, *options)
        else:
            message = refused("compile", model, *options)
            assert "in 4 banks of 1,024 words, tcpa-4x4 has 3 (glb.banks" in message
            assert "no other cores take fewer banks; a larger GLB, more banks of it, or layers one after" in message


@pytest.mark.parametrize("number", range(examples(8)))
def test_cuts_that_are_left_out_have_no_space(number: int) -> None:
    """Cores as the mapper makes them take at least the words of each bank by which cuts are left out."""
    module = chain(number)
    real, least = list[CorePlan](), list[CorePlan]()
    try:
        graph = LayerGraph.of([op for op in module.walk() if isinstance(op, LayerOp)])
        ends = [*cuts_of(graph), len(graph.layers)]
        for first, end in pairwise(ends):
            part, region = graph.part(first, end), Region(2, 2)
            real.append(CorePlan(region, part, core_layers(part, region, 1, ARCH).group))
            least.append(CorePlan(region, part, fewest_words(part)))
    except Refusal as refusal:
        assert re.search("leave one of them out|leave the cores", str(refusal)), refusal
        return
    words, fewest = (CoreChain.with_fewest_rows(cores).bank_words(ARCH) for cores in (real, least))
    assert fewest.keys() <= words.keys()
    for bank, own in fewest.items():
        assert sum(own.values()) <= sum(words[bank].values()), bank


def test_what_the_host_has_is_an_operator(tmp_path: Path) -> None:
    array = tmp_path / "array.toml"
    arch = load_arch("tcpa-4x4")
    array.write_text(arch_text(replace(arch, cores=replace(arch.cores, host=("Softmax", "Gem")))))
    said = refused("compile", ROOT / "samples/models/mnist.onnx", "--arch", array, "--parallel", "layers")
    assert "cores.host: there is no operator 'Gem'; did you mean 'Gemm'?" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fps", "100"], "--fps needs layers side by side: add --parallel layers"),
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[core]]\nlayers = ["a"]', "core 1: place is a text, rows x columns of PEs"),
        ('[[core]]\nlayers = "a"\nplace = "1x1@0,0"', "core 1: layers is a list of labels"),
        ('[[core]]\nlayers = []\nplace = "1x1@0,0"', "core 1: layers is a list of labels, one or more"),
        ('[[core]]\nlayers = ["a"]\nplace = "1x1@0,0"\nkeeps = 0', "core 1: keeps is a whole number, from 1 to"),
        (
            'lag = "2"\n[[core]]\nlayers = ["a"]\nplace = "1x1@0,0"',
            "lag is a whole number, from 1 to 2,147,483,647: not '2'",
        ),
        ('[[core]]\nlayers = ["a"]\nplace = "1x1@0,0"\nrow = 2', "core 1: unknown key 'row'"),
        ('[[core]]\nlayers = ["a"]\nplace = "1x1@0,0"\nkeeps = [2]', "core 1: keeps is a whole number"),
        ('[[core]]\nlayers = ["a"]\nplace = "1x1@0,0"\n[b]\ntof = 2', "beside [[core]] there is no b"),
        ('objective = "energy"\n[[core]]\nlayers = ["a"]\nplace = "1x1@0,0"', "beside [[core]] there is no objective"),
        ("lag = 2", "lag is of cores: it has no table [[core]]"),
        ('[core]\nlayers = ["a"]', "two brackets begin a core: [[core]]; this is a layer 'core'"),
    ],
)
def test_what_a_schedule_file_says_of_cores_is_checked(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "cores.toml"
    file.write_text(text)
    with pytest.raises(Refusal, match=re.escape(message)):
        read_schedule(str(file))


def test_a_schedule_file_has_cores(tmp_path: Path) -> None:
    file = tmp_path / "cores.toml"
    file.write_text('lag = 2\n[[core]]\nlayers = ["a", "b"]\nplace = "1x2@3,0"\nkeeps = 4\ndelays = [0, 1]\n')
    schedule = read_schedule(str(file))
    assert schedule.lag == 2
    assert schedule.cores == (GivenCore(("a", "b"), "1x2@3,0", 1, (0, 1), 4),)


def test_a_schedule_in_a_pipe_is_refused(tmp_path: Path) -> None:
    """It is read several times. The second time it was empty, and the network ran on a single core."""
    os.mkfifo(tmp_path / "cores.toml")
    with pytest.raises(Refusal, match=r"cores.toml: a schedule is read several times, and this is a pipe"):
        read_schedule(str(tmp_path / "cores.toml"))
