"""Tests of what becomes of freed memory."""

import platform
import subprocess
import sys

ARRAYS = """
from resource import RUSAGE_SELF, getrusage
from cnncc.util.memory_settings import prefer_time_to_memory
{}
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(20):
    [bytearray(1 << 20) for _ in range(16)]
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


def faults(first: str) -> int:
    """Pages that a process is given while it makes and frees 16 arrays of 256 pages each, 20 times."""
    return int(subprocess.run([sys.executable, "-c", ARRAYS.format(first)], capture_output=True, check=True).stdout)


def test_arrays_take_the_place_of_those_before() -> None:
    all_pages, kept = 16 * 256, faults("prefer_time_to_memory(); prefer_time_to_memory()")
    if platform.libc_ver()[0] == "glibc":
        assert faults("") > 15 * all_pages
        assert kept < 2 * all_pages
    else:  # other allocators have rules of their own
        assert kept < 25 * all_pages
