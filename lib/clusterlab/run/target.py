"""What a device is and holds: its kind, its memory and caches, and which of its neighbours it reaches directly."""
import contextlib
import os
from pathlib import Path

import torch

from clusterlab.run.device import accelerators, device
from clusterlab.units import GiB


def kind(where=None) -> str:
    """cpu, cuda, rocm, xpu or mps: what `KINDS` lists.

    >>> import torch
    >>> kind(torch.device("cpu"))
    'cpu'
    """
    where = where or device()
    return "rocm" if where.type == "cuda" and torch.version.hip else where.type


def memory(where=None) -> tuple:
    """(free, total) bytes of the device's memory as its driver says; on a CPU, what the system says is available.

    >>> free, total = memory()
    >>> 0 < free <= total
    True
    """
    where = where or device()
    if where.type == "cpu":
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return _available(pages), pages
    if where.type == "mps":
        limit = torch.mps.recommended_max_memory()
        return limit - torch.mps.driver_allocated_memory(), limit
    return tuple(getattr(torch, where.type).mem_get_info(where))


def _available(total):
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as info:
        sizes = dict(line.split(":", 1) for line in info)
        return min(total, int(sizes["MemAvailable"].split()[0]) * 1024)
    return total // 2                                               # macOS: no such count, so a careful guess


def caches(where=None) -> dict:
    """Bytes of each cache that the system reports, {"L1d": …, "L2": …, "L3": …}; of an accelerator its L2; or nothing.

    >>> all(size > 0 for size in caches().values())
    True
    """
    where, found = where or device(), {}
    if where.type != "cpu":
        if where.type == "cuda":
            found["L2"] = getattr(torch.cuda.get_device_properties(where), "L2_cache_size", 0)
        return {name: size for name, size in found.items() if size}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            level, sort, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if sort != "Instruction":
                unit = {"K": 2**10, "M": 2**20, "G": 2**30}[size[-1]]
                found[f"L{level}{'d' if sort == 'Data' else ''}"] = int(size[:-1]) * unit
    return found


def huge_pages():
    """Whether torch's large arrays on a Linux CPU lie on 2 MiB pages; None elsewhere. It doubles some cores' bandwidth.

    The kernel gives them always, or to those who ask, as NumPy does, and torch with THP_MEM_ALLOC_ENABLE=1.

    >>> huge_pages() in (True, False, None)
    True
    """
    with contextlib.suppress(OSError):
        said = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        return "[always]" in said or "[madvise]" in said and os.environ.get("THP_MEM_ALLOC_ENABLE") == "1"


def reaches(a, b) -> bool:
    """Whether device `a` reads the memory of device `b` directly, not through the host.

    >>> import torch
    >>> reaches(torch.device("cpu"), torch.device("cpu"))
    True
    """
    if a.type == "cpu":
        return True
    ask = getattr(getattr(torch, a.type), "can_device_access_peer", None)
    return bool(ask(a.index, b.index)) if ask else False


def devices() -> list:
    """All accelerators of this host, or the CPU when there is none.

    >>> len(devices()) >= 1
    True
    """
    if not accelerators():
        return [torch.device("cpu")]
    sort = torch.accelerator.current_accelerator().type
    return [torch.device(sort)] if sort == "mps" else [torch.device(sort, i) for i in range(accelerators())]


def missing_device() -> str:
    """One sentence if this torch was built for an accelerator and sees none: an old driver, or no device; else "".

    >>> isinstance(missing_device(), str)
    True
    """
    built = torch.version.cuda or torch.version.hip
    if accelerators() or not built:
        return ""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        said = str(error).strip().split(". ")[0].splitlines()[0].rstrip(".")
    else:
        said = "it sees no device"
    name = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return f"This torch is built for {name}, but measures the CPU: {said}."


def identity(where=None) -> dict:
    """What tells this machine from another of the same name: kind, memory in GiB, caches.

    >>> sorted(identity())
    ['caches', 'kind', 'memory_gib']
    """
    where = where or device()
    return {"kind": kind(where), "memory_gib": round(memory(where)[1] / GiB), "caches": caches(where)}
