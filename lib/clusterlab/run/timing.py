"""Seconds of a call on a device, with their spread: events on an accelerator, the wall clock on a CPU."""
import contextlib
import time
from statistics import median

import torch

from clusterlab.run.device import device

# What makes a start and an end on a device's own clock; `torch.cuda` is ROCm's name too.
EVENTS = {"cuda": lambda: torch.cuda.Event(enable_timing=True),
          "xpu": lambda: torch.xpu.Event(enable_timing=True),
          "mps": lambda: torch.mps.event.Event(enable_timing=True)}
_LAP = 1e-3                                    # seconds a lap should last: far above the resolution of either clock
_MOST = 10_000                                 # calls of a lap


def lap(call, times, where, also=()) -> float:
    """Seconds a call, over `times` calls in a row, from first start to last end.

    On an accelerator two events in its stream are compared, so the host's own time counts only where the device waits
    for it. With further devices in `also`, no stream sees everything: the wall clock between two synchronizations.

    >>> import torch
    >>> lap(lambda: None, 1000, torch.device("cpu")) < 1e-3
    True
    """
    if where.type == "cpu" or also:
        wait(where, *also)
        start = time.perf_counter()
        for _ in range(times):
            call()
        wait(where, *also)
        return (time.perf_counter() - start) / times
    start, end = EVENTS[where.type](), EVENTS[where.type]()
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / times                    # events count milliseconds


def wait(*devices) -> None:
    """Wait until all that is queued on these devices is done; nothing is ever queued on a CPU.

    >>> import torch
    >>> wait(torch.device("cpu"))
    """
    for where in devices:
        if where.type == "mps":
            torch.mps.synchronize()
        elif where.type != "cpu":
            getattr(torch, where.type).synchronize(where)


def timed(call, where=None, *, also=(), repeats=15, budget=0.3) -> dict:
    """Warm up, then time `repeats` laps of a call: median, lowest and highest seconds a call, and the number of laps.

    A lap repeats a short call until it lasts a millisecond. `budget`: seconds for all laps; three are made in any case.

    >>> sorted(timed(lambda: None, budget=0.01))
    ['highest', 'lowest', 'median', 'repeats']
    """
    where = where or device()
    call()                                                          # loads kernels, takes memory
    once = min(lap(call, 1, where, also) for _ in range(2))
    times = max(1, min(_MOST, int(_LAP / max(once, 1e-9))))
    laps, end = [], time.perf_counter() + budget
    while len(laps) < repeats and (len(laps) < 3 or time.perf_counter() < end):
        laps.append(lap(call, times, where, also))
    return spread(laps)


def spread(laps) -> dict:
    """Median, lowest, highest and number of some measured seconds.

    >>> spread([2.0, 1.0, 4.0])
    {'median': 2.0, 'lowest': 1.0, 'highest': 4.0, 'repeats': 3}
    """
    return {"median": median(laps), "lowest": min(laps), "highest": max(laps), "repeats": len(laps)}


def rated(seconds, **work) -> dict:
    """A row: the work as given, the seconds, and `rate` = work ÷ median seconds, `best` = work ÷ lowest seconds.

    The rated work is `flops` where there are some, else `bytes`.

    >>> rated(spread([2.0, 1.0, 4.0]), what="copy", bytes=8)["rate"]
    4.0
    """
    done = work["flops" if "flops" in work else "bytes"]
    return {**work, **seconds, "rate": done / seconds["median"], "best": done / seconds["lowest"]}


def attempt(call, **what) -> dict:
    """The row that call returns, or, when the device can not do it, a row with one sentence that says why.

    >>> def absent():
    ...     raise RuntimeError("no fp8 here. Traceback of C++ follows")
    >>> attempt(absent, what="matmul", dtype="fp8")
    {'what': 'matmul', 'dtype': 'fp8', 'skipped': 'no fp8 here.'}
    """
    try:
        return call()
    except torch.OutOfMemoryError:
        return {**what, "skipped": "The device has too little free memory for it."}
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        return {**what, "skipped": sentence(error)}


def sentence(error) -> str:
    """The first sentence of an error, without what C++ adds.

    >>> sentence(ValueError("CUDA error: no kernel image\\nCUDA kernel errors might …"))
    'CUDA error: no kernel image.'
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    first = lines[0].split(". ")[0].strip()
    return first if first.endswith((".", "!", "?")) else first + "."


def counts(where, largest) -> list:
    """With how many threads to run on a device: one on a CPU, and all for the largest case; [None] on an accelerator.

    >>> import torch
    >>> counts(torch.device("cuda"), True), counts(torch.device("cpu"), False)
    ([None], [1])
    """
    if where.type != "cpu":
        return [None]
    return sorted({1, torch.get_num_threads()}) if largest else [1]


@contextlib.contextmanager
def threads(count):
    """Run a block with so many threads of torch; None leaves them as they are.

    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
