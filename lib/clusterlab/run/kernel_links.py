"""Links shaped by the kernel, the check of the paced ones: each rank in a network namespace of its own behind `tc tbf`.

Linux, root, `ip` and `tc`. n namespaces hang on a bridge in one more; their packets never leave these n+1, and all of
them are deleted when the launch ends, however it ends.
"""
import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

import torch.distributed as dist

_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Shaped:
    """As `link` of a launch: every rank's way in and way out shaped by the kernel to `bandwidth` bytes/s.

    `burst` is the depth of the token bucket in bytes: so much passes unshaped after a pause, so send much more. Default
    10 ms of the bandwidth, at least 64 KiB. A shallower bucket overflows whenever the kernel gets the processor a tick
    too late, and the tokens lost then are lost for good: at 50 MB/s on a busy two-core machine a ring took twice its
    time with 64 KiB. TCP/IP headers take 66 of each 1,514 bytes, which the rate counts and a model does not: 4.5 %.

    Raises RuntimeError with one sentence where namespaces can not be made.
    """
    bandwidth: float
    burst: int | None = None

    def __post_init__(self):
        if not 1e3 <= self.bandwidth < float("inf"):
            raise ValueError(f"bandwidth is {self.bandwidth!r}: want bytes per second, at least 1000")
        if self.burst is None:
            object.__setattr__(self, "burst", max(65536, int(self.bandwidth * 0.01)))
        if self.burst < 2048:
            raise ValueError(f"burst is {self.burst!r}: want bytes, at least 2048 (a packet must fit)")

    @contextlib.contextmanager
    def open(self, root: str, ranks: int):
        """In the launcher, around all ranks: make the namespaces, and delete them afterwards."""
        if sys.platform != "linux" or os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
            raise RuntimeError("links shaped by the kernel need Linux, root, and the commands ip and tc; "
                               "use Paced, which needs none of them")
        made = []
        try:
            _build(made, os.getpid(), ranks, [f"{self.bandwidth * 8:.0f}bit", "burst", str(self.burst)])
            yield
        finally:
            for name in made:                                       # takes its ends of the cables, their peers too
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def enter(self, root: str, rank: int, ranks: int) -> None:
        """In each rank, before its process group exists: move into the namespace, talk through its only cable."""
        if dist.is_initialized():
            raise RuntimeError("links shaped by the kernel need ranks started by launch, not by torchrun")
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{_name(os.environ['CLUSTERLAB_LAUNCHER'], rank)}") as namespace:
            if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns failed")
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"


def _name(launcher, what) -> str:
    return f"clusterlab-{launcher}-{what}"


def _build(made, launcher, ranks, rate):
    def run(*command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"links shaped by the kernel are not possible here: `{' '.join(command)}` said "
                               f"{(done.stderr or done.stdout).strip() or done.returncode}")

    def namespace(what):
        name = _name(launcher, what)
        run("ip", "netns", "add", name)
        made.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    switch = namespace("switch")
    run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    run("ip", "-n", switch, "link", "set", "bridge", "up")
    for rank in range(ranks):
        host, port = namespace(rank), f"port{rank}"
        run("ip", "link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", port, "netns", switch)
        run("ip", "-n", host, "addr", "add", f"10.77.{rank // 250}.{rank % 250 + 1}/16", "dev", "eth0")
        run("ip", "-n", switch, "link", "set", port, "master", "bridge")
        for where, end in ((host, "eth0"), (switch, port)):
            run("ip", "-n", where, "link", "set", end, "up")
            run("tc", "-n", where, "qdisc", "add", "dev", end, "root", "tbf", "rate", *rate, "latency", "200ms")
