"""What of a layer a half of a PE's register files holds for one macro-instruction. No IR.

Its ifmap words are the columns of an image that z pixels see, of r rows of c channels each. Where a half is ping and
pong (rule A6), the columns that the window of the east neighbour has, too, pass through it in turn.
"""

from __future__ import annotations

from cnncc.arch.model import Arch
from cnncc.passes._layer_shape import Extents, LayerShape


def window_columns(shape: LayerShape, s: int, z: int) -> int:
    """Columns of the image, counted without those between dilated taps, that z pixels and s kernel columns need."""
    return (z - 1) * shape.window.stride[1] + s


def shared_columns(shape: LayerShape, arch: Arch, s: int, z: int) -> int:
    """How many of them, the last ones, a neighbour can pass on: it sends one run of slots, and no dilated columns."""
    shares = arch.links.n2n and not shape.channelwise and shape.window.dilation[1] == 1
    return max(0, s - shape.window.stride[1]) if shares and (z == 1 or not arch.pe.pong_words) else 0


def macro_words(shape: LayerShape, arch: Arch, extent: Extents) -> dict[str, int]:
    """Words that a macro-instruction of this extent needs, by the key of `arch.pe` that limits them."""
    k, c, z, r, s = (extent[dim] for dim in "kcwrs")
    words = {"psum_words": z * k}
    if shape.is_mac:
        words["weight_words"] = c * r * s * k
    column = c * r * (k if shape.channelwise else 1)
    columns, shared = window_columns(shape, s, z), shared_columns(shape, arch, s, z)
    if not (arch.pe.pong_words and shared):
        return words | {"ifmap_words": columns * column}
    turn = (columns - shared) * column
    return words | {
        "ifmap_words": turn,
        "pong_words": min(turn, shared * column),
        "virtual_words": shared * column,
    }


def most_channels(shape: LayerShape, arch: Arch, extent: Extents) -> int:
    """The most input channels for which a macro-instruction finds room, its other extents given; 0 where none does."""
    words = macro_words(shape, arch, {**extent, "c": 1})
    if words.pop("psum_words") > arch.pe.psum_words:
        return 0
    most = min(int(getattr(arch.pe, key)) // each for key, each in words.items())
    return min(most, 1) if shape.channelwise else most
