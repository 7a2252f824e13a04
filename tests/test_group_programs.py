"""Programs of groups: values at every level, predicted counters, no races, and tokens that are all needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import DIGITS, SAMPLES, build, done, noise, save
from examples import SEED, examples
from glb_races import both_races, dram_of, races
from group_cases import PRESETS, Chain, tensor, turn, two_convolutions, with_tables
from onnx import TensorProto, helper
from test_groups import drawn, group_of
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr, i64

from cnncc.arch.model import PRESETS as ARRAYS
from cnncc.arch.model import arch_text, load_arch
from cnncc.binary.container import load
from cnncc.binary.counters import program_stats
from cnncc.binary.isa_module import build_binary
from cnncc.certificate.group_entries import figures
from cnncc.dialects.array import TensorOp, View, ViewAttr, ViewOp
from cnncc.dialects.cnn import shape
from cnncc.dialects.isa import instructions
from cnncc.dialects.nest import LayerOp, LoadOp, group_layers
from cnncc.driver.pipeline import NONE, TO_PROGRAMS, Compilation
from cnncc.driver.program_parts import predicted_counters, prefetched_operands, program_parts
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.eval import array, isa, nest
from cnncc.isa.codec import decode_program, encode_program
from cnncc.isa.table import Instruction
from cnncc.machine.races import races as ordered_races
from cnncc.machine.traps import Trap
from cnncc.main_function import main_function
from cnncc.mapping.groups import GroupLayer, RowRead, load_of_rows, without_unread_rows
from cnncc.mapping.mapping import Loop, Mapping, Sizes, Stage
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.group_steps import GroupBody, group_bodies, waits_for_weights
from cnncc.model.plan_json import as_json, from_json
from cnncc.model.program_counts import program_counts
from cnncc.passes._scheduling import residency
from cnncc.passes._scheduling.residency import END_PART
from cnncc.passes._scheduling.schedule_file import read_schedule
from cnncc.passes.nest_group import NestGroupPass
from cnncc.proof.claim import Claim
from cnncc.proof.proof import prove

pytestmark = pytest.mark.usefixtures("short_searches")

EXAMPLES = examples(20)
REFUSED = (
    "leave one of them out",
    "waits for no transfer",
    "is read by",
    "no later",
    "in glb alone",
    "has a scale for each",
    "stage both",
)


def mapped(
    chain: Chain,
    rows: int,
    layers: list[str],
    arch: str,
    rowwise: bool = False,
    slack: int = 0,
    single: bool = False,
    loads: bool = True,
    schedule: str | None = None,
) -> Compilation:
    """The chain with some layers in a group, before `nest-to-array`. Raises Refusal."""
    compilation = chain.compilation(arch, schedule=schedule)
    compilation.run_before(TO_PROGRAMS)
    NestGroupPass(tuple(layers), rows, rowwise=rowwise, single=single, loads=loads).apply(
        compilation.ctx, compilation.module
    )
    group = group_of(compilation.module)
    for number, (layer, plan) in enumerate(zip(group.members(), group_layers(group), strict=True)):
        if slack:
            layer.delay = IntegerAttr(plan.delay + slack * number, i64)
            layer.keeps = IntegerAttr(plan.sizes.h, i64) if plan.keeps else None
    compilation.module.verify()
    return compilation


def checked(compilation: Compilation, chain: Chain) -> Compilation:
    """Compile on; all levels compute the chain, and the program costs what is predicted. Raises Refusal."""
    want, arch, ctx = chain.result(), compilation.settings.arch, compilation.ctx
    before, prefetched = compilation.module.clone(), dict[str, frozenset[str]]()
    for step in compilation.remaining():
        compilation.step(step)
        match step.name:
            case "array-prefetch":
                prefetched = prefetched_operands(compilation.module)
            case "array-allocate":
                (got,), _ = array.evaluate(compilation.module, ctx.weights, arch, [chain.x])
                np.testing.assert_array_equal(got.reshape(want.shape), want)
            case _:
                pass
    (got,), _ = isa.evaluate(compilation.module, ctx.weights, arch, [chain.x])
    np.testing.assert_array_equal(got.reshape(want.shape), want)
    counted = program_stats(build_binary(compilation.module, ctx.weights, arch, {}))
    assert predicted_counters(before, arch, prefetched) == counted
    parts = program_parts(before, prefetched)
    assert from_json(json.loads(json.dumps(as_json(parts)))) == parts
    for plan in parts:
        if isinstance(plan, GroupPlan):
            group = figures(plan, arch)
            assert group["least"] <= group["cycles"]
            assert group["least_words"] <= group["words"]
    return compilation


def drawn_program(number: int, arch: str, tables: int = 0) -> tuple[Compilation, Chain] | None:
    """A program of a drawn group, checked; None where one is refused, for a reason that may be.

    tables: 1, every layer has one; 2, every second one.
    """
    chain, rows, layers, rowwise, slack = drawn(number)
    chain = with_tables(chain, tables) if tables else chain
    try:
        group = mapped(chain, rows, layers, arch, rowwise, slack, single=number % 4 < 2, loads=number % 3 > 0)
        compilation = checked(group, chain)
        assert ordered_races(program_of(compilation), compilation.settings.arch)[0] == []
        return compilation, chain
    except Refusal as refusal:
        assert any(reason in str(refusal) for reason in REFUSED), refusal
        return None


@pytest.mark.parametrize("number", range(EXAMPLES))
def test_a_group_is_exact_and_costs_what_is_predicted(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every second one inputs and results are streamed where that is better."""
    if turn(number) % 2:
        monkeypatch.setattr(residency, "END_PART", END_PART)
    drawn_program(number, PRESETS[number % len(PRESETS)])


@pytest.mark.parametrize("number", range(examples(6)))
def test_a_group_with_tables_is_exact_costs_what_is_predicted_and_is_proven(number: int) -> None:
    """Each section sends its table anew: nine instructions of settings."""
    if (done := drawn_program(number, PRESETS[number % len(PRESETS)], tables=1 + number % 2)) is None:
        return
    compilation, chain = done
    program = program_of(compilation)
    parts = [inst.number("part") for inst in program if inst.spec.name == "table"]
    lookups = sum(inst.spec.name == "unit" and inst.number("lookup") for inst in program)
    assert parts == list(range(8)) * lookups and lookups
    assert prove(claim_of(compilation, chain), 30.0).failures == []


def test_layers_with_tables_alone_and_plans_of_a_time_before_tables() -> None:
    """One layer has a table and one has not. A plan without the key is one without tables."""
    rng, dims = np.random.default_rng(SEED), (1, 2, 5, 3)
    chain = Chain(rng.integers(-60, 60, dims).astype(np.int64), dims=[dims] * 3)
    for number in range(2):
        chain.lines.append(
            f'%v{number + 1} = cnn.pool "max" %v{number} window <kernel = [1, 1]> then <clamp = [-120, 120]> '
            f'label "l{number}" : {tensor(dims)} -> {tensor(dims)}'
        )
    compilation = with_tables(chain, 2).compilation("spatial-4x4")
    compilation.run_before(TO_PROGRAMS)
    entries = json.loads(json.dumps(as_json(program_parts(compilation.module, {}))))
    layers = [entry for entry in entries if "layer" in entry]
    assert [entry["table"] for entry in layers] == [True, False]
    parts = from_json(entries)
    counts = program_counts(parts, compilation.settings.arch)
    del layers[1]["table"]
    assert from_json(entries) == parts
    del layers[0]["table"]
    before = program_counts(from_json(entries), compilation.settings.arch)
    assert from_json(entries) != parts and before != counts
    checked(compilation, chain)


@pytest.mark.parametrize(("glb_words", "has_sums"), [(9000, True), (7000, False)])
def test_stripes_have_partial_sums_where_these_have_room(glb_words: int, has_sums: bool, tmp_path: Path) -> None:
    """Two 3x3 convolutions of 16 channels in stripes of 2 rows: 6,784 words without sums, 8,576 with them."""
    preset, file = load_arch("seed-4x4"), tmp_path / "seed.toml"
    file.write_text(arch_text(replace(preset, glb=replace(preset.glb, words=glb_words))))
    chain = two_convolutions(8)
    compilation = chain.compilation(str(file))
    compilation.run_before(TO_PROGRAMS)
    NestGroupPass(("l0", "l1"), 2, arch=str(file)).apply(compilation.ctx, compilation.module)
    names = {op.record.data.name for op in checked(compilation, chain).module.walk() if isinstance(op, TensorOp)}
    assert ({"l0.sums.glb", "l1.sums.glb"} <= names) == has_sums


def test_few_drawn_groups_are_refused() -> None:
    refused, numbers = 0, range(0, EXAMPLES, 2)
    for number in numbers:
        chain, rows, layers, rowwise, _ = drawn(number)
        try:
            mapped(chain, rows, layers, "spatial-4x4", rowwise)
        except Refusal:
            refused += 1
    assert refused <= len(numbers) // 4


ENDS = {"resnet20": "/s2b2/Relu_1_output_0", "resnet20_qoperator_u8": "/s1b2/Add_output_0_quantized"}
"""Of long networks, the result of the block behind those with groups: their layers further on say the same again."""


def network_file(name: str, folder: Path) -> Path:
    """A sample network, to its end here."""
    model = onnx.load(SAMPLES / "models" / f"{name}.onnx")
    graph, end = model.graph, ENDS.get(name, "")
    if end:
        last = next(number for number, each in enumerate(graph.node) if end in each.output)
        del graph.node[last + 1 :], graph.output[:]
        if end.endswith("_quantized"):
            codes = [end, *(end.replace("_quantized", part) for part in ("_scale", "_zero_point"))]
            end = "y"
            graph.node.append(helper.make_node("DequantizeLinear", codes, [end], "y"))
        graph.output.append(helper.make_tensor_value_info(end, TensorProto.FLOAT, ["N", "C", "H", "W"]))
    return save(model, folder / f"{name}.onnx")


NETWORKS = [
    # Valid convolutions: fewer rows than the layer before has.
    ("lenet", "spatial-8x8", [(("c1", "pool1", "c2", "pool2"), 1)]),
    ("mnist", "spatial-4x4", [(("conv0", "pool1", "conv2", "pool3", "conv4"), 1)]),
    # A value that two branches read; their results are added up inside the group. A kernel of 1 x 1 with stride 2.
    ("resnet20", "spatial-8x8", [(("s1b3.conv1", "s1b3.conv2", "s2b1.conv1", "s2b1.conv2", "s2b1.shortcut.0"), 2)]),
    ("resnet20_qoperator_u8", "spatial-8x8", [(("conv1", "s1b1.conv1", "s1b1.conv2"), 3)]),
    # Two groups, one after the other.
    ("depthwise", "spatial-16x16", [(("conv1", "dw2", "pw2"), 4), (("dw3", "pw3", "dw4"), 2)]),
]


@pytest.mark.parametrize(
    ("model", "arch", "groups"), NETWORKS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_groups_of_sample_networks(
    model: str, arch: str, groups: list[tuple[tuple[str, ...], int]], tmp_path: Path
) -> None:
    as_without_groups(network_file(model, tmp_path), arch, [NestGroupPass(layers, rows) for layers, rows in groups])


def test_results_leave_from_one_buffer(tmp_path: Path) -> None:
    """With a residual in DRAM, whose transfers wait for buffers of the output."""
    text, file = (ARRAYS / "spatial-8x8.toml").read_text(), tmp_path / "small.toml"
    file.write_text(text.replace("words = 65536 ", "words = 12000 ", 1))
    block = NestGroupPass(("s1b1.conv1", "s1b1.conv2"), 1, single=True, arch=str(file))
    module = as_without_groups(network_file("resnet20_qoperator_u8", tmp_path), str(file), [block])
    stages = group_layers(group_of(module))[-1].mapping.glb_stages
    assert {operand: stage.buffers for operand, stage in stages.items() if stage.depth} == {"residual": 1, "output": 1}


def as_without_groups(model: Path, arch: str, groups: list[NestGroupPass]) -> ModuleOp:
    """A network with these groups computes the same as without, to the bit, and costs what is predicted."""
    options = CompileOptions(arch, batch=1, groups=NONE)
    compilation = start_compilation(model, options)
    compilation.run_before(TO_PROGRAMS)
    module, ctx = compilation.module, compilation.ctx
    rng = np.random.default_rng(SEED)
    dims = [shape(argument.type) for argument in main_function(module).args]
    inputs = [rng.integers(0, 100, (2, *of_image[1:])) for of_image in dims]
    want, _ = nest.evaluate(module, ctx.weights, inputs)
    for group in groups:
        group.apply(ctx, module)
    module.verify()
    np.testing.assert_array_equal(nest.evaluate(module, ctx.weights, inputs)[0][0], want[0])
    mapped_module, prefetched = module.clone(), dict[str, frozenset[str]]()
    for step in compilation.remaining():
        compilation.step(step)
        if step.name == "array-prefetch":
            prefetched = prefetched_operands(module)
    got, _ = isa.evaluate(module, ctx.weights, compilation.settings.arch, inputs)
    np.testing.assert_array_equal(got[0], want[0])
    counted = program_stats(build_binary(module, ctx.weights, compilation.settings.arch, {}))
    assert predicted_counters(mapped_module, compilation.settings.arch, prefetched) == counted
    return mapped_module


# -- groups of a schedule file -----------------------------------------------------------------------------------------

GROUPS = """
[[group]]
layers = ["conv0", "pool1"]
rows = 2
[[group]]
layers = ["conv2", "pool3", "conv4"]
rows = 1
delays = [0, 0, 2]
"""


def test_a_schedule_file_has_groups(tmp_path: Path) -> None:
    """From the model to a binary, and on from the dump of the groups; `verify` runs all steps."""
    (tmp_path / "groups.toml").write_text(GROUPS)
    model = str(SAMPLES / "models" / "mnist.onnx")
    options = ["--batch", "1", "--schedule", str(tmp_path / "groups.toml")]
    files = ["-o", str(tmp_path / "net.cnb"), "--dump-dir", str(tmp_path / "ir")]
    assert "0 layers mapped, 2 groups as" in done("compile", model, *options, *files).stdout
    without = done("compile", model, *options, "--groups", "none", "-o", str(tmp_path / "none.cnb")).stdout
    assert "0 layers mapped as" in without
    done("compile", "--from", str(tmp_path / "ir" / "nest-group"), "-o", str(tmp_path / "again.cnb"))
    program, again = (load(tmp_path / name).program for name in ("net.cnb", "again.cnb"))
    assert np.array_equal(program, again)
    comments = done("disasm", str(tmp_path / "net.cnb")).stdout
    assert all(f"{layer}: output units" in comments for layer in ("conv0", "pool1", "conv2", "pool3", "conv4"))
    assert "conv0..pool1: 216 words from conv0.w to conv0.w.glb" in comments
    assert "counters are as predicted" in done("estimate", str(tmp_path / "net.cnb"), "--check-counters").stdout
    assert "conv2..conv4" in done("estimate", model, *options).stdout
    proof = done("verify", str(tmp_path / "net.cnb"), "--prove", "--model", model, "--batch", "1").stdout
    assert "proven for all inputs" in proof and "no two engines race" in proof
    assert " steps agree" in done("verify", model, *options, "--input", str(DIGITS)).stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers = 3\nrows = 1", "group 1: layers is a list of labels"),
        ('layers = ["a", 3]\nrows = 1', "group 1: layers is a list of labels"),
        ('layers = ["a", "b"]', "group 1: rows is a whole number, from 1 to 2,147,483,647: it is missing"),
        ('layers = ["a", "b"]\nrows = true', "group 1: rows is a whole number, from 1 to 2,147,483,647: not True"),
        ('layers = ["a", "b"]\nrows = 1\ndelays = [0, -1]', "group 1: delays is a list of whole numbers"),
        ('layers = ["a", "b"]\nrows = 1\nkeeps = 4', "group 1: keeps is a list of whole numbers"),
        ('layers = ["a", "b"]\nrow = 1', "group 1: unknown key 'row'"),
    ],
)
def test_wrong_groups_of_a_file_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "groups.toml").write_text(f"[[group]]\n{text}\n")
    with pytest.raises(Refusal) as refusal:
        read_schedule(str(tmp_path / "groups.toml"))
    assert message in str(refusal.value)


def test_a_layer_may_be_called_group(tmp_path: Path) -> None:
    (tmp_path / "layer.toml").write_text('["group"]\npoy = 2\n')
    schedule = read_schedule(str(tmp_path / "layer.toml"))
    assert list(schedule.entries) == ["group"] and schedule.groups == ()


# -- the order of loads and commits ------------------------------------------------------------------------------------


def program_of(compilation: Compilation) -> list[Instruction]:
    return list(decode_program(encode_program(instructions(compilation.module))))


def raced(compilation: Compilation, chain: Chain, program: list[Instruction]) -> list[str]:
    return both_races(program, compilation.settings.arch, dram_of(compilation.module, compilation.ctx, {"x": chain.x}))


def without(inst: Instruction, *sides: str, semaphores: Collection[int] = (Semaphore.STRIPE_FULL,)) -> Instruction:
    """The instruction without its tokens of stripes."""
    gone = {side: 0 for side in sides if inst.values.get(side) in semaphores}
    return Instruction(inst.spec, {**inst.values, **gone})


OF_GROUPS = (Semaphore.STRIPE_FULL, Semaphore.ROWS_FULL, Semaphore.ROWS_FREE)


@cache
def with_resident_ends(number: int) -> tuple[Compilation, Chain] | None:
    return drawn_program(number, "spatial-4x4")


@pytest.mark.parametrize("number", range(examples(6)))
def test_groups_have_no_races(number: int) -> None:
    done = with_resident_ends(number)
    assert done is None or raced(*done, program_of(done[0])) == []


def test_tokens_of_stripes_are_needed() -> None:
    """Without them layers of most groups read rows that are on their way; the others are in time by chance."""
    found = total = 0
    for number in range(8):
        done = with_resident_ends(number)
        program = [] if done is None else program_of(done[0])
        bare = [without(inst, "take", "give") for inst in program]
        if done is not None and bare != program:
            total += 1
            found += bool(raced(*done, bare))
    assert total >= 4 and found >= total - 2


def test_every_deleted_token_is_found() -> None:
    """A race or a deadlock; one that is not found orders nothing at the times of the plain machine, either.

    Halves of register files and transfers of results order much besides, and all that follows each other does on an
    array without overlap. Long queues order nothing.
    """
    found = deleted = 0
    for number in range(examples(2)):
        chain, rows, layers, rowwise, slack = drawn(number)
        try:
            compilation = mapped(chain, rows, layers, PRESETS[number % len(PRESETS)], rowwise, slack)
            program, given = program_of(checked(compilation, chain)), compilation.settings.arch
        except Refusal:
            continue
        arch = replace(given, sequencer=replace(given.sequencer, queue_depth=4000))
        dram = dram_of(compilation.module, compilation.ctx, {"x": chain.x})
        for at, inst in enumerate(program):
            for side in ("take", "give"):
                if (changed := without(inst, side, semaphores=OF_GROUPS)) == inst:
                    continue
                spoilt, deleted = [*program[:at], changed, *program[at + 1 :]], deleted + 1
                try:
                    seen = bool(ordered_races(spoilt, arch)[0])
                except Trap as trap:
                    assert "deadlock" in str(trap)
                    seen = True
                found += seen
                assert seen or races(spoilt, arch, dram) == [], f"{number}, instruction {at}: {side}"
    assert found >= deleted // 2 > 4


def test_a_ring_beside_a_whole_value_holds_one_image(tmp_path: Path) -> None:
    """The commits of l3 read l1's result of all images, which lies in the GLB, and write a ring, from one start.

    l4 prefetches the residual from l0, so that the last image has instructions of its own. They start two images
    further in l1's result, and not in the ring.
    """
    rng, dims, residuals = np.random.default_rng(SEED), (3, 2, 7, 5), {3: 2, 4: 1}
    chain = Chain(rng.integers(-60, 60, dims).astype(np.int64), dims=[dims])
    for number in range(5):
        chain.arrays[f"w{number}"] = rng.integers(-9, 10, (2, 2, 3, 3)).astype(np.int16)
        then, residual = "clamp = [-120, 120]", ""
        if value := residuals.get(number):
            chain.arrays[f"f{number}"] = np.array([1, 0.5, 0], np.float32)
            then += f', factors = "f{number}", add_clamp = [-99, 99]'
            residual = f"residual %v{value} : {tensor(dims)}"
        chain.lines.append(
            f"%v{number + 1} = cnn.conv %v{number} {residual} weights @w{number} "
            f"window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <{then}> "
            f'label "l{number}" : {tensor(dims)} -> {tensor(dims)}'
        )
        chain.dims.append(dims)
    schedule = tmp_path / "ends.toml"
    schedule.write_text('[l0]\noutput = "streamed"\n[l1]\noutput = "resident"\n')
    checked(mapped(chain, 1, ["l2", "l3", "l4"], "spatial-4x4", schedule=str(schedule)), chain)


def loads(compilation: Compilation) -> list[LoadOp]:
    return [op for op in compilation.module.walk() if isinstance(op, LoadOp)]


def loaded_chain() -> tuple[Compilation, Chain]:
    """Two convolutions of three rows on an image of 11 rows, which come two by two into a ring of seven."""
    rng = np.random.default_rng(SEED)
    chain = Chain(rng.integers(-60, 60, (1, 2, 11, 5)).astype(np.int64), dims=[(1, 2, 11, 5)])
    for number, k in enumerate((3, 2)):
        c = chain.dims[-1][1]
        chain.arrays[f"w{number}"] = rng.integers(-9, 10, (k, c, 3, 3)).astype(np.int16)
        chain.arrays[f"s{number}"] = rng.uniform(0.02, 0.2, (k,)).astype(np.float32)
        chain.lines.append(
            f"%v{number + 1} = cnn.conv %v{number} weights @w{number} window <kernel = [3, 3], pad = [1, 1, 1, 1]> "
            f'then <scale = "s{number}", clamp = [-120, 120]> label "l{number}" : {tensor((1, c, 11, 5))} '
            f"-> {tensor((1, k, 11, 5))}"
        )
        chain.dims.append((1, k, 11, 5))
    return mapped(chain, 2, ["l0", "l1"], "spatial-4x4"), chain


def test_each_token_of_a_load_is_needed() -> None:
    """Too early a transfer overwrites rows that are still read; too early a load reads rows that have not come."""
    compilation, chain = loaded_chain()
    (load,) = loads(compilation)
    assert (load.rows.value.data, load.delay.value.data, load.keeps.value.data) == (2, 0, 7)
    checked(compilation, chain)
    claim, program = claim_of(compilation, chain), program_of(compilation)
    for semaphore in (Semaphore.ROWS_FULL, Semaphore.ROWS_FREE):
        bare = [without(inst, "take", semaphores=(semaphore,)) for inst in program]
        assert bare != program
        failures = prove(replace(claim, binary=replace(claim.binary, program=encode_program(bare))), 1.0).failures
        assert failures and all("a token or a sync is missing" in failure for failure in failures)


def claim_of(compilation: Compilation, chain: Chain) -> Claim:
    """That a program computes the chain."""
    ctx = compilation.ctx
    binary = build_binary(compilation.module, ctx.weights, compilation.settings.arch, {})
    return Claim(binary, chain.module(ctx, compilation.settings.arch.operand_bits), ctx.weights)


def test_params_come_before_the_first_block(tmp_path: Path) -> None:
    """l0 and l1 have params and no weights. The first block of the image says that the params of both have come."""
    dims, rng = (1, 2, 24, 6), np.random.default_rng(SEED)
    chain = Chain(rng.integers(-60, 60, dims).astype(np.int64), dims=[dims] * 4)
    chain.arrays["w2"] = rng.integers(-9, 10, (2, 2, 3, 3)).astype(np.int16)
    for number in range(3):
        chain.arrays[f"s{number}"] = rng.uniform(0.02, 0.2, (2,)).astype(np.float32)
        op = f'cnn.pool "sum" %v{number} window <kernel = [1, 1], group = 2>'
        op = "cnn.conv %v2 weights @w2 window <kernel = [3, 3], pad = [1, 1, 1, 1]>" if number == 2 else op
        then = f'scale = "s{number}", clamp = [-120, 120]'
        chain.lines.append(f'%v{number + 1} = {op} then <{then}> label "l{number}" : {tensor(dims)} -> {tensor(dims)}')
    file, schedule, preset = tmp_path / "small.toml", tmp_path / "group.toml", load_arch("spatial-4x4")
    file.write_text(arch_text(replace(preset, glb=replace(preset.glb, words=400))))
    schedule.write_text('[[group]]\nlayers = ["l0", "l1", "l2"]\nrows = 1\nloads = false\n')
    compilation = chain.compilation(str(file), schedule=str(schedule))
    compilation.run_before(TO_PROGRAMS)
    assert "ifmap" in group_layers(group_of(compilation.module))[0].mapping.glb_stages
    checked(compilation, chain)
    assert raced(compilation, chain, program_of(compilation)) == []
    assert prove(claim_of(compilation, chain), 30.0).failures == []


def test_weights_come_in_the_order_of_their_tokens(tmp_path: Path) -> None:
    """The first layer stages its ifmap, too. Its weights come first, although the block follows them."""
    dims, rng = (1, 2, 24, 6), np.random.default_rng(SEED)
    chain = Chain(rng.integers(-60, 60, dims).astype(np.int64), dims=[dims] * 3)
    for number in range(2):
        chain.arrays[f"w{number}"] = rng.integers(-9, 10, (2, 2, 3, 3)).astype(np.int16)
        chain.arrays[f"s{number}"] = rng.uniform(0.02, 0.2, (2,)).astype(np.float32)
        op = f"cnn.conv %v{number} weights @w{number} window <kernel = [3, 3], pad = [1, 1, 1, 1]>"
        then = f'scale = "s{number}", clamp = [-120, 120]'
        chain.lines.append(f'%v{number + 1} = {op} then <{then}> label "l{number}" : {tensor(dims)} -> {tensor(dims)}')
    file, schedule, preset = tmp_path / "small.toml", tmp_path / "group.toml", load_arch("spatial-4x4")
    file.write_text(arch_text(replace(preset, glb=replace(preset.glb, words=400))))
    schedule.write_text('[[group]]\nlayers = ["l0", "l1"]\nrows = 1\nloads = false\n')
    compilation = chain.compilation(str(file), schedule=str(schedule), groups=str(schedule))
    compilation.run_before(TO_PROGRAMS)
    assert {"weight", "ifmap"} <= group_layers(group_of(compilation.module))[0].mapping.glb_stages.keys()
    checked(compilation, chain)
    assert raced(compilation, chain, program_of(compilation)) == []


def test_a_load_moves_each_row_once() -> None:
    """And the last rows, which no window touches, not at all."""
    compilation, _ = loaded_chain()
    parts = program_parts(compilation.module, {})
    counters = program_counts(parts, compilation.settings.arch)["layers"]["l0..l1"]
    weights = 3 * 2 * 9 + 2 * 3 * 9 + 2 * (3 + 2)
    assert counters["words"]["dram_read"] == 2 * 11 * 5 + weights
    load = load_of_rows("x", (1, 2, 11, 5), 2)
    reader = replace(layer("r", 5, 1, 0, RowRead(0, "ifmap", 2, 2, 0)), leaves=True)
    assert without_unread_rows([load, reader])[0].sizes.h == 10


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pad": 1000}, "no layer of the group reads a row of l0.ifmap"),
        ({"extent": -1}, "extent and stride are at least 1, pad at least 0"),
        ({"stride": 0}, "extent and stride are at least 1, pad at least 0"),
    ],
)
def test_a_plan_of_reads_that_read_nothing_is_refused(wrong: dict[str, int], message: str) -> None:
    """As a binary may have it that somebody edited."""
    compilation, _ = loaded_chain()
    entries = json.loads(json.dumps(as_json(program_parts(compilation.module, {}))))
    (group,) = (entry for entry in entries if "group" in entry)
    first = next(own for own in group["layers"] if own.get("reads"))
    first["reads"][0] |= wrong
    with pytest.raises(Refusal, match=message):
        program_counts(from_json(entries), compilation.settings.arch)


# -- proofs ------------------------------------------------------------------------------------------------------------


def planted(change: Callable[[View], View], tensor_name: str) -> Claim:
    """The claim of a group, some views of which are changed."""
    compilation, chain = loaded_chain()
    for step in compilation.remaining():
        compilation.step(step)
        if step.name == TO_PROGRAMS:
            for op in compilation.module.walk():
                if isinstance(op, ViewOp) and op.record.data.tensor == tensor_name:
                    op.record = ViewAttr(change(op.record.data))
    return claim_of(compilation, chain)


@pytest.mark.parametrize("name", ["l0.ring", "l0.ifmap.ring"])
def test_a_proof_finds_wrong_rings(name: str) -> None:
    assert prove(planted(lambda view: view, name), 30.0).failures == []
    small = planted(lambda view: replace(view, ring_y=view.ring_y - 1), name)
    slot = planted(lambda view: replace(view, ring_y=view.ring_y - (view.name == "ifmap")), name)
    for claim in (small, slot):
        assert prove(claim, 1.0).failures


# -- bodies ------------------------------------------------------------------------------------------------------------


def layer(label: str, height: int, rows: int, delay: int, *reads: RowRead, keeps: int = 0) -> GroupLayer:
    loops = (Loop("h", rows), *((Loop("h"),) if rows > 1 else ()))
    return GroupLayer(label, "mac", Sizes(1, 1, 1, height, 1, 1, 1), Mapping(loops), delay, keeps, reads, not keeps)


def test_the_layer_whose_params_nothing_waits_for_is_named() -> None:
    """b has weights, whose token says that its params have come, too."""
    layers = list[GroupLayer]()
    for delay, (label, operands) in enumerate({"a": (), "b": ("weight", "params"), "c": ("params",)}.items()):
        own = layer(label, 4, 1, delay)
        stages = tuple(Stage(operand, "glb", 0, 1) for operand in operands)
        layers.append(replace(own, mapping=replace(own.mapping, stages=stages)))
    with pytest.raises(Refusal, match="^layer c: nothing would wait for its params.*first layer, a, waits for no"):
        waits_for_weights(layers)
    assert waits_for_weights(layers[1:]) == [True, False]


def with_tokens(body: GroupBody) -> list[tuple[bool, bool]]:
    """Whether each section of a body takes a token and gives one."""
    return [(section.tokens.takes > 0, section.tokens.gives > 0) for section in body.sections]


def test_a_long_group_has_a_steady_state() -> None:
    """The example of docs/groups.md on more rows: c2 a stripe behind c1, p2 in the same step."""
    c1 = layer("c1", 40, 2, 0, keeps=5)
    c2 = layer("c2", 40, 2, 1, RowRead(0, "ifmap", 3, 1, 1), keeps=2)
    p2 = layer("p2", 20, 1, 1, RowRead(1, "ifmap", 2, 2, 0))
    bodies = group_bodies([c1, c2, p2], [False] * 3)
    assert [(body.steps, [section.layer for section in body.sections]) for body in bodies] == [
        (1, [0]), (19, [0, 1, 2]), (1, [1, 2]),
    ]  # fmt: skip
    # A load waits for the stripe that is computed in its own step; the last one needs nothing new of c1.
    tokens: list[Any] = [
        [(section.tokens.takes > 0, section.tokens.gives > 0) for section in body.sections] for body in bodies
    ]
    assert tokens == [
        [(False, False)],
        [(False, True), (True, True), (True, False)],
        [(False, True), (True, False)],
    ]
    # With slack the stripe that c2 needs is of the step before. Its loads wait for it once: from then on those of p2
    # have waited for c2, which commits behind c1.
    ahead = group_bodies([replace(c1, keeps=7), replace(c2, delay=2), replace(p2, delay=2)], [False] * 3)
    assert [body.steps for body in ahead] == [1, 1, 1, 17, 2]
    assert [section.tokens.gives > 0 for body in ahead for section in body.sections if section.layer == 0] == [
        0,
        1,
        0,
        0,
    ]
    assert [section.tokens.takes > 0 for body in ahead for section in body.sections if section.layer == 1] == [1, 0, 0]


def test_a_residual_needs_no_token_of_its_own() -> None:
    """c reads b, which read a: the commits of a are done when those of b are."""
    a, b = layer("a", 8, 1, 0, keeps=1), layer("b", 8, 1, 0, RowRead(0, "ifmap"), keeps=1)
    c = layer("c", 8, 1, 0, RowRead(1, "ifmap"), RowRead(0, "residual"))
    (body,) = group_bodies([a, b, c], [False] * 3)
    assert with_tokens(body) == [
        (False, True),
        (True, True),
        (True, False),
    ]
    # Without the way through b, c waits for the later one of both.
    other = replace(b, reads=())
    (body,) = group_bodies([a, other, c], [False] * 3)
    assert with_tokens(body) == [
        (False, False),
        (False, True),
        (True, False),
    ]


def test_nothing_is_prefetched_where_the_layer_before_moves_into_a_group(tmp_path: Path) -> None:
    """b0, b1, p0 becomes b1, b0..p0: nothing runs before b1, whose weights came beside b0."""
    kinds = {"b0": "x", "b1": "x", "p0": "b0", "y": "b1"}
    nodes = [helper.make_node("Conv", [read, "w"], [name], name=name, pads=[1] * 4) for name, read in kinds.items()]
    model = build(nodes, {"x": (1, 4, 9, 9)}, ["p0", "y"], {"w": noise(0, 4, 4, 3, 3)})
    compilation = start_compilation(save(model, tmp_path / "net.onnx"), CompileOptions(groups=NONE))
    compilation.run_before("nest-to-array")
    layers = {op.label.data: op for op in compilation.module.walk() if isinstance(op, LayerOp) and op.label}
    layers["b1"].prefetched = UnitAttr()
    NestGroupPass(("b0", "p0"), 3).apply(compilation.ctx, compilation.module)
    assert layers["b1"].prefetched is None
    compilation.run()
