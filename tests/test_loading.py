"""A loop and its loader, for real: what may be longer on a busy machine, and what may not be shorter on any."""

import sys

import pytest
from clusterlab.feeding import step_seconds
from clusterlab.run.loading import copies, decode_seconds, feed


@pytest.mark.parametrize("kw", [{}, {"workers": 1}, {"workers": 2}])
def test_a_starved_loop_is_as_slow_as_its_loader(kw):
    seen = feed(0.010, 0.060, laps=4, **kw)
    model = step_seconds(0.010, 0.060, **kw)
    assert seen.total >= seen.steps * model                         # no loader delivers more than its workers load
    assert seen.least <= seen.step < 2 * model
    assert seen.load >= 0.060 and seen.cpu < 0.030                  # they wait and leave the core
    assert seen.first >= 0.060


def test_a_fed_loop_does_not_wait():
    seen = feed(0.050, 0.010, workers=1, laps=3)
    assert 0.050 <= seen.step < 0.100
    assert seen.waited < 0.025


@pytest.mark.skipif(sys.platform != "linux", reason="workers cannot be kept to one core")
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_that_compute_share_a_core(workers):
    seen = feed(0.001, 0.040, workers=workers, kind="compute", cores=1, ahead=1, laps=2)
    assert seen.total >= seen.steps * 0.040
    assert 0.040 <= seen.cpu < 0.060


def test_the_last_batch_ends_the_workers(nothing_left):
    assert feed(0, 0, workers=2, laps=1).steps == 9


@pytest.mark.parametrize("kw, message", [
    ({"step": -1}, "step=-1"), ({"load": -1}, "load=-1"), ({"workers": -1}, "workers=-1"), ({"ahead": 0}, "ahead=0"),
    ({"size": 0}, "size=0"), ({"laps": 0}, "laps=0"), ({"cores": 0}, "cores=0"), ({"kind": "read"}, "kind='read'")])
def test_bad_input_names_the_argument(kw, message):
    with pytest.raises(ValueError, match=message):
        feed(**{"step": 0, "load": 0} | kw)


def test_a_second_copy_costs_time():
    took = copies(2**24)
    assert 0 < took["direct"] < took["bounce"]
    with pytest.raises(ValueError, match="size=0"):
        copies(0)


def test_an_image_is_near_the_size_asked_for():
    sizes = [decode_seconds(size, repeats=1)[0] for size in (60_000, 115_000)]
    assert sizes[0] < sizes[1]
