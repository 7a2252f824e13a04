"""The thesis' formulas for the cycles of a layer, as printed and corrected, and errata of its tables and text."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from os_tables import NAMES, SHAPES, TILES, UNROLLING, Row, rows

AROUND = 4  # cycles around a MAC instruction: 3 before it, 1 after it
PING = 12  # words


def overlap(tile: Row) -> int:
    """Eq. (5.1)."""
    return max(0, tile["tkx"] - tile["stride"])


def not_overlap(tile: Row) -> int:
    """Eq. (5.2)."""
    return tile["tkx"] - overlap(tile)


def multiplications(shape: Row) -> int:
    """Eq. (6.1)."""
    return prod(shape[key] for key in ("nif", "nky", "nkx", "nof", "noy", "nox"))


def positions(tile: Row, unroll: Row) -> int:
    """How often a PE set is used for one output channel of a tile."""
    return ceil(tile["toy"] / unroll["poy"]) * ceil(tile["tox"] / unroll["pox"])


def printed_ideal(tile: Row, unroll: Row) -> int:
    """Eq. (6.2): one tile."""
    return prod(tile[key] for key in ("tif", "tky", "tkx", "tof")) * positions(tile, unroll)


def printed_real(tile: Row, unroll: Row) -> int:
    """Eq. (6.3): one tile."""
    return tile["tif"] * (tile["tky"] * tile["tkx"] * tile["tof"] + AROUND) * positions(tile, unroll)


def logical_sets(tile: Row, unroll: Row) -> list[int]:
    """Eq. (5.3): the output channels of each PE set. Each remaining channel has a set of its own (corner case 3)."""
    whole, rest = divmod(tile["tof"], unroll["p"])
    return [unroll["p"]] * whole + [1] * rest


def tiles(shape: Row, tile: Row) -> int:
    """Tiles of a layer."""
    return prod(ceil(shape[f"n{of}"] / tile[f"t{of}"]) for of in ("if", "of", "oy", "ox"))


def corrected(shape: Row, tile: Row, unroll: Row) -> int:
    """A whole layer: all tiles, sets side by side in rounds, and the cycles around every MAC instruction.

    An instruction covers the p channels of a set and one input channel, so that T_of / p of them pay for what Eq. (6.3)
    lets T_of pay once; P_ofv * P_ofh sets work at the same time, which it leaves out.
    """
    sets, side = logical_sets(tile, unroll), unroll["pofv"] * unroll["pofh"]
    rounds = [max(sets[i : i + side]) for i in range(0, len(sets), side)]
    kernel = tile["tky"] * tile["tkx"]
    return tiles(shape, tile) * tile["tif"] * positions(tile, unroll) * sum(p * kernel + AROUND for p in rounds)


def change(tile: Row, unroll: Row) -> float:
    """(6.3) against (6.2), in percent."""
    ideal = printed_ideal(tile, unroll)
    return 100 * (printed_real(tile, unroll) - ideal) / ideal


# -- errata ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Erratum:
    """A statement of the thesis, what it says, what is right, and why."""

    where: str
    printed: str
    right: str
    why: str


def _table(net: str, side: int) -> dict[int, tuple[Row, Row, Row]]:
    shapes, tiled, unrolled = rows(SHAPES[net]), rows(TILES[net, side]), rows(UNROLLING[net, side])
    return {layer: (shapes[layer], tiled[layer], unrolled[layer]) for layer in shapes}


def errata() -> list[Erratum]:
    """All of the thesis' chapters 4 to 6 and tables that this program meets, with the numbers computed here."""
    return [*_errata_of_tables(), *_errata_of_formulas(), *_errata_of_listings()]


def _errata_of_tables() -> list[Erratum]:
    errors: list[Erratum] = []
    for (net, side), names in NAMES.items():
        table = _table(net, side)
        unfit = [i for i, (_, _, u) in table.items() if u["poy"] * u["pofv"] > side or u["pox"] * u["pofh"] > side]
        if len(unfit) == len(table):
            same = UNROLLING[net, side] == UNROLLING[net, 6]
            why = "it repeats Table A.12 in every row: the factors for 4 x 4 are lost" if same else "they are too large"
            right = f"{len(table) - len(unfit)} of {len(table)} do"
            errors.append(Erratum(f"Table {names[1]}", f"factors for {side} x {side} PEs", right, why))
            continue
        for i in unfit:
            u = table[i][2]
            asked = f"{u['poy'] * u['pofv']} x {u['pox'] * u['pofh']} PEs"
            why = "Pofh = 1 as in the layers beside it would fit"
            errors.append(Erratum(f"Table {names[1]}, layer {i}", f"an array of {side} x {side}", asked, why))
    for (net, side), names in NAMES.items():
        for i, (_, tile, unroll) in _table(net, side).items():
            for axis in "xy":
                needed = (tile[f"to{axis}"] - 1) * tile["stride"] + tile[f"tk{axis}"]
                if (says := tile[f"ti{axis}"]) != needed:
                    why = f"(To{axis} - 1) s + Tk{axis}; and Po{axis} = {unroll[f'po{axis}']} in {names[1]}"
                    where = f"Table {names[0]}, layer {i}"
                    errors.append(
                        Erratum(where, f"Ti{axis} = {says}", f"{needed} for To{axis} = {tile[f'to{axis}']}", why)
                    )
    every = [(net, i, tile) for net, side in NAMES for i, (_, tile, _) in _table(net, side).items()]
    deep = {f"{net} layer {i}": not_overlap(tile) * tile["tky"] for net, i, tile in every}
    worst = max(deep, key=lambda name: deep[name])
    others = max(depth for name, depth in deep.items() if name != worst)
    why = f"not_overlap * Tky words; every other layer needs at most {others}"
    errors.append(
        Erratum("Section 6.2", f"a ping buffer of {PING} words holds all loads", f"{deep[worst]} for {worst}", why)
    )
    return errors


def _errata_of_formulas() -> list[Erratum]:
    ratios: list[float] = []
    slow: list[str] = []
    for net in SHAPES:
        by_side = {side: _table(net, side) for side in (4, 6, 8)}
        for side, table in by_side.items():
            ratios += [multiplications(s) / (printed_ideal(t, u) * side * side) for s, t, u in table.values()]
        cycles = {side: {i: printed_real(t, u) for i, (_, t, u) in table.items()} for side, table in by_side.items()}
        slow += [f"{net} layer {i}" for i in cycles[8] if cycles[8][i] > min(cycles[4][i], cycles[6][i])]
    _, tile, unroll = _table("ResNet-20", 6)[2]
    paid = 100 * AROUND / (unroll["p"] * tile["tky"] * tile["tkx"])
    return [
        Erratum(
            "Eqs. (6.2), (6.3)",
            "cycles of a layer, N_mul at most as many times PEs",
            f"{max(ratios):.0f} times as many",
            "they count one tile, not the layer, and leave out the sets that work side by side",
        ),
        Erratum(
            "Eq. (6.3)",
            f"{change(tile, unroll):.2f} % around the instructions of ResNet-20 layer 2, 6 x 6",
            f"{paid:.2f} %",
            "an instruction covers p channels, not Tof: 4 / (q p Tky Tkx)",
        ),
        Erratum(
            "Section 6.3.2",
            "8 x 8 PEs take the fewest cycles",
            f"not of {', '.join(slow)} by (6.3)",
            "its tiles of these layers are larger; over whole layers 8 x 8 is the fastest",
        ),
        Erratum(
            "Eq. (5.4)",
            f"2 sets, Pofh = 2, Pofv = 1: {2 / (2 + 1):.3f} sets",
            f"{ceil(2 / (2 * 1))} round",
            "a product in the denominator, rounded up; it counts rounds, not sets",
        ),
    ]


def _errata_of_listings() -> list[Erratum]:
    pixels, weights, p = np.arange(1, 10), np.arange(1, 19), 2
    right = [int(sum(pixels[j] * weights[p * j + i] for j in range(9))) for i in range(p)]
    reads = max(range(0, len(weights), p))
    strip, kernel = np.arange(21).reshape(7, 3) ** 2 % 7, np.arange(9)  # column by column
    direct = [int((strip[x : x + 3].ravel() * kernel).sum()) for x in range(3)]

    def fir(step: int) -> list[int]:
        return [int(sum(kernel[i] * strip.ravel()[i + k * step] for i in range(9))) for k in range(3)]

    assert fir(1 * 3) == direct != fir(2 * 3)
    return [
        Erratum(
            "Section 5.1.1",
            "overlap 2, not_overlap 1 for Fig. 5.3",
            "overlap 1, not_overlap 2",
            "3 shared pixels: stride 2",
        ),
        Erratum(
            "Listing 5.2",
            "channels ni < Tif inside kx",
            "q of them, Tif / q times",
            "what q < Tif words of a channel hold",
        ),
        Erratum(
            "Listing 5.3",
            f"ifmap[j] with p = {p}: pixel {reads} of 9",
            f"ifmap[j / p]: psums {right}",
            "a pixel serves all p channels",
        ),
        Erratum(
            "Eq. (6.4)",
            f"C = overlap * Tky: {fir(2 * 3)}",
            f"C = stride * Tky: {direct}",
            "windows are a stride apart",
        ),
    ]
