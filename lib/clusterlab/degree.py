"""Into how many parts may tensor parallelism cut a layer? Communication over computation, and the largest cut that pays.

A transformer layer of width h has 12 h² weights. Per token, forward and backward together, its matrix products take
72 h² FLOP, of which each of t ranks does a t-th. Two all-reduces forward and two backward carry the 2 h bytes of the
token (16 bits a number), each rank sending 2 (t-1)/t of them. Divide, and tokens, and one power of h, are gone:

    communication / computation = 4 · 2 (t-1)/t · 2 h / B  ÷  (72 h² / (t F))  =  2 (t-1) F / (9 h B)

B is what a rank of the group sends in one direction, F the FLOP/s its matrix products reach. Left out: the attention
scores, latency, and what hides behind computation. Sequence parallelism splits each all-reduce in two parts that send
the same. Sources: Shoeybi et al. 2019, section 3, arXiv:1909.08053; Narayanan et al. 2021, section 3, arXiv:2104.04473.

>>> round(communication_ratio(8192, 8, 450e9, 600e12), 3)
0.253
"""

import numpy as np


def communication_ratio(hidden, tensor, bandwidth, flops):
    """Seconds a layer communicates over seconds it computes: 2 (t-1) F / (9 h B); arguments may be arrays.

    hidden h; tensor t, the degree, from 1; bandwidth B, bytes/s a rank sends in one direction; flops F, FLOP/s a rank
    reaches. Errors: ValueError for a value out of range.

    >>> communication_ratio(12288, 1, 300e9, 150e12)
    0.0
    """
    for name, value, least in (("hidden", hidden, 1), ("tensor", tensor, 1), ("bandwidth", bandwidth, 0), ("flops", flops, 0)):
        if not np.all((np.asarray(value) >= least) & (np.asarray(value) > 0)):
            raise ValueError(f"{name}={value!r}: {'1 or more' if least else 'more than 0'} is allowed")
    ratio = 2.0 * (np.asarray(tensor, float) - 1.0) * flops / (9.0 * np.asarray(hidden, float) * bandwidth)
    return ratio.item() if ratio.ndim == 0 else ratio


def largest_degree(hidden, bandwidth, flops, *, most, limit=64):
    """The largest power of two up to `limit` whose `communication_ratio` is at most `most`; 1 where no cut pays.

    For GPUs that have the same B in every group, as behind a switch. Errors: as `communication_ratio`, and for `most`
    below 0.

    >>> largest_degree(8192, 450e9, 600e12, most=1/3), largest_degree(8192, 63e9, 600e12, most=1/3)
    (8, 2)
    """
    if not most >= 0:
        raise ValueError(f"most={most!r}: 0 or more is allowed")
    degrees = 2 ** np.arange(0, int(np.log2(limit)) + 1)
    return int(degrees[communication_ratio(hidden, degrees, bandwidth, flops) <= most].max())
