"""Matrix multiplication by number format and shape: how near a device comes to its peak, and from which size on."""
import contextlib

import torch

from clusterlab.run.device import device
from clusterlab.run.target import kind, memory
from clusterlab.run.timing import attempt, counts, rated, threads, timed

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
          "fp8": torch.float8_e4m3fn}
_TOO_LONG = 2.0                                # seconds of one call: larger ones are left out


def unsupported(dtype, where) -> str:
    """Why a format is not tried on a device, in one sentence; "" if it is. What only a trial can tell is tried.

    >>> import torch
    >>> unsupported("tf32", torch.device("cpu")), unsupported("bf16", torch.device("cpu"))
    ('tf32 is a mode of NVIDIA tensor cores, from Ampere (2020) on.', '')
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}: want one of {', '.join(DTYPES)}")
    if dtype == "tf32" and (kind(where) != "cuda" or torch.cuda.get_device_capability(where) < (8, 0)):
        return "tf32 is a mode of NVIDIA tensor cores, from Ampere (2020) on."
    if dtype == "fp16" and where.type == "cpu":
        return "Without fp16 units a CPU takes a hundred times as long as for fp32: that says nothing about a device."
    if dtype == "fp8" and where.type == "mps":
        return "torch has no fp8 on MPS."
    return ""


def traffic(m, n, k, dtype) -> int:
    """Bytes that an m×k by k×n product must move at least: both factors read, the product written once.

    An fp8 product is written in bf16.

    >>> traffic(64, 64, 64, "bf16"), traffic(64, 64, 64, "fp8")
    (24576, 16384)
    """
    size = DTYPES[dtype].itemsize
    return (m * k + k * n) * size + m * n * max(size, 2)


def storage(dtype, where):
    """The torch dtype that holds a format on a device. MI300 computes on the e4m3 without infinities and -0 ("fnuz").

    >>> import torch
    >>> storage("tf32", torch.device("cpu"))
    torch.float32
    """
    if dtype == "fp8" and kind(where) == "rocm" and "gfx94" in torch.cuda.get_device_properties(where).gcnArchName:
        return torch.float8_e4m3fnuz
    return DTYPES[dtype]


@contextlib.contextmanager
def precision(dtype):
    """fp32 products exactly as fp32, or on tensor cores as tf32; the old setting comes back.

    >>> with precision("tf32"):
    ...     torch.get_float32_matmul_precision()
    'high'
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def product(m, n, k, dtype, where):
    """The call that multiplies an m×k by a k×n matrix of that format, and returns the m×n product.

    >>> import torch
    >>> product(16, 32, 64, "fp32", torch.device("cpu"))().shape
    torch.Size([16, 32])
    """
    generator = torch.Generator(where).manual_seed(0)               # random: zeros would draw less power, and run faster
    a, b = (torch.randn(rows, k, device=where, generator=generator).to(storage(dtype, where)) for rows in (m, n))
    b = b.t()                                                       # column-major, as fp8 wants it
    if dtype != "fp8":
        out = torch.empty(m, n, device=where, dtype=storage(dtype, where))
        return lambda: torch.matmul(a, b, out=out)
    one = torch.ones((), device=where)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def shapes(where=None, *, quick=False) -> list:
    """(m, n, k): squares by size, then thin ones on one large weight, whose intensity runs from a vector's upwards.

    >>> import torch
    >>> shapes(torch.device("cpu"), quick=True)
    [(64, 64, 64), (128, 128, 128), (256, 256, 256), (16, 256, 256)]
    """
    where = where or device()
    first, last = (64, 256) if quick else (64, 2048) if where.type == "cpu" else (256, 16384)
    squares = [(2**p,) * 3 for p in range(first.bit_length() - 1, last.bit_length())]
    weight = 256 if quick else 2048 if where.type == "cpu" else 8192
    return squares + [(m, weight, weight) for m in ((16,) if quick else (16, 64, 256, 1024))]


def matmul(where=None, *, dtypes=tuple(DTYPES), shapes=None, quick=False) -> list:
    """Rate of m×k by k×n products: rows with dtype, m, n, k, flops = 2mnk, bytes, seconds, rate in FLOP/s.

    A format that the device lacks gives one row that says so. On a CPU one thread runs them, as on a rank of `launch`,
    and the largest square once more with all threads. Raises ValueError for an unknown format.

    >>> row = matmul(dtypes=["fp32"], shapes=[(64, 64, 64)], quick=True)[0]
    >>> row["flops"], row["bytes"]
    (524288, 49152)
    """
    where, rows = where or device(), []
    for dtype in dtypes:
        if why := unsupported(dtype, where):
            rows.append({"what": "matmul", "dtype": dtype, "skipped": why})
            continue
        slow = float("inf")                                         # flops from which one call takes too long
        chosen = shapes or globals()["shapes"](where, quick=quick)
        for shape in chosen:
            flops, size = 2 * shape[0] * shape[1] * shape[2], traffic(*shape, dtype)
            named = {"what": "matmul", "dtype": dtype, **dict(zip("mnk", shape, strict=True))}
            if flops >= slow or size > memory(where)[0] / 4:
                rows.append({**named, "skipped": "It would take too long here." if flops >= slow else
                             "The device has too little free memory for it."})
                continue
            for count in counts(where, shape == max(chosen)):
                with threads(count):
                    rows.append(attempt(lambda: _row(named, flops, size, where, count, quick), **named))  # noqa: B023
            if "skipped" in rows[-1]:
                break                                               # said once
            if rows[-1]["median"] * 8 > _TOO_LONG:
                slow = min(slow, flops * 8)
    return rows


def _row(named, flops, size, where, count, quick):
    with precision(named["dtype"]):
        call = product(*(named[x] for x in "mnk"), named["dtype"], where)
        seconds = timed(call, where, repeats=3 if quick else 101, budget=0.01 if quick else 0.5)
    more = {"threads": count} if count else {}
    return rated(seconds, **named, flops=flops, bytes=size, **more)
