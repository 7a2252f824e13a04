"""Adds the links cnncc/dialects and cnncc/passes to the source archive: setuptools archives no links to folders.

All else is in pyproject.toml.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist


class SdistWithLinks(sdist):
    """The archive of a checkout that runs where it is unpacked, without installation."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Links are relative, as in the checkout."""
        super().make_release_tree(base_dir, files)
        for name in ("dialects", "passes"):
            Path(base_dir, "cnncc", name).symlink_to(f"../{name}")


setup(cmdclass={"sdist": SdistWithLinks})
