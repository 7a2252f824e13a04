"""Dataflows by name. The mapper searches the forms with a name; a text is completed for each layer.

| name | | mapping |
|---|---|---|
| `auto` | | the best of all |
| `os`, `ws`, `is` | output, weight, input stationary | the best of the mapper's forms with this name |
| `rs`, `nlr` | row stationary, no local reuse | a text in the notation, completed by the rules of docs/mapping.md |

A text is the textbook's mapping. It also says what a textbook leaves out: where sums go, the order of fetches, and the
tiles that a small array needs. Loops that run once are left out (MAP-1). So one text does for convolutions of any
kernel, depthwise and fully connected layers. Rows sum over c, r and s.
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
}
DATAFLOWS = (*SEARCHED, *TEXTS)


def check_dataflow(name: str, known: Sequence[str] = (AUTO, *DATAFLOWS)) -> None:
    """Raises Refusal for what is none of the `known` names."""
    if name not in known:
        raise Refusal(f"no dataflow '{name}': {hint(name.lower(), known)}")
