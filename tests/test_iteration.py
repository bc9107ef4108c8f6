"""A training step on a timeline: against a clock that ticks, cases by hand, laws, and the sums of `estimate`."""

import dataclasses
import tomllib
from itertools import pairwise
from math import ceil

import pytest
from clusterlab.collectives import all_reduce_seconds
from clusterlab.hardware import Cluster, node
from clusterlab.iteration import SCHEDULES, Event, Iteration, Work, unfold
from clusterlab.kernels import group_link
from clusterlab.memory import device_memory
from clusterlab.pipeline import simulate
from clusterlab.plan import Plan
from clusterlab.training import estimate
from clusterlab.transformer import model
from clusterlab.workload import case, cases, work_of
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

PIPELINES = SCHEDULES[1:]


def alike(ranks=2, **changes):
    """Work of equal ranks, in whole numbers."""
    each = {"forward": 2.0, "loss": 1.0, "backward": 4.0, "optimizer": 1.0, "gradients": 8.0}
    whole = {"load": 1.0, "micro_batches": 1, "latency": 1.0, "per_byte": 0.5}
    for name, value in changes.items():
        (each if name in each else whole)[name] = value
    return Work(**{name: (value,) * ranks for name, value in each.items()}, **whole)


def ticking(load, phases, optimizer, size, bucket, latency, per_byte, overlap, factors):
    """The same step by a clock: every tick each rank does a tick of work, the link a tick of sending. Whole numbers.

    Returns (seconds, ticks in which a rank was exposed, by rank).
    """
    ranks, f, loss, b = len(factors), *phases
    done = [0] * ranks                                        # ticks of computation before the optimizer
    total = [(f + loss + b) * factor for factor in factors]
    update = [optimizer * factor for factor in factors]
    sent, left, exposed, clock = 0, 0, [0] * ranks, 0         # bytes that arrived, ticks until the bucket under way has
    while any(update):
        working = [False] * ranks
        full = min(sent + bucket, size)

        def has(rank, full=full):                             # a rank's gradients, byte by byte in its backward pass
            if not overlap:
                return done[rank] == total[rank]
            into = done[rank] - (f + loss) * factors[rank]
            return into * size >= full * b * factors[rank] and into >= 0

        if left == 0 and sent < size and all(has(rank) for rank in range(ranks)):
            left = latency + per_byte * (full - sent)
        for rank in range(ranks):
            if clock < load:
                working[rank] = True
            elif done[rank] < total[rank]:
                done[rank] += 1
                working[rank] = True
            elif sent == size and update[rank]:
                update[rank] -= 1
                working[rank] = True
            exposed[rank] += left > 0 and not working[rank]
        if left:
            left -= 1
            if left == 0:
                sent = full
        clock += 1
    return clock, exposed


@given(load=st.integers(0, 3), forward=st.integers(1, 5), loss=st.integers(0, 2), backward=st.integers(1, 6),
       optimizer=st.integers(1, 4), per_tick=st.integers(1, 3), bucket=st.integers(1, 8), latency=st.integers(0, 3),
       per_byte=st.integers(1, 3), overlap=st.booleans(), factors=st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_a_step_is_what_a_ticking_clock_does(load, forward, loss, backward, optimizer, per_tick, bucket, latency, per_byte,
                                             overlap, factors):
    size = backward * per_tick
    bucket = per_tick * bucket                                # full at a tick, however slow the rank
    seconds, exposed = ticking(load, (forward, loss, backward), optimizer, size, bucket, latency, per_byte, overlap, factors)
    work = alike(len(factors), load=load, forward=forward, loss=loss, backward=backward, optimizer=optimizer,
                 gradients=float(size), latency=latency, per_byte=per_byte)
    found = unfold(work, bucket=bucket, overlap=overlap, slow=dict(enumerate(factors)))
    assert found.seconds == pytest.approx(seconds, rel=1e-12)
    assert [found.spent(rank)["exposed"] for rank in range(len(factors))] == pytest.approx(exposed, abs=1e-9)
    for rank, factor in enumerate(factors):
        spent = found.spent(rank)
        assert spent["load"] == load
        assert spent["compute"] == pytest.approx((forward + loss + backward + optimizer) * factor)
        assert sum(spent.values()) == pytest.approx(found.seconds)
    assert sum(e.kind == "sync" and e.rank == 0 for e in found.events) == ceil(size / bucket)


def test_a_step_by_hand():
    """Load to 1, forward to 3, loss to 4, backward to 8: two buckets are full at 6 and 8, each takes 1 + 2."""
    found = unfold(alike(), bucket=4.0)
    assert [event[1:] for event in found.events if event.rank == 1] == [
        ("load", 0, 0, 1), ("forward", 0, 1, 3), ("loss", 0, 3, 4), ("backward", 0, 4, 8), ("sync", 0, 6, 9),
        ("sync", 1, 9, 12), ("optimizer", 0, 12, 13)]
    assert found.seconds == 13 and found.exposed == 4 and found.bubble == 0
    assert found.spent(0) == {"load": 1, "compute": 8, "exposed": 4, "waiting": 0}


def test_the_others_wait_for_a_slow_rank_by_hand():
    """Rank 1 computes twice as long: backward from 7 to 15, full at 15, the sum to 20, its optimizer to 22."""
    found = unfold(alike(), slow={1: 2})
    assert found.seconds == 22 and found.exposed == 5
    assert found.spent(0) == {"load": 1, "compute": 8, "exposed": 5, "waiting": 8}
    assert found.spent(1) == {"load": 1, "compute": 16, "exposed": 5, "waiting": 0}
    assert found.bubble == 8 / 44


def test_micro_batches_are_summed_by_the_last_one():
    """Two of 7 each: the second backward pass runs from 11 to 15, its halves are full at 13 and 15."""
    found = unfold(alike(micro_batches=2), bucket=4.0)
    assert [event[3:] for event in found.events if event.rank == 0 and event.kind == "sync"] == [(13, 16), (16, 19)]


def test_a_pipeline_by_hand():
    """Two stages, one micro-batch, loss within the forward pass: F to 3, B of the last stage to 10, of the first to 14."""
    work = alike(load=0.0, latency=0.0, forward=2.0, loss=1.0, per_byte=1.0, optimizer=0.5)
    for schedule in ("gpipe", "1f1b"):
        found = unfold(work, schedule, bucket=4.0)
        assert [e[:1] + e[3:] for e in found.events if e.kind in ("backward", "sync")] == [
            (0, 10, 14), (0, 12, 16), (0, 16, 20), (1, 6, 10), (1, 8, 12), (1, 12, 16)]
        assert found.seconds == 20.5 and found.exposed == 6
        assert found.spent(0) == {"load": 0, "compute": 7.5, "exposed": 6, "waiting": 7}
        assert found.spent(1) == {"load": 0, "compute": 7.5, "exposed": 6, "waiting": 7}
        assert unfold(work, schedule, bucket=4.0, overlap=False).seconds == 22.5


def test_with_weights_apart_the_gradients_come_with_them():
    """zb-h1, one stage: F 3, B 2, W 2, so the second half of a bucket's bytes is there at 7, not at 5."""
    work = alike(1, load=0.0, latency=0.0, per_byte=1.0)
    found = unfold(work, "zb-h1", bucket=4.0)
    assert [(e.kind, e.start, e.end) for e in found.events] == [
        ("load", 0, 0), ("forward", 0, 3), ("backward", 3, 5), ("weights", 5, 7), ("sync", 6, 10), ("sync", 10, 14),
        ("optimizer", 14, 15)]


def test_two_chunks_bring_half_each():
    """Interleaved on two stages: the last micro-batch's chunk 1 is done before its chunk 0, with other work between."""
    work = alike(2, load=0.0, latency=0.0, micro_batches=2, per_byte=0.25)
    run = simulate("interleaved", stages=2, micro_batches=2, forward=3.0, backward=4.0, virtual=2)
    ends = [[e.end for e in run.events if e.stage == rank and e.kind == "B" and e.micro_batch == 1] for rank in (0, 1)]
    found = unfold(work, "interleaved", bucket=4.0)
    for rank in (0, 1):
        starts = [e.start for e in found.events if e.rank == rank and e.kind == "sync"]
        assert starts == [max(end, before + 1.0) for end, before in zip(ends[rank], (-1.0, starts[0]), strict=True)]
    assert ends[0][1] - ends[0][0] > 1.0                      # so the second bucket waited for its half, not for the link


works = st.builds(
    Work, load=st.floats(0, 2), micro_batches=st.just(4), latency=st.floats(0, 1), per_byte=st.floats(0, 2), send=st.floats(0, 1),
    ideal=st.just(1.0), **{name: st.tuples(*[st.floats(0.1, 3)] * 2) for name in ("forward", "loss", "backward", "optimizer")},
    gradients=st.floats(1, 9).map(lambda size: (size, size)))


@given(works, st.sampled_from(SCHEDULES), st.floats(0.5, 20), st.floats(1, 3))
def test_laws_of_a_step(work, schedule, bucket, factor):
    apart, hidden, once, slower = (unfold(work, schedule, **choices) for choices in (
        {"bucket": bucket, "overlap": False}, {"bucket": bucket}, {}, {"bucket": bucket, "slow": {1: factor}}))
    for rank in (0, 1):
        assert len({round(run.spent(rank)["compute"], 9) for run in (apart, hidden, once)}) == 1
        for run in (apart, hidden, once, slower):
            spent = run.spent(rank)
            assert sum(spent.values()) == pytest.approx(run.seconds) and min(spent.values()) >= -1e-9
            for busy in ([e for e in run.events if e.rank == rank and (e.kind == "sync") == sync] for sync in (False, True)):
                assert all(a.end <= b.start + 1e-9 for a, b in pairwise(busy))
    assert hidden.seconds <= apart.seconds + 1e-9 and hidden.exposed <= apart.exposed + 1e-9
    assert slower.seconds >= hidden.seconds - 1e-9
    assert hidden.mfu == pytest.approx(1 / hidden.seconds)
    assert unfold(work, schedule, bucket=work.gradients[0] * 1.5) == once
    assert once.seconds == pytest.approx(unfold(work, schedule, overlap=False).seconds)


@given(works, st.floats(0.5, 20))
def test_without_overlap_a_step_of_equal_ranks_is_a_sum(work, bucket):
    same = dataclasses.replace(work, micro_batches=1, **{name: (getattr(work, name)[0],) * 2 for name in
                                                         ("forward", "loss", "backward", "optimizer")})
    number = ceil(same.gradients[0] / min(bucket, same.gradients[0]))
    total = number * same.latency + same.per_byte * same.gradients[0]
    found = unfold(same, bucket=bucket, overlap=False)
    computed = sum(getattr(same, name)[0] for name in ("forward", "loss", "backward", "optimizer"))
    assert found.seconds == pytest.approx(same.load + computed + total)
    hidden = unfold(same, bucket=bucket)
    assert hidden.exposed == pytest.approx(hidden.seconds - same.load - computed, abs=1e-9)
    assert hidden.exposed >= same.latency + same.per_byte * (same.gradients[0] - (number - 1) * min(bucket, same.gradients[0])) - 1e-9
    assert hidden.bubble == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("schedule", PIPELINES)
def test_without_anything_to_sum_a_pipeline_is_its_schedule(schedule):
    work = alike(4, load=0.0, loss=0.0, optimizer=0.0, gradients=0.0, micro_batches=8)
    run = simulate(schedule, stages=4, micro_batches=8, forward=2.0, backward=4.0, virtual=2 if schedule == "interleaved" else 1)
    found = unfold(work, schedule)
    assert found.seconds == pytest.approx(run.makespan) and found.bubble == pytest.approx(run.bubble_fraction)
    assert not any(event.kind == "sync" for event in found.events) and found.exposed == 0


def test_sends_delay_a_pipeline_and_not_a_replica():
    assert unfold(alike(send=3.0)).seconds == unfold(alike()).seconds
    assert unfold(alike(send=3.0), "1f1b").seconds == unfold(alike(), "1f1b").seconds + 6


@pytest.mark.parametrize(("choices", "named"), [
    ({"bucket": 0}, "bucket=0"), ({"bucket": -1.0}, "bucket=-1"), ({"slow": {2: 1.5}}, "slow"), ({"slow": {0: 0}}, "slow"),
    ({"schedule": "2f2b"}, "2f2b")])
def test_what_cannot_be_is_refused(choices, named):
    with pytest.raises(ValueError, match=named):
        unfold(alike(), **choices)


def test_ranks_have_a_value_each():
    with pytest.raises(ValueError, match="backward="):
        dataclasses.replace(alike(), backward=(1.0,))


def test_where_a_recorded_step_went_is_counted_in_the_same_way():
    """A sum that began before the backward pass had ended and went on under the optimizer of another rank."""
    events = (Event(0, "load", 0, 0, 1), Event(0, "backward", 0, 1, 5), Event(0, "sync", 0, 4, 8), Event(0, "optimizer", 0, 8, 9))
    assert Iteration(10, events, 1, 0.0).spent(0) == {"load": 1, "compute": 5, "exposed": 3, "waiting": 1}


# ---- the work of a model on a cluster ---------------------------------------------------------------------------------


PLANS = [("gpt-2-xl", "DGX A100", 1, 1024, 8), ("gpt-2-xl", "DGX H100", 2, 1024, 4), ("llama-2-7b", "DGX B200", 4, 4096, 1)]


@pytest.mark.parametrize(("name", "where", "nodes", "seq", "size"), PLANS)
def test_without_overlap_a_step_is_the_estimate(name, where, nodes, seq, size):
    shape, cluster = model(name), Cluster(node(where), nodes)
    n = cluster.devices
    plan = Plan(data=n, micro_batch=size, global_batch=2 * size * n, seq=seq, zero_stage=0, recompute="none")
    expected = estimate(shape, cluster, plan, attention="flash")
    found = unfold(work_of(shape, cluster, plan), overlap=False)
    assert found.seconds == pytest.approx(expected.step_seconds, rel=1e-12)
    assert found.mfu == pytest.approx(expected.mfu, rel=1e-12)
    assert found.exposed == pytest.approx(expected.breakdown["data"], rel=1e-9)
    assert unfold(work_of(shape, cluster, plan, load=0.25), overlap=False).seconds == pytest.approx(expected.step_seconds + 0.25)


@pytest.mark.parametrize(("name", "where", "nodes", "seq", "size"), PLANS)
def test_stages_share_what_a_replica_does(name, where, nodes, seq, size):
    shape, cluster = model(name), Cluster(node(where), nodes)
    n = cluster.devices
    every = {"global_batch": 2 * n * size, "seq": seq, "micro_batch": size, "zero_stage": 0, "recompute": "none"}
    whole, piped = (work_of(shape, cluster, Plan(**degrees, **every)) for degrees in ({"data": n}, {"pipeline": 4, "data": n // 4}))
    assert piped.micro_batches == 8 and whole.micro_batches == 2
    for part in ("forward", "loss", "backward"):
        assert sum(getattr(piped, part)) == pytest.approx(getattr(whole, part)[0], rel=1e-12)
    assert set(whole.loss) == {whole.loss[0]} and piped.loss[:3] == (0, 0, 0)
    second = 2 * shape.vocab * shape.hidden * shape.tied      # a tied embedding stands on both ends
    assert sum(piped.gradients) == pytest.approx(whole.gradients[0] + second, rel=1e-12)
    assert whole.gradients[0] == pytest.approx(2 * shape.parameters(), rel=3e-3)      # but for positions and norms
    assert piped.optimizer == pytest.approx([size / whole.gradients[0] * whole.optimizer[0] for size in piped.gradients])
    assert piped.ideal == pytest.approx(whole.ideal) and whole.send == 0
    for work, ranks in ((whole, n), (piped, n // 4)):
        link = group_link(cluster, 1, ranks)
        for bucket in (1e6, 1e9):
            assert work.latency + work.per_byte * bucket == pytest.approx(float(all_reduce_seconds(bucket, ranks, link)), rel=1e-6)
    neighbour = group_link(cluster, n // 4, 4)
    assert piped.send == pytest.approx(neighbour.latency + 2 * size * seq * shape.hidden / neighbour.bandwidth)
    expected = estimate(shape, cluster, Plan(pipeline=4, data=n // 4, **every), attention="flash")
    blocking = expected.step_seconds - unfold(piped, "1f1b", overlap=False).seconds      # there sends take a stage's time
    assert 0 <= blocking <= expected.breakdown["sends"] * (8 + 3) / 8


def test_a_pipeline_without_replicas_sums_nothing():
    cluster = Cluster(node("DGX A100"), 1)
    work = work_of(model("gpt-2-xl"), cluster, Plan(pipeline=8, global_batch=8, seq=1024, zero_stage=0, recompute="none"))
    assert set(work.gradients) == {0} and len(work.forward) == 8


@pytest.mark.parametrize("field", [{"tensor": 2, "data": 4}, {"zero_stage": 1, "data": 8}, {"recompute": "full", "data": 8}])
def test_other_parallelism_is_refused(field):
    plan = Plan(**{"global_batch": 8, "seq": 1024, "zero_stage": 0, "recompute": "none"} | field)
    with pytest.raises(ValueError, match="zero_stage=0"):
        work_of(model("gpt-2-xl"), Cluster(node("DGX A100"), 1), plan)


@pytest.mark.parametrize("name", cases())
def test_the_page_s_cases_fit_their_devices(name):
    row = tomllib.loads((ROOT / "lib/clusterlab/data/iterations.toml").read_text("utf-8"))[name]
    shape, size = model(row["model"]), row["micro_batch"]
    memory = node(row["node"]).accelerator.memory if "node" in row else 80 * 2**30
    whole = Plan(data=case(name).devices, micro_batch=2 * size, global_batch=2 * size * case(name).devices, seq=row["seq"],
                 zero_stage=0, recompute="none")
    assert device_memory(shape, whole, attention="flash", dropout=shape.norm == "layer").total < memory
    assert len(case(name).pipeline.forward) == 4 and case(name).pipeline.micro_batches == 8
    assert case(name).data.micro_batches == 1 and case(name).data.load == case(name).pipeline.load == row["load"]


def test_unknown_cases_are_refused():
    with pytest.raises(LookupError, match="gpt2-64"):
        case("gpt2-65")
