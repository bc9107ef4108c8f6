"""Experiments on real processes: everything here needs torch.

``from clusterlab.run import launch, Paced, counted, device, synchronize`` loads only what is named.
"""
from importlib import import_module

_NAMES = {  # module: what a lesson takes from it
    "ranks": ["launch", "RankError"],
    "links": ["Paced", "counted", "timed", "step"],
    "kernel_links": ["Shaped"],
    "racing": ["race", "ring_ledger"],
    "sockets": ["burst_seconds"],
    "messages": ["exchange"],
    "uplinks": ["Leaves"],
    "moving": ["send_times", "pipe", "five"],
    "onesided": ["round_trips", "stream", "absent"],
    "composed": ["identities"],
    "calls": ["in_calls"],
    "device": ["device", "synchronize"],
    "parallel": ["train", "compare", "strategies"],
    "trials": ["train_each"],
    "scale": ["shard"],
    "saving": ["save_while_training"],
    "serving": ["Server"],
    "loading": ["feed"],
    "stragglers": ["delayed_steps"],
    "failures": ["train_with_failures", "Fault"],
    "forgetting": ["forget"],
    "quality": ["reach"],
    "survive": ["continue_without"],
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted([*globals(), *_HOME])
