"""Dataflows by name. The mapper searches the forms with a name; a text is completed for each layer.

| name | | mapping |
|---|---|---|
| `auto` | | the best of all |
| `os`, `ws`, `is` | output, weight, input stationary | the best of the mapper's forms with this name |
| `rs`, `nlr` | row stationary, no local reuse | a text in the notation, completed by the rules of docs/mapping.md |
| `inter`, `inter-weights`, `inter-data`, `intra`, `intra-sliding` | the schemes of C-Brain | likewise |

A text is the textbook's mapping. It also says what a textbook leaves out: where sums go, the order of fetches, and the
tiles that a small array needs. Loops that run once are left out (MAP-1). So one text does for convolutions of any
kernel, depthwise and fully connected layers. In `rs` and `nlr` rows sum over c, r and s. C-Brain's schemes sum over
lanes: between kernels over input channels, inside a kernel over taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnncc.arch.model import Arch
from cnncc.errors import Refusal, hint
from cnncc.model.layer_shape import LayerShape


@dataclass(frozen=True)
class Dataflow:
    """What is resident in a PE, and the mapping; where depthwise layers have another one, theirs."""

    resident: str
    mapping: str
    channelwise: str = ""

    def text(self, shape: LayerShape, arch: Arch) -> str:
        """The mapping for a layer, to be completed; with as many buffers in a PE as its files have halves (MAP-7)."""
        text = self.channelwise if shape.channelwise and self.channelwise else self.mapping
        for operand, halves in (("weight", arch.pe.weight_halves), ("ifmap", arch.pe.ifmap_halves)):
            text = text.replace(f"{operand}@rf", f"{operand}@rf*{halves}")
        return text


AUTO = "auto"
SEARCHED = ("os", "ws", "is")
TEXTS = {
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
    "inter": Dataflow(
        "nothing: an output has its own fetches of weights and image, and stays until it is complete",
        "n > k' > h > w > [k''||@cols k'''||@rows] > c' > r' > weight@rf > ifmap@rf > {s > r'' > c'' > c'''||@lanes}",
    ),
    "inter-weights": Dataflow(
        "the weights of a kernel position, over an image; partial sums are stored",
        "n > h' > k' > c' > r > s > [k''||@cols k'''||@rows] > weight@rf > h'' > w' > ifmap@rf "
        "> {w'' > c'' > c'''||@lanes}",
    ),
    "inter-data": Dataflow(
        "the input words of a kernel position, over all output channels; partial sums are stored",
        "n > h' > h'' > w' > c' > r > s > [k'||@cols k''||@rows] > ifmap@rf > k''' > weight@rf "
        "> {w'' > c'' > c'''||@lanes}",
        "n > h' > h'' > w' > c > r > s > k' > [k''||@cols k'''||@rows] > ifmap@rf > weight@rf > {w''}",
    ),
    "intra": Dataflow(
        "the weights of a part of the window, over an image; each window is fetched by itself",
        "n > h' > k' > c' > s' > r' > [k''||@cols k'''||@rows] > weight@rf > h'' > w > ifmap@rf "
        "> {c'' > s''||@lanes > r''||@lanes}",
    ),
    "intra-sliding": Dataflow(
        "the same; windows share the columns in which they overlap",
        "n > h' > k' > c' > s' > r' > [k''||@cols k'''||@rows] > weight@rf > h'' > w' > ifmap@rf "
        "> {w'' > c'' > s''||@lanes > r''||@lanes}",
    ),
}
SCHEMES = tuple(name for name in TEXTS if name.startswith(("inter", "intra")))  # of C-Brain
DATAFLOWS = (*SEARCHED, *TEXTS)


def check_dataflow(name: str, known: Sequence[str] = (AUTO, *DATAFLOWS)) -> None:
    """Raises Refusal for what is none of the `known` names."""
    if name not in known:
        raise Refusal(f"no dataflow '{name}': {hint(name.lower(), known)}")
