"""The step time of a training job: what each part of it costs, and the plan that costs least."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from clusterlab.compute import RECOMPUTE, mfu, training_flops
from clusterlab.kernels import Device, group_link, hidden
from clusterlab.layertime import accumulated_bytes, collective, layer_parameters, layer_seconds
from clusterlab.memory import MIXED_16, Memory, device_memory
from clusterlab.plan import Plan

OVERLAP = ("none", "data", "all")


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A predicted step; fields are floats, or arrays for a plan of arrays (then index it for one plan's).

    ``step_seconds`` is exactly the sum of ``breakdown``, part to seconds. ``mfu`` counts the model's FLOP over the
    dense peak, ``hfu`` also what recomputation repeats; ``memory`` is :func:`~clusterlab.memory.device_memory` of the
    fullest stage, bytes; ``tokens_per_second`` that of the whole job.
    """

    step_seconds: float
    mfu: float
    hfu: float
    memory: Memory
    breakdown: Mapping
    tokens_per_second: float

    def __getitem__(self, index):
        def pick(value):
            return value[index].item()

        memory = dataclasses.replace(self.memory, **{field.name: pick(getattr(self.memory, field.name))
                                                     for field in dataclasses.fields(self.memory)})
        return Estimate(pick(self.step_seconds), pick(self.mfu), pick(self.hfu), memory,
                        {part: pick(value) for part, value in self.breakdown.items()}, pick(self.tokens_per_second))


def estimate(model, cluster, plan, *, recipe=MIXED_16, attention=None, overlap="none", causal=None, constants=None):
    """Predict one training step: seconds, MFU, HFU, memory and where the time goes.

    step = micro_batches · (slowest stage + sends) + bubble + data + optimizer

    A stage works through a micro-batch in the parts of :func:`~clusterlab.layertime.layer_seconds`, ``recompute`` and
    the output ``head``; ``sends`` go to its neighbours, blocking. The ``bubble`` is the other stages' work on one
    micro-batch over ``virtual``: the makespan of the schedules of :mod:`clusterlab.pipeline`. ``data`` moves gradients
    and, sharded, weights.

    recipe     bytes a parameter, for gradients, data-parallel communication and optimizer
    attention  "eager" (scores go through memory), "flash" (they do not, and the causal half is skipped), or None:
               flash for models with RMSNorm, eager for those with LayerNorm, as they came (LLaMA, arXiv:2302.13971,
               section 2.4, was among the first to be trained with a fused one)
    overlap    "none": as Megatron-LM in 2022, which hides tensor parallelism's collectives of the backward pass and no
               more; "data": gradients and weights move behind a micro-batch's work; "all": every collective and send.
               What ZeRO-3 gathers is prefetched by every implementation and always hidden
    causal     mfu and hfu count half of the attention square; None: where the attention computes half of it, flash.
               Seconds do not depend on it
    constants  other :class:`~clusterlab.kernels.Constants`, to calibrate

    ``plan`` may hold arrays, one entry a plan. Raises ValueError if plan and cluster differ in devices, for an illegal
    plan, an unknown convention, or a result above the peak. Left out: stragglers, failures, data loading, start-up
    latencies nobody published; experts' gradients move as if all data × context ranks shared them. Sources: Narayanan et al. 2021, arXiv:2104.04473; Korthikanti et al. 2022,
    arXiv:2205.05198; Rajbhandari et al. 2020, arXiv:1910.02054.

    >>> from clusterlab.hardware import Cluster, node
    >>> from clusterlab.transformer import model
    >>> plan = Plan(tensor=8, pipeline=35, virtual=3, global_batch=280, seq=2048)
    >>> step = estimate(model("mt-nlg-530b"), Cluster(node("DGX A100"), 35), plan)
    >>> f"{step.step_seconds:.1f} s, MFU {step.mfu:.1%}"        # published: 37.83 s, 56.0 %
    '38.0 s, MFU 55.8%'
    >>> max(step.breakdown, key=step.breakdown.get)
    'matmul'
    """
    if np.any(np.not_equal(plan.devices, cluster.devices)):
        raise ValueError(f"plan.devices={plan.devices}: must be the cluster's {cluster.devices} devices, all of them")
    plan.check(model)
    if overlap not in OVERLAP:
        raise ValueError(f"overlap={overlap!r}: must be one of {', '.join(OVERLAP)}")
    attention = attention or _usual_attention(model)
    if attention not in ("eager", "flash"):
        raise ValueError(f"attention={attention!r}: must be 'eager', 'flash', or None for the model's usual")
    causal = attention == "flash" if causal is None else causal
    dtype = "bf16" if "bf16" in cluster.accelerator.dense_flops else "fp16"
    shape, seq = plan.shape, np.asarray(plan.seq, float)

    def plain(value):
        return np.broadcast_to(value, shape).copy() if shape else float(value)

    breakdown = {part: plain(seconds) for part, seconds in
                 _step(model, cluster, plan, recipe, attention, overlap, dtype, constants).items()}
    step = sum(breakdown.values())
    tokens = np.asarray(plan.global_batch, float) * seq / step
    share = mfu(model, tokens_per_second=tokens, seq=seq, peak_flops=cluster.accelerator.dense_flops[dtype],
                devices=cluster.devices, causal=causal)
    none, *repeated = (training_flops(model, batch=1.0, seq=seq, recompute=r, causal=causal) for r in RECOMPUTE)
    hardware = np.select([np.equal(plan.recompute, r) for r in RECOMPUTE[1:]], repeated, none)
    memory = device_memory(model, plan, recipe=recipe, attention=attention, dropout=model.norm == "layer")
    return Estimate(step, plain(share), plain(share * hardware / none), memory, breakdown, plain(tokens))


def _usual_attention(model):
    return "flash" if model.norm == "rms" else "eager"


def _step(model, cluster, plan, recipe, attention, overlap, dtype, use):
    """Seconds of a step by part."""
    t, p, d, c, v, m = (np.asarray(x, float) for x in (plan.tensor, plan.pipeline, plan.data, plan.context,
                                                       plan.virtual, plan.micro_batches))
    device = Device.of(cluster.accelerator, dtype, use)
    forward, backward = layer_seconds(model, cluster, plan, device, recipe=recipe, attention=attention,
                                      overlap=overlap, use=use)
    layer = {part: forward[part] + backward[part] for part in forward}
    layer["recompute"] = np.where(
        np.equal(plan.recompute, "full"), sum(forward.values()),
        np.where(np.equal(plan.recompute, "selective") & (attention == "eager"), forward["attention"], 0.0))
    one = sum(layer.values())

    tokens, embedding = np.asarray(plan.micro_batch, float) * plan.seq / c, model.hidden * model.vocab / t
    # cross entropy: a cast to fp32, maximum, exponential and sum, and the gradient: 18 bytes a logit
    head = (device.linear(tokens, model.hidden, model.vocab / t).sum(axis=0)
            + device.stream(18.0 * tokens * model.vocab / t + accumulated_bytes(recipe) * embedding))
    last = np.asarray(plan.layers(model, p - 1), float)
    middle = np.asarray(plan.layers(model, np.minimum(1, p - 1)), float)
    slow_head = last * one + head >= middle * one  # is the stage with the head the slowest?
    layers, heads = np.where(slow_head, last, middle), np.where(slow_head, 1.0, 0.0)
    stage = layers * one + heads * head

    row = 2.0 * tokens * model.hidden  # each tensor rank sends its share; without sequence parallelism they gather it
    gather = np.where(plan.sequence_parallel, 0.0, collective("all-gather", row, t, group_link(cluster, 1, t, use)))
    neighbour = group_link(cluster, t * c * d, p, use)
    sends = np.where(p > 1, 2.0 * v * (row / t / neighbour.bandwidth + neighbour.latency + gather), 0.0)

    # embedding and head stand on the two ends of a pipeline, on a single stage both unless tied
    held = layers * layer_parameters(model, plan) + embedding * np.where((p == 1) & (not model.tied), 2.0, 1.0)
    fetched, at_end = _data_parallel(cluster, plan, held, recipe, use)
    if overlap == "all":
        sends = hidden(sends, stage, use)
    if overlap != "none":
        at_end = hidden(at_end, stage, use)
    sharded = np.where(np.greater_equal(plan.zero_stage, 1), held / (d * c), held)
    # Megatron-LM's passes: gradients zeroed; those of 16 bits cast to fp32 and unscaled; read for their norm; the update
    # reads them, and the states both ways; the master copied to the weights
    cast = recipe.gradient + 12.0 if recipe.gradient < 4 else 0.0
    update = cast + 8.0 + 2.0 * (recipe.master + recipe.moments) + (recipe.master + recipe.weight if recipe.master else 0.0)
    return {part: m * layers * seconds for part, seconds in layer.items()} | {
        "head": m * heads * head,
        "sends": m * sends,
        "bubble": (model.layers * one + head - stage + (p - 1) * sends) / v,
        "data": m * hidden(fetched, stage, use) + at_end,
        "optimizer": device.stream(held * recipe.gradient + sharded * update),
    }


def _data_parallel(cluster, plan, held, recipe, use):
    """Seconds to move gradients and weights: (with every micro-batch, at the end of a step)."""
    ranks = np.multiply(plan.data, plan.context)
    link = group_link(cluster, np.asarray(plan.tensor, float), ranks, use)
    reduce = collective("reduce-scatter", recipe.gradient * held, ranks, link)
    gather = collective("all-gather", recipe.weight * held, ranks, link)
    fetched = np.greater_equal(plan.zero_stage, 3)
    second = np.where(np.greater_equal(plan.zero_stage, 1), gather, reduce)  # an all-reduce is two reduce-scatters long
    return np.where(fetched, reduce + 2.0 * gather, 0.0), np.where(fetched, 0.0, reduce + second)


class Ranked(NamedTuple):
    """One plan of a search with its estimate."""
    plan: Plan
    estimate: Estimate


@dataclasses.dataclass(frozen=True)
class Search:
    """Legal plans that fit, fastest first: index or iterate for :class:`Ranked` ones.

    ``plans`` and ``estimates`` hold arrays; ``rejected`` counts the candidates left out, by the first rule they broke.
    """

    plans: Plan
    estimates: Estimate
    rejected: Mapping

    def __len__(self):
        return self.plans.shape[0]

    def __getitem__(self, index):
        plan = {field.name: getattr(self.plans, field.name)[index].item() for field in dataclasses.fields(self.plans)}
        return Ranked(Plan(**plan), self.estimates[index])


def search(model, cluster, *, global_batch, seq, recipe=MIXED_16, attention=None, overlap="none", constants=None, **fixed):
    """All legal plans that fit the devices' memory, fastest first: one call of :func:`estimate` on arrays.

    Candidates: tensor up to a node, context down to 4,096 tokens a rank, expert and micro_batch in powers of two;
    pipeline and virtual that divide the layers (or layers + 2, embedding_as_layers); data, what is left of the devices;
    every ``recompute``; ZeRO stages 1 to 3; sequence parallelism. ``fixed`` gives any of these one value or several:
    ``tensor=8, zero_stage=(1, 3)``. The other keywords as in estimate(). A search may find nothing: see ``rejected``.
    Raises ValueError for an unknown field.

    >>> from clusterlab.hardware import Cluster, node
    >>> from clusterlab.transformer import model
    >>> found = search(model("llama-2-13b"), Cluster(node("DGX H100"), 4), global_batch=256, seq=4096)
    >>> plan, step = found[0]
    >>> plan.tensor, plan.pipeline, plan.data, 0.5 < step.mfu < 0.7
    (1, 1, 32, True)
    """
    powers = [2**k for k in range(15)]
    divisors = [n for n in range(1, model.layers + 3) if model.layers % n == 0 or (model.layers + 2) % n == 0]
    choices = {"tensor": [n for n in powers if n <= cluster.node.devices], "pipeline": divisors,
               "context": [n for n in powers if n <= max(seq // 4096, 1)],
               "expert": [n for n in powers if model.experts % n == 0],
               "micro_batch": [n for n in powers if n <= global_batch], "virtual": divisors, "recompute": RECOMPUTE,
               "zero_stage": [1, 2, 3], "sequence_parallel": [True], "embedding_as_layers": [False, True]}
    unknown = set(fixed) - set(choices)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: must be one of {', '.join(choices)}")
    choices |= {name: np.atleast_1d(value) for name, value in fixed.items()}
    grid = dict(zip(choices, (axis.ravel() for axis in np.meshgrid(*choices.values(), indexing="ij")), strict=True))
    rejected = {}

    def keep(rules):
        """Drop from the grid what breaks a rule, and count it under the first."""
        good = np.ones(len(grid["tensor"]), bool)
        for rule, broken in rules.items():
            if count := int(np.count_nonzero(good & broken)):
                rejected[rule] = count
            good &= ~broken
        return {name: values[good] for name, values in grid.items()}

    def plans():
        batch = np.full(len(grid["data"]), global_batch)
        return Plan(**grid, global_batch=batch, seq=np.full_like(batch, seq))

    ways = grid["tensor"] * grid["pipeline"] * grid["context"]
    grid["data"] = cluster.devices // ways
    grid = keep({"devices not divisible by tensor × pipeline × context": cluster.devices % ways != 0,
                 "embedding as layers without a pipeline": grid["embedding_as_layers"] & (grid["pipeline"] == 1)})
    grid = keep(plans().problems(model))
    conventions = {"recipe": recipe, "attention": attention or _usual_attention(model)}
    memory = device_memory(model, plans(), dropout=model.norm == "layer", **conventions)
    grid = keep({"memory of the device exceeded": memory.total > cluster.accelerator.memory})
    found = estimate(model, cluster, plans(), overlap=overlap, constants=constants, **conventions)
    order = np.argsort(found.step_seconds, kind="stable")
    grid = {name: values[order] for name, values in grid.items()}
    return Search(plans(), _reorder(found, order), rejected)


def _reorder(found, order):
    memory = dataclasses.replace(found.memory, **{field.name: getattr(found.memory, field.name)[order]
                                                  for field in dataclasses.fields(found.memory)})
    return Estimate(found.step_seconds[order], found.mfu[order], found.hfu[order], memory,
                    {part: seconds[order] for part, seconds in found.breakdown.items()}, found.tokens_per_second[order])
