"""One training step as a timeline: what every rank does when, and which part of the gradients' sum it waits for.

A step is load, forward, loss, backward, optimizer, and between the last two the sum of the gradients. It travels in
buckets, each as soon as it is full (Li et al. 2020, arXiv:2006.15704, section 3.2.3), one after the other on one link.

Gradients are taken to come evenly through a rank's backward pass of the last micro-batch. Left out: what a collective
takes from the computation it hides behind (`kernels.Constants.overlap`), the tied embedding's own sum between the ends
of a pipeline, and everything that jitters.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from clusterlab.pipeline import simulate

SCHEDULES = ("data", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
KINDS = {"F": "forward", "B": "backward", "W": "weights"}


@dataclass(frozen=True)
class Work:
    """What the ranks of a timeline do in a step: seconds and bytes, in a tuple one value a rank.

    load        until a rank has its batch                  forward, loss, backward   of one micro-batch
    optimizer   the update                                  gradients   bytes a rank sums with its replicas; 0: none
    latency     seconds of each all-reduce besides its bytes; per_byte: seconds a byte of it
    send        from stage to stage; it takes no rank's time
    ideal       seconds of the step's FLOP on all devices at their dense peak: MFU is ideal over the step's seconds
    """

    load: float
    forward: tuple
    loss: tuple
    backward: tuple
    optimizer: tuple
    gradients: tuple
    micro_batches: int
    latency: float
    per_byte: float
    send: float = 0.0
    ideal: float = 0.0

    def __post_init__(self):
        for name in ("loss", "backward", "optimizer", "gradients"):
            if len(getattr(self, name)) != len(self.forward):
                raise ValueError(f"{name}={getattr(self, name)}: want one value for each of {len(self.forward)} ranks")


class Event(NamedTuple):
    """``kind`` is load, forward, loss, backward, weights, sync or optimizer; ``number`` the micro-batch or bucket."""

    rank: int
    kind: str
    number: int
    start: float
    end: float


@dataclass(frozen=True)
class Iteration:
    """A step as it runs. ``seconds`` from the common start to the last rank's last event; ``events`` rank by rank."""

    seconds: float
    events: tuple
    ranks: int
    ideal: float

    def spent(self, rank):
        """Where a rank's step goes: seconds of load, compute, exposed, waiting; they add up to the step.

        exposed: the link sums its gradients and the rank computes nothing. waiting: neither, for other ranks.

        >>> work = Work(load=0.0, forward=(1.0,), loss=(0.0,), backward=(2.0,), optimizer=(0.5,), gradients=(8.0,),
        ...             micro_batches=1, latency=0.0, per_byte=0.25)
        >>> unfold(work, bucket=4.0).spent(0)           # the first half hides, the second follows
        {'load': 0.0, 'compute': 3.5, 'exposed': 1.0, 'waiting': 0.0}
        """
        mine = [event for event in self.events if event.rank == rank]
        busy = [event for event in mine if event.kind != "sync"]
        load, total = (sum(e.end - e.start for e in some) for some in ([e for e in busy if e.kind == "load"], busy))
        exposed = sum((e.end - e.start) - sum(max(0.0, min(e.end, one.end) - max(e.start, one.start)) for one in busy)
                      for e in mine if e.kind == "sync")
        return {"load": load, "compute": total - load, "exposed": exposed, "waiting": self.seconds - total - exposed}

    @property
    def exposed(self):
        """Seconds of exposed communication of the rank that has most."""
        return max(self.spent(rank)["exposed"] for rank in range(self.ranks))

    @property
    def bubble(self):
        """Share of all ranks' time in which they wait for other ranks."""
        return sum(self.spent(rank)["waiting"] for rank in range(self.ranks)) / (self.ranks * self.seconds)

    @property
    def mfu(self):
        """Model FLOPs utilization: the step at the dense peak over the step."""
        return self.ideal / self.seconds


def unfold(work, schedule="data", *, bucket=None, overlap=True, slow=None):
    """Let the ranks of `work` run one step: an :class:`Iteration`.

    schedule  "data": every rank runs all of the model, and the ranks sum their gradients together; else the ranks are
              the stages of a pipeline (:func:`~clusterlab.pipeline.simulate`; "interleaved" with two chunks a stage),
              and each sums with the same stage of other pipelines, which are not slower
    bucket    bytes of a bucket; None: all at once
    overlap   False: the first bucket starts when its ranks have computed everything
    slow      {rank: factor} on that rank's computation, or pairs

    A bucket starts when it is full on all its ranks and the link is free; it takes latency + per_byte · bytes. Raises
    ValueError for a bucket of no bytes, a factor that is not positive, an unknown schedule, a rank that is not there.

    >>> work = Work(load=0.0, forward=(1.0,) * 2, loss=(0.0,) * 2, backward=(2.0,) * 2, optimizer=(0.5,) * 2,
    ...             gradients=(8.0,) * 2, micro_batches=1, latency=0.0, per_byte=0.25)
    >>> [unfold(work, bucket=size, overlap=overlap).seconds for size, overlap in ((4.0, False), (4.0, True), (1.0, True))]
    [5.5, 4.5, 3.75]
    """
    ranks, factors = len(work.forward), dict(slow or {})
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r}: must be one of {', '.join(SCHEDULES)}")
    if bucket is not None and not bucket > 0:
        raise ValueError(f"bucket={bucket}: bytes above 0, or None")
    if not set(factors) <= set(range(ranks)) or not all(factor > 0 for factor in factors.values()):
        raise ValueError(f"slow={slow}: want {{rank: factor above 0}} of ranks 0 to {ranks - 1}")
    factor = [factors.get(rank, 1.0) for rank in range(ranks)]
    computed = _replicas(work, factor) if schedule == "data" else _stages(work, schedule, factor)
    groups = [list(range(ranks))] if schedule == "data" else [[rank] for rank in range(ranks)]
    events = []
    for group in groups:
        buckets = _buckets(work, [computed[rank] for rank in group], work.gradients[group[0]], bucket, overlap)
        for rank in group:
            begin = max([computed[rank][-1].end, *(end for _, end in buckets[-1:])])
            optimizer = Event(rank, "optimizer", 0, begin, begin + work.optimizer[rank] * factor[rank])
            events += [Event(rank, "load", 0, 0.0, work.load), *computed[rank],
                       *(Event(rank, "sync", number, *times) for number, times in enumerate(buckets)), optimizer]
    return Iteration(max(event.end for event in events), tuple(events), ranks, work.ideal)


def _replicas(work, factor):
    """The computation of each rank before its optimizer, all of them with the whole model."""
    found = []
    for rank, slower in enumerate(factor):
        at, events = work.load, []
        for k in range(work.micro_batches):
            for kind in ("forward", "loss", "backward"):
                until = at + getattr(work, kind)[rank] * slower
                events.append(Event(rank, kind, k, at, until))
                at = until
        found.append(events)
    return found


def _stages(work, schedule, factor):
    """The same for the stages of a pipeline. The loss counts to the forward pass."""
    forward = [(f + loss) * slower for f, loss, slower in zip(work.forward, work.loss, factor, strict=True)]
    run = simulate(schedule, stages=len(factor), micro_batches=work.micro_batches, forward=forward,
                   backward=[b * slower for b, slower in zip(work.backward, factor, strict=True)],
                   virtual=2 if schedule == "interleaved" else 1, send=work.send)
    return [[Event(e.stage, KINDS[e.kind], e.micro_batch, work.load + e.start, work.load + e.end)
             for e in run.events if e.stage == rank] for rank in range(len(factor))]


def _buckets(work, members, size, bucket, overlap):
    """(start, end) of each bucket of a group, whose members' computations are given."""
    if not size:
        return []
    bucket = min(bucket or size, size)
    passes = [_last_backward(events) for events in members]
    free, found = 0.0, []
    for number in range(ceil(size / bucket)):
        full = min((number + 1) * bucket, size)
        ready = max(_ready(one, full / size) if overlap else one[-1].end for one in (passes if overlap else members))
        begin = max(free, ready)
        free = begin + work.latency + work.per_byte * (full - number * bucket)
        found.append((begin, free))
    return found


def _last_backward(events):
    """The events in which the gradients of the last micro-batch are completed."""
    kind = "weights" if any(event.kind == "weights" for event in events) else "backward"
    return [event for event in events if event.kind == kind and event.number == max(e.number for e in events)]


def _ready(passes, share):
    """When that share of the gradients is there, each of the passes bringing as much."""
    place = share * len(passes)
    event = passes[max(ceil(place) - 1, 0)]
    return event.start + (event.end - event.start) * (place - ceil(place) + 1)
