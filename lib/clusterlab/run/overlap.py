"""How much of DDP's gradient traffic hides behind the backward pass, measured on links of a chosen speed.

DDP all-reduces gradients in buckets as soon as each is complete, while the backward pass computes the next ones. What
the step waits for at the end is *exposed*; the rest is *overlapped*, and free. The last bucket is always exposed: its
gradients are the last thing the backward pass computes.
"""

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from clusterlab.collectives import collective_seconds
from clusterlab.run.device import device, synchronize
from clusterlab.run.model import Decoder, token_losses
from clusterlab.run.ranks import launch
from clusterlab.transformer import Transformer

SHAPE = Transformer(layers=8, hidden=192, heads=4, vocab=256, ffn=512, gated=True)


@dataclass(frozen=True)
class Overlap:
    """Seconds of a step (forward and backward, without optimizer), medians of the slowest rank."""

    computation: float      # without any communication
    communication: float    # how long the link is busy with the step's buckets
    step: float             # both
    buckets: int

    @property
    def exposed(self):
        """What communication adds to the step."""
        return self.step - self.computation

    @property
    def overlapped(self):
        """What it takes and does not add."""
        return self.communication - self.exposed


class PacedReducer:
    """A DDP communication hook: all-reduce each bucket over gloo, and let it arrive when a ring on `link` would.

    Buckets share the link one after the other. Only the time is ours: DDP decides when a bucket starts and waits.
    """

    def __init__(self, link):
        self.link, self.free, self.busy, self.buckets = link, 0.0, 0.0, 0

    def reduce(self, _, bucket):
        gradients, n = bucket.buffer().div_(dist.get_world_size()), dist.get_world_size()
        seconds = collective_seconds("all-reduce", gradients.nbytes, n, self.link)
        self.free = due = max(time.perf_counter(), self.free) + seconds
        self.busy, self.buckets = self.busy + seconds, self.buckets + 1

        def arrive(future):
            time.sleep(max(0.0, due - time.perf_counter()))
            return future.value()[0]

        return dist.all_reduce(gradients, async_op=True).get_future().then(arrive)


def overlap(world_size, link, *, bucket_bytes=25 * 2**20, shape=SHAPE, batch=2, seq=64, steps=7):
    """Train with DDP over `link` (any object with bandwidth and latency) and take exposed communication apart.

    `bucket_bytes` is DDP's bucket_cap_mb in bytes: one large bucket cannot overlap, many small ones pay latency each.
    Returns an `Overlap`. `batch` is per rank.
    """
    ranks = launch(rank_work, world_size, link.bandwidth, link.latency, bucket_bytes, shape, batch, seq, steps)
    return max(ranks, key=lambda overlap: overlap.step)


@dataclass(frozen=True)
class Wire:
    bandwidth: float
    latency: float


def rank_work(bandwidth, latency, bucket_bytes, shape, batch, seq, steps):
    torch.manual_seed(0)
    model = DistributedDataParallel(Decoder(shape).to(device()), bucket_cap_mb=bucket_bytes / 2**20)
    reducer = PacedReducer(Wire(bandwidth, latency))
    model.register_comm_hook(None, reducer.reduce)
    tokens = torch.randint(shape.vocab, (batch, seq)).to(device())

    def seconds():
        dist.barrier()
        start = time.perf_counter()
        token_losses(model(tokens), tokens).backward()
        synchronize()
        return time.perf_counter() - start

    for _ in range(2):                                          # DDP arranges its buckets after the first step
        seconds()
    with model.no_sync():
        computation = statistics.median(seconds() for _ in range(steps))
    reducer.busy = reducer.buckets = 0
    step = statistics.median(seconds() for _ in range(steps))
    return Overlap(computation, reducer.busy / steps, step, reducer.buckets // steps)
