"""One collective made of others, on real ranks: is the result the same, and what does each way send?

Every way is made of messages that are counted; every result is compared with `torch.distributed` bit for bit, on small
whole numbers, so that the order of additions does not matter.
"""
import torch
import torch.distributed as dist

from . import allreduce
from .device import device
from .links import counted, step
from .moving import ELEMENT, all_to_all, relay
from .ranks import launch


def identities(ranks: int, size: float) -> dict:
    """{"all-reduce = reduce-scatter, all-gather": (equal, bytes of the left side, bytes of the right)} and more of them.

    `size` is the whole array in bytes, a multiple of 4 · ranks; the bytes are those of the rank that sends most. The
    all-reduce on the left is halving-doubling, so that neither side is the other's code.
    The last row is a statement about two numbers: with G the all-gather and R the reduce-scatter, ⟨G x, y⟩ summed over
    the ranks is ⟨x, R y⟩, so each is the other's backward pass.

    >>> identities(2, 800)["all-reduce = all-gather, add"]
    (True, 800, 800)
    """
    if size < 1 or size % (ELEMENT * ranks):
        raise ValueError(f"size={size}: want a multiple of {ELEMENT} bytes a rank, for {ranks} ranks")
    found = launch(_identities, ranks, int(size) // ELEMENT)
    return {name: (all(rank[name][0] for rank in found), *(max(rank[name][i] for rank in found) for i in (1, 2)))
            for name in found[0]}


def _identities(elements):
    r, n = dist.get_rank(), dist.get_world_size()
    own = (torch.arange(elements, dtype=torch.float32, device=device()) * (r + 3)) % 89 + 1
    part = slice(r * elements // n, (r + 1) * elements // n)
    total, scattered = own.clone(), torch.empty(elements // n, device=own.device)
    dist.all_reduce(total)
    dist.reduce_scatter(scattered, list(own.tensor_split(n)))
    first = own.clone()
    dist.broadcast(first, 0)
    everything = [torch.empty_like(own) for _ in range(n)]
    dist.all_gather(everything, own)

    def both(x):
        allreduce.ring_reduce_scatter(x)
        allreduce.ring_all_gather(x)
        return x

    def gathered(x):
        whole = torch.zeros(n, elements, device=x.device)
        whole[r] = x
        allreduce.ring_all_gather(whole.view(-1))
        return whole.sum(0)

    ways = {  # name: left side, right side, what torch.distributed says
        "all-reduce = reduce-scatter, all-gather": (_in_place(allreduce.halving_doubling), both, total),
        "all-reduce = all-gather, add": (_in_place(allreduce.halving_doubling), gathered, total),
        "reduce-scatter = all-to-all, add":
            (lambda x: _scatter_sum(x)[part], lambda x: all_to_all(x).view(n, -1).sum(0), scattered),
        "broadcast = scatter, all-gather": (_in_place(lambda x: relay(x, n)), _scatter_then_gather, first),
        "nothing = all-to-all, twice": (lambda x: x, lambda x: all_to_all(all_to_all(x)), own),
        "transpose = all-to-all": (lambda _: torch.stack(everything).view(n, n, -1).transpose(0, 1)[r].reshape(-1),
                                   all_to_all, None)}
    found = {}
    for name, (left, right, says) in ways.items():
        with counted() as one:
            a = left(own.clone())
        with counted() as other:
            b = right(own.clone())
        found[name] = bool(torch.equal(a, b) and (says is None or torch.equal(b, says))), one.bytes, other.bytes
    found["⟨all-gather x, y⟩ = ⟨x, reduce-scatter y⟩"] = _adjoint(own, part)
    return found


def _in_place(work):
    def run(x):
        work(x)
        return x
    return run


def _scatter_sum(x):
    allreduce.ring_reduce_scatter(x)
    return x


def _scatter_then_gather(x):
    """Rank 0 hands out a chunk each, and the chunks go round."""
    r, n = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(n)
    step([(chunks[k], k) for k in range(1, n)] if r == 0 else [], [(chunks[r], 0)] if r else [])
    for k, chunk in enumerate(chunks):
        if k != r:
            chunk.zero_()                                           # it has only its own
    allreduce.ring_all_gather(x)
    return x


def _adjoint(y, part):
    """x is one shard of each rank; both inner products are sums over all ranks, in exact whole numbers."""
    x = (y[part] * 7) % 31
    with counted() as one:
        whole = torch.zeros_like(y)
        whole[part] = x
        allreduce.ring_all_gather(whole)
    with counted() as other:
        shard = _scatter_sum(y.clone())[part]
    sums = torch.stack([(whole.double() * y).sum(), (x.double() * shard).sum()])
    dist.all_reduce(sums)
    return bool(sums[0] == sums[1]), one.bytes, other.bytes
