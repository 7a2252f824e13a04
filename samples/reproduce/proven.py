"""Proofs of the programs that samples compile: docs/proof.md."""

from __future__ import annotations

from cnncc.errors import Refusal
from cnncc.proof.claim import Claim
from cnncc.proof.proof import prove
from cnncc.util.progress import Progress, silent

ERROR_BITS = 50.0


def error_bits(claim: Claim, what: str, progress: Progress = silent) -> float:
    """Prove a claim: the proof errs with a probability of at most 2^-bits. Raises Refusal if `what` is not proven."""
    proof = prove(claim, ERROR_BITS, progress)
    if proof.failures:
        raise Refusal(f"{what} is not proven: {proof.failures[0]}")
    return proof.error_bits
