"""Tensor parallelism: the ranks of a group hold slices of every matrix and compute every layer together.

    q k v, up gate   split by columns (heads, features): each rank computes its own from the whole input
    out, down        split by rows: each rank has a partial sum, an all-reduce completes it
    embedding, head  split by vocabulary

A layer makes two all-reduces forward (after out, after down) and two backward (before q k v, before up gate): never an
all-gather. *Sequence* parallelism splits the stretch between them along the sequence: each all-reduce becomes an
all-gather and a reduce-scatter, the same bytes, and the norms' activations are divided too.

Two things differ from Megatron-LM, which the formulas follow unless told otherwise: here the gathered input of each
matrix is kept for the backward pass (Megatron keeps its slice and gathers again), and the logits are gathered before
the loss: `memory.device_memory(…, keep_gathered=True, gather_logits=True)`.

Sources: Shoeybi et al. arXiv:1909.08053 §3, Korthikanti et al. arXiv:2205.05198 §4.2.
"""

import warnings

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from clusterlab.run.data_parallel import shard
from clusterlab.run.trainer import Trainer, coordinates


def split(model, shape, mesh, sequence=False, tied=True):
    """Turn the model's matrices into slices, in place."""
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")      # nobody writes into the logits
    stream = Shard(1) if sequence else Replicate()                       # how the residual stream [b, s, h] lies
    norm = {"": SequenceParallel()} if sequence else {}
    # One entry for a module's input: q, k and v would else each send back, and all-reduce, their own gradient.
    entry = {"": PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate())}
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=stream)
    for layer in model.layers.values():
        for part, columns, rows in ((layer.attention, "qkv", ("out",)), (layer.mlp, ("up", "gate"), ("down",))):
            names = [name for name in (*columns, *rows) if getattr(part, name) is not None]
            parallelize_module(part, mesh, entry | {name: row if name in rows else column for name in names})
        for part in (layer.attention_norm, layer.mlp_norm):
            parallelize_module(part, mesh, norm)
    parallelize_module(model.embedding, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=stream))
    parallelize_module(model.norm, mesh, norm)
    parallelize_module(model.head, mesh, ColwiseParallel(input_layouts=stream, output_layouts=Replicate()))
    if shape.tied and tied:                                              # slicing made two parameters out of one
        model.head.weight = model.embedding.weight
    return model


def check(shape, tensor, sequence=False, seq=0):
    """Raise ValueError for what slices cannot hold."""
    for name, value in (("heads", shape.heads), ("kv_heads", shape.kv_heads), ("ffn", shape.ffn)):
        if value % tensor:
            raise ValueError(f"{name}={value} is not divisible by tensor={tensor}: ranks would hold parts of a head")
    if shape.experts > 1:
        raise ValueError(f'experts={shape.experts}: tensor parallelism takes a dense model; see strategy "expert"')
    if sequence and (shape.positions or seq % tensor):
        raise ValueError(f"seq={seq}, positions={shape.positions}: sequence parallelism takes rotary positions and a "
                         f"sequence divisible by tensor={tensor}")


class Sliced(Trainer):
    """Norms that saw a stretch of the sequence have a part of their gradient only: complete it, once.

    Left to DTensor, the optimizer would: in each of its operations that reads the gradient, three times in AdamW.
    """

    def after_backward(self):
        for p in self.parameters():
            if isinstance(p.grad, DTensor) and p.grad.placements != p.placements:
                p.grad = p.grad.redistribute(placements=p.placements)


def tensor(model, task, sequence=False):
    world = dist.get_world_size()
    mesh = init_device_mesh(task.device, (world,), mesh_dim_names=("tensor",))
    split(model, task.shape, mesh, sequence, tied=task.mistake != "untied")
    return Sliced(model, reports=dist.get_rank() == 0, groups=coordinates(mesh), lr=task.learning_rate)


def sequence(model, task):
    return tensor(model, task, sequence=True)


def tensor_fsdp(model, task):
    """Tensor parallel inside, FSDP across. The *last* dimension of a mesh varies fastest, so that tensor groups are
    neighbours: (0, 1), (2, 3). The reverse order trains just as well, over the slow links.
    """
    world = dist.get_world_size()
    sizes = {"data": world // task.tensor, "tensor": task.tensor}
    order = ("tensor", "data") if task.mistake == "mesh-order" else ("data", "tensor")
    mesh = init_device_mesh(task.device, tuple(sizes[name] for name in order), mesh_dim_names=order)
    split(model, task.shape, mesh["tensor"])
    shard(model, mesh["data"])
    share = mesh.get_local_rank("data")
    if task.mistake == "data-by-rank":                       # ranks of a tensor group must read the same data
        share = dist.get_rank() % sizes["data"]
    return Trainer(model, share=share, shares=sizes["data"], averaged=True, groups=coordinates(mesh),
                  reports=mesh.get_local_rank("tensor") == 0, lr=task.learning_rate)
