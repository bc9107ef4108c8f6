"""Time to quality: one small network, trained to the same loss with several batch sizes, each with its best learning rate.

The task is synthetic: a random teacher network draws the labels, so that some loss always remains, and the student must
come near. Everything is float64 on one thread of the CPU, so the steps counted are the same on every machine. Seconds
are the machine's own: time that the thread had a core, so that other programs do not count. The loss on data kept
aside is looked at after every step, with the clock stopped.

    counts = {batch: score(runs(batch)) for batch in RATES}
    samples_per_second([128, 2048]), reach(2048).seconds
"""

import math
import time
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F

from clusterlab.benchmarks import middle_mean
from clusterlab.run.timing import threads

INPUTS, HIDDEN, CLASSES = 16, 32, 8
TARGET = 1.15                                   # loss on the data kept aside; the teacher itself has 1.04
RATES = {32: 1.0, 128: 2.0, 512: 4.0, 2048: 4.0}            # of learning: for each batch the best of a grid in steps of √2
PIECE = 512                                     # what goes through at once; a larger batch adds up gradients
MOST = 2000                                     # steps after which a run counts as failed


@dataclass(frozen=True)
class Reached:
    """One run to the target: batch size, steps, seconds spent in them."""

    batch: int
    steps: int
    seconds: float

    @property
    def samples(self):
        return self.steps * self.batch


def weights(seed, hidden=HIDDEN, scale=1.0):
    """Two matrices and two offsets, uniform within ± scale/√inputs, the same numbers on every machine."""
    rng = np.random.default_rng(seed)
    shapes = [(INPUTS, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)]
    widths = [INPUTS, INPUTS, hidden, hidden]
    return [torch.from_numpy(rng.uniform(-scale, scale, shape) / math.sqrt(width))
            for shape, width in zip(shapes, widths, strict=True)]


def logits(parameters, x):
    first, offset, second, bias = parameters
    return torch.tanh(x @ first + offset) @ second + bias


@cache
def data(seed, samples):
    """Inputs [samples, 16] and labels that the teacher drew for them."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((samples, INPUTS)))
    chances = logits(weights(seed=7, hidden=8, scale=4.0), x).softmax(-1).cumsum(-1)
    drawn = torch.from_numpy(rng.random((samples, 1)))
    return x, (chances < drawn).sum(-1).clamp(max=CLASSES - 1)


class Student:
    """A network under training; `step()` does one step of plain gradient descent on the next batch."""

    def __init__(self, batch, *, seed=0, rate=None):
        if batch not in RATES and rate is None:
            raise ValueError(f"batch={batch!r}: a learning rate is known for {', '.join(map(str, RATES))}; or give rate")
        self.batch, self.rate = batch, rate or RATES[batch]
        self.parameters = [p.requires_grad_() for p in weights(100 + seed)]
        self.examples, self.rng = data(2, 2**16), np.random.default_rng(1000 + seed)

    def step(self):
        x, y = self.examples
        chosen = torch.from_numpy(self.rng.integers(len(x), size=self.batch))
        for piece in chosen.split(PIECE):
            loss = F.cross_entropy(logits(self.parameters, x[piece]), y[piece], reduction="sum")
            (loss / self.batch).backward()
        with torch.no_grad():
            for p in self.parameters:
                p.sub_(p.grad, alpha=self.rate)
                p.grad = None

    def loss(self):
        """On data kept aside."""
        x, y = data(3, 2**11)
        with torch.no_grad():
            return F.cross_entropy(logits(self.parameters, x), y).item()


def reach(batch, *, seed=0, rate=None, target=TARGET, most=MOST):
    """Train until the loss on the data kept aside is below `target`; RuntimeError after `most` steps."""
    student, seconds = Student(batch, seed=seed, rate=rate), 0.0
    with threads(1):
        for steps in range(1, most + 1):
            seconds += _clock(student, 1)
            if student.loss() < target:
                return Reached(batch, steps, seconds)
    raise RuntimeError(f"batch {batch}: the loss is not below {target} after {most} steps; it is {student.loss():.3g}")


def runs(batch, count=5):
    """Several runs to the target, which differ in first weights and order of the data."""
    return [reach(batch, seed=seed) for seed in range(count)]


def score(results, what="steps"):
    """Mean of `what` ("steps", "samples", "seconds") without the lowest and the highest run."""
    return middle_mean([getattr(result, what) for result in results])


def samples_per_second(batches, *, laps=20):
    """What a benchmark of speed alone would print: {batch: samples a second in a typical lap}, lap by lap in turn."""
    students, seconds = [Student(batch) for batch in batches], {batch: [] for batch in batches}
    with threads(1):
        for student in students * laps:
            steps = max(1, 2048 // student.batch)            # the laps of all batches see as many samples
            seconds[student.batch].append(_clock(student, steps) / steps)
    return {batch: batch / median(laps) for batch, laps in seconds.items()}


def straight(batch, steps):
    """Seconds of `steps` steps in a row, without a look at the loss in between."""
    with threads(1):
        return _clock(Student(batch), steps)


def _clock(student, steps):
    start = time.thread_time()
    for _ in range(steps):
        student.step()
    return time.thread_time() - start
