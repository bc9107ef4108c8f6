"""Call a student's function where it can do no harm: in a process of its own, with limits of time, memory and output,
its result coerced to plain numbers, text and lists before a test looks at it.

A function that exits, loops, floods or lies costs its author the cell that tests it: the cell fails with a sentence, and
the grading kernel goes on. What stands in a cell outside a function does run in that kernel, and is not fenced in.
"""
import contextlib
import io
import json
import resource
import sys
import types
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist

from .links import counted
from .ranks import RankError, launch

MEMORY, FILE, SHOWN = 2 << 30, 1 << 20, 2_000       # bytes it may add, bytes it may print or write, characters we show


class Fault(AssertionError):
    """What went wrong with a student's function, in words; a notebook shows no frames of ours around it."""

    def _render_traceback_(self):
        return [str(self)]


def answer(fn, *args, kind=None, seconds=10):
    """fn(*args), called in another process; numbers, text, None and lists come back, a tuple as a list.

    `kind`, float or str, says what it must be. Raises Fault when it is not, and when fn raises, exits, is killed, takes
    longer than `seconds`, needs 2 GiB more, prints 1 MiB, or returns anything else.

    >>> answer(lambda a, b: (a + b, "sum"), 1, 2)
    [3, 'sum']
    """
    return answers(fn, [args], kind=kind, seconds=seconds)[0]


def answers(fn, cases, *, kind=None, seconds=10):
    """[fn(*case) for case in cases], all in one other process; otherwise as `answer`.

    >>> answers(lambda a, b: a / b, [(1, 2), (3, 4)], kind=float)
    [0.5, 0.75]
    """
    values, = _launched(fn, lambda fn, cases: [fn(*case) for case in cases], 1, list(cases), seconds)
    for value in values:
        number = type(value) in (int, float) and value - value == 0  # neither infinite nor nan
        if kind is float and not number or kind is str and type(value) is not str:
            raise Fault(f"your function returned {str(value)[:80]}: want {'a number' if kind is float else 'text'}")
    return values


@dataclass(frozen=True)
class Trial:
    """What an all-reduce did, by rank: `values` afterwards, `bytes` sent, `steps` taken. `fault` says what is wrong."""
    values: list
    bytes: list
    steps: list

    @property
    def fault(self) -> str:
        """The first wrong element in words; empty when every rank holds the sum."""
        ranks, elements = len(self.values), len(self.values[0])
        right = [sum(_element(index, rank) for rank in range(ranks)) for index in range(elements)]
        wrong = [f"on rank {rank} element {index} is {value:g}, and the sum is {want}" for rank in range(ranks)
                 for index, (value, want) in enumerate(zip(self.values[rank], right)) if value != want]
        return f"{ranks} ranks, {elements} elements: {wrong[0]}" if wrong else ""


def all_reduce_trial(fn, ranks, elements, seconds=10):
    """Run fn(x) on `ranks` ranks, x a float32 tensor of `elements` small whole numbers that fn must sum in place; a Trial.

    Messages are counted where they go through `step`. Raises Fault as `answer` does, also when ranks wait in vain.

    >>> all_reduce_trial(lambda x: None, 1, 3).fault
    ''
    """
    return Trial(*map(list, zip(*_launched(fn, _reduce, ranks, elements, seconds))))


def _launched(fn, how, ranks, given, seconds):
    if type(fn) is not types.FunctionType:                          # another callable might run code while it is packed
        raise Fault("want a function, written with def")
    _warm()
    page = io.StringIO()
    try:                                                            # a line on stderr would cost all points in nbgrader
        with contextlib.redirect_stdout(page), contextlib.redirect_stderr(io.StringIO()):
            return [json.loads(text) for text in launch(_confined, ranks, fn, how, given, timeout=seconds, deadline=seconds)]
    except RankError as error:
        raise Fault(_in_words(error, ranks, seconds)) from None
    finally:
        print(page.getvalue()[:SHOWN], end="")


@cache
def _warm():
    """Have the server of ranks load torch once, on nobody's time."""
    launch(len, 1, "")


def _in_words(error, ranks, seconds):
    head, _, detail = str(error).partition("\n")
    what = {"raised": "raised " + head[:200].partition(" raised ")[2], "exited": "ended its process instead of returning",
            "killed": "had its process killed", "unpicklable": "returned too much",
            "mismatch": "left ranks waiting for messages that nobody sends"
            }.get(error.reason, f"did not finish within {seconds:g} s")
    where, more = (f" on {ranks} ranks", detail) if ranks > 1 else ("", detail if error.reason == "raised" else "")
    return f"your function{where} {what}\n{more[-SHOWN:]}".strip()


def _confined(fn, how, given):
    """In the other process: how(fn, given) within the limits, as JSON."""
    with contextlib.suppress(OSError, ValueError):                  # no /proc, or a lower limit already
        with open("/proc/self/statm") as pages:
            memory = int(pages.read().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    try:
        return json.dumps(how(fn, given), default=_plain)
    except OSError as error:
        sys.stdout = io.StringIO()                                  # the real one fails again when it is flushed
        raise RuntimeError(f"{error.strerror}: more than {FILE:,} bytes printed or written?") from None


def _plain(value):
    """Numbers of numpy and torch, which json does not know; anything else is refused."""
    if type(value).__module__.partition(".")[0] in ("numpy", "torch"):
        return value.tolist()
    raise TypeError(f"returned a {type(value).__name__}: want numbers, text, None, or lists of them")


def _element(index, rank):
    """Element `index` of the array that `rank` starts with: small whole numbers, whose sum is exact in any order."""
    return (index * (rank + 2) + 7 * rank) % 101 - 50


def _reduce(fn, elements):
    x = torch.tensor([_element(index, dist.get_rank()) for index in range(elements)], dtype=torch.float32)
    with counted() as wire:
        fn(x)
    if x.shape != (elements,):
        raise ValueError("changed the shape of x")
    return x.tolist(), wire.bytes, wire.steps
