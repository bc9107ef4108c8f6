"""Data parallelism: every rank computes its share of the batch on the whole model. What differs is what it *keeps*.

    strategy      weights  gradients  optimizer   traffic a step, in parameter volumes
    ddp           whole    whole      whole       2      all-reduce of gradients
    zero1         whole    whole      its share   2 + 1  all-reduce, then each owner broadcasts what it updated
    fsdp          share    share      share       3      all-gather forward, all-gather backward, reduce-scatter
    fsdp-keep     share    share      share       2      the backward all-gather saved: weights stay whole in between
    hsdp          fsdp within a group of `tensor` ranks, DDP of the shares across groups

Sources: Li et al. arXiv:2006.15704 (DDP), Rajbhandari et al. arXiv:1910.02054 §5 and §7 (ZeRO and its volumes),
Zhao et al. arXiv:2304.11277 (FSDP).
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from clusterlab.run.trainer import Trainer, coordinates


def single(model, task):
    """Every rank alone, on the whole batch: no communication, no sharing."""
    return Trainer(model, reports=dist.get_rank() == 0, lr=task.learning_rate)


def replicated(model, task, **kw):
    return Trainer(DistributedDataParallel(model, gradient_as_bucket_view=True), share=dist.get_rank(),
                  shares=dist.get_world_size(), averaged=True, lr=task.learning_rate, **kw)


def ddp(model, task):
    """Gradients are averaged in buckets, while the backward pass still runs."""
    return replicated(model, task)


def zero1(model, task):
    """DDP, but each parameter's optimizer state lives on one rank, which updates it and broadcasts it."""
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=task.learning_rate)
    return replicated(model, task, optimizer=optimizer)


def shard(model, mesh, keep=False, tied=True):
    """Every layer becomes a group of shares that is gathered before it runs; what is left (both ends) the last one.

    A tied embedding is one parameter in two modules and must stay in one group. `tied=False` gives each its own.
    """
    ends = () if tied else (model.embedding, model.head)
    for module in (*model.layers.values(), *ends, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=not keep)


def sharded(model, task, keep=False):
    world = dist.get_world_size()
    mesh = init_device_mesh(task.device, (world,), mesh_dim_names=("data",))
    shard(model, mesh, keep, tied=task.mistake != "untied")
    return Trainer(model, share=dist.get_rank(), shares=world, averaged=True, lr=task.learning_rate)


def fsdp(model, task):
    return sharded(model, task)


def fsdp_keep(model, task):
    return sharded(model, task, keep=True)


def hsdp(model, task):
    """Shares within groups of neighbouring ranks (a node), replicas across: the long way carries gradients only."""
    world = dist.get_world_size()
    mesh = init_device_mesh(task.device, (world // task.tensor, task.tensor), mesh_dim_names=("replica", "shard"))
    shard(model, mesh)
    return Trainer(model, share=dist.get_rank(), shares=world, averaged=True, groups=coordinates(mesh),
                  lr=task.learning_rate)
