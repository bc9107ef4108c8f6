"""Time to quality: the counted steps against the same training written in numpy, and what the experiment claims."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from clusterlab import benchmarks
from clusterlab.run import quality


def steps_in_numpy(batch, seed, target=quality.TARGET):
    """The same network, data and learning rate; gradients written out by hand."""
    w1, b1, w2, b2 = (p.numpy().copy() for p in quality.weights(100 + seed))
    (x, y), (kept_x, kept_y) = (tuple(t.numpy() for t in quality.data(*which)) for which in ((2, 2**16), (3, 2**11)))
    rng = np.random.default_rng(1000 + seed)

    def shares(inputs):
        hidden = np.tanh(inputs @ w1 + b1)
        scores = hidden @ w2 + b2
        scores = np.exp(scores - scores.max(1, keepdims=True))
        return hidden, scores / scores.sum(1, keepdims=True)

    for step in range(1, 2000):
        chosen = rng.integers(len(x), size=batch)
        hidden, error = shares(x[chosen])
        error[np.arange(batch), y[chosen]] -= 1
        error /= batch
        inner = (error @ w2.T) * (1 - hidden**2)
        rate = quality.RATES[batch]
        w2 -= rate * hidden.T @ error
        b2 -= rate * error.sum(0)
        w1 -= rate * x[chosen].T @ inner
        b1 -= rate * inner.sum(0)
        loss = -np.log(shares(kept_x)[1][np.arange(len(kept_y)), kept_y]).mean()
        if loss < target:
            return step


@pytest.mark.parametrize("batch, seed", [(128, 0), (512, 1), (2048, 2)])
def test_steps_equal_those_of_numpy(batch, seed):
    run = quality.reach(batch, seed=seed)
    assert (run.batch, run.steps) == (batch, steps_in_numpy(batch, seed))
    assert run.samples == batch * run.steps and run.seconds > 0


def test_labels_are_drawn_with_the_teachers_chances():
    x, y = quality.data(2, 2**16)
    chances = quality.logits(quality.weights(seed=7, hidden=8, scale=4.0), x).softmax(-1)
    drawn = torch.stack([(y == label).double().mean() for label in range(quality.CLASSES)])
    assert torch.allclose(drawn, chances.mean(0), atol=0.006)                            # three sigmas of 65,536 draws


def test_a_larger_batch_needs_fewer_steps_and_more_samples():
    few, many = quality.reach(128), quality.reach(2048)
    assert many.steps < few.steps and many.samples > few.samples


@pytest.mark.slow
def test_a_learning_rate_off_the_tuned_one_is_slower():
    tuned = quality.score([quality.reach(512, seed=seed) for seed in range(3)])
    for factor in (0.5, 2 ** 0.5):
        other = [quality.reach(512, seed=seed, rate=factor * quality.RATES[512]) for seed in range(3)]
        assert quality.score(other) > tuned


def test_scores_and_rates():
    runs = [quality.Reached(4, steps, seconds) for steps, seconds in ((10, 3.0), (20, 2.0), (60, 1.0))]
    assert (quality.score(runs), quality.score(runs, "samples"), quality.score(runs, "seconds")) == (20, 80, 2.0)
    rates = quality.samples_per_second([128, 512], laps=3)
    assert set(rates) == {128, 512} and min(rates.values()) > 0
    assert quality.straight(128, 4) > 0


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="batch=100: a learning rate is known for 32, 128"):
        quality.Student(100)
    assert quality.Student(100, rate=0.5).rate == 0.5
    with pytest.raises(RuntimeError, match="batch 128: the loss is not below 1.15 after 3 steps"):
        quality.reach(128, most=3)


@pytest.mark.slow
def test_the_law_forecasts_the_largest_batch():
    """The page's forecast: constants from 32 and 128, within 15 % for 512 and 2,048."""
    counted = {batch: quality.score(quality.runs(batch)) for batch in quality.RATES}
    least, critical = benchmarks.fit_critical_batch(32, counted[32], 128, counted[128])
    for batch in (512, 2048):
        assert counted[batch] == pytest.approx(
            benchmarks.steps_to_quality(batch, least_steps=least, critical_batch=critical), rel=0.15)
