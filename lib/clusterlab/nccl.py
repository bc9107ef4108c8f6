"""Which algorithm and protocol NCCL takes for an all-reduce: its published cost model, with its own constants.

For each algorithm (Ring, Tree, and with NVLink SHARP also NVLS, NVLSTree) and protocol (LL, LL128, Simple)

    time = latency + size / bandwidth

with the latency from the number of hops and the bandwidth from channels and caps; the smallest time wins. LL sends a
4-byte flag with every 4 bytes of data: low latency, half the bandwidth. LL128 needs 8 of 128 bytes for it, on NVLink.
Simple waits for whole chunks. Source: NVIDIA/nccl v2.30.7 src/graph/tuning.cc; the constants are in data/nccl.toml.

>>> from clusterlab.nccl import Communicator, nccl_choice
>>> h100 = Communicator(ranks=8, nodes=1, compute_capability=90, channels=16, channel_bandwidth=20.6e9)
>>> nccl_choice(64 * 1024, h100)[:2], nccl_choice(2**30, h100)[:2]
(('Ring', 'LL'), ('Ring', 'Simple'))
"""

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

PROTOCOLS = ("LL", "LL128", "Simple")
_PATHS = ("PIX", "PXB", "PXN", "PHB", "SYS")  # from GPU to NIC, nearest first


@functools.cache
def constants():
    """The constants of data/nccl.toml, as printed by the source: microseconds and GB/s.

    >>> constants()["base_latency"]["ring"]
    [6.6, 14.0, 8.4]
    """
    return tomllib.loads(resources.files("clusterlab").joinpath("data/nccl.toml").read_text())


@dataclass(frozen=True)
class Communicator:
    """What NCCL's model sees of a machine; the channels are the same for every algorithm.

    ``channel_bandwidth`` is bytes/s of one channel; ``inter_bandwidth`` the same between nodes, used for three nodes
    or more, by default equal. ``intra`` is "NVLINK" or "PCI"; ``inter`` the path from GPU to NIC, "PIX", "PXB",
    "PXN", "PHB" or "SYS"; ``cpu`` "Intel", "AMD" or "other"; ``nvls`` whether NVLink SHARP may be used. NCCL prints
    all of these with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH. Raises ValueError for values out of range.

    >>> Communicator(ranks=8, nodes=1, compute_capability=80, channels=24, channel_bandwidth=10e9).generation
    1
    """

    ranks: int
    nodes: int
    compute_capability: int
    channels: int
    channel_bandwidth: float
    inter_bandwidth: float | None = None
    intra: str = "NVLINK"
    inter: str = "PXN"
    cpu: str = "Intel"
    nvls: bool = False

    def __post_init__(self):
        for name, allowed in (("intra", ("NVLINK", "PCI")), ("inter", _PATHS), ("cpu", constants()["net_overhead"])):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed {', '.join(allowed)}")
        for name in ("ranks", "nodes", "channels", "channel_bandwidth"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: more than 0 allowed")
        if self.ranks % self.nodes:
            raise ValueError(f"ranks={self.ranks} on nodes={self.nodes}: the same number on each node is allowed")
        if self.compute_capability < 70:
            raise ValueError(f"compute_capability={self.compute_capability}: 70 (Volta) and later are modelled")

    @property
    def generation(self):
        """Row of the constants' tables: 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell."""
        return sum(self.compute_capability >= first for first in (80, 90, 100))


class Choice(NamedTuple):
    """An algorithm and protocol and the seconds that the model expects of it."""

    algorithm: str
    protocol: str
    seconds: float


def nccl_table(comm):
    """{(algorithm, protocol): (latency in seconds, bandwidth in bytes/s)}: the table that NCCL prints when it starts.

    The bandwidth is algbw, of large messages. Ring latency: base + (steps - net steps) * hop + net steps * net hop
    with 2(n-1) steps, 2(nodes-1) of them over the network; Tree: base + 2 ((n/nodes - 1) hop + log2(nodes) net hop).

    >>> h100 = Communicator(ranks=8, nodes=1, compute_capability=90, channels=16, channel_bandwidth=20.6e9)
    >>> latency, bandwidth = nccl_table(h100)["Ring", "Simple"]
    >>> round(latency * 1e6, 3), round(bandwidth / 1e9, 2)
    (56.0, 188.34)
    """
    table = {}
    for index, protocol in enumerate(PROTOCOLS):
        if protocol == "LL128" and not _ll128_is_safe(comm):
            continue
        table["Tree", protocol] = _tree_latency(comm, index), 0.5 * _tree_bandwidth(comm, protocol)
        table["Ring", protocol] = _ring_latency(comm, index), _per_step(comm) * _ring_bandwidth(comm, protocol)
    if comm.nvls and comm.generation >= 2 and comm.channels >= 2 and comm.intra == "NVLINK":
        name = "NVLS" if comm.nodes == 1 else "NVLSTree"
        table[name, "Simple"] = _nvls_latency(comm), _per_step(comm) * _nvls_bandwidth(comm)
    return {key: (latency * 1e-6, bandwidth * 1e9) for key, (latency, bandwidth) in table.items()}


def nccl_seconds(size, comm):
    """{(algorithm, protocol): seconds} of an all-reduce of ``size`` bytes.

    Two corrections by size: of a tree's bandwidth by a table (0.5 for Simple from 128 KiB to 2 MiB; of NVLSTree on
    Blackwell too), and 1.4 times the latency of Ring with Simple on several nodes, once each channel and rank has 64 B.

    >>> h100 = Communicator(ranks=8, nodes=1, compute_capability=90, channels=16, channel_bandwidth=20.6e9)
    >>> round(nccl_seconds(2**20, h100)["Ring", "LL"] * 1e6, 2)
    28.01
    """
    if size < 0 or int(size) != size:
        raise ValueError(f"size={size}: whole bytes from 0 are allowed")
    factor, seconds = constants()["factor"], {}
    for (algorithm, protocol), (latency, bandwidth) in nccl_table(comm).items():
        step = (int(size) >> 6).bit_length() - 1
        corrected = {"Tree": 23, "NVLSTree": 24 if comm.generation == 3 else 0}.get(algorithm, 0)
        if 0 <= step < corrected:
            bandwidth *= constants()["tree_correction"][protocol][step]
        enough = int(size) // (comm.channels * comm.ranks) >= 64
        if (algorithm, protocol) == ("Ring", "Simple") and comm.nodes > 1 and enough:
            latency *= factor["plateau" if comm.generation else "plateau_volta"]
        seconds[algorithm, protocol] = latency + size / bandwidth
    return seconds


def nccl_choice(size, comm):
    """The algorithm and protocol NCCL takes for an all-reduce of ``size`` bytes, and the seconds it expects.

    >>> two_nodes = Communicator(ranks=16, nodes=2, compute_capability=90, channels=16, channel_bandwidth=24e9)
    >>> [nccl_choice(size, two_nodes)[:2] for size in (2**10, 2**20, 2**33)]
    [('Tree', 'LL'), ('Tree', 'LL128'), ('Ring', 'Simple')]
    """
    seconds = nccl_seconds(size, comm)
    algorithm, protocol = min(seconds, key=seconds.get)
    return Choice(algorithm, protocol, seconds[algorithm, protocol])


def _ll128_is_safe(comm):
    """LL128 relies on 128-byte stores that arrive whole: NVLink inside, and a near enough NIC."""
    farthest = "PXN" if comm.generation >= 2 else "PXB"
    near = comm.nodes == 1 or _PATHS.index(comm.inter) <= _PATHS.index(farthest)
    return comm.intra == "NVLINK" and near


def _by_generation(comm, table):
    return table[comm.generation][min(comm.nodes, 3) - 1]


def _ll_limit(comm):
    """One node: by the GPU. Several: by the processor, which LL's polling depends on."""
    row = comm.generation if comm.nodes == 1 else int(comm.cpu == "AMD")
    return constants()["max_bandwidth"]["ll"][row][min(comm.nodes, 3) - 1]


def _channels_bandwidth(comm):
    inter = comm.inter_bandwidth or comm.channel_bandwidth
    return comm.channels * (comm.channel_bandwidth if comm.nodes <= 2 else inter) / 1e9


def _per_step(comm):
    return comm.ranks / (2 * (comm.ranks - 1)) if comm.ranks > 1 else float("inf")


def _ring_bandwidth(comm, protocol):
    factor, bandwidth = constants()["factor"], _channels_bandwidth(comm)
    if protocol == "LL":
        return min(bandwidth * factor["ring_ll"], _ll_limit(comm))
    if protocol == "LL128":
        limit = _by_generation(comm, constants()["max_bandwidth"]["channel"]["ring_ll128"])
        return min(bandwidth * factor["ring_ll128"], comm.channels * limit)
    return bandwidth


def _tree_bandwidth(comm, protocol):
    factor, channel = constants()["factor"], constants()["max_bandwidth"]["channel"]
    bandwidth = min(_channels_bandwidth(comm) * factor["tree"], comm.channels * _by_generation(comm, channel["tree"]))
    if protocol == "LL":
        return min(bandwidth * factor["tree_ll"], _ll_limit(comm))
    if protocol == "LL128":
        share = factor["tree_ll128_one_node" if comm.nodes == 1 else "tree_ll128"]
        return min(bandwidth * share, comm.channels * _by_generation(comm, channel["tree_ll128"]))
    return bandwidth


def _nvls_bandwidth(comm):
    """The switch adds and multicasts at once, on all channels but one; a tree of two nodes uses the NIC both ways."""
    efficiency = constants()["factor"]["nvls_hopper" if comm.generation == 2 else "nvls_blackwell"]
    intra = 2 * efficiency * comm.channel_bandwidth / 1e9 * (comm.channels - 1) / comm.channels
    inter = (comm.inter_bandwidth or comm.channel_bandwidth) / 1e9 * (2 if comm.nodes == 2 else 1)
    limit = _by_generation(comm, constants()["max_bandwidth"]["channel"]["nvlstree"]) if comm.nodes > 1 else intra
    return comm.channels * min(intra, inter, limit)


def _net_hop(comm, algorithm, index):
    """With one rank a node nothing hides the network, and NCCL takes the tree's latency for every algorithm."""
    hops = constants()["hop_latency"]["NET"]
    return hops["tree" if comm.ranks == comm.nodes else algorithm][index]


def _ring_latency(comm, index):
    hop = constants()["hop_latency"][comm.intra]["ring"][index]
    if comm.nodes > 1:
        hop = max(hop, constants()["net_overhead"][comm.cpu] * (3 if PROTOCOLS[index] == "Simple" else 1))
    net_steps = 2 * (comm.nodes - 1)
    inside = (2 * (comm.ranks - 1) - net_steps) * hop
    return constants()["base_latency"]["ring"][index] + inside + net_steps * _net_hop(comm, "ring", index)


def _tree_latency(comm, index):
    hop = constants()["hop_latency"][comm.intra]["tree"][index]
    depth = comm.nodes.bit_length() - 1
    across = depth * _net_hop(comm, "tree", index)
    return constants()["base_latency"]["tree"][index] + 2 * ((comm.ranks // comm.nodes - 1) * hop + across)


def _nvls_latency(comm):
    hops = constants()["hop_latency"]
    if comm.nodes == 1:
        return hops["NVLINK"]["nvls"]
    net = hops["NET"]["tree"][2] if comm.ranks == comm.nodes else hops["NET"]["nvlstree"]
    return hops["NVLINK"]["nvlstree"] + 2 * (comm.nodes.bit_length() - 1) * net
