"""What storage and the host must deliver so that accelerators never wait: samples, loaders, bursts and copies.

A loader prepares batches with `workers` processes while the accelerator computes; storage takes a checkpoint now and
then and gives it back to all ranks at once; and a byte on its way to the accelerator may cross the host's memory.

>>> step_seconds(0.5, 1.5), step_seconds(0.5, 1.5, workers=2), step_seconds(0.5, 1.5, workers=4)
(2.0, 0.75, 0.5)
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

import numpy as np

CROSSINGS = {   # how often the host's memory is written or read for each byte that goes from storage to an accelerator
    "direct": 0,                # GPUDirect Storage: the drive, or the network card, writes the accelerator's memory
    "pinned": 2,                # the drive writes a pinned buffer, the accelerator reads it
    "buffered": 4,              # the drive writes the page cache, a core copies into a pinned buffer
    "pageable": 6,              # the same into a plain buffer, which the driver copies into a pinned one
}


@dataclass(frozen=True)
class Workload:
    """What one accelerator asks for: samples of so many bytes, so many of them in each step of so many seconds."""

    name: str
    sample: float               # bytes in storage
    batch: int                  # samples a step, for one accelerator
    step: float                 # seconds of a step that never waits
    decoded: float = 0.0        # bytes after decoding, where stated
    source: str = ""
    date: str = ""

    @property
    def samples_per_second(self):
        return self.batch / self.step

    @property
    def bandwidth(self):
        """Bytes/s that storage must read for it."""
        return required_bandwidth(self.sample, self.batch, self.step)


@dataclass(frozen=True)
class Storage:
    """What a storage delivers, as published: bytes/s read by all its `units` (servers, drives) together."""

    name: str
    read: float
    units: int
    unit: str
    peak: float | None = None   # bytes/s where the source tells sustained from peak
    port: float | None = None   # bytes/s of the network cards of one unit, one direction
    source: str = ""
    date: str = ""

    @property
    def per_unit(self):
        return self.read / self.units


@cache
def workloads():
    """The benchmarked workloads by name, from ``data/workloads.toml``.

    >>> sorted(workloads())
    ['3D U-Net', 'CosmoFlow', 'ResNet-50']
    """
    return {name: Workload(name, **row) for name, row in _data("workloads").items()}


def workload(name):
    """The workload `name`; LookupError lists what there is.

    >>> round(workload("3D U-Net").bandwidth / 1e9, 2)                         # GB/s for one H100
    3.18
    """
    if name not in workloads():
        raise LookupError(f"no workload {name!r}; there are {', '.join(workloads())}")
    return workloads()[name]


@cache
def storages():
    """The published storages by name, from ``data/storages.toml``.

    >>> round(storages()["Tectonic"].per_unit / 1e6)                           # MB/s of one server
    267
    """
    return {name: Storage(name, **row) for name, row in _data("storages").items()}


def storage(name):
    """The storage `name`; LookupError lists what there is.

    >>> round(storage("3FS").per_unit / storage("3FS").port, 2)                # of its network cards
    0.81
    """
    if name not in storages():
        raise LookupError(f"no storage {name!r}; there are {', '.join(storages())}")
    return storages()[name]


def required_bandwidth(sample, batch, step, accelerators=1):
    """Bytes/s of reading that keep so many accelerators busy: accelerators × batch × sample ÷ step.

    `sample` in bytes, `batch` samples for each accelerator, `step` in seconds. Raises ValueError for values that are not
    above 0.

    >>> required_bandwidth(100e3, 400, 0.2, accelerators=8) / 1e9
    1.6
    """
    _above_zero(sample=sample, batch=batch, step=step, accelerators=accelerators)
    return accelerators * batch * sample / step


def step_seconds(step, load, *, workers=0, cpu=0.0, cores=None):
    """Seconds from one step to the next, in the long run: step + load in turn, else max(step, load ÷ workers, cpu ÷ cores).

    `load` is what one worker takes for a batch, of which `cpu` seconds keep a core busy; `cores` are those that all
    workers share, None for one each. Without workers the loop itself loads. Raises ValueError for negative values, no
    core, or a load shorter than its CPU time.

    >>> step_seconds(0.025, 0.060, workers=4), step_seconds(0.025, 0.060, workers=4, cpu=0.060, cores=1)
    (0.025, 0.06)
    """
    if min(step, load, workers, cpu) < 0 or (cores is not None and cores < 1) or cpu > load:
        raise ValueError(f"step={step}, load={load}, workers={workers}, cpu={cpu}, cores={cores}: values from 0, a core "
                         "or more, and no more CPU time than load are allowed")
    if not workers:
        return step + load
    return max(step, load / workers, cpu / cores if cores else 0.0)


def workers_needed(step, load):
    """Workers with which loading is never slower than the steps: ⌈load ÷ step⌉, 1 or more.

    >>> workers_needed(0.025, 0.060), workers_needed(0.5, 0.1)
    (3, 1)
    """
    _above_zero(step=step)
    if load < 0:
        raise ValueError(f"load={load}: seconds from 0 are allowed")
    return max(1, ceil(load / step * (1 - 1e-12)))


def cores_needed(samples_per_second, cpu_seconds):
    """Cores that prepare so many samples a second: samples a second × CPU seconds a sample.

    >>> cores_needed(2000, 5e-3)
    10.0
    """
    if samples_per_second < 0 or cpu_seconds < 0:
        raise ValueError(f"samples_per_second={samples_per_second}, cpu_seconds={cpu_seconds}: values from 0 are allowed")
    return samples_per_second * cpu_seconds


def waits(loads, step, *, workers, ahead=2, started=0.0):
    """Seconds that each step waits for its batch: an array as long as `loads`, the seconds each batch takes a worker.

    As in torch's DataLoader, batch i belongs to worker i mod `workers`, comes in order, and is begun when the worker is
    free and batch i − ahead·workers has been taken. A worker begins at `started`. Raises ValueError for negative
    seconds, or less than one worker or batch ahead.

    >>> waits([60, 60, 60, 60], 25, workers=2).tolist()
    [60.0, 0.0, 10.0, 0.0]
    """
    loads = np.asarray(loads, float)
    if loads.ndim != 1 or np.any(loads < 0) or min(step, started) < 0 or workers < 1 or ahead < 1:
        raise ValueError(f"step={step}, workers={workers}, ahead={ahead}, started={started}, loads={loads}: seconds from "
                         "0, one worker and one batch ahead or more are allowed")
    done, taken = np.zeros(len(loads)), np.zeros(len(loads))
    for i, load in enumerate(loads):
        free = done[i - workers] if i >= workers else started
        asked = taken[i - ahead * workers] if i >= ahead * workers else 0.0
        done[i] = max(free, asked) + load
        taken[i] = max(done[i], taken[i - 1] + step if i else 0.0)
    return taken - np.concatenate([[0.0], taken[:-1] + step])


def checkpoint_bytes(parameters, recipe):
    """Bytes of a checkpoint: parameters × (weight + master + moments). Gradients are not kept.

    `recipe` as in `clusterlab.memory`: the 16-bit recipes give 14 bytes a parameter.

    >>> from clusterlab.memory import FP32, MIXED_16
    >>> checkpoint_bytes(1e9, MIXED_16) / 1e9, checkpoint_bytes(1e9, FP32) / 1e9
    (14.0, 12.0)
    """
    _above_zero(parameters=parameters)
    return parameters * (recipe.weight + recipe.master + recipe.moments)


def busy_share(size, bandwidth, interval):
    """Share of the time in which storage of `bandwidth` bytes/s writes, if `size` bytes come every `interval` seconds.

    Raises ValueError where the writes would pile up.

    >>> busy_share(5e12, 1e12, 1000.0)
    0.005
    """
    _above_zero(size=size, bandwidth=bandwidth, interval=interval)
    if size / bandwidth > interval:
        raise ValueError(f"size={size}, bandwidth={bandwidth}, interval={interval}: writing takes {size / bandwidth:g} s, "
                         "longer than the interval")
    return size / bandwidth / interval


def restart_bytes(parameters, recipe, replicas, *, share=False):
    """Bytes that all ranks of a job read at a restart: each replica its weights, and masters and moments once.

    parameters · (weight · replicas + master + moments), for an optimizer that is sharded over the replicas. With
    `share` one replica reads and passes the weights on over the network: then it is the checkpoint, once.

    >>> from clusterlab.memory import MIXED_16
    >>> restart_bytes(1e9, MIXED_16, 64) / 1e9, restart_bytes(1e9, MIXED_16, 64, share=True) / 1e9
    (140.0, 14.0)
    """
    _above_zero(parameters=parameters, replicas=replicas)
    return parameters * (recipe.weight * (1 if share else replicas) + recipe.master + recipe.moments)


def memory_traffic(rate, path):
    """Bytes/s that a stream of `rate` bytes/s from storage to accelerators moves in the host's memory, by `path`.

    CROSSINGS[path] × rate: each copy through the host's memory writes and reads it once. Caches are not counted on.
    Raises LookupError for an unknown path, ValueError for a negative rate.

    >>> memory_traffic(25e9, "pageable") / 1e9, memory_traffic(25e9, "direct")
    (150.0, 0.0)
    """
    if path not in CROSSINGS:
        raise LookupError(f"no path {path!r}; there are {', '.join(CROSSINGS)}")
    if np.any(np.asarray(rate) < 0):
        raise ValueError(f"rate={rate}: bytes/s from 0 are allowed")
    return rate * float(CROSSINGS[path])


def feed_rate(path, *, storage, ports, memory):
    """(what binds, bytes/s): the least of what storage reads, all accelerators' ports take and the host's memory lets by.

    `storage` and `ports` are bytes/s in one direction; `memory` is the host's bandwidth, reads plus writes, that is
    free for it. Raises ValueError for values that are not above 0.

    >>> feed_rate("pageable", storage=100e9, ports=500e9, memory=300e9)
    ('memory', 50000000000.0)
    >>> feed_rate("direct", storage=100e9, ports=500e9, memory=300e9)
    ('storage', 100000000000.0)
    """
    _above_zero(storage=storage, ports=ports, memory=memory)
    crossings = memory_traffic(1.0, path)
    limits = {"storage": storage, "ports": ports, "memory": memory / crossings if crossings else np.inf}
    least = min(limits, key=limits.get)
    return least, limits[least]


def _data(name):
    return tomllib.loads((Path(__file__).parent / "data" / f"{name}.toml").read_text("utf-8"))


def _above_zero(**values):
    for name, value in values.items():
        if not np.all(np.asarray(value) > 0):
            raise ValueError(f"{name}={value}: more than 0 is allowed")
