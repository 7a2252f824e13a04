"""The counters of a binary's program, as `run --stats` writes them."""

from __future__ import annotations

from typing import Any

from cnncc.binary.container import Binary
from cnncc.binary.core_names import deadlock_by_names
from cnncc.binary.isa_module import layers
from cnncc.errors import Refusal
from cnncc.isa.codec import has_cores
from cnncc.machine.cores.core_times import EngineRun, simulate_cores
from cnncc.machine.cores.programs import cores_of, has_frames
from cnncc.machine.stats import stats
from cnncc.machine.times.tasks import ENGINES
from cnncc.model.energy import with_energy


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


def program_timeline(binary: Binary, frames: int) -> dict[str, Any]:
    """Each instruction of each engine of a program of cores, in the format of trace viewers; a microsecond is a cycle.

    Raises: Refusal, for a program without cores.
    """
    if not has_cores(binary.instructions):
        raise Refusal("a timeline shows layers side by side, this program has one core: compile with --parallel layers")
    runs = list[EngineRun]()
    cores = cores_of(binary.instructions, binary.arch, frames)
    simulate_cores(cores, timeline=runs)
    names = [{"name": "process_name", "ph": "M", "pid": c.number, "args": {"name": f"core {c.number}"}} for c in cores]
    for core in cores:
        engines = [
            (tid, engine) for tid, engine in enumerate(ENGINES) if any((core.number, engine) == r[:2] for r in runs)
        ]
        thread = {"name": "thread_name", "ph": "M", "pid": core.number}
        names += [{**thread, "tid": tid, "args": {"name": engine}} for tid, engine in engines]
    events = [
        {
            "name": run.kind, "ph": "X", "pid": run.core, "tid": ENGINES.index(run.engine),
            "ts": run.start, "dur": run.end - run.start, "args": {"instruction": run.instruction},
        }
        for run in runs
    ]  # fmt: skip
    return {"traceEvents": [*names, *events]}
