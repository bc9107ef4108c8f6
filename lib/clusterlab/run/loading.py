"""A training loop and its loader on this machine: torch's DataLoader with loads of known length, and copies of a file.

    feed(0.025, 0.060).step                 # in turn: 85 ms
    feed(0.025, 0.060, workers=3).step      # ahead: 25 ms, as long as three workers find something to run on
"""
import io
import itertools
import multiprocessing as mp
import os
import statistics
import sys
import tempfile
import time
import types
import warnings
import zlib
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from clusterlab.run.ranks import PRELOAD

KINDS = ("wait", "compute")
_PACKED = zlib.compress(np.random.default_rng(0).integers(0, 8, 2**15, dtype=np.uint8).tobytes())


@dataclass(frozen=True)
class Fed:
    """What a loop saw of its loader, in seconds."""

    step: float         # median lap, a step: from one step to the next, once the queue has settled
    least: float        # the same of the fastest lap
    waited: float       # median lap: for which a step waited for its batch
    first: float        # until the first batch was there, workers' start included
    load: float         # median that a load took its worker, by the clock
    cpu: float          # median that it kept a core busy
    steps: int          # steps of the whole run, the first ones included
    total: float        # until the last of them was done, workers' start included


class Batches(Dataset):
    """Batches of `size` bytes, each after a load of `load` seconds: waiting, as for storage, or computing, as to decode."""

    def __init__(self, load, kind, size, count):
        self.load, self.kind, self.size, self.count = load, kind, size, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        began, busy = time.perf_counter(), time.thread_time()
        batch = torch.from_numpy(np.full(self.size, index % 251, np.uint8))     # no threads of torch in the loop itself
        if self.kind == "wait":
            time.sleep(max(0.0, self.load - (time.perf_counter() - began)))
        while self.kind == "compute" and time.thread_time() - busy < self.load:
            zlib.decompress(_PACKED)
        return batch, time.perf_counter() - began, time.thread_time() - busy


def feed(step, load, *, workers=0, ahead=2, kind="wait", cores=None, size=2**16, laps=5):
    """Run a loop of steps fed by a DataLoader; returns `Fed`.

    A step waits `step` seconds, as a loop does whose accelerator computes; a load takes `load` seconds: `kind` "wait"
    sleeps, "compute" decompresses until a core has worked so long. `ahead` is torch's `prefetch_factor`, `cores` how
    many of this machine's the workers share (Linux; elsewhere they share all). As many steps as there are workers make
    a lap; the median of `laps` is reported, after the first batches, which were fetched while the workers started.
    Raises ValueError for bad arguments, RuntimeError if a batch is not the one that was asked for.

    >>> feed(0.001, 0.002, laps=1).step >= 0.003
    True
    """
    if min(step, load, workers) < 0 or min(ahead, size, laps) < 1 or (cores is not None and cores < 1):
        raise ValueError(f"step={step}, load={load}, workers={workers}, ahead={ahead}, size={size}, laps={laps}, "
                         f"cores={cores}: seconds and workers from 0, all others from 1 are allowed")
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: known are {', '.join(KINDS)}")
    per_lap = max(1, workers)
    settled = (ahead + 1) * workers + 1                             # the queue filled while the workers started
    batches = Batches(load, kind, size, settled + laps * per_lap)
    began = time.perf_counter()
    loader = _iterate(batches, workers, ahead, cores)
    taken, waits, loads, cpus = [], [], [], []
    for index in range(len(batches)):
        asked = time.perf_counter()
        batch, took, busy = next(loader)
        taken.append(time.perf_counter())
        if batch.numel() != size or batch[0] != index % 251 or batch[-1] != index % 251:
            raise RuntimeError(f"batch {index} is not the one that was asked for")
        waits.append(taken[-1] - asked), loads.append(float(took)), cpus.append(float(busy))
        time.sleep(step)
    total = time.perf_counter() - began
    next(loader, None)                                              # there is none: torch ends the workers
    ends = taken[settled - 1::per_lap]
    lapped = [(b - a) / per_lap for a, b in itertools.pairwise(ends)]
    return Fed(statistics.median(lapped), min(lapped),
               statistics.median(sum(waits[i:i + per_lap]) / per_lap for i in range(settled, len(waits), per_lap)),
               taken[0] - began, statistics.median(loads), statistics.median(cpus), len(batches), total)


def _iterate(batches, workers, ahead, cores):
    if not workers:
        return iter(DataLoader(batches, batch_size=None))
    context = mp.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        context.set_forkserver_preload(PRELOAD)                     # as for ranks: torch is loaded once
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")          # else each worker runs a script again
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")    # more workers than cores: on purpose
            return iter(DataLoader(batches, batch_size=None, num_workers=workers, prefetch_factor=ahead,
                                   multiprocessing_context=context, worker_init_fn=partial(_pin, cores)))
    finally:
        sys.modules["__main__"] = main


def _pin(cores, _):
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def copies(size=2**26, *, repeats=5):
    """Seconds to bring a file of `size` bytes, in the page cache, into a tensor that exists; {way: fastest of repeats}.

    "direct" reads into the tensor's memory: one copy. "bounce" reads into a buffer that is kept and copies from there:
    two. "new" makes a new object each time and copies from it: two, and fresh pages. Raises ValueError for less than a
    byte, RuntimeError if the bytes that arrive are not the file's.

    >>> sorted(copies(4096, repeats=1))
    ['bounce', 'direct', 'new']
    """
    if size < 1 or repeats < 1:
        raise ValueError(f"size={size}, repeats={repeats}: 1 or more is allowed")
    found = {}
    with tempfile.TemporaryDirectory(prefix="clusterlab-") as root:
        path = os.path.join(root, "data")
        sent = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)
        sent.tofile(path)
        tensor, bounce = torch.zeros(size, dtype=torch.uint8), np.zeros(size, np.uint8)
        ways = {"direct": lambda file: file.readinto(tensor.numpy()),
                "bounce": lambda file: (file.readinto(bounce), tensor.copy_(torch.from_numpy(bounce))),
                "new": lambda file: np.copyto(tensor.numpy(), np.frombuffer(file.read(), np.uint8))}
        for way, bring in ways.items():
            took = []
            for _ in range(repeats):
                tensor.zero_()
                with open(path, "rb", buffering=0) as file:
                    start = time.perf_counter()
                    bring(file)
                    took.append(time.perf_counter() - start)
            if not np.array_equal(tensor.numpy(), sent):
                raise RuntimeError(f"{way}: the bytes in the tensor are not the file's")
            found[way] = min(took)
    return found


def decode_seconds(size=115_000, *, repeats=20):
    """(bytes, CPU seconds) of a JPEG image near `size` bytes, decoded, cropped and scaled to 224 × 224 by one core.

    The picture is blurred noise of 500 × 375 pixels, saved at the quality that comes nearest. The median of `repeats`.

    >>> size, seconds = decode_seconds(repeats=1)
    >>> 60_000 < size < 230_000 and seconds > 0
    True
    """
    from PIL import Image
    noise = np.random.default_rng(2).integers(0, 256, (94, 125, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC)

    def saved(quality):
        file = io.BytesIO()
        picture.save(file, "jpeg", quality=quality)
        return file.getvalue()

    image = min(map(saved, range(50, 100, 5)), key=lambda data: abs(len(data) - size))
    took = []
    for _ in range(repeats):
        start = time.thread_time()
        ready = Image.open(io.BytesIO(image)).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR, (40, 0, 415, 375))
        np.asarray(ready).copy()
        took.append(time.thread_time() - start)
    return len(image), statistics.median(took)
