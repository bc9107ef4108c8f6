"""Checkpoints in memory: every rank keeps a copy of its neighbour's shards, so a lost rank's state is still there.

    rank         0      1      2      3
    own shard    s0     s1     s2     s3
    copy of      s3     s0     s1     s2       rank 2 is lost: s2 lives on rank 3, s1 still on its own rank

No storage is touched, so a copy costs one message and may be taken every few steps. What it does not survive is the
loss of two neighbours, or of everything (power): it stands in front of checkpoints on storage, not in their place.

Source: Wang et al. SOSP 2023, "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints".
"""

import math
import pickle
import time
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from clusterlab.run.device import device
from clusterlab.run.snapshot import CheckpointError, Snapshot, flat, local, restore, snapshot

KEPT = 2                                # a failure may come between the first and the last rank that has the newest


@dataclass(frozen=True)
class Copied:
    """What one in-memory checkpoint cost a rank."""

    step: int
    sent: int               # bytes to the neighbour
    seconds: float          # training stood still for all of them


@dataclass(frozen=True)
class Recovered:
    """`received`: bytes of tensors that passed through each rank to put the state together again."""

    step: int
    rng: str
    received: int


class Peers:
    """This rank's in-memory checkpoints. `ring`: ranks that existed when the copies were taken, this one at `me`."""

    def __init__(self):
        self.me, self.ring, self.own, self.copy, self.replicated = None, 0, {}, {}, False

    def save(self, step, state):
        """Keep this rank's state and give the right neighbour a copy; every rank calls it."""
        start, rank, ranks = time.perf_counter(), dist.get_rank(), dist.get_world_size()
        if (rank, ranks) != (self.me, self.ring):
            self.me, self.ring, self.own, self.copy = rank, ranks, {}, {}           # copies of another world
        saved = snapshot(step, state, copy=True)
        self.replicated = not any(isinstance(t, DTensor) for t in flat(saved.tensors).values())
        shards = Shards.of(saved)
        header, body = (shards.without_pieces() if self.replicated else shards).packed()   # replicas need no copies
        sizes = torch.tensor([len(header), len(body)], device=device())
        theirs = torch.empty_like(sizes)
        _pass_on(sizes, theirs)
        copy = [torch.empty(size, dtype=torch.uint8, device=device()) for size in theirs.tolist()]
        _pass_on(header.to(device()), copy[0])
        _pass_on(body.to(device()), copy[1])
        self.own[step], self.copy[step] = shards, [part.cpu() for part in copy]
        for kept in (self.own, self.copy):
            for old in sorted(kept)[:-KEPT]:
                del kept[old]
        return Copied(step, len(header) + len(body), time.perf_counter() - start)

    def recover(self, state):
        """Put the newest state that is still complete into `state`, in the present world, and return `Recovered`.

        Every rank of the present process group calls it: survivors bring what they keep, newcomers an empty `Peers`.
        Raises CheckpointError where a shard is lost with the only rank that had its copy.
        """
        bids, rank = [None] * dist.get_world_size(), dist.get_rank()
        dist.all_gather_object(bids, (self.me, self.ring, sorted(self.own), sorted(self.copy), self.replicated))
        ring = max(size for _, size, *_ in bids)
        step, sources = _newest_complete(bids, ring)
        mine = {}                                                   # shards that this rank will hand out, by old rank
        for old, (source, is_copy) in sources.items():
            if source == rank:
                mine[old] = Shards.unpacked(*self.copy[step]) if is_copy else self.own[step]
        described = [None] * len(bids)
        dist.all_gather_object(described, {old: shards.described() for old, shards in mine.items()})
        told = {old: entry for part in described for old, entry in part.items()}
        blank = snapshot(step, state)
        any_rank = told[min(told)]
        blank.tensors["optimizer"]["param_groups"] = any_rank["groups"]
        received = _hand_out(sources, mine, told, {name: _place(t) for name, t in flat(blank.tensors).items()})
        same = ring == len(bids) == len(told)
        rng = told[_inherited(bids, ring)]["rng"] if same else None
        restore(state, Snapshot(step, blank.tensors, any_rank["parts"], rng), rng=same)
        if not same:
            torch.manual_seed(1_000_003 * step + rank)
        return Recovered(step, "restored" if same else "reseeded", received)


@dataclass(frozen=True)
class Shards:
    """One rank's snapshot as plain tensors with their place in the whole: {name: (offsets, tensor)}."""

    pieces: dict
    groups: list            # the optimizer's settings
    parts: dict
    rng: dict

    @classmethod
    def of(cls, saved):
        pieces = {name: _place(tensor) for name, tensor in flat(saved.tensors).items()}
        return cls(pieces, saved.tensors["optimizer"]["param_groups"], saved.parts, saved.rng)

    def without_pieces(self):
        return replace(self, pieces={})

    def packed(self):
        """(description, content), each as bytes in one tensor."""
        header = torch.frombuffer(bytearray(pickle.dumps(self.described())), dtype=torch.uint8)
        return header, torch.cat([_bytes(t) for _, t in self.pieces.values()] or [torch.empty(0, dtype=torch.uint8)])

    @classmethod
    def unpacked(cls, header, body):
        told, at, pieces = pickle.loads(header.numpy().tobytes()), 0, {}
        for name, (offsets, shape, dtype) in told.pop("places").items():
            size = math.prod(shape) * dtype.itemsize
            pieces[name], at = (offsets, body[at:at + size].clone().view(dtype).view(shape)), at + size
        return cls(pieces, **told)

    def described(self):
        """All but the tensors' content."""
        places = {name: (offsets, tuple(t.shape), t.dtype) for name, (offsets, t) in self.pieces.items()}
        return {"places": places, "groups": self.groups, "parts": self.parts, "rng": self.rng}


def _bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _place(tensor):
    """(offsets of this rank's part in the whole tensor, the part)."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.dim(), tensor
    chunks = tensor.__create_chunk_list__()                         # what DCP asks a DTensor; none: an empty shard
    return tuple(chunks[0].offsets) if chunks else (0,) * tensor.dim(), local(tensor)


def _pass_on(outgoing, incoming):
    """One message to the right, one from the left."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks == 1:
        incoming.copy_(outgoing)
        return
    ops = [dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks), dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def _newest_complete(bids, ring):
    """(step, {old rank: (rank that has its shards now, whether as a copy)}) of the newest complete step."""
    survivors = {me: (rank, own, copy) for rank, (me, size, own, copy, _) in enumerate(bids) if size == ring and ring}
    replicated = any(bid[-1] for bid in bids)
    missing = list(range(ring))
    for step in sorted({s for _, own, _ in survivors.values() for s in own}, reverse=True):
        sources = {}
        for old in range(ring):
            holder = (old + 1) % ring
            if old in survivors and step in survivors[old][1]:
                sources[old] = survivors[old][0], False
            elif holder in survivors and step in survivors[holder][2]:
                sources[old] = survivors[holder][0], True
        missing = [old for old in range(ring) if old not in sources]
        if not missing or replicated and sources:                   # every replica has all there is
            return step, sources
    raise CheckpointError(f"memory: expected the shards of {ring} ranks, found none of rank(s) "
                          f"{', '.join(map(str, missing))}, lost with the neighbour that kept the copy")


def _inherited(bids, ring):
    """The old rank whose random numbers this rank goes on with: its own, or, as a newcomer, a lost one's."""
    lost = sorted(set(range(ring)) - {bid[0] for bid in bids})
    newcomers = [rank for rank, (me, *_) in enumerate(bids) if me is None]
    me = bids[dist.get_rank()][0]
    return me if me is not None else lost[newcomers.index(dist.get_rank())]


def _hand_out(sources, mine, told, places):
    """Broadcast every shard once, one at a time; each rank keeps what falls into its own parts."""
    seen, received = set(), 0
    for old in sorted(sources):
        for name, (offsets, shape, dtype) in told[old]["places"].items():
            if (name, offsets) in seen or 0 in shape:               # replicas, and ranks without a row
                continue
            seen.add((name, offsets))
            piece = mine[old].pieces[name][1] if old in mine else torch.empty(shape, dtype=dtype)
            piece = piece.to(device())
            dist.broadcast(piece, sources[old][0])
            received += piece.nbytes
            start, part = places[name]
            low = [max(a, b) for a, b in zip(offsets, start, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(offsets, shape, start, part.shape, strict=True)]
            if all(a < b for a, b in zip(low, high, strict=True)):
                cut = [tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=True))
                       for origin in (start, offsets)]
                part[cut[0]] = piece[cut[1]]
    return received
