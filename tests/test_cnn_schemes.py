"""cnn-choose-scheme and cnn-partition-kernel: the notes, and partitioned layers at every level against plain loops."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_cases import LENET, build, done, invoke, noise, refused, save
from cnn_ir import parse
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_cases import Small
from onnx import helper
from xdsl.dialects.builtin import IntegerAttr, i64

from cnncc.arch.model import load_arch
from cnncc.dialects.cnn import ConvOp
from cnncc.driver.opt_main import run_opt
from cnncc.driver.pipeline import Compilation, Settings, new_context
from cnncc.errors import Refusal
from cnncc.eval import cnn, isa, nest
from cnncc.passes._scheduling.dataflows import SCHEMES
from cnncc.passes.cnn_partition_kernel import CnnPartitionKernelPass
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")
PARTITION = CnnPartitionKernelPass(("conv",))
TREES = """
name = "trees"
rows = 2
cols = 3
pe = { lanes = 4, weight_words = 128, ifmap_words = 64, psum_words = 8 }
glb = { words = 65536, words_per_cycle = 8 }
dram = { words_per_cycle = 4, latency_cycles = 9 }
"""


def case(channels: tuple[int, int], image: tuple[int, int], kernel: tuple[int, int], **window) -> Small:
    """channels: output and input channels of a group."""
    group = window.get("group", 1)
    return Small("mac", window.pop("n", 1), group * channels[0], channels[1], image, Window(kernel, **window))


CASES = {
    "7x7": case((5, 3), (15, 13), (7, 7), stride=(2, 2), pad=(3, 3, 3, 3)),
    "11x11, two frames": case((4, 2), (19, 23), (11, 11), stride=(4, 4), pad=(2, 2, 1, 2), n=2),
    "3x5, zero point": case((3, 2), (9, 14), (3, 5), stride=(2, 3), pad=(1, 0, 0, 2), fill=3, zero=3),
    "two groups": case((3, 2), (8, 9), (3, 2), stride=(3, 1), pad=(0, 1, 2, 0), group=2),
    "kernel below stride": case((3, 5), (10, 8), (1, 2), stride=(2, 3)),
    "rows that no window reads": case((2, 3), (11, 12), (3, 3), stride=(4, 4)),
}


def check(case: Small, arch: str, *, levels: bool) -> None:
    """Partition the layer; the network gives the sums as before, at the cnn level, or also at all below."""
    ctx, loaded = new_context(), load_arch(arch)
    module = case.network(ctx)
    (_, whole) = cnn.evaluate(module, ctx.weights, [case.x])
    PARTITION.apply(ctx, module)
    module.verify()
    outputs, values = cnn.evaluate(module, ctx.weights, [case.x])
    assert (outputs[0] == case.sums()).all() and (values["conv"] == whole["conv"]).all()
    convs = [op for op in module.walk() if isinstance(op, ConvOp)]
    assert len(convs) == 1 + (case.window.stride != (1, 1)) and convs[-1].window.data.stride == (1, 1)
    if levels:
        compilation = Compilation(ctx, module, Settings(loaded, arch, 16))
        compilation.run("nest")
        assert (nest.evaluate(compilation.module, ctx.weights, [case.x])[0][0] == case.sums()).all()
        compilation.run()
        assert (isa.evaluate(compilation.module, ctx.weights, loaded, [case.x])[0][0] == case.sums()).all()


@pytest.mark.parametrize("name", CASES)
def test_cnn_schemes_partitioned_layers_are_brute_force(name: str) -> None:
    check(CASES[name], "spatial-4x4", levels=True)


def test_cnn_schemes_partitioned_layers_on_lanes(tmp_path: Path) -> None:
    """Channels of small windows are spread over four multipliers of a PE."""
    arch = tmp_path / "trees.toml"
    arch.write_text(TREES)
    check(CASES["7x7"], str(arch), levels=True)


@st.composite
def small_cases(draw: st.DrawFn) -> Small:
    group, k, c = draw(st.sampled_from([(1, 5, 3), (2, 3, 2), (6, 1, 1), (4, 2, 1)]))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    pad = draw(st.tuples(*[st.integers(0, 3)] * 4))
    zero = draw(st.sampled_from([0, 0, -5]))
    window = Window(kernel, stride, pad, (1, 1), group, zero, zero)
    image = tuple(draw(st.integers(max(1, span - pad[axis]), span + 7)) for axis, span in enumerate(window.spans))
    return Small("mac", draw(st.integers(1, 2)), group * k, c, image, window, draw(st.integers(0, 99)))


@settings(max_examples=examples(20))
@given(small_cases())
def test_cnn_schemes_partition_keeps_the_sums(case: Small) -> None:
    check(case, "spatial-4x4", levels=False)


def test_cnn_schemes_partition_counts_its_macs() -> None:
    """By hand: 3 x 3 outputs of 4 maps, 3 x 3 pieces of 4 x 4; 5 x 5 small windows of 2 maps, 16 products each."""
    ctx = new_context()
    module = case((4, 2), (19, 19), (11, 11), stride=(4, 4)).network(ctx)
    module.attributes["cnn.macs_total"] = IntegerAttr(1_000 + 9 * 4 * 2 * 121, i64)
    PARTITION.apply(ctx, module)
    assert module.attributes["cnn.macs_total"] == IntegerAttr(1_000 + 9 * 4 * 2 * 144 + 25 * 32 * 16, i64)


NETWORK = """func.func @main(%x: tensor<2x3x8x8xi16>) -> tensor<2x4x4x4xi16> {
  %0 = cnn.conv %x weights @w window <kernel = [3, 3], pad = [1, 1, 1, 1]> label "few"
       : tensor<2x3x8x8xi16> -> tensor<2x4x8x8xi16>
  %1 = cnn.pool "max" %0 window <kernel = [1, 1]> : tensor<2x4x8x8xi16> -> tensor<2x4x8x8xi16>
  %2 = cnn.conv %1 weights @w window <kernel = [3, 3], pad = [1, 1, 1, 1]> label "many"
       : tensor<2x4x8x8xi16> -> tensor<2x4x8x8xi16>
  %3 = cnn.conv %0 weights @w window <kernel = [2, 2], stride = [2, 2]> label "slides"
       : tensor<2x4x8x8xi16> -> tensor<2x4x4x4xi16>
  %4 = cnn.conv %3 weights @w window <kernel = [3, 3], pad = [1, 1, 1, 1], group = 4> label "alone"
       : tensor<2x4x4x4xi16> -> tensor<2x4x4x4xi16>
  %5 = cnn.conv %2 weights @w window <kernel = [1, 1], stride = [2, 2]> label "side"
       : tensor<2x4x8x8xi16> -> tensor<2x4x4x4xi16>
  %6 = cnn.conv %4 residual %5 : tensor<2x4x4x4xi16> weights @w window <kernel = [1, 1]>
       then <factors = "f", add_clamp = [-9, 9]> label "last" : tensor<2x4x4x4xi16> -> tensor<2x4x4x4xi16>
  func.return %6 : tensor<2x4x4x4xi16>
}
"""
NOTES = [
    # Its readers, one of them behind a pool, differ.
    "few: kernel partition, 3 input maps for 4 multipliers; stores in intra-order",
    "many: inter-kernel, 4 input maps for 4 multipliers; stores in inter-order",
    "slides: intra-kernel, sliding window, its windows of 2 x 2 do not overlap; stores in intra-order",
    "alone: kernel partition, 1 input map for 4 multipliers; stores in inter-order",
    # "last" only adds it, as a residual.
    "side: inter-kernel, 4 input maps for 4 multipliers; stores in intra-order",
    "last: inter-kernel, 4 input maps for 4 multipliers; stores in intra-order",
]


def opt(tmp_path: Path, text: str, passes: str) -> str:
    source, output = tmp_path / "in.mlir", tmp_path / "out.mlir"
    source.write_text(text)
    run_opt([str(source), "-p", passes, "-o", str(output)])
    return output.read_text()


def test_cnn_schemes_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opt(tmp_path, NETWORK, "cnn-choose-scheme{tin=4}")
    assert capsys.readouterr().err.splitlines() == [f"cnncc: note: cnn-choose-scheme: {note}" for note in NOTES]
    opt(tmp_path, NETWORK, "cnn-partition-kernel{layers=few}")
    note = "cnn-partition-kernel: few: stride 1, its pieces are single weights: it stays"
    assert capsys.readouterr().err == f"cnncc: note: {note}\n"
    opt(tmp_path, "func.func @main() { func.return }", "cnn-choose-scheme{tin=4},cnn-partition-kernel")
    assert capsys.readouterr().err == (
        "cnncc: note: cnn-choose-scheme: there is no convolution to choose a scheme for\n"
        "cnncc: note: cnn-partition-kernel: no layer is marked for kernel partition, and none is named\n"
    )


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("stride = [2, 2], dilation = [2, 1]", "c: dilation (2, 1), a kernel is partitioned without any: leave the"),
        ("stride = [2, 2]", "c: there is no weights.global @w"),
    ],
)
def test_cnn_schemes_refusals(window: str, message: str) -> None:
    text = f"""func.func @main(%x: tensor<1x3x8x8xi16>) {{
        %0 = cnn.conv %x weights @w window <kernel = [2, 2], {window}> label "c"
             : tensor<1x3x8x8xi16> -> tensor<1x4x{3 if "dilation" in window else 4}x4xi16>
        func.return }}"""
    module, ctx = parse(text)
    with pytest.raises(Refusal, match=message.replace("(", r"\(").replace(")", r"\)")):
        CnnPartitionKernelPass(("c",)).apply(ctx, module)


# The option --partition


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two convolutions with strides, images for it, and an array whose PEs have four multipliers."""
    folder = tmp_path_factory.mktemp("partition")
    window, nodes = {"pads": [2, 2, 1, 1], "strides": [2, 2]}, list[onnx.NodeProto]()
    nodes.append(helper.make_node("Conv", ["x", "w1"], ["c1"], "c1", **window))
    nodes.append(helper.make_node("Relu", ["c1"], ["r1"], "r1"))
    nodes.append(helper.make_node("Conv", ["r1", "w2"], ["y"], "c2", strides=[2, 1]))
    weights = {"w1": noise(1, 5, 3, 5, 5), "w2": noise(2, 4, 5, 3, 2)}
    save(build(nodes, {"x": (1, 3, 11, 9)}, ["y"], weights), folder / "net.onnx")
    np.savez(folder / "x.npz", x=noise(3, 2, 3, 11, 9))
    (folder / "trees.toml").write_text(TREES)
    return folder


def compiled(files: Path, name: str, *options: object) -> bytes:
    """The outputs of the network for its images, by a binary of this name."""
    binary, outputs = files / f"{name}.cnb", files / f"{name}.npz"
    done("compile", *options, "-o", binary)
    done("run", binary, "--input", files / "x.npz", "--output", outputs)
    return outputs.read_bytes()


def test_cnn_schemes_option(files: Path) -> None:
    """The same outputs; a dump goes on where it was left, and the option comes too late for a later one."""
    model = (files / "net.onnx", "--arch", files / "trees.toml", "--calibrate", files / "x.npz")
    whole = compiled(files, "whole", *model)
    dumps = files / "ir"
    assert compiled(files, "auto", *model, "--partition", "auto", "--dump-dir", dumps) == whole
    reasons = done("compile", *model, "--partition", "auto", "-o", files / "said.cnb").stderr
    note = "c1: kernel partition, 3 input maps for 4 multipliers; stores in inter-order"
    assert f"cnncc: note: cnn-choose-scheme: {note}\n" in reasons and reasons.count("cnn-choose-scheme") == 2
    checked = json.loads(done("check", *model, "--partition", "auto", "--json").stdout)["findings"]
    said = [f"{each['where']}: {each['what']}" for each in checked if each["where"] == "cnn-choose-scheme"]
    assert said == [line.removeprefix("cnncc: note: ") for line in reasons.splitlines() if "cnn-choose" in line]
    (dump,) = dumps.glob("*-cnn-partition-kernel.mlir")
    text = dump.read_text()
    assert 'label "c1.cut"' in text and 'label "c2.cut"' not in text  # five maps for four multipliers
    again = ("--arch", files / "trees.toml")
    assert compiled(files, "again", "--from", dump, *again) == whole
    assert compiled(files, "both", *model, "--partition", "c2,c1") == whole
    (later,) = dumps.glob("*-cnn-to-nest.mlir")
    message = f"{later}: was lowered beyond cnn-partition-kernel, --partition auto comes too late"
    message += ": give IR from before cnn-to-nest, or the model"
    assert message in refused("compile", "--from", later, *again, "--partition", "auto", "-o", files / "no.cnb")
    said = done("compile", *model, "--partition", "mapper", "-o", files / "mapper.cnb").stderr
    assert said.count("the mapper: ") == 2 and "; Algorithm 2: kernel partition, 3 input maps" in said
    assert compiled(files, "mapper", *model, "--partition", "mapper") == whole
    assert " ".join(invoke("check", *model, "--partition", "auto").stdout.split()).count(note) == 1
    said = done("compile", LENET, "--batch", 1, "--partition", "c1", "-o", files / "same.cnb").stderr
    assert "cnncc: note: cnn-partition-kernel: c1: stride 1, its pieces are single weights: it stays\n" in said
    message = "cnn-partition-kernel: layer 'r1' is no convolution of the network: these are: c1, c2"
    assert message in refused("compile", *model, "--partition", "r1", "-o", files / "no.cnb")
    assert message in invoke("check", *model, "--partition", "r1").stdout.replace("\n", " ").replace("  ", " ")


@pytest.mark.parametrize("dataflow", SCHEMES)
def test_cnn_schemes_of_programs_are_proven(dataflow: str, files: Path) -> None:
    """Programs of each scheme on PEs with four multipliers, at less than 2^-50."""
    model = (files / "net.onnx", "--arch", files / "trees.toml", "--calibrate", files / "x.npz")
    printed = done("verify", *model, "--dataflow", dataflow, "--partition", "mapper", "--prove").stdout
    error = re.search(r"proven for all inputs and all weights, but for an error of at most 2\^-([0-9.]+)", printed)
    assert error and float(error[1]) > 50


def test_cnn_schemes_option_is_verified_and_proven(files: Path) -> None:
    """A proof is against the network with the same option: its weights are in another order."""
    model = (files / "net.onnx", "--arch", files / "trees.toml", "--calibrate", files / "x.npz")
    printed = done("verify", *model, "--input", files / "x.npz", "--partition", "c1,c2").stdout
    assert "cnn-partition-kernel  agrees" in printed and "DIFFERS" not in printed
    binary = files / "proven.cnb"
    done("compile", *model, "--partition", "c1,c2", "-o", binary)
    claim = ("verify", binary, "--model", *model[:1], *model[3:], "--prove")
    assert "proven for all inputs and all weights" in done(*claim, "--partition", "c1,c2").stdout
    assert "weights c2.w.pieces belong to no layer of the network" in refused(*claim)


def test_cnn_schemes_option_goes_by_the_lanes_of_each_array(files: Path) -> None:
    """explore: with three lanes, c1 is inter-kernel; results are those of each array by itself."""
    model = (files / "net.onnx", "--arch", files / "trees.toml")
    given = (*model, "--partition", "auto")
    done("explore", *given, "--vary", "pe.lanes=3,4", "--measure", "cycles", "-j", 1, "-o", files / "lanes")
    _, *results = map(json.loads, (files / "lanes" / "explore.jsonl").read_text().splitlines())
    for lanes, result in zip((3, 4), results, strict=True):
        array = files / f"{lanes}.toml"
        array.write_text(TREES.replace("lanes = 4", f"lanes = {lanes}"))
        report = json.loads(done("estimate", files / "net.onnx", "--arch", array, *given[3:], "--json").stdout)
        assert (result["config"]["pe.lanes"], result["cycles"]) == (lanes, report["cycles"]["total"])
        assert ("c1.cut" in report["layers"]) == (lanes == 4)


def test_cnn_schemes_the_mapper_compares_whole_and_parts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Kernels enough for a cut image to be worth it, and too few; stride 1 and k = 1 have nothing to compare."""
    layers = [
        ("many", 512, (11, 11), (4, 4)),
        ("few", 2, (11, 11), (4, 4)),
        ("near", 2, (3, 3), (1, 1)),
        ("point", 2, (1, 1), (2, 2)),
    ]
    lines, results = list[str](), list[str]()
    for number, (label, kernels, kernel, stride) in enumerate(layers):
        rows = (23 - kernel[0]) // stride[0] + 1
        out = f"tensor<1x{kernels}x{rows}x{rows}xi16>"
        window = f"<kernel = [{kernel[0]}, {kernel[1]}], stride = [{stride[0]}, {stride[1]}]>"
        lines.append(
            f'%{number} = cnn.conv %x weights @w window {window} label "{label}" : tensor<1x3x23x23xi16> -> {out}'
        )
        results.append(f"%{number} : {out}")
    types = ", ".join(each.split(" : ")[1] for each in results)
    values = ", ".join(each.split(" : ")[0] for each in results)
    text = "\n".join([f"func.func @main(%x: tensor<1x3x23x23xi16>) -> ({types}) {{", *lines,
                      f"func.return {values} : {types} }}"])  # fmt: skip
    (tmp_path / "net.mlir").write_text(text)
    run_opt([str(tmp_path / "net.mlir"), "-p", "cnn-choose-scheme{arch=cbrain-32-2 mapper=true}"])
    printed = capsys.readouterr()
    notes = {line.split(": ")[3]: line for line in printed.err.splitlines()}
    cycles = {label: [int(each.replace(",", "")) for each in re.findall("(?:whole|partitioned) ([0-9,]+)", note)]
              for label, note in notes.items()}  # fmt: skip
    assert cycles["many"][0] > cycles["many"][1] and cycles["few"][0] <= cycles["few"][1]
    assert "the mapper: partitioned; whole" in notes["many"] and "the mapper: whole; whole" in notes["few"]
    assert "Algorithm 2: kernel partition, 3 input maps for 32 multipliers" in notes["few"]
    assert not cycles["near"] and not cycles["point"]
    marks = {line.split('label "')[1].split('"')[0]: "kernel partition" in line
             for line in printed.out.splitlines() if "cnn.conv" in line}  # fmt: skip
    assert marks == {"many": True, "few": False, "near": True, "point": True}
