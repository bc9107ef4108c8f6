"""FLOP against torch's own counter, utilization against published runs, and what must raise."""

import numpy as np
import pytest
import torch
from clusterlab.compute import (
    attainable_flops,
    forward_breakdown,
    forward_flops,
    hfu,
    mfu,
    training_flops,
    training_seconds,
)
from clusterlab.hardware import accelerator
from clusterlab.transformer import Transformer, model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode
from transformer_torch import Model

GPT = Transformer(layers=3, hidden=48, heads=4, vocab=101, tied=True, bias=True, norm="layer", positions=16)
LLAMA = Transformer(layers=2, hidden=40, heads=6, kv_heads=2, head_dim=8, ffn=72, gated=True, vocab=33)
MOE = Transformer(layers=2, hidden=32, heads=4, ffn=24, gated=True, vocab=50, experts=6, experts_per_token=2)


def counted(shape, batch, seq, backward=False, recompute="none"):
    with torch.device("meta"):
        net, tokens = Model(shape, recompute), torch.zeros(batch, seq, dtype=torch.long)
    # torch stops a recomputation at the last tensor it needs; the convention of the field counts it whole
    with FlopCounterMode(display=False) as counter, set_checkpoint_early_stop(False):
        logits = net(tokens)
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("shape", [GPT, LLAMA, MOE], ids=["gpt", "llama", "moe"])
def test_flops_equal_torch_counter(shape):
    assert forward_flops(shape, batch=3, seq=16) == counted(shape, 3, 16)
    assert training_flops(shape, batch=3, seq=16) == counted(shape, 3, 16, backward=True)
    full = training_flops(shape, batch=3, seq=16, recompute="full")
    assert full == counted(shape, 3, 16, backward=True, recompute="full")


def test_selective_recomputation_executes_less_than_equation_8_charges():
    none, core = training_flops(GPT, batch=2, seq=16), forward_breakdown(GPT, batch=2, seq=16)["attention"]
    assert counted(GPT, 2, 16, backward=True, recompute="selective") == none + core
    assert training_flops(GPT, batch=2, seq=16, recompute="selective") == none + 3 * core


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 64), st.integers(1, 4096), st.sampled_from(["gpt-3-175b", "llama-3.1-405b", "mixtral-8x7b"]))
def test_laws(batch, seq, name):
    shape = model(name)
    none, selective, full = (training_flops(shape, batch=batch, seq=seq, recompute=r)
                             for r in ("none", "selective", "full"))
    assert none < selective < full < 4 / 3 * none
    assert none == pytest.approx(3 * forward_flops(shape, batch=batch, seq=seq))
    assert training_flops(shape, batch=2 * batch, seq=seq) == pytest.approx(2 * none)
    parts, causal = (forward_breakdown(shape, batch=batch, seq=seq, causal=c) for c in (False, True))
    assert causal.pop("attention") == parts.pop("attention") / 2
    assert causal == parts


def test_palm_appendix_b():
    palm, seq = model("palm-540b"), 2048
    norms = palm.parameters() - sum(w.size for w in palm.layer_weights() if w.matmul) * 118 - 256000 * 18432
    closed = 6 * (palm.parameters() - norms) + 12 * 118 * 48 * 256 * seq
    assert training_flops(palm, batch=1, seq=seq) / seq == pytest.approx(closed, rel=1e-12)


def test_batch_and_seq_broadcast():
    batch, seq = np.array([[1], [3]]), np.array([128, 4096, 131072])
    table = training_flops(GPT, batch=batch, seq=seq, recompute="full", causal=True)
    assert table.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        one = training_flops(GPT, batch=int(batch[i, 0]), seq=int(seq[j]), recompute="full", causal=True)
        assert table[i, j] == pytest.approx(one, rel=1e-14)
    assert isinstance(one, float)


RUN = {"tokens_per_second": 238.3e3, "seq": 2048, "peak_flops": 275e12, "devices": 6144}


def test_mfu_of_palm():
    assert mfu(model("palm-540b"), **RUN) == pytest.approx(0.462, abs=0.0005)
    assert hfu(model("palm-540b"), recompute="none", **RUN) == mfu(model("palm-540b"), **RUN)
    assert hfu(model("palm-540b"), **RUN) > mfu(model("palm-540b"), **RUN)
    assert mfu(model("palm-540b"), causal=True, **RUN) < mfu(model("palm-540b"), **RUN)
    assert mfu(model("palm-540b"), **RUN | {"devices": 2 * 6144}) == pytest.approx(0.231, abs=0.0005)


@pytest.mark.parametrize("change", [{"devices": 1}, {"peak_flops": 275e12 / 4}, {"tokens_per_second": 1e6}])
def test_more_than_the_peak_is_an_error(change):
    with pytest.raises(ValueError, match="above 1.*peak_flops.*devices"):
        mfu(model("palm-540b"), **RUN | change)
    with pytest.raises(ValueError, match="HFU"):
        hfu(model("palm-540b"), **RUN | change)


def test_one_of_many_above_the_peak_is_an_error():
    with pytest.raises(ValueError, match="above 1"):
        mfu(model("palm-540b"), **RUN | {"devices": np.array([6144, 8])})


def test_an_h100_measured_against_its_sparse_or_dense_peak():
    """420 TFLOP/s are 42.5 % of the dense 989; 21 % is what the sparse peak makes of them."""
    gpt3, h100 = model("gpt-3-175b"), accelerator("H100 SXM")
    rate = 420e12 / (training_flops(gpt3, batch=1, seq=2048) / 2048)
    assert mfu(gpt3, tokens_per_second=rate, seq=2048, peak_flops=h100.dense_flops["bf16"]) == pytest.approx(0.425, abs=1e-3)


@pytest.mark.parametrize("bad", [{"tokens_per_second": 0}, {"peak_flops": -1}, {"devices": 0}, {"seq": 0},
                                 {"tokens_per_second": float("nan")}])
def test_nonsense_is_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        mfu(model("gpt-2"), **RUN | bad)


def test_unknown_recompute_and_empty_batch():
    with pytest.raises(ValueError, match="selective"):
        training_flops(GPT, batch=1, seq=1, recompute="some")
    with pytest.raises(ValueError, match="batch"):
        forward_flops(GPT, batch=0, seq=1)


def test_roofline():
    h100 = accelerator("H100 SXM")
    ridge = h100.dense_flops["bf16"] / h100.memory_bandwidth
    assert attainable_flops(ridge / 2, h100) == pytest.approx(h100.dense_flops["bf16"] / 2)
    assert attainable_flops(ridge * 2, h100) == h100.dense_flops["bf16"]
    assert attainable_flops(0, h100) == 0
    intensities = np.array([ridge / 4, ridge, ridge * 4])
    np.testing.assert_allclose(attainable_flops(intensities, h100) / h100.dense_flops["bf16"], [0.25, 1, 1])
    assert attainable_flops(1e6, h100, dtype="fp8") == h100.dense_flops["fp8"]
    with pytest.raises(LookupError, match="bf16"):
        attainable_flops(1, h100, dtype="fp3")
    with pytest.raises(ValueError, match="intensity"):
        attainable_flops(-1, h100)


def test_training_seconds():
    """Llama 3 405B, 15.6T tokens on 16,384 GPUs at 400 TFLOP/s: 6·405e9·15.6e12 / (16384 · 4e14) s = 67 days."""
    seconds = training_seconds(405e9, 15.6e12, devices=16384, achieved_flops=400e12)
    assert seconds / 86400 == pytest.approx(66.95, abs=0.01)
    assert training_seconds(405e9, 15.6e12, devices=16384, achieved_flops=400e12, factor=8) == pytest.approx(seconds * 4 / 3)
    assert training_seconds(1e9, np.array([1e9, 2e9]), devices=1, achieved_flops=1.0).tolist() == [6e18, 1.2e19]
    assert training_seconds(10**12, 10**14, devices=1, achieved_flops=1) == 6e26
    with pytest.raises(ValueError, match="devices"):
        training_seconds(1, 1, devices=0, achieved_flops=1)
