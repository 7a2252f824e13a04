"""The program of an elementwise layer, as plain records: words of two tensors through the output units, PEs idle (C1).

The loops outside its stages are hardware loops over blocks, and the one over n where images lie apart in an operand. A
block is one run of words in every operand, which one commit streams. Operands that do not lie in the GLB are staged
there, block by block.
"""

from __future__ import annotations

from collections.abc import Collection

from cnncc.dialects import array as A
from cnncc.dialects.nest import Loop
from cnncc.errors import Refusal
from cnncc.mapper.layer_shape import inside
from cnncc.passes._layer_operands import glb_stages
from cnncc.passes._layer_records import Along, Body, Layer, Loops, Node, Operand
from cnncc.passes._layer_transfers import INPUT_FREE, OUTPUT_FREE, OUTPUT_FULL, RESIDUAL_FULL


def stream_program(layer: Layer) -> list[Node]:
    """The program of a layer of kind copy, views first. Raises Refusal where the mapping has not the form above."""
    loops, staged = Loops(_blocks(layer)), glb_stages(layer)
    extent = inside(layer.shape.sizes, loops.loops)
    plane = extent["h"] * extent["w"]
    inputs = [name for name in ("ifmap", "residual") if name in staged]
    views, before, after = list[Node](), list[Node](), list[Node]()
    for name, home in layer.tensors.homes().items():
        steps = loops.steps(_flat(layer, home.image))
        if name in staged:
            views += [A.View(f"{name}.dram", home.tensor, steps=steps), A.View(name, layer.tensors.buffers[name])]
            way, tokens = ("out" if name == "output" else "in"), _tokens(name, inputs, staged)
            transfer = A.Dma(way, f"{name}.dram", name, extent["n"] * extent["k"] * plane, tokens=tokens)
            (after if way == "out" else before).append(transfer)
        else:
            views.append(A.View(name, home.tensor, steps=steps))
    take = RESIDUAL_FULL if inputs else OUTPUT_FREE[1] if after else 0
    give = OUTPUT_FULL if after else INPUT_FREE[1] if inputs else 0
    commit = A.Commit(
        "output",
        A.Place(),
        source="glb",
        operand="ifmap",
        residual="residual" if layer.tensors.residual else "",
        pixels=A.Extent(extent["n"] * extent["k"], "lin", plane),
        channels=A.Extent(plane, "lin", 1),
        tokens=A.Tokens(take, give),
    )
    return [*views, layer.unit, *_repeated(layer, loops, [*before, commit, *after])]


def _repeated(layer: Layer, loops: Loops, nodes: list[Node]) -> list[Node]:
    for depth in reversed(range(len(loops.loops))):
        loop, around = loops.loops[depth], inside(layer.shape.sizes, loops.loops[:depth])
        nodes = [Body(A.Repeat(loops.name(depth), around[loop.dim] // loop.step), tuple(nodes))]
    return nodes


def _flat(layer: Layer, image: int) -> Operand:
    sizes = layer.shape.sizes
    steps = {"n": image, "k": sizes.h * sizes.w, "h": sizes.w}
    return Operand({dim: Along("lin", step) for dim, step in steps.items()})


def _tokens(name: str, inputs: list[str], staged: Collection[str]) -> A.Tokens:
    """Of a block's transfers in, the first waits for room and the last says that all is there."""
    if name == "output":
        return A.Tokens(OUTPUT_FULL, OUTPUT_FREE[1])
    free = OUTPUT_FREE[1] if "output" in staged else INPUT_FREE[1]
    return A.Tokens(free if name == inputs[0] else 0, RESIDUAL_FULL if name == inputs[-1] else 0)


def _blocks(layer: Layer) -> tuple[Loop, ...]:
    """The loops over blocks. Raises Refusal where a block is no run of words."""
    loops, sizes = layer.mapping.loops, layer.shape.sizes
    depths = {stage.depth for stage in layer.mapping.stages} or {0}
    apart = sizes.n > 1 and any(home.image != sizes.k * sizes.h * sizes.w for home in layer.tensors.homes().values())
    blocks = loops[: max(max(depths), int(apart))]
    extent, problem = inside(sizes, blocks), ""
    is_run = extent["n"] == 1 or (not apart and extent["k"] * extent["h"] == sizes.k * sizes.h)
    if len(depths) > 1 or any(stage.memory != "glb" for stage in layer.mapping.stages):
        problem = "stages of an elementwise layer are in glb, all at one place"
    elif not is_run or extent["w"] < sizes.w or (extent["h"] < sizes.h and extent["k"] > 1):
        problem = "blocks of an elementwise layer are of whole channels, or rows of one channel, of one image"
    elif any(inside(sizes, blocks[:depth])[loop.dim] % loop.step or loop.on for depth, loop in enumerate(blocks)):
        problem = "blocks of an elementwise layer are of one size, in time"
    if problem:
        raise Refusal(f"layer {layer.label}: {problem}")
    return blocks
