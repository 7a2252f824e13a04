"""cnncc: ONNX convolutional networks to spatial arrays, through a ladder of xDSL dialects."""

__version__ = "0.1.0"
