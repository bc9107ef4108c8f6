"""A systolic array, cycle by cycle, against plain products and a count of what each multiplier sees."""

import numpy as np
import pytest
from clusterlab.hardware import accelerator
from clusterlab.systolic import Engine, cycles, engine, engines, run, utilization
from hypothesis import given, settings
from hypothesis import strategies as st

SIZE = st.integers(1, 7)


@settings(deadline=None)
@given(SIZE, SIZE, SIZE, st.integers(0, 2**32 - 1))
def test_it_multiplies_and_takes_the_cycles_of_the_formula(rows, depth, width, seed):
    random = np.random.default_rng(seed)
    numbers, weights = random.integers(-9, 10, (rows, depth)), random.integers(-9, 10, (depth, width))
    done = run(numbers, weights)
    assert np.array_equal(done.product, numbers @ weights)
    # number k of row i is at column j in cycle i + k + j, counted from 0: the last one ends it
    last = max(i + k + j for i in range(rows) for k in range(depth) for j in range(width))
    assert done.cycles == last + 1 == cycles(rows, depth, width)
    assert done.reads == rows * depth + depth * width
    assert done.multiplications == rows * depth * width
    assert utilization(rows, depth, width) == pytest.approx(done.multiplications / (depth * width * done.cycles))


def test_floats_stay_floats():
    assert run(np.array([[0.5]]), np.array([[3]])).product.tolist() == [[1.5]]
    assert run(np.array([[3]]), np.array([[0.5]])).product.tolist() == [[1.5]]


def test_whole_numbers_stay_whole():
    numbers, weights = np.array([[2**61 + 1, 1], [5, 2**60 + 3]]), np.array([[1, 2], [3, 1]])
    done = run(numbers, weights)
    assert done.product.dtype == numbers.dtype
    assert done.product.tolist() == [[2**61 + 4, 2**62 + 3], [3 * 2**60 + 14, 2**60 + 13]]


@pytest.mark.parametrize("name", ["H100 SXM", "TPU v5p"])
def test_units_and_clock_give_the_catalogues_peak(name):
    assert engine(name).peak_flops == pytest.approx(accelerator(name).dense_flops["bf16"], rel=1e-3)


def test_engines():
    assert Engine(3, 5, 7.0).peak_flops == 210
    assert (engine("H100 SXM").units, engine("H100 SXM").multiply_adds) == (132 * 4, 512)
    assert (engine("TPU v5p").units, engine("TPU v5p").multiply_adds) == (2 * 4, 128 * 128)
    assert all("https://" in one.source and one.what and one.date for one in engines().values())
    with pytest.raises(LookupError, match="known: H100 SXM, TPU v5p"):
        engine("B200")


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((3,), (3, 1)), ((2, 3), (3,))])
def test_shapes_that_do_not_fit(shapes):
    with pytest.raises(ValueError, match=r"want \[rows, depth\]"):
        run(np.ones(shapes[0]), np.ones(shapes[1]))


@pytest.mark.parametrize("name, sizes", [("rows", (0, 1, 1)), ("depth", (1, 0, 1)), ("width", (1, 1, 0))])
def test_nothing_is_no_size(name, sizes):
    with pytest.raises(ValueError, match=f"{name}=0"):
        cycles(*sizes)
