"""A dragonfly: groups of routers, every group next to every other.

>>> Dragonfly(p=1, a=2, h=1, groups=3).endpoints, Dragonfly(p=1, a=2, h=1, groups=3).diameter
(6, 5)
"""

from dataclasses import dataclass
from functools import cached_property
from math import lcm

import numpy as np


@dataclass(frozen=True)
class Dragonfly:
    """Groups of ``a`` routers, all joined; each router has ``p`` endpoints and ``h`` cables to other groups.

    Kim, Dally, Scott, Abts, "Technology-driven, highly-scalable dragonfly topology" (ISCA 2008). A group's ports, those
    of its routers in order, lead 1 group back, 2 groups back and so on, so that with a h + 1 groups each pair of groups
    has one cable. With fewer groups each gets as many as the others, and the nearest one more.
    """

    p: int
    a: int
    h: int
    groups: int
    servers = 1

    def __post_init__(self):
        for name in ("h", "a", "p", "groups"):
            if getattr(self, name) != int(getattr(self, name)) or getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: whole numbers from 1 are allowed")
        if not 2 <= self.groups <= self.a * self.h + 1:
            raise ValueError(f"groups={self.groups}: 2 to a h + 1 = {self.a * self.h + 1} are allowed")
        if self.groups % 2 and self.a * self.h % 2:
            raise ValueError(f"groups={self.groups} with {self.a * self.h} ports each: an odd number of cable ends")

    @property
    def routers(self):
        return self.a * self.groups

    @property
    def switches(self):
        return self.routers

    @property
    def endpoints(self):
        return self.p * self.routers

    @property
    def endpoint_cables(self):
        return self.endpoints

    @property
    def radix(self):
        return self.p + self.a - 1 + self.h

    @property
    def _locals(self):
        return self.a * (self.a - 1) // 2

    @property
    def cables(self):
        return self.groups * self._locals + self.routers * self.h // 2

    @property
    def diameter(self):
        """With all groups 5: endpoint, local, global, local, endpoint. With fewer it is counted from one group on."""
        reached, steps = np.zeros((self.a, self.routers), dtype=bool), 0
        reached[range(self.a), range(self.a)] = True
        near, far = self.cable_ends[self.endpoints:].T - self.endpoints
        while not reached.all():
            before, steps = reached.copy(), steps + 1
            for here, there in ((near, far), (far, near)):
                source, cable = np.nonzero(before[:, here])
                reached[source, there[cable]] = True
        return steps + 2

    @cached_property
    def _ports(self):
        """For each port of a group: how many groups ahead it leads, and the port at which it arrives there."""
        back = np.arange(1, self.groups)
        each, extra = divmod(self.a * self.h, self.groups - 1)
        nearest = np.minimum(back, self.groups - back) <= extra // 2
        count = each + nearest + ((2 * back == self.groups) & (extra % 2 == 1))
        ahead = np.repeat(self.groups - back, count)
        return ahead, len(ahead) - 1 - np.arange(len(ahead))

    @cached_property
    def _exits(self):
        """Directed cable that leaves group g through port s; and the table of ports by how far they lead."""
        ahead, there = self._ports
        group, port = np.indices((self.groups, len(ahead)))
        other = (group + ahead) % self.groups
        here, far = group * len(ahead) + port, other * len(ahead) + there
        owned = here < far
        number = np.zeros(here.size, dtype=int)
        number[here[owned]] = np.arange(owned.sum())
        number[far[owned]] = np.arange(owned.sum())
        directed = 2 * (self.endpoints + self.groups * self._locals + number.reshape(here.shape)) + ~owned
        most = np.bincount(ahead).max()
        by_distance = np.zeros((self.groups, most), dtype=int)
        count = np.bincount(ahead, minlength=self.groups)
        for distance in range(1, self.groups):
            found = np.flatnonzero(ahead == distance)
            by_distance[distance] = np.resize(found, most)
        return directed, by_distance, count

    @cached_property
    def cable_ends(self):
        """Endpoint cables, then those within groups, then those between, as node numbers; routers follow endpoints."""
        endpoint = np.arange(self.endpoints)
        first, second = np.triu_indices(self.a, 1)
        base = self.endpoints + self.a * np.arange(self.groups)[:, None]
        inside = np.stack([(base + first).ravel(), (base + second).ravel()], axis=1)
        ahead, there = self._ports
        group, port = np.indices((self.groups, len(ahead)))
        near = self.endpoints + group * self.a + port // self.h
        far = self.endpoints + (group + ahead) % self.groups * self.a + there // self.h
        owned = self._exits[0] % 2 == 0
        return np.concatenate([np.stack([endpoint, self.endpoints + endpoint // self.p], axis=1), inside,
                               np.stack([near[owned], far[owned]], axis=1)])

    @property
    def bisection_cables(self):
        """Cables from the first half of the endpoints to the second, in one direction.

        With all a h + 1 groups, a even, this is h^2 squared between groups and a/2 squared within the middle one.
        """
        middle = self.endpoints + self.routers // 2
        near, far = self.cable_ends[self.endpoints:].T
        half_router = self.p // 2 if self.routers % 2 else 0
        return min(int(((near < middle) != (far < middle)).sum()) + half_router, self.endpoints // 2)

    @property
    def half(self):
        """The first half of the endpoints."""
        return np.arange(self.endpoints // 2)

    @property
    def choices(self):
        return lcm(*set(self._exits[2][1:].tolist()))

    @property
    def detours(self):
        """Choices of a path through another group."""
        return max(self.groups - 2, 1) * self.choices**2

    def _within(self, start, end):
        """Directed cable between two routers of a group; -1 for the same."""
        low, high = np.minimum(start, end) % self.a, np.maximum(start, end) % self.a
        pair = low * self.a - low * (low + 1) // 2 + high - low - 1
        cable = self.endpoints + start // self.a * self._locals + pair
        return np.where(start == end, -1, 2 * cable + (start > end))

    def _leave(self, router, group, pick):
        """Cables from a router to a group, and the router where they arrive; nothing when it is there already."""
        directed, by_distance, count = self._exits
        distance = (group - router // self.a) % self.groups
        port = by_distance[distance, pick(self.choices) % np.maximum(count[distance], 1)]
        gate = router // self.a * self.a + port // self.h
        arrival = group * self.a + self._ports[1][port] // self.h
        away = distance > 0
        cables = [np.where(away, self._within(router, gate), -1),
                  np.where(away, directed[router // self.a, port], -1)]
        return cables, np.where(away, arrival, router)

    def paths(self, src, dst, pick, valiant=False):
        """Directed cables of each flow's path, padded with -1; ``valiant`` goes through a chosen other group first."""
        start, end = src // self.p, dst // self.p
        columns, router = [2 * src], start
        if valiant and self.groups > 2:
            low, high = np.minimum(start, end) // self.a, np.maximum(start, end) // self.a
            through = pick(self.groups - 2)
            through = through + (through >= low)
            through = through + (through >= high)
            cables, router = self._leave(router, np.where(low == high, low, through), pick)
            columns += cables
        cables, router = self._leave(router, end // self.a, pick)
        path = np.stack([*columns, *cables, self._within(router, end), 2 * dst + 1], axis=1)
        path[src == dst] = -1
        return path

    def all_to_all(self, size):
        """Minimal routes; all groups look alike, so that one group's messages give every group's cables their load."""
        start, end = (array.ravel() for array in np.indices((self.a, self.routers)))
        loads = np.zeros(2 * len(self.cable_ends))
        weight = np.full(len(start), float(size) * self.p**2 / self.choices)
        for number in range(self.choices):
            path = self.paths(start * self.p, end * self.p, lambda n, number=number: np.full(len(start), number % n))
            inner = path[:, 1:-1]
            loads += np.bincount(inner[inner >= 0], np.repeat(weight, (inner >= 0).sum(axis=1)), len(loads))
        total = np.zeros_like(loads)
        total[:2 * self.endpoints] = (self.endpoints - 1) * float(size)
        inside = slice(2 * self.endpoints, 2 * (self.endpoints + self.groups * self._locals))
        total[inside] = np.tile(loads[inside].reshape(self.groups, -1).sum(axis=0), self.groups)
        exits = self._exits[0]
        total[exits] = np.broadcast_to(loads[exits].sum(axis=0), exits.shape)
        return total
