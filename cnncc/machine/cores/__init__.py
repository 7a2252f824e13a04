"""Several cores: their programs, the checks of these, and how the cores run together."""
