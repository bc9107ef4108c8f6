"""launch against spawn, and how soon each failure is named.

    python benchmarks/launch.py [--repeat 5]
"""
import argparse
import os
import signal
import sys
import tempfile
import time
from statistics import median

import torch
import torch.distributed as dist
from clusterlab.run import RankError, launch

TIMEOUT = 3                                    # seconds, of the cases that wait for it


def all_reduce():
    x = torch.ones(4)
    dist.all_reduce(x)
    return x[0].item()


def spawned(rank, ranks, path):
    """The same four ranks the usual way: torch.multiprocessing and a store in a file."""
    dist.init_process_group("gloo", store=dist.FileStore(path, ranks), rank=rank, world_size=ranks)
    assert all_reduce() == ranks
    dist.destroy_process_group()


def seconds(call, *args):
    began = time.perf_counter()
    call(*args)
    return time.perf_counter() - began


def spawn(ranks):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(spawned, (ranks, os.path.join(folder, "store")), nprocs=ranks)


def on_rank_2(act):
    def job():
        dist.all_reduce(torch.ones(4))
        if dist.get_rank() == 2:
            act()
        dist.all_reduce(torch.ones(4))
    return job


def other_call():
    dist.broadcast(torch.ones(4), 0)
    time.sleep(60)


FAILURES = {"raises": lambda: 1 / 0, "sys.exit(1)": lambda: sys.exit(1), "os._exit(0)": lambda: os._exit(0),
            "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGABRT": os.abort,
            "frozen (SIGSTOP)": lambda: os.kill(os.getpid(), signal.SIGSTOP), "another collective": other_call,
            "never comes": lambda: time.sleep(60)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    print(f"first launch of 4 ranks     {seconds(launch, all_reduce, 4):8.3f} s")
    warm = {n: median(seconds(launch, all_reduce, n) for _ in range(repeat)) for n in (1, 2, 4, 8)}
    for n, spent in warm.items():
        print(f"warm launch of {n} rank(s)    {spent:8.3f} s")
    slow = median(seconds(spawn, 4) for _ in range(max(1, repeat // 2)))
    print(f"torch.multiprocessing.spawn {slow:8.3f} s   {slow / warm[4]:.0f} x the warm launch (goal 20)")
    for megabytes in (1, 64):
        back = seconds(launch, lambda m=megabytes: torch.ones(m * 250_000), 4)
        print(f"4 results of {megabytes:>3} MB        {back:8.3f} s")
    print(f"\nrank 2 of 4 fails; timeout {TIMEOUT} s")
    for name, act in FAILURES.items():
        began = time.perf_counter()
        try:
            launch(on_rank_2(act), 4, timeout=TIMEOUT)
        except RankError as error:
            print(f"{name:<20}{time.perf_counter() - began:6.2f} s   {error.reason:<10} {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
