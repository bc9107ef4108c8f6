"""All-reduce (sum) by hand, on point-to-point messages: each function changes x in place on every rank.

x is a contiguous tensor of any shape, length and dtype that sums; the world size is any. Each algorithm is a sequence
of `step`s, the same number on every rank; `with counted() as wire` counts them and the bytes this rank sends. S is x in
bytes, n the world size, p the largest power of two <= n. Chunks are those of `tensor_split`: the first S mod n are one
element longer.
"""
import torch
import torch.distributed as dist

from .links import step


def _world(x):
    if not x.is_contiguous():
        raise ValueError("x is not contiguous: all-reduce x.contiguous() and copy it back")
    return dist.get_rank(), dist.get_world_size(), x.view(-1)


def ring_reduce_scatter(x: torch.Tensor, ranks=None) -> torch.Tensor:
    """Sum over `ranks` (default all); returns this rank's chunk of the sum, a view of x. n-1 steps, (n-1)/n S bytes.

    In step k rank r passes chunk r-k-1 on to its right and adds chunk r-k-2 from its left, so that chunk c travels from
    rank c+1 once round and ends, complete, on rank c.
    """
    rank, n, flat = _world(x)
    ranks = list(ranks or range(n))
    r, n = ranks.index(rank), len(ranks)
    chunk = flat.tensor_split(n)
    got = torch.empty_like(chunk[0])
    for k in range(n - 1):
        out, into = chunk[(r - k - 1) % n], chunk[(r - k - 2) % n]
        step(sends=[(out, ranks[(r + 1) % n])], recvs=[(got[:len(into)], ranks[(r - 1) % n])])
        into += got[:len(into)]
    return chunk[r]


def ring_all_gather(x: torch.Tensor, ranks=None) -> None:
    """Give every rank each rank's chunk of x (its `ranks` index = the chunk's). n-1 steps, (n-1)/n S bytes."""
    rank, n, flat = _world(x)
    ranks = list(ranks or range(n))
    r, n = ranks.index(rank), len(ranks)
    chunk = flat.tensor_split(n)
    for k in range(n - 1):
        step(sends=[(chunk[(r - k) % n], ranks[(r + 1) % n])], recvs=[(chunk[(r - k - 1) % n], ranks[(r - 1) % n])])


def ring(x: torch.Tensor) -> None:
    """Reduce-scatter, then all-gather, round a ring: 2(n-1) steps, 2(n-1)/n S bytes, the least any algorithm can send.

    Patarasuk and Yuan, JPDC 69(2), 2009.
    """
    ring_reduce_scatter(x)
    ring_all_gather(x)


def _folded(x, core, steps_per_bit) -> None:
    """Run core(flat, r, log2 p) on p ranks, a power of two; each of the other n-p adds its x to one of them and waits."""
    r, n, flat = _world(x)
    bits = n.bit_length() - 1
    p = 1 << bits
    partner = [r - p] if r >= p else [r + p] if r + p < n else []
    if n > p:
        got = torch.zeros_like(flat) if r < p else None
        step(*([(flat, r - p)], []) if r >= p else ([], [(got, q) for q in partner]))
        if r < p:
            flat += got
    if r < p:
        core(flat, r, bits)
    else:
        for _ in range(bits * steps_per_bit):
            step()
    if n > p:
        step(*([], [(flat, r - p)]) if r >= p else ([(flat, q) for q in partner], []))


def recursive_doubling(x: torch.Tensor) -> None:
    """Exchange all of x with the rank at distance 1, 2, 4, …: log2 p steps of S bytes; best where latency rules.

    If n is no power of two: folded, two steps and up to S bytes more. Thakur, Rabenseifner and Gropp, IJHPCA 19(1),
    2005, section 4.5.
    """
    def core(flat, r, bits):
        got = torch.empty_like(flat)
        for bit in range(bits):
            peer = r ^ 1 << bit
            step([(flat, peer)], [(got, peer)])
            flat += got
    _folded(x, core, steps_per_bit=1)


def halving_doubling(x: torch.Tensor) -> None:
    """Swap halves, then quarters, … of x, then gather back the same way: 2 log2 p steps, 2(p-1)/p S bytes.

    If n is no power of two: folded, two steps and up to S bytes more. Rabenseifner, ICCS 2004; Thakur, Rabenseifner and
    Gropp, IJHPCA 19(1), 2005, section 4.5.
    """
    def core(flat, r, bits):
        mine, done = flat, []
        for bit in range(bits):                                    # the largest messages go to the nearest ranks
            peer = r ^ 1 << bit
            low, high = mine.tensor_split(2)
            mine, given = (low, high) if r < peer else (high, low)
            got = torch.empty_like(mine)
            step([(given, peer)], [(got, peer)])
            mine += got
            done.append((peer, mine, given))
        for peer, mine, given in reversed(done):
            step([(mine, peer)], [(given, peer)])
    _folded(x, core, steps_per_bit=2)


def tree(x: torch.Tensor) -> None:
    """Reduce to rank 0 along a binomial tree, then broadcast back: 2 ceil(log2 n) steps; rank 0 sends ceil(log2 n) S.

    At level k ranks that are odd multiples of 2^k are children of the even multiple just below.
    """
    r, n, flat = _world(x)
    levels = []
    for gap in (1 << k for k in range((n - 1).bit_length())):
        parent = [r - gap] if r % (2 * gap) == gap else []
        child = [r + gap] if r % (2 * gap) == 0 and r + gap < n else []
        levels.append((parent, child))
    got = torch.empty_like(flat)
    for parent, child in levels:
        step([(flat, q) for q in parent], [(got, q) for q in child])
        if child:
            flat += got
    for parent, child in reversed(levels):
        step([(flat, q) for q in child], [(flat, q) for q in parent])


def binary_tree(n: int) -> list:
    """The parent of each rank in a binary tree of depth ceil(log2 n) in which even ranks are inside and odd ones leaves.

    Rank 0 is the root, with one child; a rank's parent follows from its lowest set bit.

    >>> binary_tree(8)
    [None, 2, 4, 2, 0, 6, 4, 6]
    """
    def parent(r):
        bit = r & -r
        up = (r ^ bit) | bit << 1
        return up if up < n else r ^ bit
    return [None] + [parent(r) for r in range(1, n)]


def double_binary_tree(n: int) -> list:
    """Two trees such that a rank inside one is a leaf of the other: the second mirrors the first, or shifts it (odd n).

    Sanders, Speck and Träff, Parallel Computing 35(12), 2009.
    """
    first = binary_tree(n)
    place = (lambda r: n - 1 - r) if n % 2 == 0 else (lambda r: (r + 1) % n)
    second = [None] * n
    for r, up in enumerate(first):
        second[place(r)] = None if up is None else place(up)
    return [first, second]


def double_tree(x: torch.Tensor, chunks: int = 1) -> None:
    """Half of x up and down each of two binary trees, chunk after chunk: 2 ceil(log2 n) + chunks steps, 2S bytes.

    A chunk climbs one level a step and comes down as soon as it is complete; the second tree runs one step behind. Two
    ranks send S, three 3/2 S. The more chunks, the more of the ports is used, and the more steps are paid for.
    """
    if chunks < 1:
        raise ValueError(f"chunks is {chunks}: want 1 or more")
    r, n, flat = _world(x)
    height = (n - 1).bit_length()
    lanes = [_Lane(half.tensor_split(chunks), parents, r, height, late)
             for late, (half, parents) in enumerate(zip(flat.tensor_split(2), double_binary_tree(n)))]
    for t in range(2 * height + chunks if n > 1 else 0):
        sends, recvs, adds = [], [], []
        for lane in lanes:
            lane.plan(t, sends, recvs, adds)
        step(sends, recvs)
        for into, got in adds:
            into += got


class _Lane:
    """One tree of a double tree as this rank sees it: which chunks move in step t."""

    def __init__(self, chunk, parents, r, height, late):
        self.chunk, self.up, self.height, self.late = chunk, parents[r], height, late
        self.kids = [k for k, parent in enumerate(parents) if parent == r]
        self.depth, at = 0, r
        while parents[at] is not None:
            self.depth, at = self.depth + 1, parents[at]

    def plan(self, t, sends, recvs, adds):
        def due(step):                                             # the chunk whose turn is `step` steps after the start
            c = t - self.late - step
            return [self.chunk[c]] if 0 <= c < len(self.chunk) else []
        if self.up is not None:
            sends += [(c, self.up) for c in due(self.height - self.depth)]
            recvs += [(c, self.up) for c in due(self.height + self.depth - 1)]
        for kid in self.kids:
            got = [(c, torch.empty_like(c)) for c in due(self.height - self.depth - 1)]
            adds += got
            recvs += [(buffer, kid) for _, buffer in got]
            sends += [(c, kid) for c in due(self.height + self.depth)]


def parameter_server(x: torch.Tensor, sharded: bool = False) -> None:
    """All send to a server, which adds and sends back: 2 steps; rank 0 serves all of x and sends (n-1) S bytes.

    `sharded`: every rank serves one chunk, so that each sends 2(n-1)/n S, as in a ring. Li et al., OSDI 2014.
    """
    r, n, flat = _world(x)
    servers = range(n) if sharded else [0]
    chunk = dict(zip(servers, flat.tensor_split(len(servers))))    # what each server answers for
    others = [(r + k) % n for k in range(1, n)]                    # all start with their right neighbour: no queue
    got = {q: torch.empty_like(chunk[r]) for q in others} if r in servers else {}
    if n > 1:
        step([(chunk[s], s) for s in others if s in servers], [(got[q], q) for q in got])
        for q in sorted(got):
            chunk[r] += got[q]
        step([(chunk[r], q) for q in got], [(chunk[s], s) for s in others if s in servers])


def hierarchical(x: torch.Tensor, nodes: int) -> None:
    """Reduce-scatter in the node, all-reduce each chunk across nodes, all-gather in the node, each by a ring.

    With m ranks a node: 2(m-1) + 2(nodes-1) steps; a rank sends 2(m-1)/m S inside and 2(nodes-1)/nodes S/m outside.
    Whether a node has one NIC or all is a matter of the links, not of the algorithm: the bytes per node are the same.
    """
    r, n, _ = _world(x)
    if nodes < 1 or n % nodes:
        raise ValueError(f"nodes is {nodes}: want a divisor of the world size {n}")
    m = n // nodes
    inside, across = range(r // m * m, r // m * m + m), range(r % m, n, m)
    mine = ring_reduce_scatter(x, inside)
    ring_reduce_scatter(mine, across)
    ring_all_gather(mine, across)
    ring_all_gather(x, inside)


ALGORITHMS = {"ring": ring, "halving-doubling": halving_doubling, "recursive-doubling": recursive_doubling, "tree": tree,
              "double-tree": double_tree, "parameter-server": parameter_server,
              "parameter-server-sharded": lambda x: parameter_server(x, sharded=True)}
