"""Latency of a load by working set: a walk in which every address is known only once the one before has arrived.

Plain Python walks, so each step also costs the interpreter some tens of nanoseconds, the same for every size: what
grows from one size to the next is memory. On large sets a step pays for page tables too.
"""
import array
import time

import numpy as np

LINE = 64                                      # bytes: one step touches one cache line


def cycle(count, seed=0):
    """One random cycle through `count` places, as the list of successors: `successor[i]` follows place i.

    >>> cycle(4)
    array([1, 3, 0, 2])
    """
    order = np.random.default_rng(seed).permutation(count)
    successor = np.empty(count, np.int64)
    successor[order] = np.roll(order, -1)
    return successor


def chase(sizes, *, hops=20_000, laps=15, seed=0) -> list:
    """Seconds a step at each working set in bytes: rows with what, working_set, hops, median, lowest, highest.

    Each lap goes on where the one before stopped, so that a large set stays cold and a small one gets warm. Raises ValueError for a set below two cache lines.

    >>> row = chase([4096], hops=1000)[0]
    >>> row["what"], row["working_set"], row["lowest"] > 0
    ('chase', 4096, True)
    """
    if min(sizes) < 2 * LINE:
        raise ValueError(f"sizes has {min(sizes)}: want {2 * LINE} bytes or more")
    rows = []
    for size in sizes:
        count, step = int(size) // LINE, LINE // 8
        places = np.zeros(count * step, np.int64)
        places[::step] = cycle(count, seed) * step
        places = array.array("q", places.tobytes())                 # its items come faster than numpy's
        at, seconds = _walk(places, 0, hops)[0], []                 # the first lap fills the caches
        for _ in range(laps):
            at, lap = _walk(places, at, hops)
            seconds.append(lap)
        rows.append({"what": "chase", "working_set": int(size), "hops": hops, "median": float(np.median(seconds)),
                     "lowest": min(seconds), "highest": max(seconds)})
    return rows


def _walk(places, at, hops):
    start = time.perf_counter()
    for _ in range(hops):
        at = places[at]
    return at, (time.perf_counter() - start) / hops
