"""Reliability against other derivations: brute-force optima, direct simulation, linear equations, enumeration."""

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations
from math import exp, factorial
from statistics import NormalDist, fmean, stdev

import numpy as np
import pytest
from clusterlab import extremes
from clusterlab import reliability as r
from clusterlab.units import day, hour, minute
from hypothesis import assume, given, settings
from hypothesis import strategies as st

seconds = st.floats(1.0, 1e6)
small = settings(max_examples=60, deadline=None)


def walk_segments(rng, interval, write, mtbf, restart, segments):
    """The job told from the job's side: attempt a segment until it survives, restart until a restart survives."""
    clock = 0.0
    for _ in range(segments):
        while (death := rng.exponential(mtbf)) < interval + write:
            clock += death
            while (death := rng.exponential(mtbf)) < restart:
                clock += death
            clock += restart
        clock += interval + write
    return clock


# Rates and probabilities


def test_series_of_parts_fails_at_the_minimum_of_their_lives():
    lives = np.random.default_rng(0).exponential(1000.0, (20_000, 16)).min(axis=1)
    assert lives.mean() == pytest.approx(r.system_mtbf(1000.0, 16), rel=0.03)
    assert (lives < 50.0).mean() == pytest.approx(r.failure_probability(r.system_mtbf(1000.0, 16), 50.0), abs=0.01)


def test_kinds_of_failure_share_one_clock():
    rng = np.random.default_rng(1)
    first = np.minimum(rng.exponential(30.0, 40_000), rng.exponential(60.0, 40_000))
    assert first.mean() == pytest.approx(r.combined_mtbf(30.0, 60.0), rel=0.02)
    assert r.combined_mtbf(1000.0, 1000.0, 1000.0) == pytest.approx(r.system_mtbf(1000.0, 3))


def test_a_switch_that_takes_a_rack_counts_once_for_the_job_and_often_for_the_pool():
    nodes, racks = r.system_mtbf(2000 * hour, 256), r.system_mtbf(20_000 * hour, 32)
    both = r.combined_mtbf(nodes, racks)
    assert both < nodes
    assert 1 / both == pytest.approx(256 / (2000 * hour) + 32 / (20_000 * hour))


def test_llama3_counts_give_the_published_three_hours():
    per_gpu = 54 * day * 16_384 / 419
    assert r.system_mtbf(per_gpu, 16_384) / hour == pytest.approx(3.09, abs=0.005)
    assert r.expected_failures(54 * day, per_gpu, 16_384) == pytest.approx(419)
    rates = r.expected_failures(54 * day, np.array([54.0, 108.0]) * day, np.array([3, 4]))
    assert rates.tolist() == [3.0, 2.0]


def test_one_percent_a_day_on_ten_thousand_gpus():
    node = r.mtbf_from_probability(0.01, day)
    job = r.system_mtbf(node, 1250)
    assert r.failure_probability(node, day) == pytest.approx(0.01, rel=1e-12)
    assert r.failure_probability(job, day) == pytest.approx(1 - 0.99**1250, rel=1e-9)
    assert r.expected_failures(day, node, 1250) == pytest.approx(1250 * -np.log(0.99))


@small
@given(seconds, st.floats(1e-3, 1e6))
def test_probability_is_small_before_and_sure_after(mtbf, time):
    p = r.failure_probability(mtbf, time)
    assert 0 <= p <= 1 and p <= time / mtbf  # the union bound
    assert r.failure_probability(mtbf, 2 * time) == pytest.approx(1 - (1 - p) ** 2, abs=1e-12)


# Intervals


def test_daly_subtracts_the_write():
    """A widespread textbook variant adds it and prints 67.33 minutes."""
    assert r.daly_interval(4 * minute, 8 * hour) / minute == pytest.approx(59.33, abs=0.005)
    assert r.young_interval(4 * minute, 8 * hour) / minute == pytest.approx(61.97, abs=0.005)
    assert r.daly_interval(50.0, 20.0) == 20.0 and r.daly_interval(40.0, 20.0) == 20.0
    with localcontext():  # a long write, d/2M = 3/4: every term of the series counts
        root = Decimal(3).sqrt()
        by_hand = root * (1 + Decimal("0.75").sqrt() / 3 + Decimal("0.75") / 9) - Decimal("1.5")
    assert r.daly_interval(1.5, 1.0) == pytest.approx(float(by_hand), rel=1e-12)


@small
@given(st.floats(0.5, 1000.0), st.floats(100.0, 1e6), st.floats(0.0, 5000.0))
def test_optimum_beats_its_neighbours_whatever_the_restart_time(write, mtbf, restart):
    best = r.optimal_interval(write, mtbf)
    top = r.goodput(best, write=write, mtbf=mtbf, restart=restart)
    assume(top > 1e-200)
    grid = best * np.array([0.2, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0, 5.0])
    assert np.all(r.goodput(grid, write=write, mtbf=mtbf, restart=restart) < top)


@small
@given(st.floats(1e-6, 20.0))
def test_optimum_solves_its_equation(ratio):
    tau = r.optimal_interval(ratio, 1.0)
    assert (1 - tau) * exp(tau) == pytest.approx(exp(-ratio), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("ratio", [1e-15, 1e-12, 1e-7, 2e-5, 4.9e-5, 5.1e-5, 1e-3, 0.5])
def test_optimum_to_the_last_digits(ratio):
    """u - 1 + exp(-u) = write / mtbf with 50 digits, where doubles would cancel."""
    with localcontext() as context:
        context.prec = 50
        u = -(1 - Decimal(r.optimal_interval(ratio, 1.0))).ln()
        assert float(u - 1 + (-u).exp()) == pytest.approx(ratio, rel=1e-10, abs=0)


def test_rules_agree_where_writes_are_short():
    write, mtbf = 1e-6, 1.0
    exact = r.optimal_interval(write, mtbf)
    assert exact == pytest.approx(r.daly_interval(write, mtbf), rel=1e-8)
    assert exact == pytest.approx(r.young_interval(write, mtbf), rel=1e-3)
    assert r.young_interval(write, mtbf) - exact == pytest.approx(2 / 3 * write, rel=1e-2)
    assert r.optimal_interval(1e-14, 1.0) == pytest.approx(2e-14**0.5, rel=1e-6)  # no cancellation
    assert r.optimal_interval(100.0, 1.0) == pytest.approx(1.0)
    assert r.optimal_interval(0.0, 5.0) == 0.0


def test_intervals_broadcast_and_keep_scalars_plain():
    writes = np.array([10.0, 60.0])
    for rule in (r.young_interval, r.daly_interval, r.optimal_interval):
        both = rule(writes, 8 * hour)
        assert both.shape == (2,) and both[1] == rule(60.0, 8 * hour)
        assert type(rule(60.0, 8 * hour)) is float
    assert type(r.goodput(600, write=10, mtbf=9000, restart=0)) is float


# Goodput


@pytest.mark.parametrize("case", [(600.0, 30.0, 3000.0, 200.0), (100.0, 0.0, 150.0, 0.0), (50.0, 80.0, 200.0, 90.0)])
def test_goodput_is_what_the_job_itself_lives_through(case):
    interval, write, mtbf, restart = case
    clock = walk_segments(np.random.default_rng(7), *case, segments=20_000)
    assert 20_000 * interval / clock == pytest.approx(
        r.goodput(interval, write=write, mtbf=mtbf, restart=restart), rel=0.02)


@pytest.mark.parametrize("drain", [0.0, 400.0])
def test_goodput_as_a_sum_over_the_gap(drain):
    """E[floor] by numerical integration over the gap's density, not by the geometric series."""
    tau, write, mtbf, restart = 700.0, 50.0, 5000.0, 300.0
    gaps = (np.arange(2_000_000) + 0.5) * 0.05
    banked = np.maximum(np.floor((gaps - restart - drain) / (tau + write)), 0)
    mean = (banked * np.exp(-gaps / mtbf) / mtbf * 0.05).sum()
    assert tau * mean / mtbf == pytest.approx(
        r.goodput(tau, write=write, mtbf=mtbf, restart=restart, drain=drain), rel=1e-4)


@pytest.mark.parametrize("drain", [0.0, 300.0])
def test_simulation_contains_the_closed_form(drain):
    job = {"write": 20.0, "mtbf": 3.09 * hour, "restart": 8 * minute, "drain": drain}
    result = r.simulate_goodput(900.0, **job, runs=2000, seed=11)
    assert result.low < r.goodput(900.0, **job) < result.high
    assert result.high - result.low < 0.001
    assert result.samples.shape == (2000,) and 2 * result == pytest.approx(result.low + result.high)
    assert result.low < result.samples.mean() < result.high


def test_simulation_of_a_short_job_equals_the_segment_walk():
    """Three whole intervals and a part, few failures: the edges count here."""
    rng = np.random.default_rng(3)
    job = {"write": 50.0, "mtbf": 2000.0, "restart": 200.0}
    clocks = [walk_segments(rng, 700.0, segments=3, **job) + walk_segments(rng, 400.0, segments=1, **job)
              for _ in range(6000)]
    result = r.simulate_goodput(700.0, **job, work=2500.0, runs=6000, seed=4)
    assert result == pytest.approx(2500.0 / np.mean(clocks), rel=0.02)
    assert result.samples.max() == pytest.approx(2500.0 / 2700.0)  # no failure: four writes


def test_simulation_repeats_with_its_seed():
    job = {"write": 20.0, "mtbf": 9000.0, "restart": 100.0, "work": 1e5, "runs": 20}
    a, b, c = (r.simulate_goodput(900.0, **job, seed=s).samples for s in (5, 5, 6))
    assert np.array_equal(a, b) and not np.array_equal(a, c)


def test_what_a_simulation_does_when_nothing_is_said():
    job = {"write": 1.0, "mtbf": 300.0, "restart": 5.0, "work": 1000.0}
    given, plain = r.simulate_goodput(10.0, **job, drain=0.0, runs=1000, seed=0), r.simulate_goodput(10.0, **job)
    assert np.array_equal(given.samples, plain.samples)


@pytest.mark.parametrize(("work", "wall"), [(1400.0, 1500.0), (1400.5, 1550.5), (700.0, 750.0), (300.0, 350.0)])
def test_a_job_without_failures_writes_once_an_interval_and_once_for_what_is_left(work, wall):
    quiet = r.simulate_goodput(700.0, write=50.0, mtbf=1e30, restart=1.0, work=work, runs=2)
    assert quiet.samples.tolist() == [work / wall] * 2 and quiet.low == quiet == quiet.high


def test_the_confidence_interval_by_hand():
    """Twice 2.576 standard errors of the mean clock, as a share of it."""
    result = r.simulate_goodput(10.0, write=1.0, mtbf=30.0, restart=5.0, work=300.0, runs=5)
    clocks = [300.0 / share for share in result.samples]
    share = NormalDist().inv_cdf(0.995) * stdev(clocks) / fmean(clocks) / 5**0.5
    assert float(result) == pytest.approx(300.0 / fmean(clocks))
    assert (result.high - result.low) / 2 / result == pytest.approx(share, rel=1e-3)


@small
@given(st.floats(10.0, 1e4), st.floats(0.0, 500.0), st.floats(1e3, 1e6), st.floats(0.0, 3000.0))
def test_goodput_laws(interval, write, mtbf, restart):
    job = {"write": write, "mtbf": mtbf, "restart": restart}
    g = r.goodput(interval, **job)
    assert 0 <= g < 1
    assert g <= interval / (interval + write)
    assert r.goodput(interval, **{**job, "mtbf": 2 * mtbf}) >= g
    assert r.goodput(interval, **{**job, "restart": restart + 10}) <= g
    assert r.goodput(interval, **job, drain=10.0) == pytest.approx(r.goodput(interval, **{**job, "restart": restart + 10}))


def test_restarting_without_checkpoints_saves_nothing():
    """Thread 30: a job that is only restarted begins again; ten MTBFs of work hardly ever end."""
    job = {"mtbf": hour, "restart": minute}
    assert r.goodput(10 * hour, write=0.0, **job) == pytest.approx(10 * exp(-1 / 60) / (exp(10) - 1))
    assert r.goodput(r.optimal_interval(10.0, hour), write=10.0, **job) > 0.9


def test_ettr_is_the_limit_of_goodput():
    job = {"write": 5.0, "restart": 60.0}
    exact, first = (f(600.0, mtbf=1e6, **job) for f in (r.goodput, r.ettr))
    assert 0 < first - exact < 5.0 / 1e6  # what ettr leaves out first: a failure during the write


def test_levels_of_checkpoints():
    one = r.multilevel_ettr([600.0], write=[5.0], mtbf=[1e4], restart=[60.0])
    assert one == r.ettr(600.0, write=5.0, mtbf=1e4, restart=60.0)
    mtbf, write, restart = np.array([4.0, 12.0]) * hour, np.array([0.5, 60.0]), np.array([60.0, 600.0])
    both = r.multilevel_ettr(r.young_interval(write, mtbf), write=write, mtbf=mtbf, restart=restart)
    storage_only = r.ettr(r.young_interval(60.0, 3 * hour), write=60.0, mtbf=3 * hour, restart=600.0)
    assert both > storage_only
    grid = r.multilevel_ettr(np.full((2, 3), [[100.0], [2000.0]]), write=write[:, None], mtbf=mtbf[:, None],
                             restart=restart[:, None])
    one = r.multilevel_ettr([100.0, 2000.0], write=write, mtbf=mtbf, restart=restart)
    assert grid.tolist() == pytest.approx([one] * 3, rel=1e-12)
    assert r.multilevel_ettr([0.5], write=[0.1], mtbf=[1e3], restart=[1.0]) == pytest.approx(
        r.ettr(0.5, write=0.1, mtbf=1e3, restart=1.0)) == pytest.approx((1 - 1.25e-3) / 1.2)


def test_two_levels_against_a_walk():
    """Two kinds of failure, two kinds of checkpoint, minute by minute; first order, so failures are kept rare."""
    rng, tau, mtbf = np.random.default_rng(5), np.array([50.0, 1000.0]), np.array([2e4, 1e5])
    write, restart = np.array([1.0, 20.0]), np.array([30.0, 300.0])
    clock = work = safe = 0.0
    soft, hard = rng.exponential(mtbf)
    while work < 2e7:
        length = tau[0] + write[0] + (write[1] if (work + tau[0]) % tau[1] == 0 else 0.0)
        if min(soft, hard) > clock + length:
            clock, work = clock + length, work + tau[0]
            safe = work if work % tau[1] == 0 else safe
        elif soft < hard:
            clock, soft = soft + restart[0], soft + restart[0] + rng.exponential(mtbf[0])
        else:
            clock, hard, work = hard + restart[1], hard + restart[1] + rng.exponential(mtbf[1]), safe
        soft, hard = max(soft, clock), max(hard, clock)
    assert work / clock == pytest.approx(r.multilevel_ettr(tau, write=write, mtbf=mtbf, restart=restart), abs=0.001)


def test_storage_bandwidth():
    """405B with 13 bytes a parameter, once in half an hour, 1 % overhead: the write takes 18 s."""
    rate = r.storage_bandwidth(405e9 * 13, interval=30 * minute, overhead=0.01)
    assert 405e9 * 13 / rate == pytest.approx(18.0)


@pytest.mark.parametrize("nodes,replicas,failed", [(8, 2, 3), (9, 3, 4), (6, 2, 6), (6, 3, 2), (6, 2, 0), (6, 1, 1)])
def test_lost_replicas_by_enumeration(nodes, replicas, failed):
    groups = [set(range(g, g + replicas)) for g in range(0, nodes, replicas)]
    cases = [set(c) for c in combinations(range(nodes), failed)]
    lost = sum(any(g <= case for g in groups) for case in cases)
    assert r.replica_loss_probability(nodes, replicas, failed) == pytest.approx(lost / len(cases))


# Stragglers and spares


@pytest.mark.parametrize("distribution", r.DISTRIBUTIONS)
@pytest.mark.parametrize("n", [1, 2, 50])
def test_slowest_of_n_by_drawing(distribution, n):
    rng = np.random.default_rng(2)
    sigma = np.sqrt(np.log(1 + 0.3**2))
    draw = {"normal": lambda: rng.normal(1.0, 0.3, (40_000, n)),
            "lognormal": lambda: rng.lognormal(-sigma**2 / 2, sigma, (40_000, n)),
            "exponential": lambda: 0.7 + rng.exponential(0.3, (40_000, n)),
            "uniform": lambda: rng.uniform(1 - 0.3 * 3**0.5, 1 + 0.3 * 3**0.5, (40_000, n))}[distribution]()
    assert r.expected_max(n, mean=1.0, std=0.3, distribution=distribution) == pytest.approx(
        draw.max(axis=1).mean(), abs=0.01)


def test_slowest_of_n_known_values():
    """Two normals: 1/sqrt(pi); three: 3/(2 sqrt(pi)); tables of normal order statistics for 10 and 1000."""
    for n, value in [(1, 0.0), (2, np.pi**-0.5), (3, 1.5 * np.pi**-0.5), (10, 1.53875), (1000, 3.24144)]:
        assert r.expected_max(n, mean=0.0, std=1.0) == pytest.approx(value, abs=5e-6)
    assert r.expected_max(4, mean=1.0, std=1.0, distribution="exponential") == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_slowest_exponential_is_the_harmonic_number(n):
    """But for the first term that the series leaves out, 6e-13 at n = 1."""
    exact = sum(Fraction(1, k) for k in range(1, n + 1)) - Fraction(1, 240 * (n + 16) ** 8)
    assert r.expected_max(n, mean=1.0, std=1.0, distribution="exponential") == pytest.approx(float(exact), rel=0, abs=1e-13)


@pytest.mark.parametrize("n", [100, 16_384, 10**9])
def test_slowest_normal_through_the_quantile_of_the_largest_uniform(n):
    u = (np.arange(20_000) + 0.5) / 20_000  # the largest of n uniforms is u ** (1 / n)
    value = np.mean([-NormalDist().inv_cdf(-np.expm1(np.log(x) / n)) for x in u])
    assert r.expected_max(n, mean=0.0, std=1.0) == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize("distribution", r.DISTRIBUTIONS)
def test_slowest_of_n_laws(distribution):
    n = np.array([1, 2, 8, 1024, 16_384])
    times = r.expected_max(n, mean=2.0, std=0.1, distribution=distribution)
    assert times[0] == pytest.approx(2.0, abs=1e-9) and np.all(np.diff(times) > 0)
    bound = 2.0 + 0.1 * (n - 1) / np.sqrt(2 * n - 1)  # Hartley and David 1954, for any distribution
    assert np.all(times <= bound + 1e-9)
    assert r.expected_max(64, mean=2.0, std=0.0, distribution=distribution) == pytest.approx(2.0)
    assert type(r.expected_max(64, mean=2.0, std=0.1, distribution=distribution)) is float


@pytest.mark.parametrize("burst", [1, 4])
def test_spares_against_a_poisson_table(burst):
    mean = 100 * 3.0 / 50.0 / burst
    count = r.spares(100, mtbf=50.0, repair=3.0, risk=0.02, burst=burst)

    def beyond(s):
        return 1 - sum(exp(-mean) * mean**k / factorial(k) for k in range(s // burst + 1))

    assert count % burst == 0
    assert beyond(count) <= 0.02 < beyond(count - burst)


def test_spares_against_a_pool_that_is_watched():
    """Failures strike running units, each repaired after a fixed time; how often are more out than there are spares?"""
    rng = np.random.default_rng(9)
    strikes = np.cumsum(rng.exponential(50.0 / 100, 400_000))
    count = r.spares(100, mtbf=50.0, repair=3.0, risk=0.02)
    moments = rng.uniform(100.0, strikes[-1], 40_000)
    out = np.searchsorted(strikes, moments) - np.searchsorted(strikes, moments - 3.0)
    assert (out > count).mean() <= 0.02 < (out > count - 1).mean()


def test_bursts_need_more_spares_and_a_quiet_pool_none():
    one, rack = (r.spares(2048, mtbf=150 * day, repair=2 * day, risk=1e-3, burst=b) for b in (1, 8))
    assert rack > one
    assert r.spares(1, mtbf=1e9, repair=1.0, risk=0.01) == 0
    assert r.spares(10**5, mtbf=1.0, repair=1.0, risk=0.5) == pytest.approx(10**5, rel=1e-3)


# Bad input


@pytest.mark.parametrize("call", [
    lambda: r.system_mtbf(0.0, 8), lambda: r.system_mtbf(10.0, -1), lambda: r.system_mtbf(float("nan"), 8),
    lambda: r.combined_mtbf(3.0, 0.0), lambda: r.expected_failures(-1.0, 5.0), lambda: r.failure_probability(-1.0, 5.0),
    lambda: r.failure_probability(1.0, -5.0), lambda: r.mtbf_from_probability(1.0, 5.0),
    lambda: r.mtbf_from_probability(0.0, 5.0), lambda: r.mtbf_from_probability(0.5, 0.0),
    lambda: r.young_interval(-1.0, 5.0), lambda: r.young_interval(1.0, 0.0), lambda: r.daly_interval(-1.0, 5.0),
    lambda: r.daly_interval(1.0, 0.0), lambda: r.optimal_interval(-1.0, 5.0), lambda: r.optimal_interval(1.0, 0.0),
    lambda: r.goodput(0.0, write=1.0, mtbf=5.0, restart=1.0), lambda: r.goodput(1.0, write=-1.0, mtbf=5.0, restart=1.0),
    lambda: r.goodput(1.0, write=1.0, mtbf=0.0, restart=1.0), lambda: r.goodput(1.0, write=1.0, mtbf=5.0, restart=-1.0),
    lambda: r.goodput(1.0, write=1.0, mtbf=5.0, restart=1.0, drain=-1.0),
    lambda: r.goodput(1.0, write=1.0, mtbf=5.0, restart=1.0, drain=2.5),
    lambda: r.ettr(0.0, write=1.0, mtbf=5.0, restart=1.0),
    lambda: r.multilevel_ettr([1.0, 0.0], write=[1.0, 1.0], mtbf=[5.0, 5.0], restart=[1.0, 1.0]),
    lambda: r.simulate_goodput(1.0, write=1.0, mtbf=5.0, restart=-1.0),
    lambda: r.simulate_goodput(1.0, write=1.0, mtbf=5.0, restart=1.0, work=0.0),
    lambda: r.simulate_goodput(1.0, write=1.0, mtbf=5.0, restart=1.0, work=10.0, runs=1),
    lambda: r.storage_bandwidth(0.0, interval=1.0, overhead=0.1),
    lambda: r.storage_bandwidth(1.0, interval=0.0, overhead=0.1),
    lambda: r.storage_bandwidth(1.0, interval=1.0, overhead=0.0),
    lambda: r.replica_loss_probability(7, 2, 1), lambda: r.replica_loss_probability(8, 2, 9),
    lambda: r.replica_loss_probability(8, 2, -1), lambda: r.replica_loss_probability(8, 0, 1),
    lambda: r.expected_max(0, mean=1.0, std=0.1), lambda: r.expected_max(2, mean=1.0, std=-0.1),
    lambda: r.expected_max(2, mean=-1.0, std=0.1, distribution="lognormal"),
    lambda: r.spares(0, mtbf=1.0, repair=1.0, risk=0.1), lambda: r.spares(1, mtbf=0.0, repair=1.0, risk=0.1),
    lambda: r.spares(1, mtbf=1.0, repair=0.0, risk=0.1), lambda: r.spares(1, mtbf=1.0, repair=1.0, risk=0.0),
    lambda: r.spares(1, mtbf=1.0, repair=1.0, risk=1.0), lambda: r.spares(1, mtbf=1.0, repair=1.0, risk=0.1, burst=0),
    lambda: r.spares(1, mtbf=1.0, repair=1.0, risk=0.1, burst=1.5),
])
def test_bad_input_is_named(call):
    with pytest.raises(ValueError, match=r"=.*must"):
        call()


@pytest.mark.parametrize(("call", "words"), [
    (lambda: extremes.positive(good=1.0, mtbf=0.0), "mtbf=0.0: must be > 0"),
    (lambda: extremes.positive(mtbf=None), "mtbf=None: must be > 0"),
    (lambda: extremes.not_negative(good=0.0, write=-1), "write=-1: must be >= 0"),
    (lambda: extremes.between_zero_and_one(risk=1), "risk=1: must be between 0 and 1"),
    (lambda: r.expected_max(0.5, mean=1.0, std=0.1), "n=0.5: must be >= 1"),
    (lambda: r.expected_max(2, mean=1.0, std=-0.1), "std=-0.1: must be >= 0"),
])
def test_bad_input_is_named_in_full(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == words


def test_unknown_distribution_lists_near_names():
    with pytest.raises(LookupError, match="normal"):
        r.expected_max(8, mean=1.0, std=0.1, distribution="norml")
