"""Inside an accelerator: what each level of memory on the chip holds, how many warps fit, what must be in flight.

``data/chips.toml`` holds the counts, with sources. NVIDIA's words are used: a streaming multiprocessor (SM) is AMD's
compute unit, a warp its wavefront.

>>> h100 = chip("H100 SXM")
>>> h100.units, h100.units * h100.registers / 2**20, h100.l2 / 2**20
(132, 33.0, 50.0)
"""

import difflib
import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import numpy as np

from clusterlab.checks import count
from clusterlab.components import published

WARP_REGISTERS = 256      # registers are handed out to a warp in lots of this many, 8 a thread
RESERVED = 1024           # bytes of shared memory that the system keeps for each block (Hopper tuning guide, section 1.4)
PARTITIONS = 4            # of an SM: each has a scheduler, a tensor core and a quarter of the registers


@dataclass(frozen=True)
class Chip:
    """Memory on one chip, in bytes: `registers` and `local` (shared memory with L1) in each of `units`, `l2` and `l3`
    for all. `shared` is the part of `local` that software manages; `lanes` threads make a warp; at most `warps` warps
    and `blocks` blocks are resident in a unit (None: not published here).

    Errors: ValueError for a count that is not a whole number above 0 (l3 may be 0).

    >>> Chip("toy", units=2, registers=1024, local=2048, shared=1024, lanes=8, l2=4096).units
    2
    """

    name: str
    units: int
    registers: int
    local: int
    shared: int
    lanes: int
    l2: int
    l3: int = 0
    warps: int | None = None
    blocks: int | None = None
    source: str = ""
    date: str = ""

    def __post_init__(self):
        for name in ("units", "registers", "local", "shared", "lanes", "l2"):
            count(self, name)
        count(self, "l3", least=0)
        for name in ("warps", "blocks"):
            if getattr(self, name) is not None:
                count(self, name)


@cache
def chips():
    """All chips listed, name → Chip; iterating gives the names.

    >>> "MI300X" in chips()
    True
    """
    table = tomllib.loads(files("clusterlab").joinpath("data", "chips.toml").read_text(encoding="utf-8"))
    return MappingProxyType({name: Chip(name, **row) for name, row in table.items()})


def chip(name):
    """The chip of that exact name; LookupError lists near names.

    >>> chip("H100 PCIe").units
    114
    """
    if name not in chips():
        near = difflib.get_close_matches(str(name), chips(), 3, 0.4)
        raise LookupError(f"no chip {name!r}; near: {', '.join(near or chips())}")
    return chips()[name]


def resident_warps(chip, registers_per_thread, *, threads_per_block=128, shared_per_block=0):
    """How many warps of a kernel fit into one SM at once: whole blocks, until something runs out.

    Registers are handed out by warp, in lots of 256, from the quarter of the file that belongs to the warp's scheduler;
    shared memory by block, 1,024 bytes more than asked for. The least of four limits counts: warps, blocks, registers,
    shared memory. Over ``chip.warps`` it is the *occupancy*. Source: Hopper tuning guide, section 1.4, and NVIDIA's
    occupancy calculator.

    Errors: ValueError for no or more than 255 registers, a block of no or more than 1,024 threads, a block that does
    not fit by itself, a chip whose limits are not published here.

    >>> [resident_warps(chip("H100 SXM"), n) for n in (32, 64, 128, 255)]
    [64, 32, 16, 8]
    """
    if not 1 <= registers_per_thread <= 255:
        raise ValueError(f"registers_per_thread={registers_per_thread!r}: 1 to 255")
    if not 1 <= threads_per_block <= 1024:
        raise ValueError(f"threads_per_block={threads_per_block!r}: 1 to 1,024")
    if not 0 <= shared_per_block <= chip.shared - RESERVED:
        raise ValueError(f"shared_per_block={shared_per_block!r}: 0 to {chip.shared - RESERVED} on {chip.name}")
    warps = math.ceil(threads_per_block / chip.lanes)
    lot = math.ceil(registers_per_thread * chip.lanes / WARP_REGISTERS) * WARP_REGISTERS
    by_registers = chip.registers // 4 // PARTITIONS // lot * PARTITIONS
    blocks = min(published(chip, "warps") // warps, published(chip, "blocks"), by_registers // warps,
                 chip.shared // (shared_per_block + RESERVED))
    if blocks < 1:
        raise ValueError(f"threads_per_block={threads_per_block!r} with registers_per_thread={registers_per_thread!r} "
                         f"does not fit: {by_registers} warps do")
    return blocks * warps


def bytes_in_flight(bandwidth, latency):
    """Bytes that must be on their way at any moment for a memory to deliver its bandwidth: bandwidth · latency.

    Little's law (Little 1961, doi:10.1287/opre.9.3.383), bytes/s and seconds. Arrays broadcast. Errors: ValueError for
    a negative value.

    >>> bytes_in_flight(2e12, 370e-9)
    740000.0
    """
    for name, value in (("bandwidth", bandwidth), ("latency", latency)):
        if not np.all(np.greater_equal(value, 0)):
            raise ValueError(f"{name}={value!r}: not negative")
    return bandwidth * latency
