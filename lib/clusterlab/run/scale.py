"""Shard a model over thousands of ranks that do not exist, and read off what one of them would hold and send.

torch's own code shards and runs: `fully_shard`, tensor parallel plans, AdamW. Only the tensors are fake (shapes without
memory) and the process group answers without a network. So these numbers are no formula; the formulas are beside them.
"""

import dataclasses
import functools
import os
import re
from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from clusterlab.run import tensor_parallel
from clusterlab.run.model import Decoder, token_losses
from clusterlab.run.ranks import launch
from clusterlab.run.torch_private import FakeStore, FakeTensorMode, FSDPMemTracker, MemTracker
from clusterlab.run.traffic import Traffic
from clusterlab.run.trainer import storage_bytes
from clusterlab.transformer import Transformer
from clusterlab.transformer import model as named

DEPTHS = 3, 4               # layers really built; every number below is linear in layers, beyond the first few


@dataclasses.dataclass(frozen=True)
class Sharded:
    """One rank of many. Bytes; counts and FLOP of one training step on `batch` sequences of a data parallel rank."""

    weights: int
    gradients: int
    optimizer: int
    peak: int               # of everything on the device, by torch's tracker; gradients stay from step to step
    flops: int
    calls: dict             # {kind of collective: how many}
    sizes: dict             # {kind: bytes of the whole arrays}
    even: float             # bytes of weights if they could be cut evenly
    short: dict             # {weight: rows} of weights with fewer rows than ranks to share them


def shard(model, world_size, *, tensor=1, batch=1, seq=4096, keep=False, recompute="none", precision="mixed",
          depths=DEPTHS):
    """What one of `world_size` ranks holds and does in a step of `model`, a name or a `Transformer`.

    FSDP over world_size/tensor ranks, tensor parallelism (with sequence parallelism) within `tensor` neighbours.
    `keep` gathers weights once a step and not twice (`reshard_after_forward=False`); else all are given back after the
    forward pass, those outside the layers too (`memory.device_memory(…, reshard_outer=True)`). `precision`: "mixed"
    shards FP32, gathers BF16 and reduces gradients in FP32; "fp32" or "bf16" is that throughout. Models of two
    `depths` are built and extended linearly to all layers, which is exact; `depths=None` builds all of them.

    Each weight is cut by rows and padded, so that all ranks allocate alike, if only the first fill it. Runs in a child
    process, because a process holds one process group. Raises ValueError for what cannot be divided, RuntimeError
    inside a rank.
    """
    if dist.is_initialized() or "RANK" in os.environ:
        raise RuntimeError("shard() makes a process group of its own: call it where there is none, not inside a rank")
    shape = model if isinstance(model, Transformer) else named(model)
    if world_size % tensor:
        raise ValueError(f"world_size={world_size} is not divisible by tensor={tensor}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: one of {', '.join(PRECISIONS)}")
    if shape.experts > 1:
        raise ValueError(f"experts={shape.experts}: routing needs real tokens, and fake tensors hold none")
    if tensor > 1:
        tensor_parallel.check(shape, tensor, True, seq)
    options = {"world_size": world_size, "tensor": tensor, "batch": batch, "seq": seq, "keep": keep,
               "recompute": recompute, "precision": precision}
    depths = [n for n in depths or () if n < shape.layers]
    shapes = [dataclasses.replace(shape, layers=n) for n in depths] if len(depths) == 2 else [shape]
    # long timeout: cutting a weight into 16,384 pieces is one call, in which the rank gives no sign of life
    results = launch(fake_ranks, 1, shapes, options, backend="gloo", timeout=600, deadline=900)[0]
    short = results[-1].pop("short")
    results[0].pop("short", None)
    full = results[0] if len(results) == 1 else extend(*results, *depths, shape.layers)
    bytes_each = 2 if precision == "bf16" else 4
    return Sharded(**full, short=short, even=bytes_each * shape.parameters() / world_size)


# model FLOP: two matrix products forward, four backward, whatever a fused kernel computes again
ATTENTION_FLOPS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *rest, **kw: attention_flops(q, k),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda d, q, k, v, *rest, **kw:
        2 * attention_flops(q, k),
}


def attention_flops(q, k):
    (batch, heads, queries, width), keys = q, k[2]
    return 4 * batch * heads * queries * keys * width


PRECISIONS = {"mixed": (torch.float32, torch.bfloat16), "fp32": (torch.float32, None), "bf16": (torch.bfloat16, None)}


def extend(low, high, shallow, deep, layers):
    """The straight line through two depths, for numbers and for dictionaries of numbers.

    >>> extend({"all-gather": 8}, {"all-gather": 10}, 3, 4, layers=80)
    {'all-gather': 162}
    """
    if isinstance(low, dict):
        return {key: extend(low.get(key, 0), high[key], shallow, deep, layers) for key in high}
    slope, rest = divmod(high - low, deep - shallow)
    if rest:
        raise ArithmeticError(f"{low} at {shallow} layers and {high} at {deep} lie on no line of whole numbers")
    return low + slope * (layers - shallow)


def fake_ranks(shapes, options):
    """In a child: replace its process group by a fake one, and measure each model there."""
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=options["world_size"])
    mesh = init_device_mesh("cpu", (options["world_size"] // options["tensor"], options["tensor"]),
                            mesh_dim_names=("data", "tensor"))
    results = [measure(shape, mesh, options) for shape in shapes]
    dist.destroy_process_group()
    return results


def measure(shape, mesh, options):
    """Shard one model on the meta device, then run a step on fake tensors."""
    dtype, gathered = PRECISIONS[options["precision"]]
    policy = MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=dtype)
    ranks = mesh["data"].size()
    with torch.device("meta"):
        model = Decoder(shape, recompute=options["recompute"]).to(dtype)
    if options["tensor"] > 1:
        tensor_parallel.split(model, shape, mesh["tensor"], sequence=True)
    rows = {re.sub(r"layers\.\d+", "layers.*", name): len(p.to_local() if isinstance(p, DTensor) else p)
            for name, p in model.named_parameters()}
    for module in (*model.layers.values(), model):
        fully_shard(module, mesh=mesh["data"], mp_policy=policy, reshard_after_forward=not options["keep"])
    with FakeTensorMode(allow_non_fake_inputs=True):
        materialize(model)
        fuse_norms(model)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.zeros(options["batch"], options["seq"], dtype=torch.long)
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((tokens,))

        def step():
            token_losses(model(tokens), tokens).backward()
            optimizer.step()

        with tracker:
            step()                                                  # also makes the optimizer's states
            tracker.reset_mod_stats()
            step()                                                  # gradients stay, as if they were accumulated
        gradients = storage_bytes(p.grad for p in model.parameters())
        optimizer.zero_grad()
        # on its own: the counter holds on to tensors that checkpointing gives back, and the tracker would see them
        with FlopCounterMode(display=False, custom_mapping=ATTENTION_FLOPS) as flops, Traffic() as traffic:
            step()
    calls, sizes = Counter(), Counter()
    for call in traffic.calls:
        calls[call.kind] += 1
        sizes[call.kind] += call.size
    states = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return {"weights": storage_bytes(model.parameters()), "gradients": gradients, "optimizer": storage_bytes(states),
            "peak": peak, "flops": flops.get_total_flops(), "calls": dict(calls), "sizes": dict(sizes),
            "short": {name: n for name, n in rows.items() if n < ranks}}


def materialize(model):
    """From the meta device to fake tensors; unlike to_empty() it leaves tied weights tied."""
    made = {}
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            if p not in made:
                made[p] = torch.nn.Parameter(torch.empty_like(p, device="cpu"))
            setattr(module, name, made[p])


def fuse_norms(model):
    """Let an RMSNorm keep its input only, as the fused kernels of accelerators do; on CPU torch keeps FP32 copies."""
    for module in model.modules():
        if isinstance(module, torch.nn.RMSNorm):
            module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False)


def device_peak(shape, *, batch, seq, attention="eager", dropout=0.0, recompute="none"):
    """Peak bytes of one device that trains `shape` in BF16 (weights, gradients and both moments), by torch's tracker.

    The peak of the second micro-batch of a step, when gradients are there to be added to. Eager attention in BF16 as
    the formulas count it; fused attention without dropout, which torch's CPU kernel does not have.
    """
    with torch.device("meta"):
        model = Decoder(shape, attention=attention, dropout=dropout, recompute=recompute).to(torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True):
        materialize(model)
        fuse_norms(model)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.zeros(batch, seq, dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, tokens)
        with tracker:
            token_losses(model(tokens), tokens).backward()
            optimizer.step()
            tracker.reset_mod_stats()
            token_losses(model(tokens), tokens).backward()
    return {str(kind).rsplit(".")[-1] if not isinstance(kind, str) else kind: size for kind, size in
            tracker.get_tracker_snapshot("peak")[torch.device("cpu")].items()}
