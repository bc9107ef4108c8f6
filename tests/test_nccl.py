"""NCCL's chooser against vectors from its own tuning.cc (v2.30.7), compiled unmodified and run."""

import json
import pathlib

import pytest
from clusterlab import nccl
from clusterlab.nccl import Communicator

PEERS = json.loads((pathlib.Path(__file__).parent / "fixtures" / "peers.json").read_text())
VECTORS = [row for row in PEERS if row["peer"] == "NCCL"]


def communicator(inputs):
    return Communicator(ranks=inputs["nRanks"], nodes=inputs["nNodes"], compute_capability=inputs["compCap"],
                        channels=inputs["ring"]["nChannels"], channel_bandwidth=inputs["ring"]["bwIntra"] * 1e9,
                        inter_bandwidth=inputs["ring"]["bwInter"] * 1e9, intra=inputs["typeIntra"],
                        inter=inputs["typeInter"], cpu=inputs["cpuVendor"], nvls=inputs["nvlsSupport"])


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["inputs"]["case"])
def test_table_and_choices_equal_nccls(row):
    comm = communicator(row["inputs"])
    table = nccl.nccl_table(comm)
    for name, theirs in row["outputs"]["table"].items():
        key = tuple(name.split("/"))
        if key[0].startswith("NVLS") and not comm.nvls:
            continue  # printed by NCCL even where it may not be chosen
        latency, bandwidth = table.pop(key)
        assert latency * 1e6 == pytest.approx(theirs["lat_us"], rel=1e-4)
        assert bandwidth / 1e9 == pytest.approx(theirs["algbw_GBs"], rel=1e-4)
    assert not table
    for theirs in row["outputs"]["choices"]:
        ours = nccl.nccl_choice(theirs["bytes"], comm)
        assert (ours.algorithm, ours.protocol) == (theirs["algo"], theirs["proto"])
        assert ours.seconds * 1e6 == pytest.approx(theirs["time_us"], rel=2e-4)


H100 = Communicator(ranks=8, nodes=1, compute_capability=90, channels=16, channel_bandwidth=20.6e9)


def with_(**changed):
    fields = {name: getattr(H100, name) for name in H100.__dataclass_fields__}
    return Communicator(**fields | changed)


def test_a_communicator_is_a_value():
    with pytest.raises(AttributeError):
        H100.ranks = 16


def test_ll128_only_where_128_bytes_arrive_whole():
    def allowed(**kw):
        return ("Ring", "LL128") in nccl.nccl_table(with_(**kw))

    assert allowed() and allowed(ranks=16, nodes=2) and allowed(ranks=16, nodes=2, inter="PXB", compute_capability=80)
    assert allowed(ranks=16, nodes=2, inter="PXB", compute_capability=70)
    assert not allowed(intra="PCI")
    assert not allowed(ranks=16, nodes=2, inter="PHB") and not allowed(ranks=16, nodes=2, compute_capability=80)
    assert allowed(inter="SYS")  # one node uses no NIC


def test_nvls_needs_hopper_nvlink_and_leave():
    def names(**kw):
        return {name for name, _ in nccl.nccl_table(with_(**kw))}

    assert "NVLS" in names(nvls=True) and "NVLSTree" in names(nvls=True, ranks=16, nodes=2)
    for kw in ({}, {"nvls": True, "compute_capability": 80}, {"nvls": True, "intra": "PCI"}, {"nvls": True, "channels": 1}):
        assert names(**kw) == {"Ring", "Tree"}


def test_pcie_volta_and_one_gpu_a_node_by_hand():
    pcie = nccl.nccl_table(with_(intra="PCI", channels=1, channel_bandwidth=12e9))
    assert pcie["Ring", "Simple"] == pytest.approx(((8.4 + 14 * 5.7) * 1e-6, 12e9 * 8 / 14))
    assert pcie["Tree", "LL"] == pytest.approx(((6.8 + 2 * 7 * 1.0) * 1e-6, 12e9 * 0.92 / 3.8 / 2))
    volta = with_(ranks=16, nodes=2, compute_capability=70, channels=2, channel_bandwidth=10e9, inter="PIX")
    small, large = (nccl.nccl_seconds(size, volta)["Ring", "Simple"] for size in (64 * 32 - 1, 64 * 32))
    latency = nccl.nccl_table(volta)["Ring", "Simple"][0]
    assert latency == pytest.approx((8.4 + 28 * 3.4 + 2 * 14.0) * 1e-6)  # 3.4 a hop: above 3 times the posting overhead
    assert large - small == pytest.approx(0.9 * latency, rel=1e-3)
    alone = nccl.nccl_table(with_(ranks=4, nodes=4, nvls=True))
    assert alone["Ring", "LL"][0] == pytest.approx((6.6 + 6 * 5.0) * 1e-6)
    assert alone["NVLSTree", "Simple"][0] == pytest.approx((25 + 2 * 2 * 14.0) * 1e-6)


def test_the_inter_node_bandwidth_counts_from_three_nodes_on():
    slow = {"inter_bandwidth": 5e9}
    two = [nccl.nccl_table(with_(ranks=16, nodes=2, **kw))["Ring", "Simple"][1] for kw in ({}, slow)]
    four = [nccl.nccl_table(with_(ranks=32, nodes=4, **kw))["Ring", "Simple"][1] for kw in ({}, slow)]
    assert two[0] == two[1] and four[0] == pytest.approx(four[1] * 20.6 / 5)
    tree = [nccl.nccl_table(with_(ranks=32, nodes=nodes, nvls=True, **slow))["NVLSTree", "Simple"][1]
            for nodes in (2, 4)]
    assert tree[0] == pytest.approx(2 * tree[1])


def test_one_two_and_three():
    """One rank needs no time; two send their whole array; the third node is the first to see the other bandwidth."""
    table = nccl.nccl_table(with_(ranks=1))
    assert table["Ring", "Simple"] == (pytest.approx(8.4e-6), float("inf"))
    assert nccl.nccl_table(with_(ranks=2))["Ring", "Simple"][1] == pytest.approx(16 * 20.6e9, rel=1e-12)
    three = nccl.nccl_table(with_(ranks=3, nodes=3, inter_bandwidth=5e9))["Ring", "Simple"][1]
    assert three == pytest.approx(16 * 5e9 * 3 / 4, rel=1e-12)


@pytest.mark.parametrize(("changed", "channel"), [
    ({"channels": 2}, 0.85), ({"channels": 2, "compute_capability": 100}, 0.74),       # 2 · efficiency · (2-1)/2
    ({"channels": 3, "inter_bandwidth": 90e9}, 0.85 * 4 / 3), ({"channels": 16}, 1.0),  # all but one, or what inter is
])
def test_nvls_on_one_node_by_hand(changed, channel):
    comm = with_(nvls=True, **changed)
    latency, bandwidth = nccl.nccl_table(comm)["NVLS", "Simple"]
    assert latency == pytest.approx(25e-6) and bandwidth == pytest.approx(
        comm.channels * channel * 20.6e9 * 8 / 14, rel=1e-12)


def test_nvls_on_two_nodes_is_limited_by_the_channel():
    """57.7 GB/s a channel on Hopper; 20.9 µs each way over the network."""
    latency, bandwidth = nccl.nccl_table(with_(nvls=True, ranks=16, nodes=2, channel_bandwidth=100e9))["NVLSTree", "Simple"]
    assert latency == pytest.approx((25 + 2 * 20.9) * 1e-6)
    assert bandwidth == pytest.approx(16 * 57.7e9 * 16 / 30, rel=1e-12)
    few = nccl.nccl_table(with_(nvls=True, ranks=16, nodes=2, channels=2))["NVLSTree", "Simple"][1]
    assert few == pytest.approx(2 * 0.85 * 20.6e9 * 16 / 30, rel=1e-12)  # with two channels by NVLink


def test_only_trees_are_corrected_by_size():
    latency, bandwidth = nccl.nccl_table(H100)["Ring", "Simple"]
    assert nccl.nccl_seconds(64, H100)["Ring", "Simple"] == pytest.approx(latency + 64 / bandwidth, rel=1e-12)


def test_small_sizes_have_no_tree_correction_below_64_bytes():
    for size in (0, 63, 64, 2**40):
        seconds = nccl.nccl_seconds(size, H100)
        latency, bandwidth = nccl.nccl_table(H100)["Tree", "Simple"]
        factor = 0.9 if size == 64 else 1.0
        assert seconds["Tree", "Simple"] == pytest.approx(latency + size / (bandwidth * factor), rel=1e-12)


def test_the_correction_of_trees_ends_at_512_mib():
    hopper, blackwell = (with_(ranks=16, nodes=2, nvls=True, compute_capability=cc) for cc in (90, 100))
    for comm, name, last in ((H100, "Tree", 2**29 - 1), (blackwell, "NVLSTree", 2**30 - 1), (hopper, "NVLSTree", 63)):
        latency, bandwidth = nccl.nccl_table(comm)[name, "Simple"]
        for size, factor in ((last, 1.0 if last == 63 else 0.9), (last + 1, 1.0)):
            seconds = nccl.nccl_seconds(size, comm)[name, "Simple"]
            assert seconds == pytest.approx(latency + size / (bandwidth * factor), rel=1e-12)


@pytest.mark.parametrize("wrong, words", [
    ({"intra": "NVL"}, "intra='NVL'.*NVLINK, PCI"), ({"inter": "NODE"}, "inter='NODE'"), ({"cpu": "IBM"}, "cpu='IBM'"),
    ({"ranks": 0}, "ranks=0"), ({"channels": 0}, "channels=0"), ({"channel_bandwidth": 0.0}, "channel_bandwidth=0"),
    ({"nodes": 3}, "ranks=8 on nodes=3"), ({"compute_capability": 60}, "compute_capability=60"),
])
def test_bad_input_is_named(wrong, words):
    with pytest.raises(ValueError, match=words):
        with_(**wrong)
    with pytest.raises(ValueError, match="size=-1"):
        nccl.nccl_seconds(-1, H100)
    with pytest.raises(ValueError, match="size=1.5"):
        nccl.nccl_choice(1.5, H100)
