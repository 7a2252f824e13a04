"""What nest passes say where they find nothing to do: options that name nothing are refused, the rest is noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnncc.driver.opt_main import run_opt
from cnncc.errors import Refusal
from cnncc.universe import PASSES

LAYERS = """func.func @main(%x: tensor<1x3x7x5xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 10, c = 3, h = 7, w = 5, r = 3, s = 3>
       window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <bias = "b">
       label "conv0" : tensor<1x3x7x5xi16> -> tensor<1x10x7x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  %1 = nest.layer "max" %0 sizes <n = 1, k = 10, c = 1, h = 3, w = 2, r = 2, s = 2>
       window <kernel = [2, 2], stride = [2, 2], group = 10> then <>
       label "pool0" : tensor<1x10x7x5xi32> -> tensor<1x10x3x2xi32> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return
}
"""
EMPTY = "func.func @main(%x: tensor<1x3x7x5xi16>) { func.return }\n"

# By hand: the options for a loop or operand {}, one that only conv0 has, one that no layer has.
BY_HAND = [
    ("nest-tile", "dim={} size=2", "c", "n"),
    ("nest-permute", 'order="{},k,w,h,r,s"', "c", "n"),
    ("nest-unroll", "dim={} axis=rows", "c", "n"),
    ("nest-unroll", "dim=h axis=rows occurrence={}", None, "2"),
    ("nest-stage", "operand={} memory=glb depth=0", "weight", "residual"),
    ("nest-split", "dim={} size=2", "c", "n"),
    ("nest-interchange", "loops={},h", "c", "n"),
    ("nest-interchange", "loops=k{},h", None, "3"),
    ("nest-keep", "loops={},s", "c", "n"),
    ("nest-merge-loops", "dim={}", None, "n"),
]
WITHOUT = ["nest-tile", "nest-permute", "nest-unroll", "nest-stage"]
EVERY = sorted({name for name, *_ in BY_HAND} | {"nest-normalise", "nest-assign-mapping"})


OTHERS = {"nest-cores", "nest-group", "nest-to-array", "nest-to-scf"}  # they are told of no layer, or take all


def test_nest_notes_of_every_pass() -> None:
    assert {name for name in PASSES if name.startswith("nest-")} - OTHERS == {*EVERY}


def opt(tmp_path: Path, text: str, passes: str) -> str:
    """The module after the passes."""
    source, output = tmp_path / "in.mlir", tmp_path / "out.mlir"
    source.write_text(text)
    run_opt([str(source), "-p", passes, "-o", str(output)])
    return output.read_text()


@pytest.mark.parametrize(("name", "options", "missing"), [(name, options, none) for name, options, _, none in BY_HAND])
def test_nest_notes_what_no_layer_has_is_refused(name: str, options: str, missing: str, tmp_path: Path) -> None:
    spec = f"{name}{{{options.format(missing)}}}"
    with pytest.raises(Refusal, match=f"^{name}: no layer has what the options name$") as refusal:
        opt(tmp_path, LAYERS, spec)
    assert [part.where for part in refusal.value.findings] == ["conv0", "pool0"]
    assert all(f" {missing}" in part.text for part in refusal.value.findings)
    with pytest.raises(Refusal, match=f"^{name}: layer 'pool0': .*(there are k, h, w, r, s|it has )"):
        opt(tmp_path, LAYERS, f"{spec[:-1]} layer=pool0}}")
    with pytest.raises(Refusal, match=f"^{name}: the module has no nest.layer: cnn-to-nest makes them"):
        opt(tmp_path, EMPTY, spec)


@pytest.mark.parametrize(("name", "options", "rare"), [(name, options, c) for name, options, c, _ in BY_HAND if c])
def test_nest_notes_what_some_layers_lack(
    name: str, options: str, rare: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = f"{name}{{{options.format(rare)}}}"
    changed = opt(tmp_path, LAYERS, spec)
    said = capsys.readouterr().err
    assert said.startswith(f"cnncc: note: {name}: pool0: ")
    assert said.endswith(": left as it is\n")
    assert f" {rare}" in said
    assert changed == opt(tmp_path, LAYERS, f"{spec[:-1]} layer=conv0}}")
    assert not capsys.readouterr().err
    assert changed != opt(tmp_path, LAYERS, "nest-tile")


@pytest.mark.parametrize("name", WITHOUT)
def test_nest_notes_no_layer_has_a_mapping(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opt(tmp_path, LAYERS, name)
    assert capsys.readouterr().err == f"cnncc: note: {name}: nothing to do: no layer has a mapping\n"


@pytest.mark.parametrize("spec", [*WITHOUT, "nest-normalise", "nest-assign-mapping{arch=spatial-4x4}"])
def test_nest_notes_there_is_no_layer(spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opt(tmp_path, EMPTY, spec)
    name = spec.partition("{")[0]
    assert capsys.readouterr().err == f"cnncc: note: {name}: nothing to do: the module has no nest.layer\n"


@pytest.mark.parametrize("spec", ['nest-permute{order="k,h,w,c,r,s" layer=conv0}', "nest-normalise"])
def test_nest_notes_nests_that_stay_the_same(spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opt(tmp_path, LAYERS, spec)
    name = spec.partition("{")[0]
    assert capsys.readouterr().err == f"cnncc: note: {name}: nothing to do: the nests have this form already\n"


@pytest.mark.parametrize("name", EVERY)
def test_nest_notes_a_layer_that_is_not_there(name: str, tmp_path: Path) -> None:
    options = next((each.format("h") for other, each, *_ in BY_HAND if other == name), "")
    options = {"nest-stage": "operand=ifmap memory=glb depth=0", "nest-assign-mapping": "arch=spatial-4x4"}.get(
        name, options
    )
    with pytest.raises(Refusal, match=r"there is no layer 'conv9'; layers: conv0, pool0"):
        opt(tmp_path, LAYERS, f"{name}{{{f'{options} layer=conv9'.strip()}}}")


ASSIGN = "nest-assign-mapping{arch=spatial-4x4}"


@pytest.mark.parametrize(
    "by_hand", ['nest-permute{order="c,k,h,w,r,s" layer=conv0}', "nest-split{dim=h size=4 layer=conv0}"]
)
def test_nest_notes_loops_by_hand_that_a_mapping_replaces(
    by_hand: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever tiles the mapping has: nest-tile refuses other ones, and says nothing of equal ones."""
    changed = opt(tmp_path, LAYERS, by_hand)
    capsys.readouterr()
    opt(tmp_path, changed, ASSIGN)
    assert capsys.readouterr().err == (
        "cnncc: warning: nest-assign-mapping: conv0: its loops are not those of cnn-to-nest, and its mapping does not "
        "keep them: loops by hand are for a dump after nest-unroll\n"
    )


def test_nest_notes_no_loops_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A loop that runs once is none; a mapping may be assigned again; another layer is not looked at."""
    opt(tmp_path, LAYERS.replace("nest.for k {", "nest.for n { nest.for k {", 1).replace("} } }", "} } } }", 1), ASSIGN)
    opt(tmp_path, LAYERS, f"{ASSIGN},{ASSIGN}")
    opt(tmp_path, LAYERS, f"nest-split{{dim=h size=3 layer=conv0}},{ASSIGN[:-1]} layer=pool0}}")
    assert not capsys.readouterr().err
