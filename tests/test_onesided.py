"""Messages through the kernel and past it: our counts against the kernel's own, and what needs the other end."""
import os
import socket
from pathlib import Path

import pytest
from clusterlab.run import absent, in_calls, round_trips, stream
from clusterlab.run.composed import identities
from clusterlab.run.onesided import WAYS, _Kernel

ACCOUNTS = Path("/proc/thread-self/io")


def accounts():
    pairs = (line.split(":") for line in ACCOUNTS.read_text().splitlines())
    return {name.strip(): int(value) for name, value in pairs}


@pytest.mark.skipif(not ACCOUNTS.exists(), reason="the kernel keeps no accounts of calls and bytes a thread")
@pytest.mark.parametrize("size", [1, 64, 200_000])
def test_calls_and_copies_are_the_kernels_own_count(size):
    """/proc/thread-self/io counts each read and write call of this thread, and the bytes the kernel copied for them."""
    a, b = socket.socketpair()
    with a, b:
        a.setblocking(False)
        one, other = _Kernel(a.fileno(), a.fileno(), size), _Kernel(b.fileno(), b.fileno(), size)
        spare = accounts()
        since = accounts()                                          # what looking itself costs: a few reads
        look = {name: since[name] - spare[name] for name in since}
        if size <= 64:
            one.send(memoryview(bytearray(size)))
        else:                                                       # more than the buffers hold: in turns, by hand
            data = memoryview(bytearray(size))
            while len(data):
                one.calls += 1
                wrote = os.write(a.fileno(), data[:50_000])
                one.copied, data = one.copied + wrote, data[wrote:]
                other.calls += 1
                other.copied += os.readv(b.fileno(), [bytearray(wrote)])
        if size <= 64:
            other.receive()
        now = accounts()
    used = {name: now[name] - since[name] - look[name] for name in now}
    assert used["syscw"] == one.calls
    assert used["syscr"] == other.calls
    assert used["wchar"] == one.copied == size
    assert used["rchar"] == other.copied == size


def test_what_each_way_asks_of_the_kernel():
    cost = round_trips(64, trips=50)
    assert list(cost) == list(WAYS)
    for way in ("socket", "pipe"):
        assert (cost[way].calls, cost[way].copies) == (2, 2)
        assert cost[way].sleeps > 0.1
    for way in ("polled socket", "polled pipe"):
        assert cost[way].calls >= 2
        assert cost[way].copies == 2
    assert (cost["put"].calls, cost["put"].copies) == (0, 1)
    assert cost["put"].sleeps < cost["socket"].sleeps


def test_a_pipe_hands_a_long_message_over_in_pieces():
    """A pipe of Linux holds 64 KiB, so 1 MiB is read in 16 pieces or more."""
    assert round_trips(2**20, ["pipe"], trips=3)["pipe"].calls >= 1 + 16


def test_only_the_put_does_not_wait_for_the_other_end():
    assert absent(32 * 2**20, ["socket", "pipe", "put"], away=0.3) == {"socket": False, "pipe": False, "put": True}


def test_a_stream_copies_twice_or_once():
    cost = stream(2**18, ["socket", "pipe", "put"], messages=8)
    assert [cost[way].copies for way in cost] == [2, 2, 1]
    assert all(cost[way].cpu > 0 for way in cost)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_identities_hold_and_send_what_is_said(ranks):
    found = identities(ranks, size := 4 * ranks * 30)
    part = size // ranks
    assert all(equal for equal, _, _ in found.values())
    right = {name: sent for name, (_, _, sent) in found.items()}
    assert right["all-reduce = reduce-scatter, all-gather"] == 2 * (ranks - 1) * part
    assert right["all-reduce = all-gather, add"] == (ranks - 1) * size
    assert right["reduce-scatter = all-to-all, add"] == right["transpose = all-to-all"] == (ranks - 1) * part
    assert right["nothing = all-to-all, twice"] == 2 * (ranks - 1) * part
    assert found["broadcast = scatter, all-gather"][1] == size


def test_calls_one_after_the_other_add_up():
    clock = in_calls(2, 4 * 1000, [1, 8])
    assert list(clock) == [1, 8]
    assert all(seconds > 0 for seconds in clock.values())


def test_bad_input_is_named():
    for call, error, words in [(lambda: round_trips(0), ValueError, "size=0"),
                               (lambda: stream(64, ["telegraph"]), LookupError, "telegraph"),
                               (lambda: identities(4, 100), ValueError, "size=100"),
                               (lambda: in_calls(2, 8, [3]), ValueError, "counts")]:
        with pytest.raises(error, match=words):
            call()
