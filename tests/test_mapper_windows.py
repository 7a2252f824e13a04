"""Lanes over the taps of windows in the mapper's space: where they win, and that nothing gets slower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from examples import SEED, examples

from cnncc.arch.model import Arch, load_arch
from cnncc.certificate.whole_space import look
from cnncc.mapper import boxes, space
from cnncc.mapper.cached_search import searched
from cnncc.mapper.combinations import found_below
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.search import search
from cnncc.mapping.mapping import Mapping, Sizes
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_counts, layer_cycles
from cnncc.model.layer_shape import GlbBudget, LayerShape, Window
from cnncc.passes._scheduling.dataflows import TEXTS
from cnncc.passes._scheduling.schedule_file import MappingText
from cnncc.passes._scheduling.written_mappings import written_mapping

ARCH = load_arch("cbrain-16-16")
SMALL = replace(ARCH, rows=2, cols=2, pe=replace(ARCH.pe, weight_words=60, ifmap_words=60, psum_words=8, max_pixels=8))


def layer(k: int, c: int, side: int, kernel: int, stride: int = 1, dilation: int = 1, group: int = 1) -> LayerShape:
    image = (side - 1) * stride + (kernel - 1) * dilation + 1
    window = Window((kernel,) * 2, (stride,) * 2, dilation=(dilation,) * 2, group=group)
    return LayerShape("mac", Sizes(1, k, c, side, side, kernel, kernel), window, 2, image, image)


def found(shape: LayerShape, arch: Arch) -> tuple[int, Mapping]:
    space.numbers.cache_clear()
    space.box_arrays.cache_clear()
    found_below.cache_clear()
    result = search.__wrapped__(shape, arch, GlbBudget(arch.glb.words))
    assert result is not None and result.mapping is not None
    return result.cycles, result.mapping


def on_lanes(mapping: Mapping) -> str:
    return "".join(loop.dim for loop in mapping.loops if loop.on == "lanes")


@pytest.mark.parametrize(
    ("shape", "lanes"),
    [
        (layer(16, 1, 6, 3), "sr"),
        (layer(16, 3, 4, 11, 4), "sr"),  # tiles of 4 x 4 taps
        (layer(16, 5, 6, 3), "cr"),  # 15 of 16 lanes
        (layer(16, 1, 6, 3, group=16), "sr"),
        (layer(16, 16, 6, 3), "c"),
    ],
)
def test_lanes_are_over_what_fills_them(shape: LayerShape, lanes: str) -> None:
    sizes = shape.sizes if shape.window.group == 1 else replace(shape.sizes, k=16)
    assert on_lanes(found(replace(shape, sizes=sizes), ARCH)[1]) == lanes


def layers() -> Iterator[LayerShape]:
    rng = np.random.default_rng([SEED, 5])
    for _ in range(examples(6)):
        kernel = int(rng.integers(2, 6))
        c, k = (int(each) for each in rng.integers(1, 8, 2))
        yield layer(k, c, int(rng.integers(2, 5)), kernel, int(rng.integers(1, 3)), int(rng.integers(1, 3)))


def test_windows_make_nothing_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    faster = 0
    for shape in layers():
        cycles, _ = found(shape, SMALL)
        with monkeypatch.context() as without:
            without.setattr(boxes, "_window_lanes", lambda *_: ())
            alone, _ = found(shape, SMALL)
        assert cycles <= alone, shape
        faster += cycles < alone
    assert faster >= examples(2)


def test_a_rest_of_channels_is_one_step() -> None:
    """72 channels on 16 lanes are 4 steps and a step of 8. Lanes that divide 72 are 12 at most: 6 steps."""
    sizes = Sizes(1, 16, 72, 4, 4, 1, 1)
    shape = LayerShape("mac", sizes, Window((1, 1)), 2, 4, 4)
    cycles, mapping = found(shape, ARCH)
    counts = layer_counts(LayerPlan("", shape, mapping, False, PREFETCHED), ARCH)
    assert (on_lanes(mapping), counts.compute) == ("c", 5 * 16) and cycles >= counts.compute


@pytest.mark.parametrize(
    ("kernels", "inputs", "image", "kernel"),
    [
        (96, 32, 28, 5),  # the search of all forms together ends at 240,610 cycles (BOUND-8)
        (32, 528, 14, 1),  # lanes that divide 528 were 24 of 32
    ],
)
def test_the_mapper_is_no_slower_than_a_scheme(kernels: int, inputs: int, image: int, kernel: int) -> None:
    """Layers of GoogLeNet for which a scheme of C-Brain took fewer cycles than the mapping that was found."""
    arch = load_arch("cbrain-32-32" if inputs == 528 else "cbrain-16-16")
    pad = kernel // 2
    window = Window((kernel,) * 2, pad=(pad,) * 4)
    shape = LayerShape("mac", Sizes(1, kernels, inputs, image, image, kernel, kernel), window, 2, image, image)
    budget = GlbBudget(arch.glb.words - image * image * (inputs + kernels))
    best = searched(SearchTask(shape, arch, budget))
    assert best is not None
    for name in ("inter", "inter-weights", "inter-data"):
        mapping = written_mapping(shape, arch, budget, MappingText(TEXTS[name].text(shape, arch)))
        assert best.cycles <= layer_cycles(LayerPlan("", shape, mapping, False, PREFETCHED), arch), name


def test_certificates_know_windows() -> None:
    """The space is enumerated once more, with no code of the search: nothing is faster, a cycle more is refused."""
    shape, arch = layer(2, 2, 2, 3), replace(SMALL, rows=1, cols=2, pe=replace(SMALL.pe, psum_words=2, max_pixels=2))
    cycles, mapping = found(shape, arch)
    assert len(on_lanes(mapping)) > 1
    assert look(shape, arch, False, arch.glb.words, cycles).better is None
    better = look(shape, arch, False, arch.glb.words, cycles + 1).better
    assert better is not None and better[1] == cycles
