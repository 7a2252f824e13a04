"""The parallel schemes of C-Brain: cycles, buffer accesses and energy of each layer, and which one it gets."""
