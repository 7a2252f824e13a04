"""Lets `lit tests/filecheck` run the same files that `test_filecheck.py` runs in-process."""

import os
import sys
from pathlib import Path

import lit.formats

config.name = "cnncc"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.test_source_root = Path(__file__).parent  # noqa: F821
config.test_exec_root = Path(__file__).parent.parent / "build" / "lit"  # noqa: F821
config.environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # noqa: F821
