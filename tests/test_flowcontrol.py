"""Flow control: packets are conserved, credits never lose, headroom is exact, a stop spreads, marks cut rates."""

import numpy as np
import pytest
from clusterlab.flowcontrol import CONTROLS, headroom_packets, incast, one_link
from hypothesis import given, settings
from hypothesis import strategies as st

drains = st.lists(st.booleans(), min_size=1, max_size=120)


@given(control=st.sampled_from(["credits", "none"]), room=st.integers(1, 30), delay=st.integers(1, 8), drain=drains)
def test_no_packet_appears_or_vanishes(control, room, delay, drain):
    run = one_link(control, room=room, delay=delay, drain=drain)
    assert run.sent == run.delivered + run.dropped + run.waiting
    assert len(run.queue) == len(drain) and run.queue.max() <= room


@given(room=st.integers(1, 30), delay=st.integers(1, 8), drain=drains)
def test_credits_never_lose(room, delay, drain):
    assert one_link("credits", room=room, delay=delay, drain=drain).dropped == 0


@given(delay=st.integers(1, 8), more=st.integers(1, 9), drain=drains)
def test_enough_headroom_never_loses(delay, more, drain):
    room = headroom_packets(delay) + more
    run = one_link("pause", room=room, delay=delay, drain=drain)
    assert run.dropped == 0 and run.sent == run.delivered + run.waiting


@pytest.mark.parametrize("delay", [1, 2, 5])
def test_each_missing_place_of_headroom_loses_a_packet(delay):
    stalled = [False] * 100
    enough = headroom_packets(delay)
    lost = [one_link("pause", room=enough + 3, delay=delay, drain=stalled, headroom=h).dropped for h in range(enough + 1)]
    assert lost == list(range(enough, -1, -1))


@pytest.mark.parametrize("delay", [1, 3, 6])
@pytest.mark.parametrize("room", [1, 2, 5, 12, 20])
def test_credits_reach_a_buffer_a_round_trip(room, delay):
    slots = 2400
    rate = one_link("credits", room=room, delay=delay, drain=[True] * slots).delivered / slots
    assert rate == pytest.approx(min(1, room / (2 * delay)), abs=3 * delay / slots + 1e-3)


def test_a_stalled_receiver_fills_the_buffer_and_no_more():
    run = one_link("credits", room=7, delay=3, drain=[False] * 50)
    assert run.sent == run.waiting == 7 and run.queue[-1] == 7


@settings(max_examples=25, deadline=None)
@given(control=st.sampled_from(CONTROLS), senders=st.integers(1, 4), delay=st.integers(1, 3), lanes=st.integers(1, 2),
       ecn=st.booleans())
def test_incast_conserves_and_serves(control, senders, delay, lanes, ecn):
    run = incast(control, slots=400, senders=senders, delay=delay, lanes=lanes, room=80, ecn=ecn)
    assert (run.sent == run.delivered + run.dropped + run.waiting).all()
    assert (run.arrivals.sum(axis=0) == run.delivered).all()
    assert run.arrivals.sum(axis=1).max() <= 2                        # two receivers, a packet a slot each
    assert run.arrivals[:, :-1].sum(axis=1).max() <= 1
    if control != "none":
        assert run.dropped.sum() == 0
    if not ecn:
        assert run.marks == 0 and (run.rates == 1).all()


@pytest.mark.parametrize("control", ["credits", "pause"])
@pytest.mark.parametrize("senders", [2, 3, 5])
def test_the_stop_spreads_to_the_bystander(control, senders):
    """Trunk rate r with equal shares r/(k+1), of which k/(k+1)·r = 1 drains: r = (k+1)/k, a k-th for the bystander."""
    run = incast(control, senders=senders)
    assert run.bystander == pytest.approx(1 / senders, abs=0.01) and run.busy == pytest.approx(1, abs=0.01)
    assert run.stopped[-1] > 0
    assert np.ptp(run.delivered[:-1]) <= 0.03 * run.delivered[0] + 2  # the busy ones share evenly


@pytest.mark.parametrize("control", ["credits", "pause"])
def test_a_lane_of_its_own_frees_the_bystander(control):
    run = incast(control, lanes=2)
    assert run.bystander == pytest.approx(1, abs=0.01) and run.stopped[-1] == 0
    assert run.busy == pytest.approx(1, abs=0.01) and run.stopped[0] > 0


def test_without_control_the_excess_is_lost():
    run = incast("none", senders=3)
    assert run.bystander == pytest.approx(1, abs=0.01)
    assert run.dropped[:-1].sum() == pytest.approx(2 * 4000, rel=0.03)  # three come in a slot, one goes


def test_too_little_headroom_loses_even_with_pauses():
    assert incast("pause", headroom=4).dropped.sum() > 0


@pytest.mark.parametrize("senders", [2, 3, 4])
def test_marks_cut_the_right_senders(senders):
    paused, marked = (incast("pause", senders=senders, ecn=ecn) for ecn in (False, True))
    half = len(marked.rates) // 2
    assert marked.marks > 0 and marked.rates[half:, :-1].mean() < 0.75
    assert (marked.rates[:, -1] == 1).all() and marked.bystander == pytest.approx(1, abs=0.01)
    assert marked.queue[half:].mean() < paused.queue[half:].mean() / 3
    assert marked.rates[half:, :-1].sum(axis=1).mean() == pytest.approx(marked.busy, abs=0.1)
    assert marked.busy > 0.85


@pytest.mark.parametrize("bad, message", [
    ({"control": "hope"}, "credits"), ({"room": 0}, "room"), ({"delay": 0}, "delay"), ({"headroom": 8}, "headroom"),
])
def test_bad_input_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        one_link(**{"control": "pause", "room": 8, "delay": 2, "drain": [True], **bad})


@pytest.mark.parametrize("bad, message", [({"lanes": 3}, "lanes"), ({"senders": 0}, "senders"), ({"slots": 0}, "slots")])
def test_bad_incast_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        incast("credits", **bad)
