"""Count what a rank really asks of its network: every collective of every library, by kind, in bytes.

`Traffic` is a dispatch mode: it sees each `c10d` and functional collective below DDP's buckets, FSDP's hooks, DTensor
and the pipeline schedules, and none of their promises. What happens inside a collective it does not see: the bytes on
the wire follow from the algorithm (`clusterlab.collectives.bytes_sent`). gloo, for one, makes a reduce-scatter out of
an all-reduce and sends twice what NCCL would.
"""

from collections import Counter
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from clusterlab.run.torch_private import TorchDispatchMode, group_of_name, tree_leaves

KINDS = {
    "all-reduce": ("allreduce_", "allreduce_coalesced_", "all_reduce", "all_reduce_", "all_reduce_coalesced"),
    "all-gather": ("allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_",
                   "all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced"),
    "reduce-scatter": ("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_",
                       "reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced"),
    "all-to-all": ("alltoall_", "alltoall_base_", "all_to_all_single", "shard_dim_alltoall"),
    "broadcast": ("broadcast_", "broadcast"),
    "reduce": ("reduce_",),
    "gather": ("gather_",),
    "scatter": ("scatter_",),
    "send": ("send",),
}
QUIET = ("wait_tensor", "barrier", "monitored_barrier_", "recv_", "recv_any_source_", "_wrap_tensor_autograd")
KIND_OF = {operation: kind for kind, operations in KINDS.items() for operation in operations}
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")


@dataclass(frozen=True)
class Call:
    """One collective: its kind, the ranks of its group, the bytes of the *whole* array (as in nccl-tests).

    The whole array of an all-gather is what comes out, of a reduce-scatter what goes in; of a send, the message.
    """

    kind: str
    ranks: tuple[int, ...]
    size: int

    @property
    def sent(self):
        """Bytes each rank sends at best, on average: 2(n-1)/n·S for an all-reduce, S for a send, (n-1)/n·S else."""
        n = len(self.ranks)
        if self.kind == "send":
            return self.size
        return (2 if self.kind == "all-reduce" else 1) * (n - 1) / n * self.size


class Traffic(TorchDispatchMode):
    """`with Traffic() as traffic:` … `traffic.calls`, a list of `Call`; a call within a group of one rank is none."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented                               # let DTensor turn it into local work and collectives
        result = operation(*args, **(kwargs or {}))
        namespace, name = operation._schema.name.split("::")
        if namespace in NAMESPACES and name not in QUIET:
            if name not in KIND_OF:
                raise NotImplementedError(f"{namespace}::{name} is a collective this counter does not know")
            group, whole = members(args), max(tensor_bytes(args), tensor_bytes(result))
            if len(group) > 1 and whole:
                self.calls.append(Call(KIND_OF[name], group, whole))
        return result

    def counts(self):
        return dict(Counter(call.kind for call in self.calls))


def tensor_bytes(values):
    """Largest group of tensors among the arguments: one list for in and one for out, so the whole array is the larger.

    >>> tensor_bytes((torch.zeros(8), [torch.zeros(2), torch.zeros(2)], "sum"))
    32
    """
    return max((sum(t.nbytes for t in tree_leaves(value) if isinstance(t, torch.Tensor))
                for value in (values if isinstance(values, tuple) else (values,))), default=0)


def members(args):
    """Global ranks of the process group among the arguments of a collective, given as object or by name."""
    for value in reversed(args):                                # reversed: (tensor, "sum", …, group name)
        if isinstance(value, str):
            value = group_of_name(value)
        elif isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            value = dist.ProcessGroup.unbox(value)
        if isinstance(value, dist.ProcessGroup):
            return tuple(dist.get_process_group_ranks(value))
    raise NotImplementedError("a collective without a process group among its arguments")
