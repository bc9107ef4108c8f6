"""The roofline of a measured machine: its points, the roof they draw, and the data sheet's roof where it is known."""
import tomllib
from functools import cache
from importlib.resources import files

from clusterlab.components import Accelerator
from clusterlab.compute import attainable_flops
from clusterlab.hardware import accelerator


@cache
def _reported():
    return tomllib.loads(files("clusterlab").joinpath("data", "reported_names.toml").read_text(encoding="utf-8"))


def datasheet(device):
    """The catalogue's entry for a device as its driver names it, or None for one that is not listed there.

    >>> datasheet("NVIDIA H100 80GB HBM3").name, datasheet("AMD EPYC")
    ('H100 SXM', None)
    """
    name = _reported().get(device)
    return accelerator(name) if name else None


def measured_peaks(record):
    """(bandwidth, {dtype: FLOP/s}) as measured: copy or triad on the largest working set, the best product of each format.

    Medians, so what the machine does, not what it once did; on a CPU those of one core, which is what a rank has.
    Raises ValueError without memory and matmul rows.

    >>> bandwidth, peaks = measured_peaks({"probes": {
    ...     "memory": [{"what": "copy", "working_set": 64, "rate": 9.0}, {"what": "copy", "working_set": 128, "rate": 2.0}],
    ...     "matmul": [{"dtype": "fp32", "rate": 7.0}, {"dtype": "fp8", "skipped": "No."}]}})
    >>> bandwidth, peaks
    (2.0, {'fp32': 7.0})
    """
    memory, products = (_done(record, probe) for probe in ("memory", "matmul"))
    streams = [row for row in memory if row["what"] in ("copy", "triad")]
    if not streams or not products:
        raise ValueError("record has no copy or triad row, or no matmul row: measure memory and matmul")
    largest = max(row["working_set"] for row in streams)
    peaks = {}
    for row in products:
        peaks[row["dtype"]] = max(row["rate"], peaks.get(row["dtype"], 0.0))
    return max(row["rate"] for row in streams if row["working_set"] == largest), peaks


def _done(record, probe):
    return [row for row in record["probes"].get(probe, []) if "rate" in row and row.get("threads", 1) == 1]


def roofline(record) -> list:
    """One row a measured product: dtype, intensity = flops ÷ bytes, rate, the measured roof and the data sheet's there.

    roof = min(peak, intensity · bandwidth) (Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785). Small
    products lie above the measured roof where caches hold them. `datasheet` is None where the sheet has no such peak.

    >>> rows = roofline({"device": "NVIDIA H100 PCIe", "probes": {
    ...     "memory": [{"what": "copy", "working_set": 64, "rate": 1.5e12}],
    ...     "matmul": [{"dtype": "bf16", "m": 1, "n": 9, "k": 9, "flops": 200.0, "bytes": 100, "rate": 2.5e12}]}})
    >>> rows[0]["intensity"], rows[0]["roof"], rows[0]["datasheet"]
    (2.0, 2500000000000.0, 4000000000000.0)
    """
    bandwidth, peaks = measured_peaks(record)
    here = Accelerator("measured", "here", memory=1, memory_label=1, memory_bandwidth=bandwidth, dense_flops=peaks,
                       power=None, scale_up=None)
    sheet, rows = datasheet(record["device"]), []
    for row in _done(record, "matmul"):
        intensity, dtype = row["flops"] / row["bytes"], row["dtype"]
        known = sheet and sheet.dense_flops.get(dtype)
        rows.append({"dtype": dtype, **{x: row[x] for x in "mnk"}, "intensity": intensity, "rate": row["rate"],
                     "roof": attainable_flops(intensity, here, dtype),
                     "datasheet": attainable_flops(intensity, sheet, dtype) if known else None})
    return rows


def plot(record, ax):
    """Draw the roofline on logarithmic axes: points measured, solid roofs as measured, dashed ones of the data sheet.

    >>> import matplotlib.pyplot as plt
    >>> ax = plot({"device": "x", "probes": {"memory": [{"what": "copy", "working_set": 64, "rate": 1e9}],
    ...     "matmul": [dict(dtype="fp32", m=1, n=1, k=1, flops=2, bytes=12, rate=1e6)]}}, plt.figure().gca())
    >>> len(ax.lines), plt.close()
    (2, None)
    """
    rows = sorted(roofline(record), key=lambda row: row["intensity"])
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        mine = [row for row in rows if row["dtype"] == dtype]
        x = [row["intensity"] for row in mine]
        (points,) = ax.loglog(x, [row["rate"] for row in mine], "o", label=dtype)
        ax.loglog(x, [row["roof"] for row in mine], "-", color=points.get_color())
        if mine[0]["datasheet"]:
            ax.loglog(x, [row["datasheet"] for row in mine], "--", color=points.get_color())
    ax.set_xlabel("intensity, FLOP per byte of memory moved")
    ax.set_ylabel("FLOP/s")
    ax.legend()
    return ax
