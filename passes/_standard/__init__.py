"""The helpers of `nest-to-scf`: layers in standard dialects.

From the whole to the parts:

    layer_nest.py  a nest: its loops, stages and sums
    epilogue.py    what follows the sums: bias, scale, clamp
    limits.py      which values standard integers hold
    ops.py         the ops, without knowledge of layers
"""
