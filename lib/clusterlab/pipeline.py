"""Pipeline schedules, simulated event by event: who computes which micro-batch when, and how long everybody waits.

Every stage has a fixed list of instructions and works through it; an instruction starts when the stage is free and
its input has arrived: F needs the F of the stage before, B the B of the stage after (and its own F), W its own B.
F is a forward pass, B a backward pass, or only the gradient of the input where the schedule splits it from W, the
gradient of the weights.

Sources: GPipe (Huang et al. 2019, arXiv:1811.06965); 1F1B (Narayanan et al. 2019, PipeDream); interleaved (Narayanan
et al. 2021, arXiv:2104.04473, section 2.2); ZB-H1, ZB-V (Qi et al. 2023, arXiv:2401.10241; Qi et al. 2024,
arXiv:2405.15362).

>>> from clusterlab.pipeline import simulate
>>> run = simulate("1f1b", stages=4, micro_batches=8, forward=1.0, backward=2.0)
>>> run.makespan, run.bubble_ratio, run.peak_in_flight
(33.0, 0.375, (4, 3, 2, 1))
"""

import difflib
from dataclasses import dataclass
from typing import NamedTuple


class Event(NamedTuple):
    """One instruction as it ran: ``kind`` is "F", "B" or "W"; times in seconds."""

    stage: int
    kind: str
    micro_batch: int
    chunk: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What `simulate` returns. Seconds; fractions between 0 and 1.

    makespan: from the first forward to the last backward. span: the longest that one stage takes from its first to its
    last instruction, which is what a step costs when stages may start the next one without waiting for each other.
    bubble_fraction: idle time over all time, of all stages. bubble_ratio: idle time over working time, which is how
    (p-1)/m is meant. peak_in_flight: for each stage the most micro-batches whose activations it holds at once, from
    the start of F to the end of the last instruction that needs them; a chunk counts as its share of the stage.
    events: all instructions, in order of start.

    >>> run = simulate("gpipe", stages=2, micro_batches=1, forward=1.0, backward=1.0)
    >>> run.bubble_fraction, run.bubble_ratio
    (0.5, 1.0)
    """

    makespan: float
    span: float
    bubble_fraction: float
    bubble_ratio: float
    peak_in_flight: tuple
    events: tuple


def simulate(schedule, *, stages, micro_batches, forward, backward, weight_backward=None, virtual=1, send=0.0):
    """Run one training step through a pipeline.

    ``forward`` is the seconds of one micro-batch in one stage. ``backward`` is the whole backward pass, gradient of
    input and of weights; when ``weight_backward`` is given, ``backward`` is the gradient of the input alone and the
    whole takes backward + weight_backward. The zb schedules split it in halves when it is not given. All three may be
    sequences, one value a stage. ``virtual`` is the chunks a stage holds under "interleaved" ("zb-v" always has two);
    a chunk takes 1/virtual of the times. ``send`` is the seconds an activation or gradient travels between stages; it
    takes no stage's time.

    Closed forms for p equal stages, m micro-batches and send 0, as bubble_ratio: gpipe and 1f1b (p-1)/m; interleaved
    (p-1)/(virtual m); zb-h1 (p-1)(F+B-W)/(m (F+B+W)) from m = p on, while W is not longer than F or B. zb-v with F = B = W
    and m from 2p-1 on has no bubble but the (p-1)/2 F by which the last stage starts later: its span is m (F+B+W).
    More micro-batches shrink the bubble, larger ones do not. 1f1b is not faster than gpipe: it holds p-i instead of m
    micro-batches on stage i.

    Raises ValueError for an unknown schedule, for counts below 1, negative times, ``virtual`` with a schedule that has
    no chunks, and interleaved micro-batches that p does not divide.

    >>> [round(simulate(name, stages=8, micro_batches=32, forward=1, backward=1).bubble_fraction, 4)
    ...  for name in ("gpipe", "1f1b")]
    [0.1795, 0.1795]
    >>> simulate("interleaved", stages=4, micro_batches=8, forward=1, backward=2, virtual=2).bubble_ratio
    0.1875
    >>> simulate("zb-h1", stages=4, micro_batches=8, forward=1, backward=1, weight_backward=1).makespan
    27.0
    """
    p, m, chunks = _check(schedule, stages, micro_batches, virtual)
    split = schedule in ("zb-h1", "zb-v")
    times = _durations(p, chunks, split, forward, backward, weight_backward)
    if not send >= 0:
        raise ValueError(f"send={send}: seconds from 0 are allowed")
    programs = [_PROGRAMS[schedule](stage, p, m, chunks) for stage in range(p)]
    events = _run(programs, times, p, chunks, send, schedule == "zb-v")
    makespan = max(event.end for event in events)
    busy = sum(event.end - event.start for event in events)
    idle = max(p * makespan - busy, 0.0)
    by_stage = [[event for event in events if event.stage == stage] for stage in range(p)]
    span = max(one[-1].end - one[0].start for one in by_stage)
    return Timeline(makespan=makespan, span=span, bubble_fraction=idle / (p * makespan) if makespan else 0.0,
                    bubble_ratio=idle / busy if busy else 0.0,
                    peak_in_flight=tuple(_peak(one, chunks, split) for one in by_stage),
                    events=tuple(sorted(events, key=lambda event: (event.start, event.stage))))


# The instruction lists: (kind, chunk, micro-batch) of one stage i of p.


def _gpipe(i, p, m, chunks):
    return [("F", 0, k) for k in range(m)] + [("B", 0, k) for k in range(m)]


def _one_forward_one_backward(i, p, m, chunks):
    warm = min(p - 1 - i, m)
    program = [("F", 0, k) for k in range(warm)]
    for k in range(m - warm):
        program += [("F", 0, warm + k), ("B", 0, k)]
    return program + [("B", 0, k) for k in range(m - warm, m)]


def _interleaved(i, p, m, chunks):
    """1F1B over chunks: p micro-batches go through chunk 0, the same p through chunk 1, and so on."""
    if chunks == 1:
        return _one_forward_one_backward(i, p, m, chunks)

    def nth(k, backward):
        group, within = divmod(k, p * chunks)
        chunk = within // p
        return (chunks - 1 - chunk if backward else chunk), group * p + within % p

    total = m * chunks
    warm = min(2 * (p - 1 - i) + (chunks - 1) * p, total)
    program = [("F", *nth(k, False)) for k in range(warm)]
    for k in range(total - warm):
        program += [("F", *nth(warm + k, False)), ("B", *nth(k, True))]
    return program + [("B", *nth(k, True)) for k in range(total - warm, total)]


def _zero_bubble_h1(i, p, m, chunks):
    """1F1B whose stage i keeps up to i weight gradients for later: nobody holds more than p micro-batches."""
    program, done = [], 0
    for kind, chunk, k in _one_forward_one_backward(i, p, m, chunks):
        program.append((kind, chunk, k))
        if kind == "B" and (k - done >= i or k >= m - (p - 1 - i)):
            program.append(("W", 0, done))
            done += 1
    return program + [("W", 0, k) for k in range(done, m)]


def _zero_bubble_v(i, p, m, chunks):
    """Chunk 0 goes down the stages, chunk 1 comes back up, so that the last stage turns around at once."""
    program, count = [], {}

    def add(*steps):
        for kind, chunk in steps:
            k = count.get((kind, chunk), 0)
            count[kind, chunk] = k + 1
            if k < m:
                program.append((kind, chunk, k))

    enough = max(m, 2 * p - 1)  # of fewer micro-batches the pattern is cut
    add(*[("F", 0)] * (2 * (p - i) - 1))
    add(*[("F", 1), ("F", 0)] * i)
    add(*[("F", 1), ("B", 1), ("W", 1)] * (p - i))
    while count["F", 1] < enough:
        add(*[("F", 0)] * (count["F", 0] < enough), ("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1))
    add(*[("B", 0), ("B", 1)] * i)
    add(*[("B", 0), ("W", 0)] * (p - i))
    for chunk in (1, 0):
        add(*[("W", chunk)] * (enough - count.get(("W", chunk), 0)))
    return program


_PROGRAMS = {"gpipe": _gpipe, "1f1b": _one_forward_one_backward, "interleaved": _interleaved,
             "zb-h1": _zero_bubble_h1, "zb-v": _zero_bubble_v}


def _run(programs, times, p, chunks, send, folded):
    def place(chunk, stage):  # position of a chunk in the model
        return 2 * p - 1 - stage if folded and chunk == 1 else chunk * p + stage

    last = p * chunks - 1
    ends, free, events = {}, [0.0] * p, []
    todo = [list(reversed(program)) for program in programs]
    waiting = True
    while waiting:
        waiting = False
        for stage in range(p):
            while todo[stage]:
                kind, chunk, k = todo[stage][-1]
                at = place(chunk, stage)
                if kind == "F":
                    needs = [("F", at - 1, k)] if at else []
                else:
                    needs = [("F" if kind == "B" else "B", at, k)] + [("B", at + 1, k)] * (kind == "B" and at < last)
                if any(need not in ends for need in needs):
                    break
                arrivals = [end + (send if by != stage else 0.0) for end, by in (ends[need] for need in needs)]
                start = max([free[stage], *arrivals])
                free[stage] = start + times[kind][stage]
                ends[kind, at, k] = free[stage], stage
                events.append(Event(stage, kind, k, chunk, start, free[stage]))
                todo[stage].pop()
                waiting = True
    if any(todo):
        raise RuntimeError(f"stages {[i for i in range(p) if todo[i]]} wait for each other")
    return events


def _peak(events, chunks, split):
    release = "W" if split else "B"
    changes = sorted([(event.start, 1) for event in events if event.kind == "F"]
                     + [(event.end, -1) for event in events if event.kind == release])
    held = most = 0
    for _, change in changes:  # at the same instant releases sort before new ones
        held += change
        most = max(most, held)
    return most if chunks == 1 else most / chunks


def _check(schedule, stages, micro_batches, virtual):
    if schedule not in _PROGRAMS:
        near = difflib.get_close_matches(str(schedule), _PROGRAMS, n=2, cutoff=0.4)
        raise ValueError(f"schedule={schedule!r} is unknown; {'near: ' + ', '.join(near) + '; ' if near else ''}"
                         f"known: {', '.join(_PROGRAMS)}")
    for name, value in (("stages", stages), ("micro_batches", micro_batches), ("virtual", virtual)):
        if value != int(value) or value < 1:
            raise ValueError(f"{name}={value}: whole numbers from 1 are allowed")
    p, m, chunks = int(stages), int(micro_batches), int(virtual)
    if schedule == "zb-v":
        if chunks not in (1, 2):
            raise ValueError(f"virtual={virtual}: zb-v has two chunks a stage")
        chunks = 2
    elif schedule != "interleaved" and chunks != 1:
        raise ValueError(f"virtual={virtual}: {schedule} has one chunk a stage; interleaved has more")
    if schedule == "interleaved" and chunks > 1 and m % p:
        raise ValueError(f"micro_batches={m}: interleaved needs a multiple of stages={p}")
    return p, m, chunks


def _durations(p, chunks, split, forward, backward, weight_backward):
    """{kind: seconds of one chunk on each stage}."""
    def each(name, value):
        values = [float(one) for one in value] if hasattr(value, "__len__") else [float(value)] * p
        if len(values) != p or not all(one >= 0 for one in values):
            raise ValueError(f"{name}={value}: seconds from 0 are allowed, one value or one for each of {p} stages")
        return values

    forward, backward = each("forward", forward), each("backward", backward)
    if weight_backward is not None:
        weights = each("weight_backward", weight_backward)
    elif split:
        weights = backward = [whole / 2 for whole in backward]
    else:
        weights = [0.0] * p
    if not split:
        backward = [b + w for b, w in zip(backward, weights, strict=True)]
    return {"F": [one / chunks for one in forward], "B": [one / chunks for one in backward],
            "W": [one / chunks for one in weights]}
