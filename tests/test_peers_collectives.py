"""Other tools on the same input. Where they differ from us the test says by what, and who is right."""

import json
import pathlib
from types import SimpleNamespace

import pytest
from clusterlab import collectives as c
from clusterlab.units import GiB

PEERS = json.loads((pathlib.Path(__file__).parent / "fixtures" / "peers.json").read_text())


def rows(peer, function=""):
    found = [row for row in PEERS if row["peer"].startswith(peer) and function in row["function"]]
    assert found
    return {row["id"]: row for row in found}


def test_astra_sim_sends_with_a_gigabyte_of_two_to_the_thirty():
    """A neighbour's message is alpha + size/B in both; its "GB/s" are 2^30 bytes, 7 % more than a datasheet's."""
    for row in rows("ASTRA-sim").values():
        given = row["inputs"]
        hops = {"Ring": min((given["dst"] - given["src"]) % given["npus"], (given["src"] - given["dst"]) % given["npus"]),
                "Switch": 2, "FullyConnected": 1}[given["topology"]]
        latency = hops * given["latency_ns"] * 1e-9
        theirs = row["outputs"]["delay_ns"] * 1e-9
        binary = SimpleNamespace(bandwidth=given["bandwidth_GBps"] * GiB, latency=latency)
        decimal = SimpleNamespace(bandwidth=given["bandwidth_GBps"] * 1e9, latency=latency)
        assert c.send_seconds(given["bytes"], binary) == pytest.approx(theirs, abs=1e-9)
        assert (c.send_seconds(given["bytes"], decimal) - latency) / (theirs - latency) == pytest.approx(1.0737, rel=1e-3)


def test_ml_engineering_bench_counts_busbw_as_we_do():
    for row in rows("stas00", "busbw").values():
        given = row["inputs"]
        ours = {"algbw_GBps": c.algbw(given["payload_bytes"], given["seconds"]) / 1e9,
                "busbw_GBps": c.busbw("all-reduce", given["payload_bytes"], given["ranks"], given["seconds"]) / 1e9}
        assert ours == pytest.approx(row["outputs"], rel=1e-12)


def test_calculon_in_a_node_has_one_latency_and_a_scaled_size():
    """Its all-reduce moves 2 (n-1)/n S at a fitted 65 % of the link, and pays one latency for 2(n-1) steps.

    The one latency is too little for small messages: seven eighths of the latency of an 8-rank ring are missing.
    """
    for id in ("v200", "v201"):
        row = rows("calculon", "Network.time")[id]
        given, config = row["inputs"], row["inputs"]["cfg"]
        rate = config["bandwidth"] * 1e9 * config["efficiency"]
        ours = c.all_reduce_seconds(given["bytes"], given["ranks"], SimpleNamespace(bandwidth=rate, latency=0.0))
        assert row["outputs"]["seconds"] == pytest.approx(ours + config["latency"], rel=1e-9)


def test_calculon_across_nodes_does_not_see_the_number_of_ranks():
    """Two ranks and 1,024 take equally long there; a ring's 2(n-1)/n alone differs by a factor of two."""
    found = rows("calculon", "Network.time")
    theirs = {found[id]["inputs"]["ranks"]: found[id]["outputs"]["seconds"] for id in ("v203", "v204", "v206")}
    assert len(set(theirs.values())) == 1
    link = SimpleNamespace(bandwidth=25e9, latency=0.0)
    size = found["v203"]["inputs"]["bytes"]
    assert c.all_reduce_seconds(size, 1024, link) / c.all_reduce_seconds(size, 2, link) == pytest.approx(1.998, rel=1e-3)


def test_scaling_book_gathers_over_both_directions_of_a_ring():
    """W counts both directions of an axis; (n-1)/n is dropped, so the limit of many ranks is what it prints."""
    found = rows("scaling-book", "sharding")
    many = 10**9
    axis = SimpleNamespace(bandwidth=90e9, latency=0.0)
    both = SimpleNamespace(bandwidth=180e9, latency=0.0)
    size = 2 * 1024 * 4096
    for id, link, scale in (("v250", axis, 4), ("v251", both, 1)):
        # Q2 gathers along X what is already sharded along Y: a quarter of the array
        ours = c.bandwidth_bound("all-gather", size / scale, many, link)
        assert ours == pytest.approx(found[id]["outputs"]["recomputed"], rel=1e-6)
    # four chips on a ring that works in both directions: the farthest is two hops away, at 1 us a hop
    assert found["v253"]["outputs"]["printed"] == pytest.approx(
        c.latency_bound("all-gather", 4, SimpleNamespace(bandwidth=1.0, latency=1e-6)))
