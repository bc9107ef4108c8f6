"""All device checks on a machine with one or more GPUs, in at most eight minutes: the record, and ratios to the vendor.

    python benchmarks/gpu_check.py [--where FOLDER] [--minutes 8]

1. every probe; the record is written to <where>/<device>.json (default: lessons/measurements) as soon as all are done;
2. our rates ÷ those of the vendor's library called directly, past torch (cuBLAS, cudaMemcpy, NCCL), and ÷ the data sheet;
3. the numerics against those of the CPU, event times ÷ wall clock, and each parallelism on the devices that are here.

Whatever fails is one line, and the next check goes on. Without an accelerator it says so and ends.
"""
import argparse
import ctypes
import re
import time
from pathlib import Path

import torch
from clusterlab import recorded
from clusterlab.run import copy_probe, formats, matmul_probe, memory_probe, parallel, probes, timing
from clusterlab.run.device import accelerators, device
from clusterlab.run.ranks import launch
from clusterlab.run.target import kind, missing_device
from clusterlab.units import GiB, MiB, format_flops, format_rate

BEGAN = time.monotonic()
SIZE = int(GiB)                                # bytes of a large copy
CUBLAS = {"fp32": (0, 68), "tf32": (0, 77), "fp16": (2, 68), "bf16": (14, 68)}     # cudaDataType, cublasComputeType_t


def say(text):
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def ratio(what, ours, theirs, name, show=format_rate):
    mark = "   below 0.95" if ours < 0.95 * theirs and name != "data sheet" else ""
    say(f"{what:<28}{show(ours):>16}   ÷ {name} {show(theirs):>16} = {ours / theirs:5.3f}{mark}")


def library(pattern):
    """A shared library that torch has loaded already, opened for calls from here."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split()[-1]
        if re.search(pattern, path):
            return ctypes.CDLL(path)
    raise RuntimeError(f"no library {pattern} is loaded")


def checked(code):
    if code:
        raise RuntimeError(f"the vendor's library answers with error {code}")


def cublas_product(n, dtype, where):
    """The call cublasGemmEx(n×n by n×n), in the stream and with the handle that torch uses; and what it wrote."""
    gemm = library(r"/libcublas\.so").cublasGemmEx
    a, b = (torch.randn(n, n, device=where).to(matmul_probe.DTYPES[dtype]) for _ in range(2))
    c = torch.empty_like(a)
    sort, compute = CUBLAS[dtype]
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (b, a, c)]
    integer = ctypes.c_int

    def call():
        # column-major: b·a there is a·b here, with our row-major matrices; b is read transposed, as the probe's is
        checked(gemm(handle, integer(1), integer(0), integer(n), integer(n), integer(n), ctypes.byref(one),
                     pointers[0], integer(sort), integer(n), pointers[1], integer(sort), integer(n), ctypes.byref(zero),
                     pointers[2], integer(sort), integer(n), integer(compute), integer(-1)))
    call()
    torch.cuda.synchronize()
    error = (c.float() - a.float() @ b.float().t()).abs().max().item() / n**0.5
    if error > 0.05:
        raise RuntimeError(f"cublasGemmEx was called wrongly: the product is off by {error:.2g}")
    return call


def runtime_copy(size, where, source, target):
    """The call cudaMemcpyAsync (hipMemcpyAsync) of `size` bytes in torch's stream."""
    prefix, pattern = ("hip", r"/libamdhip64\.so") if torch.version.hip else ("cuda", r"/libcudart[.-]")
    copy = getattr(library(pattern), f"{prefix}MemcpyAsync")
    sort = {(False, False): 3, (True, False): 1, (False, True): 2}[source.device.type == "cpu", target.device.type == "cpu"]
    stream = torch.cuda.current_stream(where).cuda_stream
    arguments = (ctypes.c_void_p(target.data_ptr()), ctypes.c_void_p(source.data_ptr()), ctypes.c_size_t(size),
                 ctypes.c_int(sort), ctypes.c_void_p(stream))
    return lambda: checked(copy(*arguments))


def matmul_ratios(record, where):
    for dtype in CUBLAS:
        rows = [row for row in record["probes"]["matmul"] if row["dtype"] == dtype and "rate" in row and row["m"] == row["n"]]
        if rows and kind(where) == "cuda":
            best = max(rows, key=lambda row: row["rate"])
            n = best["n"]
            call = cublas_product(n, dtype, where)
            # alternating, so that the clock of a device that gets warm is the same for both
            theirs, ours = [], []
            with matmul_probe.precision(dtype):
                mine = matmul_probe.product(n, n, n, dtype, where)
                for _ in range(5):
                    theirs.append(timing.timed(call, where, budget=0.2)["median"])
                    ours.append(timing.timed(mine, where, budget=0.2)["median"])
            ratio(f"matmul {dtype} {n}", 2 * n**3 / min(ours), 2 * n**3 / min(theirs), "cuBLAS", lambda x: format_flops(x) + "/s")
    if kind(where) != "cuda":
        say("matmul: no vendor library is called directly on this kind of device")


def copy_ratios(where):
    if where.type != "cuda":
        return say("copies: no vendor library is called directly on this kind of device")
    there = torch.ones(SIZE // 2, dtype=torch.uint8, device=where)
    call, moved = memory_probe.copying(SIZE, where)
    ours = timing.timed(call, where)["median"]
    theirs = timing.timed(runtime_copy(SIZE // 2, where, there, torch.empty_like(there)), where)["median"]
    ratio("copy on the device", moved / ours, SIZE / theirs, "memcpy")
    size = int(256 * MiB)
    host = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    rows = {row["what"]: row for row in copy_probe.host_copies(where) if row.get("pinned") and row["bytes"] == size}
    for what, source, goal in (("host to device", host, there[:size]), ("device to host", there[:size], host)):
        theirs = timing.timed(runtime_copy(size, where, source, goal), where, also=(where,))["median"]
        ratio(f"{what}, pinned", rows[what]["rate"], size / theirs, "memcpy")


def collective_ratios(record):
    rows = [row for row in record["probes"]["collectives"] if row.get("backend") == "nccl"]
    if not rows:
        return say("collectives: they need two devices")
    tensors = [torch.zeros(rows[-1]["bytes"] // 4, device=f"cuda:{i}") for i in range(rows[-1]["ranks"])]
    where = [x.device for x in tensors]
    # one process that drives all devices, as nccl-tests does: no torch.distributed in between
    theirs = timing.timed(lambda: torch.cuda.nccl.all_reduce(tensors), where[0], also=where[1:])["median"]
    ratio("all-reduce, algbw", rows[-1]["rate"], rows[-1]["bytes"] / theirs, "NCCL")


def datasheet_ratios(record):
    sheet = record["datasheet"]
    if sheet is None:
        return say(f"{record['device']!r} is not in the catalogue: no data sheet to compare with")
    bandwidth, peaks = probes.measured_peaks(record)
    ratio("memory bandwidth", bandwidth, sheet["memory_bandwidth"], "data sheet")
    for dtype, rate in peaks.items():
        if dtype in sheet["dense_flops"]:
            ratio(f"matmul {dtype}", rate, sheet["dense_flops"][dtype], "data sheet", lambda x: format_flops(x) + "/s")


def numerics(record):
    """Rows of the formats that differ from the CPU's."""
    cpu = {recorded.check(row) + row.get("format", ""): row for row in formats.formats(torch.device("cpu"))}
    for row in record["probes"]["formats"]:
        other = cpu[recorded.check(row) + row.get("format", "")]
        different = [key for key in row if row[key] != other.get(key)]
        if different:
            say(f"{row['what']} {row.get('format', '')}: " + ", ".join(
                f"{key} {row[key]} here, {other.get(key)} on the CPU" for key in different))
    say("numerics compared with the CPU's: a line above for each difference")


def clocks(where):
    """A run of some 50 ms by events and by the wall clock: the two must agree."""
    call = memory_probe.copying(SIZE, where)[0]
    timing.timed(call, where)
    events, wall = timing.lap(call, 100, where), timing.lap(call, 100, where, (where,))
    say(f"event time ÷ wall clock        {events / wall:.4f}")


def parallelisms(until):
    """Each parallelism on as many devices as there are, at most four: the losses beside those of one process."""
    ranks = min(4, accelerators())
    for strategy in parallel.strategies():
        if time.monotonic() > until:
            return say("no time left for the other parallelisms")
        attempt(strategy, train, strategy, ranks)


def train(strategy, ranks):
    result = parallel.train(strategy, ranks)
    say(f"{strategy:<14}{ranks} rank(s): losses off by {result.deviation:.1e} from one process, calls {result.counts()}")


def attempt(name, check, *arguments):
    try:
        check(*arguments)
    except Exception as error:  # noqa: BLE001 (every check gets its turn)
        say(f"{name}: FAILED: {type(error).__name__}: {timing.sentence(error)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--where", help="folder of the record")
    parser.add_argument("--minutes", type=float, default=8)
    options = parser.parse_args()
    if not accelerators():
        print(missing_device() or "No accelerator here: nothing to check.")
        return
    where = device()
    say(f"{accelerators()} × {where}, {kind(where)}, torch {torch.__version__}")
    record = probes.measure()
    say(f"wrote {probes.store(record, where=options.where).name}")
    print(probes.summary(record))
    attempt("data sheet", datasheet_ratios, record)
    attempt("matmul", matmul_ratios, record, where)
    attempt("copies", copy_ratios, where)
    attempt("collectives", collective_ratios, record)
    attempt("numerics", numerics, record)
    attempt("clocks", clocks, where)
    attempt("launch", lambda: say(f"launch: {launch(lambda: torch.ones(2, device=device()).sum().item(), accelerators())}"))
    attempt("parallelisms", parallelisms, BEGAN + 60 * options.minutes - 60)
    left = recorded.never_run(options.where).get(kind(where), {})
    say(f"not run on {kind(where)} yet: {left or 'nothing'}")


if __name__ == "__main__":
    main()
