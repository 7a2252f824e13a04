"""Proofs that a binary computes its network for all inputs and all weights (docs/proof.md)."""
