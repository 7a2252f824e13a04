"""Mappings that users write: output-stationary ones of any form compute what brute force does, or are refused.

How long macro-instructions take is compared with a walk over the loops.

Loops are in any order, tiled any number of times, on any axis; stages in the GLB stand anywhere. What is left out is
completed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_cases import CALIBRATION, DIGITS, LENET, done, invoke
from conv_grid_cases import Case, case_of, filled
from examples import SEED, examples
from nest_cases import layer_of
from test_conv_grid import lowered, result_and_cycles, unmapped
from test_macro_instructions import walked_cycles
from test_mapping_notation import EQUATIONS, Equation
from textbook_dataflows import TEXTBOOK

from cnncc.arch.model import Arch, load_arch, parse_arch
from cnncc.dialects.nest import operands
from cnncc.errors import Refusal
from cnncc.mapping.mapping import DIMS, Loop, Mapping, Sizes, Stage, extents, mapping_problem
from cnncc.mapping.notation import Item, LoopItem, canonical_text, read
from cnncc.mapping.text import items_of, parse
from cnncc.mapping.text import text as text_of
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.register_files import macro_words
from cnncc.passes._scheduling.dataflows import TEXTS
from cnncc.passes._scheduling.glb_words import GlbTooSmall
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.schedule_file import MappingText
from cnncc.passes._scheduling.written_mappings import written_mapping, written_violations
from cnncc.passes.nest_assign_mapping import NestAssignMappingPass
from cnncc.util.npz import npz_bytes
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

EXAMPLES = examples(32)
PARTS = 4
Random = np.random.Generator
# What the lowering says of forms that it does not have.
NOT_YET = (
    "through the GLB image by image",
    "params come in slices only where ifmap, residual and output lie in the GLB",
    "glb.words",
    "limit 8: its loops in time are",
    "weights are staged in glb outside loops over r and s",
    "at most one over sets and one inside a set",
)


def random_case(rng: Random) -> Case:
    pinned = {"kind": rng.choice(["mac"] * 7 + ["max"]), "files": rng.choice(["large"] * 4 + ["pong", "small"])}
    while True:
        point = filled(pinned, lambda _, values: values[rng.integers(len(values))])
        case = case_of({**point, "glb": 1 << 18}, int(rng.integers(9)))
        if case.macs < 60_000:  # half of them with a GLB through which some operands must move
            return replace(case, glb=int(rng.uniform(0.4, 1) * case.glb_words)) if rng.random() < 0.5 else case


def tiles(rng: Random, extent: int, share: float) -> list[int]:
    """Steps of loops over tiles of an extent."""
    found: list[int] = []
    while extent > 1 and rng.random() < share:
        extent = int(rng.integers(1, extent))
        found.append(extent)
    return found


def random_loops(rng: Random, shape: LayerShape, arch: Arch) -> list[Loop]:
    """Loops over outputs in any order, some on an axis; then reductions; then those of a box that fits."""
    sizes, order = shape.sizes, "wksr" if shape.channelwise else "wscrk"
    chains = {dim: tiles(rng, sizes.of(dim), 0.5) for dim in DIMS}
    if shape.tiled_together < sizes.k:
        chains["k"] = [shape.tiled_together, *tiles(rng, shape.tiled_together, 0.5)]
    inner = {dim: chain[-1] if chain else sizes.of(dim) for dim, chain in chains.items()}
    box = {dim: size for dim, size in inner.items() if size > 1 and dim in order and rng.random() < 0.7}
    while any(words > getattr(arch.pe, key) for key, words in macro_words(shape, arch, boxed(box)).items()):
        del box[rng.choice(list(box))]
    for dim, size in inner.items():
        if size > 1 and dim not in box:
            chains[dim].append(1)
    reductions = [Loop(dim, step) for dim in "crs" for step in chains.get(dim, ())]
    outputs = [[Loop(dim, step) for step in chains[dim]] for dim in "nkhw"]
    loops: list[Loop] = []
    while left := [chain for chain in outputs if chain]:
        loops.append(left[rng.integers(len(left))].pop(0))
    return [*on_axes(rng, shape, arch, loops), *reductions, *(Loop(dim, keep=True) for dim in order if dim in box)]


def boxed(box: dict[str, int]) -> dict[str, int]:
    return {dim: box.get(dim, 1) for dim in DIMS}


def on_axes(rng: Random, shape: LayerShape, arch: Arch, loops: list[Loop]) -> list[Loop]:
    left, result = {"rows": arch.rows, "cols": arch.cols}, list[Loop]()
    for loop, extent in zip(loops, extents(shape.sizes, tuple(loops)), strict=True):
        axis = str(rng.choice(["", "rows", "cols"]))
        count = -(-extent // loop.step)
        if axis and count <= left[axis] and count > 1 and rng.random() < 0.8:
            left[axis] //= count
            result.append(Loop(loop.dim, loop.step, axis))
        else:
            result.append(loop)
    return result


def random_stages(rng: Random, shape: LayerShape, arch: Arch, loops: list[Loop]) -> list[Stage]:
    """Those of weights, and of params where they come with them, in the GLB; or none, which leaves them out."""
    if not shape.is_mac or rng.random() < 0.4:
        return []
    box = next((depth for depth, loop in enumerate(loops) if loop.keep), len(loops))
    depth = int(rng.integers(box + 1))
    outside = loops[:depth]
    single = any(loop.on or loop.dim in "crs" for loop in outside)
    buffers = 1 if single else int(rng.integers(1, 3))
    found = [Stage("weight", "glb", depth, buffers)]
    if shape.params and not single and rng.random() < 0.5:
        found.append(Stage("params", "glb", depth, buffers))
    return found


def written(rng: Random, mapping: Mapping, shape: LayerShape) -> str:
    """The text of a mapping, with folds and run-once loops, without some of what follows."""
    items: list[Item] = list(items_of(mapping, shape.sizes))
    if rng.random() < 0.5:
        items = [LoopItem("n", axis="", place=(0, 0)), *items] if not any(over(item, "n") for item in items) else items
    if rng.random() < 0.5:
        items = [
            LoopItem(each.dim, each.step, each.level, None, each.axis, each.keep)
            if isinstance(each, LoopItem)
            else each
            for each in items
        ]
    return canonical_text(items, bool(rng.integers(2)))


def over(item: Item, dim: str) -> bool:
    return isinstance(item, LoopItem) and item.dim == dim


def check(rng: Random, folder: Path, seen: Counter[str]) -> None:
    """Draw a layer, an array and a text, run it, and compare."""
    case = random_case(rng)
    arch = parse_arch(case.arch_text(), "drawn")
    (folder / "array.toml").write_text(case.arch_text())
    module, ctx = unmapped(case)
    layer = layer_of(module)
    shape = layer_shape(layer)
    loops = random_loops(rng, shape, arch)
    mapping = Mapping(tuple(loops), tuple(random_stages(rng, shape, arch, loops)))
    text = written(rng, mapping, shape)
    (folder / "schedule.toml").write_text(f'["{layer.label.data if layer.label else ""}"]\nmapping = "{text}"\n')
    try:
        NestAssignMappingPass(str(folder / "array.toml"), schedule=str(folder / "schedule.toml")).apply(ctx, module)
        assert layer.mapping is not None
        used = layer.mapping.data
        assert used.loops == mapping.loops, (text, used)
        assert set(mapping.stages) <= set(used.stages), (text, used)
        assert mapping_problem(used, shape.sizes, operands(layer)) is None
        lowered(module, ctx, str(folder / "array.toml"))
    except Refusal as refusal:
        assert any(why in str(refusal) for why in NOT_YET), (str(refusal), case, text)
        seen["refused"] += 1
        return
    result, cycles = result_and_cycles(case, module, ctx, arch)
    assert np.array_equal(result, case.expected), (case, text)
    assert cycles.compute == walked_cycles(shape, arch, used), (case, text)
    seen["run"] += 1
    seen["moving"] += any(stage.operand in ("ifmap", "output") and stage.memory == "glb" for stage in used.stages)
    seen["in GLB"] += bool(mapping.stages)
    seen.update(f"{loop.dim} {loop.on}" for loop in loops if loop.on)


@pytest.mark.parametrize("part", range(PARTS))
def test_written_mappings_of_any_form(part: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([SEED, part])
    count = -(-EXAMPLES // PARTS)
    seen: Counter[str] = Counter()
    while seen["run"] < count:
        check(rng, tmp_path, seen)
    assert seen["refused"] <= 3 * count and seen["moving"], seen


# -- what is left out --------------------------------------------------------------------------------------------------

ARCH = load_arch("spatial-8x8")
SHAPE = LayerShape("mac", Sizes(1, 16, 6, 10, 10, 5, 5), Window((5, 5)), 2, 14, 14)
OPERANDS = {"weight", "ifmap", "params", "output"}


def used(text: str, words: int = ARCH.glb.words, streamed: frozenset[str] = frozenset()) -> str:
    """The mapping that a text means, as text."""
    assert written_violations(SHAPE, ARCH, MappingText(text), OPERANDS) == []
    return text_of(written_mapping(SHAPE, ARCH, GlbBudget(words, streamed), MappingText(text)), SHAPE.sizes)


def _text(written: str | Equation) -> str:
    return written if isinstance(written, str) else written[0]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        # The textbook's, by number.
        (EQUATIONS["14.8"], "k > c > [h':2||5@rows w':2||5@cols] > h'' > w'' > {s > r}"),
        (EQUATIONS["14.9"], "k':8 > [k''||8@cols c||6@rows] > h > w > {s > r}"),
        (EQUATIONS["14.10"], "[h':2||5@rows w':2||5@cols] > k > r > s > {c > h'' > w''}"),
        (EQUATIONS["14.11"], "h':8 > w':8 > [h''||8@rows w''||8@cols] > c > r > s > {k}"),
        (EQUATIONS["14.12"], "k > c > [h':2||5@cols r||5@rows] > w > s > {h''}"),
        (EQUATIONS["14.13"], "k':8 > [k''||8@cols c||6@rows] > h > w > {s > r}"),
        (EQUATIONS["14.14"], "h':4 > [h''||4@cols w':5||2@cols c||6@rows] > k > r > s > {w''}"),
        (EQUATIONS["14.15"], "h':8 > w':8 > [h''||8@rows w''||8@cols] > c > r > s > {k}"),
        (EQUATIONS["14.16"], "h':4 > [h''||4@rows w':5||2@rows] > k':8 > k''||8@cols > c > r > s > {w''}"),
        (EQUATIONS["14.17"], "k':8 > [k''||8@cols c||6@rows] > w > s > {h > r}"),
        # Axes: one level, one loop; a level an axis.
        ("k|| > h > w > c > {s > r}", "k':8 > k''||8@rows > h > w > c > {s > r}"),
        ("h|| > w|| > k > c > {s > r}", "h':8 > h''||8@rows > w':8 > w''||8@cols > k > c > {s > r}"),
        # PEs: the inner loop of an axis first, written ones before all.
        ("[h||@rows w||2@rows k||@cols] > c > {s > r}",
         "h':4 > w':2 > k':8 > [h''||4@rows w''||2@rows k''||8@cols] > c > {s > r}"),
        # Tiles: what the PEs take; what fits a PE, here 4 * 25 of 112 weights; a block that takes all.
        ("h' > w' > [h''|| w''||] > k > c > {s > r}", "h':8 > w':8 > [h''||8@rows w''||8@cols] > k > c > {s > r}"),
        ("k' > [h|| w||] > c > {s > r > k''}", "k':4 > h':8 > w':8 > [h''||8@rows w''||8@cols] > c > {s > r > k''}"),
        ("h' > h''||@rows > h''':2 > h'''' > k > w > c > {r > s}", "h':2||5@rows > h'' > k > w > c > {s > r}"),
        # Several tiles in the box: those of the fewest cycles.
        ("k' > c' > h > w > {c'' > k'' > r > s}", "k':4 > c > h > w > {s > r > k''}"),
        ("h' > h'':2||@rows > h''' > k > w > c > {r > s}", "h':2||5@rows > h'' > k > w > c > {s > r}"),
        # Of sums that travel, a tile divides what is there: one of five rows, though tiles of two would be quicker.
        ("k > c > h > w > r'||2@rows > {s > r''}", "k > c > h > w > r':2 > r''||2@rows > {s}"),
        # Loops that run once go, those in the box are in the machine's order.
        ("n > h':10 > h'' > k > w > c > {r > s}", "h > k > w > c > {s > r}"),
    ],
)  # fmt: skip
def test_what_is_left_out_is_chosen_by_rules(written: str | Equation, meant: str) -> None:
    text = _text(written)
    mapping = written_mapping(SHAPE, ARCH, GlbBudget(ARCH.glb.words), MappingText(text))
    assert mapping.loops == parse(meant, SHAPE.sizes).loops, text_of(mapping, SHAPE.sizes)
    again = text_of(mapping, SHAPE.sizes)
    assert written_mapping(SHAPE, ARCH, GlbBudget(ARCH.glb.words), MappingText(again)) == mapping


def test_the_tables_of_the_document() -> None:
    document = (Path(__file__).parents[1] / "docs" / "mapping.md").read_text().replace("\\|", "|")
    rows = re.findall(r"^\| (14\.\d+) \| `(.*)` \| `(.*)` \|$", document, re.MULTILINE)
    assert [number for number, _, _ in rows] == list(EQUATIONS)
    for number, book, here in rows:
        assert read(book) == read(EQUATIONS[number][0])
        assert (
            written_mapping(SHAPE, ARCH, GlbBudget(ARCH.glb.words), MappingText(book)).loops
            == parse(here, SHAPE.sizes).loops
        )
    rows = re.findall(r"^\| (?:`([\w-]+)`)? ?\| (.*) \| `(.*)` \|$", document, re.MULTILINE)
    every = TEXTBOOK | TEXTS
    said = [row for name, each in every.items() for row in ((name, each.resident, each.mapping), each.channelwise)]
    assert [row if row[0] else row[2] for row in rows if row[0] in {"", *every}] == [row for row in said if row]


def test_lanes_take_equal_parts() -> None:
    """Of six channels two lanes take all, four and two or two; those of five kernel columns do not divide."""
    arch = replace(ARCH, pe=replace(ARCH.pe, lanes=2, weight_words=16))
    text = "k > [h||2@rows w||5@cols] > c' > r > {s > c''||@lanes}"
    assert written_violations(SHAPE, arch, MappingText(text), OPERANDS) == []
    found = written_mapping(SHAPE, arch, GlbBudget(ARCH.glb.words), MappingText(text))
    assert text_of(found, SHAPE.sizes).endswith("> c':2 > r > weight@rf*2 > ifmap@rf*2 > {s > c''||2@lanes}")
    wider = MappingText("k > [h||2@rows w||5@cols] > c > r > {s||3@lanes}")
    assert [each.resource for each in written_violations(SHAPE, arch, wider, OPERANDS)] == ["lanes"]


def test_stages_that_are_left_out() -> None:
    streamed = frozenset({"ifmap", "output"})
    plain = "k':4 > h' > w' > [h''|| w''||] > c > {s > r > k''}"
    rest = "h':8 > w':8 > [h''||8@rows w''||8@cols] > c > weight@rf*2 > ifmap@rf*2 > {s > r > k''}"
    assert used(plain) == f"weight@glb > params@glb > k':4 > {rest}"
    # A small GLB: four channels of weights at a time, the next on their way.
    assert used(plain, words=9600) == f"weight@glb > params@glb > k':4 > {rest}"
    assert used(plain, words=1300) == f"params@glb > k':4 > weight@glb*2 > {rest}"
    assert used(plain, words=700) == f"params@glb > k':4 > weight@glb > {rest}"
    # What moves: the ifmap once for all channels, outputs by 4 channels; the image by 8 x 8 outputs where it must.
    assert used(plain, words=5000, streamed=streamed) == (
        f"weight@glb > ifmap@glb > params@glb > k':4 > output@glb > {rest}"
    )
    # What is written stays.
    given = f"k':4 > weight@glb > params@glb > {rest}"
    assert used(given) == given


@pytest.mark.parametrize(
    ("written", "messages"),
    [
        ("c > r > s > {k > h > w}", ["a PE is to hold more words than it has"] * 2),
        ("k > h > w > c > {s}", ["no loop runs over single indices of r: add one without a step inside (NEST-1)"]),
        ("k':17 > h > w > c > {r > s}",
         ["loop k steps by 17 in an extent of 16 (NEST-1)",
          "no loop runs over single indices of k: add one without a step inside (NEST-1)"]),
        ("h||@rows > ifmap@glb > c > params@glb > k > w > {r > s}",
         ["stage ifmap in glb: stands inside a loop in space (NEST-4)",
          "stage params in glb: stands inside a loop in space (NEST-4)",
          "stage params in glb: stands inside a loop over c, r or s (NEST-5)"]),
        ("{k} > residual@glb > weight@rf > h > w > c > r > s",
         ["of loop k: exactly the loops inside all stages in rf are kept (NEST-2)",
          "stage residual in glb: the layer has no such operand there (NEST-3)"]),
        ("[k||6@rows h||2@rows w||9@cols] > c > {r > s}", ["6 x 2 PEs do not fit 8 rows", "9 PEs do not fit 8 cols"]),
        ("k':8 > k'':4 > k''':2 > k'''' > h':4 > h'' > w > c':2 > c'' > {r > s}", ["its loops in time are"]),
        ("k > [h|| w||] > c > {r > s", ["expected '>' or '}' between loops, found the end"]),
        ("k||@rows > h|| > w > c > {r > s}", ["write the axis of h, h||@rows or h||@cols: others have one"]),
        ("[k|| h|| w||] > c > {r > s}",
         ["write the axis of k, k||@rows or k||@cols: so many loops have no order on two axes"]),
    ],
)  # fmt: skip
def test_what_is_refused(written: str | Equation, messages: list[str]) -> None:
    text = _text(written)
    found = written_violations(SHAPE, ARCH, MappingText(text), OPERANDS)
    assert len(found) >= len(messages)
    for finding, message in zip(found, messages, strict=False):
        assert finding.what.startswith(message), found


def test_words_of_a_virtual_neighbour_count_where_loops_that_run_once_go() -> None:
    """Two loops on columns, one of which goes: each PE is a set by itself, which may receive columns."""
    links = replace(ARCH.links, south=True)
    narrow = replace(ARCH, cols=1, pe=replace(ARCH.pe, pong_words=12), links=links)
    written = MappingText("k' > w > h' > c > [k''||@cols r||@rows h''||@cols] > {s}")
    (found,) = written_violations(SHAPE, narrow, written, OPERANDS)
    assert (found.resource, found.value, found.limit) == ("pe.virtual_words", 4, 0)
    enough = replace(narrow, pe=replace(narrow.pe, virtual_words=4))
    assert written_violations(SHAPE, enough, written, OPERANDS) == []


def test_stages_of_what_does_not_move_are_refused() -> None:
    with pytest.raises(Refusal, match="its ifmap lies in the GLB as a whole: leave out ifmap@glb"):
        used("ifmap@glb > k > h > w > c > {r > s}")
    with pytest.raises(GlbTooSmall, match=r"glb.words = 65536 .* or smaller tiles around it"):
        used("k > h > w > c > {r > s}", words=20)


# -- from the command line ---------------------------------------------------------------------------------------------

PLAIN = """
["c1"]
mapping = "n ▷ k' ▷ [h∥ w∥] ▷ c ▷ |r ▷ s ▷ k''|"
["pool1"]
mapping = "h|| > w|| > {r > s > k}"
["c2"]
mapping = "k':2 > [k''||@rows h':2||4@rows w||@cols] > h'' > c > {r > s}"
"""


@pytest.mark.parametrize("glb", [65536, 4096])
def test_a_schedule_with_mappings_computes_the_same(glb: int, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(
        done("arch", "show", "spatial-8x8").stdout.replace("words = 65536", f"words = {glb}")
    )
    (tmp_path / "plain.toml").write_text(PLAIN)
    (tmp_path / "three.npz").write_bytes(npz_bytes({"input": np.load(DIGITS)["input"][:3]}))
    outputs: list[bytes] = []
    for options in ((), ("--schedule", tmp_path / "plain.toml", "--dump-dir", tmp_path / "ir")):
        array = ("--arch", tmp_path / "small.toml")
        done("compile", LENET, "--batch", 1, "--calibrate", CALIBRATION, "-o", tmp_path / "a.cnb", *array, *options)
        done("run", tmp_path / "a.cnb", "--input", tmp_path / "three.npz", "--output", tmp_path / "y.npz")
        outputs.append((tmp_path / "y.npz").read_bytes())
    assert outputs[0] == outputs[1]
    printed = next((tmp_path / "ir").glob("*-nest-assign-mapping.mlir")).read_text()
    assert "k':3 > h':8 > w':8 > [h''||8@rows w''||8@cols]" in printed or glb == 4096
    assert ("output@glb" in printed) == (glb == 4096)


def test_texts_that_are_wrong_are_shown(tmp_path: Path) -> None:
    wrong, options = tmp_path / "wrong.toml", ("--batch", 1, "-o", tmp_path / "x.cnb")
    wrong.write_text('[c1]\nmapping = "n > wieght@rf > k"\n[c2]\nmapping = 3\n[f1]\nmapping = "k"\np = 2\n')
    result = invoke("compile", LENET, *options, "--schedule", wrong)
    assert result.exit_code == 1 and result.stderr.splitlines() == [
        f"cnncc: {wrong}: 3 problems",
        "  c1  mapping    no operand 'wieght': did you mean 'weight'?",
        "  n > wieght@rf > k",
        "      ^^^^^^",
        "  c2  mapping 3  not a text: mapping = \"n > k > …\"",
        "  f1  mapping    a mapping and 'p': the mapping says all: leave out p",
    ]  # fmt: skip
    wrong.write_text('[c1]\nmapping = "k > h|| w|| > {r > s}"\n')
    done("compile", LENET, *options, "--schedule", wrong)
    # What the array cannot run is refused with its reason, nothing is written.
    (tmp_path / "x.cnb").unlink()
    for written, why in (
        ("n ▷ k∥ ▷ c∥ ▷ h ▷ w ▷ |r ▷ s|", "c is reduced down the rows, but this array has no links.south"),
        ("[c||@cols k||@rows] > h > w > {r > s}", "c is reduced across columns, but sums have no link from west to"),
    ):
        wrong.write_text(f'[c2]\nmapping = "{written}"\n')
        result = invoke("compile", LENET, *options, "--schedule", wrong, "--arch", "seed-8x8")
        assert result.exit_code == 1 and why in result.stderr, result.stderr
        assert not (tmp_path / "x.cnb").exists()


TWO_LAYERS = """
func.func @main(%x: tensor<1x3x10x10xi16>) -> tensor<1x16x6x6xi32> {
  %0 = nest.layer "mac" %x weights @a sizes <n = 1, k = 16, c = 3, h = 8, w = 8, r = 3, s = 3>
       window <kernel = [3, 3]> then <> label "a" : tensor<1x3x10x10xi16> -> tensor<1x16x8x8xi16> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  %1 = nest.layer "mac" %0 weights @b sizes <n = 1, k = 16, c = 16, h = 6, w = 6, r = 3, s = 3>
       window <kernel = [3, 3]> then <> label "b" : tensor<1x16x8x8xi16> -> tensor<1x16x6x6xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return %1 : tensor<1x16x6x6xi32>
}
"""


def test_a_layer_behind_a_first_one_with_a_mapping_is_mapped(tmp_path: Path) -> None:
    """The model knows nothing of the first layer, and so no place for weights of the second that come ahead."""
    (tmp_path / "two.mlir").write_text(TWO_LAYERS)
    (tmp_path / "a.toml").write_text('["a"]\nmapping = "k > [h||@rows w||@cols] > c > r > s"\n')
    passes = f'nest-assign-mapping{{arch=spatial-8x8 schedule="{tmp_path / "a.toml"}"}}'
    printed = done("opt", tmp_path / "two.mlir", "-p", passes).stdout
    assert printed.count(" mapping ") == 2
