"""Judge a student's tensor-parallel layer: run it on ranks with slices of the matrices, count its collectives."""

import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from .judge import _launched

TOKENS, HIDDEN = 6, 8
CALLS = ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter",
         "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "send", "isend", "all_gather_object", "all_gather_single",
         "reduce_scatter_single", "all_reduce_coalesced", "all_gather_coalesced", "batch_isend_irecv")


@dataclass(frozen=True)
class LayerTrial:
    """What a layer did: `outputs` by rank as nested lists, `right` as it must be, `calls` of rank 0: [function, bytes]."""
    outputs: list
    right: list
    calls: list

    @property
    def fault(self) -> str:
        """The first wrong element in words; empty when every rank has the whole result."""
        for rank, output in enumerate(self.outputs):
            if [len(row) for row in output] != [len(row) for row in self.right]:
                return f"on rank {rank} the result is not {len(self.right)} × {len(self.right[0])}"
            for row, (mine, want) in enumerate(zip(output, self.right)):
                for column, (a, b) in enumerate(zip(mine, want)):
                    if a != b:
                        return f"{len(self.outputs)} ranks: on rank {rank} element [{row}, {column}] is {a:g}, and it is {b:g}"
        return ""


def mlp_trial(fn, ranks, ffn, *, backward=False, seconds=10):
    """Run fn(x, a, b) on each rank; x [6, 8] is whole, a [8, ffn/ranks] and b [ffn/ranks, 8] the rank's slices.

    Right is relu(x A) B of the whole matrices; with `backward` fn takes a gradient g [6, 8] of that, too, and right is
    the gradient of x. All are whole numbers in float64, so that sums are exact in any order. A LayerTrial. Raises Fault
    as `clusterlab.run.judge.answer` does.

    >>> mlp_trial(lambda x, a, b: (x @ a).relu() @ b, 1, 4).fault
    ''
    """
    answers = _launched(fn, _layer, ranks, [ffn, backward], seconds)
    return LayerTrial([output for output, _ in answers], _right(ffn, backward).tolist(), answers[0][1])


def _whole(ffn):
    draw = torch.Generator().manual_seed(ffn)
    return [torch.randint(-4, 5, size, generator=draw).double() for size in
            ((TOKENS, HIDDEN), (HIDDEN, ffn), (ffn, HIDDEN), (TOKENS, HIDDEN))]


def _right(ffn, backward):
    x, a, b, g = _whole(ffn)
    hidden = x @ a
    return ((g @ b.T) * (hidden > 0)) @ a.T if backward else hidden.relu() @ b


def _layer(fn, given):
    ffn, backward = given
    x, a, b, g = _whole(ffn)
    mine = slice(dist.get_rank() * ffn // dist.get_world_size(), (dist.get_rank() + 1) * ffn // dist.get_world_size())
    arguments = [x, a[:, mine].contiguous(), b[mine].contiguous()] + ([g] if backward else [])
    with counted_calls() as calls:
        result = fn(*arguments)
    if not isinstance(result, torch.Tensor) or result.dim() != 2:
        raise TypeError("want a tensor of two dimensions")
    return result.detach().double().tolist(), calls


@contextlib.contextmanager
def counted_calls():
    """Within it, every function of torch.distributed that sends is noted: [name, bytes of its largest argument]."""
    calls, originals = [], {name: getattr(dist, name) for name in CALLS if hasattr(dist, name)}

    def noting(name, function):
        def noted(*args, **kwargs):
            values = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor | list | tuple)]
            calls.append([name, max((_bytes(v) for v in values), default=0)])
            return function(*args, **kwargs)
        return noted

    for name, function in originals.items():
        setattr(dist, name, noting(name, function))
    try:
        yield calls
    finally:
        for name, function in originals.items():
            setattr(dist, name, function)


def _bytes(value):
    return value.nbytes if isinstance(value, torch.Tensor) else sum(_bytes(v) for v in value if isinstance(v, torch.Tensor))
