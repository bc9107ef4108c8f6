"""Which device a rank computes on: CUDA, ROCm, XPU or MPS if torch sees one, else the CPU."""
import importlib
import os
import platform
import sys
import types

import torch
import torch.distributed as dist


def accelerators() -> int:
    """How many accelerators torch sees on this host; 0 on a CPU (and with a torch too old to ask).

    >>> accelerators() >= 0
    True
    """
    api = getattr(torch, "accelerator", None)                  # torch.accelerator raises on a CPU build: ask first
    return api.device_count() if api is not None and api.is_available() else 0


def default_backend(ranks: int) -> str:
    """The backend of `ranks` ranks on this host: the device's own when each rank has a device, else gloo on CPU."""
    if 0 < ranks <= accelerators():
        kind = torch.accelerator.current_accelerator().type
        backend = dist.get_default_backend_for_device(kind) if kind != "mps" else "gloo"
        return backend if dist.is_backend_available(backend) else "gloo"
    return "gloo"


def device() -> torch.device:
    """The device to put tensors on: this rank's accelerator, or the CPU.

    Inside a process group on gloo it is the CPU, whatever the machine holds, because gloo moves host memory.

    >>> import torch
    >>> torch.ones(2, device=device()).sum().item()
    2.0
    """
    if not accelerators() or (dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo"):
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator().type
    return torch.device(kind) if kind == "mps" else torch.device(kind, torch.accelerator.current_device_index())


def synchronize() -> None:
    """Wait until all work queued on `device()` is done; on a CPU there is nothing to wait for.

    >>> synchronize()
    """
    if device().type != "cpu":
        torch.accelerator.synchronize()


def describe() -> dict:
    """Device, driver and software in words, for a stored measurement: no host name, no path.

    >>> sorted(describe())
    ['cores', 'device', 'driver', 'kernel', 'torch']
    """
    where, driver = device(), "none"
    if where.type == "cuda":
        name = torch.cuda.get_device_name(where)
        driver = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}, {_nvidia_driver()}"
    elif where.type == "xpu":
        props = torch.xpu.get_device_properties(where)
        name, driver = props.name, getattr(props, "driver_version", "unknown")
    else:
        name = _cpu_name() if where.type == "cpu" else f"{where.type}, {platform.machine()}"
    return {"device": name, "driver": driver, "cores": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "kernel": f"{platform.system()} {platform.release().split('-')[0]}", "torch": torch.__version__}


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _nvidia_driver() -> str:
    try:
        with open("/proc/driver/nvidia/version") as version:
            words = version.readline().split()
        return "driver " + next(word for word in words if word[0].isdigit() and "." in word)
    except (OSError, StopIteration):
        return "driver unknown"


class _Callable(types.ModuleType):
    """Once imported, this module hides the function of its name in `clusterlab.run`: calling either is the same."""

    def __call__(self):
        return device()

    def __reduce__(self):
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Callable
