"""Messages one at a time, and several on the way at once: what keeps a connection busy.

On a CPU the two ranks are processes of this machine and the bytes go through the kernel's sockets; under torchrun on
two nodes they cross the network between them. `clusterlab.run.moving.send_times` has the curve of single messages.
"""
import time

import torch
import torch.distributed as dist

from .device import device, synchronize
from .links import step
from .ranks import launch


def burst_seconds(sizes, depth=1, *, repeats: int = 100) -> dict:
    """{size: seconds a message} when `depth` messages of that size leave at once, and as many come back.

    Half of the fastest of `repeats` round trips of the burst, over `depth`: with latency α and bandwidth B the model is
    α / depth + size / B. A busy machine only adds time; many short trips find a moment when it was not busy. A size of
    which a burst holds more than 256 KiB gets a tenth of the trips.

    Errors: ValueError for sizes, depth or repeats below 1.

    >>> one, eight = (burst_seconds([4096], depth, repeats=3)[4096] for depth in (1, 8))
    >>> 0 < eight < 1
    True
    """
    sizes = [int(size) for size in sizes]
    if min([*sizes, depth, repeats]) < 1:
        raise ValueError(f"sizes={sizes}, depth={depth}, repeats={repeats}: whole numbers from 1 are allowed")
    return launch(_bursts, 2, sizes, depth, repeats)[0]


def _bursts(sizes, depth, repeats):
    """On each of two ranks: the burst goes to rank 1 and comes back, again and again."""
    rank, found = dist.get_rank(), {}
    for size in sizes:
        burst = [(torch.zeros(size, dtype=torch.uint8, device=device()), 1 - rank) for _ in range(depth)]
        trips = []
        dist.barrier()
        for _ in range(2 + (repeats if size * depth <= 2**18 else -(-repeats // 10))):
            start = time.perf_counter()
            for sender in (0, 1):
                step(burst, []) if rank == sender else step([], burst)
            synchronize()
            trips.append((time.perf_counter() - start) / 2 / depth)
        found[size] = min(trips[2:])                                # the first ones warm up
    return found
