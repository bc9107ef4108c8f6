"""What hardware is made of: links, accelerators, nodes, clusters and the pieces of a network.

:mod:`clusterlab.hardware` fills these with published values; the constructors are public, so that your own hardware
needs no entry there. Bandwidth is per direction and per device, peaks are dense, everything in SI base units; ``None``
means "not published", and :func:`published` turns it into an error where a value is needed.

>>> Link("my cable", 50e9, links=4).bidirectional_bandwidth
400000000000.0
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import numpy as np

from clusterlab.checks import count, instance, positive

WIRINGS = ("switch", "mesh", "cube-mesh", "torus", "pcie")


class UnknownName(KeyError):
    """A name that is not listed: a LookupError whose message is a sentence with near names."""

    def __str__(self):
        return self.args[0]


@dataclass(frozen=True)
class Link:
    """What joins one device to others: ``bandwidth = links · per_link``, bytes/s in one direction of one device.

    ``per_link`` is the data rate of one link, after the line code and before packet headers: with ``lanes`` lanes of
    ``signalling`` bits/s each, ``per_link = lanes · signalling · efficiency(encoding) / 8``. ``latency`` is the time
    to start a message, seconds (0.0 where nobody has published one). ``per_link`` and ``latency`` may be arrays.

    Errors: ValueError for a rate that is not positive, links below 1, a negative latency.

    >>> from clusterlab.hardware import link
    >>> pcie = link("PCIe 5.0 x16")
    >>> round(pcie.bandwidth / 1e9, 2), pcie.raw_bandwidth / 1e9
    (63.02, 64.0)
    >>> nvlink = link("NVLink 3")
    >>> nvlink.per_link / 1e9, nvlink.links, nvlink.bandwidth / 1e9, nvlink.bidirectional_bandwidth / 1e9
    (25.0, 12, 300.0, 600.0)
    """

    name: str
    per_link: float
    links: int = 1
    latency: float = 0.0
    source: str = ""
    date: str = ""
    lanes: int | None = None
    signalling: float | None = None
    encoding: str = ""
    latency_source: str = ""
    notes: str = ""

    def __post_init__(self):
        positive(self, "per_link")
        count(self, "links")
        positive(self, "latency", zero=True)
        if self.lanes is not None:
            count(self, "lanes")
        if self.signalling is not None:
            positive(self, "signalling")

    @property
    def bandwidth(self):
        """All links together, bytes/s in one direction."""
        return self.links * self.per_link

    @property
    def bidirectional_bandwidth(self):
        """Both directions added, as data sheets print it: compare it with nothing that counts one direction."""
        return 2 * self.bandwidth

    @property
    def raw_bandwidth(self):
        """Bytes/s in one direction on the wire, line code included: ``links · lanes · signalling / 8``."""
        return self.links * published(self, "lanes") * published(self, "signalling") / 8


class Peaks(Mapping):
    """Dense peaks by dtype in FLOP/s, read-only; an unknown dtype raises a LookupError that lists those known.

    >>> from clusterlab.hardware import accelerator
    >>> accelerator("V100 SXM2 32GB").dense_flops["bf16"]
    Traceback (most recent call last):
      ...
    clusterlab.components.UnknownName: V100 SXM2 32GB has no published dense peak for 'bf16', only for fp16, fp32, fp64
    """

    def __init__(self, values, owner):
        self._values, self._owner = dict(values), owner

    def __getitem__(self, dtype):
        if dtype not in self._values:
            raise UnknownName(f"{self._owner} has no published dense peak for {dtype!r}, only for "
                              f"{', '.join(self._values)}")
        return self._values[dtype]

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)

    def __hash__(self):
        return hash(tuple(self._values.items()))

    def __repr__(self):
        return repr(self._values)


@dataclass(frozen=True)
class Accelerator:
    """One device: memory in bytes, ``memory_bandwidth`` in bytes/s (read plus write), ``dense_flops`` by dtype in
    FLOP/s (int8 in op/s), ``power`` in W, ``scale_up`` its link to its peers; ``memory_source`` says who counted.

    Errors: ValueError for a value that is not positive, no dtype at all, a scale_up that is not a Link.

    >>> from clusterlab.hardware import accelerator
    >>> accelerator("H100 SXM").memory / 2**20, accelerator("H100 SXM").memory_label / 1e9
    (81559.0, 80.0)
    """

    name: str
    vendor: str
    memory: float
    memory_label: float
    memory_bandwidth: float
    dense_flops: Mapping
    power: float | None
    scale_up: Link | None
    source: str = ""
    date: str = ""
    memory_source: str = "label"
    notes: str = ""

    def __post_init__(self):
        for name in ("memory", "memory_label", "memory_bandwidth"):
            positive(self, name)
        if self.power is not None:
            positive(self, "power")
        instance(self, "scale_up", (Link, type(None)))
        instance(self, "dense_flops", Mapping)
        peaks = np.array(list(self.dense_flops.values()), dtype=float)
        if not peaks.size or not np.all(np.isfinite(peaks) & (peaks > 0)):
            raise ValueError(f"{self.name}: dense_flops must map dtypes to positive FLOP/s, not {self.dense_flops!r}")
        object.__setattr__(self, "dense_flops", Peaks(self.dense_flops, self.name))


@dataclass(frozen=True)
class Node:
    """One scale-up domain: ``devices`` accelerators joined by ``scale_up``, and ``nics`` network ports of link ``nic``.

    ``wiring`` says what ``scale_up`` reaches: ``switch`` (any peer at full bandwidth), ``mesh`` (each peer over its
    own share of the links), ``cube-mesh`` (DGX-1: two links to some peers, one or none to others), ``torus``
    (neighbours only, ``shape`` gives its sides), ``pcie`` (through the host). ``hosts`` counts operating systems: an
    NVL72 rack is one node of 18 hosts. ``power`` is W for the node, ``switches`` its switch chips.

    Errors: ValueError for counts below 1 (nics may be 0), NICs without a link, an unknown wiring, a shape that does
    not hold the devices.

    >>> from clusterlab.hardware import node
    >>> rack = node("GB200 NVL72")
    >>> rack.devices, rack.hosts, rack.cpus, rack.nics
    (72, 18, 36, 72)
    >>> node("MI300X Platform").pair_bandwidth / 1e9, node("DGX H100").pair_bandwidth / 1e9
    (64.0, 450.0)
    """

    name: str
    accelerator: Accelerator
    devices: int
    scale_up: Link
    wiring: str
    nic: Link | None
    nics: int
    hosts: int = 1
    power: float | None = None
    cpus: int | None = None
    switches: int | None = None
    shape: tuple | None = None
    source: str = ""
    date: str = ""
    notes: str = ""

    def __post_init__(self):
        instance(self, "accelerator", Accelerator)
        instance(self, "scale_up", Link)
        count(self, "devices")
        count(self, "hosts")
        count(self, "nics", least=0)
        instance(self, "nic", Link if self.nics else (Link, type(None)))
        if self.wiring not in WIRINGS:
            raise ValueError(f"{self.name}: wiring must be one of {', '.join(WIRINGS)}, not {self.wiring!r}")
        if self.power is not None:
            positive(self, "power")
        if self.shape is not None and math.prod(self.shape) != self.devices:
            raise ValueError(f"{self.name}: shape {self.shape} does not hold {self.devices} devices")

    @property
    def network_bandwidth(self):
        """All network ports together, bytes/s in one direction."""
        return self.nics * published(self, "nic").bandwidth

    @property
    def pair_bandwidth(self):
        """What two neighbours alone reach, bytes/s in one direction: all links through a switch, a share in a mesh."""
        if self.wiring == "cube-mesh":
            raise ValueError(f"{self.name}: the pairs of a cube-mesh differ (two links, one, or none)")
        if self.wiring == "torus":
            return self.scale_up.per_link
        return self.scale_up.bandwidth / (max(self.devices - 1, 1) if self.wiring == "mesh" else 1)


@dataclass(frozen=True)
class Cluster:
    """``nodes`` equal nodes on one network whose upper tiers carry ``1 / oversubscription`` of the NICs' rate.

    Errors: ValueError for a node that is not a Node, fewer than one, an oversubscription below 1.

    >>> from clusterlab.hardware import node
    >>> cluster = Cluster(node("DGX H100"), 2048)
    >>> cluster.devices, cluster.hosts, round(cluster.power / 1e6, 1)
    (16384, 2048, 20.9)
    """

    node: Node
    nodes: int
    oversubscription: float = 1.0

    def __post_init__(self):
        instance(self, "node", Node)
        count(self, "nodes")
        if not (isinstance(self.oversubscription, Real) and 1 <= self.oversubscription < math.inf):
            raise ValueError(f"Cluster: oversubscription must be at least 1, not {self.oversubscription!r}")

    @property
    def devices(self):
        """Accelerators in all nodes."""
        return self.nodes * self.node.devices

    @property
    def hosts(self):
        """Operating systems in all nodes."""
        return self.nodes * self.node.hosts

    @property
    def accelerator(self):
        """The accelerator of every node."""
        return self.node.accelerator

    @property
    def power(self):
        """W of all nodes, without the network."""
        return self.nodes * published(self.node, "power")


def published(part, name):
    """The value of ``part.name``, or a ValueError that says it was never published.

    >>> from clusterlab.hardware import accelerator
    >>> published(accelerator("TPU v5p"), "power")
    Traceback (most recent call last):
      ...
    ValueError: TPU v5p: power is not published
    """
    value = getattr(part, name)
    if value is None:
        raise ValueError(f"{part.name}: {name} is not published")
    return value
