"""Numbers as readers write them: which units a question accepts, how a value is shown, which slips a unit invites."""

import difflib

from .. import units

_TIME = {"ns": 1e-9, "us": units.us, "µs": units.us, "ms": units.ms, "s": 1.0, "sec": 1.0, "seconds": 1.0,
         "min": units.minute, "minutes": units.minute, "h": units.hour, "hours": units.hour,
         "d": units.day, "days": units.day}
_BYTES = {"B": 1.0, "bytes": 1.0, "kB": units.KB, "MB": units.MB, "GB": units.GB, "TB": units.TB, "PB": units.PB,
          "KiB": units.KiB, "MiB": units.MiB, "GiB": units.GiB, "TiB": units.TiB}
_BITS = {"Mbit": units.Mbit, "Gbit": units.Gbit, "Tbit": 1e12 / 8}
_FLOPS = {f"{prefix}FLOP": 10.0**power for prefix, power in zip(("", "M", "G", "T", "P", "E", "Z", "Y"),
                                                                (0, 6, 9, 12, 15, 18, 21, 24), strict=True)}
_POWER = {"W": 1.0, "kW": 1e3, "MW": 1e6, "GW": 1e9}
_ENERGY = {f"{unit}h": value * units.hour for unit, value in _POWER.items()} | {"J": 1.0, "MJ": 1e6, "GJ": 1e9}
_RATIO = {"×": 1.0, "x": 1.0, "times": 1.0, "%": 0.01}


def _per_second(table):
    return {f"{unit}/s": value for unit, value in table.items()}


_DIMENSIONS = (_TIME, _BYTES, _per_second(_BYTES | _BITS), _FLOPS, _per_second(_FLOPS), _POWER, _ENERGY, _RATIO)


def accepted(unit):
    """The units a reader may write where `unit` is asked for, with their SI values; a count knows only its own name.

    >>> accepted("steps"), accepted("MW")["kW"]
    ({'steps': 1.0, 'step': 1.0}, 1000.0)
    """
    for table in _DIMENSIONS:
        if unit in table:
            return dict(table)
    known = [name for table in _DIMENSIONS for name in table]
    if any(unit.casefold() == name.casefold() for name in known) or "/" in unit:
        raise ValueError(f"unit {unit!r}; near names: {', '.join(difflib.get_close_matches(unit, known, 3, 0.3))}")
    return {unit: 1.0} | ({unit[:-1]: 1.0} if unit.endswith("s") else {})


def shown(value, unit):
    """A value in SI units as text in `unit`: whole, or with four significant digits.

    >>> shown(245e9, "GB"), shown(0.54444, "ms"), shown(16384, "steps"), shown(1.75, "×")
    ('245 GB', '544.4 ms', '16,384 steps', '1.75 ×')
    """
    number = float(f"{value / accepted(unit)[unit]:.12g}")
    if not number.is_integer():
        number = float(f"{number:.4g}")
    text = f"{number:,.0f}" if number.is_integer() else f"{number:,.15g}"
    return f"{text} {unit}"


def close(one, other, tolerance):
    """Whether `one` is `other` within a relative tolerance (equal up to rounding for 0)."""
    return abs(one - other) <= max(tolerance, 1e-9) * abs(other)


def slips(unit):
    """(factor, thought) of the slips any number in `unit` invites: prefixes, bits for bytes, 2^30 for 10^9."""
    table = accepted(unit)
    if table not in _DIMENSIONS or table == _RATIO:
        return []
    found = [(factor, f"Off by {text}: a unit prefix.") for factor, text in
             ((1e3, "1,000"), (1e-3, "1,000"), (1e6, "a million"), (1e-6, "a million"), (1e9, "10⁹"), (1e-9, "10⁹"))]
    if "B" in table or "B/s" in table:
        binary = 1.024 ** ("KMGTP".find(unit[0].upper()) + 1)
        found += [(8.0, "Off by 8: bits taken for bytes."), (1 / 8, "Off by 8: bytes taken for bits.")]
        found += [(factor, "Off by the step between decimal and binary units (GB is 10⁹ bytes, GiB is 2³⁰).")
                  for factor in (binary, 1 / binary) if factor != 1]
    return found
