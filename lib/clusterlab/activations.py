"""What a layer keeps between its forward and its backward pass: the stored tensors, one by one.

The sum over :func:`stored_tensors` is the activation memory of a layer, so a reader can check it against the code of
a model, and a model that is not a GPT (gated MLP, grouped queries, no dropout, experts) needs no formula of its own.
"""

from typing import NamedTuple

import numpy as np

RECOMPUTE = ("none", "selective", "full")
ATTENTION = ("eager", "flash")
_WIDTH = 2      # bytes of a 16-bit activation


def plain(value):
    """A 0-dimensional array as a Python number, so that it prints as one.

    >>> plain(np.float64(2.5))
    2.5
    """
    return value.item() if np.ndim(value) == 0 else value


class Stored(NamedTuple):
    """One tensor kept for the backward pass."""
    name: str
    bytes: float          # per token
    split: str            # "tensor": over the tensor-parallel ranks; "sequence": only with sequence parallelism
    pieces: int = 0       # what "tensor" can share out (heads); 0: splits evenly
    core: bool = False    # the part of attention that selective recomputation drops
    whole: bool = False   # multiplied as a whole: with sequence parallelism gathered first


def stored_tensors(model, *, seq, attention="eager", dropout=True):
    """The tensors that one layer stores for each token, in the order of the forward pass.

    16-bit activations and 1-byte dropout masks, as in Korthikanti et al. 2022 (arXiv:2205.05198), §4.1, whose
    34 + 5·a·s/h bytes per token and hidden unit this sums to for a GPT layer. Beyond the paper, for each op by its
    own kernel as in PyTorch: a gated MLP keeps gate, activated gate, up and their product (a fused SwiGLU three of
    the four); key and value are as wide as kv_heads; with experts each token's copies to experts_per_token experts
    and their outputs count, at even load. Left out: numbers one a row or head (mean and deviation of a norm, flash
    attention's log-sum-exp, router scores), together below 1 %.

    ``attention="flash"`` keeps no s × s matrix; ``dropout=False`` no masks and no dropped-out copy.

    >>> from clusterlab.transformer import model
    >>> gpt3 = model("gpt-3-175b")
    >>> sum(t.bytes for t in stored_tensors(gpt3, seq=2048)) / gpt3.hidden      # 34 + 5 · 96 · 2048 / 12288
    114.0
    """
    if attention not in ATTENTION:
        raise ValueError(f"attention={attention!r}: one of {', '.join(ATTENTION)}")
    h, heads, kv = model.hidden, model.heads, model.kv_heads
    hidden, query, key = _WIDTH * h, _WIDTH * heads * model.head_dim, _WIDTH * kv * model.head_dim
    scores, visits = heads * seq, model.experts_per_token
    mlp = _WIDTH * model.ffn * visits
    tensors = [Stored("attention norm input", hidden, "sequence"), Stored("query, key, value input", hidden, "sequence", whole=True)]
    if model.qk_norm:
        tensors += [Stored("query norm input", query, "tensor", heads), Stored("key norm input", key, "tensor", kv)]
    tensors += [Stored("query", query, "tensor", heads), Stored("key", key, "tensor", kv),
                Stored("value", key, "tensor", kv)]
    if attention == "eager":
        tensors += [Stored("softmax output", _WIDTH * scores, "tensor", heads, core=True)]
        if dropout:
            tensors += [Stored("attention dropout mask", scores, "tensor", heads, core=True),
                        Stored("attention dropout output", _WIDTH * scores, "tensor", heads, core=True)]
    tensors += [Stored("output projection input", query, "tensor", heads)]
    if dropout:
        tensors += [Stored("attention output dropout mask", h, "sequence")]
    tensors += [Stored("mlp norm input", hidden, "sequence"), Stored("mlp input", hidden, "sequence", whole=True)]
    if model.experts > 1:
        tensors += [Stored("tokens sent to experts", hidden * visits, "sequence")]
    tensors += [Stored("gate", mlp, "tensor"), Stored("activated gate", mlp, "tensor")] if model.gated else []
    tensors += [Stored("up", mlp, "tensor"), Stored("down input", mlp, "tensor")]
    if model.experts > 1:
        tensors += [Stored("expert outputs, to be weighted", hidden * visits, "sequence")]
    if dropout:
        tensors += [Stored("mlp output dropout mask", h, "sequence")]
    return tensors


def activation_bytes_per_layer(model, *, batch, seq, tensor_parallel=1, sequence_parallel=False, context_parallel=1,
                               recompute="none", attention="eager", dropout=True, keep_gathered=False):
    """Bytes that one layer stores on one device for one micro-batch of ``batch`` sequences of ``seq`` tokens.

    For a GPT layer, with t = tensor_parallel (Korthikanti et al. 2022, arXiv:2205.05198, table 2):
    s·b·h·(34 + 5·a·s/h) at t = 1; s·b·h·(10 + 24/t + 5·a·s/(h·t)); with sequence parallelism s·b·h/t·(34 + 5·a·s/h);
    without the last term for ``recompute="selective"`` or flash attention; 2·s·b·h for ``"full"``, the layer's input,
    which sequence parallelism has already cut by t. ``context_parallel`` ranks each hold that part of the sequence.
    What sequence parallelism gathers to multiply it is gathered again in the backward pass (Megatron-LM), or, with
    ``keep_gathered``, kept whole on every rank (torch's DTensor): 2·2·s·b·h·(1 − 1/t) more.
    All numbers and ``recompute`` may be arrays. Raises ValueError for an unknown recompute or attention.

    Where tools differ: Megatron-LM's theoretical_memory_usage.py has 18 + 4·ffn/h, which for a gated MLP counts two
    of the four tensors. The Ultra-Scale Playbook leaves the attention core whole under sequence parallelism (GPT-3,
    t = 8: 84.25 where the heads are shared out to 14.25). llm-analysis forgets one of the two dropout masks and cuts
    the kept input of "full" by t without sequence parallelism too. calculon keeps the gathered input of each matrix
    unless told to gather it again. EleutherAI's cookbook counts as if every MLP were 4·h and not gated.

    >>> from clusterlab.transformer import model
    >>> unit = 2048 * 12288
    >>> [activation_bytes_per_layer(model("gpt-3-175b"), batch=1, seq=2048, tensor_parallel=8, **how) / unit for how in
    ...  ({}, {"sequence_parallel": True}, {"sequence_parallel": True, "recompute": "selective"}, {"recompute": "full"})]
    [23.0, 14.25, 4.25, 2.0]
    """
    if not np.all(np.isin(recompute, RECOMPUTE)):
        raise ValueError(f"recompute={recompute!r}: one of {', '.join(RECOMPUTE)}")
    for name, value in (("batch", batch), ("seq", seq), ("tensor_parallel", tensor_parallel),
                        ("context_parallel", context_parallel)):
        if np.any(np.less_equal(value, 0)):
            raise ValueError(f"{name}={value!r}: must be positive")
    t = np.asarray(tensor_parallel)
    tokens = np.multiply(batch, seq) / np.asarray(context_parallel)
    shared = np.where(sequence_parallel, t, 1)
    always = core = 0.0
    for tensor in stored_tensors(model, seq=seq, attention=attention, dropout=dropout):
        if tensor.split == "sequence":
            size = tensor.bytes / np.where(keep_gathered and tensor.whole, 1, shared)
        elif tensor.pieces:
            size = tensor.bytes * np.ceil(tensor.pieces / t) / tensor.pieces
        else:
            size = tensor.bytes / t
        always, core = (always, core + size) if tensor.core else (always + size, core)
    kept = always + np.where(np.equal(recompute, "none"), core, 0.0)
    return plain(tokens * np.where(np.equal(recompute, "full"), _WIDTH * model.hidden / shared, kept))
