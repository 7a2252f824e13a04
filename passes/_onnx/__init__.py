"""The helpers of `onnx-to-cnn` and of other passes on `onnx`: the readers, the placement and the lowering of nodes.

Nodes as layers:

    layers.py              a node as a layer, or why it stays on the host
    quantised_layers.py    likewise, for a model that is quantised already
    codes.py               its integers, and those that give onnxruntime's
    functions.py           functions of single numbers, as tables
    windows.py             the sliding window of a node
    normalisation.py       batch normalisation
    pads.py                what a Pad adds
    resizing.py            a Resize that repeats pixels
    random_nodes.py        nodes that draw random numbers
    replacement.py         new nodes in the place of others
    pixels.py              likewise, for pixels in turn

Where layers run, and their scales:

    placement.py           which nodes the host computes, in which segments
    scale_groups.py        values that share one scale
    calibration.py         ranges of values, and the scales that follow

Layers as `cnn` ops:

    lowering.py            the whole graph: read this first
    layer_lowering.py      layers in floats, as integers: convolutions, sums of two, means, activations
    quantised_lowering.py  layers of a quantised model
    builder.py             one op after the other, with their values, weights and labels
    labels.py              labels of ops and names of weights
"""
