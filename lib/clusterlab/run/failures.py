"""The failure lab: train on real ranks, break them as planned, and see what it costs.

    timeline = train_with_failures([Fault("kill", rank=2, step=5), Fault("freeze", rank=0, step=9)], world_size=4)
    print(timeline.table()); print(timeline.waterfall())

The ranks run `segment`: steps, checkpoints, checks on each other. The launching process is the supervisor: it hears
from `launch` which rank failed, starts all ranks again from the newest good checkpoint, and goes on. Faults are done to
a rank by itself (a signal, a sleep, a flipped bit) at a step given beforehand, so that counts and losses repeat.
"""

import difflib
import functools
import hashlib
import json
import os
import signal
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from clusterlab.run import checkpoint
from clusterlab.run.background import Background
from clusterlab.run.job import Job, Training, undisturbed_losses
from clusterlab.run.ranks import RankError, launch
from clusterlab.run.timeline import SEEN, Incident, Timeline

KINDS = {
    "kill": "the process ends at once (SIGKILL), as on a crash or out of memory",
    "freeze": "the process stops and says nothing (SIGSTOP), as on a hung driver",
    "slow": "every step takes `seconds` longer from now on, as on a throttled device",
    "corrupt": "one bit flips, silently",
    "lose": "the node of ranks rank … rank + ranks - 1 is gone; it comes back at step `back`, if ever",
}
MOMENTS = {"kill": ("forward", "update", "save"), "freeze": ("forward", "update", "save"), "slow": ("forward",),
           "lose": ("forward", "update", "save"), "corrupt": ("before", "after", "weights", "moments")}
UNPLANNED = 3                           # failures that nobody planned (an overloaded machine) before the lab gives up


@dataclass(frozen=True)
class Fault:
    """What happens to a rank after `step` steps are done. `moment`: where in the step it strikes (see `MOMENTS`);
    corruption before or after the gradients are summed over ranks, or in a rank's weights or AdamW moments."""

    kind: str
    rank: int
    step: int
    moment: str = ""                    # the first that fits the kind, if not given
    seconds: float = 0.3                # slow
    ranks: int = 1                      # lose
    back: int | None = None             # lose
    bit: int = 24                       # corrupt: a bit of the exponent, a factor 4

    def __post_init__(self):
        if self.kind not in KINDS:
            near = difflib.get_close_matches(str(self.kind), KINDS) or KINDS
            raise LookupError(f"kind={self.kind!r} is unknown; near: {', '.join(near)}")
        object.__setattr__(self, "moment", self.moment or MOMENTS[self.kind][0])
        if self.moment not in MOMENTS[self.kind]:
            raise ValueError(f"moment={self.moment!r}: {self.kind} strikes at {', '.join(MOMENTS[self.kind])}")
        if self.back is not None and self.back <= self.step:
            raise ValueError(f"back={self.back}: want a step after {self.step}")

    def hits(self, rank):
        return self.rank <= rank < self.rank + (self.ranks if self.kind == "lose" else 1)


def segment(job, root, name, until, every, faults, background, checks):
    """What each rank runs from one start to the next: train to step `until`, saving every `every` steps.

    Returns ("done", ()) or what the ranks noticed themselves: ("slow" | "corrupt", ranks named).
    """
    rank = dist.get_rank()
    with open(Path(root) / "log" / f"{name}-{rank}", "a", buffering=1) as file:
        def log(event, *words):
            print(json.dumps([time.monotonic(), event, *words]), file=file)

        training = Training(job)
        writer = Background(root) if background else None
        resumed = checkpoint.load(root, training.state).step if checkpoint.checkpoints(root) else 0
        dist.barrier()
        log("ready", resumed)
        faults, busy = [fault for fault in faults if fault.hits(rank)], []
        while training.steps < until:
            loss, seconds = step(training, faults, log)
            log("step", training.steps - 1, loss)
            verdict = noticed(training, busy := [*busy[-2:], seconds], checks)
            due = training.steps % every == 0 or training.steps == until
            if verdict and verdict[0] == "corrupt":
                log("noticed")
                return verdict
            if verdict or due:
                strike(faults, training.steps, "save", log)
                if writer:
                    writer.save(training.steps, training.state)
                    log("copied", training.steps)
                if not writer or verdict or training.steps == until:
                    path = writer.wait() if writer else checkpoint.save(root, training.steps, training.state)
                    log("saved", path.step)
            if verdict:
                log("noticed")
                return verdict
        return "done", ()


def step(training, faults, log):
    """One training step with what is planned for it: (loss, seconds of each rank before it met the others)."""
    now = training.steps
    strike(faults, now, "forward", log)
    corrupt(training, faults, now, "before", log)
    loss, count = training.backward()
    strike(faults, now, "update", log)
    corrupt(training, faults, now, "after", log)
    training.update()
    corrupt(training, faults, now, "weights", log)
    corrupt(training, faults, now, "moments", log)
    mine = torch.tensor([loss, training.busy], dtype=torch.float64, device=training.where)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    losses, seconds = zip(*(part.tolist() for part in parts), strict=True)
    for fault in faults:
        if fault.kind == "slow" and now >= fault.step and not training.drag:
            log("flaw", fault.step)
            training.drag = fault.seconds
    return sum(losses) / count, seconds


def strike(faults, now, moment, log):
    """Kill or freeze this rank, if it is planned."""
    for fault in faults:
        if fault.kind in ("kill", "freeze", "lose") and (fault.step, fault.moment) == (now, moment):
            if moment == "save":
                checkpoint._write_synced = functools.partial(end, fault, log)
            else:
                end(fault, log)


def end(fault, log, path=None, data=b""):
    """Die or freeze; when about to write a file, half way through it."""
    if path:
        path.write_bytes(data[:len(data) // 2])
    log("fault", fault.step)
    os.kill(os.getpid(), signal.SIGSTOP if fault.kind == "freeze" else signal.SIGKILL)


def corrupt(training, faults, now, moment, log):
    """Flip a bit of one number, if it is planned."""
    for fault in faults:
        if fault.kind == "corrupt" and (fault.step, fault.moment) == (now, moment):
            log("flaw", fault.step)
            weight = next(iter(training.model.parameters()))
            if moment == "before":                                  # before DDP has seen the gradient
                hooks = []
                hooks.append(weight.register_hook(functools.partial(_flip_once, hooks, fault.bit)))
            else:
                where = {"after": weight.grad, "weights": weight.data}
                flip(where[moment] if moment in where else training.optimizer.state[weight]["exp_avg"], fault.bit)


def _flip_once(hooks, bit, gradient):
    hooks.pop().remove()
    return flip(gradient.clone(), bit)


def flip(tensor, bit):
    """Flip one bit of the number with the largest magnitude (so that it is not a zero of a token that never came)."""
    at = tensor.flatten().abs().argmax()
    tensor.view(torch.int32).view(-1)[at] ^= 1 << bit
    return tensor


def noticed(training, busy, checks):
    """What the ranks see of each other after a step; the same answer on every rank.

    "replicas": a checksum of weights and moments, equal on all ranks of plain data parallelism; the majority is right,
    and of two ranks neither. "stragglers": a rank that came last three times running, by far.
    """
    if "replicas" in checks and training.job.strategy == "ddp":
        sums = [None] * dist.get_world_size()
        dist.all_gather_object(sums, digest(training))
        (value, votes), *others = Counter(sums).most_common()
        if others:
            clear = votes > len(sums) / 2
            return "corrupt", tuple(rank for rank, other in enumerate(sums) if other != value) if clear else ()
    if "stragglers" in checks and len(busy) == 3 and len(busy[0]) > 1:
        late = [rank for rank in range(len(busy[0])) if all(
            s[rank] > 0.1 + 3 * statistics.median(s[:rank] + s[rank + 1:]) for s in busy)]
        if late:
            return "slow", tuple(late)
    return None


def digest(training):
    """Checksum of this rank's weights and optimizer state."""
    total = hashlib.sha256()
    for weight in training.model.parameters():
        for tensor in (weight, *(t for t in training.optimizer.state[weight].values() if torch.is_tensor(t))):
            total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def train_with_failures(faults=(), world_size=4, *, steps=12, checkpoint_every=3, job=None, timeout=5.0,
                        background=False, checks=("replicas", "stragglers"), reference=True, folder=None):
    """Train `job` for `steps` steps on `world_size` ranks although `faults` happen; returns a `Timeline`.

    Checkpoints every `checkpoint_every` steps, in the `background` or not. `timeout`: seconds a rank waits for another,
    and so how long a frozen one goes unseen. `checks`: which of "replicas" and "stragglers" the ranks do on each other.
    `reference`: train once more undisturbed, for its losses. `folder` keeps the checkpoints; else they are temporary.
    A rank killed or frozen: all start again from the newest good checkpoint. A node lost: the others go on, with the
    same global batch. A slow or corrupted rank: it is replaced. Raises RankError for a failure nobody planned, when it
    repeats or is an error in the program; ValueError for bad arguments.
    """
    job, faults = job or Job(pace=0.03), list(faults)
    _check(faults, world_size, steps, checkpoint_every, job, checks)
    with tempfile.TemporaryDirectory(prefix="clusterlab-") as temporary:
        root = Path(folder or temporary)
        if root.exists() and any(root.iterdir()):
            raise ValueError(f"folder={str(folder)!r}: want one that is empty or does not exist yet")
        (root / "log").mkdir(parents=True)
        incidents, events, worlds = _supervise(faults, world_size, steps, checkpoint_every, job, timeout, background,
                                               checks, root)
    undisturbed = launch(undisturbed_losses, world_size, job, steps)[0] if reference else None
    return Timeline(tuple(incidents), tuple(events), tuple(worlds), world_size, steps, checkpoint_every, undisturbed)


def _supervise(faults, full, steps, every, job, timeout, background, checks, root):
    incidents, events, worlds, world, until = [], [], [], full, steps
    while True:
        name = len(worlds)
        worlds.append(world)
        try:
            what, named = launch(segment, world, job, str(root), name, until, every, faults, background, checks,
                                 timeout=timeout)[0]
            error = None
        except RankError as caught:
            error, what, named = caught, caught.reason, caught.ranks
        now = time.monotonic()
        attempt, struck = _read(root, name, world, faults)
        events += [(at, name, *rest) for at, *rest in attempt]
        if what == "done":
            if until == steps:
                return incidents, events, worlds
            world, until = full, steps                              # the lost node is back
            continue
        events.append((now, name, "detected"))
        at, fault = _cause(what, struck)
        if what in ("raised", "unpicklable") or not fault and sum(i.fault is None for i in incidents) == UNPLANNED:
            raise error
        faults = [f for f in faults if f is not fault and (f.kind == "slow" or all(f is not hit for _, hit in struck))]
        if fault and fault.kind == "lose":
            world, until = world - fault.ranks, fault.back or steps
        done = max((e[2] + 1 for e in attempt if e[1] == "step"), default=0)
        incidents.append(Incident(fault, what, tuple(named), now - at if fault else None, name, done, world))


def _cause(what, struck):
    """(when, fault) of the planned fault behind what was seen, or (None, None)."""
    fitting = [(at, fault) for at, fault in struck if SEEN[fault.kind] == what] or struck
    return fitting[-1] if fitting else (None, None)


def _read(root, name, world, faults):
    """(what rank 0 logged, [(time, fault)] that struck any rank) of one start."""
    clock, struck = [], []
    for rank in range(world):
        path = Path(root) / "log" / f"{name}-{rank}"
        for line in path.read_text().splitlines() if path.exists() else ():
            at, event, *words = json.loads(line)
            if event in ("fault", "flaw"):                          # it ended the rank, or it did not
                struck.append((at, next(f for f in faults if f.hits(rank) and f.step == words[0])))
                clock.append([at, event, rank])
            elif rank == 0:
                clock.append([at, event, *words])
    return sorted(clock, key=lambda e: e[0]), sorted(struck, key=lambda s: s[0])


def _check(faults, world_size, steps, every, job, checks):
    if not 1 <= every <= steps:
        raise ValueError(f"checkpoint_every={every}: want 1 to steps={steps}")
    for check in set(checks) - {"replicas", "stragglers"}:
        raise ValueError(f"checks has {check!r}: want replicas or stragglers")
    job.check(world_size)
    for fault in faults:
        if not 0 <= fault.rank < world_size or not 0 <= fault.step < steps:
            raise ValueError(f"{fault}: want a rank below {world_size} and a step below {steps}")
        if fault.moment == "save" and fault.step % every:
            raise ValueError(f"{fault}: no checkpoint is written after {fault.step} steps, one is every {every}")
        if fault.kind == "corrupt" and job.strategy != "ddp":
            raise ValueError(f"{fault}: strategy={job.strategy!r} has no replicas to corrupt one of")
        if fault.kind == "lose":
            job.check(world_size - fault.ranks)
