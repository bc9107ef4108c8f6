"""Our probes against other programs on the same CPU: NumPy's BLAS, the C library's memmove, NumPy's own passes.

    python benchmarks/probes.py
"""
import ctypes
import os

import numpy as np
import torch
from clusterlab.run import matmul_probe, memory_probe, timing
from clusterlab.units import MiB, format_flops, format_rate

CPU = torch.device("cpu")


def beside(what, ours, name, theirs, work, show):
    """Time both in turn, so that what else runs here disturbs both; the lowest seconds of each."""
    pairs = [[timing.timed(call, CPU, budget=0.15)["lowest"] for call in (ours, theirs)] for _ in range(5)]
    mine, other = (work / min(seconds) for seconds in zip(*pairs, strict=True))
    print(f"{what:<26}{show(mine):>16}   {name:<10}{show(other):>16}   ratio {mine / other:.2f}")


def main():
    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    for size in (256 * 2**10, int(256 * MiB)):
        ours, moved = memory_probe.copying(size, CPU)
        source, target = (ctypes.create_string_buffer(size // 2) for _ in range(2))
        with timing.threads(1):
            beside(f"copy {size >> 10} KiB, 1 thread", ours, "memmove",
                   lambda: ctypes.memmove(target, source, size // 2), moved, format_rate)  # noqa: B023
    ours, moved = memory_probe.reading(int(256 * MiB), CPU)
    huge = np.ones(int(256 * MiB) // 4, dtype=np.float32)           # NumPy asks the kernel for 2 MiB pages, torch does not
    usual = torch.ones(int(256 * MiB) // 4)
    with timing.threads(1):
        beside("read 256 MiB, 1 thread", ours, "np.max", usual.numpy().max, moved, format_rate)
        beside("  on 2 MiB pages", torch.from_numpy(huge).sum, "np.max", huge.max, moved, format_rate)
    for n in (512, 2048):
        a, b, c = (np.random.default_rng(0).standard_normal((n, n), dtype=np.float32) for _ in range(3))
        beside(f"matmul fp32 {n}", matmul_probe.product(n, n, n, "fp32", CPU), "NumPy BLAS",
               lambda: np.matmul(a, b, out=c), 2 * n**3, lambda x: format_flops(x) + "/s")  # noqa: B023


if __name__ == "__main__":
    main()
