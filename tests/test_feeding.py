"""Feeding: formulas against hand-made cases, the queue against a brute-force simulation, data against its sources."""

import math
import random

import numpy as np
import pytest
from clusterlab import feeding
from clusterlab.feeding import (
    busy_share,
    checkpoint_bytes,
    cores_needed,
    feed_rate,
    memory_traffic,
    required_bandwidth,
    restart_bytes,
    step_seconds,
    storage,
    storages,
    waits,
    workers_needed,
    workload,
    workloads,
)
from clusterlab.memory import FP32, MIXED_16, MIXED_18, PURE_16
from hypothesis import given
from hypothesis import strategies as st

SECONDS = st.integers(0, 12)


def queue(loads, step, workers, ahead, started=0):
    """The same queue, second by second with whole numbers: workers look for work, the loop takes what is ready."""
    orders = {w: [i for i in range(len(loads)) if i % workers == w] for w in range(workers)}
    until, current, ready = [started] * workers, [None] * workers, set()
    taken, waited, computing, asked, now = 0, [], 0, 0, 0
    while taken < len(loads):
        moved = True
        while moved:                                        # whatever can happen in this second, happens
            moved = False
            for w in range(workers):
                if current[w] is not None and until[w] <= now:
                    ready.add(current[w])
                    current[w], moved = None, True
                if current[w] is None and until[w] <= now and orders[w] and orders[w][0] < taken + ahead * workers:
                    current[w] = orders[w].pop(0)
                    until[w], moved = now + loads[current[w]], True
            if taken < len(loads) and taken in ready and computing <= now:
                waited.append(now - asked)
                taken, computing, asked, moved = taken + 1, now + step, now + step, True
        now += 1
    return waited


@given(st.lists(SECONDS, min_size=1, max_size=15), SECONDS, st.integers(1, 4), st.integers(1, 3), SECONDS)
def test_waits_are_those_of_a_queue(loads, step, workers, ahead, started):
    assert waits(loads, step, workers=workers, ahead=ahead, started=started).tolist() == queue(
        loads, step, workers, ahead, started)


@given(st.lists(SECONDS, min_size=1, max_size=30), SECONDS, st.integers(1, 4), st.integers(1, 3))
def test_a_longer_queue_never_takes_longer(loads, step, workers, ahead):
    short, long = (waits(loads, step, workers=workers, ahead=a).sum() for a in (ahead, ahead + 1))
    assert long <= short


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("step, load", [(25, 60), (25, 70), (40, 10), (10, 100)])
@pytest.mark.parametrize("ahead", [1, 2, 7])
def test_the_long_run_is_the_formula(workers, step, load, ahead):
    """Steady loads settle at max(step, load / workers), whatever the queue."""
    n = 60 * workers
    found = waits([load] * (2 * n), step, workers=workers, ahead=ahead)[n:]
    assert step + found.mean() == pytest.approx(step_seconds(step, load, workers=workers))


@pytest.mark.parametrize("kw, seconds", [
    ({}, 95), ({"workers": 1}, 70), ({"workers": 2}, 35), ({"workers": 3}, 25), ({"workers": 4}, 25),
    ({"workers": 4, "cpu": 70, "cores": 1}, 70), ({"workers": 4, "cpu": 70, "cores": 2}, 35),
    ({"workers": 2, "cpu": 40, "cores": 1}, 40), ({"workers": 1, "cpu": 40, "cores": 4}, 70),
    ({"cpu": 70, "cores": 1}, 95), ({"workers": 4, "cpu": 70}, 25)])
def test_step_by_hand(kw, seconds):
    assert step_seconds(25, 70, **kw) == seconds


@given(st.floats(0.01, 10), st.floats(0, 10))
def test_workers_needed_are_enough_and_no_more(step, load):
    workers = workers_needed(step, load)
    assert step_seconds(step, load, workers=workers) <= step * (1 + 1e-9)
    assert workers == 1 or step_seconds(step, load, workers=workers - 1) > step


@pytest.mark.parametrize("step, load, workers", [(0.1, 0.3, 3), (0.1, 0.31, 4), (25, 70, 3), (25, 75, 3), (25, 76, 4), (1, 0, 1)])
def test_workers_by_hand(step, load, workers):
    """0.3 / 0.1 is a little more than 3 in floating point, and three workers are enough."""
    assert workers_needed(step, load) == workers


def test_workloads_are_mlperfs():
    """Bytes a second of one H100, from the numbers in the configurations: 7 x 146,600,628 / 0.323 and so on."""
    assert {name: round(one.bandwidth / 1e6) for name, one in workloads().items()} == {
        "3D U-Net": 3177, "ResNet-50": 205, "CosmoFlow": 808}
    assert workload("ResNet-50").samples_per_second == pytest.approx(1785.7, abs=0.05)
    assert workload("ResNet-50").decoded == 224 * 224 * 3
    for one in workloads().values():
        assert one.bandwidth == pytest.approx(one.samples_per_second * one.sample)
        assert "https://" in one.source and one.date


def test_storages_are_as_published():
    """6.6 TiB/s of 180 nodes with two cards of 200 Gbit/s; 2 and 7 TB/s of 7,500 servers; 48 GB/s of eight drives."""
    assert storage("3FS").read == pytest.approx(6.6 * 2**40)
    assert storage("3FS").port == 2 * 200e9 / 8
    assert storage("3FS").per_unit / 2**30 == pytest.approx(37.5, abs=0.05)
    assert (storage("Tectonic").read, storage("Tectonic").peak) == (2e12, 7e12)
    assert storage("Tectonic").per_unit == pytest.approx(267e6, rel=2e-3)
    assert storage("8 local SSDs").per_unit == 6e9
    assert all("https://" in one.source and one.date for one in storages().values())


def test_required_bandwidth_by_hand():
    assert required_bandwidth(10, 3, 2) == 15
    assert required_bandwidth(10, 3, 2, accelerators=4) == 60


def test_cores_by_hand():
    assert cores_needed(2000, 0.005) == 10
    assert cores_needed(0, 1) == 0


@pytest.mark.parametrize("recipe, each", [(MIXED_16, 14), (MIXED_18, 14), (FP32, 12), (PURE_16, 6)])
def test_a_checkpoint_keeps_no_gradients(recipe, each):
    assert checkpoint_bytes(1e9, recipe) == each * 1e9


def test_bloom_is_within_the_rounding_of_its_report():
    """176 billion parameters were 2.3 TB on disk: 14 bytes each are 2.24 TiB, or 2.46 TB."""
    assert checkpoint_bytes(176.2e9, MIXED_16) / 2**40 == pytest.approx(2.3, abs=0.06)


def test_restart_adds_up_rank_by_rank():
    """Every replica reads its weights; the shards of masters and moments add up to one copy."""
    parameters, replicas = 960, 8
    ranks = sum(parameters * MIXED_16.weight + parameters * (MIXED_16.master + MIXED_16.moments) / replicas
                for _ in range(replicas))
    assert restart_bytes(parameters, MIXED_16, replicas) == ranks
    assert restart_bytes(parameters, MIXED_16, 1) == checkpoint_bytes(parameters, MIXED_16)
    assert restart_bytes(parameters, MIXED_16, replicas, share=True) == checkpoint_bytes(parameters, MIXED_16)


def test_busy_share_by_hand():
    assert busy_share(100, 10, 40) == 0.25
    assert busy_share(100, 10, 10) == 1
    with pytest.raises(ValueError, match="longer than the interval"):
        busy_share(100, 10, 9.9)


def test_crossings_are_counted_copy_by_copy():
    """A transfer by a drive, a driver or a GPU crosses the host's memory once, a core's or a driver's copy twice."""
    drive, copy, gpu = 1, 2, 1
    counted = {"direct": 0, "pinned": drive + gpu, "buffered": drive + copy + gpu, "pageable": drive + copy + copy + gpu}
    assert {path: memory_traffic(1, path) for path in feeding.CROSSINGS} == counted


def test_the_narrowest_part_binds():
    assert feed_rate("pageable", storage=100, ports=90, memory=480) == ("memory", 80)
    assert feed_rate("pageable", storage=70, ports=90, memory=480) == ("storage", 70)
    assert feed_rate("pinned", storage=100, ports=90, memory=480) == ("ports", 90)
    assert feed_rate("direct", storage=100, ports=200, memory=1) == ("storage", 100)
    rng = random.Random(0)
    for _ in range(50):
        wide = {name: rng.uniform(1, 100) for name in ("storage", "ports", "memory")}
        rates = [feed_rate(path, **wide)[1] for path in ("direct", "pinned", "buffered", "pageable")]
        assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("call, error, message", [
    (lambda: workload("unet"), LookupError, "3D U-Net"), (lambda: storage("GPFS"), LookupError, "Tectonic"),
    (lambda: required_bandwidth(0, 1, 1), ValueError, "sample=0"), (lambda: required_bandwidth(1, 0, 1), ValueError, "batch=0"),
    (lambda: required_bandwidth(1, 1, 0), ValueError, "step=0"),
    (lambda: required_bandwidth(1, 1, 1, 0), ValueError, "accelerators=0"),
    (lambda: step_seconds(-1, 1), ValueError, "step=-1"), (lambda: step_seconds(1, -1), ValueError, "load=-1"),
    (lambda: step_seconds(1, 1, workers=-1), ValueError, "workers=-1"), (lambda: step_seconds(1, 1, cpu=-1), ValueError, "cpu=-1"),
    (lambda: step_seconds(1, 1, cpu=2), ValueError, "cpu=2"), (lambda: step_seconds(1, 1, workers=1, cores=0), ValueError, "cores=0"),
    (lambda: workers_needed(0, 1), ValueError, "step=0"), (lambda: workers_needed(1, -1), ValueError, "load=-1"),
    (lambda: cores_needed(-1, 1), ValueError, "samples_per_second=-1"), (lambda: cores_needed(1, -1), ValueError, "cpu_seconds=-1"),
    (lambda: waits([1], -1, workers=1), ValueError, "step=-1"), (lambda: waits([-1], 1, workers=1), ValueError, "loads"),
    (lambda: waits([[1]], 1, workers=1), ValueError, "loads"), (lambda: waits([1], 1, workers=0), ValueError, "workers=0"),
    (lambda: waits([1], 1, workers=1, ahead=0), ValueError, "ahead=0"),
    (lambda: waits([1], 1, workers=1, started=-1), ValueError, "started=-1"),
    (lambda: checkpoint_bytes(0, FP32), ValueError, "parameters=0"), (lambda: restart_bytes(0, FP32, 1), ValueError, "parameters=0"),
    (lambda: restart_bytes(1, FP32, 0), ValueError, "replicas=0"),
    (lambda: busy_share(0, 1, 1), ValueError, "size=0"), (lambda: busy_share(1, 0, 1), ValueError, "bandwidth=0"),
    (lambda: busy_share(1, 1, 0), ValueError, "interval=0"),
    (lambda: memory_traffic(1, "gds"), LookupError, "direct"), (lambda: memory_traffic(-1, "pinned"), ValueError, "rate=-1"),
    (lambda: feed_rate("pinned", storage=0, ports=1, memory=1), ValueError, "storage=0"),
    (lambda: feed_rate("pinned", storage=1, ports=0, memory=1), ValueError, "ports=0"),
    (lambda: feed_rate("direct", storage=1, ports=1, memory=0), ValueError, "memory=0")])
def test_bad_input_names_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_zero_is_allowed_where_it_means_something():
    assert step_seconds(0, 0) == 0
    assert step_seconds(0, 5, workers=5) == 1
    assert memory_traffic(0, "pinned") == 0
    assert waits([], 1, workers=1).size == 0
    assert waits([0, 0], 0, workers=1).tolist() == [0, 0]
    assert math.isfinite(feed_rate("direct", storage=1, ports=2, memory=3)[1])
    assert np.isscalar(busy_share(1, 2, 3))
