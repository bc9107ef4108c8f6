"""All that this room takes from torch's private modules, in one place, with one clear error.

They have no promise of staying as they are. Written against torch 2.13; nothing else of the book depends on them.
"""

import torch

try:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed.distributed_c10d import _resolve_process_group as group_of_name
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
except ImportError as error:
    raise ImportError(f"counting collectives and faking ranks needs private parts of torch as in 2.13; "
                      f"torch {torch.__version__} lacks one: {error}") from error

__all__ = ["FSDPMemTracker", "FakeStore", "FakeTensorMode", "MemTracker", "TorchDispatchMode", "group_of_name",
           "storage_id", "tree_leaves"]


def storage_id(storage):
    """What tells one storage from another, also where there is no memory behind it (data_ptr() is 0 on meta)."""
    return storage._cdata
