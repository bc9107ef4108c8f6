"""Network fabrics: how many switches and cables, how far, how much can cross the middle, at what price.

Counts come from formulas, not from a graph: a fat tree of 65,536 endpoints is counted in microseconds. ``Fabric.graph``
builds the graph when it is asked for. Traffic is put on the cables by `route`.

>>> from types import SimpleNamespace
>>> tree = fat_tree(48)
>>> tree.endpoints, tree.switches, tree.cables
(27648, 2880, 55296)
>>> tree.bisection_bandwidth(SimpleNamespace(bandwidth=50e9)) / 1e12
691.2
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from clusterlab.clos import Clos
from clusterlab.dragonfly import Dragonfly
from clusterlab.routing import Flows, Loads, route, traffic
from clusterlab.torus import Torus

__all__ = ["Clos", "Cost", "Dragonfly", "Fabric", "Flows", "Loads", "Torus", "clos", "dragonfly", "fat_tree",
           "network_cost", "rail_only", "rail_optimized", "route", "superpod", "torus", "traffic"]


@dataclass(frozen=True)
class Fabric:
    """A named layout of endpoints, switches and cables; `fat_tree` and the others make one.

    Nodes are numbered: endpoints 0 to endpoints-1, then switches, tier by tier. A bandwidth is per direction.

    >>> torus((4, 4, 4)).diameter()
    6
    """

    name: str
    layout: Clos | Dragonfly | Torus

    @property
    def endpoints(self):
        """Network ports of GPUs, one each."""
        return self.layout.endpoints

    @property
    def switches(self):
        """Switches of all tiers; a torus has none, its chips are their own."""
        return self.layout.switches

    @property
    def cables(self):
        """Cables between switches; of a torus, between chips."""
        return self.layout.cables

    @property
    def endpoint_cables(self):
        """Cables between endpoints and switches."""
        return self.layout.endpoint_cables

    def diameter(self):
        """Links on the longest of all shortest paths between endpoints, those at its ends included.

        >>> fat_tree(4).diameter(), dragonfly(2).diameter()
        (6, 5)
        """
        return self.layout.diameter

    def bisection_bandwidth(self, link):
        """Bytes/s in one direction from one half of the endpoints to the other, ``link`` being every cable.

        The halves are ``layout.half``, the first half of the servers or the cheapest cut of a torus, and the rest. It is
        the maximum flow between them, and no other split in halves has less (of a dragonfly with all its groups).

        >>> from types import SimpleNamespace
        >>> torus((16, 20, 28)).bisection_bandwidth(SimpleNamespace(bandwidth=1.0))
        640.0
        """
        return self.layout.bisection_cables * link.bandwidth

    @cached_property
    def graph(self):
        """networkx.Graph with node attribute ``kind`` (endpoint, switch, server) and edge attribute ``cables``.

        A server that NVLink joins is a node of its own, after the switches; its edges have infinitely many cables.
        """
        import networkx as nx

        graph = nx.Graph()
        graph.add_nodes_from(range(self.endpoints), kind="endpoint")
        graph.add_nodes_from(range(self.endpoints, self.endpoints + self.switches), kind="switch")
        pairs = self.layout.cable_ends[self.layout.cable_ends[:, 0] >= 0]
        pairs, count = np.unique(np.sort(pairs, axis=1), axis=0, return_counts=True)
        graph.add_edges_from((u, v, {"cables": n}) for (u, v), n in zip(pairs.tolist(), count.tolist(), strict=True))
        if self.layout.servers > 1:
            for endpoint in range(self.endpoints):
                server = self.endpoints + self.switches + endpoint // self.layout.servers
                graph.add_node(server, kind="server")
                graph.add_edge(endpoint, server, cables=float("inf"))
        return graph

    def detour(self, src, dst, dead):
        """Directed cables of a shortest path that avoids dead ones; ValueError when there is none.

        ``dead`` holds True for every directed cable that is down.
        """
        import networkx as nx

        alive = nx.DiGraph()
        ends = self.layout.cable_ends
        for way in (0, 1):
            usable = np.flatnonzero((ends[:, 0] >= 0) & ~dead[way::2])
            alive.add_edges_from((int(ends[c, way]), int(ends[c, 1 - way]), {"cable": 2 * int(c) + way}) for c in usable)
        for u, v, cables in self.graph.edges(data="cables"):
            if cables == float("inf"):
                alive.add_edge(u, v), alive.add_edge(v, u)
        try:
            nodes = nx.shortest_path(alive, int(src), int(dst))
        except (nx.NetworkXNoPath, nx.NodeNotFound):
            raise ValueError(f"failed: endpoint {dst} cannot be reached from {src}") from None
        return [alive[u][v]["cable"] for u, v in pairwise(nodes) if "cable" in alive[u][v]]


def clos(children, parents, parallel=(), *, radix=None):
    """Any folded Clos network from its numbers for each tier; see `clusterlab.clos.Clos`.

    Raises ValueError for a switch that would need more than ``radix`` ports: ports are conserved.

    >>> clos((16, 32), (1, 16), radix=64).switches
    48
    """
    return Fabric("clos", Clos(tuple(children), tuple(parents), tuple(parallel), radix))


def fat_tree(radix, tiers=3, oversubscription=1):
    """The largest fat tree of switches with ``radix`` ports in 1, 2 or 3 tiers.

    Without oversubscription: k in one tier, k^2/2 endpoints and 3k/2 switches in two, k^3/4 endpoints, 5k^2/4 switches
    and k^3/2 cables in three (Al-Fares et al., SIGCOMM 2008). ``oversubscription`` is the bandwidth down over that up
    of a leaf: k o/(1+o) of its ports go down. Raises ValueError where ports do not divide.

    >>> [fat_tree(64, tiers).endpoints for tiers in (1, 2, 3)]
    [64, 2048, 65536]
    >>> fat_tree(64, 2, oversubscription=3).endpoints
    3072
    """
    if radix != int(radix) or radix < 2 or radix % 2:
        raise ValueError(f"radix={radix}: even whole numbers from 2 are allowed")
    k = int(radix)
    up = round(k / (1 + oversubscription)) if oversubscription > 0 else 0
    if up < 1 or abs(up * (1 + oversubscription) - k) > 1e-9:
        raise ValueError(f"oversubscription={oversubscription}: radix {k} does not divide into {oversubscription}:1")
    if tiers == 1:
        if oversubscription != 1:
            raise ValueError(f"oversubscription={oversubscription}: a single switch has no uplinks")
        return Fabric("fat tree", Clos((k,), (1,), radix=k))
    if tiers == 2:
        return Fabric("fat tree", Clos((k - up, k), (1, up), radix=k))
    if tiers == 3:
        return Fabric("fat tree", Clos((k - up, k // 2, k), (1, up, k // 2), radix=k))
    raise ValueError(f"tiers={tiers}: 1, 2 or 3 are allowed")


def rail_optimized(servers, rails=8, radix=64, *, pxn=True, unused=0):
    """Servers of ``rails`` GPUs, GPU r of every server on a leaf of rail r, leaves joined by spines without
    oversubscription.

    A leaf has radix/2 servers below and radix/2 cables up. Two tiers up to ``radix`` leaves, above that three, in pods
    of radix/2 leaves. Spines are the fewest to which a leaf's cables divide evenly. ``pxn`` lets a message cross NVLink
    to the GPU on the destination's rail first. ``unused`` servers at the end are left out. Raises ValueError where
    servers do not fill leaves or pods.

    >>> fabric = rail_optimized(servers=64)
    >>> fabric.endpoints, fabric.layout.tiers, fabric.cables
    (512, (16, 8), 512)
    """
    half = radix // 2
    if radix % 2 or servers % half or servers < 1:
        raise ValueError(f"servers={servers}: a multiple of {half}, half of an even radix={radix}, is allowed")
    leaves = servers // half * rails
    if leaves <= radix:
        shape = _two_tiers(half, leaves, radix)
    else:
        pods, rest = divmod(leaves, half)
        if rest or pods > radix or half % rails:
            raise ValueError(f"servers={servers}: in three tiers whole pods of {half * half // rails} are allowed")
        parallel = next(n for n in range(radix // pods, 0, -1) if half % n == 0)
        shape = (half, half, pods), (1, half, half // parallel), (1, 1, parallel)
    return Fabric("rail-optimized", Clos(*shape, radix, rails=rails, forwards=pxn, unused=unused * rails))


def _two_tiers(half, leaves, radix):
    parallel = next(n for n in range(half, 0, -1) if half % n == 0 and n * leaves <= radix)
    return (half, leaves), (1, half // parallel), (1, parallel)


def rail_only(servers, rails=8, radix=64):
    """A network for each rail and none between them (Wang et al. 2023, arXiv:2307.12169): a message to another rail
    crosses NVLink in its server first.

    Each rail is one switch up to ``radix`` servers, above that a full two-tier tree of radix/2 servers a leaf. Eight
    full planes of radix 64 are also the multi-plane fat tree of DeepSeek (arXiv:2505.09343).

    >>> rail_only(2048).endpoints, rail_only(2048).switches, rail_only(64).cables
    (16384, 768, 0)
    """
    if servers <= radix:
        shape = (servers,), (1,), (1,)
    else:
        half = radix // 2
        if servers % half or servers // half > radix:
            raise ValueError(f"servers={servers}: up to {radix}, or a multiple of {half} up to {half * radix}, is allowed")
        shape = _two_tiers(half, servers // half, radix)
    return Fabric("rail-only", Clos(*shape, radix, rails=rails, planes=rails))


def superpod(units, *, reserve=None):
    """NVIDIA DGX SuperPOD of H100, H200 or B200 systems: scalable units of 32 servers, rail-optimized, radix 64.

    ``reserve`` servers give their place to fabric management: by default one up to four units (127 of 128 servers, as
    in the reference architecture RA-11333) and none in the larger counts that it lists.
    Source: https://docs.nvidia.com/dgx-superpod/reference-architecture-scalable-infrastructure-b200/latest/

    >>> fabric = superpod(4)
    >>> fabric.endpoints, fabric.layout.tiers, fabric.cables
    (1016, (32, 16), 1024)
    """
    if units != int(units) or units < 1:
        raise ValueError(f"units={units}: whole numbers from 1 are allowed")
    reserve = int(units <= 4) if reserve is None else reserve
    return Fabric("superpod", rail_optimized(32 * int(units), unused=reserve).layout)


def dragonfly(h, *, p=None, a=None, groups=None):
    """A dragonfly, by default the balanced one of Kim et al. (ISCA 2008): a = 2h, p = h, a h + 1 groups.

    Then routers have 4h-1 ports, and there are 4h^4 + 2h^2 endpoints.

    >>> dragonfly(8).endpoints, dragonfly(8).switches
    (16512, 2064)
    """
    a = 2 * h if a is None else a
    return Fabric("dragonfly", Dragonfly(h if p is None else p, a, h, a * h + 1 if groups is None else groups))


def torus(dims):
    """A torus of the given lengths, one chip a place.

    >>> torus((16, 20, 28)).endpoints, torus((16, 20, 28)).cables
    (8960, 26880)
    """
    return Fabric("torus", Torus(tuple(dims)))


@dataclass(frozen=True)
class Cost:
    """Dollars and watts of a network, whole and per endpoint."""

    price: float
    power: float
    price_per_endpoint: float
    power_per_endpoint: float


def network_cost(fabric, *, switch, cable, endpoint_cable=None):
    """Price and power of a fabric's switches and cables.

    Each argument has ``.price`` (dollars) and ``.power`` (watts) of one piece, a cable with the transceivers at both its
    ends: `clusterlab.hardware.part` has dated ones. Without ``endpoint_cable`` those cables are not counted. Raises
    ValueError when the switch has too few ``.ports`` or a value is not published.

    >>> from types import SimpleNamespace
    >>> switch, cable = SimpleNamespace(price=36e3, power=747, ports=64), SimpleNamespace(price=1280, power=17)
    >>> cost = network_cost(fat_tree(64, 2), switch=switch, cable=cable, endpoint_cable=cable)
    >>> round(cost.price_per_endpoint, 1), round(cost.power_per_endpoint, 1)
    (4247.5, 69.0)
    """
    counts = [(fabric.switches, switch), (fabric.cables, cable)]
    if endpoint_cable is not None:
        counts.append((fabric.endpoint_cables, endpoint_cable))
    if getattr(switch, "ports", None) is not None and (fabric.layout.radix or 0) > switch.ports:
        raise ValueError(f"switch: {fabric.layout.radix} ports are needed, this one has {switch.ports}")
    for _, piece in counts:
        if piece.price is None or piece.power is None:
            raise ValueError(f"{getattr(piece, 'name', piece)!r} has no published price or power")
    price, power = (sum(n * getattr(piece, field) for n, piece in counts) for field in ("price", "power"))
    return Cost(price, power, price / fabric.endpoints, power / fabric.endpoints)
