"""What all tests share."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

# Tests run side by side, one on each core, and so do the commands that they start: numpy's threads would wait for those
# of the others (a matrix product of 0.1 ms takes 15 ms then). numpy reads it when it is first imported.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
# Hundreds of commands: each would compile all modules by itself, for 0.4 s. Each process of tests would rewrite the
# assertions of all tests and of hypothesis, for 7 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False

import numpy as np
import pytest
from command_server import serving
from examples import tell_hypothesis
from searches import SHORT, search_first, search_with

from cnncc.binary import isa_module
from cnncc.isa.assembly import assemble, disassemble
from cnncc.isa.codec import Words, encode_program
from cnncc.isa.table import Instruction
from cnncc.mapper import cached_search
from cnncc.passes._scheduling import residency
from cnncc.util import disk_cache
from cnncc.util.memory_settings import prefer_time_to_memory

tell_hypothesis()

LONG = (
    "test_docs.py", "test_samples_tcpa.py", "test_alternatives.py", "test_conv_grid.py", "test_check.py",
    "test_mapper_search.py", "test_core_choice.py",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """What one test searches for no other has to: a folder of this run of tests, which its processes inherit.

    Searches start no processes of their own: the suite has all cores already.
    """
    cached_search.ALONE_S = 3600.0
    if not hasattr(config, "workerinput"):
        os.environ[disk_cache.FOLDER] = tempfile.mkdtemp(prefix="cnncc-tests-")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no process is left with it while the other ones have ended."""
    items.sort(key=lambda item: not any(item.nodeid.startswith(f"tests/{name}") for name in LONG))


def pytest_collection_finish() -> None:
    """Modules and tests stay: the garbage collector need not go through them again and again (5 % of the time)."""
    gc.collect()
    gc.freeze()
    prefer_time_to_memory()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The process that made the folder is the last one to end.

    pytest collects garbage five times then, for what nobody caught. Once is enough, after that nothing is left.
    """
    gc.collect()
    gc.freeze()
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(disk_cache.FOLDER), ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def every_binary_assembles_again() -> Iterator[None]:
    """The disassembly of every binary that a test builds is a program of the same words; of equal ones it is once."""
    seen = set[bytes]()

    def checked(program: Sequence[Instruction]) -> Words:
        words = encode_program(program)
        if (key := sha256(words.tobytes()).digest()) not in seen:
            assert np.array_equal(encode_program(assemble(disassemble(program))), words)
            seen.add(key)
        return words

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isa_module, "encode_program", checked)
        yield


@pytest.fixture(scope="module")
def short_searches() -> Iterator[None]:
    """Searches that run the first candidate they find. They take less time than a file on disk.

    Inputs and results that fit are resident: test_predict.py streams them.
    """
    with pytest.MonkeyPatch.context() as patch:
        search_first(patch.setattr)
        patch.setattr(disk_cache, "folder", lambda: None)
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a server for commands of this checkout, and of its copies."""
    with serving(Path(__file__).parents[1]) as address:
        yield address


@pytest.fixture
def longer_searches(short_searches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short searches that look at more candidates: for what is said of a GLB in which few have room."""
    search_with(monkeypatch, SHORT)


@pytest.fixture
def resident_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network's inputs and results stay in the GLB if they fit, however long it takes to copy them.

    For tests of layers as they are in the middle of a network.
    """
    monkeypatch.setattr(residency, "END_PART", 0)
