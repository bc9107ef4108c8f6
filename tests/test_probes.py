"""The device probes: the work they count, the formats they run, the file they may write, branches no CPU reaches."""

import getpass
import json
import math
import re
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from clusterlab import recorded
from clusterlab.run import (
    collective_probe,
    copy_probe,
    formats,
    latency_probe,
    matmul_probe,
    memory_probe,
    probes,
    roofline,
    target,
    timing,
)
from clusterlab.run.ranks import launch
from conftest import ROOT

CPU = torch.device("cpu")


# Formats by definition: p bits of precision, exponents from emin to emax; IEEE 754-2019 table 3.5, OCP 8-bit floating
# point specification table 1 (e4m3 gives its all-ones exponent to numbers, and only its last pattern to NaN).
DEFINED = {"fp32": (24, -126, 127, None), "bf16": (8, -126, 127, None), "fp16": (11, -14, 15, None),
           "fp8 e4m3": (4, -6, 8, 448.0), "fp8 e5m2": (3, -14, 15, None)}


def defined(name):
    p, emin, emax, largest = DEFINED[name]
    return {"largest": largest or (2 - 2.0 ** (1 - p)) * 2.0**emax, "smallest_normal": 2.0**emin,
            "smallest_subnormal": 2.0 ** (emin - p + 1), "spacing_at_1": 2.0 ** (1 - p),
            "spacing_at_1000": 2.0 ** (9 + 1 - p) if emax >= 9 else None}


@pytest.mark.parametrize("name", DEFINED)
def test_range_and_spacing_are_those_of_the_standard(name):
    row = next(row for row in formats.table() if row["format"] == name)
    assert {key: row[key] for key in defined(name)} == defined(name)
    info = torch.finfo(formats.FORMATS[name])
    assert (row["largest"], row["smallest_normal"], row["spacing_at_1"]) == (info.max, info.smallest_normal, info.eps)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8 e4m3", "fp8 e5m2"])
def test_values_are_the_ones_that_the_definition_generates(name):
    p, emin, emax, largest = DEFINED[name]
    steps = [m * 2.0 ** (emin - p + 1) for m in range(2 ** (p - 1))]
    steps += [m * 2.0 ** (e - p + 1) for e in range(emin, emax + 1) for m in range(2 ** (p - 1), 2**p)]
    expected = [value for value in steps if value <= (largest or math.inf)]
    assert formats.values(name).tolist() == expected


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8 e4m3", "fp8 e5m2"])
def test_a_cast_takes_the_nearest_value_and_the_largest_beyond(name):
    every = formats.values(name).double()
    x = torch.cat([torch.linspace(0, 600, 97), torch.logspace(-6, 6, 97)])
    nearest = (x.double()[:, None] - every[None].clamp(max=1e30)).abs().min(dim=1)
    got = formats.cast(x, name).double()
    assert torch.equal((x.double() - got).abs(), nearest.values)
    assert torch.equal(formats.cast(-x, name), -formats.cast(x, name))


def test_a_scaled_cast_uses_the_range():
    x = torch.tensor([1e-4, 3e-4])                                  # below e4m3's smallest: lost unless scaled
    assert formats.cast(x, "fp8 e4m3").tolist() == [0.0, 0.0]
    back = formats.cast(x, "fp8 e4m3", scale=448 / 3e-4)
    assert ((back - x).abs() / x).max() <= 2.0**-4


def test_a_cast_beyond_the_range_never_gives_a_finite_number_that_is_not_the_largest():
    by_format = {row["format"]: row for row in formats.casts()}
    assert by_format["fp8 e4m3"]["saturated"] == 448 and by_format["fp8 e5m2"]["saturated"] == 57344
    assert by_format["fp8 e4m3"]["unsaturated"] in ("448.0", "nan")                # torch 2.13 saturates, older ones do not
    assert by_format["fp8 e5m2"]["unsaturated"] == "inf"
    for name, bound in (("fp8 e4m3", 2.0**-4), ("fp8 e5m2", 2.0**-3)):
        assert 0.9 * bound < by_format[name]["largest_error"] * (1 + bound) <= bound * 1.001
        assert by_format[name]["underflow"] == 0.0 and by_format[name]["tie"] == 1.0


@pytest.mark.parametrize("exponent, kept", [(-27, 0.0), (-26, 0.0), (-25, 0.0), (-24, 2.0**-24), (-20, 2.0**-20)])
def test_fp16_keeps_gradients_from_2_to_the_minus_24_on_and_a_scaled_loss_all(exponent, kept):
    result = formats.loss_scaling(gradient=2.0**exponent)
    assert (result["plain"], result["scaled"]) == (kept, 2.0**exponent)
    assert float(np.float16(2.0**exponent)) == kept                # numpy rounds by its own code


@pytest.mark.parametrize("power", [15, 16, 20, 24])
def test_the_loss_scale_is_halved_until_nothing_overflows(power):
    result = formats.backoff(scale=2.0**power)
    assert (result["skipped_steps"], result["final_scale"]) == (max(0, power - 15), 2.0 ** min(power, 15))
    assert result["weight"] == -1.0


@pytest.mark.parametrize("update, stuck", [(2.0**-9, True), (2.0**-8, True), (2.0**-8 * 1.01, False), (2.0**-7, False)])
def test_bf16_loses_updates_up_to_half_a_spacing(update, stuck):
    result = formats.master_weights(steps=10, update=update)
    assert (result["bf16"] == 1.0) == stuck
    assert result["master"] == pytest.approx(1 + 10 * update, rel=1e-6)


def test_running_sums_stick_at_two_to_the_precision():
    for row in formats.accumulation(terms=3000):
        assert row["one_by_one"] == min(3000, 2 ** DEFINED[row["format"]][0])
        assert row["sum"] == row["dot"] == float(torch.tensor(3000.0).to(formats.FORMATS[row["format"]]))


@pytest.mark.parametrize("size", [64, 100, 4096, 2**16 + 12])
def test_the_bytes_counted_are_those_of_the_arrays_touched(size, monkeypatch):
    made = []

    def tracked(plain):
        return lambda *args, **kw: made.append(plain(*args, **kw)) or made[-1]
    for name in ("ones", "full", "empty_like", "zeros_like"):
        monkeypatch.setattr(torch, name, tracked(getattr(torch, name)))
    for kernel, arrays in (("copy", 2), ("triad", 3)):
        made.clear()
        _, moved = memory_probe.KERNELS[kernel](size, CPU)
        held = sum(x.untyped_storage().nbytes() for x in made)
        assert len(made) == arrays and moved == held and size - 4 * arrays < held <= size
    made.clear()
    _, moved = memory_probe.reading(size, CPU)
    assert moved % made[0].untyped_storage().nbytes() == 0 and moved >= size


def test_kernels_do_what_is_timed():
    call, moved = memory_probe.reading(2**12, CPU)
    assert call().item() * 4 == moved
    assert torch.equal(memory_probe.copying(2**12, CPU)[0](), torch.ones(2**9))
    assert torch.equal(memory_probe.adding(3 * 2**12, CPU)[0](), torch.full((2**10,), 7.0))


def test_a_rate_is_the_work_over_the_median_seconds():
    rows = memory_probe.bandwidth(quick=True) + matmul_probe.matmul(dtypes=["fp32"], quick=True)
    for row in rows:
        work = row.get("flops", row["bytes"])
        assert math.isclose(row["rate"] * row["median"], work) and math.isclose(row["best"] * row["lowest"], work)
        assert row["lowest"] <= row["median"] <= row["highest"] and row["repeats"] >= 3
    sets = [row["working_set"] for row in rows if row["what"] == "read" and row["threads"] == 1]
    assert sets == memory_probe.working_sets(quick=True) and len(sets) >= 5


def test_the_flops_of_a_product_are_those_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode
    call = matmul_probe.product(16, 48, 80, "fp32", CPU)
    with FlopCounterMode(display=False) as counter:
        call()
    row = matmul_probe.matmul(dtypes=["fp32"], shapes=[(16, 48, 80)], quick=True)[0]
    assert row["flops"] == counter.get_total_flops() == 2 * 16 * 48 * 80
    assert row["bytes"] == 4 * (16 * 80 + 80 * 48 + 16 * 48)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8"])
def test_a_product_is_right_within_its_format(dtype, monkeypatch):
    made = []
    plain = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *a, **kw: made.append(plain(*a, **kw)) or made[-1])
    try:
        got = matmul_probe.product(32, 48, 64, dtype, CPU)()
    except (RuntimeError, NotImplementedError) as error:
        assert dtype == "fp8", error
        return
    a, b = (x.to(matmul_probe.DTYPES[dtype]).double() for x in made)
    error = (got.double() - a @ b.T).abs().max().item()
    assert got.shape == (32, 48) and error <= {"fp32": 1e-4, "bf16": 0.13, "fp8": 0.13}[dtype]   # half a spacing at 32


def test_what_a_device_can_not_do_is_one_sentence_and_the_rest_goes_on(monkeypatch):
    def product(m, n, k, dtype, where):
        if dtype == "bf16":
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors …")
        if m > 64:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB …")
        return plain(m, n, k, dtype, where)
    plain = matmul_probe.product
    monkeypatch.setattr(matmul_probe, "product", product)
    rows = matmul_probe.matmul(CPU, dtypes=["tf32", "bf16", "fp16", "fp32"], quick=True)
    said = {(row["dtype"], row.get("m")): row["skipped"] for row in rows if "skipped" in row}
    assert said[("bf16", 64)] == "CUDA error: no kernel image is available for execution on the device."
    assert said[("fp32", 128)] == "The device has too little free memory for it."
    assert ("tf32", None) in said and ("fp16", None) in said
    assert [row["m"] for row in rows if "rate" in row] == [64]


def test_products_that_would_take_too_long_or_do_not_fit_are_left_out(monkeypatch):
    monkeypatch.setattr(matmul_probe, "timed", lambda *a, **kw: timing.spread([1.0]))
    rows = matmul_probe.matmul(CPU, dtypes=["fp32"], quick=True)
    assert [("skipped" in row, row["m"]) for row in rows] == [(False, 64), (True, 128), (True, 256), (False, 16)]    # by flops
    monkeypatch.setattr(matmul_probe, "memory", lambda where: (4 * 3 * 64 * 64 * 4, 2**40))
    rows = matmul_probe.matmul(CPU, dtypes=["fp32"], shapes=[(64, 64, 64), (128, 64, 64)], quick=True)
    assert rows[1]["skipped"] == "The device has too little free memory for it."


@pytest.mark.parametrize("free, last", [(2**40, 512 * 2**20), (2**20, 2**17), (2**10, 2**12)])
def test_working_sets_fit_into_an_eighth_of_free_memory(monkeypatch, free, last):
    monkeypatch.setattr(memory_probe, "memory", lambda where: (free, 2**41))
    assert memory_probe.working_sets(CPU)[-1] == last


class Stream:
    """A device that does not exist: a clock that only its own work moves, read by events at its position in the queue."""

    def __init__(self):
        self.now, self.waits = 0.0, 0

    def event(self):
        return Event(self)


class Event:
    def __init__(self, stream):
        self.stream, self.at, self.seen = stream, None, False

    def record(self):
        self.at = self.stream.now

    def synchronize(self):
        self.seen = True

    def elapsed_time(self, end):
        assert end.seen, "an event is read before it happened"
        return (end.at - self.at) * 1e3


@pytest.mark.parametrize("sort", ["cuda", "xpu", "mps"])
def test_a_device_is_timed_by_its_own_events(monkeypatch, sort):
    stream = Stream()
    monkeypatch.setitem(timing.EVENTS, sort, stream.event)

    def kernel():
        stream.now += 2e-4
    assert timing.lap(kernel, 5, torch.device(sort, 0)) == pytest.approx(2e-4)
    found = timing.timed(kernel, torch.device(sort, 0), repeats=4, budget=60)
    assert found == {"median": pytest.approx(2e-4), "lowest": pytest.approx(2e-4), "highest": pytest.approx(2e-4), "repeats": 4}
    assert set(timing.EVENTS) == {"cuda", "xpu", "mps"}


def test_two_devices_are_timed_by_the_wall_clock_after_both_are_done(monkeypatch):
    waited = []
    monkeypatch.setattr(timing, "wait", lambda *devices: waited.append(devices))
    a, b = torch.device("cuda", 0), torch.device("cuda", 1)
    assert 0 <= timing.lap(lambda: None, 3, a, (b,)) < 1
    assert waited == [(a, b), (a, b)]


def test_short_calls_share_a_lap_and_long_ones_stop_at_the_budget():
    calls = []
    timing.timed(lambda: calls.append(1), CPU, repeats=3, budget=1)
    assert len(calls) > 100
    assert timing.timed(lambda: torch.ones(2**18).sum(), CPU, repeats=10**6, budget=0.02)["repeats"] >= 3
    assert timing.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "lowest": 1.0, "highest": 3.0, "repeats": 3}


def test_a_device_waits_through_its_own_module(monkeypatch):
    waited = []
    for sort in ("cuda", "xpu"):
        monkeypatch.setattr(getattr(torch, sort), "synchronize", waited.append)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    timing.wait(CPU, torch.device("cuda", 1), torch.device("xpu", 0), torch.device("mps"))
    assert waited == [torch.device("cuda", 1), torch.device("xpu", 0), "mps"]


def test_memory_kind_and_peers_of_devices_that_are_not_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda where: (3, 4))
    monkeypatch.setattr(torch.xpu, "mem_get_info", lambda where: (5, 6))
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 4)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: (a, b) == (0, 1))
    assert [target.memory(torch.device(s)) for s in ("cuda", "xpu", "mps")] == [(3, 4), (5, 6), (6, 10)]
    assert target.reaches(torch.device("cuda", 0), torch.device("cuda", 1))
    assert not target.reaches(torch.device("cuda", 1), torch.device("cuda", 0))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert target.kind(torch.device("cuda")) == "rocm" and target.kind(torch.device("xpu")) == "xpu"


def test_copies_without_peer_access_say_so_and_are_still_timed(monkeypatch):
    monkeypatch.setattr(copy_probe, "reaches", lambda a, b: {a.index, b.index} != {0, 2})
    monkeypatch.setattr(copy_probe, "sizes", lambda where, quick: [64, 128])
    monkeypatch.setattr(copy_probe, "_peer_row", lambda named, *rest: timing.rated(timing.spread([2.0]), **named))
    rows = copy_probe.peer_copies([torch.device("cuda", i) for i in range(3)])
    assert len(rows) == 3 * 2 * 2 and all(row["rate"] == row["bytes"] / 2 for row in rows)
    assert {(row["source"], row["target"]) for row in rows if "note" in row} == {(0, 2), (2, 0)}
    assert rows[2]["note"] == "cuda:2 has no peer access to cuda:0: the copy goes through the host."


def test_an_old_driver_is_one_sentence(monkeypatch):
    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update your driver")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(target, "accelerators", lambda: 0)
    assert target.missing_device() == ("This torch is built for CUDA 12.8, but measures the CPU: The NVIDIA driver on your "
                                       "system is too old (found version 11040).")


def test_latency_counts_what_it_says():
    rows = {row["what"]: row for row in latency_probe.latency(CPU, quick=True)}
    assert list(rows) == ["submit", "back to back", "round trip"]
    assert all(1e-8 < row["lowest"] <= row["median"] <= row["highest"] < 1 for row in rows.values())


def test_collectives_follow_the_definitions_of_nccl_tests():
    rows = launch(collective_probe.all_reduce, 3, [4096, 65536], quick=True)
    assert rows[0] == rows[1] == rows[2]                            # every rank knows the slowest
    for row, size in zip(rows[0], (4096, 65536), strict=True):
        assert row["bytes"] == size and row["ranks"] == 3 and row["rate"] * row["median"] == pytest.approx(size)
        assert row["bus"] == pytest.approx(row["rate"] * 2 * (3 - 1) / 3)


@pytest.mark.elastic
def test_probes_run_under_torchrun_and_only_rank_0_writes(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "clusterlab.run",
               "clusterlab.run.probes:run", "probes=collectives,latency", "quick=True", "name=here", f"where={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "here.json").read_text("utf-8"))
    assert {row["ranks"] for row in record["probes"]["collectives"]} == {2}
    assert re.findall(r"\[rank (\d)\] (.*)", done.stdout) == [("0", "'here.json'"), ("1", "''")]


@pytest.fixture(scope="module")
def record():
    return probes.measure(quick=True)


def test_on_a_cpu_everything_else_is_measured(record):
    """A row that is skipped for a mistake of ours, not of the device, would otherwise go unseen."""
    skipped = {recorded.check(row) for rows in record["probes"].values() for row in rows if "skipped" in row}
    assert skipped - {"matmul fp8"} == {"matmul tf32", "matmul fp16", "host copies", "peer"}    # fp8: since torch 2.8
    assert isinstance(record["roofline"], list)


def test_a_cpu_is_measured_by_core_and_the_largest_case_with_all_threads(record):
    for probe, size in (("memory", "working_set"), ("matmul", "m")):
        for what in {(row["what"], row.get("dtype")) for row in record["probes"][probe] if "rate" in row}:
            rows = [row for row in record["probes"][probe] if (row["what"], row.get("dtype")) == what and "rate" in row]
            assert all(row["threads"] == 1 for row in rows if row[size] < max(row[size] for row in rows))
            assert [row["threads"] for row in rows].count(1) == len({row[size] for row in rows})
            assert {row["threads"] for row in rows} == {1, record["threads"]}
    one = [row for row in record["probes"]["matmul"] if row.get("threads") == 1]
    assert len(record["roofline"]) == len(one)


def test_a_record_names_the_machine_and_nobody(record):
    assert {"device", "driver", "torch", "date", "command", "probes", "kind", "cores", "busy"} <= set(record)
    assert set(record["probes"]) == set(probes.PROBES)
    text = probes.text(record)
    for private in (socket.gethostname(), getpass.getuser(), str(ROOT)):
        assert not re.search(rf"(?<!\w){re.escape(private)}(?!\w)", text)


def test_the_file_holds_the_record_rounded(record):
    back = json.loads(probes.text(record))
    assert back.keys() == record.keys()
    for probe, rows in record["probes"].items():
        for row, stored in zip(rows, back["probes"][probe], strict=True):
            numbers = {key for key in row if probe != "formats" and isinstance(row[key], float)}
            assert {key: stored[key] for key in numbers} == pytest.approx({key: row[key] for key in numbers}, rel=6e-4)
            assert {k: v for k, v in stored.items() if k not in numbers} == {k: v for k, v in row.items() if k not in numbers}
    assert max(len(line) for line in probes.text(record).splitlines()) < 400


def test_another_machines_file_is_never_written_over(record, tmp_path):
    first = probes.store(record, where=tmp_path)
    assert probes.store(record | {"date": "2030-01-01"}, where=tmp_path) == first                  # the same, again
    assert json.loads(first.read_text("utf-8"))["date"] == "2030-01-01"
    for change in ({"caches": {"L3": 1}}, {"memory_gib": 1}, {"device": record["device"] + " "}, {"devices": 9, "cores": 9}):
        before = {path: path.read_text("utf-8") for path in tmp_path.iterdir()}
        assert probes.store(record | change, where=tmp_path) not in before
        assert {path: path.read_text("utf-8") for path in before} == before
        with pytest.raises(FileExistsError, match="another machine"):
            probes.store(record | change, name=first.stem, where=tmp_path)
    with pytest.raises(FileExistsError, match="also has"):
        probes.store(record | {"probes": {}}, where=tmp_path)
    (tmp_path / "foreign.json").write_text('{"what": "something else"}')
    with pytest.raises(FileExistsError):
        probes.store(record, name="foreign", where=tmp_path)
    assert "foreign" not in recorded.measurements(tmp_path)


def test_never_run_is_what_no_full_record_shows(record, tmp_path):
    everything = recorded.never_run(tmp_path)
    assert set(everything) == {"cpu", "cuda", "rocm", "xpu", "mps"}
    assert "peer" in everything["cuda"]["copies"] and "peer" not in everything["mps"]["copies"]
    probes.store(record, name="quick", where=tmp_path)
    assert recorded.never_run(tmp_path) == everything                 # a quick run proves nothing
    probes.store(record | {"quick": False}, name="full", where=tmp_path)
    left = recorded.never_run(tmp_path)
    assert {kind: left[kind] for kind in left if kind != "cpu"} == {k: v for k, v in everything.items() if k != "cpu"}
    skipped = {recorded.check(row) for rows in record["probes"].values() for row in rows if "skipped" in row}
    assert {check for checks in left.get("cpu", {}).values() for check in checks} <= skipped
    probes.store(record | {"quick": False, "kind": "cuda", "device": "x"}, name="gpu", where=tmp_path)
    left = recorded.never_run(tmp_path)["cuda"]
    assert "memory" not in left and left["matmul"][:1] == ["matmul tf32"] and "peer" in left["copies"]


def test_the_stored_records_are_whole_and_leave_nothing_of_the_cpu():
    stored = recorded.measurements()
    assert stored and not any(record["quick"] for record in stored.values())
    for name, record in stored.items():
        assert name.startswith(probes.name_of(record)) and set(record["probes"]) == set(probes.PROBES)
        for row in (row for rows in record["probes"].values() for row in rows if "rate" in row):
            assert row["rate"] == pytest.approx(row.get("flops", row["bytes"]) / row["median"], rel=2e-3)
    assert "cpu" not in recorded.never_run()


def test_every_check_is_one_that_a_probe_can_show(record):
    shown = {probe: {recorded.check(row) for row in rows} for probe, rows in record["probes"].items()}
    for probe, checks in recorded.CHECKS.items():
        for check, kinds in checks.items():
            assert "cpu" not in kinds or check in shown[probe], check


def test_a_world_that_fails_is_a_sentence_in_the_record(monkeypatch):
    def fails(*, quick):
        raise RuntimeError("NCCL error: unhandled system error. Last error: …")
    monkeypatch.setitem(probes.PROBES, "collectives", fails)
    rows = probes.measure("collectives", quick=True)["probes"]["collectives"]
    assert rows == [{"what": "collectives", "skipped": "NCCL error: unhandled system error."}]


def test_the_roofline_stands_beside_the_data_sheet(record):
    for row in roofline.roofline(record):
        assert row["intensity"] * 1 == pytest.approx(
            2 * row["m"] * row["n"] * row["k"] / matmul_probe.traffic(row["m"], row["n"], row["k"], row["dtype"]))
        assert row["datasheet"] is None and row["roof"] > 0
    h100 = {**record, "device": "NVIDIA H100 80GB HBM3"}
    top = [row for row in roofline.roofline(h100) if row["dtype"] == "bf16"]
    assert all(row["datasheet"] == pytest.approx(min(989.4e12, 3.35e12 * row["intensity"]), rel=1e-3) for row in top)


def test_every_reported_name_is_a_part_we_list():
    assert len(roofline._reported()) >= 20
    assert {roofline.datasheet(name).vendor for name in roofline._reported()} == {"NVIDIA", "AMD"}
    assert roofline.datasheet("NVIDIA GeForce RTX 4090") is None


@pytest.mark.parametrize("call, said", [
    (lambda: probes.measure("memroy"), "memroy"),
    (lambda: memory_probe.bandwidth(kernels=["write"]), "write"),
    (lambda: memory_probe.bandwidth(sizes=[8]), "64"),
    (lambda: matmul_probe.matmul(dtypes=["fp12"]), "fp12"),
    (lambda: formats.values("fp32"), "16 bits"),
    (lambda: formats.cast(torch.ones(1), "fp4"), "fp4"),
    (lambda: roofline.measured_peaks({"probes": {"memory": []}}), "measure memory and matmul"),
])
def test_bad_input_is_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_a_quick_run_is_not_stored_as_a_measurement(capsys):
    with pytest.raises(SystemExit):
        probes.main(["--quick"])
    assert "no measurement" in capsys.readouterr().err
