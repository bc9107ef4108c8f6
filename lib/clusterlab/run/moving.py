"""Move bytes between real ranks: one message of many sizes, a pipe of pieces, and the five collectives, counted."""
import time

import torch
import torch.distributed as dist

from . import allreduce
from .device import device, synchronize
from .links import counted, paced, step, timed
from .ranks import launch

ELEMENT = 4                                    # float32


def send_times(sizes, *, repeats: int = 40) -> dict:
    """Seconds in which one message of each size, in bytes, gets from one rank to another on the bare link; {size: seconds}.

    Half of a round trip, so that one clock times both ends; the fastest of `repeats`, since a busy machine only adds.

    >>> list(send_times([4, 4096], repeats=3))
    [4, 4096]
    """
    if not sizes or any(size != int(size) or size < 1 for size in sizes):
        raise ValueError(f"sizes={sizes!r}: want whole numbers of bytes, 1 or more")
    return launch(_round_trips, 2, [int(size) for size in sizes], repeats)[0]


def _round_trips(sizes, repeats):
    first, found = dist.get_rank() == 0, {}
    for size in sizes:
        x, laps = torch.zeros(size, dtype=torch.uint8, device=device()), []
        for _ in range(repeats + 2):                                # two to warm up
            synchronize()
            start = time.perf_counter()
            for turn in (first, not first):
                (dist.send if turn else dist.recv)(x, 1 if first else 0)
            synchronize()
            laps.append((time.perf_counter() - start) / 2)
        found[size] = min(laps[2:])
    return found


def pipe(ranks: int, size: float, chunks, link, *, repeats: int = 1) -> dict:
    """Pass `size` bytes from rank 0 along a chain to the last rank, in each of the given numbers of pieces; {chunks: seconds}.

    One message at a time: a rank sends its next piece when the one before has arrived, and sends one while it receives
    another. `link` is what `race` takes. Raises RuntimeError if what arrives is not what was sent.

    >>> from clusterlab.run import Paced
    >>> list(pipe(3, 30_000, [1, 3], Paced(bandwidth=10e6, latency=1e-3)))
    [1, 3]
    """
    elements = int(size) // ELEMENT
    if size != ELEMENT * elements or any(not 1 <= c <= elements for c in chunks):
        raise ValueError(f"size={size}, chunks={chunks}: want whole float32 elements, and 1 to that many pieces")
    return launch(_pipes, ranks, elements, list(chunks), repeats, link=paced(link))[0]


def _pipes(elements, chunks, repeats):
    sent = torch.arange(elements, dtype=torch.float32) % 97 + 1
    found = {}
    for count in chunks:
        laps = []
        for _ in range(repeats):
            x = sent.clone() if dist.get_rank() == 0 else torch.zeros(elements)
            laps.append(timed(relay, x, count, confirmed=True))
            if not torch.equal(x, sent):
                raise RuntimeError(f"rank {dist.get_rank()} received other numbers than rank 0 sent, in {count} pieces")
        found[count] = min(laps)
    return found


def relay(x: torch.Tensor, chunks: int, *, confirmed: bool = False) -> None:
    """Broadcast x from rank 0 along the chain of ranks, in pieces: n - 2 + chunks steps, at most S bytes a rank.

    In step s rank r passes piece s - r on and receives the next one. `confirmed`: it goes on when both have arrived,
    which the receiver tells the sender by a byte that is neither counted nor paced.
    """
    r, n = dist.get_rank(), dist.get_world_size()
    pieces = x.view(-1).tensor_split(chunks)
    byte = torch.zeros(1, dtype=torch.uint8, device=x.device)
    for s in range(n - 2 + chunks):
        out = r < n - 1 and 0 <= s - r < chunks
        into = r > 0 and 0 <= s - r + 1 < chunks
        step([(pieces[s - r], r + 1)] if out else [], [(pieces[s - r + 1], r - 1)] if into else [])
        if confirmed and into:
            dist.send(byte, r - 1)
        if confirmed and out:
            dist.recv(byte, r + 1)


def all_to_all(x: torch.Tensor) -> torch.Tensor:
    """Chunk i of every rank's x goes to rank i; returns what came in, by sender. n - 1 steps, (n-1)/n S bytes.

    In step k rank r sends to rank r + k and receives from rank r - k, so that every port is used once.
    """
    r, n = dist.get_rank(), dist.get_world_size()
    out, got = x.view(-1).tensor_split(n), torch.empty_like(x.view(-1))
    into = got.tensor_split(n)
    into[r].copy_(out[r])
    for k in range(1, n):
        step([(out[(r + k) % n], (r + k) % n)], [(into[(r - k) % n], (r - k) % n)])
    return got


def five(ranks: int, size: float) -> dict:
    """The five collectives on real ranks, message by message; {operation: bytes the busiest rank sends}.

    `size` is the whole array, as nccl-tests counts, and a multiple of 4 · ranks. Every result is compared with that of
    `torch.distributed`; RuntimeError if one differs.

    >>> five(2, 800)["broadcast"], five(2, 800)["all-gather"]
    (800, 400)
    """
    if size < 1 or size % (ELEMENT * ranks):
        raise ValueError(f"size={size}: want a multiple of {ELEMENT} bytes a rank, for {ranks} ranks")
    found = launch(_five, ranks, int(size) // ELEMENT)
    return {name: max(rank[name] for rank in found) for name in found[0]}


def _five(elements):
    r, n = dist.get_rank(), dist.get_world_size()
    own = torch.arange(elements, dtype=torch.float32, device=device()) % 89 + 1
    own *= r + 1                                                    # small integers: any order of sums agrees
    mine = own.tensor_split(n)[r]
    found = {}
    for name, work, theirs in (("broadcast", lambda x: relay(x, n), _broadcast), ("all-gather", _all_gather, _gathered),
                               ("reduce-scatter", allreduce.ring_reduce_scatter, _scattered),
                               ("all-reduce", allreduce.ring, _reduced), ("all-to-all", all_to_all, _exchanged)):
        x = own.clone()
        with counted() as wire:
            got = work(x)
        if not torch.equal(x if got is None else got, theirs(own.clone(), mine)):
            raise RuntimeError(f"{name} by hand on rank {r} is not what torch.distributed gives")
        found[name] = wire.bytes
    return found


def _all_gather(x):
    """Each rank starts with its own chunk alone."""
    n = dist.get_world_size()
    for i, chunk in enumerate(x.tensor_split(n)):
        if i != dist.get_rank():
            chunk.zero_()
    allreduce.ring_all_gather(x)


def _broadcast(x, _):
    dist.broadcast(x, 0)
    return x


def _gathered(x, mine):
    out = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(out, mine)
    return torch.cat(out)


def _scattered(x, mine):
    out = torch.empty_like(mine)
    dist.reduce_scatter(out, list(x.tensor_split(dist.get_world_size())))
    return out


def _reduced(x, _):
    dist.all_reduce(x)
    return x


def _exchanged(x, _):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out
