"""Bursts of messages between two ranks: every size is timed, more on the way at once is cheaper, bad input is named."""

import pytest

pytest.importorskip("torch")
from clusterlab.run import burst_seconds


def test_small_messages_are_cheaper_in_a_burst():
    one, eight = (burst_seconds([64, 1024], depth) for depth in (1, 8))
    assert list(one) == list(eight) == [64, 1024]
    assert all(seconds > 0 for seconds in (*one.values(), *eight.values()))
    assert min(eight.values()) < min(one.values())                    # the start-up is shared by eight
    assert min(eight.values()) > min(one.values()) / 8                # the work for each message is not


@pytest.mark.parametrize("bad", [{"sizes": [0]}, {"depth": 0}, {"repeats": 0}])
def test_bad_input_is_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        burst_seconds(**{"sizes": [8], "depth": 1, "repeats": 1, **bad})
