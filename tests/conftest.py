"""What all tests share."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import settings

from cnncc import kept, searched
from cnncc.isa.assembly import assemble, disassemble
from cnncc.isa.codec import Words, encode_program
from cnncc.isa.table import Instruction
from cnncc.machine import modules

# The same examples in every run: what fails here fails everywhere.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


def pytest_configure(config: pytest.Config) -> None:
    """What one test searches for no other has to: a folder of this run of tests, which its processes inherit.

    Searches start no processes of their own: the suite has all cores already.
    """
    searched.ALONE_S = 3600.0
    if not hasattr(config, "workerinput"):
        os.environ[kept.FOLDER] = tempfile.mkdtemp(prefix="cnncc-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The process that made the folder is the last one to end."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(kept.FOLDER), ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def every_binary_assembles_again() -> Iterator[None]:
    """The disassembly of every binary that a test builds is a program of the same words."""

    def checked(program: Sequence[Instruction]) -> Words:
        words = encode_program(program)
        assert np.array_equal(encode_program(assemble(disassemble(program))), words)
        return words

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules, "encode_program", checked)
        yield
