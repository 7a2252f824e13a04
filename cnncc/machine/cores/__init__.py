"""Several cores: their programs, what is refused of them, and what they do together."""
