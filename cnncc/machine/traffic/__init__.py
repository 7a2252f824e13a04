"""What instructions move and compute, counted."""
