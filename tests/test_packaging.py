"""Wheel, source archive and bare checkout all work, and stock xdsl-opt finds what an installed cnncc brings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LENET = ROOT / "samples" / "models" / "lenet.onnx"
BUILD = """
import sys
from setuptools import build_meta
output = sys.argv[1]  # setuptools changes it
wheel = build_meta.build_wheel(output)
source = build_meta.build_sdist(output)
print(wheel, source)
"""


def run(command: list[str], cwd: Path, **environment: str) -> str:
    """Standard output of a command that succeeds."""
    result = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def tracked() -> list[str]:
    """The files that make the packages, by their names in the checkout."""
    suffixes = (".py", ".toml", ".html", ".typed")
    folders = (ROOT / name for name in ("cnncc", "dialects", "passes"))
    return sorted(str(p.relative_to(ROOT)) for folder in folders for p in folder.rglob("*") if p.suffix in suffixes)


FOLDERS = (".ci", "benchmarks", "cnncc", "dialects", "docs", "passes", "samples", "tests")


def copy_of_checkout(folder: Path) -> Path:
    """The checkout without what was built in it: links stay links."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist", "Output")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith(".") and path.suffix != ".cnb":
            shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel, and a source archive that was made in the same tree; made once, without network."""
    checkout = copy_of_checkout(tmp_path_factory.mktemp("checkout"))
    output = tmp_path_factory.mktemp("built")
    wheel, source = run([sys.executable, "-c", BUILD, str(output)], checkout).split()[-2:]
    return output / wheel, output / source


def installed_names(names: list[str]) -> set[str]:
    """Where a checkout's files are once installed."""
    return {name if name.startswith("cnncc/") else f"cnncc/{name}" for name in names}


def test_packaging_wheel_holds_every_module_and_preset(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()
    assert len(names) == len(set(names))
    assert {name for name in names if ".dist-info/" not in name} == installed_names(tracked())


def unpack(archive: Path, folder: Path) -> Path:
    """The folder that the archive holds."""
    with tarfile.open(archive) as file:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
            file.extraction_filter = tarfile.data_filter
        file.extractall(folder)
    (unpacked,) = folder.iterdir()
    return unpacked


def test_packaging_source_archive_holds_the_checkout(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Every file, with the links; and nothing but what setuptools writes."""
    checkout, unpacked = copy_of_checkout(tmp_path / "checkout"), unpack(built[1], tmp_path / "unpacked")
    wanted, found = ({str(p.relative_to(top)): p.is_symlink() for p in top.rglob("*")} for top in (checkout, unpacked))
    written = {name for name in found.keys() - wanted.keys() if ".egg-info" not in name}
    assert wanted.items() <= found.items() and written == {"PKG-INFO", "setup.cfg"}


def test_packaging_tests_run_from_the_source_archive(built: tuple[Path, Path], tmp_path: Path) -> None:
    unpacked = unpack(built[1], tmp_path)
    where = "import cnncc.dialects; print(cnncc.dialects.__file__)"
    assert Path(run([sys.executable, "-c", where], unpacked).strip()).is_relative_to(unpacked)
    said = run([sys.executable, "-m", "pytest", "-n", "0", "tests/test_arch.py", "tests/test_pass_manual.py"], unpacked)
    assert re.search(r"^\d+ passed in ", said, re.MULTILINE)


def test_packaging_source_archive_builds_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    unpacked = unpack(built[1], tmp_path)
    run([sys.executable, "-c", BUILD, str(tmp_path)], unpacked)
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built[0]) as first, zipfile.ZipFile(again) as second:
        assert {i.filename: i.CRC for i in first.infolist()} == {i.filename: i.CRC for i in second.infolist()}


def test_packaging_wheel_runs_where_it_is_installed(built: tuple[Path, Path], tmp_path: Path, lenet: bytes) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "install", "--no-index", "--no-deps", "--target", "installed", str(built[0])], tmp_path)
    where = {"PYTHONPATH": str(tmp_path / "installed")}
    assert Path(run([sys.executable, "-c", "import cnncc; print(cnncc.__file__)"], tmp_path, **where)).is_relative_to(
        tmp_path / "installed"
    )
    assert "spatial-8x8" in run([str(tmp_path / "installed" / "bin" / "cnncc"), "arch", "list"], tmp_path, **where)
    assert compiled(tmp_path, [sys.executable], **where) == lenet


def compiled(folder: Path, python: list[str], **environment: str) -> bytes:
    """The binary of LeNet that `python -m cnncc` makes in `folder`."""
    run([*python, "-m", "cnncc", "compile", str(LENET), "--batch", "1", "-o", "lenet.cnb"], folder, **environment)
    return (folder / "lenet.cnb").read_bytes()


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The binary that the code under test makes."""
    return compiled(tmp_path_factory.mktemp("lenet"), [sys.executable], PYTHONPATH=str(ROOT))


def test_packaging_bare_checkout_needs_no_installation(tmp_path: Path, lenet: bytes) -> None:
    checkout = copy_of_checkout(tmp_path / "checkout")
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for path in Path(pytest.__file__).parents[1].iterdir():
        if "cnncc" not in path.name:
            (libraries / path.name).symlink_to(path)
    # -S: no site-packages of the environment, so nothing knows of cnncc but the current folder.
    bare = [sys.executable, "-S"]
    assert "spatial-4x4" in run([*bare, "-m", "cnncc", "arch", "list"], checkout, PYTHONPATH=str(libraries))
    assert compiled(checkout, bare, PYTHONPATH=str(libraries)) == lenet


# -- stock xDSL --------------------------------------------------------------------------------------------------------

XDSL_OPT = Path(sys.executable).with_name("xdsl-opt")
NEST = """
func.func @main(%x: tensor<1x3x7x5xi16>) {
  %0 = nest.layer "max" %x sizes <n = 1, k = 3, c = 1, h = 3, w = 2, r = 2, s = 2>
       window <kernel = [2, 2], stride = [2, 2], group = 3> then <> label "pool0"
       : tensor<1x3x7x5xi16> -> tensor<1x3x3x2xi16> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return
}
"""


def test_packaging_stock_xdsl_opt_runs_our_passes(tmp_path: Path) -> None:
    (tmp_path / "nest.mlir").write_text(NEST)
    printed = run([str(XDSL_OPT), "nest.mlir", "-p", "nest-tile{dim=k size=2}"], tmp_path)
    lines = [line.strip() for line in printed.splitlines()]
    at = lines.index("nest.for k step 2 {")
    assert lines[at + 1 : at + 3] == ["nest.for k {", "nest.for h {"]


def test_packaging_stock_xdsl_opt_lists_our_passes(tmp_path: Path) -> None:
    # argparse breaks lines at hyphens, so a name may stand on two.
    listed = "".join(run([str(XDSL_OPT), "--help"], tmp_path).split())
    assert all(f"{name}," in listed for name in ("nest-tile", "onnx-to-cnn", "array-to-isa"))


def test_packaging_stock_xdsl_opt_says_that_it_has_no_weights(tmp_path: Path) -> None:
    (tmp_path / "nest.mlir").write_text(NEST)
    command = [str(XDSL_OPT), "nest.mlir", "-p", "nest-to-array{arch=spatial-8x8}"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1].endswith(
        "Refusal: this pass reads weights, which stock xDSL tools do not carry: use `cnncc opt`"
    )
