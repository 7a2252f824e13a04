"""How a layer, or a group of layers, is mapped onto an array: plain data, its rules, and its notation. No IR."""
