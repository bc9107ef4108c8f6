"""What operators print of their networks, beside the same number from the wiring that they describe.

``data/operators.toml`` holds one table a number, with the expression over this library, what is printed, and where.

>>> from clusterlab.operators import operators
>>> row = operators()["meta-pod"]
>>> row.ours(), row.printed
(3072, 3072)
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from clusterlab.expressions import evaluate


@dataclass(frozen=True)
class Row:
    """One published number of a network, and the expression that computes it."""

    says: str
    expression: str
    printed: float
    source: str

    def ours(self):
        """The number from the wiring."""
        return evaluate(self.expression)


@cache
def operators():
    """All rows by name, in the order of the file.

    >>> operators()["bytedance-servers"].says
    'ByteDance: servers a leaf'
    """
    text = (Path(__file__).parent / "data" / "operators.toml").read_text("utf-8")
    return {name: Row(**entry) for name, entry in tomllib.loads(text).items()}
