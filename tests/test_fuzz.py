"""The fuzzer: it draws the same graphs again, sees what is planted, and its references agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import float64_ops
import fuzz
import numpy as np
import pytest
from choices import Seeded
from examples import examples
from fuzz_references import Known
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from random_arrays import as_toml
from random_graphs import Network

from cnncc.arch.model import load_arch
from cnncc.driver.pipeline import TO_PROGRAMS, Settings, import_model
from cnncc.driver.program_parts import mapped_parts
from cnncc.errors import Refusal
from cnncc.passes._onnx.builder import CnnBuilder

pytestmark = pytest.mark.usefixtures("short_searches")

GRAPHS = examples(5)  # of each family


@pytest.mark.parametrize("family", fuzz.FAMILIES)
def test_fuzz_some_graphs(family: str) -> None:
    found = [fuzz.attempt(family, 0, i) for i in range(GRAPHS)]
    assert not [verdict.line for verdict in found if verdict.fails]
    assert sum(verdict.kind == "passes" for verdict in found) > GRAPHS // 2


@pytest.mark.parametrize("number", range(GRAPHS))
@pytest.mark.parametrize("family", fuzz.FAMILIES)
def test_fuzz_counts_depend_on_no_range(family: str, number: int, tmp_path: Path) -> None:
    """What prints counts alone does not run the network for the ranges of its values. Refusals are the same, too."""
    case = fuzz.case_of(family, 11, number)
    model, array = tmp_path / "net.onnx", tmp_path / "array.toml"
    model.write_bytes(case.net.model.SerializeToString())
    array.write_text(as_toml(case.array))

    def parts(measured: bool) -> object:
        given = Settings(load_arch(str(array)), str(array), case.bits, dataflow=case.dataflow, measured=measured)
        try:
            compilation = import_model(model, None, given)
            compilation.run_before(TO_PROGRAMS)
            return mapped_parts(compilation)
        except Refusal as refusal:
            return str(refusal)

    assert parts(measured=True) == parts(measured=False)


def contents(case: fuzz.Case) -> tuple[Any, ...]:
    feeds = {name: array.tobytes() for name, array in case.net.feeds.items()}
    return case.net.model.SerializeToString(), feeds, case.array, case.dataflow, case.bits


@pytest.mark.parametrize("family", fuzz.FAMILIES)
def test_fuzz_graphs_are_functions_of_family_seed_and_index(family: str) -> None:
    first = [contents(fuzz.case_of(family, 3, i)) for i in range(5)]
    again = [contents(fuzz.case_of(family, 3, i)) for i in reversed(range(5))][::-1]
    assert first == again
    assert first != [contents(fuzz.case_of(family, 4, i)) for i in range(5)]
    assert len({case[0] for case in first}) == 5


# -- what is planted ---------------------------------------------------------------------------------------------------


def index_of(family: str, found: Callable[[fuzz.Case], bool] = lambda _: True) -> int:
    """A graph that passes and that `found` takes."""
    for index in range(100):
        if found(fuzz.case_of(family, 0, index)) and fuzz.attempt(family, 0, index).kind == "passes":
            return index
    raise AssertionError("no such graph")


def planted_in_the_binary(change: Callable[[np.ndarray], np.ndarray]) -> Any:
    real = fuzz.run

    def run(*arguments: Any) -> dict[str, np.ndarray]:
        return {name: change(array) for name, array in real(*arguments).items()}

    return run


@pytest.mark.parametrize(("family", "kind"), [("float", "run"), ("qoperator", "wrong"), ("qdq", "wrong")])
def test_fuzz_reports_wrong_outputs(monkeypatch: pytest.MonkeyPatch, family: str, kind: str) -> None:
    index = index_of(family)
    monkeypatch.setattr(fuzz, "run", planted_in_the_binary(lambda array: array + array.dtype.type(50)))
    verdict = fuzz.attempt(family, 0, index)
    assert verdict.kind in (kind, "run"), verdict.line
    assert f"--only {index}" in verdict.line


def test_fuzz_reports_wrong_integers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A lowering that forgets every bias: the first level with integers differs from onnxruntime."""

    def has_bias(case: fuzz.Case) -> bool:
        return any(node.op_type == "QLinearConv" and len(node.input) == 9 for node in case.net.model.graph.node)

    index = index_of("qoperator", has_bias)
    monkeypatch.setattr(CnnBuilder, "bias", lambda _, sums, *others: sums)
    verdict = fuzz.attempt("qoperator", 0, index, tmp_path)
    assert verdict.kind == "levels" and "onnx-to-cnn" in verdict.detail, verdict.line
    kept = {path.name for path in (tmp_path / f"qoperator-0-{index}").iterdir()}
    assert kept == {"net.onnx", "array.toml", "input.npz", "command.txt"}


@pytest.mark.parametrize(("error", "kind"), [(ValueError("x"), "exception"), (Refusal("a trap"), "trap")])
def test_fuzz_reports_exceptions_and_traps(monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str) -> None:
    index = index_of("qoperator")

    def run(*_: Any) -> None:
        raise error

    monkeypatch.setattr(fuzz, "run", run)
    assert fuzz.attempt("qoperator", 0, index).kind == kind


def test_fuzz_noise_of_outputs() -> None:
    known = Known(network(lambda net: not net.exact))
    exact = known.joined(known.exact)
    noise = {name: np.sqrt(np.square(array).mean()) for name, array in exact.items()}
    assert any(noise.values())
    rng = np.random.default_rng(0)
    for decibels, is_wrong in ((60, False), (35, True)):
        factor = 10 ** (-decibels / 20)
        got = {name: array + factor * noise[name] * rng.standard_normal(array.shape) for name, array in exact.items()}
        assert bool(known.too_noisy(got)) == is_wrong


def network(wanted: Callable[[Network], bool]) -> Network:
    """The first float network that `wanted` takes."""
    nets = (fuzz.FAMILIES["float"](Seeded(1, i)) for i in range(100))
    return next(net for net in nets if wanted(net))


def test_fuzz_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "shorten_searches", lambda: None)
    index = index_of("qdq")
    assert fuzz.main(["--family", "qdq", "--only", str(index), "--json"]) == 0
    verdict, numbers = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (verdict["family"], verdict["index"], verdict["kind"]) == ("qdq", index, "passes")
    assert (numbers["graphs"], numbers["compiled"], numbers["failing"]) == (1, 1, {})


# -- float64 against onnxruntime ---------------------------------------------------------------------------------------


def loaded(net: Network) -> Known | None:
    """None where onnxruntime does not load the model."""
    try:
        return Known(net)
    except Fail:
        return None


def test_float64_agrees_with_onnxruntime() -> None:
    """Node by node, of graphs that together have every operator."""
    seen: set[str] = set()
    for family, draw in fuzz.FAMILIES.items():
        for index in range(200):
            net = draw(Seeded(2, index))
            if (known := loaded(net)) is None:
                continue
            assert known.disagreement() == "", (family, index)
            seen |= {node.op_type for node in net.model.graph.node}
    assert seen >= set(float64_ops.OPERATORS)


@pytest.mark.parametrize("op", ["Conv", "Relu", "QLinearConv"])
def test_float64_sees_another_value(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    nets = (draw(Seeded(2, index)) for index in range(60) for draw in fuzz.FAMILIES.values())
    known = Known(next(net for net in nets if any(node.op_type == op for node in net.model.graph.node)))
    real = float64_ops.OPERATORS[op]
    monkeypatch.setitem(float64_ops.OPERATORS, op, lambda inputs, attributes: real(inputs, attributes) + 2)
    assert op in known.disagreement()
