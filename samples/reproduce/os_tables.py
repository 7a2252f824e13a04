"""Layer shapes, tiles and unrolling factors of the thesis on output-stationary arrays, as printed (Tables A.1 to A.14).

A row stands for the layers of its first column. Only convolutions: the thesis counts the cycles of these.
"""

from __future__ import annotations

Row = dict[str, int]

SHAPES = {
    "AlexNet": """
        layer nif nix niy nkx nky  nof px py nox noy stride
        1       3 224 224  11  11   96  5  5  56  56      4
        2      96  27  27   5   5  256  2  2  27  27      1
        3     256  13  13   3   3  384  1  1  13  13      1
        4     384  13  13   3   3  384  1  1  13  13      1
        5     384  13  13   3   3  256  1  1  13  13      1""",
    "ResNet-20": """
        layer nif nix niy nkx nky  nof px py nox noy stride
        1       3  32  32   3   3   16  1  1  32  32      1
        2-7    16  32  32   3   3   16  1  1  32  32      1
        8      16  32  32   3   3   32  1  1  16  16      2
        9-13   32  16  16   3   3   32  1  1  16  16      1
        14     32  16  16   3   3   64  1  1   8   8      2
        15-19  64   8   8   3   3   64  1  1   8   8      1""",
}

# By network and rows (and columns) of the array: tables of tiles and of unrolling factors.
TILES = {
    ("AlexNet", 4): """
        layer tif tix tiy tkx tky tof tox toy stride
        1       3  15  15  11  11  96   2   2      4
        2      48   7  31   5   5  64   3  27      1
        3      32  15  15   3   3 128  13  13      1
        4-5    48  15  15   3   3 128  13  13      1""",
    ("AlexNet", 6): """
        layer tif tix tiy tkx tky tof tox toy stride
        1       3  15  15  11  11  96   2   2      4
        2      32   7   7   5   5 128   3   3      1
        3-4    32  15  15   3   3 192  13  13      1
        5      16  15  15   3   3 256  13  13      1""",
    ("AlexNet", 8): """
        layer tif tix tiy tkx tky tof tox toy stride
        1       3  15  15  11  11  96   2   2      4
        2      32   7  31   5   5 128   3  27      1
        3      32  15  15   3   3 128  13  13      1
        4-5    48  15  15   3   3 128  13  13      1""",
    ("ResNet-20", 4): """
        layer tif tix tiy tkx tky tof tox toy stride
        1       3   6  34   3   3  16   4  32      1
        2-7    16   6  34   3   3  16   4  32      1
        8      16  33  33   3   3  32  16  16      2
        9-13   32   4  18   3   3  32   2  16      1
        14     32   9  17   3   3  64   4   8      2
        15-19  64   4   6   3   3  64   2   4      1""",
    ("ResNet-20", 6): """
        layer tif tix tiy tkx tky tof tox toy stride
        1       3  18  34   3   3  16  16  32      1
        2-7    16  18  34   3   3  16  16  32      1
        8      16   5  33   3   3  32   2  16      2
        9-13   32   4  18   3   3  32   2  16      1
        14     32   4   5   3   3  64   1   2      2
        15-19  64   4   4   3   3  64   2   2      1""",
    ("ResNet-20", 8): """
        layer tif tix tiy tkx tky tof tox toy stride
        1       3  10  34   3   3  16   8  32      1
        2-7    16  10  10   3   3  16   8   8      1
        8      16  33  33   3   3  32  16  16      2
        9-13   32   6  10   3   3  32   4   8      1
        14     32   9  17   3   3  64   4   8      2
        15-19  64   4  10   3   3  64   2   8      1""",
}
UNROLLING = {
    ("AlexNet", 4): """
        layer poy pox  p pofv pofh
        1       2   2  1    2    2
        2       4   1  8    1    4
        3-5     1   2 16    4    2""",
    ("AlexNet", 6): """
        layer poy pox  p pofv pofh
        1       2   2  1    3    3
        2       3   3  8    2    2
        3-4     1   3 16    6    2
        5       2   2 15    3    3""",
    ("AlexNet", 8): """
        layer poy pox  p pofv pofh
        1       2   2  1    4    4
        2       4   1  8    2    8
        3       1   7 16    8    1
        4       1   7 16    8    2
        5       1   7 16    8    1""",
    ("ResNet-20", 4): """
        layer poy pox  p pofv pofh
        1-7     3   6  8    2    1
        8-13    6   2  6    1    3
        14-19   2   2  4    3    3""",
    ("ResNet-20", 6): """
        layer poy pox  p pofv pofh
        1-7     3   6  8    2    1
        8-13    6   2  6    1    3
        14-19   2   2  4    3    3""",
    ("ResNet-20", 8): """
        layer poy pox  p pofv pofh
        1-7     8   8 16    1    1
        8       4   8 16    2    1
        9-14    8   4 16    1    2
        15-19   8   2 16    1    4""",
}
# What the tables are called in the thesis: shapes, then tiles and unrolling by array.
NAMES = {
    ("AlexNet", 4): ("A.2", "A.3"), ("AlexNet", 6): ("A.4", "A.5"), ("AlexNet", 8): ("A.6", "A.7"),
    ("ResNet-20", 4): ("A.9", "A.10"), ("ResNet-20", 6): ("A.11", "A.12"), ("ResNet-20", 8): ("A.13", "A.14"),
}  # fmt: skip


def rows(table: str) -> dict[int, Row]:
    """The rows of a table by layer.

    >>> rows("layer a b\\n 1-2 3 4")
    {1: {'a': 3, 'b': 4}, 2: {'a': 3, 'b': 4}}
    """
    head, *lines = (line.split() for line in table.strip().splitlines())
    by_layer: dict[int, Row] = {}
    for span, *numbers in lines:
        first, _, last = span.partition("-")
        for layer in range(int(first), int(last or first) + 1):
            by_layer[layer] = dict(zip(head[1:], map(int, numbers), strict=True))
    return by_layer
