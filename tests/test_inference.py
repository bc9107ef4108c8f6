"""Serving: the cache, the step, what fits, who waits. Oracles: published values, brute force. What torch counts is in test_serving."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from clusterlab import inference
from clusterlab.collectives import all_reduce_seconds
from clusterlab.hardware import Accelerator, Link, accelerator
from clusterlab.inference import (
    decode_flops,
    decode_seconds,
    kv_cache_bytes,
    largest_batch,
    latent_cache_bytes,
    prefill_seconds,
    quantized_width,
    ridge_batch,
    serve,
    weight_bytes,
)
from clusterlab.transformer import Transformer, model, models
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = {row["id"]: row for row in json.loads((Path(__file__).parent / "fixtures" / "inference.json").read_text("utf-8"))}
TINY = Transformer(layers=3, hidden=8, heads=4, kv_heads=2, vocab=10)        # head_dim 2
SLOW = Accelerator("slow", "", memory=1e6, memory_label=1e6, memory_bandwidth=100.0,
                   dense_flops={"fp32": 1000.0, "bf16": 4000.0}, power=None, scale_up=None)
# by hand: a layer has 8·8 query, 2 · 8·4 key and value, 8·8 output, 2 · 8·32 MLP and two norms of 8
MATRICES = 3 * (64 + 64 + 64 + 512)
PARAMETERS = MATRICES + 3 * 16 + 80 + 8 + 80


# ---- published values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [id for id in ROWS if id.startswith("kv.llama")])
def test_published_cache_bytes(id):
    row = ROWS[id]
    shape = model(row["inputs"]["model"])
    assert kv_cache_bytes(shape, tokens=1) == row["value"]
    length, _, size = row["note"].partition(" context: ")
    tokens = {"4k": 4096, "128k": 131072}[length]
    printed = float(size.removesuffix(" GiB"))
    assert kv_cache_bytes(shape, tokens=tokens) / 2**30 == pytest.approx(printed, abs=0.005)


def test_other_published_caches():
    row = ROWS["kv.dsv3"]
    shape = {name: row["inputs"][name] for name in ("latent", "rope")}
    assert latent_cache_bytes(row["inputs"]["L"], tokens=1, **shape) == row["value"]
    palm = ROWS["kv.pope"]["inputs"]                                         # their multi-head variant of PaLM 540B
    one = Transformer(vocab=1, **{name: palm[name] for name in ("layers", "hidden", "heads", "head_dim")})
    assert kv_cache_bytes(one, tokens=palm["context"], batch=palm["batch"]) / 1e12 == pytest.approx(3, abs=0.05)
    token, most = ROWS["kv.opt_13b"]["value"]
    assert kv_cache_bytes(model("opt-13b"), tokens=1) / 2**10 == token
    assert kv_cache_bytes(model("opt-13b"), tokens=2048) / 2**30 == pytest.approx(most, abs=0.05)


def test_published_bounds():
    row = ROWS["inf.ridge"]
    assert ridge_batch(accelerator(row["inputs"]["accelerator"])) == pytest.approx(row["value"], abs=0.05)
    row = ROWS["inf.decode.bound"]["inputs"]
    ours = decode_seconds(model(row["model"]), accelerator(row["accelerator"]), devices=row["devices"])
    assert ours * 1e3 == pytest.approx(ROWS["inf.decode.bound"]["value"], abs=0.005)


def test_what_a_program_says_it_reads():
    row = ROWS["bw.gptfast.7b"]
    seen = row["inputs"]["bandwidth"] / row["inputs"]["tokens_per_second"]
    assert seen / 1e9 == pytest.approx(row["value"], abs=0.005)
    ours = weight_bytes(model("llama-2-7b"), embedding=False) + kv_cache_bytes(model("llama-2-7b"), tokens=200)
    assert ours == pytest.approx(seen, rel=2e-3)


def test_every_fixture_has_a_source():
    assert all(row["source"] and row["date"] for row in ROWS.values())


# ---- the cache -------------------------------------------------------------------------------------------------------


def test_cache_by_hand():
    assert kv_cache_bytes(TINY, tokens=1) == 2 * 3 * 2 * 2 * 2               # key and value, layers, heads, numbers, bytes
    assert kv_cache_bytes(TINY, tokens=5, batch=7, bytes_per_value=1) == 24 * 5 * 7
    assert kv_cache_bytes(TINY, tokens=0) == 0
    assert kv_cache_bytes(TINY, tokens=[17, 16, 1], block=16).tolist() == [48 * 32, 48 * 16, 48 * 16]
    assert kv_cache_bytes(TINY, tokens=np.array([1, 2]), batch=np.array([[1], [3]])).tolist() == [[48, 96], [144, 288]]
    assert latent_cache_bytes(3, latent=5, rope=2, tokens=4, batch=2, bytes_per_value=1) == 3 * 7 * 8
    assert latent_cache_bytes(3, latent=5, rope=0, tokens=1) == 30
    assert latent_cache_bytes(3, latent=5, rope=0, tokens=0) == 0


@pytest.mark.parametrize("name", models())
def test_cache_is_what_the_key_and_value_matrices_make(name):
    """Another way to the same: the widths of the two matrices that fill the cache."""
    shape = model(name)
    widths = sum(w.size // shape.hidden for w in shape.layer_weights() if w.name in ("key", "value"))
    assert kv_cache_bytes(shape, tokens=3) == 3 * 2 * shape.layers * widths


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_weights_by_hand():
    assert weight_bytes(TINY, bytes_per_weight=1) == PARAMETERS
    assert weight_bytes(TINY) == 2 * PARAMETERS
    assert weight_bytes(TINY, embedding=False) == 2 * (PARAMETERS - 80)
    tied = Transformer(layers=3, hidden=8, heads=4, kv_heads=2, vocab=10, tied=True)
    assert weight_bytes(tied, embedding=False) == weight_bytes(tied) == 2 * (PARAMETERS - 80)
    assert weight_bytes(TINY, batch=5) == 2 * PARAMETERS                      # one expert: always read
    assert weight_bytes(TINY, bytes_per_weight=[0.5, 1]).tolist() == [PARAMETERS / 2, PARAMETERS]


@pytest.mark.parametrize(("experts", "chosen"), [(8, 2), (4, 1), (2, 1), (5, 5)])
def test_experts_visited(experts, chosen):
    """A step reads the experts that some token chose: counted over random choices."""
    shape = Transformer(layers=2, hidden=8, heads=2, vocab=10, experts=experts, experts_per_token=chosen)
    expert = 2 * 8 * 32
    rest = shape.parameters() - 2 * experts * expert
    rng = np.random.default_rng(0)
    for batch in (1, 2, 6):
        drawn = [len({e for _ in range(batch) for e in rng.permutation(experts)[:chosen]}) for _ in range(4000)]
        ours = weight_bytes(shape, batch=batch, bytes_per_weight=1)
        assert (ours - rest) / (2 * expert) == pytest.approx(np.mean(drawn), rel=0.02)
    assert weight_bytes(shape, batch=1, bytes_per_weight=1) == pytest.approx(shape.active_parameters())
    assert weight_bytes(shape, bytes_per_weight=1) == shape.parameters()


def test_width_of_a_quantized_weight():
    assert quantized_width(16) == 2 and quantized_width(4) == 0.5
    assert quantized_width(4, group=128) == pytest.approx((128 * 4 + 16) / 8 / 128)
    assert quantized_width(3, group=32, group_bytes=4) == pytest.approx((32 * 3 + 32) / 8 / 32)
    assert quantized_width(4, group=32, group_bytes=0) == 0.5
    assert quantized_width([4, 8]).tolist() == [0.5, 1]


# ---- FLOP and seconds ------------------------------------------------------------------------------------------------


def test_step_by_hand():
    matrices = MATRICES + 80                                                   # and the head
    assert decode_flops(TINY, batch=5) == 2 * matrices * 5
    assert decode_flops(TINY, batch=5, context=6) == 2 * matrices * 5 + 4 * 3 * 4 * 2 * 5 * 6
    # memory binds: bf16 weights and cache at 100 bytes/s
    fast = {"batch": 2, "context": 6, "dtype": "bf16"}
    read = (2 * PARAMETERS + 48 * 12) / 100
    reckon = decode_flops(TINY, batch=2, context=6) / 4000
    assert read > reckon and decode_seconds(TINY, SLOW, **fast) == pytest.approx(read)
    # arithmetic binds: hardly any bytes, 1000 FLOP/s
    late = decode_seconds(TINY, SLOW, batch=9, context=6, dtype="fp32", bytes_per_weight=0.01, bytes_per_value=0.01)
    assert late == pytest.approx(decode_flops(TINY, batch=9, context=6) / 1000)
    assert decode_seconds(TINY, SLOW) == pytest.approx(2 * PARAMETERS / 100)
    assert decode_seconds(TINY, SLOW, embedding=False) == pytest.approx(2 * (PARAMETERS - 80) / 100)
    assert decode_seconds(TINY, SLOW, context=6, bytes_per_value=1) == pytest.approx((2 * PARAMETERS + 24 * 6) / 100)


def test_devices_share_weights_and_heads_and_pay_for_sums():
    link = Link("a link", 50.0, latency=0.25)
    kw = {"batch": 2, "context": 6}
    half = ((2 * PARAMETERS + 48 * 12) / 2) / 100
    assert decode_seconds(TINY, SLOW, devices=2, **kw) == pytest.approx(half)
    assert decode_seconds(TINY, SLOW, devices=4, **kw) == pytest.approx((2 * PARAMETERS / 4 + 48 * 12 / 2) / 100)
    late = decode_seconds(TINY, SLOW, batch=9, dtype="fp32", bytes_per_weight=1e-3, devices=2)
    assert late == pytest.approx(decode_flops(TINY, batch=9) / 2000)
    sums = 6 * all_reduce_seconds(2 * 8 * 2, 2, link)                          # 2 a layer; batch · hidden · 2 bytes
    assert decode_seconds(TINY, SLOW, devices=2, link=link, **kw) == pytest.approx(half + sums)
    tree = 6 * all_reduce_seconds(2 * 8 * 2, 4, link, algorithm="tree")
    more = decode_seconds(TINY, SLOW, devices=4, link=link, algorithm="tree", **kw)
    assert more == pytest.approx(decode_seconds(TINY, SLOW, devices=4, **kw) + tree)
    assert decode_seconds(TINY, SLOW, link=link, **kw) == decode_seconds(TINY, SLOW, **kw)
    many = decode_seconds(TINY, SLOW, devices=np.array([1, 2, 4]), link=link, **kw)
    assert many.tolist() == [decode_seconds(TINY, SLOW, devices=n, link=link, **kw) for n in (1, 2, 4)]


def test_prefill_by_hand():
    tokens = 10
    core = 4 * 3 * 4 * 2 * tokens**2 / 2                                        # half of the square is looked at
    flops = 2 * MATRICES * tokens + core + 2 * 80                               # logits of the last token alone
    late = prefill_seconds(TINY, SLOW, tokens=tokens, dtype="fp32", bytes_per_weight=1)
    assert late == pytest.approx(flops / 1000)
    whole = prefill_seconds(TINY, SLOW, tokens=tokens, dtype="fp32", bytes_per_weight=1, causal=False)
    assert whole == pytest.approx((flops + core) / 1000)
    assert prefill_seconds(TINY, SLOW, tokens=tokens, batch=3, dtype="fp32") == pytest.approx(3 * flops / 1000)
    assert prefill_seconds(TINY, SLOW, tokens=1) == pytest.approx(2 * PARAMETERS / 100)
    assert prefill_seconds(TINY, SLOW, tokens=1, devices=2) == pytest.approx(PARAMETERS / 100)
    assert prefill_seconds(TINY, SLOW, tokens=tokens, dtype="fp32", devices=2) == pytest.approx(flops / 2000)
    link = Link("a link", 50.0, latency=0.25)
    sums = 6 * all_reduce_seconds(3 * tokens * 8 * 2, 2, link, algorithm="tree")
    both = prefill_seconds(TINY, SLOW, tokens=tokens, batch=3, dtype="fp32", devices=2, link=link, algorithm="tree")
    assert both == pytest.approx(3 * flops / 2000 + sums)
    ring = prefill_seconds(TINY, SLOW, tokens=tokens, dtype="fp32", devices=4, link=link)
    assert ring == pytest.approx(flops / 4000 + 6 * all_reduce_seconds(tokens * 8 * 2, 4, link, algorithm="ring"))


def test_prefill_of_a_mixture_reads_the_experts_its_tokens_visit():
    shape = Transformer(layers=2, hidden=8, heads=2, vocab=10, experts=8, experts_per_token=1)
    ours = prefill_seconds(shape, SLOW, tokens=3, batch=2, dtype="bf16", bytes_per_weight=8)
    assert ours == pytest.approx(weight_bytes(shape, batch=6, bytes_per_weight=8) / 100)
    step = decode_seconds(shape, SLOW, batch=2)
    assert step == pytest.approx(weight_bytes(shape, batch=2) / 100)
    assert step < weight_bytes(shape) / 100


def test_ridge_is_where_both_take_equally_long():
    part = accelerator("MI300X")
    batch = ridge_batch(part, bytes_per_weight=1, dtype="fp8")
    assert batch == pytest.approx(part.dense_flops["fp8"] / part.memory_bandwidth / 2)
    weights, work = 1e9 / part.memory_bandwidth, 2e9 * batch / part.dense_flops["fp8"]
    assert weights == pytest.approx(work)


@given(st.integers(1, 64), st.integers(1, 5000), st.integers(1, 64), st.integers(0, 5000))
@settings(max_examples=60, deadline=None)
def test_more_work_is_never_quicker_and_batches_never_slower_a_token(batch, context, more, further):
    shape, part = model("llama-3-8b"), accelerator("H100 SXM")
    one = decode_seconds(shape, part, batch=batch, context=context)
    two = decode_seconds(shape, part, batch=batch + more, context=context)
    assert one <= two <= one * (batch + more) / batch * (1 + 1e-12)
    assert one <= decode_seconds(shape, part, batch=batch, context=context + further)


# ---- what fits -------------------------------------------------------------------------------------------------------


def test_largest_batch_by_hand():
    left = 1e6 - 2 * PARAMETERS
    assert largest_batch(TINY, SLOW, context=10) == left // 480
    assert largest_batch(TINY, SLOW, context=10, block=16) == left // 768
    assert largest_batch(TINY, SLOW, context=10, reserved=500_000) == (left - 500_000) // 480
    assert largest_batch(TINY, SLOW, context=10, bytes_per_value=1, bytes_per_weight=4) == (1e6 - 4 * PARAMETERS) // 240
    assert largest_batch(TINY, SLOW, context=10, devices=2) == (1e6 - PARAMETERS) // 240
    assert largest_batch(TINY, SLOW, context=10, devices=4) == (1e6 - PARAMETERS / 2) // 240
    assert largest_batch(TINY, SLOW, context=10, bytes_per_weight=1000) == 0
    assert isinstance(largest_batch(TINY, SLOW, context=10), int)
    found = largest_batch(TINY, SLOW, context=[10, 20])
    assert found.tolist() == [left // 480, left // 960] and found.dtype.kind == "i"
    full = dataclasses.replace(SLOW, memory=2 * PARAMETERS + 3 * 480)            # to the last byte
    assert largest_batch(TINY, full, context=10) == 3


@given(st.integers(1, 40_000), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=40, deadline=None)
def test_the_largest_fits_and_one_more_does_not(context, devices):
    shape, part = model("llama-3-70b"), accelerator("H100 SXM")
    count = largest_batch(shape, part, context=context, devices=devices)
    held = [2 * shape.parameters() / devices + kv_cache_bytes(shape, tokens=context, batch=n) / devices
            for n in (max(count, 1), count + 1)]
    assert (count == 0 or held[0] <= part.memory) and held[1] > part.memory


# ---- who waits -------------------------------------------------------------------------------------------------------


def played(lengths, slots, policy):
    """Step by step, with a clock: the oracle."""
    waiting, running, done, clock = list(range(len(lengths))), {}, {}, 0
    while waiting or running:
        if policy == "continuous" or not running:
            while waiting and len(running) < slots:
                request = waiting.pop(0)
                running[request] = lengths[request]
        clock += 1
        running = {request: left - 1 for request, left in running.items()}
        if policy == "continuous" or all(left <= 0 for left in running.values()):
            for request in [request for request, left in running.items() if left <= 0]:
                done[request] = clock
                del running[request]
    return [done[request] for request in range(len(lengths))]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=15), st.integers(1, 6),
       st.sampled_from(["continuous", "static"]))
@settings(max_examples=150, deadline=None)
def test_serving_is_what_a_clock_says(lengths, slots, policy):
    assert serve(lengths, slots, policy=policy).tolist() == played(lengths, slots, policy)


def test_serving_goes_on_at_once_unless_told_otherwise():
    assert serve([3, 1, 2], 2).tolist() == [3, 1, 3]
    assert serve([3, 1, 2], 2, policy="static").tolist() == [3, 3, 5]


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "says"), [
    (lambda: kv_cache_bytes(TINY, tokens=-1), "tokens=-1: must be at least 0"),
    (lambda: kv_cache_bytes(TINY, tokens=1, batch=0), "batch=0: must be positive"),
    (lambda: kv_cache_bytes(TINY, tokens=1, bytes_per_value=0), "bytes_per_value=0"),
    (lambda: kv_cache_bytes(TINY, tokens=1, block=1.5), "block=1.5: whole numbers of at least 1"),
    (lambda: kv_cache_bytes(TINY, tokens=1, block=0), "block=0"),
    (lambda: kv_cache_bytes(TINY, tokens=[1, float("nan")]), "tokens="),
    (lambda: latent_cache_bytes(0, latent=1, rope=1, tokens=1), "layers=0"),
    (lambda: latent_cache_bytes(1, latent=0, rope=1, tokens=1), "latent=0"),
    (lambda: latent_cache_bytes(1, latent=1, rope=-1, tokens=1), "rope=-1: whole numbers of at least 0"),
    (lambda: latent_cache_bytes(1, latent=1, rope=1, tokens=-1), "tokens=-1"),
    (lambda: latent_cache_bytes(1, latent=1, rope=1, tokens=1, batch=0), "batch=0"),
    (lambda: latent_cache_bytes(1, latent=1, rope=1, tokens=1, bytes_per_value=0), "bytes_per_value=0"),
    (lambda: quantized_width(0), "bits=0"),
    (lambda: quantized_width(4, group=0), "group=0"),
    (lambda: quantized_width(4, group=8, group_bytes=-1), "group_bytes=-1"),
    (lambda: weight_bytes(TINY, bytes_per_weight=0), "bytes_per_weight=0"),
    (lambda: weight_bytes(TINY, batch=0), "batch=0"),
    (lambda: decode_flops(TINY, batch=0), "batch=0"),
    (lambda: decode_flops(TINY, context=-1), "context=-1"),
    (lambda: ridge_batch(SLOW, bytes_per_weight=-1), "bytes_per_weight=-1"),
    (lambda: decode_seconds(TINY, SLOW, devices=3), "devices=3 do not divide heads=4"),
    (lambda: decode_seconds(TINY, SLOW, devices=0), "devices=0"),
    (lambda: decode_seconds(TINY, SLOW, context=float("inf")), "context=inf|tokens=inf"),
    (lambda: prefill_seconds(TINY, SLOW, tokens=0), "tokens=0"),
    (lambda: prefill_seconds(TINY, SLOW, tokens=1, batch=0), "batch=0"),
    (lambda: largest_batch(TINY, SLOW, context=0), "context=0"),
    (lambda: largest_batch(TINY, SLOW, context=1, reserved=-1), "reserved=-1"),
    (lambda: serve([1, 0], 1), r"lengths=\[1, 0\]"),
    (lambda: serve(3, 1), "lengths has 0 dimensions"),
    (lambda: serve([1], 0), "slots=0"),
    (lambda: serve([1], 1, policy="eager"), "policy='eager': one of continuous, static"),
    (lambda: serve(["a"], 1), "lengths="),
])
def test_what_makes_no_sense_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_an_unknown_peak_is_named():
    with pytest.raises(LookupError, match="fp8"):
        decode_seconds(TINY, SLOW, dtype="fp8")
    assert inference.POLICIES == ("continuous", "static")
