"""Go on without the lost: the surviving ranks shrink the process group and continue from copies in memory.

A full restart ends healthy processes, starts them again, and reads the state from storage. Here nobody alive is ended:

    a peer is gone  →  each survivor hangs up (which wakes those that wait for it)  →  the supervisor names the
    members of the next group  →  they form it  →  the lost rank's shards come from its neighbour (`peers`)  →  train on

The global batch stays the same, so the survivors take larger shares.
Sources: Wang et al. SOSP 2023 (Gemini); MPI's user-level failure mitigation, Bland et al. 2013, whose `shrink` this is.
"""

import contextlib
import json
import math
import os
import pickle
import signal
import socket
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from clusterlab.run import ranks, worker
from clusterlab.run.job import Job, Training
from clusterlab.run.peers import Peers

TOGETHER = 0.1                          # seconds: ranks of one node do not die in the same instant


@dataclass(frozen=True)
class Survival:
    """What a shrinking run did. `worlds`: members of each group, by their first rank; `resumed`: step each began at."""

    losses: list            # of each step, as computed last
    worlds: tuple
    resumed: tuple
    lost: tuple             # steps made undone by each loss
    stalled: tuple          # seconds from each fault until the survivors were ready to train
    copied: int             # bytes a rank sent its neighbour for one copy
    recovered: tuple        # bytes that passed through a rank to put the state together, each time


def continue_without(faults, world_size=4, *, steps=12, copy_every=3, job=None, timeout=5.0, deadline=120.0):
    """Train on `world_size` ranks; after each of `faults` ("kill", "freeze" or "lose" of `failures.Fault`) the
    survivors go on, in the same processes, from in-memory copies taken every `copy_every` steps. Returns `Survival`.

    A frozen rank is ended by the supervisor. Raises RankError when a rank fails otherwise, or when a shard is lost with
    the neighbour that kept its copy; ValueError for a fault of another kind.
    """
    job, faults = job or Job(), list(faults)
    job.check(world_size)
    for fault in faults:
        if fault.kind not in ("kill", "freeze", "lose") or fault.moment != "forward":
            raise ValueError(f"{fault}: survivors are for kill, freeze and lose, at the begin of a step")
    with tempfile.TemporaryDirectory(prefix="clusterlab-", ignore_cleanup_errors=True) as root:
        with open(os.path.join(root, "task"), "wb") as file:
            pickle.dump({}, file)
            worker.dump((life, (job, root, steps, copy_every, faults, timeout), {}), file)
        board, procs = worker.Board(root, world_size), []
        try:
            ranks.start(procs, world_size, root, "gloo", None, timeout)
            alive = _attend(procs, board, root, timeout, deadline)
        finally:
            ranks.stop(procs)
        events = sorted((event for rank in range(world_size) for event in _log(root, rank)), key=lambda e: e[0])
        return _summary(events, ranks.value(root, alive[0], world_size), steps)


# one rank


def life(job, root, steps, every, faults, timeout):
    """What each rank runs for as long as it lives; returns its in-memory copies' sizes."""
    me, members, peers, sizes, recovered = dist.get_rank(), list(range(dist.get_world_size())), Peers(), [], []
    with open(Path(root) / f"log-{me}", "a", buffering=1) as file:
        def log(event, *words):
            print(json.dumps([time.monotonic(), event, *words]), file=file)

        generation, faults = 0, [fault for fault in faults if fault.hits(me)]
        while not train(job, peers, members, steps, every, faults, sizes, recovered, log):
            hang_up()
            generation, members = regroup(root, generation + 1, me, timeout)
    return max(sizes), recovered


def train(job, peers, members, steps, every, faults, sizes, recovered, log):
    """Train on these members to the end (True) or until one of them is gone (False)."""
    try:
        training = Training(job)
        if peers.own:
            recovered.append(peers.recover(training.state).received)
        dist.barrier()
        log("ready", training.steps, members)
        while training.steps < steps:
            for fault in faults:
                if (fault.step, fault.moment) == (training.steps, "forward"):
                    log("fault")
                    os.kill(os.getpid(), signal.SIGSTOP if fault.kind == "freeze" else signal.SIGKILL)
            loss = training.step()
            log("step", training.steps - 1, loss)
            if training.steps % every == 0:
                sizes.append(peers.save(training.steps, training.state).sent)
    except RuntimeError as error:
        if not worker.lost_peer(error):
            raise
        return False
    return True


def regroup(root, generation, me, timeout):
    """Leave the old process group, learn who is in the next, join it; returns (generation, its members by first rank).

    Should a member of the next group be lost too before it is formed, there will be another.
    """
    while True:
        dist.destroy_process_group() if dist.is_initialized() else None
        path, end = Path(root) / f"members-{generation}", time.monotonic() + timeout + 5
        while not path.exists():
            if time.monotonic() > end:
                raise RuntimeError(f"rank {me}: a peer is gone, and no members of group {generation} were named")
            time.sleep(0.01)
        members = json.loads(path.read_text())
        try:
            dist.init_process_group("gloo", store=dist.FileStore(f"{path}-store", len(members)),
                                    rank=members.index(me), world_size=len(members), timeout=timedelta(seconds=timeout))
        except RuntimeError:
            if not (Path(root) / f"members-{generation + 1}").exists():
                raise
            generation += 1
        else:
            return generation, members


def hang_up():
    """Close every connection to other ranks, which ends all waiting here and there. ProcessGroup.abort would be the
    way, but on gloo (torch 2.13) a rank that waits goes on waiting until its timeout; as it does here without /proc.
    """
    with contextlib.suppress(OSError):
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()                        # raises for one that only listens
                    connection.shutdown(socket.SHUT_RDWR)


# the supervisor


def _attend(procs, board, root, timeout, deadline):
    """Name the members of each next group until all survivors are done; returns them."""
    alive, generation, first, end = list(range(len(procs))), 0, math.inf, time.monotonic() + deadline
    while True:
        done = [rank for rank in alive if os.path.exists(os.path.join(root, f"{rank}.report"))]
        dead = [rank for rank in alive if rank not in done and not procs[rank].is_alive()]
        for rank in done:
            with open(os.path.join(root, f"{rank}.report"), "rb") as file:
                report = pickle.load(file)
            if report["kind"] != "ok":
                raise ranks.RankError(f"rank {rank} of {len(procs)} {report['what']}", [rank], "raised",
                                      detail=report.get("trace", ""))
        if dead and time.monotonic() > (first := min(first, time.monotonic())) + TOGETHER:
            first = math.inf
            generation, alive = generation + 1, [rank for rank in alive if rank not in dead]
            for rank in dead:
                board.finish(rank)                                  # nobody needs to wait for it at the end
            path = os.path.join(root, f"members-{generation}")
            Path(path + ".new").write_text(json.dumps(alive))
            os.replace(path + ".new", path)
        if set(done) == set(alive) and alive:
            return alive
        if not alive or time.monotonic() > end:
            raise ranks.RankError(f"no end after {deadline} s: ranks {alive or 'none'} left", alive, "deadline")
        for rank in alive:
            if board.last_beat(rank) and time.monotonic() - board.last_beat(rank) > timeout and rank not in done:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(procs[rank].pid, signal.SIGKILL)
        time.sleep(0.01)


def _log(root, rank):
    path = Path(root) / f"log-{rank}"
    return [[*json.loads(line), rank] for line in path.read_text().splitlines()] if path.exists() else []


def _summary(events, sizes, steps):
    losses = {event[2]: event[3] for event in events if event[1] == "step"}
    worlds, resumed, lost, stalled = [], [], [], []
    for at, event, *words, _ in events:
        if event == "ready" and words[1] not in worlds:
            worlds.append(words[1])
            resumed.append(words[0])
            if len(worlds) > 1:
                first = min(e[0] for e in events if e[1] == "fault" and e[-1] in worlds[-2] and e[-1] not in words[1])
                ready = max(e[0] for e in events if e[1] == "ready" and e[3] == words[1])
                done = max(e[2] + 1 for e in events if e[1] == "step" and e[0] < at)
                lost.append(done - words[0])
                stalled.append(ready - first)
    copied, recovered = sizes
    return Survival([losses[step] for step in range(steps)], tuple(map(tuple, worlds)), tuple(resumed), tuple(lost),
                    tuple(stalled), copied, tuple(recovered))
