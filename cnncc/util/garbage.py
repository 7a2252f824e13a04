"""How often Python looks for objects that only refer to one another."""

import atexit
import gc


def collect_rarely() -> None:
    """Look after 2,000,000 new objects, not after 700, and not at the end of the process.

    Most objects are freed as soon as nothing refers to them, and the others mostly stay to the end. Going through them
    again and again took an eighth of a compile and a quarter of an estimate, to save 5 MiB of 200. Of the 17 s of an
    estimate of ResNet-50, looking after 500,000 took half a second more, which saved 8 MiB of 810, and looking at the
    end one (2026-11).
    """
    gc.set_threshold(2_000_000, 2, 50)  # older objects: after four million, and after two hundred million
    # The interpreter collects once more at its end, and passes over frozen objects.
    atexit.register(gc.freeze)
