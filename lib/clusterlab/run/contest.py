"""Run plans against each other: the same training step, cut by data or by tensor parallelism, on paced links.

Every collective is a ring of real messages (`allreduce`, `links.step`), so bytes travel, ports are shared, and nothing
of the time is taken from a formula. `data` ranks see different sequences and all-reduce their gradients once at the
end; `tensor` ranks see the same ones, hold a part of each matrix, and all-reduce the residual stream twice a layer
forward and twice backward (Shoeybi et al., arXiv:1909.08053, section 3: its operators f and g). Embedding, norms and
head stand whole on every rank.
"""
from dataclasses import dataclass

import torch
import torch.distributed as dist

from clusterlab.run.allreduce import ring_all_gather, ring_reduce_scatter
from clusterlab.run.links import counted, paced, timed
from clusterlab.run.model import Decoder, token_losses
from clusterlab.run.ranks import launch

CUT = {"q": 0, "k": 0, "v": 0, "out": 1, "gate": 0, "up": 0, "down": 1}    # the dimension that tensor parallelism cuts
RATE = 0.5                                                              # of plain gradient descent


@dataclass(frozen=True)
class Step:
    """One plan's step: seconds of the slowest rank in the fastest lap, and `computing`, the same without messages.

    `sent` bytes by the busiest rank in `messages`; `late`, seconds by which this machine missed the paced schedule;
    `losses` of the steps, over the whole batch.
    """
    seconds: float
    computing: float
    sent: int
    messages: int
    late: float
    losses: list


def contest(shape, plans, link, *, seqs, batch=4, laps=2):
    """Run each of `plans`, pairs (data, tensor) of one product, with each of `seqs`: {(plan, seq): Step}.

    All on the same ranks, one after the other. `batch` sequences of seq tokens make a step; `link` is a `Paced` or has
    .bandwidth and .latency, and is paced. Raises ValueError for plans of different sizes, or a shape or batch that
    they do not divide.
    """
    sizes = {data * tensor for data, tensor in plans}
    if len(sizes) != 1:
        raise ValueError(f"plans={plans!r}: the products data × tensor must be equal")
    for data, tensor in plans:
        if batch % data or shape.heads % tensor or shape.kv_heads % tensor or shape.ffn % tensor:
            raise ValueError(f"plan ({data}, {tensor}) does not divide batch={batch}, heads={shape.heads}, "
                             f"kv_heads={shape.kv_heads} or ffn={shape.ffn}")
    jobs = [(plan, seq) for plan in plans for seq in seqs]
    ranks = launch(_all, sizes.pop(), shape, jobs, batch, laps, link=paced(link), timeout=60)
    return {job: Step(steps[0].seconds, steps[0].computing, max(step.sent for step in steps),
                      max(step.messages for step in steps), max(step.late for step in steps), steps[0].losses)
            for job, *steps in zip(jobs, *ranks, strict=True)}


def _all(shape, jobs, batch, laps):
    return [_steps(shape, *plan, seq, batch, laps) for plan, seq in jobs]


def _steps(shape, data, tensor, seq, batch, laps):
    """On each rank: a Step of its own counts."""
    rank = dist.get_rank()
    first = rank - rank % tensor                    # tensor ranks are neighbours; the data group strides over them
    row, column = list(range(first, first + tensor)), list(range(rank % tensor, data * tensor, tensor))
    torch.manual_seed(0)
    model = Decoder(shape)
    if tensor > 1:
        cut(model, row)
    tokens = torch.randint(shape.vocab, (batch, seq), generator=torch.Generator().manual_seed(1))
    mine, losses, seconds = tokens[rank // tensor::data], [], []
    weights = list(model.parameters())

    def step():
        model.zero_grad()
        loss = token_losses(model(mine), mine.roll(-1, 1)) / tokens.numel()
        loss.backward()
        flat = torch.cat([weight.grad.flatten() for weight in weights])
        ring(flat, column)
        with torch.no_grad():
            for weight, gradient in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
                weight -= RATE * gradient.view_as(weight)
        losses.append(loss.item())

    for _ in range(laps):
        with counted() as wire:
            lap = timed(step)
        seconds.append((lap, wire.late))
    whole = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(whole)                          # each loss is there once for every rank of a tensor group
    ring.silent = True
    computing = min(timed(step) for _ in range(laps))
    ring.silent = False
    fastest, late = min(seconds)
    return Step(fastest, computing, wire.bytes, wire.messages, late, (whole / tensor).tolist())


def ring(x, ranks):
    """All-reduce x in place among `ranks`, by a ring; nothing where there is one rank, or when `ring.silent` is set."""
    if len(ranks) > 1 and not ring.silent:
        ring_reduce_scatter(x, ranks)
        ring_all_gather(x, ranks)


ring.silent = False


class Copy(torch.autograd.Function):
    """f: the input as it is; backward, its gradients of all ranks are summed."""

    @staticmethod
    def forward(ctx, x, ranks):
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        ring(gradient, ctx.ranks)
        return gradient, None


class Sum(torch.autograd.Function):
    """g: the ranks' partial outputs are summed; backward, the gradient as it is."""

    @staticmethod
    def forward(ctx, x, ranks):
        x = x.contiguous().clone()
        ring(x, ranks)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def cut(model, ranks):
    """Leave this rank its part of every matrix of the layers, and put f and g around attention and MLP."""
    part = ranks.index(dist.get_rank())
    for layer in model.layers.values():
        for module in (layer.attention, layer.mlp):
            for name, dim in CUT.items():
                linear = getattr(module, name, None)
                if linear is not None:
                    linear.weight = torch.nn.Parameter(linear.weight.detach().chunk(len(ranks), dim)[part].contiguous())
            module.register_forward_pre_hook(lambda _, args: Copy.apply(args[0], ranks))
            module.register_forward_hook(lambda _, args, out: Sum.apply(out, ranks))
