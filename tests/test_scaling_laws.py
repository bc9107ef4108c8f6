"""Scaling laws against brute force, printed tables and what a student would work out by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from clusterlab import scaling_laws
from clusterlab.scaling_laws import Law, PowerLaw, fit_power_law, isoflop_minimum, law, optimum_by_ratio, power_law
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = {row["id"]: row for row in json.loads((Path(__file__).parent / "fixtures/scaling_laws.json").read_text("utf-8"))}
NAMES = ("hoffmann", "hoffmann, rounded", "besiroglu")
SYMMETRIC = Law(floor=1.0, a=100.0, alpha=0.5, b=100.0, beta=0.5)     # at the optimum N = D = √(C/6)
LAWS = st.builds(Law, floor=st.floats(0, 2), a=st.floats(1, 1000), alpha=st.floats(0.1, 0.9),
                 b=st.floats(1, 1000), beta=st.floats(0.1, 0.9))


def searched(fitted, flops, factor=6):
    """The best size by trying 200,001 of them: no calculus."""
    sizes = np.geomspace(1e3, flops / factor / 1e3, 200_001)
    losses = fitted.floor + fitted.a * sizes ** -fitted.alpha + fitted.b * (flops / factor / sizes) ** -fitted.beta
    return sizes[np.argmin(losses)], losses.min()


# ---- published -------------------------------------------------------------------------------------------------------

def test_constants_are_those_printed():
    for name, id in (("hoffmann", "sl.chinchilla"), ("besiroglu", "sl.epoch")):
        one = law(name)
        assert [one.floor, one.a, one.b, one.alpha, one.beta] == ROWS[id]["value"]
    exponents, constants = ROWS["sl.kaplan"]["value"][::2], ROWS["sl.kaplan"]["value"][1::2]
    constants[2] *= 1e15 * 86400                                      # printed in petaflop-days
    for what, exponent, constant in zip(("parameters", "tokens", "compute"), exponents, constants, strict=True):
        fitted = power_law(f"kaplan {what}")
        assert fitted.exponent == -exponent
        assert fitted(constant) == pytest.approx(1)                   # (x_c / x)^α
        assert fitted(constant / 1000) == pytest.approx(1000**exponent)


@pytest.mark.parametrize("name, id", [("hoffmann", "sl.chinchilla.opt"), ("besiroglu", "sl.epoch.opt")])
def test_published_optimum(name, id):
    best = law(name).optimum(ROWS[id]["inputs"]["C"])
    assert [best.parameters, best.tokens] == pytest.approx(ROWS[id]["value"][:2])
    assert round(best.tokens_per_parameter, 1) == ROWS[id]["value"][2]
    assert f"{best.loss:.3f}" in ROWS[id]["note"]


def test_rounding_the_constants_moves_the_optimum():
    ratios = [law(name).optimum(5.76e23).tokens_per_parameter for name in ("hoffmann, rounded", "hoffmann", "besiroglu")]
    assert np.round(ratios, 1).tolist() == ROWS["sl.chinchilla.rounding"]["value"]


def test_llama_3():
    coefficient, exponent, tokens, printed = ROWS["sl.llama3"]["value"]
    fitted = power_law("llama 3 tokens")
    assert (fitted.coefficient, fitted.exponent) == (coefficient, exponent)
    assert fitted(3.8e25) == pytest.approx(tokens) and fitted(3.8e25) < 0.65 * printed


@pytest.mark.parametrize("id", [id for id in ROWS if id.startswith("tpp.")])
def test_tokens_per_parameter(id):
    row = ROWS[id]
    pair = row["inputs"]["params"], row["inputs"]["tokens"]
    assert scaling_laws.Training(*pair, loss=0.0).tokens_per_parameter == pytest.approx(row["value"], abs=0.0051)


def test_the_models_of_the_page_are_among_the_rows():
    known = {(row["inputs"]["params"], row["inputs"]["tokens"]) for id, row in ROWS.items() if id.startswith("tpp.")}
    assert set(scaling_laws.trained().values()) <= known and len(scaling_laws.trained()) == 6


def test_exponents_printed_by_the_papers():
    assert round(law("hoffmann").exponent, 2) == 0.46               # Hoffmann table 2, approach 3
    assert round(law("besiroglu").exponent, 3) == 0.513


def test_twenty_tokens_a_parameter_is_chinchillas_table_3():
    for parameters, tokens in ((400e6, 8e9), (1e9, 20.2e9), (10e9, 205.1e9)):
        found = optimum_by_ratio(6 * parameters * tokens)
        assert found == pytest.approx((parameters, tokens), rel=0.03)
    assert optimum_by_ratio(1200.0, 2, factor=6) == pytest.approx((10, 20))
    assert optimum_by_ratio(800.0, 2, factor=4) == pytest.approx((10, 20))


# ---- against brute force and by hand ---------------------------------------------------------------------------------

def test_loss_by_hand():
    one = Law(floor=1.5, a=8.0, alpha=1 / 3, b=9.0, beta=0.5)
    assert one.loss(64.0, 81.0) == pytest.approx(1.5 + 2 + 1)
    assert one.loss(np.array([8.0, 64.0]), 81.0) == pytest.approx([6.5, 4.5])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("flops", [1e19, 5.76e23, 1e26])
def test_the_closed_form_is_the_minimum(name, flops):
    best = law(name).optimum(flops)
    size, loss = searched(law(name), flops)
    assert best.parameters == pytest.approx(size, rel=1e-3) and best.loss == pytest.approx(loss, rel=1e-9)
    assert 6 * best.parameters * best.tokens == pytest.approx(flops)


@settings(deadline=None)
@given(LAWS, st.floats(1e15, 1e27), st.sampled_from([2, 6, 8]))
def test_nothing_near_the_optimum_is_better(fitted, flops, factor):
    best = fitted.optimum(flops, factor=factor)
    assert factor * best.parameters * best.tokens == pytest.approx(flops)
    for change in (0.5, 0.99, 1.01, 2):
        assert fitted.loss(best.parameters * change, best.tokens / change) >= best.loss * (1 - 1e-12)


@settings(deadline=None)
@given(LAWS, st.floats(1e16, 1e26))
def test_compute_and_loss_are_inverse(fitted, flops):
    best = fitted.optimum(flops)
    if best.loss - fitted.floor > 1e-6:
        assert fitted.flops_for(best.loss) == pytest.approx(flops, rel=1e-3)
        assert fitted.flops_for(best.loss, factor=3) == pytest.approx(flops / 2, rel=1e-3)
        assert fitted.tokens_for(best.loss, best.parameters) == pytest.approx(best.tokens, rel=1e-3)


def test_a_symmetric_law_by_hand():
    best = SYMMETRIC.optimum(6e12)
    assert (best.parameters, best.tokens, best.loss) == pytest.approx((1e6, 1e6, 1.2))
    assert SYMMETRIC.exponent == 0.5 and SYMMETRIC.flops_for(1.2) == pytest.approx(6e12)
    assert SYMMETRIC.tokens_for(1.2, 1e6) == pytest.approx(1e6)
    assert SYMMETRIC.tokens_for(1.2, 4e6) == pytest.approx((100 / 0.15) ** 2)
    assert SYMMETRIC.overhead(1e6, 1e6) == pytest.approx(1)
    # a quarter of the size: 0.2 of the 0.3 is size, so the text must bring 0.1 and is 1e6; least for 1.3 is (200/0.3)^4
    assert SYMMETRIC.overhead(2.5e5, 1e6) == pytest.approx(2.5e11 / (200 / 0.3) ** 4)


def test_serving_pushes_to_smaller_models_trained_longer():
    sizes = [SYMMETRIC.optimum_with_serving(1.2, served) for served in (0, 1e6, 1e8)]
    assert sizes[0].parameters == pytest.approx(1e6, rel=1e-4) and sizes[0].tokens == pytest.approx(1e6, rel=1e-4)
    assert sizes[0].parameters > sizes[1].parameters > sizes[2].parameters > (100 / 0.2) ** 2
    lopsided = Law(floor=1.0, a=50.0, alpha=0.3, b=200.0, beta=0.4)       # the size that the closed form gives
    none = lopsided.optimum_with_serving(1.5, 0)
    assert none.parameters == pytest.approx(lopsided.optimum(lopsided.flops_for(1.5)).parameters, rel=1e-9)
    for served, found in zip((0, 1e6, 1e8), sizes, strict=True):
        assert found.loss == 1.2 and SYMMETRIC.loss(found.parameters, found.tokens) == pytest.approx(1.2)
        tried = np.geomspace(2.6e5, 1e9, 400_001)
        tokens = (100 / (0.2 - 100 / tried**0.5)) ** 2
        costs = 6 * tried * tokens + 2 * tried * served
        mine = 6 * found.parameters * found.tokens + 2 * found.parameters * served
        assert mine == pytest.approx(costs.min(), rel=1e-6)


# ---- power laws ------------------------------------------------------------------------------------------------------

@settings(deadline=None)
@given(st.floats(0.1, 1e6), st.floats(-2, 2))
def test_a_power_law_is_found_again(coefficient, exponent):
    x = np.array([1.0, 3.0, 10.0, 200.0])
    fitted = fit_power_law(x, PowerLaw(coefficient, exponent)(x))
    assert fitted.coefficient == pytest.approx(coefficient) and fitted.exponent == pytest.approx(exponent, abs=1e-9)


def test_relative_errors_count_alike():
    fitted = fit_power_law([1, 1, 4, 4], [2, 8, 50, 200])             # mean logs: 4 at 1, 100 at 4
    assert fitted(1) == pytest.approx(4) and fitted(4) == pytest.approx(100)


def test_the_lowest_point_of_a_parabola():
    sizes = np.array([1e5, 2e5, 6e5, 1e6, 5e6])
    losses = 2.0 + 0.3 * (np.log(sizes) - math.log(4.5e5)) ** 2
    assert isoflop_minimum(sizes, losses) == pytest.approx((4.5e5, 2.0))
    losses[0], losses[4] = 9.0, 9.0                                   # only the lowest and its neighbours count
    assert isoflop_minimum(sizes, losses) == pytest.approx((4.5e5, 2.0))


# ---- errors ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("call, words", [
    (lambda: Law(-1, 1, 1, 1, 1), "floor=-1"),
    (lambda: Law(0, 0, 1, 1, 1), "a=0"),
    (lambda: Law(0, 1, 1, 1, -2), "beta=-2"),
    (lambda: Law(0, 1, -1, 1, 1), "alpha=-1"),
    (lambda: Law(0, 1, 1, 0, 1), "b=0"),
    (lambda: SYMMETRIC.loss(0, 1), "parameters=0"),
    (lambda: SYMMETRIC.loss(1, 0), "tokens=0"),
    (lambda: SYMMETRIC.optimum(0), "flops=0"),
    (lambda: SYMMETRIC.optimum(1, factor=0), "factor=0"),
    (lambda: SYMMETRIC.flops_for(1.0), "loss=1.0: must lie above 1.0, the floor"),
    (lambda: SYMMETRIC.flops_for(2.0, factor=0), "factor=0"),
    (lambda: SYMMETRIC.tokens_for(1.1, 1e6), "loss=1.1: must lie above 1.1, what 1000000.0 parameters"),
    (lambda: SYMMETRIC.tokens_for(1.2, 0), "parameters=0"),
    (lambda: SYMMETRIC.optimum_with_serving(0.5, 0), ", the floor$"),
    (lambda: SYMMETRIC.optimum_with_serving(1.2, -1), "served=-1"),
    (lambda: PowerLaw(1, 1)(0), "x=0"),
    (lambda: fit_power_law([1, 1], [1, 2]), "two different x"),
    (lambda: fit_power_law([1, 2], [1]), "equally many"),
    (lambda: fit_power_law([1, 2], [1, 0]), "y="),
    (lambda: isoflop_minimum([1, 2, 3], [1, 2, 3]), "at an end"),
    (lambda: isoflop_minimum([1, 2, 3], [3, 2, 1]), "at an end"),
    (lambda: isoflop_minimum([1, 3, 2], [2, 1, 2]), "ascending"),
    (lambda: isoflop_minimum([0, 1, 2], [2, 1, 2]), "positive"),
    (lambda: isoflop_minimum([1, 2, 3], [2, 1]), "as many"),
    (lambda: optimum_by_ratio(0), "flops=0"),
    (lambda: optimum_by_ratio(1, 0), "tokens_per_parameter=0"),
    (lambda: optimum_by_ratio(1, 1, factor=0), "factor=0"),
    (lambda: fit_power_law([0, 2], [1, 2]), "x="),
    (lambda: isoflop_minimum([1, 2, 2, 3], [3, 1, 2, 3]), "ascending"),
])
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        call()


def test_unknown_names_list_near_ones():
    with pytest.raises(LookupError, match="near: hoffmann"):
        law("hofmann")
    with pytest.raises(LookupError, match="kaplan tokens"):
        power_law("kaplan token")
    with pytest.raises(LookupError, match="besiroglu"):
        law("zzz")


def test_every_constant_has_a_source_and_a_date():
    for one in [*scaling_laws.laws().values(), *scaling_laws.power_laws().values()]:
        assert "https://arxiv.org/abs/" in one.source and len(one.date) == 7
