"""A plan: how many ways each kind of parallelism cuts a training step, and what makes one illegal."""

import dataclasses

import numpy as np

RECOMPUTE = ("none", "selective", "full")
_COUNTS = ("tensor", "pipeline", "data", "context", "expert", "micro_batch", "global_batch", "seq", "virtual")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Degrees of parallelism and batch of one training step; fields may be numpy arrays that broadcast.

    ``tensor``, ``pipeline``, ``data`` and ``context`` multiply to the devices. ``expert`` takes its ranks from
    data × context, so it adds none. ``micro_batch`` sequences of ``seq`` tokens pass through a pipeline of
    ``pipeline`` stages, each of ``virtual`` model chunks; ``global_batch`` sequences make one optimizer step.
    ``sequence_parallel`` cuts norms and dropout along the sequence in the tensor-parallel group (nothing to do at
    tensor=1). ``recompute`` and ``zero_stage`` as in Korthikanti et al. (arXiv:2205.05198) and Rajbhandari et al.
    (arXiv:1910.02054). ``embedding_as_layers``: the first and the last stage hold one layer less, in exchange for
    embedding and head, so that layers + 2 must divide (Llama 3, arXiv:2407.21783, §3.3.2: 126 layers, 16 stages).

    One plan that breaks a rule raises ValueError at once; of arrays :meth:`problems` says which break which rule.

    >>> plan = Plan(tensor=8, pipeline=8, data=16, micro_batch=1, global_batch=1536, seq=2048)
    >>> plan.devices, plan.micro_batches
    (1024, 96)
    >>> Plan(data=3, global_batch=16, seq=2048)
    Traceback (most recent call last):
    ValueError: global_batch not divisible by data × micro_batch: data=3, micro_batch=1, global_batch=16
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    micro_batch: int = 1
    global_batch: int
    seq: int
    virtual: int = 1
    sequence_parallel: bool = True
    recompute: str = "selective"
    zero_stage: int = 1
    embedding_as_layers: bool = False

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if isinstance(getattr(self, field.name), (list, tuple)):
                object.__setattr__(self, field.name, np.array(getattr(self, field.name)))
        for name in _COUNTS:
            value = np.asarray(getattr(self, name))
            if not np.issubdtype(value.dtype, np.number) or np.any(value < 1) or np.any(value != np.floor(value)):
                raise ValueError(f"{name}={getattr(self, name)!r}: a positive integer")
        if not np.all(np.isin(self.recompute, RECOMPUTE)):
            raise ValueError(f"recompute={self.recompute!r}: one of {', '.join(RECOMPUTE)}")
        if not np.all(np.isin(self.zero_stage, (0, 1, 2, 3))):
            raise ValueError(f"zero_stage={self.zero_stage!r}: 0, 1, 2 or 3")
        if not self.shape:
            self.check()

    @property
    def shape(self):
        """The shape the fields broadcast to; () for a single plan."""
        return np.broadcast_shapes(*(np.shape(getattr(self, field.name)) for field in dataclasses.fields(self)))

    @property
    def devices(self):
        """tensor · pipeline · data · context."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def micro_batches(self):
        """Micro-batches that one pipeline works through in a step: global_batch/(data · micro_batch)."""
        return self.global_batch // (self.data * self.micro_batch)

    def problems(self, model=None):
        """{rule: True where a plan breaks it}, in an order; with a model also the rules that its shape sets.

        >>> plans = Plan(data=np.array([2, 3]), global_batch=16, seq=2048)
        >>> {rule: broken.tolist() for rule, broken in plans.problems().items() if broken.any()}
        {'global_batch not divisible by data × micro_batch': [False, True]}
        """
        chunks = np.multiply(self.pipeline, self.virtual)
        shard = np.multiply(self.context, np.where(self.sequence_parallel, self.tensor, 1))
        rules = {
            "global_batch not divisible by data × micro_batch":
                np.mod(self.global_batch, np.multiply(self.data, self.micro_batch)) != 0,
            "data × context not divisible by expert": np.mod(np.multiply(self.data, self.context), self.expert) != 0,
            "seq not divisible by context × tensor": np.mod(self.seq, shard) != 0,
            "virtual > 1 without a pipeline": np.greater(self.virtual, 1) & np.equal(self.pipeline, 1),
            # Megatron-LM's interleaved schedule moves micro-batches in groups of one a stage
            "micro-batches not divisible by pipeline, interleaved":
                np.greater(self.virtual, 1) & (np.mod(self.micro_batches, self.pipeline) != 0),
        }
        if model is not None:
            slots = model.layers + np.where(self.embedding_as_layers, 2, 0)
            rules |= {
                "layers not divisible by pipeline × virtual": np.mod(slots, chunks) != 0,
                "heads not divisible by tensor": np.mod(model.heads, self.tensor) != 0,
                "kv_heads and tensor do not divide":
                    (np.mod(model.kv_heads, self.tensor) != 0) & (np.mod(self.tensor, model.kv_heads) != 0),
                "ffn not divisible by tensor": np.mod(model.ffn, self.tensor) != 0,
                "experts not divisible by expert": np.mod(model.experts, self.expert) != 0,
            }
        return {rule: np.broadcast_to(broken, self.shape) for rule, broken in rules.items()}

    def check(self, model=None):
        """Raise ValueError, naming rule and values, if this plan (or one of an array) is illegal."""
        for rule, broken in self.problems(model).items():
            if np.any(broken):
                names = [n for n in _COUNTS if n in rule or n.replace("_", "-") in rule]
                values = [f"{n}={getattr(self, n)}" for n in names]
                values += [f"{n}={getattr(model, n)}" for n in ("layers", "heads", "kv_heads", "ffn", "experts")
                           if model is not None and n in rule.split()]
                raise ValueError(f"{rule}: {', '.join(values)}")

    def layers(self, model, stage):
        """Layers that pipeline stage `stage` (0 to pipeline − 1) holds; 0-dimensional or as wide as the plan."""
        extra = np.where(self.embedding_as_layers, 1, 0)
        ends = np.equal(stage, 0).astype(int) + np.equal(stage, np.subtract(self.pipeline, 1))
        return (model.layers + 2 * extra) // self.pipeline - extra * ends
