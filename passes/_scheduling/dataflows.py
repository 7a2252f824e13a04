"""The five dataflows by name: a mapping each, in the notation, which the rules of docs/mapping.md complete for a layer.

The textbook's, with what it leaves out: where sums go, what comes in which order, and tiles that a small array needs.
Loops that run once are left out (rule MAP-1), so that one text does for convolutions of any kernel, depthwise and fully
connected layers. Rows sum over c, r and s.
"""

from __future__ import annotations

from dataclasses import dataclass

from cnncc.arch.model import Arch
from cnncc.errors import Refusal, hint
from cnncc.model.layer_shape import LayerShape


@dataclass(frozen=True)
class Dataflow:
    """What stays in a PE, and the mapping; that of channels with an input each (depthwise), where it is another."""

    stays: str
    mapping: str
    channelwise: str = ""

    def text(self, shape: LayerShape, arch: Arch) -> str:
        """The mapping for a layer, to be completed; with as many buffers in a PE as its files have halves (MAP-7)."""
        text = self.channelwise if shape.channelwise and self.channelwise else self.mapping
        for operand, halves in (("weight", arch.pe.weight_halves), ("ifmap", arch.pe.ifmap_halves)):
            text = text.replace(f"{operand}@rf", f"{operand}@rf*{halves}")
        return text


AUTO = "auto"  # not one of them: the best mapping of all
DATAFLOWS = {
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
    "rs": Dataflow(
        "a row of the kernel, over a row of the image",
        "n > h' > k' > c' > h'' > [k''||@cols c''||@rows r||@rows h'''||@cols] > weight@rf > w' > ifmap@rf "
        "> {c''' > w'' > s}",
        "n > h' > k' > c > h'' > [k''||@rows r||@rows h'''||@cols] > weight@rf > w' > ifmap@rf > {w'' > s}",
    ),
    "nlr": Dataflow(
        "nothing: each product has its own fetches, and sums leave at once",
        "n > h' > k' > c' > r > s > h'' > w > [h'''||@rows c''||@rows k''||@cols] > weight@rf > ifmap@rf",
    ),
}


def check_dataflow(name: str) -> None:
    """Raises Refusal for what is neither the name of a dataflow nor `auto`."""
    if name != AUTO and name not in DATAFLOWS:
        raise Refusal(f"no dataflow '{name}': {hint(name.lower(), (AUTO, *DATAFLOWS))}")


def dataflow(name: str) -> Dataflow:
    """The dataflow of that name. Raises Refusal where there is none."""
    if found := DATAFLOWS.get(name):
        return found
    raise Refusal(f"no dataflow '{name}': {hint(name.lower(), DATAFLOWS)}")
