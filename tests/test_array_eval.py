"""The evaluator of the `array` dialect: values by brute force, and every attribute of every op has a say."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from array_cases import ADD, CONV, INPUTS, OUTPUTS, POOL, SUM, arch_2x2, expected, inputs, module
from test_isa_lowering import two_in_two_out
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from cnncc.context import CompilerContext
from cnncc.dialects import array as A
from cnncc.dialects._clauses import format_clauses
from cnncc.dialects._records import RecordAttr
from cnncc.driver.pipeline import new_context
from cnncc.errors import Refusal
from cnncc.eval._neighbours import check_ping_pong
from cnncc.eval._places import Words
from cnncc.eval._register_files import RegisterFile
from cnncc.eval.array import evaluate


@pytest.mark.parametrize("images", [1, 3])
def test_array_eval_is_brute_force(images: int) -> None:
    program, ctx = module()
    given = inputs(images)
    outputs, trace = evaluate(program, ctx.weights, arch_2x2(), given)
    want = expected(*given)
    assert list(trace) == list(want)
    for key, value in want.items():
        np.testing.assert_array_equal(trace[key], value)
    np.testing.assert_array_equal(outputs[0], want["pool1"])
    np.testing.assert_array_equal(outputs[1], want["add1"])
    assert outputs[0].dtype == np.int64


@pytest.mark.parametrize("halves", ["weight_halves", "ifmap_halves", "psum_halves"])
def test_array_eval_does_not_need_two_halves(halves: str) -> None:
    program, ctx = module()
    arch = arch_2x2()
    arch = dataclasses.replace(arch, pe=dataclasses.replace(arch.pe, **{halves: 1}))
    outputs, _ = evaluate(program, ctx.weights, arch, inputs())
    np.testing.assert_array_equal(outputs[0], expected(*inputs())["pool1"])


ALTERED = {
    "lin": "y",
    "k": "lin",
    "y": "x",
    "x": "y",
    "in": "out",
    "out": "in",
    "mac": "add",
    "max": "add",
    "add": "mac",
}
ALTERED |= {"ifmap": "weight", "weight": "ifmap", "psum": "glb", "glb": "psum"}
ALTERED |= {"dma": "load", "load": "array", "array": "commit", "commit": "dma"}

PLACE_TERMS = ("row", "row_set", "col", "col_set")

# Attributes that no value depends on, and why.
NO_SAY = {
    # A macro-instruction has no addresses; its sets matter by their columns (n2n).
    "Mac.place.set_rows", *(f"Mac.place.{term}.{part}" for term in PLACE_TERMS for part in ("axis", "step")),
    "Mac.weight.pixel",  # one pixel here; a weight that differs between pixels is for other mappings
    "Mac.ifmap.lane", "Mac.weight.lane",  # one lane here; others are in test_lanes.py
    "Sync.engines",  # program order is stronger
    "Unit.layer",  # for comments of instructions
}  # fmt: skip


def altered(value: Any, annotation: str = "") -> Iterator[Any]:
    """Other values of the same kind for the leaves of a record, one leaf at a time."""
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1)
        case float():
            yield value / 2
        case str():
            yield ALTERED.get(value, value + "'")
        case None:
            yield ()
        case tuple() if "Names" in annotation:
            yield from [other for other in ((), ("elsewhere",), None if "None" in annotation else ()) if other != value]
        case tuple():
            for at, item in enumerate(value):
                yield from ((*value[:at], other, *value[at + 1 :]) for other in altered(item))
        case _:
            for field in dataclasses.fields(value):
                for other in altered(getattr(value, field.name), str(field.type)):
                    yield from rebuilt(value, field.name, other)


def rebuilt(record: Any, field: str, value: Any) -> Iterator[Any]:
    """The record with another value, unless it refuses that itself."""
    with contextlib.suppress(ValueError):
        yield dataclasses.replace(record, **{field: value})


def difference(before: Any, after: Any) -> str:
    """The leaf in which two records differ: `.place.row.step`; positions in tuples are left out."""
    if dataclasses.is_dataclass(before) and type(before) is type(after):
        for field in dataclasses.fields(before):
            a, b = getattr(before, field.name), getattr(after, field.name)
            if a != b:
                return f".{field.name}{difference(a, b)}"
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        return next(difference(a, b) for a, b in zip(before, after, strict=True) if a != b)
    return ""


def run(program: ModuleOp, ctx: CompilerContext) -> list[bytes]:
    """Everything that a program computes; nothing where it is refused."""
    try:
        outputs, trace = evaluate(program, ctx.weights, arch_2x2(), inputs())
    except Refusal:
        return []
    return [array.tobytes() for array in (*outputs, *trace.values())]


def test_array_eval_every_attribute_has_a_say() -> None:
    program, ctx = module()
    before = run(program, ctx)
    all_leaves: set[str] = set()
    noticed: set[str] = set()
    ops = [op for op in program.walk() if isinstance(getattr(op, "record", None), RecordAttr)]
    for op in [op for op in ops if not isinstance(op, A.TensorOp)]:
        attr = op.record
        for record in altered(attr.data):
            name = type(record).__name__ + difference(attr.data, record)
            all_leaves.add(name)
            op.record = type(attr)(record)
            if name not in noticed and run(program, ctx) != before:
                noticed.add(name)
        op.record = attr
    assert len(all_leaves) > 100
    assert all_leaves - noticed == NO_SAY


def test_array_eval_a_half_is_empty_when_it_is_opened_again() -> None:
    """Two words come where there were three (MEM-5)."""
    file, pes = RegisterFile("ifmap", 1, 3, (1, 2, 2)), (slice(0, 2), slice(0, 2))
    for count in (3, 2):
        file.open().fill(pes, 0, np.full((1, 2, 2, count), count))
        file.close()
        half = file.take()
        assert (half.read(pes, np.arange(count), "ifmap") == count).all()
        file.give()
    with pytest.raises(Refusal, match="a ifmap slot is read that is empty"):
        half.read(pes, np.array([2]), "ifmap")


REFUSED = [
    # register files: order of halves, empty slots, sizes
    ("open always\n", "close always\n", "no ifmap half is open"),
    ("edge, close always", "edge", "array.mac: no ifmap half is full"),
    ("open always\n", "open always, close always\n", "array.load: no ifmap half is open"),
    ("give_ifmap always", "give_ifmap [c2]", "taken before the one in use is given back"),
    ("take_weight always", "take_weight [c2]", "array.mac: no weight half is in use"),
    ("clear [c2],", "", "array.mac: no psum half is open"),
    ("send [c2],", "", "array.commit: no psum half is full"),
    ("send [c2]", "send always", "array.mac: no psum half is open"),
    ("taps 9", "taps 10", "ifmap slots 0..9 are not in a half of 9"),
    ("data_reuse 6", "data_reuse 5", "a ifmap slot is read that is empty"),
    ("data_reuse 6", "data_reuse 10", "at most pixels . taps words"),
    ("n2n_slot 3", "n2n_slot 0", "pixel step 0 uses a word of the neighbour before it arrives"),
    ("slot 3", "slot 4", "ifmap slots 4..9 are not in a half of 9"),
    ("taps 9", "pixels 17, taps 9", "pixels = 17 is outside 1..16"),
    ("psum channel,", "psum 3+channel,", "psum slots 3..4"),
    # memories
    ("words 18, count 2, dram_step 18", "words 18, count 2, dram_step 37", "of tensor conv1.w do not exist"),
    ("words 8, tokens", "words 7, tokens", "a word of tensor conv1.p.glb is read that was never written"),
    ("commit y", "commit p.dram", "on tensor conv1.p in dram, not in glb"),
    ("y, tensor conv1.glb, height 4", "y, tensor conv1.glb, height 3", "outside the bounds"),
    ("fill 3, zero 3", "fill 3, zero 65533", "values .* do not fit 17 bits"),
    # places, loops, tokens
    ("place rows 2", "place row0 1 rows 2", "not on an array of 2 x 2"),
    ("steps [y+2*h1", "steps [y+2*h9", "steps with loop h9"),
    ("k+c2", "k+h1", "two steps for one loop"),
    ("clear [c2]", "clear [c3]", "loop c3 is not around this op"),
    ("repeat h1, count 2", "repeat k0, count 2", "steps with loop h1"),
    ("take 3 give 1", "take 4 give 1", "semaphore 4 has no token"),
    ("take 3 give 1", "take 16 give 1", "there is no semaphore 16"),
    # words that mean nothing
    ("factors conv1.f", "factors conv1.g", "there is no weights.global @conv1.g"),
    ("table conv1.t", "table conv1.g", "there is no weights.global @conv1.g"),
    ("table conv1.t", "table conv1.w", r"a table is int16\[257\], not int16\[4, 2, 3, 3\]"),
    ("residual r,", "", "there is no view  before it"),
]


@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_array_eval_refusals(old: str, new: str, message: str) -> None:
    assert old in CONV
    program, ctx = module(INPUTS, CONV.replace(old, new, 1), OUTPUTS)
    with pytest.raises(Refusal, match=message) as refusal:
        evaluate(program, ctx.weights, arch_2x2(), inputs())
    assert str(refusal.value).startswith("layer conv1: array.")


def test_array_eval_refuses_a_psum_that_overflows_on_the_way() -> None:
    """The sum of the last tap fits again: every step counts (MAC-2)."""
    taps = "taps 9, step_range 2,"
    program, ctx = module(INPUTS, CONV)
    x, r = inputs()
    narrow = dataclasses.replace(arch_2x2(), psum_bits=16)
    evaluate(*module()[:1], ctx.weights, narrow, [x // 8, r])
    assert taps in CONV
    big = np.zeros_like(x)
    big[0, 0, 0, 0], big[0, 0, 0, 1] = 30000, 30000
    with pytest.raises(Refusal, match="layer conv1: array.mac: a psum of .* does not fit 16 bits"):
        evaluate(program, ctx.weights, narrow, [big, r])


def test_array_eval_counts_inputs() -> None:
    program, ctx = module()
    x, r = inputs()
    with pytest.raises(Refusal, match="there are 2 inputs, 1 were given"):
        evaluate(program, ctx.weights, arch_2x2(), [x])
    for bad in ([x[:, :1], r], [np.concatenate([x, x]), r], [x, r[:0]]):
        with pytest.raises(Refusal, match="input '[xr]' has shape"):
            evaluate(program, ctx.weights, arch_2x2(), bad)


def test_array_eval_psum_slots_that_meet_are_summed_in_order() -> None:
    """Pixels that add to one slot: a mapping that keeps the sum of two windows of two channels."""
    pool = POOL.replace("psum pixel, clear", "psum 0, clear").replace("mac max", "mac add")
    program, ctx = module(INPUTS, CONV, pool.replace("psum 2*pixel+tap", "psum 0"), SUM, ADD, OUTPUTS)
    _, trace = evaluate(program, ctx.weights, arch_2x2(), inputs())
    both = np.tile(expected(*inputs())["sum1"].reshape(-1, 2, 2, 2, 1).sum(axis=1), (1, 2, 1, 1))
    np.testing.assert_array_equal(trace["pool1"], np.broadcast_to(both, trace["pool1"].shape))


WORDS = 600


def rectangle(rng: random.Random) -> tuple[A.View, A.View, A.Dma]:
    """Views and a transfer inside two loops whose addresses all lie inside a tensor of WORDS words."""

    def view(name: str, tensor: str, bounded: bool) -> A.View:
        steps = tuple(A.LoopTerm(loop, rng.choice(A.AXES), rng.randint(-2, 3)) for loop in ("a", "b"))
        sizes = {"height": rng.randint(1, 6), "width": rng.randint(1, 6)} if bounded else {}
        rings = {name: rng.choice([0, 2, 3]) for name in ("ring_y", "ring_x")}
        rings |= {"column": rng.randint(0, 3), "plane": rng.randint(1, 6)}
        return A.View(name, tensor, pitch=rng.randint(1, 6), steps=steps, **sizes, **rings)

    sizes = {"count": rng.randint(1, 3), "rows": rng.randint(1, 4), "words": rng.randint(1, 6)}
    start = {"y": rng.randint(-3, 3), "x": rng.randint(-3, 3), "dram_step": rng.randint(0, 9), "glb_step": 20}
    dma = A.Dma(rng.choice(list(A.Direction)), "d", "g", dram_offset=160, glb_offset=150, **sizes, **start)
    return view("d", "x", rng.random() < 0.7), view("g", "x.glb", rng.random() < 0.3), dma


def word_by_word(
    dram: list[int], glb: list[int], views: tuple[A.View, A.View], dma: A.Dma, loops: dict[str, int]
) -> int:
    """Copy a transfer's words one after the other (DMA-1); returns how many were left out."""

    def place(view: A.View, offset: int, step: int, block: int, row: int, word: int) -> tuple[int, int, int]:
        at = {"lin": offset, "k": 0, "y": dma.y + row, "x": dma.x + word}
        for term in view.steps:
            at[term.axis] += term.step * loops[term.loop]
        y, x = at["y"] % view.ring_y if view.ring_y else at["y"], at["x"] % view.ring_x if view.ring_x else at["x"]
        words = at["lin"] + at["k"] * view.plane + block * step + y * view.pitch + x * max(1, view.column)
        return words, at["y"], at["x"]

    left_out = 0
    for at in itertools.product(range(dma.count), range(dma.rows), range(dma.words)):
        source, y, x = place(views[0], dma.dram_offset, dma.dram_step, *at)
        target, _, _ = place(views[1], dma.glb_offset, dma.glb_step, *at)
        if views[0].height and not (0 <= y < views[0].height and 0 <= x < views[0].width):
            left_out += 1
        elif dma.direction == "in":
            glb[target] = dram[source]
        else:
            dram[source] = glb[target]
    return left_out


def test_array_eval_random_rectangles() -> None:
    """Transfers with bounds, rings and steps of loops on every axis, against a copy word by word."""
    clipped = whole = 0
    for seed in range(150):
        rng = random.Random(seed)
        d, g, dma = rectangle(rng)
        # What a transfer out has left in DRAM is seen by way of the GLB.
        way, name = ("in", "x") if dma.direction == "out" else ("out", "y")
        text = f"""builtin.module {{
          array.tensor x, memory dram, words {WORDS}, shape [1, {WORDS}], role input
          array.tensor y, memory dram, words {WORDS}, shape [1, {WORDS}], role output
          array.tensor x.glb, memory glb, words {WORDS}
          array.layer "l" computes "" {{
            array.view x, tensor x array.view y, tensor y
            array.view from, tensor x.glb array.view {format_clauses(d)} array.view {format_clauses(g)}
            array.dma in, dram x, glb from, words {WORDS // 2}, glb_offset {WORDS // 2}
            array.dma in, dram x, glb from, words {WORDS // 2}, dram_offset {WORDS // 2}
            array.repeat a, count 2 {{ array.repeat b, count 3 {{
              array.dma {format_clauses(dma)}
            }} }}
            array.dma {way}, dram {name}, glb from, words {WORDS}
            array.dma out, dram y, glb from, words {WORDS}
          }} }}"""
        dram = [rng.randint(-9999, 9999) for _ in range(WORDS)]
        values = [np.array([dram])]
        glb = dram[WORDS // 2 :] + dram[: WORDS // 2]
        for a, b in itertools.product(range(2), range(3)):
            left_out = word_by_word(dram, glb, (d, g), dma, {"a": a, "b": b})
            clipped, whole = clipped + (left_out > 0), whole + (left_out == 0)
        ctx = new_context()
        outputs, _ = evaluate(Parser(ctx, text).parse_module(), ctx.weights, arch_2x2(), values)
        assert outputs[0].tolist() == [dram if way == "in" else glb], seed
    assert min(clipped, whole) > 200


HOSTED = """
  array.tensor a, memory dram, words 6, shape [2, 3], role input, scale 0.5, zero 3
  array.tensor b, memory host, words 6, shape [2, 3], role input
  array.tensor c, memory dram, words 6, shape [2, 3], role output, scale 0.125, zero -2, clamp [-30, 25]
  array.tensor d, memory host, words 6, shape [2, 3], role output
"""


def hosted(tensors: str = HOSTED) -> tuple[ModuleOp, CompilerContext]:
    """c = a - b, d = relu(a): integers and reals on both sides."""
    ctx = new_context()
    key = ctx.weights.add(np.frombuffer(two_in_two_out(), np.uint8))
    host = f'array.host inputs [a, b], outputs [c, d] model <"{key}">'
    return Parser(ctx, f"builtin.module {{ {tensors} {host} }}").parse_module(), ctx


@pytest.mark.parametrize("images", [1, 3])
def test_array_eval_host_segment(images: int) -> None:
    program, ctx = hosted()
    rng = np.random.default_rng(5)
    a = rng.integers(-9, 20, (2 * images, 3))
    b = np.abs(rng.normal(size=(2 * images, 3))).astype(np.float32)
    (c, d), trace = evaluate(program, ctx.weights, arch_2x2(), [a, b])
    real = (a - 3).astype(np.float32) * np.float32(0.5)
    np.testing.assert_array_equal(c, np.clip(np.rint((real - b) / np.float32(0.125)) - 2, -30, 25))
    np.testing.assert_array_equal(d, np.maximum(real, 0))
    assert (c.dtype, d.dtype, trace) == (np.int64, np.float32, {})
    assert {c.min(), c.max()} == {-30, 25}


def test_array_eval_host_segment_refusals() -> None:
    a, b = np.ones((2, 3), np.int64), np.ones((2, 3), np.float32)
    program, ctx = hosted(HOSTED.replace("scale 0.5, ", ""))
    with pytest.raises(Refusal, match="array.host: tensor a has no scale, so the host cannot read it"):
        evaluate(program, ctx.weights, arch_2x2(), [a, b])
    program, ctx = hosted()
    with pytest.raises(Refusal, match="tensor a in DRAM holds integers, not float32"):
        evaluate(program, ctx.weights, arch_2x2(), [b, b])
    program, ctx = hosted(HOSTED.replace("d, memory", "e, memory"))
    with pytest.raises(Refusal, match="array.host: there is no tensor d"):
        evaluate(program, ctx.weights, arch_2x2(), [a, b])


def test_array_eval_is_independent_of_the_interpreter() -> None:
    code = (
        "import sys, cnncc.eval.array; print([m for m in sys.modules if m.startswith(('cnncc.machine', 'cnncc.isa'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_array_eval_words_of_neighbours_take_turns_in_ping_and_pong() -> None:
    """By hand: taps 0 to 8 read slots 0 to 8. A PE loads three, six come from its neighbour, into pong and ping."""
    pe = SimpleNamespace(ifmap_words=3, pong_words=3, virtual_words=6)
    ifmap = SimpleNamespace(base=0, pixel=0, tap=1, channel=0, lane=0)
    mac = SimpleNamespace(n2n_slot=3, data_reuse=6, pixels=1, taps=9, step_range=2, lanes=1, ifmap=ifmap)

    def check(
        loads: int = 3, edges: Sequence[int] = (), whole: bool = True, array: object = pe, **changes: object
    ) -> None:
        half = SimpleNamespace(loads=set(range(loads)), edges=set(edges))
        check_ping_pong(SimpleNamespace(**{**vars(mac), **changes}), half, whole, array)

    check()
    check(edges=range(3, 9))
    check(loads=9, whole=False, data_reuse=0)
    for wrong, message in (
        ({"edges": [3], "data_reuse": 0}, "a virtual neighbour's words have no data_reuse"),
        ({"whole": False}, "with data_reuse, ping and pong are taken and given back"),
        ({"edges": [9]}, r"a virtual neighbour has words for slots 3\.\.8, 6 at most"),
        ({"edges": [2]}, "a virtual neighbour has words for slots"),
        ({"data_reuse": 7}, r"slots 3\.\.9, 6 at most"),
        ({"loads": 4}, "ping is loaded beyond the first n2n slot, 3"),
        ({"n2n_slot": 0}, "ping is loaded beyond the first n2n slot, 0"),
        ({"array": SimpleNamespace(**{**vars(pe), "pong_words": 2})}, "place 2 is beyond the 2 of pong"),
        ({"array": SimpleNamespace(**{**vars(pe), "ifmap_words": 2})}, "place 2 is beyond the 2 of ping"),
        ({"ifmap": SimpleNamespace(**{**vars(ifmap), "base": 4})}, "pixel step 0 uses a word of the neighbour before"),
        # The second pixel reads slot 0 again, at step 9: slot 6 has come to its place.
        ({"pixels": 2}, "pixel step 9 reads a word whose place another has taken"),
    ):
        with pytest.raises(Refusal, match=message):
            check(**wrong)


def test_array_words_are_lost_and_written_again() -> None:
    """The second tensor begins two words after the first one; words outside of it are no matter."""
    first, second = (Words(name, np.zeros((1, 4), np.int64), np.zeros(4, np.bool_)) for name in "ab")
    first.share(second, 2)
    for _ in range(2):
        second.write(np.arange(4), np.arange(4)[None])
        first.write(np.arange(4), np.arange(4)[None])
        assert second.written.tolist() == [False, False, True, True] and second.in_use
        first.write(np.arange(2), np.zeros((1, 2), np.int64))
        assert second.written.tolist() == [False, False, True, True] and first.written.all()
        second.write(np.array([1, 0]), np.zeros((1, 2), np.int64))
        assert first.written.tolist() == [True, True, False, False]
    second.write(np.array([], np.int64), np.zeros((1, 0), np.int64))
    third = Words("c", np.zeros((1, 4), np.int64), np.zeros(4, np.bool_))
    third.share(second, 0)
    third.write(np.arange(4), np.zeros((1, 4), np.int64))
    assert not second.written.any() and not second.in_use
