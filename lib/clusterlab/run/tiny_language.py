"""Tiny language models at equal compute: the experiment behind a scaling law, in seconds on a CPU.

The language is made up, so that the loss no model can beat is known: the next word depends on the last word alone, by
a table of probabilities whose logits have singular values falling as a power of their rank. A model of width h is a
vector of h numbers for each word (looked up) and a matrix h × words (multiplied), so it can hold the h strongest
patterns. It sees each pair of words once. Its parameters are counted as those that multiply, N = h · words, so a pair
costs 6·N FLOP exactly: two in the forward pass and four in the backward pass for each weight.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

BATCH = 256


@dataclass(frozen=True)
class Language:
    """``next_word[i, j]`` is the probability that word j follows word i; all words come equally often as the last."""

    next_word: torch.Tensor

    @property
    def words(self):
        return len(self.next_word)

    @property
    def entropy(self):
        """The loss of a model that knows the table, nats a word."""
        return torch.special.entr(self.next_word).sum().item() / self.words

    def excess(self, logits):
        """The exact mean loss of a model's ``logits`` [words, words] over that entropy, nats a word."""
        losses = -(self.next_word * logits.double().log_softmax(1)).sum().item() / self.words
        return losses - self.entropy

    def pairs(self, count, generator):
        """Last and next word of ``count`` pairs, drawn afresh."""
        last = torch.randint(self.words, (count,), generator=generator)
        drawn = torch.rand(count, generator=generator, dtype=torch.float64)
        steps = (self.next_word.cumsum(1) + torch.arange(self.words)[:, None]).flatten()      # one rising staircase
        following = torch.searchsorted(steps, last + drawn) - last * self.words
        return last, following.clamp(0, self.words - 1)


def language(words=128, *, decay=0.7, spread=2.0, seed=5):
    """A made-up language: singular values of its logits fall as rank^−decay, their standard deviation is ``spread``.

    >>> round(language().entropy, 3)
    3.268
    """
    generator = torch.Generator().manual_seed(seed)
    left, right = (_directions(words, generator) for _ in "lr")
    logits = left * torch.arange(1, words + 1, dtype=torch.float64) ** -decay @ right.T
    return Language((logits * spread / logits.std()).softmax(1))


def _directions(words, generator):
    """Random orthogonal columns, their signs as those of R's diagonal: so every library finds the same ones."""
    columns, rest = torch.linalg.qr(torch.randn(words, words, generator=generator, dtype=torch.float64))
    return columns * rest.diagonal().sign()


def train(tongue, width, flops, *, seed=0):
    """Spend ``flops`` FLOP on a model of that width; returns (parameters, pairs seen, excess loss in nats).

    Adam in batches of 256, with a step size of 1.5/√steps that falls linearly to 0: longer trainings take smaller
    steps. The same rule serves all sizes. Raises ValueError where the compute is not enough for ten batches.
    """
    parameters = width * tongue.words
    steps = int(flops / (6 * parameters) / BATCH)
    if steps < 10:
        raise ValueError(f"flops={flops:g} are {steps} batches for width={width}: want 10 at least")
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(tongue.words, width, generator=generator).requires_grad_()
    matrix = (torch.randn(width, tongue.words, generator=generator) * 0.1 / width**0.5).requires_grad_()
    last, following = tongue.pairs(steps * BATCH, generator)
    optimizer = torch.optim.Adam([vectors, matrix], betas=(0.9, 0.95), fused=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)                            # the products are too small to share
    try:
        for step, (seen, target) in enumerate(zip(last.split(BATCH), following.split(BATCH), strict=True)):
            optimizer.param_groups[0]["lr"] = 1.5 / steps**0.5 * (1 - step / steps)
            loss = F.cross_entropy(vectors[seen] @ matrix, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        torch.set_num_threads(threads)
    with torch.no_grad():
        return parameters, steps * BATCH, tongue.excess(vectors @ matrix)
