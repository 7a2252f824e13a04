"""Groups in strips of columns: values at every level, predicted counters, words, no races."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_cases import SAMPLES, done, noise, refused, save
from examples import SEED, examples
from frontend_models import model
from group_cases import PRESETS, Chain, random_chain, tensor, turn
from test_group_programs import REFUSED, checked, claim_of, program_of, raced
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, TensorType, i64
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.binary.container import load
from cnncc.binary.isa_module import binary_to_module
from cnncc.context import CompilerContext
from cnncc.dialects._columns import ColumnsOp, JoinOp
from cnncc.dialects.array import TensorAttr, TensorOp
from cnncc.dialects.nest import GroupOp
from cnncc.driver.pipeline import TO_PROGRAMS, Compilation, new_context
from cnncc.driver.program_parts import program_parts
from cnncc.errors import Refusal
from cnncc.eval import array, nest
from cnncc.mapping.mapping import Loop, Mapping, Sizes
from cnncc.mapping.strips import strip_count
from cnncc.model.layer_shape import LayerShape
from cnncc.model.program_counts import program_counts
from cnncc.passes._programs.layer_records import ActivationLayout
from cnncc.passes._programs.layer_sums import partial_sums
from cnncc.passes._scheduling import residency
from cnncc.passes._scheduling.residency import END_PART
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.passes.nest_group import NestGroupPass
from cnncc.proof.proof import prove
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")


def drawn(number: int) -> tuple[Chain, NestGroupPass]:
    """A chain, and a group of a run of its layers in strips of fewer columns than the last one has."""
    rng = np.random.default_rng([SEED, 77, number])
    while True:
        chain = random_chain(rng, most_images=3, most_cols=16)
        first = int(rng.integers(0, len(chain.lines) - 1))
        end = int(rng.integers(first + 2, len(chain.lines) + 1))
        _, _, height, width = chain.dims[end]
        if width > 1:
            columns = int(rng.integers(max(1, width // 4), width))
            layers, rows, rowwise = chain.labels[first:end], int(rng.integers(1, 5)), bool(rng.integers(0, 2))
            return chain, NestGroupPass(tuple(layers), min(rows, height), rowwise=rowwise, columns=columns)


def at_nest(chain: Chain, *groups: NestGroupPass) -> tuple[CompilerContext, ModuleOp]:
    """The chain at the nest level, without mappings. Raises Refusal."""
    ctx = new_context()
    module = chain.module(ctx)
    for each in (CnnToNestPass(), *groups):
        each.apply(ctx, module)
    module.verify()
    return ctx, module


def mapped(chain: Chain, arch: str, *groups: NestGroupPass) -> Compilation:
    """The chain with these groups, before `nest-to-array`. Raises Refusal."""
    compilation = chain.compilation(arch)
    compilation.run_before(TO_PROGRAMS)
    for group in groups:
        group.apply(compilation.ctx, compilation.module)
    compilation.module.verify()
    return compilation


def computed(ctx: CompilerContext, module: ModuleOp, chain: Chain) -> np.ndarray:
    return nest.evaluate(module, ctx.weights, [chain.x])[0][0]


def computing_the_chain(chain: Chain, group: NestGroupPass) -> ModuleOp | None:
    """The chain with the group at the nest level, which computes it; None where it is refused, as may be."""
    try:
        ctx, module = at_nest(chain, group)
    except Refusal as refusal:
        assert any(reason in str(refusal) for reason in REFUSED), refusal
        return None
    assert np.array_equal(computed(ctx, module, chain), chain.result())
    return module


@pytest.mark.parametrize("number", range(examples(10)))
def test_strips_compute_what_the_layers_do(number: int) -> None:
    if module := computing_the_chain(*drawn(number)):
        assert sum(strip_count(group.label.data) for group in ops(module, GroupOp)) > 1


@pytest.mark.parametrize("number", range(examples(5)))
def test_strips_are_exact_and_cost_what_is_predicted(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every second one inputs and results are streamed where that is better. No two engines race."""
    if turn(number) % 2:
        monkeypatch.setattr(residency, "END_PART", END_PART)
    chain, group = drawn(number)
    try:
        compilation = checked(mapped(chain, PRESETS[number % len(PRESETS)], group), chain)
    except Refusal as refusal:
        assert any(reason in str(refusal) or reason in str(refusal.findings) for reason in REFUSED), refusal
        return
    if number < examples(2):
        assert raced(compilation, chain, program_of(compilation)) == []


def test_few_drawn_strips_are_refused() -> None:
    refused = 0
    for number in range(examples(10)):
        chain, group = drawn(number)
        try:
            at_nest(chain, group)
        except Refusal:
            refused += 1
    assert refused <= examples(10) // 4


# -- a chain by hand: a residual block of 3x3 convolutions on 11 columns, then a pool ----------------------------------


def block() -> Chain:
    """l0 and l1 with l0's result added, then the pool l2 of 2x2 with stride 2. 9 rows, 11 columns, two images."""
    rng = np.random.default_rng(SEED)
    dims = (2, 3, 9, 11)
    chain = Chain(rng.integers(-60, 60, dims).astype(np.int64), dims=[dims])
    for number, residual in enumerate(("", f" residual %v1 : {tensor(dims)}")):
        chain.arrays[f"w{number}"] = rng.integers(-9, 10, (3, 3, 3, 3)).astype(np.int16)
        chain.arrays[f"s{number}"] = rng.uniform(0.02, 0.2, (3,)).astype(np.float32)
        then = f'scale = "s{number}", clamp = [-120, 120]'
        if residual:
            chain.arrays["f"] = np.array([1, 0.5, 0], np.float32)
            then += ', factors = "f", add_clamp = [-99, 99]'
        chain.lines.append(
            f"%v{number + 1} = cnn.conv %v{number}{residual} weights @w{number} window <kernel = [3, 3], "
            f'pad = [1, 1, 1, 1]> then <{then}> label "l{number}" : {tensor(dims)} -> {tensor(dims)}'
        )
        chain.dims.append(dims)
    out = (2, 3, 5, 6)
    chain.lines.append(
        '%v3 = cnn.pool "max" %v2 window <kernel = [2, 2], stride = [2, 2], pad = [0, 1, 1, 0], group = 3, fill = -999>'
        f' then <clamp = [-120, 120]> label "l2" : {tensor(dims)} -> {tensor(out)}'
    )
    chain.dims.append(out)
    return chain


ALL = NestGroupPass(("l0", "l1", "l2"), 1, columns=2)


def ops(module: ModuleOp, kind: type) -> list:
    return [op for op in module.walk() if isinstance(op, kind)]


def test_columns_of_each_strip() -> None:
    """The pool's columns 2 and 3 read 3 to 6 of l1, these 2 to 7 of l0, these 1 to 8 of the image. 3 to 6 are added."""
    _, module = at_nest(block(), ALL)
    first, middle, last = ops(module, GroupOp)
    widths = [[layer.sizes.data.w for layer in group.layers()] for group in (first, middle, last)]
    assert widths == [[4, 3, 2], [6, 4, 2], [5, 4, 2]]
    assert [layer.window.data.pad[1::2] for layer in first.layers()] == [(1, 0), (1, 0), (1, 0)]
    assert [layer.window.data.pad[1::2] for layer in middle.layers()] == [(0, 0), (0, 0), (0, 0)]
    assert [layer.window.data.pad[1::2] for layer in last.layers()] == [(0, 1), (0, 1), (0, 0)]
    assert [op.first.value.data for op in ops(module, ColumnsOp)] == [0, 0, 1, 1, 5, 1]
    assert [group.label.data for group in (first, middle, last)] == ["l0..l2@0", "l0..l2@1", "l0..l2@2"]


@pytest.mark.parametrize("at", range(6))
def test_each_column_counts(at: int) -> None:
    """Columns from elsewhere give other results, or are refused."""
    ctx, module = at_nest(block(), ALL)
    op = ops(module, ColumnsOp)[at]
    moved = op.first.value.data + (1 if op.first.value.data == 0 else -1)
    op.first = IntegerAttr(moved, i64)
    module.verify()
    assert not np.array_equal(computed(ctx, module, block()), block().result())


def test_partial_sums_of_a_strip_lie_as_its_results_do(tmp_path: Path) -> None:
    """As far apart as rows of the whole result: 15 rows of one of 5 columns, of two images."""
    layer = LayerShape("mac", Sizes(2, 1, 4, 15, 1, 3, 3), Window((3, 3)), 2, 17, 3)
    outside = Mapping((Loop("c"), Loop("h"), Loop("r"), Loop("s")))
    assert partial_sums(layer, outside, ActivationLayout("t", image=75, plane=75, pitch=5)) == 75 + 14 * 5 + 1
    chain = random_chain(np.random.default_rng([0, 33, 51]), most_layers=6, most_rows=17, most_cols=24)
    assert chain.dims[1:3] == [(2, 4, 13, 10), (2, 1, 15, 5)]
    compilation = mapped(chain, "spatial-8x8", NestGroupPass(("l0", "l1"), 1, columns=1))
    checked(compilation, chain)
    names = [op.record.data.name for op in ops(compilation.module, TensorOp)]
    assert "l1@4.sums.glb" in names


def test_the_order_of_joined_strips_counts() -> None:
    ctx, module = at_nest(block(), ALL)
    (join,) = ops(module, JoinOp)
    join.operands = [join.operands[1], join.operands[0], join.operands[2]]
    assert not np.array_equal(computed(ctx, module, block()), block().result())


def test_strips_may_be_joined_in_two_steps() -> None:
    """The columns of a join are those of the one that it is joined into. Only IR that is written by hand has this."""
    chain = block()
    wanted = mapped(chain, "spatial-4x4", ALL)
    (join,) = ops(wanted.module, JoinOp)
    first, second, third = join.operands
    images, channels, rows, _ = join.result.type.get_shape()
    cols = first.type.get_shape()[3] + second.type.get_shape()[3]
    kind = TensorType(join.result.type.element_type, [images, channels, rows, cols])
    inner = JoinOp.create(operands=[first, second], result_types=[kind], properties={"label": StringAttr("two")})
    Rewriter.insert_op(inner, InsertPoint.before(join))
    join.operands = [inner.result, third]
    checked(wanted, chain)


@pytest.mark.parametrize("columns", [0, 3, 4])
def test_strips_of_channels_that_are_interleaved(columns: int, tmp_path: Path) -> None:
    """The last layer of a group gives every second channel of a shuffled concatenation, strip by strip."""
    text = """g (float[1, 4, 8, 9] x) => (float[1, 8, 8, 9] y) {
        a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, v)
        b = Conv <kernel_shape = [1, 1]> (a, w)
        d = Conv <kernel_shape = [1, 1]> (x, w)
        c = Concat <axis = 1> (d, b)
        e = Reshape (c, five)
        f = Transpose <perm = [0, 2, 1, 3, 4]> (e)
        s = Reshape (f, four)
        y = MaxPool <kernel_shape = [1, 1]> (s)
    }"""
    sizes = {"five": np.array([1, 2, 4, 8, 9]), "four": np.array([1, 8, 8, 9])}
    network = model(text, v=noise(1, 4, 4, 3, 3), w=noise(2, 4, 4, 1, 1), **sizes)
    for node in network.graph.node:
        node.name = node.output[0]
    path, schedule = save(network, tmp_path / "net.onnx"), tmp_path / "strips.toml"
    strips = f"columns = {columns}\n" if columns else ""
    schedule.write_text(f'[[group]]\nlayers = ["a", "b"]\nrows = 2\n{strips}')
    given = ("--arch", "spatial-4x4", "--schedule", schedule)
    done("verify", path, *given, "--images", 2)
    done("verify", path, *given, "--prove")
    done("compile", path, *given, "-o", tmp_path / "net.cnb")
    done("estimate", tmp_path / "net.cnb", "--check-counters")


@pytest.mark.parametrize(("arch", "streamed"), [("spatial-4x4", False), ("spatial-8x8", True)])
def test_groups_in_strips_one_after_the_other(arch: str, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second group reads columns of what the strips of the first wrote; other columns than these have."""
    monkeypatch.setattr(residency, "END_PART", END_PART if streamed else 0)
    rng, chain = np.random.default_rng(SEED), block()
    for number in (3, 4):
        chain.arrays[f"w{number}"] = rng.integers(-9, 10, (3, 3, 2, 3)).astype(np.int16)
        chain.lines.append(
            f"%v{number + 1} = cnn.conv %v{number} weights @w{number} window <kernel = [2, 3], pad = [1, 1, 0, 1]> "
            f'then <clamp = [-900, 900]> label "l{number}" : {tensor(chain.dims[-1])} -> {tensor(chain.dims[-1])}'
        )
        chain.dims.append(chain.dims[-1])
    checked(mapped(chain, arch, ALL, NestGroupPass(("l3", "l4"), 2, columns=4)), chain)


@pytest.mark.parametrize("name", ["x.columns1", "l0@1.ring.columns1", "l2@1"])
def test_a_proof_finds_wrong_columns(name: str) -> None:
    """Columns that begin at the first one of the whole: of the image, of a ring as a residual, of the result."""
    chain, changed = block(), 0
    wrong = mapped(chain, "spatial-4x4", ALL)
    for step in wrong.remaining():
        wrong.step(step)
        if step.name == TO_PROGRAMS:
            for op in ops(wrong.module, TensorOp):
                if op.record.data.name == name:
                    op.record, changed = TensorAttr(replace(op.record.data, offset=0)), changed + 1
    failures = prove(claim_of(wrong, chain), 1.0).failures
    assert changed == 1 and failures


def test_words_of_strips() -> None:
    """Each strip reads its columns of the image once, and writes its own columns of the result."""
    compilation = mapped(block(), "spatial-8x8", ALL)
    counters = program_counts(program_parts(compilation.module, {}), compilation.settings.arch)["layers"]
    weights = 2 * (3 * 3 * 9 + 3 * 2)
    read = {label: layer["words"]["dram_read"] for label, layer in counters.items() if label.startswith("l0..l2")}
    assert read == {f"l0..l2@{at}": 2 * 3 * 9 * cols + weights for at, cols in enumerate((5, 8, 6))}
    written = sum(layer["words"]["dram_write"] for layer in counters.values())
    assert written == 2 * 3 * 5 * 6


def test_a_value_of_each_strip_is_compared() -> None:
    """Levels have the values of strips in common, by the names of the layers and the numbers of the strips."""
    chain = block()
    compilation = mapped(chain, "spatial-8x8", ALL)
    _, at_nest_level = nest.evaluate(compilation.module, compilation.ctx.weights, [chain.x])
    compilation.step(compilation.remaining()[0])
    arch = compilation.settings.arch
    _, at_array = array.evaluate(compilation.module, compilation.ctx.weights, arch, [chain.x])
    common = at_nest_level.keys() & at_array.keys()
    assert {"l2@0", "l2@1", "l2@2"} <= common
    for name in common:
        np.testing.assert_array_equal(at_array[name].reshape(at_nest_level[name].shape), at_nest_level[name])
    np.testing.assert_array_equal(at_nest_level["l2"], chain.result())


def test_a_binary_says_where_strips_lie() -> None:
    """Parts of tensors with the words between channels and rows. Strips share parameters. The program is proven."""
    compilation = checked(mapped(block(), "spatial-4x4", ALL), block())
    claim = claim_of(compilation, block())
    assert prove(claim, 30.0).failures == []
    binary = claim.binary
    assert [name for name, _ in binary.weights] == ["w0", "w1", "l0.params", "l1.params"]
    again, _ = binary_to_module(binary)
    tensors, parts = (
        {op.record.data.name: op.record.data for op in ops(module, TensorOp)} for module in (compilation.module, again)
    )
    assert {part.pitch for part in parts.values()} == {0, 6}
    for name in ("l2@0", "l2@1", "l2@2", "x.columns1", "l0@1.ring.columns1"):
        want = tensors[name]
        assert parts[name] == replace(want, scale=parts[name].scale)


# -- by hand -----------------------------------------------------------------------------------------------------------

GROUPS = """
[[group]]
layers = ["conv0", "pool1", "conv2", "pool3"]
rows = 1
columns = 3
"""


def test_a_schedule_file_has_strips(tmp_path: Path) -> None:
    """From the model to a binary that is proven, and on from the dump of the strips."""
    (tmp_path / "groups.toml").write_text(GROUPS)
    model = str(SAMPLES / "models" / "mnist.onnx")
    options = ["--batch", "1", "--schedule", str(tmp_path / "groups.toml")]
    files = ["-o", str(tmp_path / "net.cnb"), "--dump-dir", str(tmp_path / "ir")]
    done("compile", model, *options, *files)
    done("compile", "--from", str(tmp_path / "ir" / "nest-group"), "-o", str(tmp_path / "again.cnb"))
    program, again = (load(tmp_path / name).program for name in ("net.cnb", "again.cnb"))
    assert np.array_equal(program, again)
    assert "counters are as predicted" in done("estimate", str(tmp_path / "net.cnb"), "--check-counters").stdout
    proof = done("verify", str(tmp_path / "net.cnb"), "--prove", "--model", model, "--batch", "1").stdout
    assert "proven for all inputs" in proof and "no two engines race" in proof


def test_layers_of_strips_are_named_with_and_without_their_strip(tmp_path: Path) -> None:
    model, schedule = str(SAMPLES / "models" / "mnist.onnx"), tmp_path / "strips.toml"
    schedule.write_text('[[group]]\nlayers = ["conv0", "pool1"]\nrows = 2\ncolumns = 7\n')
    net = (model, "--batch", "1", "--schedule", str(schedule))
    for name in ("conv0", "conv0@0", "conv0..pool1", "conv0..pool1@0"):
        assert done("atoms", *net, "--layer", name).stdout.startswith("conv0..pool1@0, PE 0,0")
        assert "conv0@0" in done("reuse", *net, "--layer", name, "--json").stdout
    schedule.write_text('[[group]]\nlayers = ["conv4", "fc"]\nrows = 1\n')
    assert refused("estimate", *net).endswith(
        "cnn.reshape, which is no layer, stands between the group's layers 'conv4' and 'fc': end the group before it"
    )


@pytest.mark.parametrize(
    ("columns", "layers", "message"),
    [
        (-1, ("l0", "l1"), "strips of -1 columns: columns is 1 to 11, all of the last layer, 'l1', or 0 for no strips"),
        (12, ("l0", "l1"), "strips of 12 columns: columns is 1 to 11"),
        (2, ("l0", "l2"), "layer 'l1' stands between the group's layers 'l0' and 'l2': name it, too"),
    ],
)
def test_refused_strips(columns: int, layers: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        at_nest(block(), NestGroupPass(layers, 1, columns=columns))
    assert message in str(refusal.value)


def test_a_strip_in_the_padding_is_refused() -> None:
    """Column 0 of l1 reads columns -3 to -1 of l0."""
    chain = Chain(np.zeros((1, 1, 3, 4), np.int64), dims=[(1, 1, 3, 4)])
    for number, (width, pad) in enumerate(((2, 0), (3, 3))):
        out = (1, 1, 3, width)
        chain.arrays[f"w{number}"] = np.ones((1, 1, 1, 3), np.int16)
        chain.lines.append(
            f"%v{number + 1} = cnn.conv %v{number} weights @w{number} window <kernel = [1, 3], pad = [0, {pad}, 0, 0]> "
            f'then <clamp = [-9, 9]> label "l{number}" : {tensor(chain.dims[-1])} -> {tensor(out)}'
        )
        chain.dims.append(out)
    with pytest.raises(Refusal) as refusal:
        at_nest(chain, NestGroupPass(("l0", "l1"), 1, columns=1))
    assert "layer 'l1': strip 0 of columns 0 to 0 lies in the padding: strips of more columns" in str(refusal.value)
