"""Memory bandwidth by working set: each level of the hierarchy shows as a plateau.

*read* sums one block again and again (an expanded view has stride 0, so it is the same memory each time); *copy* and
*triad* (a = b + s·c) are McCalpin's STREAM, one pass a call, so on small working sets the start of a call is what they
show. On a CPU one thread runs them, so that a plateau is one core's, and the largest set once more with all threads.
Bytes are counted as STREAM counts them: what the program reads plus what it writes, without the write-allocate read.
Above the caches a core may spend as long on page tables as on data: `target.huge_pages` says which pages these are.
"""
import itertools

import torch

from clusterlab.run.device import device
from clusterlab.run.target import memory
from clusterlab.run.timing import attempt, counts, rated, threads, timed
from clusterlab.units import GiB, KiB, MiB

ELEMENT = 4                                    # bytes of fp32


def working_sets(where=None, *, quick=False) -> list:
    """Powers of two in bytes, from what the first cache holds to well above the last, at most 1/8 of free memory.

    >>> import torch
    >>> sizes = working_sets(torch.device("cpu"))
    >>> sizes[0], all(b == 2 * a for a, b in zip(sizes, sizes[1:]))
    (4096, True)
    """
    where = where or device()
    first, last = (4 * KiB, 512 * MiB) if where.type == "cpu" else (256 * KiB, 4 * GiB)
    if quick:
        last = first * 2**8
    last = min(last, memory(where)[0] / 8)
    sizes = [int(first)]
    while sizes[-1] * 2 <= last:
        sizes.append(sizes[-1] * 2)
    return sizes


def reading(size, where):
    """The call that reads a block of `size` bytes over and over, and the bytes it reads: sums to the ones it met.

    >>> import torch
    >>> call, moved = reading(4096, torch.device("cpu"))
    >>> int(call().item()) * 4 == moved
    True
    """
    total = 16 * MiB if where.type == "cpu" else GiB                # enough that starting it does not count
    block, times = torch.ones(size // ELEMENT, device=where), max(1, int(total // size))
    view = block.expand(times, -1)
    return view.sum, times * size


def copying(size, where):
    """The call that copies one half of a working set of `size` bytes to the other, and the bytes: read plus written.

    >>> import torch
    >>> copying(4096, torch.device("cpu"))[1]
    4096
    """
    source = torch.ones(size // 2 // ELEMENT, device=where)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source), 2 * source.numel() * ELEMENT


def adding(size, where):
    """STREAM's triad on three arrays that together have `size` bytes (rounded down to whole elements), and its bytes.

    >>> import torch
    >>> call, moved = adding(4096, torch.device("cpu"))
    >>> call()[0].item(), moved
    (7.0, 4092)
    """
    b, c = (torch.full((size // 3 // ELEMENT,), value, device=where) for value in (1.0, 2.0))
    a = torch.empty_like(b)
    return lambda: torch.add(b, c, alpha=3.0, out=a), 3 * a.numel() * ELEMENT


KERNELS = {"read": reading, "copy": copying, "triad": adding}


def bandwidth(where=None, *, sizes=None, kernels=("read", "copy", "triad"), quick=False) -> list:
    """Bandwidth of each kernel at each working set: rows with working_set, bytes moved, seconds, rate in bytes/s.

    On a CPU with one thread, the largest set with all as well (`threads`); accelerators have no such column.
    Raises ValueError for an unknown kernel or a working set below 64 bytes. Source: McCalpin, "Memory bandwidth and
    machine balance in current high performance computers", 1995.

    >>> row = bandwidth(sizes=[2**16], kernels=["copy"], quick=True)[0]
    >>> row["what"], row["working_set"], row["bytes"]
    ('copy', 65536, 65536)
    """
    where, rows = where or device(), []
    sizes = working_sets(where, quick=quick) if sizes is None else sizes
    for name in kernels:
        if name not in KERNELS:
            raise ValueError(f"kernels has {name!r}: want some of {', '.join(KERNELS)}")
    if min(sizes) < 64:
        raise ValueError(f"sizes has {min(sizes)}: want bytes, 64 or more")
    for name, size in itertools.product(kernels, sizes):
        for count in counts(where, size == max(sizes)):
            with threads(count):
                rows.append(attempt(lambda: _row(name, size, where, count, quick), what=name, working_set=size))  # noqa: B023
    return rows


def _row(name, size, where, count, quick):
    call, moved = KERNELS[name](size, where)
    seconds = timed(call, where, repeats=3 if quick else 101, budget=0.01 if quick else 0.4)
    more = {"threads": count} if count else {}
    return rated(seconds, what=name, working_set=size, bytes=moved, **more)
