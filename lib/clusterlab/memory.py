"""Memory of one device in training: model states, activations, logits and buffers; and what fits.

Everything is bytes on one device. Stages and shards are uneven in practice, so counts round up: summed over ranks no
state is smaller than the whole.
"""

import dataclasses

import numpy as np

from clusterlab.activations import activation_bytes_per_layer, plain


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Bytes a parameter: ``weight`` and ``gradient`` as used in the passes, ``master`` copy, optimizer ``moments``.

    >>> MIXED_16.total, MIXED_18.total, MIXED_20.total, PURE_16.total, FP32.total
    (16, 18, 20, 8, 16)
    """
    weight: float
    gradient: float
    master: float
    moments: float

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if not np.all(np.greater_equal(getattr(self, field.name), 0)):
                raise ValueError(f"{field.name}={getattr(self, field.name)!r}: bytes a parameter, not negative")

    @property
    def total(self):
        """Bytes a parameter of all states, unsharded."""
        return self.weight + self.gradient + self.master + self.moments


MIXED_16 = Recipe(2, 2, 4, 8)   # 16-bit weights and gradients, fp32 master and Adam: ZeRO's K = 12 (arXiv:1910.02054)
MIXED_18 = Recipe(2, 4, 4, 8)   # gradients in fp32: Megatron-LM; DeepSpeed counts the same 18
MIXED_20 = Recipe(2, 6, 4, 8)   # 16-bit gradients and an fp32 accumulation buffer: the Ultra-Scale Playbook's 20
PURE_16 = Recipe(2, 2, 0, 4)    # everything in 16 bits
FP32 = Recipe(4, 4, 0, 8)       # no mixed precision: the weights are their own master


@dataclasses.dataclass(frozen=True)
class States:
    """Bytes of model states on one device."""
    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self):
        """weights + gradients + optimizer."""
        return self.weights + self.gradients + self.optimizer


@dataclasses.dataclass(frozen=True)
class Memory(States):
    """Bytes on one device by what they are for; ``buffers`` live only while a layer runs."""
    activations: float
    logits: float
    buffers: float
    stage: int

    @property
    def total(self):
        """The sum of all parts."""
        return super().total + self.activations + self.logits + self.buffers


def model_state_bytes(parameters, *, recipe=MIXED_16, zero_stage=0, data_parallel=1, tensor_parallel=1,
                      pipeline_parallel=1):
    """Bytes of weights, gradients and optimizer on each device, cut evenly.

    P/(tensor·pipeline) parameters; of each byte of optimizer (master and moments) from ZeRO stage 1, of gradients
    from stage 2 and of weights at stage 3 only 1/data_parallel (Rajbhandari et al. 2020, arXiv:1910.02054, fig. 1).
    Gradients are cut by tensor and pipeline parallelism like weights; a tool that leaves them whole (EleutherAI's
    cookbook) contradicts itself, because a rank has gradients only for weights it holds. Arrays broadcast.

    >>> [model_state_bytes(7.5e9, zero_stage=z, data_parallel=64).total / 1e9 for z in range(4)]
    [120.0, 31.40625, 16.640625, 1.875]
    """
    for name, value in (("data_parallel", data_parallel), ("tensor_parallel", tensor_parallel),
                        ("pipeline_parallel", pipeline_parallel)):
        if np.any(np.less(value, 1)):
            raise ValueError(f"{name}={value!r}: at least 1")
    if np.any(np.less(parameters, 0)):
        raise ValueError(f"parameters={parameters!r}: not negative")
    if not np.all(np.isin(zero_stage, (0, 1, 2, 3))):
        raise ValueError(f"zero_stage={zero_stage!r}: 0, 1, 2 or 3")
    held = np.asarray(parameters) / np.multiply(tensor_parallel, pipeline_parallel)
    return States(*(plain(part) for part in _states(held, recipe, np.asarray(zero_stage), data_parallel, ceil=False)))


def _states(held, recipe, zero_stage, ranks, ceil=True):
    """(weights, gradients, optimizer) of `held` parameters that `ranks` ranks hold alike."""
    shard = np.ceil(held / ranks) if ceil else held / ranks
    return (recipe.weight * np.where(zero_stage >= 3, shard, held),
            recipe.gradient * np.where(zero_stage >= 2, shard, held),
            (recipe.master + recipe.moments) * np.where(zero_stage >= 1, shard, held))


def _held(weights, tensor, expert=1):
    """Parameters of `weights` on one rank: (all experts' alike, those of this rank's experts)."""
    dense = routed = 0
    for w in weights:
        part = w.size * np.ceil(w.pieces / np.asarray(tensor)) / w.pieces
        if w.experts > 1:
            routed = routed + part * np.ceil(w.experts / np.asarray(expert))
        else:
            dense = dense + part
    return dense, routed


def in_flight(plan, stage):
    """Micro-batches whose activations `stage` holds at once, counted in whole stages (so possibly a fraction).

    One-forward-one-backward: min(micro_batches, pipeline − stage). Interleaved with v chunks: the first stage holds
    1 + (p − 1)/(p·v) times a whole pipeline's worth (Korthikanti et al. 2022, arXiv:2205.05198, §4.2.3), because
    2·(p − stage − 1) + (v − 1)·p + 1 chunks of 1/v stage each are under way.

    >>> from clusterlab.plan import Plan
    >>> in_flight(Plan(pipeline=8, global_batch=64, seq=1), 0)
    8.0
    >>> in_flight(Plan(pipeline=8, virtual=3, global_batch=64, seq=1), 0) / 8 - 1    # (8 − 1)/(8 · 3)
    0.29166666666666674
    """
    p, v = np.asarray(plan.pipeline), np.asarray(plan.virtual)
    chunks = np.where(v > 1, 2 * (p - stage - 1) + (v - 1) * p + 1, p - stage)
    return plain(np.minimum(chunks, plan.micro_batches * v) / v)


def device_memory(model, plan, *, recipe=MIXED_16, stage="worst", attention="eager", dropout=True, logit_bytes=4,
                  reshard_outer=False, keep_gathered=False, gather_logits=False):
    """Peak bytes on one device of pipeline stage ``stage`` (0 to p − 1, or the "worst"): an object with .total.

    * ``weights``, ``gradients``, ``optimizer``: the stage's layers, with the embedding on the first and norm and head
      on the last stage (a tied head is a second copy there); tensor parallelism cuts matrices and leaves norms,
      router and row-parallel biases whole; ZeRO shards over data × context ranks, an expert over as many fewer.
      Gradients are allocated throughout, as a run that accumulates them does.
    * ``activations``: :func:`activation_bytes_per_layer` · layers · :func:`in_flight`, the embedding's dropout mask,
      and the inputs of final norm and head.
    * ``logits``: ``logit_bytes`` · tokens of a micro-batch · vocabulary / tensor: 4 for one fp32 copy (Korthikanti et
      al. 2022, arXiv:2205.05198, §4.3); PyTorch's ``cross_entropy(logits.float())`` has fp32 log-softmax and two
      fp32 gradients at once: 12. ``gather_logits``: whole on every tensor-parallel rank.
    * ``buffers``: with ZeRO-3 the gathered weights outside the layers (``reshard_outer``: given back while the loss
      is computed, torch's ``reshard_after_forward=True`` on the root); and what a running layer needs beyond the
      logits, which are gone by then: gradients of activations, what is recomputed for it, the gradient of a matrix
      before it is added, with ZeRO-3 its gathered weights and the next layer's (16 bits). From ZeRO-2 gradients wait
      whole: 16-bit ones until their layer is done (of embedding and head, until the end), and those of the layer
      before while they are scattered.

    The framework's context, NCCL's buffers and fragmentation come on top (1 to 5 GB a device). ``attention``,
    ``dropout`` and ``keep_gathered`` as in activation_bytes_per_layer(); this book's own tensor parallelism, by torch's
    DTensor, gathers its logits and, with sequence parallelism, keeps what it gathered. Fields of ``plan`` may be
    arrays; then nothing is checked (``plan.problems(model)``), while a single illegal plan raises ValueError.

    >>> from clusterlab.plan import Plan
    >>> from clusterlab.transformer import model
    >>> plan = Plan(tensor=8, pipeline=8, data=8, global_batch=512, seq=2048)
    >>> memory = device_memory(model("gpt-3-175b"), plan, recipe=MIXED_18)
    >>> memory.stage, round(memory.total / 2**30, 1), round(memory.activations / 2**30, 1)
    (0, 29.6, 9.6)
    """
    if not plan.shape:
        plan.check(model)
    last = np.subtract(plan.pipeline, 1)
    if isinstance(stage, str):
        if stage != "worst":
            raise ValueError(f"stage={stage!r}: a number from 0 to pipeline − 1, or 'worst'")
        # between the ends memory falls from stage to stage, with the micro-batches in flight
        stages = [np.zeros_like(last), np.minimum(1, last), last]
    else:
        if np.any(np.less(stage, 0)) or np.any(np.greater(stage, last)):
            raise ValueError(f"stage={stage!r}: from 0 to {np.max(last)}, or 'worst'")
        stages = [np.asarray(stage)]
    kept, whole = (activation_bytes_per_layer(
        model, batch=plan.micro_batch, seq=plan.seq, tensor_parallel=plan.tensor,
        sequence_parallel=plan.sequence_parallel, context_parallel=plan.context, recompute=recompute,
        attention=attention, dropout=dropout, keep_gathered=keep_gathered) for recompute in (plan.recompute, "none"))
    how = kept, whole, attention, dropout, logit_bytes, reshard_outer, keep_gathered, gather_logits
    shape = np.broadcast_shapes(plan.shape, *(np.shape(s) for s in stages))
    table = np.array([[np.broadcast_to(part, shape) for part in _stage_parts(model, plan, recipe, s, *how)]
                      for s in stages])
    worst = np.argmax(table.sum(axis=1), axis=0)
    parts = np.take_along_axis(table, worst[None, None], axis=0)[0]
    number = np.take_along_axis(np.array([np.broadcast_to(s, shape) for s in stages]), worst[None], axis=0)[0]
    return Memory(*map(plain, parts), stage=plain(number))


def _stage_parts(model, plan, recipe, stage, kept, whole, attention, dropout, logit_bytes, reshard_outer, keep_gathered,
                 gather_logits):
    """The parts of Memory on one stage; `kept` bytes of a layer's activations out of `whole`."""
    t, zero = np.asarray(plan.tensor), np.asarray(plan.zero_stage)
    first, last = np.equal(stage, 0), np.equal(stage, np.subtract(plan.pipeline, 1))
    layers = plan.layers(model, stage)
    dense, routed = _held(model.layer_weights(), t, plan.expert)
    before, after = model.outer_weights()
    head_copy = _held(before[:1], t)[0] * (np.greater(plan.pipeline, 1) if model.tied else 0)
    outer = first * _held(before, t)[0] + last * (_held(after, t)[0] + head_copy)
    ranks = np.multiply(plan.data, plan.context)
    states = [a + b for a, b in zip(_states(layers * dense + outer, recipe, zero, ranks),
                                    _states(layers * routed, recipe, zero, ranks / np.asarray(plan.expert)))]

    tokens = np.multiply(plan.micro_batch, plan.seq) / np.asarray(plan.context)
    stream = tokens * model.hidden
    row = stream / np.where(plan.sequence_parallel, t, 1)
    inputs = 2 * row + 2 * np.where(keep_gathered, stream, row)         # of a norm and of the matrices behind it
    activations = in_flight(plan, stage) * (layers * kept + first * dropout * row)
    head = last * inputs
    words = tokens * np.ceil(model.vocab / np.where(gather_logits, 1, t))
    logits = last * logit_bytes * words
    waiting = 2 * np.greater_equal(zero, 2)     # bytes a parameter of 16-bit gradients that are not scattered yet
    layer, gathered = dense + routed, (zero >= 3) * 2 * outer
    running = 2 * stream + _running_layer(model, plan, kept, whole, inputs, waiting * layer, attention, dropout)
    running = running + np.maximum((zero >= 2) * recipe.gradient * layer - kept, 0) + (zero >= 3) * 2 * 2 * layer
    head_gradient = waiting * last * (_held(after, t)[0] + (_held(before[:1], t)[0] if model.tied else 0))
    moments = [gathered * (not reshard_outer),                                          # the loss, beside the logits
               gathered * 2 + last * 2 * words - logits,                                # gathered again, behind it
               gathered + running + head_gradient - head - logits,
               (waiting + (zero >= 2) * recipe.gradient) * outer - activations - head - logits]     # the last scatter
    buffers = np.maximum(np.max(np.broadcast_arrays(*moments[2:]), axis=0),
                         np.maximum(moments[0], moments[1] * reshard_outer))
    return [*states, activations + head, logits, buffers]


def _running_layer(model, plan, kept, whole, inputs, waiting, attention, dropout):
    """What a layer needs while it runs backward, beyond what all layers keep and the gradient of its output: its MLP
    first, then, with the MLP's tensors given back, its attention, and at last its gradients alone, `waiting` bytes."""
    t, tokens = np.asarray(plan.tensor), np.multiply(plan.micro_batch, plan.seq) / np.asarray(plan.context)
    weights = model.layer_weights()
    in_mlp = sum(_held([w for w in weights if w.name in ("gate", "up", "down")], t, plan.expert)) / sum(
        _held(weights, t, plan.expert))
    largest = 2 * np.max([np.broadcast_to(w.size * np.ceil(w.pieces / t) / w.pieces, np.shape(t))
                          for w in weights], axis=0)
    recomputed = whole - kept
    matrices = 2 * tokens * model.ffn * model.experts_per_token / t * (2 if model.gated else 1)     # in 16 bits
    scores = 2 * tokens * model.heads * plan.seq / t * (attention == "eager") * (1 if dropout else 2)
    mlp = np.where(np.equal(plan.recompute, "full"), recomputed, 0) + np.maximum(
        matrices + largest, waiting * in_mlp - matrices)
    core = recomputed + scores - 2 * matrices - inputs + waiting * in_mlp
    return np.maximum(np.maximum(mlp, core), waiting - kept)


def largest_micro_batch(model, plan, accelerator, *, recipe=MIXED_16, **conventions):
    """The largest legal micro-batch whose device_memory() fits ``accelerator.memory``; 0 if none does.

    Legal means that it divides global_batch/data (and leaves the interleaved schedule whole groups). ``plan``'s own
    micro_batch is ignored; ``conventions`` go to device_memory().

    >>> from clusterlab.hardware import accelerator
    >>> from clusterlab.plan import Plan
    >>> from clusterlab.transformer import model
    >>> plan = Plan(tensor=8, data=8, global_batch=512, seq=4096)
    >>> largest_micro_batch(model("llama-2-13b"), plan, accelerator("H100 SXM"))
    16
    """
    whole = plan.global_batch // plan.data
    if np.ndim(whole) or plan.global_batch % plan.data:
        raise ValueError(f"global_batch={plan.global_batch!r}, data={plan.data!r}: one plan whose batch divides")
    sizes = np.array([n for n in range(1, whole + 1) if whole % n == 0])
    plans = dataclasses.replace(plan, micro_batch=sizes)
    broken = np.any(list(plans.problems(model).values()), axis=0)
    if broken.all():
        dataclasses.replace(plan, micro_batch=1).check(model)
    fits = device_memory(model, plans, recipe=recipe, **conventions).total <= accelerator.memory
    return int(max(sizes[fits & ~broken], default=0))
