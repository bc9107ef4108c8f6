"""Checkpoints: the same bits back, on any number of ranks, from storage or memory; nothing that is damaged is used."""

import itertools
import json
import os
import random
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from clusterlab.run import RankError, checkpoint, launch, snapshot
from clusterlab.run.background import Background
from clusterlab.run.checkpoint import CheckpointError, check, checkpoints, latest, load, read_manifest, save
from clusterlab.run.checkpointing import chain, costs
from clusterlab.run.job import Job, Loader, Training
from clusterlab.run.peers import Peers, _newest_complete
from hypothesis import given, settings
from hypothesis import strategies as st

cloudpickle.register_pickle_by_value(sys.modules[__name__])         # ranks need not import pytest
pytestmark = [pytest.mark.timeout(120), pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]
JOB = Job(strategy="fsdp")


def whole(training):
    """{name: the whole tensor} of model and optimizer, put together by DTensor, not by a checkpoint."""
    tensors = snapshot.flat(snapshot.snapshot(0, training.state).tensors)
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).detach().clone() for name, t in tensors.items()}


def write_two(root, job, steps=7):
    """Train; save after 2 and 4 steps. Returns the losses, the whole state after 4 steps, and what was saved."""
    training, losses, saved = Training(job), [], []
    for step in range(1, steps + 1):
        losses.append(training.step())
        if step in (2, 4):
            saved.append(save(root, step, training.state, verify=step == 4))
            state = whole(training)
    return losses, state, saved


def resume(root, job, steps):
    """Load and go on: what was loaded, the whole state then, and the losses."""
    training = Training(job)
    loaded = load(root, training.state)
    state = whole(training)
    return loaded, state, [training.step() for _ in range(training.steps, steps)]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A folder with two checkpoints of four ranks, and what the run that wrote them knows."""
    root = tmp_path_factory.mktemp("two")
    return root, launch(write_two, 4, str(root), JOB, timeout=60)


@pytest.fixture
def copy(two, tmp_path):
    """The same folder, to damage."""
    shutil.copytree(two[0], tmp_path / "copy")
    return tmp_path / "copy"


# the same bits back

def test_the_same_ranks_resume_with_the_same_bits(two):
    root, written = two
    losses, state, _ = written[0]
    for loaded, back, rest in launch(resume, 4, str(root), JOB, 7, timeout=60):
        assert (loaded.step, loaded.world_size, loaded.rng, loaded.refused) == (4, 4, "restored", ())
        assert same(back, state) and rest == losses[4:]


@pytest.mark.parametrize("ranks", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_other_numbers_of_ranks_get_the_same_state(two, ranks):
    root, written = two                                             # on 3 ranks no shard is as long as it was on 4
    answers = launch(resume, ranks, str(root), JOB, 5, timeout=60)
    assert all(same(back, written[0][1]) for _, back, _ in answers)
    assert {(loaded.step, loaded.rng) for loaded, *_ in answers} == {(4, "reseeded")}


@pytest.mark.slow
def test_four_then_three_then_eight_then_four():
    run = chain([(4, 2), (3, 4), (8, 6), (4, 8)])
    assert run.losses[:2] == run.reference[:2] and run.losses != run.reference
    assert run.deviation < 1e-6                                     # sums in another order
    with pytest.raises(ValueError, match="later step"):
        chain([(2, 3), (2, 3)])


def test_replicas_resume_with_the_same_bits_and_each_tensor_is_written_once(tmp_path):
    job = Job(strategy="ddp")
    losses, state, saved = launch(write_two, 4, str(tmp_path), job, timeout=60)[0]
    _, back, rest = launch(resume, 4, str(tmp_path), job, 7, timeout=60)[0]
    assert same(back, state) and rest == losses[4:]
    numbers = sum(t.numel() for t in back.values())
    assert saved[0].state == 4 * numbers                            # FP32, replicas or not
    assert numbers == 3 * job.shape.parameters() + sum("step" in name for name in back)


# what is written

def test_shards_tile_each_tensor_exactly(two):
    manifest = check(checkpoints(two[0])[0])
    assert (manifest["step"], manifest["world_size"]) == (4, 4)
    assert manifest["parts"]["loader"] == {"epoch": 0, "position": 32}
    uneven = 0
    for name, entry in manifest["tensors"].items():
        count = np.zeros(entry["shape"], int)
        for shard in entry["shards"]:
            count[tuple(slice(o, o + s) for o, s in zip(shard["offsets"], shard["sizes"], strict=True))] += 1
        assert (count == 1).all(), name
        uneven += len(entry["shards"]) > 1
    assert uneven > 10 and sum(name.startswith("model.") for name in manifest["tensors"]) == 21


def test_plain_numbers_come_back(two):
    saved = [answer[2][1] for answer in two[1]]
    files = {f.name: f.stat().st_size for f in checkpoints(two[0])[0].iterdir()}
    del files["manifest.json"]
    assert {s.total for s in saved} == {sum(files.values())} == {sum(s.written for s in saved)}
    assert len({s.path for s in saved}) == 1 and all(0 < s.seconds <= s.blocked for s in saved)


def test_everything_is_on_disk_before_it_gets_its_name(tmp_path):
    def job():
        order, fsync, rename = [], os.fsync, Path.rename
        os.fsync = lambda fd: (order.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name), fsync(fd))
        Path.rename = lambda path, to: (order.append("rename"), rename(path, to))[1]
        save(tmp_path, 3, Training(JOB).state)
        return order
    order, = launch(job, 1, timeout=60)
    at = len(order) - 1 - order[::-1].index("rename")
    files = {path.name for path in latest(tmp_path).iterdir()}
    assert files - {".metadata"} | {".metadata.tmp"} <= set(order[:at - 1])         # DCP renames that one
    assert order[at - 1:] == ["step-00000003.partial", "rename", tmp_path.name]


def test_old_ones_go_and_none_is_overwritten(tmp_path):
    def job():
        training = Training(JOB)
        for step in (1, 2, 2, 3, 3):
            save(tmp_path, step, training.state, keep=3)
    launch(job, 2, timeout=60)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000003.2", "step-00000003", "step-00000002.2"]
    assert latest(tmp_path).name == "step-00000003.2"
    assert len(os.listdir(tmp_path)) == 3                           # and no .partial


# what is damaged is refused, with words

def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("damage, name, words", [
    (cut, "__1_0.distcp", "expected .* bytes, found"),
    (flip, "__2_0.distcp", "expected sha256 .* found"),
    (flip, ".metadata", "expected sha256"),
    (flip, "rng-3.json", "expected sha256"),
    (lambda path: path.unlink(), "__0_0.distcp", "found no file"),
    (lambda path: path.unlink(), "manifest.json", "found none"),
    (cut, "manifest.json", "expected a manifest"),
    (lambda path: path.write_text(""), "manifest.json", "0 bytes"),
    (lambda path: path.write_text('{"manifest": 3, "sha256": 4}'), "manifest.json", "expected a manifest"),
    (lambda path: path.write_text(path.read_text().replace('\\": 32', '\\": 4')), "manifest.json", "sha256"),
])
def test_damage_is_named_and_the_older_one_is_the_latest(copy, damage, name, words):
    newest, older = checkpoints(copy)
    before = (newest / name).read_bytes()
    damage(newest / name)
    assert not (newest / name).exists() or (newest / name).read_bytes() != before
    with pytest.raises(CheckpointError, match=f"{name}: .*{words}|{name}: {words}"):
        check(newest)
    assert latest(copy) == older


def test_another_format_is_refused(copy):
    path = checkpoints(copy)[0] / "manifest.json"
    text = json.dumps(read_manifest(path.parent) | {"format": 99})
    path.write_text(json.dumps({"sha256": checkpoint._sha256(text.encode()), "manifest": text}))
    with pytest.raises(CheckpointError, match="expected format 1, found 99"):
        check(path.parent)


def test_ranks_agree_on_the_newest_good_one(copy):
    newest, older = checkpoints(copy)
    shutil.copytree(newest, copy / "step-00000009.partial")         # half written: has no name yet
    (copy / "step-00000006").mkdir()                                # a name, nothing in it
    cut(newest / "__3_0.distcp")

    def job():
        training = Training(JOB)
        first = load(copy, training.state)
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(older)
        dist.barrier()
        try:
            load(copy, training.state)
        except CheckpointError as error:
            return first, str(error)
    for first, error in launch(job, 4, timeout=60):
        assert first.step == 2 and len(first.refused) == 2
        assert "step-00000006/manifest.json" in first.refused[0] and "__3_0.distcp" in first.refused[1]
        assert "expected a good checkpoint, found 2 bad" in error


def test_nothing_to_load_and_nowhere_to_save_are_said(tmp_path):
    (tmp_path / "file").write_text("")

    def job(fn, *args):
        fn(*args, Training(JOB).state)
    for call, words in (((load, tmp_path / "none"), "none: expected a good checkpoint, found none"),
                        ((save, tmp_path / "file", 1), "can not start: rank 0: .*Not a directory")):
        with pytest.raises(RankError, match=words):
            launch(job, 2, *call, timeout=60)


def test_another_model_is_refused(two):
    other = Job(strategy="fsdp", shape=replace(JOB.shape, hidden=64))
    with pytest.raises(RankError, match="does not fit this model"):
        launch(resume, 2, str(two[0]), other, 5, timeout=60)


def test_a_test_restore_finds_what_sums_cannot(tmp_path):
    """A byte that goes wrong on the way to the file is in the sum; only reading back and comparing sees it."""
    def job():
        plain = checkpoint.dcp.save

        def bad(*args, **kw):
            plain(*args, **kw)
            if dist.get_rank() == 1:
                path, = kw["storage_writer"].path.glob("__1_0*")
                numbers = snapshot.local(training.model.head.weight).detach().numpy().tobytes()
                flipped = bytes([numbers[0] ^ 1]) + numbers[1:]
                path.write_bytes(path.read_bytes().replace(numbers, flipped))
            dist.barrier()
        training = Training(JOB)
        save(tmp_path, 1, training.state)
        checkpoint.dcp.save = bad
        try:
            save(tmp_path, 2, training.state, verify=True)
        except CheckpointError as error:
            found = str(error), [path.name for path in checkpoints(tmp_path)]
        dist.barrier()
        save(tmp_path, 2, training.state)                           # looks good, and is not
        return found
    for error, left in launch(job, 2, timeout=60):
        assert "test restore failed: rank 1: tensor model.head.weight reads back with other bits" in error
        assert left == ["step-00000001"]
    assert latest(tmp_path).name == "step-00000002"


# while training goes on

def test_in_the_background_the_state_of_the_snapshot_is_written(tmp_path):
    def job():
        training, plain, ahead = Training(JOB), checkpoint.dcp.save, threading.Event()

        def slow(*args, **kw):
            ahead.wait(30)                                          # until training has taken other steps
            return plain(*args, **kw)
        checkpoint.dcp.save = slow
        writer, losses = Background(tmp_path), []
        for _ in range(5):
            losses.append(training.step())
            if training.steps == 2:
                writer.save(2, training.state)
                state = whole(training)
        under_way = checkpoints(tmp_path) == []
        dist.barrier()
        ahead.set()
        return losses, state, under_way, writer.wait()
    answers = launch(job, 3, timeout=60)
    losses, state, _, saved = answers[0]
    assert all(under_way for _, _, under_way, _ in answers) and saved.blocked < saved.seconds
    loaded, back, rest = launch(resume, 3, str(tmp_path), JOB, 5, timeout=60)[0]
    assert loaded.step == 2 and same(back, state) and rest == losses[2:]


@pytest.mark.slow
def test_what_fails_in_the_background_is_raised_by_wait(tmp_path):
    (tmp_path / "file").write_text("")

    def job():
        writer = Background(tmp_path / "file")
        writer.save(1, Training(JOB).state)
        writer.wait()
    with pytest.raises(RankError, match="can not start"):
        launch(job, 2, timeout=60)


# in memory

@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("ddp", marks=pytest.mark.slow)])
def test_a_newcomer_gets_the_state_of_the_lost_rank_from_its_neighbour(strategy):
    def job():
        training, peers, losses = Training(Job(strategy=strategy)), Peers(), []
        for _ in range(5):
            losses.append(training.step())
            if training.steps == 3:
                copied = peers.save(3, training.state)
        if dist.get_rank() == 2:
            peers = Peers()                                         # as if this were another machine
        training = Training(Job(strategy=strategy))
        recovered = peers.recover(training.state)
        return losses, [training.step() for _ in range(2)], recovered, copied
    for losses, rest, recovered, copied in launch(job, 4, timeout=60):
        assert rest == losses[3:]                                   # dropout too: the lost rank's generator lives on
        assert (recovered.step, recovered.rng) == (3, "restored")
        assert recovered.received == 4 * (3 * Job().shape.parameters() + 21)
        quarter = recovered.received / 4                            # replicas have no need of copies
        assert quarter < copied.sent < 2 * quarter if strategy == "fsdp" else copied.sent < quarter


def bids(ring, steps, *, gone=(), newest_missing=(), replicated=False):
    """What survivors of a ring would offer."""
    left = [me for me in range(ring) if me not in gone]
    have = {me: [s for s in steps if not (me in newest_missing and s == max(steps))] for me in left}
    return [(me, ring, have[me], have[me], replicated) for me in left]


@pytest.mark.slow
def test_costs_are_plain_numbers():
    state, rows = costs(2, repeats=1)
    assert state == 4 * (3 * JOB.shape.parameters() + 21)
    assert [row.kind for row in rows] == ["storage", "storage, verified", "background", "memory", "load"]
    assert all(row.bytes > state / 2 and row.blocked > 0 for row in rows)
    assert [row.kind for row in rows if row.behind] == ["background"]


@given(st.integers(2, 9), st.data())
@settings(deadline=None)
def test_memory_is_complete_unless_two_neighbours_are_lost(ring, data):
    gone = data.draw(st.sets(st.integers(0, ring - 1), max_size=ring - 1))
    neighbours = any((old + 1) % ring in gone for old in gone)
    offered = bids(ring, [3, 6], gone=gone)
    if neighbours:
        with pytest.raises(CheckpointError, match="lost with the neighbour"):
            _newest_complete(offered, ring)
    else:
        step, sources = _newest_complete(offered, ring)
        assert step == 6 and set(sources) == set(range(ring))
        for old, (rank, is_copy) in sources.items():
            assert offered[rank][0] == (old + 1) % ring if is_copy else offered[rank][0] == old
    step, sources = _newest_complete(bids(ring, [3, 6], gone=gone, replicated=True), ring)
    assert step == 6 and sources


def test_a_copy_that_not_all_ranks_have_is_not_used():
    step, _ = _newest_complete(bids(4, [3, 6], gone=[1], newest_missing=[3]), 4)
    assert step == 6                                                # rank 0 has a copy of rank 3's
    step, _ = _newest_complete(bids(4, [3, 6], gone=[1], newest_missing=[2]), 4)
    assert step == 3                                                # rank 1's copy of step 6 never came


# the parts that are easily forgotten

def test_generators_go_on_where_they_were():
    def draw():
        return random.random(), np.random.random(), np.random.normal(), torch.rand(3).tolist(), random.gauss(0, 1)
    np.random.normal()                                              # so that a second half of a pair is waiting
    random.gauss(0, 1)
    state = json.loads(json.dumps(snapshot.rng_state()))
    first = draw()
    draw()
    snapshot.set_rng_state(state)
    assert draw() == first


@given(st.integers(1, 20), st.integers(1, 20), st.integers(8, 30))
@settings(max_examples=30, deadline=None)
def test_the_loader_resumes_anywhere_and_shows_each_sample_once_an_epoch(before, after, samples):
    job = Job(samples=samples, batch=8)
    one, two = Loader(job), Loader(job)
    batches = [next(one) for _ in range(before + after)]
    for _ in range(before):
        next(two)
    three = Loader(job)
    three.load_state_dict(json.loads(json.dumps(two.state_dict())))
    for (x, y), (u, v) in zip(batches[before:], (next(three) for _ in range(after)), strict=True):
        assert torch.equal(x, u) and torch.equal(y, v) and torch.equal(x[:, 1:], y[:, :-1])
    rows = [tuple(row.tolist()) for x, _ in batches[:samples // 8] for row in x]
    known = [tuple(row[:-1].tolist()) for row in Loader(job).text]
    assert all(rows.count(row) <= known.count(row) for row in rows)


@pytest.mark.parametrize("ranks, batch, micro", list(itertools.product((1, 2, 3, 5, 8), (8, 9), (1, 2, 3))))
def test_every_rank_has_a_sequence_in_each_micro_batch_or_the_job_is_refused(ranks, batch, micro):
    job = Job(batch=batch, micro_batch=micro)
    pieces = [[len(p) for p in s.tensor_split(job.pieces(ranks))] for s in torch.arange(batch).tensor_split(ranks)]
    if min(map(min, pieces)) == 0:
        with pytest.raises(ValueError, match="leaves a rank without a sequence"):
            job.check(ranks)
    else:
        job.check(ranks)
        assert max(map(max, pieces)) <= micro


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="strategy='dpp'"):
        Job(strategy="dpp").check(2)
    with pytest.raises(ValueError, match="samples=3"):
        Job(samples=3).check(2)
    with pytest.raises(RankError, match="keep=0"):
        launch(lambda: save("never", 1, Training(JOB).state, keep=0), 1, timeout=60)
