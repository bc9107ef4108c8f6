"""Sum before the optimizer or after it? Two replicas train both ways, beside one process on the whole batch.

The process adds up the gradients of the ranks' shares, as their sum does: what is the same arithmetic has the same bits.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from clusterlab.run.device import device
from clusterlab.run.model import Decoder, token_losses
from clusterlab.run.ranks import launch
from clusterlab.transformer import Transformer

SHAPE = Transformer(layers=2, hidden=32, heads=4, vocab=64, ffn=64, gated=True)
ORDERS = ("gradients, then step", "step, then gradients", "step, then weights")
OPTIMIZERS = {"AdamW": lambda weights: torch.optim.AdamW(weights, lr=1e-3),
              "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1)}


@dataclass(frozen=True)
class Outcome:
    """Weights after some steps: of each replica, and of one process on the whole batch."""

    replicas: list
    alone: torch.Tensor

    @property
    def equal(self):
        """Whether all replicas have the same bits."""
        return all(torch.equal(one, self.replicas[0]) for one in self.replicas)

    @property
    def same_model(self):
        """Whether every replica has the bits of the one process."""
        return all(torch.equal(one, self.alone) for one in self.replicas)

    @property
    def distance(self):
        """The largest difference of a weight from the one process's."""
        return max((one - self.alone).abs().max().item() for one in self.replicas)


def orders(optimizer="AdamW", *, world_size=2, steps=5, batch=8, seq=16):
    """{order of a step: its Outcome}: each of `ORDERS` with the same weights, batches and optimizer.

    The last averages weights instead of gradients. Raises ValueError for an unknown optimizer, or a batch that the
    ranks cannot share evenly.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer={optimizer!r}: one of {', '.join(OPTIMIZERS)}")
    if batch % world_size:
        raise ValueError(f"batch={batch}: a multiple of world_size={world_size}")
    ranks = launch(rank_work, world_size, optimizer, steps, batch, seq)
    return {order: Outcome([replicas[order] for replicas, _ in ranks], ranks[0][1]) for order in ORDERS}


def rank_work(optimizer, steps, batch, seq):
    rank, n = dist.get_rank(), dist.get_world_size()
    texts = torch.randint(SHAPE.vocab, (steps, batch, seq + 1), generator=torch.Generator().manual_seed(1)).to(device())

    def fresh():
        torch.manual_seed(0)
        model = Decoder(SHAPE).to(device())
        return model, OPTIMIZERS[optimizer](model.parameters())

    def backward(model, text):
        """Adds the gradient of this share; those of all shares sum to that of the mean loss."""
        (token_losses(model(text[:, :-1]), text[:, 1:]) / (batch * seq)).backward()

    def trained(order):
        model, update = fresh()
        weights = list(model.parameters())
        for text in texts:
            update.zero_grad()
            backward(model, text.tensor_split(n)[rank])
            if order == ORDERS[0]:
                total([p.grad for p in weights])
            if order == ORDERS[2]:                            # as if the rank's share were the whole batch
                for p in weights:
                    p.grad *= n
            update.step()
            if order == ORDERS[1]:
                total([p.grad for p in weights])
            if order == ORDERS[2]:
                total([p.data for p in weights], n)
        return flat(weights)

    alone, update = fresh()
    for text in texts:
        update.zero_grad()
        for share in text.tensor_split(n):
            backward(alone, share)
        update.step()
    return {order: trained(order) for order in ORDERS}, flat(alone.parameters())


def total(tensors, parts=1):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= parts


def flat(weights):
    return torch.cat([p.detach().flatten() for p in weights]).cpu()
