"""The software stack as a map: which layer answers which question, and which tool solves what, and what not.

``data/stack.toml`` holds the layers, from the cluster down to the device, and the tools with their sources.

>>> from clusterlab import stack
>>> stack.tool("NCCL").layer, [one.name for one in stack.tools("launch")]
('communicate', ['torchrun', 'Ray'])
"""

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Layer:
    """One layer: the question it answers, and the complaints with which one comes to it (``ask``)."""

    key: str
    name: str
    question: str
    ask: tuple


@dataclass(frozen=True)
class Tool:
    """One tool: its layer, what it solves, what it does not (``limits``), and the names of the tools it speaks to."""

    name: str
    layer: str
    solves: str
    limits: str
    speaks: tuple
    source: str
    date: str


@cache
def layers():
    """All layers from the top down: a tuple of :class:`Layer`.

    >>> [layer.name for layer in layers()][:3]
    ['allocate', 'launch', 'divide']
    """
    return tuple(Layer(key, row["name"], row["question"], tuple(row["ask"])) for key, row in _data()["layer"].items())


@cache
def tools(layer=None):
    """All tools from the top down, or those of the layer with that key: a tuple of :class:`Tool`.

    Raises LookupError for an unknown layer.

    >>> [one.name for one in tools("drive")]
    ['CUDA', 'ROCm']
    """
    keys = [one.key for one in layers()]
    if layer not in (None, *keys):
        raise LookupError(f"layer {layer!r}: must be one of {', '.join(keys)}")
    found = (Tool(row["name"], row["layer"], row["solves"], row["not"], tuple(row["speaks"]), row["source"],
                  row["date"]) for row in _data()["tool"].values())
    return tuple(sorted((one for one in found if layer in (None, one.layer)), key=lambda one: keys.index(one.layer)))


def tool(name):
    """The tool of that exact name; LookupError lists near names.

    >>> tool("Slurm").speaks
    ('torchrun', 'MPI', 'Ray')
    """
    names = {one.name: one for one in tools()}
    if name not in names:
        near = difflib.get_close_matches(str(name), names, 3, 0.4) or names
        raise LookupError(f"no tool {name!r}; near: {', '.join(near)}")
    return names[name]


def path(start, end):
    """The shortest way from one tool to another through what each speaks to, both included; () if there is none.

    >>> path("Slurm", "NCCL")
    ('Slurm', 'torchrun', 'PyTorch', 'NCCL')
    """
    tool(end)
    ways = [(tool(start).name,)]
    for way in ways:  # grows as it is read; nothing speaks upwards, so it ends
        if way[-1] == end:
            return way
        ways += [(*way, name) for name in tool(way[-1]).speaks]
    return ()


@cache
def _data():
    return tomllib.loads((Path(__file__).parent / "data" / "stack.toml").read_text("utf-8"))
