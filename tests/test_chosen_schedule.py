"""`compile --emit schedule`: the file says what was chosen, so that with it the same program comes out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import test_group_choice
from cli_cases import CALIBRATION, SAMPLES, build, done, noise, refused, save
from examples import examples
from frontend_models import model
from group_cases import Chain
from onnx import helper
from test_group_choice import drawn_auto, drawn_narrow
from test_group_programs import checked

from cnncc.arch.model import arch_text, load_arch
from cnncc.driver.chosen_schedule import ChosenSchedule
from cnncc.driver.pipeline import TO_PROGRAMS, Compilation
from cnncc.passes._scheduling import candidates
from cnncc.passes._scheduling.schedule_file import read_schedule
from cnncc.util.toml import read_toml

pytestmark = pytest.mark.usefixtures("short_searches")


def emitted(folder: Path, model: object, *options: object, cores: bool = False) -> str:
    """The schedule of a model, after a check that it gives the same binary. Of layers in turn none is searched."""
    parallel, file = ["--parallel", "layers"] if cores else [], folder / "chosen.toml"
    done("compile", model, *options, *parallel, "-o", folder / "as_chosen.cnb")
    done("compile", model, *options, *parallel, "--emit", "schedule", "-o", file)
    with pytest.MonkeyPatch.context() as patch:
        if not cores:
            patch.setattr(candidates, "searched", None)
        done("compile", model, *options, "--schedule", file, "-o", folder / "as_given.cnb")
    assert (folder / "as_given.cnb").read_bytes() == (folder / "as_chosen.cnb").read_bytes()
    return file.read_text()


@pytest.mark.parametrize("arch", ["spatial-8x8", "seed-4x4", "tcpa-4x4"])
def test_layers_one_after_the_other(arch: str, tmp_path: Path) -> None:
    lenet = SAMPLES / "models" / "lenet.onnx"
    schedule = emitted(tmp_path, lenet, "--arch", arch, "--batch", 1, "--calibrate", CALIBRATION, "--groups", "none")
    assert schedule.startswith(f"# lenet.onnx on {arch}\n")
    assert '["c1"]  # n 1 k 6 c 1 h 28 w 28 r 5 s 5\nmapping = "' in schedule and "[[group]]" not in schedule


def test_groups_and_streamed_values(tmp_path: Path) -> None:
    preset, file = load_arch("spatial-8x8"), tmp_path / "small.toml"
    file.write_text(arch_text(preset).replace(f"words = {preset.glb.words}", "words = 4096"))
    schedule = emitted(tmp_path, SAMPLES / "models" / "mnist.onnx", "--arch", file)
    assert "[[group]]\nlayers = [" in schedule and 'output = "streamed"' in schedule


@pytest.mark.parametrize("option", ["--schedule", "--groups"])
def test_groups_that_are_given(option: str, tmp_path: Path) -> None:
    mnist, given, chosen = SAMPLES / "models" / "mnist.onnx", tmp_path / "given.toml", tmp_path / "chosen.toml"
    given.write_text(
        '[[group]]\nlayers = ["conv0", "pool1"]\nrows = 2\n\n[[group]]\nlayers = ["conv2", "pool3"]\nrows = 1\n'
    )
    done("compile", mnist, option, given, "-o", tmp_path / "as_given.cnb")
    done("compile", mnist, option, given, "--emit", "schedule", "-o", chosen)
    assert chosen.read_text().count(given.read_text()) == 1
    done("compile", mnist, "--schedule", chosen, "-o", tmp_path / "as_chosen.cnb")
    assert (tmp_path / "as_given.cnb").read_bytes() == (tmp_path / "as_chosen.cnb").read_bytes()


def test_an_image_that_stays_in_the_glb(tmp_path: Path) -> None:
    """Layers in a group leave its results without a place, so that these took the image's. Then y had no mapping."""
    text = """g (float[3, 6, 8, 10] x) => (float[3, 6, 8, 10] s, float[3, 6, 2, 2] y) {
        d = Relu (x)
        s = Sum (x, x, x, d)
        y = Conv <group = 6, kernel_shape = [4, 6], strides = [4, 4]> (x, w)
    }"""
    network, preset, file = model(text, w=noise(1, 6, 1, 4, 6)), load_arch("spatial-4x4"), tmp_path / "small.toml"
    file.write_text(arch_text(replace(preset, glb=replace(preset.glb, words=1700))))
    schedule = emitted(tmp_path, save(network, tmp_path / "net.onnx"), "--arch", file, "--objective", "energy")
    assert "[[group]]" in schedule and "columns = " not in schedule


@pytest.mark.parametrize(("words", "crowded"), [(700, True), (817, False)])
def test_rings_that_fit_where_their_values_do_not(words: int, crowded: bool, tmp_path: Path) -> None:
    """x, a and b are 720 words while b is computed, and a ring of b takes fewer: a reader does not know of the ring."""
    text = """g (float[2, 5, 12, 2] x) => (float[2, 3, 1, 1] y) {
        a = Sum (x, x)
        b = Sum (a, x)
        c = Conv <kernel_shape = [2, 2], strides = [3, 1]> (b, w)
        y = GlobalMaxPool (c)
    }"""
    network, preset, file = model(text, w=noise(1, 3, 5, 2, 2)), load_arch("spatial-4x4"), tmp_path / "small.toml"
    file.write_text(arch_text(replace(preset, glb=replace(preset.glb, words=words))))
    schedule = emitted(tmp_path, save(network, tmp_path / "net.onnx"), "--arch", file, "--objective", "words")
    assert ("\n# The GLB has room for the rings of these groups, but not for the whole values" in schedule) == crowded
    assert ("[[group]]" in schedule) == crowded


def test_layers_side_by_side(tmp_path: Path) -> None:
    emitted(tmp_path, SAMPLES / "models" / "mnist.onnx", "--arch", "tcpa-4x4", cores=True)
    given = read_schedule(str(tmp_path / "chosen.toml"))
    assert len(given.cores) == 3 and not given.entries


def test_labels_of_any_characters(tmp_path: Path) -> None:
    names = ['a"b', "back\\slash", "layer1.0.conv1", "ünï", "del\x7fete", "tab\tnew\nline"]
    nodes = [
        helper.make_node("Conv", [f"v{at}", "w"], [f"v{at + 1}"], name=name, pads=[1, 1, 1, 1])
        for at, name in enumerate(names)
    ]
    model = build(nodes, {"v0": (1, 2, 5, 5)}, [f"v{len(names)}"], {"w": noise(1, 2, 2, 3, 3)})
    schedule = emitted(tmp_path, save(model, tmp_path / "odd.onnx"), "--arch", "seed-4x4")
    assert len(read_toml(schedule, "chosen.toml")) == len(names)


def test_a_dump_that_is_mapped_has_no_choice_left(tmp_path: Path) -> None:
    model = SAMPLES / "models" / "mnist.onnx"
    done("compile", model, "--dump-dir", tmp_path, "-o", tmp_path / "mnist.cnb")
    done("compile", "--from", tmp_path / "cnn-to-nest", "--emit", "schedule", "-o", tmp_path / "chosen.toml")
    assert "mapped already" in refused("compile", "--from", tmp_path / "nest-tile", "--emit", "schedule")


def recompiled(chosen: Compilation, chain: Chain, folder: Path) -> tuple[Compilation, str]:
    """A chain that is compiled once more, with the schedule of what was chosen."""
    settings, file = chosen.settings, folder / "chosen.toml"
    again = chain.compilation(settings.arch_source, objective=settings.objective, groups=settings.groups)
    schedule = ChosenSchedule(again, file)
    again.run_before(TO_PROGRAMS)
    file.write_text(schedule.text())
    given = chain.compilation(settings.arch_source, groups=str(file), schedule=str(file))
    with pytest.MonkeyPatch.context() as patch:
        if "columns = " not in schedule.text():
            patch.setattr(candidates, "searched", None)  # all mappings are given
        given.run_before(TO_PROGRAMS)
    return given, file.read_text()


def test_a_mapping_that_has_room_in_its_group_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers of l0 take 264 words. The GLB has 261, but in the group the result goes into a ring."""
    monkeypatch.setattr(test_group_choice, "SEED", 20261130)
    chosen = drawn_narrow(15, tmp_path)
    assert chosen
    given, schedule = recompiled(*chosen, tmp_path)
    assert '[[group]]\nlayers = ["l0", "l1"]' in schedule and str(given.module) == str(chosen[0].module)


def test_drawn_networks_with_groups(tmp_path: Path) -> None:
    """Strips are mapped again: their program may be another one."""
    drawn = [(draw, number) for number in range(examples(5)) for draw in (drawn_auto, drawn_narrow)]
    drawn.append((drawn_narrow, 8))  # the group changes whose weights are prefetched
    groups = strips = 0
    for draw, number in drawn:
        if not (compilation := draw(number, tmp_path)):
            continue
        given, schedule = recompiled(*compilation, tmp_path)
        groups, strips = groups + schedule.count("[[group]]"), strips + schedule.count("columns = ")
        if "columns = " in schedule:
            checked(given, compilation[1])
        else:
            assert str(given.module) == str(compilation[0].module), number
    assert groups and strips
