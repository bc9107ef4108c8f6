"""Why does it hang? Ask what each rank entered last, and compare.

    try:
        launch(job, 4)
    except RankError as error:
        print(diagnose(error))

`launch` keeps that note for each rank by itself. Elsewhere (torchrun, a cluster) torch's flight recorder does: call
`record(folder)` in every rank, and `diagnose(folder)` afterwards, from anywhere. A rank that is behind is the one the
others wait for; a rank that entered another call, or the same with another size, is where the program differs.

Source: PyTorch's flight recorder, `TORCH_FR_BUFFER_SIZE`; `torchfrtrace` reads the dumps of NCCL's watchdog.
"""

import contextlib
import json
import os
import re
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from clusterlab.run.ranks import RankError, launch

PERIOD = 0.2                            # seconds between two dumps; what a frozen rank did since the last is unknown


@dataclass(frozen=True)
class Row:
    """What one rank entered last. `sequence` counts the collectives of a group; None for a message or nothing."""

    rank: int
    collective: str
    sequence: int | None
    what: str               # type and shape
    group: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """`behind`: ranks that have not entered what others wait in; `different`: ranks that entered something else."""

    rows: tuple
    behind: tuple
    different: tuple
    why: str = ""           # what the launcher made of it

    @property
    def verdict(self):
        """One sentence."""
        if self.behind:
            front = max(self.rows, key=_number)
            return f"{_names(self.behind)} never entered {front.collective} #{front.sequence}, in which others wait"
        if self.different:
            other = "; ".join(f"rank {row.rank} entered {row.collective} of {row.what}"
                              for row in self.rows if row.rank in self.different)
            return f"not the same call everywhere: {other}"
        return "all ranks entered the same call: look at the network, or at a rank that is slow"

    def __str__(self):
        lines = ["rank  last entered            #    of                    "]
        for row in self.rows:
            mark = "behind" if row.rank in self.behind else "differs" if row.rank in self.different else ""
            number = "-" if row.sequence is None else row.sequence
            lines.append(f"{row.rank:4}  {row.collective:22}{number:>4}    {row.what:22}{mark}".rstrip())
        return "\n".join([*lines, *filter(None, [self.why, self.verdict])])


def diagnose(source):
    """`Diagnosis` of a hang, from the RankError of `launch` or from a folder that `record` wrote to.

    Raises FileNotFoundError for a folder without dumps, ValueError for an error that kept no notes.
    """
    if isinstance(source, RankError):
        if not source.last:
            raise ValueError(f"this RankError has no notes of collectives, its reason is {source.reason!r}")
        rows = [_from_text(rank, text) for rank, text in sorted(source.last.items())]
        return _compare(rows, str(source).splitlines()[0].split(": no sign of life")[0])
    files = sorted(Path(source).glob("rank-*.json"), key=lambda path: int(path.stem[5:]))
    if not files:
        raise FileNotFoundError(f"{source}: expected rank-0.json …, found no dump of a flight recorder")
    return _compare([_from_dump(int(path.stem[5:]), json.loads(path.read_text())) for path in files])


def _from_text(rank, text):
    name, _, rest = text.partition(" #")
    number, _, what = rest.partition(" of ")
    if not rest:                                                    # a message, or nothing
        name, _, what = text.partition(" of ")
    return Row(rank, name, int(re.match(r"\d+", number)[0]) if rest else None, what)


def _from_dump(rank, dump):
    entries = dump.get("entries") or []
    if not entries:
        return Row(rank, "none", None, "")
    last = max(entries, key=lambda entry: entry["record_id"])
    kinds, sizes = last["input_dtypes"], last["input_sizes"]
    what = ", ".join(f"{kind} {size}" for kind, size in zip(kinds, sizes, strict=False))
    sequence = None if last["is_p2p"] else last["collective_seq_id"]
    return Row(rank, last["profiling_name"].split(":")[-1], sequence, what, last["process_group"][0])


def _number(row):
    return -1 if row.sequence is None else row.sequence


def _compare(rows, why=""):
    front = max(map(_number, rows))
    behind = tuple(row.rank for row in rows if _number(row) < front)
    calls = Counter((row.collective, row.what, row.group) for row in rows if row.rank not in behind)
    (usual, votes), *others = calls.most_common()
    tie = others and others[0][1] == votes                          # two against two: all are shown
    different = tuple(row.rank for row in rows if row.rank not in behind
                      and (tie or (row.collective, row.what, row.group) != usual)) if others else ()
    return Diagnosis(tuple(rows), behind, different, why)


def _names(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + " and ".join(map(str, ranks))


@contextlib.contextmanager
def record(folder, rank=None):
    """Within the block, write this rank's flight record to `folder` every 0.2 s and at its end, also after an error.

    Set TORCH_FR_BUFFER_SIZE (say 100) before the process group exists: with 0, the default, nothing is recorded.
    """
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    path, stop = Path(folder) / f"rank-{rank}.json", threading.Event()
    path.parent.mkdir(parents=True, exist_ok=True)
    from torch._C._distributed_c10d import _dump_fr_trace_json  # private, as all ways to it on gloo

    def write():
        raw = _dump_fr_trace_json(True, False)
        path.with_suffix(".new").write_bytes(raw if isinstance(raw, bytes) else raw.encode())
        os.replace(path.with_suffix(".new"), path)

    def keep_writing():
        while not stop.wait(PERIOD):
            write()

    thread = threading.Thread(target=keep_writing, daemon=True)
    thread.start()
    try:
        yield path
    finally:
        stop.set()
        thread.join()
        write()


def hang(kind, world_size=4, *, culprit=1, timeout=3.0):
    """Let ranks hang in one of three ways, "frozen", "skipped" or "mismatch", and return the `Diagnosis`."""
    if kind not in ("frozen", "skipped", "mismatch"):
        raise ValueError(f"kind={kind!r}: want frozen, skipped or mismatch")
    if not 0 <= culprit < world_size:
        raise ValueError(f"culprit={culprit}: want a rank below {world_size}")
    try:
        launch(_hang, world_size, kind, culprit, timeout=timeout)
    except RankError as error:
        return diagnose(error)
    raise RuntimeError(f"{kind} did not hang")


def _hang(kind, culprit):
    x, me = torch.ones(1000), dist.get_rank() == culprit
    for _ in range(3):
        dist.all_reduce(x)
    if me and kind == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    if me and kind == "mismatch":
        dist.broadcast(x, culprit)
    elif not (me and kind == "skipped"):                            # a branch that one rank takes and the others do not
        dist.all_reduce(x)
