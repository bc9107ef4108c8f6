"""Serving a trained transformer: bytes of the key-value cache, seconds of a step, how many requests fit.

*Prefill* passes all tokens of a prompt through the model at once; *decode* then writes one token a step for each
sequence of the batch, and reads for it all weights once and the keys and values of every sequence.

    decode step = max((weights + cache) / memory bandwidth, FLOP / peak) + all-reduces between devices

These are bounds that a roofline gives: both rates are the data sheet's, and nothing else takes time. Source: Pope et
al. 2022, "Efficiently scaling transformer inference", arXiv:2211.05102, section 2. Numbers may be arrays and broadcast.
Outside: queues of arriving requests, attention windows, prefill and decode in one step.
"""

import heapq

import numpy as np

from clusterlab.collectives import all_reduce_seconds
from clusterlab.compute import attainable_flops, forward_breakdown

ACTIVATION_BYTES = 2  # of a number that tensor-parallel devices add up
POLICIES = ("continuous", "static")


def kv_cache_bytes(model, *, tokens, batch=1, bytes_per_value=2, block=1):
    """Bytes of keys and values of ``batch`` sequences of ``tokens`` tokens each.

    ``2 · layers · kv_heads · head_dim · bytes_per_value`` a token, a key and a value for each key-value head of each
    layer. ``block`` rounds the tokens of a sequence up to whole blocks, as a paged cache does (vLLM: 16; Kwon et al.
    2023, arXiv:2309.06180). Errors: ValueError for negative tokens, for a batch or width that is not positive, for a
    block that is no whole number from 1.

    >>> from clusterlab.transformer import model
    >>> kv_cache_bytes(model("llama-3-70b"), tokens=1), kv_cache_bytes(model("llama-2-7b"), tokens=4096) / 2**30
    (327680.0, 2.0)
    """
    tokens, batch = _checked("tokens", tokens, zero=True), _checked("batch", batch)
    block = _whole("block", block)
    each = 2.0 * model.layers * model.kv_heads * model.head_dim * _checked("bytes_per_value", bytes_per_value)
    return _plain(each * batch * np.ceil(tokens / block) * block)


def latent_cache_bytes(layers, *, latent, rope, tokens, batch=1, bytes_per_value=2):
    """Bytes of the cache of latent attention: one vector for all heads, and one shared rotary key, a token and layer.

    ``layers · (latent + rope) · bytes_per_value`` a token (DeepSeek-V3, arXiv:2412.19437, section 2.1.1).

    >>> latent_cache_bytes(61, latent=512, rope=64, tokens=1)  # DeepSeek-V3
    70272.0
    """
    width = _whole("latent", latent) + _whole("rope", rope, least=0)
    value = _checked("bytes_per_value", bytes_per_value)
    return _plain(1.0 * _whole("layers", layers) * width * value
                  * _checked("tokens", tokens, zero=True) * _checked("batch", batch))


def quantized_width(bits, *, group=None, group_bytes=2):
    """Bytes a weight of ``bits`` bits takes with its share of ``group_bytes`` of scales for each ``group`` weights.

    ``bits/8 + group_bytes/group``; without a group the scales (one a row) are left out.

    >>> quantized_width(8), quantized_width(4, group=32, group_bytes=4)  # the latter: a scale and a zero in bf16
    (1.0, 0.625)
    """
    width = _checked("bits", bits) / 8
    if group is not None:
        width = width + _checked("group_bytes", group_bytes, zero=True) / _whole("group", group)
    return _plain(1.0 * width)


def weight_bytes(model, *, batch=None, bytes_per_weight=2, embedding=True):
    """Bytes of all weights; with a ``batch``, of those that one decode step of so many tokens reads.

    The two differ only for mixtures of experts: tokens that choose k of E experts at random visit
    ``E · (1 − (1 − k/E)^batch)`` of them on average. ``embedding=False`` leaves out the table of which a step reads
    one row a token (not where it is tied to the head, which is read): tools differ.

    >>> from clusterlab.transformer import model
    >>> weight_bytes(model("llama-2-70b")) / 1e9, weight_bytes(model("mixtral-8x7b"), batch=1) / 1e9
    (137.953296384, 25.759850496)
    """
    count = 1.0 * model.parameters()
    if batch is not None:
        unused = (1 - model.experts_per_token / model.experts) ** _checked("batch", batch)
        count = count - unused * model.layers * sum(w.size * w.experts for w in model.layer_weights() if w.experts > 1)
    if not embedding and not model.tied:
        count = count - model.vocab * model.hidden
    return _plain(count * _checked("bytes_per_weight", bytes_per_weight))


def decode_flops(model, *, batch=1, context=0):
    """FLOP of one step that writes a token for each of ``batch`` sequences, each with ``context`` tokens in its cache.

    2 for each weight of a matrix and token, and ``4 · layers · heads · head_dim`` for each token looked back at.

    >>> from clusterlab.transformer import model
    >>> f'{decode_flops(model("llama-2-70b")) / model("llama-2-70b").parameters():.2f}'
    '1.99'
    """
    parts = forward_breakdown(model, batch=_checked("batch", batch), seq=1)
    return _plain(sum(flops for name, flops in parts.items() if name != "attention")
                  + parts["attention"] * _checked("context", context, zero=True))


def ridge_batch(accelerator, *, bytes_per_weight=2, dtype="bf16"):
    """The batch from which arithmetic takes longer than reading the weights, the cache left out.

    A weight of w bytes is used for 2 FLOP a token, so ``peak · w / (2 · memory bandwidth)``.

    >>> from clusterlab.hardware import accelerator
    >>> round(ridge_batch(accelerator("H100 SXM")), 1)
    295.3
    """
    return _plain(_peak(accelerator, dtype) * _checked("bytes_per_weight", bytes_per_weight)
                  / (2.0 * accelerator.memory_bandwidth))


def decode_seconds(model, accelerator, *, batch=1, context=0, bytes_per_weight=2, bytes_per_value=2, dtype="bf16",
                   devices=1, link=None, algorithm="ring", embedding=True):
    """Least seconds of one decode step: every one of ``batch`` sequences gets one token.

    ``max(bytes / memory_bandwidth, FLOP / peak)`` of one of ``devices`` tensor-parallel devices, each with its share
    of the weights and of the key-value heads (beyond kv_heads devices, heads are held more than once), and with a
    ``link`` also two all-reduces a layer of batch · hidden numbers of 2 bytes by ``algorithm``
    (`collectives.all_reduce_seconds`); without one, communication is free. ``context`` tokens of each sequence are
    read from the cache; 0 leaves it out. ``dtype`` names the peak.

    Errors: ValueError for values out of range and for devices that do not divide the heads; LookupError for a dtype
    without a published peak.

    >>> from clusterlab.hardware import accelerator
    >>> from clusterlab.transformer import model
    >>> f'{1e3 * decode_seconds(model("llama-3.1-70b"), accelerator("H100 SXM"), devices=8):.2f} ms'
    '5.27 ms'
    """
    cache = kv_cache_bytes(model, tokens=context, batch=batch, bytes_per_value=bytes_per_value)
    weights = weight_bytes(model, batch=batch, bytes_per_weight=bytes_per_weight, embedding=embedding)
    one, heads = _shares(model, devices)
    read = (weights * one + cache * heads) / accelerator.memory_bandwidth
    reckon = decode_flops(model, batch=batch, context=context) * one / _peak(accelerator, dtype)
    return _plain(np.maximum(read, reckon) + _added(model, batch, devices, link, algorithm))


def prefill_seconds(model, accelerator, *, tokens, batch=1, bytes_per_weight=2, dtype="bf16", devices=1, link=None,
                    algorithm="ring", causal=True):
    """Least seconds until prompts of ``tokens`` tokens are read and each has its first new token.

    ``max(weights / memory_bandwidth, FLOP / peak)`` and all-reduces as in `decode_seconds`, of batch · tokens · hidden
    numbers. The logits are those of the last token; ``causal`` counts half of the attention core. For long
    prompts about 2 · parameters · tokens / peak.

    >>> from clusterlab.hardware import accelerator
    >>> from clusterlab.transformer import model
    >>> f'{prefill_seconds(model("llama-3.1-8b"), accelerator("H100 SXM"), tokens=2048):.4f} s'
    '0.0300 s'
    """
    tokens, batch = _checked("tokens", tokens), _checked("batch", batch)
    parts = forward_breakdown(model, batch=batch, seq=tokens, causal=causal)
    flops = sum(parts.values()) - parts["logits"] * (1 - 1 / tokens)
    weights = weight_bytes(model, batch=batch * tokens, bytes_per_weight=bytes_per_weight)
    one, _ = _shares(model, devices)
    slower = np.maximum(weights * one / accelerator.memory_bandwidth, flops * one / _peak(accelerator, dtype))
    return _plain(slower + _added(model, batch * tokens, devices, link, algorithm))


def largest_batch(model, accelerator, *, context, bytes_per_weight=2, bytes_per_value=2, devices=1, reserved=0.0,
                  block=1):
    """How many sequences of ``context`` tokens fit beside the weights on ``devices`` devices; 0 if none does.

    ``⌊(memory − reserved − weights / devices) / cache of one sequence on a device⌋``, with ``memory`` as the driver
    reports it and ``reserved`` bytes of each device for all else. Layers' norms, which every device holds whole, are
    divided too (below 0.1 %).

    >>> from clusterlab.hardware import accelerator
    >>> from clusterlab.transformer import model
    >>> [largest_batch(model(name), accelerator("H100 SXM"), context=4096) for name in ("llama-2-7b", "llama-3-8b")]
    [33, 129]
    """
    cache = kv_cache_bytes(model, tokens=_checked("context", context), bytes_per_value=bytes_per_value, block=block)
    one, heads = _shares(model, devices)
    weights = weight_bytes(model, bytes_per_weight=bytes_per_weight) * one
    left = accelerator.memory - _checked("reserved", reserved, zero=True) - weights
    found = np.maximum(np.floor(left / (cache * heads)), 0).astype(int)
    return found if found.ndim else int(found)


def serve(lengths, slots, *, policy="continuous"):
    """The step after which each request has its answer, when ``slots`` are served at a time, in order of arrival.

    ``lengths`` are the tokens each request wants, all there at step 0; every slot writes one token a step.
    ``"static"``: a batch of ``slots`` starts together, and all of it is answered when its longest is done;
    ``"continuous"``: a slot that is done takes the next request at once (Yu et al. 2022, "Orca", OSDI).

    >>> serve([4, 1, 1, 2], 2, policy="static").tolist(), serve([4, 1, 1, 2], 2).tolist()
    ([4, 4, 6, 6], [4, 1, 2, 4])
    """
    lengths, slots = np.asarray(_whole("lengths", lengths)), int(_whole("slots", slots))
    if lengths.ndim != 1:
        raise ValueError(f"lengths has {lengths.ndim} dimensions: one length a request")
    if policy not in POLICIES:
        raise ValueError(f"policy={policy!r}: one of {', '.join(POLICIES)}")
    if policy == "static":
        longest = [lengths[i:i + slots].max() for i in range(0, len(lengths), slots)]
        return np.repeat(np.cumsum(longest), slots)[:len(lengths)]
    free, done = [0] * slots, []
    for length in lengths:
        done.append(heapq.heappop(free) + int(length))
        heapq.heappush(free, done[-1])
    return np.array(done)


def _added(model, tokens, devices, link, algorithm):
    """Seconds of two all-reduces a layer of `tokens` hidden vectors."""
    if link is None:
        return 0.0
    size = 1.0 * tokens * model.hidden * ACTIVATION_BYTES
    return 2 * model.layers * np.asarray(all_reduce_seconds(size, devices, link, algorithm=algorithm))


def _shares(model, devices):
    """(share of weights and work, share of the cache) of one of so many devices."""
    count = _whole("devices", devices)
    if np.any(model.heads % count):
        raise ValueError(f"devices={devices!r} do not divide heads={model.heads}")
    return 1 / count, 1 / np.minimum(count, model.kv_heads)


def _peak(accelerator, dtype):
    return attainable_flops(np.inf, accelerator, dtype)


def _checked(name, value, zero=False):
    value = np.asarray(value) if np.ndim(value) else value
    if not np.all(np.isfinite(value)) or not np.all(np.greater_equal(value, 0) if zero else np.greater(value, 0)):
        raise ValueError(f"{name}={value!r}: must be {'at least 0' if zero else 'positive'}")
    return value


def _whole(name, value, least=1):
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or not np.all(np.isfinite(array) & (array == np.floor(array)) & (array >= least)):
        raise ValueError(f"{name}={value!r}: whole numbers of at least {least}")
    return array.astype(int)[()]


def _plain(value):
    return value if np.ndim(value) else float(value)
