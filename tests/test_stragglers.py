"""Delays that are known beforehand, against the clock; and what each kind of checkpoint leaves behind."""

from dataclasses import replace

import numpy as np
import pytest
from clusterlab.extremes import expected_max
from clusterlab.run import delayed_steps, launch, save_while_training, stragglers
from clusterlab.run.saving import KINDS, SHAPE


def test_everybody_waits_for_the_slow_rank():
    even, slow = delayed_steps(3, steps=4, pace=0.001), delayed_steps(3, slow={1: 0.2}, steps=4, pace=0.001)
    assert slow.fastest >= 0.2 + 18 * 0.001
    assert slow.alone == pytest.approx(even.alone + 0.2 / 3)        # had they not waited
    assert slow.step > even.fastest + 0.1
    assert slow.drawn == pytest.approx(0.2 + 0.001) and slow.apart < slow.drawn / 2


def test_clocks_of_ranks_that_do_not_wait_are_as_far_apart_as_their_delays(monkeypatch):
    """Each rank trains alone, in a world of one; a check on the clocks that this passes would prove nothing."""
    def alone(fn, ranks, job, delays, timeout):
        return [launch(fn, 1, replace(job, batch=job.batch // ranks, micro_batch=job.batch // ranks), delays[:, [rank]])[0]
                for rank in range(ranks)]

    monkeypatch.setattr(stragglers, "launch", alone)
    run = delayed_steps(2, slow={1: 0.2}, steps=3, pace=0.001)
    assert run.drawn == pytest.approx(0.2) and run.apart > run.drawn / 2


def test_the_draw_of_jitter_comes_from_the_expected_maximum():
    draws = np.random.default_rng(0).exponential(1.0, (200_000, 8))
    assert draws.max(axis=1).mean() == pytest.approx(expected_max(8, mean=1, std=1, distribution="exponential"), rel=0.01)
    run = delayed_steps(2, jitter=0.03, steps=6, seed=4, pace=0.0)
    drawn = np.random.default_rng(4).exponential(1.0, (6, 2)) * 0.03
    assert (run.alone, run.slowest) == pytest.approx((drawn.mean(), drawn.max(axis=1).mean()))
    assert run.step > 0.97 * run.slowest and run.over == run.step - run.slowest


@pytest.mark.parametrize("bad, named", [
    ({"jitter": -0.1}, "jitter=-0.1"), ({"slow": {2: 0.1}}, "rank 2"), ({"slow": {0: -1.0}}, "slow"),
    ({"steps": 0}, "steps=0"),
])
def test_bad_delays_are_named(bad, named):
    with pytest.raises(ValueError, match=named):
        delayed_steps(2, **bad)


def test_each_kind_of_checkpoint_leaves_what_it_promises():
    runs = save_while_training(2, count=1, every=1)
    assert list(runs) == list(KINDS)
    tensors = 12 * SHAPE.parameters() / 2
    for kind in KINDS[1:]:
        assert tensors <= runs[kind].bytes < 1.03 * tensors, kind
    assert {kind: run.at_end for kind, run in runs.items()} == {
        "none": False, "storage": True, "background": True, "memory": False}
    assert runs["storage"].at_return and not runs["background"].at_return
    assert runs["background"].behind > 0 == runs["storage"].behind and runs["none"].blocked == 0


def test_an_unknown_kind_of_checkpoint_is_named():
    with pytest.raises(ValueError, match="tape"):
        save_while_training(2, kinds=("storage", "tape"))
