"""What was measured on named machines, lessons/measurements/*.json, and what never was on real hardware.

The records of device probes are written by ``make measure`` (:mod:`clusterlab.run.probes`).
"""

import json
from pathlib import Path

KINDS = ("cpu", "cuda", "rocm", "xpu", "mps")
_ALL, _DEVICES = KINDS, KINDS[1:]
CHECKS = {                                     # what each probe shows, and on which kinds of device it can
    "memory": {"read": _ALL, "copy": _ALL, "triad": _ALL},
    "matmul": {"matmul fp32": _ALL, "matmul tf32": ("cuda",), "matmul bf16": _ALL, "matmul fp16": _DEVICES,
               "matmul fp8": ("cpu", "cuda", "rocm", "xpu")},
    "latency": {"submit": _ALL, "back to back": _ALL, "round trip": _ALL},
    "copies": {"host to device": _DEVICES, "device to host": _DEVICES, "peer": ("cuda", "rocm", "xpu")},
    "collectives": {"all-reduce gloo": ("cpu",), "all-reduce nccl": ("cuda", "rocm"), "all-reduce xccl": ("xpu",)},
    "formats": {"table": _ALL, "loss scaling": _ALL, "backoff": _ALL, "master weights": _ALL, "accumulation": _ALL,
                "fp8 cast": ("cpu", "cuda", "rocm", "xpu")}}


def folder() -> Path:
    """lessons/measurements of this repository, or of the working directory where the package is installed elsewhere.

    >>> folder().name
    'measurements'
    """
    for root in (Path(__file__).parents[2], Path.cwd(), Path.cwd().parent):
        if (root / "lessons").is_dir():
            return root / "lessons" / "measurements"
    return Path.cwd() / "measurements"


def measurements(where=None) -> dict:
    """All stored records of device probes, name → record; other files of the folder are left out.

    >>> isinstance(measurements(), dict)
    True
    """
    records = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(Path(where or folder()).glob("*.json"))}
    return {name: record for name, record in records.items() if record.get("what") == "device probes"}


def check(row) -> str:
    """The check that a row of a record belongs to: what, number format, backend.

    >>> check({"what": "matmul", "dtype": "bf16", "rate": 1e14})
    'matmul bf16'
    """
    return " ".join(filter(None, (row["what"], row.get("dtype"), row.get("backend"))))


def never_run(where=None) -> dict:
    """What no stored measurement shows on real hardware: {kind of device: {probe: [checks]}}, empty when nothing is left.

    A check counts as run when a complete (not `quick`) record of that kind has a row of it that was not skipped.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as nothing:
    ...     never_run(nothing)["mps"]["copies"]
    ['host to device', 'device to host']
    """
    run = {(record["kind"], probe, check(row)) for record in measurements(where).values() if not record["quick"]
           for probe, rows in record["probes"].items() for row in rows if "skipped" not in row}
    left = {kind: {probe: [name for name, kinds in checks.items()
                           if kind in kinds and (kind, probe, name) not in run]
                   for probe, checks in CHECKS.items()} for kind in KINDS}
    return {kind: rest for kind, probes in left.items() if (rest := {p: names for p, names in probes.items() if names})}
