"""The training job that the failure lab interrupts: small, real, and with everything a checkpoint must not forget.

Dropout draws random numbers, a loader shuffles each epoch, a schedule changes the learning rate, AdamW has moments.
The global batch is constant: fewer ranks take larger shares, in micro-batches, and add up gradients.
"""

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import torch.distributed as dist

from clusterlab.run import data_parallel, ranks
from clusterlab.run.device import device
from clusterlab.run.model import Decoder, token_losses
from clusterlab.run.snapshot import State
from clusterlab.run.trainer import Task
from clusterlab.transformer import Transformer

ranks.PRELOAD.append(__name__)          # the fork server loads this room once, not every rank after every restart

STRATEGIES = {"ddp": data_parallel.ddp, "fsdp": data_parallel.fsdp}


TINY = Transformer(layers=2, hidden=32, heads=4, vocab=64, ffn=64, gated=True)


@dataclass(frozen=True)
class Job:
    """What is trained. `pace` seconds a sequence stand for a device of one's own: ranks that share a core sleep through
    them side by side, so that fewer ranks are as much slower as they would be on devices of their own."""

    shape: Transformer = TINY
    strategy: str = "ddp"
    batch: int = 8                  # sequences of a step, over all ranks, however many there are
    micro_batch: int = 2            # sequences a rank takes at once, at most
    seq: int = 16
    samples: int = 60               # sequences of an epoch; what does not fill a batch is dropped
    dropout: float = 0.1
    learning_rate: float = 3e-3
    warmup: int = 4
    total: int = 100                # steps of the learning rate's schedule
    seed: int = 0
    pace: float = 0.0

    def pieces(self, world_size):
        """Micro-batches a step; the same on every rank, because FSDP gathers weights in each."""
        return math.ceil(math.ceil(self.batch / world_size) / self.micro_batch)

    def check(self, world_size):
        """Raise ValueError for what can not be trained on so many ranks."""
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy={self.strategy!r}: want one of {', '.join(STRATEGIES)}")
        if world_size < 1 or not self.batch // world_size >= self.pieces(world_size) > 0:
            raise ValueError(f"batch={self.batch} in micro-batches of {self.micro_batch} on {world_size} ranks leaves "
                             "a rank without a sequence")
        if self.samples < self.batch:
            raise ValueError(f"samples={self.samples}: want at least one batch, {self.batch}")


class Loader:
    """Global batches of token sequences, shuffled anew each epoch. Its position is counted over all ranks, so it is
    right for any number of them."""

    def __init__(self, job):
        self.job, self.epoch, self.position = job, 0, 0
        start, stride = (torch.randint(1, job.shape.vocab, (job.samples, 1), generator=_seeded(job.seed, k))
                         for k in (1, 2))
        self.text = (start + stride * torch.arange(job.seq + 1)) % job.shape.vocab         # a pattern to learn

    def __next__(self):
        if self.position + self.job.batch > self.job.samples:
            self.epoch, self.position = self.epoch + 1, 0
        order = torch.randperm(self.job.samples, generator=_seeded(self.job.seed, 3, self.epoch))
        chosen = self.text[order[self.position:self.position + self.job.batch]]
        self.position += self.job.batch
        return chosen[:, :-1], chosen[:, 1:]

    def state_dict(self):
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state):
        self.epoch, self.position = state["epoch"], state["position"]


def _seeded(*numbers):
    return torch.Generator().manual_seed(sum(n * 10_007**k for k, n in enumerate(numbers)))


class Training:
    """One rank's part of a job; `.state` is what a checkpoint holds, `.steps` how many steps are done."""

    def __init__(self, job):
        self.job, self.where = job, device()
        torch.manual_seed(job.seed)
        model = Decoder(job.shape, dropout=job.dropout).to(self.where)
        task = Task(job.shape, batch=job.batch, seq=job.seq, learning_rate=job.learning_rate, device=self.where.type)
        trainer = STRATEGIES[job.strategy](model, task)
        self.model, self.optimizer = trainer.model, trainer.optimizer
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._factor)
        self.loader = Loader(job)
        self.state = State(self.model, self.optimizer, {"loader": self.loader, "schedule": self.schedule})
        self.drag, self.busy = 0.0, 0.0     # seconds a step is made slower; seconds it took before it met the others
        self._dry_step()
        torch.manual_seed(1_000_003 * job.seed + dist.get_rank())   # dropout: other numbers on each rank

    def _dry_step(self):
        """After its first backward pass DDP arranges its buckets anew, and a sum in another order has other bits: so
        every start, fresh or resumed, leaves that pass behind before the first step."""
        tokens = self.loader.text[:1, :-1].to(self.where)
        (token_losses(self.model(tokens), tokens) * 0).backward()
        self.optimizer.zero_grad()

    @property
    def steps(self):
        return self.schedule.last_epoch

    def _factor(self, step):
        warm, rest = min(1.0, (step + 1) / self.job.warmup), min(1.0, step / self.job.total)
        return warm * 0.5 * (1.0 + math.cos(math.pi * rest))

    def backward(self):
        """Forward and backward of this rank's share of the next global batch: (its sum of losses, tokens of all)."""
        start = time.perf_counter()
        time.sleep(self.drag)
        tokens, targets = next(self.loader)
        world, count = dist.get_world_size(), targets.numel()
        pieces = self.job.pieces(world)
        share = [t.tensor_split(world)[dist.get_rank()].tensor_split(pieces) for t in (tokens, targets)]
        loss = 0.0
        for i, (x, y) in enumerate(zip(*share, strict=True)):
            with ExitStack() as stack:
                self._only_last_talks(i == pieces - 1, stack)
                time.sleep(self.job.pace * len(x))
                begun = time.perf_counter()
                part = token_losses(self.model(x.to(self.where)), y.to(self.where))
                if i == 0:                                      # FSDP waits for the others in its forward pass
                    self.busy = (begun if self.job.strategy == "fsdp" else time.perf_counter()) - start
                (part * (world / count)).backward()                             # DDP and FSDP divide by the world size
            loss += part.item()
        return loss, count

    def _only_last_talks(self, last, stack):
        """Gradients of all micro-batches but the last stay here."""
        if hasattr(self.model, "no_sync"):
            if not last:
                stack.enter_context(self.model.no_sync())
        else:
            self.model.set_requires_gradient_sync(last)

    def update(self):
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()

    def step(self):
        """One training step; returns the mean loss over the global batch, with the same bits on every rank."""
        loss, count = self.backward()
        self.update()
        return mean_loss(loss, count, self.where)


def mean_loss(loss, count, where):
    """Sums of all ranks added in order of rank, in double precision."""
    parts = [torch.zeros((), dtype=torch.float64, device=where) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.tensor(loss, dtype=torch.float64, device=where))
    return sum(part.item() for part in parts) / count


def undisturbed_losses(job, steps):
    """What a rank runs for a reference: the losses of a run that nobody disturbs."""
    training = Training(job)
    return [training.step() for _ in range(steps)]
