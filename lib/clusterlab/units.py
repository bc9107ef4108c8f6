"""Units: SI base units in code; prefixes as plain numbers; formatting for people.

Bytes, seconds, FLOP, bytes/s and watts are the only units that cross a function
boundary. ``GB`` is 10**9 bytes (IEC 80000-13), ``GiB`` is 2**30 bytes; the two
meet only here and in prose.

>>> from clusterlab.units import GB, GiB, format_bytes
>>> round(80 * GB / GiB, 1)
74.5
>>> format_bytes(140 * GB)
'140 GB'
"""

import math

KB, MB, GB, TB, PB = 1e3, 1e6, 1e9, 1e12, 1e15
KiB, MiB, GiB, TiB = 2.0**10, 2.0**20, 2.0**30, 2.0**40
Mbit, Gbit = 1e6 / 8, 1e9 / 8  # in bytes: 400 * Gbit per second is 5e10 bytes/s
TFLOP, PFLOP = 1e12, 1e15
us, ms, minute, hour, day = 1e-6, 1e-3, 60.0, 3600.0, 86400.0


def _format(value, scale, digits):
    """Write value with the largest unit of `scale` (ascending) that leaves at least 1."""
    if not math.isfinite(value):
        return f"{value} {scale[0][1]}"
    sign, value = ("-", -value) if value < 0 else ("", value)
    index = max((i for i, (size, _) in enumerate(scale) if value >= size), default=0)
    number = _significant(value / scale[index][0], digits)
    if index + 1 < len(scale) and float(number) * scale[index][0] >= scale[index + 1][0]:
        index += 1  # 999.9 MB rounds up to 1 GB, not to 1000 MB
        number = _significant(value / scale[index][0], digits)
    return f"{sign}{number} {scale[index][1]}"


def _significant(number, digits):
    text = f"{number:.{digits}g}"
    if "e" in text:
        text = f"{float(text):.0f}"
    return text


def format_bytes(size, digits=4):
    """Bytes in decimal units (kB, MB, GB, …).

    >>> format_bytes(16 * MiB), format_bytes(16e6), format_bytes(999.99e6)
    ('16.78 MB', '16 MB', '1 GB')
    """
    return _format(size, [(1.0, "B"), (KB, "kB"), (MB, "MB"), (GB, "GB"), (TB, "TB"), (PB, "PB")], digits)


def format_binary(size, digits=4):
    """Bytes in binary units (KiB, MiB, GiB, TiB).

    >>> format_binary(2**24), format_binary(81559 * MiB)
    ('16 MiB', '79.65 GiB')
    """
    return _format(size, [(1.0, "B"), (KiB, "KiB"), (MiB, "MiB"), (GiB, "GiB"), (TiB, "TiB")], digits)


def format_rate(bytes_per_second, digits=4):
    """A bandwidth in decimal bytes per second.

    >>> format_rate(400 * Gbit), format_rate(3.35e12)
    ('50 GB/s', '3.35 TB/s')
    """
    return format_bytes(bytes_per_second, digits) + "/s"


def format_seconds(seconds, digits=3):
    """A duration in ns, µs, ms, s, min, h or days.

    >>> format_seconds(0.5444), format_seconds(4e-6), format_seconds(54 * day), format_seconds(0)
    ('544 ms', '4 µs', '54 d', '0 s')
    """
    if seconds == 0:
        return "0 s"
    scale = [(1e-9, "ns"), (us, "µs"), (ms, "ms"), (1.0, "s"), (minute, "min"), (hour, "h"), (day, "d")]
    return _format(seconds, scale, digits)


def format_flops(flops, digits=4):
    """A count of floating-point operations, or with `+ '/s'` a rate.

    >>> format_flops(989.4e12), format_flops(3.14e23)
    ('989.4 TFLOP', '314 ZFLOP')
    """
    return _format(flops, [(1.0, "FLOP"), (1e6, "MFLOP"), (1e9, "GFLOP"), (1e12, "TFLOP"), (1e15, "PFLOP"),
                           (1e18, "EFLOP"), (1e21, "ZFLOP"), (1e24, "YFLOP")], digits)
