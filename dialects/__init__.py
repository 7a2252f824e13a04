"""One dialect a file; see docs/ladder.md."""
