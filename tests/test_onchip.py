"""What fits into an SM, against placing blocks one by one, and against facts that NVIDIA prints."""

import math

import numpy as np
import pytest
from clusterlab import hardware
from clusterlab.onchip import Chip, bytes_in_flight, chip, chips, resident_warps
from hypothesis import given, settings
from hypothesis import strategies as st

H100 = chip("H100 SXM")


def placed(registers, threads, shared):
    """Warps after handing out blocks one at a time: warps go to the quarter with most registers left, in lots of 256."""
    quarters, memory, warps, blocks = [16384] * 4, 228 * 1024, 0, 0
    lot, size = -(-registers * 32 // 256) * 256, -(-threads // 32)
    while blocks < 32 and warps + size <= 64 and memory >= shared + 1024:
        left = quarters[:]
        for _ in range(size):
            left.sort(reverse=True)
            if left[0] < lot:
                return warps
            left[0] -= lot
        quarters, memory, warps, blocks = left, memory - shared - 1024, warps + size, blocks + 1
    return warps


@settings(deadline=None)
@given(st.integers(1, 255), st.sampled_from([32, 64, 96, 128, 256, 384, 512, 1024]), st.integers(0, 227 * 1024))
def test_as_many_warps_as_one_can_place(registers, threads, shared):
    expected = placed(registers, threads, shared)
    if expected:
        assert resident_warps(H100, registers, threads_per_block=threads, shared_per_block=shared) == expected
    else:
        with pytest.raises(ValueError, match="does not fit"):
            resident_warps(H100, registers, threads_per_block=threads, shared_per_block=shared)


def test_known_occupancies():
    assert resident_warps(H100, 32) == 64 and resident_warps(H100, 33) == 48 and resident_warps(H100, 40) == 48
    assert resident_warps(H100, 16, threads_per_block=32) == 32              # 32 blocks at most
    assert resident_warps(H100, 32, threads_per_block=1024) == 64
    assert resident_warps(H100, 32, threads_per_block=256, shared_per_block=227 * 1024) == 8


def test_the_chips_are_in_the_catalogue():
    for name, part in chips().items():
        assert hardware.accelerator(name).name == name
        assert part.shared <= part.local and part.source and part.date
    assert H100.units * H100.registers == 132 * 65536 * 4 and chip("H100 PCIe").units == 114
    assert chip("MI300X").units == 8 * 38 and chip("MI300X").l2 == 8 * 4 * 2**20 and chip("MI300X").l3 == 256 * 2**20


@pytest.mark.parametrize("call, message", [
    (lambda: chip("H100"), "H100 SXM"),
    (lambda: resident_warps(H100, 0), "registers_per_thread=0"),
    (lambda: resident_warps(H100, 256), "registers_per_thread=256"),
    (lambda: resident_warps(H100, 32, threads_per_block=0), "threads_per_block=0"),
    (lambda: resident_warps(H100, 32, threads_per_block=1025), "threads_per_block=1025"),
    (lambda: resident_warps(H100, 32, shared_per_block=228 * 1024), "shared_per_block=233472"),
    (lambda: resident_warps(H100, 32, shared_per_block=-1), "shared_per_block=-1"),
    (lambda: resident_warps(H100, 255, threads_per_block=1024), "8 warps do"),
    (lambda: resident_warps(chip("MI300X"), 32), "warps is not published"),
    (lambda: Chip("x", 0, 1, 1, 1, 1, 1), "units must be"),
    (lambda: Chip("x", 1, 1, 1, 1, 1, 1, l3=-1), "l3 must be"),
    (lambda: Chip("x", 1, 1, 1, 1, 1, 1, warps=0), "warps must be"),
    (lambda: Chip("x", 1, 1, 1, 1, 1, 1, blocks=0.5), "blocks must be"),
    (lambda: bytes_in_flight(-1, 1), "bandwidth=-1"),
    (lambda: bytes_in_flight(1, [-1.0]), "latency="),
])
def test_bad_input_is_named(call, message):
    with pytest.raises((ValueError, LookupError), match=message):
        call()


def test_bytes_in_flight_is_what_a_queue_holds():
    """A memory that takes one request of 64 bytes every 2 ns and answers each after 100 ns has 50 of them open."""
    open_at = [sum(start <= now < start + 100 for start in range(0, 1000, 2)) for now in range(200, 800, 2)]
    assert set(open_at) == {50}
    assert bytes_in_flight(64 / 2e-9, 100e-9) == pytest.approx(50 * 64)
    assert np.allclose(bytes_in_flight(np.array([1.0, 2.0]), 3.0), [3, 6]) and math.isclose(bytes_in_flight(0, 1), 0)
