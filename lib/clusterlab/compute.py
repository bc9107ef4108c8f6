"""How many FLOP a training step takes, and how well a machine was used for them.

Only matrix multiplications are counted, a multiply and an add as 2 FLOP: the convention of every formula of the
field. Norms, activations, rotary embedding and the optimizer are left out (they cost time, but as memory traffic).
"""

import numpy as np

RECOMPUTE = ("none", "selective", "full")


def forward_breakdown(model, *, batch, seq, causal=False):
    """FLOP of one forward pass by kind of matrix: a dict of qkv, attention, projection, mlp, router and logits.

    A matrix of n parameters costs 2·n FLOP a token; the attention core (scores, and weights times values) costs
    4·b·s²·heads·head_dim a layer, halved with ``causal=True`` for kernels that skip the masked half. For GPT shapes
    that is 24·b·s·h² + 4·b·s²·h a layer and 2·b·s·h·V of logits (Korthikanti et al. 2022, arXiv:2205.05198,
    appendix A). ``batch`` sequences of ``seq`` tokens; both may be arrays.

    >>> from clusterlab.transformer import model
    >>> flops = forward_breakdown(model("gpt-3-175b"), batch=1, seq=2048)
    >>> {part: f"{value:.3g}" for part, value in flops.items() if value}
    {'qkv': '1.78e+14', 'attention': '1.98e+13', 'projection': '5.94e+13', 'mlp': '4.75e+14', 'logits': '2.53e+12'}
    """
    for name, value in (("batch", batch), ("seq", seq)):
        if np.any(np.less_equal(value, 0)):
            raise ValueError(f"{name}={value!r}: must be positive")
    part = {"query": "qkv", "key": "qkv", "value": "qkv", "output": "projection", "router": "router"}
    size = dict.fromkeys(("qkv", "attention", "projection", "mlp", "router", "logits"), 0)
    for weight in model.layer_weights():
        if weight.matmul:
            visited = model.experts_per_token if weight.experts > 1 else 1
            size[part.get(weight.name, "mlp")] += weight.size * visited
    tokens = 1.0 * batch * seq
    flops = {name: 2.0 * model.layers * n * tokens for name, n in size.items()}
    flops["attention"] = 4.0 * model.layers * model.heads * model.head_dim * tokens * seq / (2 if causal else 1)
    flops["logits"] = 2.0 * model.hidden * model.vocab * tokens
    return flops


def forward_flops(model, *, batch, seq, causal=False):
    """FLOP of one forward pass over ``batch`` sequences of ``seq`` tokens: the sum of forward_breakdown().

    >>> from clusterlab.transformer import model
    >>> f'{forward_flops(model("gpt-3-175b"), batch=1, seq=1) / model("gpt-3-175b").parameters():.2f}'
    '2.00'
    """
    return sum(forward_breakdown(model, batch=batch, seq=seq, causal=causal).values())


def training_flops(model, *, batch, seq, recompute="none", causal=False):
    """FLOP of one training step: three times the forward pass, and what recomputation repeats.

    * ``"none"``: 3·forward, because the backward pass multiplies each matrix twice. These are the *model* FLOP of
      MFU whatever was recomputed; for GPT 72·b·L·s·h²·(1 + s/6h + V/12hL) (Korthikanti et al. 2022,
      arXiv:2205.05198, eq. 7).
    * ``"selective"``: *hardware* FLOP by their eq. 8, 72·b·L·s·h²·(1 + s/3h + V/12hL), which charges the attention
      core's forward *and* backward once more. What a device executes is less: the core's forward is repeated and
      its backward is not, so ``training_flops(…) + forward_breakdown(…)["attention"]``. Published HFU uses eq. 8.
    * ``"full"``: 4·forward less the logits, which are not recomputed: 96·b·L·s·h²·(1 + s/6h + V/16hL) (Narayanan
      et al. 2021, arXiv:2104.04473, eq. 3).

    Tools differ on attention: Megatron-LM and FlashAttention count the causal half, nanotron, llm-analysis, PaLM's
    12·L·H·Q·T and both papers above the whole square. Hence ``causal``.

    >>> from clusterlab.transformer import model
    >>> f'{training_flops(model("gpt-3-175b"), batch=1536, seq=2048, recompute="full"):.3g}'
    '4.51e+18'
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute={recompute!r}: one of {', '.join(RECOMPUTE)}")
    flops = forward_breakdown(model, batch=batch, seq=seq, causal=causal)
    forward = sum(flops.values())
    extra = {"none": 0.0, "selective": 3 * flops["attention"], "full": forward - flops["logits"]}
    return 3 * forward + extra[recompute]


def mfu(model, *, tokens_per_second, seq, peak_flops, devices=1, causal=False):
    """Model FLOPs utilization: model FLOP/s of the whole job over the dense peak of all its devices.

    ``tokens_per_second · training_flops(one token) / (devices · peak_flops)``; ``tokens_per_second`` of the whole
    job, ``peak_flops`` dense and of one device, FLOP/s (Chowdhery et al. 2022, arXiv:2204.02311, appendix B, whose
    6N + 12·L·H·Q·T this is where the embedding is tied to the head). Recomputation never counts: see hfu().

    Raises ValueError above 1, which no machine reaches.

    >>> from clusterlab.transformer import model
    >>> round(mfu(model("llama-2-70b"), tokens_per_second=1000 * 512, seq=4096, peak_flops=989.4e12, devices=512), 3)
    0.449
    """
    return _utilization(training_flops(model, batch=1, seq=seq, causal=causal) / seq,
                        tokens_per_second, peak_flops, devices, "MFU")


def hfu(model, *, tokens_per_second, seq, peak_flops, devices=1, recompute="full", causal=False):
    """Hardware FLOPs utilization: as mfu(), with the FLOP that recomputation repeats (training_flops()).

    >>> from clusterlab.transformer import model
    >>> arguments = dict(tokens_per_second=4 * 2048 / 1.10, seq=2048, peak_flops=312e12, devices=8)
    >>> round(hfu(model("megatron-22b"), recompute="selective", **arguments), 3)  # Korthikanti table 5: 43.7 %
    0.438
    """
    return _utilization(training_flops(model, batch=1, seq=seq, recompute=recompute, causal=causal) / seq,
                        tokens_per_second, peak_flops, devices, "HFU")


def _utilization(flops_per_token, tokens_per_second, peak_flops, devices, name):
    for argument, value in (("tokens_per_second", tokens_per_second), ("peak_flops", peak_flops),
                            ("devices", devices)):
        if not np.all(np.greater(value, 0)):
            raise ValueError(f"{argument}={value!r}: must be positive")
    achieved = tokens_per_second / devices * flops_per_token
    share = achieved / peak_flops
    if np.any(share > 1):
        raise ValueError(
            f"{name} {np.max(share):.0%} is above 1: peak_flops={peak_flops!r} with devices={devices!r} cannot give "
            f"{np.max(achieved):.3g} FLOP/s a device. Is it the peak of another part or precision (A100 312, H100 SXM "
            "989 TFLOP/s in bf16, dense), halved twice, or is tokens_per_second that of more devices than `devices`?")
    return share


def attainable_flops(intensity, accelerator, dtype="bf16"):
    """The roofline: FLOP/s that ``accelerator`` can reach at ``intensity`` FLOP per byte of its memory moved.

    ``min(peak, intensity · memory_bandwidth)`` (Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785).
    Arrays broadcast. Raises LookupError for a dtype that the part has no published peak for.

    >>> from clusterlab.hardware import accelerator
    >>> [f"{attainable_flops(i, accelerator('H100 SXM')):.3g}" for i in (1, 100, 1000)]
    ['3.35e+12', '3.35e+14', '9.89e+14']
    """
    if not np.all(np.greater_equal(intensity, 0)):
        raise ValueError(f"intensity={intensity!r}: FLOP per byte, not negative")
    if accelerator.dense_flops.get(dtype) is None:
        known = ", ".join(d for d, peak in accelerator.dense_flops.items() if peak is not None)
        raise LookupError(f"dtype={dtype!r}: {accelerator.name} has a dense peak for {known}")
    attainable = np.minimum(accelerator.dense_flops[dtype], intensity * accelerator.memory_bandwidth)
    return attainable if np.ndim(attainable) else float(attainable)


def training_seconds(parameters, tokens, *, devices, achieved_flops, factor=6):
    """Seconds to train ``parameters`` on ``tokens`` tokens: factor · parameters · tokens/(devices · achieved_flops).

    ``achieved_flops`` in FLOP/s a device, not the peak. ``factor`` is 6 for model FLOP (Kaplan et al. 2020,
    arXiv:2001.08361, §2.1) and 8 with full recomputation, when achieved_flops counts the repeated work too
    (Narayanan et al. 2021, arXiv:2104.04473, eq. 4). Attention and logits are left out: 2 to 4 % at 2,048 tokens.

    >>> round(training_seconds(175e9, 300e9, devices=1024, achieved_flops=140e12, factor=8) / 86400)
    34
    """
    for name, value in (("parameters", parameters), ("tokens", tokens), ("devices", devices),
                        ("achieved_flops", achieved_flops), ("factor", factor)):
        if not np.all(np.greater(value, 0)):
            raise ValueError(f"{name}={value!r}: must be positive")
    return 1.0 * factor * parameters * tokens / (1.0 * devices * achieved_flops)
