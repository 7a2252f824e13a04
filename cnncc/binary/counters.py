"""The counters of a binary's program, as `run --stats` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cnncc.binary.container import Binary
from cnncc.binary.core_names import deadlock_by_names
from cnncc.binary.isa_module import layers
from cnncc.errors import Refusal, hint
from cnncc.isa.codec import has_cores
from cnncc.machine.cores.core_times import EngineRun, EngineRuns, simulate_cores
from cnncc.machine.cores.programs import cores_of, has_frames
from cnncc.machine.stats import stats
from cnncc.machine.times.tasks import ENGINES
from cnncc.model.energy import with_energy

MOST_RUNS = 1_000_000  # of a timeline: 120 MB as JSON, more than most viewers of traces take


def program_stats(binary: Binary, causes: bool = True, frames: int = 1) -> dict[str, Any]:
    """All counters of a run of the program, with energy; also by layer, if the metadata lists layers.

    causes: with stalls by cause, which takes longer. frames: of the run; 1 if the program has none (CORE-8).

    Raises: Refusal
    """
    if frames < 1:
        raise Refusal(f"frames {frames}, expected at least 1")
    if frames > 1 and not has_frames(binary.instructions):
        raise Refusal(f"frames {frames}: the program takes image by image, and its counters are those of one")
    named = [(layer.label, layer.first) for layer, _ in layers(binary)]
    constant_words = binary.weight_words
    with deadlock_by_names(binary):
        counters = stats(
            binary.instructions, binary.arch, named, causes=causes, constant_words=constant_words, frames=frames
        )
    return with_energy(counters, binary.arch.energy)


def program_timeline(binary: Binary, frames: int, labels: Sequence[str] = ()) -> dict[str, Any]:
    """When each instruction runs on its engine, in the format of trace viewers: a microsecond is a cycle.

    A process is a core, a thread an engine. Layers overlap, as engines work ahead. So each has a track of its own, from
    its first instruction on an engine to the end of its last one.

    labels: only these layers; all instructions if there are none.
    Raises: Refusal, for labels that the program does not have, or too many runs.
    """
    program = binary.instructions
    named = {layer.label: range(layer.first, layer.first + layer.count) for layer, _ in layers(binary)}
    for label in labels:
        if label not in named:
            raise Refusal(f"the program has no layer '{label}': {hint(label, named)}")
    label_of = {number: label for label in labels or named for number in named[label]}
    timeline = EngineRuns(label_of if labels else range(len(program)), MOST_RUNS)
    cores = cores_of(program, binary.arch, frames)
    simulate_cores(cores, timeline=timeline)
    by_layer = dict[tuple[int, str], list[EngineRun]]()
    for run in timeline.runs:
        if run.instruction in label_of:
            by_layer.setdefault((run.core, label_of[run.instruction]), []).append(run)
    events = [*_names(binary, len(cores), timeline.runs), *(_event(run, label_of) for run in timeline.runs)]
    for number, ((core, label), runs) in enumerate(by_layer.items()):
        track = {"name": label, "cat": "layer", "id": number, "pid": core, "tid": 0}
        events.append({**track, "ph": "b", "ts": min(run.start for run in runs)})
        events.append({**track, "ph": "e", "ts": max(run.end for run in runs)})
    return {"traceEvents": events}


def _names(binary: Binary, cores: int, runs: Sequence[EngineRun]) -> Iterator[dict[str, Any]]:
    """What a viewer calls the cores, and those of their engines that run."""
    threads = {(run.core, run.engine) for run in runs}
    for core in range(cores):
        name = f"core {core}" if has_cores(binary.instructions) else binary.arch.name
        yield {"name": "process_name", "ph": "M", "pid": core, "args": {"name": name}}
        for thread, engine in enumerate(ENGINES):
            if (core, engine) in threads:
                yield {"name": "thread_name", "ph": "M", "pid": core, "tid": thread, "args": {"name": engine}}


def _event(run: EngineRun, label_of: Mapping[int, str]) -> dict[str, Any]:
    """A run of an instruction. label_of: the layer of each instruction that belongs to one."""
    label = label_of.get(run.instruction)
    return {
        "name": run.kind, "ph": "X", "pid": run.core, "tid": ENGINES.index(run.engine),
        "ts": run.start, "dur": run.end - run.start,
        "args": {"instruction": run.instruction, **({} if label is None else {"layer": label})},
    }  # fmt: skip
