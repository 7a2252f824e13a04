"""Output-stationary mappings that a user gives: which are legal, and the mapping that one means. No IR.

The numbers of a `LayerNumbers`, and their names in `numbered_nest.py`:

    tof, toy, tox   k, h, w   a block
    tif             c         a slice
    poy, pox        ph, pw    a set of PEs
    pofv, pofh      kr, kc    sets below and beside each other
    p, q            p, q      channels that a PE interleaves
    tky, tkx                  kernel rows and columns of a macro-instruction

The loops are always those of a plan with these numbers. The stages in the GLB depend on which operands are resident.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cnncc.arch.model import LOOP_REGISTERS, Arch
from cnncc.errors import Finding
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.register_files import macro_words
from cnncc.passes._scheduling.glb_words import (
    NOTHING_FITS,
    GlbTooSmall,
    buffers_too_large,
    divides,
    glb_words,
    is_small,
    stage_sizes,
)
from cnncc.passes._scheduling.numbered_nest import BLOCK, SLICE, OutputStationaryPlan, Tile, mapping_of
from cnncc.passes._scheduling.schedule_file import LayerNumbers

SMALLER = "smaller tof, toy, tox or tif"
TILES = {
    "tif": "input channels",
    "tof": "output channels",
    "toy": "output rows",
    "tox": "output columns",
    "tky": "kernel rows",
    "tkx": "kernel columns",
}
WITHIN = (("poy", "toy"), ("pox", "tox"), ("p", "tof"), ("q", "tif"))  # a factor and the tile that it is part of
# What the words of a register file are, and what would make them fewer.
OF_FILES = {"psum_words": ("p sums", "p"), "weight_words": ("q * p * tky * tkx weights", "p, q, tky or tkx")}
OF_INPUTS = {False: ("q * tky * tkx inputs", "q, tky or tkx"), True: ("p * tky * tkx inputs", "p, tky or tkx")}


def _most(shape: LayerShape) -> dict[str, int]:
    """The layer's size for each tile: of channels, those of a group."""
    sizes = shape.sizes
    channels = {"tif": sizes.c, "tof": shape.tiled_together}
    return {**channels, "toy": sizes.h, "tox": sizes.w, "tky": sizes.r, "tkx": sizes.s}


def _tiles(shape: LayerShape, given: LayerNumbers) -> dict[str, int]:
    return {key: min(getattr(given, key) or most, most) for key, most in _most(shape).items()}


def _chosen(shape: LayerShape, given: LayerNumbers) -> tuple[Tile, OutputStationaryPlan, int]:
    """The tile, the plan, and the kernel columns of a macro-instruction; no tile is larger than the layer."""
    tiles = _tiles(shape, given)
    tile = Tile(given.poy, given.pox, given.pofv, given.pofh, given.p, given.q, tiles["tky"])
    return tile, OutputStationaryPlan(tiles["tof"], tiles["toy"], tiles["tox"], tiles["tif"]), tiles["tkx"]


# -- what is legal -----------------------------------------------------------------------------------------------------


def violations(shape: LayerShape, arch: Arch, given: LayerNumbers, residual: bool) -> list[Finding]:
    """All reasons why the array cannot run a layer with these numbers. The caller sets `where`."""
    if not shape.is_mac:
        what = "schedules are for convolutions and fully connected layers, this is none"
        return [Finding(what, help="leave it out: the compiler maps it")]
    findings = [*_beyond_layer(shape, given), *_beyond_tile(shape, given), *_beyond_array(arch, given)]
    if shape.channelwise and given.q > 1 and shape.sizes.c > 1:
        what = "where each output channel has input channels of its own, a PE takes one of them at a time"
        findings.append(Finding(what, resource="q", value=given.q, limit=1, help="leave q out"))
    findings += [*_beyond_files(shape, arch, given), *_beyond_loops(shape, arch, given)]
    return [*findings, *_beyond_glb(shape, arch, given, residual)]


def _beyond_layer(shape: LayerShape, given: LayerNumbers) -> Iterator[Finding]:
    for key, most in _most(shape).items():
        if (tile := getattr(given, key) or 0) > most:
            group = " of a group" if key in ("tif", "tof") and shape.window.group > 1 and not shape.channelwise else ""
            what = f"larger than the layer's {TILES[key]}{group}"
            yield Finding(what, resource=key, value=tile, limit=most, help="leave it out to take all")


def _beyond_tile(shape: LayerShape, given: LayerNumbers) -> Iterator[Finding]:
    tiles, sizes = _tiles(shape, given), _most(shape)
    for key, tile in WITHIN:
        if (value := int(getattr(given, key))) > tiles[tile]:
            larger = f", or {tile} of at least {value}" if value <= sizes[tile] else ""
            what, help_ = f"larger than its tile, {tile} = {tiles[tile]}", f"{key} of at most {tiles[tile]}{larger}"
            yield Finding(what, resource=key, value=value, limit=tiles[tile], help=help_)


def _beyond_array(arch: Arch, given: LayerNumbers) -> Iterator[Finding]:
    sides = (("poy", "pofv", "rows", arch.rows), ("pox", "pofh", "cols", arch.cols))
    for pixels, sets, side, most in sides:
        each, count = int(getattr(given, pixels)), int(getattr(given, sets))
        if each * count > most:
            what, help_ = f"{count} x {each} PEs do not fit {most} {side}", f"smaller {pixels} or {sets}"
            yield Finding(what, resource=f"{pixels} * {sets}", value=each * count, limit=most, help=help_)


def _beyond_files(shape: LayerShape, arch: Arch, given: LayerNumbers) -> Iterator[Finding]:
    tiles = _tiles(shape, given)
    extent = {"k": given.p, "c": given.q, "r": tiles["tky"], "s": tiles["tkx"], "w": 1}
    for key, needed in macro_words(shape, arch, extent).items():
        if needed > (has := int(getattr(arch.pe, key))):
            what, fewer = OF_FILES.get(key, OF_INPUTS[shape.channelwise])
            help_ = f"smaller {fewer}, or an array with {key} of at least {needed}"
            yield Finding(f"{what} do not fit a PE", resource=f"pe.{key}", value=needed, limit=has, help=help_)


def _beyond_loops(shape: LayerShape, arch: Arch, given: LayerNumbers) -> list[Finding]:
    tile, plan, columns = _chosen(shape, given)
    help_ = "leave out tiles, or give factors that are as large as their tile"
    return too_many_loops(mapping_of(shape, arch, tile, plan, columns), help_)


def too_many_loops(mapping: Mapping, help_: str) -> list[Finding]:
    """That the machine's instructions cannot nest all loops in time, where they cannot (rule PROG-2 of the machine)."""
    loops = [loop for loop in mapping.loops if not (loop.on or loop.keep)]
    if len(loops) <= LOOP_REGISTERS:
        return []
    what = f"its loops in time are {' '.join(f'{loop.dim}:{loop.step}' for loop in loops)}"
    return [Finding(what, resource="loops", value=len(loops), limit=LOOP_REGISTERS, help=help_)]


def _beyond_glb(shape: LayerShape, arch: Arch, given: LayerNumbers, residual: bool) -> Iterator[Finding]:
    """A finding if neither tiles of streamed operands nor whole operands and weights fit the GLB."""
    streamed = frozenset[str]({"ifmap", "output", *(["residual"] if residual else [])})

    def least(streamed: frozenset[str]) -> dict[str, int]:
        candidates = _candidates(shape, arch, given, GlbBudget(arch.glb.words, streamed, residual))
        return stage_sizes(shape, arch, min(candidates, key=lambda mapping: glb_words(shape, arch, mapping)))

    image, results = shape.channels * shape.ih * shape.iw, shape.sizes.k * shape.sizes.h * shape.sizes.w
    values = {"ifmap": shape.sizes.n * image, "output": shape.sizes.n * results}  # the residual may be the ifmap
    words = min(least(streamed), least(frozenset()) | values, key=lambda words: sum(words.values()))
    if (needed := sum(words.values())) > arch.glb.words:
        parts, help_ = ", ".join(f"{name} {each:,}" for name, each in words.items()), "an array with a larger GLB"
        what = f"its tiles take {parts} words"
        yield Finding(what, "blocking", "", "glb.words", needed, arch.glb.words, f"{SMALLER}, or {help_}")


# -- the mapping -------------------------------------------------------------------------------------------------------


def given_mapping(shape: LayerShape, arch: Arch, budget: GlbBudget, given: LayerNumbers) -> Mapping:
    """The mapping with these numbers, with the first stages in the GLB that fit. Raises GlbTooSmall where none do."""
    least = NOTHING_FITS
    for mapping in _candidates(shape, arch, given, budget):
        if not divides(shape, mapping, budget):
            continue
        least = min(least, needed := glb_words(shape, arch, mapping))
        if needed <= budget.words:
            return mapping
    if least == NOTHING_FITS:
        tof, channels = _tiles(shape, given)["tof"], shape.sizes.k
        what = f"blocks of {tof} of {channels} channels must divide, where of output and residual one moves in blocks"
        help_ = f"tof that divides {channels}"
        finding = Finding(what, resource="tof", value=tof, limit=channels, help=help_)
        raise GlbTooSmall(f"{what}: {help_}", arch.glb.words, finding)
    raise buffers_too_large(arch, budget, least, SMALLER)


def _candidates(shape: LayerShape, arch: Arch, given: LayerNumbers, budget: GlbBudget) -> Iterator[Mapping]:
    """Mappings with these loops and each place of the weights' stage in the GLB, the better ones first.

    Small weights come as a whole. Larger ones come by tile or block, in two buffers if no operand is streamed.
    """
    tile, plan, columns = _chosen(shape, given)

    def mapping(plan: OutputStationaryPlan) -> Mapping:
        return mapping_of(shape, arch, tile, plan, columns, budget.streamed)

    whole, block = mapping(plan), replace(plan, weights=BLOCK)
    if budget.streamed or is_small(shape, arch, whole):
        yield whole
    by_tile = replace(block, k=min(plan.k, tile.kr * tile.kc * tile.p))
    blocks = [block] if budget.streamed else [by_tile, block]
    # The loops are those that the user gave: a block by tiles may need another one, over k.
    blocks = [each for each in blocks if each.k < shape.sizes.k and mapping(each).loops == whole.loops]
    if not budget.streamed:
        yield from (mapping(replace(each, buffers=2)) for each in blocks)
        yield whole
    yield from map(mapping, blocks)
    if not shape.channelwise:
        yield mapping(replace(plan, weights=SLICE))
