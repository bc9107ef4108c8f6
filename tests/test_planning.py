"""The planner: against single searches, against brute force over their estimates, and by hand."""

import dataclasses

import pytest
from clusterlab import reliability
from clusterlab.hardware import Cluster, node
from clusterlab.memory import FP32
from clusterlab.planning import (
    BATCHES,
    DEVICE_MTBF,
    DEVICES,
    GROUPS,
    RESERVE,
    RESTART,
    SEQUENCES,
    USED,
    Outcome,
    best,
    job,
    rack,
    shares,
)
from clusterlab.training import Ranked, estimate, search
from clusterlab.transformer import model
from clusterlab.units import MiB
from clusterlab.widgets.planner import cell, planner

EIGHT = {"global_batch": 512, "seq": 8192, "overlap": "data"}


def test_the_best_plans_are_those_of_a_search_each_set_of_degrees_once():
    cluster = Cluster(node("DGX H100"), 8)
    work = model("llama-3.1-70b")
    found = best(work, cluster, keep=5, **{k: v for k, v in EIGHT.items() if k != "overlap"})
    seen, expected = set(), []
    ranked = search(work, cluster, **EIGHT)
    for plan, step in ranked:
        degrees = plan.tensor, plan.pipeline, plan.data, plan.context, plan.expert
        if degrees not in seen:
            seen.add(degrees)
            expected.append((plan, step.step_seconds))
    assert [(plan, step.step_seconds) for plan, step in found.plans] == expected[:5]
    assert found.legal - found.too_large == len(ranked)
    assert found.too_large == ranked.rejected["memory of the device exceeded"]


def test_without_the_limit_the_fastest_plan_does_not_fit():
    cluster = Cluster(node("DGX H100"), 8)
    found = job("llama-3.1-70b", "DGX H100", 64, 4 * MiB)
    roomy = dataclasses.replace(cluster.node, accelerator=dataclasses.replace(cluster.accelerator, memory=1e15))
    plan, step = search(model("llama-3.1-70b"), Cluster(roomy, 8), **EIGHT)[0]
    assert step.memory.total > cluster.accelerator.memory
    assert found.unlimited == step.step_seconds < found.plans[0].estimate.step_seconds / 1.05
    assert found.binds() == "memory"
    assert estimate(model("llama-3.1-70b"), cluster, plan, overlap="data").step_seconds == step.step_seconds


def test_what_memory_would_buy_is_the_leanest_plan_that_is_faster():
    found = job("llama-3.1-70b", "DGX H100", 64, 4 * MiB)
    node_ = dataclasses.replace(node("DGX H100"), accelerator=dataclasses.replace(node("DGX H100").accelerator, memory=1e15))
    best_step, limit = found.plans[0].estimate.step_seconds, node("DGX H100").accelerator.memory - 4e9
    least = min(step.memory.total for _, step in search(model("llama-3.1-70b"), Cluster(node_, 8), **EIGHT) if step.step_seconds < best_step / 1.05)
    assert found.wanted.estimate.memory.total == least > limit
    assert found.wanted.estimate.step_seconds < best_step / 1.05
    assert job("llama-3.1-8b", "DGX H100", 8, 4 * MiB).wanted is None
    assert job("llama-3.1-405b", "DGX A100", 8, 4 * MiB).wanted is None


def test_a_reserve_is_left_free():
    work, cluster = model("llama-3.1-70b"), Cluster(node("DGX H100"), 8)
    size = cluster.accelerator.memory
    how = {"global_batch": 512, "seq": 8192}
    all_of_it, less = best(work, cluster, **how), best(work, cluster, reserve=RESERVE, **how)
    assert RESERVE == 4e9 and less.plans == job("llama-3.1-70b", "DGX H100", 64, 4 * MiB).plans
    assert less.too_large > all_of_it.too_large and less.legal == all_of_it.legal
    needs = all_of_it.plans[0].estimate.memory.total
    assert best(work, cluster, reserve=size - needs, **how).plans[0] == all_of_it.plans[0]
    assert best(work, cluster, reserve=size - needs + 1, **how).plans[0] != all_of_it.plans[0]
    for wrong in (-1.0, size):
        with pytest.raises(ValueError, match="reserve="):
            best(work, cluster, reserve=wrong, **how)


def test_memory_binds_from_five_per_cent_on_and_arithmetic_from_half_a_step():
    found = job("llama-3.1-8b", "DGX H100", 8, 4 * MiB)
    plan, step = found.plans[0]

    def with_step(seconds, unlimited, **parts):
        changed = dataclasses.replace(step, step_seconds=seconds, breakdown=parts)
        return dataclasses.replace(found, plans=(Ranked(plan, changed),), unlimited=unlimited).binds()

    assert with_step(1.049, 1.0, matmul=1.0) == "arithmetic"
    assert with_step(1.051, 1.0, matmul=1.0) == "memory"
    assert with_step(1.0, 1.0, matmul=0.3, attention=0.1, head=0.1, tensor=0.5) == "arithmetic"
    assert with_step(1.0, 1.0, matmul=0.49, bubble=0.2, sends=0.1, tensor=0.21) == "pipeline"
    assert with_step(1.0, 1.0, matmul=0.4, tensor=0.3, pointwise=0.1, gradients=0.1, optimizer=0.1) in ("tensor parallelism", "memory traffic")
    assert with_step(1.0, 1.0, matmul=0.4, expert=0.4, data=0.2) == "expert parallelism"


def test_groups_hold_every_part_of_a_step_once():
    step = job("mixtral-8x7b", "DGX H100", 64, 4 * MiB).plans[0].estimate
    parts = [part for group in GROUPS.values() for part in group]
    assert sorted(parts) == sorted(step.breakdown)
    assert sum(shares(step.breakdown).values()) == pytest.approx(1.0, rel=1e-12)
    assert shares({"matmul": 1.0, "attention": 1.0, "head": 1.0, "recompute": 1.0}) == dict.fromkeys(GROUPS, 0.0) | {
        "arithmetic": 0.75, "recomputation": 0.25}


def test_a_run_by_hand():
    found = job("llama-3.1-405b", "DGX H100", 16384, 16 * MiB)
    step = found.plans[0].estimate.step_seconds
    tokens = 15.6e12
    assert found.mtbf == pytest.approx(54 * 24 * 3600 / 419)
    assert found.write == pytest.approx(14 * model("llama-3.1-405b").parameters() / 2e12)       # 2,048 nodes, the cap
    share = reliability.goodput(found.interval, write=found.write, mtbf=found.mtbf, restart=600.0)
    around = [reliability.goodput(found.interval * f, write=found.write, mtbf=found.mtbf, restart=600.0) for f in (0.9, 1.1)]
    assert max(around) < share == found.goodput
    seconds = tokens / (16 * 2**20) * step / share
    run = found.run(tokens, 2.5)
    assert run.seconds == pytest.approx(seconds)
    assert run.device_hours == pytest.approx(seconds * 16384 / 3600)
    assert run.cost == pytest.approx(2.5 * run.device_hours)
    assert run.interruptions == pytest.approx(seconds / (54 * 86400) * 419)
    assert run.energy == pytest.approx(seconds * 2048 * 10_200 * 1.2)
    assert found.run(tokens, 2.5, pue=1.0).energy == pytest.approx(seconds * 2048 * 10_200)
    assert found.run(2 * tokens, 0.0, rank=1).cost == 0.0
    second = found.plans[1].estimate.step_seconds
    assert found.run(2 * tokens, 0.0, rank=1).seconds == pytest.approx(2 * seconds * second / step)
    assert RESTART == 600.0 and DEVICE_MTBF == 54 * 86400.0 * 16384 / 419


def test_the_published_run_of_the_grid():
    """Llama 3.1 405B took 30.84 million GPU-hours (model card), tensor 8, pipeline 16, MFU 41 % (table 4)."""
    found = job("llama-3.1-405b", "DGX H100", 16384, 16 * MiB)
    plan, step = found.plans[0]
    assert (plan.tensor, plan.pipeline) == (8, 16)
    assert 0.41 < step.mfu < 1.15 * 0.41
    assert 30.84e6 / 1.25 < found.run(15.6e12, 0).device_hours < 30.84e6


def test_a_checkpoint_is_written_by_all_nodes_or_at_the_storage_systems_rate():
    work = model("llama-3.1-8b")
    few = best(work, Cluster(node("DGX H100"), 1), global_batch=8, seq=8192)
    assert few.write == pytest.approx(14 * work.parameters() / 2e9)
    racks = job("llama-3.1-8b", "GB200 NVL72", 64, 4 * MiB)                    # sixteen hosts of four GPUs
    assert racks.write == pytest.approx(14 * work.parameters() / 32e9)
    wide = best(work, Cluster(node("DGX H100"), 1), global_batch=8, seq=8192, recipe=FP32)
    assert wide.write == pytest.approx(12 * work.parameters() / 2e9)         # weight 4, no master copy, moments 8
    assert few.mtbf == pytest.approx(DEVICE_MTBF / 8)


def test_what_does_not_fit_and_what_breaks_every_rule():
    large = job("llama-3.1-405b", "DGX A100", 8, 4 * MiB)
    assert large.plans == () and large.too_large == large.legal > 0
    assert large.leanest > node("DGX A100").accelerator.memory
    none = best(model("llama-3.1-8b"), Cluster(node("DGX H100"), 3), global_batch=8, seq=8192)   # 24 GPUs, 8 sequences
    assert none.plans == () and none.legal == 0 and none.leanest != none.leanest and none.rejected


@pytest.mark.parametrize("call, words", [
    (lambda: rack("GB200 NVL72", 73), "at most the 72"), (lambda: rack("GB200 NVL72", 5), "whole hosts"),
    (lambda: rack("DGX H100", 0), "devices=0"),
    (lambda: best(model("llama-2-13b"), Cluster(node("DGX H100"), 1), global_batch=8, seq=4096, keep=0), "keep=0"),
    (lambda: best(model("llama-2-13b"), Cluster(node("DGX H100"), 1), global_batch=8, seq=4096, overlap="most"), "overlap='most'"),
    (lambda: job("llama-3.1-8b", "DGX H100", 8, 4 * MiB).run(0, 2.5), "tokens=0"),
    (lambda: job("llama-3.1-8b", "DGX H100", 8, 4 * MiB).run(1e9, -1.0), "price=-1.0"),
    (lambda: job("llama-3.1-8b", "DGX H100", 8, 4 * MiB).run(1e9, 1.0, pue=0.9), "pue=0.9"),
    (lambda: job("llama-3.1-8b", "GB200 NVL72", 8, 4 * MiB), "multiple of the 64"),
])
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
    with pytest.raises(LookupError, match="must be of"):
        job("gpt-5", "DGX H100", 8, 4 * MiB)


def test_a_rack_in_part_and_whole():
    part, whole = rack("GB200 NVL72", 64), rack("DGX H100", 8)
    assert (part.devices, part.hosts, part.nics, part.name) == (64, 16, 64, "GB200 NVL72, 64 GPUs of 72")
    assert part.power == pytest.approx(node("GB200 NVL72").power * 8 / 9)
    assert whole == node("DGX H100")
    assert rack("MI300X Platform", 8).power is None


def test_cells_of_the_figure():
    assert cell("llama-3.1-8b", "GB200 NVL72", 8, BATCHES[0]) is None
    none = cell("llama-3.1-405b", "DGX A100", 8, BATCHES[0])
    assert none["plans"] == [] and "needs 761 GiB a GPU; it has 80 GiB, less 4 GB in reserve" in none["why"].replace("761.2", "761")
    one = cell("llama-3.1-405b", "DGX H100", 512, BATCHES[0])
    found = job("llama-3.1-405b", "DGX H100", 512, BATCHES[0])
    assert one["plans"][0]["step"] == pytest.approx(found.plans[0].estimate.step_seconds, rel=1e-11)
    assert sum(one["plans"][0]["shares"]) in range(97, 104) and one["binds"] == found.binds()
    assert one["wanted"]["step"] == pytest.approx(found.wanted.estimate.step_seconds, rel=1e-11) and len(one["plans"]) == 3
    assert cell("llama-3.1-8b", "DGX H100", 8, BATCHES[0])["wanted"] is None
    small = planner("demo/planner", models=["llama-3.1-8b"], nodes=["DGX H100"], devices=[8, 64, 512], batches=[BATCHES[0]])
    html = small.fallback()
    assert "data 64" in html and html.count("<tr>") == 2
    assert isinstance(found, Outcome) and set(SEQUENCES) and set(USED) and DEVICES[-1] == 16384
