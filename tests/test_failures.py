"""The failure lab: the right rank is named, no committed step is lost, and training goes on with the same bits."""

import json
import math
import os
import random
import sys
import time
from dataclasses import replace

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from clusterlab import reliability
from clusterlab.run import RankError, diagnosis, launch
from clusterlab.run.checkpoint import latest
from clusterlab.run.diagnosis import diagnose, hang
from clusterlab.run.elastic import elastic
from clusterlab.run.failures import KINDS, MOMENTS, Fault, train_with_failures
from clusterlab.run.job import Job, undisturbed_losses
from clusterlab.run.survive import continue_without
from clusterlab.run.timeline import PARTS, Incident, Timeline

cloudpickle.register_pickle_by_value(sys.modules[__name__])         # ranks need not import pytest
pytestmark = [pytest.mark.timeout(120), pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]
SLACK = 4.0                                                         # the machine may be busy
QUICK = {"world_size": 3, "steps": 6, "checkpoint_every": 2, "timeout": 3, "job": Job(batch=6)}


@pytest.fixture(scope="module")
def undisturbed():
    """Losses of the quick job on three ranks that nobody disturbs."""
    return launch(undisturbed_losses, 3, QUICK["job"], 6, timeout=60)[0]


def disturbed(*faults, **kw):
    return train_with_failures(faults, **QUICK | {"reference": False} | kw)


# killed, frozen

@pytest.mark.parametrize("fault, lost, within", [
    (Fault("kill", 1, 4, "save"), 2, 2),                            # half way through a checkpoint
    (Fault("freeze", 0, 3), 1, 3 + 2),
    pytest.param(Fault("kill", 1, 1), 1, 2, marks=pytest.mark.slow),                # before there is any checkpoint
    pytest.param(Fault("kill", 0, 3, "update"), 1, 2, marks=pytest.mark.slow),
    pytest.param(Fault("freeze", 2, 4, "save"), 2, 3 + 2, marks=pytest.mark.slow),
], ids=lambda value: f"{value.kind}-{value.rank}-{value.moment}" if isinstance(value, Fault) else str(value))
def test_a_dead_or_frozen_rank_is_named_and_the_same_bits_follow(fault, lost, within, undisturbed):
    timeline = disturbed(fault)
    incident, = timeline.incidents
    assert incident.right and incident.named == (fault.rank,) and incident.fault == fault
    assert incident.seconds < within + SLACK
    assert timeline.lost == [lost] and timeline.resumed == [0, fault.step - lost] and timeline.committed_lost == 0
    assert timeline.losses == undisturbed and timeline.worlds == (3, 3)


@pytest.mark.slow
def test_sharded_state_and_background_writes_survive_too():
    job = Job(batch=6, strategy="fsdp")
    timeline = disturbed(Fault("kill", 1, 5), background=True, job=job, reference=True)
    assert timeline.incidents[0].right and timeline.bitwise and timeline.committed_lost == 0
    assert timeline.lost[0] in (1, 3)                               # the write of step 4 was done, or was not


@pytest.mark.slow
def test_two_faults_one_after_the_other(undisturbed):
    timeline = disturbed(Fault("kill", 0, 2), Fault("kill", 2, 5))
    assert [i.named for i in timeline.incidents] == [(0,), (2,)] and timeline.lost == [0, 1]
    assert timeline.losses == undisturbed and len(timeline.worlds) == 3


def test_the_checkpoints_stay_where_they_are_wanted(tmp_path):
    disturbed(folder=tmp_path / "here", steps=4)
    assert latest(tmp_path / "here").name == "step-00000004"
    with pytest.raises(ValueError, match="here.*empty"):
        disturbed(folder=tmp_path / "here")


# slow, corrupt

def test_a_slow_rank_is_named_and_replaced_without_losing_a_step(undisturbed):
    timeline = disturbed(Fault("slow", 1, 1, seconds=0.5))
    incident, = timeline.incidents
    assert incident.right and incident.named == (1,) and incident.done == 5       # three slow steps after the first
    assert timeline.lost == [0] and timeline.losses == undisturbed
    assert timeline.seconds()["degrade"] > 1.0


@pytest.mark.parametrize("moment", [
    "weights", pytest.param("after", marks=pytest.mark.slow), pytest.param("moments", marks=pytest.mark.slow)])
def test_what_is_flipped_after_the_reduction_a_checksum_sees(moment, undisturbed):
    timeline = disturbed(Fault("corrupt", 1, 3, moment))
    incident, = timeline.incidents
    assert incident.right and incident.named == (1,) and incident.done == 4
    assert timeline.lost == [2] and timeline.losses == undisturbed and timeline.undetected == []


def test_what_is_flipped_before_the_reduction_it_cannot_see(undisturbed):
    timeline = disturbed(Fault("corrupt", 1, 3, "before"))
    assert timeline.incidents == () and timeline.undetected == [(0, 1)]
    assert timeline.losses[:4] == undisturbed[:4] and timeline.losses[4:] != undisturbed[4:]     # wrong all the same


@pytest.mark.slow
def test_of_two_replicas_none_can_say_which_is_wrong():
    timeline = disturbed(Fault("corrupt", 1, 3, "weights"), world_size=2, steps=4)
    incident, = timeline.incidents
    assert (incident.seen, incident.named, incident.right) == ("corrupt", (), False)


# fewer ranks

def test_a_lost_node_and_its_return():
    job = Job(dropout=0.0, pace=0.02)
    timeline = disturbed(Fault("lose", 2, 3, ranks=2, back=6), world_size=4, steps=8, job=job, reference=True)
    assert timeline.incidents[0].right and timeline.worlds == (4, 2, 4) and timeline.resumed == [0, 2, 6]
    assert timeline.losses[:2] == timeline.reference[:2] and not timeline.bitwise
    assert timeline.deviation < 1e-6                                # the same batches; sums in another order
    assert "2-3" in timeline.table() and "2 ranks from step 2" in timeline.table()


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("ddp", marks=pytest.mark.slow)])
def test_survivors_go_on_from_copies_in_memory(strategy):
    job = Job(dropout=0.0, strategy=strategy)
    run = continue_without([Fault("kill", 2, 3)], 4, steps=6, copy_every=2, job=job, timeout=4)
    assert run.worlds == ((0, 1, 2, 3), (0, 1, 3)) and run.resumed == (0, 2) and run.lost == (1,)
    straight = launch(undisturbed_losses, 4, job, 6, timeout=60)[0]
    assert run.losses[:2] == straight[:2] and run.losses != straight
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(run.losses, straight, strict=True))
    assert run.recovered == (4 * (3 * job.shape.parameters() + 21),) and run.copied > 0


@pytest.mark.slow
def test_survivors_of_more_than_one_loss():
    run = continue_without([Fault("freeze", 2, 3), Fault("kill", 0, 5)], 4, steps=8, copy_every=2, timeout=4,
                           job=Job(dropout=0.0, strategy="fsdp"))
    assert run.worlds == ((0, 1, 2, 3), (0, 1, 3), (1, 3)) and run.resumed == (0, 2, 4) and run.lost == (1, 1)


@pytest.mark.slow
def test_a_shard_lost_with_its_copy_is_not_made_up():
    with pytest.raises(RankError, match="found none of rank.s. 1, lost with the neighbour"):
        continue_without([Fault("lose", 1, 3, ranks=2)], 4, steps=6, copy_every=2, job=Job(strategy="fsdp"), timeout=4)


# where the time went

def timeline(*events, incidents=(), worlds=(4,), steps=3, every=1):
    return Timeline(tuple(incidents), events, worlds, 4, steps, every, None)


def test_the_parts_of_a_run_by_hand():
    """Seconds chosen by hand, so that each part can be added up on paper."""
    run = timeline(
        (100.0, 0, "ready", 0), (101.0, 0, "step", 0, 4.0), (101.25, 0, "saved", 1), (102.25, 0, "step", 1, 3.0),
        (102.75, 0, "fault", 2), (105.0, 0, "detected"), (109.0, 1, "ready", 1), (111.0, 1, "step", 1, 3.0),
        (113.5, 1, "step", 2, 2.0), worlds=(4, 2),
        incidents=[Incident(Fault("kill", 2, 2), "killed", (2,), 2.25, 0, 2, 2)])
    assert run.seconds() == {"useful": 3.0, "checkpoint": 0.25, "detect": 2.25, "restart": 4.0, "recompute": 2.5,
                             "degrade": 1.5} and run.wall == 13.5
    assert run.goodput == 3.0 / 13.5 and run.lost == [1] and run.committed_lost == 0 and run.losses == [4.0, 3.0, 2.0]
    assert run.model() == reliability.goodput(1.0, write=0.25, mtbf=13.5, restart=6.25)


def test_slower_steps_are_degraded_by_what_they_took_longer():
    run = timeline(
        (0.0, 0, "ready", 0), (1.0, 0, "step", 0, 4.0), (2.0, 0, "step", 1, 4.0), (2.0, 0, "flaw", 1),
        (6.0, 0, "step", 2, 4.0),
        (6.5, 0, "saved", 3), (6.5, 0, "noticed"), (7.0, 0, "detected"), (8.0, 1, "ready", 3), (9.0, 1, "step", 3, 4.0),
        (10.0, 1, "step", 4, 4.0), worlds=(4, 4), steps=5,
        incidents=[Incident(Fault("slow", 1, 1), "slow", (1,), 5.0, 0, 3, 4)])
    assert run.seconds() == {"useful": 5.0, "checkpoint": 0.5, "detect": 0.5, "restart": 1.0, "recompute": 0.0,
                             "degrade": 3.0}


def test_without_failures_only_checkpoints_cost():
    run = timeline((0.0, 0, "ready", 0), (3.0, 0, "step", 0, 4.0), (4.0, 0, "saved", 1), worlds=(4,), steps=1)
    assert run.goodput == run.model() == 0.75


def test_a_committed_step_that_is_lost_would_be_seen():
    lost = Incident(Fault("kill", 1, 2), "killed", (1,), 1.0, 0, 2, 4)
    run = timeline((0.0, 0, "ready", 0), (1.0, 0, "step", 0, 1.0), (2.0, 0, "saved", 1), (3.0, 0, "detected"),
                   (4.0, 1, "ready", 0), incidents=[lost], worlds=(4, 4))
    assert run.committed_lost == 1 and run.lost == [2]


def test_the_parts_of_a_real_run_add_up():
    run = disturbed(Fault("kill", 2, 3), reference=True)
    parts = run.seconds()
    assert tuple(parts) == PARTS and all(seconds >= 0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(run.wall) and 0 < run.goodput < 1 and 0 < run.model() < 1
    assert min(parts[name] for name in ("useful", "checkpoint", "detect", "restart", "recompute")) > 0
    line = " ".join(run.table().splitlines()[1].split())
    assert run.incidents[0].right and run.incidents[0].seconds < 2 + SLACK
    assert run.bitwise and line == "kill rank 2, step 3, forward killed 2 1 3 ranks from step 2"


# faults nobody can plan

def test_bad_plans_are_refused():
    for make, error, words in [
            (lambda: Fault("kil", 0, 1), LookupError, "near: kill"),
            (lambda: Fault("kill", 0, 1, "before"), ValueError, "strikes at"),
            (lambda: Fault("lose", 0, 5, back=5), ValueError, "back=5"),
            (lambda: disturbed(Fault("kill", 3, 1)), ValueError, "rank below 3"),
            (lambda: disturbed(Fault("kill", 0, 6)), ValueError, "step below 6"),
            (lambda: disturbed(Fault("kill", 0, 3, "save")), ValueError, "no checkpoint is written after 3"),
            (lambda: disturbed(checkpoint_every=7), ValueError, "checkpoint_every=7"),
            (lambda: disturbed(checks=("replica",)), ValueError, "'replica'"),
            (lambda: disturbed(Fault("corrupt", 1, 1), job=Job(strategy="fsdp")), ValueError, "no replicas"),
            (lambda: disturbed(Fault("lose", 0, 1, ranks=2), job=Job(batch=2), world_size=2), ValueError, "on 0 ranks"),
            (lambda: continue_without([Fault("slow", 0, 1)]), ValueError, "survivors are for"),
            (lambda: elastic(lose_agent=3), ValueError, "two agents"),
            (lambda: hang("wild"), ValueError, "kind='wild'")]:
        with pytest.raises(error, match=words):
            make()
    assert set(MOMENTS) == set(KINDS)


def test_an_error_in_the_program_is_not_retried():
    with pytest.raises(RankError, match="IndexError"):
        disturbed(job=Job(batch=6, shape=replace(Job().shape, positions=4)))


# a short form of benchmarks/faults.py

@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_soak():
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "benchmarks"))
    try:
        from faults import soak
    finally:
        sys.path.pop(0)
    done, bad = soak(12, seed=random.randrange(1000), budget=150)
    assert done >= 6 and bad == []


# why it hangs

@pytest.mark.parametrize("kind, behind, different, words", [
    pytest.param("frozen", (1,), (), "rank 1 never entered all_reduce #4", marks=pytest.mark.slow),
    ("skipped", (1,), (), "rank 1 never entered all_reduce #4"),
    ("mismatch", (), (1,), "rank 1 entered broadcast")])
def test_a_hang_is_explained(kind, behind, different, words):
    found = hang(kind, 3, timeout=1.5)
    assert (found.behind, found.different) == (behind, different)
    assert words in found.verdict and found.verdict in str(found)
    assert [row.sequence for row in found.rows] == [3 if row.rank in behind else 4 for row in found.rows]


@pytest.mark.slow
def test_flight_records_tell_the_same_without_a_launcher(tmp_path):
    with pytest.raises(FileNotFoundError, match="no dump"):
        diagnose(tmp_path)

    def job():
        with diagnosis.record(tmp_path):
            x = torch.ones(8)
            dist.all_reduce(x)
            if dist.get_rank() == 2:
                time.sleep(4)                                       # says nothing, and enters nothing
            else:
                dist.all_gather([torch.ones(8) for _ in range(3)], x)
    with pytest.raises(RankError):
        launch(job, 3, timeout=1.5)
    found = diagnose(tmp_path)
    assert (found.behind, found.different) == ((2,), ()) and "never entered all_gather #2" in found.verdict
    assert json.loads((tmp_path / "rank-0.json").read_text())["entries"]
    assert "ranks 0 and 1 never" not in str(found) and [row.what for row in found.rows] == ["Float [8]"] * 3


def test_two_against_two_are_all_shown():
    error = RankError("x", range(4), "mismatch", {0: "all_reduce #2 of float32 [4]", 1: "broadcast #2 of float32 [4]",
                                                  2: "broadcast #2 of float32 [4]", 3: "all_reduce #2 of float32 [4]"})
    assert diagnose(error).different == (0, 1, 2, 3)
    error = RankError("x", range(3), "mismatch", {r: f"all_reduce #2 of float32 [{4 + (r == 1)}]" for r in range(3)})
    assert diagnose(error).different == (1,) and "float32 [5]" in diagnose(error).verdict
    with pytest.raises(ValueError, match="no notes"):
        diagnose(RankError("x"))


# torchrun

@pytest.mark.elastic
@pytest.mark.timeout(280)
def test_torchrun_restarts_from_our_checkpoint():
    run = elastic(kill=(1, 5), deadline=250)
    assert (run.worlds, run.resumed, run.lost) == ((4, 4), (0, 3), 2)
    assert run.losses == launch(undisturbed_losses, 4, Job(dropout=0.0), 10, timeout=60)[0]


@pytest.mark.elastic
@pytest.mark.timeout(280)
def test_torchrun_without_checkpoints_loses_the_steps():
    run = elastic(kill=(1, 5), checkpoint_every=None, deadline=250)
    assert (run.worlds, run.resumed, run.lost) == ((4, 4), (0, 0), 5)


@pytest.mark.elastic
@pytest.mark.timeout(280)
def test_one_of_two_agents_is_lost():
    run = elastic(agents=2, ranks_per_agent=2, lose_agent=5, deadline=250)
    assert run.worlds[0] == 4 and run.worlds[-1] == 2 and run.resumed[-1] in (3, 6)
    straight = launch(undisturbed_losses, 4, Job(dropout=0.0), 10, timeout=60)[0]
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(run.losses, straight, strict=True))
