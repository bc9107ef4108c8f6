"""What a rank does in a training step, whatever the parallelism: the part that all strategies share."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from clusterlab.run.model import Decoder, token_losses
from clusterlab.run.torch_private import storage_id
from clusterlab.run.traffic import Traffic
from clusterlab.transformer import Transformer


@dataclass(frozen=True)
class Task:
    """What is trained: the same on every rank and for every strategy."""

    shape: Transformer
    batch: int = 8                  # sequences of a step, over all ranks
    seq: int = 16
    steps: int = 3
    tensor: int = 2                 # ranks that share a layer, where the strategy combines two parallelisms
    micro_batches: int = 4          # pipeline only
    learning_rate: float = 1e-3
    seed: int = 0
    mistake: str | None = None
    device: str = "cpu"

    def model(self):
        torch.manual_seed(self.seed)
        return Decoder(self.shape).to(self.device)

    def data(self, step):
        """The whole global batch of a step: tokens and next tokens [batch, seq], the same on every rank."""
        generator = torch.Generator().manual_seed(1000 + step)
        text = torch.randint(self.shape.vocab, (self.batch, self.seq + 1), generator=generator).to(self.device)
        return text[:, :-1], text[:, 1:]


class Trainer:
    """One rank's part of a strategy.

    It reads share `share` of `shares` of each global batch. `averaged`: the strategy divides summed gradients by the
    number of shares (DDP, FSDP), so the loss is scaled up by it. `reports`: its loss counts; a peer with the same
    data says nothing. `groups`: this rank's neighbours by dimension of the mesh.
    """

    def __init__(self, model, *, share=0, shares=1, averaged=False, reports=True, groups=None, optimizer=None, lr=1e-3):
        self.model, self.share, self.shares, self.reports = model, share, shares, reports
        self.factor, self.groups = shares if averaged else 1, groups or {}
        self.optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=lr)

    def parameters(self):
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def forward_backward(self, tokens, targets, scale):
        """Leave in .grad this rank's part of d(scale · Σ token losses); return the parts of Σ token losses."""
        loss = token_losses(self.model(tokens), targets)
        (loss * scale).backward()
        return [loss.item()]

    def after_backward(self):
        """What a strategy does with gradients by hand."""


class OneProcess(Trainer):
    """The reference: no other rank. It adds up gradients over the shares that the ranks of a strategy would read."""

    def __init__(self, model, parts=1, lr=1e-3):
        super().__init__(model, lr=lr)
        self.parts = parts

    def forward_backward(self, tokens, targets, scale):
        shares = zip(tokens.tensor_split(self.parts), targets.tensor_split(self.parts), strict=True)
        return [loss for share in shares for loss in super(OneProcess, self).forward_backward(*share, scale)]


class SummedTrainer(Trainer):
    """A strategy written by hand: after the backward pass, the gradients of `shared` are summed over all ranks."""

    def __init__(self, model, shared, **kw):
        super().__init__(model, **kw)
        self.shared = list(shared)

    def after_backward(self):
        for parameter in self.shared:
            dist.all_reduce(parameter.grad)


@dataclass(frozen=True)
class Record:
    """What one rank saw: its loss sums of each step, bytes it holds, and the calls and seconds of each step."""

    losses: list
    weights: int
    gradients: int
    optimizer: int
    calls: list
    seconds: list
    groups: dict
    in_flight: int | None = None


def storage_bytes(tensors):
    """Bytes allocated behind tensors: shards only, padding included, what two tensors share counted once."""
    local = (t.to_local() if isinstance(t, DTensor) else t for t in tensors)
    return sum({storage_id(s): s.nbytes() for s in (t.untyped_storage() for t in local)}.values())


def work(trainer, task):
    """The training loop of one rank."""
    losses, calls, seconds = [], [], []
    for step in range(task.steps):
        tokens, targets = task.data(step)
        mine = [t.tensor_split(trainer.shares)[trainer.share] for t in (tokens, targets)]
        scale = trainer.factor / targets.numel()
        if task.mistake == "equal-weights":                 # each rank's own mean, then the mean of these means
            scale = trainer.factor / trainer.shares / mine[1].numel()
        start = time.perf_counter()
        with Traffic() as traffic:
            part = trainer.forward_backward(*mine, scale)
            trainer.after_backward()
            gradients = storage_bytes(p.grad for p in trainer.parameters() if p.grad is not None)
            trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        losses.append(part if trainer.reports else [])
        calls.append(traffic.calls)
    optimizer = getattr(trainer.optimizer, "optim", trainer.optimizer)                  # ZeRO-1 wraps this rank's own
    states = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.dim()]
    return Record(losses, storage_bytes(trainer.parameters()), gradients, storage_bytes(states), calls, seconds,
                  trainer.groups, getattr(trainer, "in_flight", None))


def coordinates(mesh):
    """This rank's neighbours along each dimension of a mesh: {"data": (0, 2), "tensor": (0, 1)}."""
    return {name: tuple(dist.get_process_group_ranks(mesh.get_group(name))) for name in mesh.mesh_dim_names}
