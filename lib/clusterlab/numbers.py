"""Numbers that cannot drift: every derived or quoted number of the book and its proof.

``data/numbers/`` holds one file a page and in it one table a number. `display` is the text printed in
prose (``[544 ms](#num-ring-70b-8)``), `says` one phrase on what it is, and the
proof is either `expression` (over this library, in SI units) or, for a value
that somebody else published or measured, `source`. A display proves nothing by
itself: `check` evaluates the expression and compares it with the display within
half a unit of the last printed digit.

>>> from clusterlab import numbers
>>> numbers.number("ring-70b-8").display
'544 ms'
>>> numbers.check("ring-70b-8")
"""

import difflib
import html
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from clusterlab import units
from clusterlab.expressions import evaluate

FOLDER = Path(__file__).parent / "data" / "numbers"

# What a printed unit is worth in SI; a display ends in one of these or in nothing.
_UNITS = {
    "": 1, "%": 1e-2, "×": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
    "KiB": units.KiB, "MiB": units.MiB, "GiB": units.GiB, "TiB": units.TiB,
    "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400,
    "W": 1, "kW": 1e3, "MW": 1e6, "kWh": 3.6e6, "MWh": 3.6e9, "GWh": 3.6e12, "TWh": 3.6e15,
    "million": 1e6, "billion": 1e9, "trillion": 1e12,
    "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15, "EFLOP": 1e18, "Mbit": 1.25e5, "Gbit": 1.25e8, "Tbit": 1.25e11,
    "dollars": 1, "GPU-hours": 3600, "petaflop-days": 86400e15,
}
for _name in [u for u in _UNITS if u.endswith(("B", "FLOP", "bit"))]:
    _UNITS[f"{_name}/s"] = _UNITS[_name]

_DISPLAY = re.compile(r"(?P<number>[−-]?\d[\d,]*(?:\.\d+)?)(?:·10(?P<power>[⁻⁰¹²³⁴-⁹]+))?\s*(?P<unit>[^\s\d]\S*)?")
_POWERS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


@dataclass(frozen=True)
class Number:
    """One entry of the registry; exactly one of `expression` and `source` may be missing, never both."""

    id: str
    says: str
    display: str
    expression: str = ""
    source: str = ""

    def value(self):
        """The proof evaluated, in SI units; None where only a source stands behind it."""
        return evaluate(self.expression) if self.expression else None

    def proof(self):
        """The proof as one line of HTML."""
        parts = [f"<code>{html.escape(self.expression)}</code>"] if self.expression else []
        return " · ".join(parts + ([_linked(self.source)] if self.source else []))


def _linked(text):
    text = html.escape(text)
    return re.sub(r"https?://[^\s)]+[^\s).,;]", lambda m: f'<a href="{m[0]}">{m[0]}</a>', text)


@cache
def registry():
    """All numbers by id, in the order of the files; ValueError if two files define the same id.

    >>> "ring-70b-8" in registry()
    True
    """
    found = {}
    for path in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text("utf-8"))
        if twice := found.keys() & table.keys():
            raise ValueError(f"{path.name} defines numbers that another file has: {', '.join(sorted(twice))}")
        found |= {id: Number(id, **entry) for id, entry in table.items()}
    return found


def number(id):
    """The entry `id`; LookupError names near ids.

    >>> number("ring-70b-8").says
    'ring all-reduce of 140 GB over 8 GPUs at 450 GB/s per direction'
    """
    known = registry()
    if id not in known:
        near = difflib.get_close_matches(id, known, 3)
        raise LookupError(f"no number {id!r} in data/numbers/" + (f"; near: {', '.join(near)}" if near else ""))
    return known[id]


def parse(display):
    """(value in SI units, half a unit of the last printed digit) of a printed number.

    >>> parse("544 ms"), parse("1.75×"), parse("1,024")
    ((0.544, 0.0005), (1.75, 0.005), (1024.0, 0.5))
    """
    match = _DISPLAY.fullmatch(display.strip())
    unit = match and match["unit"] or ""
    if not match or not (unit in _UNITS or unit.isalpha()):  # a word such as "steps" counts things
        raise ValueError(f"display {display!r} is not a number with a unit of {', '.join(u for u in _UNITS if u)}")
    digits = match["number"].replace(",", "").replace("−", "-")
    scale = _UNITS.get(unit, 1) * 10.0 ** int((match["power"] or "0").translate(_POWERS))
    decimals = len(digits.partition(".")[2])
    return float(digits) * scale, 0.5 * 10.0**-decimals * scale


def check(id):
    """Raise AssertionError unless the display of `id` is its proof, rounded.

    >>> check("ring-70b-8")
    """
    entry = number(id)
    if not entry.expression:
        return
    shown, half = parse(entry.display)
    value = float(entry.value())
    if abs(value - shown) > half * (1 + 1e-9) + 1e-12 * abs(value):
        raise AssertionError(f"{id}: display {entry.display!r} but {entry.expression} = {value!r} (SI)")


class Proofs:
    """The proofs of the numbers on one page; the closing cell of a notebook shows them."""

    def __init__(self, ids):
        self.entries = [number(id) for id in ids]

    def __repr__(self):
        return "\n".join(f"{e.display}: {e.says}. {e.expression or e.source}" for e in self.entries)

    def _repr_html_(self):
        rows = "\n".join(
            f'<li id="num-{e.id}"><strong>{html.escape(e.display)}</strong>: {html.escape(e.says)}. {e.proof()}</li>'
            for e in self.entries)
        return (f'<details class="clusterlab-proofs"><summary>Numbers on this page and their proofs '
                f"({len(self.entries)})</summary>\n<ul>\n{rows}\n</ul>\n</details>")


def show(*ids):
    """The proofs of the numbers `ids`, as a list one can link to (``#num-<id>``).

    >>> show("ring-70b-8")
    544 ms: ring all-reduce of 140 GB over 8 GPUs at 450 GB/s per direction. collectives.all_reduce_seconds(140*GB, 8, hardware.link('NVLink 4'))
    """
    return Proofs(ids)
