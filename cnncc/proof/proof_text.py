"""How a proof is printed: a line for each part of the program, and what is proven."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import floor
from pathlib import Path
from typing import Any

from cnncc.proof.comparison import ProofPart
from cnncc.proof.proof import Proof
from cnncc.util.terminal import NAME, TEXT, Column, table

SCHEMA = 2  # of the JSON; raise it with every change of the format


def proof_text(proof: Proof) -> Iterator[str]:
    """The lines of docs/proof.md."""
    rows = [(part.name, part.value, f"{part.results:,}", str(part.degree), _state(part)) for part in proof.parts]
    if rows:
        yield from table([Column("layer", NAME), Column("value", NAME), "results", "degree", Column("", TEXT)], rows)
    yield from proof.differences
    if not proof.differences:
        yield f"{proof.weight_words:,} words of weights and parameters, all scales and host segments: the network's"
    yield from map(str, proof.races)
    if proof.steps and not proof.races:
        yield f"{proof.steps:,} instructions: no two engines race for a word of the GLB"


def verdict(proof: Proof) -> str:
    """What is proven."""
    frames = f" and any number of frames, by runs of {proof.frames}" if proof.frames > 1 else ""
    return (
        f"proven for all inputs and all weights{frames}, but for an error of at most {error_text(proof.error_bits)}: "
        f"{proof.draws} draws of polynomials of degree {proof.degree} at most"
    )


def error_text(bits: float) -> str:
    """An error of at most 2^-bits. Rounded down, so that it is not said to be less than it may be.

    >>> error_text(51.955)
    '2^-51.9'
    """
    return f"2^-{floor(10 * bits) / 10:.1f}"


def _state(part: ProofPart) -> str:
    if part.wrong:
        return f"WRONG: {part.wrong}"
    if part.wrong is None:
        return "not reached"
    if part.fresh:
        return "proven, then drawn afresh"
    return "proven" if part.results else "proven by what reads it"


def proof_json(proof: Proof, model: Path) -> dict[str, Any]:
    """The JSON of docs/proof.md."""
    return {
        "schema": SCHEMA,
        "model": str(model),
        "proven": not proof.failures,
        "error_bits": proof.error_bits,
        "draws": proof.draws,
        "degree": proof.degree,
        "frames": proof.frames,
        "parts": [asdict(part) for part in proof.parts],
        "differences": list(proof.differences),
        "races": [str(race) for race in proof.races],
    }
