"""Number formats as the device really computes them: range and spacing, what underflows, what gets stuck, what saturates.

Each experiment has a result known exactly beforehand; a device that gives another one is worth knowing about.
Sources: IEEE 754-2019; Micikevicius et al., "Mixed precision training", arXiv:1710.03740, sections 3.1 to 3.3;
Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433, table 1.
"""
import torch

from clusterlab.run.device import device
from clusterlab.run.timing import attempt

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
           "fp8 e4m3": torch.float8_e4m3fn, "fp8 e5m2": torch.float8_e5m2}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _format(name):
    if name not in FORMATS:
        raise ValueError(f"format is {name!r}: want one of {', '.join(FORMATS)}")
    return FORMATS[name]


def values(name, where=None):
    """All finite values ≥ 0 of an 8 or 16 bit format, ascending, in fp32: every bit pattern is read on the device.

    Raises ValueError for a wider format, which has too many.

    >>> values("fp8 e4m3")[-1].item(), len(values("fp8 e4m3")), len(values("fp8 e5m2"))
    (448.0, 127, 124)
    """
    dtype = _format(name)
    if dtype.itemsize > 2:
        raise ValueError(f"format is {name!r}: want one of 8 or 16 bits")
    patterns = torch.arange(2 ** (8 * dtype.itemsize - 1), device=where or device()).to(_BITS[dtype.itemsize])
    every = patterns.view(dtype).float()
    return every[every.isfinite()].sort().values


def table(where=None) -> list:
    """Range and spacing: rows with bits, largest, smallest normal and subnormal value, spacing at 1 and at 1000.

    Found among the values themselves (fp32: by stepping its bit pattern), not asked of torch.finfo.

    >>> [(row["format"], row["largest"], row["spacing_at_1"]) for row in table()][1:3]
    [('bf16', 3.3895313892515355e+38, 0.0078125), ('fp16', 65504.0, 0.0009765625)]
    """
    return [attempt(lambda: _limits(name, where or device()), what="table", format=name) for name in FORMATS]  # noqa: B023


def _limits(name, where):
    if name == "fp32":
        bits = torch.tensor([0x7F7FFFFF, 0x00800000, 1, 0x3F800001, 0x447A0001], dtype=torch.int32, device=where)
        largest, normal, subnormal, after_1, after_1000 = bits.view(torch.float32).cpu().double().tolist()
        at_1, at_1000 = after_1 - 1, after_1000 - 1000
    else:
        every = values(name, where).cpu().double()
        largest, subnormal = every[-1].item(), every[1].item()
        steps = every.diff()
        normal = every[:-1][steps > subnormal][0].item() / 2        # where spacing first doubles is twice the smallest
        at_1, at_1000 = (steps[every[:-1] <= x][-1].item() if largest > x else None for x in (1.0, 1000.0))
    return {"what": "table", "format": name, "bits": 8 * FORMATS[name].itemsize, "largest": largest,
            "smallest_normal": normal, "smallest_subnormal": subnormal, "spacing_at_1": at_1, "spacing_at_1000": at_1000}


def loss_scaling(where=None, *, gradient=2.0**-27, scale=2.0**16) -> dict:
    """A small gradient through an fp16 layer, without and with a scaled loss: lost, or recovered to the last bit.

    The layer is y = w·x in fp16 with an fp32 weight. Values below 2⁻²⁵ round to 0, above it to a multiple of 2⁻²⁴; the
    loss is multiplied by `scale` before backward(), the gradient of the fp32 weight divided by it after.

    >>> loss_scaling()["plain"], loss_scaling()["scaled"] == 2.0**-27
    (0.0, True)
    """
    def backward(factor):
        w = torch.ones((), device=where, requires_grad=True)
        y = w.half() * torch.full((), 2.0**-10, device=where, dtype=torch.float16)       # dy/dw
        (y.float() * (gradient * 2.0**10) * factor).backward()
        return w.grad.item() / factor
    where = where or device()
    return {"what": "loss scaling", "gradient": gradient, "scale": scale, "plain": backward(1.0), "scaled": backward(scale)}


def backoff(where=None, *, scale=2.0**24) -> dict:
    """A dynamic loss scale that is too large: the gradient overflows, the step is skipped, the scale halved, as
    torch.amp.GradScaler does it. Counts the steps until one is taken: scale·x ≤ 65504 wants scale < 2¹⁶ for x = 1.

    >>> result = backoff()
    >>> result["skipped_steps"], result["final_scale"], result["weight"]
    (9, 32768.0, -1.0)
    """
    where = where or device()
    weight = torch.zeros((), device=where, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler(where.type, init_scale=scale)
    skipped = 0
    while True:
        optimizer.zero_grad()
        scaler.scale(weight.half().float()).backward()              # the gradient passes through fp16 on its way back
        scaler.step(optimizer)
        scaler.update()
        if weight.item() != 0 or skipped > 64:
            return {"what": "backoff", "initial_scale": scale, "final_scale": scaler.get_scale(), "skipped_steps": skipped,
                    "weight": weight.item()}
        skipped += 1


def master_weights(where=None, *, steps=1000, update=1e-3) -> dict:
    """A weight of 1 gets `steps` small updates, kept in bf16, and in bf16 beside an fp32 master copy.

    Above 1 the next bf16 value is 2⁻⁷ away, so an update below half of that, 2⁻⁸ = 0.0039, rounds away every time.

    >>> result = master_weights()
    >>> result["bf16"], result["bf16_of_master"]
    (1.0, 2.0)
    """
    where = where or device()
    plain = torch.ones((), device=where, dtype=torch.bfloat16)
    master = torch.ones((), device=where)
    for _ in range(steps):
        plain += update
        master += update
    return {"what": "master weights", "steps": steps, "update": update, "bf16": plain.item(), "master": master.item(),
            "bf16_of_master": master.bfloat16().item()}


def accumulation(where=None, *, terms=4096) -> list:
    """The sum of `terms` ones: added one by one in a format, by torch.sum, and as a dot product.

    A running sum with a significand of p bits sticks at 2^p: 256 in bf16, 2048 in fp16. Libraries accumulate in fp32.

    >>> [(row["format"], row["one_by_one"], row["sum"]) for row in accumulation()]
    [('bf16', 256.0, 4096.0), ('fp16', 2048.0, 4096.0), ('fp32', 4096.0, 4096.0)]
    """
    where = where or device()

    def row(name):
        ones = torch.ones(terms, device=where, dtype=FORMATS[name])
        total = torch.zeros((), device=where, dtype=FORMATS[name])
        for _ in range(terms):
            total += 1
        return {"what": "accumulation", "format": name, "terms": terms, "one_by_one": total.item(),
                "sum": ones.sum().item(), "dot": (ones[None] @ ones[:, None]).item()}
    return [attempt(lambda: row(name), what="accumulation", format=name) for name in ("bf16", "fp16", "fp32")]  # noqa: B023


def cast(numbers, name, *, saturate=True, scale=1.0):
    """Round numbers to a format and back to fp32, first multiplied by `scale`, then divided: how fp8 training casts.

    `saturate` clamps to ± the largest value, as OCP's saturating conversion does; without it torch decides (older ones
    give NaN in e4m3, which has no infinity).

    >>> import torch
    >>> cast(torch.tensor([1.06, 449.0, 1e6]), "fp8 e4m3").tolist()
    [1.0, 448.0, 448.0]
    """
    dtype = _format(name)
    scaled = numbers.float() * scale
    if saturate:
        limit = torch.finfo(dtype).max
        scaled = scaled.clamp(-limit, limit)
    return scaled.to(dtype).float() / scale


def casts(where=None) -> list:
    """fp8 casts: what becomes of a number that is too large, too small, half way, and how far others are rounded.

    Rows with format; overflow (of 1e6, saturated, and as torch casts it), underflow (of half the smallest), tie (1 plus
    half a spacing, to even), and the largest relative error of normal numbers: at most half a spacing, 2⁻⁴ and 2⁻³.

    >>> [(row["format"], row["saturated"], row["tie"]) for row in casts()]
    [('fp8 e4m3', 448.0, 1.0), ('fp8 e5m2', 57344.0, 1.0)]
    """
    where = where or device()

    def row(name, half):
        too_large = torch.tensor([1e6], device=where)
        limits = _limits(name, where)
        tiny = torch.tensor([limits["smallest_subnormal"] / 2, 1 + half], device=where)
        x = torch.logspace(-1.5, 2, 4096, device=where)
        error = ((cast(x, name) - x).abs() / x).max().item()
        plain = cast(too_large, name, saturate=False).item()
        return {"what": "fp8 cast", "format": name, "saturated": cast(too_large, name).item(),
                "unsaturated": str(plain), "underflow": cast(tiny, name)[0].item(), "tie": cast(tiny, name)[1].item(),
                "largest_error": error}
    return [attempt(lambda: row(name, half), what="fp8 cast", format=name)  # noqa: B023
            for name, half in (("fp8 e4m3", 2.0**-4), ("fp8 e5m2", 2.0**-3))]


def formats(where=None, *, quick=False) -> list:
    """All experiments of this module on one device, as rows.

    >>> sorted({row["what"] for row in formats()})
    ['accumulation', 'backoff', 'fp8 cast', 'loss scaling', 'master weights', 'table']
    """
    alone = (("loss scaling", loss_scaling), ("backoff", backoff), ("master weights", master_weights))
    return [*table(where), *(attempt(lambda: run(where), what=what) for what, run in alone),  # noqa: B023
            *accumulation(where), *casts(where)]
