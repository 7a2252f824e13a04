"""Runs `cnncc …`, `pytest …`, `python FILE …` and `python -m MODULE …` of a checkout in processes that are forked.

They are forked from one that has imported it all. Starting Python and importing onnx, onnxruntime and xdsl takes longer
than most commands. A command is a process of its own: it has the caller's arguments, folder, environment and standard
streams, and its exit code is the caller's. With SHORT_SEARCHES in its environment it searches for mappings as tests do
that ask for values. One server is enough for many copies of a checkout. Where modules were added or changed, and for
pytest, a command imports all modules of the copy anew.

    with serving(checkout) as address:
        add_commands(folder, address, copy)     folder: has the commands then, for PATH
        subprocess.run(["sh", "commands.sh"], env={"PATH": …})
        Command(address, checkout, ["compile", "net.onnx"], folder, os.environ).kill()
"""

from __future__ import annotations

import gc
import importlib
import marshal
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

# Starts in half the time that it takes to import json, os and socket.
CLIENT = """\
#!{python} -SE
import _socket, marshal, posix, sys
server = _socket.socket(_socket.AF_UNIX)
server.connect({address!r})
asked = marshal.dumps([{checkout!r}, {name!r}, sys.argv[1:], posix.getcwd(), posix.environ])
streams = b"".join(each.to_bytes(4, sys.byteorder) for each in (0, 1, 2))
server.sendmsg([len(asked).to_bytes(4, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(asked)
server.recv(4)
sys.exit(int.from_bytes(server.recv(1), "little"))
"""
SHORT_SEARCHES = "SHORT_SEARCHES"
ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("passes", "dialects", "cnncc")  # folders whose modules the server has imported


@contextmanager
def serving(checkout: Path) -> Iterator[str]:
    """The address of a server that has imported the modules of a checkout."""
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listening:
        address = f"{name}/server"
        listening.bind(address)
        listening.listen()
        server = subprocess.Popen(
            [sys.executable, __file__, str(listening.fileno())],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
            pass_fds=[listening.fileno()],
        )
        try:
            yield address
        finally:
            server.kill()
            server.wait()


def add_commands(folder: Path, address: str, checkout: Path) -> None:
    """Write the commands of a copy of the checkout."""
    for name in ("cnncc", "pytest", "python"):
        text = CLIENT.format(python=sys.executable, address=address, name=name, checkout=str(checkout))
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


class Command:
    """A `cnncc ARGUMENTS` that runs, without input and output."""

    def __init__(
        self, address: str, checkout: Path, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(address)
        bytewise = {os.fsencode(key): os.fsencode(value) for key, value in environment.items()}
        asked = marshal.dumps([str(checkout), "cnncc", list(arguments), str(folder), bytewise])
        with Path(os.devnull).open("r+b") as nothing:
            socket.send_fds(self._server, [len(asked).to_bytes(4, "little")], [nothing.fileno()] * 3)
        self._server.sendall(asked)
        self._pid = int.from_bytes(self._server.recv(4), "little")

    def kill(self) -> None:
        """As `kill -9` does. A command that has ended already stays as it is."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit code; of a command that was killed, 128 and the number of the signal."""
        with self._server:
            return int.from_bytes(self._server.recv(1), "little")


def serve(listening: socket.socket) -> None:
    """Fork for each command, until killed."""
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import pytest  # noqa: F401
    import searches  # noqa: F401

    import cnncc
    from cnncc.mapper import cached_search

    for module in pkgutil.walk_packages(cnncc.__path__, "cnncc."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    cached_search.ALONE_S = 3600.0  # other tests have the other processors
    known = _listed(Path.cwd())
    gc.collect()
    gc.freeze()  # commands, which are forked, need not look at it
    ended, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    running = dict[int, socket.socket]()
    while True:
        ready, _, _ = select.select([listening, ended], [], [])
        if listening in ready:
            connection, _ = listening.accept()
            pid = _start(connection, known)
            running[pid] = connection
            with suppress(OSError):  # the caller has gone
                connection.sendall(pid.to_bytes(4, "little"))
        if ended in ready:
            ended.recv(4096)
            _tell_ends(running)


def _start(connection: socket.socket, known: list[tuple[str, int]]) -> int:
    """The process of the command that is asked for."""
    size, streams, _, _ = socket.recv_fds(connection, 4, 3)
    asked, wanted = b"", int.from_bytes(size, "little")
    while len(asked) < wanted:
        asked += connection.recv(wanted - len(asked))
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        checkout, name, arguments, folder, environment = marshal.loads(asked)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update({os.fsdecode(key): os.fsdecode(value) for key, value in environment.items()})
        if name == "pytest" or known != _listed(Path(checkout)):
            _import_from(checkout)
        _run(name, arguments)
    for stream in streams:
        os.close(stream)
    return pid


def _ignore(number: int, frame: FrameType | None) -> None:
    """For a signal that wakes the server up, which is not the default."""


def _tell_ends(running: dict[int, socket.socket]) -> None:
    """Tell the callers of commands that have ended their exit codes. Callers may have gone."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            with running.pop(ended[0]) as connection, suppress(OSError):
                connection.sendall((code if code >= 0 else 128 - code).to_bytes(1, "little"))


def _import_from(checkout: str) -> None:
    """Drop all modules of the server's checkout. From here on they are imported from a copy."""
    # `__main__` is the server itself; from Python 3.13 on pdb imports it.
    for name, module in [item for item in sys.modules.items() if item[0] != "__main__"]:
        if name.partition(".")[0] == "cnncc" or (getattr(module, "__file__", None) or "").startswith(f"{ROOT}/tests/"):
            del sys.modules[name]
    sys.path[:] = [checkout, *(path for path in sys.path if path not in (str(ROOT), f"{ROOT}/tests"))]


def _run(name: str, arguments: list[str]) -> None:
    """Never returns."""
    if name == "python" and arguments[0] != "-m" and not arguments[0].endswith(".py"):
        os.execv(sys.executable, [sys.executable, *arguments])
    code: object = 0
    try:
        if SHORT_SEARCHES in os.environ:
            _search_first()
        sys.argv = [name, *arguments] if name != "python" else arguments
        if name == "cnncc":
            from cnncc.cli.main import main

            main(prog_name="cnncc")
        elif name == "pytest":
            import pytest

            code = int(pytest.main(arguments))
        elif arguments[0] == "-m":
            sys.path.insert(0, str(Path.cwd()))
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(arguments[0]).parent.resolve()))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _search_first() -> None:
    """With the modules that the command uses."""
    sys.path.append(f"{ROOT}/tests")
    from searches import search_first

    search_first(setattr)


def _listed(checkout: Path) -> list[tuple[str, int]]:
    """The modules of a checkout, with when they were written: a copy has them from its original."""
    folders = [(name, os.path.realpath(checkout / name)) for name in SOURCES]
    return sorted(each for name, folder in folders for each in _modules(name, folder))


def _modules(name: str, folder: str) -> Iterator[tuple[str, int]]:
    """Those of a folder, under its name. Each command looks: pathlib would take three times as long."""
    for entry in os.scandir(folder):
        if entry.name.endswith(".py"):
            yield f"{name}/{entry.name}", entry.stat().st_mtime_ns
        elif entry.is_dir(follow_symlinks=False):
            yield from _modules(f"{name}/{entry.name}", entry.path)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
