"""Compilations: where they start, their steps, and what is observed, verified and checked along them."""
