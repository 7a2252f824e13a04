"""`cnncc estimate`: what each layer of a network takes, by analysis: cycles, words, energy, and what limits it."""
