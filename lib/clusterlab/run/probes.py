"""Measure this machine and keep it as lessons/measurements/<name>.json; see clusterlab.recorded for what was never run.

    python -m clusterlab.run.probes                        (make measure)
    torchrun --nproc-per-node 8 -m clusterlab.run --timeout 600 clusterlab.run.probes:run

Each probe is a function that returns rows of plain numbers: `what`, its parameters, the work (`bytes` or `flops`),
`median`, `lowest`, `highest` seconds of so many `repeats`, and `rate` = work ÷ median. What a device can not do is a row
with one sentence, `skipped`.
"""
import argparse
import datetime
import json
import os
import platform
import re
from pathlib import Path

import torch
import torch.distributed as dist

from clusterlab.recorded import folder
from clusterlab.run import collective_probe, copy_probe, formats, latency_probe, matmul_probe, memory_probe
from clusterlab.run.device import accelerators, describe
from clusterlab.run.roofline import datasheet, measured_peaks, roofline
from clusterlab.run.target import huge_pages, identity, missing_device
from clusterlab.run.timing import attempt
from clusterlab.units import format_bytes, format_flops, format_rate, format_seconds


def _copies(*, quick):
    return copy_probe.host_copies(quick=quick) + copy_probe.peer_copies(quick=quick)


PROBES = {"memory": memory_probe.bandwidth, "matmul": matmul_probe.matmul, "latency": latency_probe.latency,
          "copies": _copies, "collectives": collective_probe.collectives, "formats": formats.formats}

_SAME = ("device", "cores", "devices", "kind", "memory_gib", "caches")     # what makes two records one machine's
_MEASURED = ("median", "lowest", "highest", "rate", "best", "bus")


def measure(probes=tuple(PROBES), *, quick=False) -> dict:
    """Run the named probes (or one, or "memory,matmul") on this machine: the record that `store` keeps.

    In a world of ranks (torchrun) all of them take part in the collectives; the rest is rank 0's, and the others get {}.
    Raises ValueError for an unknown probe.

    >>> record = measure("latency", quick=True)
    >>> list(record["probes"]), record["quick"]
    (['latency'], True)
    """
    chosen = probes.split(",") if isinstance(probes, str) else list(probes)
    for probe in chosen:
        if probe not in PROBES:
            raise ValueError(f"probes has {probe!r}: want some of {', '.join(PROBES)}")
    busy = round(os.getloadavg()[0] / (os.cpu_count() or 1), 1) if hasattr(os, "getloadavg") else None
    found = {}
    for probe in sorted(chosen, key=lambda name: name != "collectives"):                # all ranks are needed only there
        if probe == "collectives" or not dist.is_initialized() or dist.get_rank() == 0:
            rows = attempt(lambda: PROBES[probe](quick=quick), what=probe)  # noqa: B023
            found[probe] = rows if isinstance(rows, list) else [rows]
    if dist.is_initialized() and dist.get_rank() != 0:
        return {}
    record = {"what": "device probes", **describe(), "devices": max(1, accelerators()), **identity(),
              "python": platform.python_version(), "threads": torch.get_num_threads(),
              "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "busy": busy,
              "huge_pages": huge_pages(), "quick": quick,
              "command": f"python -m clusterlab.run.probes{'' if set(chosen) == set(PROBES) else ' ' + ' '.join(chosen)}",
              "note": missing_device(), "datasheet": None, "probes": {name: found[name] for name in chosen}}
    if sheet := datasheet(record["device"]):
        record["datasheet"] = {"name": sheet.name, "memory_bandwidth": sheet.memory_bandwidth,
                               "dense_flops": dict(sheet.dense_flops), "source": sheet.source, "date": sheet.date}
    if {"memory", "matmul"} <= set(chosen):
        record["roofline"] = attempt(lambda: roofline(record), what="roofline")
    return record


def name_of(record) -> str:
    """The file name of a machine, without host or user: its device, and how many cores or devices there are.

    >>> name_of({"device": "AMD EPYC", "kind": "cpu", "cores": 2, "devices": 1})
    'amd-epyc-2-cores'
    >>> name_of({"device": "NVIDIA H100 80GB HBM3", "kind": "cuda", "cores": 96, "devices": 8})
    'nvidia-h100-80gb-hbm3-8-devices'
    """
    plain = re.sub(r"\((R|TM)\)|@.*$|\bCPU\b|Processor", " ", record["device"], flags=re.IGNORECASE)
    count, unit = (record["cores"], "core") if record["kind"] == "cpu" else (record["devices"], "device")
    return re.sub(r"[^a-z0-9]+", "-", f"{plain} {count} {unit}{'s' * (count > 1)}".lower()).strip("-")


def same_machine(a, b) -> bool:
    """Whether two records may be of one machine: same device, cores, number of devices, memory and caches.

    >>> same_machine({"device": "x", "cores": 2}, {"device": "x", "cores": 2, "date": "later"})
    True
    """
    return all(a.get(key) == b.get(key) for key in _SAME)


def store(record, *, name=None, where=None) -> Path:
    """Write a record to <where>/<name>.json, where it replaces an older one of the same machine only.

    Without a name it is `name_of(record)`, with -2, -3, … if that is another machine's. Raises FileExistsError when a
    given name is another machine's, or when the older record has probes that this one lacks.

    >>> import tempfile
    >>> record = {"device": "AMD EPYC", "kind": "cpu", "cores": 2, "devices": 1, "probes": {}}
    >>> with tempfile.TemporaryDirectory() as place:
    ...     [store(record, where=place).stem, store(record | {"memory_gib": 9}, where=place).stem]
    ['amd-epyc-2-cores', 'amd-epyc-2-cores-2']
    """
    where = Path(where or folder())
    stem, number = name or name_of(record), 1
    while True:
        path = where / f"{stem}{'' if number == 1 else f'-{number}'}.json"
        old = json.loads(path.read_text("utf-8")) if path.exists() else None
        if old is None or same_machine(old, record):
            break
        if name:
            raise FileExistsError(f"name is {name!r}: that file is another machine's ({old.get('device')}); choose another")
        number += 1
    lost = set(old["probes"] if old else ()) - set(record["probes"])
    if lost:
        raise FileExistsError(f"{path.name} also has {', '.join(sorted(lost))}: measure these too, or choose another name")
    where.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".json.new")
    new.write_text(text(record), "utf-8")
    os.replace(new, path)
    return path


def text(record) -> str:
    """The record as JSON, one row a line; measured numbers with four digits, exact ones as they are.

    >>> print(text({"probes": {"x": [{"rate": 1.23456}]}}), end="")
    {
     "probes": {
      "x": [
       {"rate": 1.235}
      ]
     }
    }
    """
    def rows(value, indent):
        pad = " " * indent
        if isinstance(value, dict) and (not indent or any(isinstance(v, list) for v in value.values())):
            inner = ",\n".join(f"{pad} {json.dumps(k)}: {rows(v, indent + 1)}" for k, v in value.items())
            return f"{{\n{inner}\n{pad}}}"
        if isinstance(value, list) and value:
            return "[\n" + ",\n".join(f"{pad} {json.dumps(_rounded(row))}" for row in value) + f"\n{pad}]"
        return json.dumps(value)
    return rows(record, 0) + "\n"


def _rounded(row):
    return {key: float(f"{value:.4g}") if key in _MEASURED and isinstance(value, float) else value
            for key, value in row.items()}


def summary(record) -> str:
    """A few lines on a record: bandwidth, peaks, latency, beside the data sheet where there is one.

    >>> summary({"device": "x", "date": "2026-01-01", "probes": {}, "datasheet": None, "busy": None, "note": ""})
    'x, 2026-01-01'
    """
    probes, lines = record["probes"], [f"{record['device']}, {record['date']}"]
    sheet = record["datasheet"] or {"memory_bandwidth": None, "dense_flops": {}}
    if record["note"]:
        lines.append(record["note"])
    if record["busy"] and record["busy"] > 0.5:
        lines.append(f"{record['busy']} processes wanted each core at the start: measure again when the machine is quiet.")
    if "roofline" in record and isinstance(record["roofline"], list):
        bandwidth, peaks = measured_peaks(record)
        lines.append(f"memory         {format_rate(bandwidth)}{_share(bandwidth, sheet['memory_bandwidth'])}")
        lines += [f"matmul {dtype:<8}{format_flops(rate)}/s{_share(rate, sheet['dense_flops'].get(dtype))}"
                  for dtype, rate in peaks.items()]
    for row in probes.get("latency", []) + [r for p in ("copies", "collectives") for r in probes.get(p, [])[-1:]]:
        if "median" in row:
            lines.append(f"{row['what']:<15}{format_seconds(row['median'])}"
                         + (f" for {format_bytes(row['bytes'])}" if "bytes" in row else ""))
    named = {f"{row['what']} {row.get('dtype', row.get('format', ''))}".strip(): row["skipped"]
             for rows in probes.values() for row in rows if "skipped" in row}
    return "\n".join(lines + [f"not run: {name}. {why}" for name, why in named.items()])


def _share(value, published):
    return f"  {value / published:.2f} of the data sheet" if published else ""


def run(probes=tuple(PROBES), *, quick=False, name=None, where=None) -> str:
    """Measure, store, and print a summary; returns the file's name. On ranks above 0 only the measuring.

    >>> import contextlib, io, tempfile
    >>> with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()) as printed:
    ...     name = run("latency", quick=True, name="here", where=place)
    >>> name, "round trip" in printed.getvalue()
    ('here.json', True)
    """
    record = measure(probes, quick=quick)
    if not record:
        return ""
    path = store(record, name=name, where=where)
    print(summary(record))
    return path.name


def main(argv=None):
    parser = argparse.ArgumentParser(prog="clusterlab.run.probes", description=__doc__.splitlines()[0])
    parser.add_argument("probes", nargs="*", help=f"some of {', '.join(PROBES)}; all if none is named")
    parser.add_argument("--name", help="of the file; default: device and number of cores")
    parser.add_argument("--where", help="folder; default: lessons/measurements")
    parser.add_argument("--quick", action="store_true", help="seconds, to see that it works: small sizes, few repeats")
    options = parser.parse_args(argv)
    if options.quick and not options.where:
        parser.error("a quick run is no measurement: want --where FOLDER with --quick")
    print("wrote", run(options.probes or tuple(PROBES), quick=options.quick, name=options.name, where=options.where))


if __name__ == "__main__":
    main()
