"""What a stream of bytes costs the host it passes: memory traffic of staging, cores of sockets, and what a card prints.

Without GPUDirect RDMA a byte that leaves a GPU is written into the host's memory and read from there by the network
card; one that arrives takes the same two steps. Through sockets a core copies it, too. Caches may catch part of the
traffic; none of it is counted as caught here.

Source: NVIDIA, "GPUDirect RDMA", https://docs.nvidia.com/cuda/gpudirect-rdma/; the rest is counting.

>>> staged_rate(dram_bandwidth(16, 4.8e9), 8) / 1e9
19.2
"""

import numpy as np


def dram_bandwidth(channels, transfers, *, width=8):
    """Bytes/s of a host's memory, reads plus writes: channels × transfers a second × bytes a transfer.

    DDR5-4800 makes 4.8e9 transfers a second of 8 bytes on each channel. Raises ValueError for values that are not
    above 0.

    >>> dram_bandwidth(16, 4.8e9) / 1e9
    614.4
    """
    _above_zero(channels=channels, transfers=transfers, width=width)
    return channels * transfers * width


def host_traffic(sent, received=0.0, *, gpudirect=False):
    """Bytes the host's memory reads and writes while its cards send and receive so many: 2 · (sent + received), or none.

    The arguments are bytes, or bytes/s of one direction each. Raises ValueError for negative ones.

    >>> host_traffic(400e9, 400e9) / 1e12, host_traffic(400e9, gpudirect=True)
    (1.6, 0.0)
    """
    if np.any(np.asarray(sent) < 0) or np.any(np.asarray(received) < 0):
        raise ValueError(f"sent={sent}, received={received}: bytes from 0 are allowed")
    return 0.0 * (sent + received) if gpudirect else 2 * (sent + received)


def staged_rate(memory_bandwidth, cards, *, both=True):
    """Bytes/s that staging leaves each card in each direction: memory bandwidth ÷ (cards × 4), or × 2 if they only send.

    `memory_bandwidth` is the host's, bytes/s, reads plus writes. Raises ValueError for values that are not above 0.

    >>> staged_rate(400e9, 8, both=False) / 1e9
    25.0
    """
    _above_zero(memory_bandwidth=memory_bandwidth, cards=cards)
    return memory_bandwidth / (cards * (4 if both else 2))


def stream_cores(cpu_seconds_per_byte, rate):
    """Cores that a stream of `rate` bytes/s keeps busy: CPU seconds a byte × bytes a second.

    >>> stream_cores(0.2e-9, 50e9)
    10.0
    """
    if np.any(np.asarray(cpu_seconds_per_byte) < 0) or np.any(np.asarray(rate) < 0):
        raise ValueError(f"cpu_seconds_per_byte={cpu_seconds_per_byte}, rate={rate}: values from 0 are allowed")
    return cpu_seconds_per_byte * rate


def alltoall_busbw(port, nodes, ranks_per_node):
    """The busbw, bytes/s, that nccl-tests prints for an all-to-all whose cards are full, one of `port` bytes/s a rank.

    A rank holds S, of which (nodes − 1)/nodes leave the node, in S · (nodes − 1)/nodes ÷ port seconds; busbw counts
    (n − 1)/n of S, n = nodes · ranks_per_node. Raises ValueError for fewer than two nodes, or a port not above 0.

    >>> round(alltoall_busbw(50e9, 4, 8) / 1e9, 1)
    64.6
    """
    _above_zero(port=port, ranks_per_node=ranks_per_node)
    if np.any(np.asarray(nodes) < 2):
        raise ValueError(f"nodes={nodes}: two or more are allowed, within one nothing passes a card")
    n = nodes * ranks_per_node
    return port * nodes / (nodes - 1) * (n - 1) / n


def _above_zero(**values):
    for name, value in values.items():
        if not np.all(np.asarray(value) > 0):
            raise ValueError(f"{name}={value}: more than 0 is allowed")
