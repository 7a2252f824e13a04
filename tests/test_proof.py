"""Proofs find planted errors without any data: edits of programs, of words, and of networks that are compiled on.

An error that is found names the layer, the position, the instruction and the PE.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import SAMPLES, build, conv_model, done, invoke, noise, save
from onnx import ModelProto, helper
from test_conv_groups import array_file
from test_glb_buffers import CONV, MAPPINGS, mapped
from xdsl.dialects.builtin import ModuleOp

import cnncc.passes.array_to_isa as array_to_isa
import cnncc.proof.proof as proofs
from cnncc.arch.model import load_arch
from cnncc.binary.container import load
from cnncc.binary.isa_module import disassembly
from cnncc.dialects import array as A
from cnncc.dialects.cnn import ConvOp, PoolOp, StepsAttr, WindowAttr
from cnncc.dialects.weights import new_global
from cnncc.draws import CHOICES, Draws
from cnncc.driver.build import binary_of
from cnncc.driver.pipeline import TO_PROGRAMS, Compilation, Settings, new_context
from cnncc.driver.prove import claim_of_model, model_hint
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.eval.cnn_residues import Evaluation, evaluate
from cnncc.eval.wrong_reuses import locate
from cnncc.frontend.segments import interface
from cnncc.isa.assembly import assemble
from cnncc.isa.codec import encode_program
from cnncc.isa.table import Instruction
from cnncc.passes._programs.layer_operands import Operands
from cnncc.passes._programs.layer_records import Operand
from cnncc.proof.claim import Claim
from cnncc.proof.comparison import Comparison
from cnncc.proof.proof import Proof, draws_for, prove
from cnncc.proof.proof_text import error_text
from cnncc.weights import WeightStore

pytestmark = pytest.mark.usefixtures("short_searches")

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "proof.md").read_text()


def proof(claim: Claim, error_bits: float = 1.0) -> Proof:
    """By default a single draw: what it finds is wrong for sure."""
    return prove(claim, error_bits)


def is_shown(planted: str, line: str) -> bool:
    """Whether docs/proof.md has the line that is printed of an error."""
    return f"| {planted} | `{line}` |" in PAGE


# -- errors in programs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Claim:
    """A convolution with a residual: all operands in two buffers, partial sums in the GLB, a halo of two rows."""
    file, ctx = array_file(tmp_path_factory.mktemp("streamed"), "4x4"), new_context()
    compilation = Compilation(ctx, CONV.network(ctx), Settings(load_arch(str(file)), str(file), 16))
    module, mapping = compilation.module.clone(), MAPPINGS["partial sums of two outputs"]
    compilation.run("isa", [lambda step, at: mapped(mapping, step, at)])
    return Claim(binary_of(compilation), module, ctx.weights)


def test_draws_run_in_turn_where_values_are_many(streamed: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network has 252 results, which may be more than the words of DRAM, as those of a group do not lie there."""
    runs = list[tuple[int, int]]()

    def counted(
        module: ModuleOp, store: WeightStore, bits: int, draws: Draws, frames: int, fresh: Sequence[str]
    ) -> Evaluation:
        runs.append((draws.seed, draws.count))
        return evaluate(module, store, bits, draws, frames, fresh)

    monkeypatch.setattr(proofs, "evaluate", counted)
    monkeypatch.setattr(proofs, "words_of_run", lambda binary, frames: 1)
    monkeypatch.setattr(proofs, "MOST_WORDS", 2 * 252)
    assert (prove(streamed, 50.0).failures, runs) == ([], [(0, 2), (2, 2)])


def edited(claim: Claim, *edits: tuple[str, str]) -> Claim:
    """The claim with another program: parts of lines of its assembly, each of which stands there, are replaced."""
    text = disassembly(claim.binary)
    for before, after in edits:
        assert before in text
        text = text.replace(before, after)
    return replace(claim, binary=replace(claim.binary, program=encode_program(assemble(text))))


def test_a_program_is_proven(streamed: Claim) -> None:
    proven = proof(streamed, 50.0)
    assert (proven.failures, proven.draws, proven.degree) == ([], 4, 4)  # weight, image, residual factor, second clamp
    assert proven.error_bits > 50
    assert [(part.name, part.results, part.wrong) for part in proven.parts] == [("sum", 252, ""), ("outputs", 252, "")]


FETCH, WEIGHTS, PARAMS = "dram_step=42 glb_step=24 y=5 rows=3", "desc id=3 wrap=324", "desc id=5 base=948"
PATTERN, FACTORS = "term0=lin*1 term1=lin*9 term2=lin*3", "factor_a=0x3f800000 factor_b=0x3f800000"
LAST, ALL = "offset=216 y=6 partial=1 sums=10 final", "sum: 252 of 252 results differ, first at [0, 0, 0, 0]: "
PROGRAMS = {
    "a stale double buffer": (
        [("glb_offset=96 " + FETCH, "glb_offset=0 " + FETCH)],
        "sum: 36 of 252 results differ, first at [0, 0, 6, 0]: written by instruction 134, iteration 0, 0, PE 0,0",
    ),
    "a missing halo row": (
        [(FETCH, FETCH.replace("rows=3", "rows=1"))],
        "sum: 36 of 252 results differ, first at [0, 0, 6, 0]: written by instruction 134, iteration 0, 0, PE 0,0",
    ),
    "an output channel in its neighbour's place": (
        [(LAST, LAST.replace("y=6", "y=6 channel=1"))],
        "sum: 36 of 252 results differ, first at [0, 0, 6, 0]: written by instruction 71, iteration 1, 0, 0, PE 0,0",
    ),
    "a wrong clamp bound": (
        [("add_hi=32767", "add_hi=32766")],
        ALL + "written by instruction 71, iteration 0, 0, 0, PE 0,0",
    ),
    # The weights' buffer begins at the high word of the last sum of a block, and gets its next slice too early: that
    # is channel 5, the second row of the block and the third column of the second tile.
    "a wrong high word of a partial sum": (
        [(WEIGHTS, "desc id=3 base=947 wrap=324"), (PARAMS, "desc id=5 base=1300")],
        "sum: 3 of 252 results differ, first at [0, 5, 1, 5]: written by instruction 71, iteration 0, 1, 5, PE 1,2",
    ),
    "one bias for all channels": (
        [("step id=5 loop=3 by=lin*2", "step id=5 loop=3 by=lin*0")],
        "sum: 210 of 252 results differ, first at [0, 1, 0, 0]: ",
    ),
    "rows of a kernel for its columns": ([(PATTERN, "term0=lin*3 term1=lin*9 term2=lin*1")], ALL),
    "another factor": ([(FACTORS, FACTORS.replace("factor_b=0x3f800000", "factor_b=0x3f800001"))], ALL),
    "partial sums that are not added": ([("partial=1 sums=10 final=always", "partial=0")], ALL),
    "results that are never committed": ([("loop count=6", "loop count=5")], "glb word 720 is read but was never"),
    "results in one place": ([("step id=7 loop=3 by=k*1", "step id=7 loop=3 by=k*0")], "sum: the program cannot be"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_error_in_a_program_is_found(name: str, streamed: Claim) -> None:
    edits, says = PROGRAMS[name]
    failure = proof(edited(streamed, *edits), 20.0).failures[0]  # one draw may hide one of 252 results
    assert says in failure and (f"| {name} |" not in PAGE or is_shown(name, failure))


def test_a_deleted_token_is_named(streamed: Claim) -> None:
    """Values follow program order, and do not change."""
    wrong = proof(edited(streamed, ("rows=2 take=7", "rows=2 take=0")))
    assert [part.wrong for part in wrong.parts] == ["", ""]
    assert is_shown("a deleted token", wrong.failures[0])


# -- errors in words and at the interface ------------------------------------------------------------------------------


def test_a_swapped_pair_of_weights(streamed: Claim) -> None:
    (name, words), *others = streamed.binary.weights
    wrong = words.copy()
    wrong.flat[[3, 5]] = words.flat[[5, 3]]
    found = proof(replace(streamed, binary=replace(streamed.binary, weights=[(name, wrong), *others]))).failures
    assert found == [
        f"weights w: 2 of 216 words differ, first word 3: {words.flat[5]} instead of {words.flat[3]}",
    ]
    assert is_shown("a swapped pair of weights", found[0])


def test_a_bias_with_a_wrong_high_word(streamed: Claim) -> None:
    weights, (name, words) = streamed.binary.weights
    wrong = words.copy()
    wrong[2, 1] ^= 1
    found = proof(replace(streamed, binary=replace(streamed.binary, weights=[weights, (name, wrong)]))).failures
    assert found[0].startswith("weights sum.params: 1 of 12 words differ, first word 5: ")


@pytest.mark.parametrize(("field", "value"), [("scale", 2.0), ("zero", 1), ("clamp", (-5, 5)), ("name", "z")])
def test_another_output(field: str, value: object, streamed: Claim) -> None:
    tensors = [replace(t, **{field: value}) if t.role == "output" else t for t in streamed.binary.tensors]
    found = proof(replace(streamed, binary=replace(streamed.binary, tensors=tensors)))
    assert (len(found.failures), found.parts) == (1, [])
    assert "output" in found.failures[0] and "the network" in found.failures[0]


# -- host segments -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Claim:
    """Two segments that the host runs: one between layers, one whose floats are an output."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], name="c1"),
        node("Sin", ["c1"], ["s1"], name="s1"),
        node("Conv", ["s1", "w2"], ["c2"], name="c2"),
        node("Softmax", ["c2"], ["y"], name="y"),
    ]
    arrays = {"w1": noise(1, 4, 3, 3, 3), "w2": noise(2, 5, 4, 1, 1)}
    model = save(build(nodes, {"x": (1, 3, 6, 5)}, ["y", "c2"], arrays), tmp_path_factory.mktemp("hosted") / "net.onnx")
    return claim_of_model(model, CompileOptions())


def test_host_segments_are_cut_out(hosted: Claim) -> None:
    """What they read is compared, what they compute is drawn."""
    proven = proof(hosted, 50.0)
    assert proven.failures == []
    parts = [(part.name, part.results, part.degree) for part in proven.parts]
    assert parts == [
        ("c1", 48, 4), ("host segment 0", 48, 4), ("c2", 60, 4), ("host segment 1", 60, 4), ("outputs", 60, 4),
    ]  # fmt: skip


def test_a_host_segment_that_reads_a_value_in_two_shapes(tmp_path: Path) -> None:
    """Both are one tensor of the binary."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="c"),
        node("Flatten", ["c"], ["f"], name="f"),
        node("Softmax", ["c"], ["y"], name="y"),
        node("Softmax", ["f"], ["z"], name="z"),
    ]
    given = build(nodes, {"x": (1, 3, 4, 2)}, ["y", "z"], {"w": noise(1, 2, 3, 1, 1)})
    claim = claim_of_model(save(given, tmp_path / "net.onnx"), CompileOptions())
    proven = proof(claim, 50.0)
    assert proven.failures == []
    assert [part.name for part in proven.parts] == ["c", "host segment 0"]


def test_another_host_segment(hosted: Claim) -> None:
    first, second = hosted.binary.segments
    other = ModelProto.FromString(first)
    other.graph.node[0].op_type = "Cos"
    wrong = replace(hosted.binary, segments=[other.SerializeToString(), second])
    assert proof(replace(hosted, binary=wrong)).failures == ["host segment 0 is not the network's"]
    wrong = replace(hosted.binary, segments=[first])
    assert proof(replace(hosted, binary=wrong)).failures == ["1 host segments, the network has 2"]


def test_another_scale_for_the_host(hosted: Claim) -> None:
    name = next(iter(interface(hosted.binary.segments[0])[0]))
    tensors = [replace(t, scale=2 * t.scale) if t.name == name else t for t in hosted.binary.tensors]
    (failure,) = proof(replace(hosted, binary=replace(hosted.binary, tensors=tensors))).failures
    assert failure.startswith(f"host segment 0: {name} has scale ")


def test_a_host_segment_that_is_left_out(hosted: Claim) -> None:
    ops = [op for op in hosted.binary.instructions if op.values.get("segment") != 0]
    (failure, *_) = proof(replace(hosted, binary=replace(hosted.binary, program=encode_program(ops)))).failures
    assert "is read but was never written" in failure


# -- errors before a program is made -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Groups, a channel shuffle, a slope, asymmetric pads, a residual, both pools; two layers of each shape."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], name="c1", group=3, pads=[1, 0, 1, 1]),
        node("LeakyRelu", ["c1"], ["r1"], name="r1", alpha=0.25),
        node("Reshape", ["r1", "s5"], ["t1"], name="t1"),
        node("Transpose", ["t1"], ["t2"], name="t2", perm=[0, 2, 1, 3, 4]),
        node("Reshape", ["t2", "s4"], ["t3"], name="t3"),
        node("Conv", ["t3", "w2", "b2"], ["c2"], name="c2", group=3, pads=[1, 1, 1, 1]),
        node("Relu", ["c2"], ["r2"], name="r2"),
        node("MaxPool", ["r2"], ["p1"], name="p1", kernel_shape=[2, 3], strides=[2, 1], pads=[1, 1, 0, 0]),
        node("Conv", ["p1", "w3"], ["c3"], name="c3"),
        node("Add", ["c3", "p1"], ["a"], name="a"),
        node("AveragePool", ["a"], ["y"], name="y", kernel_shape=[2, 2]),
    ]
    arrays = {
        **{"w1": noise(1, 6, 2, 3, 3), "b1": noise(2, 6), "w2": noise(3, 6, 2, 3, 3), "b2": noise(4, 6)},
        **{"w3": noise(5, 6, 6, 1, 1), "s5": np.array([1, 3, 2, 5, 6]), "s4": np.array([1, 6, 5, 6])},
    }
    return save(build(nodes, {"x": (1, 6, 5, 7)}, ["y"], arrays), tmp_path_factory.mktemp("proof") / "net.onnx")


Edit = Callable[[ModuleOp], None]


def claim_after(model: Path, edit: Edit, tables: bool = False) -> Claim:
    """The claim of a network that is edited before it is compiled on, as a bug of a later step would.

    tables: with tables in the epilogues of two layers. A third one of their entries is unused.
    """
    compilation = start_compilation(model, CompileOptions())
    compilation.run("cnn")
    if tables:
        entries = np.random.default_rng(6).integers(-32767, 32768, (3, 257)).astype(np.int16)
        entries[2], entries[2, 17] = entries[0], entries[0, 17] + 1  # one entry is another
        for name, values in zip(("c1.t", "c3.t", "c1.wrong"), entries, strict=True):
            compilation.module.body.block.insert_op_before(
                new_global(name, values, compilation.ctx.weights), compilation.module.body.block.first_op
            )
        with_steps("c1", table="c1.t", shift=8)(compilation.module)
        with_steps("c3", table="c3.t", shift=9)(compilation.module)
    module = compilation.module.clone()
    edit(compilation.module)
    compilation.run()
    return Claim(binary_of(compilation), module, compilation.ctx.weights)


def layer(module: ModuleOp, label: str) -> ConvOp | PoolOp:
    (found,) = (op for op in module.walk() if isinstance(op, ConvOp | PoolOp) and op.label and op.label.data == label)
    return found


def with_steps(label: str, **fields: object) -> Edit:
    def edit(module: ModuleOp) -> None:
        op = layer(module, label)
        assert op.steps is not None
        op.steps = StepsAttr(replace(op.steps.data, **fields))

    return edit


def with_window(label: str, **fields: object) -> Edit:
    def edit(module: ModuleOp) -> None:
        op = layer(module, label)
        op.window = WindowAttr(replace(op.window.data, **fields))

    return edit


def with_other_weights(module: ModuleOp) -> None:
    first, second = layer(module, "c1"), layer(module, "c2")
    assert isinstance(first, ConvOp) and isinstance(second, ConvOp)
    first.weights, second.weights = second.weights, first.weights


NETWORKS = {
    "no shuffle": (with_steps("c1", shuffle=1), "weights c1.params: "),
    "a greater clamp": (with_steps("c2", clamp=(0, 32766)), "c2: 180 of 180 results differ"),
    "a clamp of the next layer": (with_steps("c3", add_clamp=(0, 32767)), "c3: "),
    "another slope": (with_steps("c1", slope=0.5), "c1: 180 of 180 results differ"),
    "no slope": (with_steps("c1", slope=1.0), "c1: 180 of 180 results differ"),
    "another zero point": (with_steps("c1", zero=1), "c1: 180 of 180 results differ"),
    "pads on the other side": (with_window("c1", pad=(1, 1, 1, 0)), "c1: "),
    "another fill": (with_window("p1", fill=-32767), "p1: "),
    "a zero point of the operand": (with_window("c2", zero=1), "c2: 180 of 180 results differ"),
    "a scale of another layer": (with_steps("c1", scale="c2.q"), "weights c1.params: "),
    "weights of another layer": (with_other_weights, "c1: 180 of 180 results differ"),
}


def test_a_network_is_proven(network: Path) -> None:
    assert proof(claim_after(network, lambda module: None), 50.0).failures == []


@pytest.mark.parametrize("name", NETWORKS)
def test_an_error_of_a_pass_is_found(name: str, network: Path) -> None:
    edit, says = NETWORKS[name]
    found = proof(claim_after(network, edit)).failures
    assert found and found[0].startswith(says), found


TABLES: dict[str, tuple[Edit, str]] = {
    "a wrong entry": (with_steps("c1", table="c1.wrong"), "c1: 180 of 180 results differ"),
    "a table of another layer": (with_steps("c1", table="c3.t"), "c1: 180 of 180 results differ"),
    "a wrong shift": (with_steps("c1", shift=9), "c1: 180 of 180 results differ"),
    "a table that is left out": (with_steps("c1", table="", shift=0), "c1: 180 of 180 results differ"),
    "a table from another integer on": (with_steps("c1", clamp=(-32766, 32767)), "c1: 180 of 180 results differ"),
    "a wrong table before a residual": (with_steps("c3", table="c1.t"), "c3: "),
}


@pytest.mark.parametrize("name", TABLES)
def test_an_error_in_a_table_is_found(name: str, network: Path) -> None:
    edit, says = TABLES[name]
    found = proof(claim_after(network, edit, tables=True)).failures
    assert found and found[0].startswith(says), found


def with_program(claim: Claim, program: Sequence[Instruction]) -> Claim:
    return replace(claim, binary=replace(claim.binary, program=encode_program(program)))


def test_wrong_instructions_of_a_table_are_found(network: Path) -> None:
    """Each `table` is needed, each entry has its place, and so has the last one, which `unit` holds."""
    claim = claim_after(network, lambda module: None, tables=True)
    assert proof(claim, 50.0).failures == []
    program = list(claim.binary.instructions)
    tables = [at for at, inst in enumerate(program) if inst.spec.name == "table"]
    first = next(at for at, inst in enumerate(program) if inst.spec.name == "unit" and inst.number("lookup"))
    assert len(tables) == 16 and tables[:8] == list(range(first - 8, first))

    def altered(at: int, **values: int) -> list[Instruction]:
        return [*program[:at], replace(program[at], values={**program[at].values, **values}), *program[at + 1 :]]

    wrong = {f"without part {part}": [*program[:at], *program[at + 1 :]] for part, at in enumerate(tables[:8])}
    wrong["entry 85"] = altered(tables[2], entry21=program[tables[2]].number("entry21") ^ 1)
    wrong["parts exchanged"] = [replace(i, values={**i.values, "part": i.number("part") ^ 1})
                                if i.spec.name == "table" else i for i in program]  # fmt: skip
    wrong["last"] = altered(first, last=program[first].number("last") ^ 1)
    wrong["shift"] = altered(first, shift=9)
    wrong["no lookup"] = altered(first, lookup=0)
    for name, changed in wrong.items():
        found = proof(with_program(claim, changed)).failures
        assert found and found[0].startswith("c1: 180 of 180 results differ"), (name, found)


def test_the_wrong_group_of_a_shuffled_convolution(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second convolution reads the channels of the next group."""
    activation = Operands._activation

    def wrong(self: Operands, name: str, image: int, depth: int = 0) -> Operand:
        right = activation(self, name, image, depth)
        if name != "ifmap" or self.layer.label != "c2":
            return right
        channels = right.coordinates["k"]
        return replace(right, coordinates={**right.coordinates, "k": channels._replace(step=2 * channels.step)})

    monkeypatch.setattr(Operands, "_activation", wrong)
    failures = proof(claim_after(network, lambda module: None)).failures
    assert is_shown("the wrong group of a shuffled convolution", failures[0])


def test_add_in_place_of_max(network: Path) -> None:
    claim = claim_after(network, lambda module: None)
    ops = claim.binary.instructions
    wrong = [replace(op, values={**op.values, "op": "add"}) if op.values.get("op") == "max" else op for op in ops]
    found = proof(replace(claim, binary=replace(claim.binary, program=encode_program(wrong))))
    assert is_shown("`add` in place of `max`", found.failures[0])


# -- samples, and the command ------------------------------------------------------------------------------------------

MODELS = SAMPLES / "models"


@pytest.mark.parametrize("name", ["mnist", "depthwise", "lenet_qdq_s8_pc", "resnet20_qoperator_u8"])
def test_samples_are_proven(name: str) -> None:
    claim = claim_of_model(MODELS / f"{name}.onnx", CompileOptions(batch=1))
    proven = proof(claim, 50.0)
    assert proven.failures == [] and proven.error_bits >= 50
    assert all(part.wrong == "" for part in proven.parts)


def test_the_command_proves_a_model_and_its_binary(network: Path, tmp_path: Path) -> None:
    lines = done("verify", network, "--prove", "--error", "2^-60").stdout.splitlines()
    assert lines[-1].startswith("proven for all inputs and all weights, but for an error of at most 2^-6")
    done("compile", network, "-o", tmp_path / "net.cnb")
    said = json.loads(done("verify", tmp_path / "net.cnb", "--prove", "--model", network, "--json").stdout)
    assert said["proven"] and said["error_bits"] >= 50 and not said["races"]
    assert [part["name"] for part in said["parts"]] == ["c1", "c2", "p1", "c3", "y", "outputs"]


def test_the_command_ends_with_3_for_an_error(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = array_to_isa._Layer.unit

    def wrong(self: Any, settings: A.Unit) -> Any:
        yield from unit(self, replace(settings, clamp=(settings.clamp[0], settings.clamp[1] - 1)))

    monkeypatch.setattr(array_to_isa._Layer, "unit", wrong)
    result = invoke("verify", network, "--prove")
    assert result.exit_code == 3
    assert "WRONG: 180 of 180 results differ" in result.stdout and "not reached" in result.stdout
    assert result.stderr.startswith(f"cnncc: {network} is not proven: c1: 180 of 180 results differ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prove", "--images", "2"], "--images has no effect"),
        (["--prove", "--model", "other.onnx"], "of a model it takes none"),
        (["--error", "2^-9"], "--error and --model go with --prove"),
        (["--prove", "--error", "2^1"], "'2^1' is no probability between 0 and 1"),
        (["--prove", "--error", "many"], "'many' is no probability between 0 and 1"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str, network: Path) -> None:
    result = invoke("verify", network, *arguments)
    assert (result.exit_code, result.stdout) == (2, "") and says in result.stderr


def test_another_model_is_refused(network: Path, tmp_path: Path) -> None:
    other, binary = save(conv_model(), tmp_path / "other.onnx"), tmp_path / "net.cnb"
    done("compile", other, "-o", binary)
    result = invoke("verify", binary, "--prove", "--model", network)
    assert result.exit_code == 3
    assert "layer" not in result.stdout and "race" not in result.stdout  # nothing was run
    assert result.stderr.endswith(
        "input x has shape [1, 3, 11, 7], the network's [1, 6, 5, 7]: the binary is from another file than "
        f"{network}: give --model other.onnx\n"
    )
    loaded = load(binary)
    for known, says in ((loaded.metadata, "give the options with which"), ({}, "give the model that the binary is")):
        assert says in model_hint(replace(loaded, metadata=known), other)


def test_other_options_are_named(tmp_path: Path) -> None:
    model, binary = save(conv_model(), tmp_path / "net.onnx"), tmp_path / "net.cnb"
    done("compile", model, "-o", binary)
    result = invoke("verify", binary, "--prove", "--model", model, "--precision", "int8")
    assert result.exit_code == 3
    assert "the network's" in result.stderr and "give the options with which the binary was compiled" in result.stderr


def test_draws() -> None:
    """The smallest number whose error is small enough: (degree / choices)^draws <= 2^-bits."""
    for degree, bits in ((1, 1.0), (81, 50.0), (187, 50.0), (16_000, 50.0)):
        draws = draws_for(degree, bits)
        assert (degree / CHOICES) ** draws <= 2.0**-bits < (degree / CHOICES) ** (draws - 1)
    with pytest.raises(Refusal, match="a result has degree 32747, proofs modulo 32749 reach 32746"):
        draws_for(CHOICES, 50.0)
    with pytest.raises(Refusal, match="the limit is 1000: a larger --error"):
        draws_for(CHOICES - 1, 50.0)


def test_an_error_is_not_said_to_be_less_than_it_may_be() -> None:
    """81 / 32,747 to the power of 6 is more than 2^-52."""
    bits = Proof((), 0, degree=81, draws=6).error_bits
    assert (81 / CHOICES) ** 6 > 2.0**-52
    assert error_text(bits) == "2^-51.9" and (81 / CHOICES) ** 6 <= 2.0**-51.9


# -- one wrong residue -------------------------------------------------------------------------------------------------


def with_one_wrong(network: Evaluation, key: str, draw: int, at: tuple[int, ...]) -> Evaluation:
    """The network with another residue at one position of one draw."""
    residues = network.values[key].residues.copy()
    residues[(draw, *at)] += 1
    return replace(network, values={**network.values, key: replace(network.values[key], residues=residues)})


def test_one_residue_of_one_draw_is_enough_and_its_pe_is_named(network: Path) -> None:
    """The PE is also found from the program of the `array` level, by other code (`cnncc/eval/wrong_reuses.py`)."""
    compilation = start_compilation(network, CompileOptions())
    compilation.run("cnn")
    module, programs = compilation.module.clone(), list[ModuleOp]()
    compilation.run("isa", [lambda step, at: programs.append(at.clone()) if step.name == TO_PROGRAMS else None])
    store, arch = compilation.ctx.weights, compilation.settings.arch
    claim = Claim(binary_of(compilation), module, store)
    draws = Draws(0, 3)
    right, rng = evaluate(module, store, 16, draws), np.random.default_rng(0)
    assert all(part.wrong == "" for part in Comparison(claim, right, draws).parts())
    pes = set[str]()
    for key, known in right.values.items():
        dims = known.residues.shape[1:]
        for _ in range(4):
            at = tuple(int(rng.integers(size)) for size in dims)
            wrong = next(p for p in Comparison(claim, with_one_wrong(right, key, 1, at), draws).parts() if p.wrong)
            mask = np.zeros(dims, np.bool_)
            mask[at] = True
            place = locate(programs[0], store, arch, key, mask)
            assert place is not None
            count, pe = f"1 of {mask.size:,} results differ, first at {list(at)}", "PE {},{}".format(*place.pe)
            assert wrong.value == key and wrong.wrong and wrong.wrong.startswith(count) and wrong.wrong.endswith(pe)
            pes.add(pe)
    assert len(pes) >= 8
