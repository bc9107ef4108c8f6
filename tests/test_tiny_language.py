"""The tiny language models: the language is what it says, and training reaches what only a right model can reach."""

import math

import pytest
import torch
from clusterlab.run.tiny_language import BATCH, Language, language, train

COIN = Language(torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64))


def test_entropy_and_excess_by_hand():
    assert COIN.entropy == pytest.approx(math.log(2) / 2)
    even = torch.zeros(2, 2)                                        # says 1/2 everywhere: right in the first row only
    assert COIN.excess(even) == pytest.approx(math.log(2) / 2)
    assert COIN.excess(torch.tensor([[3.0, 3.0], [-60.0, 0.0]])) == pytest.approx(0, abs=1e-9)


def test_the_language_has_the_singular_values_it_says():
    table = language(32, decay=1.5, spread=0.5).next_word
    assert table.shape == (32, 32) and torch.allclose(table.sum(1), torch.ones(32, dtype=torch.float64))
    logits = table.log() - table.log().mean(1, keepdim=True)        # up to a constant in each row
    values = torch.linalg.svdvals(logits)
    assert 2 ** 1.5 * 0.7 < values[0] / values[1] < 2 ** 1.5 * 1.4
    assert not torch.equal(table, language(32, decay=1.5, spread=0.5, seed=6).next_word)


def test_pairs_follow_the_table():
    tongue = language(8)
    last, following = tongue.pairs(200_000, torch.Generator().manual_seed(0))
    counted = torch.zeros(8, 8).index_put_((last, following), torch.ones(len(last)), accumulate=True)
    assert ((counted.sum(1) / 200_000 - 1 / 8).abs() < 0.005).all()
    assert ((counted / counted.sum(1, keepdim=True) - tongue.next_word).abs() < 0.02).all()


def test_a_certain_next_word_is_always_drawn():
    last, following = Language(torch.eye(4, dtype=torch.float64).roll(1, 1)).pairs(1000, torch.Generator().manual_seed(1))
    assert torch.equal(following, (last + 1) % 4)


def test_training_spends_the_compute_it_is_given():
    parameters, pairs, excess = train(language(32), 4, 3e7)
    assert parameters == 128 and pairs % BATCH == 0 and 3e7 - 6 * 128 * BATCH < 6 * parameters * pairs <= 3e7
    assert excess > 0


def test_it_learns_with_compute_and_holds_what_its_width_allows():
    """One vector for a word holds one pattern: four patterns need width four, however long one trains."""
    tongue = language(32, decay=0.0)
    start = tongue.excess(torch.zeros(32, 32))
    narrow, wide = (train(tongue, width, 3e7 * width)[2] for width in (1, 32))
    assert wide < 0.1 * start < 0.5 * start < narrow


def test_the_same_seed_gives_the_same_bits_and_leaves_the_threads():
    threads = torch.get_num_threads()
    first, again, other = (train(language(16), 2, 1e7, seed=seed)[2] for seed in (0, 0, 1))
    assert first == again != other and torch.get_num_threads() == threads


def test_too_little_compute_is_an_error():
    with pytest.raises(ValueError, match="width=64"):
        train(language(32), 64, 1e6)
