"""The waterfall against a job walked failure by failure, and the levers against the goodput they promise."""

import numpy as np
import pytest
from clusterlab import reliability as r
from clusterlab.waterfall import LEVERS, Operation, improved, needed, waterfall
from hypothesis import given, settings
from hypothesis import strategies as st

times = st.floats(1.0, 2000.0)
operations = st.builds(Operation, unit_mtbf=st.floats(1e5, 1e8), units=st.floats(1, 1e4), write=times, detect=times,
                       restart=times)


def walk(job, failures, seed=0):
    """Seconds of each part, gap by gap: a clock with one hand, nothing of the formulas."""
    work, mtbf = job.work, job.mtbf
    rng, parts = np.random.default_rng(seed), dict.fromkeys(("detect", "restart", "checkpoint", "lost", "useful"), 0.0)
    for _ in range(failures):
        gap = left = rng.exponential(mtbf)
        for name, seconds in (("detect", job.detect), ("restart", job.restart)):
            parts[name] += min(left, seconds)
            left -= min(left, seconds)
        cycles = int(max(0.0, gap - job.detect - job.restart - job.drain) // (work + job.write))
        parts["useful"] += cycles * work
        parts["checkpoint"] += cycles * job.write
        parts["lost"] += left - cycles * (work + job.write)
    total = sum(parts.values())
    return {name: seconds / total for name, seconds in parts.items()}


@pytest.mark.parametrize("job", [
    Operation(3e7, 2048, write=60.0, detect=240.0, restart=900.0),
    Operation(3e7, 12_500, write=5.0, detect=240.0, restart=360.0),
    Operation(3e7, 2048, write=2.0, detect=100.0, restart=500.0, drain=200.0, interval=1800.0),
])
def test_every_part_is_what_a_walk_gives(job):
    walked, said = walk(job, 20_000), waterfall(job)
    assert list(said) == list(walked)
    for name, share in said.items():
        assert share == pytest.approx(walked[name], abs=0.006), name


@settings(max_examples=40, deadline=None)
@given(operations)
def test_parts_add_up_and_none_is_negative(job):
    parts = waterfall(job)
    assert sum(parts.values()) == pytest.approx(1.0)
    assert min(parts.values()) >= -1e-12
    assert parts["useful"] == pytest.approx(
        r.goodput(job.work, write=job.write, mtbf=job.mtbf, restart=job.detect + job.restart))


@settings(max_examples=25, deadline=None)
@given(operations, st.sampled_from(LEVERS), st.floats(0.05, 0.95))
def test_the_factor_needed_meets_the_goal_and_hardly_more(job, lever, goal):
    factor = needed(job, goal, lever)
    if factor == 1.0:
        assert job.goodput >= goal
    elif np.isinf(factor):
        assert improved(job, lever, 1e9).goodput < goal
    else:
        assert improved(job, lever, factor).goodput == pytest.approx(goal, abs=1e-6)
        assert improved(job, lever, factor * 0.99).goodput < goal


@settings(max_examples=40, deadline=None)
@given(operations, st.floats(1.5, 8.0))
def test_only_ratios_of_times_matter(job, scale):
    """Everything twice as fast on a cluster that fails twice as often has the same goodput."""
    other = improved(Operation(job.unit_mtbf / scale, job.units, job.write, job.detect, job.restart), "write", scale)
    other = improved(other, "recovery", scale)
    assert other.goodput == pytest.approx(job.goodput, rel=1e-9)


def test_arrays_give_arrays():
    jobs = Operation(3e7, np.array([1024, 2048, 12_500]), write=5.0, detect=240.0, restart=360.0)
    whole = waterfall(jobs)["lost"]
    single = [waterfall(Operation(3e7, n, 5.0, 240.0, 360.0))["lost"] for n in (1024, 2048, 12_500)]
    assert np.allclose(whole, single)


def test_a_drain_longer_than_the_best_interval_sets_the_interval():
    job = Operation(3e7, 12_500, write=1.0, detect=60.0, restart=60.0, drain=600.0)
    assert job.work == 599.0 and job.goodput < Operation(3e7, 12_500, 1.0, 60.0, 60.0).goodput


@pytest.mark.parametrize("call, named", [
    (lambda: Operation(0.0, 10, 5.0, 1.0, 1.0), "unit_mtbf"),
    (lambda: Operation(1e6, 10, 0.0, 1.0, 1.0), "write"),
    (lambda: Operation(1e6, 10, 5.0, -1.0, 1.0), "detect"),
    (lambda: needed(Operation(1e6, 10, 5.0, 1.0, 1.0), 1.0, "mtbf"), "goal"),
])
def test_bad_input_is_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_an_unknown_lever_lists_the_levers():
    with pytest.raises(LookupError, match="mtbf, write, recovery, all"):
        improved(Operation(1e6, 10, 5.0, 1.0, 1.0), "luck", 2)
