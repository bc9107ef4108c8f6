"""Changes that make a plan fit: their order, each one's legality and memory, and a published claim."""

import dataclasses
from types import SimpleNamespace

import pytest
from clusterlab.fitting import COSTS, changes, smallest_change
from clusterlab.hardware import accelerator
from clusterlab.memory import MIXED_18, device_memory
from clusterlab.plan import Plan
from clusterlab.transformer import Transformer, model
from hypothesis import given, settings
from hypothesis import strategies as st

TINY = Transformer(layers=8, hidden=64, heads=8, vocab=100, norm="layer", bias=True)


def said(plan, attention="flash", shape=TINY):
    return [change.says for change in changes(shape, plan, attention=attention)]


def test_the_order_is_the_one_described():
    plan = Plan(tensor=2, data=4, global_batch=48, micro_batch=12, seq=64, recompute="none", zero_stage=0,
                sequence_parallel=False)
    assert said(plan, "eager") == [
        "attention eager → flash", "sequence_parallel off → on", "recompute none → selective",
        "zero_stage 0 → 1", "zero_stage 0 → 2", "micro_batch 12 → 6", "micro_batch 12 → 3", "micro_batch 12 → 1",
        "zero_stage 0 → 3", "recompute none → full", "tensor 2 → 4, data 4 → 2", "tensor 2 → 8, data 4 → 1",
        "pipeline 1 → 2, data 4 → 2", "pipeline 1 → 4, data 4 → 1", "pipeline 1 → 8",
        "context 1 → 2, data 4 → 2", "context 1 → 4, data 4 → 1", "context 1 → 8"]
    # tensor 16 is more than the heads; without ZeRO more replicas hold no less


def test_what_is_there_already_is_not_tried_again():
    plan = Plan(global_batch=8, seq=64, recompute="full", zero_stage=1)
    assert said(plan) == ["tensor 1 → 2", "tensor 1 → 4", "tensor 1 → 8", "pipeline 1 → 2", "pipeline 1 → 4",
                          "pipeline 1 → 8", "context 1 → 2", "context 1 → 4", "context 1 → 8",
                          "data 1 → 2", "data 1 → 4", "data 1 → 8"]
    context = Plan(context=2, global_batch=1, seq=64, recompute="selective", zero_stage=2)
    assert said(context)[:2] == ["zero_stage 2 → 3", "recompute selective → full"], "context ranks shard too"
    odd = Plan(data=3, global_batch=3, seq=64, zero_stage=3, recompute="full")
    assert said(odd)[:3] == ["tensor 1 → 2", "tensor 1 → 4", "tensor 1 → 8"], "three replicas pay for no doubling"


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3, 6, 8]), st.integers(0, 3),
       st.sampled_from(["none", "selective", "full"]), st.sampled_from(["eager", "flash"]), st.booleans())
def test_each_changes_one_choice_legally_and_its_memory_is_the_library_s(tensor, data, micro, zero, recompute, kernel, sequence):
    plan = Plan(tensor=tensor, data=data, micro_batch=micro, global_batch=data * micro * 2, seq=64, zero_stage=zero,
                recompute=recompute, sequence_parallel=sequence)
    for change in changes(TINY, plan, attention=kernel, recipe=MIXED_18, dropout=False):
        change.plan.check(TINY)
        other = [field.name for field in dataclasses.fields(plan) if getattr(plan, field.name) != getattr(change.plan, field.name)]
        names = other + ["attention"] * (change.attention != kernel)
        assert len(names) == 1 or (len(names) == 2 and "data" in names and change.plan.devices == plan.devices), change
        assert change.kind in COSTS and all(name in change.says for name in names)
        assert (change.plan.global_batch, change.plan.seq) == (plan.global_batch, plan.seq)
        assert change.memory == device_memory(TINY, change.plan, recipe=MIXED_18, attention=change.attention, dropout=False)


def test_the_smallest_is_the_first_that_fits():
    plan = Plan(data=4, global_batch=32, micro_batch=8, seq=512, recompute="none", zero_stage=0)
    found = list(changes(TINY, plan))
    for capacity in sorted({change.memory.total for change in found}) + [0]:
        first = next((change for change in found if change.memory.total <= capacity), None)
        assert smallest_change(TINY, plan, SimpleNamespace(memory=capacity)) == first


def test_thirteen_billion_in_40_gb():
    """The claim that started it: 13B takes 90 GB and, checkpointed, fits in 40; states 13.0e9 · 16 / 8 = 26 GB."""
    plan = Plan(data=8, global_batch=16, micro_batch=2, seq=4096, recompute="none", zero_stage=3)
    shape, part, how = model("llama-2-13b"), accelerator("A100 SXM 40GB"), {"attention": "flash", "dropout": False}
    assert device_memory(shape, plan, **how).total == pytest.approx(90e9, rel=0.03)
    change = smallest_change(shape, plan, part, **how)
    assert change.says == "recompute none → full" and change.kind == "full" and change.plan.recompute == "full"
    inputs = 40 * 2 * 4096 * 5120 * 2                       # layers · sequences · tokens · width · 2 bytes
    assert change.memory.activations == pytest.approx(inputs, rel=0.06)
    assert change.memory.weights + change.memory.gradients + change.memory.optimizer == pytest.approx(26e9, rel=2e-3)


def test_an_illegal_plan_is_refused():
    with pytest.raises(ValueError, match="layers not divisible by pipeline"):
        list(changes(TINY, Plan(pipeline=3, global_batch=1, seq=64)))
