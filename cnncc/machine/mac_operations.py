"""The operands and results of a macro-instruction's operations (MAC-1)."""

from __future__ import annotations

from typing import assert_never

from cnncc.arch.operations import MacOperation


def operands_of(operation: MacOperation) -> tuple[str, ...]:
    """The register files that an operation reads its operands from."""
    match operation:
        case MacOperation.MAC:
            return ("ifmap", "weight")
        case MacOperation.MAX | MacOperation.ADD:
            return ("ifmap",)
        case _:
            assert_never(operation)


def keeps_greatest(operation: MacOperation) -> bool:
    """Whether a psum becomes the greatest of its operands, which starts at the least integer; else it is a sum."""
    match operation:
        case MacOperation.MAX:
            return True
        case MacOperation.MAC | MacOperation.ADD:
            return False
        case _:
            assert_never(operation)
