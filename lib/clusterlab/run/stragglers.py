"""The slowest of several ranks, in a real training: every step waits for the last one.

    jittery = delayed_steps(8, jitter=0.03)         each step of each rank takes an extra, random time
    tired = delayed_steps(8, slow={3: 0.06})        one rank takes an extra 60 ms in every step

The delays are sleeps that are drawn beforehand, so what a draw asks for is known exactly, and the sum of gradients
that the ranks wait for is a real one.
"""

import time
from dataclasses import dataclass, replace

import numpy as np
import torch.distributed as dist

from clusterlab.run.job import Job, Training
from clusterlab.run.ranks import launch

JOB = Job(batch=56, micro_batch=28, samples=56, pace=0.005, dropout=0.0)   # 8 ranks: 35 ms a step; 7 ranks: 40 ms


@dataclass(frozen=True)
class Delayed:
    """Means over the steps of one training, in seconds."""

    step: float         # a step by the clocks of all ranks
    alone: float        # pace and delay of the average rank: what a step would take if nobody waited
    slowest: float      # pace and delay of the slowest rank of each step, as drawn
    fastest: float      # the fastest step, by the rank that took longest: a busy machine only adds time
    apart: float        # longest less shortest clock of a step, over the ranks
    drawn: float        # the same of pace and delay: how far apart the clocks would be if nobody waited

    @property
    def over(self):
        """What a step takes beyond its slowest rank: the gradients' sum, the optimizer, waking up."""
        return self.step - self.slowest


def delayed_steps(world_size, *, jitter=0.0, slow=None, steps=20, pace=JOB.pace, seed=0, timeout=60):
    """Train a small model on `world_size` ranks, each of them delayed in each step; returns a `Delayed`.

    jitter   mean, in seconds, of an extra time drawn from an exponential distribution, anew for each rank and step
    slow     {rank: seconds more in every step}
    pace     seconds a sequence, slept; the 56 sequences of a step are shared out over the ranks
    One step more is made before the clock starts. Raises ValueError for a negative time, an unknown rank, or more ranks
    than sequences.

    >>> delayed_steps(8, slow={9: 0.1})
    Traceback (most recent call last):
    ValueError: slow={9: 0.1}: rank 9 is none of 0 to 7
    """
    slow, job = slow or {}, replace(JOB, pace=pace)
    job.check(world_size)
    if jitter < 0 or min(slow.values(), default=0) < 0 or steps < 1:
        raise ValueError(f"jitter={jitter}, slow={slow}, steps={steps}: want no negative time and at least one step")
    if unknown := [rank for rank in slow if not 0 <= rank < world_size]:
        raise ValueError(f"slow={slow}: rank {unknown[0]} is none of 0 to {world_size - 1}")
    delays = np.random.default_rng(seed).exponential(1.0, (steps, world_size)) * jitter
    for rank, seconds in slow.items():
        delays[:, rank] += seconds
    shares = np.array([len(part) for part in np.array_split(np.arange(job.batch), world_size)])
    asked = delays + job.pace * shares
    seconds = np.array(launch(_train, world_size, job, delays, timeout=timeout))
    means = (seconds.mean(), asked.mean(), asked.max(axis=1).mean(), seconds.max(axis=0).min(),
             np.ptp(seconds, axis=0).mean(), np.ptp(asked, axis=1).mean())
    return Delayed(*map(float, means))


def _train(job, delays):
    training, seconds = Training(job), []
    training.step()
    for mine in delays[:, dist.get_rank()]:
        training.drag = mine
        start = time.perf_counter()
        training.step()
        seconds.append(time.perf_counter() - start)
    return seconds
