"""From a job and a machine to its best plans and to how long, reliable and dear the run is.

One :func:`~clusterlab.training.search` a job, on a machine whose memory has no end: the plans that fit are the answer,
and how much faster the others would be says whether memory is what binds.
"""

import dataclasses
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from clusterlab.hardware import Cluster, node
from clusterlab.memory import MIXED_16
from clusterlab.reliability import goodput, optimal_interval, system_mtbf
from clusterlab.training import OVERLAP, Ranked, search
from clusterlab.transformer import model as named
from clusterlab.units import MiB, day, minute

DEVICE_MTBF = 54 * day * 16384 / 419        # Llama 3 405B: 419 unexpected interruptions; arXiv:2407.21783, section 3.3.4
RESERVE = 4e9                               # bytes of a device set aside: framework's context, buffers of NCCL, gaps; chosen
STORAGE = 2e9                               # bytes/s that each host writes; chosen
STORAGE_IN_ALL = 2e12                       # bytes/s that all hosts can: Llama 3 405B, sustained; arXiv:2407.21783, section 3.3.1
RESTART = 10 * minute                       # from a failure to the first new step; chosen
# the planner's grid: models with the sequence they train on, machines with the GPUs of each that a job uses
SEQUENCES = {"llama-3.1-8b": 8192, "llama-3.1-70b": 8192, "llama-3.1-405b": 8192, "mixtral-8x7b": 4096}
USED = {"DGX A100": 8, "DGX H100": 8, "DGX B200": 8, "GB200 NVL72": 64, "MI300X Platform": 8}
DEVICES = (8, 64, 512, 4096, 16384)
BATCHES = (4 * MiB, 16 * MiB)               # tokens
UNCAPPED = 1e18                             # bytes
FASTER = 1.05                               # times as fast: below it memory is not what binds; chosen
SAME = ("tensor", "pipeline", "data", "context", "expert")
GROUPS = {"arithmetic": ("matmul", "attention", "head"), "memory traffic": ("pointwise", "gradients", "optimizer"),
          "recomputation": ("recompute",), "tensor parallelism": ("tensor",), "context parallelism": ("context",),
          "expert parallelism": ("expert",), "pipeline": ("bubble", "sends"), "data parallelism": ("data",)}


def rack(name, devices):
    """The node of the catalogue with only some of its devices at work; power, NICs and hosts in proportion.

    Raises ValueError for a number of devices that leaves no whole host or NIC.

    >>> part = rack("GB200 NVL72", 64)
    >>> part.devices, part.hosts, part.nics, round(part.power)
    (64, 16, 64, 106667)
    """
    whole = node(name)
    share = devices / whole.devices
    if not 0 < share <= 1 or (share * whole.hosts) % 1 or (share * whole.nics) % 1:
        raise ValueError(f"devices={devices!r}: must be at most the {whole.devices} of {name}, whole hosts and NICs")
    return dataclasses.replace(whole, name=f"{name}, {devices} GPUs of {whole.devices}" if share < 1 else name,
                               devices=devices, hosts=round(share * whole.hosts), nics=round(share * whole.nics),
                               power=whole.power and share * whole.power)


class Run(NamedTuple):
    """A whole training run: wall-clock seconds, device-hours, interruptions, joules (None: unknown power), price."""

    seconds: float
    device_hours: float
    interruptions: float
    energy: float | None
    cost: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What :func:`best` found: `plans` that fit, fastest first, one for each set of degrees.

    ``legal`` counts the plans that keep every rule, ``too_large`` those of them that do not fit, ``leanest`` is the
    least memory any of them needs (bytes; nan if there is none), ``unlimited`` the step if memory had no end, seconds.
    ``wanted`` is, of the plans more than 1.05 times as fast as the best, the one that needs least memory, or None.
    ``write`` and ``mtbf`` of the job are seconds.
    """

    cluster: object
    plans: tuple
    legal: int
    too_large: int
    leanest: float
    unlimited: float
    rejected: dict
    write: float
    mtbf: float
    wanted: Ranked | None = None

    @cached_property
    def interval(self):
        """The checkpoint interval that loses least, seconds: :func:`~clusterlab.reliability.optimal_interval`."""
        return optimal_interval(self.write, self.mtbf)

    @cached_property
    def goodput(self):
        """Share of the time that becomes banked work, with that interval and ``RESTART``."""
        return goodput(self.interval, write=self.write, mtbf=self.mtbf, restart=RESTART)

    def binds(self, rank=0):
        """What binds the plan, in a word.

        "memory", if without its limit the job were over 5 % faster; "arithmetic", if that takes half of the step; else
        the largest other group of :func:`shares`.
        """
        step = self.plans[rank].estimate
        if step.step_seconds > FASTER * self.unlimited:
            return "memory"
        arithmetic, *others = shares(step.breakdown).items()
        return arithmetic[0] if arithmetic[1] >= 0.5 else max(others, key=lambda item: item[1])[0]

    def run(self, tokens, price, *, rank=0, pue=1.2):
        """The whole :class:`Run` for a number of tokens and a price of a device-hour.

        seconds = tokens / (tokens a second) / goodput. Energy: the nodes' power all the time, times PUE.
        Raises ValueError unless tokens are positive, the price at least 0 and PUE at least 1.
        """
        if not (np.all(np.greater(tokens, 0)) and np.all(np.greater_equal(price, 0)) and np.all(np.greater_equal(pue, 1))):
            raise ValueError(f"tokens={tokens!r}, price={price!r}, pue={pue!r}: must be above 0, from 0, and from 1")
        seconds = tokens / self.plans[rank].estimate.tokens_per_second / self.goodput
        hours = seconds * self.cluster.devices / 3600.0
        power = self.cluster.node.power
        energy = None if power is None else seconds * power * self.cluster.nodes * pue
        return Run(seconds, hours, seconds / self.mtbf, energy, hours * price)


def shares(breakdown):
    """The share of the step that each of ``GROUPS`` takes; they sum to 1.

    >>> shares({"matmul": 3.0, "bubble": 1.0})["pipeline"]
    0.25
    """
    total = sum(breakdown.values())
    return {group: sum(breakdown.get(part, 0.0) for part in parts) / total for group, parts in GROUPS.items()}


def best(model, cluster, *, global_batch, seq, keep=3, overlap="data", device_mtbf=DEVICE_MTBF, reserve=0.0, **fixed):
    """The ``keep`` best plans of a job, and what stands in the way of better ones.

    Plans are those of :func:`~clusterlab.training.search` (``fixed`` goes there); of those with equal degrees only
    the fastest counts. ``reserve`` bytes of each device are left free. A checkpoint is weight, master copy and moments
    of each parameter (14 bytes with 16-bit weights); each host writes its part at ``STORAGE``, all of them at most at
    ``STORAGE_IN_ALL``. Raises ValueError for keep below 1, an unknown overlap, a reserve below 0 or above the memory.

    >>> from clusterlab.hardware import Cluster
    >>> from clusterlab.transformer import model
    >>> found = best(model("llama-3.1-8b"), Cluster(node("DGX H100"), 1), global_batch=128, seq=8192)
    >>> found.plans[0].plan.data, found.too_large > 0, found.binds()
    (8, True, 'arithmetic')
    """
    if keep < 1 or overlap not in OVERLAP:
        raise ValueError(f"keep={keep!r}, overlap={overlap!r}: must be at least 1, and one of {', '.join(OVERLAP)}")
    usable = cluster.accelerator.memory - reserve
    if not 0 < usable <= cluster.accelerator.memory:
        raise ValueError(f"reserve={reserve!r}: must be from 0, and less than the device's memory")
    roomy = dataclasses.replace(cluster.accelerator, memory=UNCAPPED)
    found = search(model, dataclasses.replace(cluster, node=dataclasses.replace(cluster.node, accelerator=roomy)),
                   global_batch=global_batch, seq=seq, overlap=overlap, **fixed)
    memory = np.asarray(found.estimates.memory.total)
    fits = np.flatnonzero(memory <= usable)
    degrees = np.stack([getattr(found.plans, name) for name in SAME], axis=1)[fits]
    first = np.sort(np.unique(degrees, axis=0, return_index=True)[1])[:keep]
    step = np.asarray(found.estimates.step_seconds)
    faster = np.flatnonzero(step * FASTER < step[fits[0]]) if len(fits) else fits
    wanted = Ranked(*found[int(faster[np.argmin(memory[faster])])]) if len(faster) else None
    recipe = fixed.get("recipe", MIXED_16)
    size = model.parameters() * (recipe.weight + recipe.master + recipe.moments)
    return Outcome(cluster=cluster, plans=tuple(Ranked(*found[int(i)]) for i in fits[first]),
                   legal=len(found), too_large=len(found) - len(fits),
                   leanest=float(memory.min()) if len(found) else float("nan"),
                   unlimited=float(step[0]) if len(found) else float("nan"),
                   rejected=dict(found.rejected), write=size / min(STORAGE * cluster.hosts, STORAGE_IN_ALL),
                   mtbf=system_mtbf(device_mtbf, cluster.devices), wanted=wanted)


@cache
def job(name, machine, devices, batch):
    """:func:`best` for one choice of the planner's grid: a model of ``SEQUENCES``, a machine of ``USED``, tokens a step.

    ``RESERVE`` bytes of each device stay free.

    Raises LookupError for other names, ValueError unless the machine's used GPUs divide the devices.

    >>> job("llama-3.1-70b", "DGX H100", 512, 4 * MiB).binds()
    'memory'
    """
    if name not in SEQUENCES or machine not in USED:
        raise LookupError(f"name={name!r}, machine={machine!r}: must be of {', '.join(SEQUENCES)}; of {', '.join(USED)}")
    if devices % USED[machine]:
        raise ValueError(f"devices={devices!r}: must be a multiple of the {USED[machine]} that a job uses of {machine}")
    cluster = Cluster(rack(machine, USED[machine]), devices // USED[machine])
    return best(named(name), cluster, global_batch=batch // SEQUENCES[name], seq=SEQUENCES[name], reserve=RESERVE)
