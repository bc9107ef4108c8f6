"""The table of collective algorithms: steps, bytes and reductions of each, as factors of the size.

>>> from clusterlab.algorithms import cost_factors
>>> [float(factor) for factor in cost_factors("ring", "all-reduce", 4)]
[6.0, 1.5, 1.5, 0.75]
"""

import difflib

import numpy as np


def ceil_log2(n):
    """Exact ceil(log2 n) of positive whole numbers, as floats.

    >>> ceil_log2(np.array([1, 2, 3, 8, 9])).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    return np.frexp(n - 1)[1].astype(float)


def floor_log2(n):
    """Exact floor(log2 n) of positive whole numbers, as floats.

    >>> floor_log2(np.array([1, 2, 3, 8, 9])).tolist()
    [0.0, 1.0, 1.0, 3.0, 3.0]
    """
    return np.frexp(n)[1] - 1.0


def is_power_of_two(n):
    """Whether each whole number is a power of two.

    >>> is_power_of_two(np.array([1, 2, 3, 8, 9])).tolist()
    [True, True, False, True, False]
    """
    return np.frexp(n)[0] == 0.5


def _folded(n):
    return (~is_power_of_two(n)).astype(float)


def _share(n):
    return (n - 1) / n


def _core(n):  # (p - 1) / p of the p ranks, the largest power of two, that exchange after folding
    return 1 - 2 ** -floor_log2(n)


def _fill(depth, c):  # chunks of a pipeline that have moved when it has filled, in units of the message
    return (depth - 1) / c


def _below(n):  # the largest power of two under n: a binomial tree's biggest subtree has half of it, or what is left
    return 2 ** (ceil_log2(n) - 1)


# Each function of ranks n and chunks c gives four factors: steps; bytes the busiest rank sends; bytes that pass one
# after the other through the ports on the critical path; bytes reduced on it. The last three in units of the size.
# The second and third differ where a rank first receives and then sends: a root, a server, a folded pair.
_exchange = {  # of the operations that are one half of an all-reduce; r is 1 when it reduces
    "ring": lambda r: lambda n, c: (n - 1, _share(n), _share(n), r * _share(n)),
    "halving-doubling": lambda r: lambda n, c: (floor_log2(n), _share(n), _share(n), r * _share(n)),
    "parameter-server-sharded": lambda r: lambda n, c: (1, _share(n), _share(n), r * _share(n)),
}
_COSTS = {
    "all-reduce": {
        "ring": lambda n, c: (2 * (n - 1), 2 * _share(n), 2 * _share(n), _share(n)),
        "recursive-doubling": lambda n, c: (
            floor_log2(n) + 2 * _folded(n), floor_log2(n) + _folded(n),
            floor_log2(n) + 2 * _folded(n), floor_log2(n) + _folded(n)),
        "halving-doubling": lambda n, c: (
            2 * floor_log2(n) + 2 * _folded(n), 2 * _core(n) + _folded(n),
            2 * _core(n) + 2 * _folded(n), _core(n) + _folded(n)),
        "tree": lambda n, c: (2 * ceil_log2(n), ceil_log2(n), 2 * ceil_log2(n), ceil_log2(n)),
        "double-tree": lambda n, c: (
            2 * ceil_log2(n) + c, 2, 2 + 2 * _fill(ceil_log2(n), c), 1 + _fill(ceil_log2(n), c)),
        "parameter-server": lambda n, c: (2, n - 1, 2 * (n - 1), n - 1),
        "parameter-server-sharded": lambda n, c: (2, 2 * _share(n), 2 * _share(n), _share(n)),
        "sharp": lambda n, c: (2, 1, 1, 0),
        "nvls": lambda n, c: (2, (n + 1) / n, (n + 1) / n, 0),
    },
    "reduce-scatter": {name: cost(1) for name, cost in _exchange.items()},
    "all-gather": {name: cost(0) for name, cost in _exchange.items()}
    | {"recursive-doubling": _exchange["halving-doubling"](0)},
    "broadcast": {
        "ring": lambda n, c: (n - 2 + c, 1, 1 + _fill(n - 1, c), 0),
        "tree": lambda n, c: (ceil_log2(n), ceil_log2(n), ceil_log2(n), 0),
        "double-tree": lambda n, c: (ceil_log2(n) + c, 1, 1 + _fill(ceil_log2(n), c), 0),
        "halving-doubling": lambda n, c: (2 * floor_log2(n), 2 * _share(n), 2 * _share(n), 0),  # scatter, all-gather
        "parameter-server": lambda n, c: (1, n - 1, n - 1, 0),
    },
    "reduce": {
        "ring": lambda n, c: (n - 2 + c, 1, 1 + _fill(n - 1, c), 1 + _fill(n - 1, c)),
        "tree": lambda n, c: (ceil_log2(n), 1, ceil_log2(n), ceil_log2(n)),
        "double-tree": lambda n, c: (
            ceil_log2(n) + c, 1, 1 + _fill(ceil_log2(n), c), 1 + _fill(ceil_log2(n), c)),
        # reduce-scatter, then gather: there the busiest sender holds half the array, the root receives the rest
        "halving-doubling": lambda n, c: (2 * floor_log2(n), _share(n) + 1 / 2, 2 * _share(n), _share(n)),
        "parameter-server": lambda n, c: (1, 1, n - 1, n - 1),
    },
    "all-to-all": {"ring": _exchange["ring"](0)},  # step k: to the k-th neighbour
    "gather": {
        "ring": _exchange["ring"](0),
        "tree": lambda n, c: (ceil_log2(n), np.maximum(n - _below(n), _below(n) / 2) / n, _share(n), 0),
        "parameter-server": lambda n, c: (1, 1 / n, _share(n), 0),
    },
    "scatter": {
        "ring": _exchange["ring"](0),
        "tree": lambda n, c: (ceil_log2(n), _share(n), _share(n), 0),
        "parameter-server": lambda n, c: (1, _share(n), _share(n), 0),
    },
    "send": {"ring": lambda n, c: (1, 1, 1, 0)},
}
_ALIASES = {"allreduce": "all-reduce", "reducescatter": "reduce-scatter", "allgather": "all-gather",
            "alltoall": "all-to-all", "sendrecv": "send", "send-recv": "send"}
OPERATIONS = tuple(_COSTS)
ALGORITHMS = tuple(_COSTS["all-reduce"])
IN_NETWORK = ("sharp", "nvls")  # the switch adds


def cost_factors(algorithm, operation, ranks, chunks=1):
    """Steps, busiest rank's bytes, critical bytes, reduced bytes (each but the first times the size); 0 for one rank.

    Raises ValueError for an unknown name, for an algorithm that does not do the operation and for ranks it cannot
    take. The derivation of each row stands in `clusterlab.collectives`.

    >>> [float(factor) for factor in cost_factors("tree", "broadcast", 5)]
    [3.0, 3.0, 3.0, 0.0]
    """
    operation, algorithm = known_operation(operation), known_algorithm(algorithm)
    n, c = whole(ranks, "ranks"), whole(chunks, "chunks")
    if algorithm not in _COSTS[operation]:
        raise ValueError(f"algorithm={algorithm!r} does no {operation}; these do: {', '.join(_COSTS[operation])}")
    if needs_power_of_two(algorithm, operation) and not np.all(is_power_of_two(n)):
        raise ValueError(f"ranks={ranks!r}: {algorithm} does {operation} on powers of two only; ring takes any number")
    return [np.asarray(factor, float) * (n > 1) for factor in _COSTS[operation][algorithm](n, c)]


def algorithms_for(operation):
    """Names of the algorithms that do an operation.

    >>> algorithms_for("scatter")
    ('ring', 'tree', 'parameter-server')
    """
    return tuple(_COSTS[known_operation(operation)])


def needs_power_of_two(algorithm, operation):
    """Only an all-reduce folds surplus ranks; elsewhere halving or doubling needs a power of two.

    >>> needs_power_of_two("halving-doubling", "all-gather"), needs_power_of_two("halving-doubling", "all-reduce")
    (True, False)
    """
    return algorithm in ("halving-doubling", "recursive-doubling") and operation != "all-reduce"


def known_operation(name):
    """The operation's name as written here; takes torch's and nccl-tests' spellings too.

    >>> known_operation("all_reduce"), known_operation("sendrecv")
    ('all-reduce', 'send')
    """
    plain = str(name).replace("_", "-").lower()
    return _known(_ALIASES.get(plain, plain), _COSTS, "operation", name)


def known_algorithm(name):
    """The algorithm's name as written here.

    >>> known_algorithm("Double_Tree")
    'double-tree'
    """
    return _known(str(name).replace("_", "-").lower(), ALGORITHMS, "algorithm", name)


def _known(plain, names, argument, value):
    if plain in names:
        return plain
    near = difflib.get_close_matches(plain, names, n=3, cutoff=0.5)
    raise ValueError(f"{argument}={value!r} is unknown; {'near: ' + ', '.join(near) + '; ' if near else ''}"
                     f"known: {', '.join(names)}")


def whole(value, argument="ranks"):
    """An array of whole numbers from 1, or ValueError with the argument's name.

    >>> float(whole(8))
    8.0
    """
    array = np.asarray(value, float)
    if not np.all(np.isfinite(array)) or np.any(array < 1) or np.any(array != np.floor(array)):
        raise ValueError(f"{argument}={value!r}: whole numbers from 1 are allowed")
    return array
