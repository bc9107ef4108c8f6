"""Jobs on fabrics, hashed flows, fabrics of any size: against hand counts, brute force and the graph."""

from itertools import pairwise, product
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from clusterlab import hashing, sized, slowest
from clusterlab.hashing import chance_apart, expected_busiest, expected_idle
from clusterlab.topology import fat_tree, network_cost, rail_only
from hypothesis import given
from hypothesis import strategies as st

MADE = slowest.fabrics()


def ways(flows, links):
    return [np.bincount(way, minlength=links) for way in product(range(links), repeat=flows)]


@pytest.mark.parametrize(("flows", "links"), [(1, 1), (3, 3), (5, 4), (6, 3), (4, 6), (7, 2)])
def test_hashing_equals_trying_all_ways(flows, links):
    found = ways(flows, links)
    assert expected_busiest(flows, links) == pytest.approx(np.mean([way.max() for way in found]), rel=1e-10)
    assert expected_idle(flows, links) == pytest.approx(np.mean([(way == 0).sum() for way in found]), rel=1e-12)
    assert chance_apart(flows, links) == pytest.approx(np.mean([way.max() <= 1 for way in found]), abs=1e-12)


def test_hashing_of_many_flows_equals_throwing_them():
    rng = np.random.default_rng(0)
    thrown = rng.multinomial(256, np.full(32, 1 / 32), size=20_000)
    assert expected_busiest(256, 32) == pytest.approx(thrown.max(axis=1).mean(), rel=5e-3)


@given(st.integers(1, 60), st.integers(1, 40))
def test_the_fullest_lies_between_the_mean_and_all(flows, links):
    most = expected_busiest(flows, links)
    assert max(1, flows / links) - 1e-9 <= most <= flows + 1e-9
    assert expected_busiest(2 * flows, links) / 2 <= most + 1e-9        # halves average out
    assert 0 <= expected_idle(flows, links) <= links - 1 + 1e-9


@pytest.mark.parametrize("fn", [expected_idle, expected_busiest, chance_apart])
@pytest.mark.parametrize(("flows", "links", "named"), [(0, 4, "flows=0"), (4, 0, "links=0"), (1.5, 4, "flows=1.5")])
def test_hashing_refuses_what_cannot_be(fn, flows, links, named):
    with pytest.raises(ValueError, match=named):
        fn(flows, links)


def test_hashing_states_its_limit():
    assert expected_busiest(7, 1) == 7 and hashing.chance_apart(5, 4) == 0


@pytest.mark.parametrize("name", MADE)
def test_six_fabrics_have_512_endpoints_and_ports_for_all(name):
    fabric = MADE[name]
    assert fabric.endpoints == slowest.GPUS
    degree = dict(fabric.graph.degree(weight="cables"))
    switches = range(fabric.endpoints, fabric.endpoints + fabric.switches)
    assert all(degree[s] <= 32 for s in switches)


@pytest.mark.parametrize("name", MADE)
def test_kinds_cover_every_cable_once(name):
    parts = list(slowest.kinds(MADE[name]).values())
    assert parts[0].start == 0 and parts[-1].stop == 2 * len(MADE[name].layout.cable_ends)
    assert all(one.stop == two.start for one, two in pairwise(parts))


@pytest.mark.parametrize("job", slowest.JOBS)
@pytest.mark.parametrize("nvlink", [True, False])
def test_a_rank_sends_one_byte_less_what_stays_in_its_server(job, nvlink):
    src, dst, size = slowest.job(job, nvlink=nvlink)
    outside = src // 8 != dst // 8
    assert (src != dst).all() and (outside.all() or not nvlink)
    group = {"TP": 8, "DP": 0, "PP": 0, "EP": 32, "all": 512}[job]
    sent = np.bincount(src, size, 512)
    stays = 0 if not nvlink else 1 if job == "TP" else 7 / (group - 1) if group else 0
    senders = 448 if job == "PP" else 512
    assert sent[:senders] == pytest.approx(1 - stays) and not sent[senders:].any()


@pytest.mark.parametrize("job", slowest.JOBS)
def test_shuffling_moves_servers_and_changes_nothing_else(job):
    ordered, mixed = (slowest.job(job, shuffled=flag, seed=3) for flag in (False, True))
    where = dict(zip(ordered[0] // 8, mixed[0] // 8, strict=True))
    assert all(where[s // 8] == m // 8 and s % 8 == m % 8 for s, m in zip(ordered[0][:2000], mixed[0][:2000], strict=True))
    assert (ordered[2] == mixed[2]).all()


HAND = {  # job, fabric: load by hand, servers in order, spread
    ("PP", "4:1 tree"): 16 / 4,            # a leaf's 16 flows over 4 uplinks
    ("DP", "4:1 tree"): 8 / 4,             # only its second server's flows leave
    ("DP", "fat tree"): 1.0, ("PP", "rail-optimized"): 1.0, ("TP", "rail-only"): 0.0, ("TP", "torus"): 1.0,
    ("EP", "4:1 tree"): 16 / 4 * 16 / 31,  # of 31 others 16 sit under the other leaf of the group
    ("all", "torus"): 512 / 511,            # to all and itself 6 cables on average, over 6 of its own; itself is left out
}


@pytest.mark.parametrize(("job", "name"), HAND)
def test_loads_equal_hand_counts(job, name):
    assert slowest.slowest(MADE[name], job, policy="adaptive").load == pytest.approx(HAND[job, name])


@pytest.mark.parametrize("name", MADE)
def test_hashing_is_never_better_than_what_must_leave_a_port(name):
    spread, hashed = (slowest.slowest(MADE[name], "DP", policy=policy, shuffled=True) for policy in ("adaptive", "ecmp"))
    assert hashed.load >= spread.load - 1e-9 and spread.by_kind[spread.kind] == spread.load


@pytest.mark.parametrize("name", MADE)
def test_weak_spots_are_cables_and_without_them_nothing_gets_better(name):
    fabric = MADE[name]
    whole = slowest.slowest(fabric, "DP", policy="adaptive").load
    for u, v, number in slowest.weak_spots(fabric, "DP"):
        assert fabric.graph.has_edge(u, v)
        left = nx.Graph(fabric.graph)
        left.remove_edge(u, v)
        if left.degree(0) and nx.has_path(left, 0, 8):
            assert slowest.slowest(fabric, "DP", policy="adaptive", failed=[(u, v, number)]).load >= whole - 1e-9
        elif fabric.graph[u][v]["cables"] == 1:
            with pytest.raises(ValueError, match="cannot be reached"):
                slowest.slowest(fabric, "DP", policy="adaptive", failed=[(u, v, number)])


def test_an_unknown_job_lists_those_known():
    with pytest.raises(LookupError, match="TP, DP, PP, EP, all"):
        slowest.job("CP")


@pytest.mark.parametrize("kind", sized.KINDS)
@pytest.mark.parametrize("gpus", [2**k for k in range(6, 18)])
def test_sized_fabrics_hold_what_was_asked_with_the_ports_there_are(kind, gpus):
    try:
        fabric = sized.sized(kind, gpus)
    except ValueError as error:
        assert "allowed" in str(error)
        return
    assert fabric.endpoints == gpus
    ports = fabric.layout.ports if hasattr(fabric.layout, "ports") else [(fabric.layout.radix, 0)]
    assert all(down + up <= 64 for down, up in ports)
    if kind in ("fat tree", "rail-only"):
        assert all(ratio == 1 for ratio in fabric.layout.oversubscription)
    if kind == "4:1 above 1,024":
        assert fabric.layout.oversubscription == (1, 4)


def test_sized_meets_the_named_fabrics():
    assert sized.sized("fat tree", 65536).layout.tiers == fat_tree(64).layout.tiers
    assert sized.sized("rail-only", 16384).layout.tiers == rail_only(2048).layout.tiers
    assert sized.sized("dragonfly", 513 * 512).switches == 513 * 32


@given(st.sampled_from([2**k for k in range(9, 18)]))
def test_rails_never_cost_more_than_a_tree(gpus):
    switch, cable = SimpleNamespace(price=36e3, power=747, ports=64), SimpleNamespace(price=1280, power=17)
    tree, rails = (network_cost(sized.sized(kind, gpus), switch=switch, cable=cable, endpoint_cable=cable).price
                   for kind in ("fat tree", "rail-only"))
    assert rails <= tree


@pytest.mark.parametrize(("kind", "gpus", "named"), [
    ("fat tree", 2050, "over"), ("rail-only", 100, "rails=8"), ("dragonfly", 512, "two or more"), ("4:1 above 1,024", 1024, "2 to 64")])
def test_sized_refuses_what_does_not_come_out(kind, gpus, named):
    with pytest.raises(ValueError, match=named):
        sized.sized(kind, gpus)


def test_an_unknown_kind_lists_those_known():
    with pytest.raises(LookupError, match="fat tree"):
        sized.sized("torus", 512)
