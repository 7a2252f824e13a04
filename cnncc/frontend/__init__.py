"""ONNX files to and from the `onnx` dialect."""
