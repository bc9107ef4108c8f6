"""Context parallelism: each rank holds a stretch of every sequence, from the embedding to the loss.

Only attention looks across: a query needs the keys and values of all earlier tokens. So each layer gathers K and V (an
all-gather forward, a reduce-scatter of their gradients backward) and keeps Q, scores and output local. Llama 3 (Dubey
et al. arXiv:2407.21783 §3.3.2) gathers so; ring attention (Liu et al. arXiv:2310.01889) passes the same bytes around.

Contiguous stretches give the last rank most of the causal work; the remedy, two stretches a rank taken from both ends,
changes positions and mask but no message.
"""

import torch
import torch.distributed as dist

from clusterlab.run.trainer import SummedTrainer


class Gather(torch.autograd.Function):
    """[b, s/n, heads, d] of each rank → [b, s, heads, d]; backward sums the gradients of all ranks, each its part."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        parts = [part.contiguous() for part in gradient.chunk(dist.get_world_size(), dim=1)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts)
        return mine


class Context(SummedTrainer):
    def __init__(self, model, task):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.stretch = slice(rank * task.seq // world, (rank + 1) * task.seq // world)
        super().__init__(model, model.parameters(), lr=task.learning_rate)
        start = 0 if task.mistake == "local-positions" else self.stretch.start
        model.start = start
        for layer in model.layers.values():
            layer.attention.gather, layer.attention.start = Gather.apply, start

    def forward_backward(self, tokens, targets, scale):
        return super().forward_backward(tokens[:, self.stretch], targets[:, self.stretch], scale)


def context(model, task):
    return Context(model, task)
