"""Fabrics: every count against the graph, the bisection against max-flow and all splits, the loads against paths that
networkx enumerates."""

import dataclasses
import itertools
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from clusterlab import topology as t
from clusterlab.clos import Clos
from clusterlab.collectives import bytes_sent

LINK = SimpleNamespace(bandwidth=50e9, latency=1e-6)
class Fabrics(dict):
    """Builds each fabric when a test first asks for it."""

    def __getitem__(self, name):
        if callable(build := super().__getitem__(name)):
            self[name] = build()
        return super().__getitem__(name)


FABRICS = Fabrics({
    "one switch": lambda: t.fat_tree(6, 1), "two tiers": lambda: t.fat_tree(6, 2),
    "smallest": lambda: t.fat_tree(2, 2), "three tiers": lambda: t.fat_tree(4), "odd pods": lambda: t.fat_tree(6),
    "3:1": lambda: t.fat_tree(8, 2, 3), "2:1": lambda: t.fat_tree(6, 3, 2),
    "odd root": lambda: t.clos((3, 5), (1, 2)), "dual-homed": lambda: t.clos((4, 3, 3), (2, 2, 1)),
    "parallel": lambda: t.clos((2, 3, 5), (1, 2, 1), (1, 1, 2)), "tapered": lambda: t.clos((4, 4, 6), (1, 2, 2)),
    "rails": lambda: t.rail_optimized(4, rails=2, radix=4),
    "rails, parallel": lambda: t.rail_optimized(4, rails=2, radix=8),
    "rails, pods": lambda: t.rail_optimized(8, rails=2, radix=4),
    "rails, no PXN": lambda: t.rail_optimized(4, rails=2, radix=4, pxn=False),
    "rails, odd": lambda: t.rail_optimized(12, rails=2, radix=8),
    "rail-only": lambda: t.rail_only(4, rails=2, radix=4),
    "rail-only, tiers": lambda: t.rail_only(8, rails=2, radix=4),
    "rail-only, odd": lambda: t.rail_only(3, rails=4, radix=4), "dragonfly": lambda: t.dragonfly(1),
    "dragonfly 2": lambda: t.dragonfly(2), "two groups": lambda: t.dragonfly(2, groups=2),
    "few groups": lambda: t.dragonfly(2, groups=5), "even groups": lambda: t.dragonfly(2, groups=6),
    "odd routers": lambda: t.dragonfly(3, p=1, a=3, groups=6), "ring": lambda: t.torus((5,)),
    "grid": lambda: t.torus((4, 4)), "odd grid": lambda: t.torus((3, 3)), "mixed": lambda: t.torus((5, 4)),
    "cube": lambda: t.torus((2, 2, 2)), "flat": lambda: t.torus((3, 2)), "three": lambda: t.torus((4, 3, 2)),
    "lines": lambda: t.torus((1, 6)),
})
fabrics = pytest.mark.parametrize("name", FABRICS)


def maximum_flow(fabric, half):
    network, half = nx.DiGraph(), set(np.asarray(half).tolist())
    for u, v, cables in fabric.graph.edges(data="cables"):
        network.add_edge(u, v, capacity=min(cables, 1e6))
        network.add_edge(v, u, capacity=min(cables, 1e6))
    for endpoint in range(fabric.endpoints):
        network.add_edge(*("s", endpoint) if endpoint in half else (endpoint, "t"))
    return nx.maximum_flow_value(network, "s", "t")


@fabrics
def test_counts_are_those_of_the_graph(name):
    fabric = FABRICS[name]
    graph = fabric.graph
    kinds = [kind for _, kind in graph.nodes(data="kind")]
    assert kinds.count("endpoint") == fabric.endpoints and kinds.count("switch") == fabric.switches
    joined = [(u, v, n) for u, v, n in graph.edges(data="cables") if n < np.inf]
    to_endpoints = sum(n for u, v, n in joined if min(u, v) < fabric.endpoints <= max(u, v))
    assert to_endpoints == fabric.endpoint_cables
    assert sum(n for _, _, n in joined) == fabric.cables + fabric.endpoint_cables
    farthest = max(max(lengths[e] for e in range(fabric.endpoints)) for lengths in (
        nx.single_source_shortest_path_length(graph, e) for e in range(fabric.endpoints)))
    assert fabric.diameter() == farthest


@fabrics
def test_ports_are_conserved(name):
    """No switch has more cables than ports; every cable has two ends; full fat trees have as many up as down."""
    fabric = FABRICS[name]
    ends = {node: sum(n for _, _, n in fabric.graph.edges(node, data="cables") if n < np.inf)
            for node, kind in fabric.graph.nodes(data="kind") if kind == "switch"}
    assert sum(ends.values()) == 2 * fabric.cables * (fabric.switches > 0) + fabric.endpoint_cables
    if fabric.layout.radix:
        assert max(ends.values(), default=0) <= fabric.layout.radix
    if fabric.name in ("fat tree", "rail-optimized") and name not in ("3:1", "2:1", "one switch"):
        assert fabric.cables == fabric.endpoints * (len(fabric.layout.tiers) - 1)
        assert all(down == up for down, up in fabric.layout.ports[:-1])
        assert fabric.layout.oversubscription == (1,) * (len(fabric.layout.tiers) - 1)


@fabrics
def test_bisection_is_the_maximum_flow_between_the_halves(name):
    fabric = FABRICS[name]
    half = fabric.layout.half
    assert len(set(half.tolist())) == len(half) and abs(len(half) - fabric.endpoints / 2) < fabric.layout.servers
    assert fabric.bisection_bandwidth(LINK) == pytest.approx(maximum_flow(fabric, half) * LINK.bandwidth)


SMALL = ["one switch", "two tiers", "three tiers", "3:1", "odd root", "parallel", "rails", "rails, pods", "rail-only, tiers",
         "dragonfly", "ring", "grid", "odd grid", "flat"]


@pytest.mark.parametrize("name", SMALL)
def test_random_halves_are_never_less(name):
    fabric, random = FABRICS[name], np.random.default_rng(7)
    for _ in range(3):
        half = random.permutation(fabric.endpoints)[:fabric.endpoints // 2]
        assert maximum_flow(fabric, half) >= fabric.layout.bisection_cables


@pytest.mark.parametrize("dims", [(5,), (4, 4), (3, 3), (5, 3), (3, 2), (2, 2, 2), (4, 3), (7, 2), (3, 2, 2), (2, 6)])
def test_no_half_of_a_small_torus_is_less(dims):
    """All of them, counted."""
    fabric = t.torus(dims)
    n = fabric.endpoints
    sides = np.array(list(itertools.combinations(range(n), n // 2)))
    member = np.zeros((len(sides), n), dtype=bool)
    member[np.arange(len(sides))[:, None], sides] = True
    u, v = fabric.layout.cable_ends[fabric.layout.cable_ends[:, 0] >= 0].T
    assert (member[:, u] != member[:, v]).sum(axis=1).min() == fabric.layout.bisection_cables


def test_no_half_of_a_dragonfly_found_by_exchange_is_less():
    layout = t.dragonfly(2).layout
    weight = np.zeros((layout.routers, layout.routers), dtype=int)
    np.add.at(weight, tuple(layout.cable_ends[layout.endpoints:].T - layout.endpoints), 1)
    weight += weight.T
    found = []
    for seed in range(60):
        side = np.zeros(layout.routers, dtype=bool)
        side[np.random.default_rng(seed).permutation(layout.routers)[:layout.routers // 2]] = True
        while True:
            gain = weight @ np.where(side, -1, 1) * np.where(side, 1, -1)
            ours, theirs = np.flatnonzero(side), np.flatnonzero(~side)
            swap = gain[ours][:, None] + gain[theirs] - 2 * weight[np.ix_(ours, theirs)]
            i, j = np.unravel_index(swap.argmax(), swap.shape)
            if swap[i, j] <= 0:
                break
            side[ours[i]], side[theirs[j]] = False, True
        found.append(weight[np.ix_(side, ~side)].sum())
    assert min(found) == layout.bisection_cables == 4**2 + 2**2


def test_large_fabrics_are_counted_without_a_graph():
    for k in (4, 48, 128):
        tree = t.fat_tree(k)
        assert (tree.endpoints, tree.switches, tree.cables) == (k**3 // 4, 5 * k**2 // 4, k**3 // 2)
        assert tree.layout.tiers == (k**2 // 2, k**2 // 2, k**2 // 4) and tree.layout.bisection_cables == k**3 // 8
    for h in (1, 4, 16):
        fly = t.dragonfly(h)
        assert fly.endpoints == 4 * h**4 + 2 * h**2 and fly.layout.radix == 4 * h - 1
        assert fly.layout.bisection_cables == h**4 + h**2
    wide = t.fat_tree(64, 2, oversubscription=3)
    assert wide.layout.oversubscription == (3,) and wide.layout.bisection_cables == wide.endpoints / 2 / 3
    assert t.fat_tree(6, 3, 2).layout.oversubscription == (2, 2)
    assert t.torus((16, 20, 28)).layout.bisection_cables == 2 * 16 * 20


def test_512_gpus_need_8_spines_and_cannot_have_56():
    """16 leaves have 32 cables up each, 512 ends of cables: 8 spines of 64 ports. 56 spines would need 3,584."""
    fabric = t.rail_optimized(64)
    assert fabric.endpoints == 512 and fabric.layout.tiers == (16, 8) and fabric.cables == 512
    with pytest.raises(ValueError, match="tier 1 needs 32 ports down and 56 up, and has 64"):
        t.clos((32, 16), (1, 56), radix=64)


def test_superpods_of_the_reference_architecture():
    """Table of NVIDIA's DGX B200 reference architecture: leaf, spine and core switches, and cables of each tier."""
    printed = {2: (16, 8), 4: (32, 16), 8: (64, 32), 16: (128, 128, 64), 32: (256, 256, 128), 64: (512, 512, 256)}
    for units, tiers in printed.items():
        pod = t.superpod(units, reserve=0)
        assert pod.layout.tiers == tiers and pod.endpoints == pod.endpoint_cables == 256 * units
        assert pod.cables == 256 * units * (len(tiers) - 1)
    assert t.superpod(3).layout.tiers == (24, 16)  # 32 cables divide over 16 spines, not over 12
    assert t.superpod(4).endpoints == 127 * 8 and t.superpod(1).endpoints == 31 * 8


def test_fabrics_are_values():
    for one in (t.fat_tree(4), t.fat_tree(4).layout, t.dragonfly(1).layout, t.torus((4,)).layout, t.traffic("ring", 4, 1.0),
                t.route(t.torus((4,)), t.traffic("ring", 4, 1.0)), t.Cost(1, 1, 1, 1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.name = "changed"
    assert t.fat_tree(4) == t.fat_tree(4) != t.fat_tree(6)


def test_each_constructor_names_its_fabric_and_keeps_its_radix():
    named = {"clos": t.clos((16, 32), (1, 16), radix=64), "fat tree": t.fat_tree(64, 2), "torus": t.torus((4,)),
             "rail-optimized": t.rail_optimized(32), "rail-only": t.rail_only(8), "superpod": t.superpod(1),
             "dragonfly": t.dragonfly(1)}
    assert {name: fabric.name for name, fabric in named.items()} == {name: name for name in named}
    assert [named[name].layout.radix for name in ("clos", "fat tree", "rail-optimized", "rail-only")] == [64] * 4
    for tiers in (1, 2, 3):
        assert (t.fat_tree(6, tiers).layout.radix, t.fat_tree(6, tiers).name) == (6, "fat tree")
    assert t.rail_optimized(8, rails=2, radix=4).layout.radix == t.rail_only(8, rails=2, radix=4).layout.radix == 4


def test_the_smallest_of_each():
    assert [t.fat_tree(2, tiers).endpoints for tiers in (1, 2, 3)] == [2, 2, 2]
    assert t.fat_tree(6, 1).endpoint_cables == 6 and t.fat_tree(6, 1).cables == 0
    pair = t.rail_optimized(1, rails=2, radix=2)
    assert pair.endpoints == 2 and pair.layout.tiers == (2, 1)
    assert t.dragonfly(2, p=1).endpoints == t.dragonfly(2).switches == 36
    alone = t.torus((1, 1))
    assert (alone.endpoints, alone.cables, alone.diameter(), alone.layout.bisection_cables) == (1, 0, 0, 0)
    assert t.superpod(5).endpoints == 5 * 256  # up to four units give a server to management


def test_three_tiers_of_rails_end_where_the_ports_do():
    """Leaf and aggregation switches of radix 4 have 2 ports up; the top joins as many pods as it has ports."""
    full = t.rail_optimized(8, rails=2, radix=4)
    assert full.endpoints == 16 and full.layout.tiers == (8, 8, 4)
    three = t.rail_optimized(6, rails=2, radix=4)        # of three pods: still one cable to each top switch
    assert three.layout.tiers == (6, 6, 4) and three.cables == 24
    # 24 · 8 cables up and three pods: with 16 ports four cables may be parallel (five do not divide 8), 2 · 8 tops
    wide = t.rail_optimized(96, rails=2, radix=16)
    assert wide.layout.tiers == (24, 24, 16) and {type(n) for n in (*wide.layout.tiers, wide.cables)} == {int}
    for servers, rails, radix in ((10, 2, 4), (16, 3, 8), (0, 2, 4)):
        with pytest.raises(ValueError, match=f"servers={servers}: "):
            t.rail_optimized(servers, rails=rails, radix=radix)


# Traffic


def test_patterns():
    def as_dict(kind, n, size, **kw):
        return {(s, d): b for s, d, b in zip(*(a.tolist() for a in t.traffic(kind, n, size, **kw)), strict=True)}

    assert as_dict("neighbor", 3, 5.0) == as_dict("pipeline", 3, 5.0) == {(0, 1): 5, (1, 2): 5}
    assert as_dict("incast", 4, 5.0) == {(1, 0): 5, (2, 0): 5, (3, 0): 5}
    assert as_dict("all-to-all", 3, 6.0) == dict.fromkeys(itertools.permutations(range(3), 2), 2.0)
    doubling = as_dict("halving-doubling", 8, 16.0)
    assert doubling[0, 1] == 16 and doubling[0, 2] == 8 and doubling[5, 1] == 4 and len(doubling) == 24
    for kind in ("ring", "halving-doubling"):  # what the busiest rank sends, as the algorithms' table says
        sent = np.bincount(t.traffic(kind, 8, 800.0).src, t.traffic(kind, 8, 800.0).bytes)
        assert sent.max() == pytest.approx(bytes_sent(kind, 800.0, 8)) and sent.min() == sent.max()
    assert t.traffic("ring", 4, 0.0).bytes.tolist() == [0.0] * 4
    assert np.array_equal(t.traffic("permutation", 50, 1.0).dst, t.traffic("permutation", 50, 1.0, seed=0).dst)
    for seed in range(3):
        one = t.traffic("permutation", 50, 1.0, seed=seed)
        assert sorted(one.src) == sorted(one.dst) == list(range(50)) and (one.src != one.dst).all()
    assert not np.array_equal(t.traffic("permutation", 50, 1.0, seed=1).dst, t.traffic("permutation", 50, 1.0, seed=2).dst)


# Routes


def random_flows(fabric, count=60, seed=3):
    random = np.random.default_rng(seed)
    return random.integers(fabric.endpoints, size=count), random.integers(fabric.endpoints, size=count), random.random(count)


def walk(fabric, src, dst, cables):
    """Follow directed cables from src; NVLink joins the GPUs of a server."""
    ends, server, at = fabric.layout.cable_ends, fabric.layout.servers, src
    for cable in cables[cables >= 0].tolist():
        here, there = ends[cable // 2][::-1] if cable % 2 else ends[cable // 2]
        nvlink = at < fabric.endpoints and here < fabric.endpoints and at // server == here // server
        assert here == at or nvlink
        at = there
    assert at == dst or (at < fabric.endpoints and at // server == dst // server)


@fabrics
def test_paths_lead_where_they_should_and_are_shortest(name):
    fabric = FABRICS[name]
    src, dst, _ = random_flows(fabric)
    random = np.random.default_rng(1)
    path = fabric.layout.paths(src, dst, lambda n: random.integers(n, size=len(src)))
    assert path.min() >= -1
    for s, d, cables in zip(src.tolist(), dst.tolist(), path, strict=True):
        walk(fabric, s, d, cables)
        hops = (cables >= 0).sum()
        if fabric.layout.servers > 1:
            assert hops <= 2 * len(fabric.layout.tiers)
        elif fabric.name == "dragonfly":  # a direct route: over one cable between groups at most
            assert hops <= 5 and hops >= nx.shortest_path_length(fabric.graph, s, d)
        else:
            assert hops == nx.shortest_path_length(fabric.graph, s, d)


def test_detours_of_a_dragonfly_lead_where_they_should():
    fabric, random = t.dragonfly(2), np.random.default_rng(1)
    src, dst, _ = random_flows(fabric, 200)
    path = fabric.layout.paths(src, dst, lambda n: random.integers(n, size=200), valiant=True)
    for s, d, cables in zip(src.tolist(), dst.tolist(), path, strict=True):
        walk(fabric, s, d, cables)
    first = fabric.endpoints + fabric.layout.groups * 6
    between = (path // 2 >= first).sum(axis=1)
    assert (between == 2 * (src // 8 != dst // 8)).all()  # through one other group, when groups differ
    three = t.dragonfly(2, groups=3)  # the one other group is the way around
    path = three.layout.paths(np.array([0]), np.array([8]), lambda n: random.integers(n, size=1), valiant=True)
    walk(three, 0, 8, path[0])
    assert (path // 2 >= three.endpoints + 3 * 6).sum() == 2
    assert t.dragonfly(2, a=6, p=1, groups=3).switches == 18  # 12 ports a group: none is left over


def spread_by_enumeration(fabric, flows):
    """Every flow over all paths that networkx lists, a bundle counting once for each of its cables."""
    loads = {}
    for s, d, size in zip(*flows, strict=True):
        if s == d:
            continue
        paths = list(nx.all_shortest_paths(fabric.graph, s, d))
        weights = np.array([np.prod([fabric.graph[u][v]["cables"] for u, v in itertools.pairwise(path)]) for path in paths])
        for path, weight in zip(paths, weights / weights.sum(), strict=True):
            for pair in itertools.pairwise(path):
                loads[pair] = loads.get(pair, 0.0) + size * weight
    return loads


def assert_loads(fabric, loads, expected):
    """The loads are the expected ones and no more."""
    for (u, v), size in expected.items():
        assert loads.on(u, v) == pytest.approx(size)
    assert loads.bytes.sum() == pytest.approx(sum(expected.values()))


@pytest.mark.parametrize("name", ["one switch", "two tiers", "three tiers", "odd pods", "3:1", "2:1", "odd root", "parallel",
                                  "dual-homed", "tapered", "ring", "lines"])
def test_adaptive_spreads_over_all_shortest_paths(name):
    fabric = FABRICS[name]
    flows = random_flows(fabric)
    assert_loads(fabric, t.route(fabric, flows, policy="adaptive"), spread_by_enumeration(fabric, flows))


@pytest.mark.parametrize("name", [name for name in FABRICS if name not in ("odd pods", "tapered", "2:1", "dragonfly 2")])
def test_all_to_all_is_the_sum_of_its_flows(name):
    fabric = FABRICS[name]
    pattern = t.traffic("all-to-all", fabric.endpoints, 7.0)
    loads = t.route(fabric, pattern)
    if fabric.name == "dragonfly":
        one_by_one = _direct_routes(fabric, *pattern)
    else:
        one_by_one = t.route(fabric, tuple(pattern), policy="adaptive").bytes
    assert loads.bytes == pytest.approx(one_by_one)


def _direct_routes(fabric, src, dst, size):
    loads = np.zeros(2 * len(fabric.layout.cable_ends))
    for choice in range(fabric.layout.choices):
        path = fabric.layout.paths(src, dst, lambda n, choice=choice: np.full(len(src), choice % n))
        np.add.at(loads, path[path >= 0], np.repeat(size / fabric.layout.choices, (path >= 0).sum(axis=1)))
    return loads


@pytest.mark.parametrize("radix", [4, 8])
def test_all_to_all_in_a_fat_tree_equals_enumeration(radix):
    """By networkx for k = 4. For k = 8 the closed form of an edge switch: 4 endpoints send 124/128 of theirs up."""
    fabric = t.fat_tree(radix)
    loads = t.route(fabric, t.traffic("all-to-all", fabric.endpoints, 1.0))
    if radix == 4:
        assert_loads(fabric, loads, spread_by_enumeration(fabric, t.traffic("all-to-all", 16, 1.0)))
    n, half = fabric.endpoints, radix // 2
    edge = fabric.endpoints
    above = [v for v in fabric.graph[edge] if v >= fabric.endpoints]
    assert sum(loads.on(edge, v) for v in above) == pytest.approx(half * (n - half) / n)
    pod = half * half
    core = fabric.endpoints + fabric.switches - 1
    assert sum(loads.on(core, v) for v in fabric.graph[core]) == pytest.approx(radix * pod * (n - pod) / n / pod)


@fabrics
def test_ecmp_conserves_bytes_and_takes_one_path_a_flow(name):
    fabric = FABRICS[name]
    src, dst, size = random_flows(fabric, 40)
    loads = t.route(fabric, (src, dst, size), seed=5)
    total = np.zeros_like(loads.bytes)
    for s, d, b in zip(src, dst, size, strict=True):
        one = t.route(fabric, ([s], [d], [b])).bytes
        assert set(np.round(one, 12)) <= {0.0, round(b, 12)}
        total += one
    if fabric.name in ("fat tree", "clos", "superpod", "rail-optimized", "rail-only"):  # every choice is equally long
        assert loads.bytes.sum() == pytest.approx(total.sum())
    assert np.array_equal(loads.bytes, t.route(fabric, (src, dst, size), seed=5).bytes)
    if fabric.layout.choices > 16:
        assert not np.array_equal(loads.bytes, t.route(fabric, (src, dst, size), seed=6).bytes)


def test_hashing_is_even_on_average():
    """Flows between two pods of a fat tree over 16 cores: the mean over seeds tends to the even spread."""
    fabric = t.fat_tree(8)
    flows = np.arange(16), np.arange(16) + 112, np.ones(16)
    even = t.route(fabric, flows, policy="adaptive").bytes
    mean = np.mean([t.route(fabric, flows, seed=seed).bytes for seed in range(400)], axis=0)
    assert np.abs(mean - even).max() < 0.15 and even.max() == 1
    counts = [t.route(fabric, flows, seed=seed).max for seed in range(50)]
    assert min(counts) >= 2 and max(counts) <= 8  # flows do meet


def test_permutations_run_at_full_rate_when_spread_and_not_when_hashed():
    fabric = t.fat_tree(16)
    flows = t.traffic("permutation", fabric.endpoints, 1.0, seed=2)
    assert t.route(fabric, flows, policy="adaptive").max == pytest.approx(1.0)
    hashed = t.route(fabric, flows)
    assert hashed.max >= 3 and hashed.seconds(LINK) == hashed.max / LINK.bandwidth
    assert t.route(fabric, t.traffic("incast", 10, 1.0), policy="adaptive").max == pytest.approx(9.0)
    ring = t.route(t.rail_optimized(32), t.traffic("ring", 256, 8.0))
    assert ring.between_switches.max() == 0  # the GPU of the next server is on the same leaf's rail


def test_oversubscription_is_what_crossing_traffic_feels():
    for ratio in (1, 3):
        fabric = t.fat_tree(16, 2, ratio)
        n = fabric.endpoints
        flows = np.arange(n), (np.arange(n) + n // 2) % n, np.ones(n)
        assert t.route(fabric, flows, policy="adaptive").between_switches.max() == pytest.approx(ratio)


def test_pxn_keeps_an_all_to_all_on_its_rail():
    """With PXN messages reach the destination's rail inside the server: one leaf, no spine."""
    flows = t.traffic("all-to-all", 256, 256.0)
    with_pxn, without = (t.route(t.rail_optimized(32, pxn=pxn), flows) for pxn in (True, False))
    assert with_pxn.between_switches.max() == 0 and without.between_switches.max() > 0
    assert with_pxn.max == pytest.approx(8 * 31)  # 31 other servers, the messages of 8 GPUs to each
    only = t.route(t.rail_only(32), flows)
    assert only.max == pytest.approx(with_pxn.max)
    inside = t.route(t.rail_only(32), ([0, 9], [7, 8], [1.0, 1.0]))
    assert inside.max == 0  # NVLink carries it


def test_rails_put_a_gpu_on_the_leaf_of_its_rail():
    fabric = t.rail_optimized(64, unused=1)
    for endpoint in (0, 7, 8, 255, 256, 503):
        leaf = next(v for v in fabric.graph[endpoint] if fabric.graph.nodes[v]["kind"] == "switch") - fabric.endpoints
        server, rail = divmod(endpoint, 8)
        assert leaf == server // 32 * 8 + rail
    assert max(fabric.graph) == 504 + 24 + 62 and fabric.graph.nodes[504 + 24]["kind"] == "server"
    whole = t.route(fabric, t.traffic("all-to-all", 504, 504.0))
    assert whole.bytes == pytest.approx(t.route(fabric, tuple(t.traffic("all-to-all", 504, 504.0)), policy="adaptive").bytes)


def test_adaptive_on_a_dragonfly_beats_direct_routes_on_neighbouring_groups():
    """All of a group to the next one: the one cable between them carries everything, unless others help."""
    fabric = t.dragonfly(3)
    group = fabric.layout.p * fabric.layout.a
    src = np.arange(fabric.endpoints)
    flows = src, (src + group) % fabric.endpoints, np.ones(fabric.endpoints)
    assert t.route(fabric, flows).max == group
    assert t.route(fabric, flows, policy="adaptive").max < group / 4
    spread = t.traffic("permutation", fabric.endpoints, 1.0, seed=1)
    assert t.route(fabric, spread, policy="adaptive").max <= t.route(fabric, spread).max
    two = t.dragonfly(2, groups=2)
    assert t.route(two, ([0], [8], [1.0]), policy="adaptive").bytes.sum() == pytest.approx(
        t.route(two, ([0], [8], [1.0]), policy="adaptive").bytes.sum())


# Failures


def test_flows_avoid_failed_cables():
    for name in ("two tiers", "three tiers", "parallel", "rails", "rail-only, tiers", "dragonfly 2", "grid", "ring"):
        fabric = FABRICS[name]
        flows = random_flows(fabric)
        busiest = max(((u, v) for u, v, n in fabric.graph.edges(data="cables")
                       if n < np.inf and min(u, v) >= fabric.endpoints * (fabric.switches > 0)),
                      key=lambda pair: t.route(fabric, flows).on(*pair))
        for policy in ("ecmp", "adaptive"):
            before, after = (t.route(fabric, flows, policy=policy, failed=down) for down in ((), [busiest]))
            assert before.on(*busiest) > 0 or policy == "adaptive"
            assert after.on(*busiest) == after.on(*reversed(busiest)) == 0
            assert after.bytes.sum() >= before.bytes.sum() * (1 - 1e-9)


def test_spreading_with_a_failure_equals_enumeration_without_that_cable():
    fabric = t.fat_tree(4)
    flows = random_flows(fabric)
    agg = next(v for v in fabric.graph[16] if v >= 16 + 8)
    graph = fabric.graph.copy()
    graph.remove_edge(16, agg)
    broken = SimpleNamespace(graph=graph)
    for down in ([(16, agg)], [(agg, 16)], [(16, agg, 0)]):
        loads = t.route(fabric, flows, policy="adaptive", failed=down)
        assert_loads(fabric, loads, spread_by_enumeration(broken, flows))


def test_one_of_parallel_cables_fails():
    fabric = t.rail_optimized(4, rails=2, radix=8, pxn=False)  # two leaves, one spine, four cables each
    leaf, spine = fabric.endpoints, fabric.endpoints + 2
    flows = [0] * 40, [1] * 40, [1.0] * 40
    loads = t.route(fabric, flows, policy="adaptive", failed=[(leaf, spine, 2)])
    cables = np.flatnonzero((fabric.layout.cable_ends == (leaf, spine)).all(axis=1))
    assert loads.bytes[2 * cables].tolist() == pytest.approx([40 / 3, 40 / 3, 0, 40 / 3])
    hashed = t.route(fabric, flows, failed=[(leaf, spine, 2)]).bytes[2 * cables]
    assert hashed[2] == 0 and hashed.sum() == 40 and (hashed[[0, 1, 3]] > 0).all()


def test_no_shortest_path_left_takes_a_longer_one_and_none_at_all_is_an_error():
    fabric = t.fat_tree(4)  # edge switches 16 and 17 of a pod share two aggregation switches
    aggs = [v for v in fabric.graph[16] if v >= 24]
    down = [(16, aggs[0]), (17, aggs[1])]
    for policy in ("ecmp", "adaptive"):
        loads = t.route(fabric, ([0], [2], [1.0]), policy=policy, failed=down)
        assert loads.bytes.sum() == pytest.approx(10)  # up to a core, down to an edge switch elsewhere, up and down again
        with pytest.raises(ValueError, match="endpoint 2 cannot be reached from 0"):
            t.route(fabric, ([0], [2], [1.0]), policy=policy, failed=[(16, v) for v in aggs])
        with pytest.raises(ValueError, match="cannot be reached"):
            t.route(t.rail_only(3, rails=2, radix=4), ([0], [4], [1.0]), policy=policy,
                    failed=[(0, 6), (1, 7)])
    around = t.route(t.rail_only(3, rails=2, radix=4), ([0], [4], [1.0]), failed=[(0, 6)])
    assert around.on(1, 7) == 1 and around.on(7, 5) == 1  # by NVLink to the other rail


def test_all_to_all_with_a_failure_is_routed_flow_by_flow():
    fabric = t.fat_tree(4, 2)
    flows = t.traffic("all-to-all", 8, 8.0)
    spine = fabric.endpoints + 4
    loads = t.route(fabric, flows, policy="adaptive", failed=[(fabric.endpoints, spine)])
    assert loads.on(fabric.endpoints, spine) == 0 and loads.on(fabric.endpoints, spine + 1) == pytest.approx(12)


# Cost


def test_cost_reproduces_what_deepseek_prints():
    """Zhao et al. 2025 (arXiv:2505.09343), table 3, in dollars: a switch and a cable priced from two rows give the others.

    Host cables are not counted there.
    """
    tree, cube = (2048, 96, 2048, 9e6), (65536, 5120, 131072, 491e6)
    switch, cable = np.linalg.solve([tree[1:3], cube[1:3]], [tree[3], cube[3]])
    pieces = {"switch": SimpleNamespace(price=switch, power=0), "cable": SimpleNamespace(price=cable, power=0)}
    planes = t.network_cost(t.rail_only(2048), **pieces)
    assert planes.price == pytest.approx(72e6, rel=0.01) and planes.price_per_endpoint == pytest.approx(4390, rel=0.01)
    fly = t.network_cost(t.dragonfly(16, groups=511), **pieces)
    assert fly.price == pytest.approx(1522e6, rel=0.03) and fly.price_per_endpoint == pytest.approx(5800, rel=0.03)
    assert t.network_cost(t.fat_tree(64), **pieces).price_per_endpoint == pytest.approx(7500, rel=0.01)


def test_cost_counts_every_piece():
    switch, cable = SimpleNamespace(price=100.0, power=10.0, ports=4), SimpleNamespace(price=1.0, power=0.5)
    host = SimpleNamespace(price=2.0, power=0.25)
    cost = t.network_cost(t.fat_tree(4), switch=switch, cable=cable, endpoint_cable=host)
    assert cost == t.Cost(2000 + 32 + 32, 200 + 16 + 4, 2064 / 16, 220 / 16)
    with pytest.raises(ValueError, match="6 ports are needed, this one has 4"):
        t.network_cost(t.fat_tree(6), switch=switch, cable=cable)
    with pytest.raises(ValueError, match="no published price"):
        t.network_cost(t.fat_tree(4), switch=switch, cable=SimpleNamespace(name="new", price=None, power=1.0))
    assert t.network_cost(t.torus((4, 4)), switch=switch, cable=cable).price == 32
    none = SimpleNamespace(price=0.0, power=0.0, ports=0)  # a torus needs no switch, of however few ports
    assert t.network_cost(t.torus((4, 4)), switch=none, cable=cable).price == 32


@pytest.mark.parametrize("call, words", [
    (lambda: t.fat_tree(5), "radix=5"), (lambda: t.fat_tree(0), "radix=0"), (lambda: t.fat_tree(4, 4), "tiers=4"),
    (lambda: t.fat_tree(8, 2, 2), "oversubscription=2.*8 does not divide"), (lambda: t.fat_tree(8, 2, 0), "oversubscription=0"),
    (lambda: t.fat_tree(8, 1, 3), "no uplinks"), (lambda: t.clos((4,), (1, 2)), "one number for each tier"),
    (lambda: t.clos((4, 0), (1, 2)), "children=.*from 1"), (lambda: t.clos((), ()), "one number for each tier"),
    (lambda: Clos((4,), (1,), planes=2, rails=3), "planes=2: as many as rails=3"),
    (lambda: Clos((4,), (1,), planes=2, rails=2, forwards=False), "planes=2"),
    (lambda: t.rail_optimized(33), "servers=33: a multiple of 32"),
    (lambda: t.rail_optimized(32 * 9), "whole pods of 128"), (lambda: t.rail_optimized(32, unused=32), "unused=256"),
    (lambda: t.rail_only(65), "servers=65"), (lambda: t.rail_only(4096), "servers=4096"), (lambda: t.superpod(0), "units=0"),
    (lambda: t.dragonfly(2, groups=10), "groups=10: 2 to a h"), (lambda: t.dragonfly(1, a=3, groups=3), "odd number of cable"),
    (lambda: t.dragonfly(0), "h=0"), (lambda: t.torus(()), "dims="), (lambda: t.torus((4, 0)), "dims="),
    (lambda: t.traffic("rings", 4, 1), "kind='rings'.*near: ring"), (lambda: t.traffic("ring", 1, 1), "ranks=1"),
    (lambda: t.traffic("halving-doubling", 6, 1), "power of two"), (lambda: t.traffic("ring", 4, -1), "size=-1"),
    (lambda: t.route(t.torus((4,)), ([0], [4], [1.0])), "dst: 0 to 3"), (lambda: t.route(t.torus((4,)), ([-1], [1], [1.0])), "src"),
    (lambda: t.route(t.torus((4,)), ([0.5], [1], [1.0])), "src"), (lambda: t.route(t.torus((4,)), ([0], [1], [-1.0])), "bytes"),
    (lambda: t.route(t.torus((4,)), ([0], [1, 2], [1.0])), "dst"),
    (lambda: t.route(t.torus((4,)), ([0], [1], [1.0]), policy="valiant"), "policy='valiant'"),
    (lambda: t.route(t.torus((4,)), ([0], [1], [1.0]), failed=[(0, 2)]), "no cable joins nodes 0 and 2"),
    (lambda: t.route(t.torus((4,)), ([0], [1], [1.0]), failed=[(0, 1, 1)]), "there are 1 cables"),
])
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
