"""The bandwidth hierarchy: how fast one GPU reaches each level, from its registers to an object store.

``data/hierarchy.toml`` holds one table a level, near to far, for a GPU of a DGX H200 and the storage behind it: its
bandwidth as an expression over this library, what that number counts, source, date and how it was computed.

>>> from clusterlab import hierarchy
>>> [level.name for level in hierarchy.levels()][:4]
['registers', 'shared memory, L1', 'L2 cache', 'HBM']
"""

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from clusterlab.checks import positive
from clusterlab.expressions import evaluate


@dataclass(frozen=True)
class Level:
    """One level: `bandwidth` in bytes/s for one GPU; `counts` says whether that is reading, both, or one direction.

    Errors: ValueError for a bandwidth that is not positive.

    >>> Level("my disk", 2e9, "read").seconds(1e9)
    0.5
    """

    name: str
    bandwidth: float
    counts: str
    source: str = ""
    date: str = ""
    notes: str = ""

    def __post_init__(self):
        positive(self, "bandwidth")

    def seconds(self, size):
        """Seconds in which `size` bytes pass, latency left out: size / bandwidth.

        Errors: ValueError for a negative size.

        >>> level("NVLink 4").seconds(450e9)
        1.0
        """
        if not np.all(np.asarray(size) >= 0):
            raise ValueError(f"size={size!r}: bytes from 0 are allowed")
        return size / self.bandwidth


@cache
def levels():
    """All levels as a tuple, from near to far.

    >>> [f"{level.bandwidth / 1e9:.0f} GB/s" for level in levels() if level.counts == "one direction"]
    ['450 GB/s', '63 GB/s', '50 GB/s', '8 GB/s']
    """
    text = files("clusterlab").joinpath("data", "hierarchy.toml").read_text(encoding="utf-8")
    return tuple(Level(name, **{**row, "bandwidth": float(evaluate(row["bandwidth"]))})
                 for name, row in tomllib.loads(text).items())


def level(name):
    """The level of that name; LookupError lists near names.

    >>> level("HBM").bandwidth / 1e12
    4.8
    """
    found = {level.name: level for level in levels()}
    if name not in found:
        near = difflib.get_close_matches(str(name), found, 3, 0.4) or list(found)
        raise LookupError(f"no level {name!r}; near names: {', '.join(map(repr, near))}")
    return found[name]
