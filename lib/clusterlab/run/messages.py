"""Messages between ranks, all at once: what a wiring carries for one pair, for one rank to all, for all to all."""
import torch
import torch.distributed as dist

from .links import step, timed
from .ranks import launch


def exchange(flows, ranks: int, link=None, *, repeats: int = 3) -> float:
    """Seconds until all messages of `flows`, [(from, to, bytes)], started together, have arrived: the fastest of laps.

    `link` is None (bare) or a `Paced`. What arrives is compared with what was sent. Raises ValueError for a message to
    oneself, to nobody, of no bytes, or a pair named twice; RuntimeError if other bytes arrive.

    >>> exchange([(0, 1, 1000)], 2, repeats=1) < 10
    True
    """
    flows = [(int(src), int(dst), int(size)) for src, dst, size in flows]
    for src, dst, size in flows:
        if src == dst or not {src, dst} <= set(range(ranks)) or size < 1:
            raise ValueError(f"flow {(src, dst, size)}: two ranks of 0 to {ranks - 1} and 1 byte or more are allowed")
    if not flows or len({flow[:2] for flow in flows}) < len(flows):
        raise ValueError(f"flows {flows}: at least one, and each pair once, is allowed")
    seconds, right = zip(*launch(_laps, ranks, flows, repeats, link=link), strict=True)
    if not all(right):
        raise RuntimeError("other bytes arrived than were sent")
    return seconds[0]


def _laps(flows, repeats):
    """On each rank: (seconds of the fastest lap, whether what arrived is what was sent)."""
    rank = dist.get_rank()
    sends = [(torch.full((size,), src, dtype=torch.uint8), dst) for src, dst, size in flows if src == rank]
    recvs = [(torch.full((size,), 255, dtype=torch.uint8), src) for src, dst, size in flows if dst == rank]
    best = min(timed(step, sends, recvs) for _ in range(repeats))
    return best, all(bool((tensor == src).all()) for tensor, src in recvs)
