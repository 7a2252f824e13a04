"""Mappings that a user gives in a file: which are legal, that legal ones are used as given, and what they compute.

Random legal ones, of random layers on random arrays, are compiled to words and run: outputs against brute force, cycles
against the walk of tile_walk.py, and those of the macro-instructions against a closed form in the numbers of the file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from cli_cases import CALIBRATION, DIGITS, LENET, SAMPLES, done, invoke, refused
from conv_grid_cases import Case, random_layers
from examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nest_cases import SCHEDULE, layer_of
from test_conv_grid import run, scheduled, unmapped
from test_conv_groups import ARRAYS, Small, array_file, check, small_cases
from tile_walk import Walk
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import Arch, Glb, load_arch, parse_arch
from cnncc.dialects.array import MacOp
from cnncc.dialects.nest import mapping_of
from cnncc.dialects.weights import GlobalOp, constant_array
from cnncc.driver.check_findings import array_work
from cnncc.driver.pipeline import Compilation, Settings, Step, new_context
from cnncc.errors import Finding, Refusal
from cnncc.eval.nest import LayerRun
from cnncc.mapping.mapping import Mapping
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.schedule_file import KEYS, read_schedule
from cnncc.passes.nest_to_array import NestToArrayPass
from cnncc.util.npz import npz_bytes
from cnncc.util.toml import MOST_BYTES
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

Numbers = dict[str, int]


def toml(label: str, numbers: Numbers) -> str:
    return f'["{label}"]\n' + "".join(f"{key} = {value}\n" for key, value in numbers.items())


def arch_text(arch: Arch) -> str:
    """An array's file."""

    def lines(table: dict[str, object]) -> str:
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items() if not isinstance(value, dict))

    tables = asdict(arch)
    inner = {key: value for key, value in tables.items() if isinstance(value, dict)}
    return lines(tables) + "".join(f"[{key}]\n{lines(value)}" for key, value in inner.items())


def parts(extent: int, step: int) -> Iterator[int]:
    """The sizes of the parts of an extent."""
    for start in range(0, extent, step):
        yield min(step, extent - start)


# Random legal schedules.


def fits(arch: Arch, window: Window, alone: bool, tky: int, tkx: int, p: int = 1, q: int = 1) -> bool:
    """Whether a PE's files hold what a macro-instruction needs (MEM-4, MAC-6)."""
    pe, inputs = arch.pe, p if alone else q
    shared = 0 if alone or not arch.links.n2n or window.dilation[1] > 1 else max(0, tkx - window.stride[1])
    if pe.pong_words and shared:
        turn, passed = inputs * tky * (tkx - shared), inputs * tky * shared
        fit = turn <= pe.ifmap_words and min(turn, passed) <= pe.pong_words and passed <= pe.virtual_words
    else:
        fit = inputs * tky * tkx <= pe.ifmap_words
    return fit and p <= pe.psum_words and p * q * tky * tkx <= pe.weight_words


@st.composite
def schedules(draw: st.DrawFn, sizes: Numbers, arch: Arch, window: Window, alone: bool) -> Numbers:
    """Legal numbers, some left out. sizes: of k (in a group), c (likewise), h, w, r, s; alone: channelwise."""

    def upto(most: int) -> int:
        return draw(st.integers(1, most))

    def held(most: int, number: Callable[[int], Numbers]) -> int:
        """Of the numbers up to `most` with which all fits, often the largest."""
        found = [i for i in range(1, most + 1) if fits(arch, window, alone, **number(i))]
        assume(found)
        return draw(st.sampled_from([*found, *found[-1:] * len(found)]))

    tiles = {key: upto(sizes[dim]) for key, dim in (("tof", "k"), ("tif", "c"), ("toy", "h"), ("tox", "w"))}
    tiles = {key: size for key, size in tiles.items() if draw(st.booleans())}
    numbers = {"tkx": held(sizes["s"], lambda i: {"tkx": i, "tky": 1})}
    numbers["tky"] = held(sizes["r"], lambda i: {**numbers, "tky": i})
    numbers["p"] = held(min(tiles.get("tof", sizes["k"]), 32), lambda i: {**numbers, "p": i})
    numbers["q"] = 1 if alone else held(tiles.get("tif", sizes["c"]), lambda i: {**numbers, "q": i})
    poy = upto(min(tiles.get("toy", sizes["h"]), arch.rows))
    pox = upto(min(tiles.get("tox", sizes["w"]), arch.cols))
    sets = {"poy": poy, "pox": pox, "pofv": upto(arch.rows // poy), "pofh": upto(arch.cols // pox)}
    return {**tiles, **numbers, **sets}


def complete(sizes: Numbers, numbers: Numbers) -> Numbers:
    whole = {"tof": "k", "tif": "c", "toy": "h", "tox": "w", "tky": "r", "tkx": "s"}
    ones = dict.fromkeys(("poy", "pox", "pofv", "pofh", "p", "q"), 1)
    return {key: sizes[dim] for key, dim in whole.items()} | ones | numbers


def loops_in_time(sizes: Numbers, numbers: Numbers) -> int:
    """Loops that run more than once, of n, groups, tiles, rounds and macro-instructions."""
    t = complete(sizes, numbers)
    count = (sizes["n"] > 1) + (sizes["groups"] > 1)
    steps = {"k": (t["tof"], t["pofv"] * t["pofh"] * t["p"]), "h": (t["toy"], t["poy"]), "w": (t["tox"], t["pox"])}
    steps |= {"c": (t["tif"], t["q"]), "r": (t["tky"],), "s": (t["tkx"],)}
    for dim, each in steps.items():
        extent = sizes[dim]
        for step in each:
            count += step < extent
            extent = min(step, extent)
    return count


def sets_of_channels(channels: int, kr: int, kc: int, p: int, most: int) -> Iterator[int]:
    """Channels of a PE in the macro-instructions, one after the other, of one round; `most` are in a full one.

    What is left over goes, evenly, to sets beside each other, or below where there is one beside.
    """
    rest = channels % (kc * p)
    if channels >= kc * p:
        yield p
    if rest >= p:
        yield p
    if left := rest % p:
        beside, all_sets = min(kc, most // p), min(kr * kc, most // p)
        sets = beside if beside > 1 or (kc > 1 and most > p) else all_sets
        yield min(left // count for count in range(1, sets + 1) if left % count == 0)


def compute_cycles(sizes: Numbers, numbers: Numbers, arch: Arch) -> int:
    """Rule MAC-4 over tiles, rounds and what a macro-instruction takes: p channels of q inputs of tky x tkx taps."""
    t = complete(sizes, numbers)
    rounds = prod(
        sum(1 for tile in parts(sizes[dim], t[tile_key]) for _ in parts(tile, t[factor]))
        for dim, tile_key, factor in (("h", "toy", "poy"), ("w", "tox", "pox"))
    )
    together = t["pofv"] * t["pofh"] * t["p"]
    channels = [
        k for tile in parts(sizes["k"], t["tof"]) for at_once in parts(tile, together)
        for k in sets_of_channels(at_once, t["pofv"], t["pofh"], t["p"], min(together, t["tof"]))
    ]  # fmt: skip
    inputs = [c for tile in parts(sizes["c"], t["tif"]) for c in parts(tile, t["q"])]
    taps = [r * s for r in parts(sizes["r"], t["tky"]) for s in parts(sizes["s"], t["tkx"])]
    overhead = arch.pe.start_cycles + arch.pe.finish_cycles
    macros = sum(overhead + k * c * rs for k in channels for c in inputs for rs in taps)
    return sizes["n"] * sizes["groups"] * rounds * macros


def sizes_of(case: Case) -> Numbers:
    alone = 1 < case.groups == case.channels_out
    (h, w), (r, s) = case.output, case.kernel
    sizes = {"n": case.n, "k": case.channels_out if alone else case.per_group, "c": case.c, "h": h, "w": w}
    return {**sizes, "r": r, "s": s, "groups": 1 if alone else case.groups}


CASES = {
    "plain": (Case(c=5, k=9), {"tof": 5, "toy": 3, "tox": 4, "tif": 3, "poy": 2, "pox": 3, "p": 2, "q": 2, "pofv": 2}),
    "nothing but defaults": (Case(), {}),
    "sets beyond the channels": (Case(k=3, array=(8, 8)), {"p": 2, "pofv": 4, "pofh": 2, "poy": 2, "pox": 3}),
    "part of a kernel": (Case(c=4, k=6, kernel=(5, 5), image=(9, 9)), {"tky": 2, "tkx": 3, "q": 3, "p": 4, "pox": 4}),
    "groups": (Case(group="three", c=3, k=5), {"tof": 4, "p": 2, "pofh": 2, "pox": 2, "poy": 3, "tif": 2, "q": 2}),
    "depthwise": (Case(group="each", c=1, k=17), {"tof": 12, "p": 2, "pofv": 3, "pox": 3, "toy": 2}),
    "fully connected": (Case(c=67, k=96, kernel=(1, 1), image=(1, 1), array=(8, 8)),
                        {"tof": 33, "tif": 30, "p": 3, "q": 11, "pofv": 5, "pofh": 2}),
    "weights in slices": (Case(c=17, k=16, glb=0), {"tif": 6, "q": 2, "p": 4, "pox": 3, "pofv": 2}),
}  # fmt: skip


def check_given(case: Case, numbers: Numbers, folder: Path) -> None:
    (folder / "given.toml").write_text(toml("layer", numbers))
    result, cycles, mapping, arch = run(case, folder / "array.toml", str(folder / "given.toml"))
    assert np.array_equal(result, case.expected), (case, numbers)
    if {stage.operand for stage in mapping.stages if stage.memory == "glb"} <= {"weight", "params"}:
        assert cycles.total == Walk(case, mapping, arch).total(), (case, numbers)
    assert cycles.compute == compute_cycles(sizes_of(case), numbers, arch), (case, numbers)


@pytest.mark.parametrize("name", CASES)
def test_schedule_is_used_as_given(name: str, tmp_path: Path) -> None:
    check_given(*CASES[name], tmp_path)


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_schedule_random_layers(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    case = data.draw(random_layers())
    assume(case.is_mac)
    arch, sizes = parse_arch(case.arch_text(), "here"), sizes_of(case)
    window = Window(case.kernel, case.stride, case.pads, case.dilation)
    numbers = data.draw(schedules(sizes, arch, window, sizes["groups"] == 1 < case.groups))
    assume(loops_in_time(sizes, numbers) <= 8)
    try:
        check_given(case, numbers, tmp_path_factory.mktemp("given"))
    except Refusal as refusal:
        assert refusal.findings[0].resource == "glb.words", refusal.findings
        assume(False)


# What does not lie in the GLB moves through it by the given tiles.


def expected_loops(sizes: Numbers, numbers: Numbers) -> list[tuple[str, int, str]]:
    """Dimension, step and axis of the loops that are not kept, those left out that run once."""
    t = complete(sizes, numbers)
    blocks = [("k", t["tof"], ""), ("h", t["toy"], ""), ("w", t["tox"], "")]
    rounds = [("k", t["pofv"] * t["pofh"] * t["p"], ""), ("h", t["poy"], ""), ("w", t["pox"], "")]
    space = [("k", t["pofh"] * t["p"], "rows"), ("h", 1, "rows"), ("k", t["p"], "cols"), ("w", 1, "cols")]
    inner = [("c", t["tif"], ""), ("c", t["q"], ""), ("r", t["tky"], ""), ("s", t["tkx"], "")]
    left = {**sizes, "k": sizes["k"] * sizes["groups"]}
    found: list[tuple[str, int, str]] = []
    for dim, step, axis in [("n", 1, ""), ("k", sizes["k"], ""), *blocks, *rounds, *space, *inner]:
        if step < left[dim]:
            found.append((dim, step, axis))
            left[dim] = step
    return found


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data(), case=small_cases(), words=st.integers(40, 500))
def test_schedule_moves_through_the_glb(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, case: Small, words: int
) -> None:
    folder = tmp_path_factory.mktemp("given")
    path = array_file(folder, data.draw(st.sampled_from(sorted(ARRAYS))), glb_words=words)
    arch, (h, w), groups = load_arch(str(path)), case.window.output(*case.image), case.window.group
    alone = 1 < groups == case.k
    sizes = {"n": case.n, "k": case.k if alone else case.k // groups, "c": case.c, "h": h, "w": w}
    sizes |= dict(zip("rs", case.window.kernel, strict=True)) | {"groups": 1 if alone else groups}
    numbers = data.draw(schedules(sizes, arch, case.window, alone))
    assume(loops_in_time(sizes, numbers) <= 8)
    (folder / "given.toml").write_text(toml("conv", numbers))
    ctx, found = new_context(), list[Mapping]()
    used = Settings(arch, str(path), 16, schedule=str(folder / "given.toml"))

    def observe(step: Step, module: ModuleOp) -> None:
        if step.name == "nest-stage":
            found.append(mapping_of(layer_of(module)))
        check(step, module, ctx, arch, case)

    try:
        Compilation(ctx, case.network(ctx), used).run("isa", [observe])
    except Refusal as refusal:
        assert refusal.findings[0].resource == "glb.words", refusal.findings
        assume(False)
    loops = [(loop.dim, loop.step, loop.on) for loop in found[0].loops if not loop.keep]
    assert loops == expected_loops(sizes, numbers)


# Channels that are left over.

RESTS = [  # channels, p, pofv, pofh; channels a PE and sets, of one macro-instruction after the other
    (5, 2, 1, 3, [(2, 2), (1, 1)]),  # Fig. 5.17 of the thesis
    (11, 3, 1, 4, [(3, 3), (1, 2)]),
    (11, 3, 4, 1, [(3, 3), (1, 2)]),  # below each other
    (7, 4, 1, 4, [(4, 1), (3, 1)]),  # the loop has one set
    (22, 8, 1, 4, [(8, 2), (3, 2)]),  # 6 by 2 sets
    (13, 8, 1, 4, [(8, 1), (5, 1)]),
    (21, 8, 1, 4, [(8, 2), (5, 1)]),  # 5 cannot be shared evenly by 2
    (30, 4, 2, 3, [(4, 6), (4, 1), (1, 2)]),  # 24, then 6 of a second round
    (3, 2, 1, 1, [(2, 1), (1, 1)]),  # in time
]


@pytest.mark.parametrize(("channels", "p", "pofv", "pofh", "expected"), RESTS)
def test_schedule_spreads_what_p_leaves_over(
    channels: int, p: int, pofv: int, pofh: int, expected: list[tuple[int, int]], tmp_path: Path
) -> None:
    case = Case(c=1, k=channels, kernel=(2, 2), image=(2, 2))
    numbers = {"p": p, "pofv": pofv, "pofh": pofh}
    check_given(case, numbers, tmp_path)
    (tmp_path / "given.toml").write_text(toml("layer", numbers))
    module, ctx, mapping = scheduled(case, str(tmp_path / "array.toml"), str(tmp_path / "given.toml"))
    for apply in SCHEDULE:
        apply.apply(ctx, module)
    arrays = {op.sym_name.data: constant_array(op, ctx.weights) for op in module.ops if isinstance(op, GlobalOp)}
    ran = LayerRun(layer_of(module), arrays, case.x).runs
    assert ran == Counter(sets for _, sets in expected)
    NestToArrayPass(str(tmp_path / "array.toml")).apply(ctx, module)
    macs = [op.record.data for op in module.walk() if isinstance(op, MacOp)]
    assert [(mac.step_range, mac.place.rows * mac.place.cols) for mac in macs] == expected
    predicted = array_work(layer_shape(layer_of(unmapped(case)[0])), mapping, load_arch("spatial-4x4"))
    assert predicted.steps == sum(4 * channels for channels, _ in expected)
    assert predicted.cycles == sum(4 * channels + 4 for channels, _ in expected)


# What is refused.

IMAGE = Case(c=6, k=10, image=(7, 9))  # 10 x 5 x 7 outputs of 6 x 3 x 3 inputs, on 4 x 4 PEs of the preset's files
GROUPS = Case(group="two", c=3, k=4)
DEPTHWISE = Case(group="each", c=1, k=5)
PER_CHANNEL = Case(group="each", c=4, k=5)  # each output channel has 4 input channels of its own

VIOLATIONS = [
    (IMAGE, {"toy": 6}, "toy", 6, 5, "larger than the layer's output rows: leave it out"),
    (IMAGE, {"tox": 8}, "tox", 8, 7, "output columns"),
    (IMAGE, {"tof": 11}, "tof", 11, 10, "the layer's output channels: leave"),
    (IMAGE, {"tif": 7}, "tif", 7, 6, "input channels"),
    (IMAGE, {"tky": 4}, "tky", 4, 3, "kernel rows"),
    (IMAGE, {"tkx": 4}, "tkx", 4, 3, "kernel columns"),
    (GROUPS, {"tof": 5}, "tof", 5, 4, "output channels of a group"),
    (IMAGE, {"toy": 2, "poy": 3}, "poy", 3, 2, "its tile, toy = 2: poy of at most 2, or toy of at least 3"),
    (IMAGE, {"tox": 3, "pox": 4}, "pox", 4, 3, "its tile, tox = 3: pox of at most 3, or tox of at least 4"),
    (IMAGE, {"tof": 4, "p": 5}, "p", 5, 4, "its tile, tof = 4"),
    (IMAGE, {"p": 11}, "p", 11, 10, "its tile, tof = 10: p of at most 10$"),
    (IMAGE, {"tif": 2, "q": 3}, "q", 3, 2, "its tile, tif = 2"),
    (PER_CHANNEL, {"q": 2}, "q", 2, 1, "input channels of its own"),
    (IMAGE, {"poy": 3, "pofv": 2}, "poy * pofv", 6, 4, "2 x 3 PEs do not fit 4 rows: smaller poy or pofv"),
    (IMAGE, {"pofh": 5}, "pox * pofh", 5, 4, "5 x 1 PEs do not fit 4 cols: smaller pox or pofh"),
    (IMAGE, {"p": 9}, "pe.psum_words", 9, 8, "p sums do not fit a PE: smaller p, or an array with psum_words"),
    (IMAGE, {"p": 4, "q": 3}, "pe.weight_words", 108, 100, "q . p . tky . tkx weights do not fit"),
    (IMAGE, {"q": 6}, "pe.ifmap_words", 54, 48, "q . tky . tkx inputs do not fit a PE: smaller q, tky or tkx, or"),
    (DEPTHWISE, {"p": 5, "tkx": 3, "tky": 3, "tof": 5}, "pe.ifmap_words", 45, 40, "p . tky . tkx inputs .*smaller p,"),
    (IMAGE, {"tof": 5, "toy": 4, "tox": 5, "tif": 3, "poy": 2, "pox": 2, "tky": 2, "tkx": 2, "p": 2}, "loops", 10, 8,
     "loops in time are k:5 h:4 w:5 k:2 h:2 w:2 c:3 c:1 r:2 s:2: leave out tiles"),
]  # fmt: skip


def map_layer(case: Case, numbers: Numbers, folder: Path, glb: int = 65536) -> None:
    """Map a layer to 4 x 4 PEs. Raises Refusal."""
    words = {"weight_words": 100, "ifmap_words": 40 if case is DEPTHWISE else 48, "psum_words": 8}
    path = folder / "array.toml"
    pe = replace(load_arch("spatial-4x4").pe, **words)
    path.write_text(arch_text(replace(load_arch("spatial-4x4"), pe=pe, glb=Glb(glb, 4))))
    (folder / "given.toml").write_text(toml("layer", numbers))
    scheduled(case, str(path), str(folder / "given.toml"))


def findings(case: Case, numbers: Numbers, folder: Path, glb: int = 65536) -> tuple[Finding, ...]:
    """What is refused of a layer."""
    with pytest.raises(Refusal) as refused:
        map_layer(case, numbers, folder, glb)
    return refused.value.findings


@pytest.mark.parametrize(("case", "numbers", "resource", "value", "limit", "text"), VIOLATIONS)
def test_schedule_names_what_is_wrong(
    case: Case, numbers: Numbers, resource: str, value: int, limit: int, text: str, tmp_path: Path
) -> None:
    found = {finding.resource: finding for finding in findings(case, numbers, tmp_path)}
    finding = found[resource]
    assert (finding.where, finding.value, finding.limit) == ("layer", value, limit)
    assert re.search(text, finding.text), finding.text


def test_schedule_tiles_beyond_the_glb(tmp_path: Path) -> None:
    """6 channels of the 5 x 5 inputs of 3 x 3 outputs, 3 of these channels, and weights in slices of 2 x 4."""
    numbers = {"toy": 3, "tox": 3, "tof": 3, "tif": 4, "p": 2}
    (finding,) = findings(IMAGE, numbers, tmp_path, glb=200)
    words = 6 * 5 * 5 + 3 * 3 * 3 + 2 * 4 * 3 * 3 + 10 * 2 * 2  # and bias and scale of 10 channels
    assert (finding.resource, finding.value, finding.limit) == ("glb.words", words, 200)
    assert finding.text.startswith("its tiles take ") and "ifmap 150" in finding.text and "output 27" in finding.text
    assert finding.help == "smaller tof, toy, tox or tif, or an array with a larger GLB"
    findings(IMAGE, numbers, tmp_path, glb=words - 1)
    map_layer(IMAGE, numbers, tmp_path, glb=words)


def test_schedule_says_everything_at_once(tmp_path: Path) -> None:
    found = findings(IMAGE, {"toy": 9, "poy": 9, "p": 20, "q": 7, "pofh": 5}, tmp_path)
    assert [(finding.resource, finding.value, finding.limit) for finding in found] == [
        ("toy", 9, 5), ("poy", 9, 5), ("p", 20, 10), ("q", 7, 6), ("poy * pofv", 9, 4), ("pox * pofh", 5, 4),
        ("pe.psum_words", 20, 8), ("pe.weight_words", 1260, 100), ("pe.ifmap_words", 63, 48),
    ]  # fmt: skip


def test_schedule_is_for_layers_with_weights(tmp_path: Path) -> None:
    (finding,) = findings(Case(kind="max"), {}, tmp_path)
    assert finding.text.startswith("schedules are for convolutions and fully connected layers, this is none: leave it")


BAD_FILES = [
    ('["c1"\n', "not TOML: "),
    ("p = 1", "'p': stands outside every table: tables are named by layers"),
    ("[c1]\npofw = 1", "'c1': unknown key 'pofw': did you mean 'pofv'?"),
    ("[c1]\nzzz = 1", f"'c1': unknown key 'zzz': there are: {', '.join(KEYS)}"),
    ("[c1]\np = 0", "'c1': p is from 1 to 2,147,483,647, not 0"),
    (f"[c1]\np = {10**30}", "'c1': p is from 1 to"),
    ("[c1]\np = 99" + "9" * 5000, "not TOML: "),
    ("[c1]\np = 1.5", "'c1': p is a whole number, not 1.5"),
    ("[c1]\np = true", "'c1': p is a whole number, not True"),
    ("[c1]\np = '1'", "'c1': p is a whole number, not '1'"),
    ("[a.0]\np = 1", """'a': a table in a table, '0': a label with dots stands in quotes: ["a.0"]"""),
    ("[c1]\np = " + "[" * 100_000, "nested too deeply"),
    ("#" * (MOST_BYTES + 1), "has more than 1,048,576 bytes, the limit of a TOML file"),
    ("\x00", "not TOML: "),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_schedule_files_that_are_none(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "given.toml").write_text(text)
    with pytest.raises(Refusal, match=f"given.toml: {re.escape(message)}|given.toml: .*{re.escape(message)}"):
        read_schedule(str(tmp_path / "given.toml"))


# Through the command line.

LENET_SCHEDULE = """
[c1]
toy = 14
poy = 4
pox = 2
pofv = 2
pofh = 3
[c2]
tof = 8
tif = 3
poy = 5
pox = 2
pofh = 4
p = 2
[f1]
pofv = 8
pofh = 3
p = 5
q = 16
"""
RESNET_SCHEDULE = """
["s1b1.conv1"]
poy = 4
pox = 4
pofv = 2
pofh = 2
p = 4
["s3b3.conv2"]
tof = 32
tif = 16
poy = 7
pox = 7
p = 11
q = 1
["fc"]
pofv = 5
pofh = 2
q = 8
"""


def compiled(model: Path, folder: Path, name: str, *options: object) -> bytes:
    """The outputs of a binary for three images."""
    (images := folder / "three.npz").write_bytes(npz_bytes({"input": np.load(DIGITS)["input"][:3]}))
    files = [folder / f"{name}.{kind}" for kind in ("cnb", "npz", "json")]
    done("compile", model, "--batch", 1, "--calibrate", CALIBRATION, "-o", files[0], *options)
    done("run", files[0], "--input", images, "--output", files[1], "--stats", files[2])
    return files[1].read_bytes()


def compute(folder: Path, name: str) -> dict[str, int]:
    layers = json.loads((folder / f"{name}.json").read_text())["layers"]
    return {label: layer["cycles"]["compute"] for label, layer in layers.items()}


def test_schedule_of_lenet(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(LENET_SCHEDULE)
    alone = ("--dataflow", "nlr")  # then no layer's mapping depends on those beside it
    own = compiled(LENET, tmp_path, "own", *alone)
    assert compiled(LENET, tmp_path, "auto", "--schedule", tmp_path / "mine.toml") == own
    assert compiled(LENET, tmp_path, "mine", *alone, "--schedule", tmp_path / "mine.toml") == own
    before, after = compute(tmp_path, "own"), compute(tmp_path, "mine")
    # 7 x 14 rounds of all 6 channels; 2 tiles of 8 channels, 2 x 5 rounds of one input channel of 6 each; and
    # 120 = 8 x 3 x 5 channels in one round, 25 times 16 inputs.
    assert after["c1"] == 2 * 4 * 14 * (25 + 4) and after["c2"] == 2 * 2 * 5 * 6 * (2 * 25 + 4)
    assert after["f1"] == 25 * (5 * 16 + 4)
    assert {label for label in after if after[label] != before[label]} == {"c1", "c2", "f1"}


def test_schedule_of_resnet(tmp_path: Path) -> None:
    model = SAMPLES / "models" / "resnet20.onnx"
    (tmp_path / "mine.toml").write_text(RESNET_SCHEDULE)
    own = compiled(model, tmp_path, "own")
    assert compiled(model, tmp_path, "mine", "--schedule", tmp_path / "mine.toml") == own
    after = compute(tmp_path, "mine")
    # 28 x 28 outputs by 4 x 4, 16 channels of p = 4 at a time, 16 inputs; 7 x 7 outputs, p = 11 of 32 twice, 64 inputs.
    assert after["s1b1.conv1"] == 49 * 16 * (4 * 9 + 4)
    assert after["s3b3.conv2"] == 2 * 64 * (2 * (11 * 9 + 4) + (10 * 9 + 4))
    # 10 channels side by side, 64 inputs by 8.
    assert after["fc"] == 8 * (8 + 4)


def test_a_dataflow_that_the_array_has_no_links_for_names_what_helps(tmp_path: Path) -> None:
    options = (LENET, "--batch", 1, "--calibrate", CALIBRATION, "--arch", "seed-4x4", "--dataflow", "nlr")
    first, *others = refused("compile", *options, "-o", tmp_path / "x.cnb").splitlines()
    assert first == "cnncc: nest-assign-mapping: the mapping of all layers: 4 problems"
    what = "c is reduced down the rows, but this array has no links.south: another dataflow than nlr"
    assert [" ".join(line.split()) for line in others] == [f"{layer} {what}" for layer in ("c2", "f1", "f2", "f3")]


def test_schedule_through_verify_and_check(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(LENET_SCHEDULE)
    options = (LENET, "--batch", 1, "--calibrate", CALIBRATION, "--schedule", mine)
    assert "steps agree" in done("verify", *options, "--images", 1, "--input", DIGITS).stdout
    plain = done("check", *options[:-2]).stdout
    assert done("check", *options).stdout != plain
    mine.write_text("[c1]\nq = 2\n[c22]\np = 1\n['/c2/Conv']\np = 9\n[pool1]\n")
    message = refused("compile", *options, "-o", tmp_path / "x.cnb")
    assert message.splitlines()[0] == "cnncc: nest-assign-mapping: the schedule: 5 problems"
    lines = [" ".join(line.split()) for line in message.splitlines()[1:]]
    assert lines == [
        "c1 q 2, limit 1 larger than its tile, tif = 1: q of at most 1",
        "c1 pe.ifmap_words 50, limit 48 q * tky * tkx inputs do not fit a PE: smaller q, tky or tkx, or an array with "
        "ifmap_words of at least 50",
        "c22 there is no such layer on the array: did you mean 'c2'?",
        "/c2/Conv there is no such layer on the array: that node's label is 'c2'",
        "pool1 schedules are for convolutions and fully connected layers, this is none: leave it out: the compiler "
        "maps it",
    ]
    assert not (tmp_path / "x.cnb").exists()
    checked = invoke("check", *options)
    assert checked.exit_code == 1 and "5 blocking" in checked.stdout
    assert "could not be looked at" not in checked.stdout, "the rest is looked at with the compiler's own mappings"


def test_schedule_of_one_layer_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[c1]\nq = 2\ntky = 2")
    message = refused("compile", LENET, "--batch", 1, "--schedule", tmp_path / "mine.toml", "-o", tmp_path / "x.cnb")
    assert message == (
        "cnncc: nest-assign-mapping: layer 'c1': q 2, limit 1: larger than its tile, tif = 1: q of at most 1"
    )
    message = refused("compile", LENET, "--batch", 1, "--schedule", tmp_path / "none.toml", "-o", tmp_path / "x.cnb")
    assert message == f"cnncc: {tmp_path}/none.toml: No such file or directory"


def test_schedule_comes_before_the_nest_is_mapped(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(LENET_SCHEDULE)
    options = ("--calibrate", CALIBRATION, "--dump-dir", tmp_path / "ir", "-o", tmp_path / "a.cnb")
    done("compile", LENET, "--batch", 1, "--schedule", mine, *options)
    done("compile", "--from", tmp_path / "ir" / "cnn-to-nest", "--schedule", mine, "-o", tmp_path / "b.cnb")
    done("compile", "--from", tmp_path / "ir" / "nest-assign-mapping", "-o", tmp_path / "c.cnb")
    programs = [done("disasm", tmp_path / name).stdout for name in ("a.cnb", "b.cnb", "c.cnb")]
    assert programs[0] == programs[1] == programs[2]
    (late,) = (tmp_path / "ir").glob("*-nest-assign-mapping.mlir")
    message = refused("compile", "--from", late, "--schedule", mine, "-o", tmp_path / "c.cnb")
    too_late = f"cnncc: {late}: its layers are mapped already, --schedule {mine} comes too late"
    assert message == f"{too_late}: give IR from before nest-assign-mapping, or the model"


def test_schedule_has_groups_before_others_are_made(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    mine.write_text('[[group]]\nlayers = ["c1", "pool1"]\nrows = 2\n')
    other.write_text('[[group]]\nlayers = ["c2", "pool2"]\nrows = 1\n')
    options = ("--calibrate", CALIBRATION, "--dump-dir", tmp_path / "ir", "-o", tmp_path / "a.cnb")
    done("compile", LENET, "--batch", 1, "--groups", mine, *options)
    done("compile", "--from", tmp_path / "ir" / "nest-stage", "--groups", mine, "-o", tmp_path / "b.cnb")
    programs = [done("disasm", tmp_path / name).stdout for name in ("a.cnb", "b.cnb")]
    assert programs[0] == programs[1]
    (late,) = (tmp_path / "ir").glob("*-nest-group.mlir")
    message = refused("compile", "--from", late, "--groups", other, "-o", tmp_path / "c.cnb")
    too_late = f"cnncc: {late}: its groups are made already, --groups {other} comes too late"
    assert message == f"{too_late}: give IR from before nest-group, or the model"
