"""A checkout's modules, imported before a fork. In the process that is forked a file's changed functions are replaced.

Importing cnncc takes longer than most tests. What a change of a file does on import, outside functions or in functions
that run then, it does only if all modules are imported again: then none is left.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType

FUNCTION = 1  # the flag of code that is no class body, and no module
Key = tuple[str, str, int]  # file, qualified name, line


def _key(code: CodeType) -> Key:
    return code.co_filename, code.co_qualname, code.co_firstlineno


class WarmModules:
    """All modules of a package that can be imported, from a checkout at the front of `sys.path`."""

    def __init__(self, root: Path, package: str) -> None:
        self.root, self.package = root, package
        ran_on_import = set[Key]()
        sys.setprofile(lambda frame, event, arg: ran_on_import.add(_key(frame.f_code)) if event == "call" else None)
        try:
            for name in self._names():
                with suppress(ImportError):
                    importlib.import_module(name)
        finally:
            sys.setprofile(None)
        self.functions = dict[Key, list[FunctionType]]()
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and (key := _key(each.__code__)) not in ran_on_import:
                self.functions.setdefault(key, []).append(each)
        self.places = {Path(place).resolve(): place for place, _, _ in self.functions}

    def _names(self) -> Iterator[str]:
        """Those of all files but `__main__.py`; folders may be links."""
        folders = [self.root / self.package]
        for folder in folders:
            for path in sorted(folder.iterdir()):
                if path.is_dir() and path.name != "__pycache__":
                    folders.append(path)
                elif path.suffix == ".py" and path.stem != "__main__":
                    parts = path.relative_to(self.root).with_suffix("").parts
                    yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def take(self, before: str, after: str, file: str) -> None:
        """Have the modules of a file's text changed, or all dropped."""
        with suppress(LookupError, SyntaxError, ValueError):
            place = self.places[(self.root / file).resolve()]
            for key, code in _changed(compile(before, place, "exec"), compile(after, place, "exec")):
                for function in self.functions[key]:
                    function.__code__ = code
            return
        for name in [name for name in sys.modules if name.partition(".")[0] == self.package]:
            del sys.modules[name]


def _changed(old: CodeType, new: CodeType) -> Iterator[tuple[Key, CodeType]]:
    """The functions whose code differs. Raises LookupError for what runs on import."""
    parts = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new)]
    if old.co_flags & FUNCTION:
        if old != new:
            yield _key(old), new
        return
    same = [
        (code.co_code, code.co_names, [repr(each) for each in code.co_consts if not isinstance(each, CodeType)])
        for code in (old, new)
    ]
    if same[0] != same[1]:
        raise LookupError("it runs on import")
    for one, other in zip(*parts, strict=True):
        yield from _changed(one, other)
