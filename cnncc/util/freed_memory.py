"""What becomes of memory that is freed."""

from functools import cache

KEPT = 31 << 20  # bytes; glibc takes no notice of a block of 32 MiB or more


@cache
def keep_freed() -> None:
    """Have glibc keep arrays that are freed, for those that come next; 62 MiB of them at most.

    It gives them back at once, unless a larger block has been freed before (`man mallopt`: M_MMAP_THRESHOLD). Then each
    page of the next array is a fault. These took a fifth of the choice of cores and a twentieth of ResNet-50's
    searches, to save 5 MiB of 240 (2026-11). Other allocators take no notice. Nothing is written to the block, so that
    it takes no time.
    """
    bytes(KEPT)
