"""Matrices of `nvidia-smi topo -m` are read as they stand, and wirings carry what networkx and arithmetic say."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from clusterlab import collectives, compute, degree, measured, topo, transformer, wiring
from clusterlab.hardware import Link, link, node
from hypothesis import given, settings
from hypothesis import strategies as st

CELLS = ["NV1", "NV2", "NV12", "NV18", *topo.CODES]


@st.composite
def matrices(draw):
    """(names, symmetric cells) of up to six GPUs and two network cards."""
    names = [f"GPU{i}" for i in range(draw(st.integers(2, 6)))] + [f"mlx5_{i}" for i in range(draw(st.integers(0, 2)))]
    cells = [["X" if i == j else "" for j in range(len(names))] for i in range(len(names))]
    for i, j in itertools.combinations(range(len(names)), 2):
        cells[i][j] = cells[j][i] = draw(st.sampled_from(CELLS))
    return names, cells


def printed(names, cells, gap, legend):
    lines = [gap.join(["", *names, "CPU Affinity", "NUMA Affinity"])]
    lines += [gap.join([name, *(f" {code} " for code in row), "0-23,48-71", "0"]) for name, row in zip(names, cells)]
    return "\n".join(lines + ["", "Legend:", "", "  X    = Self", "  NIC0: mlx5_0"] * legend)


# ---- reading --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(matrices(), st.sampled_from(["\t", "    "]), st.booleans())
def test_what_is_printed_is_read(made, gap, legend):
    names, cells = made
    matrix = topo.parse(printed(names, cells, gap, legend))
    assert matrix.names == tuple(names)
    assert matrix.codes == tuple(map(tuple, cells))
    count = len(matrix.gpus)
    assert [[int(c[2:]) if c[:2] == "NV" else 0 for c in row[:count]] for row in cells[:count]] == matrix.nvlinks.tolist()


@settings(max_examples=60, deadline=None)
@given(matrices())
def test_islands_are_the_components_of_the_nvlink_graph(made):
    matrix = topo.parse(printed(*made, "\t", False))
    graph = nx.from_numpy_array(matrix.nvlinks)
    expected = sorted(sorted(component) for component in nx.connected_components(graph))
    assert [[int(name[3:]) for name in island] for island in matrix.islands()] == expected


@settings(max_examples=60, deadline=None)
@given(matrices())
def test_farthest_and_nearest_by_looking_at_every_cell(made):
    names, cells = made
    matrix = topo.parse(printed(names, cells, "\t", False))
    order = ["NV18", "NV12", "NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS"]
    pairs = [order.index(cells[i][j]) for i in range(len(names)) for j in range(i)]
    assert matrix.farthest(names) == order[max(pairs)]
    if matrix.nics:
        row = {nic: order.index(cells[0][names.index(nic)]) for nic in matrix.nics}
        near, code = matrix.nearest("GPU0")
        assert set(near) == {nic for nic, place in row.items() if place == min(row.values())}
        assert code == order[min(row.values())]


def test_old_versions_wrote_soc():
    assert topo.parse("  GPU0 GPU1 CPU Affinity\nGPU0 X SOC 0\nGPU1 SOC X 0").code("GPU0", "GPU1") == "SYS"


@pytest.mark.parametrize("text, complaint", [
    ("No devices were found", "no line begins with GPU0"),
    ("  GPU0 GPU1\nGPU0 X PIX", "GPU1 has 0 of 2 cells"),
    ("  GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX", "GPU1 has 1 of 2 cells"),
    ("  GPU0 GPU1\nGPU0 X PIX\nGPU1 PHB X", "GPU0 says PIX of GPU1, GPU1 says PHB of GPU0"),
    ("  GPU0 GPU1\nGPU0 X NVL\nGPU1 NVL X", "'NVL' is none of"),
    ("  GPU0 GPU1\nGPU0 X NV0\nGPU1 NV0 X", "'NV0' is none of"),
    ("  GPU0 GPU1\nGPU0 PIX PIX\nGPU1 PIX X", "GPU0: a device is X to itself, not PIX"),
])
def test_what_is_no_matrix_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        topo.parse(text)


def test_unknown_names_list_near_ones():
    with pytest.raises(LookupError, match="DGX-1 V100"):
        topo.machine("DGX-1")
    with pytest.raises(LookupError, match="GPU0, GPU1"):
        topo.machine("desktop").code("GPU0", "GPU2")
    with pytest.raises(ValueError, match="two devices"):
        topo.machine("desktop").farthest(["GPU0"])
    with pytest.raises(ValueError, match="no network card"):
        topo.machine("desktop").nearest("GPU0")
    with pytest.raises(ValueError, match="none of NV#"):
        topo.distance("QPI")


def test_every_recorded_matrix_has_a_source():
    for name, matrix in topo.machines().items():
        assert "https://" in matrix.source and matrix.date and matrix.machine, name


def test_the_dgx1_is_the_cube_mesh_of_its_white_paper():
    """Six links a GPU, to four of seven peers, two of them doubled."""
    links = topo.machine("DGX-1 V100").nvlinks
    assert links.sum(axis=1).tolist() == [6] * 8
    assert [sorted(row[row > 0].tolist()) for row in links] == [[1, 1, 2, 2]] * 8


def test_the_copies_measured_on_another_dgx1_show_the_same_graph():
    """GPUs are numbered otherwise there; 48.5 GB/s, both directions added, is one link, 97 two, 11 none."""
    seen = np.array(measured.run("dgx1-peer-copies").table)
    links = np.where(np.eye(8), 0, np.round(seen / 48.5e9)).astype(int)
    recorded = topo.machine("DGX-1 V100").nvlinks
    assert np.array_equal(links, links.T)
    assert nx.is_isomorphic(nx.from_numpy_array(links), nx.from_numpy_array(recorded),
                            edge_match=lambda one, other: one["weight"] == other["weight"])


# ---- carrying -------------------------------------------------------------------------------------------------------

SMALL = st.integers(2, 6).flatmap(lambda n: st.lists(
    st.integers(0, 4), min_size=n * (n - 1) // 2, max_size=n * (n - 1) // 2).map(lambda links: (n, links)))


def random_wiring(made, switches=0):
    n, links = made
    capacity = np.zeros((n, n))
    capacity[np.triu_indices(n, 1)] = links
    return wiring.Wiring("random", n - switches, capacity + capacity.T)


def networkx_flow(capacity, sources, targets):
    graph = nx.DiGraph()
    graph.add_nodes_from([*range(len(capacity)), "s", "t"])
    graph.add_edges_from((i, j, {"capacity": capacity[i, j]}) for i, j in zip(*np.nonzero(capacity)))
    graph.add_edges_from(("s", i) for i in sources)
    graph.add_edges_from((j, "t") for j in targets)
    return nx.maximum_flow_value(graph, "s", "t")


@settings(max_examples=80, deadline=None)
@given(SMALL, st.randoms(use_true_random=False))
def test_flow_is_the_maximum_flow(made, draw):
    one = random_wiring(made)
    order = draw.sample(range(one.gpus), one.gpus)
    cut = draw.randint(1, one.gpus - 1)
    end = draw.randint(cut + 1, one.gpus)
    sources, targets = order[:cut], order[cut:end]
    assert one.flow(sources, targets) == networkx_flow(one.capacity, sources, targets)
    assert one.flow(sources, targets) == one.flow(targets, sources)
    assert one.flow(sources, targets, over=()) <= one.flow(sources, targets) <= sum(map(one.send, sources))


@settings(max_examples=40, deadline=None)
@given(SMALL)
def test_half_is_the_cheapest_balanced_cut(made):
    """With nobody outside the halves nothing can be forwarded round the cut: its links are what counts."""
    one = random_wiring(made)
    cuts = [one.capacity[np.ix_(half, sorted(set(range(one.gpus)) - set(half)))].sum()
            for half in itertools.combinations(range(one.gpus), one.gpus // 2)]
    assert one.half() == min(cuts)


@settings(max_examples=40, deadline=None)
@given(SMALL, st.integers(0, 10**6))
def test_one_more_link_never_lowers_a_flow(made, which):
    one = random_wiring(made)
    n, links = made
    more = list(links)
    more[which % len(links)] += 1
    richer = random_wiring((n, more))
    assert richer.half() >= one.half() and richer.flow([0], [1]) >= one.flow([0], [1])


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_mesh_and_switch_by_arithmetic(n):
    full, star = wiring.mesh(n, 64e9), wiring.switch(n, 64e9 * (n - 1), chips=3)
    small = n // 2
    assert full.half() == pytest.approx(small * (n - small) * 64e9)
    assert star.half() == pytest.approx(small * 64e9 * (n - 1))
    assert full.pair(0, n - 1) == 64e9 and star.pair(0, n - 1) == pytest.approx(64e9 * (n - 1))
    assert full.send(0) == pytest.approx(star.send(0))
    for size in range(2, n + 1):
        assert full.group(range(size)) == pytest.approx(64e9 * (size - 1))
        assert star.group(range(size)) == pytest.approx(64e9 * (n - 1))


def test_a_dead_switch_chip_takes_its_share_from_every_pair():
    star = wiring.switch(8, 450e9, chips=18)
    dead = wiring.Wiring("one chip dead", 8, np.delete(np.delete(star.capacity, 25, 0), 25, 1))
    assert dead.pair(0, 7) == pytest.approx(450e9 * 17 / 18)


def test_nodes_are_wired_as_they_are_listed():
    rack = wiring.of(node("GB200 NVL72"))
    assert rack.half() == 36 * 900e9 and rack.pair(0, 71) == 900e9
    cube = wiring.of(node("DGX-1 V100"))
    assert [cube.pair(0, other) / 1e9 for other in range(1, 8)] == [25, 25, 50, 50, 0, 0, 0]
    assert cube.half() == 150e9 and cube.send(0) == 150e9 and cube.flow([0], [7]) == 150e9


def test_a_matrix_of_a_switch_is_not_taken_for_a_mesh():
    with pytest.raises(ValueError, match="count 84 links, it has 12"):
        wiring.recorded(topo.machine("8 × A100 SXM"), link("NVLink 3"))
    pairs = wiring.recorded(topo.machine("8 × A100 PCIe"), link("NVLink 3 bridge"))
    assert pairs.pair(0, 1) == 300e9 and pairs.group([0, 1, 2]) == 0


@pytest.mark.parametrize("call, complaint", [
    (lambda: wiring.of(node("TPU v4 pod")), "switch, mesh or cube-mesh"),
    (lambda: wiring.Wiring("x", 2, np.ones((2, 3))), "square"),
    (lambda: wiring.Wiring("x", 3, np.zeros((2, 2))), "a row for each of 3"),
    (lambda: wiring.Wiring("x", 1, np.zeros((2, 2))), "two or more"),
    (lambda: wiring.Wiring("x", 2, np.array([[0, 1], [2, 0]])), "same in both directions"),
    (lambda: wiring.Wiring("x", 2, np.eye(2)), "0 on the diagonal"),
    (lambda: wiring.Wiring("x", 2, np.array([[0, -1], [-1, 0]])), "0 or more"),
    (lambda: wiring.mesh(4, 1.0).flow([0], [0]), "none on both"),
    (lambda: wiring.mesh(4, 1.0).flow([0], []), "at least one"),
    (lambda: wiring.switch(4, 1.0).flow([0], [4]), "GPUs 0 to 3"),
])
def test_bad_wirings_are_refused(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()


# ---- the degree that pays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden, tensor, bandwidth, flops", [
    (12288, 8, 300e9, 150e12), (8192, 2, 63e9, 600e12), (16384, 64, 900e9, 1.4e15), (4096, 1, 450e9, 500e12)])
def test_the_ratio_is_four_all_reduces_over_the_layers_products(hidden, tensor, bandwidth, flops):
    tokens = 4096
    model = transformer.Transformer(layers=1, hidden=hidden, heads=hidden // 128, vocab=1000)
    parts = compute.forward_breakdown(model, batch=1, seq=tokens)
    products = sum(flop for part, flop in parts.items() if part not in ("attention", "logits"))
    computing = 3 * products / tensor / flops
    wire = Link("port", bandwidth)
    talking = 4 * collectives.all_reduce_seconds(2.0 * tokens * hidden, tensor, wire) if tensor > 1 else 0.0
    assert degree.communication_ratio(hidden, tensor, bandwidth, flops) == pytest.approx(talking / computing)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40000), st.floats(1e9, 1e13), st.floats(1e12, 1e16), st.floats(0, 10))
def test_the_largest_degree_is_the_last_that_pays(hidden, bandwidth, flops, most):
    found = degree.largest_degree(hidden, bandwidth, flops, most=most, limit=64)
    assert math.log2(found).is_integer() and 1 <= found <= 64
    assert degree.communication_ratio(hidden, found, bandwidth, flops) <= most
    assert found == 64 or degree.communication_ratio(hidden, 2 * found, bandwidth, flops) > most


@pytest.mark.parametrize("change", [{"hidden": 0}, {"tensor": 0}, {"bandwidth": 0}, {"flops": -1.0}])
def test_bad_values_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        degree.communication_ratio(**{"hidden": 1, "tensor": 2, "bandwidth": 1.0, "flops": 1.0} | change)


def test_most_is_no_debt():
    with pytest.raises(ValueError, match="most"):
        degree.largest_degree(8192, 1e9, 1e12, most=-0.1)
