"""Generations of a line of accelerators: how fast each quantity grows, and what has been announced next.

Doubling times are least squares on the logarithms over the dates of announcement. With four points that is a
description and no law; so each comes with the shortest and longest that appear when one point is left out. Dates and
announcements stand in ``data/generations.toml``, the parts themselves in the catalogue (:mod:`clusterlab.hardware`).

>>> peak, memory = trend("NVIDIA", "peak"), trend("NVIDIA", "memory bandwidth")
>>> f"peak doubles in {peak.years:.1f} years, memory bandwidth in {memory.years:.1f}"
'peak doubles in 1.6 years, memory bandwidth in 2.2'
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from clusterlab.hardware import accelerator, published


class Doubling(NamedTuple):
    """Years in which a quantity doubles, and the shortest and longest with one point left out."""

    years: float
    shortest: float
    longest: float


@dataclass(frozen=True)
class Announcement:
    """What was announced on a date: ``value`` in ``unit`` (SI), and what it ``says``. It is no measurement."""

    name: str
    says: str
    value: float
    unit: str
    date: str
    source: str


def peak(part):
    """The dense peak of a part in 16 bits, FLOP/s: bf16, or fp16 where it has no bf16.

    >>> peak(accelerator("V100 SXM2 16GB")) / 1e12, peak(accelerator("TPU v5p")) / 1e12
    (125.0, 459.0)
    """
    return part.dense_flops["bf16" if "bf16" in part.dense_flops else "fp16"]


QUANTITIES = {
    "peak": peak,
    "memory": lambda part: part.memory_label,
    "memory bandwidth": lambda part: part.memory_bandwidth,
    "scale-up bandwidth": lambda part: published(part, "scale_up").bandwidth,
    "power": lambda part: published(part, "power"),
    "ridge": lambda part: peak(part) / part.memory_bandwidth,
    "peak per watt": lambda part: peak(part) / published(part, "power"),
}


def year(date):
    """A date such as "2022-03" as a year with fraction, the middle of that month.

    >>> year("2022-07")
    2022.5416666666667
    """
    number, month = map(int, date.split("-"))
    if not 1 <= month <= 12:
        raise ValueError(f"date={date!r}: want year-month, such as 2022-03")
    return number + (month - 0.5) / 12


def line(name):
    """The parts of a line in order: a list of (year of announcement, accelerator). LookupError lists those known.

    >>> [part.name for _, part in line("NVIDIA")]
    ['V100 SXM2 16GB', 'A100 SXM 40GB', 'H100 SXM', 'B200']
    """
    lines = _data()["line"]
    if name not in lines:
        raise LookupError(f"no line {name!r}; known: {', '.join(lines)}")
    return [(year(row["date"]), accelerator(part)) for part, row in lines[name].items()]


def doubling(years, values):
    """The doubling time of ``values`` seen at ``years``: ln 2 over the slope of their logarithms (least squares).

    Errors: ValueError for fewer than three points, a value that is not positive, or values that do not grow once one
    of the points is left out.

    >>> round(doubling([2020, 2022, 2024], [1, 2, 4]).years, 6)
    2.0
    """
    years, values = np.array(years), np.array(values)
    if years.shape != values.shape or len(years) < 3 or np.any(values <= 0):
        raise ValueError(f"years={years.tolist()}, values={values.tolist()}: want three points at least, values positive")
    whole = _slope(years, values)
    others = [_slope(np.delete(years, left), np.delete(values, left)) for left in range(len(years))]
    if min(others) <= 0:  # the slope of all is a mean of these
        raise ValueError(f"values={values.tolist()}: do not grow")
    return Doubling(1 / whole, 1 / max(others), 1 / min(others))


def _slope(years, values):
    """Doublings a year: the slope of log₂ by least squares."""
    return float(np.polyfit(years, np.log2(values), 1)[0])


def trend(name, quantity):
    """The doubling time of one of QUANTITIES over a line.

    >>> round(trend("NVIDIA", "power").years, 1)
    3.8
    """
    return doubling(*points(name, quantity))


def points(name, quantity):
    """Years and values of one of QUANTITIES over a line; LookupError lists those known.

    >>> points("NVIDIA", "power")[1]
    [300, 400, 700, 1000]
    """
    if quantity not in QUANTITIES:
        raise LookupError(f"no quantity {quantity!r}; known: {', '.join(QUANTITIES)}")
    return [when for when, _ in line(name)], [QUANTITIES[quantity](part) for _, part in line(name)]


def projected(name, quantity, date):
    """What the fitted line of a quantity says for a date, "2026-01": the trend continued, and nothing more.

    >>> f"{projected('NVIDIA', 'memory bandwidth', '2026-01') / 1e12:.0f} TB/s"
    '12 TB/s'
    """
    years, values = points(name, quantity)
    return float(2 ** np.polyval(np.polyfit(years, np.log2(values), 1), year(date)))


def announced(name):
    """The announcement of that name. LookupError lists those known.

    >>> announced("HBM4 stack").date
    '2025-04'
    """
    known = _data()["announced"]
    if name not in known:
        raise LookupError(f"no announcement {name!r}; known: {', '.join(known)}")
    return Announcement(name, **known[name])


@cache
def _data():
    return tomllib.loads(files("clusterlab").joinpath("data", "generations.toml").read_text(encoding="utf-8"))
