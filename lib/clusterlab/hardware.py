"""Hardware as its makers publish it: look up a link, an accelerator, a node or a piece of network by its exact name.

Three conventions hold for every number, because public tables break each of them:

* A link's bandwidth is *per direction and per device*. "900 GB/s" NVLink 4 is both directions: 450 GB/s here.
* A peak is *dense*. "1,979 TFLOP/s" bf16 of an H100 SXM is with 2:4 sparsity: 989.4 here. No sparse peak is stored.
* ``memory`` is what the driver reports, ``memory_label`` what the data sheet prints. Fit is decided on ``memory``.

The values, each with source, date and a note where sources differ, stand in ``data/accelerators.toml``, ``links.toml``,
``nodes.toml`` and ``prices.toml``; the classes, with public constructors, in :mod:`clusterlab.components`.

>>> h100 = accelerator("H100 SXM")
>>> round(h100.dense_flops["bf16"] / 1e12, 1), h100.scale_up.bandwidth / 1e9
(989.4, 450.0)
>>> round(link("NVLink 4").bandwidth / link("PCIe 5.0 x16").bandwidth, 2)
7.14
"""

import difflib
import math
import re
import tomllib
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from clusterlab.components import Accelerator, Cluster, Link, Node, Peaks, UnknownName, published
from clusterlab.parts import Part
from clusterlab.units import GB, GiB, MiB

__all__ = ["Accelerator", "Cluster", "Link", "Node", "Part", "Peaks", "UnknownName", "accelerator", "accelerators",
           "encoding_efficiency", "link", "links", "node", "nodes", "part", "parts", "published"]


def accelerator(name):
    """The accelerator of that exact name; a shorter name passes where only one part fits, else a LookupError.

    >>> accelerator("H100")
    Traceback (most recent call last):
      ...
    clusterlab.components.UnknownName: accelerator 'H100' could be: 'H100 SXM', 'H100 PCIe', 'H100 NVL'
    """
    return _find("accelerator", name, accelerators())


def link(name):
    """The link of that exact name as one device has it: ``link("NVLink 4")`` is the 18 links of an H100 SXM.

    >>> link("NVLink 4").links, link("NVLink 4").bandwidth
    (18, 450000000000.0)
    """
    return _find("link", name, links())


def node(name):
    """The node of that exact name, for example ``node("DGX H100")``.

    >>> node("DGX H100").devices, node("GB200 NVL72").devices
    (8, 72)
    """
    return _find("node", name, nodes())


def part(name):
    """The piece of network equipment of that exact name, for example ``part("Quantum-2 QM9700")``.

    >>> part("Quantum-2 QM9700").ports
    64
    """
    return _find("part", name, parts())


@cache
def accelerators():
    """All accelerators listed, name → Accelerator; iterating gives the names.

    >>> "TPU v5p" in accelerators(), len({a.vendor for a in accelerators().values()})
    (True, 5)
    """
    return MappingProxyType({name: _accelerator(name, **row) for name, row in _table("accelerators").items()})


@cache
def links():
    """All links listed, name → Link; iterating gives the names.

    >>> "InfiniBand NDR" in links()
    True
    """
    found = {}
    for family in _table("links").values():
        shared = {key: value for key, value in family.items() if not isinstance(value, dict)}
        for name, row in family.items():
            if isinstance(row, dict):
                found |= {made.name: made for made in _links(name, **(shared | row))}
    return MappingProxyType(found)


@cache
def nodes():
    """All nodes listed, name → Node; iterating gives the names.

    >>> "DGX A100" in nodes()
    True
    """
    return MappingProxyType({name: _node(name, **row) for name, row in _table("nodes").items()})


@cache
def parts():
    """The price table, name → Part; iterating gives the names.

    >>> {part.kind for part in parts().values()} <= {"switch", "cable", "nic", "server"}
    True
    """
    return MappingProxyType({name: Part(name, **row | {"link": link(row["link"])})
                             for name, row in _table("prices").items()})


def encoding_efficiency(encoding):
    """Share of the bits on the wire that are data: the product of the ratios that a line code's name contains.

    ``8b/10b`` is 8/10, ``64b/66b`` 64/66, ``256b/257b + RS(544,514)`` 256/257 · 514/544 (IEEE 802.3, clause 119),
    ``FLIT 242/256`` 242/256 (PCIe 6.0: 236 bytes of packets and 6 of link layer in a flit of 256).

    Errors: ValueError for a name without a ratio.

    >>> round(encoding_efficiency("128b/130b"), 4), encoding_efficiency("8b/10b")
    (0.9846, 0.8)
    """
    ratios = [int(data) / int(total) for data, total in re.findall(r"(\d+)b?/(\d+)", encoding)]
    ratios += [int(data) / int(total) for total, data in re.findall(r"RS\((\d+),(\d+)\)", encoding)]
    if not ratios:
        raise ValueError(f"encoding {encoding!r} names no ratio such as 8b/10b, 242/256 or RS(544,514)")
    return math.prod(ratios)


def _table(name):
    return tomllib.loads(files("clusterlab").joinpath("data", f"{name}.toml").read_text(encoding="utf-8"))


def _accelerator(name, *, label_gb=None, label_gib=None, memory_mib=None, scale_up=None, power=None, **row):
    label = label_gb * GB if label_gb else label_gib * GiB
    return Accelerator(name, memory=memory_mib * MiB if memory_mib else label, memory_label=label, power=power,
                       scale_up=link(scale_up) if scale_up else None, **row)


def _links(name, *, widths=(None,), per_link=None, **row):
    """The links of one entry: PCIe is listed once a generation and comes in several widths."""
    for lanes in widths:
        row["lanes"] = lanes or row.get("lanes")
        rate = per_link or row["lanes"] * row["signalling"] * encoding_efficiency(row["encoding"]) / 8
        yield Link(f"{name} x{lanes}" if lanes else name, rate, **row)


def _node(name, *, accelerator, scale_up=None, nic=None, nics=0, shape=None, **row):
    device = accelerators()[accelerator]
    return Node(name, device, scale_up=link(scale_up) if scale_up else device.scale_up,
                nic=link(nic) if nic else None, nics=nics, shape=tuple(shape) if shape else None, **row)


def _find(kind, name, table):
    if name in table:
        return table[name]
    words = _words(name)
    fits = [part for part in table if words and words <= _words(part)]
    if len(fits) == 1:
        return table[fits[0]]
    if fits:
        raise UnknownName(f"{kind} {name!r} could be: {', '.join(map(repr, fits))}")
    near = difflib.get_close_matches(str(name), table, n=4, cutoff=0.4) or list(table)
    raise UnknownName(f"no {kind} {name!r}; near names: {', '.join(map(repr, near))}; {kind}s() lists all")


def _words(name):
    return set(re.findall(r"[a-z0-9.]+", str(name).lower()))
