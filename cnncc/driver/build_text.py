"""What `cnncc compile` prints of a binary: its size, the array's share, the schedule, cores, buffers, host segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cnncc.binary.container import Binary
from cnncc.driver.array_share import host_text
from cnncc.driver.build import Build
from cnncc.driver.cores_text import cores_text
from cnncc.driver.pipeline import AUTO, NONE
from cnncc.errors import plural
from cnncc.passes._scheduling.schedule_file import read_schedule


def build_text(build: Build, binary: Binary, output: Path, size_bytes: int) -> Iterator[str]:
    """The report of a build, whose binary is written to `output`."""
    settings, share = build.compilation.settings, build.share
    yield f"{build.source} -> {output}, {size_bytes:,} bytes"
    yield f"  array    {binary.arch.name}, int{settings.operand_bits} operands"
    yield f"  program  {binary.program.nbytes:,} bytes; weights {binary.weight_words:,} words"
    if share.all_macs:
        yield f"  MACs     {share.macs:,} of {share.all_macs:,} on the array ({100 * share.share:.2f} %)"
    if (schedule := settings.schedule) is not None:
        given = read_schedule(schedule)
        groups = f", {plural(len(given.groups), 'group')}" if settings.groups == schedule else ""
        layers = f"{plural(len(given.entries), 'layer')} mapped{groups}"
        yield f"  schedule {plural(len(given.cores), 'core') if given.cores else layers} as {schedule} says"
    if (file := settings.groups) not in (AUTO, NONE, schedule):
        yield f"  groups   {plural(len(read_schedule(file).groups), 'group')} as {file} says"
    if share.cores is not None:
        yield from cores_text(share.cores, binary.arch)
    if share.blocks:
        yield f"  GLB      {share.blocks}"
    yield from (f"  host     {reason}" for reason in host_text(share.hosted))
