"""What a mapping costs, by analysis of the layer's shape, the mapping and the array alone: no IR, no program."""
