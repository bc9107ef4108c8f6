"""Flows that a hash throws onto equal cables: how many cables stay idle, and how full the fullest gets.

>>> round(expected_idle(32, 32), 1), round(expected_busiest(32, 32), 2)
(11.6, 3.53)
"""

import numpy as np


def expected_idle(flows, links):
    """Mean number of ``links`` on which none of ``flows`` lands: L (1 − 1/L)ⁿ, about L/e when there are as many.

    Each flow picks a link by itself, all equally likely. Raises ValueError for fewer than one flow or link.

    >>> round(expected_idle(4, 4), 3)        # 4 · (3/4)⁴
    1.266
    """
    flows, links = _counts(flows, links)
    return links * (1 - 1 / links) ** flows


def chance_apart(flows, links):
    """Chance that every flow has a link to itself: L (L − 1) … (L − n + 1) / Lⁿ, 0 with more flows than links.

    Raises ValueError for fewer than one flow or link.

    >>> chance_apart(4, 4)
    0.09375
    """
    flows, links = _counts(flows, links)
    return float(np.prod((links - np.arange(flows)) / links)) if flows <= links else 0.0


def expected_busiest(flows, links):
    """Mean number of flows on the fullest link: Σₘ P(fullest > m), m from 0, exact.

    P(fullest ≤ m) = n! / Lⁿ · [xⁿ] (Σ_{j ≤ m} xʲ/j!)ᴸ, computed with Poisson weights of mean n/L so that nothing
    overflows. Raises ValueError for fewer than one flow or link.

    >>> expected_busiest(2, 2)               # together with chance 1/2
    1.5
    """
    flows, links = _counts(flows, links)
    if links == 1:
        return float(flows)
    mean = flows / links
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, flows + 1)))])
    weight = np.exp(np.arange(flows + 1) * np.log(mean) - mean - log_factorial)
    every = np.exp(flows * np.log(flows) - flows - log_factorial[flows])      # all sums of n, whatever the fullest
    total = 0.0
    for most in range(flows):
        few = np.where(np.arange(flows + 1) <= most, weight, 0.0)
        left = 1 - float(_power(few, links)[flows] / every)
        total += left
        if most > mean and left < 1e-12:
            break
    return round(total, 12)


def _power(polynomial, exponent):
    """A polynomial to a power, cut at its length."""
    result, size = np.eye(1, len(polynomial))[0], len(polynomial)
    while exponent:
        if exponent & 1:
            result = np.convolve(result, polynomial)[:size]
        polynomial, exponent = np.convolve(polynomial, polynomial)[:size], exponent >> 1
    return result


def _counts(flows, links):
    for name, value in (("flows", flows), ("links", links)):
        if value != int(value) or value < 1:
            raise ValueError(f"{name}={value}: whole numbers from 1 are allowed")
    return int(flows), int(links)
