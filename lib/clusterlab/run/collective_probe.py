"""All-reduce bandwidth by size over the ranks present, as nccl-tests defines it: algbw = size ÷ time, busbw = algbw·f."""
import os

import torch
import torch.distributed as dist

from clusterlab.collectives import bus_factor
from clusterlab.run.device import accelerators, device
from clusterlab.run.ranks import launch
from clusterlab.run.timing import lap, rated, spread
from clusterlab.units import GiB, KiB, MiB


def all_reduce(sizes=None, *, quick=False) -> list:
    """Time all_reduce of each size, in bytes, on the ranks of this world; a lap is as long as its slowest rank's.

    Called on every rank, by `collectives` or ``torchrun -m clusterlab.run clusterlab.run.collective_probe:all_reduce``.
    Rows with backend, ranks, bytes (fp32), seconds, rate = algbw and bus = busbw, both in bytes/s.
    Raises RuntimeError when a sum is wrong. Source: nccl-tests, doc/PERFORMANCE.md.

    >>> launch(all_reduce, 2, [4096], quick=True)[0][0]["bytes"]
    4096
    """
    where, ranks = device(), dist.get_world_size()
    if sizes is None:
        last = 256 * KiB if quick else 16 * MiB if where.type == "cpu" else GiB
        sizes = [int(4 * KiB) * 4**p for p in range(10) if 4 * KiB * 4**p <= last]
    return [_row(size, where, ranks, quick) for size in sizes]


def _row(size, where, ranks, quick):
    x = torch.ones(size // 4, device=where)
    dist.all_reduce(x)
    if not bool((x == ranks).all()):
        raise RuntimeError(f"all_reduce of ones over {ranks} ranks on {dist.get_backend()} gave another sum than {ranks}.")
    x.zero_()                                                       # sums in place, and stays 0
    once = torch.tensor([lap(lambda: dist.all_reduce(x), 2, where)], device=where)
    dist.all_reduce(once, op=dist.ReduceOp.MAX)                     # all ranks make the same number of calls
    times = max(1, min(100, int(2e-3 / max(once.item(), 1e-9))))
    laps = []
    for _ in range(3 if quick else 11):
        dist.all_reduce(once)                                       # starts them together
        laps.append(lap(lambda: dist.all_reduce(x), times, where))
    slowest = torch.tensor(laps, device=where)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    row = rated(spread(slowest.tolist()), what="all-reduce", backend=dist.get_backend(), ranks=ranks, bytes=size)
    return {**row, "bus": row["rate"] * bus_factor("all-reduce", ranks)}


def collectives(ranks=None, *, quick=False) -> list:
    """All-reduce on all devices of this host with their own backend; with fewer than two, on gloo between CPU ranks.

    >>> collectives(2, quick=True)[0]["backend"] in dist.Backend.backend_list
    True
    """
    if dist.is_initialized():                                       # under torchrun: the world that exists
        return all_reduce(quick=quick)
    if ranks is None:
        ranks = accelerators() if accelerators() > 1 else max(2, min(4, os.cpu_count() or 2))
    return launch(all_reduce, ranks, backend="gloo" if accelerators() < 2 else None, timeout=60, quick=quick)[0]
