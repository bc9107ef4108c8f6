"""Plans against each other on real ranks: the same training as one process does, the bytes as counted, the order as told."""

import dataclasses

import pytest
import torch
from clusterlab.run.contest import contest
from clusterlab.run.links import Paced
from clusterlab.run.model import Decoder
from clusterlab.transformer import Transformer
from torch.nn.functional import cross_entropy

SHAPE = Transformer(layers=2, hidden=32, heads=4, vocab=24, ffn=64, gated=True)
FAST = Paced(bandwidth=50e6)


def alone(shape, seq, steps, batch=4):
    """The losses of plain gradient descent by one process, written without anything of the experiment."""
    torch.manual_seed(0)
    model = Decoder(shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens = torch.randint(shape.vocab, (batch, seq), generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens).flatten(0, 1), torch.roll(tokens, -1, 1).flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def ran():
    return contest(SHAPE, [(4, 1), (2, 2), (1, 4)], FAST, seqs=(6,), laps=3)


def test_every_plan_is_the_same_training(ran):
    expected = alone(SHAPE, 6, 3)
    assert expected[2] < expected[0]
    for step in ran.values():
        assert step.losses == pytest.approx(expected, rel=1e-5)


def test_bytes_are_counted(ran):
    parameters = sum(p.numel() for p in Decoder(SHAPE).parameters())
    matrices = 2 * (4 * 32 * 32 + 3 * 32 * 64)
    stream = 4 * (4 * 6) * 32                                   # bytes of all tokens' residual stream
    # a ring of n sends 2(n − 1)/n of the array; eight of the stream: two layers, attention and MLP, forward and backward
    assert ran[(4, 1), 6].sent == pytest.approx(1.5 * 4 * parameters, abs=48)
    assert ran[(1, 4), 6].sent == 8 * 1.5 * stream
    halves = 4 * (parameters - matrices / 2)                    # what a rank holds, embedding, norms and head whole
    assert ran[(2, 2), 6].sent == pytest.approx(8 * 1.0 * stream / 2 + halves, abs=48)
    assert [ran[plan, 6].messages for plan in ((4, 1), (1, 4))] == [6, 8 * 6]


def test_no_step_beats_its_ports(ran):
    for step in ran.values():
        assert step.seconds >= step.sent / 50e6 and step.late >= 0 and 0 < step.computing < step.seconds


@pytest.mark.parametrize("plans, change", [
    ([(4, 1), (1, 2)], {}), ([(8, 1)], {}), ([(1, 8)], {}), ([(1, 4)], {"kv_heads": 2}), ([(1, 4)], {"ffn": 66}),
])
def test_what_does_not_divide_is_refused_before_a_rank_starts(plans, change):
    with pytest.raises(ValueError, match="plan"):
        contest(dataclasses.replace(SHAPE, **change), plans, FAST, seqs=(6,))
