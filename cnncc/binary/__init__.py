"""The `.cnb` file: read, written, made from the `isa` dialect, and run."""
