"""Hypothesis strategies for networks and arrays: the builders of random_graphs.py and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import reject
from hypothesis import strategies as st
from random_arrays import as_toml, random_array
from random_codes import quantised_network
from random_graphs import Network, float_network

from cnncc.arch.model import parse_arch
from cnncc.driver.pipeline import Compilation, Settings, import_model
from cnncc.errors import Refusal
from cnncc.mapper.objective import OBJECTIVES, SLACK, Objective
from cnncc.passes._scheduling.dataflows import AUTO, DATAFLOWS
from cnncc.passes._scheduling.glb_words import GlbTooSmall

T = TypeVar("T")
Draw = Callable[[Any], Any]


class Drawn:
    """The `Choice` of Hypothesis."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def integer(self, least: int, most: int) -> int:
        return self._draw(st.integers(least, most))

    def one(self, choices: Sequence[T]) -> T:
        return self._draw(st.sampled_from(choices))

    def yes(self) -> bool:
        return self._draw(st.booleans())


@st.composite
def networks(draw: Draw, most_nodes: int = 8) -> Network:
    """Float networks."""
    return float_network(Drawn(draw), most_nodes)


@st.composite
def quantised_networks(draw: Draw, most_nodes: int = 6) -> Network:
    """Networks of onnxruntime's integer operators."""
    return quantised_network(Drawn(draw), most_nodes)


@st.composite
def arrays(draw: Draw) -> dict[str, Any]:
    """The numbers of an array's file."""
    return random_array(Drawn(draw))


def compiled_at_random(data: st.DataObject, folder: Path, check: Callable[[Compilation], object]) -> None:
    """`check` of a compilation that has not begun: any network, dataflow and objective, for a GLB that just does."""
    net, array = data.draw(networks()), data.draw(arrays())
    dataflow = data.draw(st.sampled_from([AUTO, AUTO, *DATAFLOWS]))
    objective = Objective(data.draw(st.sampled_from(OBJECTIVES)), data.draw(st.sampled_from([0.0, SLACK, 0.1])))
    array["links"] = {**array["links"], "south": True}
    (folder / "net.onnx").write_bytes(net.model.SerializeToString())
    try:
        for _ in range(20):
            (folder / "array.toml").write_text(as_toml(array))
            arch = parse_arch(as_toml(array), "drawn")
            chosen = Settings(arch, str(folder / "array.toml"), arch.operand_bits, net.feeds, None, dataflow, objective)
            try:
                check(import_model(folder / "net.onnx", None, chosen))
                return
            except GlbTooSmall as refusal:
                array = {**array, "glb": {**array["glb"], "words": refusal.words}}
    except Refusal:
        reject()
