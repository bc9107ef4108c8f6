"""Race all-reduce algorithms on real ranks: seconds, bytes and steps of each, and a ledger of the gap to the model.

One function a lesson calls; the algorithms are in `allreduce`, the links in `links`.
"""
from dataclasses import dataclass

import torch
import torch.distributed as dist

from clusterlab.collectives import all_reduce_seconds

from . import allreduce
from .links import counted, paced, timed
from .ranks import launch

ELEMENT = 4                                    # float32


@dataclass(frozen=True)
class Lap:
    """What one algorithm did: seconds of the slowest rank in the fastest lap, bytes of the busiest, steps, sum right or not.

    A busy machine only adds time, so the fastest of several laps is the best measurement. `late` is the seconds by which this machine missed the paced schedule (the worst rank; 0 on bare links).
    """
    seconds: float
    bytes: int
    steps: int
    equal: bool
    late: float


def race(algorithms, ranks: int, size: float, link=None, *, repeats: int = 1) -> dict:
    """All-reduce an array of `size` bytes (float32) on `ranks` processes by each of `algorithms`; {name: Lap}.

    `link` is None (bare), a `Paced`, or anything with .bandwidth and .latency, which is paced. "hierarchical" takes
    its nodes from the link. The data are small integers, so that the sum is the same in any order, and the result is
    compared bit for bit with `dist.all_reduce`.
    """
    if size < ELEMENT or size % ELEMENT:
        raise ValueError(f"size is {size}: want a positive multiple of {ELEMENT} bytes, one float32")
    unknown = [name for name in algorithms if name not in (*allreduce.ALGORITHMS, "hierarchical")]
    if unknown:
        raise LookupError(f"algorithms {unknown}: known are {', '.join(allreduce.ALGORITHMS)}, hierarchical")
    link = paced(link)
    nodes = link.nodes if link else 1
    laps = launch(_laps, ranks, list(algorithms), int(size) // ELEMENT, repeats, nodes, link=link)
    return {name: Lap(seconds=laps[0][name][0], bytes=max(lap[name][1] for lap in laps), steps=laps[0][name][2],
                      equal=all(lap[name][3] for lap in laps), late=max(lap[name][4] for lap in laps))
            for name in algorithms}


def _laps(algorithms, elements, repeats, nodes):
    """On each rank: {name: (seconds of the fastest lap, bytes, steps, equal, late)}."""
    start = torch.arange(elements, dtype=torch.float32) % 97 + dist.get_rank()
    expected = start.clone()
    dist.all_reduce(expected)
    out = {}
    for name in algorithms:
        run = (lambda x: allreduce.hierarchical(x, nodes)) if name == "hierarchical" else allreduce.ALGORITHMS[name]
        seconds, equal = [], True
        for _ in range(repeats):
            x = start.clone()
            with counted() as wire:
                seconds.append(timed(run, x))
            equal = equal and torch.equal(x, expected)
        out[name] = (min(seconds), wire.bytes, wire.steps, equal, wire.late)
    return out


def ring_ledger(ranks: int, size: float, link) -> dict:
    """Why a paced ring is slower than its model: {cause: seconds}, model first, the measured time last.

    Each cause is measured by changing only it: an array of one number a rank leaves nothing but the steps; the same
    additions without any message leave nothing but the adding. What is left is named so.
    """
    model = all_reduce_seconds(size, ranks, link)
    here = race(["ring"], ranks, size, link)["ring"].seconds
    tiny = ELEMENT * ranks
    steps = race(["ring"], ranks, tiny, link, repeats=3)["ring"].seconds - all_reduce_seconds(tiny, ranks, link)
    adding = launch(_adding, ranks, int(size) // ELEMENT)[0]
    return {"model": model, "starting and ending steps": steps, "adding the chunks": adding,
            "unexplained": here - model - steps - adding, "here": here}


def _adding(elements):
    """Seconds of a ring's n - 1 additions of one chunk, all ranks at once and nothing else."""
    n = dist.get_world_size()
    into, got = torch.zeros(-(-elements // n)), torch.ones(-(-elements // n))

    def add():
        for _ in range(n - 1):
            into.add_(got)
    return min(timed(add) for _ in range(3))
