"""How many processors there are."""

import os


def usable() -> int:
    """Processors that this process may use, of those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
