"""The exact cost of a mapped layer, and of a program of such layers, by analysis without IR or instructions."""
