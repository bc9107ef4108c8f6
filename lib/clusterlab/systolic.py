"""How a chip gets its peak: many multipliers, and how a systolic array feeds them.

*peak = multipliers × 2 × clock*: each multiplies and adds once a cycle. A *systolic array* (in TPUs, Trainium) is a
square of multipliers, each holding one weight. A row of numbers enters at the left and moves one place to the right
each cycle; sums move down. So a number that was read once is used by the whole row (Kung 1982,
doi:10.1109/MC.1982.1653825; Jouppi et al. 2017, arXiv:1704.04760, section 2).

>>> round(engine("TPU v5p").peak_flops / 1e12), round(engine("H100 SXM").peak_flops / 1e12)
(459, 989)
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Engine:
    """What multiplies matrices on a chip: ``units`` alike, ``multiply_adds`` of each a cycle, ``clock`` cycles/s.

    >>> Engine(units=2, multiply_adds=16, clock=3e9).peak_flops / 1e9
    192.0
    """

    units: int
    multiply_adds: int
    clock: float
    what: str = ""
    source: str = ""
    date: str = ""

    @property
    def peak_flops(self):
        """FLOP/s, dense: ``2 · units · multiply_adds · clock``."""
        return 2.0 * self.units * self.multiply_adds * self.clock


class Pass(NamedTuple):
    """One product through an array: the result, the cycles it took, numbers read from outside, multiplications."""

    product: np.ndarray
    cycles: int
    reads: int
    multiplications: int


def cycles(rows, depth, width):
    """Cycles from the first number in to the last sum out: ``rows + depth + width − 2``.

    ``rows`` rows of ``depth`` numbers pass an array of depth × width weights, one row a cycle; the last must still
    cross the array, which is the fill and drain of depth + width − 2.

    >>> cycles(4, 3, 2)
    7
    """
    for name, value in (("rows", rows), ("depth", depth), ("width", width)):
        if not np.all(np.greater_equal(value, 1)):
            raise ValueError(f"{name}={value!r}: must be at least 1")
    return rows + depth + width - 2


def utilization(rows, depth, width):
    """Share of the multipliers' cycles in which they multiply: ``rows / cycles(rows, depth, width)``.

    >>> round(utilization(128, 128, 128), 3), round(utilization(8192, 128, 128), 3)
    (0.335, 0.97)
    """
    return rows / cycles(rows, depth, width)


def run(numbers, weights):
    """Pass ``numbers`` [rows, depth] through an array that holds ``weights`` [depth, width], cycle by cycle.

    Returns the product numbers @ weights with its cycles, the reads (each of the numbers once, each weight once) and
    multiplications. Errors: ValueError for shapes that do not fit.

    >>> done = run(np.array([[1, 2], [3, 4]]), np.array([[1, 0], [1, 1]]))
    >>> done.product.tolist(), done.cycles, done.reads, done.multiplications
    ([[3, 2], [7, 4]], 4, 8, 8)
    """
    numbers, weights = np.asarray(numbers), np.asarray(weights)
    if numbers.ndim != 2 or weights.ndim != 2 or numbers.shape[1] != weights.shape[0]:
        raise ValueError(f"numbers {numbers.shape} and weights {weights.shape}: want [rows, depth] and [depth, width]")
    (rows, depth), width = numbers.shape, weights.shape[1]
    kind = np.result_type(numbers, weights)
    product = np.zeros((rows, width), kind)
    moving, sums = np.zeros((depth, width), kind), np.zeros((depth, width), kind)     # to the right, and down
    delay = np.arange(depth)[:, None] + np.arange(width)        # cycles after which the first row is at a multiplier
    cycle, reads, busy = 0, weights.size, 0
    while cycle < cycles(rows, depth, width):
        row = cycle - delay                                     # whose number each multiplier has now
        real = (row >= 0) & (row < rows)
        entering = [numbers[row[k, 0], k] if real[k, 0] else 0 for k in range(depth)]
        moving = np.column_stack((entering, moving[:, :-1])).astype(kind)
        sums = np.vstack((np.zeros_like(sums[:1]), sums[:-1])) + moving * weights
        for column in np.flatnonzero(real[-1]):                 # out of the lowest multiplier of each column
            product[row[-1, column], column] = sums[-1, column]
        reads += int(real[:, 0].sum())
        busy += int(real.sum())
        cycle += 1
    return Pass(product, cycle, reads, busy)


@cache
def engines():
    """The engines of some chips by name.

    >>> list(engines())
    ['H100 SXM', 'TPU v5p']
    """
    text = files("clusterlab").joinpath("data", "engines.toml").read_text(encoding="utf-8")
    return {name: Engine(**row) for name, row in tomllib.loads(text).items()}


def engine(name):
    """The engine of that chip; LookupError lists those known.

    >>> engine("H100 SXM").units
    528
    """
    if name not in engines():
        raise LookupError(f"no engine {name!r}; known: {', '.join(engines())}")
    return engines()[name]
