"""launch: values, prints and devices; each way in which a rank can fail; what is left behind (nothing)."""
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from clusterlab.run import RankError, allreduce, launch
from clusterlab.run import device as this_device

cloudpickle.register_pickle_by_value(sys.modules[__name__])         # ranks need not import pytest
SLACK = 3.0                                                         # the machine may be busy


def processes():
    """{pid: parent's pid} of all that run; zombies are gone already."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found[int(pid)] = int(parent)
    return found


@pytest.fixture(autouse=True)
def launch_works_again(nothing_left):
    """After each test another launch works, and then no rank lives."""
    yield
    assert launch(dist.get_rank, 2, timeout=20) == [0, 1]


def failure(fn, *args, ranks=4, within=2.0, **kw):
    """The RankError of a launch, which must come in time."""
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(fn, ranks, *args, **kw)
    assert time.monotonic() - began < within + SLACK
    return caught.value


# what works

def test_values_come_back_in_rank_order_with_arguments():
    def job(a, *, b):
        total = torch.tensor(dist.get_rank())
        dist.all_reduce(total)
        return dist.get_rank(), dist.get_world_size(), total.item(), a + b
    assert launch(job, 3, 1, b=2) == [(0, 3, 3, 3), (1, 3, 3, 3), (2, 3, 3, 3)]


def test_one_rank_is_a_world():
    assert launch(lambda: (dist.get_world_size(), dist.get_backend()), 1) == [(1, "gloo")]


def test_prints_come_in_rank_order_prefixed(capfd):
    def job():
        time.sleep(0.2 * (2 - dist.get_rank()))                     # the last rank prints first
        print("first\nsecond")
        os.write(1, b"not through Python\n")
    launch(job, 3)
    lines = ["first", "second", "not through Python"]
    assert capfd.readouterr().out.splitlines() == [f"[rank {r}] {line}" for r in range(3) for line in lines]


def test_prints_before_a_failure_are_shown(capfd):
    def job():
        print("before")
        raise ValueError
    failure(job, ranks=1)
    assert capfd.readouterr().out == "[rank 0] before\n"


@pytest.mark.parametrize("value", [torch.arange(6).view(2, 3).t(), torch.ones((), dtype=torch.bfloat16), torch.zeros(0, 3),
                                   torch.tensor([1 + 2j]), torch.ones(2, requires_grad=True).detach(), [torch.ones(1), torch.ones(1)]])
def test_tensors_travel_both_ways_unchanged(value):
    back, = launch(lambda x: x, 1, value)
    for got, want in zip(back, value) if isinstance(value, list) else [(back, value)]:
        assert torch.equal(got, want) and got.dtype == want.dtype and got.shape == want.shape
        got.zero_()                                                 # not read-only


def test_what_a_notebook_defines_travels():
    class Box:
        def __init__(self, value):
            self.value = value
    box, = launch(lambda given: Box(given.value + 1), 1, Box(1))
    assert isinstance(box, Box) and box.value == 2


def test_environment_and_folder_are_those_of_the_launch(monkeypatch, tmp_path):
    launch(dist.get_rank, 1)                                        # the fork server has older ones
    monkeypatch.setenv("CLUSTERLAB_TEST", "here")
    monkeypatch.chdir(tmp_path)
    assert launch(lambda: (os.environ["CLUSTERLAB_TEST"], os.getcwd()), 1) == [("here", str(tmp_path))]
    monkeypatch.delenv("CLUSTERLAB_TEST")
    assert launch(lambda: os.environ.get("CLUSTERLAB_TEST"), 1) == [None]


def test_ranks_draw_different_random_numbers_unless_seeded():
    import random

    import numpy as np
    free = launch(lambda: (random.random(), np.random.random()), 2)
    assert free[0][0] != free[1][0] and free[0][1] != free[1][1]
    seeded = launch(lambda: torch.manual_seed(1).seed() and torch.rand(1).item(), 2)
    assert len(seeded) == 2


def test_each_rank_has_one_thread_and_the_device_of_its_backend():
    assert launch(lambda: (torch.get_num_threads(), this_device().type), 2, backend="gloo") == [(1, "cpu")] * 2


@pytest.mark.slow
def test_device_is_callable_whatever_was_imported_first():
    code = "import clusterlab.run.device\nfrom clusterlab.run import device, synchronize\nsynchronize(); print(device().type)"
    for text in (code, code.split("\n", 1)[1]):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        assert done.stdout.strip() in ("cpu", "cuda", "xpu", "mps")


@pytest.mark.parametrize("given, word", [
    ({"world_size": 0}, "world_size"), ({"world_size": 2.0}, "world_size"), ({"world_size": True}, "world_size"),
    ({"timeout": 0}, "timeout"), ({"deadline": -1}, "deadline"), ({"fn": 3}, "fn"), ({"backend": "nccI"}, "backend")])
def test_bad_arguments_are_named(given, word):
    with pytest.raises((ValueError, TypeError), match=word):
        launch(**({"fn": dist.get_rank, "world_size": 2} | given))


def test_an_argument_that_can_not_be_sent_is_said_to_be_one():
    with pytest.raises(TypeError, match="argument.*generator"):
        launch(print, 1, (x for x in ()))


# what fails: the right rank, in time, with its own words

def test_a_rank_that_raises():
    def job():
        dist.barrier()
        if dist.get_rank() == 2:
            raise KeyError("boom")
        dist.barrier()
    error = failure(job, timeout=30)
    assert (error.rank, error.reason) == (2, "raised")
    assert "rank 2 of 4" in str(error) and "KeyError: 'boom'" in str(error)
    assert 'raise KeyError("boom")' in error.detail and "worker.py" not in error.detail      # its own lines, not ours


def test_a_rank_that_raises_while_the_others_compute():
    def job():
        if dist.get_rank() == 1:
            raise ValueError("boom")
        time.sleep(60)
    assert failure(job).rank == 1


@pytest.mark.parametrize("leave, reason, word", [
    (lambda: sys.exit(3), "exited", "3"), (lambda: os._exit(7), "exited", "code 7"), (lambda: os._exit(0), "exited", "code 0"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed", "SIGKILL"), (lambda: os.abort(), "killed", "SIGABRT")])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_leaves(leave, reason, word, rank):
    def job():
        dist.all_reduce(torch.ones(2))
        if dist.get_rank() == rank:
            leave()
        allreduce.ring(torch.ones(100))
    error = failure(job, timeout=30)
    assert (error.rank, error.ranks, error.reason) == (rank, (rank,), reason)
    assert word in str(error)


@pytest.mark.parametrize("wait", [
    lambda: dist.broadcast(torch.ones(4), 0), lambda: allreduce.ring(torch.ones(100)), lambda: None])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_frozen_rank_is_named_not_one_that_waits_for_it(wait, rank):
    def job():
        dist.all_reduce(torch.ones(3))
        if dist.get_rank() == rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        wait()
    error = failure(job, timeout=2, within=2 + 2.0)
    assert (error.rank, error.ranks, error.reason) == (rank, (rank,), "frozen")
    assert error.last[rank].startswith("all_reduce #1 of float32 [3]")


def test_in_a_mismatched_collective_each_rank_is_named_with_the_last_it_entered():
    def job():
        dist.barrier()
        rank, x = dist.get_rank(), torch.ones(4)
        if rank == 1:
            dist.broadcast(x, 0)
        elif rank != 2:
            dist.all_reduce(x)
    error = failure(job, timeout=2, within=2 + 2.0)
    assert (error.rank, error.ranks, error.reason) == (None, (0, 1, 2, 3), "mismatch")
    assert [error.last[r].split(" of ")[0] for r in range(4)] == ["all_reduce #2", "broadcast #2", "barrier #1", "all_reduce #2"]
    for rank in range(4):
        assert f"rank {rank}: last entered {error.last[rank]}" in str(error)
    assert re.search("rank 2: .*returned", str(error)) and "dist.all_reduce(x)" in str(error)


def test_a_rank_that_never_comes_is_shown_at_its_line():
    def job():
        if dist.get_rank() == 1:
            while True:
                sum(range(1000))
        dist.recv(torch.ones(1), 1)
    error = failure(job, ranks=2, timeout=2, within=2 + 2.0)
    assert re.search("rank 1: last entered none; running in job, line .*(while|sum)", str(error))
    assert re.search(r"rank 0: last entered recv .*gave up in job, .*dist.recv", str(error))


def test_messages_of_different_sizes_are_a_mismatch():
    error = failure(lambda: dist.all_reduce(torch.ones(4 if dist.get_rank() else 400_000)), timeout=5)
    assert error.reason == "mismatch" and error.last[0] != error.last[1]


def test_the_deadline_names_those_that_still_run():
    def job():
        time.sleep(60 if dist.get_rank() == 1 else 0)
    error = failure(job, ranks=2, deadline=2, within=2)
    assert (error.ranks, error.reason) == ((1,), "deadline") and "time.sleep" in str(error)


def test_a_value_that_can_not_be_sent_names_the_rank():
    error = failure(lambda: iter_ if (iter_ := (x for x in ())) and dist.get_rank() == 1 else 0, ranks=2)
    assert (error.rank, error.reason) == (1, "unpicklable") and "generator" in str(error)


def test_what_a_rank_started_ends_with_it():
    def job():
        child = subprocess.Popen(["sleep", "60"])
        if dist.get_rank() == 1:
            raise ValueError(child.pid)
        time.sleep(60)
    error = failure(job, ranks=2)
    child = int(re.search(r"ValueError: (\d+)", str(error)).group(1))
    assert child not in processes()


def test_no_launch_inside_a_rank():
    def job():
        from clusterlab.run import launch
        launch(dist.get_rank, 2)
    assert "can not launch" in str(failure(job, ranks=1))


def test_an_interrupt_ends_the_ranks_and_is_passed_on():
    def job(parent):
        os.kill(parent, signal.SIGINT)
        time.sleep(60)
    with pytest.raises(KeyboardInterrupt):
        launch(job, 2, os.getpid())


# other ways in

def run_script(tmp_path, text, *command, timeout=100, **env):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return subprocess.run([*(command or [sys.executable]), str(path)], capture_output=True, text=True, timeout=timeout,
                          cwd=tmp_path, env=os.environ | env, check=False)


@pytest.mark.slow
def test_a_script_needs_no_main_guard_and_runs_once(tmp_path):
    done = run_script(tmp_path, """
        print("script")
        import torch.distributed as dist
        from clusterlab.run import launch
        def helper(): return dist.get_rank() * 10
        print(launch(lambda: helper(), 3))
        """)
    assert (done.stdout, done.stderr, done.returncode) == ("script\n[0, 10, 20]\n", "", 0)


@pytest.mark.slow
def test_ranks_end_when_their_launcher_is_killed(tmp_path):
    done = run_script(tmp_path, """
        import os, signal, time
        from clusterlab.run import launch
        def job(parent):
            print(os.getpid(), file=open(f"{os.environ['RANK']}.pid", "w"), flush=True)
            time.sleep(0.5)
            if os.environ["RANK"] == "0": os.kill(parent, signal.SIGKILL)
            time.sleep(60)
        launch(job, 2, os.getpid())
        """)
    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + 2 + SLACK
    pids = {int((tmp_path / f"{rank}.pid").read_text()) for rank in range(2)}
    while pids & set(processes()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not pids & set(processes())


JOB = """
    import torch, torch.distributed as dist
    from clusterlab.run import Paced, allreduce, counted, launch
    def job(size=8):
        x = torch.ones(size)
        with counted() as wire:
            allreduce.ring(x)
        return x.sum().item(), wire.bytes
    """


@pytest.mark.slow
def test_the_same_function_runs_from_a_shell(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(JOB))
    done = subprocess.run([sys.executable, "-m", "clusterlab.run", "--ranks", "2", "script:job", "size=4"], cwd=tmp_path,
                          capture_output=True, text=True, check=True)
    assert done.stdout == "[rank 0] (8.0, 16)\n[rank 1] (8.0, 16)\n"


@pytest.mark.elastic
def test_the_same_function_runs_under_torchrun(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    (tmp_path / "script.py").write_text(textwrap.dedent(JOB))
    done = subprocess.run([*torchrun, "-m", "clusterlab.run", "script:job", "size=4"], cwd=tmp_path, capture_output=True,
                          text=True, check=True)
    assert done.stdout == "[rank 0] (8.0, 16)\n[rank 1] (8.0, 16)\n"
    done = run_script(tmp_path, JOB + """
    values = launch(job, 7, link=Paced(bandwidth=1e6))
    again = launch(dist.get_rank, 7)
    if dist.get_rank() == 0: print(values, again)
    """, *torchrun)
    assert done.stdout == "[(16.0, 32), (16.0, 32)] [0, 1]\n", done.stderr


@pytest.mark.slow
def test_in_a_notebook_the_kernel_survives_failure_and_interrupt():
    from jupyter_client.manager import start_new_kernel
    manager, client = start_new_kernel(kernel_name="python3")

    def cell(code, interrupt_after=None):
        client.execute(textwrap.dedent(code))
        out, end = [], time.monotonic() + 60
        while time.monotonic() < end:
            if interrupt_after and any("go" in text for _, text in out):
                time.sleep(interrupt_after)
                manager.interrupt_kernel()
                interrupt_after = None
            try:
                message = client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                out.append((content["name"], content["text"]))
            elif kind == "execute_result":
                out.append(("value", content["data"]["text/plain"]))
            elif kind == "error":
                out.append((content["ename"], re.sub(r"\x1b\[[0-9;]*m", "", content["evalue"])))
            elif kind == "status" and content["execution_state"] == "idle" and out:
                return out
        raise AssertionError(f"no answer: {out}")

    try:
        assert cell("""
            import os, signal, time, torch.distributed as dist
            from clusterlab.run import launch
            def job(how):
                print("hello")
                if dist.get_rank() == 1: how()
                return dist.get_rank()
            launch(job, 2, lambda: None)
            """) == [("stdout", "[rank 0] hello\n[rank 1] hello\n"), ("value", "[0, 1]")]
        kind, text = cell("launch(job, 2, lambda: 1 / 0)")[-1]
        assert kind == "RankError" and "rank 1 of 2 raised ZeroDivisionError" in text
        assert "if dist.get_rank() == 1: how()" in text             # the line of the cell
        assert cell("launch(job, 2, lambda: os.kill(os.getpid(), signal.SIGKILL))")[-1][0] == "RankError"
        began = time.monotonic()
        assert cell("print('go', flush=True); launch(job, 2, lambda: time.sleep(60))", interrupt_after=1)[-1][0] == \
            "KeyboardInterrupt"
        assert time.monotonic() - began < 1 + 2 + SLACK
        assert cell("launch(job, 2, lambda: None)")[-1] == ("value", "[0, 1]")
        kernel = manager.provisioner.process.pid
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert kernel not in processes()
