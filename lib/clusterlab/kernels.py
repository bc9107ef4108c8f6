"""How long one device takes for the kernels of a transformer layer, and a group of devices for a collective.

Two rooflines and two measured shares of them: a matrix product takes the longer of its FLOP at a share of the peak,
in whole waves of tiles, and its bytes at a share of the memory bandwidth; everything else in a layer takes its bytes.
The shares stand in data/calibration.toml, each with its derivation.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import SimpleNamespace

import numpy as np

TILE = (256, 128)  # output elements a thread block computes: the largest tile of NVIDIA's libraries


@dataclass(frozen=True)
class Constants:
    """The four constants of the model: shares of peak, memory bandwidth and link bandwidth, and what overlap costs."""

    matmul: float
    memory: float
    link: float
    overlap: float


@cache
def _tables():
    return tomllib.loads(files("clusterlab").joinpath("data", "calibration.toml").read_text(encoding="utf-8"))


@cache
def constants():
    """The constants as calibrated and measured, for the reference part.

    >>> constants().memory
    0.846
    """
    return Constants(**_tables()["constants"])


def matmul_share(accelerator, use=None):
    """Share of the dense peak that matrix products sustain: the calibrated one, scaled by measured best products.

    >>> from clusterlab.hardware import accelerator
    >>> matmul_share(accelerator("H100 SXM")) < matmul_share(accelerator("A100 SXM 80GB")) == constants().matmul
    True
    """
    best = _tables()["matmul"]
    reference = best[best["reference"]]
    return (use or constants()).matmul * best.get(accelerator.name, reference) / reference


def wave_efficiency(m, n, multiprocessors, batch=1):
    """Share of the multiprocessors' time that is used on `batch` products of output m × n, tile by tile.

    output / (waves · multiprocessors · tile), waves = ceil(batch · tiles / multiprocessors), tiles of 256 × 128 in the
    better orientation. One wave more than full leaves nearly all multiprocessors waiting for a few. Source: NVIDIA,
    "Matrix multiplication background user's guide", wave quantization; without multiprocessors (None) it is 1.

    >>> float(wave_efficiency(256 * 108, 128, 108)), round(float(wave_efficiency(256 * 109, 128, 108)), 3)
    (1.0, 0.505)
    """
    if multiprocessors is None:
        return np.ones(np.broadcast_shapes(np.shape(m), np.shape(n), np.shape(batch)))
    m, n, batch = (np.asarray(x, float) for x in (m, n, batch))

    def used(rows, columns):
        waves = np.ceil(batch * np.ceil(m / rows) * np.ceil(n / columns) / multiprocessors)
        return batch * m * n / (waves * multiprocessors * (rows * columns))

    return np.maximum(used(*TILE), used(*TILE[::-1]))


@dataclass(frozen=True)
class Device:
    """One accelerator as the model sees it: FLOP/s, bytes/s and multiprocessors that training really gets."""

    flops: float
    bandwidth: float
    multiprocessors: int | None

    @classmethod
    def of(cls, accelerator, dtype, use=None):
        """The device behind an accelerator and a dtype; `use` replaces the constants."""
        use = use or constants()
        return cls(accelerator.dense_flops[dtype] * matmul_share(accelerator, use),
                   accelerator.memory_bandwidth * use.memory, _tables()["multiprocessors"].get(accelerator.name))

    def matmul(self, m, n, k, batch=1):
        """Seconds of `batch` products (m × k)·(k × n) in 16 bits: max(2mnk / flops / waves, bytes / bandwidth).

        >>> a100 = Device(flops=250e12, bandwidth=1.7e12, multiprocessors=108)
        >>> round(float(a100.matmul(2048, 12288, 12288)) * 1e3, 2)    # ms
        2.78
        """
        flop = 2.0 * m * n * k * batch
        moved = 2.0 * (m * k + k * n + m * n) * batch
        return np.maximum(flop / (self.flops * wave_efficiency(m, n, self.multiprocessors, batch)),
                          moved / self.bandwidth)

    def linear(self, tokens, inputs, outputs, batch=1):
        """Seconds of a linear layer as (forward, gradient of the input, gradient of the weights)."""
        return np.array(np.broadcast_arrays(self.matmul(tokens, outputs, inputs, batch),
                                            self.matmul(tokens, inputs, outputs, batch),
                                            self.matmul(inputs, outputs, tokens, batch)))

    def stream(self, moved):
        """Seconds to move that many bytes, read plus write."""
        return moved / self.bandwidth


def group_link(cluster, stride, size, use=None):
    """The link of one rank of a group whose ranks are `stride` devices apart, `size` of them: an object for collectives.

    Within a node the scale-up link (through a mesh only the links to the group's peers), beyond it the NICs of the
    group's ranks in a node, at most the scale-up link; each at the share of its bandwidth that collectives reach.
    ``stride`` and ``size`` may be arrays. Raises ValueError for a group that leaves a node without a network.

    >>> from clusterlab.hardware import Cluster, node
    >>> cluster = Cluster(node("DGX A100"), 8)
    >>> [round(float(group_link(cluster, *group).bandwidth / constants().link / 1e9)) for group in [(1, 8), (8, 8), (1, 64)]]
    [300, 25, 200]
    """
    node, share = cluster.node, (use or constants()).link
    stride, size = np.asarray(stride, float), np.asarray(size, float)
    local = np.clip(np.floor(node.devices / stride), 1, size)
    inside = local >= size
    up = node.scale_up.bandwidth * (np.clip(local - 1, 1, None) / max(node.devices - 1, 1)
                                    if node.wiring == "mesh" else 1.0)
    if np.all(inside):
        return SimpleNamespace(bandwidth=up * share * np.ones(inside.shape), latency=node.scale_up.latency)
    if not node.nics:
        raise ValueError(f"{node.name} has no network, and a group of {np.max(size):.0f} ranks does not fit a node")
    nics = local * node.network_bandwidth / node.devices / cluster.oversubscription
    across = np.where(local > 1, np.minimum(nics, up), nics)
    return SimpleNamespace(bandwidth=share * np.where(inside, up, across),
                           latency=np.where(inside, node.scale_up.latency, node.nic.latency))


def hidden(communication, behind, use=None):
    """Seconds by which a collective lengthens the work it hides behind: what sticks out, and what it takes away.

    max(0, communication − behind) + overlap · min(communication, behind).

    >>> round(float(hidden(3.0, behind=2.0, use=Constants(0.8, 0.8, 0.6, overlap=0.25))), 2)
    1.5
    """
    use = use or constants()
    covered = np.minimum(communication, behind)
    return communication - covered + use.overlap * covered
