"""Conditions of instructions (PROG-2): when they take or give, by the loops around them."""

from __future__ import annotations

Condition = tuple[str, ...] | None
"""Never (None), always (no name), or where the loops of these names are in their first (last) iteration."""

ALWAYS, NEVER = "always", "never"  # as the IR writes them
