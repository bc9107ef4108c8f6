"""Moving bytes between real ranks: counted, and against arithmetic done here."""

import pytest
from clusterlab.hardware import Link
from clusterlab.run.moving import five, pipe, relay, send_times
from clusterlab.run.ranks import launch


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_five_collectives_send_what_is_said(ranks):
    size = 4 * ranks * 30
    shard = size // ranks
    assert five(ranks, size) == {
        "broadcast": size, "all-gather": (ranks - 1) * shard, "reduce-scatter": (ranks - 1) * shard,
        "all-reduce": 2 * (ranks - 1) * shard, "all-to-all": (ranks - 1) * shard}


def wires(elements, chunks):
    import torch
    import torch.distributed as dist
    from clusterlab.run import counted

    x = torch.arange(elements) if dist.get_rank() == 0 else torch.full((elements,), -1)
    with counted() as wire:
        relay(x, chunks, confirmed=True)
    return x.tolist() == list(range(elements)), wire.messages, wire.steps


@pytest.mark.parametrize("ranks, chunks", [(2, 1), (3, 4), (5, 3)])
def test_a_relay_hands_on_every_piece_once(ranks, chunks):
    found = launch(wires, ranks, 11, chunks)
    assert [right for right, _, _ in found] == [True] * ranks
    assert [messages for _, messages, _ in found] == [chunks] * (ranks - 1) + [0]
    assert {steps for _, _, steps in found} == {ranks - 2 + chunks}


def test_a_pipe_takes_hops_and_pieces():
    """Three hops: whole, the message is delayed three times; in six pieces eight times a sixth of it. Never less."""
    link = Link("paced", 10e6, latency=4e-3)
    seconds = pipe(4, 600_000, [1, 6], link, repeats=2)
    assert 3 * 0.064 <= seconds[1] < 2.5 * 3 * 0.064
    assert 8 * 0.014 <= seconds[6] < 2.5 * 8 * 0.014
    assert seconds[6] < seconds[1]


def test_a_large_message_takes_longer_than_a_small_one():
    seconds = send_times([4, 2**22], repeats=20)
    assert 0 < seconds[4] < seconds[2**22]


@pytest.mark.parametrize("call, message", [
    (lambda: send_times([]), "sizes"), (lambda: send_times([0.5]), "sizes"), (lambda: pipe(3, 10, [1], None), "size=10"),
    (lambda: pipe(3, 40, [11], None), "chunks"), (lambda: five(4, 10), "size=10")])
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
