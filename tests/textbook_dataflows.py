"""The textbook's dataflows as texts in the notation: those of docs/mapping.md, two of them compiled by name."""

from __future__ import annotations

from cnncc.arch.model import Arch
from cnncc.model.layer_shape import LayerShape
from cnncc.passes._scheduling.dataflows import TEXTS, Dataflow
from cnncc.passes._scheduling.schedule_file import MappingText

TEXTBOOK = {
    "os": Dataflow(
        "sums, until they are complete",
        "n > h' > k' > h'' > w' > [k''||@rows h'''||@rows k'''||@cols w''||@cols] > c' > r' > s' > weight@rf "
        "> ifmap@rf > {k'''' > w''' > c'' > s'' > r''}",
        "n > h' > k' > h'' > w' > [k''||@rows h'''||@rows k'''||@cols w''||@cols] > c > r' > s' > weight@rf > ifmap@rf "
        "> {k'''' > w''' > s'' > r''}",
    ),
    "ws": Dataflow(
        "the kernel of a pair of channels, over an image",
        "n > h' > k' > c' > r' > s' > [h''||@rows c''||@rows k''||@cols] > weight@rf > h''' > w' > ifmap@rf "
        "> {c''' > w'' > s'' > r''}",
    ),
    "is": Dataflow(
        "a tile of the image, over all output channels",
        "n > h' > k' > h'' > w' > c' > r' > s' > [h'''||@rows k''||@cols c''||@rows w''||@cols] > ifmap@rf > k''' "
        "> weight@rf > {c''' > w''' > s'' > r''}",
        "n > h' > h'' > w' > c > r' > s' > k' > [k''||@rows h'''||@cols w''||@cols] > ifmap@rf > weight@rf "
        "> {w''' > s'' > r''}",
    ),
} | {name: TEXTS[name] for name in ("rs", "nlr")}


def textbook(name: str, shape: LayerShape, arch: Arch) -> MappingText:
    """The text for a layer on an array, to be completed."""
    return MappingText(TEXTBOOK[name].text(shape, arch))
