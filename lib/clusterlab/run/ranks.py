"""launch(fn, n): run fn on n real torch.distributed ranks, from a notebook cell, a script, a test, or under torchrun.

Ranks are processes forked from a server that has torch loaded already (Linux), so a launch takes tenths of a second.
Functions and results travel by value (cloudpickle): a function of a notebook cell works, a script needs no
``__main__`` guard. When something goes wrong the launcher says which rank it was and what the others were doing, ends
all of them, and the next launch works.
"""
import contextlib
import linecache
import multiprocessing as mp
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import types
from datetime import timedelta
from multiprocessing.connection import wait

import torch
import torch.distributed as dist

from . import worker
from .device import accelerators, default_backend

PRELOAD = ["clusterlab.run.worker", "clusterlab.run.allreduce"]
_GRACE = 0.3                                   # seconds to let other ranks finish their report after one has failed
_LOST_GRACE = 1.0                              # the same when nobody owns up to a failure yet
_SILENT = 1.0                                  # a rank that gives no sign of life for so long at a failure is frozen


class RankError(RuntimeError):
    """A launch failed. `.rank` is the rank to blame (None if no single one), `.ranks` all of them; `.reason` is one of
    "raised", "exited", "killed", "frozen", "mismatch", "timeout", "deadline", "unpicklable"; `.last` = {rank: the last
    collective it entered}; `.detail` the rank's own traceback or the table of all ranks."""

    def __init__(self, message, ranks=(), reason="", last=None, detail=""):
        super().__init__(f"{message}\n{detail}".strip())
        self.ranks, self.reason, self.last, self.detail = tuple(ranks), reason, last or {}, detail
        self.rank = self.ranks[0] if self.ranks and reason not in ("mismatch", "timeout", "deadline") else None


def launch(fn, world_size, *args, backend=None, link=None, timeout=30, deadline=300, **kw):
    """Run fn(*args, **kw) on `world_size` ranks of a real process group; returns [value of each rank].

    `backend` None takes the device's own when each rank has a device, else gloo on the CPU (and says so if there are
    devices, but too few). `link`, e.g. ``Paced(bandwidth=50e6)``, makes the messages of `clusterlab.run.links` travel
    at that speed. `timeout`: seconds a rank waits for another one in a collective; `deadline`: seconds for everything.
    What ranks print is printed here afterwards, in rank order, prefixed. Each rank has one thread.

    Raises RankError when a rank raises, exits, is killed, freezes or waits in vain; ValueError for bad arguments.
    Under ``torchrun`` (see `clusterlab.run.__main__`) this process is already a rank: fn runs here once, in the world
    that exists, whatever `world_size` says, and every rank returns the values of all.

    >>> launch(lambda a: a + 1, 2, 41)
    [42, 42]
    """
    if not callable(fn):
        raise ValueError(f"fn is {fn!r}: want a function")  # noqa: TRY004
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size is {world_size!r}: want a whole number, 1 or more")
    for name, seconds in (("timeout", timeout), ("deadline", deadline)):
        if not 0 < seconds < float("inf"):
            raise ValueError(f"{name} is {seconds!r}: want seconds, above 0")
    if backend not in (None, *dist.Backend.backend_list):
        raise ValueError(f"backend is {backend!r}: want None or one of {', '.join(dist.Backend.backend_list[1:])}")
    if link is not None and backend not in (None, "gloo"):
        raise ValueError(f"backend is {backend!r}: a link shapes gloo only")
    if "CLUSTERLAB_RANK" in os.environ:
        raise RuntimeError("launch was called inside a rank: ranks can not launch ranks")
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _in_this_world(fn, args, kw, backend, link, timeout)
    backend = backend or ("gloo" if link is not None else _default_backend(world_size))
    if "cpu" not in dist.Backend.backend_capability[backend] and world_size > accelerators():
        raise ValueError(f"backend is {backend!r} for {world_size} ranks: it wants a device each, there are {accelerators()}")
    with tempfile.TemporaryDirectory(prefix="clusterlab-", ignore_cleanup_errors=True) as root:
        with open(os.path.join(root, "task"), "wb") as file:
            # the sources of notebook cells go along, for tracebacks
            pickle.dump({name: entry for name, entry in linecache.cache.items() if not os.path.exists(name)}, file)
            try:
                worker.dump((fn, args, kw), file)
            except Exception as error:
                raise TypeError(f"fn or one of its arguments can not be sent to the ranks: {error}") from error
        with link.open(root, world_size) if link is not None else contextlib.nullcontext():
            board, procs = worker.Board(root, world_size), []
            try:
                start(procs, world_size, root, backend, link, timeout)
                reports, why = _watch(procs, board, root, timeout, deadline)
            finally:                                                # also when the cell is interrupted
                stop(procs)
        _echo(root, world_size, quiet=[r for r, report in reports.items() if report["kind"] in ("lost", "died")])
        if why:
            raise _diagnose(why, reports, board, deadline)
        return [value(root, rank, world_size) for rank in range(world_size)]


def _default_backend(world_size):
    backend = default_backend(world_size)
    if backend == "gloo" and accelerators():
        print(f"launch: {accelerators()} device(s) for {world_size} ranks, so gloo on the CPU")
    return backend


def start(procs, world_size, root, backend, link, timeout):
    """Start the ranks and put their processes into `procs`, also those that were started before an error."""
    context = mp.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        context.set_forkserver_preload(PRELOAD)                     # "import torch" is paid once, not once a rank
    elif not procs and not getattr(launch, "told", False):
        launch.told = True
        print(f"launch: {sys.platform} starts each rank from scratch (spawn), a few seconds a launch")
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")          # else multiprocessing runs the script again in each rank
    try:
        for rank in range(world_size):
            procs.append(context.Process(target=worker.rank_main, name=f"rank {rank}", args=(
                rank, world_size, root, backend, link, timeout, os.environ | {"CLUSTERLAB_LAUNCHER": str(os.getpid())})))
            procs[-1].start()
    finally:
        sys.modules["__main__"] = main


def _watch(procs, board, root, timeout, deadline):
    """Wait until all ranks are done or one is known to have failed: ({rank: its report}, why we stopped or None)."""
    began, reports = time.monotonic(), {}
    end, why = began + deadline, "deadline"
    while True:
        living = [rank for rank in range(len(procs)) if rank not in reports and procs[rank].is_alive()]   # look first,
        for rank in set(range(len(procs))) - set(reports):                                             # then collect
            path = os.path.join(root, f"{rank}.report")
            if os.path.exists(path):
                with open(path, "rb") as file:
                    reports[rank] = pickle.load(file)
            elif rank not in living:
                reports[rank] = _death(procs[rank].exitcode, _read(root, rank, "err"))
        kinds = {report["kind"] for report in reports.values()}
        now = time.monotonic()
        if kinds - {"ok"} and why == "deadline":                    # a first failure: hear the others, but not for long
            why, end = "lost", min(end, now + _LOST_GRACE)
        if kinds - {"ok", "lost"} and why == "lost":
            why, end = "failed", min(end, now + _GRACE)
        if len(reports) == len(procs):
            return reports, None if why == "deadline" else why
        if why == "deadline" and any(now - max(board.last_beat(rank), began) > timeout + 0.5 for rank in living):
            return reports, "lost"
        if now >= end:
            return reports, why
        wait([procs[rank].sentinel for rank in living], timeout=min(0.05, end - now))


def stop(procs):
    """End every rank and what it started."""
    for proc in procs:
        if proc.pid:
            with contextlib.suppress(OSError):
                os.killpg(proc.pid, signal.SIGKILL)                 # each rank leads its own group
            proc.kill()
    for proc in procs:
        if proc.pid:
            proc.join()
            proc.close()


def _death(code, stderr):
    """The report of a rank that could not write one. gloo aborts when a message has another size than expected."""
    said = "\n".join(stderr[-5:])
    if code == -signal.SIGABRT and "/gloo/" in said:
        return {"kind": "lost", "at": time.monotonic(), "what": said}
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}, its function unfinished"
    return {"kind": "died", "at": time.monotonic(), "reason": "killed" if code < 0 else "exited", "what": how, "said": said}


def _read(root, rank, name):
    with contextlib.suppress(OSError), open(os.path.join(root, f"{rank}.{name}"), errors="replace") as file:
        return file.read().splitlines()
    return []


def _echo(root, world_size, quiet):
    """Print what the ranks printed; on stderr not what gloo logs about peers that were lost."""
    for name, stream, skip in (("out", sys.stdout, ()), ("err", sys.stderr, quiet)):
        for rank in range(world_size):
            for line in _read(root, rank, name) if rank not in skip else ():
                print(f"[rank {rank}] {line}", file=stream)


def value(root, rank, world_size):
    """What the function of `rank` returned; RankError if it can not be read back."""
    try:
        with open(os.path.join(root, f"{rank}.value"), "rb") as file:
            return pickle.load(file)
    except Exception as error:
        raise RankError(f"the value of rank {rank} of {world_size} can not be read back here: {error!r}", [rank],
                        "unpicklable") from error


def _diagnose(why, reports, board, deadline):
    """The error that names the rank to blame and, where ranks waited for others, what each was doing."""
    n, now, rows, last = board.ranks, time.monotonic(), [], {}
    beats = {rank: board.last_beat(rank) for rank in range(n) if rank not in reports}
    silent = {rank: now - beat for rank, beat in beats.items() if beat and now - beat > _SILENT}
    absent = [rank for rank, beat in beats.items() if not beat]
    for rank in range(n):
        last[rank], line = board.whereabouts(rank)
        report = reports.get(rank, {"kind": "frozen" if rank in silent else "running"})
        state = {"ok": "returned", "lost": "gave up"}.get(report["kind"], report["kind"])
        rows.append(f"  rank {rank}: last entered {last[rank]}; {state} {report.get('line', line)}".rstrip())
    table = "\n".join(rows)
    own = [r for _, r in sorted((r["at"], rank) for rank, r in reports.items() if r["kind"] not in ("ok", "lost"))]
    if own:
        report = reports[own[0]]
        verb = {"raised": "raised ", "exited": "left by ", "unpicklable": "returned ", "died": ""}[report["kind"]]
        detail = "\n".join(filter(None, (report["said"], table))) if report["kind"] == "died" else report.get("trace", "")
        return RankError(f"rank {own[0]} of {n} {verb}{report['what']}", own, report.get("reason", report["kind"]), last,
                         detail)
    if silent:
        names = " and ".join(f"rank {rank}" for rank in silent)
        return RankError(f"{names} of {n} froze: no sign of life for {max(silent.values()):.1f} s", silent, "frozen", last,
                         table)
    if why == "deadline":
        running = [rank for rank in range(n) if rank not in reports]
        return RankError(f"rank(s) {', '.join(map(str, running))} of {n} still ran at the deadline of {deadline} s", running,
                         "deadline", last, table)
    if absent:
        names = " and ".join(f"rank {rank}" for rank in absent)
        return RankError(f"{names} of {n} never started: the machine is too busy for this timeout", absent, "timeout", last, table)
    complaints = {rank: report["what"] for rank, report in reports.items() if report["kind"] == "lost"}
    first = min(complaints, key=lambda r: ("Timed out" not in complaints[r], "Connection" in complaints[r], reports[r]["at"]))
    said = re.sub(r"/\S*/gloo/", "gloo/", complaints[first].split(". This is typically")[0])
    entered = {text if "#" in text else text.split(" ")[0] for text in last.values()}   # peers of messages may differ
    reason, what = ("mismatch", "did not enter the same call") if len(entered) > 1 else ("timeout", "waited in vain")
    return RankError(f"the {n} ranks {what}", range(n), reason, last, f"{table}\nrank {first} gave up first: {said}")


def _in_this_world(fn, args, kw, backend, link, timeout):
    """The same under torchrun: this process is a rank already."""
    if not dist.is_initialized():
        local = int(os.environ.get("LOCAL_RANK", "0"))
        own = accelerators() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")) and link is None
        if own and backend != "gloo":
            torch.accelerator.set_device_index(local)
        backend = backend or (_default_backend(int(os.environ.get("LOCAL_WORLD_SIZE", "1"))) if link is None else "gloo")
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    rank, n = dist.get_rank(), dist.get_world_size()
    with contextlib.ExitStack() as stack:
        if link is not None:
            root = [stack.enter_context(tempfile.TemporaryDirectory()) if rank == 0 else None]
            dist.broadcast_object_list(root)
            if rank == 0:
                stack.enter_context(link.open(root[0], n))
            dist.barrier()
            link.enter(root[0], rank, n)
        values = [None] * n
        dist.all_gather_object(values, fn(*args, **kw))
    return values
