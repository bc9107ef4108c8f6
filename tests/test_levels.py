"""Levels of machines: the data against units times clock, a path against pieces moved one by one, records by hand."""

import math
import re

import pytest
from clusterlab import hierarchy, levels
from clusterlab.levels import Ladder, Tier, carry, ladder, of_record

MACHINES = ("DGX H200", "DGX B200", "MI300X Platform", "TPU v5p pod", "DGX A100", "DGX-1 V100")


# ---- the data --------------------------------------------------------------------------------------------------------


def test_the_machines_are_there_and_each_level_says_whence():
    assert tuple(levels.ladders()) == MACHINES
    for machine in levels.ladders().values():
        assert list(machine.tiers) == [slot for slot in levels.SLOTS if slot in machine.tiers], "near to far"
        assert {"registers", "near", "memory", "link", "pcie", "nic", "drive", "store"} <= set(machine.tiers)
        for slot, tier in machine.tiers.items():
            assert tier.notes and tier.name, (machine.name, slot)
            if tier.bandwidth or tier.capacity:
                assert re.search(r"https://", tier.source) or "arXiv:" in tier.source, (machine.name, slot)
            assert bool(tier.bandwidth) == bool(tier.counts), (machine.name, slot)
            if tier.latency:
                assert re.search(r"https://|arXiv:", tier.latency_source) and tier.latency_date, (machine.name, slot)


CLOCKS = {  # units, clock in GHz, bytes a clock from shared memory or L1, fp32 multiply-adds a clock
    "DGX H200": (132, 1.98, 128, 128), "DGX B200": (148, 1.965, 128, 128), "MI300X Platform": (304, 2.1, 128, 128),
    "DGX A100": (108, 1.41, 128, 64), "DGX-1 V100": (80, 1.53, 128, 64)}


@pytest.mark.parametrize("name", CLOCKS)
def test_rates_on_the_chip_are_units_times_clock(name):
    units, clock, wide, lanes = CLOCKS[name]
    assert ladder(name).tier("near").bandwidth == pytest.approx(units * clock * 1e9 * wide, rel=0.02)
    assert ladder(name).tier("registers").bandwidth == pytest.approx(units * clock * 1e9 * lanes * 3 * 4, rel=0.02)


HELD = {  # KiB of registers and of shared memory with L1 a unit; MiB of L2
    "DGX H200": (256, 256, 50), "DGX B200": (256, 256, 126), "MI300X Platform": (512, 96, 32), "DGX A100": (256, 192, 40),
    "DGX-1 V100": (256, 128, 6)}


@pytest.mark.parametrize("name", HELD)
def test_what_the_chip_holds(name):
    registers, near, l2 = HELD[name]
    units, machine = CLOCKS[name][0], ladder(name)
    assert machine.tier("registers").capacity == units * registers * 1024
    assert machine.tier("near").capacity == units * near * 1024
    assert machine.tier("l2").capacity == l2 * 2**20


WIRES = {  # GB/s in one direction: all links, one neighbour, PCIe after its line code, the network card of one accelerator
    "DGX H200": (18 * 25, None, 16 * 32 * 128 / 130 / 8, 50), "DGX B200": (18 * 50, None, 16 * 32 * 128 / 130 / 8, 50),
    "MI300X Platform": (7 * 64, 64, 16 * 32 * 128 / 130 / 8, 50), "TPU v5p pod": (6 * 100, 100, 15, 50 / 8),
    "DGX A100": (12 * 25, None, 16 * 16 * 128 / 130 / 8, 25), "DGX-1 V100": (6 * 25, 25, 16 * 8 * 128 / 130 / 8, 12.5 / 2)}


@pytest.mark.parametrize("name", MACHINES)
def test_wires(name):
    machine = ladder(name)
    found = [machine.tier("link").bandwidth, machine.tier("link").pair, machine.tier("pcie").bandwidth, machine.tier("nic").bandwidth]
    assert [rate and rate / 1e9 for rate in found] == pytest.approx(list(WIRES[name]))
    assert machine.tier("store").bandwidth == 90e6 and machine.tier("store").latency == 0.1


CYCLES = {("DGX A100", "near"): (36.1, 1.41), ("DGX A100", "l2"): (211, 1.41), ("DGX A100", "memory"): (570.2, 1.41),
          ("DGX-1 V100", "near"): (30, 1.38), ("DGX-1 V100", "l2"): (215.1, 1.38), ("DGX-1 V100", "memory"): (434.8, 1.38),
          ("DGX H200", "near"): (34.1, 1.755), ("DGX H200", "l2"): (265.6, 1.755), ("DGX H200", "memory"): (649.9, 1.755),
          ("DGX B200", "near"): (39, 1.99), ("MI300X Platform", "l3"): (218, 1.0)}


@pytest.mark.parametrize("name, slot", CYCLES)
def test_latencies_are_cycles_over_clock(name, slot):
    cycles, clock = CYCLES[name, slot]
    assert ladder(name).tier(slot).latency == pytest.approx(cycles / clock * 1e-9, rel=3e-3)


def test_memories_and_rates_that_others_measured():
    rates = {"DGX H200": (9.7669, 4.8), "DGX B200": (21, 8), "MI300X Platform": (34.4, 5.3), "DGX A100": (5.4274, 2.039),
             "DGX-1 V100": (2.482, 0.9)}
    for name, (l2, memory) in rates.items():
        assert ladder(name).tier("l2").bandwidth == pytest.approx(l2 * 1e12)
        assert ladder(name).tier("memory").bandwidth == pytest.approx(memory * 1e12)
    assert ladder("MI300X Platform").tier("l3").bandwidth == 11.9e12 and ladder("MI300X Platform").tier("l3").capacity == 2**28
    assert ladder("TPU v5p pod").tier("near").bandwidth == pytest.approx(22 * 2.765e12)
    held = {name: ladder(name).tier("memory").capacity / 2**20 for name in MACHINES}
    assert held == {"DGX H200": 143771, "DGX B200": 183359, "MI300X Platform": 196592, "TPU v5p pod": 95 * 1024, "DGX A100": 81920,
                    "DGX-1 V100": 32768}
    host = [ladder(name).tier("pcie").capacity for name in MACHINES]
    assert host == [2e12, 2e12, None, 448e9, 2e12, 512e9]
    assert [ladder(name).tier("drive").capacity for name in MACHINES] == [3.84e12, 3.84e12, None, None, 3.84e12, 7e12]
    assert [ladder(name).tier("nic").latency for name in MACHINES] == [2.8e-6, 2.8e-6, 3.6e-6, None, None, 1.83e-6]
    assert [ladder(name).tier("drive").latency for name in MACHINES] == pytest.approx([92e-6, None, None, None, 92e-6, None])
    assert ladder("DGX-1 V100").tier("pcie").latency == pytest.approx(30e-6) and ladder("DGX H200").tier("link").latency == 3.33e-6


def test_what_nobody_published_stays_empty():
    empty = {(name, slot) for name, machine in levels.ladders().items() for slot, tier in machine.tiers.items() if tier.bandwidth is None}
    assert empty == {("DGX B200", "drive"), ("MI300X Platform", "drive"), ("TPU v5p pod", "drive"), ("TPU v5p pod", "registers"),
                     ("DGX-1 V100", "drive")}
    assert ladder("DGX B200").tier("memory").latency is None and ladder("DGX B200").tier("drive").seconds(1e9) is None


def test_the_h200_is_the_one_of_moving_bytes():
    names = {"registers": "registers", "near": "shared memory, L1", "l2": "L2 cache", "memory": "HBM", "link": "NVLink 4",
             "pcie": "PCIe 5.0 x16", "nic": "InfiniBand NDR", "drive": "NVMe drive", "store": "object store"}
    for slot, name in names.items():
        one, other = ladder("DGX H200").tier(slot), hierarchy.level(name)
        assert (one.bandwidth, one.counts, one.source, one.date) == (other.bandwidth, other.counts, other.source, other.date)
        assert one.notes.startswith(other.notes)
    assert ladder("DGX H200").tier("link").notes == (
        "sold as 900 GB/s, both directions added; latency of 64 B between CPU-side calls, measured on H800")
    assert ladder("DGX H200").tier("registers").notes == hierarchy.level("registers").notes


# ---- a tensor on its way ---------------------------------------------------------------------------------------------

TOY = Ladder("toy", "by hand", {
    "near": Tier("near", 1000.0, latency=0.001), "l2": Tier("l2", 500.0, latency=0.01), "memory": Tier("memory", 100.0, latency=0.1, capacity=300),
    "link": Tier("link", 70.0, latency=0.5, pair=10.0), "pcie": Tier("pcie", 20.0), "nic": Tier("nic", 40.0, latency=2.0),
    "drive": Tier("drive"), "store": Tier("store", 4.0, latency=3.0)})
BY_HAND = [  # path, bytes, whole, requests -> seconds, who binds, by what
    ("memory to shared memory, L1", 1000, False, 1, 0.111 + 10, "memory", "bytes"),
    ("memory to shared memory, L1", 1000, True, 1, 0.111 + 10 + 2 + 1, "memory", "bytes"),
    ("memory to a neighbour's memory", 1000, False, 1, 0.6 + 100, "link", "bytes"),
    ("memory to another server's memory", 1000, False, 1, 2.1 + 50, "pcie", "bytes"),
    ("memory to another server's memory", 1000, True, 1, 2.1 + 10 + 50 + 25, "pcie", "bytes"),
    ("memory to another server's memory", 39, False, 1, 2.1 + 1.95, "nic", "latency"),
    ("memory to another server's memory", 40, False, 1, 2.1 + 2.0, "pcie", "bytes"),
    ("object store to memory", 1000, False, 1, 5.1 + 250, "store", "bytes"),
    ("object store to memory", 1000, False, 4, 5.1 + 62.5, "store", "bytes"),
    ("object store to memory", 1000, False, 6, 5.1 + 50, "pcie", "bytes"),
    ("object store to memory", 1000, True, 6, 5.1 + 1000 / 24 + 25 + 50 + 10, "pcie", "bytes"),
    ("object store to memory", 0, False, 1, 5.1, "store", "latency"),
    ("host memory to memory", 0, False, 1, 0.1, "memory", "latency"),
]


@pytest.mark.parametrize("path, size, whole, requests, seconds, binds, by", BY_HAND)
def test_a_path_by_hand(path, size, whole, requests, seconds, binds, by):
    found = carry(TOY, path, size, streamed=not whole, requests=requests)
    assert (found.seconds, found.binds, found.by, found.unknown) == (pytest.approx(seconds), binds, by, ())
    assert found.latency == pytest.approx(sum(TOY.tier(slot).latency or 0 for slot in levels.PATHS[path] if slot in TOY.tiers))


def pieces(ladder, path, size, count):
    """The same by moving piece after piece: a level takes the next when it is free and the piece has come."""
    steps = [ladder.tiers[slot] for slot in levels.PATHS[path] if slot in ladder.tiers]
    free = [0.0] * len(steps)
    for _ in range(count):
        now = 0.0
        for i, step in enumerate(steps):
            now = free[i] = max(now, free[i]) + size / count / (step.pair or step.bandwidth)
    return now + sum(step.latency or 0 for step in steps)


@pytest.mark.parametrize("path", [path for path in levels.PATHS if "drive" not in path])
def test_streaming_is_the_limit_of_small_pieces(path):
    for machine in (TOY, ladder("DGX H200"), ladder("MI300X Platform")):
        assert carry(machine, path, 1e6).seconds == pytest.approx(pieces(machine, path, 1e6, 4000), rel=2e-3)
        assert carry(machine, path, 1e6, streamed=False).seconds == pytest.approx(pieces(machine, path, 1e6, 1))


def test_more_bytes_take_longer_and_more_requests_never_do():
    for name in MACHINES:
        for path in levels.PATHS:
            times = [carry(ladder(name), path, size).seconds for size in (0, 1, 1e3, 1e6, 1e9, 1e12)]
            assert times == sorted(times)
            assert carry(ladder(name), path, 1e6).seconds <= carry(ladder(name), path, 1e6, streamed=False).seconds
        times = [carry(ladder(name), "object store to memory", 1e12, requests=n).seconds for n in (1, 10, 100, 1e4, 1e5)]
        assert times == sorted(times, reverse=True)


def test_an_unpublished_rate_makes_a_lower_bound():
    found = carry(TOY, "local drive to memory", 1000)
    assert found.unknown == ("drive",) and found.seconds == pytest.approx(0.1 + 50)
    assert carry(TOY, "local drive to memory", 1000, streamed=False).seconds == pytest.approx(0.1 + 50 + 10)


def test_how_many_memories():
    assert [TOY.needed("memory", size) for size in (0, 300, 301, 900)] == [1, 1, 2, 3]
    assert TOY.needed("link", 5) is None
    assert ladder("DGX H200").needed("memory", 2 * 405.853e9) == math.ceil(811.706e9 / (143771 * 2**20))


def test_bad_input_is_named():
    with pytest.raises(LookupError, match="near: DGX H200"):
        ladder("DGX H20")
    with pytest.raises(LookupError, match="'l3'; it has registers"):
        ladder("DGX H200").tier("l3")
    with pytest.raises(LookupError, match="'host memory to memory'"):
        carry(TOY, "disk to memory", 1)
    with pytest.raises(LookupError, match="has no 'nic'"):
        carry(Ladder("bare", "", {"memory": Tier("m", 1.0), "pcie": Tier("p", 1.0)}), "memory to another server's memory", 1)
    with pytest.raises(ValueError, match="no level on the way"):
        carry(Ladder("bare", "", {"memory": Tier("m"), "link": Tier("p")}), "memory to a neighbour's memory", 1)
    for requests in (0, 0.5, math.nan):
        with pytest.raises(ValueError, match="requests"):
            carry(TOY, "object store to memory", 1, requests=requests)
    for size in (-1, math.nan, math.inf):
        for ask in (lambda size: carry(TOY, "host memory to memory", size), TOY.tier("memory").seconds, lambda size: TOY.needed("memory", size)):
            with pytest.raises(ValueError, match="size="):
                ask(size)
    with pytest.raises(ValueError, match="latency must be positive"):
        Tier("x", 1.0, latency=0.0)
    with pytest.raises(ValueError, match="attic is no level"):
        Ladder("x", "", {"attic": Tier("y")})


# ---- measured machines -----------------------------------------------------------------------------------------------


def reading(size, rate, threads=1, what="read"):
    return {"what": what, "working_set": size, "threads": threads, "best": rate}


def test_a_processor_from_its_record():
    rows = [reading(16 * 1024, 9.0), reading(32 * 1024, 8.0), reading(2**19, 7.0), reading(2**20, 6.0), reading(2**29, 2.0),
            reading(2**29, 5.0, threads=2), reading(2**30, 99.0, what="copy"), {"what": "read", "skipped": "no"}]
    record = {"device": "CPU", "kind": "cpu", "cores": 2, "devices": 1, "memory_gib": 4, "date": "2026-11", "probes": {"memory": rows},
              "caches": {"L1d": 32 * 1024, "L2": 2**20}}
    found = of_record(record)
    assert (found.name, found.says, found.unknown) == ("CPU, 2 cores", "measured 2026-11", "not measured")
    assert {slot: (one.bandwidth, one.capacity) for slot, one in found.tiers.items()} == {
        "near": (9.0, 32768.0), "l2": (7.0, 2.0**20), "memory": (2.0, 4 * 2.0**30)}
    assert [(one.name, one.notes) for one in found.tiers.values()] == [
        ("L1 cache", "one core reads a block of 16,384 bytes"), ("L2 cache", "one core reads a block of 524,288 bytes"),
        ("main memory", "one core reads 536,870,912 bytes")]
    assert {(one.source, one.date, one.counts) for one in found.tiers.values()} == {
        ("measured: clusterlab.run.probes on CPU", "2026-11", "read")}
    third = of_record(record | {"caches": {"L1d": 32 * 1024, "L3": 2**21}}).tier("l3")
    assert (third.name, third.bandwidth, third.capacity) == ("L3 cache", 6.0, 2.0**21)
    tiny = of_record(record | {"caches": {"L1d": 8192}})
    assert tiny.tier("near").bandwidth == 9.0, "no block fits half of it: the smallest stands for it"
    with pytest.raises(ValueError, match="memory"):
        of_record(record | {"probes": {"latency": []}})


def test_a_gpu_from_its_record():
    copies = [{"what": "host to device", "pinned": True, "bytes": 1, "best": 40e9}, {"what": "host to device", "pinned": True, "bytes": 2, "best": 50e9},
              {"what": "host to device", "pinned": False, "bytes": 2, "best": 90e9}, {"what": "device to host", "pinned": True, "bytes": 2, "best": 95e9},
              {"what": "peer", "direct": True, "bytes": 2, "best": 300e9}, {"what": "peer", "direct": False, "bytes": 2, "best": 400e9}]
    found = of_record({"device": "GPU", "kind": "cuda", "cores": 96, "devices": 8, "memory_gib": 80, "date": "2026-11", "caches": {"L2": 2**25},
                       "probes": {"memory": [reading(2**24, 5e12), reading(2**31, 3e12)], "copies": copies}})
    assert found.name == "GPU, 8 devices" and list(found.tiers) == ["l2", "memory", "link", "pcie"]
    assert [one.bandwidth for one in found.tiers.values()] == [5e12, 3e12, 300e9, 50e9]
    assert [one.counts for one in found.tiers.values()] == ["read", "read", "one direction", "one direction"]
    assert [(one.name, one.notes) for one in found.tiers.values()] == [
        ("L2 cache", "the device reads a block of 16,777,216 bytes"), ("device memory", "the device reads 2,147,483,648 bytes"),
        ("peer to peer", "the best copy"), ("host memory", "the best copy")]
    alone = of_record({"device": "GPU", "kind": "cuda", "cores": 8, "devices": 1, "memory_gib": 80, "date": "2026-11", "caches": {},
                       "probes": {"memory": [{"what": "read", "working_set": 2**31, "best": 3e12}]}})  # only a CPU has threads
    assert alone.name == "GPU, 1 device" and list(alone.tiers) == ["memory"]
    assert carry(found, "host memory to memory", 100e9).seconds == pytest.approx(2.0)
