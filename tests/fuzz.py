"""Random graphs on random arrays against references; see `python tests/fuzz.py --help`.

Graph I of seed S is a function of the family, S and I alone. A graph fails by one of these kinds:

    exception    anything but a Refusal was raised
    trap         a compiled program cannot be run
    race         the order of its engines' accesses to the GLB does not follow from its tokens
    levels       two levels of the compiler compute different values
    run          the binary gives other outputs than the last level
    wrong        integers are not onnxruntime's; of qdq: further away than steps of its scales explain
    noise        a layer errs by more than rounding explains, or an output has too low a signal-to-noise ratio (SQNR)
    references   onnxruntime and tests/float64_ops.py differ
    slow         it took more than a minute

The references are onnxruntime without optimisations and float64_ops. A graph is `illegal`, which is no failure, where
onnxruntime does not load it: ONNX's shapes of pools with ceil_mode are not always those that onnxruntime computes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fuzz_references as references
import numpy as np
from choices import Seeded
from odd_graphs import odd_network
from random_arrays import as_toml, odd_array
from random_codes import odd_quantised_network
from random_graphs import Network
from random_qdq import qdq_network
from searches import FEWEST, forget

from cnncc.arch.model import parse_arch
from cnncc.binary.container import from_bytes, to_bytes
from cnncc.binary.isa_module import build_binary
from cnncc.binary.run import run
from cnncc.driver.check_findings import lost_bits
from cnncc.driver.pipeline import Compilation, Settings, Step, StepFailed, import_model
from cnncc.driver.verify import Differs, Verifier
from cnncc.errors import Refusal, one_line
from cnncc.machine.races import races
from cnncc.mapper import cached_search, layer_search
from cnncc.passes._scheduling.dataflows import AUTO, DATAFLOWS
from cnncc.passes._scheduling.glb_words import GlbTooSmall
from cnncc.util import disk_cache

FAMILIES = {"float": odd_network, "qoperator": odd_quantised_network, "qdq": qdq_network}
# Steps after which the same level has another that is run: `cnncc verify` runs all.
BETWEEN = (
    "cnn-fuse-epilogue", "cnn-to-nest", "nest-assign-mapping", "nest-tile", "nest-permute", "nest-unroll",
    "nest-to-array", "array-prefetch",
)  # fmt: skip
FINE = ("passes", "refused", "illegal")  # kinds of verdicts that are no failures
TO_CNN = "onnx-to-cnn"
SECONDS = 60  # for one graph
ATTEMPTS = 20  # with the GLB that a refusal names


@dataclass(frozen=True)
class Case:
    """A network, an array's numbers, a dataflow and an operand width."""

    net: Network
    array: dict[str, Any]
    dataflow: str
    bits: int


@dataclass(frozen=True)
class Verdict:
    """What became of a graph. kind: `passes`, `refused`, `illegal`, or how it fails (see above)."""

    family: str
    seed: int
    index: int
    kind: str
    detail: str
    nodes: str
    array: str
    dataflow: str

    @property
    def fails(self) -> bool:
        return self.kind not in FINE

    @property
    def line(self) -> str:
        """One line for a reader."""
        where = f"{self.family} --seed {self.seed} --only {self.index}"
        return f"{where}: {self.kind}: {self.detail} | {self.nodes} | {self.array} {self.dataflow}"


class Failure(Exception):
    """A graph that fails: the kind, and what was seen."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def case_of(family: str, seed: int, index: int) -> Case:
    """Graph `index` of `seed`."""
    choice = Seeded(seed, index, list(FAMILIES).index(family))
    array = odd_array(choice)
    dataflow = choice.one([AUTO, AUTO, *DATAFLOWS])
    bits = choice.one([16, 16, 16, 8]) if array["operand_bits"] == 16 else 8
    return Case(FAMILIES[family](choice), array, dataflow, bits)


# -- running -----------------------------------------------------------------------------------------------------------


class Observed:
    """A verifier that skips steps between, and notes which convolutions have narrower operands."""

    def __init__(self, compilation: Compilation, net: Network) -> None:
        self.verifier, self.is_narrowed = Verifier(compilation, net.feeds), False

    def __call__(self, step: Step, module: Any) -> None:
        if step.name == TO_CNN:
            self.is_narrowed = bool(lost_bits(module, self.verifier.compilation.ctx.weights))
        if step.name not in BETWEEN:
            self.verifier(step, module)


def compiled(case: Case, folder: Path) -> tuple[Compilation, Observed]:
    """The compilation after its last step, every level verified. Raises Refusal, StepFailed, Failure."""
    path, toml = folder / "net.onnx", folder / "array.toml"
    arch = parse_arch(as_toml(case.array), "drawn")
    toml.write_text(as_toml(case.array))
    compilation = import_model(path, None, Settings(arch, str(toml), case.bits, case.net.feeds, None, case.dataflow))
    observed = Observed(compilation, case.net)
    try:
        compilation.run("isa", [observed])
    except Differs as error:
        check = observed.verifier.checks[-1]
        kind = "trap" if check.detail.startswith("cannot be run") else "levels"
        raise Failure(kind, f"{check.step}: {check.detail}") from error
    return compilation, observed


def with_budget(case: Case, folder: Path) -> tuple[Compilation, Observed]:
    """As `compiled`, with the GLB that refusals ask for."""
    for _ in range(ATTEMPTS):
        try:
            return compiled(case, folder)
        except GlbTooSmall as refusal:
            if refusal.words <= case.array["glb"]["words"]:
                raise Failure("exception", f"the GLB that is asked for is there: {refusal}") from refusal
            case = replace(case, array={**case.array, "glb": {**case.array["glb"], "words": refusal.words}})
    raise Failure("exception", "the sizes that the refusals name never do")


def outputs_of_binary(compilation: Compilation, case: Case) -> dict[str, np.ndarray]:
    """What the encoded program computes. Raises Failure for a trap or a race."""
    module, store, arch = compilation.module, compilation.ctx.weights, compilation.settings.arch
    binary = from_bytes(to_bytes(build_binary(module, store, arch)))
    try:
        if found := races(binary.instructions, binary.arch)[0]:
            raise Failure("race", str(found[0]))
        return run(binary, case.net.feeds)
    except Refusal as trap:
        raise Failure("trap", f"run: {trap}") from trap


def check(case: Case, folder: Path) -> None:
    """Compile, run and compare one graph. Raises Refusal where it is refused, Failure where it fails."""
    (folder / "net.onnx").write_bytes(case.net.model.SerializeToString())
    try:
        known = references.Known(case.net)
    except Exception as error:
        raise Failure("illegal", str(error)) from error
    if differing := known.disagreement():
        raise Failure("references", differing)
    compilation, observed = with_budget(case, folder)
    got = outputs_of_binary(compilation, case)
    if wrong := same_as_levels(observed.verifier, known, got):
        raise Failure("run", wrong)
    kind, found = judged(case, observed, known, got)
    if found:
        raise Failure(kind, found)


def same_as_levels(verifier: Verifier, known: references.Known, got: dict[str, np.ndarray]) -> str:
    """What differs between the binary's outputs and those that the verifier measured, if any.

    The verifier measures a qdq model against what it is once it is folded: such outputs are only compared with steps.
    """
    for each in () if known.has_codes else verifier.accuracy:
        error = float(np.abs(got[each.output].astype(np.float64) - known.wanted[each.output]).max())
        slack = 1e-5 + 1e-5 * float(np.abs(known.wanted[each.output].astype(np.float64)).max())
        if not abs(error - each.max_error) <= slack + 1e-3 * each.max_error:
            return f"output '{each.output}' has an error of {error:.3g}, the verifier says {each.max_error:.3g}"
    return ""


def judged(case: Case, observed: Observed, known: references.Known, got: dict[str, np.ndarray]) -> tuple[str, str]:
    """The kind of failure, and what is wrong with the outputs; the empty string where they are as good as expected."""
    for name, want in known.wanted.items():
        if got[name].shape != want.shape or got[name].dtype != want.dtype:
            return "wrong", f"output '{name}' is {got[name].dtype}{list(got[name].shape)}"
    if beyond := observed.verifier.beyond_noise:
        return "noise", beyond[0].text
    if case.net.exact:
        return "wrong", known.unequal(got)
    if known.has_codes:
        return "wrong", known.beyond_steps(got)
    if case.bits < 16 or case.array.get("psum_bits", 32) < 32 or observed.is_narrowed:
        return "noise", ""  # the widths explain it: each layer was compared with its own noise
    return "noise", known.too_noisy(got)


# -- one graph ---------------------------------------------------------------------------------------------------------


class Late(BaseException):
    """The time for a graph is over; no handler of errors takes it for one."""


def _late(*_: Any) -> None:
    raise Late


def attempt(family: str, seed: int, index: int, keep: Path | None = None) -> Verdict:
    """The verdict for a graph."""
    case = case_of(family, seed, index)
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        with tempfile.TemporaryDirectory() as folder:
            kind, detail = outcome(case, Path(folder))
    finally:
        signal.alarm(0)
        forget()
    verdict = Verdict(family, seed, index, kind, detail, nodes_text(case.net), array_text(case), case.dataflow)
    if keep is not None and verdict.fails:
        write(case, keep / f"{family}-{seed}-{index}", verdict)
    return verdict


def outcome(case: Case, folder: Path) -> tuple[str, str]:
    """The kind, and the detail."""
    try:
        check(case, folder)
    except Late:
        return "slow", f"more than {SECONDS} s"
    except Refusal as refusal:
        return "refused", one_line("; ".join(refusal.lines))
    except Failure as failure:
        return failure.kind, one_line(str(failure))
    except StepFailed as failed:
        return "exception", one_line(f"{failed} {_place(failed.error)}")
    except Exception as error:
        return "exception", one_line(f"{type(error).__name__}: {error} {_place(error)}")
    return "passes", ""


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def nodes_text(net: Network) -> str:
    """The operators in order; groups and channels of convolutions, groups of shuffles."""
    dims = {each.name: list(each.dims) for each in net.model.graph.initializer}
    words: list[str] = []
    for node in net.model.graph.node:
        attributes = {each.name: each for each in node.attribute}
        match node.op_type:
            case "Conv":
                k = dims.get(node.input[1], ["?"])[0]
                words.append(f"Conv(g{attributes['group'].i if 'group' in attributes else 1},k{k})")
            case "QuantizeLinear":
                words.append("Q")
            case "DequantizeLinear":
                words.append("DQ")
            case op:
                words.append(op)
    return " ".join(words)


def array_text(case: Case) -> str:
    """Size and widths of the array, and the operand width that is used."""
    array = case.array
    lanes = array["pe"].get("lanes", 1)
    return f"{array['rows']}x{array['cols']} int{case.bits}/{array.get('psum_bits', 32)} lanes {lanes}"


def write(case: Case, folder: Path, verdict: Verdict) -> None:
    """Keep a graph with all that it takes to see it fail."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.onnx").write_bytes(case.net.model.SerializeToString())
    (folder / "array.toml").write_text(as_toml(case.array))
    feeds: dict[str, Any] = dict(case.net.feeds)
    np.savez(folder / "input.npz", **feeds)
    files = "net.onnx --arch array.toml --input input.npz --calibrate input.npz"
    command = f"cnncc verify {files} --precision int{case.bits} --dataflow {case.dataflow} --images 99"
    (folder / "command.txt").write_text(f"{command}\n# {verdict.line}\n")


# -- many graphs -------------------------------------------------------------------------------------------------------


def shorten_searches() -> None:
    """For this process: few candidates, and no processes of their own; nothing that was found before."""
    cached_search.ALONE_S = 3600.0
    os.environ[disk_cache.FOLDER] = "off"
    layer_search.USUAL = FEWEST


def verdicts(family: str, seed: int, indices: Sequence[int], keep: Path | None, jobs: int) -> Iterator[Verdict]:
    """In the order of the indices."""
    one = partial(attempt, family, seed, keep=keep)
    if jobs == 1:
        shorten_searches()
        yield from map(one, indices)
        return
    with ProcessPoolExecutor(jobs, initializer=shorten_searches) as pool:
        yield from pool.map(one, indices)


def reason(detail: str) -> str:
    """What refusals of one kind have in common: the text without names and numbers."""
    text = re.sub(r"'[^']*'|\d[\d,.]*", "#", detail)
    return text[:90]


def summary(found: Sequence[Verdict]) -> dict[str, Any]:
    """Numbers of graphs by what became of them."""
    kinds = Counter(each.kind for each in found)
    not_compiled = sum(kinds[kind] for kind in ("refused", "illegal", "exception", "references"))
    return {
        "graphs": len(found),
        "compiled": len(found) - not_compiled,
        "refused": dict(Counter(reason(each.detail) for each in found if each.kind == "refused").most_common()),
        "illegal": kinds["illegal"],
        "failing": {kind: n for kind, n in sorted(kinds.items()) if kind not in FINE},
        "exceptions": kinds["exception"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a graph fails."""
    parser = argparse.ArgumentParser(description="Compile and run random graphs, and compare them with references.")
    parser.add_argument("--family", choices=list(FAMILIES), default="float")
    parser.add_argument("--count", type=int, default=100, help="how many graphs")
    parser.add_argument("--start", type=int, default=0, help="the first index")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one graph, by its index")
    parser.add_argument("--keep", type=Path, help="a folder for graphs that fail, with the command that verifies them")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each failing graph")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args(arguments)
    indices = range(given.start, given.start + given.count) if given.only is None else [given.only]
    found: list[Verdict] = []
    for verdict in verdicts(given.family, given.seed, indices, given.keep, given.jobs):
        found.append(verdict)
        if verdict.fails or given.only is not None:
            print(json.dumps(asdict(verdict)) if given.json else verdict.line, flush=True)
    print(json.dumps(summary(found)) if given.json else _text(summary(found)), flush=True)
    return int(any(verdict.fails for verdict in found))


def _text(numbers: dict[str, Any]) -> str:
    failing = ", ".join(f"{kind} {n}" for kind, n in numbers["failing"].items()) or "none"
    lines = [f"{numbers['graphs']} graphs: {numbers['compiled']} compiled; failing: {failing}"]
    return "\n".join([*lines, *(f"  refused {n}: {text}" for text, n in numbers["refused"].items())])


if __name__ == "__main__":
    sys.exit(main())
