"""Ranks under leaf switches whose uplinks are fewer than their ports: an oversubscribed fabric, paced."""
import contextlib
from dataclasses import dataclass

from .links import Paced


@dataclass(frozen=True)
class Leaves(Paced):
    """`leaf[r]` is the leaf switch of rank r; all messages from one leaf to others share its one uplink, as do those in.

    Ports and uplinks carry `bandwidth` bytes/s per direction, messages take `latency` seconds more. With four ranks a
    leaf that is 4:1 oversubscription. Inside a leaf every rank has its own port.

    >>> Leaves(1e6, leaf=(0, 0, 1, 1)).path(0, 2, 4)[:2]
    ((('nic out', 0, 0), 1000000.0), (('nic in', 1, 0), 1000000.0))
    """
    leaf: tuple = ()

    def path(self, src: int, dst: int, ranks: int):
        here, there = self.leaf[src], self.leaf[dst]
        if here == there:
            return super().path(src, dst, ranks)
        return (("nic out", here, 0), self.bandwidth), (("nic in", there, 0), self.bandwidth), self.latency

    @contextlib.contextmanager
    def open(self, root: str, ranks: int):
        if len(self.leaf) != ranks or not set(self.leaf) <= set(range(ranks)):
            raise ValueError(f"leaf is {self.leaf!r}: want a leaf's number, 0 to {ranks - 1}, for each of {ranks} ranks")
        with super().open(root, ranks):
            yield
