"""cnncc: ONNX convolutional networks to spatial arrays, through a ladder of xDSL dialects."""
