"""The reference machine: executes instructions. It knows the array and the instruction table; no IR, no ONNX."""
