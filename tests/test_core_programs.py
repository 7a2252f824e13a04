"""Programs of cores: values at every level in any order of cores, no races, and tokens that are all needed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cli_cases import build, done, noise, save
from examples import SEED, examples
from group_cases import Chain, random_chain, tensor
from onnx import helper
from test_array_eval import altered, difference
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from cnncc.arch.model import Arch, load_arch
from cnncc.binary.counters import program_stats
from cnncc.binary.isa_module import build_binary
from cnncc.binary.run import Machine, inputs_of, outputs_of
from cnncc.dialects import array as A
from cnncc.dialects._records import format_record
from cnncc.dialects.isa import instructions
from cnncc.driver.ir_files import ir_text
from cnncc.driver.pipeline import ASSIGN, Compilation, Settings, Step, new_context
from cnncc.errors import Refusal
from cnncc.eval import array, cnn, isa
from cnncc.isa.codec import encode_program
from cnncc.isa.fields import FieldTerm
from cnncc.isa.table import Instruction
from cnncc.machine.cores.core_checks import check_cores
from cnncc.machine.cores.core_races import core_races
from cnncc.model.glb_tokens import Semaphore
from cnncc.passes.nest_cores import NestCoresPass
from cnncc.proof.claim import Claim
from cnncc.proof.proof import prove
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

EXAMPLES = examples(8)
FRAMES = 3
PLACES = {
    1: ("2x3@1,1",),
    2: ("2x8@0,0", "3x3@4,2"),
    3: ("1x4@0,0", "3x2@2,4", "2x4@5,0"),
    4: ("2x2@0,0", "1x3@2,0", "4x4@4,4", "2x3@4,0"),
}
PASSES = ("array-prefetch", "array-allocate", "array-to-isa")


@cache
def cores_array() -> str:
    """An array of 16-bit words with cores, and PEs of two lanes."""
    source = (Path(__file__).parents[1] / "cnncc/arch/spatial-8x8.toml").read_text()
    text = source.replace('"spatial-8x8"', '"cores-8x8"').replace("words = 65536", "banks = 64\nwords = 65536")
    text = text.replace("[pe]", "[pe]\nlanes = 2\nlane_sums = true")
    path = Path(__file__).parents[1] / "build" / "cores-8x8.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{text}\n[cores]\nmost = 8\nwords_per_cycle = 8\nbuses = 4\nlatency_cycles = 2\n")
    return str(path)


@dataclass
class Case:
    """A chain on cores, before `nest-to-array`; the images of some frames, and the results of them."""

    compilation: Compilation
    network: Chain
    x: np.ndarray
    result: np.ndarray

    def run(self, *names: str) -> None:
        """Run passes."""
        for name in names:
            level = "isa" if name == "array-to-isa" else "array"
            options = "" if level == "isa" else f'arch="{cores_array()}"'
            self.compilation.step(Step(level, name, options))

    def at(self, last: str) -> ModuleOp:
        """A copy of the module, which nest-to-array has left, after all passes up to one."""
        module = self.compilation.module
        self.compilation.module = module.clone()
        self.run(*PASSES[: PASSES.index(last) + 1])
        result, self.compilation.module = self.compilation.module, module
        return result


def on_cores(chain: Chain, parts: Sequence[Sequence[str]], **options: object) -> Case:
    """A chain of one image whose layers are on cores. Raises Refusal."""
    ctx, arch = new_context(), cores_array()
    compilation = Compilation(ctx, chain.module(ctx), Settings(load_arch(arch), arch, 16))
    compilation.run_before(ASSIGN)
    cores = ";".join(",".join(part) for part in parts)
    NestCoresPass(cores, ";".join(PLACES[len(parts)]), arch=arch, **options).apply(ctx, compilation.module)
    compilation.module.verify()
    x = np.random.default_rng(5).integers(-60, 60, (FRAMES, *chain.x.shape[1:])).astype(np.int64)
    ctx = new_context()
    (result,), _ = cnn.evaluate(chain.module(ctx), ctx.weights, [x])
    return Case(compilation, chain, x, result)


REFUSED = (
    "leave the cores",
    "leave one of them out",
    "row of a ring of",
)


@cache
def drawn(number: int) -> Case:
    """A random chain on 1 to 4 cores, as nest-to-array leaves it."""
    rng = np.random.default_rng(1000 * SEED + number)
    while True:
        chain = random_chain(rng, 5, most_rows=13, most_images=1, residual=rng.random() < 0.6)
        labels = chain.labels
        cuts = sorted({0, len(labels), *rng.integers(1, len(labels), rng.integers(0, 4)).tolist()})
        parts = [labels[a:b] for a, b in pairwise(cuts)]
        rows = tuple(min(int(rng.integers(1, 4)), chain.dims[end][2]) for end in cuts[1:])
        lag = int(rng.integers(1, 7))
        try:
            case = on_cores(chain, parts, rows=rows, lag=lag)
            case.run("nest-to-array")
        except Refusal as refusal:
            assert any(text in str(refusal) for text in REFUSED), refusal
        else:
            return case


@pytest.mark.parametrize("number", range(EXAMPLES))
def test_chains_compute_the_same_at_every_level(number):
    check_levels(drawn(number), number)


@pytest.mark.parametrize("parts", [(("l0", "l1"),), (("l0",), ("l1",))])
def test_a_layer_that_reads_a_flattened_value_reads_its_rows(parts):
    rng = np.random.default_rng(SEED)
    chain = Chain(rng.integers(-60, 60, (1, 2, 5, 3)).astype(np.int64))
    for number, weights in enumerate(((3, 2, 2, 1), (7, 36, 1, 1))):
        chain.arrays |= {
            f"w{number}": rng.integers(-9, 10, weights).astype(np.int16),
            f"s{number}": rng.uniform(0.02, 0.2, weights[0]).astype(np.float32),
        }
    dims = [(1, 2, 5, 3), (1, 3, 4, 3), (1, 36, 1, 1), (1, 7, 1, 1)]
    chain.lines = [
        f"%v1 = cnn.conv %v0 weights @w0 window <kernel = [2, 1]> then "
        f'<scale = "s0", clamp = [-120, 120]> label "l0" : {tensor(dims[0])} -> {tensor(dims[1])}',
        f'%flat = cnn.reshape %v1 label "flatten" : {tensor(dims[1])} -> {tensor(dims[2])}\n'
        f"%v2 = cnn.conv %flat weights @w1 window <kernel = [1, 1]> then "
        f'<scale = "s1", clamp = [-120, 120]> label "l1" : {tensor(dims[2])} -> {tensor(dims[3])}',
    ]
    chain.dims = [dims[0], dims[1], dims[3]]
    case = on_cores(chain, parts)
    assert len(set(case.result.ravel().tolist())) > 7
    case.run("nest-to-array")
    check_levels(case, 0)


def check_levels(case: Case, number: int) -> None:
    """All levels below nest compute the result, cores in any order, and nothing races."""
    store, arch = case.compilation.ctx.weights, load_arch(cores_array())
    module = case.compilation.module.clone()
    for pick in (None, random.Random(number).choice):
        outputs, _ = array.evaluate(module, store, arch, [case.x], pick=pick)
        assert np.array_equal(outputs[0], case.result)
    outputs, _ = array.evaluate(case.at("array-allocate"), store, arch, [case.x])
    assert np.array_equal(outputs[0], case.result)
    module = case.at("array-to-isa")
    outputs, _ = isa.evaluate(module, store, arch, [case.x])
    assert np.array_equal(outputs[0], case.result)
    assert core_races(instructions(module), arch, FRAMES)[0] == []


# Core 0 brings images of 4 words. Core `sum` adds the words of each up in two PEs; results leave a frame later.
BY_HAND = """builtin.module {
  array.tensor x, memory dram, words 4, shape [1, 4], role input, scale 1.0
  array.tensor y, memory dram, words 2, shape [1, 2], role output, scale 1.0
  array.tensor images, memory glb, words 8
  array.tensor sums, memory glb, words 4
  array.core dram {
    array.route semaphore 4, core 1, to 6
    array.route semaphore 8, core 1, to 9
    array.signal semaphore 5, count 2
    array.signal semaphore 7, count 1
    array.layer "frames" computes "" {
      array.view in.dram, tensor x, width 4, frames, steps [y+i0]
      array.view in, tensor images, wrap 8, steps [lin+4*i0]
      array.view out.dram, tensor y, width 2, frames, steps [y+i0]
      array.view out, tensor sums, wrap 4, steps [lin+2*i0]
      array.repeat i0, count 2, frames {
        array.dma in, dram in.dram, glb in, words 4, tokens take 5 give 4
        array.dma out, dram out.dram, glb out, words 2, glb_offset -2, y -1, tokens take 7 give 8
      }
      array.sync [dma]
    }
  }
  array.core sum, rows 1, cols 2 {
    array.route semaphore 10, core 0, to 5
    array.route semaphore 11, core 0, to 7
    array.signal semaphore 9, count 1
    array.layer "sum" computes "" {
      array.view in, tensor images, wrap 8, steps [lin+4*i0]
      array.view out, tensor sums, wrap 4, steps [lin+2*i0]
      array.repeat i0, count 1, frames {
        array.load ifmap, view in, place rows 1 cols 2 set 1x2 lin+col, pattern [3 by lin+1], open always, close always,
            tokens take 6 give 10
        array.mac add, place rows 1 cols 2 set 1x2, taps 3, ifmap tap, clear always, send always, take_ifmap always,
            give_ifmap always
        array.commit out, place rows 1 cols 2 set 1x2 lin+col, tokens take 9 give 11
      }
      array.sync [load, array, commit]
    }
  }
}"""
NO_SAY = {"CorePlace.label", "CorePlace.rows", "CorePlace.row0", "CorePlace.col0"}  # regions are checked apart


def by_hand(text: str = BY_HAND) -> str | list[list[int]]:
    """The results of a program by hand, or why it is refused."""
    ctx, arch = new_context(), load_arch(cores_array())
    module = Parser(ctx, text).parse_module()
    try:
        module.verify()
        outputs, _ = array.evaluate(module, ctx.weights, arch, [np.arange(12).reshape(3, 4) ** 2])
    except (Refusal, VerifyException) as error:
        return str(error)
    return outputs[0].tolist()


def test_a_program_by_hand():
    assert by_hand() == [[5, 14], [77, 110], [245, 302]]


def test_every_attribute_of_cores_has_a_say():
    ctx, all_leaves, noticed = new_context(), set[str](), set[str]()
    module, before = Parser(ctx, BY_HAND).parse_module(), by_hand()
    kinds = A.CoreOp | A.RouteOp | A.SignalOp | A.RepeatOp | A.ViewOp
    for op in [op for op in module.walk() if isinstance(op, kinds)]:
        attr = op.record
        for record in altered(attr.data):
            if (name := type(record).__name__ + difference(attr.data, record)).startswith(
                "View"
            ) and "frames" not in name:
                continue
            all_leaves.add(name)
            op.record = type(attr)(record)
            if name not in noticed and by_hand(ir_text(module)) != before:
                noticed.add(name)
        op.record = attr
    assert {"View.frames", "Repeat.frames", "TokenRoute.to", "Signal.count", "CorePlace.cols"} < all_leaves
    assert all_leaves - noticed == NO_SAY


REFUSED_BY_HAND = [
    ("tokens take 6", "tokens take 3", "nothing gives semaphore 3 of core sum"),
    ("core 0, to 5", "core 2, to 5", "a route to core 2, there are cores 0 to 1"),
    ("semaphore 10, core 0, to 5", "semaphore 10, core 0, to 3", "nothing takes the tokens of semaphore 3"),
    ("semaphore 8, core 1, to 9", "semaphore 8, core 1, to 6", "has routes from semaphore"),
    ("tokens take 6 give 10", "tokens take 9 give 10", "engines commit and load take from semaphore 9"),
    ("rows 1, cols 2 {", "rows 1, cols 2, row0 8 {", "core sum is not all in the array of 8 x 8"),
    ("rows 1, cols 2 {", "rows 0, cols 0 {", "only core 0 may have no PEs"),
    ("array.sync [load", "array.dma in, dram in, glb in, words 1\n array.sync [load", "core 0 alone has the dma"),
    ("array.core dram {", "array.core dram, rows 1, cols 1 {", "both have PE 0,0"),
]


@pytest.mark.parametrize(("old", "new", "why"), REFUSED_BY_HAND)
def test_what_is_refused_of_cores(old, new, why):
    assert BY_HAND.count(old) == 1
    assert why in by_hand(BY_HAND.replace(old, new))


def test_a_deadlock_names_who_waits():
    assert by_hand(BY_HAND.replace("array.signal semaphore 5, count 2", "")) == (
        "deadlock: no core can go on: core dram in layer frames (array.dma waits for semaphore 5), "
        "core sum in layer sum (array.load waits for semaphore 6) (CORE-6)"
    )


# -- what is proven, and what is found ---------------------------------------------------------------------------------


SAME, POOL, EVERY_SECOND = (
    Window((3, 3), pad=(1, 1, 1, 1)),
    Window((2, 2), (2, 2), group=4, fill=-99),
    Window((1, 1), (2, 2)),
)


def chained(shapes: Sequence[tuple[int, int, int, int]], windows: Sequence[Window]) -> Chain:
    """Layers by their windows: POOL, or those of convolutions."""
    rng, chain = np.random.default_rng(3), Chain(np.zeros(shapes[0], np.int64), dims=shapes)
    for number, ((_, c, _, _), (_, k, _, _), window) in enumerate(zip(shapes, shapes[1:], windows, strict=False)):
        layer, then = f'cnn.pool "max" %v{number}', ""
        if window is not POOL:
            chain.arrays[f"w{number}"] = rng.integers(-9, 10, (k, c, *window.kernel)).astype(np.int16)
            chain.arrays[f"b{number}"] = rng.integers(-50, 50, (k,)).astype(np.int32)
            chain.arrays[f"s{number}"] = rng.uniform(0.02, 0.2, (k,)).astype(np.float32)
            layer = f"cnn.conv %v{number} weights @w{number}"
            then = f'bias = "b{number}", scale = "s{number}", clamp = [-120, 120]'
        types = f"{tensor(shapes[number])} -> {tensor(shapes[number + 1])}"
        chain.lines.append(
            f'%v{number + 1} = {layer} window <{format_record(window)}> then <{then}> label "l{number}" : {types}'
        )
    return chain


@cache
def two_cores() -> Case:
    """A convolution on a core; a pool and another convolution on the next one."""
    chain = chained([(1, 2, 9, 6), (1, 4, 9, 6), (1, 4, 4, 3), (1, 6, 4, 3)], [SAME, POOL, SAME])
    case = on_cores(chain, (("l0",), ("l1", "l2")))
    case.run("nest-to-array")
    return case


def test_a_core_that_reads_every_second_row() -> None:
    """Of a ring of two rows it reads one, which is two rows behind the one before."""
    chain = chained([(1, 2, 10, 6), (1, 4, 10, 6), (1, 3, 5, 3)], [SAME, EVERY_SECOND])
    case = on_cores(chain, (("l0",), ("l1",)))
    case.run("nest-to-array")
    check_levels(case, 0)


@cache
def claim_of_two() -> Claim:
    case, ctx = two_cores(), new_context()
    module = case.network.module(ctx)
    binary = build_binary(case.at("array-to-isa"), case.compilation.ctx.weights, load_arch(cores_array()))
    return Claim(binary, module, ctx.weights)


def with_program(program: Sequence[Instruction]) -> Claim:
    claim = claim_of_two()
    return replace(claim, binary=replace(claim.binary, program=encode_program(program)))


def test_a_program_of_cores_is_proven():
    proof = prove(claim_of_two(), 50)
    assert not proof.failures
    assert proof.frames == 5  # the first, the last, one that results leave later, and a round of two buffers
    assert proof.error_bits >= 50
    results = two_cores().result[0].size
    assert [(part.name, part.results) for part in proof.parts] == [("outputs", 5 * results), ("frames", 0)]


def test_copies_are_proven():
    """What several engines read is computed once more, and changes no word."""
    cases = (drawn(number) for number in range(EXAMPLES))
    case = next(each for each in cases if ".for." in str(each.compilation.module))
    ctx = new_context()
    binary = build_binary(case.at("array-to-isa"), case.compilation.ctx.weights, load_arch(cores_array()))
    assert not prove(Claim(binary, case.network.module(ctx), ctx.weights), 30).failures


def planted() -> Iterator[tuple[str, int, Instruction]]:
    """Wrong instructions, with their numbers: what is wrong, where, the instruction."""
    program = claim_of_two().binary.instructions
    cores = [at for at, inst in enumerate(program) if inst.spec.name == "core"]
    own = [(at, inst) for at, inst in enumerate(program) if cores[1] < at < cores[2]]
    commits = [(at, inst) for at, inst in own if inst.spec.name == "commit" and inst.number("y")]
    at, inst = commits[0]
    yield "slot", at, replace(inst, values={**inst.values, "y": inst.number("y") - 1})
    at, inst = next((at, inst) for at, inst in own if inst.spec.name == "mac" and inst.number("lanes") > 1)
    yield "lane", at, replace(inst, values={**inst.values, "weight_l": inst.number("weight_l") + 1})
    at, inst = next((at, inst) for at, inst in enumerate(program) if inst.spec.name == "step" and at > cores[1])
    yield "image", at, replace(inst, values={**inst.values, "by": FieldTerm("lin", inst.term("by").step // 2)})


@pytest.mark.parametrize("number", range(3))
def test_what_is_planted_is_not_proven(number):
    what, at, wrong = list(planted())[number]
    program = [*claim_of_two().binary.instructions]
    program[at] = wrong
    assert prove(with_program(program), 1.0).failures, what


def test_a_program_is_not_proven_that_a_later_frame_breaks():
    """In an empty bank, the first core reads images from a circle of three, where core 0 writes a circle of four.

    So frame 3 is the first one that is read where none was written.
    """
    program, image = [*claim_of_two().binary.instructions], two_cores().x[0].size
    cores = [at for at, inst in enumerate(program) if inst.spec.name == "core"]
    circles = [at for at, inst in enumerate(program[: cores[2]]) if inst.values.get("wrap") == 2 * image]
    assert len([at for at in circles if at < cores[1]]) == 1 < len(circles)
    for at in circles:
        wrap = (3 if at > cores[1] else 4) * image
        program[at] = replace(program[at], values={**program[at].values, "base": 1 << 15, "wrap": wrap})
    claim = with_program(program)
    proof = prove(claim, 1.0)
    assert proof.frames == 2 + 1 + 3 * 4 and proof.failures
    x, ctx = np.random.default_rng(8).integers(-60, 60, (5, *two_cores().x.shape[1:])), new_context()
    (right,), _ = cnn.evaluate(two_cores().network.module(ctx), ctx.weights, [x])
    machine = Machine(claim.binary, 5)
    machine.store(inputs_of(claim.binary)[0], x)
    machine.run()
    same = (machine.integers(outputs_of(claim.binary)[0]) == right).all(axis=(1, 2, 3))
    assert same.tolist() == [True] * 3 + [False] * 2


def test_a_token_less_is_noticed():
    """But for those of weights and of free slots that another token, or a longer ring, implies."""
    program, arch = claim_of_two().binary.instructions, load_arch(cores_array())
    unnoticed = set[int]()
    for at, inst in enumerate(program):
        for side in ("take", "give"):
            if inst.spec.name in ("dma", "load", "commit") and (semaphore := inst.number(side)):
                less = [*program]
                less[at] = replace(inst, values={**inst.values, side: 0, f"{side}_when": None})
                if not noticed(less, arch):
                    unnoticed.add(semaphore)
    assert unnoticed <= {int(Semaphore.FULL)}


def noticed(program: Sequence[Instruction], arch: Arch) -> bool:
    try:
        check_cores(program, arch)
        return bool(core_races(program, arch, FRAMES)[0])
    except Refusal:  # a trap, too
        return True


def test_a_deadlock_of_a_binary_names_layers():
    """Without free buffers at first, core 0 brings no image, and all others wait."""
    program = list(claim_of_two().binary.instructions)
    at = next(n for n, inst in enumerate(program) if inst.spec.name == "signal")
    del program[at]
    binary = with_program(program).binary
    entries = [{**entry, "first": entry["first"] - (entry["first"] > at)} for entry in binary.metadata["layers"]]
    binary = replace(binary, metadata={**binary.metadata, "layers": entries})
    why = "frames waits for space from l0; l0 waits for words of frames; l1..l2 waits for words of l0"
    with pytest.raises(Refusal, match=re.escape(why)):
        program_stats(binary, frames=2)
    with pytest.raises(Refusal, match=re.escape(why)):
        Machine(binary, 2).run()


def test_a_stripe_has_a_slot_for_each_row_though_few_are_read(tmp_path: Path) -> None:
    """A window of one row in a row of padding reads rows 1 and 3 of 5. Rows 0 and 1 are written by one commit."""
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], name="first"),
        helper.make_node("Conv", ["c", "b"], ["y"], name="second", pads=[1, 1, 0, 1], strides=[2, 1]),
    ]
    arrays = {"a": noise(1, 2, 4, 1, 1), "b": noise(2, 3, 2, 1, 3)}
    model, images = save(build(nodes, {"x": (1, 4, 5, 4)}, ["y"], arrays), tmp_path / "net.onnx"), tmp_path / "x.npz"
    np.savez(images, x=noise(3, 3, 4, 5, 4))
    first, second = ('layers = ["first"]\nplace = "2x2@0,0"\nrows = 2\n', 'layers = ["second"]\nplace = "1x2@2,0"\n')
    (tmp_path / "cores.toml").write_text(f"[[core]]\n{first}\n[[core]]\n{second}")
    results = list[np.ndarray]()
    for options in ((), ("--schedule", tmp_path / "cores.toml")):
        done("compile", model, "--arch", "tcpa-4x4", "--calibrate", images, *options, "-o", tmp_path / "net.cnb")
        done("run", tmp_path / "net.cnb", "--input", images, "--output", tmp_path / "y.npz")
        results.append(np.load(tmp_path / "y.npz")["y"])
    assert np.array_equal(*results)


def test_tables_on_cores_that_the_compiler_chooses(tmp_path: Path) -> None:
    """Two SiLUs and a Tanh: the results are those of layers in turn, counters are as predicted, frames are proven."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "a"], ["c"], name="first", pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Sigmoid", ["c"], ["g"], name="g"),
        node("Mul", ["c", "g"], ["s"], name="s"),
        node("Conv", ["s", "b"], ["d"], name="second", pads=[0, 1, 1, 1]),
        node("Sigmoid", ["d"], ["h"], name="h"),
        node("Mul", ["h", "d"], ["t"], name="t"),
        node("Conv", ["t", "e"], ["z"], name="third"),
        node("Tanh", ["z"], ["y"], name="y"),
    ]
    arrays = {"a": noise(1, 5, 3, 3, 3), "b": noise(2, 7, 5, 3, 3) / 3, "e": noise(3, 4, 7, 1, 1)}
    model, images = save(build(nodes, {"x": (1, 3, 9, 7)}, ["y"], arrays), tmp_path / "net.onnx"), tmp_path / "x.npz"
    np.savez(images, x=noise(4, 3, 3, 9, 7))
    given = ("--arch", "tcpa-4x4", "--calibrate", images)
    results = list[np.ndarray]()
    for options in ((), ("--parallel", "layers")):
        said = done("compile", model, *given, *options, "-o", tmp_path / "net.cnb").stdout
        assert "(100.00 %)" in said and "host" not in said
        done("run", tmp_path / "net.cnb", "--input", images, "--output", tmp_path / "y.npz")
        results.append(np.load(tmp_path / "y.npz")["y"])
        assert "as predicted" in done("estimate", tmp_path / "net.cnb", "--check-counters").stdout
    assert said.count("\n  core ") > 1
    assert np.array_equal(*results)
    done("verify", model, *given, "--parallel", "layers", "--input", images)
    assert (
        "any number of frames"
        in done("verify", tmp_path / "net.cnb", "--model", model, "--calibrate", images, "--prove").stdout
    )
