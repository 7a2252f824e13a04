"""The mark of a module whose layers are mapped: the array that they are mapped to. No pass."""

from __future__ import annotations

from contextlib import suppress

from xdsl.dialects.builtin import ModuleOp, StringAttr

from cnncc.arch.model import Arch, array_title, load_arch
from cnncc.errors import Refusal

MARK = "cnncc.arch"  # module attribute: `spatial-8x8 (8 x 8 PEs, #cefe2b01)`


def mark(module: ModuleOp, arch: Arch) -> None:
    """Say that the layers of `module` are mapped to `arch`."""
    module.attributes[MARK] = StringAttr(array_title(arch))


def mark_of(module: ModuleOp) -> str | None:
    """The array that the layers are mapped to; None where they are not mapped."""
    attribute = module.attributes.get(MARK)
    return attribute.data if isinstance(attribute, StringAttr) else None


def marked_array(module: ModuleOp, option: str | None, name: str) -> Arch:
    """The array that the layers of `module` are mapped to.

    option: a preset or a file, as the pass called `name` was given it. It is needed for layers that are mapped to an
    array of a file, and for those without a mark. Raises Refusal where it is missing, or is another array.
    """
    marked = mark_of(module)
    if option is not None:
        arch = load_arch(option)
        if marked not in (None, array_title(arch)):
            raise Refusal(f"{name}: the layers are mapped to {marked}, not to {array_title(arch)}: leave out arch")
        return arch
    if marked is None:
        raise Refusal(f"{name}: nothing says which array the layers are mapped to: arch=NAME or FILE")
    with suppress(Refusal):
        # The mark begins with the array's name. That of a file may be no preset, or by chance another array's.
        arch = load_arch(marked.partition(" (")[0])
        if array_title(arch) == marked:
            return arch
    raise Refusal(f"{name}: the layers are mapped to {marked}, which is no preset: arch=FILE")
