"""The same job under torchrun, which restarts ranks by itself: what that saves (a night's sleep) and what not (steps).

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 4 --max-restarts 2 \\
        -m clusterlab.run.elastic --folder runs/a --kill 1:5

torchrun's agent ends all ranks when one dies and starts them again, with another number of ranks if a node is gone. It
keeps no state: where training goes on is for the script to know, so without checkpoints it goes on from step 0.

Source: `torch.distributed.run` reference ("Failures and membership changes kill ALL surviving workers").
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from clusterlab.run import checkpoint
from clusterlab.run.device import default_backend
from clusterlab.run.job import Job, Training


@dataclass(frozen=True)
class Elastic:
    """What torchrun made of it, for each start of the ranks: how many there were and the step they began at."""

    worlds: tuple
    resumed: tuple
    losses: list            # of each step, as computed last
    lost: int               # steps that were done and had to be done again
    stalled: float          # seconds from the loss until the first step after it


def elastic(*, agents=1, ranks_per_agent=4, steps=10, checkpoint_every=3, kill=None, lose_agent=None, deadline=120.0):
    """Train under `agents` torchrun agents, each a node with `ranks_per_agent` ranks; returns `Elastic`.

    `kill=(rank, step)`: that rank is killed once, all start again. `lose_agent=step`: the last agent and its ranks are
    killed at that step, the others go on. `checkpoint_every=None`: no checkpoints, the steps are lost.
    Raises RuntimeError with torchrun's last words if the job does not end well by the `deadline`.
    """
    if lose_agent is not None and agents < 2:
        raise ValueError(f"lose_agent={lose_agent} of agents={agents}: want two agents at least")
    with tempfile.TemporaryDirectory(prefix="clusterlab-") as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"1:{agents}", "--nproc-per-node",
                   str(ranks_per_agent), "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                   f"127.0.0.1:{port}", "--rdzv-id", "clusterlab", "--local-addr", "127.0.0.1",
                   "-m", __spec__.name, "--folder", folder, "--steps", str(steps)]
        command += ["--every", str(checkpoint_every or 0)]
        command += ["--kill", "{}:{}".format(*kill)] if kill else []
        # torchrun of torch 2.13 shares its store with the ranks, which after a kill meet their own old keys in it
        env = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        procs = []
        try:
            for agent in range(agents):
                with open(Path(folder) / f"agent-{agent}", "w") as said:
                    procs.append(subprocess.Popen(command, stdout=said, stderr=said, env=env, start_new_session=True))
                if agent == 0 and agents > 1:
                    _wait_for_port(port, deadline)                  # the first agent is to host the rendezvous
            _attend(procs, folder, lose_agent, deadline)
        finally:
            for proc in procs:
                _end_node(proc, folder)
        return _summary(_events(folder), steps)


def _wait_for_port(port, deadline):
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)


def _attend(procs, folder, lose_agent, deadline):
    """Wait for the agents; take one away on the way, if that is planned."""
    end, living = time.monotonic() + deadline, list(procs)
    while any(proc.poll() is None for proc in living):
        if lose_agent is not None and len(living) == len(procs) and any(
                e["event"] == "step" and e["step"] >= lose_agent - 1 for e in _events(folder)):
            _note(folder, "fault")
            _end_node(living.pop(), folder)
        if time.monotonic() > end:
            raise RuntimeError(f"torchrun still ran after {deadline} s:\n{_said(folder)}")
        time.sleep(0.02)
    if any(proc.returncode for proc in living):
        raise RuntimeError(f"torchrun failed:\n{_said(folder)}")


def _end_node(proc, folder):
    """Kill an agent and the ranks it started, which lead sessions of their own."""
    mine = {event["pid"] for event in _events(folder) if event["event"] == "start" and event["agent"] == proc.pid}
    for pid in [proc.pid, *mine]:
        with contextlib.suppress(OSError):
            # the number of a rank may belong to a stranger by now
            if pid == proc.pid or folder.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    proc.wait()


def _said(folder):
    return "\n".join(path.read_text()[-2000:] for path in sorted(Path(folder).glob("agent-*")))


def _note(folder, event, **words):
    """Append one line; lines of this length are written whole."""
    with open(Path(folder) / "events", "a") as file:
        file.write(json.dumps({"at": time.monotonic(), "event": event, **words}) + "\n")


def _events(folder):
    path = Path(folder) / "events"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _summary(events, steps):
    losses = {e["step"]: e["loss"] for e in events if e["event"] == "step"}
    ready = [e for e in events if e["event"] == "ready"]
    lost, stalled = 0, 0.0
    for fault in (e for e in events if e["event"] == "fault"):
        again = next(e for e in ready if e["at"] > fault["at"])     # rank 0 may note a step after another rank's end
        done = max([0, *(e["step"] + 1 for e in events if e["event"] == "step" and e["at"] < again["at"])])
        first = next(e for e in events if e["event"] == "step" and e["at"] > again["at"])
        lost, stalled = lost + done - again["step"], stalled + first["at"] - fault["at"]
    return Elastic(tuple(e["world"] for e in ready), tuple(e["step"] for e in ready), [losses[s] for s in range(steps)],
                   lost, stalled)


def main(argv=None):
    """What each rank runs under torchrun."""
    parser = argparse.ArgumentParser(prog="clusterlab.run.elastic", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="where checkpoints and events go")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--every", type=int, default=3, help="steps between checkpoints, 0 for none")
    parser.add_argument("--kill", metavar="RANK:STEP", help="this rank kills itself once, after so many steps")
    options = parser.parse_args(argv)
    _note(options.folder, "start", pid=os.getpid(), agent=os.getppid())
    torch.set_num_threads(1)
    dist.init_process_group(default_backend(int(os.environ["LOCAL_WORLD_SIZE"])), timeout=timedelta(seconds=20))
    rank, training = dist.get_rank(), Training(Job(dropout=0.0))
    if options.every and checkpoint.checkpoints(options.folder):
        checkpoint.load(options.folder, training.state)
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    kill = tuple(map(int, options.kill.split(":"))) if options.kill and first else None
    if rank == 0:
        _note(options.folder, "ready", step=training.steps, world=dist.get_world_size())
    while training.steps < options.steps:
        if kill == (rank, training.steps):
            _note(options.folder, "fault")
            os.kill(os.getpid(), signal.SIGKILL)
        loss = training.step()
        if rank == 0:
            _note(options.folder, "step", step=training.steps - 1, loss=loss)
        if options.every and training.steps % options.every == 0:
            checkpoint.save(options.folder, training.steps, training.state)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
