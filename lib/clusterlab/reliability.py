"""Reliability: how often a cluster fails, and what that costs a training job.

Everything rests on one picture. Failures cut the wall clock into gaps X (exponential with mean M, the MTBF).
In a gap the job restarts (R), then banks one interval of work tau after every write delta, and what it has not
banked when the next failure comes is lost. So a gap banks

    floor((X - R) / (tau + delta)) intervals,      never less than none,

and goodput, its optimum, the first-order rules of Young, Daly and Kokolis et al., and the simulation below all
follow from it. Times are seconds, rates are per second; arguments are floats or arrays and broadcast.
"""

from math import sqrt

import numpy as np

from clusterlab.extremes import (
    DISTRIBUTIONS,
    between_zero_and_one,
    expected_max,
    not_negative,
    plain,
    positive,
    replica_loss_probability,
    spares,
)

__all__ = ["DISTRIBUTIONS", "Simulated", "combined_mtbf", "daly_interval", "ettr", "expected_failures", "expected_max",
           "failure_probability", "goodput", "mtbf_from_probability", "multilevel_ettr", "optimal_interval",
           "replica_loss_probability", "simulate_goodput", "spares", "storage_bandwidth", "system_mtbf",
           "young_interval"]


# How often something fails


def system_mtbf(unit_mtbf, units):
    """Mean time between failures of `units` independent parts in series: the job stops when any one fails.

    M = unit_mtbf / units. Rates add, so this holds for any mix of ages as long as each part's rate is constant.
    Parts of several kinds: :func:`combined_mtbf`. Raises ValueError unless both are > 0.
    Source: Kokolis et al. 2024, "Revisiting Reliability in Large-Scale ML Clusters", section III, arXiv:2410.21680.

    >>> day, hour = 86400.0, 3600.0
    >>> round(system_mtbf(day / 0.0065, 16384 / 8) / hour, 2)     # 6.5 failures per 1,000 node-days, 2,048 nodes
    1.8
    """
    positive(unit_mtbf=unit_mtbf, units=units)
    return plain(np.true_divide(unit_mtbf, units))


def combined_mtbf(*mtbfs):
    """MTBF of several kinds of failure together: rates add, M = 1 / sum(1 / M_i).

    With it a node's own faults and those that take several nodes at once (a switch, a rack's power) make one clock.
    Raises ValueError unless every value is > 0.

    >>> combined_mtbf(30.0, 60.0)
    20.0
    """
    for value in mtbfs:
        positive(mtbf=value)
    return plain(np.asarray(1.0 / sum(np.true_divide(1.0, value) for value in mtbfs)))


def expected_failures(seconds, unit_mtbf, units=1):
    """Failures to expect in a window: seconds * units / unit_mtbf, the mean of a Poisson count.

    Give arrays of `unit_mtbf` and `units`, one entry a component, and sum for the machine.
    Raises ValueError for a negative window or a non-positive MTBF or count.

    >>> expected_failures(54 * 24, unit_mtbf=50_666, units=16_384).__round__()    # hours; Llama 3 counted 419
    419
    """
    not_negative(seconds=seconds)
    return plain(np.asarray(seconds / system_mtbf(unit_mtbf, units)))


def failure_probability(mtbf, seconds):
    """Probability of at least one failure within `seconds`: 1 - exp(-seconds / mtbf).

    Raises ValueError unless mtbf > 0 and seconds >= 0.

    >>> round(failure_probability(mtbf=3.0, seconds=24.0), 4)     # an MTBF of 3 h, a day
    0.9997
    """
    positive(mtbf=mtbf)
    not_negative(seconds=seconds)
    return plain(-np.expm1(-np.true_divide(seconds, mtbf)))


def mtbf_from_probability(probability, seconds):
    """The MTBF behind "fails with this probability in this time": -seconds / ln(1 - probability).

    The inverse of :func:`failure_probability`. Raises ValueError unless 0 < probability < 1 and seconds > 0.

    >>> node = mtbf_from_probability(0.01, 86400.0)               # 1 % a day, 10,000 GPUs in nodes of 8
    >>> round(expected_failures(86400.0, node, 10_000 / 8), 1)    # failures a day
    12.6
    """
    positive(seconds=seconds)
    between_zero_and_one(probability=probability)
    return plain(-np.true_divide(seconds, np.log1p(-np.asarray(probability, float))))


# How often to write a checkpoint


def young_interval(write, mtbf):
    """Young's first-order interval between checkpoints, sqrt(2 * write * mtbf).

    Raises ValueError unless write >= 0 and mtbf > 0.
    Source: Young 1974, "A first order approximation to the optimum checkpoint interval", CACM 17(9):530.

    >>> young_interval(write=300.0, mtbf=86400.0)
    7200.0
    """
    not_negative(write=write)
    positive(mtbf=mtbf)
    return plain(np.sqrt(2.0 * np.asarray(write, float) * mtbf))


def daly_interval(write, mtbf):
    """Daly's higher-order interval of work between checkpoints.

    sqrt(2 d M) * (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d   for d < 2M, else M, with d the write and M the MTBF.
    The write is subtracted: Young's time runs from checkpoint to checkpoint, Daly's counts the work alone.
    Raises ValueError unless write >= 0 and mtbf > 0.
    Source: Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    Future Generation Computer Systems 22(3), eq. 37.

    >>> round(daly_interval(write=4.0, mtbf=8 * 60.0), 2)        # minutes in, minutes out
    59.33
    """
    not_negative(write=write)
    positive(mtbf=mtbf)
    write, ratio = np.asarray(write, float), np.true_divide(write, 2.0 * np.asarray(mtbf, float))
    interval = np.sqrt(2.0 * write * mtbf) * (1.0 + np.sqrt(ratio) / 3.0 + ratio / 9.0) - write
    return plain(np.where(ratio < 1.0, interval, mtbf))


def optimal_interval(write, mtbf):
    """The interval of work that maximises :func:`goodput` exactly: M * (1 + W(-exp(-1 - write / M))).

    W is Lambert's function; here its equation u - 1 + exp(-u) = write / M is solved by Newton's method, and the
    interval is M * (1 - exp(-u)). **The restart time drops out**: a gap loses its first R seconds whatever the
    interval, and because exponential gaps have no memory what remains after R looks like a fresh gap. R scales
    goodput by exp(-R / M) and moves no optimum. (For failures with a memory it would.)
    Raises ValueError unless write >= 0 and mtbf > 0. Source: Daly 2006, solved instead of expanded in a series.

    >>> round(optimal_interval(write=4.0, mtbf=8 * 60.0), 2)
    59.33
    """
    not_negative(write=write)
    positive(mtbf=mtbf)
    target = np.true_divide(write, np.asarray(mtbf, float))
    u = target + np.sqrt(2.0 * target)  # never below the root, so Newton descends to it without a guard
    for _ in range(12):
        small = u * u / 2.0 * (1.0 - u / 3.0 * (1.0 - u / 4.0 * (1.0 - u / 5.0)))  # u - 1 + exp(-u) would cancel
        excess = np.where(u < 1e-2, small, u + np.expm1(-u)) - target
        u = u - excess / np.where(u > 0, -np.expm1(-u), 1.0)
    return plain(-np.expm1(-u) * mtbf)


def goodput(interval, *, write, mtbf, restart, drain=0.0):
    """Long-run share of wall-clock time that becomes banked work, exactly, for exponential failures.

    tau * exp(-(R + drain) / M) / (M * (exp((tau + delta) / M) - 1))

    interval  tau, seconds of work between checkpoints;  write  delta, seconds the job stands still for one;
    mtbf      M of the whole job;  restart  R, from the failure to the first new step: detect, reschedule, load.
              A failure may strike during write and restart as well.
    drain     seconds an asynchronous checkpoint needs, after the job went on, until it can be restored. It costs as
              much as restart time and, like it, does not move the best interval: `write` is the blocking part alone.

    The mean of floor((X - R - drain) / (tau + delta)) is the sum over k >= 1 of P(X > R + drain + k (tau + delta)),
    a geometric series; times tau over M gives the formula. Without checkpoints take the whole job as the interval
    and write=0: restarting alone saves nothing. Raises ValueError for an interval or MTBF <= 0, negative times, or a
    drain longer than interval + write (the writes would pile up). Source: Daly 2006 (the complete cost function), seen from the gaps.

    >>> round(goodput(3600.0, write=60.0, mtbf=3 * 3600.0, restart=600.0), 3)
    0.782
    """
    _check_job(interval, write, mtbf, restart, drain)
    cycle = np.true_divide(interval + np.asarray(write, float), mtbf)
    rate = np.true_divide(interval, mtbf)
    lost = np.true_divide(restart + np.asarray(drain, float), mtbf)
    return plain(rate * np.exp(-lost - cycle) / -np.expm1(-cycle))


def _check_job(interval, write, mtbf, restart, drain):
    positive(interval=interval, mtbf=mtbf)
    not_negative(write=write, restart=restart, drain=drain)
    if np.any(np.asarray(drain) > np.asarray(interval) + np.asarray(write)):
        raise ValueError(f"drain={drain!r}: must be at most interval + write, or unfinished checkpoints pile up")


def ettr(interval, *, write, mtbf, restart):
    """Expected training time ratio, the first-order form of :func:`goodput`.

    (1 - (restart + interval / 2) / mtbf) / (1 + write / interval); negative once failures outrun the job.
    Several levels of checkpoints (memory, then storage): give arrays with one entry a level and use
    :func:`multilevel_ettr`. Raises ValueError as goodput does.
    Source: Kokolis et al. 2024, section III, arXiv:2410.21680 (mtbf = 1 / (N_nodes * r_f); no time in the queue).

    >>> round(ettr(3600.0, write=60.0, mtbf=3 * 3600.0, restart=600.0), 3)
    0.765
    """
    _check_job(interval, write, mtbf, restart, 0.0)
    lost = np.true_divide(restart + np.true_divide(interval, 2.0), mtbf)
    return plain(np.asarray((1.0 - lost) / (1.0 + np.true_divide(write, interval))))


def multilevel_ettr(interval, *, write, mtbf, restart):
    """Expected training time ratio with several levels of checkpoints; axis 0 of each argument is the level.

    (1 - sum((R_i + tau_i / 2) / M_i)) / (1 + sum(delta_i / tau_i)): failures of kind i (mean M_i apart) can be
    mended from level i, so a process crash costs the last copy in memory, a lost node the last one in storage.
    To first order the levels do not see each other and each has its own :func:`young_interval`. Raises ValueError
    as goodput does. Source: Moody et al. 2010, "Design, modeling and evaluation of a scalable multi-level
    checkpointing system", SC10, to first order.

    >>> round(multilevel_ettr([60.0, 3600.0], write=[0.5, 60.0], mtbf=[14400.0, 43200.0], restart=[60.0, 600.0]), 3)
    0.915
    """
    _check_job(interval, write, mtbf, restart, 0.0)
    interval, write, mtbf, restart = (np.asarray(x, float) for x in (interval, write, mtbf, restart))
    lost = ((restart + interval / 2.0) / mtbf).sum(axis=0)
    return plain(np.asarray((1.0 - lost) / (1.0 + (write / interval).sum(axis=0))))


class Simulated(float):
    """A simulated goodput, a float, with its 99 % confidence interval ``low``..``high`` and each run in ``samples``."""

    def __new__(cls, mean, low, high, samples):
        self = super().__new__(cls, mean)
        self.low, self.high, self.samples = low, high, samples
        return self


def simulate_goodput(interval, *, write, mtbf, restart, drain=0.0, work=54 * 86400.0, runs=1000, seed=0):
    """Monte Carlo of :func:`goodput`: `runs` jobs of `work` useful seconds each, failure by failure.

    Each failure gap is drawn and walked as the module describes; nothing of the closed form is used. The last
    interval may be a short one, and the job ends when its work is done, its final checkpoint written.
    The value is work over mean wall-clock time (the mean of ratios would be biased), its interval from the spread of
    the runs. Returns a :class:`Simulated`. Raises ValueError as goodput does, and unless work > 0 and runs >= 2.

    >>> job = dict(write=60.0, mtbf=3 * 3600.0, restart=600.0)
    >>> result = simulate_goodput(3600.0, **job, runs=500, seed=0)
    >>> result.low < goodput(3600.0, **job) < result.high
    True
    """
    _check_job(interval, write, mtbf, restart, drain)
    positive(work=work)
    if runs < 2:
        raise ValueError(f"runs={runs!r}: must be at least 2, a spread needs two")
    rng = np.random.default_rng(seed)
    cycle = interval + write
    full, rest = divmod(work, interval)
    length = full * cycle + (rest + write if rest > 0 else 0.0)  # of the job without failures
    banked = np.zeros(runs)  # intervals already safe
    wall = np.zeros(runs)
    alive = np.arange(runs)
    ready = 0.0  # the first gap starts without a restart
    while alive.size:
        gap = mtbf * rng.standard_exponential(alive.size)
        needed = ready + length - banked[alive] * cycle
        ends = gap >= needed
        wall[alive] += np.where(ends, needed, gap)
        banked[alive] += np.maximum(np.floor((gap - ready - drain) / cycle), 0.0)
        alive = alive[~ends]
        ready = restart
    mean = float(work / wall.mean())
    half = float(2.576 * mean * wall.std(ddof=1) / wall.mean() / sqrt(runs))  # the 99.5th centile of a normal
    return Simulated(mean, mean - half, mean + half, work / wall)


def storage_bandwidth(size, *, interval, overhead):
    """Bytes a second that storage must take so that writing `size` costs at most `overhead` of the work's time.

    size / (overhead * interval), with a write that blocks. With Young's interval sqrt(2 w M) the overhead is
    sqrt(w / 2M): halving it needs four times the bandwidth. Raises ValueError unless all are > 0.

    >>> storage_bandwidth(5.29e12, interval=1800.0, overhead=0.01) / 1e9      # 405B states, every half hour, GB/s
    293.8888888888889
    """
    positive(size=size, interval=interval, overhead=overhead)
    return plain(np.true_divide(size, np.asarray(overhead, float) * interval))
