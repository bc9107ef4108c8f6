"""Units: prefixes against powers written out, and formatted text against the value it stands for."""

import math
import re
from decimal import Decimal

import pytest
from clusterlab import units
from clusterlab.units import format_binary, format_bytes, format_flops, format_rate, format_seconds
from hypothesis import given
from hypothesis import strategies as st

BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SECONDS = {"ns": Decimal("1e-9"), "µs": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": 1,
           "min": 60, "h": 3600, "d": 86400}
FLOP = {"FLOP": 1, "MFLOP": 10**6, "GFLOP": 10**9, "TFLOP": 10**12, "PFLOP": 10**15, "EFLOP": 10**18, "ZFLOP": 10**21,
        "YFLOP": 10**24}
RATES = {f"{name}/s": size for name, size in BYTES.items()}
EVERY = [(format_bytes, BYTES, 4), (format_binary, BINARY, 4), (format_seconds, SECONDS, 3), (format_flops, FLOP, 4),
         (format_rate, RATES, 4)]
each = pytest.mark.parametrize(("write", "scale", "digits"), EVERY, ids=lambda value: getattr(value, "__name__", ""))


def test_prefixes():
    assert [units.KB, units.MB, units.GB, units.TB, units.PB] == [10**n for n in (3, 6, 9, 12, 15)]
    assert [units.KiB, units.MiB, units.GiB, units.TiB] == [1024**n for n in (1, 2, 3, 4)]
    assert 8 * units.Mbit == 10**6 and 8 * units.Gbit == 10**9
    assert (units.TFLOP, units.PFLOP) == (10**12, 10**15)
    assert 10**6 * units.us == 1 == 1000 * units.ms
    assert (units.minute, units.hour, units.day) == (60, 60 * 60, 24 * 60 * 60)


@each
def test_every_unit_from_one_of_it_on(write, scale, digits):
    names = list(scale)
    for name, following in zip(names, [*names[1:], None]):
        assert {write(float(scale[name]), asked) for asked in (1, 2, 3, 5)} == {f"1 {name}"}
        assert write(1.5 * float(scale[name])) == f"1.5 {name}"
        if following:  # the last value that is still written in the smaller unit
            top = scale[following] / scale[name]
            assert write(float(scale[following]) * (1 - 1e-9)) == f"1 {following}", "rounds up to the larger unit"
            assert write(0.9 * float(scale[following])) == f"{float(top) * 0.9:.{digits + 3}g} {name}"


@each
@given(value=st.floats(1e-3, 1e26), asked=st.integers(1, 7))
def test_text_is_the_value_rounded(write, scale, digits, value, asked):
    number, name = write(value, asked).split(" ")
    shown, exact = Decimal(number) * scale[name], Decimal(value)
    assert "e" not in number
    largest = max((unit for unit, size in scale.items() if exact >= size), key=scale.get, default=next(iter(scale)))
    assert name == largest or Decimal(number) == 1 and list(scale).index(name) == list(scale).index(largest) + 1
    # digits significant digits of the number: half a unit in the last of them
    place = Decimal(10) ** (math.floor(math.log10(exact / scale[largest])) - asked + 1)
    assert abs(shown - exact) <= scale[largest] * place * Decimal("0.5001")


@each
def test_digits_when_none_are_asked(write, scale, digits):
    middle = list(scale)[2]
    assert write(1.234567 * float(scale[middle])) == f"{1.234567:.{digits - 1}f} {middle}"


@each
def test_signs_zero_and_what_is_not_finite(write, scale, digits):
    for unit, size in scale.items():
        assert write(-2.5 * float(size)) == f"-2.5 {unit}"
    smallest = next(iter(scale))
    assert write(0.0) == ("0 s" if write is format_seconds else f"0 {smallest}")
    assert write(math.inf) == f"inf {smallest}" and write(-math.inf) == f"-inf {smallest}"
    assert re.fullmatch(rf"nan {re.escape(smallest)}", write(math.nan))
    assert write(float(scale[smallest]) / 4) == f"0.25 {smallest}"


def test_no_exponent_above_the_largest_unit():
    assert format_seconds(123456 * units.day) == "123000 d" and format_bytes(12345678e15) == "12350000 PB"
