"""Level by level, machine beside machine: what each level holds, how fast it is, and which one binds on a path.

``data/levels.toml`` has the levels of six machines, from an accelerator's registers to an object store, with sources;
`of_record` makes a seventh of what :mod:`clusterlab.run.probes` measured. What is not published is None, never a guess.

>>> h200 = ladder("DGX H200")
>>> found = carry(h200, "object store to memory", 16e9)
>>> found.binds, found.by, round(found.seconds)
('store', 'bytes', 178)
"""

import difflib
import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from clusterlab import hierarchy
from clusterlab.checks import positive
from clusterlab.expressions import evaluate
from clusterlab.units import GiB

SLOTS = {  # near to far
    "registers": "registers", "near": "shared memory, L1", "l2": "L2 cache", "l3": "L3 cache", "memory": "memory",
    "link": "scale-up link", "pcie": "host memory over PCIe", "nic": "network card", "drive": "local drive",
    "store": "object store"}
CACHES = ("l2", "l3")  # a path leads on without them where a machine has none
PATHS = {  # the levels that the bytes cross
    "memory to shared memory, L1": ("memory", "l3", "l2", "near"),
    "memory to a neighbour's memory": ("memory", "link"),
    "memory to another server's memory": ("memory", "pcie", "nic"),
    "host memory to memory": ("pcie", "memory"),
    "local drive to memory": ("drive", "pcie", "memory"),
    "object store to memory": ("store", "nic", "pcie", "memory"),
}
_EXPRESSIONS = ("capacity", "bandwidth", "pair", "latency")


@dataclass(frozen=True)
class Tier:
    """One level of one machine: bytes, bytes/s, seconds; None is what nobody published.

    `bandwidth` is one accelerator's, of what `counts` says; `pair` the part of it that reaches one neighbour, where
    that is less; `holds` words in place of a capacity. Errors: ValueError for a value that is not positive.

    >>> Tier("my disk", 2e9, latency=1e-4).seconds(1e9)
    0.5001
    """

    name: str
    bandwidth: float | None = None
    counts: str = ""
    capacity: float | None = None
    latency: float | None = None
    pair: float | None = None
    holds: str = ""
    source: str = ""
    date: str = ""
    latency_source: str = ""
    latency_date: str = ""
    notes: str = ""

    def __post_init__(self):
        for name in _EXPRESSIONS:
            if getattr(self, name) is not None:
                positive(self, name)

    def seconds(self, size):
        """Seconds for `size` bytes: latency + size / bandwidth, an unpublished latency left out; None without bandwidth.

        Errors: ValueError for a negative size.

        >>> f"{ladder('DGX A100').tier('memory').seconds(2.039e9) * 1e3:.4f} ms"
        '1.0004 ms'
        """
        _sized(size)
        return None if self.bandwidth is None else (self.latency or 0.0) + size / self.bandwidth


@dataclass(frozen=True)
class Ladder:
    """The levels of one machine, slot (of `SLOTS`) → `Tier`; `unknown` is what an empty cell says.

    Errors: ValueError for a slot that is none.

    >>> sorted(set(SLOTS) - set(ladder("TPU v5p pod").tiers))
    ['l2', 'l3']
    """

    name: str
    says: str
    tiers: dict
    unknown: str = "not published"

    def __post_init__(self):
        strange = set(self.tiers) - set(SLOTS)
        if strange:
            raise ValueError(f"{self.name}: {', '.join(sorted(strange))} is no level; there are {', '.join(SLOTS)}")

    def tier(self, slot):
        """The level in that slot; LookupError where the machine has none.

        >>> ladder("MI300X Platform").tier("l3").name
        'Infinity Cache'
        """
        if slot not in self.tiers:
            raise LookupError(f"{self.name} has no {slot!r}; it has {', '.join(self.tiers)}")
        return self.tiers[slot]

    def needed(self, slot, size):
        """How many of that level it takes to hold `size` bytes: ⌈size / capacity⌉, at least 1; None without a capacity.

        >>> ladder("DGX A100").needed("memory", 140e9)
        2
        """
        _sized(size)
        capacity = self.tier(slot).capacity
        return None if capacity is None else max(1, math.ceil(size / capacity))


@dataclass(frozen=True)
class Carried:
    """A transfer: its `seconds`; the slot that `binds`, and whether `by` its latency or its bytes; what is not known.

    With a level in `unknown` (no bandwidth published) `seconds` is a lower bound.
    """

    seconds: float
    binds: str
    by: str
    latency: float
    unknown: tuple = ()


@cache
def ladders():
    """The machines of the data, name → `Ladder`.

    >>> list(ladders())[:3]
    ['DGX H200', 'DGX B200', 'MI300X Platform']
    """
    table = tomllib.loads(files("clusterlab").joinpath("data", "levels.toml").read_text(encoding="utf-8"))
    store = _tier(table.pop("store"))
    return {name: Ladder(name, row.pop("says"), {slot: _tier(one) for slot, one in row.items()} | {"store": store})
            for name, row in table.items()}


def ladder(name):
    """The machine of that name; LookupError lists near names.

    >>> ladder("DGX B200").tier("link").bandwidth / 1e9
    900.0
    """
    if name not in ladders():
        near = difflib.get_close_matches(str(name), ladders(), 3, 0.4)
        raise LookupError(f"no machine {name!r}; near: {', '.join(near or ladders())}")
    return ladders()[name]


def of_record(record):
    """The levels that a record of `clusterlab.run.probes.measure` knows, as a `Ladder`; its latencies are not measured.

    A cache's rate is the best read of the largest block that fills at most half of it, memory's that of the largest
    block, by one core on a CPU; PCIe's the best copy from pinned host memory, a link's the best from peer to peer.
    Errors: ValueError for a record without the probe "memory".

    >>> row = {"what": "read", "working_set": 2**28, "threads": 1, "best": 20e9}
    >>> record = {"device": "a CPU", "kind": "cpu", "cores": 2, "memory_gib": 24, "caches": {}, "date": "2026-11",
    ...           "probes": {"memory": [row]}}
    >>> of_record(record).tier("memory").seconds(40e9)
    2.0
    """
    def best(probe, what, **wanted):
        return [row for row in record["probes"].get(probe, ()) if row["what"] == what and "best" in row
                and all(row.get(key, value) == value for key, value in wanted.items())]

    cpu = record["kind"] == "cpu"
    read = {row["working_set"]: row["best"] for row in best("memory", "read", threads=1)}
    if not read:
        raise ValueError("record: it needs the probe 'memory', as measure('memory') gives")
    told = {"source": f"measured: clusterlab.run.probes on {record['device']}", "date": record["date"], "counts": "read"}
    by = "one core" if cpu else "the device"
    tiers = {}
    for label, slot, name in (("L1", "near", "L1 cache"), ("L2", "l2", "L2 cache"), ("L3", "l3", "L3 cache")):
        size = next((size for cache, size in record["caches"].items() if cache.startswith(label)), None)
        if size:
            block = max((block for block in read if block <= size / 2), default=min(read))
            tiers[slot] = Tier(name, read[block], capacity=float(size), notes=f"{by} reads a block of {block:,} bytes", **told)
    tiers["memory"] = Tier("main memory" if cpu else "device memory", read[max(read)], notes=f"{by} reads {max(read):,} bytes",
                           capacity=record["memory_gib"] * GiB, **told)
    told["counts"] = "one direction"
    for slot, name, rows in (("link", "peer to peer", best("copies", "peer", direct=True)),
                             ("pcie", "host memory", best("copies", "host to device", pinned=True))):
        if rows:
            tiers[slot] = Tier(name, max(row["best"] for row in rows), notes="the best copy", **told)
    units = f"{record['cores']} cores" if cpu else f"{record['devices']} device{'' if record['devices'] == 1 else 's'}"
    return Ladder(f"{record['device']}, {units}", f"measured {record['date']}", tiers, "not measured")


def carry(ladder, path, size, *, streamed=True, requests=1):
    """Time for `size` bytes along one of `PATHS`, and the level that binds, as `Carried`.

    Streamed, pieces pass all levels at once: seconds = Σ latency + size / least rate. Otherwise the whole waits at each
    level: seconds = Σ (latency + size / rate). The largest single term binds, a latency or a level's bytes. An object
    store's rate is that of one request × `requests`; a link carries what a neighbour gets (`pair`).

    Errors: LookupError for an unknown path or a level that the machine lacks; ValueError for a negative size, for less
    than one request, and where no level on the path has a published bandwidth.

    >>> found = carry(ladder("DGX H200"), "memory to another server's memory", 4096)
    >>> found.binds, found.by, f"{found.seconds * 1e6:.2f} us"
    ('nic', 'latency', '3.25 us')
    """
    _sized(size)
    if path not in PATHS:
        raise LookupError(f"path={path!r}: {', '.join(map(repr, PATHS))} are allowed")
    if not requests >= 1:
        raise ValueError(f"requests={requests!r}: 1 or more")
    steps = {slot: ladder.tier(slot) for slot in PATHS[path] if slot in ladder.tiers or slot not in CACHES}
    rates = {slot: (one.pair or one.bandwidth) * (requests if slot == "store" else 1)
             for slot, one in steps.items() if one.bandwidth is not None}
    if not rates:
        raise ValueError(f"{ladder.name}: no level on the way {path!r} has a known bandwidth")
    times = {slot: size / rate for slot, rate in rates.items()}
    if streamed:
        slowest = min(rates, key=rates.get)
        times = {slot: time if slot == slowest else 0.0 for slot, time in times.items()}
    waits = {slot: one.latency or 0.0 for slot, one in steps.items()}
    slow, late = max(times, key=times.get), max(waits, key=waits.get)
    by_bytes = times[slow] >= waits[late]
    return Carried(sum(waits.values()) + sum(times.values()), slow if by_bytes else late,
                   "bytes" if by_bytes else "latency", sum(waits.values()),
                   tuple(slot for slot in steps if slot not in rates))


def _tier(row):
    """A table of the data as a `Tier`; with `level`, what the hierarchy says is taken over, and its note comes first."""
    row = {key: float(evaluate(value)) if key in _EXPRESSIONS else value for key, value in row.items()}
    if "level" in row:
        known = hierarchy.level(row.pop("level"))
        row |= {"bandwidth": known.bandwidth, "counts": known.counts, "source": known.source, "date": known.date,
                "notes": "; ".join(filter(None, (known.notes, row.get("notes"))))}
    return Tier(**row)


def _sized(size):
    if not (size >= 0 and math.isfinite(size)):
        raise ValueError(f"size={size!r}: bytes from 0 are allowed")
