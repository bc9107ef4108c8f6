"""Run one function on every rank of a torchrun world, or on ranks started here.

    torchrun --nproc-per-node 4 -m clusterlab.run package.module:function size=1000000
    python -m clusterlab.run --ranks 4 package.module:function size=1000000

The function is the one that `launch` takes in a notebook; ``name=value`` become its keyword arguments, values read as
Python literals where they are ones. Rank 0 prints the value of each rank.
"""
import argparse
import ast
import importlib
import os
import sys

import torch.distributed as dist

from .ranks import launch


def _value(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def main(argv=None):
    parser = argparse.ArgumentParser(prog="clusterlab.run", description=__doc__.splitlines()[0])
    parser.add_argument("function", help="module:function")
    parser.add_argument("arguments", nargs="*", metavar="name=value", help="keyword arguments of the function")
    parser.add_argument("--ranks", type=int, help="start so many ranks here; not under torchrun")
    parser.add_argument("--timeout", type=float, default=30, help="seconds a rank waits for another (default 30)")
    options = parser.parse_args(argv)
    module, colon, name = options.function.partition(":")
    if not colon or any("=" not in argument for argument in options.arguments):
        parser.error("want module:function and then name=value …")
    under_torchrun = "WORLD_SIZE" in os.environ
    if under_torchrun == (options.ranks is not None):
        parser.error("want --ranks N, or start me by torchrun, which gives the number of ranks")
    sys.path.insert(0, os.getcwd())
    fn = getattr(importlib.import_module(module), name)
    arguments = {key: _value(text) for key, _, text in (argument.partition("=") for argument in options.arguments)}
    ranks = int(os.environ["WORLD_SIZE"]) if under_torchrun else options.ranks
    values = launch(fn, ranks, timeout=options.timeout, **arguments)
    if os.environ.get("RANK", "0") == "0":
        for rank, value in enumerate(values):
            print(f"[rank {rank}] {value!r}")
    if under_torchrun:
        sys.stdout.flush()
        dist.destroy_process_group()                                # else gloo's threads may outlive the interpreter


if __name__ == "__main__":
    main()
