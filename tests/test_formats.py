"""Formats against their definition, torch's own casts and sums against brute force; the laws of rounding and scaling."""

import math

import numpy as np
import pytest
import torch
from clusterlab import formats
from clusterlab.formats import (
    FORMATS,
    Format,
    bits_a_number,
    number_format,
    running_sum,
    scaled_cast,
    sticks_at,
)
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = sorted(FORMATS)
# Precision p and exponents emin, emax: IEEE 754-2019 table 3.5, arXiv:2209.05433 table 1, OCP MX specification 5.3;
# largest where the top exponent is not used in full. bits in all.
DEFINED = {"fp32": (24, -126, 127, None, 32), "tf32": (11, -126, 127, None, 19), "bf16": (8, -126, 127, None, 16),
           "fp16": (11, -14, 15, 65504.0, 16), "fp8 e5m2": (3, -14, 15, 57344.0, 8), "fp8 e4m3": (4, -6, 8, 448.0, 8),
           "fp4 e2m1": (2, 0, 2, 6.0, 4)}
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8 e5m2": torch.float8_e5m2,
         "fp8 e4m3": torch.float8_e4m3fn}
SMALL = [name for name in NAMES if FORMATS[name].bits <= 16]


def all_values(f):
    return f.decode(np.arange(f.last + 1))


@pytest.mark.parametrize("name", NAMES)
def test_range_and_spacing_are_those_of_the_definition(name):
    p, emin, emax, largest, bits = DEFINED[name]
    f = number_format(name)
    assert f.bits == bits and f.smallest_normal == 2.0**emin and f.smallest == 2.0 ** (emin - p + 1)
    assert f.epsilon == 2.0 ** (1 - p) and f.largest == (largest or (2 - 2.0 ** (1 - p)) * 2.0**emax)
    assert 2**f.binades == pytest.approx(f.largest / f.smallest, rel=1e-9)


@pytest.mark.parametrize("name", TORCH)
def test_limits_are_torch_s(name):
    f, info = number_format(name), torch.finfo(TORCH[name])
    assert (f.largest, f.smallest_normal, f.epsilon) == (info.max, info.smallest_normal, info.eps)


@pytest.mark.parametrize("name", [name for name in TORCH if name != "fp32"])
def test_every_pattern_decodes_as_torch_reads_it(name):
    f = number_format(name)
    patterns = torch.arange(f.last + 1).to(torch.uint8 if f.bits == 8 else torch.int16)
    assert np.array_equal(all_values(f), patterns.view(TORCH[name]).double().numpy())


def test_fp4_has_the_eight_values_of_the_specification():
    assert all_values(number_format("fp4 e2m1")).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert number_format("fp4 e2m1").decode(5) == 3.0 and isinstance(number_format("fp4 e2m1").decode(5), float)


@pytest.mark.parametrize("name", SMALL)
def test_spacing_is_the_distance_to_the_next_value(name):
    values = all_values(number_format(name))
    assert np.array_equal(number_format(name).spacing(values[:-1]), np.diff(values))
    assert np.array_equal(number_format(name).spacing(-values[:-1]), np.diff(values))


@pytest.mark.parametrize("name", TORCH)
def test_rounding_is_torch_s_cast(name):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(20_000, generator=draw) * torch.exp(8 * torch.randn(20_000, generator=draw))
    f, limit = number_format(name), torch.finfo(TORCH[name]).max
    assert np.array_equal(f.round(x.double().numpy()), x.clamp(-limit, limit).to(TORCH[name]).double().numpy())


@pytest.mark.parametrize("name", SMALL)
def test_a_tie_goes_to_the_even_pattern_and_a_value_stays(name):
    f = number_format(name)
    values = all_values(f)
    assert np.array_equal(f.round(values), values) and np.array_equal(f.round(-values), -values)
    middle, even = (values[:-1] + values[1:]) / 2, values[:-1].copy()
    even[1::2] = values[1:][1::2]
    assert np.array_equal(f.round(middle), even)
    assert f.round(1e300) == f.largest and f.round(-math.inf) == -f.largest and isinstance(f.round(1.0), float)


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.floats(1e-6, 6))
def test_rounding_moves_by_at_most_half_a_spacing(name, x):
    f = number_format(name)
    assert abs(f.round(x) - x) <= f.spacing(x) / 2


@settings(deadline=None)
@given(st.sampled_from(["fp8 e4m3", "fp8 e5m2", "fp4 e2m1", "bf16"]), st.integers(-6, 2), st.integers(64, 127))
def test_a_sum_sticks_where_the_formula_says(name, power, part):
    f = number_format(name)
    term = part / 128 * 2.0**power                              # from half a power of two up to it, less a little
    if f.epsilon * f.smallest_normal > term / 8 or 2.0 ** (f.significand + 1 + power) > f.largest:
        return                                                  # the term would not survive by itself, or overflow
    assert running_sum([term] * 4 * 2 ** (f.significand + 1), f) == sticks_at(term, f)


def test_a_sum_in_torch_sticks_too():
    for name, term in (("bf16", 1.0), ("bf16", 0.01), ("fp16", 1.0)):
        total = torch.zeros((), dtype=TORCH[name])
        for _ in range(3000):
            total += term
        assert total.item() == sticks_at(term, number_format(name))


def test_scales_of_blocks_by_hand():
    x = np.array([[6.0, 0.5, -3.0, 1.0], [0.06, 0.005, -0.03, 0.01]])
    f = number_format("fp4 e2m1")
    assert scaled_cast(x, f, block=4) == pytest.approx(x)        # each row a multiple of FP4's own values
    assert scaled_cast(x, f)[1].tolist() == [0, 0, 0, 0]         # one scale, 1: all of the row lies below a quarter
    assert scaled_cast(np.array([7.0, 3.0]), f, scale="e8m0").tolist() == [6.0, 3.0]       # 2^2 ÷ 2^2 = 1; 7 saturates
    assert scaled_cast(np.array([8.0, 3.0]), f, scale="e8m0").tolist() == [8.0, 3.0]       # scale 2: 4 and 1.5
    assert scaled_cast(np.zeros(4), f, block=2).tolist() == [0, 0, 0, 0]


def test_nvfp4_scales_are_e4m3_numbers():
    rng = np.random.default_rng(3)
    x = rng.standard_normal(64) * np.repeat([1, 10, 0.1, 3], 16)
    got = scaled_cast(x, number_format("fp4 e2m1"), block=16, scale="fp8 e4m3").reshape(4, 16)
    whole = np.abs(x).max() / 6 / 448
    for block, part in zip(x.reshape(4, 16), got, strict=True):
        code = torch.tensor(np.abs(block).max() / 6 / whole).to(torch.float8_e4m3fn).item()
        table = all_values(number_format("fp4 e2m1")) * code * whole
        nearest = table[np.abs(np.abs(block)[:, None] - table).argmin(axis=1)] * np.sign(block)
        assert part == pytest.approx(nearest)


@settings(deadline=None)
@given(st.sampled_from(["fp8 e4m3", "fp8 e5m2", "fp4 e2m1"]), st.integers(0, 100), st.floats(1e-20, 1e20))
def test_a_scale_makes_the_unit_irrelevant(name, seed, unit):
    x = np.random.default_rng(seed).standard_normal(32)
    f = number_format(name)
    assert scaled_cast(unit * x, f, block=8) == pytest.approx(unit * scaled_cast(x, f, block=8), rel=1e-9)


@settings(deadline=None)
@given(st.sampled_from(["fp8 e4m3", "fp4 e2m1"]), st.integers(0, 100))
def test_a_block_is_cast_as_if_it_were_alone(name, seed):
    x = np.random.default_rng(seed).standard_normal((3, 32))
    f = number_format(name)
    alone = [scaled_cast(part, f) for part in x.reshape(-1, 16)]
    assert np.array_equal(scaled_cast(x, f, block=16).reshape(-1, 16), alone)


def test_bits_with_the_share_of_the_scale():
    e2m1, e4m3 = number_format("fp4 e2m1"), number_format("fp8 e4m3")
    assert bits_a_number(e2m1, block=32, scale="e8m0") == 4.25 and bits_a_number(e2m1, block=16, scale="fp8 e4m3") == 4.5
    assert bits_a_number(e4m3, block=32, scale="e8m0") == 8.25 and bits_a_number(e4m3, block=128) == 8.25
    assert bits_a_number(e4m3) == 8


@pytest.mark.parametrize("call, message", [
    (lambda: number_format("fp8 e4m4"), "fp8 e4m3"),
    (lambda: Format("x", 1, 3), "x: exponent=1"),
    (lambda: Format("x", 4, 0), "significand=0"),
    (lambda: Format("x", 4, 3, "odd"), "top='odd'"),
    (lambda: number_format("fp4 e2m1").decode(8), "0 to 7"),
    (lambda: number_format("fp4 e2m1").decode([-1]), "0 to 7"),
    (lambda: sticks_at(0, number_format("bf16")), "term=0"),
    (lambda: sticks_at(math.inf, number_format("bf16")), "term=inf"),
    (lambda: sticks_at(100, number_format("fp16")), "overflows fp16"),
    (lambda: scaled_cast(np.ones(6), number_format("fp4 e2m1"), block=4), "block=4"),
    (lambda: scaled_cast(np.ones(6), number_format("fp4 e2m1"), block=0), "block=0"),
    (lambda: scaled_cast(np.ones(6), number_format("fp4 e2m1"), scale="fp16"), "scale='fp16'"),
    (lambda: bits_a_number(number_format("fp4 e2m1"), scale="fp16"), "scale='fp16'"),
])
def test_bad_input_is_named(call, message):
    with pytest.raises((ValueError, LookupError), match=message):
        call()


def test_the_narrowest_format_allowed():
    f = Format("e2m1", 2, 1, "ieee")
    assert f.largest == 3.0 and formats.Format("e3m4", 3, 4).largest == 15.5
