"""The program of an elementwise layer as records of a timeline: words through the output units, PEs idle. No IR."""

from __future__ import annotations

from cnncc.arch.model import Arch
from cnncc.dialects._mapping import Mapping
from cnncc.mapper.layer_shape import LayerShape, inside
from cnncc.mapper.occupancy import Engines
from cnncc.mapper.records import COMMIT, Node, Own, Repeat, Task, Token
from cnncc.mapper.transfers import INPUT_FREE, OUTPUT_FREE, OUTPUT_FULL, RESIDUAL_FULL


def stream_schedule(shape: LayerShape, mapping: Mapping, arch: Arch, residual: bool, apart: bool) -> list[Node]:
    """The program up to its `sync`. apart: images of an operand do not lie one after the other."""
    engines, staged = Engines(shape, arch), {stage.operand for stage in mapping.stages}
    depth = max([stage.depth for stage in mapping.stages], default=0)
    blocks = mapping.loops[: max(depth, int(apart))]
    block = inside(shape.sizes, blocks)
    words = block["n"] * block["k"] * block["h"] * block["w"]
    inputs = [operand for operand in ("ifmap", "residual") if operand in staged]
    room = OUTPUT_FREE if "output" in staged else INPUT_FREE
    body: list[Node] = []
    for operand in inputs:  # the first waits for room, the last says that all is there
        takes = (Token(room),) if operand == inputs[0] else ()
        gives = (Token(RESIDUAL_FULL),) if operand == inputs[-1] else ()
        body.append(engines.transfer(words, takes, gives))
    take = RESIDUAL_FULL if inputs else room if "output" in staged else 0
    give = OUTPUT_FULL if "output" in staged else room if inputs else 0
    body.append(engines.stream(words, residual, (Token(take),) if take else (), (Token(give),) if give else ()))
    if "output" in staged:
        body.append(engines.transfer(words, (Token(OUTPUT_FULL),), (Token(OUTPUT_FREE),)))
    for depth in reversed(range(len(blocks))):
        count = inside(shape.sizes, blocks[:depth])[blocks[depth].dim] // blocks[depth].step
        body = [Repeat(count, 1 << depth, tuple(body))]
    operands = 2 + residual
    steps = operands * sum(loop.dim in "nkh" for loop in blocks)
    return [Own(operands + len(staged) + steps), Task(COMMIT, 1), *body]
