"""Links between ranks: one step of messages, counted, and paced in user space when the launch says so.

An algorithm sends and receives through `step`, so the same lines run on the bare network and on `Paced` ports.
Pacing is ours, not the kernel's: the bytes really travel over gloo, and each message is then held back until the
moment a port of the given bandwidth and latency would have delivered it. What a fast machine does early is delayed;
what a slow machine does late can not be hurried, and is reported as `Count.late`.
"""
import contextlib
import fcntl
import mmap
import os
import struct
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from .device import device, synchronize

_QUEUE = 64                                    # messages of one pair that may be under way at once


@dataclass(frozen=True)
class Paced:
    """Every rank's ports paced to `bandwidth` bytes/s per direction, every message `latency` seconds later.

    A message of b bytes that starts at t on a free port arrives at t + b / bandwidth + latency. A port serves one
    message after the other, in and out independently (full duplex).

    `wiring` is how the ranks of one node are joined:

    - ``"switch"``: each rank has one port, all of it usable towards any other rank (NVSwitch, an Ethernet switch).
    - ``"mesh"``: each rank has a link to each other rank of its node, and `bandwidth` is their sum: one pair of ranks
      gets bandwidth / (ranks_per_node - 1).

    With `nodes` > 1 consecutive ranks form a node and messages between nodes go through NICs: `nics_per_node` of
    `nic_bandwidth` each (default: one a rank, `bandwidth`), rank i of a node using NIC i mod nics_per_node, so ranks
    that share a NIC share its ports. `nic_latency` defaults to `latency`. `slow` = {rank: factor} multiplies the
    bandwidth of that rank's ports and NIC, e.g. {3: 0.5} for a rail that negotiated half its speed.

    Choose sizes so that one step lasts at least 5 ms (20 ms with more ranks than cores): a sleeping process wakes about
    0.1 ms late when a core is free, and a scheduler tick (1-4 ms) late when none is.

    >>> Paced(bandwidth=50e6, latency=1e-3).seconds(1_000_000)
    0.021
    """
    bandwidth: float
    latency: float = 0.0
    wiring: str = "switch"
    nodes: int = 1
    nics_per_node: int | None = None
    nic_bandwidth: float | None = None
    nic_latency: float | None = None
    slow: dict = field(default_factory=dict)

    def __post_init__(self):
        for name in ("bandwidth", "nic_bandwidth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value!r}: want bytes per second above 0")
        for name in ("latency", "nic_latency"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value!r}: want seconds, 0 or more")
        if self.wiring not in ("switch", "mesh"):
            raise ValueError(f"wiring is {self.wiring!r}: want 'switch' or 'mesh'")
        if self.nodes < 1 or (self.nics_per_node is not None and self.nics_per_node < 1):
            raise ValueError(f"nodes={self.nodes}, nics_per_node={self.nics_per_node}: want 1 or more")
        if any(not 0 < factor < float("inf") for factor in self.slow.values()):
            raise ValueError(f"slow is {self.slow!r}: want {{rank: factor above 0}}")

    def seconds(self, size: float) -> float:
        """Seconds of one message of `size` bytes between two idle ports of a switch."""
        return self.latency + size / self.bandwidth

    def path(self, src: int, dst: int, ranks: int):
        """The ports a message crosses: ((out port, bytes/s), (in port, bytes/s) or None, latency)."""
        each, factor = ranks // self.nodes, lambda rank: self.slow.get(rank, 1.0)
        if src // each != dst // each:
            nics, rate = self.nics_per_node or each, self.nic_bandwidth or self.bandwidth
            latency = self.latency if self.nic_latency is None else self.nic_latency
            out, into = ((kind, rank // each, rank % each % nics) for kind, rank in (("nic out", src), ("nic in", dst)))
            return (out, rate * factor(src)), (into, rate * factor(dst)), latency
        if self.wiring == "mesh":                                   # a link of their own: one port, no queue at its end
            return (("link", src, dst), self.bandwidth / (each - 1) * min(factor(src), factor(dst))), None, self.latency
        return (("out", src), self.bandwidth * factor(src)), (("in", dst), self.bandwidth * factor(dst)), self.latency

    @contextlib.contextmanager
    def open(self, root: str, ranks: int):
        """In the launcher, around all ranks: make the table of ports they share."""
        if ranks % self.nodes:
            raise ValueError(f"{ranks} ranks do not fill nodes={self.nodes} evenly")
        if self.slow and not set(self.slow) <= set(range(ranks)):
            raise ValueError(f"slow names ranks {sorted(self.slow)}: there are ranks 0 to {ranks - 1}")
        with open(os.path.join(root, "ports"), "wb") as table:
            table.truncate(8 * (len(_slots(ranks)) + ranks * ranks * _QUEUE * 2))
        yield

    def enter(self, root: str, rank: int, ranks: int) -> None:
        """In each rank, before its process group exists: from now on `step` is paced."""
        global _pacer
        _pacer = _Pacer(self, os.path.join(root, "ports"), rank, ranks)


def paced(link):
    """What `launch` paces ports by: a link of the mathematics becomes a `Paced`; a `Paced`, and None, stay as they are.

    >>> from clusterlab.hardware import Link
    >>> paced(Link("slow", per_link=50e6, latency=1e-3)).seconds(1_000_000)
    0.021
    """
    if link is None or isinstance(link, Paced):
        return link
    return Paced(bandwidth=link.bandwidth, latency=link.latency)


def _slots(ranks: int) -> dict:
    """Where each possible port keeps the time at which it is free again."""
    names = [(kind, r) for kind in ("out", "in") for r in range(ranks)]
    names += [(kind, a, b) for kind in ("link", "nic out", "nic in") for a in range(ranks) for b in range(ranks)]
    return {name: slot for slot, name in enumerate(names)}


class _Pacer:
    """Times at which ports are free, in a file all ranks of the host map; a message's times travel in it too."""

    def __init__(self, link, path, rank, ranks):
        self.link, self.rank, self.ranks, self.slots = link, rank, ranks, _slots(ranks)
        self.file = open(path, "r+b")                               # noqa: SIM115 (as long as the rank lives)
        self.table = mmap.mmap(self.file.fileno(), 0)
        self.count = {}                                             # messages so far, by (from, to)

    def _reserve(self, port, size, start):
        """Queue `size` bytes on a port from `start` on: when they begin, and when the port has passed them."""
        name, rate = port
        at = 8 * self.slots[name]
        fcntl.lockf(self.file, fcntl.LOCK_EX, 8, at)                # a NIC is shared by several processes
        begin = max(start, *struct.unpack_from("d", self.table, at))
        struct.pack_into("d", self.table, at, begin + size / rate)
        fcntl.lockf(self.file, fcntl.LOCK_UN, 8, at)
        return begin, begin + size / rate

    def _letter(self, src, dst):
        """The place where the next message from src to dst notes its times."""
        k = self.count[src, dst] = self.count.get((src, dst), -1) + 1
        return 8 * (len(self.slots) + 2 * ((src * self.ranks + dst) * _QUEUE + k % _QUEUE))

    def post(self, tensor, dst) -> float:
        """Reserve the way out for a message about to be sent; returns when it has left."""
        out, _, _ = self.link.path(self.rank, dst, self.ranks)
        times = self._reserve(out, tensor.nbytes, time.monotonic())
        struct.pack_into("dd", self.table, self._letter(self.rank, dst), *times)
        return times[1]

    def arrivals(self, recvs):
        """For messages whose bytes are here: when each is allowed to have arrived, in the order in which they started."""
        notes = [(*struct.unpack_from("dd", self.table, self._letter(src, self.rank)), src, tensor.nbytes)
                 for tensor, src in recvs]
        for begin, left, src, size in sorted(notes):
            _, into, latency = self.link.path(src, self.rank, self.ranks)
            if into:
                time.sleep(max(0.0, begin - time.monotonic()))      # do not book a shared port ahead of time
                left = max(left, self._reserve(into, size, begin)[1])
            yield left + latency


_pacer = None
_counts = []


@dataclass(eq=False)
class Count:
    """What this rank did: bytes and messages sent, steps taken, seconds its steps ended later than the links allow."""
    bytes: int = 0
    messages: int = 0
    steps: int = 0
    late: float = 0.0


@contextlib.contextmanager
def counted():
    """Count what this rank sends through `step` inside the block.

    >>> with counted() as wire:
    ...     step()
    >>> wire.steps, wire.bytes, wire.messages
    (1, 0, 0)
    """
    count = Count()
    _counts.append(count)
    try:
        yield count
    finally:
        _counts.remove(count)


def step(sends=(), recvs=()) -> None:
    """One step: start all sends [(tensor, to rank)] and receives [(tensor, from rank)], wait for all; empty ones vanish.

    All ranks call it once a step of their algorithm, also with nothing to do, so that steps are counted alike.
    """
    began = time.monotonic()
    sends, recvs = ([(t, peer) for t, peer in pairs if t.numel()] for pairs in (sends, recvs))
    due = [_pacer.post(tensor, dst) for tensor, dst in sends] if _pacer else []
    ops = [dist.P2POp(dist.irecv, t, src) for t, src in recvs] + [dist.P2POp(dist.isend, t, dst) for t, dst in sends]
    for work in dist.batch_isend_irecv(ops) if ops else ():
        work.wait()
    late = 0.0
    if _pacer and ops:
        due += _pacer.arrivals(recvs)
        time.sleep(max(0.0, max(due) - time.monotonic()))
        late = time.monotonic() - max(began, *due)
    for count in _counts:
        count.steps += 1
        count.messages += len(sends)
        count.bytes += sum(tensor.nbytes for tensor, _ in sends)
        count.late += late


def timed(fn, *args, **kw) -> float:
    """Seconds fn(*args) takes from a common start until the slowest rank is done; the same number on every rank.

    Processes of one host share a clock, so the start is a moment they agree on. Across hosts each rank counts from the
    end of a barrier, which some leave a little later than others.
    """
    synchronize()
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        start = _latest(time.monotonic()) + 0.002
        time.sleep(max(0.0, start - time.monotonic()))
    else:
        dist.barrier()
        start = time.monotonic()
    fn(*args, **kw)
    synchronize()
    return _latest(time.monotonic() - start)


def _latest(seconds) -> float:
    value = torch.tensor(seconds, dtype=torch.float64, device=device())
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()
