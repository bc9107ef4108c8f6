"""What it costs to start a kernel: why many small operations leave a device idle."""
import time

import torch

from clusterlab.run.device import device
from clusterlab.run.timing import spread, timed, wait

_QUEUED = 200                                  # below the number of kernels that a driver queues before it blocks


def latency(where=None, *, quick=False) -> list:
    """Seconds of an operation on one number, three ways: rows *submit*, *back to back*, *round trip*.

    *submit*: the host's time to queue it; *back to back*: from one start to the next when many are queued; *round trip*:
    queue one and wait for it. On a CPU nothing is queued and the three are one.

    >>> [row["what"] for row in latency(quick=True)]
    ['submit', 'back to back', 'round trip']
    """
    where = where or device()
    x = torch.zeros(1, device=where)
    repeats = 3 if quick else 31

    def add():
        x.add_(1.0)

    def add_and_wait():
        x.add_(1.0)
        wait(where)

    def submit():
        wait(where)
        start = time.perf_counter()
        for _ in range(_QUEUED):
            add()
        return (time.perf_counter() - start) / _QUEUED
    add_and_wait()
    return [{"what": "submit", **spread([submit() for _ in range(repeats)])},
            {"what": "back to back", **timed(add, where, repeats=repeats)},
            {"what": "round trip", **_wall(add_and_wait, where, repeats)}]


def _wall(call, where, repeats):
    return timed(call, where, also=(where,), repeats=repeats)       # by the wall clock: the wait is part of it
