"""How the loss of a language model falls with parameters, tokens and compute, and how to divide compute between them.

*loss = what no model can beat + what a larger model would gain + what more text would gain*,
``L(N, D) = E + A/N^α + B/D^β`` with N parameters and D tokens, L in nats a token, and compute ``C = 6·N·D`` FLOP
(Hoffmann et al. 2022, arXiv:2203.15556, eq. 2). The fitted constants, each with its source, stand in
``data/scaling_laws.toml``. A law holds for the data, the model family and the range it was fitted on.

>>> best = law("besiroglu").optimum(5.76e23)
>>> f"{best.parameters:.3g} parameters, {best.tokens:.3g} tokens, {best.tokens_per_parameter:.1f} each"
'7.22e+10 parameters, 1.33e+12 tokens, 18.4 each'
"""

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np


def _positive(**values):
    for name, value in values.items():
        if not np.all(np.greater(value, 0)):
            raise ValueError(f"{name}={value!r}: must be positive")


class Training(NamedTuple):
    """A model and its text: parameters, tokens, the loss a law predicts for them."""

    parameters: float
    tokens: float
    loss: float

    @property
    def tokens_per_parameter(self):
        return self.tokens / self.parameters


@dataclass(frozen=True)
class Law:
    """``L(N, D) = floor + a/N^alpha + b/D^beta``: the loss in nats a token of N parameters trained on D tokens.

    Errors: ValueError for a constant that is not positive (a floor of 0 is allowed).

    >>> Law(floor=1.0, a=100.0, alpha=0.5, b=100.0, beta=0.5).loss(1e4, 1e6)
    2.1
    """

    floor: float
    a: float
    alpha: float
    b: float
    beta: float
    source: str = ""
    date: str = ""

    def __post_init__(self):
        if self.floor < 0:
            raise ValueError(f"floor={self.floor!r}: must not be negative")
        _positive(a=self.a, alpha=self.alpha, b=self.b, beta=self.beta)

    def loss(self, parameters, tokens):
        """The loss, nats a token; arrays broadcast.

        >>> round(law("hoffmann").loss(70e9, 1.4e12), 3)
        1.921
        """
        _positive(parameters=parameters, tokens=tokens)
        return self.floor + self.a / parameters**self.alpha + self.b / tokens**self.beta

    @property
    def exponent(self):
        """The compute-optimal size grows as ``C^(β/(α+β))``, the tokens as C to what is left to 1.

        >>> round(law("besiroglu").exponent, 2)
        0.51
        """
        return self.beta / (self.alpha + self.beta)

    def optimum(self, flops, *, factor=6):
        """Parameters, tokens and loss of the lowest loss that ``flops`` FLOP can buy, ``flops = factor·N·D``.

        ``N = G·(C/factor)^(β/(α+β))``, ``D = (C/factor)/N``, ``G = (α·A/(β·B))^(1/(α+β))``: there the last FLOP is
        worth as much spent on size as on text, ``α·A/N^α = β·B/D^β`` (Hoffmann et al. 2022, eq. 4). Arrays broadcast.

        >>> round(law("hoffmann").optimum(5.76e23).tokens_per_parameter, 1)
        59.1
        """
        _positive(flops=flops, factor=factor)
        pairs = flops / factor
        parameters = self._balance() * pairs**self.exponent
        return Training(parameters, pairs / parameters, self.loss(parameters, pairs / parameters))

    def flops_for(self, loss, *, factor=6):
        """The least FLOP that reach ``loss``: the inverse of optimum(), ``factor·(K/(L − E))^((α+β)/αβ)``.

        ``K = A·G^−α + B·G^β``. Errors: ValueError for a loss at or below the floor, which no compute buys.

        >>> best = law("besiroglu").optimum(1e24)
        >>> f"{law('besiroglu').flops_for(best.loss):.3g}"
        '1e+24'
        """
        _positive(factor=factor)
        self._above(loss, self.floor, "the floor")
        balance = self._balance()
        scale = self.a * balance**-self.alpha + self.b * balance**self.beta
        return factor * (scale / (loss - self.floor)) ** ((self.alpha + self.beta) / (self.alpha * self.beta))

    def tokens_for(self, loss, parameters):
        """Tokens on which a model of that size reaches ``loss``: ``(B/(L − E − A/N^α))^(1/β)``.

        Errors: ValueError for a loss that this size cannot reach on any amount of text.

        >>> f"{law('besiroglu').tokens_for(2.0, 70e9):.3g}"
        '6.2e+11'
        """
        _positive(parameters=parameters)
        least = self.floor + self.a / parameters**self.alpha
        self._above(loss, least, f"what {parameters!r} parameters reach on endless text")
        return (self.b / (loss - least)) ** (1 / self.beta)

    def overhead(self, parameters, tokens):
        """Compute spent over the least that reaches the same loss: 1 at the optimum, more for any other size.

        >>> round(law("besiroglu").overhead(8.03e9, 15e12), 2)
        5.5
        """
        return 6 * parameters * tokens / self.flops_for(self.loss(parameters, tokens))

    def optimum_with_serving(self, loss, served):
        """The size with the least FLOP over a model's life, ``6·N·D + 2·N·served``, at a given loss.

        ``served`` tokens are read or written in use, 2·N FLOP each (Sardana et al. 2023, arXiv:2401.00448, eq. 2).
        They push to a smaller model trained longer. With u = A/N^α and r = L − E − u, the cost is least where
        ``α·u/(β·r) = 1 + served/(3·D)``, ``D = (B/r)^(1/β)``; u is found by bisection.

        >>> [f"{law('besiroglu').optimum_with_serving(2.0, served).parameters:.3g}" for served in (0, 1e13)]
        ['4.69e+10', '2e+10']
        """
        if not np.all(np.greater_equal(served, 0)):
            raise ValueError(f"served={served!r}: must not be negative")
        self._above(loss, self.floor, "the floor")
        low, high = 0.0, loss - self.floor
        while low < (part := (low + high) / 2) < high:  # until no number lies between
            rest = loss - self.floor - part
            more = self.alpha * part / (self.beta * rest) - 1 - served / 3 * (rest / self.b) ** (1 / self.beta)
            low, high = (part, high) if more < 0 else (low, part)
        parameters = (self.a / part) ** (1 / self.alpha)
        return Training(parameters, self.tokens_for(loss, parameters), loss)

    def _balance(self):
        return (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))

    @staticmethod
    def _above(loss, least, what):
        if not np.all(np.greater(loss, least)):
            raise ValueError(f"loss={loss!r}: must lie above {least!r}, {what}")


@dataclass(frozen=True)
class PowerLaw:
    """``y = coefficient · x^exponent``: a straight line where both axes are logarithmic.

    >>> PowerLaw(8.0, -0.5)(4.0)
    4.0
    """

    coefficient: float
    exponent: float
    source: str = ""
    date: str = ""

    def __call__(self, x):
        _positive(x=x)
        return self.coefficient * x**self.exponent


def fit_power_law(x, y):
    """The power law through points, by least squares on their logarithms: each point's relative error counts alike.

    Errors: ValueError for fewer than two different x, unequal numbers of points, or values that are not positive.

    >>> fitted = fit_power_law([1, 4, 16], [8, 4, 2])
    >>> round(fitted.coefficient, 6), round(fitted.exponent, 6)
    (8.0, -0.5)
    """
    x, y = np.array(x), np.array(y)
    if x.shape != y.shape or x.ndim != 1 or len(set(x.tolist())) < 2:
        raise ValueError(f"x and y are {x.shape} and {y.shape}: want equally many points, two different x at least")
    _positive(x=x, y=y)
    exponent, intercept = np.polyfit(np.log(x), np.log(y), 1)
    return PowerLaw(float(np.exp(intercept)), float(exponent))


def isoflop_minimum(parameters, losses):
    """The best size of several that cost the same compute, and its loss: (parameters, loss).

    A parabola over ln N through the lowest point and its two neighbours (Hoffmann et al. 2022, approach 2).
    Errors: ValueError where the lowest point is an end, so that the best size lies outside of what was tried.

    >>> size, loss = isoflop_minimum([1e6, 2e6, 4e6], [3.0, 2.9, 3.0])
    >>> round(size), round(loss, 3)
    (2000000, 2.9)
    """
    parameters, losses = np.array(parameters), np.array(losses)
    if parameters.shape != losses.shape or parameters.ndim != 1 or np.any(np.diff(parameters) <= 0):
        raise ValueError(f"parameters={parameters.tolist()}: want as many as losses, ascending")
    _positive(parameters=parameters)
    at = int(np.argmin(losses))
    if not 0 < at < len(losses) - 1:
        raise ValueError(f"losses={losses.tolist()}: the lowest stands at an end, so the best size was not tried")
    near = slice(at - 1, at + 2)
    square, slope, _ = fitted = np.polyfit(np.log(parameters[near]), losses[near], 2)
    size = -slope / (2 * square)
    return float(np.exp(size)), float(np.polyval(fitted, size))


def optimum_by_ratio(flops, tokens_per_parameter=20, *, factor=6):
    """Parameters and tokens for ``flops`` FLOP by a rule of thumb: ``N = √(C/(factor·ratio))``, ``D = ratio·N``.

    >>> parameters, tokens = optimum_by_ratio(5.76e23)
    >>> f"{parameters:.3g} {tokens:.3g}"
    '6.93e+10 1.39e+12'
    """
    _positive(flops=flops, tokens_per_parameter=tokens_per_parameter, factor=factor)
    parameters = np.sqrt(flops / (factor * tokens_per_parameter))
    return parameters, tokens_per_parameter * parameters


@cache
def _data():
    return tomllib.loads(files("clusterlab").joinpath("data", "scaling_laws.toml").read_text(encoding="utf-8"))


@cache
def laws():
    """The fitted laws by name.

    >>> list(laws())
    ['hoffmann', 'hoffmann, rounded', 'besiroglu']
    """
    return {name: Law(**row) for name, row in _data()["law"].items()}


def law(name):
    """The fitted law of that name; LookupError lists those known.

    >>> law("besiroglu").date
    '2024-04'
    """
    return _named(laws(), name)


@cache
def power_laws():
    """Published laws of one variable by name: the loss, or what their entry says.

    >>> list(power_laws())
    ['kaplan parameters', 'kaplan tokens', 'kaplan compute', 'llama 3 tokens']
    """
    found = {}
    for name, row in _data()["power"].items():
        coefficient = row["coefficient"] if "coefficient" in row else row["constant"] ** -row["exponent"]
        found[name] = PowerLaw(coefficient, row["exponent"], row["source"], row["date"])
    return found


def power_law(name):
    """The published power law of that name; LookupError lists those known.

    >>> round(power_law("kaplan parameters")(1.5e9), 2)
    2.3
    """
    return _named(power_laws(), name)


@cache
def trained():
    """{model: (parameters, tokens)} as its authors state them.

    >>> parameters, tokens = trained()["Chinchilla"]
    >>> tokens / parameters
    20.0
    """
    return {name: (row["parameters"], row["tokens"]) for name, row in _data()["trained"].items()}


def _named(table, name):
    if name not in table:
        near = difflib.get_close_matches(str(name), table, n=3, cutoff=0.4) or list(table)
        raise LookupError(f"no law {name!r}; near: {', '.join(near)}")
    return table[name]
