"""One evaluator a dialect: every level runs."""
