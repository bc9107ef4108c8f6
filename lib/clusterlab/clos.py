"""Folded Clos networks: leaves, spines, cores. Fat trees, rail-optimized, rail-only and multi-plane fabrics are all this.

A parallel-ports generalized fat tree (Zahavi, "Fat-trees routing and node ordering providing contention free traffic",
2011; Ohring et al. 1995) has tiers 1 to t. A switch of tier i has ``children[i]`` below it, each of those has
``parents[i]`` above it, and a pair is joined by ``parallel[i]`` cables. Tier 0 are the slots for endpoints.

A node of tier i is named by the subtree it stands over and by its number in there. Going up, a path chooses a parent in
each tier until the subtree holds the destination; going down it has no choice but among parallel cables.

>>> Clos(children=(2, 2), parents=(1, 2)).tiers
(2, 2)
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np


@dataclass(frozen=True)
class Clos:
    """One folded Clos network, or ``planes`` equal ones side by side.

    ``rails`` says how servers are cabled: endpoint e is GPU e mod rails of server e // rails, and goes to a leaf of its
    rail. With ``planes`` it goes to the plane of its rail, and planes have no cable between them. ``forwards`` lets a
    message first cross the server's own NVLink to the GPU on the destination's rail, as NCCL's PXN does.
    ``unused`` slots, the last ones, have no endpoint. Raises ValueError when a switch would need more than ``radix``
    ports, and for counts that do not fit together.
    """

    children: tuple
    parents: tuple
    parallel: tuple = ()
    radix: int | None = None
    rails: int = 1
    planes: int = 1
    forwards: bool = True
    unused: int = 0

    def __post_init__(self):
        if not self.parallel:
            object.__setattr__(self, "parallel", (1,) * len(self.children))
        if not len(self.children) == len(self.parents) == len(self.parallel) > 0:
            raise ValueError(f"children={self.children}, parents={self.parents}, parallel={self.parallel}: "
                             "one number for each tier is allowed")
        for name in ("children", "parents", "parallel"):
            if any(value != int(value) or value < 1 for value in getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)}: whole numbers from 1 are allowed")
        for tier, (down, up) in enumerate(self.ports, 1):
            if self.radix is not None and down + up > self.radix:
                raise ValueError(f"a switch of tier {tier} needs {down} ports down and {up} up, and has {self.radix}")
        if self.planes == 1 and prod(self.children[1:]) % self.rails:
            raise ValueError(f"rails={self.rails}: a divisor of the {prod(self.children[1:])} leaves is allowed")
        if self.planes > 1 and not (self.planes == self.rails and self.forwards):
            raise ValueError(f"planes={self.planes}: as many as rails={self.rails} are allowed, with forwards")
        if not 0 <= self.unused < self.slots:
            raise ValueError(f"unused={self.unused}: 0 to {self.slots - 1} are allowed")

    @property
    def ports(self):
        """For each tier the ports of a switch that go down and up."""
        up = [w * p for w, p in zip(self.parents, self.parallel, strict=True)][1:] + [0]
        return tuple((m * p, u) for m, p, u in zip(self.children, self.parallel, up, strict=True))

    @property
    def slots(self):
        return self.planes * prod(self.children)

    @property
    def endpoints(self):
        return self.slots - self.unused

    def nodes(self, tier):
        """Number of switches of a tier, all planes together; slots for tier 0."""
        return self.planes * prod(self.parents[:tier]) * prod(self.children[tier:])

    @property
    def tiers(self):
        """Number of switches of each tier."""
        return tuple(self.nodes(tier) for tier in range(1, len(self.children) + 1))

    @property
    def switches(self):
        return sum(self.tiers)

    @property
    def endpoint_cables(self):
        return self.endpoints * self.parents[0] * self.parallel[0]

    @property
    def cables(self):
        return sum(self._tier_cables(tier) for tier in range(2, len(self.children) + 1))

    @property
    def diameter(self):
        """Links of the longest shortest path; two more between planes, through a server."""
        return 2 * len(self.children) + (2 if self.planes > 1 else 0)

    @property
    def servers(self):
        """GPUs of a server that NVLink joins, or 1."""
        return self.rails

    @property
    def oversubscription(self):
        """For each tier the bandwidth of all endpoints under a switch group over the bandwidth that leaves it upwards."""
        into = [self.parents[0] * self.parallel[0] * prod(self.children[:tier]) for tier in range(1, len(self.children))]
        return tuple(down / up for down, up in zip(into, map(self._uplinks, range(1, len(self.children))), strict=True))

    @property
    def bisection_cables(self):
        """Cables from `half` of the endpoints to the others, in one direction: what max-flow finds.

        A subtree can send what its children can and what its uplinks carry, whichever is less.
        """
        half, subtree = 0, self.parents[0] * self.parallel[0]
        for tier, children in enumerate(self.children, 1):
            half = children // 2 * subtree + (half if children % 2 else 0)
            subtree = min(children * subtree, self._uplinks(tier))
        return min(self.planes * half, len(self.half) * self.parents[0] * self.parallel[0])

    @property
    def half(self):
        """The first half of the endpoints, whole servers."""
        return np.arange(self.endpoints // self.rails // 2 * self.rails)

    def _uplinks(self, tier):
        """Cables that leave a subtree of that tier upwards; the top's are not limited, for there are none."""
        if tier == len(self.children):
            return 0
        return prod(self.parents[:tier]) * self.parents[tier] * self.parallel[tier]

    def _tier_cables(self, tier):
        return self.nodes(tier - 1) * self.parents[tier - 1] * self.parallel[tier - 1]

    def _first_cable(self, tier):
        return sum(self._tier_cables(lower) for lower in range(1, tier))

    @cached_property
    def position(self):
        """Slot of each endpoint."""
        endpoint = np.arange(self.endpoints)
        server, rail = endpoint // self.rails, endpoint % self.rails
        if self.planes > 1:
            return rail * prod(self.children) + server
        group, place = np.divmod(server, self.children[0])
        return (group * self.rails + rail) * self.children[0] + place

    @cached_property
    def cable_ends(self):
        """Node numbers of the lower and upper end of every cable; -1 where the slot is unused. Endpoints come first."""
        below = np.full(self.slots, -1)
        below[self.position] = np.arange(self.endpoints)
        ends, first = [], self.endpoints
        for tier in range(1, len(self.children) + 1):
            ups = self.parents[tier - 1] * self.parallel[tier - 1]
            subtree, number = np.divmod(np.arange(self.nodes(tier - 1)), prod(self.parents[:tier - 1]))
            above = subtree // self.children[tier - 1] * prod(self.parents[:tier]) + number * self.parents[tier - 1]
            choice = np.arange(ups) // self.parallel[tier - 1]
            ends.append(np.stack([np.repeat(below, ups), (first + above[:, None] + choice).ravel()], axis=1))
            below = first + np.arange(self.nodes(tier))
            first += self.nodes(tier)
        ends = np.concatenate(ends)
        ends[ends[:, 0] < 0] = -1
        return ends

    @property
    def choices(self):
        """Number of ways `paths` can be asked to choose."""
        return prod(self.parents) * prod(self.parallel) ** 2

    def _slots_of(self, src, dst):
        if self.rails > 1 and self.forwards:
            src = src // self.rails * self.rails + dst % self.rails
        return self.position[src], self.position[dst]

    def _top(self, a, b):
        """The tier in which two slots first share a subtree; 0 for the same slot."""
        return sum((a // prod(self.children[:tier]) != b // prod(self.children[:tier])).astype(int)
                   for tier in range(len(self.children)))

    def paths(self, src, dst, pick):
        """Directed cables of each flow's path, padded with -1: 2 c goes up cable c, 2 c + 1 down.

        ``pick(n)`` returns for each flow a number below n. Within a server there is no path: NVLink carries it.
        """
        a, b = self._slots_of(src, dst)
        top, height = self._top(a, b), len(self.children)
        path = np.full((len(a), 2 * height), -1)
        number = np.zeros(len(a), dtype=int)
        for tier in range(1, height + 1):
            parents, parallel = self.parents[tier - 1], self.parallel[tier - 1]
            parent, up, down = pick(parents), pick(parallel), pick(parallel)
            used = top >= tier
            for column, slot, cable, way in ((tier - 1, a, up, 0), (2 * height - tier, b, down, 1)):
                node = slot // prod(self.children[:tier - 1]) * prod(self.parents[:tier - 1]) + number
                identity = self._first_cable(tier) + (node * parents + parent) * parallel + cable
                path[:, column] = np.where(used, 2 * identity + way, -1)
            number = number * parents + parent
        return path

    def spread(self, src, dst, size):
        """Bytes on every directed cable when each flow is spread evenly over all its shortest paths."""
        a, b = self._slots_of(src, dst)
        top = self._top(a, b)

        def leaving(slot, tier):
            subtree, used = slot // prod(self.children[:tier - 1]), top >= tier
            return np.bincount(subtree[used], size[used], minlength=self.slots // prod(self.children[:tier - 1]))

        return self._over_cables([(leaving(a, tier), leaving(b, tier)) for tier in range(1, len(self.children) + 1)])

    def all_to_all(self, size):
        """Bytes on every directed cable when every endpoint sends ``size`` to every other, spread evenly."""
        groups = self.rails if self.forwards else 1
        rail = np.arange(self.endpoints) % groups
        every = np.bincount(rail)
        tiers = []
        for tier in range(1, len(self.children) + 1):
            subtree = self.position // prod(self.children[:tier - 1])
            inside = np.zeros((self.slots // prod(self.children[:tier - 1]), groups))
            np.add.at(inside, (subtree, rail), 1)
            sent = (inside * (every - inside)).sum(axis=1) * groups * size
            tiers.append((sent, sent))
        return self._over_cables(tiers)

    def _over_cables(self, tiers):
        """Share what goes up from and down to each subtree among the cables above it."""
        loads = []
        for tier, both in enumerate(tiers, 1):
            ways = prod(self.parents[:tier]) * self.parallel[tier - 1]
            loads.append(np.stack([np.repeat(one / ways, ways) for one in both], axis=1))
        return np.concatenate(loads).ravel()

    def touched(self, src, dst, cables):
        """Which flows have one of these cables on one of their shortest paths."""
        a, b = self._slots_of(src, dst)
        top, found = self._top(a, b), np.zeros(len(a), dtype=bool)
        for cable in cables:
            tier = max(t for t in range(1, len(self.children) + 1) if cable >= self._first_cable(t))
            ups = prod(self.parents[:tier]) * self.parallel[tier - 1]
            subtree = (cable - self._first_cable(tier)) // ups
            size = prod(self.children[:tier - 1])
            found |= (top >= tier) & ((a // size == subtree) | (b // size == subtree))
        return found
