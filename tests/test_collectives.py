"""Collectives: every schedule is run on a simulated network and must all-reduce; its steps, bytes and time are counted
there and compared with the formulas, which do not know the schedules."""

import json
import math
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest
from clusterlab import algorithms
from clusterlab import collectives as c
from clusterlab.algorithms import algorithms_for, cost_factors
from hypothesis import given, settings
from hypothesis import strategies as st

RANKED = [name for name in c.ALGORITHMS if name not in c.IN_NETWORK]
LINK = SimpleNamespace(bandwidth=2e9, latency=3e-6)


def cut(algorithm, indices, parts):
    """Pieces as torch.tensor_split makes them; halves of halves where the algorithm halves."""
    if parts == 1 or algorithm not in ("halving-doubling", "double-tree"):
        return np.array_split(indices, parts)
    halves = np.array_split(indices, 2)
    if algorithm == "double-tree":
        return [piece for half in halves for piece in np.array_split(half, parts // 2)]
    return [piece for half in halves for piece in cut(algorithm, half, parts // 2)]


def simulate(algorithm, ranks, elements, chunks=1):
    """Run a schedule on integer arrays: the arrays afterwards, elements sent and received by rank, step count."""
    steps = c.schedule(algorithm, ranks, chunks=chunks)
    parts = 1 + max((k for step in steps for move in step for k in move.chunks), default=0)
    data = [np.random.default_rng(rank).integers(0, 1000, elements) for rank in range(ranks)]
    expected = sum(data)
    slices = cut(algorithm, np.arange(elements), parts)
    sent, received = np.zeros(ranks, int), np.zeros(ranks, int)
    for step in steps:
        before = [array.copy() for array in data]
        for move in step:
            assert move.src != move.dst and move.op in ("add", "copy")
            for k in move.chunks:
                where = slices[k]
                sent[move.src] += len(where)
                received[move.dst] += len(where)
                if move.op == "add":
                    data[move.dst][where] += before[move.src][where]
                else:
                    data[move.dst][where] = before[move.src][where]
    return data, expected, sent, received, len(steps)


@pytest.mark.parametrize("algorithm", RANKED)
def test_every_schedule_all_reduces(algorithm):
    for ranks in range(1, 18):
        for elements in (1, ranks, 3 * ranks + 1):
            data, expected, sent, _, _ = simulate(algorithm, ranks, elements)
            assert all(np.array_equal(array, expected) for array in data)
            exact = [c.exact_bytes_sent(algorithm, elements, 4, ranks, rank) for rank in range(ranks)]
            assert exact == list(4 * sent)
            assert c.exact_bytes_sent(algorithm, elements, 4, ranks) == 4 * sent.max()


@pytest.mark.parametrize("algorithm", sorted(set(RANKED) - {"double-tree"}))
def test_formulas_equal_what_the_network_counts(algorithm):
    for ranks in range(2, 18):
        elements = math.lcm(ranks, 1 << (ranks.bit_length() - 1))  # divides evenly into every algorithm's chunks
        _, _, sent, _, steps = simulate(algorithm, ranks, elements)
        assert c.steps(algorithm, ranks) == steps
        assert c.bytes_sent(algorithm, elements, ranks) == pytest.approx(sent.max(), rel=1e-12)


def test_double_tree_stays_within_its_formula():
    for ranks in (*range(2, 20), 32, 33):
        chunks = 5
        data, expected, sent, received, steps = simulate("double-tree", ranks, 20 * chunks, chunks)
        assert all(np.array_equal(array, expected) for array in data)
        assert steps == c.steps("double-tree", ranks, chunks=chunks) - 1  # the formula counts the turn at the roots
        assert max(sent.max(), received.max()) <= c.bytes_sent("double-tree", 20 * chunks, ranks)
        if ranks >= 5:
            assert sent.max() == c.bytes_sent("double-tree", 20 * chunks, ranks)
        inner = [{move.dst for step in c.schedule("double-tree", ranks) for move in step
                  if move.chunks == (tree,) and move.op == "add"} for tree in (0, 1)]
        assert len(inner[0] & inner[1]) <= 2  # but for the roots, a rank is inner in one tree only


def test_the_second_tree_is_the_first_mirrored_or_shifted():
    """NCCL's ncclGetDtree: rank r stands where n-1-r stands in the first tree, with odd n where r-1 does."""
    for ranks in (2, 5, 6, 9, 16):
        first, second = ({(m.src, m.dst) for step in c.schedule("double-tree", ranks) for m in step
                          if m.chunks == (tree,) and m.op == "add"} for tree in (0, 1))
        moved = (lambda r, n=ranks: (r + 1) % n) if ranks % 2 else (lambda r, n=ranks: n - 1 - r)
        assert second == {(moved(a), moved(b)) for a, b in first}


def test_exact_bytes_of_a_double_tree_in_uneven_chunks():
    for ranks in (4, 7):
        for chunks in (1, 2, 3):
            for elements in (5, 6, 7):
                _, _, sent, _, _ = simulate("double-tree", ranks, elements, chunks)
                assert [c.exact_bytes_sent("double-tree", elements, 2, ranks, rank, chunks=chunks)
                        for rank in range(ranks)] == list(2 * sent)


def test_factors_are_floats_of_one_chunk():
    factors = cost_factors("double-tree", "all-reduce", 8)  # 6 + 1 steps; 2 S; down and up 3 times each; 3 additions
    assert factors == [7, 2, 6, 3] and {factor.dtype for factor in cost_factors("sharp", "all-reduce", 8)} == {
        np.dtype(float)}


def lockstep_seconds(algorithm, ranks, size, link, chunks=1):
    """All ranks wait for each other after every step; a step takes alpha and what its busiest port carries."""
    steps = c.schedule(algorithm, ranks, chunks=chunks)
    parts = 1 + max(k for step in steps for move in step for k in move.chunks)
    seconds = 0.0
    for step in steps:
        load = np.zeros((2, ranks))
        for move in step:
            load[0, move.src] += len(move.chunks)
            load[1, move.dst] += len(move.chunks)
        seconds += link.latency + load.max() / parts * size / link.bandwidth
    return seconds


def event_seconds(algorithm, ranks, size, link):
    """Nobody waits: a message starts when its two ports are free and what it carries has arrived."""
    steps = c.schedule(algorithm, ranks)
    parts = 1 + max(k for step in steps for move in step for k in move.chunks)
    out_free, in_free, ready = [0.0] * ranks, [0.0] * ranks, [[0.0] * parts for _ in range(ranks)]
    for step in steps:
        before = [list(row) for row in ready]
        for move in step:
            start = max([out_free[move.src], in_free[move.dst]] + [before[move.src][k] for k in move.chunks])
            busy = len(move.chunks) * size / parts / link.bandwidth
            out_free[move.src] = in_free[move.dst] = start + busy
            for k in move.chunks:
                ready[move.dst][k] = max(ready[move.dst][k], start + busy + link.latency)
    return max(map(max, ready))


@pytest.mark.parametrize("algorithm", sorted(set(RANKED) - {"double-tree"}))
def test_time_equals_a_simulation(algorithm):
    for ranks in (2, 3, 4, 6, 7, 8, 12, 16):
        for size in (48.0, 4.8e7):
            model = c.all_reduce_seconds(size, ranks, LINK, algorithm=algorithm)
            assert model == pytest.approx(lockstep_seconds(algorithm, ranks, size, LINK), rel=1e-9)
            if algorithm != "parameter-server-sharded":  # whose order of messages the schedule leaves open
                assert event_seconds(algorithm, ranks, size, LINK) <= model * (1 + 1e-9)
                if ranks & (ranks - 1) == 0:
                    assert event_seconds(algorithm, ranks, size, LINK) == pytest.approx(model, rel=1e-9)


def test_double_tree_time_is_just_above_a_simulation():
    for ranks in (8, 13, 16, 17, 32):
        for chunks in (2, 8, 32, 128):
            model = c.all_reduce_seconds(4.8e7, ranks, LINK, algorithm="double-tree", chunks=chunks)
            assert 0.8 * model <= lockstep_seconds("double-tree", ranks, 4.8e7, LINK, chunks) <= model
        with_many = c.all_reduce_seconds(1e9, ranks, LINK, algorithm="double-tree", chunks=10_000)
        assert with_many == pytest.approx(2 * 1e9 / LINK.bandwidth, rel=0.05)


def test_the_table_at_eight_and_six_ranks():
    expected = {  # steps and bytes in units of S/n, worked by hand
        ("ring", 8): (14, 14), ("ring", 6): (10, 10),
        ("recursive-doubling", 8): (3, 24), ("recursive-doubling", 6): (4, 18),
        ("halving-doubling", 8): (6, 14), ("halving-doubling", 6): (6, 15),
        ("tree", 8): (6, 24), ("tree", 6): (6, 18), ("double-tree", 8): (7, 16), ("double-tree", 6): (7, 12),
        ("parameter-server", 8): (2, 56), ("parameter-server", 6): (2, 30),
        ("parameter-server-sharded", 8): (2, 14), ("parameter-server-sharded", 6): (2, 10),
        ("sharp", 8): (2, 8), ("sharp", 6): (2, 6), ("nvls", 8): (2, 9), ("nvls", 6): (2, 7)}
    for (algorithm, ranks), (steps, parts) in expected.items():
        assert c.steps(algorithm, ranks) == steps
        assert c.bytes_sent(algorithm, 1.0, ranks) == pytest.approx(parts / ranks)


def chain_seconds(ranks, chunks, size, link):
    arrived = [[0.0] * chunks] + [[None] * chunks for _ in range(ranks - 1)]
    for rank in range(1, ranks):
        port = 0.0
        for k in range(chunks):
            port = max(port, arrived[rank - 1][k]) + size / chunks / link.bandwidth + link.latency
            arrived[rank][k] = port
    return arrived[-1][-1]


@pytest.mark.parametrize("ranks", [2, 3, 8, 11])
@pytest.mark.parametrize("chunks", [1, 4, 25])
def test_a_chain_of_chunks(ranks, chunks):
    model = c.collective_seconds("broadcast", 1e6, ranks, LINK, chunks=chunks)
    assert model == pytest.approx(chain_seconds(ranks, chunks, 1e6, LINK))
    assert model == c.collective_seconds("reduce", 1e6, ranks, LINK, chunks=chunks)


def test_trees_by_counting_their_edges():
    for ranks in range(2, 20):
        parent = {rank: rank & (rank - 1) for rank in range(1, ranks)}  # binomial: clear the lowest bit
        below = dict.fromkeys(range(ranks), 1)
        for rank in sorted(parent, reverse=True):
            below[parent[rank]] += below[rank]
        children = [sum(above == rank for above in parent.values()) for rank in range(ranks)]
        assert c.bytes_sent("tree", 7.0, ranks, "broadcast") == 7.0 * max(children)
        assert c.steps("tree", ranks, "broadcast") == max(children)
        assert c.bytes_sent("tree", 7.0, ranks, "reduce") == 7.0
        assert c.bytes_sent("tree", 1.0 * ranks, ranks, "gather") == pytest.approx(max(below[rank] for rank in parent))
        assert c.bytes_sent("tree", 1.0 * ranks, ranks, "scatter") == pytest.approx(ranks - 1)


@given(ranks=st.integers(2, 4096), size=st.floats(0, 1e12), alpha=st.floats(0, 1e-3), rate=st.floats(1e6, 1e12),
       gamma=st.floats(0, 1e-9))
@settings(max_examples=30, deadline=None)
def test_laws(ranks, size, alpha, rate, gamma):
    link = SimpleNamespace(bandwidth=rate, latency=alpha)

    def seconds(operation, algorithm="ring", gamma=gamma):
        return c.collective_seconds(operation, size, ranks, link, algorithm=algorithm, gamma=gamma)

    def close(a, b):
        return a == pytest.approx(b, rel=1e-9, abs=1e-30)

    for operation in c.OPERATIONS:
        for algorithm in c.ALGORITHMS:
            try:
                time = seconds(operation, algorithm)
            except ValueError:
                continue
            within = algorithm in c.IN_NETWORK
            assert time >= c.bandwidth_bound(operation, size, ranks, link, in_network=within) * (1 - 1e-12)
            if not within and "parameter-server" not in algorithm:
                assert time >= c.latency_bound(operation, ranks, link) * (1 - 1e-12)
            assert time >= seconds(operation, algorithm, gamma=0.0)
    # an all-reduce is its two halves, with the same algorithm, when nothing overlaps
    assert close(seconds("all-reduce"), seconds("reduce-scatter") + seconds("all-gather"))
    for name, halves in {"tree": ("reduce", "broadcast"), "parameter-server": ("reduce", "broadcast"),
                         "parameter-server-sharded": ("reduce-scatter", "all-gather")}.items():
        assert close(seconds("all-reduce", name), sum(seconds(half, name) for half in halves))
    if ranks & (ranks - 1) == 0:
        assert close(seconds("all-reduce", "halving-doubling"),
                     sum(seconds(half, "halving-doubling") for half in ("reduce-scatter", "all-gather")))
    assert close(c.busbw("all-reduce", size, ranks, max(seconds("all-reduce"), 1e-30)),
                 c.algbw(size, max(seconds("all-reduce"), 1e-30)) * c.bus_factor("all-reduce", ranks))


def test_gamma_counts_reduced_bytes():
    still = SimpleNamespace(bandwidth=1e30, latency=0.0)  # nothing but adding takes time
    reduced = {name: c.all_reduce_seconds(8.0, 8, still, algorithm=name, gamma=1.0) for name in RANKED}
    assert reduced == pytest.approx({"ring": 7, "recursive-doubling": 24, "halving-doubling": 7, "tree": 24,
                                     "double-tree": 24, "parameter-server": 56, "parameter-server-sharded": 7})
    assert c.all_reduce_seconds(8.0, 6, still, algorithm="halving-doubling", gamma=1.0) == pytest.approx(6 + 8)
    assert c.all_reduce_seconds(8.0, 6, still, algorithm="recursive-doubling", gamma=1.0) == pytest.approx(24)
    assert c.all_reduce_seconds(8.0, 8, still, algorithm="nvls", gamma=1.0) == pytest.approx(0)
    expected = {"reduce-scatter": 7, "all-gather": 0, "broadcast": 0, "reduce": 56, "all-to-all": 0, "gather": 0,
                "scatter": 0, "send": 0}
    assert {name: c.collective_seconds(name, 8.0, 8, still, gamma=1.0) for name in expected} == pytest.approx(expected)
    for name, units in {"tree": 24, "double-tree": 24, "halving-doubling": 7, "parameter-server": 56}.items():
        assert c.collective_seconds("reduce", 8.0, 8, still, algorithm=name, gamma=1.0) == pytest.approx(units)


def test_other_operations_by_hand():
    def line(operation, algorithm, ranks=8):
        return c.steps(algorithm, ranks, operation), c.bytes_sent(algorithm, 8.0, ranks, operation)

    assert line("reduce-scatter", "ring") == line("all-gather", "ring") == line("all-to-all", "ring") == (7, 7)
    assert line("gather", "ring") == line("scatter", "ring") == (7, 7)
    assert line("all-gather", "halving-doubling") == line("all-gather", "recursive-doubling") == (3, 7)
    assert line("reduce-scatter", "parameter-server-sharded") == (1, 7)
    assert line("broadcast", "ring") == line("reduce", "ring") == (7, 8)
    assert line("broadcast", "halving-doubling") == (6, 14)
    assert line("reduce", "halving-doubling") == (6, 11)  # 4 + 2 + 1 to scatter, then half the array to the root
    assert line("broadcast", "double-tree") == line("reduce", "double-tree") == (4, 8)
    assert line("broadcast", "parameter-server") == (1, 56) and line("reduce", "parameter-server") == (1, 8)
    assert line("gather", "parameter-server") == (1, 1) and line("scatter", "parameter-server") == (1, 7)
    assert line("gather", "tree") == (3, 4) and line("send", "ring") == (1, 8)
    assert c.steps("double-tree", 9, "broadcast", chunks=6) == 10 and c.steps("ring", 9, "reduce", chunks=6) == 13
    assert c.send_seconds(1e6, LINK) == c.collective_seconds("send", 1e6, 2, LINK) == pytest.approx(5.03e-4)
    server = [c.collective_seconds(op, 8.0, 8, SimpleNamespace(bandwidth=1.0, latency=0.0), algorithm="parameter-server")
              for op in ("broadcast", "reduce", "gather", "scatter")]
    assert server == pytest.approx([56, 56, 7, 7])
    pipelined = [c.collective_seconds(op, 8.0, 8, SimpleNamespace(bandwidth=1.0, latency=0.0), algorithm="double-tree",
                                      chunks=4) for op in ("broadcast", "reduce", "all-reduce")]
    assert pipelined == pytest.approx([12, 12, 24])


def test_every_row_of_the_table_by_hand():
    """Eight ranks, eight bytes, one byte a second: steps, seconds without latency in one chunk, and in four."""
    expected = {
        "all-reduce": {"ring": (14, 14, 14), "recursive-doubling": (3, 24, 24), "halving-doubling": (6, 14, 14),
                       "tree": (6, 48, 48), "double-tree": (7, 48, 24), "parameter-server": (2, 112, 112),
                       "parameter-server-sharded": (2, 14, 14), "sharp": (2, 8, 8), "nvls": (2, 9, 9)},
        "reduce-scatter": {"ring": (7, 7, 7), "halving-doubling": (3, 7, 7), "parameter-server-sharded": (1, 7, 7)},
        "all-gather": {"ring": (7, 7, 7), "halving-doubling": (3, 7, 7), "parameter-server-sharded": (1, 7, 7),
                       "recursive-doubling": (3, 7, 7)},
        "broadcast": {"ring": (7, 56, 20), "tree": (3, 24, 24), "double-tree": (4, 24, 12),
                      "halving-doubling": (6, 14, 14), "parameter-server": (1, 56, 56)},
        "reduce": {"ring": (7, 56, 20), "tree": (3, 24, 24), "double-tree": (4, 24, 12),
                   "halving-doubling": (6, 14, 14), "parameter-server": (1, 56, 56)},
        "all-to-all": {"ring": (7, 7, 7)},
        "gather": {"ring": (7, 7, 7), "tree": (3, 7, 7), "parameter-server": (1, 7, 7)},
        "scatter": {"ring": (7, 7, 7), "tree": (3, 7, 7), "parameter-server": (1, 7, 7)},
        "send": {"ring": (1, 8, 8)},
    }
    link = SimpleNamespace(bandwidth=1.0, latency=0.0)
    for operation, rows in expected.items():
        assert tuple(rows) == algorithms_for(operation)
        for algorithm, (steps, whole, pipelined) in rows.items():
            assert c.steps(algorithm, 8, operation) == steps
            for chunks, seconds in ((1, whole), (4, pipelined)):
                time = c.collective_seconds(operation, 8.0, 8, link, algorithm=algorithm, chunks=chunks)
                assert time == pytest.approx(seconds)
    with_latency = SimpleNamespace(bandwidth=1.0, latency=100.0)
    assert c.collective_seconds("broadcast", 8.0, 8, with_latency, chunks=4) == pytest.approx(20 + 100 * 10)


def test_bus_factors():
    for ranks in (2, 7, 64):
        share = (ranks - 1) / ranks
        assert c.bus_factor("all-reduce", ranks) == pytest.approx(2 * share)
        for operation in ("reduce-scatter", "all-gather", "all-to-all", "gather", "scatter"):
            assert c.bus_factor(operation, ranks) == pytest.approx(share)
        for operation in ("broadcast", "reduce", "send"):
            assert c.bus_factor(operation, ranks) == 1
    assert c.bus_factor("all_reduce", 4) == c.bus_factor("AllReduce", 4) == 1.5
    assert c.bus_factor("alltoall", 4) == c.bus_factor("all_gather", 4) == 0.75 and c.bus_factor("sendrecv", 4) == 1


def test_one_rank_needs_nothing():
    for algorithm in c.ALGORITHMS:
        assert c.steps(algorithm, 1) == 0 and c.bytes_sent(algorithm, 1e9, 1) == 0
        assert c.all_reduce_seconds(1e9, 1, LINK, algorithm=algorithm, gamma=1.0) == 0
        if algorithm in RANKED:
            assert c.schedule(algorithm, 1) == [] and c.exact_bytes_sent(algorithm, 9, 4, 1) == 0
    for operation in c.OPERATIONS:
        assert c.collective_seconds(operation, 1e9, 1, LINK, algorithm="ring") == 0
        assert c.bandwidth_bound(operation, 1e9, 1, LINK) == 0
    assert c.bandwidth_bound("all-reduce", 1e9, 1, LINK, in_network=True) == 0


def test_arrays_broadcast():
    sizes, ranks = np.array([0.0, 1e3, 1e9])[:, None], np.array([1, 2, 3, 8, 100])
    for algorithm in c.ALGORITHMS:
        grid = c.all_reduce_seconds(sizes, ranks, LINK, algorithm=algorithm, gamma=1e-12, chunks=3)
        assert grid.shape == (3, 5)
        for i, size in enumerate(sizes[:, 0]):
            for j, n in enumerate(ranks):
                one = c.all_reduce_seconds(size, int(n), LINK, algorithm=algorithm, gamma=1e-12, chunks=3)
                assert type(one) is float and grid[i, j] == pytest.approx(one, rel=1e-12)
    assert c.steps("ring", ranks).tolist() == [0, 2, 4, 14, 198] and type(c.steps("ring", 8)) is int
    assert c.bytes_sent("ring", sizes, ranks).shape == (3, 5)
    assert c.choose(sizes, 8, LINK).shape == (3, 1) and c.bus_factor("reduce", ranks).shape == (5,)


def test_exact_counts_of_a_ring_with_uneven_chunks():
    for ranks in (2, 3, 5, 8):
        for elements in (0, 1, ranks - 1, 4 * ranks + 3):
            sizes = [len(part) for part in np.array_split(np.arange(elements), ranks)]
            for rank in range(ranks):
                owed = 2 * elements - sizes[rank] - sizes[(rank + 1) % ranks]
                assert c.exact_bytes_sent("ring", elements, 2, ranks, rank) == 2 * owed


def test_the_crossover_separates():
    pairs = [("ring", "recursive-doubling"), ("tree", "ring"), ("ring", "halving-doubling"),
             ("parameter-server", "ring"), ("double-tree", "ring")]
    for a, b in pairs:
        for ranks in (5, 8, 64):
            for gamma in (0.0, 1e-10):
                where = c.crossover_size(a, b, ranks, LINK, gamma=gamma, chunks=4)
                assert where == c.crossover_size(b, a, ranks, LINK, gamma=gamma, chunks=4)

                def lead(size, a=a, b=b, ranks=ranks, gamma=gamma):
                    first, second = (c.all_reduce_seconds(size, ranks, LINK, algorithm=name, gamma=gamma, chunks=4)
                                     for name in (a, b))
                    return np.sign(first - second)

                assert lead(1.0) == -lead(1e15) if where < np.inf else lead(1.0) == lead(1e15)
                if where < np.inf:
                    assert lead(0.999 * where) == lead(1.0) and lead(1.001 * where) == lead(1e15)
    assert c.crossover_size("ring", "halving-doubling", 8, LINK) == np.inf  # same bytes, more steps
    assert c.crossover_size("ring", "tree", [4, 8], LINK).shape == (2,)
    assert c.crossover_size("tree", "ring", 8, LINK, "broadcast", chunks=16) > 0


def test_choose_is_the_minimum():
    for ranks in (2, 6, 8):
        for size in (1.0, 1e4, 1e6, 1e9):
            name = c.choose(size, ranks, LINK, chunks=16)
            times = {other: c.all_reduce_seconds(size, ranks, LINK, algorithm=other, chunks=16)
                     for other in RANKED if "server" not in other}
            assert times[name] == min(times.values())
    assert c.choose(1e9, 8, LINK, algorithms=("ring", "nvls")) == "nvls"
    assert c.choose(1e9, 6, LINK, "all-gather") == "ring" and c.choose(10.0, 8, LINK, "all-gather") != "ring"
    assert c.choose(1e6, 2, LINK, algorithms=("tree", "parameter-server")) == "tree"  # equal at two ranks: the first


def test_optimal_chunks_is_the_minimum():
    for size, ranks in ((2**20, 8), (2**28, 8), (2**20, 100), (1.0, 4), (1e9, 2)):
        best = c.optimal_chunks(size, ranks, LINK)
        every = [c.all_reduce_seconds(size, ranks, LINK, algorithm="double-tree", chunks=k)
                 for k in range(max(1, best - 3), best + 4)]
        assert min(every) == c.all_reduce_seconds(size, ranks, LINK, algorithm="double-tree", chunks=best)
    assert c.optimal_chunks(np.array([1.0, 1e9]), 8, LINK).shape == (2,)


def test_bounds_by_hand():
    link = SimpleNamespace(bandwidth=100.0, latency=2.0)
    assert [c.latency_bound("all-reduce", n, link) for n in (1, 2, 3, 8, 9)] == [0, 2, 4, 6, 8]
    assert c.latency_bound("send", 8, link) == 2
    assert c.bandwidth_bound("all-reduce", 800.0, 8, link) == pytest.approx(14)
    assert c.bandwidth_bound("all-reduce", 800.0, 8, link, in_network=True) == pytest.approx(8)
    assert c.bandwidth_bound("broadcast", 800.0, 8, link) == pytest.approx(8)


def test_two_ranks_are_the_least_that_must_send():
    link = SimpleNamespace(bandwidth=100.0, latency=2.0)
    assert c.bandwidth_bound("all-reduce", 800.0, 2, link) == c.bandwidth_bound("all-reduce", 800.0, 2, link,
                                                                                  in_network=True) == 8
    assert c.bandwidth_bound("all-gather", 800.0, 2, link) == 4


UNIT = SimpleNamespace(bandwidth=1.0, latency=1.0)


def test_a_crossover_by_hand():
    """Double tree of one chunk: 7 steps and 6 S, against ring's 14 steps and 7/4 S."""
    assert c.crossover_size("double-tree", "ring", 8, UNIT) == pytest.approx(7 / (6 - 7 / 4))
    assert c.crossover_size("double-tree", "ring", 8, SimpleNamespace(bandwidth=1.0, latency=1e-3)) == pytest.approx(
        7e-3 / (6 - 7 / 4))
    without = SimpleNamespace(bandwidth=1.0, latency=0.0)  # nothing but bytes: the same one wins at every size
    with np.errstate(all="raise"):
        assert c.crossover_size("double-tree", "ring", 8, without) == np.inf
        assert c.crossover_size("ring", "halving-doubling", 8, UNIT) == c.crossover_size("ring", "ring", 8, UNIT) == np.inf


def test_chunks_and_gamma_decide_what_is_chosen():
    """Two bytes: ring 14 + 7/2, double tree 7 + 12 in one chunk and 8 + 8 in two. One byte: see gamma."""
    pair = ("double-tree", "ring")
    assert c.choose(2.0, 8, UNIT, algorithms=pair) == "ring"
    assert c.choose(2.0, 8, UNIT, algorithms=pair, chunks=2) == "double-tree"
    pair = ("recursive-doubling", "ring")     # 3 + 3 + 3 gamma against 14 + 7/4 + 7/8 gamma
    assert [c.choose(1.0, 8, UNIT, algorithms=pair, gamma=gamma) for gamma in (0, 4, 5)] == [*pair[:1] * 2, "ring"]


def test_optimal_chunks_of_few_ranks_and_of_a_tie():
    assert [c.optimal_chunks(1e6, n, UNIT) for n in (1, 2)] == [1, 1]   # no pipeline to fill
    times = [c.all_reduce_seconds(1.0, 4, UNIT, algorithm="double-tree", chunks=k) for k in (1, 2)]
    assert times == [9, 9] and c.optimal_chunks(1.0, 4, UNIT) == 1      # of equally good ones the fewer


# Hierarchy and the published mistakes about it


def test_hierarchy_is_its_phases():
    intra, inter = SimpleNamespace(bandwidth=400.0, latency=1.0), SimpleNamespace(bandwidth=50.0, latency=5.0)

    def seconds(**kw):
        given = {"nodes": 4, "ranks_per_node": 8, "intra": intra, "inter": inter, "nics_per_node": 2} | kw
        return c.hierarchical_all_reduce_seconds(3200.0, **given)

    inside, across = 2 * (7 * 1 + 7 / 8 * 3200 / 400), 2 * 3 * 5 + 2 * 3 / 4 * 3200 / (2 * 50)
    assert seconds() == pytest.approx(inside + across)
    assert seconds(overlapped=True) == pytest.approx(max(inside, across))
    assert seconds(overlapped=True, nics_per_node=64) == pytest.approx(max(inside, 30 + 1.5 * 3200 / 3200))
    assert seconds(nodes=1) == pytest.approx(c.all_reduce_seconds(3200.0, 8, intra))
    assert seconds(ranks_per_node=1, nics_per_node=1) == pytest.approx(c.all_reduce_seconds(3200.0, 4, inter))
    assert seconds(nics_per_node=np.array([1, 2, 4])).shape == (3,)


def test_sixty_four_gpus_have_eight_nics_a_node():
    """All-reduce of 280 GB on 8 nodes of 8: 11 s is the time over one 50 GB/s NIC a node, 1.38 s over eight."""
    flat = [c.all_reduce_seconds(280e9, 64, SimpleNamespace(bandwidth=nics * 50e9, latency=0.0)) for nics in (1, 8)]
    assert flat == pytest.approx([11.025, 1.378], rel=1e-3)


def measured(id):
    rows = json.loads((pathlib.Path(__file__).parent / "fixtures" / "measurements.json").read_text())
    return next(row for row in rows if row["id"] == id)


def test_eight_ranks_on_two_to_eight_nodes_differ_by_their_nics():
    """Equal ranks and bytes, one NIC a GPU. A flat ring over one cross-node link would take equally long."""
    seconds = {row[0]: row[2] / 1e3 for row in measured("coll.ar.v100.dgx2.split")["rows"]}
    nic = SimpleNamespace(bandwidth=7.71e9, latency=0.0)  # calibrated on the 8 x 1 row
    nvlink = SimpleNamespace(bandwidth=150e9, latency=0.0)
    model = {g: c.hierarchical_all_reduce_seconds(1.6e9, nodes=8 // g, ranks_per_node=g, intra=nvlink, inter=nic,
                                                  nics_per_node=g) for g in (1, 2, 4)}
    assert model[1] == pytest.approx(seconds[1], rel=1e-3)
    assert model[2] == pytest.approx(seconds[2], rel=0.06)
    assert model[4] < seconds[4]  # four GPUs do not reach four times the NIC: another limit takes over


# Measured on GPUs: no row beats the bound of its algorithm; nvls rows may pass ring's


BUSBW = [("coll.ar.a100x8.stas", 300e9, "ring"), ("coll.ar.h200x8.stas.nvls", 450e9, "nvls"),
         ("coll.ar.h100x8.nt290", 450e9, "nvls"), ("coll.ar.gb200.8gpu.2trays.oci", 900e9, "nvls"),
         ("coll.ar.mi300x8.mpi", 448e9, "ring"), ("coll.ar.mi300x8.single_process", 448e9, "ring"),
         ("coll.ar.rtx4090x8.p2p_on", 31.5e9, "ring"), ("coll.ar.a100pcie2.nv12.no_graph", 300e9, "ring"),
         ("coll.ag.b200x8.poc", 900e9, "ring"), ("coll.ar.gb200.1rack.coreweave", 900e9, "nvls")]


@pytest.mark.parametrize("id, bandwidth, algorithm", BUSBW)
def test_no_measured_run_beats_the_bound_of_its_algorithm(id, bandwidth, algorithm):
    row = measured(id)
    link = SimpleNamespace(bandwidth=bandwidth, latency=0.0)
    operation, ranks = row.get("collective") or "all_reduce", row["ranks"]
    for size, micro, algbw, busbw in (line[:4] for line in row["rows"] if line[1] > 0):
        bound = c.collective_seconds(operation, size, ranks, link, algorithm=algorithm)
        assert micro * 1e-6 >= bound
        assert c.algbw(size, micro * 1e-6) / 1e9 == pytest.approx(algbw, rel=0.01, abs=0.02)
        assert c.busbw(operation, size, ranks, micro * 1e-6) / 1e9 == pytest.approx(busbw, rel=0.01, abs=0.02)


def test_in_network_reduction_explains_480_above_450():
    ring = c.bus_factor("all-reduce", 8) / c.bytes_sent("ring", 1.0, 8) * 450
    nvls = c.bus_factor("all-reduce", 8) / c.bytes_sent("nvls", 1.0, 8) * 450
    assert ring == pytest.approx(450) and nvls == pytest.approx(700)
    seen = max(line[3] for line in measured("coll.ar.h200x8.stas.nvls")["rows"])
    assert ring < seen < nvls


@pytest.mark.parametrize("call, words", [
    (lambda: c.steps("rings", 8), "algorithm='rings'.*near: ring"),
    (lambda: c.bus_factor("all-reduse", 8), "operation='all-reduse'.*near: all-reduce"),
    (lambda: c.bytes_sent("sharp", 1.0, 8, "broadcast"), "sharp.*does no broadcast; these do: ring"),
    (lambda: c.steps("halving-doubling", 6, "all-gather"), "ranks=6.*powers of two"),
    (lambda: c.steps("recursive-doubling", [8, 6], "all-gather"), "ranks=.*powers of two"),
    (lambda: c.steps("ring", 0), "ranks=0"), (lambda: c.steps("ring", 2.5), "ranks=2.5"),
    (lambda: c.steps("ring", float("nan")), "ranks=nan"), (lambda: c.steps("ring", float("inf")), "ranks=inf"),
    (lambda: c.all_reduce_seconds(-1, 8, LINK), "size=-1"), (lambda: c.all_reduce_seconds(1, 8, LINK, chunks=0), "chunks=0"),
    (lambda: c.all_reduce_seconds(1, 8, SimpleNamespace(bandwidth=0.0, latency=0.0)), "bandwidth=0"),
    (lambda: c.send_seconds(1, SimpleNamespace(bandwidth=1.0, latency=-1.0)), "latency=-1"),
    (lambda: c.schedule("nvls", 8), "switch adds"), (lambda: c.exact_bytes_sent("ring", -1, 4, 8), "elements=-1"),
    (lambda: c.exact_bytes_sent("ring", 8, 4, 8, 8), "rank=8"), (lambda: c.exact_bytes_sent("ring", 8, 4, 8, -1), "rank=-1"),
    (lambda: c.bandwidth_bound("broadcast", 1, 8, LINK, in_network=True), "in_network"),
    (lambda: algorithms.whole(0), "^ranks=0"), (lambda: c.schedule("ring", 0), "^ranks=0"),
    (lambda: c.schedule("double-tree", 4, chunks=0), "^chunks=0"),
    (lambda: c.exact_bytes_sent("double-tree", 8, 4, 8, chunks=0), "^chunks=0"),
    (lambda: c.exact_bytes_sent("ring", 8, 0, 8), "^itemsize=0"), (lambda: c.exact_bytes_sent("ring", 8, 4, 0), "^ranks=0"),
    (lambda: c.optimal_chunks(1, 8, SimpleNamespace(bandwidth=1.0, latency=0.0)), "latency=0"),
    (lambda: c.hierarchical_all_reduce_seconds(1, nodes=0, ranks_per_node=8, intra=LINK, inter=LINK, nics_per_node=1),
     "^nodes=0"),
    (lambda: c.hierarchical_all_reduce_seconds(1, nodes=2, ranks_per_node=0, intra=LINK, inter=LINK, nics_per_node=1),
     "^ranks_per_node=0"),
    (lambda: c.hierarchical_all_reduce_seconds(1, nodes=2, ranks_per_node=8, intra=LINK, inter=LINK, nics_per_node=0.5),
     "^nics_per_node=0.5"),
])
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
