"""The same array in one call or in many: what a call costs besides its bytes."""
import torch
import torch.distributed as dist

from . import allreduce
from .links import paced, timed
from .moving import ELEMENT
from .ranks import launch


def in_calls(ranks: int, size: float, counts, link=None, *, repeats: int = 1) -> dict:
    """Seconds to all-reduce `size` bytes by ring, in each of the given numbers of calls one after the other; {calls: s}.

    `link` is what `race` takes. The sum is compared with `dist.all_reduce`; RuntimeError if it differs. Raises
    ValueError for a size that is no whole number of float32 elements, or more calls than elements.

    >>> list(in_calls(2, 800, [1, 4]))
    [1, 4]
    """
    elements = int(size) // ELEMENT
    if size != ELEMENT * elements or any(not 1 <= count <= elements for count in counts):
        raise ValueError(f"size={size}, counts={counts}: want whole float32 elements, and 1 to that many calls")
    return launch(_calls, ranks, elements, list(counts), repeats, link=paced(link))[0]


def _calls(elements, counts, repeats):
    start = torch.arange(elements, dtype=torch.float32) % 97 + dist.get_rank()
    expected = start.clone()
    dist.all_reduce(expected)
    found = {}
    for count in counts:
        laps = []
        for _ in range(repeats):
            x = start.clone()
            laps.append(timed(_one_by_one, x.tensor_split(count)))
            if not torch.equal(x, expected):
                raise RuntimeError(f"rank {dist.get_rank()}: {count} calls gave another sum")
        found[count] = min(laps)
    return found


def _one_by_one(pieces):
    for piece in pieces:
        allreduce.ring(piece)
