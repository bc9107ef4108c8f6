"""The slowest of many, and the spares behind them: what numbers of parts do to a synchronous job.

With it the checks of arguments that this module and :mod:`clusterlab.reliability` share.
"""

from difflib import get_close_matches
from math import comb, erfc, lgamma, sqrt

import numpy as np

DISTRIBUTIONS = ("normal", "lognormal", "exponential", "uniform")


def positive(**named):
    """Raise ValueError naming the first argument that is not above 0 throughout.

    >>> positive(mtbf=0)
    Traceback (most recent call last):
    ValueError: mtbf=0: must be > 0
    """
    _require("> 0", lambda value: value > 0, named)


def not_negative(**named):
    """Raise ValueError naming the first argument that is below 0 anywhere.

    >>> not_negative(write=0)
    """
    _require(">= 0", lambda value: value >= 0, named)


def between_zero_and_one(**named):
    """Raise ValueError naming the first argument that is not strictly between 0 and 1.

    >>> between_zero_and_one(risk=0.5)
    """
    _require("between 0 and 1", lambda value: (value > 0) & (value < 1), named)


def _require(allowed, holds, named):
    for name, value in named.items():
        if not np.all(holds(np.asarray(value, float))):  # NaN holds nothing
            raise ValueError(f"{name}={value!r}: must be {allowed}")


def plain(value):
    """A float where all arguments were scalars, an array otherwise.

    >>> plain(np.float64(2.0)), plain(np.array([2.0]))
    (2.0, array([2.]))
    """
    return value.item() if np.ndim(value) == 0 else value


def expected_max(n, *, mean, std, distribution="normal"):
    """Mean of the slowest of n independent ranks, the length of a synchronous step.

    exponential (shifted, std behind a fixed start): mean + std * (H_n - 1), H_n = 1 + 1/2 + ... + 1/n
    uniform: mean + std * sqrt(3) * (n - 1) / (n + 1)
    normal, lognormal: the integral of x(z) * n * phi(z) * Phi(z)^(n - 1), with x = mean + std z, or exp(mu + sigma z)
    `mean` and `std` are those of one rank's time; n may be any number >= 1 up to 10^12.
    Raises ValueError for n < 1, std < 0, a lognormal mean <= 0; LookupError for an unknown distribution.
    Source: David and Nagaraja 2003, "Order Statistics", sections 2.1 and 3.1.

    >>> round(expected_max(1024, mean=1.0, std=0.05), 3), round(expected_max(16384, mean=1.0, std=0.05), 3)
    (1.162, 1.199)
    """
    _require(">= 1", lambda value: value >= 1, {"n": n})
    not_negative(std=std)
    n, mean, std = (np.asarray(x, float) for x in (n, mean, std))
    if distribution == "exponential":
        return plain(mean + std * (_harmonic(n) - 1.0))
    if distribution == "uniform":
        return plain(mean + std * sqrt(3.0) * (n - 1.0) / (n + 1.0))
    if distribution not in DISTRIBUTIONS:
        near = get_close_matches(str(distribution), DISTRIBUTIONS) or DISTRIBUTIONS
        raise LookupError(f"distribution={distribution!r}: unknown; near it: {', '.join(near)}")
    z = np.linspace(-12.0, 12.0, 2401)
    below = np.array([0.5 * erfc(-x / sqrt(2.0)) for x in z])
    density = n[..., None] * np.exp(-z * z / 2.0 + (n[..., None] - 1.0) * np.log(below)) / sqrt(2.0 * np.pi)
    weight = density * (z[1] - z[0])  # the trapezoidal rule on a smooth function that vanishes at both ends
    if distribution == "normal":
        return plain(mean + std * (weight * z).sum(axis=-1))
    positive(mean=mean)
    sigma = np.sqrt(np.log1p((std / mean) ** 2))
    value = np.exp(np.log(mean)[..., None] - sigma[..., None] ** 2 / 2.0 + sigma[..., None] * z)
    return plain((weight * value).sum(axis=-1))


def _harmonic(n):
    """H_n, continued to real n: ln n + gamma + 1/2n - 1/12n^2 + 1/120n^4, raised to where that is exact."""
    shift = np.arange(16.0)
    far = n + 16.0
    tail = np.log(far) + np.euler_gamma + 1 / (2 * far) - 1 / (12 * far**2) + 1 / (120 * far**4) - 1 / (252 * far**6)
    return tail - (1.0 / (n[..., None] + 1.0 + shift)).sum(axis=-1)


def spares(units, *, mtbf, repair, risk, burst=1):
    """Fewest spare units so that more are out than there are spares with a probability of at most `risk`.

    Failures come at rate units / mtbf (mtbf of one unit) and each is out for `repair`; the number out at a moment,
    like the number of failures within one repair, is Poisson with mean units * repair / mtbf, whatever the
    distribution of the repair time (Palm's theorem). `burst` units fail together (a rack behind one switch): the
    same mean comes in lumps, burst * Poisson(mean / burst), and the same risk needs more spares.
    Scalars. Raises ValueError unless units, mtbf, repair > 0, 0 < risk < 1 and burst is a whole number >= 1.
    Source: Feeney and Sherbrooke 1966, "The (s-1, s) inventory policy under compound Poisson demand",
    Management Science 12(5).

    >>> spares(2048, mtbf=1 / 0.0065, repair=2.0, risk=0.01)               # days; 26.6 nodes out on average
    39
    >>> spares(2048, mtbf=1 / 0.0065, repair=2.0, risk=0.01, burst=8)
    64
    """
    positive(units=units, mtbf=mtbf, repair=repair)
    between_zero_and_one(risk=risk)
    if burst < 1 or burst != int(burst):
        raise ValueError(f"burst={burst!r}: must be a whole number >= 1")
    mean = units * repair / mtbf / burst
    last = int(mean + 40.0 * sqrt(mean) + 200.0)  # far in the tail: below any risk a float can hold apart
    logs = np.array([k * np.log(mean) - mean - lgamma(k + 1.0) for k in range(last)])
    beyond = np.exp(logs)[::-1].cumsum()[::-1]  # P(N >= k), summed from the small end
    return int(burst) * int(np.argmax(beyond[1:] <= risk))


def replica_loss_probability(nodes, replicas, failed):
    """Probability that `failed` nodes, all at once, take every copy of some node's in-memory checkpoint.

    Nodes form groups of `replicas` that hold each other's copies. With G = nodes / replicas groups of m, and k
    failed: sum over j >= 1 of (-1)^(j+1) C(G, j) C(nodes - j m, k - j m) / C(nodes, k). One node (k < m) never does.
    Raises ValueError unless replicas divides nodes and 0 <= failed <= nodes.
    Source: Wang et al. 2023, "GEMINI: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints",
    SOSP 23, section 4 (group placement), here without its bound.

    >>> replica_loss_probability(nodes=16, replicas=2, failed=2)
    0.06666666666666667
    """
    if replicas < 1 or nodes % replicas or not 0 <= failed <= nodes:
        raise ValueError(f"nodes={nodes!r}, replicas={replicas!r}, failed={failed!r}: replicas must divide nodes, "
                         "and failed lie in 0..nodes")
    ways = sum((-1) ** (j + 1) * comb(nodes // replicas, j) * comb(nodes - j * replicas, failed - j * replicas)
               for j in range(1, failed // replicas + 1))
    return ways / comb(nodes, failed)
