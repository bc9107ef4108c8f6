"""A job on a fabric: how much the busiest cable carries, and which kind of cable it is.

Six fabrics for 512 GPUs, five kinds of traffic, servers in order or shuffled, flows hashed or spread:

>>> found = slowest(fabrics()["4:1 tree"], "all")
>>> found.kind, round(found.load, 2)
('leaf to spine', 3.88)
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from clusterlab.topology import clos, dragonfly, fat_tree, rail_only, rail_optimized, route, torus, traffic

GPUS, SERVER, STAGE, EXPERTS = 512, 8, 64, 32
JOBS = {
    "TP": "tensor parallel: a ring in each server of 8",
    "DP": "data parallel: for each GPU number a ring through all servers",
    "PP": "pipeline: 8 stages of 64 GPUs, each sends to the next",
    "EP": "experts: all-to-all in groups of 32 neighbours",
    "all": "all-to-all of all 512",
}


@dataclass(frozen=True)
class Slowest:
    """The busiest cable: its ``kind``, its ``load``, and the heaviest load ``by_kind``.

    Loads are in what one rank sends in all: 1 is what its own port must carry anyway, 3 takes three times as long.
    """

    kind: str
    load: float
    by_kind: dict


def fabrics():
    """Six fabrics for 512 GPUs, by name; switches have 32 ports, of which a router of the dragonfly uses 15.

    >>> {name: fabric.endpoints for name, fabric in fabrics().items()}["torus"]
    512
    """
    return {
        "fat tree": fat_tree(32, 2),
        "4:1 tree": clos((16, 32), (1, 4), radix=32),
        "rail-optimized": rail_optimized(GPUS // SERVER, radix=32),
        "rail-only": rail_only(GPUS // SERVER, radix=32),
        "dragonfly": dragonfly(4, groups=16),
        "torus": torus((8, 8, 8)),
    }


def job(name, *, nvlink=True, shuffled=False, seed=0):
    """The messages of one of `JOBS` as ``src, dst, bytes``: each rank that sends has 1 byte to send in all.

    Rank r is GPU r mod 8 of server r // 8. With ``nvlink`` what stays in a server is left out, and a message to another
    GPU number crosses NVLink first and leaves the server from that number's port, as NCCL's PXN does. ``shuffled`` puts
    the servers in random places. Raises LookupError for an unknown name.

    >>> src, dst, size = job("DP")
    >>> src[:2].tolist(), dst[:2].tolist(), size[:2].tolist()
    ([0, 1], [8, 9], [1.0, 1.0])
    """
    if name not in JOBS:
        raise LookupError(f"name={name!r}: {', '.join(JOBS)} are allowed")
    rank = np.arange(GPUS)
    server, gpu = rank // SERVER, rank % SERVER
    if name == "TP":
        src, dst = rank, server * SERVER + (gpu + 1) % SERVER
    elif name == "DP":
        src, dst = rank, (rank + SERVER) % GPUS
    elif name == "PP":
        src, dst = rank[:-STAGE], rank[STAGE:]
    else:
        group = EXPERTS if name == "EP" else GPUS
        src, dst = np.repeat(rank, group), np.add.outer(rank // group * group, np.arange(group)).ravel()
        src, dst = src[src != dst], dst[src != dst]
    size = np.full(len(src), 1 / np.bincount(src).max())
    if nvlink:
        away = src // SERVER != dst // SERVER
        flow = (src // SERVER * SERVER + dst % SERVER)[away] * GPUS + dst[away]
        pairs, which = np.unique(flow, return_inverse=True)
        src, dst, size = *np.divmod(pairs, GPUS), np.bincount(which, size[away], len(pairs))
    place = rank
    if shuffled:
        place = np.random.default_rng(seed).permutation(GPUS // SERVER)[server] * SERVER + gpu
    return place[src], place[dst], size


def kinds(fabric):
    """What the directed cables of a fabric join: {kind: slice of the loads}.

    >>> list(kinds(fabrics()["dragonfly"]))
    ['GPU to router', 'inside a group', 'group to group']
    """
    layout = fabric.layout
    if hasattr(layout, "tiers"):
        names = ["GPU to leaf", "leaf to spine", "spine to core"][:len(layout.tiers)]
        counts = [layout.nodes(tier) * layout.parents[tier] * layout.parallel[tier] for tier in range(len(names))]
    elif hasattr(layout, "groups"):
        names = ["GPU to router", "inside a group", "group to group"]
        counts = [layout.endpoints, layout.groups * layout.a * (layout.a - 1) // 2, layout.routers * layout.h // 2]
    else:
        names = [f"dimension {k + 1}" for k in range(len(layout.dims))]
        counts = [layout.endpoints] * len(names)
    ends = np.cumsum([0, *counts]).tolist()
    return {name: slice(2 * low, 2 * high) for name, (low, high) in zip(names, pairwise(ends), strict=True)}


def slowest(fabric, name, *, policy="ecmp", shuffled=False, failed=(), seed=0):
    """Route one of `JOBS` over a fabric of `GPUS` endpoints and find the busiest cable.

    A torus has no NVLink. On a dragonfly the GPUs of one number sit together on a group's routers, as rails do. An
    all-to-all of everybody is the expected load, which hashing and spreading share. Raises what `job` and
    `clusterlab.topology.route` raise.

    >>> slowest(fabrics()["4:1 tree"], "PP", policy="adaptive").load
    4.0
    """
    if name == "all" and not failed:
        flows = traffic("all-to-all", GPUS, GPUS / (GPUS - 1))
    else:
        flows = _placed(fabric, name, shuffled, seed)
    loads = route(fabric, flows, policy=policy, failed=failed, seed=seed).bytes
    by_kind = {kind: float(loads[part].max(initial=0.0)) for kind, part in kinds(fabric).items()}
    kind = max(by_kind, key=by_kind.get)
    return Slowest(kind, by_kind[kind], by_kind)


def _placed(fabric, name, shuffled, seed):
    src, dst, size = job(name, nvlink=bool(fabric.switches), shuffled=shuffled, seed=seed)
    if hasattr(fabric.layout, "groups"):
        group = fabric.layout.p * fabric.layout.a
        src, dst = (r // group * group + r % SERVER * (group // SERVER) + r % group // SERVER for r in (src, dst))
    return src, dst, size


def weak_spots(fabric, name):
    """Two cables to try without, as ``(node, node, number)``: a job's busiest one between switches, and GPU 0's own.

    On a torus both join chips: the job's busiest, and the first of chip 0.

    >>> weak_spots(fabrics()["rail-only"], "PP")
    ((512, 544, 0), (0, 512, 0))
    """
    own = (*map(int, fabric.layout.cable_ends[0]), 0)
    loads = route(fabric, _placed(fabric, name, False, 0), policy="adaptive").between_switches
    worst = (int(np.argmax(loads)) + 2 * len(fabric.layout.cable_ends) - len(loads)) // 2
    return (*map(int, fabric.layout.cable_ends[worst]), 0), own
