"""The helpers of `onnx-to-cnn` and of other passes on `onnx`: how nodes are read, placed and lowered."""
