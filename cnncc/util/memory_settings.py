"""How much memory a process holds to save time."""

import atexit
import gc
from functools import cache

KEPT = 31 << 20  # bytes; glibc takes no notice of a block of 32 MiB or more


@cache
def prefer_time_to_memory() -> None:
    """Look for objects that only refer to one another rarely, and keep the memory of arrays that are freed.

    - Python looks after 2,000,000 new objects, not after 700, and not at the end of the process. Most objects are freed
      as soon as nothing refers to them, and the others mostly stay to the end. Going through them again and again took
      an eighth of a compile and a quarter of an estimate, to save 5 MiB of 200. An estimate of ResNet-50 takes 17 s.
      To look after 500,000 took half a second more, and saved 8 MiB of 810. To look at the end took a second more.
    - glibc gives arrays back at once, unless a larger block has been freed before (`man mallopt`: M_MMAP_THRESHOLD).
      Then each page of the next array is a fault. These took a fifth of the choice of cores and a twentieth of
      ResNet-50's searches, to save 5 MiB of 240. It keeps 62 MiB at most. Other allocators take no notice. Nothing is
      written to the block, so that it takes no time.

    All figures are of 2026-11.
    """
    gc.set_threshold(2_000_000, 2, 50)  # older objects: after four million, and after two hundred million
    # The interpreter collects once more at its end, and passes over frozen objects.
    atexit.register(gc.freeze)
    bytes(KEPT)
