"""Pipeline parallelism: each rank holds some layers; micro-batches flow through, activations forward, gradients back.

    gpipe         all forwards, then all backwards             holds every micro-batch
    1f1b          one forward, one backward once it is full    holds at most as many as there are stages after it
    interleaved   `virtual` chunks a rank: the bubble shrinks by as much, the messages grow by as much
    zb-h1, zb-v   backward cut in two: the gradient of the input, which the neighbour waits for, and that of the
                  weights, which fills the bubble. zb-v folds the pipeline: rank 0 holds the first and the last chunk

Sources: Huang et al. arXiv:1811.06965, Narayanan et al. arXiv:2104.04473 §2.2, Qi et al. arXiv:2401.10241 (zero
bubble) and arXiv:2405.15362 (V). The schedules are torch.distributed.pipelining's.
"""

import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from clusterlab.run.model import token_losses
from clusterlab.run.trainer import Trainer

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B,
             "zb-h1": ScheduleInterleavedZeroBubble, "zb-v": ScheduleZBVZeroBubble}


def chunks_of(schedule, rank, ranks):
    """Numbers of the model chunks that a rank holds, in order of the forward pass."""
    if schedule == "zb-v":
        return [rank, 2 * ranks - 1 - rank]
    return [rank, rank + ranks] if schedule == "interleaved" else [rank]


def cut(task, chunk, chunks):
    """The model with only the layers of one chunk; embedding in the first, norm and head in the last."""
    model = task.model()
    bounds = [round(i * task.shape.layers / chunks) for i in range(chunks + 1)]
    for name in list(model.layers):
        if not bounds[chunk] <= int(name) < bounds[chunk + 1]:
            del model.layers[name]
    if chunk > 0:
        model.embedding = model.positions = model.embedding_norm = None
    if chunk < chunks - 1:
        model.norm = model.head = None
    return model


def build(schedule, stages, micro_batches, loss):
    single = schedule in ("gpipe", "1f1b")                    # the others take a list of chunks, if only one
    return SCHEDULES[schedule](stages[0] if single else stages, micro_batches, loss_fn=loss, scale_grads=False)


def in_flight(stages, record):
    """Count the micro-batches whose activations a rank holds; record.in_flight keeps the most at once.

    A chunk counts as its share of the rank's layers, as in `clusterlab.pipeline`.
    """
    held = set()

    def watch(stage, method, change):
        call = getattr(stage, method)

        def watched(chunk, *args, **kw):
            result = call(chunk, *args, **kw)
            change((stage.stage_index, chunk), kw)
            record.in_flight = max(record.in_flight, len(held) / len(stages))
            return result

        setattr(stage, method, watched)

    for stage in stages:
        watch(stage, "forward_one_chunk", lambda key, kw: held.add(key))
        watch(stage, "backward_one_chunk", lambda key, kw: kw.get("full_backward", True) and held.discard(key))
        watch(stage, "backward_weight_one_chunk", lambda key, kw: held.discard(key))


class Pipeline(Trainer):
    def __init__(self, task, schedule):
        rank, world = dist.get_rank(), dist.get_world_size()
        mine = chunks_of(schedule, rank, world)
        total = len(mine) * world
        self.parts = [cut(task, chunk, total) for chunk in mine]
        self.first, self.last = mine[0] == 0, mine[-1] == total - 1
        super().__init__(torch.nn.ModuleList(self.parts), reports=self.last, lr=task.learning_rate)
        stages = [PipelineStage(part, chunk, total, torch.device(task.device))
                  for part, chunk in zip(self.parts, mine, strict=True)]
        self.in_flight = 0
        in_flight(stages, self)
        self.schedule = build(schedule, stages, task.micro_batches, self.loss)
        self.tie(task, world, schedule)

    def loss(self, logits, targets):
        return token_losses(logits, targets) * self.scale

    def forward_backward(self, tokens, targets, scale):
        self.scale, losses = scale, []
        self.schedule.step(*([tokens] if self.first else []), **(
            {"target": targets, "losses": losses} if self.last else {}))
        return [loss.item() / scale for loss in losses]

    def tie(self, task, world, schedule):
        """Embedding and head of a tied model lie on two ranks: the same weight twice, with half a gradient each."""
        self.ends = None
        if task.shape.tied and task.mistake != "untied":
            if schedule == "zb-v" or world == 1:
                if self.first:
                    self.parts[-1].head.weight = self.parts[0].embedding.weight
                    self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=task.learning_rate)
            else:
                self.ends = dist.new_group([0, world - 1])

    def after_backward(self):
        if self.ends and (self.first or self.last):
            weight = self.parts[0].embedding.weight if self.first else self.parts[-1].head.weight
            dist.all_reduce(weight.grad, group=self.ends)


def pipeline(schedule):
    def strategy(model, task):
        return Pipeline(task, schedule)
    return strategy


class Sleep(torch.autograd.Function):
    """Pass a tensor on; each pass takes the given seconds."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.seconds = backward
        time.sleep(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None, None


class SleepingStage(torch.nn.Module):
    """A stage that computes nothing and takes its time: forward, gradient of the input, gradient of the weight."""

    def __init__(self, forward, backward, weight):
        super().__init__()
        self.seconds, self.weight = (forward, backward, weight), torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        forward, backward, weight = self.seconds
        return Sleep.apply(x, forward, backward) * Sleep.apply(self.weight, 0.0, weight)


def sleeping(schedule, micro_batches, *, forward, backward, weight_backward):
    """On every rank: run a schedule over stages that sleep. Seconds from a common start to this rank's end.

    `launch(sleeping, 4, "1f1b", 8, forward=.02, backward=.02, weight_backward=.02)`: the longest is the makespan to
    hold against `clusterlab.pipeline.simulate`. The times are those of a whole rank, shared out to its chunks.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = chunks_of(schedule, rank, world)
    seconds = [s / len(mine) for s in (forward, backward, weight_backward)]
    stages = [PipelineStage(SleepingStage(*seconds), chunk, len(mine) * world, torch.device("cpu")) for chunk in mine]
    run = build(schedule, stages, micro_batches, lambda output, target: output.sum())
    arguments = [torch.ones(micro_batches, 1, requires_grad=True)] if mine[0] == 0 else []
    for _ in range(2):                                                                  # the first makes connections
        dist.barrier()
        start = time.perf_counter()
        run.step(*arguments, **({"target": torch.zeros(micro_batches, 1)} if mine[-1] == len(mine) * world - 1 else {}))
        seconds = time.perf_counter() - start
    return seconds
