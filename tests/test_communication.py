"""What a plan makes a rank send, by hand and against other modules; test_communication_torch.py looks at real calls."""

import dataclasses

import pytest
from clusterlab.communication import PARTS, Demand, demands, parameters_of
from clusterlab.hardware import Cluster, link, node
from clusterlab.kernels import Constants
from clusterlab.memory import MIXED_16, MIXED_18, device_memory
from clusterlab.plan import Plan
from clusterlab.transformer import model
from hypothesis import given, settings
from hypothesis import strategies as st

SEVENTY = model("llama-2-70b")


def sent(plan, **kw):
    return {part: sum(n.sent for n in demands(SEVENTY, plan, **kw) if n.part == part) for part in PARTS}


@settings(deadline=None)
@given(ranks=st.sampled_from([2, 4, 8, 16, 64]), micro=st.sampled_from([1, 2, 8]))
def test_zero_and_fsdp_against_ddp(ranks, micro):
    """ZeRO, section 7: stages 1 and 2 send what DDP sends, stage 3 half as much again, with each micro-batch."""
    plan = Plan(data=ranks, global_batch=ranks * micro, seq=512, zero_stage=0)
    ddp = sent(plan)["data"]
    assert ddp == pytest.approx(2 * (ranks - 1) / ranks * 2 * SEVENTY.parameters())
    for stage, factor in ((1, 1.0), (2, 1.0), (3, 1.5 * micro)):
        assert sent(dataclasses.replace(plan, zero_stage=stage))["data"] == pytest.approx(factor * ddp)
    assert sent(dataclasses.replace(plan, zero_stage=3), keep=True)["data"] == pytest.approx(micro * ddp)
    wide = sent(plan, recipe=MIXED_18)["data"]                                            # gradients in fp32
    assert wide == pytest.approx(2 * ddp)


def test_sequence_parallelism_sends_the_same_unless_it_gathers_again():
    plan = Plan(tensor=8, global_batch=4, seq=4096)
    plain = sent(dataclasses.replace(plan, sequence_parallel=False))["tensor"]
    assert sent(plan, regather=False)["tensor"] == pytest.approx(plain)
    again = sent(plan)["tensor"] / plain                       # 10 half-all-reduces a layer instead of 8
    assert 1.24 < again < 1.25


def test_tensor_parallelism_by_hand():
    """Shoeybi et al.: four all-reduces of b·s·h numbers a layer; here and at the two ends, for 8 micro-batches."""
    need, = [n for n in demands(SEVENTY, Plan(tensor=8, data=8, global_batch=64, seq=4096, sequence_parallel=False))
             if n.part == "tensor"]
    assert (need.operation, need.ranks, need.stride, need.calls) == ("all-reduce", 8, 1, 8 * (4 * 80 + 2))
    assert need.volume == need.calls * 4096 * 8192 * 2
    full = Plan(tensor=8, data=8, global_batch=64, seq=4096, sequence_parallel=False, recompute="full")
    assert demands(SEVENTY, full)[0].calls == 8 * (6 * 80 + 2)


def test_pipeline_by_hand():
    """An inner stage sends one message forward and one back for each micro-batch and chunk, an end stage one less."""
    plan = Plan(tensor=8, pipeline=4, virtual=2, data=2, global_batch=64, seq=4096)
    ends = [next(n for n in demands(SEVENTY, plan, stage=stage) if n.part == "pipeline") for stage in range(4)]
    assert [n.calls for n in ends] == [32 * 3, 32 * 4, 32 * 4, 32 * 3]
    assert ends[0].volume / ends[0].calls == 4096 * 8192 * 2 / 8 and ends[0].stride == 16
    assert ends[0].sent == ends[0].volume


def test_seconds_by_hand():
    """Ring: 14 steps of latency and 1.75 arrays over NVLink for a group in a node; a message over one card beyond."""
    ideal, cluster = Constants(1.0, 1.0, 1.0, 0.0), Cluster(node("DGX H100"), 8)
    inside = Demand("tensor", "all-reduce", 8, 1, 10, 10 * 64e6).seconds(cluster, ideal)
    assert inside == pytest.approx(10 * (14 * link("NVLink 4").latency + 1.75 * 64e6 / 450e9))
    beyond = Demand("pipeline", "send", 2, 8, 3, 6e6).seconds(cluster, ideal)
    assert beyond == pytest.approx(3 * link("InfiniBand NDR").latency + 6e6 / 50e9)
    through_eight = Demand("data", "all-gather", 64, 1, 1, 64e9).seconds(cluster, ideal)
    assert through_eight == pytest.approx(63 * link("InfiniBand NDR").latency + 63 / 64 * 64e9 / 400e9)
    half = Demand("pipeline", "send", 2, 8, 3, 6e6).seconds(cluster, Constants(1.0, 1.0, 0.5, 0.0))
    assert half == pytest.approx(3 * link("InfiniBand NDR").latency + 6e6 / 25e9)


def test_where_groups_lie():
    plan = Plan(tensor=4, context=2, data=4, pipeline=2, global_batch=4, seq=8192)
    strides = {n.part: (n.ranks, n.stride) for n in demands(SEVENTY, plan)}
    assert strides == {"tensor": (4, 1), "context": (2, 4), "data": (8, 4), "pipeline": (2, 32)}
    where = {n.part: n.inside(node("DGX H100")) for n in demands(SEVENTY, plan)}
    assert where == {"tensor": True, "context": True, "data": False, "pipeline": False}
    assert Demand("pipeline", "send", 2, 4, 1, 1.0).inside(node("DGX H100"))
    assert not Demand("data", "all-reduce", 2, 8, 1, 1.0).inside(node("DGX H100"))


def test_experts_reduce_among_those_who_hold_them():
    mixtral = model("mixtral-8x7b")
    plan = Plan(tensor=2, data=8, expert=4, global_batch=8, seq=4096, zero_stage=0)
    dense, routed = parameters_of(mixtral, plan)
    needs = {(n.ranks, n.stride): n.volume for n in demands(mixtral, plan) if n.part == "data"}
    assert needs == {(8, 2): 2 * dense, (2, 8): 2 * routed}
    travel = next(n for n in demands(mixtral, plan) if n.part == "expert")
    assert travel.calls == 4 * 32 and travel.volume / travel.calls == 2 * 4096 * 2 * 4096 / 2


@settings(deadline=None)
@given(tensor=st.sampled_from([1, 2, 4, 8]), pipeline=st.sampled_from([1, 2, 4, 8]), name=st.sampled_from(
    ["llama-2-70b", "gpt-3-6.7b", "mixtral-8x7b"]))
def test_parameters_are_those_of_the_memory_model(tensor, pipeline, name):
    work = model(name)
    plan = Plan(tensor=tensor, pipeline=pipeline, global_batch=8, seq=2048, zero_stage=0)
    for stage in {0, pipeline - 1}:
        held = sum(parameters_of(work, plan, stage))
        assert 2 * held == pytest.approx(device_memory(work, plan, recipe=MIXED_16, stage=stage).weights, rel=1e-12)
    assert tensor * sum(sum(parameters_of(work, plan, stage)) for stage in range(pipeline)) >= work.parameters()


def test_bad_input_is_named():
    plan = Plan(pipeline=2, global_batch=8, seq=2048)
    with pytest.raises(ValueError, match="stage=2"):
        demands(SEVENTY, plan, stage=2)
    with pytest.raises(ValueError, match="single plan"):
        demands(SEVENTY, Plan(data=[1, 2], global_batch=8, seq=2048))
    with pytest.raises(ValueError, match="layers not divisible"):
        demands(SEVENTY, Plan(pipeline=3, global_batch=8, seq=2048))
