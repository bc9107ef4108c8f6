"""What a collective operation costs: steps, bytes and seconds in the alpha-beta-gamma model.

    time = steps * alpha + bytes / B + reduced bytes * gamma

alpha is ``link.latency`` (seconds a step), B is ``link.bandwidth`` (bytes/s, one direction, one rank), gamma the
seconds to add one byte. Every rank has one port in and one port out which work at the same time, and the fabric
between ports never blocks. ``size`` is the whole array in bytes, as in nccl-tests: what an all-reduce reduces, what
an all-gather returns on each rank, what a reduce-scatter takes on each rank, what one rank holds in an all-to-all.

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (IJHPCA 2005);
Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms" (JPDC 2009); Sanders, Speck, Traeff, "Two-tree algorithms
for full bandwidth broadcast, reduction and scan" (Parallel Computing 2009); NVIDIA nccl-tests doc/PERFORMANCE.md.

>>> from clusterlab.collectives import steps, bytes_sent
>>> steps("ring", 8), bytes_sent("ring", 800, 8)
(14, 1400.0)
"""

import numpy as np

from clusterlab.algorithms import (
    ALGORITHMS,
    IN_NETWORK,
    OPERATIONS,
    algorithms_for,
    ceil_log2,
    cost_factors,
    is_power_of_two,
    known_operation,
    needs_power_of_two,
    whole,
)
from clusterlab.schedules import Move, exact_bytes_sent, schedule

__all__ = ["ALGORITHMS", "IN_NETWORK", "OPERATIONS", "Move", "algbw", "all_reduce_seconds", "bandwidth_bound",
           "bus_factor", "busbw", "bytes_sent", "choose", "collective_seconds", "crossover_size", "exact_bytes_sent",
           "hierarchical_all_reduce_seconds", "latency_bound", "optimal_chunks", "schedule", "send_seconds", "steps"]


def bus_factor(operation, ranks):
    """Factor between algbw and busbw: the bytes a rank must send, in units of the size, without in-network help.

    all-reduce 2(n-1)/n; reduce-scatter, all-gather, all-to-all, gather, scatter (n-1)/n; broadcast, reduce, send 1.
    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md

    >>> bus_factor("all-reduce", 8), bus_factor("all-gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    operation, n = known_operation(operation), whole(ranks)
    if operation in ("broadcast", "reduce", "send"):
        return _plain(1 + 0 * n)
    return _plain((2 if operation == "all-reduce" else 1) * (n - 1) / n)


def steps(algorithm, ranks, operation="all-reduce", *, chunks=1):
    """Number of message latencies that follow one another.

    All-reduce on n ranks: ring 2(n-1); recursive-doubling log2 n, or floor(log2 n) + 2 when ranks are folded first;
    halving-doubling 2 log2 n, or 2 floor(log2 n) + 2; tree 2 ceil(log2 n); double-tree 2 ceil(log2 n) + chunks;
    parameter-server, sharp and nvls 2. One rank needs none. ``chunks`` matters to double-tree and to the chain that
    "ring" means for broadcast and reduce. Raises ValueError for a combination that is not defined.

    >>> steps("ring", 8), steps("halving-doubling", 8), steps("halving-doubling", 6), steps("tree", 5)
    (14, 6, 6, 6)
    >>> steps("ring", 8, "all-gather")
    7
    """
    count = cost_factors(algorithm, operation, ranks, chunks)[0].astype(int)
    return _plain(count)


def bytes_sent(algorithm, size, ranks, operation="all-reduce"):
    """Bytes the busiest rank sends when the size divides evenly into chunks.

    All-reduce of S bytes: ring 2(n-1)/n S; recursive-doubling S log2 n, folded S (floor(log2 n) + 1);
    halving-doubling 2(p-1)/p S with p the largest power of two up to n, plus S when folded; tree ceil(log2 n) S;
    double-tree 2 S (with fewer than five ranks less); parameter-server (n-1) S, sharded 2(n-1)/n S; sharp S; nvls
    (n+1)/n S.
    Thakur et al. write p for n in the folded case; the p ranks that exchange are what a counter on the wire sees.
    `exact_bytes_sent` counts real, uneven chunks.

    >>> bytes_sent("ring", 140e9, 8) / 1e9, bytes_sent("tree", 8.0, 8), bytes_sent("nvls", 8.0, 8)
    (245.0, 24.0, 9.0)
    """
    return _plain(cost_factors(algorithm, operation, ranks)[1] * _size(size))


def collective_seconds(operation, size, ranks, link, *, algorithm="ring", gamma=0.0, chunks=1):
    """Seconds of one collective: steps * alpha + critical bytes / B + reduced bytes * gamma.

    size in bytes and ranks may be arrays and broadcast. ``link`` needs ``.bandwidth`` (bytes/s, one direction) and
    ``.latency`` (seconds). ``gamma`` is seconds per reduced byte. The critical bytes are those of `bytes_sent`, but
    for a tree 2 ceil(log2 n) S (the root receives, then sends), for the server 2(n-1) S, folded one S more.
    ``chunks`` pipelines double-tree: the critical bytes are 2 S (1 + (ceil(log2 n) - 1) / chunks), so that one chunk
    is no pipeline and many reach 2 S; and the chain of a ring broadcast or reduce, (n - 2 + chunks) / chunks S.
    Raises ValueError for an unknown or undefined combination and for values out of range.

    >>> from types import SimpleNamespace
    >>> nvlink = SimpleNamespace(bandwidth=450e9, latency=0.0)
    >>> round(collective_seconds("all-reduce", 140e9, 8, nvlink), 4)
    0.5444
    """
    count, _, critical, reduced = cost_factors(algorithm, operation, ranks, chunks)
    size = _size(size)
    return _plain(count * link.latency + size * (critical / _bandwidth(link) + reduced * gamma))


def all_reduce_seconds(size, ranks, link, **kw):
    """`collective_seconds` of an all-reduce; keywords algorithm, gamma, chunks.

    >>> from types import SimpleNamespace
    >>> round(all_reduce_seconds(2**20, 4, SimpleNamespace(bandwidth=1e9, latency=1e-5), algorithm="tree"), 6)
    0.004234
    """
    return collective_seconds("all-reduce", size, ranks, link, **kw)


def send_seconds(size, link):
    """Seconds to send one message to one neighbour: alpha + size / B.

    >>> from types import SimpleNamespace
    >>> send_seconds(1e6, SimpleNamespace(bandwidth=1e9, latency=5e-6))
    0.001005
    """
    return _plain(link.latency + _size(size) / _bandwidth(link))


def hierarchical_all_reduce_seconds(size, *, nodes, ranks_per_node, intra, inter, nics_per_node, overlapped=False):
    """Seconds of an all-reduce in three phases: reduce-scatter in the node, all-reduce across nodes, all-gather.

    With g ranks in each of N nodes: 2 [(g-1) alpha + (g-1)/g S/B] inside, and across nodes g rings at once, each of
    S/g, that share the node's NICs: 2 (N-1) alpha + 2 (N-1)/N S / (nics B). ``inter`` is one NIC. One node or one
    rank a node leaves a plain ring. ``overlapped=True`` assumes many chunks, so that the slower of the two networks
    hides the other: max instead of sum. More NICs than ranks are used too (NCCL opens several channels a rank).

    >>> from types import SimpleNamespace
    >>> nvlink, nic = SimpleNamespace(bandwidth=450e9, latency=0.0), SimpleNamespace(bandwidth=50e9, latency=0.0)
    >>> layout = dict(nodes=8, ranks_per_node=8, intra=nvlink, inter=nic)
    >>> [round(hierarchical_all_reduce_seconds(280e9, nics_per_node=k, **layout), 2) for k in (1, 8)]
    [10.89, 2.31]
    """
    nodes, local = whole(nodes, "nodes"), whole(ranks_per_node, "ranks_per_node")
    nics = whole(nics_per_node, "nics_per_node")
    inside = 2 * np.asarray(collective_seconds("reduce-scatter", size, local, intra))
    across = np.asarray(all_reduce_seconds(_size(size) / nics, nodes, inter))
    return _plain(np.maximum(inside, across) if overlapped else inside + across)


def latency_bound(operation, ranks, link):
    """Least seconds of a message of no size: ceil(log2 n) alpha, for after k steps a rank has heard of at most 2^k.

    A send is one step. In-network reduction is not bound by it.

    >>> from types import SimpleNamespace
    >>> round(latency_bound("all-reduce", 5, SimpleNamespace(bandwidth=1e9, latency=1e-6)) * 1e6, 6)
    3.0
    """
    operation, n = known_operation(operation), whole(ranks)
    return _plain((1 + 0 * n if operation == "send" else ceil_log2(n)) * link.latency)


def bandwidth_bound(operation, size, ranks, link, *, in_network=False):
    """Least seconds of a message of any latency: bus_factor * S / B.

    All-reduce: some rank must send 2(n-1)/n S when ranks do the adding (Patarasuk and Yuan 2009); with
    ``in_network=True`` the switch adds, and a rank needs to send and receive S once: S / B. That is why busbw can
    stand above the link's bandwidth.

    >>> from types import SimpleNamespace
    >>> link = SimpleNamespace(bandwidth=450e9, latency=0.0)
    >>> round(bandwidth_bound("all-reduce", 1e9, 8, link) * 1e3, 3)
    3.889
    """
    operation, n = known_operation(operation), whole(ranks)
    if in_network and operation != "all-reduce":
        raise ValueError(f"in_network=True is defined for all-reduce, not for {operation!r}")
    factor = np.where(n > 1, 1.0, 0.0) if in_network else np.asarray(bus_factor(operation, n)) * (n > 1)
    return _plain(factor * _size(size) / _bandwidth(link))


def crossover_size(a, b, ranks, link, operation="all-reduce", *, gamma=0.0, chunks=1):
    """Bytes at which algorithms a and b take equally long; infinite when one is never overtaken.

    Both times are lines in the size, s alpha + S (x/B + r gamma), so S = (s_a - s_b) alpha / (slope_b - slope_a).
    Below it the algorithm with fewer steps wins, above it the one with fewer bytes.

    >>> from types import SimpleNamespace
    >>> link = SimpleNamespace(bandwidth=1e9, latency=1e-5)
    >>> round(crossover_size("ring", "recursive-doubling", 8, link))
    88000
    """
    (steps_a, _, bytes_a, reduced_a), (steps_b, _, bytes_b, reduced_b) = (
        cost_factors(name, operation, ranks, chunks) for name in (a, b))
    slope = (bytes_b - bytes_a) / _bandwidth(link) + (reduced_b - reduced_a) * gamma
    start = (steps_a - steps_b) * link.latency
    with np.errstate(divide="ignore", invalid="ignore"):
        size = start / slope
    return _plain(np.where(size > 0, size, np.inf))


def optimal_chunks(size, ranks, link):
    """Chunks that make a double-tree all-reduce fastest: sqrt(2 (ceil(log2 n) - 1) S / (alpha B)), at least 1.

    Few chunks fill the pipeline slowly, many pay alpha each. Rounded to the better integer neighbour,
    the fewer of equals.

    >>> from types import SimpleNamespace
    >>> optimal_chunks(2**20, 8, SimpleNamespace(bandwidth=1e9, latency=1e-5))
    20
    """
    n, size = whole(ranks), _size(size)
    if link.latency <= 0:
        raise ValueError(f"link.latency={link.latency}: without latency ever more chunks are ever better")
    low = np.maximum(np.floor(np.sqrt(2 * (ceil_log2(n) - 1).clip(0) * size / (link.latency * _bandwidth(link)))), 1)
    first, second = (np.asarray(all_reduce_seconds(size, n, link, algorithm="double-tree", chunks=c))
                     for c in (low, low + 1))
    return _plain(np.where(second < first, low + 1, low).astype(int))


def choose(size, ranks, link, operation="all-reduce", *, algorithms=None, gamma=0.0, chunks=1):
    """Name of the fastest algorithm, by `collective_seconds`; an array of names for arrays.

    ``algorithms`` default to those that libraries run on the ranks themselves; name "sharp" or "nvls" where the
    switch can add. A server is left out too: its n-1 messages at once are an incast that the model does not charge.
    Of equally fast ones the earlier in the list wins.

    >>> from types import SimpleNamespace
    >>> link = SimpleNamespace(bandwidth=1e9, latency=1e-5)
    >>> choose(1024, 8, link), choose(2**30, 8, link), choose(2**30, 6, link)
    ('recursive-doubling', 'halving-doubling', 'ring')
    """
    operation = known_operation(operation)
    if algorithms is None:
        folded = not np.all(is_power_of_two(whole(ranks)))
        algorithms = [name for name in algorithms_for(operation)
                      if name not in IN_NETWORK and not name.startswith("parameter-server")
                      and not (folded and needs_power_of_two(name, operation))]
    seconds = np.stack(np.broadcast_arrays(*(
        collective_seconds(operation, size, ranks, link, algorithm=name, gamma=gamma, chunks=chunks)
        for name in algorithms)))
    return _plain(np.array(algorithms)[np.argmin(seconds, axis=0)])


def algbw(size, seconds):
    """Algorithm bandwidth in bytes/s: size / seconds.

    >>> algbw(4e9, 0.02)
    200000000000.0
    """
    return _plain(_size(size) / np.asarray(seconds, float))


def busbw(operation, size, ranks, seconds):
    """Bus bandwidth in bytes/s: algbw * bus_factor; comparable with a link's bandwidth, for any number of ranks.

    >>> busbw("all-reduce", 4e9, 8, 0.02) / 1e9
    350.0
    """
    return _plain(algbw(size, seconds) * np.asarray(bus_factor(operation, ranks)))


def _size(value):
    array = np.asarray(value, float)
    if not np.all(array >= 0):
        raise ValueError(f"size={value!r}: bytes from 0 are allowed")
    return array


def _bandwidth(link):
    if not np.all(np.asarray(link.bandwidth) > 0) or not np.all(np.asarray(link.latency) >= 0):
        raise ValueError(f"link has bandwidth={link.bandwidth}, latency={link.latency}: more than 0 and from 0 allowed")
    return link.bandwidth


def _plain(value):
    return value.item() if np.ndim(value) == 0 else value
