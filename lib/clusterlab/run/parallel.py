"""Train one small transformer under any parallelism, and see that it is the same training.

`train` runs a strategy on real ranks and returns plain numbers: losses beside those of a single process, the bytes each
rank holds, the collectives it calls. Each strategy is a short function in `data_parallel`, `tensor_parallel`,
`pipeline_parallel`, `context_parallel` or `expert_parallel`; it gets the whole model and returns this rank's `Trainer`.
"""

import difflib
from collections import Counter
from dataclasses import dataclass, fields, replace

import torch.distributed as dist

from clusterlab.run import data_parallel, ranks, tensor_parallel
from clusterlab.run.compared import Compared
from clusterlab.run.context_parallel import context
from clusterlab.run.device import device
from clusterlab.run.expert_parallel import expert
from clusterlab.run.pipeline_parallel import SCHEDULES, pipeline
from clusterlab.run.ranks import launch
from clusterlab.run.trainer import OneProcess, Task, work
from clusterlab.transformer import Transformer

ranks.PRELOAD.append(__name__)          # the fork server loads torch's parallelisms once, not every rank of every launch

STRATEGIES = {
    "single": data_parallel.single,
    "ddp": data_parallel.ddp,
    "zero1": data_parallel.zero1,
    "fsdp": data_parallel.fsdp,
    "fsdp-keep": data_parallel.fsdp_keep,
    "hsdp": data_parallel.hsdp,
    "tensor": tensor_parallel.tensor,
    "sequence": tensor_parallel.sequence,
    "tensor-fsdp": tensor_parallel.tensor_fsdp,
    **{schedule: pipeline(schedule) for schedule in SCHEDULES},
    "context": context,
    "expert": expert,
}
MISTAKES = {
    "equal-weights": "average the ranks' means although their shares of the batch differ in size",
    "untied": "treat the two uses of a tied embedding as two parameters",
    "mesh-order": "let tensor parallel groups stride over nodes",
    "data-by-rank": "give the ranks of a tensor parallel group different data",
    "local-positions": "count positions from 0 on every rank that holds a stretch of the sequence",
    "sum-experts": "all-reduce the gradients of experts as if every rank had the same ones",
}
WHY = {
    "ddp zero1 fsdp fsdp-keep hsdp": "two ranks: bitwise, a + b = b + a; more: a sum of gradients in another order",
    "tensor sequence tensor-fsdp": "each row-parallel product is a sum of the ranks' partial sums: another order",
    "gpipe 1f1b interleaved zb-h1 zb-v": "bitwise: the same operations in the same order, elsewhere; unless zb-v adds "
                                         "the two gradients of a tied embedding as they come",
    "context": "attention written out in place of the fused kernel, and gradients summed over stretches",
    "expert": "an expert multiplies the tokens of all ranks at once, not share by share",
    "single": "bitwise: it is the same",
}
SMALL = Transformer(layers=4, hidden=48, heads=4, kv_heads=2, vocab=96, ffn=96, gated=True)
SMALL_EXPERTS = replace(SMALL, layers=2, experts=4, experts_per_token=2)


def strategies():
    """Names that `train` takes.

    >>> strategies()[:3]
    ['single', 'ddp', 'zero1']
    """
    return list(STRATEGIES)


@dataclass(frozen=True)
class Result(Compared):
    """What a run did. Lists go over ranks; `calls` are those of the last step (the first ones also set things up)."""

    strategy: str
    losses: list            # of each step, over all tokens of the global batch
    reference: list         # the same of a single process
    weights: list           # bytes of each rank; padding of uneven shards included
    gradients: list
    optimizer: list
    calls: list             # of each rank: a list of traffic.Call
    seconds: list           # of each step, slowest rank
    groups: list            # of each rank: {"tensor": (0, 1), …}
    in_flight: list         # of each rank: most micro-batches it held at once; pipeline only

    @property
    def why(self):
        """Why the losses differ from those of a single process, if they do."""
        return next(reason for names, reason in WHY.items() if self.strategy in names.split())

    def counts(self, rank=0):
        """{kind of collective: how many} of one step."""
        return dict(Counter(call.kind for call in self.calls[rank]))

    def sizes(self, rank=0):
        """{kind of collective: bytes of the whole arrays} of one step."""
        sizes = Counter()
        for call in self.calls[rank]:
            sizes[call.kind] += call.size
        return dict(sizes)

    def sent(self, rank=0, ranks_per_node=None):
        """Bytes a rank sends in a step at best; with `ranks_per_node`, in groups that reach beyond one node only."""
        return sum(call.sent for call in self.calls[rank]
                   if ranks_per_node is None or len({r // ranks_per_node for r in call.ranks}) > 1)


def rank_work(jobs):
    """One rank, one strategy after the other: on rank 0 the reference, which needs no other rank, then the strategy."""
    answers = []
    for strategy, task in jobs:
        task = replace(task, device=device().type)
        trainer = STRATEGIES[strategy](task.model(), task)
        reference = None
        if dist.get_rank() == 0:
            parts = task.micro_batches if strategy in SCHEDULES else trainer.shares
            reference = work(OneProcess(task.model(), parts, task.learning_rate), replace(task, mistake=None)).losses
        answers.append((work(trainer, task), reference))
    return answers


def main(strategy="ddp", **settings):
    """On every rank, for a shell: `torchrun --nproc-per-node 4 -m clusterlab.run clusterlab.run.parallel:main steps=5`.

    `strategy` and `settings` as in `train`. Returns losses, deviation, bytes of this rank and its calls.
    """
    task = Task(SMALL_EXPERTS if strategy == "expert" else SMALL, **settings)
    check(strategy, task, dist.get_world_size())
    answers = [None] * dist.get_world_size()
    dist.all_gather_object(answers, rank_work([(strategy, task)])[0])
    result, rank = collect(strategy, task, answers), dist.get_rank()
    return {"losses": result.losses, "deviation": result.deviation, "weights": result.weights[rank],
            "optimizer": result.optimizer[rank], "calls": result.counts(rank)}


def mean_losses(parts_of_ranks, tokens):
    """Losses of the steps from each rank's sums, added in double precision and in order of rank."""
    return [sum(sum(parts) for parts in step) / tokens for step in zip(*parts_of_ranks, strict=True)]


def train(strategy, world_size, **options):
    """Train a small transformer for a few steps on `world_size` ranks under a strategy, and in a single process.

    `options` are those of `compare`. Returns a `Result`.
    """
    return compare([strategy], world_size, **options)[0]


def compare(strategies, world_size, *, shape=None, mistake=None, link=None, timeout=60, **settings):
    """The same for several strategies, one after the other on the same ranks: a list of `Result`.

    `shape` is a small Llama when not given, with four experts for "expert". `settings` are fields of `trainer.Task`: batch, seq, steps, tensor, micro_batches, learning_rate, seed. `mistake`
    makes one of `MISTAKES`, to see what it does to the losses or the traffic. `link` is passed to `launch`.
    Raises ValueError for what cannot be divided, LookupError for an unknown name.
    """
    for name, known in (*((strategy, STRATEGIES) for strategy in strategies), (mistake, [None, *MISTAKES])):
        if name not in known:
            near = difflib.get_close_matches(str(name), [n for n in known if n]) or sorted(n for n in known if n)
            raise LookupError(f"{name!r} is unknown; near: {', '.join(near)}")
    names = {field.name for field in fields(Task)} - {"shape", "mistake", "device"}
    if set(settings) - names:
        raise TypeError(f"unknown settings {sorted(set(settings) - names)}; known: {sorted(names)}")
    jobs = []
    for strategy in strategies:
        default = SMALL_EXPERTS if strategy == "expert" else SMALL
        jobs.append((strategy, Task(shape or default, mistake=mistake, **settings)))
        check(*jobs[-1], world_size)
    answers = launch(rank_work, world_size, jobs, link=link, timeout=timeout)
    return [collect(*job, of_ranks) for job, *of_ranks in zip(jobs, *answers, strict=True)]


def check(strategy, task, ranks):
    """Raise ValueError for what a strategy cannot divide, before any rank starts."""
    shape = task.shape
    chunks = ranks * (2 if strategy in ("interleaved", "zb-v") else 1)
    if strategy in ("hsdp", "tensor-fsdp") and ranks % task.tensor:
        raise ValueError(f"world_size={ranks} is not divisible by tensor={task.tensor}")
    if strategy in ("tensor", "sequence", "tensor-fsdp"):
        tensor_parallel.check(shape, task.tensor if strategy == "tensor-fsdp" else ranks, strategy == "sequence", task.seq)
    if strategy in SCHEDULES and shape.layers < chunks:
        raise ValueError(f"layers={shape.layers}: {strategy} on {ranks} ranks cuts the model into {chunks} chunks")
    if strategy in SCHEDULES and task.batch % task.micro_batches:
        raise ValueError(f"batch={task.batch} is not divisible by micro_batches={task.micro_batches}")
    if strategy == "context" and task.seq % ranks:
        raise ValueError(f"seq={task.seq} is not divisible by world_size={ranks}")
    if strategy == "expert" and (shape.experts == 1 or shape.experts % ranks):
        raise ValueError(f"experts={shape.experts}: a multiple of world_size={ranks}, and more than one")
    if strategy in ("ddp", "zero1", "fsdp", "fsdp-keep", "hsdp", "expert") and task.batch < ranks:
        raise ValueError(f"batch={task.batch}: {strategy} gives each of {ranks} ranks at least one sequence")


def collect(strategy, task, answers):
    records, tokens = [record for record, _ in answers], task.batch * task.seq
    return Result(strategy, mean_losses([r.losses for r in records], tokens), mean_losses([answers[0][1]], tokens),
                  *([getattr(r, name) for r in records] for name in ("weights", "gradients", "optimizer")),
                  [r.calls[-1] for r in records], [max(s) for s in zip(*(r.seconds for r in records), strict=True)],
                  [r.groups for r in records], [r.in_flight for r in records])
