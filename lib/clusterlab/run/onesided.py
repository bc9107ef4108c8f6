"""The same bytes between two processes through the kernel and past it: a TCP socket, a pipe, memory that both can see.

``socket`` and ``pipe`` are two-sided: one end writes, the other must read, and the kernel copies the bytes in and out.
``put`` is one-sided: the sender stores them where the receiver wants them and then sets a flag, and the receiver, if it
cares to, looks at the flag. That is what an RDMA write does, with the network card in the place of the sender's core.
Each end counts what it asks of the kernel: calls, bytes copied, times it was put to sleep, seconds of CPU.

All ranks are on one host. The flag is set by a plain store after the data's: x86 keeps that order, and `round_trips`
compares what arrived wherever it runs.
"""
import contextlib
import mmap
import os
import resource
import socket as sockets
import tempfile
import time
from dataclasses import dataclass

import torch.distributed as dist

from .ranks import launch

WAYS = ("socket", "polled socket", "pipe", "polled pipe", "put")
_LOOKS = 100                                   # at a flag or an empty socket, before the core is offered to others
_WHO = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


@dataclass(frozen=True)
class Cost:
    """What one message costs, both ends together: `seconds` from end to end (the fastest), and on average `calls` of
    the kernel, `copies` of its bytes by a CPU, `sleeps` (each ends in a wake-up), seconds of `cpu`."""
    seconds: float
    calls: float
    copies: float
    sleeps: float
    cpu: float


def round_trips(size, ways=WAYS, *, trips: int = 1000) -> dict:
    """Send a message of `size` bytes to and fro by each way; {way: Cost}. `seconds` is half of the fastest round trip.

    A busy machine only adds time. What arrives is compared with what was sent. Raises ValueError for a size below 1,
    LookupError for a way that is not in `WAYS`, RuntimeError when other bytes arrive.

    >>> cost = round_trips(64, ["pipe", "put"], trips=20)
    >>> cost["pipe"].calls, cost["pipe"].copies, cost["put"].calls, cost["put"].copies
    (2.0, 2.0, 0.0, 1.0)
    """
    return _run(_bounce, size, ways, trips)


def stream(size, ways=("socket", "put"), *, messages: int = 200) -> dict:
    """Send `messages` of `size` bytes one way, each as soon as there is room; {way: Cost}, `seconds` a message.

    ``cost.cpu / size`` is the CPU time a byte takes at both ends; it does not depend on what else the machine does.

    >>> 0 < stream(65536, ["put"], messages=8)["put"].cpu < 1
    True
    """
    return _run(_pour, size, ways, messages)


def absent(size, ways=("socket", "put"), *, away: float = 0.3) -> dict:
    """Send one message to a rank that is busy elsewhere for `away` seconds; {way: was the sender done before it looked}.

    >>> absent(64, ["put"], away=0.2)
    {'put': True}
    """
    return _run(_leave, size, ways, away)


def _run(work, size, ways, arg):
    if size != int(size) or size < 1:
        raise ValueError(f"size={size!r}: want whole bytes, 1 or more")
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise LookupError(f"ways {unknown}: known are {', '.join(WAYS)}")
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=folder) as root:
        first, second = launch(_both, 2, work.__name__, int(size), list(ways), arg, root)
    if work is _leave:                                              # one clock for all processes of a host
        return {way: first[way] < second[way] for way in ways}
    return {way: _sum(first[way], second[way]) for way in ways}


def _sum(a, b):
    return Cost(a[0], *(x + y for x, y in zip(a[1:], b[1:], strict=True)))


def _both(name, size, ways, arg, root):
    if hasattr(os, "sched_setaffinity"):                            # a core each: who polls must not wait for the other
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    found = {}
    for way in ways:
        with _OPEN[way](root, size) as wire:
            dist.barrier()
            found[way] = globals()[name](wire, size, arg)
            dist.barrier()
    return found


def _bounce(wire, size, trips):
    """Rank 0 sends, rank 1 sends back; the laps are rank 0's, the counts each rank's own."""
    sent = bytearray((7 * i + 1) % 251 for i in range(min(size, 251))) * (size // min(size, 251) + 1)
    sent, first, laps = memoryview(sent)[:size], dist.get_rank() == 0, []
    wire.send(sent) if first else wire.receive()                    # one trip to warm up
    wire.receive() if first else wire.send(sent)
    before = wire.counts()
    for _ in range(trips):
        start = time.perf_counter()
        if first:
            wire.send(sent)
            wire.receive()
        else:
            wire.receive()
            wire.send(sent)
        laps.append(time.perf_counter() - start)
    each = [(now - then) / trips / 2 for now, then in zip(wire.counts(), before, strict=True)]
    if wire.into[:size] != sent:
        raise RuntimeError(f"rank {dist.get_rank()} received other bytes than were sent")
    return min(laps) / 2, each[0], each[1] / size, *each[2:]


def _pour(wire, size, messages):
    data, first = memoryview(bytearray(size)), dist.get_rank() == 0
    wire.send(data) if first else wire.receive()                    # pages are there, buffers have grown
    before, start = wire.counts(), time.perf_counter()
    for _ in range(messages):
        wire.send(data) if first else wire.receive()
    seconds = (time.perf_counter() - start) / messages
    each = [(now - then) / messages for now, then in zip(wire.counts(), before, strict=True)]
    return seconds, each[0], each[1] / size, *each[2:]


def _leave(wire, size, away):
    if dist.get_rank() == 0:
        wire.send(memoryview(bytearray(size)))
        return time.monotonic()
    time.sleep(away)
    looked = time.monotonic()
    wire.receive()
    return looked


class _Wire:
    """One end: `into` is where messages arrive. Counts calls, bytes copied; the rest is the kernel's own count."""
    calls = copied = 0

    def counts(self):
        return self.calls, self.copied, resource.getrusage(_WHO).ru_nvcsw, time.thread_time()


class _Kernel(_Wire):
    """A pair of file descriptors: write copies into the kernel, read copies out, and an empty read sleeps."""

    def __init__(self, out, file, size):
        self.out, self.file, self.into = out, file, memoryview(bytearray(size))

    def send(self, data):
        while len(data):
            self.calls += 1
            with contextlib.suppress(BlockingIOError):
                wrote = os.write(self.out, data)
                self.copied += wrote
                data = data[wrote:]

    def receive(self):
        rest, looks = self.into, 0
        while len(rest):
            self.calls += 1
            try:
                got = os.readv(self.file, [rest])
            except BlockingIOError:                                 # polled: nothing there yet
                looks += 1
                if looks % _LOOKS == 0:
                    os.sched_yield()
                continue
            if not got:
                raise RuntimeError("the other end is gone")
            self.copied += got
            rest = rest[got:]


class _Put(_Wire):
    """Memory both ranks see. Each has an inbox: data, a flag the other sets, and one that says "read". No call at all."""

    def __init__(self, table, size):
        mine, half = dist.get_rank(), len(table) // 2
        box = [memoryview(table)[rank * half:(rank + 1) * half] for rank in (0, 1)]
        self.into, self.target = box[mine][128:128 + size], box[1 - mine][128:128 + size]
        self.flags, self.theirs = box[mine][:128].cast("Q"), box[1 - mine][:128].cast("Q")
        self.sent = self.got = 0

    def send(self, data):
        _until(self.theirs, 8, self.sent)                           # what I put before has been taken
        self.target[:] = data                                       # the one copy
        self.copied += len(data)
        self.sent += 1
        self.theirs[0] = self.sent

    def receive(self):
        _until(self.flags, 0, self.got + 1)
        self.got += 1
        self.flags[8] = self.got                                    # a cache line of its own


def _until(flags, at, value):
    looks = 0
    while flags[at] != value:
        looks += 1
        if looks % _LOOKS == 0:                                     # more processes than cores: let the other end run
            os.sched_yield()


@contextlib.contextmanager
def _socket(root, size, polled=False):
    if dist.get_rank() == 0:
        with sockets.create_server(("127.0.0.1", 0)) as server:
            dist.broadcast_object_list([server.getsockname()[1]], 0)
            end, _ = server.accept()
    else:
        dist.broadcast_object_list(port := [None], 0)
        end = sockets.create_connection(("127.0.0.1", port[0]))
    with end:
        end.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        end.setblocking(not polled)
        yield _Kernel(end.fileno(), end.fileno(), size)


@contextlib.contextmanager
def _pipe(root, size, polled=False):
    paths = [os.path.join(root, f"pipe-{rank}") for rank in (0, 1)]
    if dist.get_rank() == 0:
        for path in paths:
            os.mkfifo(path)
    dist.barrier()
    ends = [os.open(path, os.O_RDWR) for path in paths]             # both ways, so that opening does not wait
    try:
        for end in ends:
            os.set_blocking(end, not polled)
        yield _Kernel(ends[1 - dist.get_rank()], ends[dist.get_rank()], size)
        dist.barrier()
    finally:
        for end in ends:
            os.close(end)
        if dist.get_rank() == 0:
            for path in paths:
                os.unlink(path)


@contextlib.contextmanager
def _put(root, size):
    path, half = os.path.join(root, "boxes"), 128 + -(-size // 64) * 64
    if dist.get_rank() == 0:
        with open(path, "wb") as file:
            file.truncate(2 * half)
    dist.barrier()
    with open(path, "r+b") as file:
        table = mmap.mmap(file.fileno(), 2 * half)
    memoryview(table)[:] = bytes(2 * half) if dist.get_rank() == 0 else memoryview(table)
    dist.barrier()                                                  # "registered": the pages are there and mapped
    yield _Put(table, size)                                         # unmapped with its last view


_OPEN = {"socket": _socket, "polled socket": lambda *args: _socket(*args, polled=True),
         "pipe": _pipe, "polled pipe": lambda *args: _pipe(*args, polled=True), "put": _put}
