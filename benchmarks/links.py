"""Links against the model: seconds, ratio and lateness of each all-reduce, two message sizes, 4 and 8 ranks.

    python benchmarks/links.py [--repeat 3]
    python benchmarks/links.py --kernel [--write lessons/measurements/kernel_links.json]     (root, ip, tc)

`--kernel` runs 16 MiB on four ranks whose links the Linux kernel shapes to 400 Mbit/s.
"""
import argparse
import datetime
import json
from statistics import median

import torch
import torch.distributed as dist
from clusterlab.run import Paced, Shaped, allreduce, counted, launch, timed
from clusterlab.run.device import describe
from clusterlab.units import MB, KiB, Mbit, MiB, format_seconds, ms

NAMES = ["ring", "halving-doubling", "recursive-doubling", "tree", "parameter-server", "parameter-server-sharded"]


def run(names, size, repeat):
    """On each rank: {algorithm: (seconds of the slowest rank, seconds late of this one), each a list of laps}."""
    found = {}
    for name in names:
        laps, late = [], []
        for _ in range(repeat):
            x = torch.ones(int(size) // 4)
            with counted() as wire:
                laps.append(timed(allreduce.ALGORITHMS[name], x))
            late.append(wire.late)
            assert x[0] == x[-1] == dist.get_world_size()
        found[name] = laps, late
    return found


def model(name, size, n, link):
    """steps x latency + bytes on the critical path / bandwidth, n a power of two."""
    log = (n - 1).bit_length()
    steps, sent = {"ring": (2 * (n - 1), 2 * (n - 1) / n), "halving-doubling": (2 * log, 2 * (n - 1) / n),
                   "recursive-doubling": (log, log), "tree": (2 * log, 2 * log), "parameter-server": (2, 2 * (n - 1)),
                   "parameter-server-sharded": (2, 2 * (n - 1) / n)}[name]
    return steps * link.latency + sent * size / link.bandwidth


def paced(repeat):
    worst = 1.0
    print(f"{'ranks':>5} {'size':>8} {'algorithm':<25}{'model':>10}{'here':>10}{'ratio':>7}{'late':>10}")
    for n in (4, 8):
        for size, link in ((16 * MB, Paced(bandwidth=50 * MB)), (64 * KiB, Paced(bandwidth=50 * MB, latency=20 * ms))):
            every = launch(run, n, NAMES, size, repeat, link=link)
            for name in NAMES:
                want, here = model(name, size, n, link), median(every[0][name][0])
                late = max(median(rank[name][1]) for rank in every)
                worst = max(worst, here / want, want / here)
                print(f"{n:>5} {size:>8.0f} {name:<25}{format_seconds(want):>10}{format_seconds(here):>10}{here / want:>7.3f}"
                      f"{format_seconds(late):>10}")
    print(f"worst ratio {worst:.3f} (goal 1.20)")


def kernel(repeat, path):
    names, size, n, link = [*NAMES[:2], *NAMES[3:5]], 16 * MiB, 4, Shaped(400 * Mbit)
    every = launch(run, n, names, size, repeat, link=link)
    beside = launch(run, n, names, size, repeat, link=Paced(400 * Mbit))
    rows = []
    for name in names:
        laps = sorted(every[0][name][0])
        rows.append({"algorithm": name, "model": round(model(name, size, n, Paced(400 * Mbit)), 4),
                     "median": round(median(laps), 4), "lowest": round(laps[0], 4), "highest": round(laps[-1], 4),
                     "paced": round(median(beside[0][name][0]), 4)})
        print(f"{name:<20} model {rows[-1]['model']:.3f} s   kernel {rows[-1]['median']:.3f} s "
              f"({laps[0]:.3f} to {laps[-1]:.3f})   paced {rows[-1]['paced']:.3f} s")
    here = describe()
    if path:
        record = {"what": "all-reduce on ranks in network namespaces, each link shaped by tc tbf, both directions",
                  "machine": f"{here['device']}, {here['cores']} cores, {here['kernel']}, torch {here['torch']}",
                  **here, "date": datetime.date.today().isoformat(), "ranks": n, "size": int(size),
                  "bandwidth": link.bandwidth, "burst": link.burst, "repeats": repeat, "unit": "s",
                  "command": f"python benchmarks/links.py --kernel --repeat {repeat} --write lessons/measurements/kernel_links.json",
                  "rows": rows}
        with open(path, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kernel", action="store_true", help="links shaped by the kernel")
    parser.add_argument("--write", metavar="FILE", help="store the kernel's numbers")
    options = parser.parse_args()
    kernel(options.repeat, options.write) if options.kernel else paced(options.repeat)


if __name__ == "__main__":
    main()
