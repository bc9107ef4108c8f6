"""One rank from the inside: join the process group, run the function, report. Meanwhile a thread notes every tenth of a
second where the rank is, on a board the launcher can read when the rank itself can no longer be asked."""
import contextlib
import functools
import itertools
import json
import linecache
import marshal
import mmap
import multiprocessing as mp
import os
import pickle
import random
import signal
import struct
import sys
import threading
import time
import traceback
import types
from collections import ChainMap
from datetime import timedelta
from typing import ClassVar

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist

BEAT = 0.1                                                          # seconds between two signs of life
_PLUMBING = (os.path.dirname(torch.__file__), os.path.join(os.path.dirname(__file__), "links.py"), __file__)
_COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "gather",
                "scatter", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "all_to_all",
                "all_to_all_single", "barrier")
_MESSAGES = ("send", "recv", "batch_isend_irecv", "isend", "irecv")


class Board:
    """A file all processes map. Each rank's slot: time of its last sign of life, whether it has finished, two notes.

    One note comes with the sign of life (BEATEN), the other from the rank's own calls (ENTERED).
    """
    SLOT, BEATEN, ENTERED, _NOTE = 1280, 16, 648, 632

    def __init__(self, root, ranks):
        with open(os.path.join(root, "board"), "a+b") as file:
            if os.fstat(file.fileno()).st_size == 0:                # the launcher comes first and makes it
                file.truncate(ranks * self.SLOT)
            self.map, self.ranks = mmap.mmap(file.fileno(), ranks * self.SLOT), ranks
        self.beats = memoryview(self.map).cast("d")[::self.SLOT // 8]    # written whole: struct would write a 0 first

    def note(self, rank, place, *words):
        raw = json.dumps([w[:250] if isinstance(w, str) else w for w in words], ensure_ascii=False).encode()
        if len(raw) <= self._NOTE - 2:
            struct.pack_into(f"=H{len(raw)}s", self.map, rank * self.SLOT + place, len(raw), raw)

    def read(self, rank, place):
        at = rank * self.SLOT + place
        length, = struct.unpack_from("=H", self.map, at)
        try:
            return json.loads(self.map[at + 2:at + 2 + length])
        except ValueError:                                          # none yet, or half written when the rank was killed
            return None

    def beat(self, rank):
        self.beats[rank] = time.monotonic()

    def last_beat(self, rank) -> float:
        """Time of the last sign of life; 0 before the first."""
        return self.beats[rank]

    def finish(self, rank):
        self.map[rank * self.SLOT + 8] = 1

    def finished(self, rank):
        return self.map[rank * self.SLOT + 8] == 1

    def whereabouts(self, rank):
        """(the last collective or message the rank entered, its line of code then)"""
        seen, text, line = self.read(rank, self.BEATEN) or (0, "none", "")
        noted, name = self.read(rank, self.ENTERED) or (0, "none")
        return (text if seen > noted and text.split(" ")[0] != name.split(" ")[0] else name), line


def _pack_tensor(t):
    """Pickle a plain tensor as its bytes in host memory: six times faster than torch's own way."""
    if type(t) is not torch.Tensor or t.layout != torch.strided or t.requires_grad or t.is_quantized or t.is_complex():
        return t.__reduce_ex__(5)
    return _unpack_tensor, (t.cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), t.dtype, tuple(t.shape))


def _unpack_tensor(raw, dtype, shape):
    return torch.from_numpy(raw).view(dtype).view(shape)


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar = ChainMap({                           # marshal keeps the file name, for tracebacks
        torch.Tensor: _pack_tensor, types.CodeType: lambda code: (marshal.loads, (marshal.dumps(code),)),
    }, cloudpickle.Pickler.dispatch_table)


def dump(value, file) -> None:
    """Pickle anything a notebook can define, by value."""
    _Pickler(file, protocol=5).dump(value)


def rank_main(rank, ranks, root, backend, link, timeout, env):
    """What a rank's process runs. It never returns: destructors of a broken process group may wait for lost peers."""
    os.setsid()                                  # a Ctrl-C meant for the launcher stays there; killing the group gets all
    os.environ.clear()
    os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                      CLUSTERLAB_RANK=str(rank))
    for fd, name in ((1, "out"), (2, "err")):                       # also what C++ prints
        file = os.open(os.path.join(root, f"{rank}.{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, fd)
    sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False, errors="replace") for fd in (1, 2))  # noqa: SIM115
    board = Board(root, ranks)
    threading.Thread(target=_beat, args=(board, rank, threading.get_ident()), daemon=True).start()
    report = {"kind": "ok"}
    try:
        value = _run(rank, ranks, root, backend, link, timeout, board)
        try:
            with open(os.path.join(root, f"{rank}.value"), "wb") as file:
                dump(value, file)
        except BaseException as error:  # noqa: BLE001 (reported)
            report = {"kind": "unpicklable", "what": f"a {type(value).__name__} that cannot be pickled: {error}"}
    except BaseException as error:  # noqa: BLE001 (reported)
        report = {"kind": "exited" if isinstance(error, SystemExit) else "lost" if lost_peer(error) else "raised",
                  "what": "".join(traceback.format_exception_only(error)).strip(), "trace": _trace(error),
                  "line": _line([frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1])}
    sys.stdout.flush()
    sys.stderr.flush()
    report["at"] = time.monotonic()
    _sign(board, rank, threading.get_ident())
    path = os.path.join(root, f"{rank}.report")
    with open(path + ".new", "wb") as file:
        pickle.dump(report, file)
    os.replace(path + ".new", path)                                 # there whole, or not at all
    if report["kind"] == "ok":                                      # stay: others may still wait for what this rank sent
        board.finish(rank)
        while not all(map(board.finished, range(ranks))):
            time.sleep(0.002)
    os._exit(0)


def _run(rank, ranks, root, backend, link, timeout, board):
    torch.set_num_threads(1)
    np.random.seed()                                                # not all ranks the forkserver's numbers
    random.seed()
    if "cpu" not in dist.Backend.backend_capability[backend]:
        torch.accelerator.set_device_index(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "64")
    if link is not None:
        link.enter(root, rank, ranks)
    dist.init_process_group(backend, store=dist.FileStore(os.path.join(root, "store"), ranks), rank=rank,
                            world_size=ranks, timeout=timedelta(seconds=timeout))
    _note_calls(board, rank)
    with open(os.path.join(root, "task"), "rb") as file:
        linecache.cache.update(pickle.load(file))                   # so that tracebacks show the lines of notebook cells
        fn, args, kw = pickle.load(file)
    return fn(*args, **kw)


def _note_calls(board, rank):
    """Have each collective and message note itself on the board as it is entered: a frozen rank can not do so later."""
    number, inside = itertools.count(1), []

    def noting(name, plain):
        @functools.wraps(plain)
        def call(*args, **kw):
            if inside:                                              # a part of another call
                return plain(*args, **kw)
            given = [arg for arg in (*args, *kw.values()) if isinstance(arg, torch.Tensor)]
            text = name if name in _MESSAGES else f"{name} #{next(number)}"
            if name == "batch_isend_irecv":
                text += ": " + ", ".join(f"{op.op.__name__} {op.peer}" for op in args[0])
            elif given:
                text += f" of {str(given[0].dtype).removeprefix('torch.')} {list(given[0].shape)}"
            board.note(rank, Board.ENTERED, time.time_ns(), text)
            inside.append(name)
            try:
                return plain(*args, **kw)
            finally:
                inside.pop()
        return call
    for name in (*_COLLECTIVES, *_MESSAGES):
        if hasattr(dist, name):
            call = noting(name, getattr(dist, name))
            for module in (dist, dist.distributed_c10d):
                setattr(module, name, call)


def lost_peer(error) -> bool:
    """Whether an exception says that another rank failed or is missing, not this one."""
    distributed = tuple(getattr(dist, name) for name in ("DistBackendError", "DistNetworkError", "DistStoreError"))
    return isinstance(error, distributed) or isinstance(error, RuntimeError) and "/gloo/" in str(error)


def _trace(error) -> str:
    """The traceback from the user's function on."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    return "".join(traceback.format_exception(type(error), error, tb))


def _beat(board, rank, main):
    while True:
        if not mp.parent_process().is_alive():                      # the launcher is gone: leave nothing behind
            os.killpg(0, signal.SIGKILL)
        _sign(board, rank, main)
        time.sleep(BEAT)


def _sign(board, rank, thread):
    frame, frames = sys._current_frames().get(thread), []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    board.note(rank, Board.BEATEN, *_flight_record(), _line(frames))
    board.beat(rank)


def _flight_record():
    """(time, name) of the newest entry of torch's flight recorder, which also sees what C++ starts (DDP)."""
    with contextlib.suppress(Exception):                            # a torch without it, or with another format
        from torch._C._distributed_c10d import _dump_fr_trace_json
        last = max(json.loads(_dump_fr_trace_json(True, False))["entries"], key=lambda entry: entry["record_id"])
        return last["time_created_ns"], f"{last['profiling_name'].split(':')[-1]} #{last['collective_seq_id']}"
    return 0, "none"


def _line(frames) -> str:
    """The user's line of code, frames given from the innermost: the first that is not torch's, nor of our sending."""
    found = ""
    for frame in frames:
        code = frame.f_code
        if code is _run.__code__:
            return found
        if not found and not code.co_filename.startswith(_PLUMBING):
            text = linecache.getline(code.co_filename, frame.f_lineno or 0).strip()
            found = f"in {code.co_name}, line {frame.f_lineno}: {text}"
    return ""                                                       # not inside the function: about to start, or done
