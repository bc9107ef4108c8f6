"""Model, here, recorded, ratio: the table in which a lesson puts a prediction beside what was measured.

>>> from clusterlab.beside import beside
>>> beside("16 MB, 8 ranks", {"ring": (0.630, 0.646), "server": (4.49, 4.53)})
16 MB, 8 ranks   model    here  ratio
ring            630 ms  646 ms   1.03
server          4.49 s  4.53 s   1.01
"""

from clusterlab.units import format_seconds


def beside(title, rows, *, columns=("model", "here"), show=format_seconds):
    """Print {name: (first, second)} as a table with the ratio second ÷ first; `show` writes one value.

    The columns name what stands in them. Raises ValueError for a row that is no pair.

    >>> beside("ring, 8 ranks", {"1 GiB": (6.3e-3, 8.2e-3)}, columns=("model", "A100"))
    ring, 8 ranks   model    A100  ratio
    1 GiB          6.3 ms  8.2 ms   1.30
    """
    first, second = columns
    for name, pair in rows.items():
        if len(pair) != 2:
            raise ValueError(f"row {name!r} is {pair!r}: want a pair ({first}, {second})")
    table = [(title, first, second, "ratio")]
    table += [(name, show(one), show(other), f"{other / one:.2f}") for name, (one, other) in rows.items()]
    widths = [max(len(row[i]) for row in table) for i in range(4)]  # no wider than needed: it is read on phones too
    for name, *cells in table:
        print("  ".join([f"{name:{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:]))]))


def within(rows, low, high):
    """Whether every ratio second ÷ first lies in [low, high]: what a compared cell says of a measured table.

    >>> within({"ring": (0.630, 0.646)}, 0.98, 1.2)
    True
    """
    return all(low <= second / first <= high for first, second in rows.values())
