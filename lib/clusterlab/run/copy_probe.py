"""Copies between the host and a device, and between devices: what a link gives to one large message."""
import itertools

import torch

from clusterlab.run.device import device
from clusterlab.run.target import devices, memory, reaches
from clusterlab.run.timing import attempt, rated, timed
from clusterlab.units import KiB, MiB


def sizes(where=None, *, quick=False) -> list:
    """Bytes of the messages: one small, that shows latency, up to one large, at most 1/8 of free memory.

    >>> sizes(quick=True)
    [65536, 1048576]
    """
    where = where or device()
    chosen = (64 * KiB, MiB) if quick else (64 * KiB, MiB, 16 * MiB, 256 * MiB)
    room = min(memory(where)[0], memory(torch.device("cpu"))[0]) / 8
    return [int(size) for size in chosen if size <= room]


def host_copies(where=None, *, quick=False) -> list:
    """Host to device and back, from pageable and from pinned memory: rows with what, pinned, bytes, seconds, rate.

    A pageable copy goes through a pinned buffer of the driver's and holds the host up; a pinned one is one transfer.
    One row with a sentence if there is only a CPU.

    >>> rows = host_copies(torch.device("cpu"))
    >>> rows[0]["skipped"]
    'There is no device beside the CPU.'
    """
    where = where or device()
    if where.type == "cpu":
        return [{"what": "host copies", "skipped": "There is no device beside the CPU."}]
    rows = []
    for what, pinned, size in itertools.product(("host to device", "device to host"), (False, True),
                                                sizes(where, quick=quick)):
        named = {"what": what, "pinned": pinned, "bytes": size}
        if pinned and where.type == "mps":
            continue                                                # one memory for both: nothing to pin
        rows.append(attempt(lambda: _host_row(named, where, quick), **named))  # noqa: B023
    return rows


def _host_row(named, where, quick):
    host = torch.zeros(named["bytes"], dtype=torch.uint8, pin_memory=named["pinned"])
    there = torch.zeros_like(host, device=where, pin_memory=False)
    target, source = (there, host) if named["what"] == "host to device" else (host, there)
    seconds = timed(lambda: target.copy_(source, non_blocking=named["pinned"]), where, also=(where,),
                    repeats=3 if quick else 15)
    return rated(seconds, **named)


def peer_copies(among=None, *, quick=False) -> list:
    """A copy from each device to each other one: rows with source, target, direct, bytes, seconds, rate.

    Two devices that do not reach each other's memory still copy, through the host: the row says so in a `note`.
    One row with a sentence if there are not two.

    >>> peer_copies([torch.device("cpu")])[0]["skipped"]
    'Copies between devices need two of them.'
    """
    among = devices() if among is None else among
    if len(among) < 2:
        return [{"what": "peer", "skipped": "Copies between devices need two of them."}]
    rows = []
    for source, target in itertools.permutations(among, 2):
        direct = reaches(target, source)
        note = {} if direct else {"note": f"{target} has no peer access to {source}: the copy goes through the host."}
        for size in sizes(target, quick=quick)[-2:]:
            named = {"what": "peer", "source": source.index, "target": target.index, "direct": direct, "bytes": size}
            rows.append(attempt(lambda: _peer_row(named, source, target, quick), **named) | note)  # noqa: B023
    return rows


def _peer_row(named, source, target, quick):
    here = torch.zeros(named["bytes"], dtype=torch.uint8, device=source)
    there = torch.zeros_like(here, device=target)
    seconds = timed(lambda: there.copy_(here, non_blocking=True), source, also=(target,), repeats=3 if quick else 15)
    return rated(seconds, **named)
