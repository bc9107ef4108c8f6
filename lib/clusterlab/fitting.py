"""A plan that does not fit: the single changes that could help, in the order of what they cost, and the first that does.

Each change alters one choice and leaves the model, the global batch and, where it can, the number of devices alone.
"""

import dataclasses

from clusterlab.memory import MIXED_16, Memory, device_memory
from clusterlab.plan import Plan

COSTS = {
    "attention": "nothing: the same results, scores recomputed inside the kernel",
    "sequence_parallel": "next to nothing: tensor parallelism's all-reduces become reduce-scatter and all-gather",
    "selective": "a few per cent of time: the attention core twice",
    "zero-1": "next to nothing: the all-reduce becomes reduce-scatter and all-gather",
    "zero-2": "nothing with one micro-batch a step; with more, gradients are sent after each of them, not once",
    "micro_batch": "smaller matrix products and more micro-batches",
    "zero-3": "half as much data-parallel traffic again, and weights are gathered in every pass",
    "full": "a second forward pass, about a third more FLOP",
    "tensor": "two all-reduces a layer and pass, which want the scale-up link",
    "pipeline": "a bubble, the longer the fewer micro-batches there are",
    "context": "keys and values are passed round in every layer",
    "data": "more devices",
}


@dataclasses.dataclass(frozen=True)
class Change:
    """One changed choice: what it ``says``, its key in :data:`COSTS`, the ``plan`` and ``attention`` after it, and
    the ``memory`` that the fullest device then needs."""

    says: str
    kind: str
    plan: Plan
    attention: str
    memory: Memory


def changes(model, plan, *, recipe=MIXED_16, attention="eager", **conventions):
    """Yield the legal single changes that may save memory, cheapest first, each as a :class:`Change`.

    flash attention; sequence parallelism; selective recomputation; ZeRO stage 1, 2; smaller micro-batches, halved as
    long as they are even, then 1; ZeRO-3; full recomputation; twice, four and eight times the tensor, pipeline or
    context degree, on the same devices where the data-parallel degree can pay for it; as many times the data-parallel
    degree where ZeRO shards over it. What changes nothing (ZeRO on one rank) or breaks a rule of the plan is left
    out. ``plan`` is a single legal plan, else ValueError; ``recipe``, ``attention`` and ``conventions`` are those of
    :func:`~clusterlab.memory.device_memory`.

    >>> from clusterlab.transformer import model
    >>> plan = Plan(data=8, global_batch=16, micro_batch=2, seq=4096, recompute="none")
    >>> [change.says for change in changes(model("llama-2-13b"), plan, attention="flash")][:4]
    ['recompute none → selective', 'zero_stage 1 → 2', 'micro_batch 2 → 1', 'zero_stage 1 → 3']
    """
    plan.check(model)
    for kind, new in _candidates(plan, attention):
        kernel = new.get("attention", attention)
        try:
            after = dataclasses.replace(plan, **{name: value for name, value in new.items() if name != "attention"})
            after.check(model)
        except ValueError:
            continue
        old = {name: getattr(plan, name, attention) for name in new}
        says = ", ".join(f"{name} {_word(old[name])} → {_word(value)}" for name, value in new.items())
        memory = device_memory(model, after, recipe=recipe, attention=kernel, **conventions)
        yield Change(says, kind, after, kernel, memory)


def _word(value):
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _candidates(plan, attention):
    """(key in COSTS, {field: new value}), cheapest first, legal or not."""
    ranks, micro = plan.data * plan.context, plan.micro_batch
    if attention == "eager":
        yield "attention", {"attention": "flash"}
    if plan.tensor > 1 and not plan.sequence_parallel:
        yield "sequence_parallel", {"sequence_parallel": True}
    if plan.recompute == "none":
        yield "selective", {"recompute": "selective"}
    for stage in (1, 2):
        if ranks > 1 and stage > plan.zero_stage:
            yield f"zero-{stage}", {"zero_stage": stage}
    while micro > 1:
        micro = micro // 2 if micro % 2 == 0 else 1
        yield "micro_batch", {"micro_batch": micro}
    if ranks > 1 and plan.zero_stage < 3:
        yield "zero-3", {"zero_stage": 3}
    if plan.recompute != "full":
        yield "full", {"recompute": "full"}
    for degree in ("tensor", "pipeline", "context"):
        for times in (2, 4, 8):
            pays = {"data": plan.data // times} if plan.data % times == 0 else {}
            yield degree, {degree: getattr(plan, degree) * times} | pays
    if plan.zero_stage:
        for times in (2, 4, 8):
            yield "data", {"data": plan.data * times}


def smallest_change(model, plan, accelerator, *, recipe=MIXED_16, attention="eager", **conventions):
    """The first of :func:`changes` whose memory fits ``accelerator.memory``; None if none does.

    Arguments as there. A plan that fits already needs none: ask device_memory() first.

    >>> from clusterlab.hardware import accelerator
    >>> from clusterlab.transformer import model
    >>> plan = Plan(data=8, global_batch=16, micro_batch=2, seq=4096, recompute="none", zero_stage=3)
    >>> change = smallest_change(model("llama-2-13b"), plan, accelerator("A100 SXM 40GB"), attention="flash")
    >>> change.says, round(change.memory.total / 1e9, 1)
    ('recompute none → full', 34.5)
    """
    tried = changes(model, plan, recipe=recipe, attention=attention, **conventions)
    return next((change for change in tried if change.memory.total <= accelerator.memory), None)
