"""Experiments on real processes: everything here needs torch.

``from clusterlab.run import launch, Paced, counted, device, synchronize`` loads only what is named.
"""
from importlib import import_module

_HOME = {"launch": "ranks", "RankError": "ranks", "Paced": "links", "counted": "links", "timed": "links", "step": "links",
         "Shaped": "kernel_links", "race": "racing", "ring_ledger": "racing", "device": "device", "synchronize": "device"}


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted([*globals(), *_HOME])
