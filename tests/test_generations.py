"""Trends over generations, against slopes worked out by hand and values typed again from the data sheets."""

import math

import pytest
from clusterlab import generations
from clusterlab.generations import QUANTITIES, announced, doubling, line, peak, points, projected, trend, year
from clusterlab.hardware import accelerator
from hypothesis import given, settings
from hypothesis import strategies as st

SHEET = {  # part: announced, peak, memory, memory bandwidth, scale-up one direction, W
    "V100 SXM2 16GB": (2017 + 4.5 / 12, 125e12, 16e9, 0.9e12, 150e9, 300),
    "A100 SXM 40GB": (2020 + 4.5 / 12, 312e12, 40e9, 1.555e12, 300e9, 400),
    "H100 SXM": (2022 + 2.5 / 12, 989.4e12, 80e9, 3.35e12, 450e9, 700),
    "B200": (2024 + 2.5 / 12, 2250e12, 180e9, 8e12, 900e9, 1000),
}


def test_the_line_is_the_data_sheets():
    assert [part.name for _, part in line("NVIDIA")] == list(SHEET)
    for when, part in line("NVIDIA"):
        date, flops, memory, bandwidth, link, power = SHEET[part.name]
        assert when == pytest.approx(date)
        values = {"peak": flops, "memory": memory, "memory bandwidth": bandwidth, "scale-up bandwidth": link,
                  "power": power, "ridge": flops / bandwidth, "peak per watt": flops / power}
        assert {name: one(part) for name, one in QUANTITIES.items()} == pytest.approx(values)


def slope(years, values):
    """Least squares in base 2, written out."""
    logs = [math.log2(value) for value in values]
    x, y = sum(years) / len(years), sum(logs) / len(logs)
    return sum((a - x) * (b - y) for a, b in zip(years, logs, strict=True)) / sum((a - x) ** 2 for a in years)


def test_a_trend_is_least_squares_with_each_point_left_out():
    years, values = [row[0] for row in SHEET.values()], [row[3] for row in SHEET.values()]
    found = trend("NVIDIA", "memory bandwidth")
    assert found.years == pytest.approx(1 / slope(years, values), abs=1e-8)
    without = [1 / slope(years[:i] + years[i + 1:], values[:i] + values[i + 1:]) for i in range(4)]
    assert (found.shortest, found.longest) == pytest.approx((min(without), max(without)))
    assert points("NVIDIA", "memory bandwidth") == (pytest.approx(years), values)
    middle = 2 ** (sum(map(math.log2, values)) / 4)                   # a fitted line goes through the mean point
    assert projected("NVIDIA", "memory bandwidth", "2026-01") == pytest.approx(
        middle * 2 ** (slope(years, values) * (2026 + 0.5 / 12 - sum(years) / 4)))


@settings(deadline=None)
@given(st.floats(0.2, 20), st.floats(1e-3, 1e12))
def test_an_exact_doubling_is_found(time, start):
    years = [2000, 2001.5, 2004, 2010]
    found = doubling(years, [start * 2 ** ((when - 2000) / time) for when in years])
    assert [found.years, found.shortest, found.longest] == pytest.approx([time] * 3, rel=1e-6)


def test_a_peak_in_16_bits():
    assert peak(accelerator("V100 SXM2 16GB")) == 125e12              # has no bf16
    assert peak(accelerator("MI300X")) == 1307.4e12


def test_months():
    assert year("2020-01") == pytest.approx(2020 + 1 / 24) and year("2020-12") == pytest.approx(2020 + 23 / 24)
    for wrong in ("2020-13", "2020-00"):
        with pytest.raises(ValueError, match=wrong):
            year(wrong)


@pytest.mark.parametrize("years, values, words", [
    ([1, 2], [1, 2], "three points"), ([1, 2, 3], [1, 2], "three points"), ([1, 2, 3], [1, 0, 2], "positive"),
    ([1, 2, 3], [4, 2, 1], "do not grow"), ([1, 2, 3], [1, 1, 1], "do not grow"), ([1, 2, 3], [1, 8, 7], "do not grow"),
])
def test_what_is_no_trend(years, values, words):
    with pytest.raises(ValueError, match=words):
        doubling(years, values)


def test_unknown_names():
    for call, words in ((lambda: line("X"), "known: NVIDIA"), (lambda: trend("NVIDIA", "price"), "known: peak"),
                        (lambda: announced("X"), "HBM4 stack")):
        with pytest.raises(LookupError, match=words):
            call()


def test_announcements_say_when_and_where():
    for name in generations._data()["announced"]:
        one = announced(name)
        assert one.name == name and one.value > 0 and year(one.date) > 2025 and "https://" in one.source and one.says
    assert announced("HBM4 stack").value == 2048 * 8e9 / 8
    assert announced("UALink port").value == 4 * 200e9 / 8
    assert announced("Rubin, first").value == pytest.approx(936e12 / 72)
