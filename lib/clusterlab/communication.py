"""What a plan makes a rank send: for each kind of parallelism the collective, its bytes, how often, over which link.

    data        ZeRO 0: all-reduce of gradients. 1, 2: reduce-scatter of gradients, all-gather of weights.
                3 (FSDP): weights gathered twice, gradients scattered once, with every micro-batch.
                An expert's among the ranks that hold it
    tensor      two all-reduces a layer forward and two backward, of the residual stream b·s·h; with sequence
                parallelism each is an all-gather and a reduce-scatter
    context     keys and values gathered in every layer, their gradients scattered
    expert      tokens to their experts and back: two all-to-alls a layer forward, two backward
    pipeline    one message to the next stage forward, one to the stage before backward

Groups lie on the devices as in Megatron-LM and `clusterlab.training`: the ranks of a tensor group are neighbours, then
come context, data, pipeline. Sources: Rajbhandari et al. 2020, arXiv:1910.02054, section 7; Shoeybi et al. 2019,
arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2; Narayanan et al. 2021,
arXiv:2104.04473, sections 2.2 and 4.1; Llama 3, arXiv:2407.21783, section 3.3.2; Lepikhin et al. 2020,
arXiv:2006.16668.
"""

from dataclasses import dataclass
from math import ceil

from clusterlab.collectives import bus_factor, collective_seconds
from clusterlab.kernels import group_link
from clusterlab.memory import MIXED_16

PARTS = ("tensor", "context", "expert", "data", "pipeline")


@dataclass(frozen=True)
class Demand:
    """What one rank asks of one group in a step: ``calls`` of ``operation``, their whole arrays ``volume`` bytes.

    The whole array as in nccl-tests: of an all-gather what comes out, of a reduce-scatter what goes in, of an
    all-to-all what one rank holds, of a send the message. The group has ``ranks`` members, ``stride`` devices apart.
    """

    part: str
    operation: str
    ranks: int
    stride: int
    calls: float
    volume: float

    @property
    def sent(self):
        """Bytes a rank sends in a step: 2(n − 1)/n of an all-reduce's array, (n − 1)/n of others, a send whole."""
        return self.volume * bus_factor(self.operation, self.ranks)

    def seconds(self, cluster, use=None):
        """Seconds the calls take one after the other with nothing else to do: a ring's, or a message's.

        On the link of :func:`~clusterlab.kernels.group_link`, at the share of its bandwidth that collectives reach;
        ``use`` gives other constants.

        >>> from clusterlab.hardware import Cluster, node
        >>> f'{Demand("tensor", "all-reduce", 8, 1, 1, 64e6).seconds(Cluster(node("DGX H100"), 1)) * 1e6:.0f} us'
        '452 us'
        """
        link = group_link(cluster, self.stride, self.ranks, use)
        if self.operation == "send":
            return float(self.calls * link.latency + self.volume / link.bandwidth)
        return float(self.calls * collective_seconds(self.operation, self.volume / self.calls, self.ranks, link))

    def inside(self, node):
        """Whether the group stays within one node of ``node.devices`` devices.

        >>> from clusterlab.hardware import node
        >>> Demand("tensor", "all-reduce", 8, 1, 1, 1e9).inside(node("DGX H100"))
        True
        """
        return self.stride * self.ranks <= node.devices


def demands(model, plan, *, recipe=MIXED_16, stage=0, keep=False, regather=True, number=2):
    """The list of :class:`Demand` of a rank of pipeline stage ``stage`` in one optimizer step.

    recipe      bytes a parameter; gradients travel in ``recipe.gradient``, weights in ``recipe.weight`` bytes
    keep        ZeRO-3 gathers the weights once a micro-batch and keeps them till its backward pass
                (``reshard_after_forward=False``)
    regather    what sequence and context parallelism have gathered is given back, and gathered once more backward, as
                Megatron-LM and Llama 3 do; False keeps it
    number      bytes of one activation

    An all-reduce counts once however many buckets it is sent in; a gather of ZeRO-3 counts for each layer and once for
    what lies outside the layers. Left out: single numbers (loss, norm of the gradient), the vocabulary-parallel loss,
    and norms' gradients, which sequence parallelism completes among the tensor group. ``plan`` is a single plan.

    Raises ValueError for an illegal plan, an array of plans, or a stage that is not there.

    >>> from clusterlab.plan import Plan
    >>> from clusterlab.transformer import model
    >>> plan = Plan(tensor=8, data=8, global_batch=64, seq=4096, zero_stage=3, sequence_parallel=False)
    >>> for demand in demands(model("llama-2-70b"), plan):
    ...     print(demand.part, demand.operation, round(demand.calls), f"{demand.sent / 1e9:.1f} GB")
    tensor all-reduce 2576 302.5 GB
    data all-gather 1296 241.5 GB
    data reduce-scatter 648 120.7 GB
    """
    if plan.shape:
        raise ValueError(f"plan of shape {plan.shape}: want a single plan")
    plan.check(model)
    if not 0 <= stage < plan.pipeline:
        raise ValueError(f"stage={stage}: from 0 to {plan.pipeline - 1}")
    t, c, p, d, m = plan.tensor, plan.context, plan.pipeline, plan.data, plan.micro_batches
    first, last = stage == 0, stage == p - 1
    layers = int(plan.layers(model, stage))
    tokens = plan.micro_batch * plan.seq / c
    stream = number * tokens * model.hidden                                 # bytes of the residual stream b·s/c·h
    passes = 3 if plan.recompute == "full" else 2                           # forward, backward, and forward again
    found = []

    def need(part, operation, ranks, stride, calls, size):
        if ranks > 1 and calls * size:
            found.append(Demand(part, operation, ranks, stride, calls, calls * size))

    pairs = m * (2 * layers * passes + first + last)    # of a layer two a pass; the ends: embedding forward, head backward
    if plan.sequence_parallel:
        need("tensor", "all-gather", t, 1, pairs + (2 * layers * m if regather else 0), stream)
        need("tensor", "reduce-scatter", t, 1, pairs, stream)
    else:
        need("tensor", "all-reduce", t, 1, pairs, stream)
    keys = number * plan.micro_batch * plan.seq * model.kv_heads * model.head_dim / t      # or values, whole sequence
    need("context", "all-gather", c, t, 2 * layers * m * (passes - 1 + bool(regather)), keys)
    need("context", "reduce-scatter", c, t, 2 * layers * m, keys)
    if model.experts > 1:
        need("expert", "all-to-all", plan.expert, t, 2 * layers * passes * m,
             number * tokens * model.experts_per_token * model.hidden / t)
    dense, routed = parameters_of(model, plan, stage)
    groups = layers + int(first or last)                 # what ZeRO-3 gathers at once: a layer, or all outside them
    for held, ranks, stride in ((dense, d * c, t), (routed, d * c // plan.expert, t * plan.expert)):
        if plan.zero_stage == 3:
            need("data", "all-gather", ranks, stride, groups * m * (1 if keep else 2), recipe.weight * held / groups)
            need("data", "reduce-scatter", ranks, stride, groups * m, recipe.gradient * held / groups)
        elif plan.zero_stage == 0:
            need("data", "all-reduce", ranks, stride, 1, recipe.gradient * held)
        else:
            need("data", "reduce-scatter", ranks, stride, 1, recipe.gradient * held)
            need("data", "all-gather", ranks, stride, 1, recipe.weight * held)
    v = plan.virtual                                     # every chunk sends on, but the first not back, the last not on
    need("pipeline", "send", p, t * c * d, m * (2 * v - first - last), stream / t)
    return found


def parameters_of(model, plan, stage=0):
    """Parameters that a rank of a stage holds before ZeRO, as (all but experts, experts).

    Its layers; embedding, last norm and head at the ends. Tensor parallelism cuts matrices and leaves norms whole.

    >>> from clusterlab.plan import Plan
    >>> from clusterlab.transformer import model
    >>> sum(parameters_of(model("gpt-2"), Plan(global_batch=1, seq=1024))) == model("gpt-2").parameters()
    True
    """
    before, after = model.outer_weights()
    if model.tied and plan.pipeline > 1:
        after = [*after, before[0]]                      # on another stage: a second copy
    weights = [(w, int(plan.layers(model, stage))) for w in model.layer_weights()]
    weights += [(w, int(stage == 0)) for w in before] + [(w, int(stage == plan.pipeline - 1)) for w in after]
    held = [0.0, 0.0]
    for w, times in weights:
        part = w.size * ceil(w.pieces / plan.tensor) / w.pieces
        held[w.experts > 1] += times * part * (ceil(w.experts / plan.expert) if w.experts > 1 else 1)
    return tuple(held)
