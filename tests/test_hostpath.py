"""The host's share: bytes counted one by one along the path, messages of an all-to-all counted pair by pair."""
import numpy as np
import pytest
from clusterlab import hostpath
from clusterlab.collectives import busbw
from hypothesis import given, settings
from hypothesis import strategies as st

STAGED = [("GPU", "host"), ("host", "card")]        # one byte's way out; in is the same backwards


def touches(way):
    return sum("host" in hop for hop in way)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_traffic_is_what_the_hops_touch(sent, received):
    back = [(b, a) for a, b in reversed(STAGED)]
    assert hostpath.host_traffic(sent, received) == sent * touches(STAGED) + received * touches(back)
    assert hostpath.host_traffic(sent, received, gpudirect=True) == touches([("GPU", "card")])


@settings(max_examples=50, deadline=None)
@given(st.floats(1e9, 1e12), st.integers(1, 16), st.booleans())
def test_the_rate_left_fills_the_memory_exactly(memory, cards, both):
    rate = hostpath.staged_rate(memory, cards, both=both)
    assert hostpath.host_traffic(cards * rate, cards * rate * both) == pytest.approx(memory)


@pytest.mark.parametrize("nodes, each", [(2, 8), (4, 8), (3, 1), (5, 4)])
def test_all_to_all_by_counting_pairs(nodes, each):
    n, piece, port = nodes * each, 1.0, 50e9
    leaving = [sum(piece for dst in range(n) if dst // each != src // each) for src in range(n)]
    seconds = max(leaving) / port
    assert hostpath.alltoall_busbw(port, nodes, each) == pytest.approx(busbw("all-to-all", n * piece, n, seconds))


def test_cores_are_the_share_of_a_second_each():
    assert hostpath.stream_cores(0.5e-9, np.array([1e9, 4e9])) == pytest.approx([0.5, 2.0])


def test_bad_values_are_named():
    for call, words in [(lambda: hostpath.dram_bandwidth(0, 4.8e9), "channels=0"),
                        (lambda: hostpath.host_traffic(-1), "sent=-1"),
                        (lambda: hostpath.staged_rate(1e9, 0), "cards=0"),
                        (lambda: hostpath.stream_cores(-1e-9, 1), "cpu_seconds_per_byte=-1e-09"),
                        (lambda: hostpath.alltoall_busbw(50e9, 1, 8), "nodes=1")]:
        with pytest.raises(ValueError, match=words):
            call()
