"""Published values and the functions that reproduce them.

A row of ``fixtures/published.json`` is a number from a paper, datasheet or tool with its source. A module
``published_<topic>.py`` beside this one says how the library arrives at it:

    @reproduces("mem.zero.fig1.zero1", note="…")
    def zero_figure_1(row):
        return …                      # in the row's own unit and shape, computed from row["inputs"]

A dict may leave out keys, and a list may hold None, where the row states a measured input rather than something
a formula gives. Formulas printed as text, and names such as "7.6B", are compared through ``value=``: a function of
the row that writes the printed thing as numbers. Rows without a formula behind them are listed with a reason in
the module's ``NOT_A_FORMULA``.
"""

import dataclasses
import functools
import importlib
import json
import math
import pathlib
import re
from decimal import Decimal

HERE = pathlib.Path(__file__).parent
KINDS = ("predicted", "calibrated", "definition")


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """How the library arrives at one published row."""
    id: str
    function: object
    kind: str
    rel: float | None
    abs: float | None
    note: str
    value: object


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One published number beside ours. `allowed` is the absolute difference we accept."""
    id: str
    part: str
    published: float
    ours: float
    printed: float       # the row's printing precision, or the tolerance its hint states
    allowed: float
    kind: str
    note: str
    row: dict

    @property
    def error(self):
        """Relative error; the plain difference where the published number is 0."""
        return (self.ours - self.published) / (abs(self.published) or 1.0)

    @property
    def holds(self):
        return abs(self.ours - self.published) <= self.allowed


REGISTRY: dict[str, list[Reproduction]] = {}     # several functions may each give a part of one row


@functools.cache
def rows():
    """The rows of published.json by id."""
    return {row["id"]: row for row in json.loads((HERE / "fixtures" / "published.json").read_text())}


def reproduces(*ids, kind="predicted", rel=None, abs=None, note="", value=None):
    """Register a function as the way to reproduce the rows `ids`."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: use one of {', '.join(KINDS)}")

    def register(function):
        for id in ids:
            if id not in rows():
                raise LookupError(f"no published row {id!r}")
            REGISTRY.setdefault(id, []).append(Reproduction(id, function, kind, rel, abs, note, value))
        return function
    return register


def ids(pattern):
    """The row ids that a regular expression matches from the start, for families of rows."""
    found = [id for id in rows() if re.match(pattern, id)]
    if not found:
        raise LookupError(f"no published row matches {pattern!r}")
    return found


def load():
    """Import every published_<topic>.py; return {id: reason} of the rows without a formula."""
    reasons = {}
    for path in sorted(HERE.glob("published_*.py")):
        module = importlib.import_module(path.stem)
        reasons |= getattr(module, "NOT_A_FORMULA", {})
    return reasons


def _printed_to(number, hint):
    """How far a value may lie from a printed number: half a unit of its last digit, or what the row's hint says."""
    if isinstance(number, int):
        digit = 1e-12 * abs(number) if hint == "exact" else 0.5
    else:       # 1.46e6 was printed as 1.46 million
        digit = 0.5 * 10.0 ** Decimal(repr(number)).normalize().as_tuple().exponent
    stated = 0.0
    if match := re.match(r"([\d.]+)\s*% abs", hint):
        stated = float(match[1]) / 100
    elif match := re.match(r"([\d.]+)\s*%", hint):
        stated = float(match[1]) / 100 * abs(number)
    elif match := re.match(r"(?:abs )?([\d.]+)\s*(pp|d|e\d+)?$", hint):
        stated = float(match[0].removeprefix("abs ") if (match[2] or "").startswith("e") else match[1])
    return max(digit, stated, 1e-12 * abs(number)) * (1 + 1e-9)      # half a unit is itself rounded in binary


def _pairs(published, ours, part=""):
    if isinstance(ours, dict):
        unknown = set(ours) - set(published)
        if unknown:
            raise ValueError(f"keys {sorted(unknown)} are not in the published row")
        for key in ours:
            yield from _pairs(published[key], ours[key], f"{part}.{key}".lstrip("."))
    elif isinstance(published, (list, tuple)):
        if len(ours) != len(published):
            raise ValueError(f"{len(ours)} values for {len(published)} published ones")
        for index, (theirs, mine) in enumerate(zip(published, ours)):
            yield from _pairs(theirs, mine, f"{part}[{index}]")
    elif ours is not None:
        yield part, published, float(ours)


def compare(reproduction):
    """Every number of one published row beside ours."""
    row = rows()[reproduction.id]
    published = reproduction.value(row) if reproduction.value else row["value"]
    results = []
    for part, theirs, mine in _pairs(published, reproduction.function(row)):
        printed = _printed_to(theirs, row["tolerance_hint"])
        allowed = printed
        if reproduction.rel is not None or reproduction.abs is not None:
            allowed = max((reproduction.rel or 0.0) * abs(theirs), reproduction.abs or 0.0)
        results.append(Comparison(reproduction.id, part, float(theirs), mine, printed, allowed,
                                  reproduction.kind, reproduction.note, row))
    if not results or any(math.isnan(result.ours) for result in results):
        raise ValueError(f"{reproduction.id}: nothing compared")
    return results
