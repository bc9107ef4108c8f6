"""Read what `nvidia-smi topo -m` prints: which links join two devices of a machine, and how far apart they are.

A cell is ``NV#`` for # NVLinks, else the farthest thing that a message over PCIe passes, nearest first:

    PIX   at most one PCIe bridge (one switch)      PXB   several of them, but not the CPU
    PHB   the CPU's PCIe host bridge                NODE  two host bridges of one NUMA node
    SYS   the link between CPUs

Source of the codes: the legend that the tool prints (older versions wrote SOC for SYS). The cells say where the wires
go; whether the devices may reach each other's memory is another question (`nvidia-smi topo -p2p`).

``data/topo.toml`` keeps the matrices of real machines, each with its source.

>>> bridged = machine("8 × A100 PCIe")
>>> bridged.islands()[0], bridged.farthest(["GPU0", "GPU1"]), bridged.farthest(["GPU0", "GPU1", "GPU2"])
(('GPU0', 'GPU1'), 'NV12', 'NODE')
"""

import difflib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations

import numpy as np

CODES = ("PIX", "PXB", "PHB", "NODE", "SYS")  # without NVLink, nearest first
_OLD = {"SOC": "SYS"}


@dataclass(frozen=True)
class Matrix:
    """The matrix of one machine: ``names`` of its devices, GPUs first, and ``codes``, one tuple a row.

    Errors: ValueError for codes that are no square, not symmetric or unknown, and for a device that is not itself.

    >>> Matrix(("GPU0", "GPU1"), (("X", "NV4"), ("NV4", "X"))).nvlinks
    array([[0, 4],
           [4, 0]])
    """

    names: tuple
    codes: tuple
    machine: str = ""
    source: str = ""
    date: str = ""

    def __post_init__(self):
        if [len(row) for row in self.codes] != [len(self.names)] * len(self.names):
            raise ValueError(f"codes: {len(self.names)} rows of {len(self.names)} are wanted, one for each device")
        for (i, one), (j, other) in combinations(enumerate(self.names), 2):
            code = self.codes[i][j]
            if code != self.codes[j][i]:
                raise ValueError(f"{one} says {code} of {other}, {other} says {self.codes[j][i]} of {one}")
            if code not in CODES and not re.fullmatch(r"NV[1-9]\d*", code):
                raise ValueError(f"{one}, {other}: {code!r} is none of NV#, {', '.join(CODES)}")
        for i, name in enumerate(self.names):
            if self.codes[i][i] != "X":
                raise ValueError(f"{name}: a device is X to itself, not {self.codes[i][i]}")

    @property
    def gpus(self):
        """Names of the GPUs."""
        return tuple(name for name in self.names if name.startswith("GPU"))

    @property
    def nics(self):
        """Names of the network cards."""
        return tuple(name for name in self.names if not name.startswith("GPU"))

    def code(self, one, other):
        """The cell of two devices; LookupError lists the devices there are.

        >>> machine("DGX-1 V100").code("GPU0", "GPU4")
        'NV2'
        """
        for name in (one, other):
            if name not in self.names:
                raise LookupError(f"no device {name!r}; there are {', '.join(self.names)}")
        return self.codes[self.names.index(one)][self.names.index(other)]

    @property
    def nvlinks(self):
        """How many NVLinks join GPU i to GPU j: an array of whole numbers, [GPU, GPU].

        Behind a switch every cell shows *all* links of the GPU, so rows then do not add up to them.
        """
        count = len(self.gpus)
        return np.array([[int(code[2:]) if code.startswith("NV") else 0 for code in row[:count]]
                         for row in self.codes[:count]])

    def islands(self):
        """The groups of GPUs that NVLinks hold together, over other GPUs or directly.

        >>> [len(island) for island in machine("8 × A100 PCIe").islands()]
        [2, 2, 2, 2]
        """
        left, found = set(range(len(self.gpus))), []
        while left:
            group, edge = set(), {min(left)}
            while edge:
                group |= edge
                edge = {j for i in edge for j in np.flatnonzero(self.nvlinks[i]).tolist()} - group
            left -= group
            found.append(tuple(self.gpus[i] for i in sorted(group)))
        return found

    def farthest(self, group):
        """The code of the two devices of a group that are farthest apart, fewest NVLinks counting as farther.

        >>> machine("DGX-1 V100").farthest(["GPU0", "GPU1", "GPU2", "GPU3"])
        'NV1'
        """
        if len(group) < 2:
            raise ValueError(f"group {group!r}: two devices or more are wanted")
        return max((self.code(one, other) for one, other in combinations(group, 2)), key=distance)

    def nearest(self, gpu):
        """The network cards nearest to a GPU, and their code.

        >>> machine("DGX-1 V100").nearest("GPU2")
        (('mlx5_1',), 'PIX')
        """
        if not self.nics:
            raise ValueError(f"{self.machine or 'this machine'}: the matrix shows no network card")
        code = min((self.code(gpu, nic) for nic in self.nics), key=distance)
        return tuple(nic for nic in self.nics if self.code(gpu, nic) == code), code


def distance(code):
    """A number that orders codes, nearest first: NVLinks below 0, more of them nearer; then PIX 1 to SYS 5.

    >>> sorted(["SYS", "PIX", "NV2", "NV12", "PHB"], key=distance)
    ['NV12', 'NV2', 'PIX', 'PHB', 'SYS']
    """
    if code.startswith("NV"):
        return -int(code[2:])
    if code not in CODES:
        raise ValueError(f"code {code!r} is none of NV#, {', '.join(CODES)}")
    return CODES.index(code) + 1


def parse(text, **about):
    """The Matrix in what `nvidia-smi topo -m` prints; the columns after the devices and the legend are passed over.

    ``about`` may give machine, source and date. Errors: ValueError for a text without such a matrix, a device without
    its row, a row that is too short, and what `Matrix` refuses.

    >>> parse('''        GPU0  GPU1  CPU Affinity
    ... GPU0     X    PHB   0-11
    ... GPU1    PHB    X    0-11
    ...
    ... Legend: PHB = …''').code("GPU0", "GPU1")
    'PHB'
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    head = next((line for line in lines if line[0] == "GPU0" and "X" not in line), None)
    if head is None:
        raise ValueError("text: no line begins with GPU0 and names the columns of a matrix")
    names = tuple(head[:head.index("CPU")] if "CPU" in head else head)
    rows = {line[0]: line[1:] for line in lines if line[0] in names and line is not head}
    for name in names:
        if len(rows.get(name, ())) < len(names):
            raise ValueError(f"text: {name} has {len(rows.get(name, ()))} of {len(names)} cells")
    codes = tuple(tuple(_OLD.get(code, code) for code in rows[name][:len(names)]) for name in names)
    return Matrix(names, codes, **about)


@cache
def machines():
    """The recorded matrices, name → Matrix.

    >>> list(machines())[:2]
    ['DGX-1 V100', '8 × A100 SXM']
    """
    table = tomllib.loads(files("clusterlab").joinpath("data", "topo.toml").read_text(encoding="utf-8"))
    return {name: parse(entry.pop("text"), **entry) for name, entry in table.items()}


def machine(name):
    """The recorded matrix `name`; LookupError lists near names.

    >>> len(machine("8 × A100 SXM").gpus)
    8
    """
    if name not in machines():
        near = difflib.get_close_matches(name, machines(), 3, 0.3) or machines()
        raise LookupError(f"no machine {name!r}; near: {', '.join(near)}")
    return machines()[name]
