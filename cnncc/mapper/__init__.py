"""Which mapping of a layer is best: a search, exact wherever it ends by itself. No IR."""
