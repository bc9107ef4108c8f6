"""Costs and benchmarks against published tables, hand-worked cases, and sums done step by step."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from clusterlab import benchmarks, cost, measured, quoted
from clusterlab.cost import GWh, MWh, TWh, kWh, year
from clusterlab.hardware import accelerator, accelerators, node
from hypothesis import given
from hypothesis import strategies as st

FIXTURE = json.loads((Path(__file__).parent / "fixtures" / "energy.json").read_text("utf-8"))
some = st.floats(0.1, 10)


# ---- published ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", FIXTURE["energy"], ids=lambda row: row["run"])
def test_published_energies(row):
    """Within what rounding of the printed days and of the printed energy allows, and no more."""
    ours = cost.run_energy(row["chips"], row["days"] * 86400, power=row["watts"], pue=row["pue"]) / MWh
    allowed = row["half"] / row["MWh"] + row["days_half"] / row["days"] + 0.002          # PUE has three digits too
    assert abs(ours / row["MWh"] - 1) < allowed
    tons = cost.emissions(row["MWh"] * MWh, intensity=row["kg_per_kWh"]) / 1000
    assert tons == pytest.approx(row["tons"], rel=0.015)
    stored = quoted.training_run(row["run"])
    assert stored.computed_energy() == pytest.approx(ours * MWh) and stored.energy == pytest.approx(row["MWh"] * MWh)
    assert stored.power_is == "measured" and stored.emissions == pytest.approx(1000 * row["tons"])


@pytest.mark.parametrize("row", FIXTURE["hours"], ids=lambda row: row["run"])
def test_hours_times_limit(row):
    stored = quoted.training_run(row["run"])
    assert stored.computed_energy() == pytest.approx(row["gpu_hours"] * row["watts"] * 3600)
    assert stored.power_is == "TDP" and stored.power == accelerator(stored.part).power
    assert stored.implied_intensity() == pytest.approx(row["kg"] / (row["gpu_hours"] * row["watts"] / 1000))
    if "kWh" in row:
        assert stored.energy / kWh == pytest.approx(row["kWh"])
        assert stored.computed_emissions() == pytest.approx(row["kg"], rel=1e-3)


@pytest.mark.parametrize("row", FIXTURE["cost"], ids=lambda row: row["what"])
def test_published_costs(row):
    assert cost.run_cost(1, row["gpu_hours"] * 3600, price_per_hour=row["dollars_per_hour"]) == pytest.approx(row["dollars"])


@pytest.mark.parametrize("row", FIXTURE["mlperf"], ids=lambda row: row["what"])
def test_scaling_between_submissions(row):
    (few, many), (long, short) = row["devices"], row["minutes"]
    assert abs(100 * benchmarks.scaling_efficiency(few, long, many, short) - row["percent"]) <= row["half"]


def test_metered_rows_are_power_times_time():
    rows = measured.run("mlperf-lora-power-h100").rows("devices", "seconds", "joules")
    for (gpus, seconds, joules), row in zip(rows, FIXTURE["metered"], strict=True):
        assert (gpus, joules) == (row["gpus"], row["joules"]) and seconds == pytest.approx(60 * row["minutes"])
        ours = cost.run_energy(row["nodes"], seconds, power=1000 * row["kW_per_node"])
        assert ours == pytest.approx(joules, rel=1e-4)                                   # power has four digits
    assert quoted.training_run("Llama 2 70B LoRA, MLPerf").computed_energy() == pytest.approx(11769962, rel=1e-4)


# ---- energy ------------------------------------------------------------------------------------------------------------


def test_units_of_energy():
    assert (kWh, MWh, GWh, TWh) == (1000 * 3600, 1e6 * 3600, 1e9 * 3600, 1e12 * 3600) and year == 31_557_600


def test_power_of_a_device():
    assert cost.device_power(accelerator("H100 SXM")) == 700
    assert cost.device_power(node("DGX H100")) == 10200 / 8
    assert cost.device_power(node("GB200 NVL72")) == pytest.approx(120000 / 72)
    with pytest.raises(ValueError, match="TPU v5p: power"):
        cost.device_power(accelerator("TPU v5p"))


def test_energy_by_hand():
    assert cost.run_energy(3, 7, power=11) == 231
    assert cost.run_energy(3, 7, power=11, share=0.5, pue=2) == 231
    assert cost.run_energy(3, 7, power=11, share=1.2) == pytest.approx(277.2)
    assert np.allclose(cost.run_energy(np.array([1, 2]), 10, power=5, pue=1.5), [75, 150])


@given(some, some, some, some, st.floats(1, 3))
def test_energy_is_summed_second_by_second(n, seconds, power, share, pue):
    """Cut the run in two and let the devices run one after the other: energies add."""
    whole = cost.run_energy(n, seconds, power=power, share=share, pue=pue)
    parts = [cost.run_energy(1, seconds * f, power=power, share=share, pue=pue) for f in (0.3, 0.7)]
    assert whole == pytest.approx(n * sum(parts))


@pytest.mark.parametrize("wrong, name", [
    ({"devices": -1}, "devices"), ({"seconds": -1}, "seconds"), ({"power": 0}, "power"), ({"share": 0}, "share"),
    ({"pue": 0.99}, "pue"), ({"pue": float("nan")}, "pue"),
])
def test_energy_refuses(wrong, name):
    with pytest.raises(ValueError, match=name):
        cost.run_energy(**{"devices": 1, "seconds": 1, "power": 1} | wrong)


def test_nothing_costs_nothing():
    assert cost.run_energy(0, 5, power=1) == cost.run_energy(5, 0, power=1) == 0
    assert cost.run_cost(0, 5, price_per_hour=1) == cost.run_cost(5, 5, price_per_hour=0) == 0
    assert cost.emissions(0, intensity=1) == cost.electricity_cost(5, price_per_kwh=0) == 0
    assert cost.emissions(5, intensity=0) == cost.electricity_cost(0, price_per_kwh=2) == 0


def test_emissions_and_electricity():
    assert cost.emissions(3.6e6, intensity=0.4) == pytest.approx(0.4)
    assert cost.electricity_cost(7.2e6, price_per_kwh=0.1) == pytest.approx(0.2)
    for call in (lambda: cost.emissions(-1, intensity=1), lambda: cost.emissions(1, intensity=-1),
                 lambda: cost.electricity_cost(-1, price_per_kwh=1), lambda: cost.electricity_cost(1, price_per_kwh=-1)):
        with pytest.raises(ValueError, match="=-1"):
            call()


def test_coolant_conserves_energy():
    """A kilogram of water takes 4,181 J for a kelvin: what flows in a second times that is the power."""
    for fluid in ("air", "water"):
        has = quoted.coolant(fluid)
        flow = cost.coolant_flow(120e3, kelvin=8, **has)
        assert flow * has["density"] * has["heat_capacity"] * 8 == pytest.approx(120e3)
    assert cost.coolant_flow(0, kelvin=1, density=1, heat_capacity=1) == 0
    for wrong in ({"kelvin": 0}, {"density": 0}, {"heat_capacity": 0}, {"power": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            cost.coolant_flow(**{"power": 1, "kelvin": 1, "density": 1, "heat_capacity": 1} | wrong)


def test_air_is_an_ideal_gas_of_two_atomic_molecules():
    air, mass, gas = quoted.coolant("air"), 0.02896, 8.314
    assert air["density"] == pytest.approx(101325 * mass / (gas * 298.15), rel=1e-3)
    assert air["heat_capacity"] == pytest.approx(3.5 * gas / mass, rel=1e-3)


# ---- money -------------------------------------------------------------------------------------------------------------


def test_device_seconds_by_hand():
    """6 · 10 · 100 FLOP at half of a peak of 60 FLOP/s, and 80 % of the time: 6000 / 30 / 0.8 s."""
    assert cost.device_seconds(10, 100, mfu=0.5, peak_flops=60) == 200
    assert cost.device_seconds(10, 100, mfu=0.5, peak_flops=60, goodput=0.8) == pytest.approx(250)
    assert cost.device_seconds(10, 100, mfu=1, peak_flops=60, goodput=1, factor=8) == pytest.approx(8000 / 60)
    assert cost.token_cost(10, mfu=0.5, peak_flops=60, goodput=0.8, price_per_hour=36) == pytest.approx(0.025)
    assert cost.token_cost(10, mfu=0.5, peak_flops=60, factor=8, price_per_hour=3600) == pytest.approx(80 / 30)


@pytest.mark.parametrize("wrong", [{"mfu": 0}, {"mfu": 1.01}, {"goodput": 0}, {"goodput": 1.01}, {"peak_flops": 0},
                                   {"parameters": 0}, {"tokens": -1}])
def test_device_seconds_refuses(wrong):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))}="):
        cost.device_seconds(**{"parameters": 1, "tokens": 1, "mfu": 0.5, "peak_flops": 1} | wrong)


def test_cost_refuses():
    for wrong in ({"devices": -1}, {"seconds": -1}, {"price_per_hour": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            cost.run_cost(**{"devices": 1, "seconds": 1, "price_per_hour": 1} | wrong)


@pytest.mark.parametrize("interest", [0.0, 0.03, 0.10, 0.25])
@pytest.mark.parametrize("years", [1, 3, 5])
def test_a_loan_paid_at_that_rate_is_paid_back(years, interest):
    """Year by year: what is owed grows by the interest and falls by the payment, to zero in the last year."""
    payment = cost.capital_per_hour(1000, life=years * year, interest=interest) * 8766
    owed = 1000.0
    for _ in range(years):
        owed = owed * (1 + interest) - payment
    assert owed == pytest.approx(0, abs=1e-6)


@np.errstate(all="raise")
def test_nothing_is_divided_by_nothing():
    assert cost.capital_per_hour(8766, life=year) == pytest.approx(1)
    shares = cost.break_even(8766, rent_per_hour=np.array([0.1, 1.1]), life=year, power=1000, price_per_kwh=0.1)
    assert shares[0] == np.inf and shares[1] == pytest.approx(1)


def test_capital_broadcasts_and_refuses():
    both = cost.capital_per_hour(1000, life=2 * year, interest=np.array([0.0, 0.1]))
    assert both == pytest.approx([cost.capital_per_hour(1000, life=2 * year, interest=i) for i in (0, 0.1)])
    assert cost.capital_per_hour(0, life=year) == 0
    for wrong in ({"purchase": -1}, {"life": 0}, {"interest": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            cost.capital_per_hour(**{"purchase": 1, "life": year} | wrong)


OWNER = {"life": 4 * year, "interest": 0.08, "upkeep": 0.1, "power": 1275, "share": 0.66, "pue": 1.3, "price_per_kwh": 0.09}


def test_owned_hour_from_a_lifes_ledger():
    """All that is paid in four years over all hours used in them."""
    hours, use = 4 * 8766, 0.7
    paid = cost.capital_per_hour(43_000, life=4 * year, interest=0.08) * hours + 4 * 0.1 * 43_000
    paid += use * hours * 1.275 * 0.66 * 1.3 * 0.09
    assert cost.owned_per_hour(43_000, use=use, **OWNER) == pytest.approx(paid / (use * hours))


def test_defaults_of_owning():
    least = {"life": year, "power": 1000, "price_per_kwh": 0.1}
    assert cost.owned_per_hour(8766, use=1, **least) == pytest.approx(1.1)
    assert cost.break_even(8766, rent_per_hour=1.1, **least) == pytest.approx(1)


@given(st.floats(1e3, 1e5), st.floats(0.3, 20), st.floats(0, 0.3), st.floats(0, 0.3))
def test_at_break_even_both_cost_the_same(purchase, rent, interest, upkeep):
    owner = OWNER | {"interest": interest, "upkeep": upkeep}
    share = cost.break_even(purchase, rent_per_hour=rent, **owner)
    if share <= 1:
        assert cost.owned_per_hour(purchase, use=share, **owner) == pytest.approx(rent)
    else:                                            # dearer than rent even without a pause
        assert cost.owned_per_hour(purchase, use=1, **owner) > rent


def test_a_rent_below_the_electricity_is_never_beaten():
    running = 1.275 * 0.66 * 1.3 * 0.09
    shares = cost.break_even(1000, rent_per_hour=np.array([running / 2, running, 2 * running]), **OWNER)
    assert np.isinf(shares[:2]).all() and np.isfinite(shares[2])


@pytest.mark.parametrize("wrong", [{"use": 0}, {"use": 1.01}, {"upkeep": -1}, {"pue": 0.5}, {"share": 0}, {"life": 0}])
def test_owning_refuses(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        cost.owned_per_hour(1000, **{"use": 0.5} | OWNER | wrong)
    if "use" not in wrong:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            cost.break_even(1000, rent_per_hour=2, **OWNER | wrong)


def test_break_even_refuses_no_rent():
    with pytest.raises(ValueError, match="rent_per_hour"):
        cost.break_even(1000, rent_per_hour=0, **OWNER)


def test_growth():
    assert 415 * (1 + cost.yearly_growth(415, 945, 6)) ** 6 == pytest.approx(945)
    assert cost.yearly_growth(100, 144, 2) == pytest.approx(0.2)
    for wrong in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="=0"):
            cost.yearly_growth(*wrong)


# ---- which input matters -----------------------------------------------------------------------------------------------


def test_elasticity_of_a_power_law_is_its_exponent():
    def law(a, b, c):
        return 7 * a**2 / b**3 + 0 * c
    where = {"a": 1.7, "b": 0.3, "c": 5.0}
    found = {name: cost.elasticity(law, name, **where) for name in where}
    assert found == pytest.approx({"a": 2, "b": -3, "c": 0}, abs=1e-9)


def test_elasticities_of_a_sum_are_shares():
    """For a sum of terms proportional to their inputs, elasticities are shares of the sum and add up to 1."""
    found = [cost.elasticity(lambda a, b: 3 * a + b, name, a=1.0, b=1.0) for name in "ab"]
    assert found == pytest.approx([0.75, 0.25], rel=1e-5)


def test_tornado_sorts_by_the_widest_ratio():
    rows = cost.tornado(lambda a, b, c: a * b / c, {"a": (1, 2), "b": (1, 5), "c": (1, 3)}, a=1, b=1, c=1)
    assert rows == [("b", 1, 5), ("c", 1, pytest.approx(1 / 3)), ("a", 1, 2)]
    large = cost.tornado(lambda a, b: a + b, {"a": (0, 10), "b": (0, 20)}, a=100, b=10)     # 10 to 20, 100 to 120
    assert [name for name, *_ in large] == ["a", "b"]
    assert [name for name, *_ in cost.tornado(lambda a, b: 100 * a * b, {"a": (2, 3), "b": (0.1, 0.4)}, a=3, b=0.4)] == ["b", "a"]


def test_unknown_inputs_are_named():
    with pytest.raises(LookupError, match="'mfu' is not given; given: a"):
        cost.elasticity(lambda a: a, "mfu", a=1)
    with pytest.raises(LookupError, match="'mfu'"):
        cost.tornado(lambda a: a, {"mfu": (1, 2)}, a=1)
    with pytest.raises(ValueError, match="a=0"):
        cost.elasticity(lambda a: a, "a", a=0)


# ---- benchmarks --------------------------------------------------------------------------------------------------------


def test_scaling_by_hand():
    assert benchmarks.scaling_efficiency(8, 40, 16, 20) == 1
    assert benchmarks.scaling_efficiency(10, 30, 40, 10) == 0.75
    assert benchmarks.scaling_efficiency(8, 40, 8, 20) == 2
    with pytest.raises(ValueError, match="more_devices=7: fewer than devices=8"):
        benchmarks.scaling_efficiency(8, 40, 7, 50)
    for place, name in enumerate(("devices", "seconds", "more_devices", "fewer_seconds")):
        with pytest.raises(ValueError, match=f"^{name}=0: must"):
            benchmarks.scaling_efficiency(*[0 if place == other else 1 for other in range(4)])


@given(st.floats(1, 100), st.floats(1, 5000), st.integers(1, 500), st.integers(2, 50))
def test_the_law_goes_through_its_points(least, critical, batch, times):
    counts = [benchmarks.steps_to_quality(b, least_steps=least, critical_batch=critical) for b in (batch, times * batch)]
    found = benchmarks.fit_critical_batch(batch, counts[0], times * batch, counts[1])
    assert found == pytest.approx((least, critical), rel=1e-6)


def test_the_law_is_a_trade_of_steps_for_samples():
    """(S/S_least − 1)(E/E_least − 1) = 1, from the paper, with E = S·B."""
    for batch in (3, 40, 1000):
        steps = benchmarks.steps_to_quality(batch, least_steps=30, critical_batch=200)
        assert (steps / 30 - 1) * (steps * batch / (30 * 200) - 1) == pytest.approx(1)


def test_the_law_refuses_what_is_not_positive():
    good = {"batch": 100, "least_steps": 30, "critical_batch": 300}
    for name in good:
        with pytest.raises(ValueError, match=f"^{name}=0: must"):
            benchmarks.steps_to_quality(**good | {name: 0})
    good = {"batch": 100, "steps": 120, "larger_batch": 300, "fewer_steps": 60}
    for name in good:
        with pytest.raises(ValueError, match=f"^{name}=0: must"):
            benchmarks.fit_critical_batch(**good | {name: 0})


@pytest.mark.parametrize("points", [(10, 100, 10, 50), (10, 100, 20, 100), (10, 100, 20, 50), (20, 50, 10, 100)])
def test_points_that_are_no_such_law(points):
    with pytest.raises(ValueError, match="want fewer steps and more"):
        benchmarks.fit_critical_batch(*points)


def test_scores_drop_the_extremes():
    assert benchmarks.middle_mean([5, 1, 9]) == 5
    assert benchmarks.middle_mean([4, 100, 1, 5]) == 4.5
    with pytest.raises(ValueError, match="at least three"):
        benchmarks.middle_mean([1, 2])


# ---- what is quoted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["rents", "energy"])
def test_every_quoted_value_has_a_source_and_a_day(file):
    table = tomllib.loads((quoted.FOLDER / f"{file}.toml").read_text("utf-8"))
    rows = table.values() if file == "rents" else [row for kind in table.values() for row in kind.values()]
    for row in rows:
        assert "http" in row["source"] or "arXiv:" in row["source"], row
        assert row["date"][:3] == "202", row


def test_offers_name_parts_of_the_catalogue():
    for offer in quoted.rents():
        assert offer.part in accelerators() and offer.price > 0 and offer.devices in (1, 8)
    prices = [offer.price for offer in quoted.rents()]
    assert prices == sorted(prices)
    assert {offer.part for offer in quoted.rents("B200")} == {"B200"}
    assert quoted.rent("AWS p5.48xlarge") in quoted.rents("H100 SXM")
    assert quoted.rent("AWS p5.48xlarge").price * 8 == pytest.approx(55.04)


def test_what_is_not_quoted_is_refused_by_name():
    with pytest.raises(LookupError, match="no offer of 'H10 SXM'; near: H100 SXM"):
        quoted.rents("H10 SXM")
    with pytest.raises(LookupError, match="no training run 'GPT-4'"):
        quoted.training_run("GPT-4")
    with pytest.raises(LookupError, match="no offer 'p5'"):
        quoted.rent("p5")
    with pytest.raises(LookupError, match="no coolant 'oil'; there are: water, air"):
        quoted.coolant("oil")
    with pytest.raises(LookupError, match="no PUE"):
        quoted.pue("mine")
    with pytest.raises(LookupError, match="no price of electricity"):
        quoted.electricity("Mars")
    with pytest.raises(ValueError, match="prints no intensity"):
        quoted.training_run("Llama 2 7B").computed_emissions()
    with pytest.raises(ValueError, match="prints no emissions"):
        quoted.training_run("Llama 2 70B LoRA, MLPerf").implied_intensity()
