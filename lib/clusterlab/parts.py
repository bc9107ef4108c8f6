"""Pieces of a cluster's network as a price table lists them: switches, cables, NICs, servers."""

from dataclasses import dataclass

from clusterlab.checks import count, instance, positive
from clusterlab.components import Link

KINDS = ("switch", "cable", "nic", "server")


@dataclass(frozen=True)
class Part:
    """One piece of a cluster's network in the dated price table: ``price`` in US dollars, ``power`` in W, each of one
    piece. ``kind`` is switch, cable, nic or server; a cable includes the transceivers at both its ends.

    Errors: ValueError for an unknown kind, fewer than one port, a price or power that is not positive.

    >>> from clusterlab.hardware import part
    >>> switch = part("Quantum-2 QM9700")
    >>> switch.ports, switch.bandwidth * 8 / 1e12, switch.price, switch.date
    (64, 25.6, 36000, '2024-08')
    """

    name: str
    kind: str
    ports: int
    link: Link
    price: float | None = None
    power: float | None = None
    source: str = ""
    date: str = ""
    notes: str = ""

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"{self.name}: kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        count(self, "ports")
        instance(self, "link", Link)
        for name in ("price", "power"):
            if getattr(self, name) is not None:
                positive(self, name)

    @property
    def bandwidth(self):
        """All ports together, bytes/s in one direction."""
        return self.ports * self.link.bandwidth
