"""Expert parallelism: the experts of each layer are spread over the ranks; tokens travel to them and back.

Two all-to-alls a layer forward and two backward carry the tokens. One more, small, says how many come: routing is only
known when it happens. Everything but the experts is data parallel.

Sources: Lepikhin et al. arXiv:2006.16668 (GShard), Fedus et al. arXiv:2101.03961 (Switch).
"""

import torch
import torch.distributed as dist

from clusterlab.run.trainer import SummedTrainer


class AllToAll(torch.autograd.Function):
    """Send `send[r]` rows to rank r and receive `receive[r]` from it; gradients travel the same way back."""

    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.splits = receive, send
        arrived = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), receive, send)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        return AllToAll.apply(gradient, *ctx.splits), None, None


def exchange(experts):
    """What replaces `Experts.local` once this rank holds only the given experts."""
    world = dist.get_world_size()

    def run(grouped, counts):                                         # rows sorted by expert, counts of each expert
        counts = torch.tensor(counts, device=grouped.device).view(world, -1)          # [rank of the expert, expert]
        arriving = torch.empty_like(counts)                                           # [rank of the token, expert]
        dist.all_to_all_single(arriving, counts)
        send, receive = counts.sum(1).tolist(), arriving.sum(1).tolist()
        rows = AllToAll.apply(grouped, send, receive)
        owner = torch.arange(len(experts), device=rows.device).repeat(world).repeat_interleave(arriving.flatten())
        order = owner.argsort(stable=True)                            # from (rank, expert) to (expert, rank)
        parts = rows[order].split(arriving.sum(0).tolist())
        results = torch.cat([f(part) for f, part in zip(experts, parts, strict=True)])
        return AllToAll.apply(results[order.argsort()], receive, send)

    return run


def expert(model, task):
    rank, world = dist.get_rank(), dist.get_world_size()
    for layer in model.layers.values():
        mine = layer.mlp.experts[rank * task.shape.experts // world:(rank + 1) * task.shape.experts // world]
        layer.mlp.experts, layer.mlp.exchange = mine, exchange(mine)
    # Gradients of replicated weights are summed over the ranks. An expert has seen the tokens of all ranks already:
    # its gradient is whole, and no other rank has that expert.
    shared = [p for name, p in model.named_parameters() if ".experts." not in name or task.mistake == "sum-experts"]
    return SummedTrainer(model, shared, share=rank, shares=world, lr=task.learning_rate)
