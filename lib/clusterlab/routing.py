"""Who talks to whom, and what that puts on every cable of a fabric.

>>> from clusterlab.topology import fat_tree, route, traffic
>>> loads = route(fat_tree(8), traffic("permutation", 128, 1e6, seed=1), policy="adaptive")
>>> loads.max                        # spread evenly, no cable carries more than an endpoint's own
1000000.0
>>> route(fat_tree(8), traffic("permutation", 128, 1e6, seed=1)).max   # hashed, some flows meet
4000000.0
"""

import difflib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

_KINDS = ("ring", "all-to-all", "permutation", "halving-doubling", "neighbor", "incast")
_SAMPLES = 256  # ways through other groups that are tried for each flow of a dragonfly


@dataclass(frozen=True)
class Flows:
    """Messages between endpoints: unpacks into arrays ``src, dst, bytes``, which are built when they are asked for."""

    kind: str
    ranks: int
    size: float
    seed: int

    @cached_property
    def _arrays(self):
        n, size, rank = self.ranks, self.size, np.arange(self.ranks)
        if self.kind == "ring":
            return rank, (rank + 1) % n, np.full(n, 2 * (n - 1) / n * size)
        if self.kind == "neighbor":
            return rank[:-1], rank[1:], np.full(n - 1, size)
        if self.kind == "incast":
            return rank[1:], np.zeros(n - 1, dtype=int), np.full(n - 1, size)
        if self.kind == "permutation":
            order = np.random.default_rng(self.seed).permutation(n)
            return order, np.roll(order, -1), np.full(n, size)
        if self.kind == "halving-doubling":
            steps = [1 << k for k in range(n.bit_length() - 1)]
            return (np.tile(rank, len(steps)), np.concatenate([rank ^ step for step in steps]),
                    np.repeat([size / step for step in steps], n))
        src, dst = (array.ravel() for array in np.indices((n, n)))
        return src[src != dst], dst[src != dst], np.full(n * (n - 1), size / n)

    src = property(lambda self: self._arrays[0])
    dst = property(lambda self: self._arrays[1])
    bytes = property(lambda self: self._arrays[2])

    def __iter__(self):
        return iter(self._arrays)


def traffic(kind, ranks, size, *, seed=0):
    """The messages of a pattern on endpoints 0 to ranks-1, as ``src, dst, bytes``; ``size`` is one rank's array.

    ring: an all-reduce, 2(n-1)/n S to the next rank. halving-doubling: an all-reduce, S/2^k to the rank at distance 2^k,
    half of it each way of the algorithm; ranks must be a power of two. all-to-all: S/n to each other rank. permutation:
    S to one other rank, by a random cycle. neighbor: S to the next rank, the last to none, as in a pipeline. incast: S
    from all to rank 0. Raises ValueError for unknown kinds, fewer than two ranks, negative sizes.

    >>> src, dst, size = traffic("ring", 4, 100.0)
    >>> src.tolist(), dst.tolist(), size.tolist()
    ([0, 1, 2, 3], [1, 2, 3, 0], [150.0, 150.0, 150.0, 150.0])
    """
    name = str(kind).replace("_", "-").lower()
    name = {"alltoall": "all-to-all", "pipeline": "neighbor"}.get(name, name)
    if name not in _KINDS:
        near = difflib.get_close_matches(name, _KINDS, n=2, cutoff=0.4)
        raise ValueError(f"kind={kind!r} is unknown; {'near: ' + ', '.join(near) + '; ' if near else ''}"
                         f"known: {', '.join(_KINDS)}")
    if ranks != int(ranks) or ranks < 2:
        raise ValueError(f"ranks={ranks}: whole numbers from 2 are allowed")
    if name == "halving-doubling" and int(ranks) & (int(ranks) - 1):
        raise ValueError(f"ranks={ranks}: halving-doubling needs a power of two")
    if not size >= 0:
        raise ValueError(f"size={size}: bytes from 0 are allowed")
    return Flows(name, int(ranks), float(size), seed)


@dataclass(frozen=True)
class Loads:
    """Bytes on every directed cable: entry 2 c goes from the first to the second end of cable c, 2 c + 1 back."""

    fabric: object
    bytes: np.ndarray

    @property
    def max(self):
        """Bytes on the busiest cable."""
        return float(self.bytes.max(initial=0.0))

    @property
    def between_switches(self):
        """The loads of cables between switches alone; of a torus all."""
        if not self.fabric.switches:
            return self.bytes
        return self.bytes[len(self.bytes) - 2 * self.fabric.cables:]

    def on(self, u, v):
        """Bytes from node u to node v, parallel cables together."""
        return float(self.bytes[_cables(self.fabric, u, v)].sum())

    def seconds(self, link):
        """Seconds until the busiest cable has sent everything, all flows going on at once: a lower bound."""
        return self.max / link.bandwidth


def route(fabric, flows, *, policy="ecmp", failed=(), seed=0):
    """Put flows (``src, dst, bytes``) on the cables of a fabric.

    "ecmp" sends each flow along one of its shortest paths, chosen by a hash of its number and ``seed``, as switches do.
    "adaptive" spreads each evenly over all its shortest paths, as packet spraying does; on a dragonfly it takes the mix
    of shortest paths and detours through random groups with the least maximum (what adaptive routing there aims at).
    An all-to-all of every endpoint without failures is given as expected load, which both policies share on average.
    ``failed`` lists cables that are down, as pairs of node numbers (all parallel ones) or triples with the number of
    one; flows take other shortest paths, where none is left a longer one, and ValueError says when there is no way.

    >>> from clusterlab.topology import torus
    >>> route(torus((4,)), ([0], [2], [8.0]), policy="adaptive").bytes.tolist()
    [4.0, 0.0, 4.0, 0.0, 0.0, 4.0, 0.0, 4.0]
    """
    if policy not in ("ecmp", "adaptive"):
        raise ValueError(f"policy={policy!r}: 'ecmp' or 'adaptive' are allowed")
    layout = fabric.layout
    dead = _dead(fabric, failed)
    whole = isinstance(flows, Flows) and flows.kind == "all-to-all" and flows.ranks == fabric.endpoints
    if whole and not dead.any():
        return Loads(fabric, layout.all_to_all(flows.size / flows.ranks))
    src, dst, size = _checked(fabric, *flows)
    if policy == "ecmp":
        return Loads(fabric, _hashed(fabric, src, dst, size, dead, seed))
    shortest = _even(fabric, src, dst, size, dead)
    if not hasattr(layout, "detours"):
        return Loads(fabric, shortest)
    return Loads(fabric, _least_maximum(shortest, _even(fabric, src, dst, size, dead, seed=seed, valiant=True)))


def _checked(fabric, src, dst, size):
    src, dst = np.asarray(src), np.asarray(dst)
    size = np.broadcast_to(np.asarray(size, float), src.shape)
    for name, array in (("src", src), ("dst", dst)):
        if array.shape != size.shape or array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"{name}: one endpoint number for each flow is allowed")
        if len(array) and not 0 <= array.min() <= array.max() < fabric.endpoints:
            raise ValueError(f"{name}: 0 to {fabric.endpoints - 1} are allowed, got {array.min()} to {array.max()}")
    if not np.all(size >= 0):
        raise ValueError("bytes: from 0 are allowed")
    return src.astype(np.int64), dst.astype(np.int64), size


def _cables(fabric, u, v):
    """Directed cables from node u to node v."""
    low, high = fabric.layout.cable_ends.T
    found = np.concatenate([2 * np.flatnonzero((low == u) & (high == v)), 2 * np.flatnonzero((low == v) & (high == u)) + 1])
    if u < 0 or v < 0 or not len(found):
        raise ValueError(f"no cable joins nodes {u} and {v}")
    return found


def _dead(fabric, failed):
    dead = np.zeros(2 * len(fabric.layout.cable_ends), dtype=bool)
    for u, v, *number in failed:
        cables = _cables(fabric, u, v)
        if number and not 0 <= number[0] < len(cables):
            raise ValueError(f"failed={(u, v, *number)}: there are {len(cables)} cables, from 0")
        cables = cables[number[0]:number[0] + 1] if number else cables
        dead[cables] = dead[cables ^ 1] = True
    return dead


def _hash(flow, seed):
    """pick(n) of paths: for each flow number a different number below n at every call (splitmix64)."""
    calls = 0

    def pick(n):
        nonlocal calls
        calls += 1
        x = flow.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64((seed * 1_000_003 + calls) % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return ((x ^ (x >> np.uint64(31))) % np.uint64(n)).astype(np.int64)

    return pick


def _nth(count, choice):
    """pick(n) of paths: the digits of one number, the same for all flows."""
    def pick(n):
        nonlocal choice
        choice, digit = divmod(choice, n)
        return np.full(count, digit)

    return pick


def _add(loads, path, weight):
    used = path >= 0
    loads += np.bincount(path[used], np.repeat(weight, used.sum(axis=1)), len(loads))


def _blocked(path, dead):
    return (dead[path] & (path >= 0)).any(axis=1)


def _hashed(fabric, src, dst, size, dead, seed):
    flow, loads = np.arange(len(src)), np.zeros(len(dead))
    for attempt in range(100):  # a switch hashes again over what is left
        path = fabric.layout.paths(src[flow], dst[flow], _hash(flow, seed + 7919 * attempt))
        blocked = _blocked(path, dead)
        _add(loads, path[~blocked], size[flow[~blocked]])
        flow = flow[blocked]
        if not len(flow):
            return loads
    for one in flow:
        loads[fabric.detour(src[one], dst[one], dead)] += size[one]
    return loads


def _even(fabric, src, dst, size, dead, seed=0, **how):
    """Every flow spread evenly over its paths that are not dead."""
    layout, loads = fabric.layout, np.zeros(len(dead))
    if hasattr(layout, "spread"):
        hit = layout.touched(src, dst, np.unique(np.flatnonzero(dead) // 2))
        loads += layout.spread(src[~hit], dst[~hit], size[~hit])
        src, dst, size = src[hit], dst[hit], size[hit]
    count = layout.detours if how else layout.choices
    numbers = range(count) if count <= _SAMPLES or not how else np.random.default_rng(seed).choice(count, _SAMPLES, False)
    if not len(src):
        return loads

    def paths(number):
        return layout.paths(src, dst, _nth(len(src), int(number)), **how)

    alive = sum((~_blocked(paths(number), dead)).astype(int) for number in numbers) if dead.any() else len(numbers)
    weight = size / np.maximum(alive, 1)
    for number in numbers:
        path = paths(number)
        open_ = ~_blocked(path, dead)
        _add(loads, path[open_], weight[open_])
    for one in np.flatnonzero(np.broadcast_to(alive, src.shape) == 0):
        loads[fabric.detour(src[one], dst[one], dead)] += size[one]
    return loads


def _least_maximum(first, second):
    """The mix of two loads whose maximum is smallest: a convex function of the share, searched by thirds."""
    low, high = 0.0, 1.0
    for _ in range(100):
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        worst = [(share * second + (1 - share) * first).max(initial=0.0) for share in (left, right)]
        low, high = (low, right) if worst[0] <= worst[1] else (left, high)
    return low * second + (1 - low) * first
