"""What the ranks of a step have to do, for a model on a cluster: the seconds and bytes that `iteration` puts in order."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from clusterlab.compute import training_flops
from clusterlab.hardware import Cluster, Node, accelerator, link, node
from clusterlab.iteration import Work, unfold
from clusterlab.kernels import Device, group_link
from clusterlab.layertime import accumulated_bytes, collective, layer_parameters, layer_seconds
from clusterlab.memory import MIXED_16
from clusterlab.plan import Plan
from clusterlab.training import estimate
from clusterlab.transformer import model as named_model


def work_of(model, cluster, plan, *, load=0.0, attention="flash", recipe=MIXED_16):
    """The :class:`~clusterlab.iteration.Work` of a plan on a cluster, from the layer times that :func:`~clusterlab.training.estimate` adds up.

    A plan with pipeline 1 gives four alike ranks, else the ranks are its stages. The gradients' all-reduce is a ring's
    over the data-parallel ranks; ``load`` is given. Only for plans of data and pipeline parallelism without ZeRO,
    recomputation or virtual stages: ValueError otherwise, and for what estimate() refuses.

    >>> from clusterlab.hardware import Cluster, node
    >>> from clusterlab.plan import Plan
    >>> from clusterlab.transformer import model
    >>> plan = Plan(data=8, micro_batch=8, global_batch=64, seq=1024, zero_stage=0, recompute="none")
    >>> work = work_of(model("gpt-2-xl"), Cluster(node("DGX A100"), 1), plan)
    >>> f"{work.backward[0] * 1e3:.0f} ms, {work.gradients[0] / 1e9:.2f} GB"
    '297 ms, 3.11 GB'
    """
    if plan.tensor * plan.context * plan.expert * plan.virtual != 1 or plan.zero_stage or plan.recompute != "none":
        raise ValueError(f"plan={plan}: only data and pipeline parallelism, zero_stage=0, recompute='none', virtual=1")
    dtype, p = "bf16" if "bf16" in cluster.accelerator.dense_flops else "fp16", plan.pipeline
    step = estimate(model, cluster, plan, attention=attention, recipe=recipe)
    device = Device.of(cluster.accelerator, dtype)
    layer = [float(sum(parts.values())) for parts in
             layer_seconds(model, cluster, plan, device, recipe=recipe, attention=attention)]
    tokens, embedding = plan.micro_batch * plan.seq, model.hidden * model.vocab
    head = device.linear(float(tokens), model.hidden, model.vocab)
    loss = device.stream(18.0 * tokens * model.vocab)
    head_back = head[1] + head[2] + device.stream(accumulated_bytes(recipe) * embedding)
    counts = [float(plan.layers(model, stage)) for stage in range(p)]
    last = [float(stage == p - 1) for stage in range(p)]
    ends = [last[stage] if p > 1 else 1.0 + (not model.tied) for stage in range(p)]
    ends[0] += p > 1                                              # the first stage holds the embedding, the last the head
    held = [float(n * layer_parameters(model, plan) + e * embedding) for n, e in zip(counts, ends, strict=True)]
    update = step.breakdown["optimizer"] / _held(model, plan, counts, embedding)
    ranks = range(p if p > 1 else 4)
    stage = [rank if p > 1 else 0 for rank in ranks]
    peers, stages = group_link(cluster, 1, plan.data), group_link(cluster, plan.data, p)
    empty, full = (float(collective("all-reduce", size, plan.data, peers)) for size in (0.0, 1e9))
    flops = training_flops(model, batch=plan.global_batch, seq=plan.seq, causal=attention == "flash")
    return Work(
        load=load, micro_batches=plan.micro_batches,
        forward=tuple(counts[s] * layer[0] + last[s] * float(head[0]) for s in stage),
        loss=tuple(last[s] * float(loss) for s in stage),
        backward=tuple(counts[s] * layer[1] + last[s] * float(head_back) for s in stage),
        optimizer=tuple(held[s] * update for s in stage),
        gradients=tuple(recipe.gradient * held[s] * (plan.data > 1) for s in stage),
        latency=empty, per_byte=(full - empty) / 1e9,
        send=float(2.0 * tokens * model.hidden / stages.bandwidth + stages.latency) if p > 1 else 0.0,
        ideal=float(flops / (cluster.devices * cluster.accelerator.dense_flops[dtype])))


def _held(model, plan, counts, embedding):
    """Parameters of the stage that estimate() takes: the slowest, of a single stage all but norms and positions."""
    both = 1.0 + (plan.pipeline == 1 and not model.tied)
    return counts[-1] * float(layer_parameters(model, plan)) + both * embedding


@dataclass(frozen=True)
class Case:
    """A model on a cluster: its words, and the Work of its ranks with data parallelism alone and as pipelines."""

    name: str
    says: str
    devices: int
    data: Work
    pipeline: Work

    def unfold(self, schedule="data", **choices):
        """Its step under a schedule: :func:`~clusterlab.iteration.unfold` of the work that belongs to it.

        >>> round(case("gpt2-64").unfold("1f1b", bucket=25e6).bubble, 3)
        0.332
        """
        return unfold(self.data if schedule == "data" else self.pipeline, schedule, **choices)


@cache
def case(name):
    """The case `name` of ``data/iterations.toml``. LookupError for another name.

    Pipelines have four stages and eight micro-batches; data parallelism does the same global batch in one.

    >>> case("gpt2-64").says, case("gpt2-64").devices
    ('GPT-2 XL on 8 DGX A100', 64)
    """
    table = _cases()
    if name not in table:
        raise LookupError(f"no case {name!r}; there are: {', '.join(table)}")
    row = table[name]
    where = node(row["node"]) if "node" in row else Node(
        row["accelerator"], accelerator(row["accelerator"]), devices=1, scale_up=link(row["scale_up"]), wiring="pcie",
        nic=link(row["nic"]), nics=1)
    cluster, shape = Cluster(where, row["nodes"]), named_model(row["model"])
    size, seq = row["micro_batch"], row["seq"]
    every = {"global_batch": 2 * size * cluster.devices, "seq": seq, "zero_stage": 0, "recompute": "none"}
    whole = Plan(data=cluster.devices, micro_batch=2 * size, **every)
    piped = Plan(pipeline=4, data=cluster.devices // 4, micro_batch=size, **every)
    return Case(name, row["says"], cluster.devices, *(work_of(shape, cluster, plan, load=row["load"]) for plan in (whole, piped)))


def cases():
    """The names of all cases.

    >>> cases()[0]
    'gpt2-8'
    """
    return tuple(_cases())


@cache
def _cases():
    return tomllib.loads(files("clusterlab").joinpath("data", "iterations.toml").read_text(encoding="utf-8"))
