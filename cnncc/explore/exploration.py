"""Evaluates all arrays of an exploration in parallel processes, and writes each result to the file at once."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import cnncc
from cnncc.arch.model import Arch, arch_text, load_arch, said_keys
from cnncc.driver.pipeline import ASSIGN, NONE, Compilation, operand_bits
from cnncc.driver.sources import CompileOptions, check_in_turn, groups_setting, start_compilation
from cnncc.errors import Refusal, one_line
from cnncc.explore.array_grid import ARCH, OBJECTIVE, Config, Vary, array_in, configurations
from cnncc.explore.evaluate import OBJECTIVE_OF, evaluate
from cnncc.explore.results import FORMAT, Result, Results
from cnncc.mapper.objective import OBJECTIVES, SLACK
from cnncc.passes._scheduling.dataflows import AUTO
from cnncc.util.progress import Progress
from cnncc.weights import WeightStore

Widths = tuple[int, ...]  # the keys of an array that loop nests depend on: see `TaskFiles`


def header(model: Path, options: CompileOptions, base: Arch, vary: Vary, exponent: float) -> dict[str, Any]:
    """The first line of the file: all inputs that results depend on. Raises Refusal for a file that cannot be read."""
    groups = groups_setting(options.groups, str(options.schedule) if options.schedule else None)
    return {
        "explore": FORMAT,
        "compiler": f"cnncc {cnncc.__version__}",
        "model": model.name,
        "model_sha256": _digest(model),
        "options": {
            "precision": options.precision,
            "calibrate_sha256": _digest(options.calibrate),
            "batch": options.batch,
            **({"shapes": dict(options.shapes)} if options.shapes else {}),
            "schedule_sha256": _digest(options.schedule),
            "dataflow": options.dataflow or AUTO,
            "slack": SLACK if options.slack is None else options.slack,
            "groups": groups if groups in (AUTO, NONE) else _digest(Path(groups)),
            **({"partition": options.partition} if options.partition not in (None, NONE) else {}),
            **({"energy_exponent": exponent} if exponent else {}),
        },
        "arch": said_keys(base),
        "vary": {key: list(values) for key, values in vary.items()},
        **({"arrays": {name: said_keys(load_arch(str(name))) for name in vary[ARCH]}} if ARCH in vary else {}),
    }


def _digest(path: Path | str | None) -> str | None:
    if path is None:
        return None
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}") from error


def explore(
    model: Path, options: CompileOptions, vary: Vary, measures: Sequence[str], output: Path, jobs: int,
    progress: Progress, exponent: float = 0,
) -> tuple[Compilation, list[Result]]:  # fmt: skip
    """The compilation that all configurations start from, and the results of all configurations, in order.

    On each array the network is optimised for every measure that is its own, or for the objective that is given.
    Results that `output` has already are not evaluated again. exponent: see `array_in`.
    Raises: Refusal; or the exception of a defect, after all other configurations were evaluated.
    """
    start = start_compilation(model, options)
    start.settings = replace(start.settings, measured=False)
    check_in_turn(start, "explore")
    base, given = start.settings.arch, start.settings.objective
    objectives = [OBJECTIVE_OF[name] for name in measures if name in OBJECTIVE_OF] or [given.name]
    configs = configurations(vary, [given.name] if options.objective or given.name != "cycles" else objectives)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--output {output.parent}: {error.strerror}") from error
    first = header(model, options, base, vary, exponent)
    with (
        closing(Results(output, first, configs, configurations(vary, OBJECTIVES))) as results,
        tempfile.TemporaryDirectory() as folder,
    ):
        todo = [config for config, key in zip(configs, results.order, strict=True) if key not in results.by_key]
        for result in _evaluated(todo, TaskFiles(start, options, Path(folder), exponent), jobs):
            results.append(result)
            done = sum(key in results.by_key for key in results.order)
            progress(f"{done:,} of {len(configs):,} configurations", done, len(configs))
        results.put_in_order()
        return start, [results.by_key[key] for key in results.order]


class TaskFiles:
    """Files for the processes: the network as loop nests, made once for each width of words; and arrays."""

    def __init__(self, start: Compilation, options: CompileOptions, folder: Path, exponent: float) -> None:
        self.start, self.options, self.folder, self.exponent = start, options, folder, exponent
        self.nests = dict[Widths, Path | Refusal]()
        self.arrays = 0

    def task(self, config: Config) -> tuple[Path, Path]:
        """The files of nests and array. Raises Refusal if the network cannot be quantised for the array."""
        array = array_in(config, self.start.settings.arch, exponent=self.exponent)
        widths = (array.operand_bits, array.psum_bits)
        if self.start.settings.partition == AUTO:  # kernels are partitioned for lanes
            widths += (array.pe.lanes,)
        if widths not in self.nests:
            try:
                self.nests[widths] = self._nest(array, self.folder / "-".join(map(str, widths)))
            except Refusal as refusal:
                self.nests[widths] = refusal
        nest = self.nests[widths]
        if isinstance(nest, Refusal):
            raise nest
        self.arrays += 1
        file = self.folder / f"{self.arrays}.toml"
        file.write_text(arch_text(array))
        return nest, file

    def _nest(self, array: Arch, folder: Path) -> Path:
        was = self.start.settings
        bits = operand_bits(self.options.precision, array)
        settings = replace(was, arch=array, operand_bits=bits)
        compilation = replace(self.start, module=self.start.module.clone(), settings=settings)
        compilation.run_before(ASSIGN)
        text, store = str(compilation.module), WeightStore()
        # The store also holds the model's float weights, which no process needs.
        for key in re.findall(r'weights\.ref<"(\w+)">', text):
            store.add(compilation.ctx.weights[key])
        folder.mkdir()
        (folder / "weights.npz").write_bytes(store.to_bytes())
        file = folder / "nest.mlir"
        file.write_text(text)
        return file


def _evaluated(todo: Sequence[Config], nests: TaskFiles, jobs: int) -> Iterator[Result]:
    """The results, in the order of their completion."""
    files = dict[int, tuple[Path, Path]]()
    for number, config in enumerate(todo):
        try:
            files[number] = nests.task(config)
        except Refusal as refusal:
            yield {"config": config, "refused": _reason(refusal)}
    # The nests are quantised, for their batch, with their kernels: these options come too late for them.
    given = replace(nests.options, precision=None, calibrate=None, batch=None, shapes={}, partition=None)
    if jobs == 1 or len(files) < 2:
        for number, pair in files.items():
            yield {"config": todo[number], **measures(*pair, given, todo[number])}
        return
    # Objectives of an array share searches, which two of them side by side would both do.
    apart = sorted(files.items(), key=lambda each: str(todo[each[0]][OBJECTIVE]))
    spawn = multiprocessing.get_context("spawn")  # a fork would copy threads of onnxruntime in any state
    with ProcessPoolExecutor(min(jobs, len(files)), spawn, _end_with_parent) as pool:
        futures = {pool.submit(measures, *pair, given, todo[number]): todo[number] for number, pair in apart}
        defects: list[BaseException] = []
        try:
            for future in as_completed(futures):
                if defect := future.exception():
                    defects.append(defect)
                else:
                    yield {"config": futures[future], **future.result()}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if defects:
        raise defects[0]


def measures(nest: Path, arch: Path, options: CompileOptions, config: Config) -> Mapping[str, Any]:
    """The measures of `evaluate` with the configuration's objective, or the reason of its refusal."""
    try:
        return evaluate(nest, replace(options, arch=str(arch), objective=str(config[OBJECTIVE])))
    except Refusal as refusal:
        return {"refused": _reason(refusal)}


def _reason(refusal: Refusal) -> str:
    """All that `compile` says, on one line."""
    if len(refusal.findings) < 2:
        return one_line(str(refusal))
    each = (": ".join(filter(None, (part.where, part.numbers, part.text))) for part in refusal.findings)
    return f"{one_line(str(refusal))}: {'; '.join(each)}"


def _end_with_parent() -> None:
    """Let a process of the pool end with its parent; else it would wait forever for work from a killed parent."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        # `sys.exit` would end this thread alone.
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
