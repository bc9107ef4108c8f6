"""Who sends which chunk to whom in each step of an all-reduce: the algorithms written out, for any number of ranks.

A schedule is a list of steps, a step a list of moves that happen at the same time, and a `Move` takes chunks from one
rank to another, where they are added to or copied over what is there. Moves of a step carry what was there before it.

>>> from clusterlab.schedules import schedule
>>> for step in schedule("parameter-server", 3):
...     print([(move.src, move.dst, move.chunks, move.op) for move in step])
[(1, 0, (0,), 'add'), (2, 0, (0,), 'add')]
[(0, 1, (0,), 'copy'), (0, 2, (0,), 'copy')]
"""

from typing import NamedTuple

from clusterlab.algorithms import IN_NETWORK, known_algorithm, whole


class Move(NamedTuple):
    """One message: rank ``src`` sends ``chunks`` to rank ``dst``; ``op`` is "add" or "copy"."""

    src: int
    dst: int
    chunks: tuple
    op: str


def schedule(algorithm, ranks, *, chunks=1):
    """The steps of an all-reduce, each a list of moves.

    ring, halving-doubling and the sharded server cut the array into as many chunks as ranks take part (as
    torch.tensor_split does), double-tree into ``chunks`` for each of its two trees, the others do not cut.
    Raises ValueError for sharp and nvls, whose adding is done by a switch and not by ranks.

    >>> schedule("ring", 2)[0]
    [Move(src=0, dst=1, chunks=(1,), op='add'), Move(src=1, dst=0, chunks=(0,), op='add')]
    >>> [len(schedule(name, 6)) for name in ("ring", "recursive-doubling", "halving-doubling", "tree")]
    [10, 4, 6, 6]
    """
    name, n = known_algorithm(algorithm), int(whole(ranks, "ranks"))
    if name in IN_NETWORK:
        raise ValueError(f"algorithm={algorithm!r}: the switch adds, no rank does; allowed: {', '.join(_BUILDERS)}")
    if n == 1:
        return []
    return _BUILDERS[name](n, int(whole(chunks, "chunks"))) if name == "double-tree" else _BUILDERS[name](n)


def exact_bytes_sent(algorithm, elements, itemsize, ranks, rank=None, *, chunks=1):
    """Bytes one rank, or the busiest, sends in an all-reduce of ``elements`` items of ``itemsize`` bytes.

    Chunks are cut as by torch.tensor_split: the first (elements mod k) of k chunks have one element more;
    halving-doubling halves again and again, double-tree once before it cuts. Ring rank r sends every chunk twice but
    chunks r and r+1 once: 2 E - e[r] - e[r+1] elements.

    >>> [exact_bytes_sent("ring", 10, 4, 4, rank) for rank in range(4)]
    [56, 60, 64, 60]
    >>> exact_bytes_sent("halving-doubling", 10, 4, 6)
    100
    """
    elements, itemsize, n = int(elements), int(whole(itemsize, "itemsize")), int(whole(ranks, "ranks"))
    if elements < 0:
        raise ValueError(f"elements={elements}: from 0 allowed")
    if rank is not None and not 0 <= rank < n:
        raise ValueError(f"rank={rank}: 0 to {n - 1} allowed")
    steps = schedule(algorithm, n, chunks=chunks)
    parts = 1 + max((chunk for step in steps for move in step for chunk in move.chunks), default=0)
    sizes = _cut(algorithm, elements, parts)
    sent = [0] * n
    for step in steps:
        for move in step:
            sent[move.src] += sum(sizes[chunk] for chunk in move.chunks) * itemsize
    return max(sent) if rank is None else sent[rank]


def _cut(algorithm, elements, parts):
    """Elements of each chunk."""
    if parts > 1 and (algorithm == "halving-doubling" or algorithm == "double-tree"):
        inner = algorithm if algorithm == "halving-doubling" else "half of it"
        return [size for half in _cut("", elements, 2) for size in _cut(inner, half, parts // 2)]
    return [elements // parts + (i < elements % parts) for i in range(parts)]


def _ring(n):
    def turn(first, op):  # in step s rank r passes on chunk r + first - s
        return [[Move(r, (r + 1) % n, ((r + first - s) % n,), op) for r in range(n)] for s in range(n - 1)]

    return turn(-1, "add") + turn(0, "copy")  # rank r owns chunk r in between, as in a reduce-scatter


def _fold(n):
    """Ranks that take part in the core, and the moves that fold the others in and tell them the result.

    The first p ranks take part, p the largest power of two; rank p + i hands over to rank i.
    """
    p = 1 << (n.bit_length() - 1)
    return range(p), [(p + i, i) for i in range(n - p)]


def _folded(n, parts, core_steps):
    core, pairs = _fold(n)
    every = tuple(range(parts(len(core))))
    before = [[Move(a, b, every, "add") for a, b in pairs]] if pairs else []
    after = [[Move(b, a, every, "copy") for a, b in pairs]] if pairs else []
    return before + core_steps(core) + after


def _recursive_doubling(n):
    def steps(core):
        masks = [1 << k for k in range(len(core).bit_length() - 1)]
        return [[Move(core[i], core[i ^ mask], (0,), "add") for i in range(len(core))] for mask in masks]

    return _folded(n, lambda p: 1, steps)


def _halving_doubling(n):
    """Halve the data, double the distance: the big messages go to the nearest ranks (Thakur et al. 2005)."""
    def steps(core):
        p = len(core)
        low, high = [0] * p, [p] * p  # the chunks each rank still reduces
        halving = []
        for mask in (1 << k for k in range(p.bit_length() - 1)):
            step = []
            for i in range(p):
                middle = (low[i] + high[i]) // 2
                keep, give = ((middle, high[i]), (low[i], middle)) if i & mask else ((low[i], middle), (middle, high[i]))
                step.append(Move(core[i], core[i ^ mask], tuple(range(*give)), "add"))
                low[i], high[i] = keep
            halving.append(step)
        # doubling undoes halving: what a rank gave to a partner unfinished comes back finished from that partner
        doubling = [[Move(move.dst, move.src, move.chunks, "copy") for move in step] for step in reversed(halving)]
        return halving + doubling

    return _folded(n, lambda p: p, steps)


def _tree(n):
    levels = [1 << k for k in range((n - 1).bit_length())]
    up = [[Move(r, r - bit, (0,), "add") for r in range(bit, n, 2 * bit)] for bit in levels]
    return up + [[Move(move.dst, move.src, move.chunks, "copy") for move in step] for step in reversed(up)]


def _parents(n):
    """Parent and depth of each rank in a binary tree under rank 0 whose inner ranks are all even."""
    parent, depth = {}, {0: 0}
    spans = [(1, n, 0)]
    while spans:
        low, high, above = spans.pop()
        if low < high:
            # the number in the span that the highest power of two divides
            bits = (1 << k for k in reversed(range(n.bit_length())))
            node = next(m for m in (-(-low // bit) * bit for bit in bits) if m < high)
            parent[node], depth[node] = above, depth[above] + 1
            spans += [(low, node, node), (node + 1, high, node)]
    return parent, depth


def _double_tree(n, chunks):
    """Two trees, each with half the array; a rank that is inner in one is a leaf in the other."""
    parent, depth = _parents(n)
    deepest = max(depth.values())
    steps = [[] for _ in range(2 * deepest + chunks - 1)]
    for tree, rename in enumerate((lambda r: r, (lambda r: n - 1 - r) if n % 2 == 0 else lambda r: (r + 1) % n)):
        for child, above in parent.items():
            for chunk in range(chunks):
                a, b, piece = rename(child), rename(above), (tree * chunks + chunk,)
                steps[deepest - depth[child] + chunk].append(Move(a, b, piece, "add"))
                steps[deepest + depth[above] + chunk].append(Move(b, a, piece, "copy"))
    return steps


def _parameter_server(n):
    return [[Move(r, 0, (0,), "add") for r in range(1, n)], [Move(0, r, (0,), "copy") for r in range(1, n)]]


def _sharded(n):
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    return [[Move(a, b, (b,), "add") for a, b in pairs], [Move(a, b, (a,), "copy") for a, b in pairs]]


_BUILDERS = {"ring": _ring, "recursive-doubling": _recursive_doubling, "halving-doubling": _halving_doubling,
             "tree": _tree, "double-tree": _double_tree, "parameter-server": _parameter_server,
             "parameter-server-sharded": _sharded}
