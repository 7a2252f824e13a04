"""Layers of the grid: a convolution or a pool, its integers, its result by brute force, its array and its IR.

FACTORS has the values of every parameter; `every_pair` is a list of layers in which any two values of two parameters
meet, `random_layers` draws from all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, product
from math import isqrt, prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cnncc.context import CompilerContext

MOST_MACS = 300_000  # of a layer in the lists below: the brute force is to be quick
MOST_STEPS = 5_000  # of the array for them, about: so is the machine


@dataclass(frozen=True)
class Case:
    """c, k: channels of the image and of the result in a group; a pool has k of both.

    group: "one", "two" or "three" of them; or k groups, of which "each" gives one channel (depthwise where c is 1) or
    two ("pairs": a depthwise layer with a multiplier of 2).
    """

    kind: str = "mac"
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad: str = "none"
    c: int = 3
    k: int = 5
    group: str = "one"
    image: tuple[int, int] = (7, 7)
    n: int = 1
    bits: int = 16
    array: tuple[int, int] = (4, 4)
    files: str = "large"
    glb: int = 1 << 16  # words; 0: what it takes to have all but the weights there, and a third of these
    halves: int = 2
    n2n: bool = True
    overlap: bool = True
    scaled: bool = True
    zero: int = 0
    seed: int = 0

    @cached_property
    def spans(self) -> tuple[int, int]:
        """Rows and columns from a window's first to its last."""
        return ((self.kernel[0] - 1) * self.dilation[0] + 1, (self.kernel[1] - 1) * self.dilation[1] + 1)

    @cached_property
    def pads(self) -> tuple[int, int, int, int]:
        down, right = self.spans[0] - 1, self.spans[1] - 1
        same = (down // 2, right // 2, down - down // 2, right - right // 2)
        asymmetric = (self.kernel[0] // 2 * self.dilation[0], 0, down, right)
        return {"none": (0, 0, 0, 0), "same": same, "asymmetric": asymmetric}[self.pad]

    @cached_property
    def output(self) -> tuple[int, int]:
        top, left, bottom, right = self.pads
        sizes = (self.image[0] + top + bottom - self.spans[0], self.image[1] + left + right - self.spans[1])
        return (sizes[0] // self.stride[0] + 1, sizes[1] // self.stride[1] + 1)

    @property
    def is_mac(self) -> bool:
        return self.kind == "mac"

    @property
    def groups(self) -> int:
        return {"one": 1, "two": 2, "three": 3}.get(self.group, self.k) if self.is_mac else 1

    @property
    def per_group(self) -> int:
        """Channels of the result in a group."""
        return {"each": 1, "pairs": 2}.get(self.group, self.k) if self.is_mac else self.k

    @property
    def channels_out(self) -> int:
        return self.groups * self.per_group

    @property
    def channels_in(self) -> int:
        return self.groups * self.c if self.is_mac else self.k

    @property
    def products(self) -> int:
        """Of a sum."""
        return (self.c if self.is_mac else 1) * prod(self.kernel)

    @property
    def macs(self) -> int:
        return self.n * self.channels_out * prod(self.output) * self.products

    @property
    def weight_words(self) -> int:
        return self.channels_out * self.products if self.is_mac else 0

    @property
    def glb_words(self) -> int:
        """The least that the GLB must have."""
        activations = self.n * (self.channels_in * prod(self.image) + self.channels_out * prod(self.output))
        weights = self.weight_words if self.glb else max(self.weight_words // 3, self.products)
        return activations + weights + 8 * self.channels_out

    @property
    def fill(self) -> int:
        """Padding of a maximum never wins; a sum's is the zero point."""
        return -(1 << self.bits - 1) if self.kind == "max" else self.zero

    @property
    def most(self) -> int:
        """Operands: so few bits that no sum leaves 32 bits (MAC-2), and many stay off the clamp without a scale."""
        if self.kind == "max":
            return 120
        if not self.scaled:
            return max(1, isqrt(isqrt(40_000 // self.products)) if self.is_mac else 100 // isqrt(self.products))
        return min({8: 60, 16: 1200}[self.bits], isqrt((1 << 30) // self.products))

    def random(self, what: int, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([self.seed, what]).integers(low, high, shape, endpoint=True)

    @cached_property
    def x(self) -> np.ndarray:
        """Around the zero point, so that sums have either sign."""
        words = self.random(0, -self.most, self.most, (self.n, self.channels_in, *self.image))
        return words if self.kind == "max" else words + self.zero

    @cached_property
    def weights(self) -> np.ndarray:
        return self.random(1, -self.most, self.most, (self.channels_out, self.c, *self.kernel))

    @property
    def typical(self) -> float:
        """Two or three times the standard deviation of a sum."""
        return self.most * (self.most if self.is_mac else 1) * self.products**0.5

    @cached_property
    def bias(self) -> np.ndarray:
        most = min(5000, int(self.typical)) if self.scaled else 30
        return self.random(2, -most, most, (self.channels_out,)).astype(np.int32)

    @cached_property
    def scale(self) -> np.ndarray:
        """So that some results reach the clamp, and most do not."""
        return (self.random(3, 40, 160, (self.channels_out,)) / self.typical).astype(np.float32)

    @property
    def clamp(self) -> tuple[int, int]:
        return (-70, 90)

    @property
    def steps(self) -> int:
        """Parameters of each channel: bias, scale."""
        return 0 if self.kind == "max" else 1 + self.scaled

    def sums(self) -> Iterator[tuple[tuple[int, int, int], np.ndarray]]:
        """For each image and position the sums of all channels."""
        top, left, _, _ = self.pads
        for n, y, x in np.ndindex(self.n, *self.output):
            window = np.full((self.channels_in, *self.kernel), self.fill)
            for r, s in np.ndindex(*self.kernel):
                iy = y * self.stride[0] + r * self.dilation[0] - top
                ix = x * self.stride[1] + s * self.dilation[1] - left
                if 0 <= iy < self.image[0] and 0 <= ix < self.image[1]:
                    window[:, r, s] = self.x[n, :, iy, ix]
            if self.kind == "max":
                yield (n, y, x), window.max(axis=(1, 2))
            elif self.kind == "add":
                yield (n, y, x), (window - self.zero).sum(axis=(1, 2))
            else:
                yield (n, y, x), self.products_summed(window - self.zero)

    def products_summed(self, window: np.ndarray) -> np.ndarray:
        """Group by group: its channels of the window with its weights."""
        sums = []
        for group in range(self.groups):
            channels = window[group * self.c : (group + 1) * self.c]
            weights = self.weights[group * self.per_group : (group + 1) * self.per_group]
            sums.append((weights * channels).sum(axis=(1, 2, 3)))
        return np.concatenate(sums)

    @cached_property
    def expected(self) -> np.ndarray:
        result = np.zeros((self.n, self.channels_out, *self.output), np.int64)
        for (n, y, x), sums in self.sums():
            result[n, :, y, x] = sums
        if self.kind == "max":
            return result
        result += self.bias[:, None, None]
        if self.scaled:
            result = np.rint(result.astype(np.float32) * self.scale[:, None, None]).astype(np.int64) + 3
        return np.clip(result, *self.clamp)

    def arch_text(self) -> str:
        """TOML of the array; small register files hold a kernel row of one channel and little more, tiny ones less.

        With "pong" ifmap halves are ping and pong, smaller than a window.
        """
        s = self.kernel[1]
        files = {"large": (112, 48, 16), "small": (s + 2, s + 1, 3), "tiny": (4, 3, 2), "pong": (64, 7, 5)}
        weight, ifmap, psum = files[self.files]
        pong, virtual = (6, 17) if self.files == "pong" else (0, 0)
        return f"""
            name = "grid"
            rows = {self.array[0]}
            cols = {self.array[1]}
            operand_bits = {self.bits}
            [pe]
            weight_words = {weight}
            ifmap_words = {ifmap}
            psum_words = {psum}
            pong_words = {pong}
            virtual_words = {virtual}
            weight_halves = {self.halves}
            ifmap_halves = {self.halves}
            psum_halves = {self.halves}
            start_cycles = 3
            finish_cycles = 2
            [bus]
            burst_words = 3
            latency_cycles = 2
            [links]
            n2n = {str(self.n2n).lower()}
            [glb]
            words = {self.glb or self.glb_words}
            words_per_cycle = 5
            [dram]
            words_per_cycle = 3
            latency_cycles = 17
            [commit]
            units_per_column = 1
            latency_cycles = 4
            [sequencer]
            queue_depth = 3
            overlap = {str(self.overlap).lower()}
        """

    def text(self, ctx: CompilerContext) -> str:
        def ref(values: np.ndarray) -> str:
            return f'#weights.ref<"{ctx.weights.add(values)}">'

        shapes = (self.x.shape, (self.n, self.channels_out, *self.output), self.weights.shape)
        x, y, weights = ("x".join(map(str, shape)) for shape in shapes)
        word = f"i{self.bits}"
        op = {"mac": "conv %x weights @w", "max": 'pool "max" %x', "add": 'pool "sum" %x'}[self.kind]
        low, high = self.clamp
        scale = 'scale = "s", zero = 3, ' if self.scaled else ""
        then = "" if self.kind == "max" else f'then <bias = "b", {scale}clamp = [{low}, {high}]>'
        zero = 0 if self.kind == "max" else self.zero
        return f"""
            weights.global @w : tensor<{weights}x{word}> = {ref(self.weights.astype(f"int{self.bits}"))}
            weights.global @b : tensor<{self.channels_out}xi32> = {ref(self.bias)}
            weights.global @s : tensor<{self.channels_out}xf32> = {ref(self.scale)}
            func.func @main(%x : tensor<{x}x{word}> {{onnx.name = "x", cnn.quant = #cnn.quant<scale = 1.0>}})
                -> (tensor<{y}x{word}> {{onnx.name = "y", cnn.quant = #cnn.quant<scale = 1.0>}}) {{
              %1 = cnn.{op} window <kernel = {list(self.kernel)}, stride = {list(self.stride)}, pad = {list(self.pads)},
                   dilation = {list(self.dilation)}, group = {self.groups}, fill = {self.fill}, zero = {zero}>
                   {then} label "layer" : tensor<{x}x{word}> -> tensor<{y}x{word}>
              func.return %1 : tensor<{y}x{word}>
            }}"""


# Parameters and their values.

Point = dict[str, Any]  # a value of each
Pair = frozenset[tuple[str, Any]]  # two of them

FACTORS: dict[str, list[Any]] = {
    "kind": ["mac", "max", "add"],
    "kernel": [(1, 1), (2, 2), (3, 3), (5, 5), (7, 7), (11, 11), (1, 5), (1, 7), (4, 1)],
    "stride": [(1, 1), (2, 2), (3, 3), (1, 2), (3, 1), (4, 4)],
    "dilation": [(1, 1), (2, 2), (3, 3), (1, 2), (2, 3), (3, 1)],
    "pad": ["none", "same", "asymmetric"],
    "c": [1, 3, 5, 16, 17, 64, 67, 96],
    "k": [1, 3, 5, 16, 17, 64, 67, 96],
    "group": ["one", "two", "three", "pairs", "each"],
    "height": [5, 6, 7, 8, 9, 11, 13, 17, 19],
    "width": [5, 6, 7, 8, 9, 11, 13, 17, 19],
    "n": [1, 2],
    "bits": [16, 8],
    "array": [(2, 2), (2, 4), (3, 5), (4, 4), (4, 8), (8, 3), (8, 8)],
    "files": ["large", "small", "tiny", "pong"],
    "glb": [1 << 16, 1 << 14, 0],
    "halves": [2, 1, 3],
    "n2n": [True, False],
    "overlap": [True, False],
    "scaled": [True, False],
    "zero": [0, -7, 60],
}
ORDER = [  # in which they are chosen: an image that is large enough before the kernel, what makes it heavy last
    "bits", "array", "files", "glb", "halves", "n2n", "overlap", "scaled", "zero", "kind", "height", "width", "kernel",
    "dilation", "pad", "stride", "n", "group", "k", "c",
]  # fmt: skip
OFTEN = {"kind": ["mac"], "c": [1], "halves": [2], "zero": [0]}
TRIES = 8
IDLE = {"mac": (), "max": ("c", "group", "scaled", "zero"), "add": ("c", "group")}  # parameters that say nothing


def case_of(point: Point, seed: int = 0) -> Case:
    rest = {name: value for name, value in point.items() if name not in ("height", "width")}
    return Case(**rest, image=(point["height"], point["width"]), seed=seed)


def fits(case: Case) -> bool:
    """Whether there is a result, everything lies in the GLB, and the layer is quickly done."""
    if min(case.output) < 1 or case.glb_words > (case.glb or 1 << 16):
        return False
    reuse = 4 if case.files == "large" else 1  # others: a macro-instruction a kernel row, or a part
    return case.macs <= MOST_MACS and case.macs <= MOST_STEPS * reuse * prod(case.array)


def pairs_of(point: Point) -> set[Pair]:
    """The pairs that a layer covers: of parameters that say something."""
    values = [(name, value) for name, value in point.items() if name not in IDLE[point["kind"]]]
    return {frozenset(pair) for pair in combinations(values, 2)}


def all_pairs() -> list[Pair]:
    """Every two values of different parameters that say something together."""
    values = [(name, value) for name, many in FACTORS.items() for value in many]
    pairs = [dict(pair) for pair in combinations(values, 2) if pair[0][0] != pair[1][0]]
    return [frozenset(pair.items()) for pair in pairs if not pair.keys() & {*IDLE[pair.get("kind", "mac")]}]


# Layers that fit.


def lightest(pinned: Point) -> Point:
    """A point with these values that fits, all others being as light as they can be."""
    for height, width in product((5, 9, 17, 19), repeat=2):
        point = {name: values[0] for name, values in FACTORS.items()}
        point |= {"pad": "same", "array": (8, 8), "c": 1, "k": 1, "height": height, "width": width} | pinned
        if fits(case_of(point)):
            return point
    raise AssertionError(f"no layer with {pinned} fits")


def filled(pinned: Point, choose: Callable[[str, list[Any]], Any]) -> Point:
    """A point with these values, one parameter after the other chosen from its values that leave one that fits."""
    point = lightest(pinned)
    for name in ORDER:
        if name not in pinned:
            point[name] = choose(name, [value for value in FACTORS[name] if fits(case_of({**point, name: value}))])
    return point


def drawn(pinned: Point, rng: np.random.Generator) -> Point:
    """The same, chosen at random, which looks at few values."""
    point = lightest(pinned)
    for name in ORDER:
        if name not in pinned:
            values = (FACTORS[name][number] for number in rng.permutation(len(FACTORS[name])))
            point[name] = next(value for value in values if fits(case_of({**point, name: value})))
    return point


@cache
def every_pair() -> list[Case]:
    """Layers in which every pair is there, chosen greedily: of some with the first pair that is left the best."""
    rng = np.random.default_rng(0)
    left, points = dict.fromkeys(all_pairs()), list[Point]()
    while left:
        first = dict(next(iter(left)))
        tries = [drawn(first, rng) for _ in range(TRIES)]
        points.append(max(tries, key=lambda point: len(pairs_of(point) & left.keys())))
        for pair in pairs_of(points[-1]):
            left.pop(pair, None)
    return [case_of(point, seed) for seed, point in enumerate(points)]


@st.composite
def random_layers(draw: st.DrawFn) -> Case:
    """From all parameters; mostly convolutions, of those in many groups mostly depthwise ones."""

    def choose(name: str, values: list[Any]) -> Any:
        return draw(st.sampled_from([*values, *[value for value in values if value in OFTEN.get(name, ())] * 3]))

    kind = choose("kind", FACTORS["kind"])
    return case_of(filled({"kind": kind}, choose), draw(st.integers(0, 9)))
