"""Real steps: the order of sum and optimizer, gradients summed in buckets by a thread, and what a record holds."""

import os
import time
from itertools import pairwise

import pytest
import torch
from clusterlab.iteration import unfold
from clusterlab.run import step_record
from clusterlab.run.links import Paced
from clusterlab.run.model import Decoder
from clusterlab.run.ranks import launch
from clusterlab.run.step_order import ORDERS, orders
from clusterlab.run.worker import Board


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_only_gradients_summed_before_the_step_train_the_same_model(optimizer, nothing_left):
    first, second, third = (orders(optimizer, steps=2)[order] for order in ORDERS)
    assert first.equal and first.same_model and first.distance == 0
    assert not second.equal and not second.same_model and second.distance > 1e-4
    assert third.equal and not third.same_model
    assert (third.distance < 1e-5) == (optimizer == "SGD")


def test_three_replicas_are_one_process_up_to_the_order_of_addition(nothing_left):
    found = orders("SGD", world_size=3, steps=2, batch=6)[ORDERS[0]]
    assert found.equal and found.distance < 1e-6


@pytest.mark.parametrize(("choices", "named"), [({"optimizer": "Adam"}, "AdamW"), ({"batch": 3}, "world_size=2")])
def test_orders_that_cannot_be_are_refused(choices, named):
    with pytest.raises(ValueError, match=named):
        orders(**choices)


def summed(size):
    """On a rank: the gradients after the buckets have been summed, and each bucket's bytes."""
    from concurrent.futures import ThreadPoolExecutor

    import torch.distributed as dist

    weights = [torch.nn.Parameter(torch.zeros(n)) for n in (5, 3, 4, 2)]
    for k, weight in enumerate(weights):
        weight.grad = torch.full_like(weight, 10.0 * k + dist.get_rank())
    with ThreadPoolExecutor(1) as pool:
        buckets = step_record.Buckets(weights, size, pool)
        buckets.start()
        for weight in reversed(weights):
            buckets.arrived(weight)
        times = buckets.wait()
    return [weight.grad.tolist() for weight in weights], [[w.numel() for w in group] for group in buckets.groups], times


@pytest.mark.parametrize(("size", "groups"), [(8, [[2], [4], [3], [5]]), (16, [[2, 4], [3, 5]]), (24, [[2, 4], [3, 5]]),
                                              (None, [[2, 4, 3, 5]])])
def test_buckets_average_gradients_from_the_last_layer_on(size, groups, nothing_left):
    for gradients, held, times in launch(summed, 2, size):
        assert gradients == [[10.0 * k + 0.5] * n for k, n in enumerate((5, 3, 4, 2))]
        assert held == groups and len(times) == len(groups)
        assert all(end <= start for (_, end), (start, _) in pairwise(times))


@pytest.fixture(scope="module")
def small():
    return step_record.record(link=Paced(bandwidth=2e9), laps=2, batch=2, seq=8, buckets=(1e6, None))


@pytest.mark.parametrize("which", ["new", "stored"])
def test_a_record_is_consistent(which, request):
    found = request.getfixturevalue("small") if which == "new" else step_record.load()
    sizes = [w.nbytes for w in reversed(list(Decoder(step_record.SHAPE).parameters()))]
    assert found["parameters"] * 4 == sum(sizes) and found["ranks"] == 2
    assert len(found["rows"]) == (8 if which == "new" else 12)
    for row in found["rows"]:
        count, held = 1, 0
        for size in sizes:
            if row["bucket"] and held >= row["bucket"]:
                count, held = count + 1, 0
            held += size
        run = step_record.iteration_of(row)
        assert max(event.end for event in run.events) == pytest.approx(row["seconds"], abs=2e-6)
        assert row["seconds"] <= row["median"] <= row["highest"]
        for rank in (0, 1):
            mine = [event for event in run.events if event.rank == rank]
            sent, busy = ([e for e in mine if (e.kind == "sync") == sync] for sync in (True, False))
            assert len(sent) == count and [e.kind for e in busy] == list(step_record.PHASES)
            assert all(a.end <= b.start + 2e-6 for lane in (sent, busy) for a, b in pairwise(lane))
            assert sent[-1].end <= busy[-1].start + 2e-6         # the optimizer comes after the last bucket
            assert row["overlap"] or sent[0].start >= busy[3].end - 2e-6
            assert min(run.spent(rank).values()) >= -1e-5
        starts = [[e.start for e in run.events if e.kind == "sync" and e.rank == rank] for rank in (0, 1)]
        assert starts[0] == starts[1]


def test_what_is_predicted_comes_from_steps_without_a_sum(small):
    work = step_record.work_of(small)
    assert work.latency == 0 and work.per_byte == pytest.approx(1 / 2e9)          # 2(n - 1)/n is 1
    assert work.gradients == (4 * small["parameters"],) * 2
    for kind in ("forward", "loss", "backward", "optimizer"):
        assert getattr(work, kind) == tuple(phase[kind] for phase in small["phases"])
    expected = work.load + max(sum(phase[k] for k in ("forward", "loss", "backward")) for phase in small["phases"])
    assert unfold(work, overlap=False).seconds >= expected + 4 * small["parameters"] / 2e9
    slower = dict(small, bandwidth=1e9, latency=1e-3)
    assert step_record.work_of(slower).latency == 2e-3 and step_record.work_of(slower).per_byte == 1e-9


def test_the_stored_overlap_shortens_the_step():
    """What would contradict the page: a step that is no shorter where the sum may hide."""
    seconds = {(row["bucket"], row["overlap"], row["slow"]): row["seconds"] for row in step_record.load()["rows"]}
    for slow in (1.0, 1.2):
        assert seconds[1e6, True, slow] < seconds[1e6, False, slow]
        assert seconds[5e6, True, slow] < seconds[5e6, False, slow]


def test_the_command_writes_a_record(tmp_path, monkeypatch, small):
    monkeypatch.setattr(step_record, "record", lambda: dict(small))
    step_record.main(["--where", str(tmp_path / "step.json")])
    assert step_record.load(tmp_path / "step.json") == small
    assert {"date", "device", "torch", "command", "busy"} <= set(small)
    shown = step_record.shown(small)
    assert shown["rows"][0]["ranks"] == 2 and "2000 MB/s" in shown["says"] and small["device"] in shown["recorded"]


def test_a_sign_of_life_is_never_half_written(tmp_path):
    """A launcher that read 0 while a rank wrote would report, after a minute of good work, that it never started."""
    writer, reader = Board(tmp_path, 3), Board(tmp_path, 3)
    writer.beat(1)
    assert reader.last_beat(0) == reader.last_beat(2) == 0 and abs(reader.last_beat(1) - time.monotonic()) < 5
    child = os.fork()
    if not child:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            for _ in range(1000):
                writer.beat(1)
        os._exit(0)
    seen = []
    while not os.waitpid(child, os.WNOHANG)[0]:
        seen += [reader.last_beat(1) for _ in range(1000)]
    assert min(seen) > 0
