"""The helpers of `onnx-to-cnn` and of other passes on `onnx`: the readers, the placement and the lowering of nodes."""
