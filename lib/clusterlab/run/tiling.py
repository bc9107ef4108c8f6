"""Several sweeps over an array, all of it each time or tile by tile: the same arithmetic, other traffic."""
import time
from dataclasses import dataclass

import torch

from clusterlab.run.timing import threads

FACTOR = 1.0009765625                          # 1 + 2⁻¹⁰: fp32 rounds its powers the same way in any order of tiles


@dataclass(frozen=True)
class Sweep:
    """Seconds of the fastest lap, bytes that a memory without caches would move, and the sum of the array after it."""

    seconds: float
    bytes: int
    total: float


def sweeps(size, *, passes=8, tile=None, laps=3) -> Sweep:
    """Multiply each number of an fp32 array of `size` bytes `passes` times, sweep after sweep or `tile` bytes at a time.

    Each pass reads and writes in place, on the CPU with one thread: a GPU would need one kernel for all passes of a
    tile, because starting a kernel takes longer than a tile. `total` is summed in fp64. Raises ValueError for a tile
    below 4 bytes or above the array.

    >>> whole, tiled = sweeps(2**16, laps=1), sweeps(2**16, tile=2**12, laps=1)
    >>> whole.total == tiled.total, whole.bytes
    (True, 1048576)
    """
    tile = size if tile is None else tile
    if not 4 <= tile <= size:
        raise ValueError(f"tile is {tile!r}: want 4 to {size} bytes")
    seconds = []
    with threads(1):
        for _ in range(laps):
            x = torch.ones(int(size) // 4)
            start = time.perf_counter()
            for part in x.split(int(tile) // 4):
                for _ in range(passes):
                    part.mul_(FACTOR)
            seconds.append(time.perf_counter() - start)
    return Sweep(min(seconds), 2 * passes * int(size), x.double().sum().item())
