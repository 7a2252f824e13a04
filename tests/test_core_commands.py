"""The commands of layers side by side: what each says of a network on cores, or that it is of layers in turn."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from cli_cases import build, conv_model, done, invoke, refused, save
from onnx import helper

from cnncc.arch.model import load_arch
from cnncc.binary.container import load
from cnncc.binary.counters import program_stats
from cnncc.errors import Refusal
from cnncc.estimate.cores_table import one_core_json, one_core_text
from cnncc.model.cores_plan import CoresPlan
from cnncc.model.plan_json import from_json

pytestmark = pytest.mark.usefixtures("short_searches")

ARCH = ("--arch", "tcpa-4x4")
CORES = '[[core]]\nlayers = ["c1"]\nplace = "1x2@0,0"\n[[core]]\nlayers = ["c2"]\nplace = "2x2@2,0"\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network on two cores: net.onnx, cores.toml, net.cnb, ir/."""
    folder = tmp_path_factory.mktemp("cores")
    save(conv_model(), folder / "net.onnx")
    (folder / "cores.toml").write_text(CORES)
    dumps = ("-o", folder / "net.cnb", "--dump-dir", folder / "ir")
    done("compile", folder / "net.onnx", *ARCH, "--schedule", folder / "cores.toml", *dumps)
    return folder


@pytest.mark.parametrize(
    "command",
    [("reuse",), ("atoms",), ("verify",), ("compile",), ("explore", "--vary", "rows=4"), ("estimate", "--model")],
)
def test_a_binary_is_no_model(command: tuple[str, ...], folder: Path) -> None:
    name, *options = command
    if name == "estimate":
        given = ("verify", folder / "net.cnb", "--prove", "--model", folder / "net.cnb")
    else:
        given = (name, folder / "net.cnb", *options)
    assert "net.cnb: is a binary, not an ONNX model: give the model that it was compiled from" in refused(*given)


def test_check_of_a_binary(folder: Path) -> None:
    assert "is a binary, not an ONNX model" in invoke("check", folder / "net.cnb").stdout


@pytest.mark.parametrize(
    "command",
    [
        ("atoms",),
        ("explore", "--vary", "rows=4"),
        ("estimate", "--front"),
        ("estimate", "--check-certificate", "CERTIFICATE"),
    ],
)
def test_what_is_of_layers_in_turn(command: tuple[str, ...], folder: Path) -> None:
    (certificate := folder / "certificate.json").write_text('{"layers": [], "array": "", "groups": [], "moves": {}}')
    name, *options = command
    options = [str(certificate) if option == "CERTIFICATE" else option for option in options]
    message = refused(name, folder / "net.onnx", *ARCH, *options, "--schedule", folder / "cores.toml")
    assert (
        f"works for layers one after the other alone: leave out the tables [[core]] of {folder / 'cores.toml'}"
        in message
    )
    if name == "atoms":
        assert "or IR from before nest-cores" in refused(name, folder / "ir" / "nest-cores", *ARCH)
    if name == "estimate":
        message = refused(name, folder / "net.onnx", *ARCH, *options, "--parallel", "layers")
        assert "works for layers one after the other alone: leave out --parallel layers" in message


def test_check_says_which_cores_there_are(folder: Path) -> None:
    given = ("check", folder / "net.onnx", *ARCH, "--schedule", folder / "cores.toml", "--json")
    findings = {
        each["where"]: each for each in json.loads(done(*given).stdout)["findings"] if each["severity"] == "note"
    }
    assert findings["c1"]["what"].startswith("a core: 1 x 2 PEs at 0,0, ")
    assert findings["c2"]["what"] == "a core: 2 x 2 PEs at 2,0"
    network = [each for each in json.loads(done(*given).stdout)["findings"] if each["resource"] == "cycles"]
    counted = json.loads(done("estimate", folder / "net.cnb", "--json").stdout)["frames"]
    assert [each["value"] for each in network] == [counted["period"]["cycles"]]
    assert f"the first after {counted['first']:,}" in network[0]["what"]


def test_check_refuses_what_compile_refuses(folder: Path) -> None:
    (folder / "wrong.toml").write_text(CORES.replace("2x2@2,0", "2x2@0,1"))
    for options, message in (
        (("--schedule", folder / "wrong.toml"), "cores c1 and c2 both have PE 0,1"),
        (("--parallel", "layers", "--objective", "energy"), "--objective has no effect on layers side by side"),
    ):
        result = invoke("check", folder / "net.onnx", *ARCH, *options, "--json")
        what = [each["what"] for each in json.loads(result.stdout)["findings"] if each["severity"] == "blocking"]
        assert len(what) == 1 and message in what[0] and result.exit_code == 1, what
        assert message in refused("compile", folder / "net.onnx", *ARCH, *options, "-o", folder / "no.cnb")


def test_reuse_has_the_words_of_a_frame(folder: Path) -> None:
    rows = json.loads(done("reuse", folder / "ir" / "nest-cores", *ARCH, "--json").stdout)["layers"]
    assert [row["group"] for row in rows.values()] == ["c1: stripes of 1 row", "c2: stripes of 1 row"]
    words: Counter[str] = Counter()
    for row in rows.values():
        words += Counter(row["words"])
    (plan,) = from_json(load(folder / "net.cnb").metadata["plan"])
    assert isinstance(plan, CoresPlan)
    words += Counter(dram_read=plan.image, glb_write=plan.image, dram_write=plan.result, glb_read=plan.result)
    assert dict(words) == {
        key: count for key, count in program_stats(load(folder / "net.cnb"))["words"].items() if count
    }


def test_a_binary_says_that_its_layers_run_side_by_side(folder: Path) -> None:
    """Whatever the options of the proof."""
    assert (
        "proven for all inputs" in done("verify", folder / "net.cnb", "--prove", "--model", folder / "net.onnx").stdout
    )


def test_compile_prints_a_single_core_beside(folder: Path) -> None:
    given = (folder / "net.onnx", *ARCH, "--parallel", "layers", "--fps", 1)
    report = done("compile", *given, "-o", folder / "chosen.cnb").stdout
    estimate = json.loads(done("estimate", *given, "--json").stdout)
    alone = done("estimate", folder / "net.onnx", *ARCH, "--json").stdout
    assert estimate["one_core"]["cycles"] == json.loads(alone)["cycles"]["total"]
    assert f"a single core takes {estimate['one_core']['cycles']:,} cycles for an image" in report
    for name, text in (("cores", "these cores"), ("one_core", "a single core")):
        numbers = r" +".join(str(count) for count in estimate["hardware"][name].values())
        assert [line.split()[-4:] for line in report.splitlines() if line.startswith(f"  {text}  ")] == [
            numbers.split(" +")
        ]
    # So it does beside cores of a schedule, which has nothing else.
    report = done(
        "compile", folder / "net.onnx", *ARCH, "--schedule", folder / "cores.toml", "-o", folder / "b.cnb"
    ).stdout
    assert f"a single core takes {estimate['one_core']['cycles']:,} cycles" in report


def test_ir_on_cores_has_no_figures_of_a_single_core(folder: Path) -> None:
    """Its layers are mapped to the PEs of their cores; so also where the dump is given by its step."""
    (dump,) = (folder / "ir").glob("*-nest-cores.mlir")
    of_file, of_step = (done("estimate", source, *ARCH).stdout for source in (dump, folder / "ir" / "nest-cores"))
    assert "a single core takes" not in of_step
    assert of_step.splitlines()[1:] == of_file.splitlines()[1:]


def test_all_buffers_of_a_long_lag_count(folder: Path) -> None:
    """With a lag of 3 there are 3 images and 3 results: what `nest-cores` finds to fit does."""
    (folder / "late.toml").write_text('lag = 3\n[[core]]\nlayers = ["c1", "c2"]\nplace = "1x2@0,0"\n')
    array = done("arch", "show", "tcpa-4x4").stdout

    banks, result = 8, None
    while result is None or result.exit_code:
        changed = re.sub(r"(?m)^words = \d+", f"words = {64 * banks}", array)
        (folder / "banks.toml").write_text(re.sub(r"(?m)^banks = \d+", f"banks = {banks}", changed))
        given = (folder / "net.onnx", "--schedule", folder / "late.toml", "--arch", folder / "banks.toml")
        result = invoke("compile", *given, "-o", folder / "late.cnb")
        if result.exit_code:
            needed = re.match(r"cnncc: nest-cores: [\d,]+ words of the GLB in (\d+) banks of 64", result.stderr)
            assert needed and int(needed[1]) > banks, result.stderr
            banks = int(needed[1])


def test_a_core_that_begins_with_pools(tmp_path: Path) -> None:
    """The second pool has params. No load of the core waits for weights: an image says that all have come."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["m"], name="m", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("AveragePool", ["m"], ["y"], name="a", kernel_shape=[2, 2]),
    ]
    save(build(nodes, {"x": (1, 4, 10, 6)}, ["y"]), tmp_path / "pools.onnx")
    (tmp_path / "cores.toml").write_text('[[core]]\nlayers = ["m", "a"]\nplace = "1x2@0,0"\n')
    given = (tmp_path / "pools.onnx", *ARCH, "--schedule", tmp_path / "cores.toml")
    done("compile", *given, "-o", tmp_path / "pools.cnb")
    assert "counters are as predicted" in done("estimate", tmp_path / "pools.cnb", "--check-counters").stdout
    done("verify", *given)


def test_a_network_that_a_single_core_cannot_run(folder: Path) -> None:
    (plan,) = from_json(load(folder / "net.cnb").metadata["plan"])
    assert isinstance(plan, CoresPlan)
    compared = one_core_json(plan, load_arch("tcpa-4x4"), Refusal("the GLB is too small"))
    assert compared["one_core"] == {"refused": "the GLB is too small"}
    assert [*one_core_text(compared, 50)][-1] == "  a single core cannot run the network: the GLB is too small"
