"""What saving costs a training that goes on: the same steps without checkpoints, and with each kind of them.

    for kind, one in save_while_training().items(): print(kind, one.blocked, one.behind, one.at_return)
"""

import os
import statistics
import tempfile
import time
from dataclasses import dataclass

import torch.distributed as dist

from clusterlab.run.background import Background
from clusterlab.run.checkpoint import checkpoints, save
from clusterlab.run.job import Job, Training
from clusterlab.run.peers import Peers
from clusterlab.run.ranks import launch
from clusterlab.transformer import Transformer

SHAPE = Transformer(layers=2, hidden=256, heads=4, vocab=256, ffn=512, gated=True)
JOB = Job(shape=SHAPE, strategy="fsdp", batch=4, micro_batch=2, dropout=0.0, pace=0.04)
KINDS = ("none", "storage", "background", "memory")


@dataclass(frozen=True)
class Saving:
    """A few steps with one kind of checkpoint after some of them; seconds of the rank that has most."""

    step: float         # median time of a step
    blocked: float      # median for which a checkpoint stopped the training
    behind: float       # for which the last write went on afterwards
    bytes: int          # that a rank writes or sends at each
    at_return: bool     # whether storage held a whole checkpoint when the first `save` returned
    at_end: bool        # whether it did at the end


def save_while_training(world_size=2, *, kinds=KINDS, count=2, every=3, job=JOB, timeout=60):
    """Train `job` and save it `count` times, `every` steps apart, in each of `kinds`; returns {kind: Saving}.

    "storage" writes and waits; "background" copies and lets a thread write; "memory" gives the neighbour a copy and
    touches no storage; "none" only trains. Raises ValueError for an unknown kind.
    """
    if unknown := set(kinds) - set(KINDS):
        raise ValueError(f"kinds has {sorted(unknown)}: known are {', '.join(KINDS)}")
    job.check(world_size)
    with tempfile.TemporaryDirectory(prefix="clusterlab-") as root:
        ranks = launch(_save, world_size, root, job, list(kinds), count, every, timeout=timeout)
    return {kind: Saving(*map(max, zip(*(rank[kind] for rank in ranks), strict=True))) for kind in kinds}


def _save(root, job, kinds, count, every):
    training, out = Training(job), {}
    training.step()
    for kind in kinds:
        folder, peers = os.path.join(root, kind), Peers()
        writer = Background(folder) if kind == "background" else None
        steps, blocked, behind, size, held = [], [], 0.0, 0, False
        for k in range(count):
            steps += [_seconds(training.step)[0] for _ in range(every)]
            if kind == "storage":
                took, saved = _seconds(save, folder, training.steps, training.state)
                size = saved.written
            elif kind == "background":
                took, _ = _seconds(writer.save, training.steps, training.state)
            elif kind == "memory":
                took, copied = _seconds(peers.save, training.steps, training.state)
                size = copied.sent
            else:
                took = 0.0
            blocked.append(took)
            held = bool(checkpoints(folder)) if k == 0 else held
            dist.barrier()
        if writer:
            saved = writer.wait()
            size, behind = saved.written, saved.seconds
        out[kind] = (statistics.median(steps), statistics.median(blocked), behind, size, held, bool(checkpoints(folder)))
    return out


def _seconds(call, *args):
    start = time.perf_counter()
    value = call(*args)
    return time.perf_counter() - start, value
