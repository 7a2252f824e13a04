"""A layer as formulas see it: an image, channels and a window, without values. No IR."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from cnncc.dialects._layers import Window
from cnncc.errors import Refusal


@dataclass(frozen=True)
class WindowedLayer:
    """A layer whose results are those of a window at all its positions.

    Raises Refusal for sizes below 1, a window larger than its image, and channels that do not fit the groups.
    """

    name: str
    image: tuple[int, int]
    inputs: int
    outputs: int
    window: Window

    def __post_init__(self) -> None:
        groups = self.window.group
        if min(*self.image, self.inputs, self.outputs) < 1:
            raise Refusal(
                f"{self.name}: image {self.image}, {self.inputs} inputs, {self.outputs} outputs: give 1 or more"
            )
        if min(self.results) < 1:
            raise Refusal(f"{self.name}: the window spans {self.window.spans} of an image of {self.image}: enlarge it")
        if self.inputs % groups or self.outputs % groups:
            raise Refusal(
                f"{self.name}: {self.inputs} inputs and {self.outputs} outputs in {groups} groups: "
                "give multiples of the groups"
            )

    @cached_property
    def results(self) -> tuple[int, int]:
        """Rows and columns of the results: R_(i+1), C_(i+1) of Heidorn et al."""
        return self.window.output(*self.image)

    @property
    def pixels(self) -> int:
        """Positions of the results."""
        return prod(self.results)

    @property
    def taps(self) -> int:
        """Weights of a kernel for one input channel: K², k x k."""
        return prod(self.window.kernel)
