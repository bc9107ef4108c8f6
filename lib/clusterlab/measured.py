"""GPU measurements that others published, to stand beside a model.

``data/measured.toml`` holds one table a run: the machine, what was run, rows, source and date. Values are as
printed, in SI units; a column computed here from printed ones says so in `note`.

>>> from clusterlab import measured
>>> run = measured.run("a100x8-all-reduce")
>>> size, seconds = run.rows("size", "seconds")[-1]
>>> f"{size / 2**30:.0f} GiB in {seconds * 1e3:.0f} ms"
'16 GiB in 128 ms'
"""

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """One published measurement: named columns, one row a message size (or whatever `columns` says)."""

    name: str
    machine: str
    what: str
    source: str
    date: str
    columns: tuple
    table: tuple
    note: str = ""

    def rows(self, *columns):
        """The rows as tuples of the given columns; LookupError names a column that is not there."""
        for column in columns:
            if column not in self.columns:
                raise LookupError(f"run {self.name!r} has no column {column!r}; it has {', '.join(self.columns)}")
        at = [self.columns.index(column) for column in columns]
        return [tuple(row[i] for i in at) for row in self.table]


@cache
def runs():
    """All runs by name.

    >>> "h200x8-all-reduce" in runs()
    True
    """
    text = (Path(__file__).parent / "data" / "measured.toml").read_text("utf-8")
    return {name: Run(name, **{**entry, "columns": tuple(entry["columns"]), "table": tuple(map(tuple, entry["table"]))})
            for name, entry in tomllib.loads(text).items()}


def run(name):
    """The published run `name`; LookupError lists near names.

    >>> run("h200x8-all-reduce").date
    '2026-08'
    """
    if name not in runs():
        near = difflib.get_close_matches(name, runs(), 3, 0.4)
        raise LookupError(f"no measurement {name!r}; near: {', '.join(near or runs())}")
    return runs()[name]
