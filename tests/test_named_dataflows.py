"""The textbook's five dataflows: complete for any layer and array, legal, and what they are named for, as nests."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cli_cases import CALIBRATION, DIGITS, LENET, conv_model, done, invoke, save
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_cases import SCHEDULE, Case, arches, cases, layer_of, lowered
from searches import SHORT, search_with
from test_nest_eval import result
from textbook_dataflows import TEXTBOOK, textbook

from cnncc.arch.model import Arch, arch_text, load_arch
from cnncc.dialects.nest import MappingAttr, operands
from cnncc.errors import Refusal
from cnncc.eval.nest import LayerRun
from cnncc.mapper.cached_search import searched
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapping.mapping import Mapping, Sizes, mapping_problem
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.dataflows import DATAFLOWS, SEARCHED, check_dataflow
from cnncc.passes._scheduling.glb_words import GlbTooSmall
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.written_mappings import written_mapping, written_violations
from cnncc.util.npz import npz_bytes
from cnncc.window import Window

ARRAY = load_arch("spatial-8x8")
SOUTH = replace(ARRAY, links=replace(ARRAY.links, south=True))


def mapping_of(name: str, shape: LayerShape, arch: Arch, streamed: frozenset[str] = frozenset()) -> Mapping:
    return written_mapping(shape, arch, GlbBudget(arch.glb.words, streamed), textbook(name, shape, arch))


@settings(max_examples=examples(15))
@given(cases(groups=True), arches(), st.sampled_from([frozenset[str](), frozenset({"ifmap", "output"})]))
def test_dataflows_are_legal_and_compute_the_same(case: Case, drawn: Arch, streamed: frozenset[str]) -> None:
    arch = replace(
        drawn, links=replace(drawn.links, south=True), glb=replace(drawn.glb, words=max(drawn.glb.words, 2048))
    )
    if case.kind != "mac":
        return
    want = case.sums()
    for name in TEXTBOOK:
        ctx, module = lowered(case)
        layer = layer_of(module)
        shape = layer_shape(layer)
        given = textbook(name, shape, arch)
        assert written_violations(shape, arch, given, operands(layer)) == [], name
        try:
            mapping = mapping_of(name, shape, arch, streamed)
        except GlbTooSmall:
            continue
        assert mapping_problem(mapping, shape.sizes, operands(layer)) is None
        layer.mapping = MappingAttr(mapping)
        for step in SCHEDULE:
            step.apply(ctx, module)
        module.verify()
        np.testing.assert_array_equal(result(ctx, module, case), want, name)


def fetched(name: str, case: Case) -> Counter[str]:
    """How many words of each operand all register files take in, counted by running the nest."""
    ctx, module = lowered(case)
    layer = layer_of(module)
    layer.mapping = MappingAttr(mapping_of(name, layer_shape(layer), SOUTH))
    for step in SCHEDULE:
        step.apply(ctx, module)
    run = LayerRun(layer_of(module), {"w": case.weights, "b": case.bias}, case.x)
    words: Counter[str] = Counter()
    for (operand, memory, of_one), copies in run.fetched.items():
        words[operand] += copies * of_one * (memory == "rf")
    return words


def test_what_stays_is_what_a_dataflow_is_named_for() -> None:
    """Of a layer that no file holds as a whole: which dataflow fetches an operand least, and none of it twice."""
    case = Case("mac", 1, 32, 16, (18, 18), Window((3, 3)))
    words = {name: fetched(name, case) for name in TEXTBOOK}
    weights = case.weights.size
    assert min(words, key=lambda name: words[name]["weight"]) == "ws"
    assert words["ws"]["weight"] == weights, "every weight comes into one PE, once"
    assert min(words, key=lambda name: words[name]["ifmap"]) == "is"
    assert 4 * words["is"]["ifmap"] <= min(words[name]["ifmap"] for name in TEXTBOOK if name != "is")
    assert words["rs"]["weight"] == weights * 16, "every kernel row comes once for each row of the results"
    products = 32 * 16 * 16 * 16 * 9
    assert words["nlr"] == {"weight": products, "ifmap": products, "params": 0}, "each product has its own fetches"
    for name in ("os", "ws", "is", "rs"):
        assert all(words[name][operand] < words["nlr"][operand] for operand in ("weight", "ifmap")), name
    # Sums stay in a PE where only loops over c, r and s are inside those over outputs.
    shape = LayerShape("mac", Sizes(1, 32, 16, 16, 16, 3, 3), case.window, 1, 18, 18)
    stays = {name: sums_stay(mapping_of(name, shape, SOUTH)) for name in TEXTBOOK}
    assert stays == {"os": True, "ws": False, "is": False, "rs": False, "nlr": False}


def sums_stay(mapping: Mapping) -> bool:
    in_time = [loop.dim in "crs" for loop in mapping.loops if not loop.keep and not loop.on]
    down = any(loop.on and loop.dim in "crs" for loop in mapping.loops)
    return not down and all(before <= after for before, after in pairwise(in_time))


def test_blocks_and_groups_are_added() -> None:
    """A large image moves in blocks of rows; of a grouped layer a group is mapped at a time."""
    large = LayerShape("mac", Sizes(1, 64, 64, 224, 224, 3, 3), Window((3, 3), pad=(1, 1, 1, 1)), 2, 224, 224)
    grouped = LayerShape("mac", Sizes(2, 16, 4, 7, 7, 3, 3), Window((3, 3), group=4), 2, 9, 9)
    for name in TEXTBOOK:
        mapping = mapping_of(name, large, SOUTH, frozenset({"ifmap", "output"}))
        assert all(stage.depth > 0 for stage in mapping.stages if stage.operand in ("ifmap", "output")), name
        loops = mapping_of(name, grouped, SOUTH).loops
        assert [(loop.dim, loop.step) for loop in loops[:2]] == [("n", 1), ("k", 4)], name


# -- from the command line ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_searches")
def test_names_are_checked(tmp_path: Path) -> None:
    refused = invoke("compile", LENET, "--batch", 1, "--dataflow", "wss", "-o", tmp_path / "x.cnb")
    assert (refused.exit_code, refused.stderr) == (1, "cnncc: no dataflow 'wss': did you mean 'ws'?\n")
    checked = invoke("check", LENET, "--batch", 1, "--dataflow", "unknown")
    assert checked.exit_code == 1
    assert "--dataflow  no dataflow 'unknown': there are: auto, os, ws, is, rs, nlr, inter, " in checked.stdout
    file = tmp_path / "wrong.toml"
    file.write_text('[c1]\ndataflow = "w"\n[c2]\ndataflow = 7\n[f1]\ndataflow = "ws"\np = 2\n[f2]\ndataflw = "ws"\n')
    refused = invoke("compile", LENET, "--batch", 1, "--schedule", file, "-o", tmp_path / "x.cnb")
    assert refused.stderr.splitlines()[1:] == [
        "  c1  dataflow    no dataflow 'w': did you mean 'ws'?",
        "  c2  dataflow 7  not a text: dataflow = \"ws\"",
        "  f1  dataflow    a dataflow and 'p': the dataflow says all: leave out p",
        "  f2  dataflw     unknown key 'dataflw': did you mean 'dataflow'?",
    ]  # fmt: skip
    assert not (tmp_path / "x.cnb").exists()


def test_a_pool_has_no_dataflow_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text('[pool1]\ndataflow = "os"\n')
    refused = invoke("compile", LENET, "--batch", 1, "--schedule", tmp_path / "pool.toml", "-o", tmp_path / "x.cnb")
    assert refused.exit_code == 1
    assert "layer 'pool1': dataflows are for convolutions and fully connected layers" in refused.stderr


def test_by_name_or_by_the_mapper_the_same_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search_with(monkeypatch, SHORT)
    (tmp_path / "three.npz").write_bytes(npz_bytes({"input": np.load(DIGITS)["input"][:3]}))
    outputs: list[bytes] = []
    for options in ((), ("--dataflow", "auto"), ("--dataflow", "os", "--dump-dir", tmp_path / "ir")):
        done("compile", LENET, "--batch", 1, "--calibrate", CALIBRATION, "-o", tmp_path / "a.cnb", *options)
        done("run", tmp_path / "a.cnb", "--input", tmp_path / "three.npz", "--output", tmp_path / "y.npz")
        outputs.append((tmp_path / "y.npz").read_bytes())
    assert len(outputs) == 3 and len(set(outputs)) == 1
    late = invoke("compile", "--from", tmp_path / "ir" / "nest-assign-mapping", "--dataflow", "os")
    assert late.exit_code == 1 and "its layers are mapped already, --dataflow os comes too late" in late.stderr


def test_what_an_array_has_no_links_for_is_refused() -> None:
    shape = LayerShape("mac", Sizes(1, 16, 6, 10, 10, 5, 5), Window((5, 5)), 2, 14, 14)
    north = replace(SOUTH, links=replace(SOUTH.links, south=False))
    for name in ("ws", "rs", "nlr"):
        (found,) = written_violations(shape, north, textbook(name, shape, north), {"weight", "ifmap", "output"})[:1]
        assert "reduced down the rows, but this array has no links.south" in found.what


def test_unknown_names_raise() -> None:
    with pytest.raises(Refusal, match="no dataflow 'x': there are: os, ws, is, rs, nlr"):
        check_dataflow("x", DATAFLOWS)


@pytest.mark.parametrize("name", SEARCHED)
def test_a_form_is_mapped_by_the_mapper(name: str) -> None:
    """No layer with weights takes more cycles than by the textbook's text of the form."""
    shape = LayerShape("mac", Sizes(1, 16, 6, 10, 10, 5, 5), Window((5, 5)), 2, 14, 14)
    budget = GlbBudget(SOUTH.glb.words)
    best = searched(SearchTask(shape, SOUTH, budget, name))
    written = LayerPlan("", shape, mapping_of(name, shape, SOUTH), False, PREFETCHED)
    assert best and best.cycles <= layer_cycles(written, SOUTH)


@pytest.mark.parametrize("name", ["ws", "is"])
def test_a_glb_that_is_too_small_for_a_form_is_named_with_one_that_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal names more words than there are, and soon so many that the network compiles."""
    search_with(monkeypatch, SHORT)
    model, sizes = save(conv_model(), tmp_path / "net.onnx"), [100]
    for _ in range(20):
        (tmp_path / "a.toml").write_text(re.sub(r"(\[glb\]\nwords = )\d+", rf"\g<1>{sizes[-1]}", arch_text(ARRAY)))
        args = ("compile", model, "--arch", tmp_path / "a.toml", "--dataflow", name)
        result = invoke(*args, "-o", tmp_path / "x.cnb")
        if not result.exit_code:
            break
        named = re.findall(r"glb.words ([\d,]+), limit ([\d,]+)", result.stderr)
        assert {int(limit.replace(",", "")) for _, limit in named} == {sizes[-1]}
        sizes.append(max(int(words.replace(",", "")) for words, _ in named))
        assert sizes[-1] > sizes[-2]
    assert (tmp_path / "x.cnb").exists() and sizes[-1] < ARRAY.glb.words
