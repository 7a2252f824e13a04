"""What holds for the repository as a whole: layers of imports, one thing a file, packages, size, what the CLI loads."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from xdsl.ir import Dialect
from xdsl.passes import ModulePass

from cnncc.universe import DIALECTS, PASSES

ROOT = Path(__file__).parent.parent
FILECHECK = ROOT / "tests" / "filecheck"
FOLDERS = (("dialects", "cnncc.dialects"), ("passes", "cnncc.passes"), ("cnncc", "cnncc"))

# A name imports only names of the rows above it, and itself where it is a package. Not its neighbours in the row:
# so no pass sees the machine that runs what it makes, nor the machine a pass.
LAYERS = (
    ("errors",),
    ("weights", "numerics", "window"),
    ("util", "draws"),
    ("arch", "mapping"),
    ("isa", "array_instructions"),
    ("context", "quant"),
    ("dialects",),
    ("main_function",),
    ("frontend", "model", "tcpa", "cbrain"),
    ("mapper", "machine"),
    ("passes", "binary"),
    ("universe", "eval"),
    ("proof",),
    ("driver",),
    ("explore",),
    ("estimate",),
    ("certificate",),
    ("cli", "api"),
    ("__main__",),
)
APART = (("eval", "passes"),)  # an evaluator takes all from the op that it runs
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}


def modules() -> dict[str, Path]:
    """Every module by its import name; rglob does not go through the links `cnncc/dialects` and `cnncc/passes`."""
    found: dict[str, Path] = {}
    for folder, package in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join((package, *path.relative_to(ROOT / folder).with_suffix("").parts))
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@cache  # each test reads all modules
def nodes(source: str) -> list[ast.AST]:
    """All nodes of a module's syntax tree that bind a name."""
    bind = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.Name, ast.arg)
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, bind)]


def imports(source: str) -> Iterator[str]:
    """The modules of cnncc that a module imports anywhere, inside functions too."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "cnncc" and name != "cnncc")


def layer(module: str) -> str:
    """`cnncc.eval.nest` belongs to `eval`."""
    return module.split(".")[1]


def wrong_way(importer: str, source: str) -> list[str]:
    """The imports that no row above holds, and those of a package to stay apart from."""
    own, names = layer(importer), list(imports(source))
    above = [name for name in names if layer(name) == own or RANK[layer(name)] < RANK[own]]
    return [name for name in names if name not in above or (own, layer(name)) in APART]


def test_repository_imports_go_one_way() -> None:
    found = {name: wrong_way(name, path.read_text()) for name, path in MODULES.items() if name != "cnncc"}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("importer", "source", "wrong"),
    [
        ("cnncc.binary.run", "from cnncc.passes import nest_tile", ["cnncc.passes.nest_tile"]),
        ("cnncc.passes.nest_tile", "from cnncc.binary.run import run", ["cnncc.binary.run.run"]),
        ("cnncc.isa.codec", "def f():\n    import cnncc.dialects.isa", ["cnncc.dialects.isa"]),
        ("cnncc.numerics", "from cnncc import weights", ["cnncc.weights"]),
        ("cnncc.eval.nest", "from cnncc.eval import cnn\nfrom cnncc.dialects import nest\nimport numpy", []),
        ("cnncc.eval.nest", "from cnncc.passes import nest_tile", ["cnncc.passes.nest_tile"]),
    ],
)
def test_repository_wrong_imports_are_found(importer: str, source: str, wrong: list[str]) -> None:
    assert wrong_way(importer, source) == wrong


def test_repository_helpers_of_dialects_are_used_by_dialects_alone() -> None:
    others = {name: path for name, path in MODULES.items() if not name.startswith("cnncc.dialects")}
    targets = {(name, target) for name, path in others.items() for target in imports(path.read_text())}
    assert {(name, target) for name, target in targets if target.startswith("cnncc.dialects._")} == set()


def circles() -> list[set[str]]:
    """Modules that import each other, perhaps by way of others, inside functions and for types too."""
    graph = {
        name: {target for target in map(module_of, imports(path.read_text())) if target and target != name}
        for name, path in MODULES.items()
    }
    reached = {name: reachable(graph, name) for name in graph}
    return [
        {name} | {other for other in reached[name] if name in reached[other]} for name in graph if name in reached[name]
    ]


def module_of(imported: str) -> str:
    """`cnncc.eval.cnn.evaluate` is of `cnncc.eval.cnn`; packages hold nothing but a docstring."""
    name = imported if imported in MODULES else imported.rpartition(".")[0]
    return name if name in MODULES and MODULES[name].name != "__init__.py" else ""


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What `start` imports, directly or not."""
    seen: set[str] = set()
    pending = list(graph[start])
    while pending:
        if (name := pending.pop()) not in seen:
            seen.add(name)
            pending += graph[name]
    return seen


def test_repository_imports_have_no_circle() -> None:
    assert circles() == []


def test_repository_machine_knows_neither_ir_nor_onnx() -> None:
    """What a program computes, and when, follows from instructions alone."""
    names = sorted(name for name in MODULES if name.startswith("cnncc.machine"))
    script = f"import sys, {', '.join(names)}; print(*sorted({{'xdsl', 'onnx', 'onnxruntime'}} & {{*sys.modules}}))"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("\n", "")


# Names that files share on purpose: a command and what it runs, a dialect and its evaluator, a generator of a manual.
SHARED_FILES = {
    "array.py",
    "atoms.py",
    "check.py",
    "cnn.py",
    "isa.py",
    "manual.py",
    "nest.py",
    "onnx.py",
    "run.py",
    "verify.py",
    "weights.py",
}


def test_repository_a_file_name_has_one_meaning() -> None:
    names = Counter(path.name for path in MODULES.values() if path.name != "__init__.py")
    assert {name for name, count in names.items() if count > 1} == SHARED_FILES


def test_repository_a_class_name_has_one_meaning() -> None:
    """Operations are called by their dialects: `array.LayerOp`."""
    found = Counter(
        node.name
        for path in MODULES.values()
        for node in nodes(path.read_text())
        if isinstance(node, ast.ClassDef) and not node.name.endswith("Op")
    )
    assert [name for name, count in found.items() if count > 1] == []


VAGUE = {"found", "which", "here", "much"}  # names that say nothing of the value


def test_repository_names_say_what_they_hold() -> None:
    bound = {
        (name, node.id if isinstance(node, ast.Name) else node.arg)
        for name, path in MODULES.items()
        for node in nodes(path.read_text())
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    assert {(name, variable) for name, variable in bound if variable in VAGUE} == set()


def test_repository_files_that_are_named_exist() -> None:
    """In docs, docstrings and comments: by name, or by folder and name."""
    folders = [ROOT / name for name in ("cnncc", "dialects", "passes", "tests", "samples", "benchmarks")]
    files = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.py")]
    known = {"/".join(path.parts[first:]) for path in files for first in range(len(path.parts))}
    known |= {"NAME.py", "cnncc/cli/NAME.py", "passes/onnx_merge_relu.py", "compare.py"}  # examples
    texts = [*files, *(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    named = {(path, name) for path in texts for name in re.findall(r"`((?:\w+/)*\w+\.py)`", (ROOT / path).read_text())}
    assert {(path, name) for path, name in named if name not in known} == set()


def test_repository_layers_name_what_there_is() -> None:
    assert set(RANK) == {layer(name) for name in MODULES if name != "cnncc"}
    assert (ROOT / "cnncc" / "dialects").resolve() == ROOT / "dialects"
    assert (ROOT / "cnncc" / "passes").resolve() == ROOT / "passes"


def test_repository_packages_are_those_of_the_tree() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")
    assert sorted(setuptools["packages"]) == packages
    homes = {package: folder for folder, package in FOLDERS}
    assert setuptools["package-dir"] == homes
    holders = {name.rpartition(".")[0] for name, path in MODULES.items() if path.name != "__init__.py"}
    assert holders <= set(packages), "a folder of modules lacks __init__.py"


def test_repository_type_check_sees_every_package() -> None:
    """Neither the type check nor rglob goes through a link inside a folder: packages behind one are named as well."""
    check = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["basedpyright"]
    seen = {path for folder in check["include"] for path in (ROOT / folder).rglob("*.py")}
    folders = {name: ROOT.joinpath(*name.split(".")) for name, path in MODULES.items() if path.name == "__init__.py"}
    assert [name for name, folder in folders.items() if not set(folder.glob("*.py")) <= seen] == []
    assert check["typeCheckingMode"] == "strict" and "ignore" not in check


def classes_in(module: str, base: type) -> list[type]:
    """The subclasses of `base` that a module defines."""
    found = vars(importlib.import_module(module)).values()
    return [item for item in found if isinstance(item, type) and issubclass(item, base) and item.__module__ == module]


def described(item: type) -> bool:
    """Has it a docstring of its own? A dataclass without one gets its signature."""
    return bool(item.__doc__) and not item.__doc__.startswith(f"{item.__name__}(")


def public(folder: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / folder).glob("*.py") if not path.name.startswith("_"))


@pytest.mark.parametrize("name", public("passes"))
def test_repository_pass_file(name: str) -> None:
    (only,) = classes_in(f"cnncc.passes.{name}", ModulePass)
    assert only.__name__ == "".join(map(str.capitalize, name.split("_"))) + "Pass"
    assert only.name == name.replace("_", "-")
    assert described(only)
    assert PASSES[only.name]() is only
    assert (FILECHECK / "passes" / f"{name}.mlir").is_file()


@pytest.mark.parametrize("name", public("dialects"))
def test_repository_dialect_file(name: str) -> None:
    module = importlib.import_module(f"cnncc.dialects.{name}")
    (only,) = [item for item in vars(module).values() if isinstance(item, Dialect)]
    assert only is getattr(module, name.upper())
    assert only.name == name
    assert DIALECTS[name]() is only
    assert (FILECHECK / "dialects" / f"{name}.mlir").is_file()
    assert [item.__name__ for item in (*only.operations, *only.attributes) if not described(item)] == []


def test_repository_helper_files_hold_no_pass_or_dialect() -> None:
    for name in MODULES:
        if name.startswith(("cnncc.dialects._", "cnncc.passes._")):
            assert classes_in(name, ModulePass) == []
            assert not any(isinstance(item, Dialect) for item in vars(importlib.import_module(name)).values())


@pytest.mark.parametrize("folder", sorted((ROOT / "passes").glob("_[a-z]*")), ids=lambda folder: folder.name)
def test_repository_helper_files_have_their_line(folder: Path) -> None:
    """In the docstring of their folder, what each is for."""
    lines = re.findall(r"^ +(\w+\.py) +\S", (folder / "__init__.py").read_text(), re.MULTILINE)
    assert sorted([*lines, "__init__.py"]) == sorted(path.name for path in folder.glob("*.py"))


def test_repository_filecheck_files_belong_to_something() -> None:
    for folder, names in (("passes", public("passes")), ("dialects", public("dialects"))):
        for path in (FILECHECK / folder).glob("*.mlir"):
            assert path.stem in names or path.stem.rpartition("_")[0] in names, path


@pytest.mark.parametrize("line", ["import dialects", "from dialects import nest", "from passes.nest_tile import tile"])
def test_repository_second_import_names_are_banned(line: str) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "check", "--select", "TID251", "--stdin-filename", "cnncc/some.py", "-"]
    result = subprocess.run(command, input=f"{line}\n", cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1 and "TID251" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("args", [["--help"], ["compile", "--help"], ["arch", "list"], ["arch", "show", "spatial-4x4"]])
def test_repository_cli_starts_light(args: list[str]) -> None:
    script = (
        "import sys\n"
        "from cnncc.cli.main import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "print('loaded:', *sorted(sys.modules.keys() & {'onnx', 'onnxruntime'}))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, *args]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "loaded:"
