"""Ranks under leaves with one uplink: the order of the ranks decides, the bytes are right."""

import pytest
from clusterlab.run import race
from clusterlab.run.messages import exchange
from clusterlab.run.uplinks import Leaves


def test_messages_between_leaves_share_one_uplink_and_others_do_not():
    link = Leaves(1e6, 1e-3, leaf=(0, 0, 1, 1))
    assert link.path(0, 2, 4)[0] == link.path(1, 3, 4)[0] and link.path(0, 2, 4)[1] == link.path(1, 3, 4)[1]
    assert link.path(2, 0, 4)[0] != link.path(0, 2, 4)[0]
    assert link.path(0, 1, 4)[0] != link.path(1, 0, 4)[0]


def test_four_messages_over_one_uplink_take_four_times_one():
    link = Leaves(5e6, leaf=(0, 0, 0, 0, 1, 1, 1, 1))
    one = exchange([(0, 4, 200_000)], 8, link)
    four = exchange([(r, r + 4, 200_000) for r in range(4)], 8, link)
    inside = exchange([(0, 1, 200_000), (2, 3, 200_000)], 8, link)
    assert one >= 0.04 and four >= 0.16 and 2.5 < four / one < 4.5 and inside < four / 2


def test_the_ring_s_order_decides():
    order = race(["ring"], 4, 400_000, Leaves(5e6, 1e-3, leaf=(0, 0, 1, 1)))["ring"]
    mixed = race(["ring"], 4, 400_000, Leaves(5e6, 1e-3, leaf=(0, 1, 0, 1)))["ring"]
    assert order.equal and mixed.equal and order.bytes == mixed.bytes
    assert mixed.seconds > 1.3 * order.seconds


@pytest.mark.parametrize("leaf", [(0, 0, 1), (0, 0, 1, 9), ()])
def test_leaves_must_name_every_rank(leaf):
    with pytest.raises(ValueError, match="leaf is"):
        race(["ring"], 4, 400, Leaves(1e6, leaf=leaf))
