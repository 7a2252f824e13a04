"""array-allocate and array-to-isa: what they refuse, and that no two live tensors overlap."""

from __future__ import annotations

import re
from itertools import combinations
from random import Random

import numpy as np
import pytest
from array_cases import CONV, INPUTS, module
from frontend_models import model as onnx_model
from hypothesis import example, given
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from cnncc.arch.model import Glb
from cnncc.context import CompilerContext
from cnncc.dialects.array import TensorOp
from cnncc.dialects.isa import LayerOp, SegmentOp, instructions
from cnncc.driver.pipeline import new_context
from cnncc.errors import Refusal
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.frontend.segments import interface, name_after_tensors, read_model
from cnncc.passes._programs.glb_packing import Lifetime, first_fit, fits, numbered, pack
from cnncc.passes.array_allocate import ArrayAllocatePass, allocate
from cnncc.passes.array_prefetch import ArrayPrefetchPass
from cnncc.passes.array_to_isa import ArrayToIsaPass

lifetimes = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 40)).map(lambda t: (t[0], t[0] + t[1], t[2])),
    max_size=12,
).map(lambda rows: [Lifetime(f"t{i}", words, a, b) for i, (a, b, words) in enumerate(rows)])

REFUSED = [
    Lifetime("t0", 32, 0, 0), Lifetime("t1", 17, 1, 1), Lifetime("t2", 25, 1, 3), Lifetime("t3", 8, 5, 5),
    Lifetime("t4", 24, 0, 1), Lifetime("t5", 21, 0, 1), Lifetime("t6", 8, 0, 2), Lifetime("t7", 9, 0, 2),
]  # fmt: skip


@given(lifetimes)
def test_isa_first_fit_never_overlaps(tensors: list[Lifetime]) -> None:
    at = first_fit(tensors)
    assert sorted(at) == sorted(t.name for t in tensors)
    for i, a in enumerate(tensors):
        for b in tensors[:i]:
            together = range(max(a.first, b.first), min(a.last, b.last) + 1)
            shared = set(range(at[a.name], at[a.name] + a.words)) & set(range(at[b.name], at[b.name] + b.words))
            assert not (together and shared)


@given(lifetimes)
def test_isa_first_fit_leaves_no_needless_hole(tensors: list[Lifetime]) -> None:
    """Every tensor starts at 0 or where another that lives with it ends."""
    at = first_fit(tensors)
    for a in tensors:
        ends = {at[b.name] + b.words for b in tensors if b is not a and a.first <= b.last and b.first <= a.last}
        assert at[a.name] == 0 or at[a.name] in ends


# At most 10 words are needed at a time, and 11 are found.
GAP = [Lifetime("a", 1, 0, 1), Lifetime("b", 7, 0, 0), Lifetime("c", 4, 1, 4), Lifetime("d", 5, 2, 4)]


@given(lifetimes)
@example([*GAP, Lifetime("e", 1, 0, 3)])
def test_isa_pack_takes_the_better_order(tensors: list[Lifetime]) -> None:
    words, at = pack(tensors)
    assert words == max([at[t.name] + t.words for t in tensors], default=0)
    by_size = sorted(numbered(tensors), key=lambda t: (-t.words, t.first, t.last))
    starts = first_fit(by_size)
    assert words <= max([starts[t.name] + t.words for t in by_size], default=0)
    assert fits(tensors, words) and not fits(tensors, words - 1)


def test_isa_pack_puts_what_lies_highest_first() -> None:
    """By size alone b and d would lie above the largest tensors, at 40 and 60. With d in front nothing is left over."""
    tensors = [Lifetime("a", 40, 0, 0), Lifetime("b", 20, 0, 2), Lifetime("c", 30, 3, 3), Lifetime("d", 20, 2, 3)]
    by_size = first_fit(tensors[:1] + [tensors[2], tensors[1], tensors[3]])
    assert max(by_size[t.name] + t.words for t in tensors) == 80
    assert pack(tensors) == (60, {"d": 0, "a": 0, "c": 20, "b": 40})


@given(lifetimes, st.lists(st.integers(0, 3), min_size=15, max_size=15), st.randoms(use_true_random=False))
@example(REFUSED, [2, 1, 0, 1, 1] + [0] * 10, Random(0))
def test_isa_pack_depends_on_what_meets_alone(tensors: list[Lifetime], gaps: list[int], rng: Random) -> None:
    """Neither ops that need no tensor nor the order count: the mapper packs by ops, array-allocate by layers.

    SqueezeNet at 224 pixels was refused: its concatenations count among the ops, and give no layers. REFUSED took 104
    words by one count and 111 by the other.
    """
    later = [number + sum(gaps[:number]) for number in range(15)]
    others = [Lifetime(f"u{i}", t.words, later[t.first], later[t.last]) for i, t in enumerate(tensors)]
    rng.shuffle(others)
    words, _ = pack(tensors)
    assert pack(others)[0] == words
    assert fits(others, words)


@given(lifetimes)
def test_isa_numbered_lifetimes_meet_as_before(tensors: list[Lifetime]) -> None:
    found = numbered(tensors)
    assert [(t.name, t.words) for t in found] == [(t.name, t.words) for t in tensors]
    for i, j in combinations(range(len(tensors)), 2):
        before, after = ((a.first <= b.last and b.first <= a.last) for a, b in ((t[i], t[j]) for t in (tensors, found)))
        assert before == after


def test_isa_pack_of_nothing() -> None:
    assert pack([]) == (0, {})


PARTS = """
    weights.global @w : tensor<3xi16> = dense<1> : tensor<3xi16>
    array.tensor w, memory dram, words 3, role weight
    array.tensor whole, memory glb, words 100
    array.tensor inner, memory glb, words 40, part_of whole, offset 30
    array.tensor innermost, memory glb, words 10, part_of inner, offset 7
    array.tensor other, memory glb, words 200
    array.layer "first" computes "" { array.view v, tensor innermost }
    array.layer "second" computes "" { array.view v, tensor whole  array.view w, tensor other }
    array.layer "third" computes "" { array.view w, tensor other }
"""


def of_parts(old: str = "", new: str = "") -> ModuleOp:
    return Parser(new_context(), f"builtin.module {{ {PARTS.replace(old, new, 1)} }}").parse_module()


def test_isa_parts_lie_in_their_whole() -> None:
    """Also parts of parts, and their whole lives while they do: `other` cannot have its place in the first layer."""
    at = {"w": 0, "other": 0, "whole": 200, "inner": 230, "innermost": 237}
    assert allocate(of_parts(), Glb(300, 1)) == at


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("words 100", "words 100, part_of innermost", "is part of '.*', which does not exist, or of itself"),
        ("words 3, role", "words 4, role", "tensor w: 4 words, its weights have 3"),
        ("tensor other, memory", "tensor inner, memory", "there are two tensors 'inner'"),
    ],
)
def test_isa_tensors_that_have_no_place(old: str, new: str, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        allocate(of_parts(old, new), Glb(300, 1))


def test_isa_glb_too_small_names_all_layers_that_do_not_fit() -> None:
    with pytest.raises(Refusal, match="^layer second: its tensors .* take 300 words, .* glb.words = 299") as one:
        allocate(of_parts(), Glb(299, 1))
    assert [(finding.where, finding.value) for finding in one.value.findings] == [("second", 300)]
    with pytest.raises(Refusal, match="^array-allocate: 2 problems") as two:
        allocate(of_parts(), Glb(150, 1))
    assert [(finding.where, finding.value) for finding in two.value.findings] == [("second", 300), ("third", 200)]


def test_isa_prefetching_checks_what_it_moved_alone() -> None:
    """Where no layer is marked, array-allocate is the one to refuse."""
    program = of_parts("tensor other, memory glb, words 200", "tensor other, memory glb, words 100000")
    ArrayPrefetchPass("spatial-4x4").apply(new_context(), program)
    with pytest.raises(Refusal, match="^array-allocate: 2 problems"):
        ArrayAllocatePass("spatial-4x4").apply(new_context(), program)


def test_isa_glb_too_small_names_layer_and_sizes() -> None:
    program, _ = module()
    needed = 12 + 32 + 72 + 16 + 32  # x, r, weights, parameters and result of the convolution
    assert max(allocate(program, Glb(needed, 1)).values()) < needed
    message = f"layer conv1: .* take {needed} words, the array has glb.words = {needed - 1}; .* would do is {needed}:"
    with pytest.raises(Refusal, match=message):
        allocate(program, Glb(needed - 1, 1))


def lower(*layers: str) -> tuple[ModuleOp, CompilerContext]:
    program, ctx = module(*layers)
    ArrayAllocatePass("spatial-4x4").apply(ctx, program)
    ArrayToIsaPass().apply(ctx, program)
    program.verify()
    return program, ctx


def test_isa_every_instruction_but_halt_has_a_layer() -> None:
    program, _ = lower()
    ranges = [op.record.data for op in program.ops if isinstance(op, LayerOp)]
    assert [layer.label for layer in ranges] == [
        "inputs",
        "conv1",
        "pool1",
        "sum1",
        "add1",
        "lines1",
        "parts1",
        "outputs",
    ]
    assert [layer.value for layer in ranges] == ["", "relu1", "pool1", "sum1", "add1", "lines1", "parts1", ""]
    covered = [i for layer in ranges for i in range(layer.first, layer.first + layer.count)]
    assert covered == list(range(len(instructions(program)) - 1))


REFUSED = [
    ("clear [c2]", "clear [h9]", "layer conv1: array.mac: a condition names loop h9, around"),
    ("give 1 when [h1]", "give 1 when [c2]", "a condition names loop c2, around it are k0, h1"),
    ("steps [y+2*h1", "steps [y+2*h9", "there is no loop h9; the layer has k0, h1, c2"),
    ("k+c2", "k+h1", "view x has two steps for one loop"),
    ("commit y", "commit z", "there is no view z before it"),
    ("tensor x.glb", "tensor elsewhere", "names tensor 'elsewhere', which does not exist"),
    ("factors conv1.f", "factors conv1.w", r"factors conv1.w are int16\[4, 2, 3, 3\], not three float32"),
    ("factors conv1.f", "factors none", "there is no weights.global @none"),
    ("table conv1.t", "table none", "there is no weights.global @none"),
    ("table conv1.t", "table conv1.f", r"layer conv1: array.unit: @conv1.f: a table is int16\[257\], not float32\[3\]"),
    ("n2n_slot 3", "n2n_slot 65536", "n2n_slot: 65536 is outside 0..65535"),
    ("start y-1 x-1", "start y-1 x-32769", "x: -32769 is outside -32768..32767"),
    ("count 2 {\n        array.repeat", "count 16777216 {\n        array.repeat", "count: 16777216 is outside"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_isa_lowering_refusals(old: str, new: str, message: str) -> None:
    assert old in CONV
    with pytest.raises(Refusal, match=message):
        lower(INPUTS, CONV.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dram w.dram, glb w", "dram w, glb w", "array.dma: view w is on tensor conv1.w.glb in glb, not in dram"),
        ("load weight, view w", "load weight, view w.dram", "view w.dram is on tensor conv1.w in dram, not in glb"),
    ],
)
def test_isa_views_of_the_other_memory_are_refused(old: str, new: str, message: str) -> None:
    assert old in CONV
    with pytest.raises(Refusal, match=message):
        lower(INPUTS, CONV.replace(old, new, 1))


REACHED = """
    weights.global @w : tensor<24xi16> = dense<1> : tensor<24xi16>
    array.tensor w, memory dram, words 24, role weight, at 0
    array.tensor g, memory glb, words 40, at 0
    array.tensor half, memory glb, words 20, part_of g, offset 20, at 20
    array.layer "c3" computes "" {
      array.view w.dram, tensor w, steps [lin+12*k0]
      array.view w, tensor g, steps [lin+12*k0]
      array.view x, tensor half, height 4, width 5, pitch 5, steps [y+2*k0]
      array.repeat k0, count 2 {
        array.dma in, dram w.dram, glb w, words 4, count 3, dram_step 4, glb_step 6
        array.load weight, view w, place rows 3 cols 3 set 2x3 lin+9*row lin+10*row_set, pattern [3 by lin+6]
        array.load ifmap, view x, place rows 2 cols 5 set 2x5 y+row x+col
      }
    }
"""


def reached(edits: dict[str, str]) -> ModuleOp:
    text = REACHED
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new, 1)
    program = Parser(new_context(), f"builtin.module {{ {text} }}").parse_module()
    ArrayToIsaPass().apply(new_context(), program)
    return program


@pytest.mark.parametrize(
    ("old", "new", "reaches"),
    [
        ("words 24, role", "words 23, role", "array.dma: words 0..23 of tensor w do not exist, it has 23"),
        ("words 4, count", "words 5, count", "array.dma: words 0..24 of tensor w do not exist, it has 24"),
        ("w, steps [lin+12", "w, steps [lin-12", "array.dma: words -12..11 of tensor w do not exist, it has 24"),
        ("glb_step 6", "glb_step 13", "array.dma: words 0..41 of tensor g do not exist, it has 40"),
        ("count 2 {", "count 3 {", "array.dma: words 0..35 of tensor w do not exist, it has 24"),
        # Row 2 is row 0 of the second set: 12 + 10 + 12 is word 34, row 1 of a whole second set would be word 43.
        ("lin+6]", "lin+9]", "array.load: words 0..40 of tensor g do not exist, it has 40"),
        ("offset 20", "offset 21", "array.load: words 0..19 of tensor half do not exist, it has 20"),
        ("pitch 5", "pitch 6", "array.load: words 0..22 of tensor half do not exist, it has 20"),
    ],
)
def test_isa_words_that_a_tensor_does_not_have(old: str, new: str, reaches: str) -> None:
    with pytest.raises(Refusal, match=f"^layer c3: {re.escape(reaches)}$"):
        reached({old: new})


@pytest.mark.parametrize(
    "edits",
    [
        {},
        {
            "tensor w, steps": "tensor w, wrap 24, steps",
            "count 2 {": "count 3 {",
            "g, steps [lin+12": "g, steps [lin+6",
        },
        {"tensor w, steps": "tensor w, height 1, width 3, steps", "words 4, count": "words 5, count"},
        {"height 4, width 5, pitch 5": "height 4, width 5, pitch 6, ring_y 3"},
        {"y+row x+col": "y+2*row x+col"},  # row 4 is outside the bounds: nothing is read there
        {"array.load ifmap, view x,": "array.load ifmap, view x, start lin+9, edge,"},
    ],
)
def test_isa_words_that_the_run_decides_on(edits: dict[str, str]) -> None:
    assert len(instructions(reached(edits))) > 10


PLACED = """
    array.tensor whole, memory glb, words 40, at 100
    array.tensor part, memory glb, words 40, part_of whole, at 100
    array.tensor next, memory glb, words 10, at 140
    array.tensor late, memory glb, words 10, at 110
    array.tensor none, memory glb, words 0, at 105
    array.tensor apart, memory glb, words 50
    array.layer "first" computes "" { array.view v, tensor part  array.view w, tensor next  array.view u, tensor none }
    array.layer "second" computes "" { array.view v, tensor late }
"""


def placed(old: str, new: str) -> None:
    assert old in PLACED
    text = PLACED.replace(old, new, 1)
    ArrayToIsaPass().apply(new_context(), Parser(new_context(), f"builtin.module {{ {text} }}").parse_module())


@pytest.mark.parametrize("used", ["tensor late }", "tensor whole }"])
def test_isa_tensors_that_meet_have_words_of_their_own(used: str) -> None:
    placed("tensor late }", used)
    with pytest.raises(Refusal, match="^tensors whole and next share word 139 of the GLB: run array-allocate$"):
        placed("at 140", "at 139")
    with pytest.raises(Refusal, match="^tensors whole and late share word 110 of the GLB: run array-allocate$"):
        placed("tensor late }", "tensor late  array.view w, tensor whole }")


def test_isa_tensors_of_cores_are_needed_all_at_once() -> None:
    with pytest.raises(Refusal, match="^tensors whole and late share word 110 of the GLB: run array-allocate$"):
        placed(PLACED[PLACED.index("    array.layer") :], "array.core c {}")


def test_isa_encoded_programs_keep_their_places() -> None:
    program, ctx = lower(INPUTS)
    with pytest.raises(
        Refusal, match="array-allocate: the instructions hold the places .*: run it before array-to-isa"
    ):
        ArrayAllocatePass("spatial-4x4").apply(ctx, program)


def test_isa_lowering_needs_places() -> None:
    program, ctx = module()
    with pytest.raises(Refusal, match="tensor x has no place in a memory: run array-allocate first"):
        ArrayToIsaPass().apply(ctx, program)


def test_isa_lowering_leaves_nothing_out() -> None:
    """What stands beside the layers would not be run."""
    with pytest.raises(Refusal, match=r"array-to-isa: array.sync does not stand in an array.layer: nothing would run"):
        lower("array.sync [dma]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("array.core c, rows 64, cols 1 {}", "array-to-isa: core c: rows: 64 is outside 0..63"),
        ("array.signal semaphore 1, count -1", "array-to-isa: array.signal: count: -1 is outside"),
        (
            'array.core c {} array.layer "l" computes "" {}',
            "array-to-isa: array.layer does not stand in an array.core: nothing would run it",
        ),
        ("array.core c { array.route semaphore 1, core -1, to 2 }", "array-to-isa: array.route: core: -1 is outside"),
    ],
)
def test_isa_what_is_outside_of_layers_and_does_not_fit(text: str, message: str) -> None:
    program = Parser(new_context(), f"builtin.module {{ {text} }}").parse_module()
    with pytest.raises(Refusal, match=message):
        ArrayToIsaPass().apply(new_context(), program)


def test_isa_sixteen_descriptors() -> None:
    views = [f"array.view v{i}, tensor x" for i in range(17)]
    program, _ = lower(f'array.layer "l" computes "" {{ {" ".join(views[:16])} }}')
    assert len(instructions(program)) == 17
    with pytest.raises(Refusal, match="layer l: array.view: view v16 is one too many: the array has 16 descriptors"):
        lower(f'array.layer "l" computes "" {{ {" ".join(views)} }}')


def nested(names: list[str]) -> str:
    opened = "".join(f"array.repeat {name}, count 2 {{ " for name in names)
    return f"{opened}array.sync []{'}' * len(names)}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (nested([f"l{i}" for i in range(9)]), "nest 9 deep, the array has 8"),
        (nested(["a", "b"]) + nested(["b"]), "loop b stands at depths 1 and 0"),
        (nested(["a"]) + nested(["b"]), "loops a, b do not have one name at each depth"),
    ],
)
def test_isa_loops_that_are_no_registers(body: str, message: str) -> None:
    with pytest.raises(Refusal, match=f"layer l: .*{message}"):
        lower(f'array.layer "l" computes "" {{ {body} }}')


def test_isa_eight_loops() -> None:
    program, _ = lower(f'array.layer "l" computes "" {{ {nested([f"l{i}" for i in range(8)])} }}')
    assert len(instructions(program)) == 18


def two_in_two_out() -> bytes:
    """c = a - b, d = relu(a) if any b else b, names inside that are those of tensors outside."""
    from onnx import TensorProto, checker, helper

    def value(name: str) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])

    branches = [
        helper.make_graph([helper.make_node(op, ["p"], [out])], out, [], [value(out)])
        for op, out in (("Relu", "then"), ("Neg", "else"))
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Sub", ["p", "q"], ["x"]),
            helper.make_node("ReduceMax", ["q"], ["largest"], keepdims=0),
            helper.make_node("Cast", ["largest"], ["flag"], to=TensorProto.BOOL),
            helper.make_node("If", ["flag"], ["y"], then_branch=branches[0], else_branch=branches[1]),
        ],
        "segment", [value("p"), value("q")], [value("x"), value("y")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    return model.SerializeToString()


@pytest.mark.parametrize("inputs", [["a", "b"], ["x", "y"], ["q", "p"], ["segment/p", "largest"]])
@pytest.mark.parametrize("outputs", [["c", "d"], ["y2", "x2"], ["flag", "then"]])
def test_isa_segments_bear_the_names_of_tensors(inputs: list[str], outputs: list[str]) -> None:
    model = two_in_two_out()
    renamed = name_after_tensors(model, inputs, outputs)
    assert interface(renamed) == (dict.fromkeys(inputs, "float32"), dict.fromkeys(outputs, "float32"))
    assert renamed == name_after_tensors(model, inputs, outputs)
    rng = np.random.default_rng(1)
    values = [rng.normal(size=(2, 3)).astype(np.float32) for _ in inputs]
    before = OnnxSession(read_model(model)).run(dict(zip(["p", "q"], values, strict=True)))
    after = OnnxSession(read_model(renamed)).run(dict(zip(inputs, values, strict=True)))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_isa_segment_with_branches_that_read_a_constant_outside() -> None:
    """In branches the constant kept its old name, which nothing had, or which a tensor had."""
    text = """g (float[3] x, bool c) => (float[3] y) <float[3] k = {1, 2, 3}> {
      y = If (c) <
        then_branch = a () => (float[3] p) { p = If (c) <
          then_branch = a2 () => (float[3] r) { r = Add (x, k) },
          else_branch = b2 () => (float[3] s) { s = Neg (k) }> },
        else_branch = b () => (float[3] q) <float[3] l = {4, 5, 6}> { m = Mul (k, l) q = Add (m, x) }>
    }"""
    renamed = name_after_tensors(onnx_model(text).SerializeToString(), ["k", "l"], ["m"])
    session, x = OnnxSession(read_model(renamed)), np.float32([1, 2, 4])
    for flag, want in ((True, [2, 4, 7]), (False, [5, 12, 22])):
        assert session.run({"k": x, "l": np.array(flag)})[0].tolist() == want


def test_isa_segment_reads_one_tensor_twice() -> None:
    renamed = name_after_tensors(two_in_two_out(), ["a", "a"], ["c", "d"])
    assert list(interface(renamed)[0]) == ["a"]
    c, _ = OnnxSession(read_model(renamed)).run({"a": np.ones((2, 3), np.float32)})
    assert not c.any()


def test_isa_host_becomes_segments() -> None:
    program, ctx = module(INPUTS)
    key = ctx.weights.add(np.frombuffer(two_in_two_out(), np.uint8))
    program, ctx = module(
        INPUTS, *[f'array.host inputs {i}, outputs {o} model <"{key}">'
                  for i, o in (('["x", "r"]', '["y", "z"]'), ('["y", "z"]', '["x", "r"]'))],
        ctx=ctx,
    )  # fmt: skip
    ArrayAllocatePass("spatial-8x8").apply(ctx, program)
    ArrayToIsaPass().apply(ctx, program)
    segments = [op for op in program.ops if isinstance(op, SegmentOp)]
    assert [op.record.data.number for op in segments] == [0, 1]
    assert interface(ctx.weights[segments[1].model.key.data].tobytes()) == (
        {"y": "float32", "z": "float32"}, {"x": "float32", "r": "float32"},
    )  # fmt: skip
    hosts = [inst for inst in instructions(program) if inst.spec.name == "host"]
    assert [inst.number("segment") for inst in hosts] == [0, 1]
    assert sum(isinstance(op, TensorOp) for op in program.ops) == 18
    with pytest.raises(Refusal, match="2, 2.* inputs and outputs"):
        name_after_tensors(two_in_two_out(), ["a"], ["b"])
    with pytest.raises(Refusal, match="does not hold an ONNX model"):
        name_after_tensors(b"no model", ["a"], ["b"])
