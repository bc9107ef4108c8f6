"""Every hand-written all-reduce against `dist.all_reduce`, and its steps and bytes against an independent count."""
import sys
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from clusterlab.run import RankError, allreduce, counted, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LENGTHS = (0, 1, 2, 3, 7, 16, 101, 240, 1000)                       # shorter than the world, and not divisible by it
ALL = allreduce.ALGORITHMS | {"double-tree in 5 chunks": partial(allreduce.double_tree, chunks=5)}


def divisors(n):
    return [k for k in range(1, n + 1) if n % k == 0]


def everything():
    """On one rank: {(algorithm, length): (equal to all_reduce, steps, bytes)} on integers, and the worst float error."""
    rank, n = dist.get_rank(), dist.get_world_size()
    counts, wrong, worst = {}, [], {}
    algorithms = ALL | {f"hierarchical {k}": partial(allreduce.hierarchical, nodes=k) for k in divisors(n)}
    for name, algorithm in algorithms.items():
        for length in LENGTHS:
            start = torch.arange(length).mul_(rank + 1).remainder_(97) - 40
            for dtype in (torch.int64, torch.float32, torch.bfloat16) if length < 200 else (torch.int32, torch.float32):
                scale = 1 if dtype != torch.bfloat16 else 8         # small enough that every partial sum is exact
                x = start.div(scale, rounding_mode="floor").to(dtype)
                want = x.clone()
                dist.all_reduce(want)
                with counted() as wire:
                    algorithm(x)
                if not torch.equal(x, want):
                    wrong.append((name, length, dtype))
            counts[name, length] = (wire.steps, wire.bytes)
        torch.manual_seed(rank)
        x = torch.randn(3, 5, 7)
        exact, size = x.double(), x.double().abs()
        dist.all_reduce(exact)
        dist.all_reduce(size)
        algorithm(x)
        bound = (n - 1) * torch.finfo(torch.float32).eps * size + 1e-30
        worst[name] = ((x - exact).abs() / bound).max().item()
        gathered = [torch.empty_like(x) for _ in range(n)]
        dist.all_gather(gathered, x)
        if not all(torch.equal(other, x) for other in gathered):
            wrong.append((name, "ranks differ"))
    return counts, wrong, worst


def chunks(length, parts):
    """Lengths of the parts: as equal as possible, the longer first."""
    return [len(range(i, length, parts)) for i in range(parts)]


def ceil_log2(n):
    return next(k for k in range(99) if 2**k >= n)


def floor_log2(n):
    return max(k for k in range(99) if 2**k <= n)


def halving_doubling_sent(length, rank, bits):
    """Elements a rank sends: follow its segment down, and count each half given away, each half sent back."""
    sent = 0
    for bit in range(bits):
        low, high = chunks(length, 2)
        give, length = (low, high) if rank >> bit & 1 else (high, low)
        sent += give + length                                       # the half given; later the half kept, sent back
    return sent


def sent(name, length, n, rank):
    """Elements this rank sends by the definition of each algorithm, counted without any of its code."""
    if n == 1:
        return 0
    p, c = 2 ** floor_log2(n), chunks(length, n)
    back = length if rank < n - p else 0                            # the folded partner gets its result
    if name == "ring":
        return 2 * length - c[rank] - c[(rank + 1) % n]             # all chunks but the own; all but the one received last
    if name == "parameter-server":
        return length * (n - 1 if rank == 0 else 1)
    if name == "parameter-server-sharded":
        return length - c[rank] + (n - 1) * c[rank]
    if name == "halving-doubling":
        return length if rank >= p else halving_doubling_sent(length, rank, floor_log2(n)) + back
    if name == "recursive-doubling":
        return length if rank >= p else length * floor_log2(n) + back
    if name == "tree":                                              # one parent, children at rank + 1, 2, 4 … below the lowest bit
        return length * ((rank > 0) + sum(rank % (2 * 2**k) == 0 and rank + 2**k < n for k in range(9)))
    raise LookupError(name)


STEPS = {"ring": lambda n: 2 * (n - 1), "parameter-server": lambda n: 2, "parameter-server-sharded": lambda n: 2,
         "tree": lambda n: 2 * ceil_log2(n), "double-tree": lambda n: 2 * ceil_log2(n) + 1,
         "double-tree in 5 chunks": lambda n: 2 * ceil_log2(n) + 5,
         "recursive-doubling": lambda n: floor_log2(n) + (2 if n != 2 ** floor_log2(n) else 0),
         "halving-doubling": lambda n: 2 * floor_log2(n) + (2 if n != 2 ** floor_log2(n) else 0)}


def check(n):
    ranks = launch(everything, n, timeout=60)
    for counts, wrong, worst in ranks:
        assert not wrong
        assert max(worst.values()) <= 1, worst
    for name in ALL:
        for length in LENGTHS:
            size = 2 if length < 200 else 4                         # bytes of the last dtype tried
            here = [counts[name, length] for counts, _, _ in ranks]
            assert {steps for steps, _ in here} == {STEPS[name](n) if n > 1 else 0}, (name, n)
            total = sum(count for _, count in here)
            if name == "recursive-doubling":
                p = 2 ** floor_log2(n)
                assert total == size * length * (p * floor_log2(p) + 2 * (n - p))
            else:                                                   # each element is added n-1 times and handed on n-1 times
                assert total == 2 * (n - 1) * length * size, (name, length)
            if not name.startswith("double-tree"):
                assert [count for _, count in here] == [size * sent(name, length, n, rank) for rank in range(n)], (name, length)
            elif n >= 4 and n % 2 == 0 and length % 2 == 0:
                assert max(count for _, count in here) == 2 * length * size
    for nodes in divisors(n):
        m, counts = n // nodes, [counts[f"hierarchical {nodes}", 240] for counts, _, _ in ranks]
        assert {steps for steps, _ in counts} == {2 * (m - 1) + 2 * (nodes - 1)}
        if 240 % n == 0:
            assert {count for _, count in counts} == {2 * 4 * 240 * (m - 1) // m + 2 * 4 * 240 // m * (nodes - 1) // nodes}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_equal_to_all_reduce_and_counted_exactly(n):
    check(n)


@pytest.mark.slow
@pytest.mark.parametrize("n", range(5, 17))
def test_larger_worlds(n):
    check(n)


@pytest.mark.parametrize("n", range(1, 65))
def test_double_binary_trees(n):
    inner = []
    for parents in allreduce.double_binary_tree(n):
        depths = []
        for r in range(n):
            depth, at = 0, r
            while parents[at] is not None:
                at, depth = parents[at], depth + 1
                assert depth <= n, "a cycle"
            depths.append(depth)
        assert sum(up is None for up in parents) == 1
        assert max(depths) <= ceil_log2(n)
        kids = [sum(up == r for up in parents) for r in range(n)]
        assert max(kids, default=0) <= 2
        inner.append({r for r in range(n) if kids[r]})
    assert len(inner[0] & inner[1]) <= n % 2 or n == 1              # inside one tree, a leaf of the other


def test_a_ring_that_adds_the_wrong_chunk_would_be_seen():
    """A published ring passed on what it had just received, unadded: after n-1 steps each rank has one other's data."""
    def published(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        send, got = x.clone(), torch.empty_like(x)
        for _ in range(n - 1):
            allreduce.step([(send, (rank + 1) % n)], [(got, (rank - 1) % n)])
            x += got                                                # right for a scalar …
            send = x.clone()                                        # … were this got, not the running sum
        return x

    def job():
        rank = dist.get_rank()
        ours, theirs, want = (torch.full((5,), 10.0**rank) for _ in range(3))
        allreduce.ring(ours)
        published(theirs)
        dist.all_reduce(want)
        return torch.equal(ours, want), torch.equal(theirs, want)
    assert launch(job, 2) == [(True, True)] * 2                     # two ranks do not tell them apart
    for n in (3, 4):
        assert launch(job, n) == [(True, False)] * n


def test_views_and_refusals():
    def job():
        whole = torch.ones(4, 6)
        allreduce.ring(whole[1:3])
        allreduce.tree(whole.view(2, 12)[1])
        return whole.sum().item()
    assert launch(job, 3) == [6 * (1 + 3 + 9 + 3)] * 3              # rows: neither, ring, both, tree
    for bad, word in ((lambda: allreduce.ring(torch.ones(4, 4).t()), "contiguous"),
                      (lambda: allreduce.double_tree(torch.ones(4), chunks=0), "chunks"),
                      (lambda: allreduce.hierarchical(torch.ones(4), nodes=3), "nodes is 3")):
        with pytest.raises(RankError, match=word):
            launch(bad, 2)
