"""Compilations: their sources, their steps, and the observers, verifier and checks along them."""
