"""Boxes for large register files: not all are looked at, and what is said of the others stays true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cnncc.arch.model import Arch, load_arch
from cnncc.certificate.whole_space import look
from cnncc.mapper import boxes, space
from cnncc.mapper.combinations import found_below
from cnncc.mapper.search import search
from cnncc.mapping.mapping import Sizes
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.window import Window

ARCH = load_arch("spatial-4x4")
ROOM = GlbBudget(1 << 20)


def layer(k: int, c: int, side: int, taps: int) -> LayerShape:
    pad = (taps // 2,) * 4
    return LayerShape("mac", Sizes(1, k, c, side, side, taps, taps), Window((taps, taps), pad=pad), 2, side, side)


def files(words: int, lanes: int = 1) -> Arch:
    pe = replace(ARCH.pe, weight_words=words, ifmap_words=words, psum_words=words, max_pixels=words, lanes=lanes)
    return replace(ARCH, pe=pe)


@pytest.mark.parametrize(("shape", "lanes"), [(layer(512, 512, 28, 3), 4), (layer(4096, 4096, 224, 1), 64)])
def test_there_are_never_too_many(shape: LayerShape, lanes: int) -> None:
    arch = files(65536, lanes)
    found, some = boxes.boxes(shape, arch)
    assert some and boxes.MOST / 8 < len(found) <= boxes.MOST and len(set(found)) == len(found)
    assert (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, True, True) in found
    for k, w, h, c, r, s, _, _, _, _, words, *_ in found:
        image = (h + r - 1) * (w + s - 1) * c
        assert max(image, k * c * r * s, k * h * w) <= 65536 and words == image + k * c * r * s


def test_few_register_words_are_looked_at_quickly() -> None:
    """No walk over numbers of k, h and w for which there are sums, but neither weights nor pixels."""
    arch = replace(ARCH, pe=replace(ARCH.pe, psum_words=65536, max_pixels=65536, weight_words=3, ifmap_words=3))
    found, some = boxes.boxes(layer(4096, 4096, 224, 1), arch)
    assert not some and max(k * c for k, _, _, c, *_ in found) == max(w * h * c for _, w, h, c, *_ in found) == 3
    assert len(found) == len(set(found)) == 17


@pytest.mark.parametrize("n2n", [True, False])
@pytest.mark.parametrize("preset", ["spatial-8x8", "seed-8x8", "tcpa-4x4", "cbrain-16-16"])
def test_boxes_are_those_of_one_pe(preset: str, n2n: bool) -> None:
    """So arrays of all sizes share them, whatever else takes how long."""
    arch = load_arch(preset)
    arch = replace(arch, links=replace(arch.links, n2n=n2n))
    pe = replace(arch.pe, start_cycles=7, finish_cycles=9)
    other = replace(arch, rows=3, cols=2, pe=pe, glb=replace(arch.glb, words=9000, words_per_cycle=7))
    for shape in (layer(16, 6, 9, 3), layer(16, 30, 9, 1)):
        of_images = replace(shape, sizes=replace(shape.sizes, n=3))
        numbers, others = space.numbers(shape, arch), space.numbers(of_images, other)
        assert numbers.boxes is others.boxes and numbers.rows.size != others.rows.size
        for each in (arch, other):
            found, some = boxes.boxes(of_images, each)
            assert [box[:10] for box in found] == [*map(tuple, numbers.boxes.tolist())] and some == numbers.some
            assert [box[10] for box in found] == numbers.words.tolist()
            assert [[*box[11:]] for box in found] == numbers.fits.tolist()


def test_columns_that_lie_apart_are_a_counter_of_their_own() -> None:
    """Of three (LEGAL-4): several channels, pixels, and taps or input channels beside them are one too many."""

    def taken(dilation: int) -> set[tuple[int, ...]]:
        window = Window((3, 3), dilation=(1, dilation))
        shape = LayerShape("mac", Sizes(1, 2, 2, 4, 4, 3, 3), window, 2, 6, 4 + 2 * dilation)
        return {box[:6] for box in boxes.boxes(shape, files(65536))[0]}

    together, apart = taken(1), taken(2)
    assert apart <= together
    four = {(k, w, h, c, r, s) for k, w, h, c, r, s in together if k > 1 and w > 1 and c * r > 1 and s > 1}
    assert four and together - apart == four


def forget() -> None:
    space.numbers.cache_clear()
    space.box_arrays.cache_clear()
    found_below.cache_clear()


def test_what_is_said_of_boxes_that_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """`least` holds for all of them: the best of them takes more, the best of few more than that."""
    shape, arch = layer(12, 10, 6, 3), files(64)
    best = search.__wrapped__(shape, arch, ROOM)
    assert best is not None and best.least == best.cycles
    forget()
    monkeypatch.setattr(boxes, "MOST", 16384)
    assert not boxes.boxes(shape, arch)[1]
    monkeypatch.setattr(boxes, "_some", lambda found, few: [*found[:1], *found[1:][-1:]] if few else found)
    monkeypatch.setattr(boxes, "MOST", 50)
    assert boxes.boxes(shape, arch)[1]
    few = search.__wrapped__(shape, arch, ROOM)
    forget()
    assert few is not None and few.least <= best.cycles < few.cycles
    assert look(shape, arch, False, ROOM.words, few.least).combinations == 0  # there is nothing to be shown
