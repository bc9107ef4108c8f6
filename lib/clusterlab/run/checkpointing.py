"""Two experiments with checkpoints: what each kind costs, and a run that changes its number of ranks on the way.

    for row in costs(4): print(row)
    chain([(4, 2), (3, 4), (8, 6)]).deviation
"""

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial

from clusterlab.run.background import Background
from clusterlab.run.checkpoint import checkpoints, load, save
from clusterlab.run.compared import Compared
from clusterlab.run.job import Job, Training, undisturbed_losses
from clusterlab.run.peers import Peers
from clusterlab.run.ranks import launch


@dataclass(frozen=True)
class Cost:
    """One kind of checkpoint; medians, of the rank that has most."""

    kind: str               # "storage", "storage, verified", "background", "memory", "load"
    bytes: int              # that a rank writes, sends or reads
    blocked: float          # seconds for which training stands still
    behind: float           # seconds that go on in the background


@dataclass(frozen=True)
class Chain(Compared):
    """Losses of a run over several numbers of ranks, beside those of one that kept the first number."""

    losses: list
    reference: list


def costs(world_size=4, *, job=None, repeats=3, timeout=120):
    """Save `job` in each way, `repeats` times: (bytes of the state, [`Cost`])."""
    job = job or Job(strategy="fsdp")
    job.check(world_size)
    with tempfile.TemporaryDirectory(prefix="clusterlab-") as root:
        answers = launch(_costs, world_size, root, job, repeats, timeout=timeout)
    most = [max(rows) for rows in zip(*(rows for _, rows in answers), strict=True)]
    return answers[0][0], [Cost(kind, *row) for kind, row in zip(KINDS, most, strict=True)]


KINDS = ("storage", "storage, verified", "background", "memory", "load")


def _costs(root, job, repeats):
    training, peers, rows = Training(job), Peers(), {kind: [] for kind in KINDS}
    folder = {kind: os.path.join(root, kind) for kind in KINDS}
    writer = Background(folder["background"])
    training.step()
    for k in range(1, repeats + 1):
        for kind, verify in (("storage", False), ("storage, verified", True)):
            saved = save(folder[kind], k, training.state, verify=verify)
            rows[kind].append((saved.written, saved.blocked, 0.0))
        writer.save(k, training.state)
        saved = writer.wait()
        rows["background"].append((saved.written, saved.blocked, saved.seconds))
        copied = peers.save(k, training.state)
        rows["memory"].append((copied.sent, copied.seconds, 0.0))
        start = time.perf_counter()
        load(folder["storage"], training.state)
        rows["load"].append((saved.written, time.perf_counter() - start, 0.0))
    return saved.state, [tuple(map(statistics.median, zip(*rows[kind], strict=True))) for kind in KINDS]


def chain(legs, *, job=None, timeout=60):
    """Train on several numbers of ranks, one after the other: `legs` = [(ranks, until step)]; returns `Chain`.

    Between two legs there is a checkpoint and nothing else. Without dropout, whose random numbers belong to a rank,
    only the order of sums differs.
    """
    job = job or Job(strategy="fsdp", dropout=0.0)
    for ranks, _ in legs:
        job.check(ranks)
    if [until for _, until in legs] != sorted({until for _, until in legs}) or not legs:
        raise ValueError(f"legs={legs!r}: want at least one, each to a later step")
    with tempfile.TemporaryDirectory(prefix="clusterlab-") as root:
        leg = partial(_leg, root, job)
        losses = [loss for ranks, until in legs for loss in launch(leg, ranks, until, timeout=timeout)[0]]
    return Chain(losses, launch(undisturbed_losses, legs[0][0], job, legs[-1][1], timeout=timeout)[0])


def _leg(root, job, until):
    training = Training(job)
    if checkpoints(root):
        load(root, training.state)
    losses = [training.step() for _ in range(training.steps, until)]
    save(root, until, training.state)
    return losses
