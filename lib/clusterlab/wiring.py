"""How the GPUs of one node are wired, and what that lets a pair, a group and one half of them send.

A `Wiring` is a graph: GPUs, switches, and the bytes/s in one direction of the links between them. What can pass from
some GPUs to others at the same time is the maximum flow of the graph (Ford and Fulkerson 1956): as much as the cheapest
set of links that cuts them apart.

>>> full, star = mesh(8, 64e9), switch(8, 448e9)
>>> [wiring.pair(0, 1) / 1e9 for wiring in (full, star)], [wiring.half() / 1e9 for wiring in (full, star)]
([64.0, 448.0], [1024.0, 1792.0])
"""

from collections import deque
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from clusterlab import topo

_SPLITS = 12  # GPUs up to which all balanced halves are tried


@dataclass(frozen=True)
class Wiring:
    """``capacity[i, j]`` is what passes from i to j, bytes/s in one direction; the first ``gpus`` rows are GPUs, the
    others switches.

    Errors: ValueError for a matrix that is not square, negative, or not alike in both directions, or too few rows.

    >>> Wiring("a pair", 2, np.array([[0, 25e9], [25e9, 0]])).send(0)
    25000000000.0
    """

    name: str
    gpus: int
    capacity: np.ndarray

    def __post_init__(self):
        capacity = np.array(self.capacity, float)
        if capacity.ndim != 2 or len(set(capacity.shape)) != 1 or not 2 <= self.gpus <= len(capacity):
            raise ValueError(f"{self.name}: capacity must be square with a row for each of {self.gpus} GPUs (two or "
                             f"more), not {capacity.shape}")
        if not np.all(capacity >= 0) or not np.array_equal(capacity, capacity.T) or np.any(np.diag(capacity)):
            raise ValueError(f"{self.name}: capacity must be 0 or more, the same in both directions, 0 on the diagonal")
        capacity.flags.writeable = False
        object.__setattr__(self, "capacity", capacity)

    def send(self, gpu):
        """All links of a GPU together, bytes/s in one direction.

        >>> switch(8, 450e9).send(3) / 1e9
        450.0
        """
        return float(self.capacity[gpu].sum())

    def flow(self, sources, targets, over=None):
        """The most that `sources` can send `targets` together, bytes/s; GPUs in ``over`` (default all) pass it on.

        >>> mesh(8, 64e9).flow([0], [1]) / 1e9             # the other six forward
        448.0
        """
        sources, targets = set(map(int, sources)), set(map(int, targets))
        if not sources or not targets or sources & targets or not sources | targets <= set(range(self.gpus)):
            raise ValueError(f"sources={sorted(sources)}, targets={sorted(targets)}: GPUs 0 to {self.gpus - 1}, at least "
                             "one on each side and none on both, are allowed")
        over = set(range(self.gpus)) if over is None else set(over)
        keep = sorted(sources | targets | over) + list(range(self.gpus, len(self.capacity)))
        where = {vertex: k for k, vertex in enumerate(keep)}
        n = len(keep)
        left = np.zeros((n + 2, n + 2))
        left[:n, :n] = self.capacity[np.ix_(keep, keep)]
        left[n, [where[s] for s in sources]] = left[[where[t] for t in targets], n + 1] = np.inf
        return _max_flow(left, n, n + 1)

    def pair(self, one, other):
        """What one GPU can send another when no third GPU forwards: directly, or through switches; bytes/s.

        >>> switch(8, 450e9).pair(0, 7) / 1e9
        450.0
        """
        return self.flow([one], [other], over=())

    def group(self, members):
        """What a GPU of the group can send to the rest of it without others' help; the least over the group, bytes/s.

        >>> [mesh(8, 64e9).group(range(n)) / 1e9 for n in (2, 4, 8)]
        [64.0, 192.0, 448.0]
        """
        members = list(members)
        return min(self.flow([m], set(members) - {m}, over=()) for m in members)

    def half(self):
        """What one half of the GPUs can send the other half, for the worst choice of halves; bytes/s, one direction.

        All balanced splits are tried up to 12 GPUs. Beyond, the first half against the second: right for one switch,
        whose GPUs are all alike.

        >>> mesh(4, 100e9).half() / 1e9
        400.0
        """
        everyone, count = set(range(self.gpus)), self.gpus // 2
        splits = combinations(range(self.gpus), count) if self.gpus <= _SPLITS else [range(count)]
        return min(self.flow(one, everyone - set(one)) for one in splits)


def mesh(gpus, per_link, name="full mesh"):
    """Each of `gpus` GPUs joined to each other one by a link of `per_link` bytes/s in one direction.

    >>> mesh(8, 64e9).send(0) / 1e9
    448.0
    """
    return Wiring(name, gpus, per_link * (1 - np.eye(gpus)))


def switch(gpus, bandwidth, chips=1, name="switch"):
    """`gpus` GPUs with `bandwidth` bytes/s in one direction each, spread evenly over `chips` switch chips.

    >>> switch(8, 450e9, chips=4).pair(0, 1) / 1e9
    450.0
    """
    capacity = np.zeros((gpus + chips, gpus + chips))
    capacity[:gpus, gpus:] = capacity[gpus:, :gpus] = bandwidth / chips
    return Wiring(name, gpus, capacity)


def recorded(matrix, link, name=""):
    """The wiring that a matrix of `nvidia-smi topo -m` shows, for GPUs that are joined directly; ``link`` is a GPU's.

    Raises ValueError where the cells of a GPU count more NVLinks than it has: there they go to a switch, which the
    matrix does not show, and each cell counts all of them.

    >>> from clusterlab.hardware import link
    >>> recorded(topo.machine("4 × A100 mesh"), link("NVLink 3")).pair(0, 3) / 1e9
    100.0
    """
    name, links = name or matrix.machine or "machine", matrix.nvlinks
    if (most := int(links.sum(axis=1).max())) > link.links:
        raise ValueError(f"{name}: the cells of a GPU count {most} links, it has {link.links}: they go to a switch, which "
                         "the matrix does not show")
    return Wiring(name, len(links), links * link.per_link)


def of(node):
    """The wiring of a `clusterlab.hardware` node: switch, mesh, or the recorded cube mesh of the DGX-1.

    Raises ValueError for a torus or PCIe, which this module does not wire.

    >>> from clusterlab.hardware import node
    >>> [of(node(name)).half() / 1e9 for name in ("DGX-1 V100", "MI300X Platform", "DGX H100")]
    [150.0, 1024.0, 1800.0]
    """
    if node.wiring == "cube-mesh":
        return recorded(topo.machine("DGX-1 V100"), node.scale_up, node.name)
    if node.wiring == "mesh":
        return mesh(node.devices, node.pair_bandwidth, node.name)
    if node.wiring != "switch":
        raise ValueError(f"node {node.name!r}: wired as switch, mesh or cube-mesh is allowed, not {node.wiring}")
    return switch(node.devices, node.scale_up.bandwidth, name=node.name)


def _max_flow(left, source, target):
    """Edmonds and Karp (1972): send along a shortest path with capacity left until there is none."""
    total = 0.0
    while True:
        before, queue = {source: None}, deque([source])
        while queue and target not in before:
            here = queue.popleft()
            for there in np.flatnonzero(left[here]).tolist():
                if there not in before:
                    before[there] = here
                    queue.append(there)
        if target not in before:
            return total
        path, at = [], target
        while before[at] is not None:
            path.append((before[at], at))
            at = before[at]
        passed = min(left[i, j] for i, j in path)
        for i, j in path:
            left[i, j] -= passed
            left[j, i] += passed
        total += float(passed)
