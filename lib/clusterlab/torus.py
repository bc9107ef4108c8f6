"""A torus: chips in a grid, rings in every dimension; each chip passes on what is not for it.

>>> Torus((4, 4)).bisection_cables, Torus((4, 4)).diameter
(8, 4)
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from math import factorial, prod

import numpy as np


@dataclass(frozen=True)
class Torus:
    """A grid of chips with rings in every dimension; each chip is its own router (TPU v4: Jouppi et al. 2023,
    arXiv:2304.01433). A dimension of two has one cable a pair, of one none.

    A path goes through the dimensions in some order and the shorter way around each; ties and orders are choices.
    """

    dims: tuple
    switches = 0
    endpoint_cables = 0
    servers = 1

    def __post_init__(self):
        if not self.dims or any(size != int(size) or size < 1 for size in self.dims):
            raise ValueError(f"dims={self.dims}: whole numbers from 1 are allowed")

    @property
    def endpoints(self):
        return prod(self.dims)

    @property
    def cables(self):
        return sum({1: 0, 2: self.endpoints // 2}.get(size, self.endpoints) for size in self.dims)

    @property
    def radix(self):
        return 0

    @property
    def diameter(self):
        return sum(size // 2 for size in self.dims)

    def _cut(self, left):
        """Cables of the cheapest cut in halves across the dimensions ``left``, and the order in which it takes them.

        A cut across an odd dimension leaves a slab over, that is halved across the others.
        """
        options = []
        for k in left:
            size = self.dims[k]
            if size > 1:
                rest, order = self._cut(left - {k}) if size % 2 else (0, ())
                slab = prod(self.dims[other] for other in left) // size
                options.append(((1 if size == 2 else 2) * slab + rest, (k, *order)))
        return min(options, default=(0, ()))

    @property
    def bisection_cables(self):
        """Cables that cross the cheapest cut in halves, each counted for one direction."""
        return self._cut(frozenset(range(len(self.dims))))[0]

    @property
    def half(self):
        """The chips on one side of that cut."""
        order = self._cut(frozenset(range(len(self.dims))))[1]
        at = self._coordinates(np.arange(self.endpoints))
        return np.lexsort([at[:, k] for k in reversed(order)])[:self.endpoints // 2]

    def _coordinates(self, node):
        return np.stack(np.unravel_index(node, self.dims), axis=-1)

    @cached_property
    def cable_ends(self):
        """Cable k N + v goes from chip v one step up in dimension k; -1 where there is none."""
        node = np.arange(self.endpoints)
        at, ends = self._coordinates(node), []
        for k, size in enumerate(self.dims):
            there = at.copy()
            there[:, k] = (at[:, k] + 1) % size
            pair = np.stack([node, np.ravel_multi_index(there.T, self.dims)], axis=1)
            pair[(size == 1) | ((size == 2) & (at[:, k] == 1))] = -1
            ends.append(pair)
        return np.concatenate(ends)

    @property
    def choices(self):
        return factorial(len(self.dims)) * 2 ** len(self.dims)

    def paths(self, src, dst, pick):
        """Directed cables of each flow's path, padded with -1: 2 c up cable c, 2 c + 1 back."""
        at, to = self._coordinates(src), self._coordinates(dst)
        orders = np.array(list(permutations(range(len(self.dims)))))[pick(factorial(len(self.dims)))]
        steps, way = np.zeros_like(at), np.zeros_like(at)
        for k, size in enumerate(self.dims):
            ahead, tie = (to[:, k] - at[:, k]) % size, pick(2)
            up = (2 * ahead < size) | ((2 * ahead == size) & (tie == 0))
            if size == 2:
                up = at[:, k] == 0  # the one cable of a pair
            steps[:, k], way[:, k] = np.where(up, ahead, (size - ahead) % size), np.where(up, 1, -1)
        path, length = np.full((len(at), max(self.diameter, 1)), -1), np.zeros(len(at), dtype=int)
        for turn in range(len(self.dims)):
            for k, size in enumerate(self.dims):
                for hop in range(size // 2):
                    moving = np.flatnonzero((orders[:, turn] == k) & (steps[:, k] > hop))
                    back = way[moving, k] < 0
                    after = at[moving].copy()
                    after[:, k] = (after[:, k] + way[moving, k]) % size
                    owner = np.where(back[:, None], after, at[moving])
                    cable = k * self.endpoints + np.ravel_multi_index(owner.T, self.dims)
                    path[moving, length[moving]] = 2 * cable + back
                    at[moving], length[moving] = after, length[moving] + 1
        return path

    def all_to_all(self, size):
        """By symmetry all cables of a dimension carry the same: its share of all distances."""
        loads = []
        for length in self.dims:
            hops = self.endpoints**2 * sum(min(x, length - x) for x in range(length)) / length
            one = hops * size / (self.endpoints if length == 2 else 2 * self.endpoints)
            loads.append(np.full(2 * self.endpoints, one))
        loads = np.concatenate(loads)
        loads[np.repeat(self.cable_ends[:, 0] < 0, 2)] = 0.0
        return loads
