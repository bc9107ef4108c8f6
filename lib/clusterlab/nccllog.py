"""Read what NCCL and nccl-tests print: over which transport each connection runs, and what a table of results measured.

``NCCL_DEBUG=INFO`` makes NCCL print one line for every connection of a channel, ``… via NET/IB/0/GDRDMA``. What counts
is that word after `via`: a network card named ib0 can be used for sockets, and a log that finds InfiniBand may stage
every byte in the host's memory. `examples` has excerpts that users posted, in data/nccl_logs.toml with their sources.

Formats: NVIDIA/nccl, src/transport/ (net.cc, p2p.cc, shm.cc); NVIDIA/nccl-tests, src/common.cu and doc/PERFORMANCE.md.

>>> log = read(example("socket").text)
>>> log.transports
{'P2P': 1, 'NET/Socket': 1}
>>> log.verdict
'between nodes: sockets, through the kernel'
"""

import difflib
import re
import statistics
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CONNECTION = re.compile(r"(?:Channel|Ring|Tree|Chan)\s+(\d+)(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?"
                         r"(?: \[(send|receive)\])? via (\S.*?)\s*$")
_ELEMENT = {"int8": 1, "uint8": 1, "char": 1, "half": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "int": 4, "float": 4,
            "int64": 8, "uint64": 8, "double": 8}
_VERDICTS = {"NET/IB/GDRDMA": "RDMA between the memories of the GPUs", "NET/Socket": "sockets, through the kernel",
             "NET/IB": "RDMA, staged in the host's memory"}


@dataclass(frozen=True)
class Connection:
    """One line ``Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/0/GDRDMA``; `transport` is without device numbers."""

    channel: int
    source: int
    target: int
    way: str
    transport: str


@dataclass(frozen=True)
class Log:
    """The connections of a log in order. A connection between nodes is printed by both ends."""

    connections: tuple

    @property
    def transports(self):
        """{transport: number of lines}, most frequent first."""
        return dict(Counter(connection.transport for connection in self.connections).most_common())

    @property
    def verdict(self):
        """What carries the bytes between nodes, in words; the slowest if there are several."""
        nets = [name for name in self.transports if name.startswith("NET/")]
        if not nets:
            return "no connection between nodes"
        worst = next((name for name in ("NET/Socket", "NET/IB") if name in nets), nets[0])
        more = f", for {self.transports[worst]} of {sum(map(self.transports.get, nets))} lines" if len(nets) > 1 else ""
        return f"between nodes: {_VERDICTS.get(worst, worst)}{more}"


def read(text):
    """The `Log` in the text of an NCCL debug log; lines that are no connections are passed over.

    Raises ValueError when there is no connection at all, which is what a log without NCCL_DEBUG=INFO gives.

    >>> read("[0] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/0/GDRDMA").verdict
    'between nodes: RDMA between the memories of the GPUs'
    """
    found = [match for line in text.splitlines() if "NCCL INFO" in line and (match := _CONNECTION.search(line))]
    if not found:
        raise ValueError("no line says over which transport a channel goes: was NCCL_DEBUG=INFO set?")
    return Log(tuple(Connection(int(m[1]), int(m[2]), int(m[3]), m[4] or "", _transport(m[5])) for m in found))


def _transport(via):
    """NET/IB/0/GDRDMA is NET/IB/GDRDMA, NET/IBext_v8/1 (a plugin of the same) NET/IB, P2P/IPC/read is P2P."""
    words = via.split("/")
    if words[0] == "NET":
        kind = re.sub(r"^IB.*", "IB", words[1]) if len(words) > 1 else "?"
        return f"NET/{kind}" + ("/GDRDMA" if "GDRDMA" in words else "")
    return {"direct shared memory": "SHM"}.get(via, words[0])


@dataclass(frozen=True)
class Result:
    """One row of nccl-tests, out of place: bytes, elements, element type, operator, seconds, bytes/s."""

    size: int
    count: int
    type: str
    redop: str
    seconds: float
    algbw: float
    busbw: float

    @property
    def factor(self):
        """busbw ÷ algbw, as printed."""
        return self.busbw / self.algbw


def results(text):
    """The rows of an nccl-tests table, in SI units; the heading line says which columns there are.

    Raises ValueError without a heading, or without a row below it.

    >>> row = results(example("table-eight").text)[-1]
    >>> row.size, row.seconds, round(row.factor, 2)
    (33554432, 0.0001954, 1.75)
    """
    columns, rows = None, []
    for line in text.splitlines():
        words = line.replace("#wrong", "wrong").lstrip("# ").split()
        if words[:2] == ["size", "count"]:
            columns = words
        elif columns and len(words) == len(columns) and words[0].isdigit():
            row = dict(zip(columns[::-1], words[::-1], strict=True))    # from behind: the first of two equal names wins
            rows.append(Result(int(row["size"]), int(row["count"]), row["type"], row["redop"],
                               float(row["time"]) * 1e-6, float(row["algbw"]) * 1e9, float(row["busbw"]) * 1e9))
    if not rows:
        raise ValueError("no table of nccl-tests: want its heading line, '# size count type redop …', and rows below it")
    return rows


def identify(rows):
    """(operations, ranks) that give a table's ratio of busbw to algbw, from its largest arrays.

    The factor 2(n−1)/n, at least 1, is an all-reduce of n ranks; (n−1)/n a reduce-scatter if the table names an
    operator, an all-gather or all-to-all if not; 1 a broadcast, reduce or send, or two ranks' all-reduce. Where the
    table counts elements a rank, size ÷ (count × bytes an element) is n too, and the two must agree. From the factor of
    an all-reduce alone n is exact up to about 16 ranks: it nears 2, and is printed with few digits.

    >>> identify(results(example("table-eight").text))
    (('all-reduce',), 8)
    >>> identify(results(example("table-few").text))
    (('all-gather', 'all-to-all'), 2)
    """
    large = [row for row in rows if row.algbw >= 1e9] or rows           # small ones are printed as 0.00
    factor = statistics.median(row.factor for row in large)
    if abs(factor - 1) < 0.01:
        return ("broadcast", "reduce", "send", "all-reduce"), 2
    if factor > 1:
        return ("all-reduce",), round(2 / (2 - factor))
    ranks = round(1 / (1 - factor))
    counted = {round(row.size / (row.count * _ELEMENT[row.type])) for row in large if row.count and row.type in _ELEMENT}
    if len(counted) == 1 and (n := counted.pop()) > 1:                  # exact, where two printed decimals are not
        if abs((n - 1) / n - factor) > 0.01:
            raise ValueError(f"the factor {factor:.3f} says {ranks} ranks, and size over count says {n}")
        ranks = n
    return (("reduce-scatter",) if large[0].redop != "none" else ("all-gather", "all-to-all")), ranks


@dataclass(frozen=True)
class Example:
    """An excerpt as it was posted, with the machine, source and date."""

    name: str
    machine: str
    source: str
    date: str
    text: str
    note: str = ""


@cache
def examples():
    """All excerpts by name.

    >>> sorted(examples())
    ['direct', 'socket', 'staged', 'table-eight', 'table-few', 'table-many']
    """
    data = tomllib.loads((Path(__file__).parent / "data" / "nccl_logs.toml").read_text("utf-8"))
    return {name: Example(name, **{**entry, "text": entry["text"].strip("\n")}) for name, entry in data.items()}


def example(name):
    """The excerpt `name`; LookupError lists near names.

    >>> read(example("staged").text).transports
    {'NET/IB': 1, 'P2P': 1, 'SHM': 1}
    """
    if name not in examples():
        near = difflib.get_close_matches(name, examples(), 3, 0.4)
        raise LookupError(f"no excerpt {name!r}; near: {', '.join(near or examples())}")
    return examples()[name]
