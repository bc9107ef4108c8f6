"""Messages that are sent together take as long as the ports they share, and bad ones are refused."""

import pytest
from clusterlab.run import Paced, exchange
from clusterlab.run.messages import exchange as named

MB = 10**6


def test_the_package_offers_the_function():
    assert exchange is named


@pytest.mark.parametrize("wiring, flows, model", [
    ("switch", [(0, 1, MB)], 0.005 + 0.050),                                   # all of the port
    ("mesh", [(0, 1, MB)], 0.005 + 0.150),                                     # one of three links
    ("switch", [(0, 1, MB), (0, 2, MB), (0, 3, MB)], 0.005 + 0.150),           # one port out, in turn
    ("mesh", [(0, 1, MB), (0, 2, MB), (0, 3, MB)], 0.005 + 0.150),             # a link each
    ("switch", [(0, 3, MB), (1, 3, MB), (2, 3, MB)], 0.005 + 0.150),           # one port in
])
def test_messages_take_what_their_ports_allow(wiring, flows, model):
    seconds = exchange(flows, 4, Paced(20 * MB, 0.005, wiring=wiring))
    assert 0.98 * model <= seconds <= 1.6 * model


@pytest.mark.parametrize("flows", [[], [(0, 0, 1)], [(0, 4, 1)], [(0, 1, 0)], [(0, 1, 1), (0, 1, 2)], [(-1, 1, 1)]])
def test_bad_messages_are_refused(flows):
    with pytest.raises(ValueError, match="flow"):
        exchange(flows, 4)
