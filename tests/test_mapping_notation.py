"""The notation of mappings: its grammar, the textbook's equations, and that texts and mappings are one to one."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_cases import Case, arches, best_mapping, cases, context, layer_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer

from cnncc.arch.model import Arch, load_arch
from cnncc.dialects.nest import LayerOp, MappingAttr
from cnncc.driver.pipeline import Settings, import_model, steps
from cnncc.errors import Refusal
from cnncc.mapping.mapping import AXES, DIMS, MEMORIES, OPERANDS, Loop, Mapping, Sizes, Stage
from cnncc.mapping.notation import FetchItem, LoopItem, NotationError, canonical_text, read
from cnncc.mapping.text import parse, text
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes.cnn_to_nest import CnnToNestPass

pytestmark = pytest.mark.usefixtures("short_searches")

ROOT = Path(__file__).resolve().parents[1]
SIZES = Sizes(1, 16, 3, 8, 8, 3, 3)

Equation = tuple[str, str, list[list[str]], str]

# Number; as printed in the textbook; canonical, in ASCII; levels of parallelism; what is in the box. Boxes of 14.10 to
# 14.12 and 14.15 to 14.17 are not in the print: they are those of what the text says to be stationary.
EQUATIONS: dict[str, Equation] = {
    "14.8": (
        "k ▷ c ▷ n ▷ h' ∥ w' ∥ h'' ▷ w'' ▷ | r ▷ s |",
        "k > c > n > [h'|| w'||] > h'' > w'' > {r > s}",
        [["h", "w"]],
        "rs",
    ),
    "14.9": ("n ▷ k ∥ c ∥ h ▷ w ▷ | r ▷ s |", "n > [k|| c||] > h > w > {r > s}", [["k", "c"]], "rs"),
    "14.10": (
        "n ▷ h' ∥ w' ∥ k ▷ r ▷ s ▷ |c ▷ h'' ▷ w''|",
        "n > [h'|| w'||] > k > r > s > {c > h'' > w''}",
        [["h", "w"]],
        "chw",
    ),
    "14.11": (
        "n ▷ h' ∥ w' ∥ c ▷ r ▷ s ▷ |k ▷ h'' ▷ w''|",
        "n > [h'|| w'||] > c > r > s > {k > h'' > w''}",
        [["h", "w"]],
        "khw",
    ),
    "14.12": (
        "n ▷ k ▷ c ▷ h' ∥ r' ∥ w ▷ s ▷ |h'' ▷ r''|",
        "n > k > c > [h'|| r'||] > w > s > {h'' > r''}",
        [["h", "r"]],
        "hr",
    ),
    "14.13": ("n ▷ k ∥ ▷ c ∥ ▷ h ▷ w ▷ | r ▷ s |", "n > k|| > c|| > h > w > {r > s}", [["k"], ["c"]], "rs"),
    "14.14": (
        "n ▷ h' ∥ w' ∥ ▷ c ∥ k ▷ r ▷ s ▷ | h'' ▷ w'' |",
        "n > [h'|| w'||] > c|| > k > r > s > {h'' > w''}",
        [["h", "w"], ["c"]],
        "hw",
    ),
    "14.15": (
        "n ▷ h' ∥ w' ∥ c ▷ r ▷ s ▷ |k ▷ h'' ▷ w''|",
        "n > [h'|| w'||] > c > r > s > {k > h'' > w''}",
        [["h", "w"]],
        "khw",
    ),
    "14.16": (
        "n ▷ h' ∥ w' ∥ ▷ k ∥ c ▷ r ▷ s ▷ |h'' ▷ w''|",
        "n > [h'|| w'||] > k|| > c > r > s > {h'' > w''}",
        [["h", "w"], ["k"]],
        "hw",
    ),
    "14.17": (
        "n ▷ k ∥ c ∥ ▷ h' ∥ r' ∥ w ▷ s ▷ |h'' ▷ r''|",
        "n > [k|| c||] > [h'|| r'||] > w > s > {h'' > r''}",
        [["k", "c"], ["h", "r"]],
        "hr",
    ),
}


@pytest.mark.parametrize("number", EQUATIONS)
def test_equations_of_the_textbook(number: str) -> None:
    book, canonical, levels, box = EQUATIONS[number]
    terms = [item for item in read(book) if isinstance(item, LoopItem)]
    order = [sign for sign in book if sign in DIMS]
    assert [term.dim for term in terms] == order
    numbers = sorted({term.level for term in terms} - {0})
    assert [[term.dim for term in terms if term.level == each] for each in numbers] == levels
    assert "".join(term.dim for term in terms if term.keep) == box
    assert canonical_text(read(book)) == canonical
    in_book = canonical_text(read(canonical), unicode=True)
    assert read(in_book) == read(book)
    without = str.maketrans("", "", "[]▷ ")
    assert in_book.translate(without) == book.translate(without)


# -- one to one --------------------------------------------------------------------------------------------------------

LOOPS = st.builds(
    lambda dim, step, where: Loop(dim, step, where if where in AXES else "", where == "keep"),
    st.sampled_from(DIMS),
    st.integers(1, 9),
    st.sampled_from(["", "", "rows", "cols", "keep"]),
)


@st.composite
def mappings(draw: st.DrawFn) -> Mapping:
    """Any loops and stages that there can be, whether a layer may have them or not."""
    loops = tuple(draw(st.lists(LOOPS, max_size=12)))
    stage = st.builds(
        Stage, st.sampled_from(OPERANDS), st.sampled_from(MEMORIES), st.integers(0, len(loops)), st.integers(1, 3)
    )
    return Mapping(loops, tuple(sorted(draw(st.lists(stage, max_size=6)), key=lambda stage: stage.depth)))


SIZE = st.integers(1, 20)


@settings(max_examples=examples(100))
@given(mappings(), st.builds(Sizes, *[SIZE] * 7), st.booleans())
def test_texts_and_mappings_are_one_to_one(mapping: Mapping, sizes: Sizes, unicode: bool) -> None:
    for known in (None, sizes):
        written = text(mapping, known, unicode)
        assert parse(written, known) == mapping
        assert text(parse(written, known), known, unicode) == canonical_text(read(written), unicode) == written
    assert parse(text(mapping), sizes) == mapping


SIGNS = st.sampled_from(
    [
        *DIMS,
        "'",
        "''",
        ">",
        "▷",
        "||",
        "∥",
        "[",
        "]",
        "{",
        "}",
        "|",
        ":",
        "2",
        "@",
        "rows",
        "weight",
        "rf",
        "*",
        " ",
        "#",
    ]
)


@settings(max_examples=examples(150))
@given(st.lists(SIGNS, max_size=14).map(" ".join) | st.lists(SIGNS, max_size=14).map("".join))
def test_any_text_is_read_or_refused_at_a_place(written: str) -> None:
    try:
        items = read(written)
    except NotationError as error:
        assert 0 <= error.at <= len(written) and error.at < error.end
        line, marks = error.excerpt
        assert len(marks) <= len(line) + 1 and "^" in marks
        return
    assert read(canonical_text(items)) == items == read(canonical_text(items, unicode=True))


@settings(max_examples=examples(15))
@given(cases(groups=True), arches(), st.sampled_from([(), ("ifmap", "output"), ("output",)]), st.integers(64, 9999))
def test_the_compilers_mappings_are_one_to_one(case: Case, arch: Arch, streamed: tuple[str, ...], words: int) -> None:
    ctx = context()
    module = case.module(ctx)
    CnnToNestPass().apply(ctx, module)
    layer = layer_of(module)
    sizes = layer.sizes.data
    try:
        mapping = best_mapping(layer, arch, GlbBudget(words, frozenset(streamed)), "auto")
    except Refusal:
        return
    assert parse(text(mapping, sizes), sizes) == parse(text(mapping), None) == mapping
    layer.mapping = MappingAttr(mapping)
    assert_printed(module)


def assert_printed(module: ModuleOp) -> None:
    """A module is what is read of what it prints, as it is and in the generic form."""
    ctx = context()
    for printed in (str(module), generic(module)):
        again = Parser(ctx, printed).parse_module()
        again.verify()
        assert again.is_structurally_equivalent(module)


def generic(module: ModuleOp) -> str:
    stream = StringIO()
    Printer(stream, print_generic_format=True).print_op(module)
    return stream.getvalue()


@pytest.mark.parametrize("model", ["lenet", "mnist", "depthwise", "resnet20", "lenet_qoperator_s8_pc"])
def test_mappings_of_samples_are_printed_and_read(model: str) -> None:
    settings_ = Settings(load_arch("spatial-8x8"), "spatial-8x8", 16)
    compilation = import_model(ROOT / "samples" / "models" / f"{model}.onnx", 1, settings_)
    for step in steps(settings_):
        compilation.step(step)
        if step.name == "nest-assign-mapping":
            break
    layers = [op for op in compilation.module.walk() if isinstance(op, LayerOp)]
    mapped = [layer for layer in layers if layer.mapping]
    assert mapped
    for layer in mapped:
        assert layer.mapping and f'mapping "{text(layer.mapping.data, layer.sizes.data)}"' in str(layer)
    again = Parser(compilation.ctx, str(compilation.module)).parse_module()
    again.verify()
    assert again.is_structurally_equivalent(compilation.module)


# -- what texts mean ---------------------------------------------------------------------------------------------------


def test_records_of_a_text() -> None:
    assert read("weight@glb*2 > k':4||2@cols > {k''}") == (
        FetchItem("weight", "glb", 2),
        LoopItem("k", 4, 1, 2, "cols"),
        LoopItem("k", keep=True),
    )


@pytest.mark.parametrize(
    ("written", "loops"),
    [
        # A loop with fewer PEs than iterations is folded: what is left runs in time around its level.
        ("[h||4@rows w||3@cols]", [Loop("h", 4), Loop("w", 3), Loop("h", 1, "rows"), Loop("w", 1, "cols")]),
        ("h||4@rows > n > w||3@cols",
         [Loop("h", 4), Loop("h", 1, "rows"), Loop("n"), Loop("w", 3), Loop("w", 1, "cols")]),
        ("k':5||2@rows > k''||5@cols", [Loop("k", 10), Loop("k", 5, "rows"), Loop("k", 1, "cols")]),
        ("k':5||2@rows > k''||3@cols", [Loop("k", 10), Loop("k", 5, "rows"), Loop("k", 3), Loop("k", 1, "cols")]),
        # Otherwise not: 16 indices by 5 are 4 iterations, the last of them of one index.
        ("[k':5||4@rows k''||5@cols]", [Loop("k", 5, "rows"), Loop("k", 1, "cols")]),
        ("k':5||@rows > k''||@cols", [Loop("k", 5, "rows"), Loop("k", 1, "cols")]),
        ("h'", [Loop("h")]),
        ("h′ : 2 ▷ h″", [Loop("h", 2), Loop("h")]),
        ("n", [Loop("n")]),
        ("", []),
    ],
)  # fmt: skip
def test_loops_of_a_text(written: str, loops: list[Loop]) -> None:
    assert parse(written, SIZES) == Mapping(tuple(loops))


def test_places_of_stages() -> None:
    found = parse("weight@glb > k':8 > h||@rows > params@glb*2 > w||2@cols > weight@rf > ifmap@rf > {k''}", SIZES)
    assert [(stage.operand, stage.memory, stage.depth, stage.buffers) for stage in found.stages] == [
        ("weight", "glb", 0, 1), ("params", "glb", 2, 2), ("weight", "rf", 4, 1), ("ifmap", "rf", 4, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "message", "marked"),
    [
        ("n > K", "no loop 'K': did you mean 'k'?", "K"),
        ("n > x", "no loop 'x': there are n, k, c, h, w, r, s", "x"),
        ("n > wieght@rf", "no operand 'wieght': did you mean 'weight'?", "wieght"),
        ("n > weights", "no loop 'weights': did you mean the stage 'weight@rf'?", "weights"),
        ("weight@gbl", "no memory 'gbl': did you mean 'glb'?", "gbl"),
        ("weight@rf*", "expected a number of buffers, found the end", ""),
        ("weight@ > n", "expected glb or rf, found '>'", ">"),
        ("k||@row", "no axis 'row': did you mean 'rows'?", "row"),
        ("k@rows", "a loop on an axis is parallel: k||@rows", "@"),
        ("n k", "expected '>' between loops, found 'k'", "k"),
        ("n > > k", "expected a loop (n k c h w r s) or a stage (weight@rf), found '>'", ">"),
        ("n >", "expected a loop (n k c h w r s) or a stage (weight@rf), found the end", ""),
        ("[k|| c]", "in [ ] stand parallel loops, without '>': write c||", "c"),
        ("[h|| > n > w||]", "expected a parallel loop or ']', as loops in [ ] are one level, found '>'", ">"),
        ("{r > s", "expected '>' or '}' between loops, found the end", ""),
        ("{r > s|", "expected '>' or '}' between loops, found '|'", "|"),
        ("{r|| > s}", "a loop in a box runs in time: r without '||', or on lanes: r||@lanes", "r"),
        ("{r||@cols > s}", "a loop in a box runs in time: r without '||', or on lanes: r||@lanes", "r"),
        ("{[r|| s||]}", "loops in a box run in time: no [ ] there", "["),
        ("{weight@rf > r}", "a stage stands around the box, not in it", "weight"),
        ("n > h > h", "2 loops over h are, from outside, h', h''", "h"),
        ("h'' > h'", "2 loops over h are, from outside, h', h''", "h''"),
        ("n''", "a single loop is, from outside, n", "n''"),
        ("k:0", "0 is not in 1 to 2147483647", "0"),
        ("k:99999999999", "99999999999 is not in 1 to 2147483647", "99999999999"),
        ("n > $", "'$' has no meaning here", "$"),
        ("h||", "write the axis of h, h||@rows or h||@cols", "h"),
        ("h' > h''", "h' has loops inside it: write its tile size, h':N", "h'"),
        ("h||9@rows", "h runs 8 times here, on 8 PEs: write h||8, or no number", "h"),
        ("[k':5||4@rows k''||2@cols]",
         "k'' runs 5 times inside the other loop over k of its level, on 2 PEs: write '>' between them", "k''"),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(written: str, message: str, marked: str) -> None:
    with pytest.raises(NotationError) as caught:
        parse(written, SIZES)
    line, marks = caught.value.excerpt
    assert caught.value.message == message
    assert line[marks.index("^") : len(marks)] == marked and line == written
    assert str(caught.value) == f"{message}\n  {line}\n  {marks}"


def test_long_texts_are_cut_around_the_place() -> None:
    written = " > ".join(["n'"] * 60) + " > x > " + " > ".join(["w'"] * 60)
    with pytest.raises(NotationError) as caught:
        read(written)
    line, marks = caught.value.excerpt
    assert len(line) < 130 and line[marks.index("^")] == "x" and line[0] == line[-1] == "…"


def test_pes_need_sizes() -> None:
    assert parse("h':4 > h''||2@rows", None).loops == (Loop("h", 4), Loop("h", 2), Loop("h", 1, "rows"))
    with pytest.raises(NotationError, match="how often h runs is not known here: leave out 2"):
        parse("h||2@rows", None)


def test_stages_are_listed_from_outside() -> None:
    with pytest.raises(ValueError, match="depth 0 is not in 1 to 1"):
        Mapping((Loop("n"),), (Stage("weight", "glb", 1), Stage("ifmap", "glb", 0)))
    with pytest.raises(ValueError, match="depth 2 is not in 0 to 1"):
        replace(Mapping((Loop("n"),)), stages=(Stage("weight", "glb", 2),))
